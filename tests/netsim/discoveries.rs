//! Connections whose ends begin as standard peers and discover that they are native, while messages flow on faulty
//! links: all messages arrive whole, once and in order, whatever the ends know about each other at the moment. Forged
//! questions, answers and refusals have no effect, standard peers stay standard, and connections begin again with the
//! same numbers.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use rdma_verbs::memory::{Backing, Region};
use rdma_verbs::sim::{Connection, Faults, Host, Network, Port, Random};
use rdma_verbs::transport::{Datagram, DatagramOutcome, ManagementPath, ManagementQueuePair, Medium};
use rdma_verbs::types::{
    AccessFlags, CompletionOpcode, Counter, Data, DomainId, DropReason, KeyShare, Mtu, Operation, PeerCapabilities,
    Psn, QueuePairCapabilities, QueuePairState, RawCompletion, ReceiveRequest, SendFlags, SendRequest, Sge,
};
use rdma_verbs::wire::mad::{Discovery, DiscoveryAnswer, DiscoveryContent, Mad};
use rdma_verbs::wire::{Bth, Flow, Headers, Opcode, icrc, packet_bytes};

use super::world::Outcome;

/// Messages of each end in a connection.
const MESSAGES: u64 = 24;
/// Messages of each end after both have discovered the other one: enough for the switch to keyed packets.
const LAST_MESSAGES: u64 = 3;
const SLOT_BYTES: u64 = 24 << 10;
const SLOTS: u64 = 8;
const BASE: u64 = 0x10_0000;
const MOST_STEPS: u32 = 400_000;
const STEP: Duration = Duration::from_micros(200);
/// Most questions of an end in a connection: 16 until the first answer, 16 until the proof.
const MOST_QUESTIONS: u64 = 32;
const SEGMENTING_PORT: u16 = 60_000;
const OURS: PeerCapabilities = PeerCapabilities::STANDARD
    .version(1)
    .segmentation_offload(true)
    .receive_buffer_bytes(1 << 20)
    .extensions(PeerCapabilities::GAP_RUNS);

/// One end, and its progress in the current connection.
struct Side {
    port: Port,
    region: Arc<Region>,
    is_native: bool,
    posted: u64,
    completed: u64,
    receives: u64,
    received: u64,
}

fn length(number: u64) -> u64 {
    1 + number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (SLOT_BYTES - 1)
}

fn bytes(at: usize, number: u64) -> Vec<u8> {
    let first = number.wrapping_mul(151) + at as u64 * 77;
    (0..length(number)).map(|index| (first + index.wrapping_mul(7) + index / 256) as u8).collect()
}

impl Side {
    fn new(host: &mut Host, is_native: bool) -> Self {
        let slots = SLOTS as u32;
        let cap = QueuePairCapabilities { max_send_wr: slots, max_recv_wr: slots, ..QueuePairCapabilities::default() };
        let port = host.create_queue_pair(cap);
        let backing = Backing::from_vec(vec![0; (2 * SLOTS * SLOT_BYTES) as usize]);
        let region = host.memory.register(DomainId(1), backing, Some(BASE), AccessFlags::LOCAL_WRITE).expect("room");
        Self { port, region, is_native, posted: 0, completed: 0, receives: 0, received: 0 }
    }

    /// Returns the offset of the slot of a message, or of a receive.
    fn slot(is_receive: bool, number: u64) -> u64 {
        (u64::from(is_receive) * SLOTS + number % SLOTS) * SLOT_BYTES
    }

    fn sge(&self, offset: u64, length: u64) -> Sge {
        Sge { addr: BASE + offset, length: length as u32, lkey: self.region.lkey() }
    }

    fn post(&mut self, network: &mut Network, at: usize) {
        let (number, offset) = (self.posted, Self::slot(false, self.posted));
        self.region.write_at(offset, &bytes(at, number)).expect("in the region");
        let sges = [self.sge(offset, length(number))];
        let operation = Operation::SendWithImmediate(number as u32);
        let request = SendRequest { wr_id: number, operation, flags: SendFlags::SIGNALED, data: Data::Sges(&sges) };
        let now = network.time_at(at);
        assert!(network.hosts[at].post_send(now, &self.port, &request), "a slot is free");
        self.posted += 1;
    }

    fn post_receive(&mut self, network: &mut Network, at: usize) {
        let sges = [self.sge(Self::slot(true, self.receives), SLOT_BYTES)];
        let (now, request) = (network.time_at(at), ReceiveRequest { wr_id: self.receives, sges: &sges });
        assert!(network.hosts[at].post_receive(now, &self.port, &request), "a slot is free");
        self.receives += 1;
    }

    /// Checks a completion of the end at this index.
    fn check(&mut self, at: usize, completion: &RawCompletion) {
        assert!(completion.status.is_success(), "{completion:?}");
        if completion.opcode == CompletionOpcode::Send {
            assert_eq!(completion.wr_id, self.completed, "requests complete in order");
            self.completed += 1;
            return;
        }
        let number = self.received;
        let expected = (number, number as u32, length(number));
        let found = (completion.wr_id, completion.immediate_or_key, u64::from(completion.byte_len));
        assert_eq!(found, expected, "messages arrive once and in order");
        let mut contents = vec![0; length(number) as usize];
        self.region.read_at(Self::slot(true, number), &mut contents).expect("in the region");
        assert!(contents == bytes(1 - at, number), "message {number} has wrong bytes");
        self.received += 1;
    }
}

struct World {
    network: Network,
    random: Random,
    addresses: [IpAddr; 2],
    sides: [Side; 2],
    path_mtu: Mtu,
    /// Whether a standard end refuses questions.
    refuses: bool,
    forges: bool,
    first_psns: [Psn; 2],
    outcome: Outcome,
}

/// Runs one seed to its end; panics if a promise is broken.
pub(crate) fn run(seed: u64, verbose: bool) -> Outcome {
    let mut world = World::new(seed, verbose);
    let connections = world.random.between(1, 3);
    let mut was_settled = true;
    for number in 0..connections {
        world.connect();
        world.exchange(MESSAGES);
        let is_hasty = number + 1 < connections && world.random.chance(200);
        // An end may confirm its peer's previous connection while that is in the discovery, and does not ask again.
        let is_settled = was_settled && !is_hasty;
        if is_settled {
            world.discover();
            world.check_keys();
        }
        was_settled = is_settled;
        if number + 1 < connections {
            world.outcome.count(if is_hasty { "begins again in the discovery" } else { "begins again" }, 1);
            world.start_over();
        }
    }
    world.collect()
}

fn faults(random: &mut Random) -> Faults {
    let mut rate = |most: u64| if random.chance(500) { random.below(most) as u32 } else { 0 };
    Faults {
        loss: rate(150),
        duplication: rate(150),
        corruption: rate(30),
        reordering: rate(150),
        delay: Duration::from_micros(20),
        lateness: Duration::from_micros(500),
        ..Faults::default()
    }
}

impl World {
    fn new(seed: u64, verbose: bool) -> Self {
        let mut random = Random::new(seed);
        let is_perfect = random.chance(150);
        let addresses = ["2001:db8::1", "2001:db8::2"].map(|address| address.parse().expect("an address"));
        let standard = random.choose(&[None, None, None, Some(0), Some(1)]);
        let hosts = [0, 1].map(|at| {
            let capabilities = if standard == Some(at) { PeerCapabilities::STANDARD } else { OURS };
            Host::with_capabilities(addresses[at], random.number(), capabilities)
        });
        let both = [0, 1].map(|_| if is_perfect { Faults::default() } else { faults(&mut random) });
        let mut network = Network::new(hosts.into(), both.into(), random.number());
        network.observer = verbose.then_some(|line: &str| eprintln!("{line}"));
        let sides = [0, 1].map(|at| Side::new(&mut network.hosts[at], standard != Some(at)));
        let (path_mtu, refuses, forges) = (random.choose(Mtu::ALL), random.chance(500), random.chance(500));
        let (first_psns, outcome) = ([Psn::default(); 2], Outcome::default());
        Self { network, random, addresses, sides, path_mtu, refuses, forges, first_psns, outcome }
    }

    fn are_native(&self) -> bool {
        self.sides.iter().all(|side| side.is_native)
    }

    /// Connects both ends as standard peers, one after the other, and begins the discovery at both.
    fn connect(&mut self) {
        if self.random.chance(500) {
            self.first_psns = [0, 1].map(|_| Psn::new((0xff_ffff - self.random.below(400)) as u32));
        }
        let mut order = [0, 1];
        if self.random.chance(500) {
            order.reverse();
        }
        for at in order {
            let connection = Connection {
                peer_address: self.addresses[1 - at],
                peer_qpn: self.sides[1 - at].port.qpn,
                peer: PeerCapabilities::STANDARD,
                key: None,
                path_mtu: self.path_mtu,
                sq_psn: self.first_psns[at],
                rq_psn: self.first_psns[1 - at],
                access: AccessFlags::REMOTE_WRITE,
                rd_atomic: 4,
                timeout: 12,
                retry_cnt: 7,
                rnr_retry: 7,
                min_rnr_timer: 1,
            };
            let (now, qpn) = (self.network.time_at(at), self.sides[at].port.qpn);
            let host = &mut self.network.hosts[at];
            if host.endpoint.queue_pair_state(qpn) != Some(QueuePairState::Reset) {
                host.go_to(now, qpn, QueuePairState::Reset);
            }
            host.connect(now, qpn, &connection);
            host.endpoint.discover_peer(now, qpn, Some(SEGMENTING_PORT));
            let side = &mut self.sides[at];
            (side.posted, side.completed, side.receives, side.received) = (0, 0, 0, 0);
            let pause = self.random.below(30);
            (0..pause).for_each(|_| self.step());
        }
    }

    /// Ends the connection. If the next one may have the same PSNs, no packet of this one may be left, as in any
    /// network.
    fn start_over(&mut self) {
        while self.network.packets_in_flight() > 0 {
            self.network.step(STEP);
        }
    }

    /// Exchanges this many more messages in both directions.
    fn exchange(&mut self, messages: u64) {
        let target = self.sides[0].posted + messages;
        for step in 0.. {
            assert!(step < MOST_STEPS, "the messages do not end");
            for at in [0, 1] {
                let side = &mut self.sides[at];
                while side.receives < target && side.receives < side.received + SLOTS {
                    side.post_receive(&mut self.network, at);
                }
                if side.posted < target && side.posted < side.completed + SLOTS && self.random.chance(300) {
                    side.post(&mut self.network, at);
                }
            }
            self.step();
            if self.sides.iter().all(|side| side.completed == target && side.received == target) {
                return;
            }
        }
    }

    /// Waits until both ends have discovered each other, if they can, and switches to the key.
    fn discover(&mut self) {
        let before = self.network.now;
        while self.are_native() && !(0..2).all(|at| self.has_confirmed(at)) {
            self.step();
            let waited = self.network.now.saturating_since(before);
            assert!(waited < Duration::from_secs(70), "the ends do not discover each other");
        }
        self.exchange(LAST_MESSAGES);
        self.outcome.count(if self.are_native() { "peers discovered" } else { "standard peer" }, 1);
    }

    fn peer_of(&self, at: usize) -> PeerCapabilities {
        let status = self.network.hosts[at].endpoint.query_queue_pair(self.sides[at].port.qpn);
        status.and_then(|status| status.attributes.peer).unwrap_or(PeerCapabilities::STANDARD)
    }

    fn has_confirmed(&self, at: usize) -> bool {
        self.peer_of(at).segmentation_offload
    }

    /// Native peers drop packets without the key after the discovery; a standard peer stays one.
    fn check_keys(&mut self) {
        for at in [0, 1] {
            let outcome = self.give_unkeyed(at);
            if self.are_native() {
                assert_eq!((self.peer_of(at), outcome.dropped), (OURS, Some(DropReason::Unkeyed)), "at {at}");
            } else {
                assert_eq!(self.peer_of(at), PeerCapabilities::STANDARD, "at {at}");
                assert_ne!(outcome.dropped, Some(DropReason::Unkeyed), "at {at}");
            }
        }
    }

    /// Gives an end a packet of its peer with a PSN that is far from the expected one, and without the key.
    fn give_unkeyed(&mut self, at: usize) -> DatagramOutcome {
        let destination = self.sides[at].port.qpn;
        let psn = self.first_psns[1 - at].plus(0x60_0000);
        let bth = Bth { destination, psn, ..Bth::with_payload(Opcode::RC_SEND_ONLY, 0) };
        let mut packet = vec![0; packet_bytes(bth.opcode, 0)];
        Headers { bth, ..Headers::default() }.emit(&mut packet);
        let source_port = if self.are_native() { SEGMENTING_PORT } else { Host::source_port() };
        let flow = Flow { source: self.addresses[1 - at], destination: self.addresses[at], source_port };
        icrc::append(&flow, 0, &mut packet);
        self.give(at, flow.source, source_port, &packet)
    }

    fn give(&mut self, at: usize, source: IpAddr, source_port: u16, payload: &[u8]) -> DatagramOutcome {
        let (now, host) = (self.network.time_at(at), &mut self.network.hosts[at]);
        let datagram = Datagram {
            source,
            destination: host.address,
            source_port,
            segment_index: 0,
            hop_limit: None,
            traffic_class: Some(0),
            payload,
            medium: Medium::Network,
        };
        host.endpoint.handle_datagram(now, &host.memory.read(), &datagram)
    }

    /// Gives an end a datagram to queue pair 1.
    fn give_mad(&mut self, at: usize, source: IpAddr, mad: &Mad) -> DatagramOutcome {
        let destination = self.addresses[at];
        let path = ManagementPath { source, source_port: 55_410, destination, traffic_class: 0 };
        let mut buffer = vec![0; 284];
        let length = ManagementQueuePair::default().write(&path, &mad.write(), &mut buffer).length;
        self.give(at, source, path.source_port, &buffer[..length])
    }

    fn step(&mut self) {
        self.network.step(STEP);
        let mut completions = Vec::new();
        for (at, side) in self.sides.iter_mut().enumerate() {
            completions.clear();
            side.port.poll(&mut completions);
            completions.iter().for_each(|completion| side.check(at, completion));
        }
        for at in [0, 1] {
            self.respond_as_standard(at);
        }
        if self.forges && self.random.chance(100) {
            self.forge();
        }
    }

    /// Responds to the questions of the peer as Linux does.
    fn respond_as_standard(&mut self, at: usize) {
        while let Some(arrived) = self.network.hosts[at].endpoint.management().poll_arrival() {
            assert!(!self.sides[at].is_native, "a native end handles the discovery itself");
            let response = Mad::read(&arrived.bytes[..]).ok().and_then(|mad| mad.unsupported_response());
            if let Some(response) = response.filter(|_| self.refuses) {
                self.outcome.count("question refused", 1);
                self.give_mad(1 - at, arrived.destination, &response);
            }
        }
    }

    /// Sends a datagram under the address of an end's peer, with the right queue pairs, to that end. The forger does
    /// not know the nonce.
    fn forge(&mut self) {
        let at = self.random.below(2) as usize;
        let share = KeyShare::new([self.random.number() as u8; KeyShare::BYTES]);
        let answer = DiscoveryAnswer { capabilities: OURS, share, proof: Some(self.random.number()) };
        let (own, peer) = (self.sides[at].port.qpn, self.sides[1 - at].port.qpn);
        let (content, [receiver, sender]) = match self.random.below(3) {
            0 => (DiscoveryContent::Question, [own, peer]),
            1 => (DiscoveryContent::Answer(answer), [own, peer]),
            _ => (DiscoveryContent::Refusal(0x000c), [peer, own]),
        };
        let forged = Discovery { nonce: self.random.number(), receiver, sender, content }.to_mad();
        let (before, source) = (self.peer_of(at), self.addresses[1 - at]);
        let outcome = self.give_mad(at, source, &forged);
        let is_answered = content == DiscoveryContent::Question && outcome.dropped.is_none();
        assert!(is_answered || outcome.dropped.is_some() || !self.sides[at].is_native, "{content:?} is taken");
        assert_eq!(self.peer_of(at), before, "{content:?} has an effect");
        // Elsewhere not even a question gets an answer.
        let stranger = "2001:db8::9".parse().expect("an address");
        let from_stranger = self.give_mad(at, stranger, &forged);
        assert!(from_stranger.dropped.is_some() || !self.sides[at].is_native, "{content:?} of a stranger is taken");
        self.outcome.count("forged datagrams", 1);
    }

    fn collect(mut self) -> Outcome {
        let mut outcome = std::mem::take(&mut self.outcome);
        for (host, side) in self.network.hosts.iter().zip(&self.sides) {
            let counters = host.endpoint.counters();
            let asked = counters.get(Counter::DiscoveryQuestions);
            assert!(asked <= 3 * MOST_QUESTIONS && (asked > 0) == side.is_native, "{asked} questions");
            outcome.count("questions", asked);
        }
        outcome.packets = self.network.packets;
        outcome.trace_hash = self.network.trace_hash();
        outcome.simulated = Duration::from_nanos(self.network.now.as_nanos());
        outcome
    }
}
