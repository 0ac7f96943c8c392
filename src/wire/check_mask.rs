//! The check field of native peers: the ICRC, XOR a mask that only the two ends of the connection can compute.
//!
//! The standard's ICRC is a checksum that anyone can compute; a packet is authenticated only by its numbers. XORing a
//! constant to a CRC preserves its error detection, because the CRC of an error pattern does not depend on it. To a
//! sender that does not know the mask, each of the 2^32 values of the field is equally likely to be right.
//!
//! The mask is constant for a sequence of PSNs and a direction, so a sender on the path can compute it from one packet.
//! It protects against senders that do not see the traffic.

use std::hash::Hasher;

use siphasher::sip::SipHasher24;

use crate::types::{KeyShare, PeerKey, Psn, Qpn};

/// Prefix of each hashed message, so that no other use of a share yields the same value.
const LABEL: [u8; 8] = *b"RDMVchk1";

/// A sequence of PSNs: the requests of one queue pair and the responses to them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PsnSequence {
    /// The queue pair that sends the requests.
    pub requester: Qpn,
    /// The queue pair that responds.
    pub responder: Qpn,
    /// PSN of the first request.
    pub first: Psn,
    /// Whether this end is the requester.
    pub is_local: bool,
}

/// The masks of the two kinds of packets that carry the PSNs of a sequence.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CheckMasks {
    /// For requests.
    pub requests: u32,
    /// For responses.
    pub responses: u32,
}

impl CheckMasks {
    /// Computes the masks of a sequence of PSNs. Both ends compute the same ones.
    pub fn new(key: &PeerKey, sequence: &PsnSequence) -> Self {
        let (requester, responder) = if sequence.is_local { (key.local, key.remote) } else { (key.remote, key.local) };
        // Each end's share yields a mask of its own: together they are unpredictable as long as one of them is, even if
        // both ends belong to one process and have the same share.
        let mask = |kind: u8| half_mask(requester, sequence, kind) ^ half_mask(responder, sequence, kind | 0x80);
        Self { requests: mask(0), responses: mask(1) }
    }
}

impl std::fmt::Debug for CheckMasks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CheckMasks(hidden)")
    }
}

/// The contribution of one share: SipHash-2-4, a keyed pseudorandom function, of everything that distinguishes
/// sequences.
fn half_mask(share: KeyShare, sequence: &PsnSequence, kind: u8) -> u32 {
    let mut hasher = SipHasher24::new_with_key(&share.to_bytes());
    let mut message = [0; 21];
    message[..8].copy_from_slice(&LABEL);
    message[8..12].copy_from_slice(&sequence.requester.value().to_be_bytes());
    message[12..16].copy_from_slice(&sequence.responder.value().to_be_bytes());
    message[16..20].copy_from_slice(&sequence.first.value().to_be_bytes());
    message[20] = kind;
    hasher.write(&message);
    hasher.finish() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEQUENCE: PsnSequence = PsnSequence {
        requester: Qpn::new(0x12_3456),
        responder: Qpn::new(0x00_0011),
        first: Psn::new(0xab_cdef),
        is_local: true,
    };

    fn key(local: u8, remote: u8) -> PeerKey {
        PeerKey { local: KeyShare::new([local; 16]), remote: KeyShare::new([remote; 16]), is_agreed: true }
    }

    #[test]
    fn both_ends_have_the_same_masks() {
        let here = CheckMasks::new(&key(1, 2), &SEQUENCE);
        let there = CheckMasks::new(&key(2, 1), &PsnSequence { is_local: false, ..SEQUENCE });
        assert_eq!(here, there);
    }

    /// Other versions rely on the format: these values must never change.
    #[test]
    fn masks_of_version_1() {
        let masks = CheckMasks::new(&key(1, 2), &SEQUENCE);
        assert_eq!((masks.requests, masks.responses), (0x77bc_7b4c, 0x348f_5a49));
    }

    #[test]
    fn each_input_changes_the_mask() {
        let mut masks = Vec::new();
        let mut add = |key: &PeerKey, sequence: PsnSequence| {
            let new = CheckMasks::new(key, &sequence);
            masks.extend([new.requests, new.responses]);
        };
        add(&key(1, 2), SEQUENCE);
        add(&key(2, 1), SEQUENCE);
        add(&key(1, 3), SEQUENCE);
        add(&key(7, 2), SEQUENCE);
        // Both ends in one process.
        add(&key(4, 4), SEQUENCE);
        add(&key(1, 2), PsnSequence { requester: Qpn::new(0x12_3457), ..SEQUENCE });
        add(&key(1, 2), PsnSequence { responder: Qpn::new(0x00_0012), ..SEQUENCE });
        add(&key(1, 2), PsnSequence { first: Psn::new(0xab_cdf0), ..SEQUENCE });
        add(&key(4, 4), PsnSequence { requester: SEQUENCE.responder, responder: SEQUENCE.requester, ..SEQUENCE });
        let count = masks.len();
        masks.push(0);
        masks.sort_unstable();
        masks.dedup();
        assert_eq!(masks.len(), count + 1, "two are the same, or one is 0");
    }
}
