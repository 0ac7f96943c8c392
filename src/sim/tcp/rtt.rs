//! Round trips and the retransmission timeout (RFC 6298, with the bounds of Linux).

use std::time::Duration;

/// Timeout before the first sample (RFC 6298, 2.1).
const INITIAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Minimum that the variation adds to the smoothed round trip: 200 ms in Linux, whereas RFC 6298 (2.4) sets a minimum
/// of 1 s for the whole timeout.
const LEAST_MARGIN: Duration = Duration::from_millis(200);
/// Maximum timeout, backoff included (RFC 6298, 2.5; Linux's value).
const MOST: Duration = Duration::from_secs(120);

/// Estimates of the round trip time.
#[derive(Clone, Debug, Default)]
pub(super) struct RoundTrip {
    smoothed: Option<Duration>,
    variation: Duration,
    least: Option<Duration>,
    /// Number of times that the timeout has doubled.
    backoff: u32,
}

impl RoundTrip {
    /// Updates the minimum round trip with a segment that was sent once. All such segments count, since the last ones
    /// that an acknowledgement covers did not wait for it.
    pub(super) fn note_least(&mut self, sample: Duration) {
        self.least = Some(self.least.map_or(sample, |least| least.min(sample)));
    }

    /// Updates the estimate with an acknowledgement's sample (RFC 6298, 2.2 and 2.3).
    pub(super) fn sample(&mut self, sample: Duration) {
        let Some(smoothed) = self.smoothed else {
            (self.smoothed, self.variation) = (Some(sample), sample / 2);
            return;
        };
        self.variation = self.variation * 3 / 4 + smoothed.abs_diff(sample) / 4;
        self.smoothed = Some(smoothed * 7 / 8 + sample / 8);
    }

    pub(super) fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    pub(super) fn least(&self) -> Option<Duration> {
        self.least
    }

    /// Returns the retransmission timeout, backoff included.
    pub(super) fn timeout(&self) -> Duration {
        let single =
            self.smoothed.map_or(INITIAL_TIMEOUT, |smoothed| smoothed + (self.variation * 4).max(LEAST_MARGIN));
        single.saturating_mul(1 << self.backoff.min(20)).min(MOST)
    }

    /// Ends the backoff when the left edge moves: with timestamps, every such acknowledgement yields a sample (RFC
    /// 6298, section 5).
    pub(super) fn reset_backoff(&mut self) {
        self.backoff = 0;
    }

    /// Whether the timer has expired since the left edge moved.
    pub(super) fn has_backed_off(&self) -> bool {
        self.backoff > 0
    }

    /// Doubles the timeout after an expiry (RFC 6298, 5.5).
    pub(super) fn back_off(&mut self) {
        self.backoff += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_estimate_follows_the_formula() {
        let mut round_trip = RoundTrip::default();
        assert_eq!(round_trip.timeout(), Duration::from_secs(1));
        round_trip.sample(800 * MS);
        assert_eq!((round_trip.smoothed(), round_trip.timeout()), (Some(800 * MS), 2_400 * MS));
        round_trip.sample(400 * MS);
        // RTTVAR = 3/4 * 400 + 1/4 * 400, SRTT = 7/8 * 800 + 1/8 * 400.
        assert_eq!((round_trip.smoothed(), round_trip.timeout()), (Some(750 * MS), 2_350 * MS));
    }

    #[test]
    fn the_timeout_has_a_floor_doubles_and_is_reset() {
        let mut round_trip = RoundTrip::default();
        (0..100).for_each(|_| round_trip.sample(MS));
        let timeout = round_trip.timeout();
        assert!((200 * MS..=202 * MS).contains(&timeout), "{timeout:?}");
        round_trip.back_off();
        round_trip.back_off();
        assert_eq!(round_trip.timeout(), timeout * 4);
        (0..40).for_each(|_| round_trip.back_off());
        assert_eq!(round_trip.timeout(), MOST);
        round_trip.reset_backoff();
        assert!(round_trip.timeout() <= 202 * MS);
    }
}
