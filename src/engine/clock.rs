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
        let elapsed = self.start.elapsed();
        Time::from_nanos(elapsed.as_secs() * 1_000_000_000 + u64::from(elapsed.subsec_nanos()))
    }
}
