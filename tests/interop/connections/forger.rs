//! Datagrams of our own making to the kernel's queue pair 1, which no connection manager here sends.

use std::net::{IpAddr, SocketAddr};

use rdma_verbs::types::{Qkey, Qpn, ROCE_PORT};
use rdma_verbs::wire::mad::Message;
use rdma_verbs::wire::{Bth, Deth, Flow, Headers, ICRC_BYTES, Opcode, icrc};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::home::{Error, Outcome, ensure};

const MANAGEMENT_QPN: Qpn = Qpn::new(1);
const MANAGEMENT_QKEY: Qkey = Qkey(0x8001_0000);
const SOURCE_PORT: u16 = 51_111;
/// Sockets of this protocol send IPv4 packets with the header that they are given, which the ICRC covers.
const IPPROTO_RAW: i32 = 255;

/// Sends them. The responses go to UDP port 4791, and thus to our device, which does not know the connections.
pub(crate) struct Forger {
    socket: Socket,
    flow: Flow,
}

impl Forger {
    pub(crate) fn new(local: IpAddr, remote: IpAddr) -> Result<Self, Error> {
        let socket = match local {
            IpAddr::V4(_) => Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(IPPROTO_RAW)))?,
            IpAddr::V6(_) => Socket::new(Domain::IPV6, Type::DGRAM, None)?,
        };
        if local.is_ipv6() {
            socket.bind(&SocketAddr::new(local, SOURCE_PORT).into())?;
        }
        Ok(Self { socket, flow: Flow { source: local, destination: remote, source_port: SOURCE_PORT } })
    }

    /// Sends a message: always 256 bytes, because a longer one stops queue pair 1 of Linux 6.1.
    pub(crate) fn send(&self, message: Message, transaction: u64) -> Outcome {
        let bth = Bth { opcode: Opcode::UD_SEND_ONLY, destination: MANAGEMENT_QPN, ..Bth::default() };
        let deth = Some(Deth { qkey: MANAGEMENT_QKEY, source: MANAGEMENT_QPN });
        let headers = Headers { bth, deth, ..Headers::default() };
        let mut packet = vec![0; headers.length()];
        headers.emit(&mut packet);
        packet.extend_from_slice(&message.to_mad(transaction).write());
        packet.extend_from_slice(&[0; ICRC_BYTES]);
        icrc::append(&self.flow, 0, &mut packet);
        let (packet, port) = match self.flow.destination {
            IpAddr::V4(_) => ([&self.ipv4_and_udp_headers(packet.len()), &packet[..]].concat(), 0),
            IpAddr::V6(_) => (packet, ROCE_PORT),
        };
        let sent = self.socket.send_to(&packet, &SockAddr::from(SocketAddr::new(self.flow.destination, port)))?;
        ensure(sent == packet.len(), "a datagram is cut")
    }

    /// Returns both headers of a payload, with identification 0, "don't fragment" and no checksums; the system fills in
    /// that of the IPv4 header.
    fn ipv4_and_udp_headers(&self, length: usize) -> [u8; 28] {
        let mut bytes = [0; 28];
        let lengths = [(2, length + 28), (24, length + 8)];
        for (at, length) in lengths {
            bytes[at..at + 2].copy_from_slice(&(length as u16).to_be_bytes());
        }
        (bytes[0], bytes[6], bytes[8], bytes[9]) = (0x45, 0x40, 64, 17);
        for (at, address) in [(12, self.flow.source), (16, self.flow.destination)] {
            if let IpAddr::V4(address) = address {
                bytes[at..at + 4].copy_from_slice(&address.octets());
            }
        }
        bytes[20..22].copy_from_slice(&self.flow.source_port.to_be_bytes());
        bytes[22..24].copy_from_slice(&ROCE_PORT.to_be_bytes());
        bytes
    }
}
