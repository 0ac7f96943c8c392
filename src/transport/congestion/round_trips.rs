//! The shortest round trip of a path.

use std::time::Duration;

use crate::types::Time;

/// How long a round trip is trusted to be the path's; it is forgotten after at most twice this time, because the path
/// may have changed (BBR trusts one for 10 s: draft-ietf-ccwg-bbr, `MinRTTFilterLen`).
const SHORTEST_VALIDITY: Duration = Duration::from_secs(10);

/// The shortest round trip of this period and of the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::transport) struct ShortestRoundTrip {
    began: Time,
    current: Option<Duration>,
    before: Option<Duration>,
}

impl ShortestRoundTrip {
    /// Records a round trip.
    pub(in crate::transport) fn note(&mut self, now: Time, measured: Duration) {
        if now.saturating_since(self.began) >= SHORTEST_VALIDITY {
            (self.before, self.current, self.began) = (self.current, None, now);
        }
        self.current = Some(self.current.map_or(measured, |current| current.min(measured)));
    }

    /// Returns the shortest round trip.
    pub(in crate::transport) fn get(&self) -> Option<Duration> {
        [self.current, self.before].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_one_is_forgotten_after_a_while() {
        let mut shortest = ShortestRoundTrip::default();
        assert_eq!(shortest.get(), None);
        let mut after = |seconds, milliseconds| {
            shortest.note(Time::ZERO + Duration::from_secs(seconds), Duration::from_millis(milliseconds));
            shortest.get().map(|shortest| shortest.as_millis())
        };
        assert_eq!([after(1, 5), after(2, 3), after(3, 9)], [Some(5), Some(3), Some(3)]);
        assert_eq!([after(12, 8), after(21, 7), after(23, 9)], [Some(3), Some(3), Some(7)]);
    }
}
