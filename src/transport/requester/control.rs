//! The requester's side of the congestion seam.

use std::time::Duration;

use super::limiter::Limiter;
use super::plan::Turn;
use super::{Common, Halt, RequestPlan, Requester};
use crate::transport::congestion::{
    Acked, CongestionEvent, CongestionFactory, CongestionKind, ConnectionWindow, PathFacts, Sent,
};
use crate::transport::marks::Marking;
use crate::transport::path::Path;
use crate::transport::path_measures::Blocked;
use crate::types::{Counter, Psn, QueuePairState, RateLimit, Time};

impl Requester {
    /// The path is another one, or something else is known of the peer: control begins from the start, but for what the
    /// path's queue pairs share.
    pub(in crate::transport) fn take_path(&mut self, path: &Path, factory: Option<&dyn CongestionFactory>) {
        let facts = path.facts();
        self.window = ConnectionWindow::new(&facts);
        self.renew_window(&facts);
        if let Some(factory) = factory {
            path.window_share.take_path(&facts, factory, !path.is_shared());
        }
    }

    fn renew_window(&mut self, facts: &PathFacts) {
        self.window_packets = self.window.packets(facts);
    }

    /// Whether something wants to know what leaves: the path, or the queue pair's own rate.
    #[inline]
    pub(super) fn pays(&self, common: &Common) -> bool {
        common.is_controlled() || self.limiter.is_some()
    }

    /// The packet that leaves now, before anything is noted of it.
    pub(super) fn left_of(&self, common: &Common, plan: &RequestPlan) -> Left {
        let response = if self.request(plan.index).is_read { plan.covers * common.mtu_bytes() } else { 0 };
        let bytes = plan.size as u64 + u64::from(response);
        Left { packets: plan.covers, lost: self.lost_packets_of(plan), bytes }
    }

    /// Packets have left. They are paid for, on the path and at the queue pair's own rate.
    #[cold]
    pub(super) fn tell_sent(&mut self, common: &Common, now: Time, left: &Left) {
        let paid_on_path = common.controlled_path().and_then(|path| self.pay_on(common, path, now, left));
        let paid = self.limiter.as_mut().map(|limiter| limiter.pay(now, left.bytes));
        if let Some(paid_at) = paid.max(paid_on_path) {
            self.pace.spend(left.packets, paid_at);
        }
    }

    /// When they are paid for on the path. `None`: they have no rate.
    fn pay_on(&self, common: &Common, path: &Path, now: Time, left: &Left) -> Option<Time> {
        let [bytes, lost] = [left.packets, left.lost].map(|packets| window_bytes(common, packets));
        let sent = Sent { now, bytes, lost, in_flight: self.in_flight_on(common, path) };
        path.window_share.tell(|control| match common.service.is_reliable() {
            true => control.note_sent(&sent),
            false => control.charge(now, bytes),
        });
        allowance_on(common, path, now).map(|(paid_at, _)| paid_at)
    }

    /// Packets that are sent because they were lost, with this one. Going back, only the first of them is known to be.
    pub(super) fn lost_packets_of(&self, plan: &RequestPlan) -> u32 {
        match plan.turn {
            Turn::Missing => plan.covers,
            Turn::Request => 1,
            Turn::Probe => 0,
            Turn::Cursor => u32::from(plan.psn == self.unacknowledged && plan.psn.is_before(self.limit)),
        }
    }

    /// The packets from this number on are acknowledged that were not before. `is_read`: the first is one of a READ.
    #[inline]
    pub(super) fn tell_acknowledged(&mut self, common: &Common, now: Time, before: Psn, is_read: bool) {
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
        path.window_share.tell(|control| control.note_acknowledged(&ack, is_read));
    }

    /// Whether a packet asks for a response because that is measured: a small message, if no other one is.
    #[inline]
    pub(super) fn wants_delay(&self, common: &Common) -> bool {
        common.is_controlled() && self.delays.as_ref().is_none_or(|delays| delays.is_idle())
    }

    /// The same of the first packet of several that leave now.
    #[inline]
    pub(super) fn wants_delay_of_several(&self, common: &Common, now: Time) -> bool {
        common.is_controlled() && self.delays.as_ref().is_none_or(|delays| delays.wants(now))
    }

    /// The response to this packet is measured, for the controller.
    pub(super) fn begin_delay(&mut self, psn: Psn, now: Time) {
        self.delays.get_or_insert_default().begin(psn, now);
    }

    /// Packets may have arrived behind a missing one, and the shortest round trip of those that were measured is this.
    pub(super) fn tell_arrived(&mut self, common: &Common, now: Time, round_trip: Option<Duration>, is_read: bool) {
        let Some(path) = common.controlled_path() else { return };
        let bytes = window_bytes(common, self.packets_delivered(0));
        if bytes > 0 || round_trip.is_some() {
            let ack = Acked { now, bytes, round_trip, repetition: None, in_flight: self.in_flight_on(common, path) };
            path.window_share.tell(|control| control.note_acknowledged(&ack, is_read));
        }
    }

    /// Packets that have arrived since this was asked last: so many that are acknowledged now, and those that are known
    /// to have arrived behind a gap. Each counts once.
    fn packets_delivered(&mut self, acknowledged: u32) -> u32 {
        let arrived = self.packets_arrived();
        let before = std::mem::replace(&mut self.told_arrived, arrived);
        (acknowledged + arrived).saturating_sub(before)
    }

    /// Packets that are known to have arrived behind a gap.
    fn packets_arrived(&self) -> u32 {
        self.repair.as_ref().map_or(0, |repair| repair.arrived())
    }

    /// Something is sent again: a response may belong to either copy (Karn's algorithm: RFC 6298, section 3).
    pub(super) fn doubt_samples(&mut self) {
        self.round_trip.doubt_sample();
        self.delays = None;
    }

    /// Packets seem lost, and are about to be sent again.
    #[cold]
    pub(super) fn tell_congestion(&mut self, common: &Common, now: Time, kind: CongestionKind) {
        let Some(path) = &common.path else { return };
        if kind == CongestionKind::Persistent {
            path.note_marking(Marking::note_silence);
        }
        let event = CongestionEvent { now, kind, in_flight: self.in_flight_on(common, path) };
        self.window.note_congestion(&event);
        self.renew_window(&path.facts());
        path.window_share.tell(|control| control.note_congestion(&event));
    }

    /// A queue on the way has marked a packet of the path: it will overflow soon.
    #[cold]
    pub(in crate::transport) fn tell_marked(&self, common: &Common, now: Time) {
        let Some(path) = &common.path else { return };
        let event = CongestionEvent { now, kind: CongestionKind::Marked, in_flight: self.in_flight_on(common, path) };
        path.window_share.tell(|control| control.note_congestion(&event));
    }

    /// Whether packets of the path are in flight.
    pub(in crate::transport) fn has_in_flight(&self, common: &Common) -> bool {
        common.path.as_ref().is_some_and(|path| self.in_flight_on(common, path) > 0)
    }

    /// Packets that were sent again had only been late, as far as that was found out just now.
    #[cold]
    pub(super) fn count_spurious(&mut self, common: &mut Common) {
        let packets = u64::from(self.reordering.take_spurious());
        if packets > 0 {
            common.counters.add(Counter::SpuriousRetransmits, packets);
            common.path.iter().for_each(|path| path.window_share.tell(|control| control.note_spurious(packets)));
        }
    }

    /// What left is on its way. What keeps the rest from leaving, if the path does.
    #[inline]
    pub(in crate::transport) fn end_send(&mut self, common: &Common, now: Time) {
        self.hold_back(common, now);
        if self.pays(common) && self.has_unsent(common) {
            self.tell_blocked(common, now);
        }
    }

    #[cold]
    fn tell_blocked(&mut self, common: &Common, now: Time) {
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
        share.tell(|control| control.note_blocked(now, blocked));
    }

    /// Whether packets wait that have not left yet, or are to leave again.
    fn has_unsent(&self, common: &Common) -> bool {
        let has_new = self.next != self.send.published() && common.state == QueuePairState::ReadyToSend;
        self.cursor_request != self.next || has_new
    }

    /// Bytes in flight on the path: of this queue pair all that is not known to have arrived, of the others what counts
    /// against the common window.
    fn in_flight_on(&self, common: &Common, path: &Path) -> u64 {
        let others = self.packets_of_others(&path.window_share);
        let own = self.packets_in_flight().saturating_sub(self.packets_arrived());
        window_bytes(common, others.saturating_add(own))
    }

    /// Nothing leaves until what the path's queue pairs have sent is paid for, and what this one has sent at its own
    /// rate.
    #[inline]
    pub(in crate::transport) fn hold_back(&mut self, common: &Common, now: Time) {
        if self.pays(common) {
            self.pace.hold_back(now, self.allowance(common, now));
        }
    }

    /// When that is, and how many packets may leave in one send then.
    #[cold]
    fn allowance(&self, common: &Common, now: Time) -> (Time, u32) {
        let unlimited = (Time::ZERO, u32::MAX);
        let on_path = common.controlled_path().and_then(|path| allowance_on(common, path, now)).unwrap_or(unlimited);
        let own = self.limiter.as_ref().map_or(unlimited, |limiter| limiter.allowance(common.mtu_bytes()));
        (on_path.0.max(own.0), on_path.1.min(own.1))
    }

    /// The queue pair has another rate limit, or none. What was sent under the last one is paid for.
    pub(in crate::transport) fn limit_rate(&mut self, limit: &RateLimit) {
        self.limiter = Limiter::new(limit).map(Box::new);
        self.pace.forget_rate();
    }

    /// A clock has run out, or the pause has, while the pace holds packets back. What is held back has no response, so
    /// the clocks of the responses run from the end of the pause on, and spend nothing before.
    pub(super) fn handle_pause(&mut self, common: &Common, now: Time) {
        let (paid_at, _) = self.allowance(common, now);
        let resume = self.pace.end_pause(now, paid_at);
        if self.recovery.response_is_late(now) {
            self.recovery.postpone_clocks(resume + self.round_trip.probe_wait());
        }
    }
}

/// Packets that leave.
pub(super) struct Left {
    pub(super) packets: u32,
    /// Packets among them that were lost before.
    pub(super) lost: u32,
    /// Their bytes, or those of the responses to READ requests.
    pub(super) bytes: u64,
}

/// When what was sent on the path is paid for, and how many packets may leave in one send. `None`: they have no rate.
fn allowance_on(common: &Common, path: &Path, now: Time) -> Option<(Time, u32)> {
    match common.service.is_reliable() {
        true => Some(path.window_share.allowance(path.lot(common.qpn))),
        false => path.window_share.unacknowledged_allowance(now, path.lot(common.qpn)),
    }
}

/// What so many packets take of the window.
fn window_bytes(common: &Common, packets: u32) -> u64 {
    u64::from(packets) * u64::from(common.mtu_bytes())
}
