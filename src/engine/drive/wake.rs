//! Waking the shard's thread, and knowing whether that is needed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::sys::EventFd;
use crate::types::Time;

/// The shard's thread's alarm clock, as the others see it.
pub(super) struct Wake {
    event: EventFd,
    /// When the thread will look by itself; zero: it is awake or was called.
    wakes_at: AtomicU64,
}

impl Wake {
    /// Of a thread that was not started yet, and will look when it is.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { event: EventFd::new()?, wakes_at: AtomicU64::new(0) })
    }

    /// The thread: it will look at `time`, or when something arrives that it watches. Said while it holds the shard,
    /// or when it looks no earlier than somebody else promised to.
    pub(super) fn sleeps_until(&self, time: Time) {
        self.wakes_at.store(time.as_nanos(), Ordering::SeqCst);
    }

    /// The thread: it was called, and is awake. What was called out before is answered by looking after this.
    pub(super) fn is_awake(&self) {
        self.event.clear();
    }

    /// When the thread said that it will look.
    #[cfg(all(test, not(loom)))]
    pub(super) fn promised(&self) -> Time {
        Time::from_nanos(self.wakes_at.load(Ordering::SeqCst))
    }

    /// Anybody: somebody must look at `time` at the latest.
    #[inline]
    pub(super) fn needed_by(&self, time: Time) {
        if self.wakes_at.load(Ordering::SeqCst) > time.as_nanos() {
            self.call();
        }
    }

    /// Anybody: the thread shall look now. False: it cannot hear that, and may sleep for ever.
    pub(crate) fn call(&self) -> bool {
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
    use crate::engine::sys::wait_readable;

    fn was_called(wake: &Wake) -> bool {
        wait_readable([wake.as_fd()], Some(Duration::ZERO)).unwrap()[0]
    }

    #[test]
    fn thread_is_called_only_for_what_it_would_miss() {
        let wake = Wake::new().unwrap();
        wake.needed_by(Time::from_nanos(5));
        assert!(!was_called(&wake), "it is awake");
        wake.sleeps_until(Time::from_nanos(10));
        wake.needed_by(Time::from_nanos(10));
        assert!(!was_called(&wake), "it looks in time by itself");
        wake.needed_by(Time::from_nanos(9));
        assert!(was_called(&wake));
        wake.is_awake();
        wake.needed_by(Time::from_nanos(8));
        assert!(!was_called(&wake), "one call is enough");
    }
}
