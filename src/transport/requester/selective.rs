//! Selective repeat: a native peer names all packets that it misses, and the requester retransmits exactly those.

use std::time::Duration;

use super::gaps::Gaps;
use super::missing::{LossDetection, MissingPackets, Repetition};
use super::scoreboard::Scoreboard;
use super::{Common, RequestPlan, Requester};
use crate::transport::congestion::CongestionKind;
use crate::transport::path::Path;
use crate::types::{Counter, DropReason, Psn, Time};
use crate::wire::GapRuns;

/// Among consecutive retransmissions, those whose number is a multiple of this request a report of the gaps.
const PACKETS_PER_GAP_REPORT: u32 = 16;

/// How long a retransmitted packet may take until the peer reports it.
#[derive(Clone, Copy)]
pub(super) struct RepeatTimeout {
    least: Duration,
    /// When a sign of life came last.
    heard_at: Time,
}

impl RepeatTimeout {
    /// Returns when a packet that was retransmitted at this time is overdue. In silence, each repetition waits longer
    /// than the one before: half as long as the silence has lasted.
    fn end(self, sent_at: Time) -> Time {
        sent_at + self.least.max(sent_at.saturating_since(self.heard_at) / 2)
    }

    /// Returns whether a packet that was sent again is overdue.
    pub(super) fn is_over(self, repetition: Repetition, now: Time) -> bool {
        self.end(repetition.at) <= now
    }
}

impl Requester {
    /// Returns whether the peer's gaps are known.
    #[inline]
    pub(super) fn is_selective(&self) -> bool {
        self.scoreboard().is_some()
    }

    /// Returns whether each lost packet is retransmitted individually.
    #[inline]
    pub(super) fn repeats_selectively(&self) -> bool {
        self.repair.is_some()
    }

    /// Returns whether packets are known to be missing, beyond an early response that was not kept.
    pub(super) fn waits_for_missing(&self) -> bool {
        let has_missing = self.repair.iter().flat_map(|repair| repair.missing()).any(|missing| missing.packets() > 0);
        has_missing || (self.repeats_selectively() && !self.recovery.has_early_response())
    }

    #[inline]
    fn scoreboard(&self) -> Option<&Scoreboard> {
        self.repair.as_ref()?.scoreboard.as_ref()
    }

    fn scoreboard_mut(&mut self) -> Option<&mut Scoreboard> {
        self.repair.as_mut()?.scoreboard.as_mut()
    }

    /// Forgets the missing requests, because all that have not been executed are retransmitted. Of the others only
    /// responses are missing.
    pub(super) fn forget_missing_requests(&mut self) {
        let Some(repair) = &mut self.repair else { return };
        repair.forget_requests();
        self.end_repair();
    }

    /// Ends the repair if nothing is missing.
    fn end_repair(&mut self) {
        self.repair.take_if(|repair| repair.is_over());
    }

    /// Forgets everything missing, because all packets are retransmitted.
    pub(super) fn forget_missing(&mut self) {
        self.reordering.forget_lost();
        let Some(repair) = &mut self.repair else { return };
        repair.forget();
        self.end_repair();
    }

    /// Takes a report: the peer misses the oldest unacknowledged packet, keeps later ones, and names all gaps.
    #[cold]
    pub(super) fn take_gap_runs(
        &mut self,
        common: &mut Common,
        now: Time,
        runs: GapRuns<'_>,
    ) -> Result<(), DropReason> {
        if runs.packets() > self.packets_in_flight() {
            return Err(DropReason::BadPsn);
        }
        common.count(Counter::ReceivedSequenceNak);
        if self.waits_for_receiver() {
            return Ok(());
        }
        let (detection, begin, limit) = (self.loss_detection(now), self.unacknowledged, self.limit);
        let board = self.repair.get_or_insert_default().scoreboard.get_or_insert_with(|| Scoreboard::new(begin));
        let too_short = self.round_trip.too_short();
        let learned = self.reordering.watch(
            board,
            |board| board.gaps().sent_again_within(too_short, now),
            |board| board.take(runs.iter(), limit, detection),
        );
        let end = board.gaps().end();
        self.round_trip.note_gaps(board.gaps(), now);
        let measured = self.delays.as_mut().and_then(|delays| delays.end_arrived(board.gaps(), now));
        // After going back, packets before `end` need not be retransmitted in order: the peer has reported those that
        // it misses.
        if self.cursor.is_before(end) {
            self.move_cursor(end);
        }
        self.report_arrived(common, now, measured, false);
        self.count_spurious(common);
        if learned.is_new_event {
            self.reordering.note_loss_event();
            common.log_retransmission(now, begin, "gaps", self.recovery.spent().0);
            self.report_congestion(common, now, CongestionKind::Loss);
        }
        if learned.has_delivered {
            self.note_sign_of_life(common, now);
        }
        self.arm_repair(now);
        self.note_in_flight(common);
        Ok(())
    }

    /// Declares packets lost that were late, or were sent again, and have not arrived.
    pub(super) fn give_up_missing(&mut self, common: &Common, now: Time) {
        let (limit, repeat_timeout) = (self.limit, self.repeat_timeout());
        if let Some(repair) = &mut self.repair {
            let losses = repair.give_up(limit, repeat_timeout, now);
            self.reordering.note_lost(now, &losses);
        }
        self.arm_repair(now);
        self.note_in_flight(common);
        self.arm_timers(common, now);
    }

    /// Returns the criteria that distinguish lost packets from late ones.
    pub(super) fn loss_detection(&self, now: Time) -> LossDetection {
        let packet_threshold = self.reordering.evidence(self.packets_in_flight());
        LossDetection { now, packet_threshold, time_threshold: self.round_trip.repeat_wait() }
    }

    /// Returns the record of a packet that is sent again now.
    pub(super) fn repetition(&self, now: Time) -> Repetition {
        Repetition { at: now, later: self.limit }
    }

    /// Returns how long retransmitted packets may take until the peer reports them.
    pub(super) fn repeat_timeout(&self) -> RepeatTimeout {
        RepeatTimeout { least: self.round_trip.repeat_wait(), heard_at: self.recovery.heard_at() }
    }

    /// Sets the clock of the missing packets: when they count as lost, or as lost again.
    #[cold]
    pub(super) fn arm_repair(&mut self, now: Time) {
        let missing = || self.repair.iter().flat_map(|repair| repair.missing());
        // After an early response that was not kept, possibly no other arrives to trigger the repair.
        let is_late = missing().any(MissingPackets::has_late) || self.recovery.has_early_response();
        let late = is_late.then(|| now + self.round_trip.reorder_wait());
        let again = missing().filter_map(MissingPackets::oldest_again).min();
        let again = again.map(|at| self.repeat_timeout().end(at));
        self.recovery.arm_repair(Time::earliest([late, again]));
    }

    /// Removes everything before this number, which is acknowledged.
    #[cold]
    pub(super) fn trim_missing(&mut self, common: &mut Common, now: Time, psn: Psn) {
        if self.has_forgotten(psn) {
            self.go_back_to(psn);
            self.forget_missing_requests();
        }
        let too_short = self.round_trip.too_short();
        let mut is_over = |gaps: &mut Gaps| {
            let recent = |gaps: &Gaps| gaps.sent_again_within(too_short, now);
            !self.reordering.watch(gaps, recent, |gaps| gaps.acknowledge_before(psn))
        };
        if let Some(repair) = &mut self.repair {
            repair.scoreboard.take_if(|board| is_over(board.gaps_mut()));
            repair.early.take_if(is_over);
        }
        self.count_spurious(common);
        self.trim_missing_requests(psn);
        self.end_repair();
    }

    /// Returns whether the peer expects a packet that it had kept, and so must have dropped: otherwise it would have
    /// executed and acknowledged the packet with those before.
    fn has_forgotten(&self, psn: Psn) -> bool {
        let is_kept = self.scoreboard().is_some_and(|board| board.gaps().has_arrived(psn));
        is_kept && self.request_with(psn).is_some_and(|index| !self.request(index).needs_response())
    }

    /// Returns the packets of this connection that are in a queue of the path.
    #[cold]
    pub(super) fn packets_in_queues(&self) -> u32 {
        let absent = self.repair.as_ref().map_or(0, |repair| repair.absent());
        self.packets_before_cursor().saturating_sub(absent)
    }

    /// Returns how many packets from `first` on the peer keeps if they arrive early.
    pub(super) fn packets_kept_from(&self, path: &Path, first: Psn) -> u32 {
        path.reorder_window().saturating_sub(first.packets_since(self.unacknowledged))
    }

    /// Returns the next packet that the peer misses.
    pub(super) fn next_lost(&self) -> Option<Psn> {
        Some(self.scoreboard()?.gaps().missing().first_lost()?.first)
    }

    /// Notes that the packet of [`Requester::next_lost`], or the request for lost responses, has left.
    pub(super) fn note_sent_again(&mut self, plan: &RequestPlan, now: Time) {
        let repetition = self.repetition(now);
        let needs_response = self.request(plan.index).needs_response();
        if needs_response {
            if let Some(early) = self.early_mut() {
                early.note_sent_again(plan.covers, repetition);
            }
        } else if let Some(board) = self.scoreboard_mut() {
            board.gaps_mut().note_sent_again(1, repetition);
        }
        self.arm_repair(now);
    }

    /// Returns whether a retransmitted packet requests a report of the gaps: some do (`PACKETS_PER_GAP_REPORT`), and
    /// the last one.
    pub(super) fn requests_gap_report(&self, psn: Psn) -> bool {
        let is_last = self.scoreboard().is_none_or(|board| !board.gaps().missing().has_lost_behind(psn));
        is_last || psn.value().is_multiple_of(PACKETS_PER_GAP_REPORT)
    }

    /// Returns the packet to repeat while the peer is silent: alternately the oldest, which all others wait for, and
    /// the newest.
    pub(super) fn alternating_probe(&self, probes: u32) -> Psn {
        if probes % 2 == 1 { self.unacknowledged } else { self.limit.minus(1) }
    }
}
