//! CUBIC (RFC 9438) with HyStart++ (RFC 9406), as in TCP: a path gets its share of a link among other flows.

use std::time::Duration;

use super::curve::{BETA, Curve, plateau_after};
use super::loss_test::{LossTest, Verdict};
use super::slow_start::SlowStart;
use super::{Acked, CongestionControl, CongestionEvent, CongestionKind, PathFacts, Sent};
use crate::types::{ControlReport, Time};

/// Segment size of TCP on Ethernet, in which CUBIC counts, whatever the path MTU: otherwise a connection with large
/// packets grows faster than a TCP flow beside it.
const SEGMENT_BYTES: f64 = 1_448.0;
/// Initial window, at most 16 packets.
const FIRST_WINDOW_BYTES: u64 = 64 << 10;
const FIRST_WINDOW_PACKETS: u64 = 16;
/// Minimum window, in packets. With 1/n of a packet, one packet leaves every n round trips, so that a hundred senders
/// can share a queue that holds fewer packets (Swift: Kumar et al., SIGCOMM 2020, section 3.4).
const LEAST_WINDOW_PACKETS: f64 = 1.0 / 64.0;
/// Window in packets below which short paths are paced, too: so small a window cannot hold packets back by itself.
const SMALL_WINDOW_PACKETS: f64 = 2.0;
/// Fraction of the window that a mark leaves: a queue that marks is shorter than one that overflows (RFC 8511, 3.1).
const MARKED: f64 = 0.85;
/// Minimum window in packets after reductions by marks alone: forged marks cost no more.
const LEAST_MARKED_PACKETS: f64 = 2.0;
/// Window after persistent congestion, in packets.
const RESTART_PACKETS: f64 = 1.0;
/// Pacing rate in windows per round trip, in slow start and later. Above 1, so that the window stays the bound (Linux:
/// `tcp_pacing_ss_ratio`, `tcp_pacing_ca_ratio`).
const SLOW_START_PACE: f64 = 2.0;
const PACE: f64 = 1.2;
/// Shortest round trip that is paced. Below it, acknowledgements space the packets well enough, and a pause would take
/// longer than intended.
const SHORTEST_PACED: Duration = Duration::from_micros(200);
/// Longest time that counts as a round trip. A longer one means that the process or the machine stood still, and would
/// slow packets down for hours.
const LONGEST_ROUND_TRIP: Duration = Duration::from_secs(1);
/// Age of acknowledged data beyond which the path's rate may have changed.
const LONGEST_DATA_AGE: Duration = Duration::from_secs(1);

/// Builds a [`Cubic`] for each path.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
///
/// use rdma_verbs::transport::{CubicFactory, EndpointConfig};
///
/// let config = EndpointConfig { congestion: Some(Arc::new(CubicFactory)), ..EndpointConfig::default() };
/// assert!(config.congestion.is_some());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg(feature = "sim")]
pub struct CubicFactory;

#[cfg(feature = "sim")]
impl super::CongestionFactory for CubicFactory {
    fn build(&self, path: &PathFacts) -> Option<Box<dyn CongestionControl>> {
        Some(Box::new(Cubic::new(path)))
    }
}

/// The controller of a path: a window that losses reduce to 0.7 and that grows again along the cubic function.
#[derive(Clone, Debug)]
pub struct Cubic {
    /// The window, in segments like all windows here.
    window: f64,
    least_window: f64,
    threshold: f64,
    plateau: f64,
    prior: f64,
    curve: Option<Curve>,
    slow_start: SlowStart,
    losses: LossTest,
    /// Window and threshold before a reduction that may prove unnecessary; zeros if there is none.
    before: (f64, f64),
    /// The window when growth stopped because packets are lost randomly and a larger window would build a queue. 0
    /// while it grows.
    held_at: f64,
    /// Bytes of a packet.
    packet: u64,
    smoothed: Option<Duration>,
    /// Peak of the bytes in flight in this round.
    most_in_flight: u64,
    /// Bytes left to acknowledge in this round.
    round_left: u64,
    /// Bytes left to acknowledge of those in flight when a loss was noticed: further losses among them belong to the
    /// same event (RFC 9438, 4.6).
    recovery_left: u64,
    /// Whether there were such losses, or marks: the reduction was necessary even if the first loss was not one.
    is_confirmed: bool,
    /// Whether nothing was acknowledged since the last persistent congestion.
    is_silent: bool,
    /// Until this time, another mark belongs to the same round trip as the last one. It is a time because there may be
    /// nothing in flight when a mark arrives.
    marked_until: Time,
    /// Reductions, and those that were undone.
    events: u64,
    undone_events: u64,
}

impl Cubic {
    /// Creates the controller of a new path.
    pub fn new(path: &PathFacts) -> Self {
        let packet = u64::from(path.mtu.bytes());
        let first = FIRST_WINDOW_BYTES.min(FIRST_WINDOW_PACKETS * packet);
        Self {
            window: segments(first),
            least_window: segments(packet) * LEAST_WINDOW_PACKETS,
            threshold: f64::INFINITY,
            plateau: 0.0,
            prior: 0.0,
            curve: None,
            slow_start: SlowStart::default(),
            losses: LossTest::default(),
            before: (0.0, 0.0),
            held_at: 0.0,
            packet,
            smoothed: None,
            most_in_flight: 0,
            round_left: 0,
            recovery_left: 0,
            is_confirmed: false,
            is_silent: false,
            marked_until: Time::ZERO,
            events: 0,
            undone_events: 0,
        }
    }

    fn is_in_slow_start(&self) -> bool {
        self.window < self.threshold
    }

    /// Returns whether the window limits the connection: one that used less than half of it has not validated it (RFC
    /// 7661, 4.3).
    fn is_limited_by_window(&self) -> bool {
        segments(self.most_in_flight) * 2.0 >= self.window
    }

    fn note_round_trip(&mut self, now: Time, measured: Duration) {
        self.losses.note_round_trip(now, measured);
        self.smoothed = Some(self.smoothed.map_or(measured, |smoothed| (smoothed * 7 + measured) / 8));
        if self.is_in_slow_start() {
            self.slow_start.note_round_trip(measured);
        }
    }

    fn grow(&mut self, now: Time, acknowledged: f64) {
        let mut acknowledged = acknowledged;
        if self.is_in_slow_start() {
            let is_careful = self.losses.is_in_doubt();
            let grown = (self.window + self.slow_start.growth(acknowledged, is_careful)).min(self.threshold);
            acknowledged -= grown - self.window;
            self.window = grown;
            if self.window < self.threshold {
                return;
            }
        }
        if self.held_at > 0.0 {
            return;
        }
        let (window, plateau, prior) = (self.window, self.plateau, self.prior);
        let curve = self.curve.get_or_insert_with(|| Curve::new(now, window, plateau, prior));
        // An acknowledgement counts for at most one whole window, however small the window is.
        let acknowledged = acknowledged.min(window);
        curve.note_acknowledged(acknowledged, window);
        self.window = curve.window_after(now, acknowledged, window, self.smoothed.unwrap_or_default());
    }

    fn end_round(&mut self, now: Time, in_flight: u64) {
        self.round_left = in_flight;
        self.most_in_flight = in_flight;
        if self.is_in_slow_start() && self.slow_start.end_round() {
            self.threshold = self.window;
        }
        if self.recovery_left > 0 {
            return;
        }
        self.hold();
        match self.losses.end_round(now) {
            Verdict::Random => {}
            Verdict::Congestion => self.reduce(BETA, in_flight),
            Verdict::UnnecessaryReduction => _ = self.undo_reduction(),
        }
    }

    /// Keeps the window below the size that builds a queue where packets are lost randomly: with a queue, the next
    /// loss would be taken for congestion.
    fn hold(&mut self) {
        let Some(part) = self.losses.excess() else {
            self.held_at = 0.0;
            return;
        };
        if self.held_at == 0.0 {
            self.held_at = self.window;
        }
        self.window = (self.window * part).max(self.held_at * BETA).max(self.least_window);
        self.plateau = self.window;
        self.curve = None;
    }

    /// Undoes the latest reduction, which was unnecessary. Returns false if the window has already grown back.
    fn undo_reduction(&mut self) -> bool {
        let (window, threshold) = std::mem::take(&mut self.before);
        let is_smaller = self.window < window;
        if is_smaller {
            (self.window, self.threshold, self.curve) = (window, threshold, None);
            self.undone_events += 1;
        }
        is_smaller
    }

    /// Reduces the window to this fraction.
    fn reduce(&mut self, part: f64, in_flight: u64) {
        self.losses.note_reduced();
        self.events += 1;
        self.held_at = 0.0;
        self.before = (self.window, self.threshold);
        self.plateau = plateau_after(self.window, self.plateau);
        self.prior = self.window;
        self.threshold = (self.window * part).max(self.least_window);
        self.window = self.threshold;
        self.curve = None;
        (self.recovery_left, self.is_confirmed) = (in_flight, false);
    }
}

impl CongestionControl for Cubic {
    fn on_sent(&mut self, sent: &Sent) {
        self.most_in_flight = self.most_in_flight.max(sent.in_flight);
        self.losses.note_sent(sent.bytes / self.packet, sent.lost / self.packet);
    }

    fn on_ack(&mut self, ack: &Acked) {
        if let Some(measured) = ack.round_trip.filter(|measured| *measured <= LONGEST_ROUND_TRIP) {
            self.note_round_trip(ack.now, measured);
        }
        self.is_silent &= ack.bytes == 0;
        let is_recovering = self.recovery_left > 0;
        self.recovery_left = self.recovery_left.saturating_sub(ack.bytes);
        if is_recovering && self.recovery_left == 0 {
            self.losses.begin_count();
        }
        // After a long silence, slow start continues while older packets are acknowledged (RFC 5681, 3.1): one packet
        // per round trip would be far too slow.
        if (!is_recovering || self.is_in_slow_start()) && self.is_limited_by_window() {
            self.grow(ack.now, segments(ack.bytes));
        }
        self.round_left = self.round_left.saturating_sub(ack.bytes);
        if self.round_left == 0 {
            self.end_round(ack.now, ack.in_flight);
        }
    }

    fn on_congestion(&mut self, event: &CongestionEvent) {
        match event.kind {
            CongestionKind::Loss if self.recovery_left > 0 => self.is_confirmed = true,
            CongestionKind::Loss => {
                if self.losses.judge(self.is_in_slow_start()) == Verdict::Congestion {
                    self.reduce(BETA, event.in_flight);
                }
            }
            CongestionKind::Marked => {
                self.losses.note_marked();
                let least = segments(self.packet) * LEAST_MARKED_PACKETS;
                // After a long silence, acknowledged packets may be old, but the mark is not.
                let is_recovering = self.recovery_left > 0 && !self.is_in_slow_start();
                let is_new = !is_recovering && event.now >= self.marked_until;
                self.is_confirmed |= is_recovering;
                if is_new && self.window > least {
                    self.marked_until = event.now + self.smoothed.unwrap_or_default();
                    self.reduce(MARKED.max(least / self.window), event.in_flight);
                }
            }
            // While it lasts, the threshold keeps what the path carried before (RFC 5681, 3.1).
            CongestionKind::Persistent if self.is_silent => {}
            CongestionKind::Persistent => {
                self.is_silent = true;
                self.reduce(BETA, event.in_flight);
                // The next stage of congestion avoidance has its plateau where it begins (RFC 9438, 4.8).
                self.plateau = 0.0;
                self.window = segments(self.packet) * RESTART_PACKETS;
            }
        }
    }

    fn on_spurious_reduction(&mut self) {
        if !self.is_confirmed && self.undo_reduction() {
            self.recovery_left = 0;
            self.losses.begin_count();
        }
    }

    fn window(&self) -> u64 {
        (self.window * SEGMENT_BYTES).round() as u64
    }

    fn pacing_rate(&self) -> Option<u64> {
        let is_small = self.window < segments(self.packet) * SMALL_WINDOW_PACKETS;
        let smoothed = self.smoothed.filter(|smoothed| is_small || *smoothed >= SHORTEST_PACED)?;
        let pace = if self.is_in_slow_start() { SLOW_START_PACE } else { PACE };
        Some((pace * self.window * SEGMENT_BYTES / smoothed.as_secs_f64()) as u64)
    }

    fn report(&self) -> ControlReport {
        ControlReport {
            is_in_slow_start: self.is_in_slow_start(),
            congestion_events: self.events,
            undone_events: self.undone_events,
            tolerates_losses: self.recovery_left == 0,
            sees_queue: Some(self.losses.sees_queue()),
            ..ControlReport::new("cubic")
        }
    }

    /// Returns `None` before the first sign of the path's limit, and where the local data does not use the window: the
    /// rate then only reflects how much was attempted.
    fn known_rate(&self, data_age: Option<Duration>) -> Option<u64> {
        let is_recent = data_age.is_some_and(|age| age <= LONGEST_DATA_AGE);
        let is_measured = self.threshold.is_finite() && self.is_limited_by_window();
        self.pacing_rate().filter(|_| is_recent && is_measured)
    }
}

fn segments(bytes: u64) -> f64 {
    bytes as f64 / SEGMENT_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Mtu;

    const ROUND_TRIP: Duration = Duration::from_millis(100);
    const PACKET: u64 = 4_096;

    fn cubic() -> Cubic {
        let address = std::net::Ipv4Addr::LOCALHOST.into();
        Cubic::new(&PathFacts::new([address; 2], Mtu::Mtu4096, true, 64 << 20))
    }

    fn at(seconds: f64) -> Time {
        Time::ZERO + Duration::from_secs_f64(seconds)
    }

    /// Sends and acknowledges a window, packet by packet, within a round trip that ends at `end`.
    fn round(cubic: &mut Cubic, end: f64, round_trip: Duration) {
        let packets = (cubic.window() / PACKET).max(1);
        cubic.on_sent(&sent(packets * PACKET));
        for packet in 0..packets {
            let part = 1.0 - (packet + 1) as f64 / packets as f64;
            let round_trip = (packet == 0).then_some(round_trip);
            let in_flight = packets * PACKET;
            let now = at((end - part * ROUND_TRIP.as_secs_f64()).max(0.0));
            cubic.on_ack(&Acked { now, bytes: PACKET, round_trip, repetition: None, in_flight });
        }
    }

    fn sent(bytes: u64) -> Sent {
        Sent { now: Time::ZERO, bytes, lost: 0, in_flight: bytes }
    }

    /// Shows the controller a queue, so that a loss is taken for congestion.
    fn see_queue(cubic: &mut Cubic) {
        for _ in 0..2 {
            cubic.losses.note_round_trip(at(1.0), 2 * ROUND_TRIP);
            cubic.losses.end_round(at(1.0));
        }
    }

    fn lose(cubic: &mut Cubic, kind: CongestionKind, in_flight: u64) {
        cubic.on_congestion(&CongestionEvent { now: Time::ZERO, kind, in_flight });
    }

    #[test]
    fn the_window_doubles_in_a_round_trip_until_the_first_loss() {
        let mut cubic = cubic();
        assert_eq!(cubic.window() / 1_000, 65);
        for doubled in 1..5 {
            round(&mut cubic, 1.0, ROUND_TRIP);
            let expected = 65_536.0 * f64::from(1 << doubled);
            assert!((cubic.window() as f64 / expected - 1.0).abs() < 0.05, "{} for {expected}", cubic.window());
        }
        let before = cubic.window();
        see_queue(&mut cubic);
        lose(&mut cubic, CongestionKind::Loss, before);
        assert_eq!(cubic.window() * 10 / before, 6, "0.7 of it, rounded down");
    }

    #[test]
    fn the_rate_is_known_after_a_limit_while_the_window_is_used() {
        let mut cubic = cubic();
        round(&mut cubic, 1.0, ROUND_TRIP);
        let now = Some(Duration::ZERO);
        assert!(cubic.pacing_rate().is_some() && cubic.known_rate(now).is_none(), "slow start has found no limit");
        see_queue(&mut cubic);
        let in_flight = cubic.window();
        lose(&mut cubic, CongestionKind::Loss, in_flight);
        round(&mut cubic, 1.2, ROUND_TRIP);
        assert_eq!(cubic.known_rate(now), cubic.pacing_rate());
        assert_eq!(cubic.known_rate(Some(LONGEST_DATA_AGE + ROUND_TRIP)), None, "too old");
        assert_eq!(cubic.known_rate(None), None, "of the other direction");
        for seconds in [1.4, 1.6] {
            cubic.on_ack(&Acked { now: at(seconds), bytes: cubic.window(), in_flight: PACKET, ..ack() });
        }
        assert_eq!(cubic.known_rate(now), None, "the window is not used");
    }

    fn ack() -> Acked {
        Acked { now: Time::ZERO, bytes: 0, round_trip: None, repetition: None, in_flight: 0 }
    }

    #[test]
    fn losses_in_one_window_are_one_event() {
        let mut cubic = cubic();
        lose(&mut cubic, CongestionKind::Loss, 10 * PACKET);
        let reduced = cubic.window();
        let ack = Acked { now: at(0.1), bytes: 9 * PACKET, round_trip: None, repetition: None, in_flight: 20 * PACKET };
        cubic.on_ack(&ack);
        lose(&mut cubic, CongestionKind::Loss, 20 * PACKET);
        assert_eq!(cubic.window(), reduced);
        cubic.on_ack(&Acked { bytes: PACKET, ..ack });
        lose(&mut cubic, CongestionKind::Loss, 20 * PACKET);
        assert!(cubic.window() < reduced);
    }

    #[test]
    fn a_reduction_is_undone_if_nothing_was_lost() {
        let mut cubic = Cubic { window: 1_000.0, ..cubic() };
        lose(&mut cubic, CongestionKind::Loss, 10 * PACKET);
        assert_eq!(cubic.window, 700.0);
        cubic.on_spurious_reduction();
        let report = cubic.report();
        assert_eq!((cubic.window, cubic.is_in_slow_start(), report.undone_events), (1_000.0, true, 1));
        // Another queue pair of the path has lost packets as well.
        (0..2).for_each(|_| lose(&mut cubic, CongestionKind::Loss, 10 * PACKET));
        cubic.on_spurious_reduction();
        assert_eq!((cubic.window, cubic.report().undone_events), (700.0, 1));
    }

    #[test]
    fn a_mark_reduces_the_window_once_in_a_round_trip_and_down_to_two_packets() {
        let mut cubic = Cubic { window: 1_000.0, ..cubic() };
        lose(&mut cubic, CongestionKind::Marked, 10 * PACKET);
        assert_eq!((cubic.window, cubic.is_in_slow_start()), (850.0, false));
        lose(&mut cubic, CongestionKind::Marked, 10 * PACKET);
        assert_eq!(cubic.window, 850.0);
        let mut ack =
            Acked { now: at(0.1), bytes: 10 * PACKET, round_trip: None, repetition: None, in_flight: 10 * PACKET };
        for _ in 0..100 {
            cubic.on_ack(&ack);
            lose(&mut cubic, CongestionKind::Marked, 10 * PACKET);
            ack.now = ack.now + ROUND_TRIP;
        }
        assert_eq!(cubic.window() / PACKET, 2);
        let mut small = Cubic { window: 1.0, ..self::cubic() };
        lose(&mut small, CongestionKind::Marked, PACKET);
        assert_eq!(small.window, 1.0);
    }

    /// From 1,000 segments: K = cbrt((1,000 - 700) / 0.4) = 9.086 s; W(t) = 0.4 (t - K)^3 + 1,000.
    #[test]
    fn the_window_follows_the_cubic_function() {
        let mut cubic = Cubic { window: 1_000.0, ..cubic() };
        lose(&mut cubic, CongestionKind::Loss, 0);
        for tenth in 1..=150 {
            round(&mut cubic, f64::from(tenth) * 0.1, ROUND_TRIP);
            let seconds = f64::from(tenth) * 0.1 - 9.086;
            let expected = 0.4 * seconds.powi(3) + 1_000.0;
            assert!((cubic.window / expected - 1.0).abs() < 0.03, "at {tenth}: {} for {expected}", cubic.window);
        }
    }

    #[test]
    fn a_window_that_is_not_used_does_not_grow() {
        let mut cubic = cubic();
        let before = cubic.window();
        for _ in 0..100 {
            cubic.on_sent(&sent(PACKET));
            cubic.on_ack(&Acked { now: at(1.0), bytes: PACKET, round_trip: None, repetition: None, in_flight: 0 });
        }
        assert_eq!(cubic.window(), before);
    }

    #[test]
    fn a_growing_queue_ends_slow_start() {
        let mut cubic = cubic();
        for later in 0..8 {
            round(&mut cubic, 1.0, ROUND_TRIP + later * Duration::from_millis(20));
        }
        assert!(!cubic.is_in_slow_start());
        let before = cubic.window();
        round(&mut cubic, 1.0, ROUND_TRIP);
        assert!(cubic.window() < before * 11 / 10, "{before} to {}", cubic.window());
    }

    #[test]
    fn persistent_congestion_restarts_with_one_packet() {
        let mut cubic = cubic();
        let threshold = cubic.window * BETA;
        lose(&mut cubic, CongestionKind::Persistent, 0);
        assert_eq!((cubic.window() / PACKET, cubic.threshold), (1, threshold));
        round(&mut cubic, 1.0, ROUND_TRIP);
        assert_eq!(cubic.window() / PACKET, 2);
    }

    #[test]
    fn packets_in_flight_before_persistent_congestion_do_not_stop_growth() {
        let mut cubic = Cubic { window: 1_000.0, ..cubic() };
        let in_flight = cubic.window();
        cubic.on_sent(&sent(in_flight));
        lose(&mut cubic, CongestionKind::Persistent, in_flight);
        let mut rounds = 0;
        while cubic.is_in_slow_start() {
            round(&mut cubic, 1.0, ROUND_TRIP);
            rounds += 1;
        }
        assert_eq!((rounds, cubic.window.round()), (8, 700.0), "from 3 segments");
        lose(&mut cubic, CongestionKind::Loss, in_flight);
        assert_eq!(cubic.window.round(), 700.0, "it was in flight before");
    }

    #[test]
    fn a_mark_after_persistent_congestion_ends_slow_start_despite_earlier_packets() {
        let mut cubic = Cubic { window: 1_000.0, ..cubic() };
        let in_flight = cubic.window();
        lose(&mut cubic, CongestionKind::Persistent, in_flight);
        (0..4).for_each(|_| round(&mut cubic, 1.0, ROUND_TRIP));
        let window = cubic.window;
        for _ in 0..2 {
            cubic.on_congestion(&CongestionEvent { now: at(1.0), kind: CongestionKind::Marked, in_flight: PACKET });
            assert_eq!(cubic.window, window * MARKED, "once in a round trip");
        }
    }

    #[test]
    fn a_long_outage_lowers_the_threshold_once() {
        let mut cubic = cubic();
        let threshold = cubic.window * BETA;
        (0..5).for_each(|_| lose(&mut cubic, CongestionKind::Persistent, PACKET));
        assert_eq!((cubic.window() / PACKET, cubic.threshold), (1, threshold));
        round(&mut cubic, 1.0, ROUND_TRIP);
        lose(&mut cubic, CongestionKind::Persistent, PACKET);
        assert!(cubic.threshold < threshold, "the path was heard of in between");
    }

    /// The process stands still for an hour while a packet is measured.
    #[test]
    fn a_pause_of_the_process_does_not_lower_the_pacing_rate() {
        let mut cubic = cubic();
        let mut ack =
            Acked { now: at(1.0), bytes: PACKET, round_trip: Some(ROUND_TRIP), repetition: None, in_flight: 0 };
        cubic.on_ack(&ack);
        let rate = cubic.pacing_rate();
        ack.round_trip = Some(Duration::from_secs(3_600));
        cubic.on_ack(&ack);
        assert!(rate.is_some() && cubic.pacing_rate() >= rate, "{rate:?}");
    }

    #[test]
    fn long_paths_are_paced() {
        let mut cubic = cubic();
        assert_eq!(cubic.pacing_rate(), None);
        cubic.note_round_trip(Time::ZERO, Duration::from_micros(100));
        assert_eq!(cubic.pacing_rate(), None);
        let mut cubic = self::cubic();
        cubic.note_round_trip(Time::ZERO, Duration::from_millis(1));
        let rate = cubic.pacing_rate().map(|rate| rate / 1_000_000);
        assert_eq!(rate, Some(131), "two windows of 64 KiB in a millisecond");
    }
}
