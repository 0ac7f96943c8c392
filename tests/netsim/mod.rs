//! The worlds of the simulator: reliable connections on faulty links, judged by an oracle that knows the expected
//! outcome of each request and a referee that watches the packets; and smaller worlds of shared receive queues,
//! windows, unreliable services, discoveries and connection managers. `tests/simulation.rs` and the campaign of faults
//! run them.

mod application;
mod connection_ends;
pub(crate) mod connections;
pub(crate) mod datagrams;
pub(crate) mod discoveries;
pub(crate) mod handshakes;
mod keys;
mod oracle;
mod pool;
mod referee;
pub(crate) mod shared;
mod store;
mod terms;
pub(crate) mod turns;
pub(crate) mod unreliable;
pub(crate) mod watch;
pub(crate) mod windows;
pub(crate) mod world;
