//! The check field of a connection's packets: the standard's ICRC, or between native peers that share a key the ICRC
//! under a mask ([`crate::wire::CheckMasks`]).
//!
//! Peers that agreed on the key when they connected use it from the first packet on. Peers that each found the other's
//! share by themselves do not know whether the other one found theirs. They begin with the ICRC and an *offer*, a
//! reserved bit of the base transport header. An end that has the key and receives an offer sends with the key from
//! then on. An end that receives a packet with the key accepts only such packets. A connection switches once and never
//! back.

use crate::types::{PeerKey, Psn, Qpn};
use crate::wire::{CheckMasks, ICRC_BYTES, Opcode, PsnSequence};

/// More segments than this never leave together.
pub(super) const LARGEST_SEGMENT_INDEX: u16 = 128;
/// Byte 8 of the base transport header, behind the request for an acknowledgement: seven bits that the standard
/// reserves (`rxe_hdr.h`, `BTH_RESV7_MASK`), covers by the ICRC (`rxe_icrc.c`, `rxe_icrc_hdr`), and has receivers
/// ignore.
const RESERVED_BYTE: usize = 8;
/// The sender has the connection's key.
const OFFER: u8 = 1;

/// The key of one queue pair's connection, as far as it is known.
#[derive(Clone, Copy, Default)]
pub(super) struct PacketCheck {
    /// Of own requests and their responses; known with the first PSN sent.
    own: Option<CheckMasks>,
    /// Of the peer's requests and the responses to them; known with the first PSN expected.
    peer: Option<CheckMasks>,
    /// The peer has the key.
    sends_keyed: bool,
    /// Packets without the key do not pass any more.
    requires_key: bool,
}

impl PacketCheck {
    /// The connection begins: requests of the queue pair `peer` to the queue pair `own` start at `first`.
    pub(super) fn start_receiving(&mut self, key: &PeerKey, own: Qpn, peer: Qpn, first: Psn) {
        let sequence = PsnSequence { requester: peer, responder: own, first, is_local: false };
        *self = Self {
            own: None,
            peer: Some(CheckMasks::new(key, &sequence)),
            sends_keyed: key.is_agreed,
            requires_key: key.is_agreed,
        };
    }

    /// Requests of the queue pair `own` to the queue pair `peer` start at `first`.
    pub(super) fn start_sending(&mut self, key: &PeerKey, own: Qpn, peer: Qpn, first: Psn) {
        let sequence = PsnSequence { requester: own, responder: peer, first, is_local: true };
        self.own = Some(CheckMasks::new(key, &sequence));
    }

    /// Whether the two ends share a key.
    pub(super) fn has_key(&self) -> bool {
        self.peer.is_some()
    }

    /// The mask of a packet that arrives.
    #[inline]
    pub(super) fn arriving(&self, opcode: Opcode) -> Option<u32> {
        match opcode.is_response() {
            true => self.own.map(|masks| masks.responses),
            false => self.peer.map(|masks| masks.requests),
        }
    }

    /// How packets that leave now are checked.
    #[inline]
    pub(super) fn departing(&self) -> Departing {
        if !self.has_key() {
            return Departing::Icrc;
        }
        if !self.sends_keyed {
            return Departing::Offer;
        }
        // Requests leave only after the first PSN is known, and so the mask.
        Departing::Masked {
            requests: self.own.map_or(0, |masks| masks.requests),
            responses: self.peer.map_or(0, |masks| masks.responses),
        }
    }

    /// Whether packets without the key do not pass any more.
    #[inline]
    pub(super) fn requires_key(&self) -> bool {
        self.requires_key
    }

    /// The first packet passed with the key.
    #[cold]
    pub(super) fn note_keyed(&mut self) {
        self.sends_keyed = true;
        self.requires_key = true;
    }

    /// The peer has the key.
    pub(super) fn note_offer(&mut self) {
        self.sends_keyed |= self.has_key();
    }
}

/// Whether a packet says that its sender has the key.
pub(super) fn offers_key(packet: &[u8]) -> bool {
    packet.get(RESERVED_BYTE).is_some_and(|byte| byte & OFFER != 0)
}

/// How the check field of packets that leave is made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Departing {
    /// The ICRC.
    Icrc,
    /// The ICRC, and the bit that says that the key is there.
    Offer,
    /// The ICRC for identification 0, under a mask.
    Masked { requests: u32, responses: u32 },
}

impl Departing {
    /// Whether the check field shows what only the two ends may know.
    pub(super) fn is_keyed(self) -> bool {
        matches!(self, Self::Masked { .. })
    }

    /// Completes a packet before its check field is computed.
    #[inline]
    pub(super) fn prepare(self, packet: &mut [u8]) {
        if self == Self::Offer {
            packet[RESERVED_BYTE] |= OFFER;
        }
    }

    /// The identification that the ICRC of the packet at this index of a send covers.
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
