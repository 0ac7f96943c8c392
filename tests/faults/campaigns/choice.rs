//! Selects the faults of a campaign, and tries them on all processors.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use rdma_verbs::fault::Fault;

/// Returns the fault of this name.
///
/// # Panics
/// If there is no such fault; the message lists all.
pub(crate) fn named(variable: &str, name: &str, all: &[Fault]) -> Fault {
    let found = all.iter().find(|fault| format!("{fault:?}") == name);
    *found.unwrap_or_else(|| panic!("{variable} is {name:?}, which is none of these faults: {all:?}"))
}

/// Returns the fault that `FAULT` names; or those of the part that `FAULT_PART` names, as in 1/2; or all.
///
/// # Panics
/// If there is no such fault or part.
pub(crate) fn chosen(all: &[Fault]) -> Vec<Fault> {
    if let Ok(name) = std::env::var("FAULT") {
        return vec![named("FAULT", &name, all)];
    }
    let Ok(part) = std::env::var("FAULT_PART") else { return all.to_vec() };
    let numbers = part.split_once('/').and_then(|(part, parts)| Some((part.parse().ok()?, parts.parse().ok()?)));
    let (part, parts): (usize, usize) = numbers.unwrap_or_default();
    assert!((1..=parts).contains(&part), "FAULT_PART is {part}/{parts}; the first half is 1/2");
    all.iter().skip(part - 1).step_by(parts).copied().collect()
}

/// Hunts each of these faults, as many at a time as there are processors. Returns the results, in any order.
///
/// # Panics
/// If a hunt panics.
pub(crate) fn hunt_each<T: Send>(
    faults: &[Fault],
    hunt: impl Fn(Fault) -> Option<T> + Sync,
) -> Vec<(Fault, Option<T>)> {
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(2, |threads| threads.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(&fault) = faults.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let seen = hunt(fault);
                    found.lock().expect("no panic while it is held").push((fault, seen));
                }
            });
        }
    });
    found.into_inner().expect("no panic while it was held")
}
