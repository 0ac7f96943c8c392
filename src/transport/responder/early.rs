//! Packets that come before their turn: kept in the reorder buffer. A NAK reports a gap that is more likely a
//! loss than a delay.

use std::time::Duration;

use super::reorder::{Arrived, Early, Kept};
use super::response_queue::SHORT_RESPONSE_BYTES;
use super::{Common, Pass, Responder};
use crate::transport::common::LOSS_EVIDENCE;
use crate::types::{Counter, DropReason, Psn, Time};
use crate::wire::{GapRun, Packet};

/// How long a gap may stay before it is reported, when few packets follow.
const REORDER_WAIT: Duration = Duration::from_micros(100);

/// The gap before the early packets, and whether it was reported.
#[derive(Default)]
pub(super) struct Gap {
    /// Packets that came while the expected one was missing.
    evidence: u32,
    /// Early packets that came, less the gaps that were reported: what lies in the reorder buffer shows a gap before
    /// each packet that is executed, but is no more evidence than it was when it came.
    reports_left: u32,
    is_reported: bool,
    report_at: Option<Time>,
}

impl Gap {
    pub(super) fn report_at(&self) -> Option<Time> {
        self.report_at
    }

    /// The expected packet came. Reports are left only for packets that are still kept.
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
    /// Keeps a packet that came before its turn. What the peer cannot have sent is neither kept nor taken for the sign
    /// of a gap: what lies further ahead than it has packets in flight, and what is longer than the MTU.
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
        self.gap.note_early(kept != Kept::Again);
        if common.tells_gap_runs() {
            self.note_more(common, packet.headers.bth.ack_request, opens_gap && kept == Kept::New);
        }
        self.judge_gap(common, pass.now);
        if kept == Kept::NoRoom { Err(DropReason::OutOfOrder) } else { Ok(()) }
    }

    /// A peer that is told of all gaps hears of each new one, and how it stands whenever it asks.
    fn note_more(&mut self, common: &Common, asks: bool, opens_gap: bool) {
        if asks {
            return self.report_gap(common);
        }
        if opens_gap && self.gap.is_reported {
            (self.gap.is_reported, self.gap.evidence) = (false, 1);
        }
    }

    /// Bytes of the runs that a NAK for this number has behind it.
    pub(super) fn gap_bytes(&self, common: &Common, psn: Psn) -> u32 {
        let most = common.mtu_bytes() as usize / GapRun::BYTES;
        let has_runs = common.tells_gap_runs() && psn == self.expected;
        let runs = if has_runs { self.gap_runs().take(most).count() } else { 0 };
        (runs * GapRun::BYTES) as u32
    }

    /// The gaps that a NAK names: as many as it has room for.
    pub(super) fn gap_runs(&self) -> impl Iterator<Item = GapRun> + '_ {
        self.reorder.gap_runs(self.expected).take(GapRun::MOST)
    }

    /// Whether packets wait behind a gap.
    pub(super) fn has_gap(&self) -> bool {
        !self.reorder.is_empty()
    }

    /// Packets that are kept.
    pub(in crate::transport) fn kept(&self) -> usize {
        self.reorder.len()
    }

    /// Takes the expected packet out of the reorder buffer, if it is there.
    pub(in crate::transport) fn take_kept(&mut self) -> Option<Early> {
        if self.waits_for_retry { None } else { self.reorder.take(self.expected) }
    }

    /// The kept packets are executed up to the next gap.
    pub(in crate::transport) fn end_kept(&mut self, common: &Common, now: Time) {
        self.reorder.advance(self.expected);
        if self.waits_for_retry {
            self.reorder.clear();
        }
        self.responses.complete_acknowledgement(self.message_count);
        self.close_gap();
        self.gap.evidence = self.reorder.len() as u32;
        self.judge_gap(common, now);
    }

    /// Forgets the packets that came before their turn. The gap before them stays, and is not reported again.
    pub(in crate::transport) fn forget_early(&mut self) {
        self.reorder.clear();
    }

    /// The expected packet was executed, and none waits for it.
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

    /// The NAK has the number of the packet that is missing (`rxe_resp.c`, `RESPST_ERR_PSN_OUT_OF_SEQ`).
    pub(super) fn report_gap(&mut self, common: &Common) {
        self.gap.report_at = None;
        // The NAK that is due will say how it stands when it leaves: an early packet adds less to it than it earns.
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
        self.responses.push_sequence_nak(self.expected, self.message_count);
    }
}
