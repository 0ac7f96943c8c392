//! The requester's side of congestion control.

use std::time::Duration;

use super::limiter::Limiter;
use super::plan::SendReason;
use super::reordering::Reordering;
use super::{Common, Halt, RequestPlan, Requester};
use crate::transport::congestion::{
    Acked, CongestionEvent, CongestionFactory, CongestionKind, ConnectionWindow, PathFacts, Sent,
};
use crate::transport::marks::Marking;
use crate::transport::path::Path;
use crate::transport::path_control::CongestionOutcome;
use crate::transport::path_measures::Blocked;
use crate::types::{Counter, Psn, QueuePairState, RateLimit, Time};

impl Requester {
    /// Restarts congestion control, except for the state that the path's queue pairs share: the path or the facts about
    /// the peer have changed.
    pub(in crate::transport) fn take_path(&mut self, path: &Path, factory: Option<&dyn CongestionFactory>) {
        let facts = path.facts();
        self.window = ConnectionWindow::new(&facts);
        self.renew_window(&facts);
        self.reordering = Reordering::default();
        if let Some(factory) = factory {
            path.window_share.take_path(&facts, factory, !path.is_shared());
        }
    }

    fn renew_window(&mut self, facts: &PathFacts) {
        self.window_packets = self.window.packets(facts);
    }

    /// Returns whether packets that leave must be paid for: on the path, or at the queue pair's own rate.
    #[inline]
    pub(super) fn pays(&self, common: &Common) -> bool {
        common.is_controlled() || self.limiter.is_some()
    }

    /// Returns the charge for the packet that leaves now. Must be called before the packet is recorded.
    pub(super) fn charge_of(&self, common: &Common, plan: &RequestPlan) -> SentCharge {
        let response = if self.request(plan.index).is_read { plan.covers * common.mtu_bytes() } else { 0 };
        let bytes = plan.size as u64 + u64::from(response);
        SentCharge { packets: plan.covers, lost: self.lost_packets_of(plan), bytes }
    }

    /// Charges packets that have left to the path and to the queue pair's own rate.
    #[cold]
    pub(super) fn report_sent(&mut self, common: &Common, now: Time, charge: &SentCharge) {
        let paid_on_path = common.controlled_path().and_then(|path| self.pay_on(common, path, now, charge));
        let paid = self.limiter.as_mut().map(|limiter| limiter.pay(now, charge.bytes));
        if let Some(paid_at) = paid.max(paid_on_path) {
            self.pace.spend(charge.packets, paid_at);
        }
    }

    /// Charges packets to the path. Returns when they are paid for, or `None` if they have no rate.
    fn pay_on(&self, common: &Common, path: &Path, now: Time, charge: &SentCharge) -> Option<Time> {
        let [bytes, lost] = [charge.packets, charge.lost].map(|packets| window_bytes(common, packets));
        let sent = Sent { now, bytes, lost, in_flight: self.in_flight_on(common, path) };
        path.window_share.with_control(|control| match common.service.is_reliable() {
            true => control.note_sent(&sent),
            false => control.charge(now, bytes),
        });
        allowance_on(common, path, now).map(|(paid_at, _)| paid_at)
    }

    /// Returns how many packets of this plan repeat lost ones. When going back, only the first one is known to be lost.
    /// If a probe repeats READ requests that no response shows to be executed, the oldest request may be the only loss:
    /// counting all their responses would look like too many losses to be random.
    pub(super) fn lost_packets_of(&self, plan: &RequestPlan) -> u32 {
        let is_oldest = plan.psn == self.unacknowledged;
        match plan.reason {
            SendReason::Missing if self.recovery.is_probing() && self.may_have_lost_request(plan) => {
                u32::from(is_oldest)
            }
            SendReason::Missing => plan.covers,
            SendReason::Request => 1,
            SendReason::Probe => 0,
            SendReason::Cursor => u32::from(is_oldest && plan.psn.is_before(self.limit)),
        }
    }

    /// Reports the packets from `before` on that are newly acknowledged. `is_read`: the first belongs to a READ.
    #[inline]
    pub(super) fn report_acknowledged(&mut self, common: &Common, now: Time, before: Psn, is_read: bool) {
        if (common.is_controlled() || !self.window.is_constant())
            && let Some(path) = &common.path
        {
            self.control_acknowledged(common, path, now, (before, is_read));
        }
    }

    #[cold]
    fn control_acknowledged(&mut self, common: &Common, path: &Path, now: Time, (before, is_read): (Psn, bool)) {
        if !common.service.is_reliable() {
            return;
        }
        path.note_marking(Marking::note_progress);
        let bytes = window_bytes(common, self.packets_delivered(self.unacknowledged.packets_since(before)));
        let [round_trip, repetition] = self.round_trip.measured(self.unacknowledged, now);
        let ack = Acked { now, bytes, round_trip, repetition, in_flight: self.in_flight_on(common, path) };
        if !self.window.is_constant() {
            self.window.note_acknowledged(&ack);
            self.renew_window(&path.facts());
        }
        let (unacknowledged, delays) = (self.unacknowledged, self.delays.as_mut());
        let ack = Acked { round_trip: delays.and_then(|delays| delays.end_before(unacknowledged, now)), ..ack };
        path.window_share.with_control(|control| control.note_acknowledged(&ack, is_read));
    }

    /// Returns whether a packet that leaves now is to be measured by its response: if no other one is.
    #[inline]
    pub(super) fn wants_delay(&self, common: &Common) -> bool {
        common.is_controlled() && self.delays.as_ref().is_none_or(|delays| delays.is_idle())
    }

    /// Returns whether the first of several packets that leave now requests a response in order to be measured.
    #[inline]
    pub(super) fn wants_delay_of_several(&self, common: &Common, now: Time) -> bool {
        common.is_controlled() && self.delays.as_ref().is_none_or(|delays| delays.wants(now))
    }

    /// Begins to measure the response to this packet, for the controller.
    pub(super) fn begin_delay(&mut self, psn: Psn, now: Time) {
        self.delays.get_or_insert_default().begin(psn, now);
    }

    /// Reports packets that may have arrived behind a missing one, and the shortest round trip of those that were
    /// measured.
    pub(super) fn report_arrived(&mut self, common: &Common, now: Time, round_trip: Option<Duration>, is_read: bool) {
        let Some(path) = common.controlled_path() else { return };
        let bytes = window_bytes(common, self.packets_delivered(0));
        if bytes > 0 || round_trip.is_some() {
            let ack = Acked { now, bytes, round_trip, repetition: None, in_flight: self.in_flight_on(common, path) };
            path.window_share.with_control(|control| control.note_acknowledged(&ack, is_read));
        }
    }

    /// Returns the packets that have arrived since the last call: those that are acknowledged now, and those that are
    /// known to have arrived behind a gap. Each counts once.
    fn packets_delivered(&mut self, acknowledged: u32) -> u32 {
        let arrived = self.packets_arrived();
        let before = std::mem::replace(&mut self.reported_arrived, arrived);
        (acknowledged + arrived).saturating_sub(before)
    }

    /// Returns the packets that are known to have arrived behind a gap.
    fn packets_arrived(&self) -> u32 {
        self.repair.as_ref().map_or(0, |repair| repair.arrived())
    }

    /// Doubts the current samples, because packets are retransmitted: a response may belong to either copy (Karn's
    /// algorithm: RFC 6298, section 3).
    pub(super) fn doubt_samples(&mut self) {
        self.round_trip.doubt_sample();
        self.delays = None;
    }

    /// Reports that packets seem lost, and are about to be retransmitted. Returns the effect on the path's window.
    #[cold]
    pub(super) fn report_congestion(
        &mut self,
        common: &Common,
        now: Time,
        kind: CongestionKind,
    ) -> Option<CongestionOutcome> {
        let path = common.path.as_ref()?;
        if kind == CongestionKind::Persistent {
            path.note_marking(Marking::note_silence);
        }
        let event = CongestionEvent { now, kind, in_flight: self.in_flight_on(common, path) };
        self.window.note_congestion(&event);
        self.renew_window(&path.facts());
        path.window_share.with_control(|control| control.note_congestion(&event))
    }

    /// Reports that a queue on the path marked a packet: it will overflow soon.
    #[cold]
    pub(in crate::transport) fn report_mark(&self, common: &Common, now: Time) {
        let Some(path) = &common.path else { return };
        let event = CongestionEvent { now, kind: CongestionKind::Marked, in_flight: self.in_flight_on(common, path) };
        path.window_share.with_control(|control| control.note_congestion(&event));
    }

    /// Returns whether packets of the path are in flight.
    pub(in crate::transport) fn has_in_flight(&self, common: &Common) -> bool {
        common.path.as_ref().is_some_and(|path| self.in_flight_on(common, path) > 0)
    }

    /// Counts the packets that just turned out to be sent again unnecessarily, because they were only late.
    #[cold]
    pub(super) fn count_spurious(&mut self, common: &mut Common) {
        let packets = u64::from(self.reordering.take_spurious());
        if packets > 0 {
            common.counters.add(Counter::SpuriousRetransmits, packets);
            if let Some(path) = &common.path {
                path.window_share.with_control(|control| control.note_spurious(packets));
            }
        }
    }

    /// Ends a send: holds back the next packets until this send is paid for, and reports whether the path blocks them.
    #[inline]
    pub(in crate::transport) fn end_send(&mut self, common: &Common, now: Time) {
        self.hold_back(common, now);
        if self.pays(common) && self.has_unsent(common) {
            self.report_blocked(common, now);
        }
    }

    #[cold]
    fn report_blocked(&mut self, common: &Common, now: Time) {
        if self.pace.halt() == Halt::Pace
            && let Some(limiter) = &mut self.limiter
        {
            limiter.note_awaited(now);
        }
        let Some(path) = common.controlled_path() else { return };
        let share = &path.window_share;
        let blocked = match self.pace.halt() {
            Halt::None | Halt::Pace if share.in_flight() >= share.window() => Blocked::Window,
            Halt::Pace => Blocked::Pace(share.allowance(0).0),
            Halt::None | Halt::Receiver | Halt::Stopped => return,
        };
        share.with_control(|control| control.note_blocked(now, blocked));
    }

    /// Returns whether packets wait to be sent or retransmitted.
    fn has_unsent(&self, common: &Common) -> bool {
        let has_new = self.next != self.send.published() && common.state == QueuePairState::ReadyToSend;
        self.cursor_request != self.next || has_new
    }

    /// Returns the bytes in flight on the path: of this queue pair everything that is not known to have arrived, of the
    /// others the packets that count against the common window.
    fn in_flight_on(&self, common: &Common, path: &Path) -> u64 {
        let others = self.packets_of_others(&path.window_share);
        let own = self.packets_in_flight().saturating_sub(self.packets_arrived());
        window_bytes(common, others.saturating_add(own))
    }

    /// Holds packets back until those that the path's queue pairs have sent are paid for, and those of this one at its
    /// own rate.
    #[inline]
    pub(in crate::transport) fn hold_back(&mut self, common: &Common, now: Time) {
        if self.pays(common) {
            self.pace.hold_back(now, self.allowance(common, now));
        }
    }

    /// Returns when everything sent is paid for, and how many packets may leave in one send then.
    #[cold]
    fn allowance(&self, common: &Common, now: Time) -> (Time, u32) {
        let unlimited = (Time::ZERO, u32::MAX);
        let on_path = common.controlled_path().and_then(|path| allowance_on(common, path, now)).unwrap_or(unlimited);
        let own = self.limiter.as_ref().map_or(unlimited, |limiter| limiter.allowance(common.mtu_bytes()));
        (on_path.0.max(own.0), on_path.1.min(own.1))
    }

    /// Sets or removes the queue pair's rate limit. Packets sent under the previous one count as paid for.
    pub(in crate::transport) fn limit_rate(&mut self, limit: &RateLimit) {
        self.limiter = Limiter::new(limit).map(Box::new);
        self.pace.forget_rate();
    }

    /// Handles an expired clock, or the end of the pause, while the pace holds packets back. Packets that are held back
    /// get no response, so the clocks of the responses run from the end of the pause on, and consume no retries before.
    pub(super) fn handle_pause(&mut self, common: &Common, now: Time) {
        let (paid_at, _) = self.allowance(common, now);
        let resume = self.pace.end_pause(now, paid_at);
        if self.recovery.response_is_late(now) {
            self.recovery.postpone_clocks(resume + self.round_trip.probe_wait());
        }
    }
}

/// The charge for packets that leave.
pub(super) struct SentCharge {
    pub(super) packets: u32,
    /// Packets among them that were lost before.
    pub(super) lost: u32,
    /// Their bytes, plus those of the responses to READ requests.
    pub(super) bytes: u64,
}

/// Returns when packets sent on the path are paid for, and how many may leave in one send, or `None` if they have no
/// rate.
fn allowance_on(common: &Common, path: &Path, now: Time) -> Option<(Time, u32)> {
    match common.service.is_reliable() {
        true => Some(path.window_share.allowance(path.order_seed(common.qpn))),
        false => path.window_share.unacknowledged_allowance(now, path.order_seed(common.qpn)),
    }
}

/// Returns the bytes of the window that `packets` take.
fn window_bytes(common: &Common, packets: u32) -> u64 {
    u64::from(packets) * u64::from(common.mtu_bytes())
}
