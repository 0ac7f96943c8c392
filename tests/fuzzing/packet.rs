//! Any datagram: parsing, printing and verifying never panic, and a packet's own bytes parse to the same packet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rdma_verbs::wire::icrc::{self, Match, Verify};
use rdma_verbs::wire::{Flow, Packet, packet_bytes};

fn flow(ipv6: bool) -> Flow {
    let address: IpAddr = if ipv6 { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
    Flow { source: address, destination: address, source_port: 0xc000 }
}

/// Runs the target.
pub(crate) fn run(datagram: &[u8]) {
    for ipv6 in [false, true] {
        let options = Verify { first_identification: 3, solve: true, expected_df: true };
        let _match = icrc::verify(&flow(ipv6), &options, datagram);
    }
    let Ok(packet) = Packet::parse(datagram) else { return };
    let _line = packet.to_string();
    let padded = packet.payload.len() + usize::from(packet.headers.bth.pad_count);
    let mut emitted = vec![0; datagram.len()];
    let header_bytes = packet.headers.emit(&mut emitted);
    assert_eq!(header_bytes + padded + 4, datagram.len());
    emitted[header_bytes..header_bytes + packet.payload.len()].copy_from_slice(packet.payload);
    assert_eq!(Packet::parse(&emitted), Ok(packet));
    assert!(packet_bytes(packet.headers.bth.opcode, packet.payload.len() as u32) <= datagram.len());

    icrc::append(&flow(false), 7, &mut emitted);
    let exact = Verify { first_identification: 7, solve: false, expected_df: true };
    assert_eq!(icrc::verify(&flow(false), &exact, &emitted), Match::Exact { identification: 7 });
}
