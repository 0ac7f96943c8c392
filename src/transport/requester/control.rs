//! The requester's side of the congestion seam, and what keeps the next packet from leaving at once.

use std::time::Duration;

use super::{Common, Requester};
use crate::transport::congestion::{
    Acked, Congestion, CongestionControl, CongestionEvent, CongestionFactory, CongestionKind,
};
use crate::transport::path::Path;
use crate::types::{Psn, Time};

const SECOND_NANOSECONDS: u64 = 1_000_000_000;

/// What keeps the sending half from sending, if anything does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Halt {
    #[default]
    None,
    /// The peer asked for a wait: it drops what comes before.
    Receiver,
    /// What was sent is not paid for.
    Pace,
    /// The queue pair is in error.
    Stopped,
}

/// When the next packet may leave.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    halt: Halt,
    /// Packets of an unreliable connection since `free_at`.
    burst: u32,
    /// When the halt ends, if it has an end. Without a halt: when all that was sent is paid for, or when the burst began.
    free_at: Time,
}

impl Pace {
    #[inline]
    pub(super) fn halt(&self) -> Halt {
        self.halt
    }

    #[inline]
    pub(super) fn is_free(&self) -> bool {
        self.halt == Halt::None
    }

    /// When the halt ends, if it has an end.
    #[inline]
    pub(super) fn halted_until(&self) -> Option<Time> {
        matches!(self.halt, Halt::Receiver | Halt::Pace).then_some(self.free_at)
    }

    /// Nothing leaves any more.
    pub(super) fn stop(&mut self) {
        self.halt = Halt::Stopped;
    }

    /// No halt any more, whatever it was.
    pub(super) fn release(&mut self) {
        self.halt = Halt::None;
    }

    /// The peer asks for a wait.
    pub(super) fn wait_for_receiver(&mut self, ready: Time) {
        self.halt = Halt::Receiver;
        self.free_at = self.free_at.max(ready);
    }

    /// The wait that the peer asked for is over, perhaps early.
    #[cold]
    pub(super) fn end_wait(&mut self, now: Time) {
        self.halt = Halt::None;
        self.free_at = self.free_at.min(now);
    }

    /// So much time pays for what was just sent.
    fn charge(&mut self, now: Time, cost: Duration) {
        self.free_at = self.free_at.max(now) + cost;
    }

    /// Nothing leaves until all is paid for.
    fn hold_back(&mut self, now: Time) {
        if self.free_at > now && self.halt == Halt::None {
            self.halt = Halt::Pace;
        }
    }

    /// A packet of an unreliable connection leaves: after so many there is a pause.
    pub(super) fn note_unreliable(&mut self, now: Time, most: u32, pause: Duration) {
        if now.saturating_since(self.free_at) >= pause {
            (self.burst, self.free_at) = (0, now);
        }
        self.burst += 1;
        if self.burst >= most {
            // The burst began at `free_at`, so the wait is counted from there: a slow sender hardly waits.
            self.burst = 0;
            self.free_at = self.free_at + pause;
            self.halt = Halt::Pace;
        }
    }
}

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
        let round_trip = self.round_trip.measured(self.unacknowledged, now);
        let in_flight = window_bytes(common, self.packets_in_flight());
        self.congestion.on_ack(&Acked { now, bytes: window_bytes(common, packets), round_trip, in_flight });
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
        let resume = self.pace.free_at.max(now);
        if resume == now {
            self.pace.release();
        }
        if self.recovery.response_is_late(now) {
            self.recovery.postpone_clocks(resume + self.round_trip.probe_wait());
        }
    }
}

/// What so many packets take of the window.
fn window_bytes(common: &Common, packets: u32) -> u64 {
    u64::from(packets) * u64::from(common.mtu_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(microseconds: u64) -> Time {
        Time::from_nanos(1_000_000 + microseconds * 1_000)
    }

    #[test]
    fn bursts_are_followed_by_a_pause() {
        let (mut pace, pause) = (Pace::default(), Duration::from_micros(200));
        let mut send = |now| {
            pace.release();
            pace.note_unreliable(now, 3, pause);
            pace.halted_until()
        };
        assert_eq!(send(at(0)), None);
        assert_eq!(send(at(1)), None);
        assert_eq!(send(at(2)), Some(at(200)));
        // A slower sender never waits.
        for packet in 0..10 {
            assert_eq!(send(at(1_000 + packet * 100)), None, "{packet}");
        }
    }

    #[test]
    fn what_is_sent_is_paid_for_before_the_next_send() {
        let mut pace = Pace::default();
        pace.charge(at(0), Duration::from_micros(10));
        pace.charge(at(0), Duration::from_micros(5));
        assert!(pace.is_free(), "a send is not interrupted");
        pace.hold_back(at(0));
        assert_eq!(pace.halted_until(), Some(at(15)));
        pace.release();
        // Time without packets saves nothing up.
        pace.charge(at(100), Duration::from_micros(10));
        pace.hold_back(at(100));
        assert_eq!(pace.halted_until(), Some(at(110)));
    }

    #[test]
    fn a_wait_for_the_receiver_outlasts_the_pace_and_a_stop_both() {
        let mut pace = Pace::default();
        pace.charge(at(0), Duration::from_micros(10));
        pace.wait_for_receiver(at(5));
        pace.hold_back(at(0));
        assert_eq!((pace.halt(), pace.halted_until()), (Halt::Receiver, Some(at(10))));
        pace.end_wait(at(3));
        pace.hold_back(at(3));
        assert!(pace.is_free(), "the peer takes packets again");
        pace.stop();
        pace.charge(at(3), Duration::from_micros(10));
        pace.hold_back(at(3));
        assert_eq!((pace.halt(), pace.halted_until()), (Halt::Stopped, None));
    }
}
