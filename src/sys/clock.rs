//! The engine's clock: the only module that reads the time.

use super::time::monotonic_nanos;
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
