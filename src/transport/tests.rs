//! Two endpoints on a perfect wire: every operation, and the rules that need no faults. The simulator covers faults.

mod amplification;
mod bursts;
mod congestion;
mod discovery;
mod early;
mod failures;
mod fair_queue;
mod fast_path;
mod flush;
mod forged;
mod keyed;
mod marks;
mod pacing;
mod panics;
mod path_report;
mod paths_agree;
mod read_losses;
mod recovery;
mod repair;
mod revoked;
mod shared_memory;
mod unreliable;
mod xrc;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::memory::{Backing, Region, RegionTable};
use crate::queue::{AsyncEventQueue, CompletionQueue, Notify, ReceiveQueue, SendQueue};
use crate::types::modify::ModifyLimits;
use crate::types::*;

const LIMITS: ModifyLimits =
    ModifyLimits { max_rd_atomic: 16, max_dest_rd_atomic: 16, active_mtu: Mtu::Mtu4096, pkey_tbl_len: 1, ports: 1 };

/// One end: an endpoint with one queue pair, one region and one completion queue.
struct End {
    service: QueuePairType,
    endpoint: Endpoint,
    address: IpAddr,
    table: RegionTable,
    region: Arc<Region>,
    send: Arc<SendQueue>,
    receive: Arc<ReceiveQueue>,
    completions: Arc<CompletionQueue>,
    events: Arc<AsyncEventQueue>,
    qpn: Qpn,
    /// Budget for the early packets that it keeps.
    budget: Arc<ReorderBudget>,
    /// Code of the transport timeout.
    timeout: u8,
    /// Traffic class of the packets that it sends.
    traffic_class: u8,
}

impl End {
    fn new(service: QueuePairType, address: &str, seed: u32) -> Self {
        Self::receiving(service, address, seed, None)
    }

    /// Creates an end whose receives come from `source` instead of its own queue.
    fn receiving(service: QueuePairType, address: &str, seed: u32, source: Option<ReceiveSource>) -> Self {
        Self::keeping(service, address, seed, source, Arc::default())
    }

    fn keeping(
        service: QueuePairType,
        address: &str,
        seed: u32,
        source: Option<ReceiveSource>,
        budget: Arc<ReorderBudget>,
    ) -> Self {
        let config = EndpointConfig { reorder_budget: budget, ..EndpointConfig::default() };
        Self::configured(service, address, seed, source, config)
    }

    fn configured(
        service: QueuePairType,
        address: &str,
        seed: u32,
        source: Option<ReceiveSource>,
        config: EndpointConfig,
    ) -> Self {
        let mut state = seed;
        let random = Box::new(move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state
        });
        let budget = Arc::clone(&config.reorder_budget);
        let mut endpoint = Endpoint::new(EndpointConfig { random, ..config });
        let table = RegionTable::new(16);
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE;
        let backing = Backing::from_vec(vec![0; 1 << 20]);
        let region = table.register(DomainId(1), backing, Some(0x10_0000), access).unwrap();
        let (address, events) = (address.parse().unwrap(), AsyncEventQueue::new(16, None));
        let Member { send, receive, completions, qpn } = Member::new(&mut endpoint, service, source, &events);
        let (timeout, traffic_class) = (14, 0);
        Self {
            service,
            endpoint,
            address,
            table,
            region,
            send,
            receive,
            completions,
            events,
            qpn,
            budget,
            timeout,
            traffic_class,
        }
    }

    fn connect(&mut self, peer: &Peer) {
        self.connect_to(peer, None, QueuePairState::ReadyToSend);
    }

    /// Connects, up to this state.
    fn connect_to(&mut self, peer: &Peer, key: Option<PeerKey>, last: QueuePairState) {
        let source = SourceAddress { address: self.address, source_port: 50_000 };
        let (access, reliable) = (AccessFlags::REMOTE, self.service.is_reliable());
        let is_requester = reliable && self.service != QueuePairType::XrcReceive;
        let is_responder = reliable && self.service != QueuePairType::XrcSend;
        let init = QueuePairAttributes {
            qp_state: Some(QueuePairState::Init),
            pkey_index: Some(0),
            port_num: Some(1),
            qp_access_flags: Some(access),
            ..QueuePairAttributes::default()
        };
        let ready_to_receive = QueuePairAttributes {
            qp_state: Some(QueuePairState::ReadyToReceive),
            ah_attr: Some(AddressVector {
                traffic_class: self.traffic_class,
                ..AddressVector::new(peer.address.into(), 0)
            }),
            path_mtu: Some(Mtu::Mtu1024),
            dest_qp_num: Some(peer.qpn),
            rq_psn: Some(Psn::new(0xff_fff0)),
            max_dest_rd_atomic: is_responder.then_some(4),
            min_rnr_timer: is_responder.then_some(12),
            peer: Some(peer.capabilities),
            peer_key: key,
            ..QueuePairAttributes::default()
        };
        let ready_to_send = QueuePairAttributes {
            qp_state: Some(QueuePairState::ReadyToSend),
            timeout: reliable.then_some(self.timeout),
            retry_cnt: is_requester.then_some(7),
            rnr_retry: is_requester.then_some(7),
            sq_psn: Some(Psn::new(0xff_fff0)),
            max_rd_atomic: is_requester.then_some(4),
            ..QueuePairAttributes::default()
        };
        for attributes in [init, ready_to_receive, ready_to_send] {
            self.endpoint.modify_queue_pair(Time::ZERO, self.qpn, &attributes, Some(source), &LIMITS).unwrap();
            if attributes.qp_state == Some(last) {
                break;
            }
        }
    }

    fn post(&mut self, now: Time, operation: Operation, sges: &[Sge]) {
        self.post_flagged(now, operation, sges, SendFlags::SIGNALED);
    }

    fn post_flagged(&mut self, now: Time, operation: Operation, sges: &[Sge], flags: SendFlags) {
        self.send.begin();
        self.send.push(&SendRequest { wr_id: 7, operation, flags, data: Data::Sges(sges) }).unwrap();
        self.send.end(BatchEnd::Publish).unwrap();
        self.endpoint.handle_doorbell(now, self.qpn);
    }

    fn post_receive(&mut self, sges: &[Sge]) {
        self.receive.begin();
        self.receive.push(&ReceiveRequest { wr_id: 9, sges }).unwrap();
        self.receive.end(BatchEnd::Publish).unwrap();
    }

    fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: 0x10_0000 + offset, length, lkey: self.region.lkey() }
    }

    /// Returns the next burst of datagrams, while acknowledgements wait for the application's reply.
    fn transmit(&mut self, now: Time) -> Vec<Vec<u8>> {
        let mut buffer = vec![0; 65_536];
        let view = self.table.read();
        let Some(transmit) = self.endpoint.poll_transmit(now, &view, &mut buffer, AckRelease::Hold) else {
            return Vec::new();
        };
        let size = transmit.segment_size.unwrap_or(transmit.length);
        buffer[..transmit.length].chunks(size).map(<[u8]>::to_vec).collect()
    }

    fn handle(&mut self, now: Time, source: IpAddr, datagrams: &[Vec<u8>]) {
        for (index, payload) in datagrams.iter().enumerate() {
            let segment_index = index as u16;
            let destination = self.address;
            let (source_port, hop_limit, traffic_class) = (50_000, None, None);
            let datagram = Datagram {
                source,
                destination,
                source_port,
                segment_index,
                hop_limit,
                traffic_class,
                payload,
                medium: Medium::Network,
            };
            self.endpoint.handle_datagram(now, &self.table.read(), &datagram);
        }
    }

    fn poll(&self) -> Vec<RawCompletion> {
        let mut out = [RawCompletion::default(); 64];
        let count = self.completions.poll(&mut out);
        out[..count].to_vec()
    }
}

/// A queue pair and its queues.
struct Member {
    send: Arc<SendQueue>,
    receive: Arc<ReceiveQueue>,
    completions: Arc<CompletionQueue>,
    qpn: Qpn,
}

impl Member {
    fn new(
        endpoint: &mut Endpoint,
        service: QueuePairType,
        source: Option<ReceiveSource>,
        events: &Arc<AsyncEventQueue>,
    ) -> Self {
        Self::notifying(endpoint, service, source, events, None)
    }

    /// Creates a member whose completion queue notifies.
    fn notifying(
        endpoint: &mut Endpoint,
        service: QueuePairType,
        source: Option<ReceiveSource>,
        events: &Arc<AsyncEventQueue>,
        notify: Option<Arc<dyn Notify>>,
    ) -> Self {
        let send = match service {
            QueuePairType::UnreliableDatagram => SendQueue::for_datagrams(64, 4, 128),
            _ => SendQueue::new(64, 4, 128),
        };
        let receive = ReceiveQueue::new(64, 4);
        let completions = CompletionQueue::new(1, 256, notify);
        let init = QueuePairInit {
            service,
            domain: DomainId(1),
            send: send.consumer().unwrap(),
            receive: source.unwrap_or_else(|| ReceiveSource::Own(receive.consumer().unwrap())),
            send_completions: (completions.clone(), completions.attach(Some(send.clone()))),
            receive_completions: (completions.clone(), completions.attach(None)),
            signal_all: false,
            cap: QueuePairCapabilities { max_send_wr: 64, max_recv_wr: 64, ..QueuePairCapabilities::default() },
            events: events.clone(),
        };
        let qpn = endpoint.create_queue_pair(init).unwrap();
        Self { send, receive, completions, qpn }
    }
}

#[derive(Clone, Copy)]
struct Peer {
    address: IpAddr,
    qpn: Qpn,
    capabilities: PeerCapabilities,
}

struct Pair {
    ends: [End; 2],
    now: Time,
    packets: u64,
    /// Packets of each send of the first end, and the most that it had in flight.
    sends: Vec<(Qpn, usize)>,
    most_in_flight: u32,
    /// Whether a queue on the path marks the packets that may be marked.
    is_marking: bool,
}

const NATIVE: PeerCapabilities =
    PeerCapabilities { version: 1, segmentation_offload: true, receive_buffer_bytes: 8 << 20, extensions: 0 };

impl Pair {
    fn new(capabilities: PeerCapabilities) -> Self {
        Self::of(QueuePairType::ReliableConnection, capabilities)
    }

    fn of(service: QueuePairType, capabilities: PeerCapabilities) -> Self {
        Self::connected([End::new(service, "192.0.2.1", 1), End::new(service, "192.0.2.2", 2)], capabilities)
    }

    /// Connects standard peers that may keep this many bytes of early packets.
    fn with_budget(bytes: usize) -> Self {
        let service = QueuePairType::ReliableConnection;
        let end = |address, seed| End::keeping(service, address, seed, None, Arc::new(ReorderBudget::new(bytes)));
        Self::connected([end("192.0.2.1", 1), end("192.0.2.2", 2)], PeerCapabilities::STANDARD)
    }

    fn connected(mut ends: [End; 2], capabilities: PeerCapabilities) -> Self {
        let peers = [1, 0].map(|at| Peer { address: ends[at].address, qpn: ends[at].qpn, capabilities });
        ends.iter_mut().zip(&peers).for_each(|(end, peer)| end.connect(peer));
        Self::between(ends)
    }

    fn between(ends: [End; 2]) -> Self {
        let now = Time::from_nanos(1);
        Self { ends, now, packets: 0, sends: Vec::new(), most_in_flight: 0, is_marking: false }
    }

    /// Carries everything that one end sends to the other. Returns false if it was silent.
    fn carry(&mut self, from: usize) -> bool {
        let mut buffer = vec![0; 65_536];
        let mut carried = false;
        let [first, second] = &mut self.ends;
        let (sender, receiver) = if from == 0 { (first, second) } else { (second, first) };
        loop {
            let view = sender.table.read();
            let transmit = sender.endpoint.poll_transmit(self.now, &view, &mut buffer, AckRelease::Now);
            drop(view);
            let Some(transmit) = transmit else { return carried };
            carried = true;
            if from == 0 {
                self.sends.push((transmit.qpn, transmit.segments()));
                let in_flight = sender.endpoint.packets_in_flight(receiver.address);
                self.most_in_flight = self.most_in_flight.max(in_flight);
            }
            let is_marked = self.is_marking && transmit.traffic_class & 3 == 2;
            let size = transmit.segment_size.unwrap_or(transmit.length);
            for (index, payload) in buffer[..transmit.length].chunks(size).enumerate() {
                self.packets += 1;
                let datagram = Datagram {
                    source: transmit.source,
                    destination: transmit.destination,
                    source_port: transmit.source_port,
                    segment_index: index as u16,
                    hop_limit: None,
                    traffic_class: Some(transmit.traffic_class | u8::from(is_marked)),
                    payload,
                    medium: Medium::Network,
                };
                receiver.endpoint.handle_datagram(self.now, &receiver.table.read(), &datagram);
            }
        }
    }

    /// Runs until both are silent, letting the clock jump over pauses of up to `patience`.
    fn drive(&mut self, patience: Duration) {
        for _ in 0..100_000 {
            if self.carry(0) | self.carry(1) {
                continue;
            }
            let next = self.ends.iter().filter_map(|end| end.endpoint.next_timeout()).min();
            let Some(next) = next.filter(|next| *next <= self.now + patience) else { return };
            self.now = self.now.max(next);
            for end in &mut self.ends {
                end.endpoint.handle_timeout(self.now);
            }
        }
        panic!("the endpoints never fell silent");
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 31 + index / 251) as u8).collect()
}

fn contents(region: &Region, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    region.read_at(offset, &mut bytes).unwrap();
    bytes
}

#[test]
fn every_operation_arrives_whole() {
    for capabilities in [NATIVE, PeerCapabilities::STANDARD] {
        for length in [0_usize, 1, 3, 1_024, 1_025, 5_000, 300_000] {
            let mut pair = Pair::new(capabilities);
            let data = pattern(length);
            pair.ends[0].region.write_at(0, &data).unwrap();
            let rkey = pair.ends[1].region.rkey();
            let local = pair.ends[0].sge(0, length as u32);
            let back = pair.ends[0].sge(400_000, length as u32);
            let into = pair.ends[1].sge(700_000, length as u32);
            pair.ends[1].post_receive(&[into]);
            pair.ends[1].post_receive(&[]);
            let now = pair.now;
            let remote_addr = 0x10_0000 + 10;
            pair.ends[0].post(now, Operation::Write { remote_addr, rkey }, &[local]);
            pair.ends[0].post(now, Operation::Read { remote_addr, rkey }, &[back]);
            pair.ends[0].post(now, Operation::SendWithImmediate(0xabcd), &[local]);
            pair.ends[0].post(now, Operation::WriteWithImmediate { remote_addr, rkey, immediate: 5 }, &[local]);
            pair.drive(Duration::from_millis(1));
            let completions = pair.ends[0].poll();
            assert_eq!(completions.len(), 4, "{length} {completions:?}");
            assert!(completions.iter().all(|completion| completion.status.is_success()), "{completions:?}");
            assert_eq!(contents(&pair.ends[1].region, 10, length), data);
            assert_eq!(contents(&pair.ends[0].region, 400_000, length), data);
            assert_eq!(contents(&pair.ends[1].region, 700_000, length), data);
            let received = pair.ends[1].poll();
            assert_eq!(received.len(), 2);
            assert_eq!((received[0].immediate_or_key, received[0].byte_len), (0xabcd, length as u32));
            assert_eq!(received[1].opcode, CompletionOpcode::ReceiveWriteWithImmediate);
            let counters = pair.ends[0].endpoint.counters();
            assert_eq!(counters.get(Counter::RetransmittedPackets), 0);
            assert_eq!(counters.total_drops(), 0);
        }
    }
}

#[test]
fn atomics_return_the_value_before() {
    let mut pair = Pair::new(NATIVE);
    let rkey = pair.ends[1].region.rkey();
    let remote_addr = 0x10_0000 + 64;
    pair.ends[1].region.write_at(64, &5_u64.to_ne_bytes()).unwrap();
    let (first, second) = (pair.ends[0].sge(0, 8), pair.ends[0].sge(8, 8));
    let now = pair.now;
    pair.ends[0].post(now, Operation::FetchAndAdd { remote_addr, rkey, add: 3 }, &[first]);
    pair.ends[0].post(now, Operation::CompareAndSwap { remote_addr, rkey, compare: 8, swap: 100 }, &[second]);
    pair.drive(Duration::from_millis(1));
    assert_eq!(pair.ends[0].poll().len(), 2);
    assert_eq!(contents(&pair.ends[0].region, 0, 8), 5_u64.to_ne_bytes());
    assert_eq!(contents(&pair.ends[0].region, 8, 8), 8_u64.to_ne_bytes());
    assert_eq!(contents(&pair.ends[1].region, 64, 8), 100_u64.to_ne_bytes());
}

#[test]
fn a_send_is_retried_until_a_receive_is_posted() {
    let mut pair = Pair::new(NATIVE);
    let local = pair.ends[0].sge(0, 2_000);
    let now = pair.now;
    pair.ends[0].post(now, Operation::Send, &[local]);
    pair.drive(Duration::from_micros(100));
    assert!(pair.ends[0].poll().is_empty());
    let into = pair.ends[1].sge(0, 4_000);
    pair.ends[1].post_receive(&[into]);
    pair.drive(Duration::from_secs(2));
    assert_eq!(pair.ends[0].poll()[0].status, CompletionStatus::Success);
    assert_eq!(pair.ends[1].poll()[0].byte_len, 2_000);
    assert!(pair.ends[1].endpoint.counters().get(Counter::SentRnr) > 0);
}

#[test]
fn refusals_reach_both_sides() {
    let mut pair = Pair::new(NATIVE);
    let local = pair.ends[0].sge(0, 8);
    let now = pair.now;
    pair.ends[0].post(now, Operation::Write { remote_addr: 0x10_0000, rkey: Rkey(1) }, &[local]);
    pair.ends[0].post(now, Operation::Send, &[local]);
    let receive = pair.ends[1].sge(0, 8);
    pair.ends[1].post_receive(&[receive]);
    pair.drive(Duration::from_millis(1));
    let completions = pair.ends[0].poll();
    let statuses: Vec<_> = completions.iter().map(|completion| completion.status).collect();
    assert_eq!(statuses, [CompletionStatus::RemoteAccessError, CompletionStatus::WorkRequestFlushedError]);
    assert_eq!(pair.ends[1].poll()[0].status, CompletionStatus::WorkRequestFlushedError);
    assert_eq!(pair.ends[1].events.poll(), Some(AsyncEvent::QueuePairAccessError(pair.ends[1].qpn)));
    assert_eq!(pair.ends[0].endpoint.queue_pair_state(pair.ends[0].qpn), Some(QueuePairState::Error));
}

#[test]
fn a_silent_peer_ends_in_retry_exceeded_after_exactly_seven_repetitions() {
    let mut pair = Pair::new(NATIVE);
    let (qpn, local) = (pair.ends[1].qpn, pair.ends[0].sge(0, 8));
    assert!(pair.ends[1].endpoint.destroy_queue_pair(qpn));
    let start = pair.now;
    pair.ends[0].post(start, Operation::Send, &[local]);
    pair.drive(Duration::from_secs(1));
    let completions = pair.ends[0].poll();
    assert_eq!(completions[0].status, CompletionStatus::RetryExceededError);
    assert_eq!(completions[0].cause, Cause::NoResponse);
    let waited = pair.now.saturating_since(start);
    let one = Duration::from_nanos(4_096 << 14);
    assert!(waited >= one * 8 && waited < one * 9, "{waited:?}");
    assert_eq!(pair.ends[0].endpoint.counters().get(Counter::LocalAckTimeout), 8);
}

#[test]
fn an_unsignaled_request_is_acknowledged_before_the_one_that_fails() {
    let mut pair = Pair::new(NATIVE);
    let (good, rkey) = (pair.ends[0].sge(0, 8), pair.ends[1].region.rkey());
    let bad = Sge { lkey: Lkey(1), ..good };
    let write = Operation::Write { remote_addr: 0x10_0000, rkey };
    let now = pair.now;
    let end = &mut pair.ends[0];
    end.send.begin();
    let unsignaled = SendFlags::empty();
    end.send.push(&SendRequest { wr_id: 1, operation: write, flags: unsignaled, data: Data::Sges(&[good]) }).unwrap();
    end.send.push(&SendRequest { wr_id: 2, operation: write, flags: unsignaled, data: Data::Sges(&[bad]) }).unwrap();
    end.send.end(BatchEnd::Publish).unwrap();
    end.endpoint.handle_doorbell(now, end.qpn);
    pair.drive(Duration::from_secs(1));
    let completions = pair.ends[0].poll();
    assert_eq!(completions.len(), 1, "{completions:?}");
    assert_eq!((completions[0].wr_id, completions[0].status), (2, CompletionStatus::LocalProtectionError));
    assert_eq!(pair.ends[0].endpoint.counters().get(Counter::LocalAckTimeout), 0);
}

/// The default source of random numbers is constant.
#[test]
fn queue_pairs_have_different_numbers_although_random_numbers_repeat() {
    let mut endpoint = Endpoint::new(EndpointConfig::default());
    let events = AsyncEventQueue::new(16, None);
    let mut create = || Member::new(&mut endpoint, QueuePairType::ReliableConnection, None, &events).qpn;
    let numbers: Vec<Qpn> = (0..3).map(|_| create()).collect();
    assert!(numbers[0] != numbers[1] && numbers[1] != numbers[2] && numbers[0] != numbers[2], "{numbers:?}");
}

#[test]
fn every_drain_generates_an_event() {
    let mut pair = Pair::new(NATIVE);
    for _ in 0..2 {
        let end = &mut pair.ends[0];
        for state in [QueuePairState::SendQueueDrained, QueuePairState::ReadyToSend] {
            let notify = (state == QueuePairState::SendQueueDrained).then_some(true);
            let attributes = QueuePairAttributes {
                qp_state: Some(state),
                en_sqd_async_notify: notify,
                ..QueuePairAttributes::default()
            };
            end.endpoint.modify_queue_pair(pair.now, end.qpn, &attributes, None, &LIMITS).unwrap();
        }
        assert_eq!(end.events.poll(), Some(AsyncEvent::SendQueueDrained(end.qpn)));
        assert_eq!(end.events.poll(), None);
    }
}

#[test]
fn duplicates_do_not_fill_the_response_queue() {
    let mut pair = Pair::new(PeerCapabilities::STANDARD);
    let (sender, receiver) = (pair.ends[0].address, pair.ends[1].address);
    let flow = crate::wire::Flow { source: sender, destination: receiver, source_port: 50_000 };
    let end = &mut pair.ends[1];
    // A duplicate requires an acknowledgement, a SEND without a receive an RNR NAK: neither merges with the other.
    for round in 0..10_000_u32 {
        let psn = Psn::new(0xff_fff0).minus(round % 2);
        let bth = crate::wire::Bth {
            opcode: crate::wire::Opcode::RC_SEND_ONLY,
            destination: end.qpn,
            psn,
            ..crate::wire::Bth::default()
        };
        let mut packet = [0; 16];
        crate::wire::Headers { bth, ..crate::wire::Headers::default() }.emit(&mut packet);
        crate::wire::icrc::append(&flow, 0, &mut packet);
        let (source_port, segment_index, hop_limit, traffic_class) = (50_000, 0, None, None);
        let (source, destination, payload) = (sender, receiver, &packet);
        let datagram = Datagram {
            source,
            destination,
            source_port,
            segment_index,
            hop_limit,
            traffic_class,
            payload,
            medium: Medium::Network,
        };
        end.endpoint.handle_datagram(pair.now, &end.table.read(), &datagram);
    }
    let mut buffer = vec![0; 65_536];
    let view = end.table.read();
    let mut sent = 0;
    while end.endpoint.poll_transmit(pair.now, &view, &mut buffer, AckRelease::Now).is_some() {
        sent += 1;
    }
    assert!((1..100).contains(&sent), "{sent} responses");
}

fn base_header(datagram: &[u8]) -> crate::wire::Bth {
    crate::wire::Packet::parse(datagram).unwrap().headers.bth
}

#[test]
fn a_held_acknowledgement_leaves_behind_the_reply_in_one_send() {
    use crate::wire::Opcode;

    for (capabilities, bursts) in [
        (NATIVE, vec![vec![Opcode::RC_SEND_ONLY, Opcode::RC_ACKNOWLEDGE]]),
        (PeerCapabilities::STANDARD, vec![vec![Opcode::RC_SEND_ONLY]]),
    ] {
        let mut pair = Pair::new(capabilities);
        let (now, requester) = (pair.now, pair.ends[0].address);
        let (local, into) = (pair.ends[0].sge(0, 8), pair.ends[1].sge(0, 8));
        pair.ends[1].post_receive(&[into]);
        pair.ends[0].post(now, Operation::Send, &[local]);
        let request = pair.ends[0].transmit(now);
        pair.ends[1].handle(now, requester, &request);
        assert!(pair.ends[1].transmit(now).is_empty(), "the acknowledgement waits");
        pair.ends[1].post(now, Operation::Send, &[into]);
        let mut sent = Vec::new();
        loop {
            let burst = pair.ends[1].transmit(now);
            if burst.is_empty() {
                break;
            }
            sent.push(burst.iter().map(|datagram| base_header(datagram).opcode).collect::<Vec<_>>());
        }
        assert_eq!(sent, bursts);
    }
}

#[test]
fn frequent_unsignaled_requests_request_few_acknowledgements_and_a_probe_requests_the_last() {
    let mut pair = Pair::new(NATIVE);
    let (local, requester) = (pair.ends[0].sge(0, 8), pair.ends[0].address);
    let rkey = pair.ends[1].region.rkey();
    let write = Operation::Write { remote_addr: 0x10_0000, rkey };
    let mut requested = Vec::new();
    for round in 0..50 {
        pair.now = pair.now + Duration::from_micros(10);
        pair.ends[0].post_flagged(pair.now, write, &[local], SendFlags::empty());
        let burst = pair.ends[0].transmit(pair.now);
        if base_header(&burst[0]).ack_request {
            requested.push(round);
        }
        pair.ends[1].handle(pair.now, requester, &burst);
        pair.carry(1);
    }
    assert_eq!(requested, [0, 40], "once in 400 µs");
    pair.drive(Duration::from_millis(60));
    assert_eq!(pair.ends[0].endpoint.counters().get(Counter::TailProbe), 1);
    assert_eq!(pair.ends[0].endpoint.next_timeout(), None, "all is acknowledged");
    assert_eq!(pair.ends[0].endpoint.counters().get(Counter::LocalAckTimeout), 0);
}

/// Found by the simulator: only packets after the last acknowledgement request requested one, so a full window of
/// retransmissions got no response.
#[test]
fn retransmitted_packets_request_acknowledgements() {
    let mut pair = Pair::new(PeerCapabilities::STANDARD);
    let (local, into) = (pair.ends[0].sge(0, 200_000), pair.ends[1].sge(300_000, 200_000));
    pair.ends[0].post(pair.now, Operation::Send, &[local]);
    pair.drive(Duration::from_micros(100));
    assert!(pair.ends[1].endpoint.counters().get(Counter::SentRnr) > 0);
    pair.ends[1].post_receive(&[into]);
    pair.drive(Duration::from_millis(5));
    assert_eq!(pair.ends[0].poll().len(), 1, "several windows were sent again without waiting for a probe");
    assert_eq!(pair.ends[0].endpoint.counters().get(Counter::TailProbe), 0);
}

/// Found by the simulator: an acknowledgement overtook the response before it, and was forgotten when that response
/// arrived.
#[test]
fn a_response_that_overtook_another_is_requested_again_soon() {
    let mut pair = Pair::new(NATIVE);
    let (local, rkey) = (pair.ends[0].sge(0, 8), pair.ends[1].region.rkey());
    let remote_addr = 0x10_0000;
    pair.ends[0].post(pair.now, Operation::FetchAndAdd { remote_addr, rkey, add: 1 }, &[local]);
    pair.ends[0].post(pair.now, Operation::Write { remote_addr: remote_addr + 8, rkey }, &[local]);
    pair.carry(0);
    let (peer, mut responses) = (pair.ends[1].address, Vec::new());
    pair.ends[1].endpoint.handle_timeout(pair.now);
    while responses.len() < 2 {
        pair.now = pair.now + Duration::from_micros(50);
        responses.extend(pair.ends[1].transmit(pair.now));
    }
    for response in responses.into_iter().rev() {
        pair.ends[0].handle(pair.now, peer, &[response]);
    }
    pair.drive(Duration::from_millis(1));
    assert_eq!(pair.ends[0].poll().len(), 2, "before the probe, which comes after 2 ms");
    assert_eq!(pair.ends[0].endpoint.counters().get(Counter::TailProbe), 0);
    assert_eq!(pair.ends[0].endpoint.counters().get(Counter::ReadRepair), 1);
}

/// Packets of an earlier connection with the same queue pair number, far ahead in the PSN space.
#[test]
fn packets_of_an_earlier_connection_are_not_kept() {
    let mut pair = Pair::new(NATIVE);
    let (local, rkey) = (pair.ends[0].sge(0, 8), pair.ends[1].region.rkey());
    let write = Operation::Write { remote_addr: 0x10_0000, rkey };
    pair.ends[0].post(pair.now, write, &[local]);
    let (sender, receiver) = (pair.ends[0].address, pair.ends[1].address);
    let mut stale = pair.ends[0].transmit(pair.now).remove(0);
    let flow = crate::wire::Flow { source: sender, destination: receiver, source_port: 50_000 };
    for number in 0..5_u32 {
        stale[9..12].copy_from_slice(&(0x30_0000 + number).to_be_bytes()[1..]);
        crate::wire::icrc::append(&flow, 0, &mut stale);
        pair.ends[1].handle(pair.now, sender, &[stale.clone()]);
    }
    for _ in 0..20 {
        pair.ends[0].post(pair.now, write, &[local]);
        pair.drive(Duration::from_secs(1));
    }
    assert_eq!(pair.ends[0].poll().len(), 21);
    let naks = pair.ends[1].endpoint.counters().get(Counter::SentSequenceNak);
    assert_eq!(naks, 1, "one packet was lost indeed");
}

/// Found by the simulator: the last packet before a drain requested no response, because another request followed it.
#[test]
fn a_drain_does_not_wait_for_the_probe() {
    let mut pair = Pair::new(PeerCapabilities::STANDARD);
    let (local, rkey) = (pair.ends[0].sge(0, 100_000), pair.ends[1].region.rkey());
    let write = Operation::Write { remote_addr: 0x10_0000, rkey };
    for _ in 0..2 {
        pair.ends[0].post_flagged(pair.now, write, &[local], SendFlags::empty());
    }
    pair.carry(0);
    let drain = QueuePairAttributes {
        qp_state: Some(QueuePairState::SendQueueDrained),
        en_sqd_async_notify: Some(true),
        ..QueuePairAttributes::default()
    };
    let qpn = pair.ends[0].qpn;
    pair.ends[0].endpoint.modify_queue_pair(pair.now, qpn, &drain, None, &LIMITS).unwrap();
    pair.drive(Duration::from_millis(1));
    assert_eq!(pair.ends[0].events.poll(), Some(AsyncEvent::SendQueueDrained(qpn)));
    assert_eq!(pair.ends[0].endpoint.counters().get(Counter::TailProbe), 0);
}
