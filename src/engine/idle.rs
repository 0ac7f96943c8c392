//! The back-off of a polling thread after an empty look: it looks again, or yields the processor.
//!
//! Alone on its core, a thread that yields continues at once (0.3 µs), and a peer that shares the core gets its turn.
//! So it yields often if another thread uses the yield, and now and then otherwise.
//!
//! But among threads that compute, each yield gives away a whole round of time slices, many milliseconds: then
//! connections time out although both ends are well. A thread that *sleeps* for a packet is scheduled first when it
//! arrives. So after long yields a thread naps on the sockets for a while instead, and by the clock while the packets
//! that have arrived are for another thread to take.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread::{sleep, yield_now};
use std::time::Duration;

use super::shard::Shard;
use super::sys::{involuntary_switches, wait_readable};
use crate::queue::thread_token;
use crate::types::Time;

/// Empty looks between two yields that no other thread used.
const LOOKS: u32 = 32;
/// A yield that took this long was used by another thread.
pub(super) const USEFUL_YIELD: Duration = Duration::from_nanos(1_500);
/// A yield that took this long went through other threads' time slices.
const LONG_YIELD: Duration = Duration::from_micros(500);
/// Time that a core counts as crowded after such yields. One alone proves nothing: the machine itself may have been
/// paused. After it, the kernel is queried for twice as long whether another thread had the core.
const CROWDED: Duration = Duration::from_millis(20);
/// Longest nap. Everything but packets waits this long, and so does a packet that another thread was about to take.
/// Less than the longest pause of a busy poller, so that a napping poller keeps its lease.
const NAP: Duration = Duration::from_micros(50);

/// Quick polls between two full passes of a thread that polls without a pause.
const GLANCES: u32 = 7;
/// Looks that follow each other sooner than this are without a pause. Even with all quick polls in between, the next
/// full pass comes before a lease ends.
const WITHOUT_PAUSE: Duration = Duration::from_micros(30);

/// The back-off state of a shard's pollers: whether others want the core, and which looks may be quick polls.
#[derive(Default)]
pub(super) struct Crowd {
    /// Quick polls left before the next full pass.
    glances: AtomicU32,
    /// Empty looks left before the next yield.
    looks: AtomicU32,
    last_long_yield: AtomicU64,
    until: AtomicU64,
}

impl Crowd {
    /// Returns whether yields took long lately.
    #[inline]
    fn is_present(&self, now: Time) -> bool {
        now.as_nanos() < self.until.load(Ordering::Relaxed)
    }

    /// Returns whether a quick poll is enough for this look.
    #[inline]
    pub(super) fn glances(&self) -> bool {
        let left = self.glances.load(Ordering::Relaxed);
        self.glances.store(left.saturating_sub(1), Ordering::Relaxed);
        left > 0
    }

    /// Notes a full pass, and the time since the previous one.
    #[inline]
    pub(super) fn note_visit(&self, since_last: Duration) {
        self.glances.store(if since_last < WITHOUT_PAUSE { GLANCES } else { 0 }, Ordering::Relaxed);
    }

    /// Returns whether to yield after this empty look.
    #[inline]
    fn takes_turn(&self) -> bool {
        let left = self.looks.load(Ordering::Relaxed);
        self.looks.store(left.saturating_sub(1), Ordering::Relaxed);
        left == 0
    }

    /// Returns whether a yield took long lately.
    #[inline]
    fn is_suspected(&self, now: Time) -> bool {
        let last = self.last_long_yield.load(Ordering::Relaxed);
        last != 0 && now.saturating_since(Time::from_nanos(last)) < 2 * CROWDED
    }

    /// Notes a yield that ended now; `was_used`: another thread had the core, as far as is known.
    fn note_yield(&self, now: Time, took: Duration, was_used: bool) {
        self.looks.store(if took < USEFUL_YIELD { LOOKS } else { 0 }, Ordering::Relaxed);
        if took >= LONG_YIELD && was_used {
            if self.is_suspected(now) {
                self.until.store((now + CROWDED).as_nanos(), Ordering::Relaxed);
            }
            self.last_long_yield.store(now.as_nanos(), Ordering::Relaxed);
        }
    }
}

impl Shard {
    /// Backs off after an empty look of a polling thread.
    #[inline]
    pub(crate) fn idle(&self) {
        self.contention.note_poll(thread_token());
        let is_crowded = self.crowd.is_present(self.lease.last_visit());
        if is_crowded || self.contention.spins() {
            let now = self.clock.now();
            if !self.contention.allows_sleep(now) {
                return self.contention.note_look(now);
            }
        }
        if is_crowded {
            // A failed nap is skipped; the next empty look tries again.
            let is_readable = wait_readable([self.sockets.as_fd()], Some(NAP)).is_ok_and(|[is_readable]| is_readable);
            // While another thread drives, packets wait that this thread must not take: naps on the sockets end at
            // once, one after the other, and the driver or a thread that waits to drive may need this very core.
            if is_readable && self.lock.is_taken() {
                sleep(NAP);
            }
        } else if self.crowd.takes_turn() {
            let before = self.crowd.is_suspected(self.lease.last_visit()).then(involuntary_switches);
            let took = self.yield_processor();
            let was_used = before.is_none_or(|before| involuntary_switches() != before);
            self.crowd.note_yield(self.clock.now(), took, was_used);
        }
    }

    /// Returns how many polls may be skipped after an idle one.
    #[inline]
    pub(crate) fn polls_to_skip(&self) -> u32 {
        if self.contention.spins() { self.contention.take_skips() } else { 0 }
    }

    /// Yields the processor. Returns for how long.
    pub(super) fn yield_processor(&self) -> Duration {
        let before = self.clock.now();
        yield_now();
        self.clock.now() - before
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::tests::shard;
    use super::*;

    #[test]
    fn poller_naps_while_the_core_is_crowded() {
        let shard = shard();
        let start = shard.clock.now();
        shard.crowd.note_yield(start, LONG_YIELD, true);
        assert!(shard.crowd.is_suspected(start) && !shard.crowd.is_present(start), "once proves nothing");
        shard.crowd.note_yield(start, LONG_YIELD, false);
        assert!(!shard.crowd.is_present(start), "no other thread had the core");
        shard.crowd.note_yield(start, LONG_YIELD, true);
        assert!(shard.crowd.is_present(start));
        shard.lease.visit(start);
        shard.idle();
        assert!(shard.clock.now() - start >= NAP);
        assert!(!shard.crowd.is_present(start + CROWDED));
    }

    #[test]
    fn yields_that_nobody_uses_become_rare() {
        let crowd = Crowd::default();
        let turns = |looks: u32| (0..looks).filter(|_| crowd.takes_turn()).count();
        assert_eq!(turns(5), 5);
        crowd.note_yield(Time::from_nanos(1), Duration::ZERO, true);
        assert_eq!(turns(LOOKS), 0);
        assert_eq!(turns(1), 1);
        crowd.note_yield(Time::from_nanos(2), USEFUL_YIELD, true);
        assert_eq!(turns(1), 1);
    }
}
