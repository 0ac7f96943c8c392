//! The window towards a peer that drops what comes behind a missing packet, as standard peers may.
//!
//! All that is in flight behind a lost packet is sent again, and what waits in a queue of the path makes that more
//! without making anything faster. So a loss takes the queue out of the window: it becomes what the path holds without
//! one, by the shortest round trip (as TCP Westwood has it). Where nothing waits, the window stays as it is.

use std::time::Duration;

use super::{Acked, CongestionControl, CongestionEvent, PathFacts};
use crate::types::Time;

/// Packets beyond what the path holds, so that it does not run dry between two responses.
const SPARE_PACKETS: u64 = 8;
/// The shortest round trip is that of one to two such periods, so that a path which has become longer gets its window
/// back (BBR remembers it as long: draft-ietf-ccwg-bbr, `MinRTTFilterLen`).
const PERIOD: Duration = Duration::from_secs(10);
/// So many losses without a round trip that can be measured between them halve the window.
const LOSSES_UNMEASURED: u32 = 2;

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::transport) struct GoBackWindow {
    bytes: u64,
    /// What the peer's socket takes.
    most: u64,
    packet: u64,
    /// The shortest round trip of this period, and of the one before.
    least: [Option<Duration>; 2],
    period_began: Time,
    /// The shortest one since the last loss, of packets that were sent again, too: what is longer in all of them is the
    /// queue, and not a delay of one packet.
    recent: Option<Duration>,
    /// Losses since the latest round trip that was measured.
    unmeasured: u32,
    /// Bytes that were acknowledged since the window grew last.
    unused: u64,
}

impl GoBackWindow {
    /// At the beginning of a path.
    pub(super) fn new(path: &PathFacts) -> Self {
        Self {
            bytes: path.socket_bytes,
            most: path.socket_bytes,
            packet: u64::from(path.mtu.bytes()),
            least: [None; 2],
            period_began: Time::ZERO,
            recent: None,
            unmeasured: 0,
            unused: 0,
        }
    }

    /// What the path holds of the window without a queue.
    fn without_queue(&mut self, least: Duration, recent: Duration) -> u64 {
        self.unmeasured = 0;
        let held = u128::from(self.bytes) * least.as_nanos() / recent.max(least).as_nanos().max(1);
        u64::try_from(held).unwrap_or(self.most) + self.spare()
    }

    /// Half of the window, but no less than can be measured, if no round trip passes without a loss.
    fn without_measure(&mut self) -> u64 {
        self.unmeasured += 1;
        if self.unmeasured < LOSSES_UNMEASURED {
            return self.bytes;
        }
        self.unmeasured = 0;
        (self.bytes / 2).max(2 * self.spare())
    }

    /// A packet that was sent once took so long.
    fn note_round_trip(&mut self, now: Time, measured: Duration) {
        let [this, _] = self.least;
        let periods = now.saturating_since(self.period_began).as_nanos() / PERIOD.as_nanos();
        self.least = match periods {
            0 => self.least,
            1 => [None, this],
            2.. => [None; 2],
        };
        if periods > 0 {
            self.period_began = now;
        }
        self.least[0] = shorter(self.least[0], measured);
    }

    fn spare(&self) -> u64 {
        SPARE_PACKETS * self.packet
    }

    /// By one packet in each round trip.
    fn grow(&mut self, acknowledged: u64) {
        self.unused += acknowledged;
        if self.unused >= self.bytes {
            self.unused = 0;
            self.bytes = (self.bytes + self.packet).min(self.most);
        }
    }
}

/// The shorter one.
fn shorter(known: Option<Duration>, measured: Duration) -> Option<Duration> {
    Some(known.map_or(measured, |known| known.min(measured)))
}

impl CongestionControl for GoBackWindow {
    fn on_sent(&mut self, _: Time, _: u64, _: u64) {}

    fn on_ack(&mut self, ack: &Acked) {
        if let Some(measured) = ack.round_trip.filter(|measured| !measured.is_zero()) {
            self.note_round_trip(ack.now, measured);
        }
        for measured in [ack.round_trip, ack.repetition].into_iter().flatten() {
            self.recent = shorter(self.recent, measured);
            self.unmeasured = 0;
        }
        if self.bytes < self.most {
            self.grow(ack.bytes);
        }
    }

    fn on_congestion(&mut self, _: &CongestionEvent) {
        let least = self.least.into_iter().flatten().min();
        let reduced = match (least, self.recent.take()) {
            (Some(least), Some(recent)) => self.without_queue(least, recent),
            _ => self.without_measure(),
        };
        self.bytes = self.bytes.min(reduced);
        self.unused = 0;
    }

    fn window(&self) -> u64 {
        self.bytes
    }

    fn pacing_rate(&self) -> Option<u64> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::CongestionKind;
    use super::*;
    use crate::types::Mtu;

    const PACKET: u64 = 1_024;

    fn window() -> GoBackWindow {
        GoBackWindow::new(&PathFacts::new(std::net::Ipv4Addr::LOCALHOST.into(), Mtu::Mtu1024, false, 64 * PACKET))
    }

    fn acknowledge(window: &mut GoBackWindow, packets: u64, milliseconds: Option<u64>) {
        let round_trip = milliseconds.map(Duration::from_millis);
        window.on_ack(&Acked { now: Time::ZERO, bytes: packets * PACKET, round_trip, repetition: None, in_flight: 0 });
    }

    fn lose(window: &mut GoBackWindow) -> u64 {
        window.on_congestion(&CongestionEvent { now: Time::ZERO, kind: CongestionKind::Loss, in_flight: 0 });
        window.window() / PACKET
    }

    #[test]
    fn a_loss_takes_the_queue_out_of_the_window_once_for_each_round_trip() {
        let mut window = window();
        assert_eq!(lose(&mut window), 64, "nothing is known of the path");
        acknowledge(&mut window, 1, Some(1));
        assert_eq!(lose(&mut window), 64, "nothing waits");
        acknowledge(&mut window, 16, Some(8));
        assert_eq!(lose(&mut window), 8 + SPARE_PACKETS);
        assert_eq!(lose(&mut window), 8 + SPARE_PACKETS);
        acknowledge(&mut window, 1, Some(2));
        assert_eq!(lose(&mut window), 8 + SPARE_PACKETS);
    }

    /// As on a path without a queue, or when the host of either end was busy.
    #[test]
    fn one_long_round_trip_among_short_ones_is_no_queue() {
        let mut window = window();
        for milliseconds in [20, 400, 20] {
            acknowledge(&mut window, 1, Some(milliseconds));
        }
        assert_eq!(lose(&mut window), 64);
    }

    #[test]
    fn a_path_that_has_become_longer_gets_its_window_back() {
        let mut window = window();
        acknowledge(&mut window, 1, Some(1));
        lose(&mut window);
        for period in 1..=3 {
            let (now, round_trip) = (Time::ZERO + period * PERIOD, Some(Duration::from_millis(20)));
            window.on_ack(&Acked { now, bytes: 16 * PACKET, round_trip, repetition: None, in_flight: 0 });
            let packets = lose(&mut window);
            assert_eq!(packets < 64, period < 2, "{packets} after period {period}");
            (0..200).for_each(|_| acknowledge(&mut window, 64, None));
        }
    }

    /// What seems shorter than a round trip was the response to something else.
    #[test]
    fn repetitions_show_a_queue_and_not_the_shortest_round_trip() {
        let mut window = window();
        acknowledge(&mut window, 1, Some(1));
        let mut repeat = |microseconds| {
            let repetition = Some(Duration::from_micros(microseconds));
            window.on_ack(&Acked { now: Time::ZERO, bytes: 0, round_trip: None, repetition, in_flight: 0 });
            lose(&mut window)
        };
        assert_eq!([repeat(10), repeat(16_000)], [64, 4 + SPARE_PACKETS]);
    }

    #[test]
    fn the_window_grows_by_a_packet_in_each_round_trip_to_what_the_socket_takes() {
        let mut window = window();
        acknowledge(&mut window, 1, Some(1));
        lose(&mut window);
        acknowledge(&mut window, 1, Some(16));
        let reduced = lose(&mut window);
        assert_eq!(reduced, 4 + SPARE_PACKETS);
        acknowledge(&mut window, reduced - 1, None);
        assert_eq!(window.window() / PACKET, reduced);
        acknowledge(&mut window, 1, None);
        assert_eq!(window.window() / PACKET, reduced + 1);
        (0..10_000).for_each(|_| acknowledge(&mut window, 1, None));
        assert_eq!(window.window() / PACKET, 64);
    }
}
