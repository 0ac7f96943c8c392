//! Explicit congestion notification (ECN, RFC 3168): a queue on the path marks packets of connections that support it,
//! instead of dropping them.
//!
//! Packets of reliable connections on a path with a controller are sent as ECT(0), as adapters do (IBTA A17.3.1.1.3 and
//! A17.3.1.2.2). A native peer echoes a mark in the BECN bit of its next acknowledgement; a standard peer sends a
//! congestion notification packet (CNP, IBTA A17.9.3), and gets one for its marked packets. Linux does neither, so
//! packets to a standard peer are ECT only if the application requests it in the lower two bits of `traffic_class`,
//! which the device controls otherwise.

use std::time::Duration;

use super::datagram::Datagram;
use crate::types::{PeerCapabilities, Time};

/// Mask of the ECN field, the lower two bits of the traffic class.
const FIELD: u8 = 0b11;
const ECT0: u8 = 0b10;
const MARKED: u8 = 0b11;
/// Minimum interval between CNPs of a queue pair (`N`: Zhu et al., SIGCOMM 2015, section 3.1).
const NOTIFICATION_INTERVAL: Duration = Duration::from_micros(50);
/// The traffic class of CNPs: DSCP 48, the default of adapters (`CNP_DSCP`).
pub(super) const NOTIFICATION_CLASS: u8 = 48 << 2;
/// Reserved bytes of a CNP (IBTA A17.9.3).
pub(super) const NOTIFICATION_BYTES: u32 = 16;

/// Returns the traffic class with the ECN field cleared.
pub(super) fn without_ecn(traffic_class: u8) -> u8 {
    traffic_class & !FIELD
}

impl Datagram<'_> {
    /// Whether a queue on the path has marked it.
    #[inline]
    pub(super) fn is_marked(&self) -> bool {
        self.traffic_class.is_some_and(|class| class & FIELD == MARKED)
    }
}

/// The traffic class of a path's packets: DSCP and [`Marking`]. With the lowest bit cleared, it is the byte of outgoing
/// packets.
#[derive(Clone, Copy, Default)]
pub(super) struct TrafficClass(u8);

impl TrafficClass {
    /// Keeps the DSCP, the upper six bits, and turns marking off.
    pub(super) fn unmarked(traffic_class: u8) -> Self {
        Self(without_ecn(traffic_class))
    }

    /// Returns the differentiated services code point.
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

    /// Returns the same DSCP with another marking.
    pub(super) fn with(self, marking: Marking) -> Self {
        Self(without_ecn(self.0) | marking as u8)
    }

    /// Returns the traffic class of outgoing packets.
    #[inline]
    pub(super) fn departing(self) -> u8 {
        self.0 & !1
    }
}

/// Whether packets of a path may be marked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Marking {
    /// They may not; queues drop them instead.
    #[default]
    Off = 0b00,
    /// They may, and such packets pass.
    On = ECT0 as isize,
    /// They may, but none has been acknowledged yet: some paths lose such packets.
    Untested = 0b11,
}

impl Marking {
    /// Returns the initial state on a path with a controller. The application's choice matters only for a standard
    /// peer.
    pub(super) fn begin(peer: &PeerCapabilities, traffic_class: u8) -> Self {
        let is_reported = match peer.is_native() {
            true => peer.has_extension(PeerCapabilities::MARKS),
            false => traffic_class & FIELD == ECT0,
        };
        if is_reported { Self::Untested } else { Self::Off }
    }

    /// Handles an acknowledgement of packets.
    pub(super) fn note_progress(self) -> Self {
        if self == Self::Untested { Self::On } else { self }
    }

    /// Handles a transport timeout without acknowledgement.
    pub(super) fn note_silence(self) -> Self {
        if self == Self::Untested { Self::Off } else { self }
    }
}

/// Marks that have arrived and are still to be reported to the peer.
#[derive(Clone, Copy, Default)]
pub(super) struct ArrivedMarks {
    is_due: bool,
    /// Earliest time of the next CNP.
    next_notification: Time,
}

impl ArrivedMarks {
    /// Handles a marked packet of a native peer: the next acknowledgement echoes it.
    pub(super) fn owe_echo(&mut self) {
        self.is_due = true;
    }

    /// Handles a marked packet of a standard peer: a CNP is due, unless one became due within `NOTIFICATION_INTERVAL`.
    pub(super) fn owe_notification(&mut self, now: Time) {
        if now >= self.next_notification {
            self.is_due = true;
            self.next_notification = now + NOTIFICATION_INTERVAL;
        }
    }

    /// Whether a mark is to be reported to the peer.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.is_due
    }

    /// Takes the mark to be reported.
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
        let native = |extensions| PeerCapabilities { version: 1, extensions, ..PeerCapabilities::STANDARD };
        let cases = [
            (native(PeerCapabilities::MARKS), 0, Marking::Untested),
            (native(0), 0b10, Marking::Off),
            (PeerCapabilities::STANDARD, 0b00, Marking::Off),
            (PeerCapabilities::STANDARD, 0b01, Marking::Off),
            (PeerCapabilities::STANDARD, 0b11, Marking::Off),
            (PeerCapabilities::STANDARD, 0b10, Marking::Untested),
        ];
        for (peer, class, marking) in cases {
            assert_eq!(Marking::begin(&peer, class), marking, "{peer:?} {class:#b}");
        }
    }

    #[test]
    fn a_path_that_loses_ect_packets_gets_no_more_of_them() {
        let departing = |marking| TrafficClass::unmarked(0x2b).with(marking).departing();
        assert_eq!(departing(Marking::Untested), 0x2a);
        assert_eq!(departing(Marking::Untested.note_silence()), 0x28);
        assert_eq!(departing(Marking::Untested.note_progress().note_silence()), 0x2a);
        assert_eq!(departing(Marking::Off.note_progress()), 0x28);
        let marking = TrafficClass::default().with(Marking::Untested).with(Marking::On).marking();
        assert_eq!(marking, Marking::On);
    }

    #[test]
    fn cnps_are_sent_at_a_minimum_interval() {
        let at = |microseconds: u64| Time::from_nanos(1_000_000 + microseconds * 1_000);
        let mut marks = ArrivedMarks::default();
        let sent: Vec<bool> =
            [0, 1, 49, 50, 51, 100].map(|time| (marks.owe_notification(at(time)), marks.take()).1).into();
        assert_eq!(sent, [true, false, false, true, false, true]);
    }
}
