//! Checks that the tests of the connection manager find faults. Those of the campaign "connections" are switched on
//! while the world of connection managers runs, seed by seed, until it finds them. Those of the campaign "messages"
//! show only in a message that no manager sends, or in a field: the unit tests of `src/cm` must find them. These are
//! compiled here, with the manager itself, because all unit tests of the library take many times as long to compile;
//! for each fault they run in a process of their own.
//!
//! `tests/faults/run connections` prints which seed or which unit test found which fault. `FAULT=BacklogIgnored` tries
//! only this one. `RDMA_VERBS_FAULT=BacklogIgnored tests/faults/run connections cm::` runs the unit tests with a fault.

#[path = "choice.rs"]
mod choice;
/// The manager of the library once more, with its unit tests. Copies of bodies cause additional warnings.
#[allow(warnings)]
#[path = "../../../src/cm/mod.rs"]
mod cm;
#[path = "../../netsim/mod.rs"]
mod netsim;
#[path = "own_tests.rs"]
mod own_tests;

use std::time::{Duration, Instant};

use netsim::connections;
use netsim::watch::watched;
use netsim::world::Outcome;
use rdma_verbs::fault::{Fault, enable};
// `crate::fault`, `crate::types` and `crate::wire` of the manager.
use rdma_verbs::{fault, types, wire};

/// Number of seeds after which a fault counts as not found. Without a fault, a seed takes 2 ms.
const MOST_SEEDS: u64 = 1_000;
const SEEDS_WITHOUT_FAULT: u64 = 1_000;
/// Unit tests that take longer are killed. Without a fault, all of them take a second.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Returns the seed of the world that finds the fault, with its message.
fn hunt_in_world(fault: Fault) -> Option<String> {
    enable(Some(fault));
    let found = (1..=MOST_SEEDS).find_map(|seed| Some((seed, watched(|| connections::run(seed, false)).err()?)));
    enable(None);
    let (seed, said) = found?;
    let message = said.split_once('\n').map_or(&*said, |(_, message)| message);
    Some(format!("seed {seed}: {}", message.split_whitespace().collect::<Vec<_>>().join(" ")))
}

/// Returns the unit test that finds the fault.
fn hunt_with_messages(fault: Fault) -> Option<String> {
    let found = own_tests::run(&["cm::", "--test-threads=1"], &format!("{fault:?}"), TIME_LIMIT);
    found.map(|said| format!("unit tests: {said}"))
}

fn hunt(fault: Fault) -> Option<String> {
    let found = match Fault::MESSAGES.contains(&fault) {
        true => hunt_with_messages(fault),
        false => hunt_in_world(fault),
    };
    let said = found.as_deref().unwrap_or("NOT FOUND");
    println!("{fault:?}: {}", said.chars().take(140).collect::<String>());
    found
}

#[test]
fn faults_are_found() {
    let start = Instant::now();
    let faults = choice::chosen(&[Fault::CONNECTIONS, Fault::MESSAGES].concat());
    let found = choice::hunt_each(&faults, hunt);
    let missed: Vec<Fault> = found.iter().filter(|(_, said)| said.is_none()).map(|(fault, _)| *fault).collect();
    let (planted, found) = (faults.len(), faults.len() - missed.len());
    println!("connections: planted {planted}, found {found}, {:.0?}", start.elapsed());
    assert!(missed.is_empty(), "not found: {missed:?}");
}

/// Without a fault the seeds pass, so the campaign finds the faults and not mistakes of the world. The unit tests are
/// tests of this program as well.
#[test]
fn nothing_is_found_without_a_fault() {
    let mut total = Outcome::default();
    for seed in 1..=SEEDS_WITHOUT_FAULT {
        total.merge(&watched(|| connections::run(seed, false)).unwrap_or_else(|said| panic!("seed {seed}: {said}")));
    }
    assert!(total.packets > 100_000, "only {} packets", total.packets);
}
