//! Whether the first process gets the processor: on a machine that is too busy, any timeout passes.

use std::fs;
use std::time::{Duration, Instant};

/// A gap between two turns from which on the machine is too busy, if this thread waited for a processor meanwhile.
const GAP: Duration = Duration::from_millis(300);
/// Longest gap in which it waited for something else.
const LONGEST_BLOCK: Duration = Duration::from_secs(5);
/// Effects of such a gap, for example on retries, end within this time.
const AFTERMATH: Duration = Duration::from_secs(20);

/// The turns of the main thread.
pub(crate) struct Pace {
    last: Instant,
    waited: Duration,
    starved_until: Option<Instant>,
}

/// Returns how long this thread has been ready to run without a processor.
fn waited() -> Duration {
    let said = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(said.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0))
}

impl Pace {
    pub(crate) fn new() -> Self {
        Self { last: Instant::now(), waited: waited(), starved_until: None }
    }

    /// Notes a turn. Returns the time since the last one if it was too long although there was a processor.
    pub(crate) fn note_turn(&mut self) -> Option<Duration> {
        let gap = self.last.elapsed();
        let before = std::mem::replace(&mut self.waited, waited());
        self.last = Instant::now();
        if gap >= GAP && self.waited.saturating_sub(before) >= gap / 2 {
            self.starved_until = Some(self.last + AFTERMATH);
            return None;
        }
        (gap > LONGEST_BLOCK).then_some(gap)
    }

    pub(crate) fn is_starved(&self) -> bool {
        self.starved_until.is_some_and(|until| Instant::now() < until)
    }
}
