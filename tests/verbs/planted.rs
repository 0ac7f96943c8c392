//! The suite with a planted bug: how `tests/conformance_mutations` runs it.

use std::time::Duration;

use rdma_verbs::mutation::{Mutation, plant_everywhere};

/// Names the bug that this process shall have.
pub(crate) const PLANTED: &str = "RDMA_VERBS_PLANTED";
/// With a bug, whoever waits waits in vain; without one, no scenario takes a tenth of this.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(4);

/// Plants the bug that the environment names, if it names one.
pub(crate) fn plant_from_environment() {
    let Ok(name) = std::env::var(PLANTED) else { return };
    let all = || Mutation::ALL.iter().chain(Mutation::OF_VERBS);
    let found = all().find(|mutation| format!("{mutation:?}") == name);
    plant_everywhere(*found.unwrap_or_else(|| panic!("{PLANTED} is {name}, which is no planted bug")));
}

/// Whether this process has a bug.
pub(crate) fn is_planted() -> bool {
    std::env::var_os(PLANTED).is_some()
}
