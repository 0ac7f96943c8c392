//! Where a device is known to differ from the standard: the table `deviations.txt`, and what it means for a scenario.

use std::cell::Cell;
use std::collections::BTreeMap;

use rdma_verbs::verbs;

const TABLE: &str = include_str!("deviations.txt");
const KERNEL: &str = "/proc/sys/kernel/osrelease";

thread_local! {
    static DEVIATING: Cell<bool> = const { Cell::new(false) };
}

/// The scenario of this thread is known to end otherwise than the standard says.
pub(crate) fn set_deviating() {
    DEVIATING.set(true);
}

/// Whether the scenario of this thread is.
pub(crate) fn is_deviating() -> bool {
    DEVIATING.get()
}

/// A row of the table.
pub(crate) struct Deviation {
    provider: &'static str,
    kernel: &'static str,
    pub(crate) scenario: &'static str,
    /// Part of what the scenario says when it fails; several possibilities are separated by ` || `.
    pub(crate) instead: &'static str,
}

/// All rows: `provider | kernel | scenario | clause | what comes instead`.
fn rows() -> impl Iterator<Item = Deviation> {
    let lines = TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| {
        let columns: Vec<&str> = line.splitn(5, " | ").map(str::trim).collect();
        let [provider, kernel, scenario, clause, instead] = columns[..] else {
            panic!("deviations.txt: five columns are needed: {line}");
        };
        assert!(provider != "soft", "deviations.txt: the software device has none: {line}");
        assert!(!clause.is_empty() && !instead.is_empty(), "deviations.txt: an empty column: {line}");
        Deviation { provider, kernel, scenario, instead }
    })
}

/// The rows for this device on this kernel, by scenario.
pub(crate) fn known(device: &str, scenarios: &[&str]) -> BTreeMap<&'static str, Deviation> {
    let provider = verbs::devices().ok().and_then(|devices| devices.into_iter().find(|found| found.name() == device));
    let provider = provider.map_or("soft", |found| found.provider_name());
    let release = std::fs::read_to_string(KERNEL).unwrap_or_default();
    let is_of = |kernel: &str| release.strip_prefix(kernel).is_some_and(|rest| rest.starts_with(['.', '-']));
    let mut known = BTreeMap::new();
    for row in rows() {
        assert!(scenarios.contains(&row.scenario), "deviations.txt names {}, which does not exist", row.scenario);
        if row.provider == provider && (row.kernel == "all" || is_of(row.kernel)) {
            known.insert(row.scenario, row);
        }
    }
    known
}
