//! The engine's clock: the only module that reads the time.

use std::time::Duration;

use super::time::{monotonic_nanos, thread_nanos};
use crate::types::Time;

/// A monotonic clock. Its times start at 1 when it is created, so that zero may stand for "never".
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: u64,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self { start: monotonic_nanos() - 1 }
    }

    /// Returns the current time.
    #[inline]
    pub(crate) fn now(&self) -> Time {
        Time::from_nanos(monotonic_nanos() - self.start)
    }
}

/// Returns the timestamp for completions: nanoseconds of the system's monotonic clock.
#[inline]
pub(crate) fn timestamp() -> u64 {
    monotonic_nanos()
}

/// Returns the time for which the calling thread has had a processor.
pub(crate) fn thread_time() -> Duration {
    Duration::from_nanos(thread_nanos())
}
