//! Many seeds of each world of the simulator.
//!
//! `cargo test --test simulation campaign::` runs them. With more seeds: `cargo test --test simulation -- --ignored
//! many_seeds share_its_window --nocapture`, which prints how often each event happened. A failing seed prints the
//! command that replays it with a trace of every packet: `NETSIM_SEED=123 cargo test --test simulation replay --
//! --nocapture`. Long runs: `NETSIM_SEEDS=100000 cargo test --release --test simulation -- --ignored long_campaign
//! --nocapture`, and likewise with `long_traces`, which runs every seed twice.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::netsim::watch::{run_watched, watched};
use super::netsim::world::{Outcome, run};
use super::netsim::{connections, datagrams, discoveries, handshakes, shared, turns, unreliable, windows};

/// Numbers of seeds, unless `NETSIM_SEEDS` sets another: enough that each event is frequent, and a part of these for
/// every `cargo test`.
const SEEDS: u64 = 2_200;
const SOME_SEEDS: u64 = 300;
/// Number of seeds of the smaller worlds: unreliable connections, shared receive queues.
const SMALL_SEEDS: u64 = 600;
/// Kinds of events of the main world, all of which occur in the smaller number of seeds.
const KINDS_OF_EVENTS: usize = 34;
const MINIMUM_PACKETS: u64 = 10_000_000;
const MINIMUM_OF_EACH_EVENT: u64 = 100;
/// Disturbances that last long, and so are rarer than the protocol's reactions to them.
const LASTING: [&str; 5] = ["response shortened", "clock jump", "crowd", "host stopped", "restart in traffic"];
const MINIMUM_OF_LASTING: u64 = 10;
/// Number of seeds that run twice; long runs set more.
const TWICE: u64 = 200;
const LONG_TWICE: u64 = 10_000;
const LONG_SEEDS: u64 = 100_000;
/// Interval of the progress reports of a long run.
const REPORT_EVERY: Duration = Duration::from_secs(20);

/// Runs a seed, and prints every packet if asked to.
type World = fn(u64, bool) -> Outcome;

/// The smaller worlds, by the variables that name a seed to replay.
const SMALL: [(&str, World); 7] = [
    ("NETSIM_UNRELIABLE_SEED", unreliable::run),
    ("NETSIM_SHARED_SEED", shared::run),
    ("NETSIM_DATAGRAM_SEED", datagrams::run),
    ("NETSIM_WINDOW_SEED", windows::run),
    ("NETSIM_TURNS_SEED", turns::run),
    ("NETSIM_DISCOVERY_SEED", discoveries::run),
    ("NETSIM_CONNECTION_SEED", connections::run),
];

fn number_from(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// The accumulated outcome of many seeds.
#[derive(Default)]
struct Campaign {
    outcome: Outcome,
    seeds: u64,
    failures: Vec<u64>,
    reported: Duration,
}

impl Campaign {
    fn print_speed(&self, start: Instant) {
        let seconds = start.elapsed().as_secs_f64();
        let hours = self.outcome.simulated.as_secs_f64() / 3_600.0;
        println!(
            "netsim: {} seeds, {} packets, {} failures, {seconds:.0} s; {:.1} seeds/s, {hours:.1} simulated hours, \
             {:.3} simulated hours/s",
            self.seeds,
            self.outcome.packets,
            self.failures.len(),
            self.seeds as f64 / seconds,
            hours / seconds
        );
    }

    fn note(&mut self, seed: u64, result: Result<Outcome, String>) {
        self.seeds += 1;
        match result {
            Ok(outcome) => self.outcome.merge(&outcome),
            Err(said) => {
                println!("seed {seed}: {said}");
                println!("replay with: NETSIM_SEED={seed} cargo test --test simulation replay -- --nocapture");
                self.failures.push(seed);
            }
        }
    }
}

/// Runs `judge` for the seeds on all processors (or on `NETSIM_THREADS` threads); adds up the events.
fn campaign(count: u64, reports: bool, judge: impl Fn(u64) -> Result<Outcome, String> + Sync) -> Campaign {
    let start = Instant::now();
    let first = number_from("NETSIM_FIRST").unwrap_or(1);
    let next = AtomicU64::new(first);
    let total = Mutex::new(Campaign::default());
    let processors = std::thread::available_parallelism().map_or(2, |threads| threads.get() as u64);
    std::thread::scope(|scope| {
        for _ in 0..number_from("NETSIM_THREADS").unwrap_or(processors) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        return;
                    }
                    let result = judge(seed);
                    let mut total = total.lock().expect("no panic while it is held");
                    total.note(seed, result);
                    if reports && start.elapsed() >= total.reported + REPORT_EVERY {
                        total.reported = start.elapsed();
                        total.print_speed(start);
                    }
                }
            });
        }
    });
    let total = total.into_inner().expect("no panic while it was held");
    total.print_speed(start);
    total
}

fn print_table(events: &BTreeMap<&'static str, u64>) {
    for (name, count) in events {
        println!("  {name:<28} {count:>10}");
    }
}

fn expect_no_failures(campaign: &Campaign) {
    let failures = &campaign.failures;
    assert!(failures.is_empty(), "{} of {} seeds failed: {failures:?}", failures.len(), campaign.seeds);
}

/// Returns the seed's outcome if a second run leaves the same trace.
fn run_twice(seed: u64) -> Result<Outcome, String> {
    for (name, world) in SMALL {
        let [one, other] = [(); 2].map(|()| watched(|| world(seed, false)));
        if one?.trace_hash != other?.trace_hash {
            return Err(format!("a second run left another trace in the world of {name}"));
        }
    }
    let (one, other) = (run_watched(seed)?, run_watched(seed)?);
    if one.trace_hash == other.trace_hash { Ok(one) } else { Err("a second run left another trace".to_owned()) }
}

#[test]
fn some_seeds_keep_every_promise() {
    let campaign = campaign(number_from("NETSIM_SEEDS").unwrap_or(SOME_SEEDS), false, run_watched);
    expect_no_failures(&campaign);
    let kinds = campaign.outcome.events.len();
    assert!(kinds >= KINDS_OF_EVENTS, "only {kinds} kinds of events: {:?}", campaign.outcome.events);
}

#[test]
#[ignore = "takes a minute, for the gate"]
fn many_seeds_keep_every_promise() {
    let campaign = campaign(number_from("NETSIM_SEEDS").unwrap_or(SEEDS), false, run_watched);
    print_table(&campaign.outcome.events);
    expect_no_failures(&campaign);
    assert!(campaign.outcome.packets >= MINIMUM_PACKETS, "only {} packets", campaign.outcome.packets);
    let least = |name: &str| if LASTING.contains(&name) { MINIMUM_OF_LASTING } else { MINIMUM_OF_EACH_EVENT };
    let rare: Vec<_> = campaign.outcome.events.iter().filter(|(name, count)| **count < least(name)).collect();
    assert!(rare.is_empty(), "too rare to be tested: {rare:?}");
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    expect_no_failures(&campaign(TWICE, false, run_twice));
}

#[test]
#[ignore = "takes many minutes: NETSIM_SEEDS says how many seeds"]
fn long_campaign() {
    let campaign = campaign(number_from("NETSIM_SEEDS").unwrap_or(LONG_SEEDS), true, run_watched);
    print_table(&campaign.outcome.events);
    expect_no_failures(&campaign);
}

#[test]
#[ignore = "takes many minutes: NETSIM_SEEDS says how many seeds"]
fn long_traces() {
    let campaign = campaign(number_from("NETSIM_SEEDS").unwrap_or(LONG_TWICE), true, run_twice);
    println!("netsim: {} of {} seeds left the same trace twice", campaign.seeds, campaign.seeds);
    expect_no_failures(&campaign);
}

/// A change that keeps the behavior keeps the traces: compare the output of two builds.
#[test]
#[ignore = "prints the trace hashes of NETSIM_SEEDS seeds"]
fn traces() {
    for seed in 0..number_from("NETSIM_SEEDS").unwrap_or(LONG_TWICE) {
        println!("seed {seed}: trace {:#018x}", run(seed, false).trace_hash);
    }
}

/// Runs many seeds of a smaller world, and requires that each event that it counts is frequent.
fn judge_small(world: World) {
    judge(world, SMALL_SEEDS);
}

fn judge(world: World, seeds: u64) {
    let count = number_from("NETSIM_SEEDS").unwrap_or(seeds);
    let campaign = campaign(count, false, |seed| watched(|| world(seed, false)));
    print_table(&campaign.outcome.events);
    expect_no_failures(&campaign);
    let rare: Vec<_> = campaign.outcome.events.iter().filter(|(_, count)| **count < MINIMUM_OF_EACH_EVENT).collect();
    assert!(rare.is_empty(), "too rare to be tested: {rare:?}");
}

#[test]
fn unreliable_messages_are_whole_in_order_and_never_twice() {
    judge_small(unreliable::run);
}

#[test]
fn shared_receives_complete_once_and_are_never_missed() {
    judge_small(shared::run);
}

#[test]
fn datagrams_are_whole_or_absent() {
    judge_small(datagrams::run);
}

#[test]
fn nothing_passes_a_key_that_was_revoked() {
    judge_small(windows::run);
}

#[test]
#[ignore = "takes half a minute, for the gate"]
fn queue_pairs_with_a_common_peer_share_its_window() {
    // Without faults, a waiting queue pair rarely has packets in flight that request no acknowledgement.
    judge(turns::run, 3 * SMALL_SEEDS);
}

#[test]
fn native_peers_discover_each_other_and_nothing_is_lost() {
    judge_small(discoveries::run);
}

#[test]
fn connections_are_set_up_at_both_ends_or_at_neither() {
    judge_small(connections::run);
}

#[test]
fn connections_are_set_up_at_a_loss_of_30_percent() {
    let (whole, failed, count) = handshakes::many_handshakes(10_000, 1);
    println!("of {count} handshakes {whole} are set up, {failed} failed at both ends");
    assert!(whole >= 9_990 && whole + failed == count, "{whole} set up, {failed} failed");
}

#[test]
fn replay() {
    for (variable, world) in SMALL {
        if let Some(seed) = number_from(variable) {
            print_table(&world(seed, true).events);
        }
    }
    if let Some(seed) = number_from("NETSIM_SEED") {
        let outcome = run(seed, true);
        println!("seed {seed}: {} packets, trace {:#018x}", outcome.packets, outcome.trace_hash);
        print_table(&outcome.events);
    }
}
