//! The window towards a peer that drops packets behind a missing one, as standard peers may.
//!
//! Everything in flight behind a lost packet is sent again. Packets that wait in a queue of the path add to these
//! without increasing the throughput. A loss therefore takes the queue out of the window: the window becomes the
//! capacity of the path without a queue, computed from the shortest round trip (as in TCP Westwood). Without a queue,
//! the window does not change.

use std::time::Duration;

use super::{Acked, CongestionEvent, PathFacts};
use crate::types::Time;

/// Packets beyond what the path holds, so that it does not run dry between two responses.
const SPARE_PACKETS: u64 = 8;
/// How long the shortest round trip is trusted. The next loss after that measures it again, so that a path that has
/// become longer gets its window back (BBR trusts it as long: draft-ietf-ccwg-bbr, `MinRTTFilterLen`). During the
/// measurement, the window is at most the spare packets: otherwise its own queue would count as part of the path.
const SHORTEST_VALIDITY: Duration = Duration::from_secs(10);
/// Number of round trips whose shortest is taken: one alone may have met a busy host.
const MEASURES: u32 = 4;
/// Number of losses, without a measurable round trip between them, that halve the window.
const LOSSES_UNMEASURED: u32 = 2;

/// A window that a loss reduces to what the path holds without a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::transport) struct GoBackWindow {
    bytes: u64,
    /// Upper bound: what the peer's socket holds.
    most: u64,
    packet: u64,
    /// The shortest round trip, and when it was measured.
    least: Option<(Duration, Time)>,
    /// A new measurement of `least`, if one is in progress.
    measure: Option<Measure>,
    /// The shortest round trip since the last loss, retransmitted packets included: an excess in all of them is the
    /// queue, and not a delay of one packet.
    recent: Option<Duration>,
    /// Losses since the latest measured round trip.
    unmeasured: u32,
    /// Bytes acknowledged since the window last grew.
    unused: u64,
}

/// A measurement of the shortest round trip: the window before it, and the round trips left to measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Measure {
    window: u64,
    shortest: Duration,
    left: u32,
}

impl GoBackWindow {
    /// Creates the window of a new path.
    pub(super) fn new(path: &PathFacts) -> Self {
        Self {
            bytes: path.socket_bytes,
            most: path.socket_bytes,
            packet: u64::from(path.mtu.bytes()),
            least: None,
            measure: None,
            recent: None,
            unmeasured: 0,
            unused: 0,
        }
    }

    /// Returns the part of the window that the path holds without a queue, plus the spare packets.
    fn without_queue(&mut self, least: Duration, recent: Duration) -> u64 {
        self.unmeasured = 0;
        let held = u128::from(self.bytes) * least.as_nanos() / recent.max(least).as_nanos().max(1);
        u64::try_from(held).unwrap_or(self.most) + self.spare()
    }

    /// Returns the window after a loss that no measured round trip preceded: half of it after [`LOSSES_UNMEASURED`]
    /// such losses, but not less than a measurement needs.
    fn without_measure(&mut self) -> u64 {
        self.unmeasured += 1;
        if self.unmeasured < LOSSES_UNMEASURED {
            return self.bytes;
        }
        self.unmeasured = 0;
        (self.bytes / 2).max(2 * self.spare())
    }

    /// Records the round trip of a packet that was sent once.
    fn note_round_trip(&mut self, now: Time, measured: Duration) {
        if let Some(measure) = &mut self.measure {
            measure.shortest = measure.shortest.min(measured);
            measure.left -= 1;
            if measure.left > 0 {
                return;
            }
            // So few packets build no queue, so the next loss needs a round trip of the whole window.
            (self.least, self.recent) = (Some((measure.shortest, now)), None);
            self.bytes = measure.window;
            self.measure = None;
        } else {
            if self.least.is_none_or(|(least, _)| measured <= least) {
                self.least = Some((measured, now));
            }
            self.recent = shorter(self.recent, measured);
        }
    }

    /// Begins to measure the shortest round trip again if that is due, and drains the queue during a measurement.
    /// Returns whether one is in progress.
    fn measures_again(&mut self, now: Time) -> bool {
        let is_old = self.least.is_some_and(|(_, at)| now.saturating_since(at) >= SHORTEST_VALIDITY);
        if is_old && self.measure.is_none() {
            self.measure = Some(Measure { window: self.bytes, shortest: Duration::MAX, left: MEASURES });
        }
        let measures = self.measure.is_some();
        if measures {
            self.bytes = self.bytes.min(self.spare());
        }
        measures
    }

    /// Returns the window; during a measurement, the one that follows it.
    pub(super) fn usual(&self) -> u64 {
        self.measure.map_or(self.bytes, |measure| measure.window)
    }

    fn spare(&self) -> u64 {
        SPARE_PACKETS * self.packet
    }

    /// Grows the window by one packet per round trip.
    fn grow(&mut self, acknowledged: u64) {
        self.unused += acknowledged;
        if self.unused >= self.bytes {
            self.unused = 0;
            self.bytes = (self.bytes + self.packet).min(self.most);
        }
    }
}

/// Returns the shorter round trip.
fn shorter(known: Option<Duration>, measured: Duration) -> Option<Duration> {
    Some(known.map_or(measured, |known| known.min(measured)))
}

impl GoBackWindow {
    /// Handles an acknowledgement.
    pub(super) fn note_acknowledged(&mut self, ack: &Acked) {
        let [once, again] = [ack.round_trip, ack.repetition].map(|measured| measured.filter(|time| !time.is_zero()));
        if once.is_some() || again.is_some() {
            self.unmeasured = 0;
        }
        if let Some(measured) = once {
            self.note_round_trip(ack.now, measured);
        }
        if let Some(measured) = again {
            self.recent = shorter(self.recent, measured);
        }
        if self.bytes < self.most && self.measure.is_none() {
            self.grow(ack.bytes);
        }
    }

    /// Reduces the window, because packets seem lost.
    pub(super) fn note_congestion(&mut self, event: &CongestionEvent) {
        self.unused = 0;
        if self.measures_again(event.now) {
            self.recent = None;
            return;
        }
        let reduced = match (self.least, self.recent.take()) {
            (Some((least, _)), Some(recent)) => self.without_queue(least, recent),
            _ => self.without_measure(),
        };
        self.bytes = self.bytes.min(reduced);
    }

    /// Returns the bytes that may be in flight.
    pub(super) fn window(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::super::CongestionKind;
    use super::*;
    use crate::types::Mtu;

    const PACKET: u64 = 1_024;

    fn window() -> GoBackWindow {
        GoBackWindow::new(&PathFacts::new([std::net::Ipv4Addr::LOCALHOST.into(); 2], Mtu::Mtu1024, false, 64 * PACKET))
    }

    fn acknowledge(window: &mut GoBackWindow, packets: u64, milliseconds: Option<u64>) {
        let round_trip = milliseconds.map(Duration::from_millis);
        window.note_acknowledged(&Acked {
            now: Time::ZERO,
            bytes: packets * PACKET,
            round_trip,
            repetition: None,
            in_flight: 0,
        });
    }

    fn lose(window: &mut GoBackWindow) -> u64 {
        lose_at(window, Time::ZERO)
    }

    fn lose_at(window: &mut GoBackWindow, now: Time) -> u64 {
        window.note_congestion(&CongestionEvent { now, kind: CongestionKind::Loss, in_flight: 0 });
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

    /// The path has no queue; the host of either end may have been busy once.
    #[test]
    fn one_long_round_trip_among_short_ones_is_no_queue() {
        let mut window = window();
        for milliseconds in [20, 400, 20] {
            acknowledge(&mut window, 1, Some(milliseconds));
        }
        assert_eq!(lose(&mut window), 64);
    }

    /// Runs a round trip with the window full, on a path that takes 0.16 ms per packet.
    fn fill(window: &mut GoBackWindow, now: Time, base: Duration) {
        let packets = window.window() / PACKET;
        let queue = Duration::from_micros(160) * packets as u32;
        let round_trip = Some(base.max(queue));
        window.note_acknowledged(&Acked { now, bytes: packets * PACKET, round_trip, repetition: None, in_flight: 0 });
    }

    #[test]
    fn a_path_that_became_longer_regains_its_window() {
        let mut window = window();
        acknowledge(&mut window, 1, Some(1));
        lose(&mut window);
        let mut before = 0;
        for milliseconds in 1..=60_000 {
            let now = Time::ZERO + Duration::from_millis(milliseconds);
            if milliseconds % 20 == 0 {
                fill(&mut window, now, Duration::from_millis(20));
            }
            if milliseconds % 2_000 == 0 {
                let packets = lose_at(&mut window, now);
                before = if milliseconds == 8_000 { packets } else { before };
            }
        }
        assert!(before < 15, "{before} packets where a round trip of 1 ms is believed");
        assert_eq!(window.window() / PACKET, 64);
    }

    /// A busy host delays one of the measured round trips, and losses continue meanwhile.
    #[test]
    fn the_shortest_round_trip_is_measured_with_few_packets_and_is_no_recent_one() {
        let mut window = window();
        acknowledge(&mut window, 1, Some(1));
        lose(&mut window);
        acknowledge(&mut window, 64, Some(10));
        let later = Time::ZERO + SHORTEST_VALIDITY;
        assert_eq!(lose_at(&mut window, later), SPARE_PACKETS);
        assert_eq!(window.usual() / PACKET, 64);
        for milliseconds in [20, 2, 2] {
            acknowledge(&mut window, 8, Some(milliseconds));
            assert_eq!(lose_at(&mut window, later), SPARE_PACKETS);
        }
        acknowledge(&mut window, 8, Some(2));
        assert_eq!(window.window() / PACKET, 64);
        acknowledge(&mut window, 64, Some(10));
        assert_eq!(lose(&mut window), 64 / 5 + SPARE_PACKETS);
    }

    /// The stream always fills the window, and its queue is never taken for a part of the path.
    #[test]
    fn a_continuous_stream_keeps_the_queue_empty() {
        let mut window = window();
        acknowledge(&mut window, 1, Some(1));
        lose(&mut window);
        let mut now = Time::ZERO;
        for loss in 0..2_000 {
            for _ in 0..5 {
                now = now + Duration::from_micros(160) * (window.window() / PACKET) as u32;
                fill(&mut window, now, Duration::from_millis(1));
            }
            let packets = lose_at(&mut window, now);
            assert!(packets < 24, "{packets} packets after {loss} losses");
        }
        assert!(now > Time::ZERO + 2 * SHORTEST_VALIDITY);
    }

    /// A sample that seems shorter than a round trip is the response to another packet.
    #[test]
    fn repetitions_show_a_queue_and_not_the_shortest_round_trip() {
        let mut window = window();
        acknowledge(&mut window, 1, Some(1));
        let mut repeat = |microseconds| {
            let repetition = Some(Duration::from_micros(microseconds));
            window.note_acknowledged(&Acked { now: Time::ZERO, bytes: 0, round_trip: None, repetition, in_flight: 0 });
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
