//! Checks that the system tests of shared memory find faults: they run with each fault, in a process of their own,
//! until one fails.
//!
//! `tests/faults/run links` prints which test finds which fault. `FAULT=GrantNotRevoked` tries only this one.
//! `RDMA_VERBS_FAULT=GrantNotRevoked tests/faults/run links access::` runs the tests with a fault.

#[path = "choice.rs"]
#[expect(dead_code, reason = "the faults are tried one after the other")]
mod choice;
#[path = "../../system/direct_access.rs"]
mod direct_access;
#[path = "own_tests.rs"]
mod own_tests;
#[path = "../../system/hold_host/processes.rs"]
#[allow(dead_code, reason = "most of it is for attacks")]
mod processes;
#[path = "../../system/shared_memory.rs"]
mod shared_memory;

/// Where the tests look for it.
mod hold_host {
    pub(crate) use super::processes;
}

use std::sync::Mutex;
use std::time::{Duration, Instant};

use rdma_verbs::fault::{self, Fault};

/// Tests that take longer are killed. Without a fault, all of them take 20 s.
const TIME_LIMIT: Duration = Duration::from_secs(240);

/// Returns the test that finds the fault.
fn hunt(fault: Fault) -> Option<String> {
    let begun = Instant::now();
    let found = run(&format!("{fault:?}"));
    println!("{fault:?}: {} ({:.0?})", found.as_deref().unwrap_or("NOT FOUND"), begun.elapsed());
    found
}

/// Runs the tests in a process with this fault, or none, until one fails. Returns that one.
fn run(fault: &str) -> Option<String> {
    // The tests use fixed addresses.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock();
    own_tests::run(&["direct_access::", "shared_memory::", "--test-threads=2"], fault, TIME_LIMIT)
}

#[test]
fn faults_are_found() {
    let start = Instant::now();
    let faults = choice::chosen(Fault::LINKS);
    let missed: Vec<Fault> = faults.iter().copied().filter(|fault| hunt(*fault).is_none()).collect();
    println!("links: planted {}, found {}, {:.0?}", faults.len(), faults.len() - missed.len(), start.elapsed());
    assert!(missed.is_empty(), "not found: {missed:?}");
}

/// Without a fault the tests pass, so the campaign finds the faults and not mistakes of the tests.
#[test]
fn nothing_is_found_without_a_fault() {
    if std::env::var(fault::VARIABLE).is_err() {
        assert_eq!(run(""), None);
    }
}
