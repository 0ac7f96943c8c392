//! The engine's clock: the only place that reads the time.

use super::time::monotonic_nanos;
use crate::types::Time;

/// A monotonic clock. Its times begin when it is made, at 1: zero may stand for "never".
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: u64,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self { start: monotonic_nanos() - 1 }
    }

    /// The time now.
    #[inline]
    pub(crate) fn now(&self) -> Time {
        Time::from_nanos(monotonic_nanos() - self.start)
    }
}

/// Nanoseconds of the system's monotonic clock: what completions are stamped with.
#[inline]
pub(crate) fn timestamp() -> u64 {
    monotonic_nanos()
}
