//! Checks that the simulator finds faults: each fault is switched on, and seeds run until the oracle finds it.
//!
//! `tests/faults/run simulator` prints at which seed each fault was found, and the message. `FAULT=FenceIgnored` tries
//! only this one.

#[path = "choice.rs"]
mod choice;

#[path = "../../netsim/mod.rs"]
mod netsim;

use std::time::{Duration, Instant};

use netsim::watch::{run_watched, watched};
use netsim::world::Outcome;
use netsim::{datagrams, discoveries, shared, turns, unreliable, windows};
use rdma_verbs::fault::{Fault, enable};

/// Number of seeds after which a fault counts as not found.
const MOST_SEEDS: u64 = 1_000;
/// Number of faults that may remain unfound, and the largest median of the seeds of the others.
const MOST_MISSED: usize = 3;
const LARGEST_MEDIAN: u64 = 100;

/// Faults of the verbs that the simulator's shared receive queues must find as well.
const OF_SHARED_RECEIVES: &[Fault] = &[
    Fault::SharedQueueOneShort,
    Fault::SharedLimitReachedTooEarly,
    Fault::SharedLimitStaysArmed,
    Fault::SharedLimitNotAnnounced,
    Fault::SharedResizeForgets,
    Fault::SharedResizeMixesUp,
    Fault::ErrorFlushesShared,
    Fault::HalfFilledNotFlushed,
    Fault::XrcQueueKept,
    Fault::XrcCompletesAtTarget,
    Fault::XrcDomainOfTarget,
];
/// The smaller worlds.
const SMALL: [fn(u64, bool) -> Outcome; 6] =
    [unreliable::run, shared::run, datagrams::run, windows::run, turns::run, discoveries::run];

/// Returns the failure of the first world that fails with this seed.
fn break_of(seed: u64) -> Option<String> {
    let small = || SMALL.iter().find_map(|world| watched(|| world(seed, false)).err());
    small().or_else(|| run_watched(seed).err())
}

/// Returns the seed that finds the fault.
fn hunt(fault: Fault) -> Option<u64> {
    enable(Some(fault));
    let found = (1..=MOST_SEEDS).find_map(|seed| break_of(seed).map(|said| (seed, said)));
    enable(None);
    match &found {
        Some((seed, said)) => println!("{fault:?}: found at seed {seed}: {}", summary(said)),
        None => println!("{fault:?}: NOT FOUND in {MOST_SEEDS} seeds"),
    }
    Some(found?.0)
}

/// Returns the message of a panic as one short line.
fn summary(said: &str) -> String {
    let message = said.split_once('\n').map_or(said, |(_, message)| message);
    let one_line: String = message.split_whitespace().collect::<Vec<_>>().join(" ");
    one_line.chars().take(110).collect()
}

#[test]
fn faults_are_found() {
    let start = Instant::now();
    let faults = choice::chosen(&[Fault::PROTOCOL, OF_SHARED_RECEIVES].concat());
    let table = choice::hunt_each(&faults, hunt);
    let mut seeds: Vec<u64> = table.iter().filter_map(|(_, seed)| *seed).collect();
    seeds.sort_unstable();
    let median = seeds.get(seeds.len() / 2).copied().unwrap_or(MOST_SEEDS);
    let (planted, found) = (table.len(), seeds.len());
    println!("simulator: planted {planted}, found {found}, median {median} seeds, {:.0?}", start.elapsed());
    assert!(found + MOST_MISSED >= planted, "only {found} of {planted} faults were found");
    assert!(median <= LARGEST_MEDIAN, "the median of {median} seeds is larger than {LARGEST_MEDIAN}");
}

/// Without a fault the first seeds pass, so the campaign finds the faults and not mistakes of the oracle.
#[test]
fn nothing_is_found_without_a_fault() {
    let mut total = Outcome::default();
    for seed in 1..=60 {
        total.merge(&run_watched(seed).unwrap_or_else(|said| panic!("seed {seed}: {said}")));
        for world in SMALL {
            total.merge(&watched(|| world(seed, false)).unwrap_or_else(|said| panic!("seed {seed}: {said}")));
        }
    }
    assert!(total.packets > 100_000 && total.simulated > Duration::from_secs(1), "only {} packets", total.packets);
}
