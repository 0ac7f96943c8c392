//! The requester's side of the congestion seam.

use std::time::Duration;

use super::{Common, Requester};
use crate::transport::congestion::{
    Acked, Congestion, CongestionControl, CongestionEvent, CongestionFactory, CongestionKind,
};
use crate::transport::path::Path;
use crate::types::{Psn, Time};

const SECOND_NANOSECONDS: u64 = 1_000_000_000;

impl Requester {
    /// The path is another one, or something else is known of the peer: control begins from the start.
    pub(in crate::transport) fn take_path(&mut self, path: &Path, factory: Option<&dyn CongestionFactory>) {
        self.congestion = Congestion::new(&path.facts(), factory);
        self.renew_window(path);
    }

    fn renew_window(&mut self, path: &Path) {
        self.window_packets = self.congestion.window_packets(&path.facts());
    }

    /// So many packets have left.
    #[inline]
    pub(super) fn tell_sent(&mut self, common: &Common, now: Time, packets: u32) {
        if !self.congestion.is_constant() {
            self.control_sent(common, now, packets);
        }
    }

    #[cold]
    fn control_sent(&mut self, common: &Common, now: Time, packets: u32) {
        let bytes = window_bytes(common, packets);
        self.congestion.on_sent(now, bytes, window_bytes(common, self.packets_in_flight()));
        if let Some(rate) = self.congestion.pacing_rate() {
            let nanoseconds = bytes.saturating_mul(SECOND_NANOSECONDS) / rate.max(1);
            self.pace.charge(now, Duration::from_nanos(nanoseconds));
        }
    }

    /// The packets from this number on are acknowledged that were not before.
    #[inline]
    pub(super) fn tell_acknowledged(&mut self, common: &Common, now: Time, before: Psn) {
        if !self.congestion.is_constant() {
            self.control_acknowledged(common, now, before);
        }
    }

    #[cold]
    fn control_acknowledged(&mut self, common: &Common, now: Time, before: Psn) {
        let Some(path) = common.path.as_ref().filter(|_| common.service.is_reliable()) else { return };
        let packets = self.unacknowledged.distance_from(before).max(0) as u32;
        let [round_trip, repetition] = self.round_trip.measured(self.unacknowledged, now);
        let in_flight = window_bytes(common, self.packets_in_flight());
        self.congestion.on_ack(&Acked { now, bytes: window_bytes(common, packets), round_trip, repetition, in_flight });
        self.renew_window(path);
    }

    /// Packets seem lost, and are about to be sent again.
    #[cold]
    pub(super) fn tell_congestion(&mut self, common: &Common, now: Time, kind: CongestionKind) {
        let Some(path) = &common.path else { return };
        let in_flight = window_bytes(common, self.packets_in_flight());
        self.congestion.on_congestion(&CongestionEvent { now, kind, in_flight });
        self.renew_window(path);
    }

    /// A send is complete: the next one waits until its packets are paid for.
    #[inline]
    pub(in crate::transport) fn hold_back(&mut self, now: Time) {
        if !self.congestion.is_constant() {
            self.pace.hold_back(now);
        }
    }

    /// A clock has run out, or the pause has, while the pace holds packets back. What is held back has no response, so
    /// the clocks of the responses run from the end of the pause on, and spend nothing before.
    pub(super) fn handle_pause(&mut self, now: Time) {
        let resume = self.pace.end_pause(now);
        if self.recovery.response_is_late(now) {
            self.recovery.postpone_clocks(resume + self.round_trip.probe_wait());
        }
    }
}

/// What so many packets take of the window.
fn window_bytes(common: &Common, packets: u32) -> u64 {
    u64::from(packets) * u64::from(common.mtu_bytes())
}
