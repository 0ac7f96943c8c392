//! Early packets, kept in the reorder buffer. A NAK reports a gap that is more likely a loss than a delay.

use std::time::Duration;

use super::reorder::{Arrived, Early, Kept};
use super::response_queue::SHORT_RESPONSE_BYTES;
use super::{Common, Pass, Responder};
use crate::transport::common::LOSS_EVIDENCE;
use crate::types::{Counter, DropReason, Psn, Time};
use crate::wire::{GapRun, Packet};

/// How long a gap with few packets behind it may stay before it is reported.
const REORDER_WAIT: Duration = Duration::from_micros(100);

/// The gap before the early packets, and whether it was reported.
#[derive(Default)]
pub(super) struct Gap {
    /// Packets that arrived while the expected one was missing.
    evidence: u32,
    /// Number of early packets that arrived, less the number of reported gaps. Kept packets show a gap again after each
    /// executed packet, but are no more evidence than when they arrived.
    reports_left: u32,
    is_reported: bool,
    report_at: Option<Time>,
}

impl Gap {
    pub(super) fn report_at(&self) -> Option<Time> {
        self.report_at
    }

    /// Closes the gap when the expected packet arrives. Further reports are possible only for packets still kept.
    fn close(&mut self, is_anything_kept: bool) {
        let reports_left = if is_anything_kept { self.reports_left } else { 0 };
        *self = Self { reports_left, ..Self::default() };
    }

    fn note_early(&mut self, is_new: bool) {
        self.reports_left = self.reports_left.saturating_add(1);
        self.evidence += u32::from(is_new);
    }
}

impl Responder {
    /// Keeps an early packet. A packet that the peer cannot have sent, because it is further ahead than the peer has
    /// packets in flight or longer than the MTU, is neither kept nor evidence of a gap.
    pub(in crate::transport) fn keep(
        &mut self,
        common: &mut Common,
        pass: &Pass<'_>,
        packet: &Packet<'_>,
        arrived: Arrived<'_>,
    ) -> Result<(), DropReason> {
        let psn = packet.headers.bth.psn;
        let window = common.path.as_ref().map_or(0, |path| path.reorder_window());
        if !psn.is_within(self.expected, window) {
            return Err(DropReason::FarAhead);
        }
        if packet.payload.len() > common.mtu_bytes() as usize {
            return Err(DropReason::BadLength);
        }
        common.count(Counter::OutOfSequenceRequest);
        if self.waits_for_retry {
            return Err(DropReason::OutOfOrder);
        }
        let opens_gap = self.reorder.opens_gap(psn);
        let kept = self.reorder.insert(self.expected, psn, arrived, pass.now);
        if kept == Kept::New {
            common.count(Counter::ReorderedRequest);
        }
        self.responses.earn(arrived.bytes.len());
        self.gap.note_early(kept != Kept::Duplicate);
        if common.sends_gap_runs() {
            self.report_new_gap(common, packet.headers.bth.ack_request, opens_gap && kept == Kept::New);
        }
        self.judge_gap(common, pass.now);
        if kept == Kept::NoRoom { Err(DropReason::OutOfOrder) } else { Ok(()) }
    }

    /// Reports each new gap to a peer that supports lists of gaps, and the current state whenever it requests an
    /// acknowledgement.
    fn report_new_gap(&mut self, common: &Common, ack_requested: bool, opens_gap: bool) {
        if ack_requested {
            return self.report_gap(common);
        }
        if opens_gap && self.gap.is_reported {
            (self.gap.is_reported, self.gap.evidence) = (false, 1);
        }
    }

    /// Returns the bytes of the gap list in a NAK for this PSN.
    pub(super) fn gap_bytes(&self, common: &Common, psn: Psn) -> u32 {
        let most = common.mtu_bytes() as usize / GapRun::BYTES;
        let has_runs = common.sends_gap_runs() && psn == self.expected;
        let runs = if has_runs { self.gap_runs().take(most).count() } else { 0 };
        (runs * GapRun::BYTES) as u32
    }

    /// Returns the gaps that a NAK lists: as many as fit.
    pub(super) fn gap_runs(&self) -> impl Iterator<Item = GapRun> + '_ {
        self.reorder.gap_runs(self.expected).take(GapRun::MOST)
    }

    /// Whether packets wait behind a gap.
    pub(super) fn has_gap(&self) -> bool {
        !self.reorder.is_empty()
    }

    /// Returns the number of packets kept.
    pub(in crate::transport) fn kept(&self) -> usize {
        self.reorder.len()
    }

    /// Takes the expected packet from the reorder buffer, if it is there.
    pub(in crate::transport) fn take_kept(&mut self) -> Option<Early> {
        if self.waits_for_retry { None } else { self.reorder.take(self.expected) }
    }

    /// Finishes the execution of kept packets up to the next gap.
    pub(in crate::transport) fn end_kept(&mut self, common: &Common, now: Time) {
        self.reorder.advance(self.expected);
        if self.waits_for_retry {
            self.reorder.clear();
        }
        self.responses.complete_acknowledgement(self.message_count());
        self.close_gap();
        self.gap.evidence = self.reorder.len() as u32;
        self.judge_gap(common, now);
    }

    /// Drops the early packets. The gap before them stays, and is not reported again.
    pub(in crate::transport) fn forget_early(&mut self) {
        self.reorder.clear();
    }

    /// Closes the gap, and withdraws its report if it is still queued.
    #[inline]
    pub(in crate::transport) fn close_gap(&mut self) {
        self.gap.close(!self.reorder.is_empty());
        if self.responses.owes_sequence_nak() {
            self.responses.withdraw_sequence_nak();
        }
    }

    /// Reports a gap, once (`rxe_resp.c`, `check_psn`), when the missing packet is more likely lost than late.
    fn judge_gap(&mut self, common: &Common, now: Time) {
        let gap = &mut self.gap;
        if gap.is_reported || gap.evidence == 0 || gap.reports_left == 0 {
            return;
        }
        if gap.evidence >= LOSS_EVIDENCE {
            self.report_gap(common);
        } else if gap.report_at.is_none() {
            gap.report_at = Some(now + REORDER_WAIT);
        }
    }

    /// Queues a NAK with the PSN of the missing packet (IBTA 9.7.5.2.2; `rxe_resp.c`, `RESPST_ERR_PSN_OUT_OF_SEQ`).
    pub(super) fn report_gap(&mut self, common: &Common) {
        self.gap.report_at = None;
        // The NAK already due will contain the state at the time of sending: an early packet adds fewer bytes to it
        // than it earns.
        if self.responses.owes_sequence_nak() {
            self.gap.is_reported = true;
            return;
        }
        // Only an early packet without payload is shorter than a NAK; then the next one reports the gap.
        let bytes = SHORT_RESPONSE_BYTES + self.gap_bytes(common, self.expected) as usize;
        if !self.responses.takes_empty() || !self.responses.spend(bytes) {
            return;
        }
        self.gap.is_reported = true;
        self.gap.reports_left = self.gap.reports_left.saturating_sub(1);
        self.responses.push_sequence_nak(self.expected, self.message_count());
    }
}
