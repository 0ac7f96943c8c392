//! Reports on paths, as plain data.

use std::net::IpAddr;
use std::time::Duration;

/// State of a congestion controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ControlReport {
    /// Name of the algorithm.
    pub algorithm: &'static str,
    /// Whether it has not found the limit of the path yet.
    pub is_in_slow_start: bool,
    /// Number of window reductions because of congestion.
    pub congestion_events: u64,
    /// Number of reductions that turned out to be spurious and were undone.
    pub undone_events: u64,
    /// Whether a loss detected now may be attributed to chance. Otherwise it belongs to a congestion event.
    pub tolerates_losses: bool,
    /// Whether the round trips of the last two windows show a queue. `None` if the controller does not check this.
    pub sees_queue: Option<bool>,
}

impl ControlReport {
    /// Creates the report of a controller that reports only its name.
    pub const fn new(algorithm: &'static str) -> Self {
        Self {
            algorithm,
            is_in_slow_start: false,
            congestion_events: 0,
            undone_events: 0,
            tolerates_losses: false,
            sees_queue: None,
        }
    }
}

/// Round-trip times of a path, from a packet that requests a response to the response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RoundTripReport {
    /// Smoothed round-trip time, with a gain of 1/8.
    pub smoothed: Duration,
    /// Mean deviation from the smoothed time, with a gain of 1/4.
    pub variation: Duration,
    /// Shortest round trip of the last 10 to 20 seconds: that of the path without a queue.
    pub shortest: Duration,
}

impl RoundTripReport {
    /// Reports these times.
    pub const fn new(smoothed: Duration, variation: Duration, shortest: Duration) -> Self {
        Self { smoothed, variation, shortest }
    }
}

/// Counts of packets, losses and congestion events on a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PacketCounts {
    /// Packets sent, retransmissions included. A READ request counts as the packets of its response.
    pub sent: u64,
    /// Packets retransmitted because they were missing.
    pub lost: u64,
    /// Of these, the ones that were attributed to chance when the loss was detected.
    pub lost_by_chance: u64,
    /// Packets retransmitted that were only late.
    pub spurious: u64,
    /// Number of times that losses were detected: once for each oldest missing packet.
    pub loss_events: u64,
    /// Of these, the ones at which a queue was observed.
    pub loss_events_with_queue: u64,
    /// Number of window reductions because of congestion.
    pub congestion_events: u64,
    /// ECN marks by queues on the path that the peer has echoed. One echo may stand for several marked packets.
    pub marks: u64,
}

impl PacketCounts {
    /// Returns the sum of both.
    #[must_use]
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            sent: self.sent + other.sent,
            lost: self.lost + other.lost,
            lost_by_chance: self.lost_by_chance + other.lost_by_chance,
            spurious: self.spurious + other.spurious,
            loss_events: self.loss_events + other.loss_events,
            loss_events_with_queue: self.loss_events_with_queue + other.loss_events_with_queue,
            congestion_events: self.congestion_events + other.congestion_events,
            marks: self.marks + other.marks,
        }
    }

    /// Returns the fraction of sent packets that were lost.
    pub fn loss(&self) -> f64 {
        if self.sent == 0 { 0.0 } else { self.lost as f64 / self.sent as f64 }
    }
}

/// A path, with the totals of all queue pairs on it, which share a window and a rate. A device with several shards has
/// a separate path in each of them.
///
/// Its `Display` output is a sentence on the path's health: how many packets are lost, and why.
///
/// ```
/// use std::net::Ipv4Addr;
/// use rdma_verbs::types::PathReport;
///
/// let local = PathReport::new(Ipv4Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into());
/// assert_eq!(local.control, None);
/// assert!(local.to_string().contains("is not controlled"));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PathReport {
    /// Local address.
    pub own: IpAddr,
    /// Address of the peer.
    pub peer: IpAddr,
    /// Differentiated services code point of its packets: the upper six bits of the traffic class.
    pub dscp: u8,
    /// Number of queue pairs on the path.
    pub queue_pairs: u32,
    /// Bytes that may be in flight. Each packet counts as a whole path MTU.
    pub window: u64,
    /// Bytes in flight.
    pub bytes_in_flight: u64,
    /// State of its congestion controller. `None` if it has none: the path does not leave the host, or the algorithm is
    /// [`CongestionAlgorithm::Constant`](super::CongestionAlgorithm::Constant). The following fields are then unknown.
    pub control: Option<ControlReport>,
    /// Pacing rate in bytes per second. `None` if packets are not paced.
    pub pacing_rate: Option<u64>,
    /// Round-trip times. `None` if nothing was measured yet.
    pub round_trip: Option<RoundTripReport>,
    /// Counts since the first packet.
    pub total: PacketCounts,
    /// Counts of the last 10 to 20 seconds.
    pub recent: PacketCounts,
    /// Time since the first packet was sent.
    pub age: Duration,
    /// Of that, the time in which packets to send waited for the pacer.
    pub pace_wait: Duration,
    /// Of that, the time in which packets to send waited because the window was full.
    pub window_wait: Duration,
}

impl PathReport {
    /// Creates the report of a path about which nothing is known.
    pub fn new(own: IpAddr, peer: IpAddr) -> Self {
        Self {
            own,
            peer,
            dscp: 0,
            queue_pairs: 0,
            window: 0,
            bytes_in_flight: 0,
            control: None,
            pacing_rate: None,
            round_trip: None,
            total: PacketCounts::default(),
            recent: PacketCounts::default(),
            age: Duration::ZERO,
            pace_wait: Duration::ZERO,
            window_wait: Duration::ZERO,
        }
    }
}
