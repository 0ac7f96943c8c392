//! The check field of a connection's packets: the standard's ICRC, or between native peers that share a key the ICRC
//! under a mask ([`crate::wire::CheckMasks`]).
//!
//! Peers that agreed on the key when they connected use it from the first packet on. A peer that discovered the other
//! one's key share does not know whether the other one discovered its own. Such peers begin with the ICRC and an
//! *offer*, a reserved bit of the base transport header. An end that has the key and receives an offer sends with the
//! key from then on. An end that receives a packet with the key accepts only such packets. A connection switches once
//! and never back.

use crate::types::{PeerKey, Psn, Qpn};
use crate::wire::{CheckMasks, ICRC_BYTES, Opcode, PsnSequence};

/// Maximum number of segments in one send.
pub(super) const LARGEST_SEGMENT_INDEX: u16 = 128;
/// Byte 8 of the base transport header, after the acknowledgement request: seven bits that the standard reserves
/// (IBTA 9.2; `rxe_hdr.h`, `BTH_RESV7_MASK`), covers by the ICRC (`rxe_icrc.c`, `rxe_icrc_hdr`), and has receivers
/// ignore.
const RESERVED_BYTE: usize = 8;
/// Bit of an offer: the sender has the connection's key.
const OFFER: u8 = 1;

/// The key masks of one queue pair's connection, and the progress of the switch to them.
#[derive(Clone, Copy, Default)]
pub(super) struct PacketCheck {
    /// Masks of this end's requests and the responses to them; known once the first PSN to send is known.
    own: Option<CheckMasks>,
    /// Masks of the peer's requests and the responses to them; known once the first expected PSN is known.
    peer: Option<CheckMasks>,
    /// Whether packets are sent with the key, because the peer is known to have it.
    sends_keyed: bool,
    /// Packets without the key are dropped.
    requires_key: bool,
}

impl PacketCheck {
    /// Begins a connection: requests of the queue pair `peer` to the queue pair `own` start at `first`.
    pub(super) fn start_receiving(&mut self, key: &PeerKey, own: Qpn, peer: Qpn, first: Psn) {
        let sequence = PsnSequence { requester: peer, responder: own, first, is_local: false };
        *self = Self {
            own: None,
            peer: Some(CheckMasks::new(key, &sequence)),
            sends_keyed: key.is_agreed,
            requires_key: key.is_agreed,
        };
    }

    /// Starts sending: requests of the queue pair `own` to the queue pair `peer` start at `first`.
    pub(super) fn start_sending(&mut self, key: &PeerKey, own: Qpn, peer: Qpn, first: Psn) {
        let sequence = PsnSequence { requester: own, responder: peer, first, is_local: true };
        self.own = Some(CheckMasks::new(key, &sequence));
    }

    /// Whether the two ends share a key.
    pub(super) fn has_key(&self) -> bool {
        self.peer.is_some()
    }

    /// Returns the mask of an arriving packet.
    #[inline]
    pub(super) fn arriving(&self, opcode: Opcode) -> Option<u32> {
        match opcode.is_response() {
            true => self.own.map(|masks| masks.responses),
            false => self.peer.map(|masks| masks.requests),
        }
    }

    /// Returns how the check field of outgoing packets is computed.
    #[inline]
    pub(super) fn departing(&self) -> Departing {
        if !self.has_key() {
            return Departing::Icrc;
        }
        if !self.sends_keyed {
            return Departing::Offer;
        }
        // Requests leave only after the first PSN, and thus the mask, is known.
        Departing::Masked {
            requests: self.own.map_or(0, |masks| masks.requests),
            responses: self.peer.map_or(0, |masks| masks.responses),
        }
    }

    /// Whether packets without the key are dropped.
    #[inline]
    pub(super) fn requires_key(&self) -> bool {
        self.requires_key
    }

    /// Handles the first packet accepted with the key.
    #[cold]
    pub(super) fn note_keyed(&mut self) {
        self.sends_keyed = true;
        self.requires_key = true;
    }

    /// Handles an offer: the peer has the key.
    pub(super) fn note_offer(&mut self) {
        self.sends_keyed |= self.has_key();
    }
}

/// Whether a packet offers the key.
pub(super) fn offers_key(packet: &[u8]) -> bool {
    packet.get(RESERVED_BYTE).is_some_and(|byte| byte & OFFER != 0)
}

/// The contents of the check field of outgoing packets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Departing {
    /// The ICRC.
    Icrc,
    /// The ICRC, with the offer bit set.
    Offer,
    /// The ICRC for identification 0, under a mask.
    Masked { requests: u32, responses: u32 },
}

impl Departing {
    /// Whether the check field would reveal the mask.
    pub(super) fn is_keyed(self) -> bool {
        matches!(self, Self::Masked { .. })
    }

    /// Sets the offer bit of a packet before its check field is computed.
    #[inline]
    pub(super) fn prepare(self, packet: &mut [u8]) {
        if self == Self::Offer {
            packet[RESERVED_BYTE] |= OFFER;
        }
    }

    /// Returns the identification that the ICRC of the packet at this index of a send covers.
    #[inline]
    pub(super) fn identification(self, index: u16) -> u16 {
        if self.is_keyed() { 0 } else { index }
    }

    /// Masks the ICRC at the end of a packet.
    #[inline]
    pub(super) fn finish(self, packet: &mut [u8]) {
        let Self::Masked { requests, responses } = self else { return };
        let mask = if Opcode(packet[0]).is_response() { responses } else { requests };
        if let Some(field) = packet.last_chunk_mut::<ICRC_BYTES>() {
            *field = (u32::from_le_bytes(*field) ^ mask).to_le_bytes();
        }
    }
}
