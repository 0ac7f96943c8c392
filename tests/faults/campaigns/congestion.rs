//! Checks that the congestion cases find faults: each fault of congestion control is switched on, and cases are
//! measured until one misses a mark that it reaches without the fault, or is clearly farther from it.
//!
//! `tests/faults/run congestion` prints which fault was found by which case. `FAULT=LossesIgnored` tries only this one.

#[path = "choice.rs"]
mod choice;

#[path = "../../congestion_cases/cases/mod.rs"]
mod cases;
#[path = "../../congestion_cases/row.rs"]
mod row;
#[path = "../../congestion_cases/scene.rs"]
mod scene;
#[path = "../../networks/world.rs"]
mod world;

use std::sync::OnceLock;
use std::time::Instant;

use rdma_verbs::fault::{Fault, enable};
use row::{Bound, Check, Outcome, Row};

const SEED: u64 = 1;
/// A rate or a share below this fraction of its value without the fault is clearly worse, and so is a value with an
/// upper bound that grows by more than this fraction of its mark.
const LESS: f64 = 0.9;
const MORE: f64 = 0.25;
/// Rows that take a second or two each, the most effective ones first.
const ROWS: &[(u8, &str)] = &[
    (9, "1 stream, 1 Gbit/s, 1 ms, marks from 1 BDP"),
    (9, "4 streams, 1 Gbit/s, 1 ms, marks from 0.2 BDP"),
    (1, "1 Gbit/s, 1 ms, queue 1 BDP"),
    (1, "1 Gbit/s, 20 ms, queue 1 BDP"),
    (6, "1 Gbit/s, 1 ms, 1 % lost"),
    (6, "1 Gbit/s, 1 ms, 5 % lost"),
    (13, "1 Gbit/s, 1 ms, burst 64 KiB"),
    (4, "after 30 epochs of 200 ms, 1 Gbit/s, 1 ms"),
    (2, "16 hosts, 1 Gbit/s, 1 ms, queue 200 kB"),
    (10, "64 KiB each, WRITE, 1 Gbit/s, queue 200 kB"),
    (17, "1 to 0.1 to 1 Gbit/s, 1 ms"),
    (5, "1 and 1, 1 Gbit/s, 1 ms, queue 1 BDP"),
    (16, "1 Gbit/s, 1 ms, queue 4 BDP"),
    (5, "4 and 4, 1 Gbit/s, 1 ms, queue 1 BDP"),
];

/// A row, and its outcome without a fault once it is measured.
struct Sound {
    row: Row,
    outcome: OnceLock<Outcome>,
}

impl Sound {
    fn outcome(&self) -> &Outcome {
        self.outcome.get_or_init(|| self.row.measure(SEED))
    }
}

/// Returns the rows of the list, in its order.
fn rows() -> Vec<Sound> {
    let mut all = cases::all();
    let find = |(case, parameters): &(u8, &str)| {
        let is_it = |row: &Row| row.case == *case && row.parameters == *parameters;
        let index = all.iter().position(is_it).unwrap_or_else(|| panic!("case {case} has no row {parameters:?}"));
        Sound { row: all.swap_remove(index), outcome: OnceLock::new() }
    };
    ROWS.iter().map(find).collect()
}

/// Returns whether a value newly misses its mark, or is clearly worse.
fn is_worse(before: &Check, now: &Check) -> bool {
    let is_clear = match now.bound {
        Bound::AtLeast(_) | Bound::Between(..) => now.value < LESS * before.value,
        // Such a value counts events that must not happen; their number is random.
        Bound::AtMost(0.0) => false,
        Bound::AtMost(most) => now.value > before.value + MORE * most,
    };
    is_clear || before.passes() && !now.passes()
}

/// Describes the first value that is worse.
fn difference(sound: &Outcome, outcome: &Outcome) -> Option<String> {
    let pairs = sound.checks.iter().zip(&outcome.checks);
    let (before, now) = pairs.into_iter().find(|(before, now)| is_worse(before, now))?;
    Some(format!("{} instead of {}, and the mark is {}", now.measured(), before.measured(), before.mark()))
}

/// Returns the first row that finds the fault, with the difference.
fn hunt(fault: Fault, sound: &[Sound]) -> Option<String> {
    let found = sound.iter().find_map(|sound| {
        let (row, before) = (&sound.row, sound.outcome());
        enable(Some(fault));
        let outcome = row.measure(SEED);
        enable(None);
        Some(format!("case {}, {}: {}", row.case, row.parameters, difference(before, &outcome)?))
    });
    println!("{fault:?}: {}", found.as_deref().unwrap_or("NOT FOUND"));
    found
}

#[test]
fn faults_are_found() {
    let start = Instant::now();
    let sound = rows();
    let faults = choice::chosen(Fault::CONGESTION);
    let found = choice::hunt_each(&faults, |fault| hunt(fault, &sound));
    let missed: Vec<Fault> = found.iter().filter(|(_, seen)| seen.is_none()).map(|(fault, _)| *fault).collect();
    let (planted, found) = (faults.len(), faults.len() - missed.len());
    println!("congestion: planted {planted}, found {found}, {:.0?}", start.elapsed());
    assert!(missed.is_empty(), "not found: {missed:?}");
}
