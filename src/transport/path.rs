//! The path of a connection: addresses, MTU and window, and the facts learned about the peer.
//!
//! Linux computes a nonstandard ICRC for FLUSH (`icrc::append_as_linux`), and drops a FLUSH with the standard's. Native
//! peers never get Linux's. A standard peer gets the standard's first and, while it does not respond, both alternately;
//! the next FLUSH begins with the one that it responded to.

use std::cell::Cell;
use std::net::IpAddr;
use std::sync::Arc;

use super::congestion::PathFacts;
use super::datagram::{Datagram, SourceAddress};
use super::marks::{Marking, TrafficClass};
use super::packet_check::LARGEST_SEGMENT_INDEX;
use super::path_control::MOST_IN_FLIGHT;
use super::window_share::WindowShare;
use crate::types::{DropReason, Mtu, PathReport, PeerCapabilities, Qpn, Time};
use crate::wire::icrc::{self, Match, Seed};
use crate::wire::{BTH_BYTES, Flow, ICRC_BYTES, Opcode};

const STANDARD_WINDOW_BYTES: u32 = 64 << 10;
/// Reorder window in packets for a standard peer. Linux has up to 128 in flight, and sends all of them again after a
/// loss (`rxe_param.h`, `RXE_MAX_UNACKED_PSNS`; `rxe_req.c`, `req_retry`).
const STANDARD_REORDER_PACKETS: u32 = 64;
/// Bytes that the kernel charges to the socket for a packet besides its payload.
const PACKET_CHARGE_BYTES: u32 = 832;
/// Window of a native peer. More in flight would leave the cache without any gain.
const NATIVE_WINDOW_BYTES: u32 = 1 << 20;
/// Reorder window, in windows, for a native peer that gets reports of all gaps. The peer keeps sending while the first
/// gap is repaired: with one window, two consecutive losses of the same packet would stop it for a round trip.
const WINDOWS_AHEAD: u32 = 4;
/// Number of READs that the responder records, as a multiple of the outstanding ones. A READ request whose responses
/// have all been sent makes room for another one, although some responses may be lost.
pub(super) const READ_RECORD_FACTOR: usize = 4;
/// Number of consecutive plausible packets with unusual hidden fields that are treated as damaged. A peer that really
/// changes its identification sends more of them, and the next one is accepted.
pub(super) const MOST_DOUBTS: u8 = 3;
/// Number of consecutive executed packets with the usual hidden fields after which nothing else is expected.
const USUAL_IN_A_ROW: u8 = 16;

/// The IPv4 header fields of a standard peer that its ICRCs cover (IBTA A17.3.3) and a socket does not report:
/// identification and "don't fragment" (`rxe_net.c`, `prepare_ipv4_hdr`). If several values are allowed, the ICRC
/// misses some flipped bits: 1 or 2 of those of a longer packet. So the values are narrowed down as far as the peer's
/// packets permit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum HiddenFields {
    /// No packet was executed yet: any values are allowed.
    #[default]
    Unknown,
    /// Identification 0 and "don't fragment" (IBTA A17.3.1.1.5). `doubts` counts consecutive plausible packets with
    /// others.
    Usual { doubts: u8 },
    /// Any identification. `usual` counts consecutive executed packets that had the usual fields nevertheless.
    Changing { dont_fragment: bool, usual: u8 },
}

impl HiddenFields {
    /// Learns from an executed packet whose ICRC implies this "don't fragment" and an unusual identification; `None`
    /// for the usual fields.
    pub(super) fn learn(&mut self, dont_fragment: Option<bool>) {
        *self = match (dont_fragment, *self) {
            (None, Self::Changing { dont_fragment, usual }) if usual < USUAL_IN_A_ROW => {
                Self::Changing { dont_fragment, usual: usual + 1 }
            }
            (None, _) => Self::Usual { doubts: 0 },
            (Some(dont_fragment), _) => Self::Changing { dont_fragment, usual: 0 },
        };
    }

    /// Returns the only allowed value of "don't fragment", if it is known.
    pub(super) fn dont_fragment(self) -> Option<bool> {
        match self {
            Self::Changing { dont_fragment, .. } => Some(dont_fragment),
            Self::Usual { .. } | Self::Unknown => None,
        }
    }
}

/// Facts about the peer from a packet whose ICRC fits. They are learned once the packet is accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Evidence {
    /// Source port of the packet.
    pub(super) source_port: u16,
    /// "Don't fragment" of a packet whose identification is unusual; `None` for the usual fields.
    pub(super) dont_fragment: Option<bool>,
    /// It is a FLUSH with Linux's ICRC.
    pub(super) as_linux: bool,
    /// Its sender has the key of the connection.
    pub(super) offers_key: bool,
}

/// Identifies a path whose queue pairs share a window and a controller.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct PathKey {
    /// Local address.
    pub(super) own: IpAddr,
    /// Address of the peer.
    pub(super) peer: IpAddr,
    /// Differentiated services code point: packets with different ones may wait in different queues.
    pub(super) dscp: u8,
}

impl PathKey {
    /// Builds the key of packets from one address to another with this traffic class.
    pub(super) fn new(own: IpAddr, peer: IpAddr, traffic_class: TrafficClass) -> Self {
        Self { own, peer, dscp: traffic_class.dscp() }
    }
}

/// Whether the peer knows this end's capabilities, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Acquaintance {
    /// It does.
    Mutual,
    /// It may not: the ends found each other in the registry. The first packet with the key or with an offer of it
    /// shows that it does.
    OneSided,
    /// The same, after the connection began: the peer may have sent packets from another port before, and sends all
    /// from one port once it knows this end.
    Discovered,
}

/// The path of one connection, with the state learned about its peer.
pub(super) struct Path {
    pub(super) source: SourceAddress,
    pub(super) peer_address: IpAddr,
    pub(super) destination: Qpn,
    pub(super) mtu: Mtu,
    pub(super) peer: PeerCapabilities,
    pub(super) acquaintance: Acquaintance,
    /// The ECN bits change when packets are acknowledged or time out ([`Marking`]).
    pub(super) traffic_class: Cell<TrafficClass>,
    pub(super) hop_limit: u8,
    /// The peer's UDP port; learned from the first accepted packet of a native peer.
    pub(super) peer_port: Option<u16>,
    /// The start of the ICRCs of outgoing packets.
    pub(super) seed: Seed,
    /// The latest source port of the peer's packets, and the start of their ICRCs.
    pub(super) peer_seed: Option<(u16, Seed)>,
    /// How a standard peer fills the IPv4 fields that its ICRC covers and a socket does not report.
    pub(super) hidden_fields: HiddenFields,
    /// Whether a standard peer last accepted or sent a FLUSH with Linux's ICRC.
    pub(super) flush_as_linux: bool,
    /// Packets that may be in flight to the peer, for all queue pairs together: the capacity of its receive socket in
    /// full packets. The count is the same for small packets, although the socket would hold more of them: queue pairs
    /// that wait for window space send fuller bursts (8-byte WRITEs in batches of 16 go from 2.5 to 6.5 million a
    /// second).
    pub(super) socket_packets: u32,
    /// The window shared with the other queue pairs of this path.
    pub(super) window_share: Arc<WindowShare>,
}

impl Path {
    /// Returns the addresses of outgoing packets.
    pub(super) fn flow(&self) -> Flow {
        Flow { source: self.source.address, destination: self.peer_address, source_port: self.source.source_port }
    }

    /// Updates whether packets may be marked.
    pub(super) fn note_marking(&self, next: impl FnOnce(Marking) -> Marking) {
        let class = self.traffic_class.get();
        self.traffic_class.set(class.with(next(class.marking())));
    }

    /// Returns the key that identifies the queue pairs that share its window.
    pub(super) fn key(&self) -> PathKey {
        PathKey::new(self.source.address, self.peer_address, self.traffic_class.get())
    }

    /// Returns the start of the ICRCs of packets from the datagram's source port.
    #[inline]
    pub(super) fn arriving_seed(&mut self, datagram: &Datagram<'_>) -> Seed {
        match self.peer_seed {
            Some((port, seed)) if port == datagram.source_port => seed,
            _ => self.renew_peer_seed(datagram),
        }
    }

    #[cold]
    fn renew_peer_seed(&mut self, datagram: &Datagram<'_>) -> Seed {
        let seed = Seed::new(&datagram.flow());
        self.peer_seed = Some((datagram.source_port, seed));
        seed
    }

    /// Returns the number that determines the queue pair's order among those that wait for the pace
    /// (`PathControl::next_send_at`); 0 if there are no others.
    pub(super) fn order_seed(&self, qpn: Qpn) -> u32 {
        if self.is_shared() || self.window_share.carries_datagrams() { qpn.value() } else { 0 }
    }

    /// Whether other queue pairs have the same path.
    pub(super) fn is_shared(&self) -> bool {
        self.queue_pairs() > 1
    }

    /// Returns the number of queue pairs with this path. The endpoint's table holds one of the references.
    pub(super) fn queue_pairs(&self) -> usize {
        Arc::strong_count(&self.window_share).saturating_sub(1).max(1)
    }

    /// Whether a packet with a wrong ICRC may be a FLUSH with Linux's ICRC.
    pub(super) fn may_be_flush_of_linux(&self, udp_payload: &[u8]) -> bool {
        !self.peer.is_native() && udp_payload.first() == Some(&Opcode::RC_FLUSH.0)
    }

    /// Whether a FLUSH sent in this retry round has Linux's ICRC.
    pub(super) fn flushes_as_linux(&self, round: u32) -> bool {
        let in_turn = round % 2 == 1;
        !self.peer.is_native() && self.flush_as_linux != in_turn
    }

    /// Returns the packets that may be in flight to the peer, of all queue pairs together: the window of the path's
    /// controller, or the capacity of the peer's socket.
    #[inline]
    pub(super) fn common_window(&self) -> u32 {
        self.window_share.controlled_window().unwrap_or(self.socket_packets)
    }

    /// Returns how far a packet may be ahead of the expected one: as many packets as the peer has in flight at most.
    /// Only the peer knows the capacity of this end's socket and the length of the path; but no native peer exceeds
    /// `MOST_IN_FLIGHT`.
    pub(super) fn reorder_window(&self) -> u32 {
        let packets_of = |bytes: u32| (bytes / self.mtu.bytes()).max(16);
        match self.peer.is_native() {
            true if self.accepts_gap_runs() => packets_of(MOST_IN_FLIGHT as u32) * WINDOWS_AHEAD,
            true => packets_of(NATIVE_WINDOW_BYTES),
            false => STANDARD_REORDER_PACKETS,
        }
    }

    /// Returns how many READs the responder records, as a multiple of the outstanding ones.
    pub(super) fn read_record_factor(&self) -> usize {
        if self.accepts_gap_runs() { READ_RECORD_FACTOR } else { 1 }
    }

    /// Whether the peer takes NAKs that list all gaps, provided that it knows that this end sends them.
    pub(super) fn accepts_gap_runs(&self) -> bool {
        self.peer.has_extension(PeerCapabilities::GAP_RUNS)
    }

    /// Returns the facts that a congestion controller is built from.
    pub(super) fn facts(&self) -> PathFacts {
        let socket_bytes = u64::from(self.socket_packets) * u64::from(self.mtu.bytes());
        PathFacts::new([self.source.address, self.peer_address], self.mtu, self.peer.is_native(), socket_bytes)
    }

    /// Returns a report on the path.
    pub(super) fn report(&self, now: Time) -> PathReport {
        let bytes_of = |packets: u32| u64::from(packets) * u64::from(self.mtu.bytes());
        let PathKey { own, peer, dscp } = self.key();
        let mut report = PathReport::new(own, peer);
        report.dscp = dscp;
        // Excludes the reference of the endpoint's table.
        report.queue_pairs = Arc::strong_count(&self.window_share) as u32 - 1;
        report.window = bytes_of(self.common_window());
        report.bytes_in_flight = bytes_of(self.window_share.in_flight());
        self.window_share.report(now, &mut report);
        report
    }

    /// Handles a change of the path MTU or the peer's capabilities.
    pub(super) fn note_peer(&mut self) {
        let mtu = self.mtu.bytes();
        self.socket_packets = if self.peer.is_native() && self.peer.receive_buffer_bytes > 0 {
            // Half of the buffer stays free for others.
            let held = self.peer.receive_buffer_bytes / 2 / (mtu + PACKET_CHARGE_BYTES);
            held.clamp(16, (NATIVE_WINDOW_BYTES / mtu).max(16))
        } else {
            // A default receive buffer holds 25 packets of 4 KiB, 92 of 1 KiB.
            (STANDARD_WINDOW_BYTES / mtu).clamp(16, 64)
        };
    }
}

impl Path {
    /// Verifies the ICRC of a packet whose identification is not the expected one. The second result is true if Linux's
    /// ICRC was tried.
    pub(super) fn verify(&mut self, datagram: &Datagram<'_>) -> (Match, bool) {
        let flow = datagram.flow();
        let expected_df = self.hidden_fields.dont_fragment().unwrap_or(true);
        let options = icrc::Verify { first_identification: datagram.segment_index, solve: true, expected_df };
        let verified = icrc::verify(&flow, &options, datagram.payload);
        if verified != Match::Wrong || !self.may_be_flush_of_linux(datagram.payload) {
            return (verified, false);
        }
        (icrc::verify_as_linux(&flow, &options, datagram.payload), true)
    }
}

impl Path {
    /// Returns the difference between the check field of a packet and its ICRC with identification 0 and "don't
    /// fragment", which is the one of all keyed packets: keyed peers do not check these two fields.
    #[inline]
    pub(super) fn icrc_difference(&mut self, datagram: &Datagram<'_>) -> Option<u32> {
        self.arriving_seed(datagram).difference(|| datagram.flow(), datagram.payload)
    }

    /// Returns why an unkeyed packet is dropped: it has the valid ICRC of a native peer without the key, or a wrong
    /// one.
    #[cold]
    pub(super) fn reason_without_key(&self, datagram: &Datagram<'_>, difference: u32) -> DropReason {
        let is_plain = match difference {
            0 => true,
            _ => Seed::identification_behind(difference, datagram.payload.len())
                .is_some_and(|identification| datagram.source.is_ipv4() && identification < LARGEST_SEGMENT_INDEX),
        };
        let is_long_enough = datagram.payload.len() >= BTH_BYTES + ICRC_BYTES;
        if is_plain && is_long_enough { DropReason::Unkeyed } else { DropReason::BadIcrc }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_fields_are_narrowed_down_again() {
        let mut fields = HiddenFields::default();
        fields.learn(Some(false));
        assert_eq!(fields.dont_fragment(), Some(false));
        // One packet in 65,536 has the usual identification by chance.
        fields.learn(None);
        fields.learn(Some(false));
        assert_eq!(fields, HiddenFields::Changing { dont_fragment: false, usual: 0 });
        (0..=USUAL_IN_A_ROW).for_each(|_| fields.learn(None));
        assert_eq!(fields, HiddenFields::Usual { doubts: 0 });
    }
}
