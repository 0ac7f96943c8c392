//! A peer made of a plain UDP socket, which sends only the given packets.

use std::net::{IpAddr, UdpSocket};

use rdma_verbs::types::{Psn, Qpn, ROCE_PORT};
use rdma_verbs::verbs::{ConnectOptions, ConnectionInfo, Mtu};
use rdma_verbs::wire::{Aeth, Bth, Flow, Headers, ICRC_BYTES, Opcode, Packet, Syndrome, icrc};
use support::PATIENCE;

use super::world::End;

/// An acknowledgement of everything before it.
pub(crate) const ACK: Syndrome = Syndrome::Ack { credit: 31 };
const QPN: Qpn = Qpn::new(0x77);
pub(crate) const FIRST_PSN: Psn = Psn::new(0x1000);

pub(crate) struct FakePeer {
    socket: UdpSocket,
    own: IpAddr,
    other: IpAddr,
    other_qpn: Qpn,
}

impl FakePeer {
    /// Creates a peer on 127.92.`case`.2, and a new end on 127.92.`case`.1 connected to it.
    pub(crate) fn with_end(case: u8, options: &ConnectOptions) -> (End, Self) {
        let end = End::open(case, 1);
        let peer = Self::bind(case, &end);
        end.qp.connect_with(&peer.info(), options).unwrap();
        (end, peer)
    }

    fn bind(case: u8, end: &End) -> Self {
        let own = IpAddr::from([127, 92, case, 2]);
        let socket = UdpSocket::bind((own, ROCE_PORT)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { socket, own, other: IpAddr::from([127, 92, case, 1]), other_qpn: end.qp.qpn() }
    }

    fn info(&self) -> ConnectionInfo {
        let IpAddr::V4(own) = self.own else { unreachable!("127.92.x.2") };
        ConnectionInfo::standard_peer(QPN, FIRST_PSN, own.into(), Mtu::Mtu4096)
    }

    /// Waits for the next packet and returns its sequence number.
    pub(crate) fn receive(&self) -> Psn {
        let mut buffer = [0; 8_192];
        let (length, _) = self.socket.recv_from(&mut buffer).expect("a packet");
        Packet::parse(&buffer[..length]).expect("RoCEv2").headers.bth.psn
    }

    pub(crate) fn respond(&self, psn: Psn, syndrome: Syndrome) {
        self.send(self.response_packet(psn, syndrome));
    }

    /// Returns a response for packet `psn`, to be modified before it is sent.
    pub(crate) fn response_packet(&self, psn: Psn, syndrome: Syndrome) -> Headers {
        let bth = Bth { opcode: Opcode::RC_ACKNOWLEDGE, destination: self.other_qpn, psn, ..Bth::default() };
        Headers { bth, aeth: Some(Aeth { syndrome, msn: 1 }), ..Headers::default() }
    }

    /// Sends a message without bytes.
    pub(crate) fn request(&self, psn: Psn) {
        let bth =
            Bth { opcode: Opcode::RC_SEND_ONLY, destination: self.other_qpn, psn, ack_request: true, ..Bth::default() };
        self.send(Headers { bth, ..Headers::default() });
    }

    pub(crate) fn send(&self, headers: Headers) {
        let packet = self.packet(&headers);
        self.send_bytes(&packet);
    }

    /// Returns the packet with its ICRC.
    pub(crate) fn packet(&self, headers: &Headers) -> Vec<u8> {
        let mut packet = vec![0; headers.length() + ICRC_BYTES];
        headers.emit(&mut packet);
        let flow = Flow { source: self.own, destination: self.other, source_port: ROCE_PORT };
        icrc::append(&flow, 0, &mut packet);
        packet
    }

    pub(crate) fn send_bytes(&self, bytes: &[u8]) {
        self.socket.send_to(bytes, (self.other, ROCE_PORT)).unwrap();
    }
}
