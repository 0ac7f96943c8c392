//! Acceptance of packets: the checks that a packet belongs to the connection, and the facts about the peer that
//! accepted packets show.
//!
//! A packet that passes the checks may still be forged: anyone who knows the addresses and the queue pair number can
//! send a packet with any sequence number. The endpoint therefore learns only from accepted packets: a request when it
//! was executed in order, a response when it belongs to a packet in flight, a packet of an unreliable connection when
//! it lies close ahead.

use super::QueuePair;
use crate::transport::datagram::{CheckField, Datagram, Medium};
use crate::transport::packet_check::{LARGEST_SEGMENT_INDEX, offers_key};
use crate::transport::path::{Acquaintance, Evidence, HiddenFields, MOST_DOUBTS};
use crate::types::{DropReason, Psn, QueuePairState};
use crate::wire::icrc::Match;
use crate::wire::{Bth, Opcode};

/// How far ahead a packet of an unreliable connection is plausible: as many packets as a burst of losses may have.
const PLAUSIBLE_LOSS: i32 = 1 << 10;
impl QueuePair {
    /// Checks the ICRC. It covers the IPv4 identification (IBTA A17.3.3), which the socket does not report: native
    /// peers send small ones; those of standard peers are solved for unless they are known.
    #[inline]
    pub(in crate::transport) fn check_icrc(&mut self, datagram: &Datagram<'_>) -> Result<Evidence, DropReason> {
        if let Medium::SharedMemory { is_keyed } = datagram.medium {
            return self.check_local(datagram, is_keyed);
        }
        match self.check_packet_key(datagram) {
            Some(verdict) => verdict.map(|()| Evidence { source_port: datagram.source_port, ..Evidence::default() }),
            None => self.check_unkeyed(datagram),
        }
    }

    /// Checks a packet that came through shared memory, which needs no check field. The rules of the key apply
    /// nevertheless, so that both ends are in the same state when packets go through sockets again.
    #[inline(never)]
    fn check_local(&mut self, datagram: &Datagram<'_>, is_keyed: bool) -> Result<Evidence, DropReason> {
        let Some(path) = &mut self.common.path else { return Err(DropReason::WrongState) };
        let source_port = datagram.source_port;
        if is_keyed && !self.packet_check.has_key() {
            return Err(DropReason::BadIcrc);
        }
        if is_keyed != self.packet_check.requires_key() {
            if !is_keyed {
                return Err(DropReason::Unkeyed);
            }
            self.packet_check.note_keyed();
            path.acquaintance = Acquaintance::Mutual;
            self.responder.forget_early();
        }
        let offers_key = !is_keyed && offers_key(datagram.payload);
        Ok(Evidence { source_port, offers_key, ..Evidence::default() })
    }

    fn check_unkeyed(&mut self, datagram: &Datagram<'_>) -> Result<Evidence, DropReason> {
        let (expected, source_port) = (datagram.segment_index, datagram.source_port);
        let Some(path) = &mut self.common.path else { return Err(DropReason::WrongState) };
        let usual = Evidence { source_port, offers_key: offers_key(datagram.payload), ..Evidence::default() };
        let (verified, as_linux) = match path.arriving_seed(datagram).identification_of(expected, datagram.payload) {
            Some(identification) if identification == expected => return Ok(usual),
            // A segment that arrived alone, or a standard peer's packet.
            Some(identification) if path.hidden_fields.dont_fragment() != Some(false) => {
                (Match::Solved { identification, dont_fragment: true }, false)
            }
            _ => path.verify(datagram),
        };
        match verified {
            Match::Exact { .. } => Ok(Evidence { as_linux, ..usual }),
            Match::Solved { identification, dont_fragment } if path.peer.is_native() => {
                let is_segment = dont_fragment && identification < LARGEST_SEGMENT_INDEX;
                if is_segment { Ok(usual) } else { Err(DropReason::BadIcrc) }
            }
            Match::Solved { identification: 0, dont_fragment: true } => Ok(Evidence { as_linux, ..usual }),
            Match::Solved { dont_fragment, .. } => {
                self.check_unusual(datagram, Evidence { dont_fragment: Some(dont_fragment), as_linux, ..usual })
            }
            Match::Wrong => Err(DropReason::BadIcrc),
        }
    }

    /// Checks a standard peer's packet with an unusual identification, which may be a damaged packet.
    fn check_unusual(&mut self, datagram: &Datagram<'_>, evidence: Evidence) -> Result<Evidence, DropReason> {
        let is_plausible = self.may_be_due(datagram.payload);
        let Some(path) = &mut self.common.path else { return Err(DropReason::WrongState) };
        match &mut path.hidden_fields {
            HiddenFields::Unknown => Ok(evidence),
            HiddenFields::Changing { dont_fragment, .. } if evidence.dont_fragment == Some(*dont_fragment) => {
                Ok(evidence)
            }
            // Its fields are learned if it is executed.
            HiddenFields::Usual { doubts } if is_plausible && *doubts == MOST_DOUBTS => Ok(evidence),
            HiddenFields::Usual { doubts } if is_plausible => {
                *doubts += 1;
                Err(DropReason::BadIcrc)
            }
            _ => Err(DropReason::BadIcrc),
        }
    }

    /// Checks the partition key without its membership bit (IBTA 10.9.3; `rxe_recv.c`, `check_keys`), and the addresses
    /// (IBTA A17.4.4.2).
    #[inline]
    pub(in crate::transport) fn check_addressing(&self, datagram: &Datagram<'_>, bth: &Bth) -> Result<(), DropReason> {
        if bth.pkey & 0x7fff != 0x7fff {
            return Err(DropReason::BadPkey);
        }
        if !self.common.is_from_peer(datagram.source, datagram.destination) {
            return Err(DropReason::WrongAddress);
        }
        Ok(())
    }

    /// Checks the source port: a native peer keeps its port; a standard peer may use many (IBTA A17.3.2.1).
    pub(in crate::transport) fn check_source_port(&self, port: u16) -> Result<(), DropReason> {
        let Some(path) = &self.common.path else { return Err(DropReason::WrongState) };
        if path.peer.is_native() && path.peer_port.is_some_and(|pinned| pinned != port) {
            return Err(DropReason::WrongSourcePort);
        }
        Ok(())
    }

    /// Learns from an accepted packet, which the peer has sent.
    #[inline]
    pub(in crate::transport) fn learn(&mut self, evidence: Evidence) {
        let Some(path) = &mut self.common.path else { return };
        if path.peer.is_native() {
            if evidence.offers_key {
                self.packet_check.note_offer();
                path.acquaintance = Acquaintance::Mutual;
            }
            if path.acquaintance != Acquaintance::Discovered {
                path.peer_port.get_or_insert(evidence.source_port);
            }
        } else {
            path.flush_as_linux |= evidence.as_linux;
            path.hidden_fields.learn(evidence.dont_fragment);
        }
    }

    /// Whether a packet with this PSN is due: a request that is the expected one or closely follows it, or a response
    /// to a packet in flight.
    #[inline]
    pub(in crate::transport) fn is_due(&self, is_request: bool, psn: Psn) -> bool {
        match is_request {
            true => psn == self.responder.expected() || self.is_close_ahead(psn),
            false => self.is_in_flight(psn),
        }
    }

    #[cold]
    fn is_close_ahead(&self, psn: Psn) -> bool {
        let most = if self.common.service.is_reliable() { self.near() } else { PLAUSIBLE_LOSS };
        (0..most).contains(&psn.distance_from(self.responder.expected()))
    }

    /// Calls [`QueuePair::is_due`] for a packet not parsed yet.
    fn may_be_due(&self, udp_payload: &[u8]) -> bool {
        let Some([opcode, .., high, middle, low]) = udp_payload.first_chunk::<12>() else { return false };
        let psn = Psn::new(u32::from_be_bytes([0, *high, *middle, *low]));
        let opcode = Opcode(*opcode);
        // The PSN of a CNP has no meaning.
        opcode != Opcode::CNP && self.is_due(opcode.is_request(), psn)
    }

    /// Whether a packet with this PSN was sent and is not acknowledged.
    #[inline]
    pub(in crate::transport) fn is_in_flight(&self, psn: Psn) -> bool {
        psn.is_within(self.requester.unacknowledged(), self.requester.packets_in_flight())
    }

    /// Whether a packet with this PSN, which is not due, may still be the peer's: a repetition, or, after a failure, a
    /// response to a packet that was in flight before.
    #[cold]
    pub(in crate::transport) fn is_recent(&self, is_request: bool, psn: Psn) -> bool {
        let near = self.near();
        if is_request {
            return (-near..0).contains(&psn.distance_from(self.responder.expected()));
        }
        let ahead = if self.common.state == QueuePairState::Error { near } else { 0 };
        (-near..ahead).contains(&psn.distance_from(self.requester.unacknowledged()))
    }

    /// Returns the maximum distance of packets in flight: the reorder window.
    fn near(&self) -> i32 {
        self.common.path.as_ref().map_or(0, |path| path.reorder_window() as i32)
    }

    /// Checks a packet with the connection's key. Returns `None` if there is no key, or if the packet is not keyed and
    /// the peer may not have the key yet.
    #[inline]
    pub(in crate::transport) fn check_packet_key(&mut self, datagram: &Datagram<'_>) -> Option<Result<(), DropReason>> {
        let opcode = Opcode(*datagram.payload.first()?);
        let Some(mask) = self.packet_check.arriving(opcode) else {
            // A response, although this end has not started sending yet.
            return self.packet_check.requires_key().then_some(Err(DropReason::WrongState));
        };
        let path = self.common.path.as_mut()?;
        // A packet too short for a check field counts as wrong.
        let difference = path.icrc_difference(datagram).unwrap_or(!mask);
        if difference == mask {
            if !self.packet_check.requires_key() {
                self.packet_check.note_keyed();
                path.acquaintance = Acquaintance::Mutual;
                // The packets in the reorder buffer arrived without the key. The peer retransmits them.
                self.responder.forget_early();
            }
            return Some(Ok(()));
        }
        self.packet_check.requires_key().then(|| Err(path.reason_without_key(datagram, difference)))
    }

    /// Returns how a capture shows the check field of an arrived packet.
    #[inline]
    pub(in crate::transport) fn check_field(&self, dropped: Option<DropReason>) -> CheckField {
        match dropped {
            None if self.packet_check.requires_key() => CheckField::Keyed,
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
            _ if self.packet_check.requires_key() => CheckField::Keyed,
            _ => CheckField::Icrc,
        }
    }
}
