//! READs whose responses are lost: which are asked for again, and when.

use super::gaps::Gaps;
use super::plan::Turn;
use super::{Common, RequestPlan, Requester};
use crate::transport::congestion::CongestionKind;
use crate::types::{Counter, Psn, Time};
use crate::wire::{Opcode, packet_bytes};

impl Requester {
    /// Whether responses that come before their turn are placed.
    pub(super) fn places_early(&self) -> bool {
        self.places_early
    }

    /// Whether the response of this number has come before its turn.
    pub(super) fn has_come_early(&self, psn: Psn) -> bool {
        self.early.as_ref().is_some_and(|early| early.has_arrived(psn))
    }

    /// A response came before its turn, and its bytes are placed.
    pub(super) fn note_early_response(&mut self, common: &mut Common, now: Time, psn: Psn) {
        self.expect_responses_before(psn.plus(1));
        self.remove_missing_response(now, psn);
        if let Some(early) = &self.early {
            self.round_trip.note_gaps(early, now);
        }
        self.note_answered(psn);
        self.judge_missing(common, now, psn.plus(1));
        self.note_sign_of_life(common, now);
    }

    /// The response of this number has come.
    pub(super) fn remove_missing_response(&mut self, now: Time, psn: Psn) {
        let Some(early) = &mut self.early else { return };
        let too_short = self.round_trip.too_short();
        let recent = |early: &Gaps| early.sent_again_within(too_short, now);
        self.reordering.watch(&mut **early, recent, |early| early.remove(psn));
    }

    /// If this was the last response that a READ request packet waited for, the next one may leave.
    fn note_answered(&mut self, psn: Psn) {
        let Some(index) = self.request_with(psn) else { return };
        let request = *self.request(index);
        let offset = psn.distance_from(request.first).max(0) as u32;
        let end = request.first.plus(request.end_of_chunk(offset));
        let begin = request.first.plus(offset / request.chunk.max(1) * request.chunk);
        if !self.early.as_ref().is_some_and(|early| early.have_all_arrived(begin, end)) {
            return;
        }
        let mut awaited = self.awaiting_response.iter_mut();
        if let Some(awaited) = awaited.find(|awaited| awaited.last.plus(1) == end && !awaited.has_come) {
            awaited.has_come = true;
            self.answered_early += 1;
        }
    }

    /// Everything before this number was executed, although not all of its responses have come.
    pub(super) fn note_executed_before(&mut self, common: &mut Common, now: Time, psn: Psn) {
        self.expect_responses_before(psn);
        self.judge_missing(common, now, psn);
    }

    /// The peer has no receive for a packet, and responses before it are missing: with those alone it would not hear of
    /// that packet again, and say so again.
    pub(super) fn ask_all_again(&mut self, common: &Common, now: Time) {
        if self.places_early {
            self.go_back();
            self.arm_timers(common, now);
        }
    }

    /// The responses that belong to numbers before this one have left the peer.
    fn expect_responses_before(&mut self, end: Psn) {
        let begin = self.unacknowledged;
        let mut early = self.early.take().unwrap_or_else(|| Box::new(Gaps::new(begin)));
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
        self.early = Some(early);
    }

    fn judge_missing(&mut self, common: &mut Common, now: Time, end: Psn) {
        let (limit, patience) = (self.limit, self.round_trip.repeat_wait());
        let evidence = self.reordering.evidence(self.packets_in_flight());
        let Some(early) = &mut self.early else { return };
        let is_event = early.judge(end, limit, now, patience, evidence);
        self.arm_repair(now);
        if is_event {
            common.count(Counter::ReadRepair);
            self.reordering.note_loss_event();
            self.tell_congestion(common, now, CongestionKind::Loss);
        }
        self.note_in_flight(common);
    }

    /// No response comes: the oldest READ request is made once more, without what has come of its responses.
    pub(super) fn give_up_oldest_read(&mut self, now: Time) {
        let request = *self.request(self.oldest);
        let offset = self.unacknowledged.distance_from(request.first).max(0) as u32;
        let end = request.first.plus(request.end_of_chunk(offset));
        self.expect_responses_before(end);
        let patience = self.round_trip.repeat_wait();
        if let Some(early) = &mut self.early {
            early.give_up_before(end, now, patience);
        }
    }

    /// The request for the first responses that are missing.
    #[inline]
    pub(super) fn plan_lost_response(&self, common: &Common) -> Option<RequestPlan> {
        let early = self.early.as_ref()?;
        let lost = early.missing().first_lost()?;
        self.plan_response_again(common, lost.first, lost.packets)
    }

    #[cold]
    fn plan_response_again(&self, common: &Common, psn: Psn, packets: u32) -> Option<RequestPlan> {
        let index = self.request_with(psn)?;
        let request = self.request(index);
        if !request.is_read {
            return self.plan_again(common, index, psn);
        }
        let offset = psn.distance_from(request.first).max(0) as u32;
        let covers = packets.min(request.end_of_chunk(offset) - offset);
        if !self.window_allows(common, psn, covers) {
            return None;
        }
        let opcode = Opcode::RC_READ_REQUEST.of(common.wire_service());
        let size = packet_bytes(opcode, 0);
        Some(RequestPlan { index, psn, offset, covers, size, payload: 0, opcode, turn: Turn::Missing })
    }

    /// The peer misses this request packet. It is sent again, at most once in the time in which the peer would tell.
    pub(super) fn resend_request(&mut self, common: &mut Common, now: Time, psn: Psn) {
        common.count(Counter::ReceivedSequenceNak);
        // The responses behind the missing packet wait for it.
        self.round_trip.forget_sample();
        let (last, at) = self.resent;
        let is_underway = last == psn && now.saturating_since(at) < self.round_trip.repeat_wait();
        if !is_underway && !self.waits_for_receiver() {
            self.resent = (psn, now);
            self.tell_congestion(common, now, CongestionKind::Loss);
            self.recovery.send_probe(psn);
        }
        self.note_sign_of_life(common, now);
    }
}
