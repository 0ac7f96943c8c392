//! Explicit congestion notification (ECN, RFC 3168): a queue on the way marks packets of connections that understand
//! it, instead of dropping them.
//!
//! Packets of reliable connections on a path with a controller say that they do, as ECT(0), which adapters send. A
//! native peer echoes a mark by the BECN bit of its next acknowledgement; a standard peer sends a congestion
//! notification packet (CNP, IBTA A17.9.3), and gets one for its marked packets. Linux does neither, so packets to a
//! standard peer are ECT only if the application says so: by the lower two bits of `traffic_class`, which are the
//! device's otherwise.

use std::time::Duration;

use super::datagram::Datagram;
use crate::types::{PeerCapabilities, Time};

/// The lower two bits of the traffic class.
const FIELD: u8 = 0b11;
const ECT0: u8 = 0b10;
const MARKED: u8 = 0b11;
/// A queue pair sends one CNP in so long at most (`N`: Zhu et al., SIGCOMM 2015, section 3.1).
const NOTIFICATION_INTERVAL: Duration = Duration::from_micros(50);
/// The traffic class of CNPs: DSCP 48, the default of adapters (`CNP_DSCP`).
pub(super) const NOTIFICATION_CLASS: u8 = 48 << 2;
/// Reserved bytes of a CNP.
pub(super) const NOTIFICATION_BYTES: u32 = 16;

/// The traffic class without the bits that say what a queue may do with the packet.
pub(super) fn without_ecn(traffic_class: u8) -> u8 {
    traffic_class & !FIELD
}

impl Datagram<'_> {
    /// Whether a queue on the way has marked it.
    #[inline]
    pub(super) fn is_marked(&self) -> bool {
        self.traffic_class.is_some_and(|class| class & FIELD == MARKED)
    }
}

/// The traffic class of a path's packets: its DSCP, and what queues may do with the packets. Without the lowest bit
/// it is the byte of packets that leave.
#[derive(Clone, Copy, Default)]
pub(super) struct TrafficClass(u8);

impl TrafficClass {
    /// Packets of this DSCP, the upper six bits, are not marked.
    pub(super) fn unmarked(traffic_class: u8) -> Self {
        Self(without_ecn(traffic_class))
    }

    /// Differentiated services code point.
    pub(super) fn dscp(self) -> u8 {
        self.0 >> 2
    }

    /// Whether packets may be marked.
    pub(super) fn marking(self) -> Marking {
        match self.0 & FIELD {
            0b10 => Marking::On,
            0b11 => Marking::Untested,
            _ => Marking::Off,
        }
    }

    /// The same DSCP, but packets may be marked so.
    pub(super) fn with(self, marking: Marking) -> Self {
        Self(without_ecn(self.0) | marking as u8)
    }

    /// The byte of packets that leave.
    #[inline]
    pub(super) fn departing(self) -> u8 {
        self.0 & !1
    }
}

/// Whether packets of a path may be marked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Marking {
    /// They are dropped instead.
    #[default]
    Off = 0b00,
    /// They may be, and pass.
    On = ECT0 as isize,
    /// They may be, and none has been acknowledged yet: there are paths on which such packets are lost.
    Untested = 0b11,
}

impl Marking {
    /// At the beginning of a path with a controller. What the application wants matters towards a standard peer.
    pub(super) fn begin(peer: &PeerCapabilities, traffic_class: u8) -> Self {
        let is_reported = match peer.is_ours() {
            true => peer.has_extension(PeerCapabilities::MARKS),
            false => traffic_class & FIELD == ECT0,
        };
        if is_reported { Self::Untested } else { Self::Off }
    }

    /// Packets were acknowledged.
    pub(super) fn note_progress(self) -> Self {
        if self == Self::Untested { Self::On } else { self }
    }

    /// Nothing was acknowledged for the transport timeout.
    pub(super) fn note_silence(self) -> Self {
        if self == Self::Untested { Self::Off } else { self }
    }
}

/// The marks that have arrived, as far as the peer is to be told.
#[derive(Clone, Copy, Default)]
pub(super) struct ArrivedMarks {
    is_due: bool,
    /// Earliest time of the next CNP.
    next_notification: Time,
}

impl ArrivedMarks {
    /// A packet of the peer was marked. The next acknowledgement says so.
    pub(super) fn owe_echo(&mut self) {
        self.is_due = true;
    }

    /// The same for a peer that is told by a CNP, unless it was told just now.
    pub(super) fn owe_notification(&mut self, now: Time) {
        if now >= self.next_notification {
            self.is_due = true;
            self.next_notification = now + NOTIFICATION_INTERVAL;
        }
    }

    /// Whether the peer is to be told.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.is_due
    }

    /// The same, and from now on it is not.
    #[inline]
    pub(super) fn take(&mut self) -> bool {
        std::mem::take(&mut self.is_due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_markable_where_marks_are_reported() {
        let native = |extensions| PeerCapabilities { version: 1, extensions, ..PeerCapabilities::STRANGER };
        let cases = [
            (native(PeerCapabilities::MARKS), 0, Marking::Untested),
            (native(0), 0b10, Marking::Off),
            (PeerCapabilities::STRANGER, 0b00, Marking::Off),
            (PeerCapabilities::STRANGER, 0b01, Marking::Off),
            (PeerCapabilities::STRANGER, 0b11, Marking::Off),
            (PeerCapabilities::STRANGER, 0b10, Marking::Untested),
        ];
        for (peer, class, marking) in cases {
            assert_eq!(Marking::begin(&peer, class), marking, "{peer:?} {class:#b}");
        }
    }

    #[test]
    fn a_path_that_loses_markable_packets_gets_none_any_more() {
        let departing = |marking| TrafficClass::unmarked(0x2b).with(marking).departing();
        assert_eq!(departing(Marking::Untested), 0x2a);
        assert_eq!(departing(Marking::Untested.note_silence()), 0x28);
        assert_eq!(departing(Marking::Untested.note_progress().note_silence()), 0x2a);
        assert_eq!(departing(Marking::Off.note_progress()), 0x28);
        let marking = TrafficClass::default().with(Marking::Untested).with(Marking::On).marking();
        assert_eq!(marking, Marking::On);
    }

    #[test]
    fn notifications_keep_their_distance() {
        let at = |microseconds: u64| Time::from_nanos(1_000_000 + microseconds * 1_000);
        let mut marks = ArrivedMarks::default();
        let told: Vec<bool> =
            [0, 1, 49, 50, 51, 100].map(|time| (marks.owe_notification(at(time)), marks.take()).1).into();
        assert_eq!(told, [true, false, false, true, false, true]);
    }
}
