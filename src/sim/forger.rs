//! Packets that the receiver must reject: forgeries, and responses that violate the protocol.

use std::net::IpAddr;

use super::Random;
use super::network::Flight;
use crate::transport::Medium;
use crate::types::Qpn;
use crate::wire::{BTH_BYTES, Flow, Opcode, Packet, icrc, packet_bytes};

const PSN_BYTES: std::ops::Range<usize> = 9..12;
const QPN_BYTES: std::ops::Range<usize> = 5..8;
const PKEY_BYTES: std::ops::Range<usize> = 2..4;

/// Forges a packet from one that has arrived: a PSN 0 to 2 later, another payload, a valid ICRC, and one wrong field
/// that the receiver must notice.
pub(super) fn forge(real: &Flight, destination: IpAddr, pins_ports: bool, random: &mut Random) -> Option<Flight> {
    let packet = Packet::parse(&real.bytes).ok()?;
    let bth = packet.headers.bth;
    let mut forged = Flight { segment_index: 0, medium: Medium::Network, is_forged: true, ..real.clone() };
    let header_bytes = packet.headers.length();
    let later = bth.psn.plus(random.below(3) as u32);
    forged.bytes[PSN_BYTES].copy_from_slice(&later.value().to_be_bytes()[1..]);
    let end = header_bytes + packet.payload.len();
    forged.bytes[header_bytes..end].iter_mut().for_each(|byte| *byte ^= 0x5a);
    match random.below(if pins_ports { 4 } else { 3 }) {
        0 => forged.source = unused_address(real.source),
        1 => {
            let other = Qpn::new(bth.destination.value() ^ (1 << random.below(24)));
            forged.bytes[QPN_BYTES].copy_from_slice(&other.value().to_be_bytes()[1..]);
        }
        2 => forged.bytes[PKEY_BYTES].copy_from_slice(&[0x12, 0x34]),
        _ => forged.source_port ^= 1,
    }
    append_icrc(&mut forged, destination);
    Some(forged)
}

/// Makes the last packet of a READ response four bytes too short. False if the packet is none, or has less than 8 bytes
/// of payload.
pub(super) fn shorten_answer(flight: &mut Flight, destination: IpAddr) -> bool {
    let Ok(packet) = Packet::parse(&flight.bytes) else { return false };
    let opcode = packet.headers.bth.opcode;
    let is_last = matches!(opcode, Opcode::RC_READ_RESPONSE_ONLY | Opcode::RC_READ_RESPONSE_LAST);
    let payload = packet.payload.len();
    if !is_last || payload < 8 {
        return false;
    }
    flight.bytes.truncate(packet_bytes(opcode, payload as u32 - 4));
    flight.segment_index = 0;
    append_icrc(flight, destination);
    true
}

/// Appends the valid ICRC of a packet between these addresses.
fn append_icrc(flight: &mut Flight, destination: IpAddr) {
    debug_assert!(flight.bytes.len() > BTH_BYTES);
    let flow = Flow { source: flight.source, destination, source_port: flight.source_port };
    icrc::append(&flow, 0, &mut flight.bytes);
}

/// Returns an address that no host has.
fn unused_address(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => IpAddr::from([203, 0, 113, 7]),
        IpAddr::V6(_) => IpAddr::from([0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 7]),
    }
}
