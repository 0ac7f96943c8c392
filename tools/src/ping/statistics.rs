//! Counts of echoes, and their round trips as ping(8) prints them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;

/// Echoes without a reply in time whose late reply is still recognized.
const MOST_EXPIRED: usize = 1024;
/// Echoes that JSON lists one by one.
const MOST_LISTED: usize = 10_000;

/// The longest round trip that percentiles distinguish, in nanoseconds: an hour.
const LONGEST: u64 = 3_600_000_000_000;

/// The verdict on a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    InTime(Duration),
    /// After the echo was given up.
    Late(Duration),
    Duplicate,
}

/// One echo in JSON.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Listed {
    sequence: u32,
    /// Microseconds; null if there was no reply.
    round_trip: Option<f64>,
}

/// Round trips in microseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(super) struct RoundTrips {
    pub(super) min: f64,
    pub(super) mean: f64,
    pub(super) max: f64,
    pub(super) deviation: f64,
    pub(super) p50: f64,
    pub(super) p90: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
}

/// The counts, and the echoes that wait for a reply.
pub(super) struct Statistics {
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) late: u64,
    pub(super) duplicates: u64,
    pub(super) corrupted: u64,
    /// Connections that ended before this end ended them.
    pub(super) broken: u64,
    /// Why the last connection broke, or there was none for an echo.
    pub(super) last_failure: Option<String>,
    outstanding: VecDeque<(u32, Instant)>,
    expired: VecDeque<(u32, Instant)>,
    listed: Vec<Listed>,
    times: Histogram<u64>,
    shortest: f64,
    longest: f64,
    sum: f64,
    squares: f64,
}

impl Statistics {
    pub(super) fn new() -> Self {
        let times = Histogram::new_with_bounds(1, LONGEST, 3).expect("the bounds are allowed");
        Self {
            sent: 0,
            received: 0,
            late: 0,
            duplicates: 0,
            corrupted: 0,
            broken: 0,
            last_failure: None,
            outstanding: VecDeque::new(),
            expired: VecDeque::new(),
            listed: Vec::new(),
            times,
            shortest: f64::INFINITY,
            longest: 0.0,
            sum: 0.0,
            squares: 0.0,
        }
    }

    /// Notes an echo that is sent; without a time, it could not be.
    pub(super) fn sent(&mut self, sequence: u32, at: Option<Instant>) {
        self.sent += 1;
        if self.listed.len() < MOST_LISTED {
            self.listed.push(Listed { sequence, round_trip: None });
        }
        self.outstanding.extend(at.map(|at| (sequence, at)));
    }

    /// Returns how many echoes wait for a reply, and when the first of them was sent.
    pub(super) fn waiting(&self) -> (usize, Option<Instant>) {
        (self.outstanding.len(), self.outstanding.front().map(|(_, at)| *at))
    }

    /// Notes a reply.
    pub(super) fn replied(&mut self, sequence: u32, at: Instant, is_intact: bool) -> Verdict {
        let taken = |queue: &mut VecDeque<(u32, Instant)>| {
            let index = queue.iter().position(|(number, _)| *number == sequence)?;
            queue.remove(index).map(|(_, sent)| at.saturating_duration_since(sent))
        };
        let verdict = match taken(&mut self.outstanding) {
            Some(time) => Verdict::InTime(time),
            None => taken(&mut self.expired).map_or(Verdict::Duplicate, Verdict::Late),
        };
        self.corrupted += u64::from(!is_intact);
        match verdict {
            Verdict::Duplicate => self.duplicates += 1,
            Verdict::InTime(time) => self.count(sequence, time),
            Verdict::Late(time) => {
                self.late += 1;
                self.count(sequence, time);
            }
        }
        verdict
    }

    fn count(&mut self, sequence: u32, time: Duration) {
        let microseconds = time.as_nanos() as f64 / 1e3;
        self.received += 1;
        self.shortest = self.shortest.min(microseconds);
        self.longest = self.longest.max(microseconds);
        self.sum += microseconds;
        self.squares += microseconds * microseconds;
        self.times.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        let index = self.listed.binary_search_by_key(&sequence, |listed| listed.sequence);
        if let Some(listed) = index.ok().and_then(|index| self.listed.get_mut(index)) {
            listed.round_trip = Some(microseconds);
        }
    }

    /// Gives up an echo that was sent before this time. Call it until there is none.
    pub(super) fn expire(&mut self, before: Instant) -> Option<u32> {
        let (sequence, at) = self.outstanding.front().copied().filter(|(_, at)| *at <= before)?;
        self.outstanding.pop_front();
        if self.expired.len() == MOST_EXPIRED {
            self.expired.pop_front();
        }
        self.expired.push_back((sequence, at));
        Some(sequence)
    }

    /// Gives up all echoes: their connection has ended.
    pub(super) fn forget(&mut self) {
        self.broken += 1;
        self.outstanding.clear();
        self.expired.clear();
    }

    pub(super) const fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.received)
    }

    pub(super) fn loss_percent(&self) -> f64 {
        if self.sent == 0 { 0.0 } else { 100.0 * self.lost() as f64 / self.sent as f64 }
    }

    pub(super) fn listed(&self) -> &[Listed] {
        &self.listed
    }

    /// Returns the round trips; `None` without a reply.
    pub(super) fn round_trips(&self) -> Option<RoundTrips> {
        if self.received == 0 {
            return None;
        }
        let count = self.received as f64;
        let mean = self.sum / count;
        let at = |quantile: f64| self.times.value_at_quantile(quantile) as f64 / 1e3;
        Some(RoundTrips {
            min: self.shortest,
            mean,
            max: self.longest,
            deviation: (self.squares / count - mean * mean).max(0.0).sqrt(),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_in_time_late_or_duplicates() {
        let (mut statistics, begin) = (Statistics::new(), Instant::now());
        let after = |milliseconds: u64| begin + Duration::from_millis(milliseconds);
        for sequence in 1..=4 {
            statistics.sent(sequence, Some(begin));
        }
        statistics.sent(5, None);
        assert_eq!(statistics.replied(2, after(2), true), Verdict::InTime(Duration::from_millis(2)));
        assert_eq!(statistics.replied(2, after(3), true), Verdict::Duplicate);
        assert_eq!((statistics.expire(after(0)), statistics.expire(after(0))), (Some(1), Some(3)));
        assert_eq!(statistics.replied(3, after(9), false), Verdict::Late(Duration::from_millis(9)));
        assert_eq!((statistics.sent, statistics.received, statistics.lost()), (5, 2, 3));
        assert_eq!((statistics.late, statistics.duplicates, statistics.corrupted), (1, 1, 1));
        assert_eq!(statistics.loss_percent(), 60.0);
        let listed: Vec<bool> = statistics.listed().iter().map(|listed| listed.round_trip.is_some()).collect();
        assert_eq!(listed, [false, true, true, false, false]);
    }

    #[test]
    fn round_trips_as_in_ping() {
        let (mut statistics, begin) = (Statistics::new(), Instant::now());
        assert_eq!(statistics.round_trips(), None);
        for (sequence, microseconds) in [(1, 100), (2, 200), (3, 600)] {
            statistics.sent(sequence, Some(begin));
            statistics.replied(sequence, begin + Duration::from_micros(microseconds), true);
        }
        let RoundTrips { min, mean, max, deviation, p50, .. } = statistics.round_trips().unwrap();
        assert!((min - 100.0).abs() < 1.0 && (mean - 300.0).abs() < 1e-9 && (max - 600.0).abs() < 1.0);
        assert!((deviation - 216.02).abs() < 0.01 && (p50 - 200.0).abs() < 1.0);
    }

    #[test]
    fn what_is_remembered_has_a_bound() {
        let (mut statistics, begin) = (Statistics::new(), Instant::now());
        for sequence in 0..2 * MOST_LISTED as u32 {
            statistics.sent(sequence, Some(begin));
            assert_eq!(statistics.expire(begin), Some(sequence));
        }
        assert_eq!((statistics.listed().len(), statistics.expired.len()), (MOST_LISTED, MOST_EXPIRED));
    }
}
