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
use std::thread::{sleep, yield_now};
use std::time::Duration;

use super::poll_backoff::NAP;
use super::shard::Shard;
use crate::engine::sys::{involuntary_switches, wait_readable};
use crate::queue::thread_token;

impl Shard {
    /// After an empty look by a thread that polls.
    #[inline]
    pub(crate) fn idle(&self) {
        self.contention.note_poll(thread_token());
        let is_crowded = self.poll_backoff.is_present(self.lease.last_visit());
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
        } else if self.poll_backoff.takes_turn() {
            let before = self.poll_backoff.is_suspected(self.lease.last_visit()).then(involuntary_switches);
            let took = self.yield_processor();
            let was_used = before.is_none_or(|before| involuntary_switches() != before);
            self.poll_backoff.note_yield(self.clock.now(), took, was_used);
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
    use super::super::poll_backoff::{CROWDED, LONG_YIELD};
    use super::super::tests::shard;
    use super::*;

    #[test]
    fn poller_naps_while_the_core_is_crowded() {
        let shard = shard();
        let start = shard.clock.now();
        shard.poll_backoff.note_yield(start, LONG_YIELD, true);
        assert!(shard.poll_backoff.is_suspected(start) && !shard.poll_backoff.is_present(start), "once proves nothing");
        shard.poll_backoff.note_yield(start, LONG_YIELD, false);
        assert!(!shard.poll_backoff.is_present(start), "nobody had the core");
        shard.poll_backoff.note_yield(start, LONG_YIELD, true);
        assert!(shard.poll_backoff.is_present(start));
        shard.lease.visit(start);
        shard.idle();
        assert!(shard.clock.now() - start >= NAP);
        assert!(!shard.poll_backoff.is_present(start + CROWDED));
    }
}
