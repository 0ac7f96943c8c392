//! Forged packets: RoCEv2 with any address, port, PSN, identification, DF, payload and check value, and the raw sockets
//! that send them.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

use rdma_verbs::types::{Psn, Qpn, ROCE_PORT, Rkey};
use rdma_verbs::wire::{Aeth, Bth, Flow, Headers, ICRC_BYTES, Opcode, Reth, Syndrome, icrc};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

const IP_BYTES: usize = 20;
const UDP_BYTES: usize = 8;
const IPPROTO_RAW: i32 = 255;
const DONT_FRAGMENT: u16 = 0x4000;
/// Source ports of the standard's convention.
pub(crate) const SOURCE_PORTS: std::ops::RangeInclusive<u16> = 49_152..=65_535;

/// A packet with a valid ICRC, unless `check_xor` changes it.
#[derive(Clone, Debug)]
pub(crate) struct Forgery {
    pub(crate) source: Ipv4Addr,
    pub(crate) destination: Ipv4Addr,
    pub(crate) source_port: u16,
    pub(crate) identification: u16,
    pub(crate) dont_fragment: bool,
    pub(crate) headers: Headers,
    pub(crate) payload: Vec<u8>,
    /// The difference to the valid check value.
    pub(crate) check_xor: u32,
}

/// The claimed source and the destination of a forged packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Aim {
    pub(crate) source: Ipv4Addr,
    pub(crate) destination: Ipv4Addr,
    pub(crate) source_port: u16,
    pub(crate) qpn: Qpn,
}

impl Aim {
    /// Returns a SEND Only of these bytes that requests an acknowledgement.
    pub(crate) fn send(&self, psn: Psn, payload: &[u8]) -> Forgery {
        self.request(Opcode::RC_SEND_ONLY, psn, payload)
    }

    pub(crate) fn request(&self, opcode: Opcode, psn: Psn, payload: &[u8]) -> Forgery {
        let pad_count = (payload.len().wrapping_neg() % 4) as u8;
        let bth = Bth { opcode, destination: self.qpn, psn, ack_request: true, pad_count, ..Bth::default() };
        self.packet(Headers { bth, ..Headers::default() }, payload)
    }

    /// Returns a WRITE Only.
    pub(crate) fn write(&self, psn: Psn, va: u64, rkey: Rkey, payload: &[u8]) -> Forgery {
        let mut packet = self.request(Opcode::RC_WRITE_ONLY, psn, payload);
        packet.headers.reth = Some(Reth { va, rkey, length: payload.len() as u32 });
        packet
    }

    /// Returns an acknowledgement or a NAK.
    pub(crate) fn response(&self, psn: Psn, syndrome: Syndrome) -> Forgery {
        let bth = Bth { opcode: Opcode::RC_ACKNOWLEDGE, destination: self.qpn, psn, ..Bth::default() };
        self.packet(Headers { bth, aeth: Some(Aeth { syndrome, msn: 1 }), ..Headers::default() }, &[])
    }

    pub(crate) fn packet(&self, headers: Headers, payload: &[u8]) -> Forgery {
        Forgery {
            source: self.source,
            destination: self.destination,
            source_port: self.source_port,
            identification: 0,
            dont_fragment: true,
            headers,
            payload: payload.to_vec(),
            check_xor: 0,
        }
    }
}

impl Forgery {
    pub(crate) fn flow(&self) -> Flow {
        Flow {
            source: IpAddr::V4(self.source),
            destination: IpAddr::V4(self.destination),
            source_port: self.source_port,
        }
    }

    /// Returns the bytes from the base transport header to the ICRC.
    pub(crate) fn udp_payload(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.write_udp_payload(&mut bytes);
        bytes
    }

    /// Writes the bytes of `udp_payload` into a reused buffer.
    pub(crate) fn write_udp_payload(&self, bytes: &mut Vec<u8>) {
        bytes.clear();
        bytes.resize(self.headers.length(), 0);
        self.headers.emit(bytes);
        bytes.extend_from_slice(&self.payload);
        bytes.resize(bytes.len() + usize::from(self.headers.bth.pad_count), 0);
        let check = icrc::compute(&self.flow(), self.identification, self.dont_fragment, bytes) ^ self.check_xor;
        bytes.extend_from_slice(&check.to_le_bytes());
        debug_assert!(bytes.len() >= ICRC_BYTES);
    }

    /// Returns the whole IPv4 packet, with this UDP payload. The kernel fills in the checksum of the IP header.
    pub(crate) fn ip_packet(&self, udp_payload: &[u8]) -> Vec<u8> {
        let udp_bytes = UDP_BYTES + udp_payload.len();
        let mut bytes = vec![0; IP_BYTES];
        bytes[0] = 0x45;
        bytes[2..4].copy_from_slice(&((IP_BYTES + udp_bytes) as u16).to_be_bytes());
        bytes[4..6].copy_from_slice(&self.identification.to_be_bytes());
        let fragment = if self.dont_fragment { DONT_FRAGMENT } else { 0 };
        bytes[6..8].copy_from_slice(&fragment.to_be_bytes());
        bytes[8] = 64;
        bytes[9] = 17;
        bytes[12..16].copy_from_slice(&self.source.octets());
        bytes[16..20].copy_from_slice(&self.destination.octets());
        bytes.extend_from_slice(&self.source_port.to_be_bytes());
        bytes.extend_from_slice(&ROCE_PORT.to_be_bytes());
        bytes.extend_from_slice(&(udp_bytes as u16).to_be_bytes());
        bytes.extend_from_slice(&[0, 0]);
        bytes.extend_from_slice(udp_payload);
        bytes
    }
}

/// Forged ICMP errors.
#[derive(Clone, Copy, Debug)]
pub(crate) enum IcmpError {
    PortUnreachable,
    HostUnreachable,
    /// "Fragmentation needed", with this MTU.
    FragmentationNeeded(u16),
}

impl IcmpError {
    /// Returns the error about a packet that its receiver supposedly sent.
    pub(crate) fn about(self, router: Ipv4Addr, offending: &Forgery) -> Vec<u8> {
        let (code, mtu) = match self {
            Self::HostUnreachable => (1, 0),
            Self::PortUnreachable => (3, 0),
            Self::FragmentationNeeded(mtu) => (4, mtu),
        };
        let mut message = vec![3, code, 0, 0, 0, 0];
        message.extend_from_slice(&mtu.to_be_bytes());
        let quoted = offending.ip_packet(&offending.udp_payload());
        message.extend_from_slice(&quoted[..quoted.len().min(IP_BYTES + UDP_BYTES + 64)]);
        let sum = internet_checksum(&message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        let mut packet = vec![0; IP_BYTES];
        packet[0] = 0x45;
        packet[2..4].copy_from_slice(&((IP_BYTES + message.len()) as u16).to_be_bytes());
        packet[8] = 64;
        packet[9] = 1;
        packet[12..16].copy_from_slice(&router.octets());
        packet[16..20].copy_from_slice(&offending.source.octets());
        packet.extend_from_slice(&message);
        packet
    }
}

fn internet_checksum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
    let sum: u32 = bytes.chunks(2).map(word).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

/// A raw socket, which sends packets without changing them.
pub(crate) struct RawSender(Socket);

impl RawSender {
    /// Opens the socket. Needs root in the network namespace.
    pub(crate) fn open() -> Self {
        let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(IPPROTO_RAW)));
        let socket = socket.unwrap_or_else(|error| panic!("a raw socket, which needs root: {error}"));
        socket.set_send_buffer_size(4 << 20).expect("SO_SNDBUF");
        Self(socket)
    }

    pub(crate) fn send(&self, packet: &Forgery) {
        self.send_as(packet, &packet.udp_payload());
    }

    /// Sends a packet with another UDP payload than its own.
    pub(crate) fn send_as(&self, packet: &Forgery, udp_payload: &[u8]) {
        self.send_ip(packet.destination, &packet.ip_packet(udp_payload));
    }

    pub(crate) fn send_ip(&self, destination: Ipv4Addr, packet: &[u8]) {
        let address = SockAddr::from(SocketAddrV4::new(destination, 0));
        let sent = self.0.send_to(packet, &address).expect("a raw send");
        assert_eq!(sent, packet.len());
    }

    /// Sends a packet that the kernel may refuse. Returns whether it takes it.
    pub(crate) fn try_send_ip(&self, destination: Ipv4Addr, packet: &[u8]) -> bool {
        self.0.send_to(packet, &SockAddr::from(SocketAddrV4::new(destination, 0))).is_ok()
    }
}
