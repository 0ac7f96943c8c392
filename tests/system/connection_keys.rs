//! Keys of connections by address and port: a device of this crate, and a peer on "another host", which the registry
//! does not know: a socket whose messages and packets this test writes.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Instant;

use rdma_verbs::types::{DEFAULT_PKEY, Psn, ROCE_PORT};
use rdma_verbs::verbs::cm::{ConnectionOptions, Listener, Route};
use rdma_verbs::verbs::{
    AccessFlags, CompletionQueue, Context, DropReason, MemoryRegion, Mtu, PeerCapabilities, PeerKey, Qkey, Qpn,
    QueuePair, ReceiveRequest, SendRequest,
};
use rdma_verbs::wire::mad::{
    AlternatePath, CommunicationId, ConnectReply, ConnectRequest, IpHeader, MAD_BYTES, Mad, Message, MessageRetries,
    NativeOffer, Path, PortSpace, ReadyToUse, RetryCount, ServiceId, TimeoutCode,
};
use rdma_verbs::wire::{
    Bth, CheckMasks, Deth, Flow, Headers, ICRC_BYTES, Opcode, Packet, PsnSequence, icrc, packet_bytes,
};
use support::{PATIENCE, complete_one, poll_one};

const PORT: u16 = 7_471;
const PEER_QPN: Qpn = Qpn::new(0x77);
const PEER_PSN: Psn = Psn::new(0xff_fffe);
const PEER_ID: CommunicationId = CommunicationId(0x1234_5678);
const PEER: PeerCapabilities = PeerCapabilities::STANDARD.version(1).receive_buffer_bytes(1 << 20);
const TRANSACTION: u64 = 7;
const MANAGEMENT_QPN: Qpn = Qpn::new(1);

/// The end of this crate.
struct Victim {
    context: Context,
    cq: CompletionQueue,
    qp: QueuePair,
    memory: MemoryRegion,
}

impl Victim {
    fn on(context: &Context) -> Self {
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
        let qp = pd.create_qp(&cq, &cq).unwrap();
        let memory = pd.alloc_mr(256, AccessFlags::LOCAL_WRITE).unwrap();
        qp.init().unwrap();
        qp.post_recv(&[ReceiveRequest::new(&memory)]).unwrap();
        Self { context: context.clone(), cq, qp, memory }
    }

    #[track_caller]
    fn complete(&self) {
        complete_one(&self.cq, &self.qp);
    }

    fn unkeyed(&self) -> u64 {
        self.context.counters().get_drop(DropReason::Unkeyed)
    }
}

/// A peer on another host.
struct Peer {
    socket: UdpSocket,
    address: IpAddr,
    victim: IpAddr,
}

impl Peer {
    fn new(address: &str, victim: &str) -> Self {
        let (address, victim): (IpAddr, IpAddr) = (address.parse().unwrap(), victim.parse().unwrap());
        let socket = UdpSocket::bind((address, ROCE_PORT)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { socket, address, victim }
    }

    /// Sends a packet with this mask of the check field.
    fn send(&self, headers: &Headers, payload: &[u8], mask: u32) {
        let mut packet = vec![0; packet_bytes(headers.bth.opcode, payload.len() as u32)];
        let start = headers.emit(&mut packet);
        packet[start..start + payload.len()].copy_from_slice(payload);
        let flow = Flow { source: self.address, destination: self.victim, source_port: ROCE_PORT };
        let (covered, field) = packet.split_last_chunk_mut::<ICRC_BYTES>().unwrap();
        *field = (icrc::compute(&flow, 0, true, covered) ^ mask).to_le_bytes();
        self.socket.send_to(&packet, (self.victim, ROCE_PORT)).unwrap();
    }

    fn send_message(&self, message: impl Into<Message>) {
        let bth = Bth { destination: MANAGEMENT_QPN, ..Bth::with_payload(Opcode::UD_SEND_ONLY, MAD_BYTES as u32) };
        let deth = Some(Deth { qkey: Qkey(0x8001_0000), source: MANAGEMENT_QPN });
        self.send(&Headers { bth, deth, ..Headers::default() }, &message.into().to_mad(TRANSACTION).write(), 0);
    }

    /// Waits for a message.
    fn receive<M>(&self, of: impl Fn(Message) -> Option<M>) -> M {
        let mut bytes = [0; 2_048];
        loop {
            let length = self.socket.recv(&mut bytes).unwrap();
            let packet = Packet::parse(&bytes[..length]).unwrap();
            if packet.headers.bth.destination == MANAGEMENT_QPN
                && let Some(message) = of(Message::read(&Mad::read(packet.payload).unwrap()).unwrap())
            {
                return message;
            }
        }
    }

    /// Requests a connection, with this offer. Returns the reply.
    fn request(&self, alternate_path: AlternatePath) -> ConnectReply {
        let path = Path {
            local_gid: self.address.into(),
            remote_gid: self.victim.into(),
            hop_limit: 64,
            local_ack_timeout: TimeoutCode::saturating(17),
            ..Path::default()
        };
        let header = IpHeader::new(SocketAddr::new(self.address, 9), self.victim).unwrap();
        self.send_message(ConnectRequest {
            local_id: PEER_ID,
            service_id: ServiceId::of_port(PortSpace::Tcp, PORT),
            local_guid: 0x77,
            local_qpn: PEER_QPN,
            starting_psn: PEER_PSN,
            remote_response_timeout: TimeoutCode::saturating(20),
            local_response_timeout: TimeoutCode::saturating(18),
            retry_count: RetryCount::MAX,
            rnr_retry_count: RetryCount::MAX,
            max_cm_retries: MessageRetries::MAX,
            pkey: DEFAULT_PKEY,
            path_mtu: Mtu::Mtu1024.into(),
            primary_path: path,
            alternate_path,
            private_data: header.with_data(&[]).unwrap(),
            ..ConnectRequest::default()
        });
        self.receive(|message| if let Message::ConnectReply(reply) = message { Some(reply) } else { None })
    }

    /// Sends a SEND of eight bytes to the victim's queue pair, with this key.
    fn send_data(&self, victim: &Victim, psn: Psn, key: Option<PeerKey>) {
        let sequence = PsnSequence { requester: PEER_QPN, responder: victim.qp.qpn(), first: psn, is_local: true };
        let mask = key.map_or(0, |key| CheckMasks::new(&key, &sequence).requests);
        let bth =
            Bth { destination: victim.qp.qpn(), psn, ack_request: true, ..Bth::with_payload(Opcode::RC_SEND_ONLY, 8) };
        self.send(&Headers { bth, ..Headers::default() }, b"8 bytes.", mask);
    }

    /// Checks that the victim takes packets with the key only, or, without one, those of a standard peer.
    fn check(&self, victim: &Victim, psn: Psn, key: Option<PeerKey>) {
        if key.is_some() {
            self.send_data(victim, psn, None);
            let end = Instant::now() + PATIENCE;
            while victim.unkeyed() == 0 {
                assert_eq!(poll_one(&victim.cq), None, "a packet without the key");
                assert!(Instant::now() < end, "{}", victim.qp.explain_state());
            }
        }
        self.send_data(victim, psn, key);
        victim.complete();
        assert_eq!(victim.memory.to_vec(..8).unwrap(), *b"8 bytes.");
        assert_eq!(victim.unkeyed(), u64::from(key.is_some()));
    }
}

/// An offer of another host.
fn offer() -> NativeOffer {
    NativeOffer::new(*b"a share of bytes", PEER)
}

/// A host requests a connection of a listener.
fn accepted(victim: &str, peer: &str, offer: Option<NativeOffer>) {
    let listener = Listener::bind((victim.parse::<IpAddr>().unwrap(), PORT)).unwrap();
    let peer = Peer::new(peer, victim);
    let server = std::thread::spawn(move || {
        let request = listener.accept().unwrap();
        let victim = Victim::on(request.context());
        // The peer may send before its RTU arrives.
        let connection = request.accept(&victim.qp, &ConnectionOptions::new()).unwrap();
        (victim, connection)
    });
    let reply = peer.request(offer.map_or_else(AlternatePath::default, |offer| AlternatePath::of_offer(&offer)));
    assert_eq!(reply.confirmation().is_some(), offer.is_some());
    if offer.is_none() {
        assert_eq!((reply.local_qkey, reply.local_eecn), Default::default(), "as the standard's");
    }
    peer.send_message(ReadyToUse { local_id: PEER_ID, remote_id: reply.local_id, ..ReadyToUse::default() });
    let (victim, _connection) = server.join().unwrap();
    assert_eq!(reply.local_qpn, victim.qp.qpn());
    peer.check(&victim, reply.starting_psn, offer.map(|offer| offer.active_key(reply.local_id)));
}

#[test]
fn a_listener_takes_only_keyed_packets_of_a_native_host() {
    accepted("127.46.6.1", "127.46.6.2", Some(offer()));
}

#[test]
fn a_listener_takes_the_packets_of_a_standard_host() {
    accepted("127.46.6.3", "127.46.6.4", None);
}

/// A connection is requested of a host, which confirms the offer or not.
fn requested(victim: &str, peer: &str, confirms: bool) {
    let peer = Peer::new(peer, victim);
    let route = Route::to((peer.address, PORT)).unwrap().from(peer.victim).unwrap();
    let victim = Victim::on(route.context());
    let pending = route.start_connect(&victim.qp, &ConnectionOptions::new()).unwrap();
    let request =
        peer.receive(|message| if let Message::ConnectRequest(request) = message { Some(request) } else { None });
    let offered = request.alternate_path.offer().expect("an offer");
    assert_eq!(offered.capabilities(), victim.context.advertised_capabilities());
    let reply = ConnectReply {
        local_id: PEER_ID,
        remote_id: request.local_id,
        local_qpn: PEER_QPN,
        starting_psn: PEER_PSN,
        local_guid: 9,
        ..ConnectReply::default()
    };
    peer.send_message(if confirms { reply.confirming(&PEER) } else { reply });
    let _connection = pending.wait().unwrap();
    peer.check(&victim, request.starting_psn, confirms.then(|| offered.passive_key(PEER_ID)));
}

#[test]
fn a_client_takes_only_keyed_packets_of_a_native_host() {
    requested("127.46.6.5", "127.46.6.6", true);
}

#[test]
fn a_client_takes_the_packets_of_a_standard_host() {
    requested("127.46.6.7", "127.46.6.8", false);
}

/// The key of the handshake precedes that of the registry, which would let a packet without a key pass at first.
#[test]
fn devices_of_one_host_have_a_key_from_the_first_packet_on() {
    let [server, client] = ["127.46.6.9", "127.46.6.10"];
    let listener = Listener::bind((server.parse::<IpAddr>().unwrap(), PORT)).unwrap();
    let accepting = std::thread::spawn(move || {
        let request = listener.accept().unwrap();
        let victim = Victim::on(request.context());
        let connection = request.accept(&victim.qp, &ConnectionOptions::new()).unwrap();
        (victim, connection)
    });
    let route = Route::to((server.parse::<IpAddr>().unwrap(), PORT)).unwrap().from(client).unwrap();
    let active = Victim::on(route.context());
    let _active_connection = route.connect(&active.qp, &ConnectionOptions::new()).unwrap();
    let (passive, _connection) = accepting.join().unwrap();

    // The forger knows all numbers, and has the client's address.
    let socket = UdpSocket::bind((client, 0)).unwrap();
    let address = client.parse().unwrap();
    let psn = passive.qp.connection_info().unwrap().psn;
    let bth =
        Bth { destination: passive.qp.qpn(), psn, ack_request: true, ..Bth::with_payload(Opcode::RC_SEND_ONLY, 8) };
    let mut packet = vec![0; packet_bytes(Opcode::RC_SEND_ONLY, 8)];
    Headers { bth, ..Headers::default() }.emit(&mut packet);
    let source_port = socket.local_addr().unwrap().port();
    let flow = Flow { source: address, destination: server.parse().unwrap(), source_port };
    icrc::append(&flow, 0, &mut packet);
    socket.send_to(&packet, (server, ROCE_PORT)).unwrap();
    let end = Instant::now() + PATIENCE;
    while passive.unkeyed() == 0 {
        assert_eq!(poll_one(&passive.cq), None, "a forged packet");
        assert!(Instant::now() < end, "{}", passive.qp.explain_state());
    }

    for (from, to) in [(&active, &passive), (&passive, &active)] {
        from.qp.post_send(&[SendRequest::send(from.memory.slice(..100).unwrap()).signaled()]).unwrap();
        from.complete();
        to.complete();
    }
    assert_eq!((active.unkeyed(), passive.unkeyed()), (0, 1));
}
