//! The state of the packets from the oldest unacknowledged number on: which are missing, which of those were
//! retransmitted, and how many are in no queue.
//!
//! For requests, a native peer reports this state ([`super::scoreboard`]). For responses, the requester derives it from
//! those that have arrived: they leave in order, so a response shows that everything before it was executed, and that
//! the responses before it have left.

use std::time::Duration;

use super::missing::{LossDetection, Missing, MissingPackets, NewLosses, Range, Repetition};
use crate::types::{Psn, Time};

/// The packets from the oldest unacknowledged number on, of requests or of responses.
#[derive(Debug)]
pub(super) struct Gaps {
    missing: MissingPackets,
    /// The oldest unacknowledged number.
    begin: Psn,
    /// First number about which nothing is known. Every packet before it has arrived or is missing.
    end: Psn,
    /// Requests before this number were executed. For later ones before `end`, that is not known.
    executed: Psn,
    /// Packets before `end` that are in no queue: they have arrived, or are lost and not sent again yet.
    absent: u32,
    /// Losses before this number belong to one congestion event.
    event_end: Psn,
}

impl Gaps {
    /// Creates the gaps of a connection on which nothing is known from this number on.
    pub(super) fn new(begin: Psn) -> Self {
        let missing = MissingPackets::default();
        Self { missing, begin, end: begin, executed: begin, absent: 0, event_end: begin }
    }

    pub(super) fn begin(&self) -> Psn {
        self.begin
    }

    /// Returns the first number about which nothing is known.
    pub(super) fn end(&self) -> Psn {
        self.end
    }

    /// Returns the number before which all requests were executed.
    pub(super) fn executed_before(&self) -> Psn {
        self.executed
    }

    /// Notes that the requests before this number were executed, as a response shows.
    pub(super) fn note_executed_before(&mut self, psn: Psn) {
        if self.executed.is_before(psn) {
            self.executed = psn;
        }
    }

    /// Returns the missing packets.
    pub(super) fn missing(&self) -> &MissingPackets {
        &self.missing
    }

    /// Returns whether a packet is missing, and not just unknown.
    pub(super) fn is_missing(&self, psn: Psn) -> bool {
        self.missing.contains(psn)
    }

    /// Returns whether a packet has arrived.
    pub(super) fn has_arrived(&self, psn: Psn) -> bool {
        !psn.is_before(self.begin) && psn.is_before(self.end) && !self.missing.contains(psn)
    }

    /// Returns the number up to which everything has arrived.
    pub(super) fn complete_before(&self) -> Psn {
        self.missing.first().unwrap_or(self.end)
    }

    /// Returns the number of packets that have arrived.
    pub(super) fn arrived(&self) -> u32 {
        self.end.packets_since(self.begin).saturating_sub(self.missing.packets())
    }

    /// Returns how many packets were sent again within this time, for the first time.
    pub(super) fn sent_again_within(&self, time: Duration, now: Time) -> u32 {
        self.missing.sent_again_within(time, now)
    }

    /// Returns the packets before [`Gaps::end`] that are in no queue.
    #[inline]
    pub(super) fn absent(&self) -> u32 {
        self.absent
    }

    fn recount(&mut self) {
        self.absent = self.arrived() + self.missing.lost();
    }

    /// Extends the known packets to `end`. `missing` lists those of the new packets that are missing, in order, as
    /// first numbers and counts.
    pub(super) fn extend(&mut self, end: Psn, missing: impl Iterator<Item = (Psn, u32)>) {
        for (first, packets) in missing {
            self.missing.push(Range { first, packets, missing: Missing::Late });
        }
        self.end = end;
        self.recount();
    }

    /// Replaces the missing packets; those before `end` are known. Returns whether that is a congestion event, which
    /// lasts to `limit`.
    pub(super) fn replace(&mut self, missing: MissingPackets, end: Psn, limit: Psn) -> bool {
        let lost_before = self.missing.lost();
        (self.missing, self.end) = (missing, end);
        self.note_losses(lost_before, limit)
    }

    /// Removes a packet that has arrived. Returns its state if it was missing.
    pub(super) fn remove(&mut self, psn: Psn) -> Option<Missing> {
        let was = self.missing.remove(psn);
        self.recount();
        was
    }

    /// Finds lost packets after the packet before `end` has arrived: packets leave in order, so those that left much
    /// sooner are lost. Returns those.
    pub(super) fn judge(&mut self, end: Psn, detection: LossDetection) -> NewLosses {
        let is_lost_again = |repetition| detection.is_lost_again(repetition, end);
        if !self.missing.may_be_lost(is_lost_again) {
            return NewLosses::default();
        }
        let losses = self.missing.judge(|range| {
            let is_lost = detection.is_far_behind(range.end(), end);
            range.missing.still(is_lost, is_lost_again)
        });
        self.recount();
        losses
    }

    /// Returns whether more packets are lost than before, and none of them in a known congestion event.
    fn note_losses(&mut self, lost_before: u32, limit: Psn) -> bool {
        self.recount();
        let is_event = self.missing.lost() > lost_before && !self.begin.is_before(self.event_end);
        if is_event {
            self.event_end = limit;
        }
        is_event
    }

    /// Declares packets before `end` lost: those that may have been late, and those that were sent again and are
    /// overdue. Returns those packets.
    pub(super) fn give_up_before(&mut self, end: Psn, is_overdue: impl Fn(Repetition) -> bool) -> NewLosses {
        let judge = |range: &Range| match range.first.is_before(end) {
            true => range.missing.still(true, &is_overdue),
            false => range.missing,
        };
        let losses = self.missing.judge(judge);
        self.recount();
        losses
    }

    /// Notes that the first packets of [`MissingPackets::first_lost`] were sent again, or requested again.
    pub(super) fn note_sent_again(&mut self, packets: u32, repetition: Repetition) {
        self.missing.note_sent_again(packets, repetition);
        self.recount();
    }

    /// Removes everything before `psn`, which is acknowledged. Returns whether anything else is known.
    pub(super) fn acknowledge_before(&mut self, psn: Psn) -> bool {
        self.begin = psn;
        self.missing.remove_before(psn);
        self.recount();
        psn.is_before(self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::common::LOSS_EVIDENCE;

    const BEGIN: Psn = Psn::new(0xff_fff0);
    /// Later numbers are sent for the first time.
    const LIMIT: Psn = BEGIN.plus(100);

    fn at(microseconds: u64) -> Time {
        Time::from_nanos(1_000_000_000 + microseconds * 1_000)
    }

    struct Responses(Gaps);

    impl Responses {
        fn new() -> Self {
            Self(Gaps::new(BEGIN))
        }

        /// Receives a response of one long READ.
        fn arrive(&mut self, offset: u32, now: Time) -> bool {
            let (psn, from) = (BEGIN.plus(offset), self.0.end());
            if from.is_before(psn.plus(1)) {
                let packets = psn.plus(1).distance_from(from) as u32;
                self.0.extend(psn.plus(1), [(from, packets)].into_iter());
            }
            assert!(self.0.remove(psn).is_some(), "{offset} came twice");
            let detection =
                LossDetection { now, packet_threshold: LOSS_EVIDENCE, time_threshold: Duration::from_millis(1) };
            !self.0.judge(psn.plus(1), detection).is_empty()
        }

        fn request_again(&mut self, now: Time) -> Vec<(i32, u32)> {
            let mut requested = Vec::new();
            while let Some(range) = self.0.missing().first_lost() {
                requested.push((range.first.distance_from(BEGIN), range.packets));
                self.0.note_sent_again(range.packets, Repetition { at: now, later: LIMIT });
            }
            requested
        }
    }

    #[test]
    fn missing_responses_are_requested_again_after_three_later_ones() {
        let mut responses = Responses::new();
        assert!(!responses.arrive(2, at(0)) && !responses.arrive(3, at(0)));
        assert!(responses.0.missing().has_late());
        assert_eq!(responses.request_again(at(0)), []);
        assert!(responses.arrive(4, at(0)), "an event of congestion");
        assert_eq!(responses.0.absent(), 5);
        assert_eq!(responses.request_again(at(0)), [(0, 2)]);
        assert_eq!(responses.0.absent(), 3);
        assert!(!responses.arrive(9, at(1)) && !responses.arrive(1, at(2)));
        assert_eq!(responses.0.complete_before(), BEGIN);
        assert!(responses.0.has_arrived(BEGIN.plus(1)) && !responses.0.has_arrived(BEGIN.plus(8)));
        // The one that was requested again is lost again, the four before the last are late.
        responses.arrive(10, at(1_000));
        assert_eq!(responses.request_again(at(1_000)), [(0, 1)]);
        responses.0.give_up_before(BEGIN.plus(6), |_| false);
        assert_eq!(responses.request_again(at(1_000)), [(5, 4)]);
        responses.arrive(0, at(1_100));
        assert_eq!(responses.0.complete_before(), BEGIN.plus(5));
        assert!(responses.0.acknowledge_before(BEGIN.plus(5)));
        assert!(!responses.0.acknowledge_before(BEGIN.plus(11)));
    }

    /// The third response from the limit on shows it.
    #[test]
    fn a_repetition_is_lost_when_enough_later_responses_have_arrived() {
        let mut responses = Responses::new();
        responses.arrive(99, at(0));
        responses.0.give_up_before(LIMIT, |_| false);
        assert_eq!(responses.request_again(at(1)), [(0, 99)]);
        for offset in [0, 100, 101] {
            responses.arrive(offset, at(2));
            assert_eq!(responses.request_again(at(2)), []);
        }
        responses.arrive(102, at(2));
        assert_eq!(responses.request_again(at(2)), [(1, 98)]);
    }

    #[test]
    fn numbers_without_a_response_are_not_missing() {
        let mut responses = Responses::new();
        responses.0.extend(BEGIN.plus(10), [(BEGIN, 2), (BEGIN.plus(8), 2)].into_iter());
        assert!(responses.0.has_arrived(BEGIN.plus(5)));
        responses.0.remove(BEGIN);
        responses.0.remove(BEGIN.plus(1));
        assert_eq!(responses.0.complete_before(), BEGIN.plus(8));
    }
}
