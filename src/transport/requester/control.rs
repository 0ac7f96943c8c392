//! The requester's side of the congestion seam.

use super::{Common, Requester};
use crate::transport::congestion::{
    Acked, CongestionEvent, CongestionFactory, CongestionKind, ConnectionWindow, PathFacts,
};
use crate::transport::path::Path;
use crate::types::{Psn, Time};

impl Requester {
    /// The path is another one, or something else is known of the peer: control begins from the start, but for what the
    /// path's queue pairs share.
    pub(in crate::transport) fn take_path(&mut self, path: &Path, factory: Option<&dyn CongestionFactory>) {
        let facts = path.facts();
        self.window = ConnectionWindow::new(&facts);
        self.renew_window(&facts);
        if let Some(factory) = factory {
            path.window_share.take_path(&facts, factory);
        }
    }

    fn renew_window(&mut self, facts: &PathFacts) {
        self.window_packets = self.window.packets(facts);
    }

    /// So many packets have left.
    #[inline]
    pub(super) fn tell_sent(&mut self, common: &Common, now: Time, packets: u32) {
        if let Some(path) = common.path.as_ref().filter(|path| path.window_share.is_controlled()) {
            let (bytes, in_flight) = (window_bytes(common, packets), self.in_flight_on(common, path));
            path.window_share.tell(|control| control.note_sent(now, bytes, in_flight));
        }
    }

    /// The packets from this number on are acknowledged that were not before.
    #[inline]
    pub(super) fn tell_acknowledged(&mut self, common: &Common, now: Time, before: Psn) {
        let Some(path) = &common.path else { return };
        if !self.window.is_constant() || path.window_share.is_controlled() {
            self.control_acknowledged(common, path, now, before);
        }
    }

    #[cold]
    fn control_acknowledged(&mut self, common: &Common, path: &Path, now: Time, before: Psn) {
        if !common.service.is_reliable() {
            return;
        }
        let packets = self.unacknowledged.packets_since(before);
        let [round_trip, repetition] = self.round_trip.measured(self.unacknowledged, now);
        let bytes = window_bytes(common, packets);
        let ack = Acked { now, bytes, round_trip, repetition, in_flight: self.in_flight_on(common, path) };
        self.window.note_acknowledged(&ack);
        self.renew_window(&path.facts());
        path.window_share.tell(|control| control.note_acknowledged(&ack));
    }

    /// Packets seem lost, and are about to be sent again.
    #[cold]
    pub(super) fn tell_congestion(&mut self, common: &Common, now: Time, kind: CongestionKind) {
        let Some(path) = &common.path else { return };
        let event = CongestionEvent { now, kind, in_flight: self.in_flight_on(common, path) };
        self.window.note_congestion(&event);
        self.renew_window(&path.facts());
        path.window_share.tell(|control| control.note_congestion(&event));
    }

    /// Bytes in flight on the path: of this queue pair all that is not acknowledged, of the others what counts against
    /// the common window.
    fn in_flight_on(&self, common: &Common, path: &Path) -> u64 {
        let others = self.packets_of_others(&path.window_share);
        window_bytes(common, others.saturating_add(self.packets_in_flight()))
    }

    /// Nothing leaves until what the path's queue pairs have sent is paid for.
    #[inline]
    pub(in crate::transport) fn hold_back(&mut self, common: &Common, now: Time) {
        if let Some(path) = common.path.as_ref().filter(|path| path.window_share.is_controlled()) {
            self.pace.hold_back(now, path.window_share.paid_at());
        }
    }

    /// A clock has run out, or the pause has, while the pace holds packets back. What is held back has no response, so
    /// the clocks of the responses run from the end of the pause on, and spend nothing before.
    pub(super) fn handle_pause(&mut self, common: &Common, now: Time) {
        let paid_at = common.path.as_ref().map_or(Time::ZERO, |path| path.window_share.paid_at());
        let resume = self.pace.end_pause(now, paid_at);
        if self.recovery.response_is_late(now) {
            self.recovery.postpone_clocks(resume + self.round_trip.probe_wait());
        }
    }
}

/// What so many packets take of the window.
fn window_bytes(common: &Common, packets: u32) -> u64 {
    u64::from(packets) * u64::from(common.mtu_bytes())
}
