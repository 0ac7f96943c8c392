//! Attacks by other users of the same machine, and hostile surroundings: sockets, environment, files, shared memory.
//!
//! The test starts copies of itself as victims and as attackers; the attackers run as user 65534. That needs root:
//! without it the tests are skipped with a message, except where `CI=true`: there they fail.
//!
//! `cargo test --test system -- --ignored --nocapture numbers_are_unpredictable` prints the entropy of QPN, PSN and
//! rkey.

mod captures;
mod environment;
mod numbers;
pub(crate) mod processes;
mod registry;
mod sockets;
