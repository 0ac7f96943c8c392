//! The engine's clock: the only place that reads the time.

use std::time::Instant;

use crate::types::Time;

/// A monotonic clock. Its times begin when it is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now() }
    }

    /// The time now.
    #[inline]
    pub(crate) fn now(&self) -> Time {
        // Within 584 years.
        Time::from_nanos(self.start.elapsed().as_nanos() as u64)
    }
}
