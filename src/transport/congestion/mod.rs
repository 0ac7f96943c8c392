//! Congestion control: how much may be in flight on a path, and how fast packets may leave.
//!
//! The requesters of a path's queue pairs report sent, acknowledged and presumably lost packets to its controller, and
//! get a window and a pacing rate from it, which apply to all of them together. Everything else stays with the
//! requesters: what is retransmitted and when, the capacity of the peer's socket, and how the window is shared.
//!
//! All bytes are *window bytes*: a packet takes as many as the path MTU, however little it carries, and a READ request
//! as many as the packets of its response. The inputs and outputs of a controller therefore have one unit.

mod capped;
mod cubic;
pub(crate) mod curve;
mod go_back;
mod loss_test;
mod round_trips;
mod slow_start;

use std::net::IpAddr;
use std::time::Duration;

use crate::types::{ControlReport, Mtu, Time};

pub use capped::Capped;
pub use cubic::Cubic;
#[cfg(feature = "sim")]
pub use cubic::CubicFactory;
use go_back::GoBackWindow;
pub(super) use round_trips::ShortestRoundTrip;

/// Facts about a path that are known before anything is sent on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PathFacts {
    /// Local address.
    pub own: IpAddr,
    /// Address of the peer.
    pub peer: IpAddr,
    /// Path MTU.
    pub mtu: Mtu,
    /// Whether the peer is an endpoint of this crate.
    pub is_peer_native: bool,
    /// Bytes that the peer's receive socket holds at a time, for all queue pairs with this peer together. On a path
    /// shorter than a millisecond, and towards a standard peer, no larger window is used. On a longer path, the limit
    /// is this much per millisecond of its shortest round trip, up to 16 MiB.
    pub socket_bytes: u64,
}

impl PathFacts {
    /// Creates the facts of a path from the first address to the second.
    pub(crate) fn new([own, peer]: [IpAddr; 2], mtu: Mtu, is_peer_native: bool, socket_bytes: u64) -> Self {
        Self { own, peer, mtu, is_peer_native, socket_bytes }
    }

    /// Returns the packets that a window in bytes allows in flight, within what the peer's socket holds.
    pub(super) fn packets_of(&self, window: u64) -> u32 {
        self.packets_within(window, self.socket_bytes)
    }

    /// Returns the packets that a window in bytes allows in flight, within `most` bytes.
    pub(super) fn packets_within(&self, window: u64, most: u64) -> u32 {
        let packets = window.min(most) / u64::from(self.mtu.bytes());
        u32::try_from(packets).unwrap_or(u32::MAX).max(1)
    }
}

/// Packets that were sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Sent {
    /// When they left.
    pub now: Time,
    /// Window bytes that they take.
    pub bytes: u64,
    /// Bytes of these that repeat lost packets. Packets repeated along with lost ones, although they may have arrived,
    /// do not count.
    pub lost: u64,
    /// Bytes sent on the path and not known to have arrived, these included.
    pub in_flight: u64,
}

/// An acknowledgement, or another response, that arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Acked {
    /// When it arrived.
    pub now: Time,
    /// Bytes newly known to have arrived: acknowledged now, or arrived while an earlier packet is missing. 0 if it only
    /// ends a round trip.
    pub bytes: u64,
    /// The shortest round trip that it ends: from a packet that requests a response to that response. Only some packets
    /// of a window are measured, and no retransmitted ones.
    pub round_trip: Option<Duration>,
    /// The shortest round trip of a packet that was sent again because it was known to be missing. That packet waited
    /// behind others that were sent unnecessarily. A short value may be due to the response to another packet.
    pub repetition: Option<Duration>,
    /// Bytes sent on the path and, after this, not known to have arrived.
    pub in_flight: u64,
}

/// The evidence for a congestion event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CongestionKind {
    /// The peer reports a missing packet, or later responses arrived and an earlier one did not. Raised once for each
    /// oldest missing packet, so several times in a round trip with several losses.
    Loss,
    /// The transport timer expired: nothing was acknowledged while it ran.
    Persistent,
    /// A queue on the path marked a packet (ECN). Raised for each echo, so several times in a round trip. Nothing is
    /// lost.
    Marked,
}

/// A congestion event: packets seem lost, and those in flight are about to be sent again; or a queue marked one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CongestionEvent {
    /// When it was noticed.
    pub now: Time,
    /// The evidence for it.
    pub kind: CongestionKind,
    /// Bytes sent on the path and not known to have arrived, the lost packets of this connection included.
    pub in_flight: u64,
}

/// Decides how much may be in flight on a path and how fast packets may leave. All bytes are window bytes: a packet
/// counts as a whole path MTU.
///
/// All queue pairs of a device's shard with the same addresses and DSCP share it: together they are one flow, like a
/// TCP connection. It has no clock and does no I/O: time is an argument. It is called under the lock of a shard, so it
/// must return quickly. An unreliable connection reports nothing to it, and uses the window as the length of a burst.
pub trait CongestionControl: Send {
    /// Called when packets leave: for the first time, again or as a probe.
    fn on_sent(&mut self, sent: &Sent);

    /// Called when something is acknowledged, or has arrived behind a gap. An arriving packet may report both, in two
    /// calls.
    fn on_ack(&mut self, ack: &Acked);

    /// Called when packets seem lost, or a queue fills.
    fn on_congestion(&mut self, event: &CongestionEvent);

    /// Called when all packets whose loss caused the latest reduction turn out to have been late, so that the reduction
    /// was unnecessary. The default does nothing.
    fn on_spurious_reduction(&mut self) {}

    /// Returns the bytes that may be in flight; a fraction of a packet does not count. The capacity of the peer's
    /// socket is a further bound. However small the window, one packet or one READ request may be in flight, and so may
    /// the packets that a probe repeats: one packet, or the READ requests for 16. Read after each of the calls above.
    fn window(&self) -> u64;

    /// Returns the pacing rate in bytes per second (0 counts as 1); `None`: packets are not paced. Packets of one send
    /// are not spaced, but paid for before the next send. Read when packets leave.
    fn pacing_rate(&self) -> Option<u64>;

    /// Returns the controller's state, for reports and explanations. Also read when packets leave or seem lost.
    fn report(&self) -> ControlReport {
        ControlReport::new("custom")
    }

    /// Returns the rate of packets that the controller never sees because they are never acknowledged: READ responses,
    /// and packets of unreliable queue pairs. `None`: the pacing rate does not show how much the path carries, and such
    /// packets are not held back. `data_age`: time since SENDs or WRITEs of this end were last acknowledged. It is
    /// `None` before the first, and while READs measure the direction from the peer instead.
    fn known_rate(&self, data_age: Option<Duration>) -> Option<u64> {
        let _ = data_age;
        self.pacing_rate()
    }
}

/// Builds the controllers of an endpoint's paths.
pub trait CongestionFactory: Send + Sync {
    /// Builds a controller for one path. `None`: the path needs no controller; this may depend only on its addresses.
    /// Called when the first queue pair of the path is connected, and when the peer turns out to be of another kind.
    fn build(&self, path: &PathFacts) -> Option<Box<dyn CongestionControl>>;
}

/// No control: the window is always the capacity of the peer's socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ConstantWindow {
    bytes: u64,
}

impl ConstantWindow {
    /// Creates the window of this path.
    pub fn new(path: &PathFacts) -> Self {
        Self { bytes: path.socket_bytes }
    }
}

impl CongestionControl for ConstantWindow {
    fn on_sent(&mut self, _: &Sent) {}

    fn on_ack(&mut self, _: &Acked) {}

    fn on_congestion(&mut self, _: &CongestionEvent) {}

    #[inline]
    fn window(&self) -> u64 {
        self.bytes
    }

    #[inline]
    fn pacing_rate(&self) -> Option<u64> {
        None
    }

    fn report(&self) -> ControlReport {
        ControlReport::new("constant")
    }
}

/// The bound on a connection's window besides the controller of its path.
pub(super) enum ConnectionWindow {
    Constant(ConstantWindow),
    GoBack(Box<GoBackWindow>),
}

impl Default for ConnectionWindow {
    /// Returns the window of a connection without a path.
    fn default() -> Self {
        Self::Constant(ConstantWindow::default())
    }
}

impl ConnectionWindow {
    pub(super) fn new(path: &PathFacts) -> Self {
        match path.is_peer_native {
            true => Self::Constant(ConstantWindow::new(path)),
            false => Self::GoBack(Box::new(GoBackWindow::new(path))),
        }
    }

    /// Returns whether it takes no inputs and its output never changes.
    #[inline]
    pub(super) fn is_constant(&self) -> bool {
        matches!(self, Self::Constant(_))
    }

    /// Returns the packets that the connection may have in flight.
    pub(super) fn packets(&self, path: &PathFacts) -> u32 {
        path.packets_of(match self {
            Self::Constant(constant) => constant.window(),
            Self::GoBack(go_back) => go_back.window(),
        })
    }

    /// Returns the packets that the connection usually may have in flight, whatever a measurement of the path allows
    /// now: requests that begin now last longer than the measurement.
    pub(super) fn usual_packets(&self, path: &PathFacts) -> u32 {
        path.packets_of(match self {
            Self::Constant(constant) => constant.window(),
            Self::GoBack(go_back) => go_back.usual(),
        })
    }

    pub(super) fn note_acknowledged(&mut self, ack: &Acked) {
        if let Self::GoBack(go_back) = self {
            go_back.note_acknowledged(ack);
        }
    }

    pub(super) fn note_congestion(&mut self, event: &CongestionEvent) {
        if let Self::GoBack(go_back) = self {
            go_back.note_congestion(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: PathFacts = PathFacts {
        own: IpAddr::V4(std::net::Ipv4Addr::LOCALHOST),
        peer: IpAddr::V4(std::net::Ipv4Addr::LOCALHOST),
        mtu: Mtu::Mtu1024,
        is_peer_native: true,
        socket_bytes: 64 << 10,
    };

    #[test]
    fn the_constant_window_is_always_the_socket_capacity() {
        let mut window = ConnectionWindow::new(&PATH);
        assert!(window.is_constant());
        let now = Time::ZERO;
        window.note_acknowledged(&Acked { now, bytes: 2_048, round_trip: None, repetition: None, in_flight: 0 });
        window.note_congestion(&CongestionEvent { now, kind: CongestionKind::Loss, in_flight: 1_024 });
        assert_eq!(window.packets(&PATH), 64);
    }

    #[test]
    fn a_connection_without_a_path_has_a_window_of_one_packet() {
        assert_eq!(ConnectionWindow::default().packets(&PATH), 1);
    }
}
