//! The check field of a connection's packets: the standard's ICRC, or between native peers that share a key the ICRC
//! under a mask ([`crate::wire::CheckMasks`]).
//!
//! Peers that agreed on the key when they connected use it from the first packet on. Peers that each found the other's
//! share by themselves do not know whether the other one found theirs. They begin with the ICRC and an *offer*, a
//! reserved bit of the base transport header. An end that has the key and receives an offer sends with the key from
//! then on. An end that receives a packet with the key accepts only such packets. A connection switches once and never
//! back.

use super::acceptance::LARGEST_SEGMENT_INDEX;
use super::datagram::{CheckField, Datagram};
use super::path::Path;
use super::queue_pair::QueuePair;
use crate::types::{DropReason, PeerKey, Psn, Qpn};
use crate::wire::icrc::Seed;
use crate::wire::{BTH_BYTES, CheckMasks, ICRC_BYTES, Opcode, PsnSequence};

/// Byte 8 of the base transport header, behind the request for an acknowledgement: seven bits that the standard
/// reserves, covers by the ICRC, and has receivers ignore.
const RESERVED_BYTE: usize = 8;
/// The sender has the connection's key.
const OFFER: u8 = 1;

/// What one queue pair knows of its connection's key.
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
    fn arriving(&self, opcode: Opcode) -> Option<u32> {
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

    /// The first packet passed with the key.
    #[cold]
    fn note_keyed(&mut self) {
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

    /// The identification that the ICRC of the packet at this index of a burst covers.
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

impl QueuePair {
    /// The verdict of the connection's key on a packet. `None`: there is no key, or the peer may not have it yet, and
    /// the packet is not keyed.
    #[inline]
    pub(super) fn check_packet_key(&mut self, datagram: &Datagram<'_>) -> Option<Result<(), DropReason>> {
        let opcode = Opcode(*datagram.payload.first()?);
        let Some(mask) = self.packet_check.arriving(opcode) else {
            // A response before the first request.
            return self.packet_check.requires_key.then_some(Err(DropReason::WrongState));
        };
        let path = self.common.path.as_mut()?;
        // Too short to have a check field: as wrong as any other.
        let difference = path.icrc_difference(datagram).unwrap_or(!mask);
        if difference == mask {
            if !self.packet_check.requires_key {
                self.packet_check.note_keyed();
                // The packets that are kept came without the key. The peer sends them again.
                self.responder.forget_early();
            }
            return Some(Ok(()));
        }
        self.packet_check.requires_key.then(|| Err(path.reason_without_key(datagram, difference)))
    }

    /// What the check field of a packet that arrived shows in a capture.
    #[inline]
    pub(super) fn check_field(&self, dropped: Option<DropReason>) -> CheckField {
        match dropped {
            None if self.packet_check.requires_key => CheckField::Keyed,
            None => CheckField::Icrc,
            Some(reason) => self.check_field_of_dropped(reason),
        }
    }

    #[cold]
    fn check_field_of_dropped(&self, reason: DropReason) -> CheckField {
        use DropReason::{BadIcrc, BadPkey, WrongAddress, WrongService, WrongSourcePort, WrongState};
        match reason {
            _ if !self.packet_check.has_key() => CheckField::Icrc,
            DropReason::Unkeyed => CheckField::Icrc,
            BadIcrc | BadPkey | WrongAddress | WrongService | WrongSourcePort | WrongState => CheckField::Withheld,
            _ if self.packet_check.requires_key => CheckField::Keyed,
            _ => CheckField::Icrc,
        }
    }
}

impl Path {
    /// What the check field of a packet and its ICRC differ by, with identification 0 and "don't fragment" as all keyed
    /// packets have it: these two are no part of what keyed peers check.
    #[inline]
    fn icrc_difference(&mut self, datagram: &Datagram<'_>) -> Option<u32> {
        self.arriving_seed(datagram).difference(|| datagram.flow(), datagram.payload)
    }

    /// Why a packet that is not keyed does not pass: it has the ICRC of a native peer without the key, or a wrong one.
    #[cold]
    fn reason_without_key(&self, datagram: &Datagram<'_>, difference: u32) -> DropReason {
        let is_plain = match difference {
            0 => true,
            _ => Seed::identification_behind(difference, datagram.payload.len())
                .is_some_and(|identification| datagram.source.is_ipv4() && identification < LARGEST_SEGMENT_INDEX),
        };
        let is_long_enough = datagram.payload.len() >= BTH_BYTES + ICRC_BYTES;
        if is_plain && is_long_enough { DropReason::Unkeyed } else { DropReason::BadIcrc }
    }
}
