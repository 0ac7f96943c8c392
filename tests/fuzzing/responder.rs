//! A responder and a hostile peer: any packets in any order, with any PSNs and lengths and a valid ICRC.
//!
//! The first byte chooses the peer and the grammar. *Messages* are SEND Only packets that carry their own number, so
//! that completions must be 0, 1, 2, and so on. *Anything* is any opcode with any fields. In both, the memory that the
//! responder holds and the bytes that it sends stay bounded.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use rdma_verbs::memory::Backing;
use rdma_verbs::sim::{Connection, Host, Port};
use rdma_verbs::transport::{AckRelease, Datagram, Medium};
use rdma_verbs::types::{
    AccessFlags, DEFAULT_PKEY, DomainId, Lkey, Mtu, PeerCapabilities, Psn, Qpn, QueuePairCapabilities, ReceiveRequest,
    Rkey, Sge, Time,
};
use rdma_verbs::wire::{Aeth, AtomicEth, Bth, Flow, FlushEth, Headers, Opcode, Reth, Syndrome, icrc, packet_bytes};

const FIRST: Psn = Psn::new(0xff_fff8);
const BASE: u64 = 0x1000;
const REGION_BYTES: usize = 4_096;
const LARGEST_INPUT: usize = 4_096;
const MTU: usize = 256;
/// More than a packet without its payload and its bookkeeping in the reorder buffer.
const MOST_BESIDE_PAYLOAD: usize = 200;
/// Number of packets that each kind of peer may have in flight with this MTU.
const WINDOWS: [usize; 2] = [64, 4_096];
/// Length of the longest READ.
const LONGEST_READ: usize = 1_020;
const OURS: PeerCapabilities =
    PeerCapabilities::STANDARD.version(1).segmentation_offload(true).receive_buffer_bytes(8 << 20);

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }
}

fn address(last: u8) -> IpAddr {
    Ipv4Addr::new(192, 0, 2, last).into()
}

/// The responder, and its packets in both directions.
struct Responder {
    host: Host,
    port: Port,
    now: Time,
    key: u32,
    is_native: bool,
    /// Number of messages executed, by their completions.
    completed: u32,
    /// Number of bytes that it may have sent.
    allowed: usize,
    sent: usize,
}

impl Responder {
    fn new(is_native: bool) -> Self {
        let mut host = Host::new(address(2), 1);
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE;
        let backing = Backing::from_vec(vec![0; REGION_BYTES]);
        let key = host.memory.register(DomainId(1), backing, Some(BASE), access).unwrap().lkey().0;
        let cap = QueuePairCapabilities { max_send_wr: 8, max_recv_wr: 64, ..QueuePairCapabilities::default() };
        let port = host.create_queue_pair(cap);
        let terms = Connection {
            peer_address: address(1),
            peer_qpn: Qpn::new(7),
            peer: if is_native { OURS } else { PeerCapabilities::STANDARD },
            // A key would stop nearly all packets of this test.
            key: None,
            path_mtu: Mtu::Mtu256,
            sq_psn: FIRST,
            rq_psn: FIRST,
            access: AccessFlags::REMOTE,
            rd_atomic: 4,
            timeout: 8,
            retry_cnt: 2,
            rnr_retry: 2,
            min_rnr_timer: 1,
        };
        let now = Time::from_nanos(1);
        host.connect(now, port.qpn, &terms);
        let (completed, allowed, sent) = (0, 0, 0);
        Self { host, port, now, key, is_native, completed, allowed, sent }
    }

    fn post_receives(&mut self, count: u8) {
        let sges = [Sge { addr: BASE, length: 1_024, lkey: Lkey(self.key) }];
        for _ in 0..count {
            self.host.post_receive(self.now, &self.port, &ReceiveRequest { wr_id: 1, sges: &sges });
        }
    }

    fn arrive(&mut self, headers: &Headers, payload: usize) {
        let mut headers = *headers;
        headers.bth.destination = self.port.qpn;
        headers.bth.pad_count = (payload.next_multiple_of(4) - payload) as u8;
        let mut packet = vec![0x5a; packet_bytes(headers.bth.opcode, payload as u32)];
        headers.emit(&mut packet);
        let flow = Flow { source: address(1), destination: address(2), source_port: 50_000 };
        icrc::append(&flow, 0, &mut packet);
        self.allowed += packet.len();
        let datagram = Datagram {
            source: flow.source,
            destination: flow.destination,
            source_port: flow.source_port,
            segment_index: 0,
            hop_limit: None,
            traffic_class: None,
            payload: &packet,
            medium: Medium::Network,
        };
        self.host.endpoint.handle_datagram(self.now, &self.host.memory.read(), &datagram);
        self.check_memory();
    }

    /// Checks that it holds at most a window of packets of the MTU's length.
    fn check_memory(&self) {
        let most = WINDOWS[usize::from(self.is_native)] * (MTU + MOST_BESIDE_PAYLOAD);
        let held = self.host.endpoint.reorder_bytes();
        assert!(held <= most, "{held} bytes are held");
    }

    fn pass_time(&mut self, step: Duration) {
        self.now = self.now + step;
        self.host.endpoint.handle_timeout(self.now);
        let mut buffer = vec![0; 65_536];
        loop {
            let view = self.host.memory.read();
            let transmit = self.host.endpoint.poll_transmit(self.now, &view, &mut buffer, AckRelease::Now);
            let Some(transmit) = transmit else { break };
            self.sent += transmit.length;
        }
        assert!(self.sent <= self.allowed, "{} bytes sent, {} allowed", self.sent, self.allowed);
        self.check_memory();
    }

    /// Polls completions and checks that they are consecutive, if the messages carry numbers.
    fn poll(&mut self, are_numbered: bool) {
        let mut completions = Vec::new();
        self.port.poll(&mut completions);
        for completion in completions {
            if are_numbered && completion.status.is_success() {
                assert_eq!(completion.immediate_or_key, self.completed, "out of order, or twice");
            }
            self.completed += 1;
        }
    }
}

/// Returns a distance from the oldest missing PSN, mostly a small one.
fn distance(input: &mut Input<'_>) -> i32 {
    let (kind, value) = (input.byte(), i32::from(input.byte()));
    match kind % 8 {
        0..=2 => 0,
        3 | 4 => value % 8,
        5 => value,
        6 => value - 128,
        _ => (value - 128) << (kind / 8 % 16),
    }
}

/// Sends a SEND Only with its own number.
fn send_message(responder: &mut Responder, input: &mut Input<'_>) {
    let number = i64::from(responder.completed) + i64::from(distance(input));
    let psn = FIRST.plus((number & 0xff_ffff) as u32);
    let bth =
        Bth { opcode: Opcode::RC_SEND_ONLY_IMMEDIATE, psn, pkey: DEFAULT_PKEY, ack_request: true, ..Bth::default() };
    let headers = Headers { bth, immediate: Some(number as u32), ..Headers::default() };
    responder.arrive(&headers, usize::from(input.byte()) * 2 % (MTU + 8));
    // The next in-order one gets a response, which is longer than a SEND without a payload.
    responder.allowed += 20;
}

/// Sends any packet.
fn send_anything(responder: &mut Responder, input: &mut Input<'_>) {
    let known = Opcode::ALL[usize::from(input.byte()) % Opcode::ALL.len()];
    let opcode = if known.0 < 0x20 { known } else { Opcode::RC_SEND_ONLY };
    let number = i64::from(responder.completed) + i64::from(distance(input));
    let psn = FIRST.plus((number & 0xff_ffff) as u32);
    let choice = input.byte();
    let rkey = Rkey(if choice & 1 == 0 { responder.key } else { choice.into() });
    let va = BASE + u64::from(input.byte()) * 8;
    let length = u32::from(input.byte()) * 4 % (LONGEST_READ as u32 + 1);
    let bth = Bth { opcode, psn, pkey: DEFAULT_PKEY, ack_request: choice & 2 != 0, ..Bth::default() };
    let headers = Headers {
        bth,
        reth: Some(Reth { va, rkey, length }),
        atomic: Some(AtomicEth { va, rkey, swap_or_add: 1, compare: 0 }),
        flush: Some(FlushEth { selectivity: choice >> 2 & 1, placement: choice >> 3 & 3 }),
        aeth: Some(Aeth { syndrome: Syndrome::Ack { credit: 31 }, msn: 0 }),
        atomic_ack: Some(0),
        immediate: Some(0),
        invalidate: Some(rkey),
        ..Headers::default()
    };
    let payload = if choice & 32 == 0 { length as usize % (MTU + 8) } else { usize::from(input.byte()) * 250 };
    responder.arrive(&headers, if opcode == Opcode::RC_READ_REQUEST { 0 } else { payload });
    // Each may be an in-order READ, or a duplicate of one.
    responder.allowed += LONGEST_READ.div_ceil(MTU) * 20 + LONGEST_READ;
}

/// Runs the target.
pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input(&bytes[..bytes.len().min(LARGEST_INPUT)]);
    let mode = input.byte();
    let (is_native, are_numbered) = (mode & 1 != 0, mode & 2 != 0);
    let mut responder = Responder::new(is_native);
    while !input.0.is_empty() {
        match input.byte() % 8 {
            0 => responder.post_receives(input.byte() % 8),
            1 => responder.pass_time(Duration::from_micros(u64::from(input.byte()) * 4)),
            2 if input.byte() % 16 == 0 => responder.pass_time(Duration::from_millis(300)),
            _ if are_numbered => send_message(&mut responder, &mut input),
            _ => send_anything(&mut responder, &mut input),
        }
        responder.poll(are_numbered);
    }
    responder.pass_time(Duration::from_secs(1));
    responder.pass_time(Duration::from_secs(1));
    assert_eq!(responder.host.endpoint.reorder_bytes(), 0, "packets that were never in order are dropped");
}
