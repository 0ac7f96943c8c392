//! The back-off of a polling thread after an empty look: it looks again, yields the processor, or naps.
//!
//! A thread alone on its core continues at once after a yield (0.3 µs), and a peer that shares the core gets its turn.
//! So a poller yields often if another thread uses the yield, and now and then otherwise.
//!
//! But among threads that compute, each yield gives away a whole round of time slices, many milliseconds: then
//! connections time out although both ends are healthy. A thread that *sleeps* for a packet is scheduled first when it
//! arrives. So for a while after long yields, a thread naps on the sockets instead, or for a fixed time while the
//! packets that have arrived are for another thread to take.

use std::os::fd::AsFd;
use std::thread::{sleep, yield_now};
use std::time::Duration;

use super::policy::{NAP, PollerState};
use super::shard::Shard;
use crate::queue::thread_token;
use crate::sys::{involuntary_switches, wait_readable};

impl Shard {
    /// Backs off after an empty look of a polling thread.
    #[inline]
    pub(crate) fn idle(&self) {
        match self.policy.after_empty_look(thread_token(), || self.clock.now()) {
            PollerState::Polling | PollerState::Spinning => {}
            PollerState::Yielding { is_suspected } => self.yield_core(is_suspected),
            PollerState::Napping => self.nap(),
        }
    }

    fn yield_core(&self, is_suspected: bool) {
        let before = is_suspected.then(involuntary_switches);
        let took = self.yield_processor();
        let was_used = before.is_none_or(|before| involuntary_switches() != before);
        self.policy.note_yield(self.clock.now(), took, was_used);
    }

    /// Sleeps until a packet arrives, for the length of a nap at most. If that fails, the next empty look tries again.
    fn nap(&self) {
        let is_readable = wait_readable([self.sockets.as_fd()], Some(NAP)).is_ok_and(|[is_readable]| is_readable);
        // While another thread drives, this thread must not take the waiting packets: naps on the sockets would end at
        // once, one after the other, and the driver or a thread that waits to drive may need this core.
        if is_readable && self.lock.is_taken() {
            sleep(NAP);
        }
    }

    /// Returns how many polls may be skipped after an idle one.
    #[inline]
    pub(crate) fn polls_to_skip(&self) -> u32 {
        self.policy.take_skips()
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
        let long = Duration::from_millis(1);
        (0..2).for_each(|_| shard.policy.note_yield(start, long, true));
        shard.policy.note_event_visit(start);
        shard.idle();
        assert!(shard.clock.now() - start >= NAP);
    }
}
