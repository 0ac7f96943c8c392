//! What a polling thread does after an empty look: lets others have the processor.
//!
//! Alone on its core, a thread that yields goes on at once (0.2 µs), and a peer that shares the core gets its turn. But
//! among threads that compute, each yield gives away a whole round of time slices, many milliseconds: then connections
//! time out although both ends are well. A thread that *sleeps* for a packet is put first when it comes. So a thread
//! that had to wait long after a yield naps on the sockets for a while instead of yielding.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::yield_now;
use std::time::Duration;

use super::shard::Shard;
use super::sys::wait_readable;
use crate::types::Time;

/// A yield that took longer went through others' time slices.
const LONG_YIELD: Duration = Duration::from_micros(200);
/// How long after such a yield a core counts as crowded.
const CROWDED: Duration = Duration::from_millis(20);
/// Longest nap: what comes other than by packet waits so long. Less than a lease, which a napping poller keeps.
const NAP: Duration = Duration::from_micros(50);

/// Whether the core of a shard's pollers is crowded.
#[derive(Default)]
pub(super) struct Crowd {
    until: AtomicU64,
}

impl Crowd {
    /// Whether a thread had to wait long after a yield lately.
    #[inline]
    pub(super) fn is_present(&self, now: Time) -> bool {
        now.as_nanos() < self.until.load(Ordering::Relaxed)
    }

    fn note(&self, now: Time) {
        self.until.store((now + CROWDED).as_nanos(), Ordering::Relaxed);
    }
}

impl Shard {
    /// After an empty look by a thread that polls.
    #[inline]
    pub(crate) fn idle(&self) {
        if self.crowd.is_present(self.clock.now()) {
            // A failed nap is none; the next empty look tries again.
            let _ = wait_readable([self.sockets.as_fd()], Some(NAP));
        } else {
            self.yield_processor();
        }
    }

    /// Lets others have the processor, and notes whether they kept it.
    #[inline]
    pub(super) fn yield_processor(&self) {
        let before = self.clock.now();
        yield_now();
        let after = self.clock.now();
        if after - before >= LONG_YIELD {
            self.crowd.note(after);
        }
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
        shard.crowd.note(start);
        assert!(shard.crowd.is_present(start));
        shard.idle();
        assert!(shard.clock.now() - start >= NAP);
        assert!(!shard.crowd.is_present(start + CROWDED));
    }
}
