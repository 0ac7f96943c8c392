//! Which packets belong to the connection, and what they teach of the peer.
//!
//! A packet is checked first, and nothing is learned from it: anyone who knows the addresses and the queue pair number
//! can send one with any sequence number. It teaches only when it was accepted: a request when it was executed in its
//! turn, a response when it answers what is in flight, a packet of an unreliable connection when it lies close ahead.

use super::datagram::Datagram;
use super::packet_check::offers_key;
use super::path::Path;
use super::queue_pair::QueuePair;
use crate::mutation::{Mutation, planted};
use crate::types::{DropReason, Psn, QueuePairState};
use crate::wire::Opcode;
use crate::wire::icrc::{self, Match};

/// More segments than this never leave together.
pub(super) const LARGEST_SEGMENT_INDEX: u16 = 128;
/// Packets of an unreliable connection that lie at most this far ahead are plausible: as many as a burst may lose.
const PLAUSIBLE_LOSS: i32 = 1 << 10;
/// Plausible packets in a row with other hidden fields than the usual ones that are taken for damaged. A peer that
/// really changes its identification repeats them, and the next one is believed.
const MOST_DOUBTS: u8 = 3;
/// Executed packets in a row with the usual hidden fields until nothing else is expected.
const USUAL_IN_A_ROW: u8 = 16;

/// The IPv4 header fields of a standard peer that its ICRCs cover and that a socket does not show: identification and
/// "don't fragment". Where several values are allowed, the ICRC misses some bits that flip: 1 or 2 of those of a longer
/// packet. So they are narrowed down as far as the peer's packets permit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum HiddenFields {
    /// No packet was executed yet: any values.
    #[default]
    Unknown,
    /// The usual ones: identification 0 and "don't fragment". Plausible packets in a row that have others.
    Usual { doubts: u8 },
    /// Any identification. Executed packets in a row that had the usual fields nevertheless.
    Changing { dont_fragment: bool, usual: u8 },
}

impl HiddenFields {
    /// A packet was executed whose ICRC stands for these: `None` for the usual ones.
    fn learn(&mut self, dont_fragment: Option<bool>) {
        *self = match (dont_fragment, *self) {
            (None, Self::Changing { dont_fragment, usual }) if usual < USUAL_IN_A_ROW => {
                Self::Changing { dont_fragment, usual: usual + 1 }
            }
            (None, _) => Self::Usual { doubts: 0 },
            (Some(dont_fragment), _) => Self::Changing { dont_fragment, usual: 0 },
        };
    }

    /// The only value that "don't fragment" may have, if that is known.
    fn dont_fragment(self) -> Option<bool> {
        match self {
            Self::Changing { dont_fragment, .. } => Some(dont_fragment),
            Self::Usual { .. } | Self::Unknown => None,
        }
    }
}

/// A packet whose ICRC fits says this of the peer. It is learned when the packet was accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Evidence {
    /// It came from this port.
    pub(super) source_port: u16,
    /// The packet had another identification than the usual one, and this "don't fragment".
    dont_fragment: Option<bool>,
    /// It is a FLUSH with the ICRC that Linux gives to it.
    as_linux: bool,
    /// Its sender has the key of the connection.
    offers_key: bool,
}

impl Path {
    /// The ICRC of a packet whose identification is not the expected one.
    fn verify(&mut self, datagram: &Datagram<'_>) -> (Match, bool) {
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

impl QueuePair {
    /// The invariant CRC covers the IPv4 identification, which the socket does not show: our own peers send small
    /// ones, standard peers' are solved for unless they are known.
    pub(super) fn check_icrc(&mut self, datagram: &Datagram<'_>) -> Result<Evidence, DropReason> {
        let (expected, source_port) = (datagram.segment_index, datagram.source_port);
        if let Some(verdict) = self.check_packet_key(datagram) {
            return verdict.map(|()| Evidence { source_port, ..Evidence::default() });
        }
        let Some(path) = &mut self.common.path else { return Err(DropReason::WrongState) };
        let usual = Evidence { source_port, offers_key: offers_key(datagram.payload), ..Evidence::default() };
        let (verified, as_linux) = match path.arriving_seed(datagram).identification_of(expected, datagram.payload) {
            Some(identification) if identification == expected => return Ok(usual),
            // A segment that came by itself, or a standard peer's packet.
            Some(identification) if path.hidden_fields.dont_fragment() != Some(false) => {
                (Match::Solved { identification, dont_fragment: true }, false)
            }
            _ => path.verify(datagram),
        };
        match verified {
            Match::Exact { .. } => Ok(Evidence { as_linux, ..usual }),
            Match::Solved { identification, dont_fragment } if path.peer.is_ours() => {
                let is_segment = dont_fragment && identification < LARGEST_SEGMENT_INDEX;
                if is_segment { Ok(usual) } else { Err(DropReason::BadIcrc) }
            }
            Match::Solved { identification: 0, dont_fragment: true } => Ok(Evidence { as_linux, ..usual }),
            Match::Solved { dont_fragment, .. } => {
                self.check_unusual(datagram, Evidence { dont_fragment: Some(dont_fragment), as_linux, ..usual })
            }
            Match::Wrong if planted(Mutation::IcrcUnchecked) => Ok(usual),
            Match::Wrong => Err(DropReason::BadIcrc),
        }
    }

    /// A standard peer's packet with another identification than the usual one, or damaged.
    fn check_unusual(&mut self, datagram: &Datagram<'_>, evidence: Evidence) -> Result<Evidence, DropReason> {
        let is_plausible = self.may_be_due(datagram.payload);
        let Some(path) = &mut self.common.path else { return Err(DropReason::WrongState) };
        match &mut path.hidden_fields {
            HiddenFields::Unknown => Ok(evidence),
            HiddenFields::Changing { dont_fragment, .. } if evidence.dont_fragment == Some(*dont_fragment) => {
                Ok(evidence)
            }
            // If it is executed, that is learned.
            HiddenFields::Usual { doubts } if is_plausible && *doubts == MOST_DOUBTS => Ok(evidence),
            HiddenFields::Usual { doubts } if is_plausible => {
                *doubts += 1;
                Err(DropReason::BadIcrc)
            }
            _ => Err(DropReason::BadIcrc),
        }
    }

    /// A peer of our own keeps its port; a standard peer may use many.
    pub(super) fn check_source_port(&self, port: u16) -> Result<(), DropReason> {
        let Some(path) = &self.common.path else { return Err(DropReason::WrongState) };
        let is_pinned = path.peer.is_ours() && !planted(Mutation::SourcePortUnchecked);
        if is_pinned && path.peer_port.is_some_and(|pinned| pinned != port) {
            return Err(DropReason::WrongSourcePort);
        }
        Ok(())
    }

    /// The packet was accepted, so it is the peer's.
    #[inline]
    pub(super) fn learn(&mut self, evidence: Evidence) {
        let Some(path) = &mut self.common.path else { return };
        if path.peer.is_ours() {
            path.peer_port.get_or_insert(evidence.source_port);
            if evidence.offers_key {
                self.packet_check.note_offer();
            }
        } else {
            path.flush_as_linux |= evidence.as_linux;
            path.hidden_fields.learn(evidence.dont_fragment);
        }
    }

    /// Whether a packet of this number may be the peer's next one, or closely follow it. Of responses: whether it
    /// answers what is in flight.
    #[inline]
    pub(super) fn is_due(&self, is_request: bool, psn: Psn) -> bool {
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

    /// The same of a packet that was not parsed yet.
    fn may_be_due(&self, udp_payload: &[u8]) -> bool {
        let Some([opcode, .., high, middle, low]) = udp_payload.first_chunk::<12>() else { return false };
        let psn = Psn::new(u32::from_be_bytes([0, *high, *middle, *low]));
        self.is_due(Opcode(*opcode).is_request(), psn)
    }

    /// Whether the number was sent and is not acknowledged.
    #[inline]
    pub(super) fn is_in_flight(&self, psn: Psn) -> bool {
        psn.is_within(self.requester.unacknowledged(), self.requester.packets_in_flight())
    }

    /// Whether a packet of this number, which is not due, may be of the peer all the same: a repetition, or, after a
    /// failure, a response to what was in flight before.
    #[cold]
    pub(super) fn is_recent(&self, is_request: bool, psn: Psn) -> bool {
        let near = self.near();
        if is_request {
            return (-near..0).contains(&psn.distance_from(self.responder.expected()));
        }
        let ahead = if self.common.state == QueuePairState::Error { near } else { 0 };
        (-near..ahead).contains(&psn.distance_from(self.requester.unacknowledged()))
    }

    /// Packets that are in flight together at most.
    fn near(&self) -> i32 {
        self.common.path.as_ref().map_or(0, |path| path.reorder_window() as i32)
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
