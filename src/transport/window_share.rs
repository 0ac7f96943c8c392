//! The window of a peer address, as the queue pairs that have it share it.

use std::sync::atomic::{AtomicU32, Ordering};

/// The part of a peer address's window that is in use, and who waits for more. All changes are made under the shard's
/// lock, so none needs a read-modify-write.
#[derive(Default, Debug)]
pub(super) struct WindowShare {
    in_flight: AtomicU32,
    waiters: AtomicU32,
}

impl WindowShare {
    /// Packets in flight, of all of them.
    #[inline]
    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// One of them has more or fewer in flight.
    #[inline]
    pub(super) fn change_in_flight(&self, before: u32, now: u32) {
        let all = self.in_flight();
        self.in_flight.store(all.wrapping_add(now).wrapping_sub(before), Ordering::Relaxed);
    }

    pub(super) fn set_waiters(&self, waiters: usize) {
        self.waiters.store(waiters as u32, Ordering::Relaxed);
    }

    /// Whether a queue pair waits.
    #[inline]
    pub(super) fn has_waiters(&self) -> bool {
        self.waiters.load(Ordering::Relaxed) > 0
    }
}
