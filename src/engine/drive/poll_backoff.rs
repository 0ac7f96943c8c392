//! When a thread that polls makes way for others, and when a quick poll will do for it.
//!
//! Alone on its core, a thread that yields goes on at once (0.3 µs), and a peer that shares the core gets its turn. So
//! a poller yields often if another thread uses that, and now and then otherwise.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::types::Time;

/// Empty looks between two yields that nobody made use of.
const LOOKS: u32 = 32;
/// A yield that took longer was made use of.
pub(super) const USEFUL_YIELD: Duration = Duration::from_nanos(1_500);
/// A yield that took longer went through others' time slices.
pub(super) const LONG_YIELD: Duration = Duration::from_micros(500);
/// How long after such yields a core counts as crowded. One alone proves nothing: the machine itself may have been
/// away. After it the kernel is asked, for twice as long, whether another thread had the core.
pub(super) const CROWDED: Duration = Duration::from_millis(20);
/// Longest nap: what comes other than by packet waits so long, and a packet that somebody else was about to take. Less
/// than a lease, which a napping poller keeps.
pub(super) const NAP: Duration = Duration::from_micros(50);

/// Glances between two whole looks of a thread that polls without a pause.
const GLANCES: u32 = 7;
/// Looks that follow each other sooner than this are without a pause. Even with all glances in between, the next whole
/// look comes before a lease ends.
const WITHOUT_PAUSE: Duration = Duration::from_micros(30);

/// Who else wants the core of a shard's pollers, and what these may leave out.
#[derive(Default)]
pub(super) struct PollBackoff {
    /// Glances left before the next whole look.
    glances: AtomicU32,
    /// Empty looks left before the next yield.
    looks: AtomicU32,
    last_long_yield: AtomicU64,
    until: AtomicU64,
}

impl PollBackoff {
    /// Whether threads had to wait long after their yields lately.
    #[inline]
    pub(super) fn is_present(&self, now: Time) -> bool {
        now.as_nanos() < self.until.load(Ordering::Relaxed)
    }

    /// Whether a glance will do for this look.
    #[inline]
    pub(super) fn glances(&self) -> bool {
        let left = self.glances.load(Ordering::Relaxed);
        self.glances.store(left.saturating_sub(1), Ordering::Relaxed);
        left > 0
    }

    /// A whole look, so long after the one before.
    #[inline]
    pub(super) fn note_visit(&self, since_last: Duration) {
        self.glances.store(if since_last < WITHOUT_PAUSE { GLANCES } else { 0 }, Ordering::Relaxed);
    }

    /// Whether this empty look is one after which to yield.
    #[inline]
    pub(super) fn takes_turn(&self) -> bool {
        let left = self.looks.load(Ordering::Relaxed);
        self.looks.store(left.saturating_sub(1), Ordering::Relaxed);
        left == 0
    }

    /// Whether a yield took long lately.
    #[inline]
    pub(super) fn is_suspected(&self, now: Time) -> bool {
        let last = self.last_long_yield.load(Ordering::Relaxed);
        last != 0 && now.saturating_since(Time::from_nanos(last)) < 2 * CROWDED
    }

    /// After a yield that ended now, in which another thread had the core as far as is known.
    pub(super) fn note_yield(&self, now: Time, took: Duration, was_used: bool) {
        self.looks.store(if took < USEFUL_YIELD { LOOKS } else { 0 }, Ordering::Relaxed);
        if took >= LONG_YIELD && was_used {
            if self.is_suspected(now) {
                self.until.store((now + CROWDED).as_nanos(), Ordering::Relaxed);
            }
            self.last_long_yield.store(now.as_nanos(), Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn yields_that_nobody_uses_become_rare() {
        let backoff = PollBackoff::default();
        let turns = |looks: u32| (0..looks).filter(|_| backoff.takes_turn()).count();
        assert_eq!(turns(5), 5);
        backoff.note_yield(Time::from_nanos(1), Duration::ZERO, true);
        assert_eq!(turns(LOOKS), 0);
        assert_eq!(turns(1), 1);
        backoff.note_yield(Time::from_nanos(2), USEFUL_YIELD, true);
        assert_eq!(turns(1), 1);
    }
}
