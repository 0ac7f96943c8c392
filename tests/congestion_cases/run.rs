//! Measures rows, several at a time.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::row::{Outcome, Row};

/// Returns the outcome of the worst seed of each row.
pub(crate) fn run(rows: &[Row], seeds: u64, jobs: usize) -> Vec<Outcome> {
    let next = AtomicUsize::new(0);
    let outcomes: Mutex<Vec<Option<Outcome>>> = Mutex::new(rows.iter().map(|_| None).collect());
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(row) = rows.get(index) else { break };
                    let outcome = worst(row, seeds);
                    let (at, count) = (start.elapsed().as_secs(), rows.len());
                    eprintln!("{at:>5} s: {} of {count}: case {}, {}", index + 1, row.case, row.parameters);
                    outcomes.lock().expect("no panic while it is held")[index] = Some(outcome);
                }
            });
        }
    });
    let outcomes = outcomes.into_inner().expect("no panic while it was held");
    outcomes.into_iter().map(|outcome| outcome.expect("every row was measured")).collect()
}

fn worst(row: &Row, seeds: u64) -> Outcome {
    let outcomes = (1..=seeds).map(|seed| row.measure(seed));
    outcomes.min_by(|one, other| one.margin().total_cmp(&other.margin())).expect("one seed at least")
}
