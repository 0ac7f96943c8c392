//! The invariant CRC: CRC-32 over the packet without the fields that routers may change (IBTA A17.3.3; `rxe_icrc.c`).
//!
//! It covers the IPv4 identification, which a UDP socket does not report. Because a CRC is linear, the identification
//! can be solved for: the difference between the received CRC and the one for identification 0 must be one that 16 bits
//! at that offset can cause. 1 in 65,536 wrong packets passes as well, and twice as many if both values of "don't
//! fragment" are tried.

use std::net::IpAddr;

use once_cell::race::OnceBox;

pub use flush::{append_as_linux, verify_as_linux};
pub use seed::Seed;

use super::packet::ICRC_BYTES;
use crate::checksum;
use crate::types::ROCE_PORT;

/// Addresses of a datagram that the ICRC covers. The destination port is always 4791 (IBTA A17.3.2.2;
/// `ROCE_V2_UDP_DPORT`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flow {
    /// Sender.
    pub source: IpAddr,
    /// Receiver.
    pub destination: IpAddr,
    /// Sender's UDP port.
    pub source_port: u16,
}

/// How an ICRC is verified.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Verify {
    /// The identification that is tried first, by an exact comparison.
    pub first_identification: u16,
    /// Whether to solve for the identification if the first one does not fit (IPv4 only).
    pub solve: bool,
    /// Whether the sender is expected to set "don't fragment" (IBTA A17.3.1.1.5); the other value is tried second.
    pub expected_df: bool,
}

/// The result of verifying an ICRC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Match {
    /// It fits exactly.
    Exact {
        /// The identification.
        identification: u16,
    },
    /// It fits with an identification that was solved for.
    Solved {
        /// The identification.
        identification: u16,
        /// Whether "don't fragment" is set.
        dont_fragment: bool,
    },
    /// It does not fit.
    Wrong,
}

const BTH_BYTES: usize = 12;
/// 8 bytes in place of the link header, an IPv6 and a UDP header, and the base transport header.
const LARGEST_PREFIX: usize = 8 + 40 + 8 + BTH_BYTES;

/// The masked headers, up to and including the base transport header (IBTA A17.3.3; `rxe_icrc_hdr`): ones in place of
/// the link header, traffic class, time to live, flow label, both checksums, and byte 4 of the base transport header.
fn prefix(
    flow: &Flow,
    identification: u16,
    dont_fragment: bool,
    packet_bytes: usize,
    bth: &[u8],
) -> ([u8; LARGEST_PREFIX], usize) {
    let mut bytes = [0xff; LARGEST_PREFIX];
    // The lengths of a packet that is too long for a datagram wrap, which does not matter: no peer can send it.
    let udp_bytes = packet_bytes.wrapping_add(8 + ICRC_BYTES) as u16;
    let mut length = 8;
    match (flow.source, flow.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let ip = &mut bytes[8..28];
            ip[0] = 0x45;
            ip[2..4].copy_from_slice(&udp_bytes.wrapping_add(20).to_be_bytes());
            ip[4..6].copy_from_slice(&identification.to_be_bytes());
            ip[6..8].copy_from_slice(&(u16::from(dont_fragment) << 14).to_be_bytes());
            ip[9] = 17;
            ip[12..16].copy_from_slice(&source.octets());
            ip[16..20].copy_from_slice(&destination.octets());
            length += 20;
        }
        (source, destination) => {
            let ip = &mut bytes[8..48];
            ip[0] = 0x6f;
            ip[4..6].copy_from_slice(&udp_bytes.to_be_bytes());
            ip[6] = 17;
            ip[8..24].copy_from_slice(&to_v6(source));
            ip[24..40].copy_from_slice(&to_v6(destination));
            length += 40;
        }
    }
    let udp = &mut bytes[length..length + 8];
    udp[0..2].copy_from_slice(&flow.source_port.to_be_bytes());
    udp[2..4].copy_from_slice(&ROCE_PORT.to_be_bytes());
    udp[4..6].copy_from_slice(&udp_bytes.to_be_bytes());
    length += 8;
    bytes[length..length + BTH_BYTES].copy_from_slice(bth);
    bytes[length + 4] = 0xff;
    (bytes, length + BTH_BYTES)
}

fn to_v6(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Computes the ICRC of a packet (IBTA 7.8.1), given from its base transport header to the end of its padding. On the
/// wire the least significant byte comes first (`rxe_icrc_generate`).
///
/// # Panics
/// If the packet is shorter than a base transport header.
pub fn compute(flow: &Flow, identification: u16, dont_fragment: bool, packet: &[u8]) -> u32 {
    let (bth, rest) = packet.split_at(BTH_BYTES);
    let (bytes, length) = prefix(flow, identification, dont_fragment, packet.len(), bth);
    checksum::update(checksum::update(0, &bytes[..length]), rest)
}

/// Writes the ICRC into the last four bytes of a packet whose IPv4 identification will be `identification`. Linux sends
/// 0 from an unconnected UDP socket that sets "don't fragment" (`ip_select_ident_segs`), and counts the segments of one
/// send from 0 (`inet_gso_segment`).
///
/// # Panics
/// If the packet is shorter than a base transport header and an ICRC.
pub fn append(flow: &Flow, identification: u16, packet: &mut [u8]) {
    let covered = packet.len() - ICRC_BYTES;
    let value = compute(flow, identification, true, &packet[..covered]);
    packet[covered..].copy_from_slice(&value.to_le_bytes());
}

/// Checks the ICRC at the end of a datagram's payload.
pub fn verify(flow: &Flow, options: &Verify, udp_payload: &[u8]) -> Match {
    if udp_payload.len() < BTH_BYTES + ICRC_BYTES {
        return Match::Wrong;
    }
    let Some((packet, received)) = udp_payload.split_last_chunk::<ICRC_BYTES>() else { return Match::Wrong };
    let received = u32::from_le_bytes(*received);
    let is_v4 = flow.source.is_ipv4() && flow.destination.is_ipv4();
    let first = if is_v4 { options.first_identification } else { 0 };
    let exact = compute(flow, first, true, packet);
    if exact == received {
        return Match::Exact { identification: first };
    }
    if !is_v4 || !options.solve {
        return Match::Wrong;
    }
    // The bytes from the identification to the end: everything after the first four of the IP header.
    let covered = udp_payload.len() + 20;
    for dont_fragment in [options.expected_df, !options.expected_df] {
        let zero = compute(flow, 0, dont_fragment, packet);
        if let Some(identification) = solve(received ^ zero, covered) {
            return Match::Solved { identification, dont_fragment };
        }
    }
    Match::Wrong
}

/// Solves for the identification that explains the difference between two ICRCs, `covered` bytes before the end.
fn solve(difference: u32, covered: usize) -> Option<u16> {
    let register = multiply(difference, backward(covered));
    (register >> 16 == 0).then(|| (register as u16).swap_bytes())
}

/// The reflected polynomial of CRC-32 (IEEE 802.3).
const POLYNOMIAL: u32 = 0xedb8_8320;
/// x^-8 modulo the polynomial: moves a register back by one zero byte.
const BACK_ONE_BYTE: u32 = 0x6567_cb95;
/// x^0.
const ONE: u32 = 0x8000_0000;
/// Payload 4096, headers, ICRC, and the 20 bytes before: nothing longer is a RoCE packet.
const LARGEST_COVERED: usize = 4_096 + 12 + 32 + 4 + 20;

/// Product of two registers modulo the polynomial, in reflected notation (bit 31 is x^0).
const fn multiply(mut one: u32, mut other: u32) -> u32 {
    let mut product = 0;
    while other != 0 {
        if other & 0x8000_0000 != 0 {
            product ^= one;
        }
        other <<= 1;
        one = if one & 1 != 0 { one >> 1 ^ POLYNOMIAL } else { one >> 1 };
    }
    product
}

/// x^(-8 × bytes) modulo the polynomial.
fn backward(bytes: usize) -> u32 {
    // Not a lock, for the reason given in `seed`.
    static TABLE: OnceBox<Box<[u32]>> = OnceBox::new();
    let table = TABLE.get_or_init(|| Box::new((0..=LARGEST_COVERED / 4).map(backward_words).collect()));
    // A packet's length is a multiple of four, and so is the rest.
    table.get(bytes / 4).copied().unwrap_or_else(|| backward_words(bytes / 4))
}

/// x^(-32 × words) modulo the polynomial, by squaring: a peer may send a packet that is longer than any valid one.
fn backward_words(mut words: usize) -> u32 {
    let mut square = multiply(multiply(BACK_ONE_BYTE, BACK_ONE_BYTE), multiply(BACK_ONE_BYTE, BACK_ONE_BYTE));
    let mut power = ONE;
    while words > 0 {
        if words & 1 != 0 {
            power = multiply(power, square);
        }
        square = multiply(square, square);
        words >>= 1;
    }
    power
}

mod flush;
mod seed;
#[cfg(test)]
mod tests;
