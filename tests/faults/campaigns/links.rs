//! Checks that the system tests of shared memory find faults: each runs with a fault in processes of their own, which
//! inherit it.
//!
//! `tests/faults/run links` prints which test found which fault. `FAULT=GrantNotRevoked` tries only this one.
//! `RDMA_VERBS_FAULT=GrantNotRevoked tests/faults/run links access::` runs the tests with a fault.

#[path = "choice.rs"]
mod choice;
#[path = "../../system/direct_access.rs"]
mod direct_access;
#[path = "../../system/shared_memory.rs"]
mod shared_memory;

use std::process::{Command, Stdio};
use std::time::Instant;

use rdma_verbs::fault::{self, Fault};

/// Runs the tests in a process with the fault. Returns the first one that fails.
fn hunt(fault: Fault) -> Option<String> {
    let mut tests = Command::new(std::env::current_exe().expect("the path of this program"));
    tests.args(["direct_access::", "shared_memory::", "--test-threads=2"]).env(fault::VARIABLE, format!("{fault:?}"));
    tests.env("RUST_BACKTRACE", "0").stdin(Stdio::null()).stderr(Stdio::null());
    let output = tests.output().expect("this program can be started again");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let failed = said.lines().find_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
    let found = match failed {
        Some(test) => Some(test.to_owned()),
        None if output.status.success() => None,
        None => Some(format!("the end of the process, {}", output.status)),
    };
    println!("{fault:?}: {}", found.as_deref().unwrap_or("NOT FOUND"));
    found
}

#[test]
fn faults_are_found() {
    if std::env::var(fault::VARIABLE).is_ok() {
        return;
    }
    let start = Instant::now();
    // One after the other: each starts several processes.
    let found: Vec<_> = choice::chosen(Fault::LINKS).into_iter().map(|fault| (fault, hunt(fault))).collect();
    let missed: Vec<Fault> = found.iter().filter(|(_, said)| said.is_none()).map(|(fault, _)| *fault).collect();
    println!("links: planted {}, found {}, {:.0?}", found.len(), found.len() - missed.len(), start.elapsed());
    assert!(missed.is_empty(), "not found: {missed:?}");
}
