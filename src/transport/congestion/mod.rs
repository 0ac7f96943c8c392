//! The congestion seam: how much a connection may have in flight, and how fast it may send.
//!
//! The requester tells a controller what leaves, what is acknowledged and what seems lost, and asks it for two numbers,
//! a window and a pacing rate. All else stays with the requester: what is sent again and when, what the peer's socket
//! holds, and how queue pairs with a common peer share that.
//!
//! All bytes are *bytes of the window*: a packet takes as many as the path MTU, however little it carries, and a READ
//! request as many as the packets of its response. So what goes into a controller and what comes out have one measure.

mod cubic;
pub(crate) mod curve;
mod go_back;
mod slow_start;

use std::net::IpAddr;
use std::time::Duration;

use crate::types::{Mtu, Time};

pub use cubic::{Cubic, CubicFactory};
use go_back::GoBackWindow;

/// What is known of a path before anything is sent on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PathFacts {
    /// Address of the peer.
    pub peer: IpAddr,
    /// Path MTU.
    pub mtu: Mtu,
    /// The peer is an endpoint of this crate.
    pub is_peer_native: bool,
    /// What the peer's receive socket takes, of all queue pairs with this peer together. No window is used beyond it.
    pub socket_bytes: u64,
}

impl PathFacts {
    pub(super) fn new(peer: IpAddr, mtu: Mtu, is_peer_native: bool, socket_bytes: u64) -> Self {
        Self { peer, mtu, is_peer_native, socket_bytes }
    }
}

/// An acknowledgement, or another response, that arrived and moved the oldest unacknowledged packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Acked {
    /// When it arrived.
    pub now: Time,
    /// What it acknowledges that was not acknowledged before.
    pub bytes: u64,
    /// The round trip that it ends, if one was being measured: from a packet that asks for a response to the response.
    /// One packet at a time is measured, never one that was sent again.
    pub round_trip: Option<Duration>,
    /// The same of a packet that was sent again because it was known to be missing. It waited behind what was sent in
    /// vain. A short one may be the response to something else.
    pub repetition: Option<Duration>,
    /// What is sent and not acknowledged now.
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
}

/// Packets seem lost; those in flight are about to be sent again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CongestionEvent {
    /// When it was noticed.
    pub now: Time,
    /// What it is concluded from.
    pub kind: CongestionKind,
    /// What is sent and not acknowledged, lost packets included.
    pub in_flight: u64,
}

/// Decides how much a connection may have in flight and how fast it may send. Bytes are bytes of the window: a packet
/// counts as a whole path MTU.
///
/// It has no clock and does no I/O: time is an argument. It is called under the lock of a shard, so it must return
/// soon. An unreliable connection tells it only what it sends, has nothing in flight, and uses the window as the length
/// of a burst.
pub trait CongestionControl: Send {
    /// Packets of so many bytes have left, for the first time, again or as a probe. `in_flight` is what is sent and not
    /// acknowledged, these included.
    fn on_sent(&mut self, now: Time, bytes: u64, in_flight: u64);

    /// Something was acknowledged. Called once for an arriving packet, whatever it acknowledges.
    fn on_ack(&mut self, ack: &Acked);

    /// Packets seem lost.
    fn on_congestion(&mut self, event: &CongestionEvent);

    /// Bytes that may be in flight; what is no whole packet does not count. It is used as far as the peer's socket
    /// takes it. One packet, or one READ request, may be in flight however small it is. Asked for after
    /// [`CongestionControl::on_ack`] and [`CongestionControl::on_congestion`].
    fn window(&self) -> u64;

    /// Bytes a second (0 counts as 1); `None`: packets are not paced. What leaves in one send is not spaced, but paid
    /// for before the next send. Asked for when packets leave.
    fn pacing_rate(&self) -> Option<u64>;
}

/// Builds the controllers of an endpoint's connections.
pub trait CongestionFactory: Send + Sync {
    /// A controller for one connection. Called when its path is set or changed, or its peer turns out to be another.
    fn build(&self, path: &PathFacts) -> Box<dyn CongestionControl>;
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
    fn on_sent(&mut self, _: Time, _: u64, _: u64) {}

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
}

/// The controller of a connection. The built-in ones are not called through a pointer.
pub(super) enum Congestion {
    Constant(ConstantWindow),
    GoBack(Box<GoBackWindow>),
    Custom(Box<dyn CongestionControl>),
}

impl Default for Congestion {
    /// Of a connection without a path.
    fn default() -> Self {
        Self::Constant(ConstantWindow::default())
    }
}

impl Congestion {
    pub(super) fn new(path: &PathFacts, factory: Option<&dyn CongestionFactory>) -> Self {
        match factory {
            None if path.is_peer_native => Self::Constant(ConstantWindow::new(path)),
            None => Self::GoBack(Box::new(GoBackWindow::new(path))),
            Some(factory) => Self::Custom(factory.build(path)),
        }
    }

    /// Whether it takes no inputs and its outputs never change.
    #[inline]
    pub(super) fn is_constant(&self) -> bool {
        matches!(self, Self::Constant(_))
    }

    /// Packets that the connection may have in flight.
    pub(super) fn window_packets(&self, path: &PathFacts) -> u32 {
        packets_of(self.window(), path)
    }

    /// The same where it is not as small as that for a moment only: what is begun now lasts longer.
    pub(super) fn usual_packets(&self, path: &PathFacts) -> u32 {
        match self {
            Self::GoBack(go_back) => packets_of(go_back.usual(), path),
            Self::Constant(_) | Self::Custom(_) => self.window_packets(path),
        }
    }
}

/// Packets of a window of so many bytes, as far as the peer's socket takes it.
fn packets_of(window: u64, path: &PathFacts) -> u32 {
    let packets = window.min(path.socket_bytes) / u64::from(path.mtu.bytes());
    u32::try_from(packets).unwrap_or(u32::MAX).max(1)
}

impl CongestionControl for Congestion {
    #[inline]
    fn on_sent(&mut self, now: Time, bytes: u64, in_flight: u64) {
        match self {
            Self::Constant(constant) => constant.on_sent(now, bytes, in_flight),
            Self::GoBack(go_back) => go_back.on_sent(now, bytes, in_flight),
            Self::Custom(custom) => custom.on_sent(now, bytes, in_flight),
        }
    }

    #[inline]
    fn on_ack(&mut self, ack: &Acked) {
        match self {
            Self::Constant(constant) => constant.on_ack(ack),
            Self::GoBack(go_back) => go_back.on_ack(ack),
            Self::Custom(custom) => custom.on_ack(ack),
        }
    }

    #[inline]
    fn on_congestion(&mut self, event: &CongestionEvent) {
        match self {
            Self::Constant(constant) => constant.on_congestion(event),
            Self::GoBack(go_back) => go_back.on_congestion(event),
            Self::Custom(custom) => custom.on_congestion(event),
        }
    }

    #[inline]
    fn window(&self) -> u64 {
        match self {
            Self::Constant(constant) => constant.window(),
            Self::GoBack(go_back) => go_back.window(),
            Self::Custom(custom) => custom.window(),
        }
    }

    #[inline]
    fn pacing_rate(&self) -> Option<u64> {
        match self {
            Self::Constant(constant) => constant.pacing_rate(),
            Self::GoBack(go_back) => go_back.pacing_rate(),
            Self::Custom(custom) => custom.pacing_rate(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: PathFacts = PathFacts {
        peer: IpAddr::V4(std::net::Ipv4Addr::LOCALHOST),
        mtu: Mtu::Mtu1024,
        is_peer_native: true,
        socket_bytes: 64 << 10,
    };

    /// A controller whose window is counted from what it is made with, and builds itself.
    #[derive(Clone, Copy)]
    struct Fixed {
        window: u64,
    }

    impl CongestionControl for Fixed {
        fn on_sent(&mut self, _: Time, bytes: u64, _: u64) {
            self.window -= bytes;
        }

        fn on_ack(&mut self, ack: &Acked) {
            self.window += ack.bytes;
        }

        fn on_congestion(&mut self, _: &CongestionEvent) {
            self.window = 0;
        }

        fn window(&self) -> u64 {
            self.window
        }

        fn pacing_rate(&self) -> Option<u64> {
            Some(self.window)
        }
    }

    impl CongestionFactory for Fixed {
        fn build(&self, _: &PathFacts) -> Box<dyn CongestionControl> {
            Box::new(*self)
        }
    }

    fn tell_all(congestion: &mut Congestion) {
        let now = Time::ZERO;
        congestion.on_sent(now, 1_024, 1_024);
        congestion.on_ack(&Acked { now, bytes: 2_048, round_trip: None, repetition: None, in_flight: 0 });
    }

    #[test]
    fn the_constant_window_is_what_the_socket_takes_whatever_happens() {
        let mut congestion = Congestion::new(&PATH, None);
        assert!(congestion.is_constant());
        tell_all(&mut congestion);
        congestion.on_congestion(&CongestionEvent { now: Time::ZERO, kind: CongestionKind::Loss, in_flight: 1_024 });
        assert_eq!((congestion.window(), congestion.pacing_rate()), (64 << 10, None));
        assert_eq!(congestion.window_packets(&PATH), 64);
    }

    #[test]
    fn a_custom_controller_has_inputs_and_outputs() {
        let mut congestion = Congestion::new(&PATH, Some(&Fixed { window: 10_000 }));
        assert!(!congestion.is_constant());
        tell_all(&mut congestion);
        assert_eq!((congestion.window(), congestion.pacing_rate()), (11_024, Some(11_024)));
        congestion.on_congestion(&CongestionEvent { now: Time::ZERO, kind: CongestionKind::Persistent, in_flight: 0 });
        assert_eq!(congestion.window(), 0);
    }

    #[test]
    fn a_window_is_whole_packets_at_least_one_and_no_more_than_the_socket_takes() {
        for (window, packets) in
            [(0, 1), (1, 1), (1_023, 1), (2_047, 1), (2_048, 2), (64 << 10, 64), (65 << 10, 64), (u64::MAX, 64)]
        {
            let congestion = Congestion::new(&PATH, Some(&Fixed { window }));
            assert_eq!(congestion.window_packets(&PATH), packets, "{window}");
        }
    }

    #[test]
    fn a_connection_without_a_path_has_a_window_of_one_packet() {
        assert_eq!(Congestion::default().window_packets(&PATH), 1);
    }
}
