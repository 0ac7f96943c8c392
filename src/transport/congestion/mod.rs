//! The congestion seam: how much may be in flight on a path, and how fast packets may leave.
//!
//! The requesters of a path's queue pairs tell its controller what leaves, what is acknowledged and what seems lost,
//! and ask it for two numbers, a window and a pacing rate, which are those of all of them together. All else stays with
//! the requesters: what is sent again and when, what the peer's socket holds, and how they share the window.
//!
//! All bytes are *bytes of the window*: a packet takes as many as the path MTU, however little it carries, and a READ
//! request as many as the packets of its response. So what goes into a controller and what comes out have one measure.

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
pub use cubic::{Cubic, CubicFactory};
use go_back::GoBackWindow;
pub(super) use round_trips::ShortestRoundTrip;

/// What is known of a path before anything is sent on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PathFacts {
    /// The own address.
    pub own: IpAddr,
    /// Address of the peer.
    pub peer: IpAddr,
    /// Path MTU.
    pub mtu: Mtu,
    /// The peer is an endpoint of this crate.
    pub is_peer_native: bool,
    /// What the peer's receive socket takes at a time, of all queue pairs with this peer together. No window is used
    /// beyond it on a path that is shorter than a millisecond, nor towards a standard peer; on a longer path as much
    /// for each millisecond of its shortest round trip, up to 16 MiB.
    pub socket_bytes: u64,
}

impl PathFacts {
    /// A path from the first address to the second.
    pub(crate) fn new([own, peer]: [IpAddr; 2], mtu: Mtu, is_peer_native: bool, socket_bytes: u64) -> Self {
        Self { own, peer, mtu, is_peer_native, socket_bytes }
    }

    /// Packets that a window of so many bytes lets be in flight of what the peer's socket takes.
    pub(super) fn packets_of(&self, window: u64) -> u32 {
        self.packets_within(window, self.socket_bytes)
    }

    /// The same of so many bytes.
    pub(super) fn packets_within(&self, window: u64, most: u64) -> u32 {
        let packets = window.min(most) / u64::from(self.mtu.bytes());
        u32::try_from(packets).unwrap_or(u32::MAX).max(1)
    }
}

/// Packets that have left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Sent {
    /// When they left.
    pub now: Time,
    /// What they take of the window.
    pub bytes: u64,
    /// Of that, what is sent again because it was lost. What is sent again with it, although it may have arrived, does
    /// not count.
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
    /// What it shows to have arrived that was not known to have: what it acknowledges, and what has arrived while an
    /// earlier packet is missing. 0: nothing, it only ends a round trip.
    pub bytes: u64,
    /// The shortest round trip that it ends: from a packet that asks for a response to the response. Some packets of a
    /// window are measured, none that was sent again.
    pub round_trip: Option<Duration>,
    /// The same of a packet that was sent again because it was known to be missing. It waited behind what was sent in
    /// vain. A short one may be the response to something else.
    pub repetition: Option<Duration>,
    /// Bytes sent on the path and not known to have arrived now.
    pub in_flight: u64,
}

/// What a congestion event is concluded from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CongestionKind {
    /// The peer says that a packet is missing, or later responses came and an earlier one did not. Raised once for each
    /// oldest missing packet, so several times in a round trip that loses several.
    Loss,
    /// The transport timer ran out: nothing was acknowledged for all of its time.
    Persistent,
    /// A queue on the way has marked a packet (ECN). Raised for each echo, so several times in a round trip. Nothing is
    /// lost.
    Marked,
}

/// Packets seem lost, and those in flight are about to be sent again; or a queue has marked one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CongestionEvent {
    /// When it was noticed.
    pub now: Time,
    /// What it is concluded from.
    pub kind: CongestionKind,
    /// Bytes sent on the path and not known to have arrived, the lost packets of this connection included.
    pub in_flight: u64,
}

/// Decides how much may be in flight on a path and how fast packets may leave. Bytes are bytes of the window: a packet
/// counts as a whole path MTU.
///
/// All queue pairs of a device's shard with common addresses and DSCP share it: together they are one flow, as a
/// connection of TCP is. It has no clock and does no I/O: time is an argument. It is called under the lock of a
/// shard, so it must return soon. An unreliable connection tells it nothing, and uses the window as the length of a
/// burst.
pub trait CongestionControl: Send {
    /// Packets have left, for the first time, again or as a probe.
    fn on_sent(&mut self, sent: &Sent);

    /// Something was acknowledged, or has arrived behind a gap. An arriving packet may tell of both, by two calls.
    fn on_ack(&mut self, ack: &Acked);

    /// Packets seem lost, or a queue fills.
    fn on_congestion(&mut self, event: &CongestionEvent);

    /// Bytes that may be in flight; what is no whole packet does not count. It is used as far as the peer's socket
    /// takes it. One packet, or one READ request, may be in flight however small it is. Asked for after each of the
    /// above.
    fn window(&self) -> u64;

    /// Bytes a second (0 counts as 1); `None`: packets are not paced. What leaves in one send is not spaced, but paid
    /// for before the next send. Asked for when packets leave.
    fn pacing_rate(&self) -> Option<u64>;

    /// What it says of itself, for reports and explanations. Asked for when packets leave or seem lost, too.
    fn report(&self) -> ControlReport {
        ControlReport::new("custom")
    }

    /// The rate of what the controller hears nothing of because it is never acknowledged: READ responses, and what
    /// unreliable queue pairs send. `None`: the pacing rate does not tell how much the path takes, and nothing of that
    /// kind is held back. `data_age`: time since SENDs or WRITEs of this end were acknowledged last. It is `None`
    /// before the first, and while READs tell of the direction from the peer instead.
    fn known_rate(&self, data_age: Option<Duration>) -> Option<u64> {
        let _ = data_age;
        self.pacing_rate()
    }
}

/// Builds the controllers of an endpoint's paths.
pub trait CongestionFactory: Send + Sync {
    /// A controller for one path; `None`: the path needs none, which may depend on its addresses only. Called when
    /// its first queue pair is connected, and when the peer turns out to be of another kind.
    fn build(&self, path: &PathFacts) -> Option<Box<dyn CongestionControl>>;
}

/// As much as the peer's socket takes, whatever happens: no control.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ConstantWindow {
    bytes: u64,
}

impl ConstantWindow {
    /// The window of this path.
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

/// What bounds a connection's window besides the controller of its path.
pub(super) enum ConnectionWindow {
    Constant(ConstantWindow),
    GoBack(Box<GoBackWindow>),
}

impl Default for ConnectionWindow {
    /// Of a connection without a path.
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

    /// Whether it takes no inputs and its output never changes.
    #[inline]
    pub(super) fn is_constant(&self) -> bool {
        matches!(self, Self::Constant(_))
    }

    /// Packets that the connection may have in flight.
    pub(super) fn packets(&self, path: &PathFacts) -> u32 {
        path.packets_of(match self {
            Self::Constant(constant) => constant.window(),
            Self::GoBack(go_back) => go_back.window(),
        })
    }

    /// The same where it is not as small as that for a moment only: what is begun now lasts longer.
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
    fn the_constant_window_is_what_the_socket_takes_whatever_happens() {
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
