//! Points in time as the protocol core sees them: an argument, never read from a clock.

use std::ops::{Add, Sub};
use std::time::Duration;

/// A point in time: nanoseconds since an epoch that the engine (or the simulator) chose. Never runs backwards within
/// one engine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time(u64);

impl Time {
    /// The epoch itself.
    pub const ZERO: Time = Time(0);
    /// Later than any time that is reached (584 years).
    pub const NEVER: Time = Time(u64::MAX);

    /// Returns the time `nanoseconds` after [`Time::ZERO`].
    pub const fn from_nanos(nanoseconds: u64) -> Self {
        Self(nanoseconds)
    }

    /// Returns the nanoseconds since [`Time::ZERO`].
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the earliest of the times that are `Some`.
    #[inline]
    pub fn earliest<const COUNT: usize>(times: [Option<Time>; COUNT]) -> Option<Time> {
        let earliest = times.into_iter().fold(Time::NEVER, |earliest, time| earliest.min(time.unwrap_or(Time::NEVER)));
        (earliest != Time::NEVER).then_some(earliest)
    }

    /// Returns the time elapsed since `earlier`; zero if this is not later.
    pub const fn saturating_since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Time;

    fn add(self, duration: Duration) -> Time {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Time(self.0.saturating_add(nanoseconds))
    }
}

impl Sub<Time> for Time {
    type Output = Duration;

    fn sub(self, earlier: Time) -> Duration {
        self.saturating_since(earlier)
    }
}
