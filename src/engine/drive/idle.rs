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
use std::thread::{sleep, yield_now};
use std::time::Duration;

use super::poll_backoff::NAP;
use super::shard::Shard;
use crate::engine::sys::{involuntary_switches, wait_readable};
use crate::queue::thread_token;

impl Shard {
    /// Backs off after an empty look of a polling thread.
    #[inline]
    pub(crate) fn idle(&self) {
        self.contention.note_poll(thread_token());
        let is_crowded = self.poll_backoff.is_crowded(self.lease.last_visit());
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
        } else if self.poll_backoff.takes_turn() {
            let before = self.poll_backoff.is_suspected(self.lease.last_visit()).then(involuntary_switches);
            let took = self.yield_processor();
            let was_used = before.is_none_or(|before| involuntary_switches() != before);
            self.poll_backoff.note_yield(self.clock.now(), took, was_used);
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
    use super::super::poll_backoff::{CROWDED, LONG_YIELD};
    use super::super::tests::shard;
    use super::*;

    #[test]
    fn poller_naps_while_the_core_is_crowded() {
        let shard = shard();
        let start = shard.clock.now();
        shard.poll_backoff.note_yield(start, LONG_YIELD, true);
        assert!(shard.poll_backoff.is_suspected(start) && !shard.poll_backoff.is_crowded(start), "once proves nothing");
        shard.poll_backoff.note_yield(start, LONG_YIELD, false);
        assert!(!shard.poll_backoff.is_crowded(start), "no other thread had the core");
        shard.poll_backoff.note_yield(start, LONG_YIELD, true);
        assert!(shard.poll_backoff.is_crowded(start));
        shard.lease.visit(start);
        shard.idle();
        assert!(shard.clock.now() - start >= NAP);
        assert!(!shard.poll_backoff.is_crowded(start + CROWDED));
    }
}
