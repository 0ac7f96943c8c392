//! What a polling thread does after an empty look: looks again, or lets others have the processor.
//!
//! Alone on its core, a thread that yields goes on at once (0.3 µs), and a peer that shares the core gets its turn. So
//! it yields often if somebody takes the turn, and now and then otherwise.
//!
//! But among threads that compute, each yield gives away a whole round of time slices, many milliseconds: then
//! connections time out although both ends are well. A thread that *sleeps* for a packet is put first when it comes. So
//! a thread that had to wait long after its yields naps on the sockets for a while instead, and by the clock while what
//! has arrived is somebody else's to take.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread::{sleep, yield_now};
use std::time::Duration;

use super::shard::Shard;
use super::sys::{involuntary_switches, wait_readable};
use crate::queue::thread_token;
use crate::types::Time;

/// Empty looks between two yields that nobody made use of.
const LOOKS: u32 = 32;
/// A yield that took longer was made use of.
pub(super) const USEFUL_YIELD: Duration = Duration::from_nanos(1_500);
/// A yield that took longer went through others' time slices.
const LONG_YIELD: Duration = Duration::from_micros(500);
/// How long after such yields a core counts as crowded. One alone proves nothing: the machine itself may have been
/// away. After it the kernel is asked, for twice as long, whether another thread had the core.
const CROWDED: Duration = Duration::from_millis(20);
/// Longest nap: what comes other than by packet waits so long, and a packet that somebody else was about to take. Less
/// than a lease, which a napping poller keeps.
const NAP: Duration = Duration::from_micros(50);

/// Glances between two whole looks of a thread that polls without a pause.
const GLANCES: u32 = 7;
/// Looks that follow each other sooner than this are without a pause. Even with all glances in between, the next whole
/// look comes before a lease ends.
const WITHOUT_PAUSE: Duration = Duration::from_micros(30);

/// Who else wants the core of a shard's pollers, and what these may leave out.
#[derive(Default)]
pub(super) struct Crowd {
    /// Glances left before the next whole look.
    glances: AtomicU32,
    /// Empty looks left before the next yield.
    looks: AtomicU32,
    last_long_yield: AtomicU64,
    until: AtomicU64,
}

impl Crowd {
    /// Whether threads had to wait long after their yields lately.
    #[inline]
    fn is_present(&self, now: Time) -> bool {
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
    fn takes_turn(&self) -> bool {
        let left = self.looks.load(Ordering::Relaxed);
        self.looks.store(left.saturating_sub(1), Ordering::Relaxed);
        left == 0
    }

    /// Whether a yield took long lately.
    #[inline]
    fn is_suspected(&self, now: Time) -> bool {
        let last = self.last_long_yield.load(Ordering::Relaxed);
        last != 0 && now.saturating_since(Time::from_nanos(last)) < 2 * CROWDED
    }

    /// After a yield that ended now, in which another thread had the core as far as is known.
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
    /// After an empty look by a thread that polls.
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
            // A failed nap is none; the next empty look tries again.
            let is_readable = wait_readable([self.sockets.as_fd()], Some(NAP)).is_ok_and(|[is_readable]| is_readable);
            // While somebody else drives, packets lie there that this thread must not take: naps on the sockets end at
            // once, one after the other, and whoever drives or wants to may be waiting for this very core.
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

    /// After an idle poll: how many polls may be left out.
    #[inline]
    pub(crate) fn polls_to_skip(&self) -> u32 {
        if self.contention.spins() { self.contention.take_skips() } else { 0 }
    }

    /// Lets others have the processor. How long they had it.
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
        assert!(!shard.crowd.is_present(start), "nobody had the core");
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
