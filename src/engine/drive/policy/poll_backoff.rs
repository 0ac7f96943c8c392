//! Decides when a polling thread yields, naps, or only makes a quick poll.
//!
//! A thread alone on its core continues at once after a yield (0.3 µs), and a peer that shares the core gets its turn.
//! So a poller yields often if another thread uses the yield, and now and then otherwise.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::constants::{
    CROWDED, LONG_YIELD, LOOKS_BETWEEN_YIELDS, MEMORY_LOOKS, QUICK_POLLS, USEFUL_YIELD, WITHOUT_PAUSE,
};
use crate::types::Time;

/// How the pollers of a shard share their core, and which passes they may skip.
#[derive(Default)]
pub(super) struct PollBackoff {
    /// Quick polls left before the next full pass.
    quick_polls: AtomicU32,
    /// Empty looks left before the next yield.
    looks: AtomicU32,
    last_long_yield: AtomicU64,
    until: AtomicU64,
    /// Looks are mostly at memory, not at sockets.
    looks_at_memory: AtomicBool,
}

impl PollBackoff {
    /// Returns whether the core counts as crowded, because two yields took long lately.
    #[inline]
    pub(super) fn is_crowded(&self, now: Time) -> bool {
        now.as_nanos() < self.until.load(Ordering::Relaxed)
    }

    /// Returns whether a quick poll is enough for this look.
    #[inline]
    pub(super) fn takes_quick_poll(&self) -> bool {
        let left = self.quick_polls.load(Ordering::Relaxed);
        self.quick_polls.store(left.saturating_sub(1), Ordering::Relaxed);
        left > 0
    }

    /// Notes a full pass, and the time since the previous one.
    #[inline]
    pub(super) fn note_visit(&self, since_last: Duration) {
        let quick_polls = if since_last < WITHOUT_PAUSE { self.looks(QUICK_POLLS) } else { 0 };
        self.quick_polls.store(quick_polls, Ordering::Relaxed);
    }

    /// Notes whether looks are mostly at memory, which costs a fraction of a system call.
    #[inline]
    pub(super) fn note_looks_at_memory(&self, at_memory: bool) {
        if self.looks_at_memory.load(Ordering::Relaxed) != at_memory {
            self.looks_at_memory.store(at_memory, Ordering::Relaxed);
        }
    }

    /// Returns the number of looks that take as long as this number of looks at sockets.
    #[inline]
    fn looks(&self, at_sockets: u32) -> u32 {
        if self.looks_at_memory.load(Ordering::Relaxed) { at_sockets * MEMORY_LOOKS } else { at_sockets }
    }

    /// Returns whether to yield after this empty look.
    #[inline]
    pub(super) fn is_yield_due(&self) -> bool {
        let left = self.looks.load(Ordering::Relaxed);
        self.looks.store(left.saturating_sub(1), Ordering::Relaxed);
        left == 0
    }

    /// Returns whether a yield took long lately.
    #[inline]
    pub(super) fn is_suspected(&self, now: Time) -> bool {
        let last = self.last_long_yield.load(Ordering::Relaxed);
        last != 0 && now.saturating_since(Time::from_nanos(last)) < 2 * CROWDED
    }

    /// Notes a yield that ended now; `was_used`: another thread had the core, as far as is known.
    pub(super) fn note_yield(&self, now: Time, took: Duration, was_used: bool) {
        self.looks.store(if took < USEFUL_YIELD { self.looks(LOOKS_BETWEEN_YIELDS) } else { 0 }, Ordering::Relaxed);
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
    fn core_is_crowded_for_a_while_after_two_long_yields() {
        let (backoff, start) = (PollBackoff::default(), Time::from_nanos(1_000));
        (0..2).for_each(|_| backoff.note_yield(start, LONG_YIELD, true));
        let last = start + (CROWDED - Duration::from_nanos(1));
        assert!(backoff.is_crowded(last) && !backoff.is_crowded(start + CROWDED));
        assert!(backoff.is_suspected(start + CROWDED) && !backoff.is_suspected(start + 2 * CROWDED));
    }

    #[test]
    fn unused_yields_become_rare() {
        let backoff = PollBackoff::default();
        let yields = |looks: u32| (0..looks).filter(|_| backoff.is_yield_due()).count();
        assert_eq!(yields(5), 5);
        backoff.note_yield(Time::from_nanos(1), Duration::ZERO, true);
        assert_eq!(yields(LOOKS_BETWEEN_YIELDS), 0);
        assert_eq!(yields(1), 1);
        backoff.note_yield(Time::from_nanos(2), USEFUL_YIELD, true);
        assert_eq!(yields(1), 1);
    }

    #[test]
    fn looks_at_memory_count_less() {
        let backoff = PollBackoff::default();
        backoff.note_looks_at_memory(true);
        backoff.note_yield(Time::from_nanos(1), Duration::ZERO, true);
        let least = LOOKS_BETWEEN_YIELDS * MEMORY_LOOKS;
        assert_eq!((0..=least).position(|_| backoff.is_yield_due()), Some(least as usize));
        backoff.note_visit(Duration::ZERO);
        let quick = QUICK_POLLS * MEMORY_LOOKS;
        assert_eq!((0..=quick).position(|_| !backoff.takes_quick_poll()), Some(quick as usize));
        backoff.note_looks_at_memory(false);
        backoff.note_visit(Duration::ZERO);
        assert_eq!((0..quick).position(|_| !backoff.takes_quick_poll()), Some(QUICK_POLLS as usize));
    }
}
