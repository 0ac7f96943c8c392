//! The end of slow start before a packet is lost: HyStart++ (RFC 9406), with thresholds for short paths.

use std::time::Duration;

/// Bounds of the rise that shows a queue, which is an eighth of the shortest round trip. RFC 9406 (4.3) has 4 ms as the
/// least: at 1 Gbit/s that is a queue of 500 kB, more than many switches have.
const LEAST_RISE: Duration = Duration::from_micros(100);
const MOST_RISE: Duration = Duration::from_millis(16);
/// Factor by which conservative slow start grows more slowly (RFC 9406, 4.3: `CSS_GROWTH_DIVISOR`).
const CONSERVATIVE_DIVISOR: f64 = 4.0;
/// Rounds of conservative slow start that end slow start (RFC 9406, 4.3: `CSS_ROUNDS`).
const CONSERVATIVE_ROUNDS: u32 = 5;

/// The round trips while the window grows fast.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct SlowStart {
    /// The shortest round trip of this round and of the one before.
    current: Option<Duration>,
    last: Option<Duration>,
    conservative: Option<Conservative>,
}

/// Conservative slow start: round trips have grown, perhaps by chance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Conservative {
    /// The shortest round trip when it began. A shorter one shows that it was chance.
    baseline: Duration,
    rounds: u32,
}

impl SlowStart {
    /// Records a round trip.
    pub(super) fn note_round_trip(&mut self, measured: Duration) {
        let current = self.current.map_or(measured, |current| current.min(measured));
        self.current = Some(current);
        match self.conservative {
            Some(conservative) if current < conservative.baseline => self.conservative = None,
            None if self.last.is_some_and(|last| current >= last + rise(last)) => {
                self.conservative = Some(Conservative { baseline: current, rounds: 0 });
            }
            _ => {}
        }
    }

    /// Ends a round: everything in flight at its beginning is acknowledged. Returns whether slow start ends.
    pub(super) fn end_round(&mut self) -> bool {
        if let Some(current) = self.current.take() {
            self.last = Some(current);
        }
        let Some(conservative) = &mut self.conservative else { return false };
        conservative.rounds += 1;
        conservative.rounds > CONSERVATIVE_ROUNDS
    }

    /// Returns the segments by which the window grows when `segments` are acknowledged: fewer if `is_careful`.
    pub(super) fn growth(&self, segments: f64, is_careful: bool) -> f64 {
        if is_careful || self.conservative.is_some() { segments / CONSERVATIVE_DIVISOR } else { segments }
    }
}

/// Returns the increase of this round trip that shows a queue.
fn rise(round_trip: Duration) -> Duration {
    (round_trip / 8).clamp(LEAST_RISE, MOST_RISE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(slow_start: &mut SlowStart, microseconds: u64) -> bool {
        slow_start.note_round_trip(Duration::from_micros(microseconds));
        slow_start.end_round()
    }

    #[test]
    fn a_round_trip_that_grows_ends_slow_start_in_five_rounds() {
        let mut slow_start = SlowStart::default();
        assert!(!round(&mut slow_start, 1_000) && !round(&mut slow_start, 1_120));
        assert_eq!(slow_start.growth(8.0, false), 8.0);
        let ends: Vec<bool> = (0..6).map(|later| round(&mut slow_start, 1_300 + later)).collect();
        assert_eq!(ends, [false, false, false, false, false, true]);
        assert_eq!(slow_start.growth(8.0, false), 2.0);
    }

    #[test]
    fn one_long_round_trip_does_not_end_slow_start() {
        let mut slow_start = SlowStart::default();
        round(&mut slow_start, 1_000);
        round(&mut slow_start, 2_000);
        assert_eq!(slow_start.growth(8.0, false), 2.0);
        round(&mut slow_start, 1_000);
        assert_eq!(slow_start.growth(8.0, false), 8.0);
    }
}
