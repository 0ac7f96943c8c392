//! The path of a connection: where its packets go, and what is known of the peer there.

use std::net::IpAddr;
use std::sync::Arc;

use super::acceptance::HiddenFields;
use super::datagram::{Datagram, SourceAddress};
use super::window_share::WindowShare;
use crate::types::{Mtu, PeerCapabilities, Qpn};
use crate::wire::Flow;
use crate::wire::icrc::Seed;

/// The connection's path.
pub(super) struct Path {
    pub(super) source: SourceAddress,
    pub(super) peer_address: IpAddr,
    pub(super) destination: Qpn,
    pub(super) mtu: Mtu,
    pub(super) peer: PeerCapabilities,
    pub(super) traffic_class: u8,
    pub(super) hop_limit: u8,
    /// The peer's UDP port; learned from the first accepted packet of a peer of our own.
    pub(super) peer_port: Option<u16>,
    /// What the ICRCs of outgoing packets begin with.
    pub(super) seed: Seed,
    /// The same of packets that come from this port, the last one.
    pub(super) peer_seed: Option<(u16, Seed)>,
    /// How a standard peer fills the IPv4 fields that its ICRC covers and a socket does not show.
    pub(super) hidden_fields: HiddenFields,
    /// Whether a stranger took FLUSH last with the ICRC that Linux gives to it, or sent one like that.
    pub(super) flush_as_linux: bool,
    /// Packets that may be in flight to the peer, for all queue pairs together: what its receive socket holds. Small
    /// packets are not more, although there would be room: who waits sends fuller (8-byte WRITEs in batches of 16 go
    /// from 2.5 to 6.5 million a second).
    pub(super) window_packets: u32,
    /// With the other queue pairs that have this peer's address.
    pub(super) window_share: Arc<WindowShare>,
}

impl Path {
    /// The addresses of outgoing packets.
    pub(super) fn flow(&self) -> Flow {
        Flow { source: self.source.address, destination: self.peer_address, source_port: self.source.source_port }
    }

    /// The start of the ICRCs of packets from this port of the peer.
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

    /// Whether other queue pairs have the same peer address. The endpoint's table holds one of the references.
    pub(super) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.window_share) > 2
    }

    /// How far ahead of the expected packet another one of the peer may be: as many as it has in flight at most. The
    /// peer knows how much this end's socket holds, and this end does not know what it was told; but no peer of our own
    /// goes beyond `OWN_WINDOW_BYTES`.
    pub(super) fn reorder_window(&self) -> u32 {
        if self.peer.is_ours() { (OWN_WINDOW_BYTES / self.mtu.bytes()).max(16) } else { STRANGER_REORDER_PACKETS }
    }

    /// The path MTU or what is known of the peer has changed.
    pub(super) fn note_peer(&mut self) {
        let mtu = self.mtu.bytes();
        self.window_packets = if self.peer.is_ours() && self.peer.receive_buffer_bytes > 0 {
            // Half of the buffer stays free for others.
            let held = self.peer.receive_buffer_bytes / 2 / (mtu + PACKET_CHARGE_BYTES);
            held.clamp(16, (OWN_WINDOW_BYTES / mtu).max(16))
        } else {
            // A default receive buffer holds 25 packets of 4 KiB, 92 of 1 KiB.
            (STRANGER_WINDOW_BYTES / mtu).clamp(16, 64)
        };
    }
}

const STRANGER_WINDOW_BYTES: u32 = 64 << 10;
/// Packets of a standard peer that are kept. Linux has up to 128 in flight, and sends all of them again after a loss.
const STRANGER_REORDER_PACKETS: u32 = 64;
/// What the kernel charges a packet besides its payload.
const PACKET_CHARGE_BYTES: u32 = 832;
/// More than this in flight leaves the cache and gains nothing.
const OWN_WINDOW_BYTES: u32 = 1 << 20;
