//! The ICRC of FLUSH as Linux's Soft-RoCE computes it.
//!
//! Its table of opcodes (`rxe_opcode.c`, seen in Linux 6.12) lacks the payload offset of FLUSH, so the payload appears
//! to begin at the base transport header. The ICRC therefore covers the transport headers twice: once as every ICRC
//! does, and once more unmasked, after themselves. Nothing else on the wire differs.

use super::{BTH_BYTES, Flow, ICRC_BYTES, Match, Verify, prefix, solve};
use crate::checksum;

/// Computes the ICRC of a FLUSH as Linux does: [`super::compute`] with the packet appended once more.
fn compute(flow: &Flow, identification: u16, dont_fragment: bool, packet: &[u8]) -> u32 {
    let (bth, rest) = packet.split_at(BTH_BYTES);
    let (bytes, length) = prefix(flow, identification, dont_fragment, packet.len(), bth);
    [&bytes[..length], rest, packet].into_iter().fold(0, checksum::update)
}

/// Writes Linux's ICRC into the last four bytes of a FLUSH whose IPv4 identification will be `identification`.
///
/// # Panics
/// If the packet is shorter than a base transport header and an ICRC.
pub fn append_as_linux(flow: &Flow, identification: u16, packet: &mut [u8]) {
    let covered = packet.len() - ICRC_BYTES;
    let value = compute(flow, identification, true, &packet[..covered]);
    packet[covered..].copy_from_slice(&value.to_le_bytes());
}

/// Checks the ICRC at the end of a FLUSH from Linux.
pub fn verify_as_linux(flow: &Flow, options: &Verify, udp_payload: &[u8]) -> Match {
    let Some((packet, received)) = udp_payload.split_last_chunk::<ICRC_BYTES>() else { return Match::Wrong };
    if packet.len() < BTH_BYTES {
        return Match::Wrong;
    }
    let received = u32::from_le_bytes(*received);
    let is_v4 = flow.source.is_ipv4() && flow.destination.is_ipv4();
    let first = if is_v4 { options.first_identification } else { 0 };
    if compute(flow, first, true, packet) == received {
        return Match::Exact { identification: first };
    }
    if !is_v4 || !options.solve {
        return Match::Wrong;
    }
    // From the identification to the end: as for other packets, and the packet once more.
    let covered = udp_payload.len() + 20 + packet.len();
    for dont_fragment in [options.expected_df, !options.expected_df] {
        let zero = compute(flow, 0, dont_fragment, packet);
        if let Some(identification) = solve(received ^ zero, covered) {
            return Match::Solved { identification, dont_fragment };
        }
    }
    Match::Wrong
}
