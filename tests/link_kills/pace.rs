//! Whether processes get a processor: on a machine that is too busy, any timeout passes. The kernel says how long their
//! threads have been ready to run without one.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// A gap between two turns from which on the machine is too busy, if this thread waited for a processor meanwhile.
const GAP: Duration = Duration::from_millis(300);
/// Longest gap in which it waited for something else, for example for the lock of its shard.
const LONGEST_BLOCK: Duration = Duration::from_secs(2);
/// Effects of such a gap end within this time: eight tries, four times the least time of the longer timeout.
const AFTERMATH: Duration = Duration::from_millis(4 * 8 * 268);
/// A process whose threads have waited for this long in its life may have failed to answer all tries.
const STARVED: Duration = Duration::from_millis(300);

/// The turns of the main thread.
pub(crate) struct Pace {
    last: Instant,
    waited: Duration,
    starved_until: Option<Instant>,
}

/// Returns how long a thread has been ready to run without a processor.
fn waited(thread: &Path) -> Duration {
    let said = fs::read_to_string(thread.join("schedstat")).unwrap_or_default();
    Duration::from_nanos(said.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0))
}

fn this_thread_waited() -> Duration {
    waited(Path::new("/proc/thread-self"))
}

/// Returns how long a process has waited for a processor: the thread that has waited longest.
pub(crate) fn process_waited(id: u32) -> Duration {
    let threads = fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
    threads.map(|thread| waited(&thread.path())).max().unwrap_or_default()
}

/// Returns whether a process that has waited for this long may fail to answer.
pub(crate) fn is_starved(waited: Duration) -> bool {
    waited >= STARVED
}

impl Pace {
    pub(crate) fn new() -> Self {
        Self { last: Instant::now(), waited: this_thread_waited(), starved_until: None }
    }

    /// Notes a turn. Returns the time since the last one if it was too long although there was a processor.
    pub(crate) fn note_turn(&mut self) -> Option<Duration> {
        let gap = self.last.elapsed();
        let before = std::mem::replace(&mut self.waited, this_thread_waited());
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
