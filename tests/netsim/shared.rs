//! Shared receive queues on faulty links: under reliable connections that all take from one queue, and under extended
//! reliable connections whose messages each name one of several.
//!
//! Each message arrives once, whole and in the order of its connection, regardless of other users of the queue; it is
//! never dropped because the queue is empty. Each receive completes once, even if its connection ends in the middle of
//! a message; the others stay for the other connections. The limit event comes exactly when fewer receives are left.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use rdma_verbs::memory::{Backing, Region};
use rdma_verbs::sim::{Connection, Faults, Host, Network, Port, PortInit, Random};
use rdma_verbs::transport::ReceiveSource;
use rdma_verbs::types::{
    AccessFlags, AsyncEvent, CompletionFlags, CompletionOpcode, CompletionStatus, Counter, Data, DomainId, Mtu,
    Operation, PeerCapabilities, Psn, QueuePairCapabilities, QueuePairState, QueuePairType, RawCompletion, SendFlags,
    SendRequest, Sge,
};

use super::pool::{Pool, RECEIVE_BYTES, domain_of};
use super::store::pattern;
use super::world::Outcome;

/// Number of messages of each client.
const MESSAGES: u64 = 40;
const DEPTH: u32 = 8;
/// Base address of the clients' regions; the server's region begins with a counter for each client.
const BASE: u64 = 0x10_0000;
const COUNTERS: u64 = 64;
const MOST_STEPS: u32 = 400_000;
/// A connection that fails has lost at least this many packets.
const TRIES: u64 = 8;
pub(crate) const OURS: PeerCapabilities =
    PeerCapabilities::STANDARD.version(1).segmentation_offload(true).receive_buffer_bytes(1 << 20);
/// Domain of the server's memory and queues; an XRC target is in another one, which nothing may use.
pub(crate) const DOMAIN: DomainId = DomainId(1);
const TARGET_DOMAIN: DomainId = DomainId(9);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Send,
    SendWithImmediate,
    WriteWithImmediate,
    FetchAndAdd,
    Read,
}

impl Kind {
    /// Returns whether a receive completes for it.
    fn is_message(self) -> bool {
        !matches!(self, Self::FetchAndAdd | Self::Read)
    }
}

#[derive(Clone, Copy, Debug)]
struct Message {
    number: u64,
    kind: Kind,
    length: u64,
    /// The queue that supplies its receive.
    queue: usize,
}

/// A client and the server's end of its connection.
struct Client {
    at: usize,
    port: Port,
    server: Port,
    region: Arc<Region>,
    salt: u64,
    posted: u64,
    outstanding: VecDeque<Message>,
    /// Messages that are sent and not yet received, by queue.
    expected: Vec<VecDeque<Message>>,
    adds: u64,
    failed: bool,
    /// Number of receives that were flushed when the connection ended.
    flushed: u32,
    /// Whether its server's end may be, or was, put into the error state.
    may_be_cut: bool,
    is_cut: bool,
}

struct World {
    network: Network,
    random: Random,
    clients: Vec<Client>,
    pools: Vec<Pool>,
    memory: Arc<Region>,
    is_extended: bool,
    /// Whether no receive is ever posted.
    starves: bool,
    outcome: Outcome,
}

const KINDS: [Kind; 5] = [Kind::Send, Kind::SendWithImmediate, Kind::WriteWithImmediate, Kind::FetchAndAdd, Kind::Read];

/// Returns the constant bytes at the end of the server's region, for READs.
fn constant(length: u64) -> Vec<u8> {
    pattern(0x33, 0, length)
}

/// Returns the offset in the server's region of a client's WRITE.
fn written_at(client: usize, number: u64) -> u64 {
    COUNTERS + (client as u64 * MESSAGES + number) * RECEIVE_BYTES
}

pub(crate) fn random_faults(random: &mut Random) -> Faults {
    let mut rate = |most: u64| if random.chance(600) { random.below(most) as u32 } else { 0 };
    Faults {
        loss: rate(80),
        duplication: rate(100),
        corruption: rate(40),
        reordering: rate(150),
        delay: Duration::from_micros(10),
        lateness: Duration::from_micros(100),
        ..Faults::default()
    }
}

/// Runs one seed to its end; panics if a promise is broken.
pub(crate) fn run(seed: u64, verbose: bool) -> Outcome {
    let mut world = World::new(seed, verbose);
    world.connect();
    let mut steps = 0;
    while !world.clients.iter().all(Client::is_done) || world.network.packets_in_flight() > 0 {
        steps += 1;
        assert!(steps < MOST_STEPS, "the messages do not end");
        world.act();
        world.network.step(Duration::from_micros(50));
        world.judge_step();
    }
    world.finish();
    world.outcome
}

impl World {
    fn new(seed: u64, verbose: bool) -> Self {
        let mut random = Random::new(seed ^ 0x5a5a_0001);
        let (is_extended, count) = (random.chance(500), random.between(1, 4) as usize);
        let mut hosts: Vec<_> = (1..=count as u16 + 1)
            .map(|at| Host::new([0x2001, 0xdb8, 0, 0, 0, 0, 0, at].into(), random.number()))
            .collect();
        let starves = random.chance(100);
        let queues = if is_extended { random.between(1, 3) } else { 1 };
        let backing = Backing::from_vec(vec![0; (written_at(count, 0) + RECEIVE_BYTES) as usize]);
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE;
        let memory = hosts[0].memory.register(DOMAIN, backing, Some(BASE), access).expect("a region");
        memory.write_at(written_at(count, 0), &constant(RECEIVE_BYTES)).expect("in the region");
        let most = if starves { 0 } else { MESSAGES * count as u64 + 32 };
        let pools: Vec<_> =
            (0..queues).map(|number| Pool::new(&hosts[0], number as u32, most, is_extended, &mut random)).collect();
        let clients = (1..=count)
            .map(|at| {
                let server = hosts[0].create_port(server_init(is_extended, &pools));
                Client::new(at, &mut hosts[at], server, pools.len(), random.number(), is_extended)
            })
            .collect();
        let faults = hosts.iter().map(|_| random_faults(&mut random)).collect();
        let mut network = Network::new(hosts, faults, random.number());
        network.observer = verbose.then_some(|line: &str| eprintln!("{line}"));
        Self { network, random, clients, pools, memory, is_extended, starves, outcome: Outcome::default() }
    }

    fn connect(&mut self) {
        let peer = if self.random.chance(500) { OURS } else { PeerCapabilities::STANDARD };
        let path_mtu = self.random.choose(Mtu::ALL);
        for client in &self.clients {
            let first = [0, 1].map(|_| Psn::new((0xff_ffff - self.random.below(100)) as u32));
            let ends = [(0, &client.server, client.at, &client.port), (client.at, &client.port, 0, &client.server)];
            for (own, (at, port, peer_at, peer_port)) in ends.into_iter().enumerate() {
                let connection = Connection {
                    peer_address: self.network.hosts[peer_at].address,
                    peer_qpn: peer_port.qpn,
                    peer,
                    key: None,
                    path_mtu,
                    sq_psn: first[own],
                    rq_psn: first[1 - own],
                    access: AccessFlags::REMOTE,
                    rd_atomic: 2,
                    timeout: 9,
                    retry_cnt: 7,
                    rnr_retry: if self.starves { 3 } else { 7 },
                    min_rnr_timer: 2,
                };
                let now = self.network.time_at(at);
                self.network.hosts[at].connect(now, port.qpn, &connection);
            }
        }
    }

    fn act(&mut self) {
        let Self { network, random, clients, pools, memory, is_extended, outcome, .. } = self;
        pools.iter_mut().for_each(|pool| pool.act(random, outcome));
        let is_in_midst = pools.iter().any(Pool::is_being_filled);
        for client in clients {
            if client.may_post() && random.chance(300) {
                client.post(network, random, memory, pools, *is_extended);
            }
            if client.may_be_cut && !client.is_cut && is_in_midst && random.chance(200) {
                client.is_cut = true;
                let now = network.time_at(0);
                network.hosts[0].go_to(now, client.server.qpn, QueuePairState::Error);
                outcome.count("shared: connection cut", 1);
            }
        }
    }

    fn judge_step(&mut self) {
        let Self { network, clients, pools, memory, outcome, .. } = self;
        pools.iter_mut().for_each(|pool| pool.check_limit_event(outcome));
        for client in clients.iter_mut() {
            client.judge_step(network, memory, self.starves, outcome);
        }
        let mut completions = Vec::new();
        clients.iter().for_each(|client| client.server.poll(&mut completions));
        assert!(!self.is_extended || completions.is_empty(), "not where its queue completes: {completions:?}");
        for (number, pool) in pools.iter_mut().enumerate() {
            pool.poll(&mut completions);
            for completion in completions.drain(..) {
                let client = clients.iter_mut().find(|client| client.server.qpn == completion.qpn);
                client.expect("a queue pair of the server").judge_receive(number, &completion, pool, memory, outcome);
            }
        }
    }

    fn finish(&mut self) {
        for client in &self.clients {
            let is_lost = client.expected.iter().any(|messages| !messages.is_empty());
            assert!(client.failed || !is_lost, "sent and never received: {:?}", client.expected);
            let last = client.last_receives();
            assert_eq!(last, usize::from(client.is_cut), "events of the last receive");
        }
        self.pools.iter().for_each(Pool::finish);
        let counters = self.network.hosts[0].endpoint.counters();
        let name = if self.is_extended { "extended: no receive yet" } else { "shared: no receive yet" };
        self.outcome.count(name, counters.get(Counter::SentRnr));
        self.outcome.packets = self.network.packets;
        self.outcome.simulated = Duration::from_nanos(self.network.now.as_nanos());
        self.outcome.trace_hash = self.network.trace_hash();
    }
}

/// Returns the attributes of the server's end of a connection.
fn server_init(is_extended: bool, pools: &[Pool]) -> PortInit {
    let cap = QueuePairCapabilities { max_send_wr: 1, max_recv_wr: 256, ..QueuePairCapabilities::default() };
    match is_extended {
        true => PortInit {
            service: QueuePairType::XrcReceive,
            domain: TARGET_DOMAIN,
            cap,
            receives: Some(ReceiveSource::Named(domain_of(pools))),
        },
        false => PortInit {
            service: QueuePairType::ReliableConnection,
            domain: DOMAIN,
            cap,
            receives: Some(ReceiveSource::Shared(pools[0].queue.clone())),
        },
    }
}

impl Client {
    fn new(at: usize, host: &mut Host, server: Port, queues: usize, salt: u64, is_extended: bool) -> Self {
        let service = if is_extended { QueuePairType::XrcSend } else { QueuePairType::ReliableConnection };
        let receives = is_extended.then_some(ReceiveSource::Nothing);
        let cap = QueuePairCapabilities { max_send_wr: DEPTH, max_recv_wr: 1, ..QueuePairCapabilities::default() };
        let port = host.create_port(PortInit { service, domain: DOMAIN, cap, receives });
        let backing = Backing::from_vec(vec![0; (MESSAGES * RECEIVE_BYTES) as usize]);
        let region = host.memory.register(DOMAIN, backing, Some(BASE), AccessFlags::LOCAL_WRITE).expect("a region");
        Self {
            at,
            port,
            server,
            region,
            salt,
            posted: 0,
            outstanding: VecDeque::new(),
            expected: vec![VecDeque::new(); queues],
            adds: 0,
            flushed: 0,
            failed: false,
            may_be_cut: !salt.is_multiple_of(3),
            is_cut: false,
        }
    }

    fn is_done(&self) -> bool {
        (self.failed || self.posted == MESSAGES) && self.outstanding.is_empty()
    }

    fn may_post(&self) -> bool {
        !self.failed && self.posted < MESSAGES && self.outstanding.len() < DEPTH as usize
    }

    fn bytes(&self, message: &Message) -> Vec<u8> {
        pattern(self.salt, message.number, message.length)
    }

    fn post(&mut self, network: &mut Network, random: &mut Random, memory: &Region, pools: &[Pool], is_extended: bool) {
        let number = self.posted;
        let kind = random.choose(&KINDS);
        let length = if kind == Kind::FetchAndAdd { 8 } else { random.below(RECEIVE_BYTES + 1) };
        let message = Message { number, kind, length, queue: random.below(pools.len() as u64) as usize };
        let immediate = number as u32;
        let (rkey, index) = (memory.rkey(), self.at - 1);
        let operation = match kind {
            Kind::Send => Operation::Send,
            Kind::SendWithImmediate => Operation::SendWithImmediate(immediate),
            Kind::WriteWithImmediate => {
                let remote_addr = BASE + written_at(index, number);
                Operation::WriteWithImmediate { remote_addr, rkey, immediate }
            }
            Kind::Read => Operation::Read { remote_addr: BASE + memory.len() - RECEIVE_BYTES, rkey },
            Kind::FetchAndAdd => Operation::FetchAndAdd { remote_addr: BASE + index as u64 * 8, rkey, add: 1 },
        };
        self.region.write_at(number * RECEIVE_BYTES, &self.bytes(&message)).expect("in the region");
        let addr = BASE + number * RECEIVE_BYTES;
        let sges = [Sge { addr, length: length as u32, lkey: self.region.lkey() }];
        let request = SendRequest { wr_id: number, operation, flags: SendFlags::SIGNALED, data: Data::Sges(&sges) };
        let (now, host) = (network.time_at(self.at), &mut network.hosts[self.at]);
        let is_posted = match is_extended {
            true => host.post_send_to_srq(now, &self.port, &request, pools[message.queue].queue.number()),
            false => host.post_send(now, &self.port, &request),
        };
        assert!(is_posted, "no room for a request");
        self.posted += 1;
        self.outstanding.push_back(message);
        if kind.is_message() {
            self.expected[message.queue].push_back(message);
        }
    }

    /// Judges the client's completions.
    fn judge_step(&mut self, network: &mut Network, memory: &Region, starves: bool, outcome: &mut Outcome) {
        let mut completions = Vec::new();
        self.port.poll(&mut completions);
        for completion in completions {
            let message = self.outstanding.pop_front().expect("a completion of an outstanding request");
            assert_eq!(completion.wr_id, message.number, "requests complete in order");
            if !completion.status.is_success() {
                outcome.count_if(starves && !self.failed, "shared: starved");
                self.judge_failure(network, &completion, starves);
                continue;
            }
            assert!(!self.failed, "{completion:?} after a failure");
            match message.kind {
                Kind::FetchAndAdd => self.judge_add(&message, memory),
                Kind::WriteWithImmediate => {
                    let expected = self.bytes(&message);
                    let found = read(memory, written_at(self.at - 1, message.number), message.length);
                    assert!(found == expected, "{message:?} completed before it was written");
                }
                Kind::Read => {
                    let found = read(&self.region, message.number * RECEIVE_BYTES, message.length);
                    assert!(found == constant(message.length), "wrong bytes were read by {message:?}");
                }
                Kind::Send | Kind::SendWithImmediate => assert!(!starves, "{message:?} without a receive"),
            }
            outcome.count("shared: request done", 1);
        }
    }

    /// Checks that additions are executed one after the other, each once.
    fn judge_add(&mut self, message: &Message, memory: &Region) {
        let found = read(&self.region, message.number * RECEIVE_BYTES, 8);
        assert_eq!(found, self.adds.to_ne_bytes(), "additions before {message:?}");
        self.adds += 1;
        let counter = read(memory, (self.at as u64 - 1) * 8, 8).try_into().map(u64::from_ne_bytes);
        assert!(counter.is_ok_and(|counter| counter >= self.adds), "{message:?} was not added");
    }

    fn judge_failure(&mut self, network: &mut Network, completion: &RawCompletion, starves: bool) {
        let is_first = !std::mem::replace(&mut self.failed, true);
        let expected = match is_first {
            true if starves && network.harmed_between(0, self.at) < TRIES => {
                CompletionStatus::ReceiverNotReadyRetryExceededError
            }
            true if starves => completion.status,
            true => CompletionStatus::RetryExceededError,
            false => CompletionStatus::WorkRequestFlushedError,
        };
        assert_eq!(completion.status, expected, "{completion:?}");
        let is_justified = self.is_cut || starves || network.harmed_between(0, self.at) >= TRIES;
        assert!(is_justified, "{completion:?}, but nothing is wrong with the links");
        if !self.is_cut {
            // The server's application learns of it separately, and cleans up.
            self.is_cut = true;
            let now = network.time_at(0);
            network.hosts[0].go_to(now, self.server.qpn, QueuePairState::Error);
        }
    }

    /// Judges a receive that its server's queue pair took from the queue.
    fn judge_receive(
        &mut self,
        queue: usize,
        completion: &RawCompletion,
        pool: &mut Pool,
        memory: &Region,
        outcome: &mut Outcome,
    ) {
        if !completion.status.is_success() {
            assert!(self.is_cut, "{completion:?} of a connection that lives");
            assert_eq!(completion.status, CompletionStatus::WorkRequestFlushedError);
            outcome.count("shared: receive flushed", 1);
            self.flushed += 1;
            assert_eq!(self.flushed, 1, "more than the receive of the message in progress was flushed");
            return pool.complete(completion.wr_id, None);
        }
        let message = self.expected[queue].pop_front().expect("a message that was sent to this queue");
        let bytes = self.bytes(&message);
        let with_immediate = (CompletionFlags::WITH_IMMEDIATE, message.number as u32);
        let (opcode, flags_and_data, received) = match message.kind {
            Kind::WriteWithImmediate => (CompletionOpcode::ReceiveWriteWithImmediate, with_immediate, Vec::new()),
            Kind::SendWithImmediate => (CompletionOpcode::Receive, with_immediate, bytes.clone()),
            _ => (CompletionOpcode::Receive, (CompletionFlags::empty(), 0), bytes.clone()),
        };
        let found = (completion.opcode, (completion.flags, completion.immediate_or_key), completion.byte_len);
        assert_eq!(found, (opcode, flags_and_data, message.length as u32), "{message:?}");
        assert_eq!(completion.source_qpn, self.port.qpn);
        if message.kind == Kind::WriteWithImmediate {
            let written = read(memory, written_at(self.at - 1, message.number), message.length);
            assert!(written == bytes, "{message:?} completed before it was written");
        }
        outcome.count(if pool.completes_itself() { "extended: received" } else { "shared: received" }, 1);
        pool.complete(completion.wr_id, Some(received));
    }

    /// Returns the number of events that report the last receive.
    fn last_receives(&self) -> usize {
        let events = std::iter::from_fn(|| self.server.poll_event());
        events.filter(|event| matches!(event, AsyncEvent::LastWorkQueueElementReached(_))).count()
    }
}

fn read(region: &Region, offset: u64, length: u64) -> Vec<u8> {
    let mut bytes = vec![0; length as usize];
    region.read_at(offset, &mut bytes).expect("the region's own bytes");
    bytes
}
