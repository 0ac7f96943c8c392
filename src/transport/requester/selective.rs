//! Selective repeat: a native peer names all packets that it misses, and exactly those are sent again.

use std::time::Duration;

use super::gaps::Gaps;
use super::missing::{LossDetection, MissingPackets, Repetition};
use super::scoreboard::Scoreboard;
use super::{Common, RequestPlan, Requester};
use crate::transport::congestion::CongestionKind;
use crate::transport::path::Path;
use crate::types::{Counter, DropReason, Psn, Time};
use crate::wire::GapRuns;

/// Of the packets that are sent again in a row, each one whose number this divides asks how it stands.
const ASK_EVERY: u32 = 16;

/// How long a packet that is sent again may take to be told of.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    least: Duration,
    /// When a sign of life came last.
    heard_at: Time,
}

impl Patience {
    /// When a packet is overdue that was sent again at this time. Into silence, each repetition waits longer than the
    /// one before: half as long as the silence has lasted.
    fn end(self, sent_at: Time) -> Time {
        sent_at + self.least.max(sent_at.saturating_since(self.heard_at) / 2)
    }

    /// Whether a packet that was sent again is overdue.
    pub(super) fn is_over(self, repetition: Repetition, now: Time) -> bool {
        self.end(repetition.at) <= now
    }
}

impl Requester {
    /// Whether the peer's gaps are known.
    #[inline]
    pub(super) fn is_selective(&self) -> bool {
        self.scoreboard().is_some()
    }

    /// Whether what is lost is sent again by itself.
    #[inline]
    pub(super) fn repeats_selectively(&self) -> bool {
        self.repair.is_some()
    }

    /// Whether packets are known to be missing, so that not just an early response was seen that was not kept.
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

    /// All requests that have not been executed are sent again. Of the others only responses are missing.
    pub(super) fn forget_missing_requests(&mut self) {
        let Some(repair) = &mut self.repair else { return };
        repair.forget_requests();
        self.end_repair();
    }

    /// The repair ends when nothing is missing.
    fn end_repair(&mut self) {
        self.repair.take_if(|repair| repair.is_over());
    }

    /// All is sent again.
    pub(super) fn forget_missing(&mut self) {
        let Some(repair) = &mut self.repair else { return };
        repair.forget();
        self.end_repair();
    }

    /// The peer misses the oldest unacknowledged packet, keeps later ones, and names all gaps.
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
        // After going back: up to there the peer has told what it misses.
        if self.cursor.is_before(end) {
            self.move_cursor(end);
        }
        self.tell_arrived(common, now, measured, false);
        self.count_spurious(common);
        if learned.is_new_event {
            self.reordering.note_loss_event();
            self.tell_congestion(common, now, CongestionKind::Loss);
        }
        if learned.has_delivered {
            self.note_sign_of_life(common, now);
        }
        self.arm_repair(now);
        self.note_in_flight(common);
        Ok(())
    }

    /// Packets that were late, or were sent again, have not come: they are lost.
    pub(super) fn give_up_missing(&mut self, common: &Common, now: Time) {
        let (limit, patience) = (self.limit, self.patience());
        if let Some(repair) = &mut self.repair {
            repair.give_up(limit, patience, now);
        }
        self.arm_repair(now);
        self.note_in_flight(common);
        self.arm_timers(common, now);
    }

    /// What tells packets that are lost from those that are late.
    pub(super) fn loss_detection(&self, now: Time) -> LossDetection {
        let packet_threshold = self.reordering.evidence(self.packets_in_flight());
        LossDetection { now, packet_threshold, time_threshold: self.round_trip.repeat_wait() }
    }

    /// A packet is sent again now.
    pub(super) fn repetition(&self, now: Time) -> Repetition {
        Repetition { at: now, later: self.limit }
    }

    /// How long packets that are sent again may take.
    pub(super) fn patience(&self) -> Patience {
        Patience { least: self.round_trip.repeat_wait(), heard_at: self.recovery.heard_at() }
    }

    /// The clock of the missing packets: when they are lost, or lost again.
    #[cold]
    pub(super) fn arm_repair(&mut self, now: Time) {
        let missing = || self.repair.iter().flat_map(|repair| repair.missing());
        // A response that came before its turn and was not kept: no other may come for it.
        let is_late = missing().any(MissingPackets::has_late) || self.recovery.has_early_response();
        let late = is_late.then(|| now + self.round_trip.reorder_wait());
        let again = missing().filter_map(MissingPackets::oldest_again).min();
        let again = again.map(|at| self.patience().end(at));
        self.recovery.arm_repair(Time::earliest([late, again]));
    }

    /// Everything before this number is acknowledged.
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

    /// Whether the peer expects a packet that it has kept: it would have executed it with those before, and
    /// acknowledged it with them.
    fn has_forgotten(&self, psn: Psn) -> bool {
        let is_kept = self.scoreboard().is_some_and(|board| board.gaps().has_arrived(psn));
        is_kept && self.request_with(psn).is_some_and(|index| !self.request(index).needs_response())
    }

    /// Packets of this connection that lie in a queue of the path.
    #[cold]
    pub(super) fn packets_in_queues(&self) -> u32 {
        let absent = self.repair.as_ref().map_or(0, |repair| repair.absent());
        self.packets_before_cursor().saturating_sub(absent)
    }

    /// Packets from `first` on that the peer keeps if they come before their turn.
    pub(super) fn packets_kept_from(&self, path: &Path, first: Psn) -> u32 {
        path.reorder_window().saturating_sub(first.packets_since(self.unacknowledged))
    }

    /// The next packet that the peer misses.
    pub(super) fn next_lost(&self) -> Option<Psn> {
        Some(self.scoreboard()?.gaps().missing().first_lost()?.first)
    }

    /// The packet of [`Requester::next_lost`], or the request for lost responses, has left.
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

    /// Whether a packet that is sent again asks how it stands: some do, and the last one.
    pub(super) fn asks_how_it_stands(&self, psn: Psn) -> bool {
        let is_last = self.scoreboard().is_none_or(|board| !board.gaps().missing().has_lost_behind(psn));
        is_last || psn.value().is_multiple_of(ASK_EVERY)
    }

    /// The packet to repeat when nothing is heard: in turns the oldest, which all others wait for, and the newest.
    pub(super) fn probe_in_turn(&self, probes: u32) -> Psn {
        if probes % 2 == 1 { self.unacknowledged } else { self.limit.minus(1) }
    }
}
