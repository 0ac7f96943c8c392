//! How slow this processor is, so that durations that stand for its work are not taken for pauses.

use std::time::Duration;

/// Duration of a short system call on the processors for which the constants were measured.
const USUAL_CALL: Duration = Duration::from_nanos(400);
/// Largest factor: emulated processors take 10 to 50 times as long.
const LARGEST: u32 = 16;

/// The factor by which steps take longer than on the processors for which the constants were measured; at least 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slowness(u32);

impl Slowness {
    /// Returns the slowness of a processor on which a short system call takes this long. A factor of 2 changes nothing:
    /// so far the margins of the constants suffice.
    pub(crate) fn of_short_call(took: Duration) -> Self {
        let factor = took.as_nanos() / USUAL_CALL.as_nanos();
        Self(factor.clamp(1, u128::from(LARGEST)) as u32)
    }

    /// Returns the duration on this processor of steps that usually take this long.
    pub(super) fn scale(self, usual: Duration) -> Duration {
        if self.0 <= 2 { usual } else { usual * self.0 }
    }
}

impl Default for Slowness {
    /// The usual speed.
    fn default() -> Self {
        Self(1)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_processors_that_are_slow_by_far_change_durations() {
        let scaled =
            |took: u64| Slowness::of_short_call(Duration::from_nanos(took)).scale(Duration::from_micros(1)).as_micros();
        assert_eq!([0, 150, 400, 1_199].map(scaled), [1; 4]);
        assert_eq!([1_200, 4_000, 6_400].map(scaled), [3, 10, 16]);
        assert_eq!(scaled(u64::MAX), 16, "it was interrupted each time");
    }
}
