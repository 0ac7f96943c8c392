//! The measured round trip, and the waits that follow from it.

use std::time::Duration;

use super::gaps::Gaps;
use crate::types::{Psn, Time};

/// The probe's wait before any round trip was measured.
const INITIAL_PROBE: u64 = 10_000_000;
/// Shortest wait for late responses before a READ is repaired.
const SHORTEST_REORDER_WAIT: u64 = 100_000;
/// Shortest wait of the probe. A standard peer may hold its acknowledgements for 1 ms; the rest may take as long.
const SHORTEST_PROBE: u64 = 2_000_000;
/// The same for the response to a READ on a path that loses packets: a native peer delays it only for the pace. READs
/// over veth that lose 10 % of the packets wait for a probe a hundred times a second: they keep 0.36 of their rate with
/// 2 ms, and 0.5 with this. Hosts that share a processor add as much to a round trip.
const SHORTEST_PROMPT_PROBE: u64 = 500_000;
/// Maximum factor by which a doubtful sample makes the probe's wait longer: it may be a loss.
const LONGEST_DOUBT: u64 = 4;

/// The copy of the measured packet that the response belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum MeasuredCopy {
    #[default]
    Only,
    /// The first one was measured, and the packet may have been sent again.
    Either,
    /// The packet was sent again before, and this copy is measured.
    Repetition,
}

/// The measured round trip, smoothed with a gain of 1/8 (RFC 6298, section 2). All times are in nanoseconds.
#[derive(Clone, Default)]
pub(super) struct RoundTrip {
    /// 0: nothing was measured.
    smoothed: u64,
    /// Average difference of a sample from `smoothed`, with a gain of 1/4 (RFC 6298, section 2).
    variation: u64,
    /// The shortest sample; 0 if there is none.
    least: u64,
    /// The packet that is measured, and when it left; [`Time::ZERO`]: there is none.
    sample: (Psn, Time),
    copy: MeasuredCopy,
    /// Possible length of the round trip after doubtful samples. 0 as soon as an unambiguous one ends.
    possible: u64,
    /// Duration of the latest doubtful sample; 0 if an unambiguous one has ended since.
    last_doubtful: u64,
}

impl RoundTrip {
    /// Begins to measure a packet that requests a response; only one at a time is measured. A doubtful sample
    /// continues: where the round trip has become longer, all samples are doubtful until one has ended.
    pub(super) fn begin_sample(&mut self, psn: Psn, now: Time) {
        if self.sample.1 == Time::ZERO || self.copy == MeasuredCopy::Repetition {
            (self.sample, self.copy) = ((psn, now), MeasuredCopy::Only);
        }
    }

    /// Begins to measure a packet that is sent again because the peer misses it.
    pub(super) fn begin_repetition(&mut self, psn: Psn, now: Time) {
        if self.sample.1 == Time::ZERO || self.copy == MeasuredCopy::Either {
            (self.sample, self.copy) = ((psn, now), MeasuredCopy::Repetition);
        }
    }

    /// Doubts the sample, because packets are retransmitted: the next response may belong to either copy, and is no
    /// sample (Karn's algorithm: RFC 6298, section 3). But the wait of the probe grows (section 5.5): otherwise all
    /// probes might come too early. The sample of a repetition is forgotten: its response may be to a copy that left
    /// sooner.
    pub(super) fn doubt_sample(&mut self) {
        match self.copy {
            MeasuredCopy::Repetition => self.forget_sample(),
            MeasuredCopy::Only | MeasuredCopy::Either => self.copy = MeasuredCopy::Either,
        }
    }

    /// Forgets the sample: the measured packet has not arrived as it was sent.
    pub(super) fn forget_sample(&mut self) {
        self.sample.1 = Time::ZERO;
    }

    /// Returns the packet that is measured, and when it left.
    #[inline]
    fn sample(&self) -> Option<(Psn, Time)> {
        (self.sample.1 != Time::ZERO).then_some(self.sample)
    }

    /// Ends the sample if its packet has arrived. Forgets the sample if its packet is missing.
    pub(super) fn note_gaps(&mut self, gaps: &Gaps, now: Time) {
        self.end_sample_if(now, |psn| gaps.has_arrived(psn));
        if self.sample().is_some_and(|(psn, _)| gaps.is_missing(psn)) {
            self.forget_sample();
        }
    }

    /// Ends the sample if its packet is acknowledged: everything before this number is.
    #[inline]
    pub(super) fn end_sample(&mut self, unacknowledged: Psn, now: Time) {
        self.end_sample_if(now, |psn| psn.is_before(unacknowledged));
    }

    /// Ends the sample if the measured packet has arrived.
    #[inline]
    fn end_sample_if(&mut self, now: Time, has_arrived: impl FnOnce(Psn) -> bool) {
        let Some((_, sent)) = self.sample().filter(|(psn, _)| has_arrived(*psn)) else { return };
        self.forget_sample();
        let measured = now.as_nanos().saturating_sub(sent.as_nanos());
        match self.copy {
            MeasuredCopy::Only => {}
            MeasuredCopy::Either => return self.note_doubtful(measured),
            MeasuredCopy::Repetition => return,
        }
        (self.possible, self.last_doubtful) = (0, 0);
        self.least = if self.least == 0 { measured } else { self.least.min(measured) };
        (self.smoothed, self.variation) = match self.smoothed {
            0 => (measured.max(1), measured / 2),
            smoothed => ((smoothed * 7 + measured) / 8, (self.variation * 3 + smoothed.abs_diff(measured)) / 4),
        };
    }

    /// Takes a doubtful sample: it is the round trip, plus the wait for the probe if the first copy was lost. A sample
    /// that is longer than the one before more likely includes that wait.
    fn note_doubtful(&mut self, measured: u64) {
        let before = std::mem::replace(&mut self.last_doubtful, measured);
        let shorter = if before == 0 { measured } else { measured.min(before) };
        self.possible = shorter.min(LONGEST_DOUBT * self.probe_wait().as_nanos() as u64);
    }

    /// Returns the round trip of the measured packet, if it is acknowledged now: if it was sent once, and if it was
    /// sent again.
    #[inline]
    pub(super) fn measured(&self, unacknowledged: Psn, now: Time) -> [Option<Duration>; 2] {
        let sample = self.sample().filter(|(psn, _)| psn.is_before(unacknowledged));
        let measured = sample.map(|(_, sent)| now.saturating_since(sent));
        [MeasuredCopy::Only, MeasuredCopy::Repetition].map(|copy| measured.filter(|_| self.copy == copy))
    }

    /// Returns how long the probe waits for a response.
    #[inline]
    pub(super) fn probe_wait(&self) -> Duration {
        Duration::from_nanos(self.known_wait().max(self.possible * 2))
    }

    /// Returns how long the probe waits on a path that loses packets, for the response to a READ.
    pub(super) fn prompt_probe_wait(&self) -> Duration {
        if self.smoothed == 0 {
            return self.probe_wait();
        }
        let known = (self.smoothed * 2).max(self.smoothed + 4 * self.variation);
        Duration::from_nanos(known.max(SHORTEST_PROMPT_PROBE).max(self.possible * 2))
    }

    #[inline]
    fn known_wait(&self) -> u64 {
        if self.smoothed == 0 { INITIAL_PROBE } else { (self.smoothed * 2).max(SHORTEST_PROBE) }
    }

    /// Returns about how long a requested response takes.
    pub(super) fn response_wait(&self) -> Duration {
        Duration::from_nanos(self.smoothed.max(SHORTEST_REORDER_WAIT))
    }

    /// Returns the time after which a packet that was sent again has arrived, and the peer has reported it. With a
    /// larger multiple of the variation, there are no fewer spurious retransmissions, and packets that are lost again
    /// wait longer.
    pub(super) fn repeat_wait(&self) -> Duration {
        let smoothed = if self.smoothed == 0 { INITIAL_PROBE } else { self.smoothed };
        Duration::from_nanos(smoothed + (smoothed / 4).max(self.variation).max(SHORTEST_REORDER_WAIT))
    }

    /// Returns the time within which a retransmission cannot have arrived and been reported. Half of the shortest round
    /// trip: the packet that is measured is the last of a burst, and waits for those before it.
    pub(super) fn too_short(&self) -> Duration {
        Duration::from_nanos(self.least / 2)
    }

    /// Returns how long a response may be late before it counts as lost.
    pub(super) fn reorder_wait(&self) -> Duration {
        Duration::from_nanos((self.smoothed / 4).max(SHORTEST_REORDER_WAIT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_responses_to_the_measured_packet_end_a_sample() {
        let mut round_trip = RoundTrip::default();
        round_trip.begin_sample(Psn::new(0xff_ffff), Time::from_nanos(1_000));
        round_trip.end_sample(Psn::new(0xff_ffff), Time::from_nanos(2_000));
        assert_eq!(round_trip.smoothed, 0);
        round_trip.end_sample(Psn::new(0), Time::from_nanos(5_000));
        assert_eq!(round_trip.smoothed, 4_000);
    }

    /// Each probe comes before the response.
    #[test]
    fn probes_that_come_too_early_come_later() {
        let (round_trip_time, mut probes) = (100_000_000, 0);
        let mut round_trip = RoundTrip::default();
        for start in [1, 2, 3].map(|second| second * 1_000_000_000) {
            round_trip.begin_sample(Psn::new(1), Time::from_nanos(start));
            if (round_trip.probe_wait().as_nanos() as u64) < round_trip_time {
                probes += 1;
                round_trip.doubt_sample();
            }
            round_trip.end_sample(Psn::new(2), Time::from_nanos(start + round_trip_time));
        }
        assert_eq!((probes, round_trip.smoothed), (2, round_trip_time));
    }

    /// The response to each first copy is lost.
    #[test]
    fn losses_that_follow_each_other_double_the_wait_at_most() {
        let mut round_trip = RoundTrip::default();
        let mut waits = Vec::new();
        for start in (1..=6).map(|round| round * 1_000_000_000) {
            let wait = round_trip.probe_wait().as_nanos() as u64;
            waits.push(wait / 1_000_000);
            round_trip.begin_sample(Psn::new(1), Time::from_nanos(start));
            round_trip.doubt_sample();
            round_trip.end_sample(Psn::new(2), Time::from_nanos(start + wait + 1_000));
        }
        assert_eq!(waits, [10, 20, 20, 40, 40, 80]);
    }

    #[test]
    fn a_repetition_waits_longer_where_round_trips_vary() {
        let measured = |samples: &[u64]| {
            let mut round_trip = RoundTrip::default();
            for sample in samples {
                round_trip.begin_sample(Psn::new(1), Time::from_nanos(1));
                round_trip.end_sample(Psn::new(2), Time::from_nanos(1 + sample * 1_000_000));
            }
            round_trip.repeat_wait()
        };
        assert_eq!(measured(&[8; 40]), Duration::from_millis(10));
        assert!(measured(&[4, 12].repeat(20)) > Duration::from_millis(11));
    }
}
