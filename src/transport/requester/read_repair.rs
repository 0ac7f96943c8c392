//! Repair of READs whose responses are lost: which are requested again, and when.

use super::gaps::Gaps;
use super::missing::{Missing, NewLosses, Range};
use super::plan::SendReason;
use super::{Common, InProgress, RequestPlan, Requester};
use crate::transport::congestion::CongestionKind;
use crate::types::{Counter, Psn, Time};
use crate::wire::{Opcode, packet_bytes};

impl Requester {
    /// Returns whether responses that arrive early are placed.
    pub(super) fn places_early(&self) -> bool {
        self.places_early
    }

    pub(super) fn early(&self) -> Option<&Gaps> {
        self.repair.as_ref()?.early.as_ref()
    }

    pub(super) fn early_mut(&mut self) -> Option<&mut Gaps> {
        self.repair.as_mut()?.early.as_mut()
    }

    /// Returns whether a response shows that the request packet of this number was executed.
    pub(super) fn is_executed(&self, psn: Psn) -> bool {
        self.early().is_some_and(|early| psn.is_before(early.executed_before()))
    }

    /// Returns whether the response of this number has arrived early.
    pub(super) fn has_arrived_early(&self, psn: Psn) -> bool {
        self.early().is_some_and(|early| early.has_arrived(psn))
    }

    /// Notes a response that arrived early, and whose bytes are placed.
    pub(super) fn note_early_response(&mut self, common: &mut Common, now: Time, psn: Psn) {
        self.note_executed(psn.plus(1));
        self.remove_missing_response(common, now, psn);
        self.note_sign_of_life(common, now);
        self.judge_missing(common, now, psn.plus(1));
    }

    /// Removes the response of this number, which has arrived, from the missing ones.
    pub(super) fn remove_missing_response(&mut self, common: &mut Common, now: Time, psn: Psn) {
        let too_short = self.round_trip.too_short();
        let Some(early) = self.early_mut() else { return };
        match early.remove(psn) {
            Some(Missing::Lost { again: false }) => self.note_late(common, now, psn, false),
            // The other copy will show that the response was requested again unnecessarily.
            Some(Missing::Sent { repetition, again: false }) if now.saturating_since(repetition.at) < too_short => {
                self.reordering.note_late_copy();
            }
            _ => {}
        }
    }

    /// Counts a response that has arrived before. If it counted as lost in between, it was requested again
    /// unnecessarily.
    #[cold]
    pub(super) fn note_duplicate_response(&mut self, common: &mut Common, now: Time, psn: Psn) {
        common.count(Counter::DuplicateResponse);
        if self.places_early {
            self.note_late(common, now, psn, true);
        }
    }

    /// Notes that a response that counted as lost was late.
    fn note_late(&mut self, common: &mut Common, now: Time, psn: Psn, was_repeated: bool) {
        let reduction = self.reordering.note_late(now, psn, was_repeated);
        self.count_spurious(common);
        if let (Some(reduction), Some(path)) = (reduction, &common.path) {
            path.window_share.with_control(|control| control.undo_reduction(reduction));
        }
    }

    /// Returns the number of READ request packets and atomics whose responses have all left the peer, although some
    /// have not arrived. They are no longer outstanding there.
    #[inline]
    pub(super) fn reads_answered(&self) -> usize {
        let Some(early) = self.early() else { return 0 };
        self.awaiting_response.partition_point(|last| last.is_before(early.executed_before()))
    }

    /// Notes that everything before this number was executed, although not all of its responses have arrived.
    pub(super) fn note_executed_before(&mut self, common: &mut Common, now: Time, psn: Psn) {
        self.note_executed(psn);
        self.judge_missing(common, now, psn);
    }

    /// Notes that everything before this number was executed, as a response shows.
    fn note_executed(&mut self, psn: Psn) {
        self.trim_missing_requests(psn);
        self.expect_responses_before(psn);
        if let Some(early) = self.early_mut() {
            early.note_executed_before(psn);
        }
    }

    /// Counts the responses to requests before this number as missing until they arrive. Requests from the cursor on
    /// are retransmitted, so their responses will arrive again.
    fn expect_responses_before(&mut self, end: Psn) {
        let begin = self.unacknowledged;
        let end = if self.cursor.is_before(end) { self.cursor } else { end };
        let early = self.repair.as_mut().and_then(|repair| repair.early.take());
        let mut early = early.unwrap_or_else(|| Gaps::new(begin));
        let from = early.end();
        if from.is_before(end) {
            let later = |a: Psn, b: Psn| if a.is_before(b) { b } else { a };
            let with_response = self.in_progress().filter(|(_, request)| request.needs_response());
            let parts = with_response.filter_map(|(_, request)| {
                let first = later(request.first, from);
                let last = if request.end().is_before(end) { request.end() } else { end };
                first.is_before(last).then(|| (first, last.distance_from(first) as u32))
            });
            early.extend(end, parts);
        }
        self.repair.get_or_insert_default().early = Some(early);
    }

    fn judge_missing(&mut self, common: &mut Common, now: Time, end: Psn) {
        let detection = self.loss_detection(now);
        let Some(early) = self.repair.as_mut().and_then(|repair| repair.early.as_mut()) else { return };
        self.round_trip.note_gaps(early, now);
        let measured = self.delays.as_mut().and_then(|delays| delays.end_arrived(early, now));
        let losses = early.judge(end, detection);
        self.report_arrived(common, now, measured, true);
        self.arm_repair(now);
        self.note_lost_responses(common, now, &losses);
        self.note_in_flight(common);
    }

    /// Notes that responses count as lost: a congestion event, unless they belong to the latest one.
    fn note_lost_responses(&mut self, common: &mut Common, now: Time, losses: &NewLosses) {
        if !losses.is_empty() && !self.reordering.is_in_event(now, self.unacknowledged) {
            common.count(Counter::ReadRepair);
            common.log_retransmission(now, self.unacknowledged, "response_missing", self.recovery.spent().0);
            let outcome = self.report_congestion(common, now, CongestionKind::Loss);
            self.reordering.begin_event(now, self.limit, outcome);
        }
        self.reordering.note_lost(now, losses);
    }

    /// Gives up waiting for the oldest responses, as many as the packets that may be sent to a silent peer: those that
    /// have not arrived are requested again. If only the oldest were, its single response could be lost in the same
    /// burst.
    pub(super) fn give_up_oldest_responses(&mut self, common: &mut Common, now: Time) {
        let Some(end) = self.end_of_probe(common) else { return };
        self.expect_responses_before(end);
        let repeat_timeout = self.repeat_timeout();
        if let Some(early) = self.early_mut() {
            let losses = early.give_up_before(end, |repetition| repeat_timeout.is_over(repetition, now));
            self.note_lost_responses(common, now, &losses);
            self.reordering.note_probed();
        }
    }

    /// Returns the number after the responses that a probe for the oldest one requests. The probe stops before the
    /// first request that needs no response of its own and may not have been executed.
    fn end_of_probe(&self, common: &Common) -> Option<Psn> {
        let most = common.path.as_ref().map_or(1, |path| self.packets_into_silence(path));
        let last = self.packets_before_cursor().clamp(1, most) - 1;
        let end = self.end_of_request_packet(self.unacknowledged.plus(last))?;
        let is_unknown = |request: &InProgress| !request.needs_response() && !self.is_executed(request.end().minus(1));
        let unknown = self.in_progress().find(|(_, request)| is_unknown(request));
        Some(unknown.map(|(_, request)| request.first).filter(|first| first.is_before(end)).unwrap_or(end))
    }

    /// Returns whether the plan repeats a whole READ request packet that may not have been executed.
    pub(super) fn may_have_lost_request(&self, plan: &RequestPlan) -> bool {
        let request = self.request(plan.index);
        request.is_read
            && !self.is_executed(plan.psn)
            && plan.offset.is_multiple_of(request.chunk.max(1))
            && plan.offset + plan.covers == request.end_of_chunk(plan.offset)
    }

    /// Returns the first missing responses.
    pub(super) fn next_lost_response(&self) -> Option<Range> {
        self.early()?.missing().first_lost()
    }

    /// Plans the request for lost responses.
    #[cold]
    pub(super) fn plan_response_again(&self, common: &Common, lost: Range) -> Option<RequestPlan> {
        let psn = lost.first;
        let index = self.request_with(psn)?;
        let request = self.request(index);
        if !request.is_read {
            return self.plan_again(common, index, psn, SendReason::Missing);
        }
        let offset = psn.packets_since(request.first);
        let covers = lost.packets.min(request.end_of_chunk(offset) - offset);
        if !self.window_allows(common, psn, covers, SendReason::Missing) {
            return None;
        }
        let opcode = Opcode::RC_READ_REQUEST.of(common.wire_service());
        let size = packet_bytes(opcode, 0);
        Some(RequestPlan { index, psn, offset, covers, size, payload: 0, opcode, reason: SendReason::Missing })
    }
}
