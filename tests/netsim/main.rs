//! Simulation of reliable connections on faulty links, judged by an oracle that knows what each request must do.
//!
//! `cargo test --test netsim` runs many seeds and prints what happened how often. A failing seed prints the command
//! that replays it with a trace of every packet: `NETSIM_SEED=123 cargo test --test netsim replay -- --nocapture`.

mod application;
mod oracle;
mod referee;
mod store;
mod terms;
mod world;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use world::{Outcome, run};

/// Seeds of a run; `NETSIM_SEEDS` asks for more.
const SEEDS: u64 = 1_200;
const MINIMUM_PACKETS: u64 = 10_000_000;
const MINIMUM_OF_EACH_EVENT: u64 = 100;

fn number_from(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Runs seeds on all processors; adds up what happened.
fn campaign(first: u64, count: u64) -> (Outcome, Vec<u64>) {
    let next = AtomicU64::new(first);
    let total = Mutex::new((Outcome::default(), Vec::new()));
    let threads = std::thread::available_parallelism().map_or(2, |threads| threads.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        return;
                    }
                    let outcome = catch_unwind(AssertUnwindSafe(|| run(seed, false)));
                    let mut total = total.lock().unwrap();
                    match outcome {
                        Ok(outcome) => total.0.merge(&outcome),
                        Err(_) => total.1.push(seed),
                    }
                }
            });
        }
    });
    total.into_inner().unwrap()
}

fn print_table(events: &BTreeMap<&'static str, u64>) {
    for (name, count) in events {
        println!("  {name:<28} {count:>10}");
    }
}

#[test]
fn many_seeds_keep_every_promise() {
    let start = Instant::now();
    let count = number_from("NETSIM_SEEDS").unwrap_or(SEEDS);
    let (outcome, failures) = campaign(1, count);
    println!("netsim: {count} seeds, {} packets, {:.0?}", outcome.packets, start.elapsed());
    print_table(&outcome.events);
    for seed in &failures {
        println!("replay with: NETSIM_SEED={seed} cargo test --test netsim replay -- --nocapture");
    }
    assert!(failures.is_empty(), "{} of {count} seeds failed: {failures:?}", failures.len());
    assert!(outcome.packets >= MINIMUM_PACKETS, "only {} packets", outcome.packets);
    let rare: Vec<_> = outcome.events.iter().filter(|(_, count)| **count < MINIMUM_OF_EACH_EVENT).collect();
    assert!(rare.is_empty(), "too rare to be tested: {rare:?}");
}

#[test]
fn replay() {
    if let Some(seed) = number_from("NETSIM_SEED") {
        let outcome = run(seed, true);
        println!("seed {seed}: {} packets, trace {:#018x}", outcome.packets, outcome.trace_hash);
        print_table(&outcome.events);
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in 1..=100 {
        assert_eq!(run(seed, false).trace_hash, run(seed, false).trace_hash, "seed {seed}");
    }
}
