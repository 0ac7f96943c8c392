//! The simulator's power: each planted bug is switched on, and seeds are run until the oracle finds it.
//!
//! `cargo test --release --features mutations --test mutations -- --nocapture` prints which bug was found at which
//! seed, and by what. `MUTATION=FenceIgnored` tries one of them only.

#[path = "../netsim/application.rs"]
mod application;
#[path = "../netsim/datagrams.rs"]
mod datagrams;
#[path = "../netsim/keys.rs"]
mod keys;
#[path = "../netsim/oracle.rs"]
mod oracle;
#[path = "../netsim/pool.rs"]
mod pool;
#[path = "../netsim/referee.rs"]
mod referee;
#[path = "../netsim/shared.rs"]
mod shared;
#[path = "../netsim/store.rs"]
mod store;
#[path = "../netsim/terms.rs"]
mod terms;
#[path = "../netsim/turns.rs"]
mod turns;
#[path = "../netsim/unreliable.rs"]
mod unreliable;
#[path = "../netsim/watch.rs"]
mod watch;
#[path = "../netsim/windows.rs"]
mod windows;
#[path = "../netsim/world.rs"]
mod world;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rdma_verbs::mutation::{Mutation, plant};
use watch::{run_watched, watched};
use world::Outcome;

/// Seeds after which a bug counts as not found.
const MOST_SEEDS: u64 = 1_000;
/// Bugs that may remain unfound, and the median of the seeds that the others may take.
const MOST_MISSED: usize = 3;
const LARGEST_MEDIAN: u64 = 100;

/// Of the verbs' planted bugs those that the simulator's shared receive queues must find as well.
const OF_SHARED_RECEIVES: &[Mutation] = &[
    Mutation::SharedQueueOneShort,
    Mutation::SharedLimitReachedTooEarly,
    Mutation::SharedLimitStaysArmed,
    Mutation::SharedLimitNotAnnounced,
    Mutation::SharedResizeForgets,
    Mutation::SharedResizeMixesUp,
    Mutation::ErrorFlushesShared,
    Mutation::HalfFilledNotFlushed,
    Mutation::XrcQueueKept,
    Mutation::XrcCompletesAtTarget,
    Mutation::XrcDomainOfTarget,
];
/// The smaller worlds.
const SMALL: [fn(u64, bool) -> Outcome; 5] = [unreliable::run, shared::run, datagrams::run, windows::run, turns::run];

/// What breaks in the first of the worlds in which something does, with this seed.
fn break_of(seed: u64) -> Option<String> {
    let small = || SMALL.iter().find_map(|world| watched(|| world(seed, false)).err());
    small().or_else(|| run_watched(seed).err())
}

/// The seed that finds the bug, and what it said.
fn hunt(mutation: Mutation) -> Option<(u64, String)> {
    plant(Some(mutation));
    let found = (1..=MOST_SEEDS).find_map(|seed| break_of(seed).map(|said| (seed, said)));
    plant(None);
    found
}

fn chosen() -> Vec<Mutation> {
    let only = std::env::var("MUTATION").ok();
    let is_chosen = |mutation: &Mutation| only.as_ref().is_none_or(|name| *name == format!("{mutation:?}"));
    Mutation::ALL.iter().chain(OF_SHARED_RECEIVES).copied().filter(is_chosen).collect()
}

/// The message of a panic on one short line.
fn summary(said: &str) -> String {
    let message = said.split_once('\n').map_or(said, |(_, message)| message);
    let one_line: String = message.split_whitespace().collect::<Vec<_>>().join(" ");
    one_line.chars().take(110).collect()
}

#[test]
fn planted_bugs_are_found() {
    let start = Instant::now();
    let mutations = chosen();
    assert!(!mutations.is_empty(), "MUTATION names none of the planted bugs");
    let next = AtomicUsize::new(0);
    let table = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(2, |threads| threads.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(mutation) = mutations.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = hunt(*mutation);
                    match &found {
                        Some((seed, said)) => println!("{mutation:?}: found at seed {seed}: {}", summary(said)),
                        None => println!("{mutation:?}: NOT FOUND in {MOST_SEEDS} seeds"),
                    }
                    table.lock().expect("no panic while it is held").push(found.map(|found| found.0));
                }
            });
        }
    });
    let table = table.into_inner().expect("no panic while it was held");
    let mut seeds: Vec<u64> = table.iter().flatten().copied().collect();
    seeds.sort_unstable();
    let median = seeds.get(seeds.len() / 2).copied().unwrap_or(MOST_SEEDS);
    let (planted, found) = (table.len(), seeds.len());
    println!("mutations: planted {planted}, found {found}, median {median} seeds, {:.0?}", start.elapsed());
    assert!(found + MOST_MISSED >= planted, "only {found} of {planted} planted bugs were found");
    assert!(median <= LARGEST_MEDIAN, "the median of {median} seeds is larger than {LARGEST_MEDIAN}");
}

/// Without a bug the first seeds are fine: it is the bugs that are found, not the oracle's own mistakes.
#[test]
fn nothing_is_found_where_nothing_is_planted() {
    let mut total = Outcome::default();
    for seed in 1..=60 {
        total.merge(&run_watched(seed).unwrap_or_else(|said| panic!("seed {seed}: {said}")));
        for world in SMALL {
            total.merge(&watched(|| world(seed, false)).unwrap_or_else(|said| panic!("seed {seed}: {said}")));
        }
    }
    assert!(total.packets > 100_000 && total.simulated > Duration::from_secs(1), "only {} packets", total.packets);
}
