//! Round trips of several packets at a time, for the congestion controller of the path: the shortest one in each round
//! shows whether there is a queue, while a busy host may have delayed a single sample.

use std::collections::VecDeque;
use std::time::Duration;

use super::gaps::Gaps;
use crate::types::{Psn, Time};

/// Maximum number of packets that are measured at a time (RFC 9406, 4.2: `N_RTT_SAMPLE`).
const MOST: usize = 8;

/// The packets that are measured, in order, and when they left.
#[derive(Default)]
pub(super) struct Delays {
    samples: VecDeque<(Psn, Time)>,
}

impl Delays {
    /// Begins to measure a packet that is sent for the first time and requests a response.
    pub(super) fn begin(&mut self, psn: Psn, now: Time) {
        if self.samples.len() < MOST && self.samples.back().is_none_or(|(last, _)| last.is_before(psn)) {
            self.samples.push_back((psn, now));
        }
    }

    /// Returns whether no packet is measured.
    pub(super) fn is_idle(&self) -> bool {
        self.samples.is_empty()
    }

    /// Returns whether to measure one of the packets that leave now: none of them is measured, and there is room. The
    /// first one of a send does not wait for the others.
    pub(super) fn wants(&self, now: Time) -> bool {
        self.samples.len() < MOST && self.samples.back().is_none_or(|(_, sent)| *sent != now)
    }

    /// Ends the samples of the packets before this number, which have arrived. Returns the shortest round trip.
    pub(super) fn end_before(&mut self, unacknowledged: Psn, now: Time) -> Option<Duration> {
        let ended = self.samples.partition_point(|(psn, _)| psn.is_before(unacknowledged));
        self.samples.drain(..ended).map(|(_, sent)| now.saturating_since(sent)).min()
    }

    /// Ends the samples of the packets that have arrived although an earlier one is missing. Returns the shortest round
    /// trip. Missing packets are not measured any more.
    pub(super) fn end_arrived(&mut self, gaps: &Gaps, now: Time) -> Option<Duration> {
        let mut shortest = None;
        self.samples.retain(|(psn, sent)| {
            if gaps.has_arrived(*psn) {
                let measured = now.saturating_since(*sent);
                shortest = Some(shortest.map_or(measured, |shortest: Duration| shortest.min(measured)));
                return false;
            }
            !gaps.is_missing(*psn)
        });
        shortest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(microseconds: u64) -> Time {
        Time::from_nanos(1_000_000 + microseconds * 1_000)
    }

    #[test]
    fn the_shortest_round_trip_that_ends_is_reported() {
        let mut delays = Delays::default();
        (0..20).for_each(|packet| delays.begin(Psn::new(packet), at(10 * u64::from(packet))));
        assert!(!delays.wants(at(70)));
        assert_eq!(delays.end_before(Psn::new(0), at(100)), None);
        assert_eq!(delays.end_before(Psn::new(3), at(100)), Some(Duration::from_micros(80)));
        assert!(!delays.wants(at(70)) && delays.wants(at(71)), "one that left at that time is measured");
        assert_eq!(delays.end_before(Psn::new(50), at(100)), Some(Duration::from_micros(30)));
        assert_eq!(delays.end_before(Psn::new(51), at(100)), None);
    }

    #[test]
    fn packets_that_arrive_behind_a_missing_one_are_measured_at_once() {
        let mut delays = Delays::default();
        [0, 4, 7, 12].into_iter().for_each(|packet| delays.begin(Psn::new(packet), at(10 * u64::from(packet))));
        let mut gaps = Gaps::new(Psn::new(0));
        gaps.extend(Psn::new(10), [(Psn::new(0), 5)].into_iter());
        assert_eq!(delays.end_arrived(&gaps, at(100)), Some(Duration::from_micros(30)));
        // The two missing packets are not measured, although an acknowledgement passes them.
        assert_eq!(delays.end_before(Psn::new(12), at(200)), None);
        assert_eq!(delays.end_before(Psn::new(13), at(200)), Some(Duration::from_micros(80)));
    }
}
