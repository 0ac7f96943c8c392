//! What is seen of a path, as plain data.

use std::net::IpAddr;
use std::time::Duration;

/// What a congestion controller says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ControlReport {
    /// Its name.
    pub algorithm: &'static str,
    /// It has not found the limit of the path yet.
    pub is_in_slow_start: bool,
    /// Times that it has reduced its window because of congestion.
    pub congestion_events: u64,
    /// Times that such a reduction turned out to be for nothing, and was taken back.
    pub undone_events: u64,
    /// A loss that is noticed now may be taken for chance. Otherwise it belongs to a congestion event.
    pub tolerates_losses: bool,
    /// Whether the round trips of the last two windows show a queue. `None`: it does not look at them.
    pub sees_queue: Option<bool>,
}

impl ControlReport {
    /// Of a controller that says no more than its name.
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

/// Round trips of a path: from a packet that asks for a response to the response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RoundTripReport {
    /// Smoothed with a gain of 1/8.
    pub smoothed: Duration,
    /// How much one differs from that on average, with a gain of 1/4.
    pub variation: Duration,
    /// The shortest one of the last 10 to 20 seconds: that of the path without a queue.
    pub shortest: Duration,
}

/// What became of packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PacketCounts {
    /// Packets that have left, those that were sent again included. A READ request counts as the packets of its
    /// response.
    pub sent: u64,
    /// Packets sent again because they were missing.
    pub lost: u64,
    /// Of these, the ones that were taken for losses by chance when they were noticed.
    pub lost_by_chance: u64,
    /// Packets sent again that had only been late.
    pub spurious: u64,
    /// Times that losses were noticed: once for each oldest missing packet.
    pub loss_events: u64,
    /// Of these, the ones at which a queue was seen.
    pub loss_events_with_queue: u64,
    /// Times that the window was reduced because of congestion.
    pub congestion_events: u64,
    /// Marks of a queue on the way (ECN) that the peer has told of. One echo may stand for several marked packets.
    pub marks: u64,
}

impl PacketCounts {
    /// Both together.
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

    /// Lost packets, of those sent.
    pub fn loss(&self) -> f64 {
        if self.sent == 0 { 0.0 } else { self.lost as f64 / self.sent as f64 }
    }
}

/// A path, and what all queue pairs that have it see there together: they share a window and a rate. A device with
/// several shards has one path in each of them.
///
/// As text it is a sentence on how the path does: how many packets are lost, and what that comes from.
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
    /// The own address.
    pub own: IpAddr,
    /// Address of the peer.
    pub peer: IpAddr,
    /// Differentiated services code point of its packets: the upper six bits of the traffic class.
    pub dscp: u8,
    /// Queue pairs that have it.
    pub queue_pairs: u32,
    /// Bytes that may be in flight. Each packet counts as a whole path MTU.
    pub window: u64,
    /// Bytes in flight.
    pub in_flight: u64,
    /// What its congestion controller says. `None`: it has none, because it does not leave the host, or by
    /// [`CongestionAlgorithm::Constant`](super::CongestionAlgorithm::Constant). Then nothing of what follows is known.
    pub control: Option<ControlReport>,
    /// Bytes a second at which packets leave. `None`: they are not paced.
    pub pacing_rate: Option<u64>,
    /// `None`: nothing was measured yet.
    pub round_trip: Option<RoundTripReport>,
    /// Since the first packet.
    pub total: PacketCounts,
    /// In the last 10 to 20 seconds.
    pub recent: PacketCounts,
    /// How long ago the first packet left.
    pub age: Duration,
    /// Of that, how long something to send waited for the pace.
    pub pace_wait: Duration,
    /// Of that, how long something to send waited because the window was full.
    pub window_wait: Duration,
}

impl PathReport {
    /// A path of which nothing is known.
    pub fn new(own: IpAddr, peer: IpAddr) -> Self {
        Self {
            own,
            peer,
            dscp: 0,
            queue_pairs: 0,
            window: 0,
            in_flight: 0,
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
