//! A histogram of queueing delays with a resolution of about 3 %.

use std::time::Duration;

/// Number of buckets for each doubling, as a power of two.
const BITS: u32 = 5;
const BUCKETS: usize = ((u64::BITS - BITS + 1) << BITS) as usize;

/// A histogram of durations.
#[derive(Clone, Debug)]
pub struct Delays {
    counts: Vec<u64>,
    total: u64,
}

impl Default for Delays {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS], total: 0 }
    }
}

impl Delays {
    /// Returns the number of recorded durations.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns the least duration that the fraction `part` of all do not exceed; zero if there are none.
    pub fn quantile(&self, part: f64) -> Duration {
        let wanted = (part * self.total as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        let bucket = self.counts.iter().position(|count| {
            seen += count;
            seen >= wanted
        });
        bucket.map_or(Duration::ZERO, |bucket| Duration::from_nanos(largest_of(bucket)))
    }

    pub(super) fn note(&mut self, delay: Duration) {
        self.counts[bucket_of(delay.as_nanos() as u64)] += 1;
        self.total += 1;
    }
}

/// One bucket for each nanosecond below `2 << BITS`, then `1 << BITS` for each doubling.
fn bucket_of(nanoseconds: u64) -> usize {
    let shift = (u64::BITS - nanoseconds.leading_zeros()).saturating_sub(BITS + 1);
    (u64::from(shift) << BITS) as usize + (nanoseconds >> shift) as usize
}

fn largest_of(bucket: usize) -> u64 {
    let shift = (bucket >> BITS).saturating_sub(1) as u32;
    let first = bucket as u64 - (u64::from(shift) << BITS);
    (first << shift) + ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_has_a_bucket_that_ends_close_above_it() {
        for nanoseconds in (0..64).map(|shift| 1_u64 << shift).flat_map(|power| [power - 1, power, power + power / 3]) {
            let largest = largest_of(bucket_of(nanoseconds));
            let is_close = largest - nanoseconds <= nanoseconds >> BITS;
            assert!(largest >= nanoseconds && is_close, "{nanoseconds} and {largest}");
        }
        assert!(bucket_of(u64::MAX) < BUCKETS);
    }

    #[test]
    fn a_quantile_is_what_that_part_does_not_exceed() {
        let mut delays = Delays::default();
        assert_eq!((delays.quantile(0.99), delays.total()), (Duration::ZERO, 0));
        (1..=1_000).for_each(|microseconds| delays.note(Duration::from_micros(microseconds)));
        for (part, expected) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1_000.0)] {
            let found = delays.quantile(part).as_nanos() as f64 / 1e3;
            assert!((1.0..1.04).contains(&(found / expected)), "{found} µs for {expected}");
        }
        assert_eq!(delays.total(), 1_000);
    }
}
