//! Wake-ups of the shard's thread, only when they are needed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sys::EventFd;
use crate::types::Time;

/// The wake-up state of the shard's thread, as other threads see it.
pub(super) struct Wake {
    event: EventFd,
    /// Time of the thread's next pass without a call; 0: it is awake or was called.
    wakes_at: AtomicU64,
}

impl Wake {
    /// Creates the state of a thread that has not started yet; it makes a pass when it starts.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { event: EventFd::new()?, wakes_at: AtomicU64::new(0) })
    }

    /// Publishes that the thread will make a pass at `time`, or when something that it watches is readable. Called by
    /// the thread while it holds the shard, or with a time no later than the one published before or than the end of
    /// the lease: drivers do not need the thread earlier.
    pub(super) fn sleeps_until(&self, time: Time) {
        self.wakes_at.store(time.as_nanos(), Ordering::SeqCst);
    }

    /// Consumes the calls that woke the thread. Its next pass, after this, handles all of them.
    pub(super) fn clear_calls(&self) {
        self.event.clear();
    }

    /// Returns the published time of the thread's next pass.
    #[cfg(all(test, not(loom)))]
    pub(super) fn promised(&self) -> Time {
        Time::from_nanos(self.wakes_at.load(Ordering::SeqCst))
    }

    /// Calls the thread unless it makes a pass by `time` anyway. Any thread may use this.
    #[inline]
    pub(super) fn call_if_needed_by(&self, time: Time) {
        if self.wakes_at.load(Ordering::SeqCst) > time.as_nanos() {
            self.call();
        }
    }

    /// Calls the thread to make a pass now. Any thread may use this. Returns false if the call cannot reach it, so that
    /// it may sleep forever.
    pub(super) fn call(&self) -> bool {
        self.wakes_at.store(0, Ordering::SeqCst);
        self.event.signal()
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::sys::wait_readable;

    fn was_called(wake: &Wake) -> bool {
        wait_readable([wake.as_fd()], Some(Duration::ZERO)).unwrap()[0]
    }

    #[test]
    fn thread_is_called_only_for_work_before_its_next_pass() {
        let wake = Wake::new().unwrap();
        wake.call_if_needed_by(Time::from_nanos(5));
        assert!(!was_called(&wake), "it is awake");
        wake.sleeps_until(Time::from_nanos(10));
        wake.call_if_needed_by(Time::from_nanos(10));
        assert!(!was_called(&wake), "it looks in time by itself");
        wake.call_if_needed_by(Time::from_nanos(9));
        assert!(was_called(&wake));
        wake.clear_calls();
        wake.call_if_needed_by(Time::from_nanos(8));
        assert!(!was_called(&wake), "one call is enough");
    }
}
