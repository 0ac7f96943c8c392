//! Unreliable datagrams on faulty links. A datagram arrives whole or not at all, at most as often as the network
//! delivered it, only at the queue pair that it names and only with its Q_Key; the 40 bytes in front of it hold its
//! source and destination.

use std::collections::HashMap;
use std::time::Duration;

use rdma_verbs::memory::{Backing, Region};
use rdma_verbs::sim::{Faults, Host, Network, Port, Random};
use rdma_verbs::types::{
    AccessFlags, CompletionFlags, CompletionOpcode, Counter, Data, Destination, DomainId, DropReason,
    GlobalRouteHeader, Operation, Psn, Qkey, QueuePairCapabilities, QueuePairState, QueuePairType, RawCompletion,
    ReceiveRequest, SendFlags, SendRequest, Sge,
};

use super::store::pattern;
use super::world::Outcome;

const HOSTS: usize = 3;
/// Number of datagrams that each host sends.
const MESSAGES: u64 = 100;
const RECEIVES: u64 = 400;
const DEPTH: u32 = 16;
const SLOT_BYTES: u64 = 4_096 + 64;
const SMALL_BYTES: u64 = 300;
const BASE: u64 = 0x10_0000;
const MOST_STEPS: u32 = 100_000;
/// The byte of memory into which nothing was received.
const UNTOUCHED: u8 = 0xee;
/// Length of the UDP header, the headers of a datagram with immediate data, and the ICRC.
const HEADER_BYTES: u64 = 8 + 12 + 8 + 4 + 4;
const OWN_QKEY: Qkey = Qkey(0x8000_0000);

/// A sent datagram.
#[derive(Clone, Copy, Debug)]
struct Sent {
    from: usize,
    to: usize,
    length: u64,
    solicited: bool,
    /// Whether it carries the receiver's Q_Key.
    is_addressed: bool,
    arrived: u64,
    received: u64,
}

struct Side {
    port: Port,
    region: std::sync::Arc<Region>,
    qkey: Qkey,
    posted: u64,
    completed: u64,
    receives: u64,
    received: u64,
    /// Length of each posted receive.
    rooms: HashMap<u64, u64>,
    /// Whether the queue is armed for solicited completions.
    is_armed: bool,
}

struct World {
    network: Network,
    random: Random,
    sides: Vec<Side>,
    sent: Vec<Sent>,
    salt: u64,
    is_perfect: bool,
    outcome: Outcome,
}

/// Returns the offset of a receive, or of a datagram to send; these lie behind the receives.
fn slot_offset(is_sent: bool, number: u64) -> u64 {
    (number + if is_sent { RECEIVES } else { 0 }) * SLOT_BYTES
}

fn faults(random: &mut Random, is_v6: bool) -> Faults {
    let mut rate = |most: u64| if random.chance(600) { random.below(most) as u32 } else { 0 };
    Faults {
        loss: rate(150),
        duplication: rate(200),
        // Over IPv4 a damaged packet passes the ICRC once in 65,536 times, because any identification is accepted.
        corruption: if is_v6 { rate(100) } else { 0 },
        reordering: rate(150),
        delay: Duration::from_micros(10),
        lateness: Duration::from_micros(200),
        ..Faults::default()
    }
}

/// Runs one seed to its end; panics if a promise is broken.
pub(crate) fn run(seed: u64, verbose: bool) -> Outcome {
    let mut world = World::new(seed, verbose);
    let mut steps = 0;
    while world.sides.iter().any(|side| side.completed < MESSAGES) || world.network.packets_in_flight() > 0 {
        steps += 1;
        assert!(steps < MOST_STEPS, "the datagrams do not end");
        world.act();
        world.network.step(Duration::from_micros(50));
        world.judge_step();
    }
    world.finish();
    world.outcome
}

impl Side {
    fn new(host: &mut Host, qkey: Qkey, random: &mut Random) -> Self {
        let cap =
            QueuePairCapabilities { max_send_wr: DEPTH, max_recv_wr: DEPTH, max_recv_sge: 2, ..Default::default() };
        let port = host.create_queue_pair_of(QueuePairType::UnreliableDatagram, cap);
        let backing = Backing::from_vec(vec![UNTOUCHED; slot_offset(true, MESSAGES) as usize]);
        let region = host.memory.register(DomainId(1), backing, Some(BASE), AccessFlags::LOCAL_WRITE);
        let region = region.expect("a region");
        host.start_datagrams(Default::default(), port.qpn, qkey, Psn::new(random.number() as u32));
        let (posted, completed, receives, received) = (0, 0, 0, 0);
        let rooms = HashMap::new();
        Self { port, region, qkey, posted, completed, receives, received, rooms, is_armed: false }
    }

    fn sge(&self, offset: u64, length: u64) -> Sge {
        Sge { addr: BASE + offset, length: length as u32, lkey: self.region.lkey() }
    }

    fn read(&self, offset: u64, length: u64) -> Vec<u8> {
        let mut bytes = vec![0; length as usize];
        self.region.read_at(offset, &mut bytes).expect("in the region");
        bytes
    }

    /// Posts a receive. Returns false if the queue is full.
    fn post_receive(&mut self, network: &mut Network, at: usize, room: u64, cut: u64) -> bool {
        let offset = slot_offset(false, self.receives);
        let sges = [self.sge(offset, cut), self.sge(offset + cut, room - cut)];
        let request = ReceiveRequest { wr_id: self.receives, sges: &sges };
        let now = network.time_at(at);
        if !network.hosts[at].post_receive(now, &self.port, &request) {
            return false;
        }
        self.rooms.insert(self.receives, room);
        self.receives += 1;
        true
    }
}

impl World {
    fn new(seed: u64, verbose: bool) -> Self {
        let mut random = Random::new(seed ^ 0x5a5a_0002);
        let (is_perfect, is_v6) = (random.chance(150), random.chance(500));
        let address = |at: u8| match is_v6 {
            true => [0x2001, 0xdb8, 0, 0, 0, 0, 0, at.into()].into(),
            false => [192, 0, 2, at].into(),
        };
        let mut hosts: Vec<_> = (1..=HOSTS as u8).map(|at| Host::new(address(at), random.number())).collect();
        // Two hosts share a Q_Key, so that the sender's own may also be the right one.
        let qkeys = [Qkey(0x11), Qkey(0x11), Qkey(0x22)];
        let sides = hosts.iter_mut().zip(qkeys).map(|(host, qkey)| Side::new(host, qkey, &mut random)).collect();
        let links =
            hosts.iter().map(|_| if is_perfect { Faults::default() } else { faults(&mut random, is_v6) }).collect();
        let mut network = Network::new(hosts, links, random.number());
        network.observer = verbose.then_some(|line: &str| eprintln!("{line}"));
        network.sightings = Some(Vec::new());
        let salt = random.number();
        Self { network, random, sides, sent: Vec::new(), salt, is_perfect, outcome: Outcome::default() }
    }

    fn act(&mut self) {
        for at in 0..HOSTS {
            let wanted = if self.is_perfect { DEPTH.into() } else { self.random.below(3) };
            for _ in 0..wanted {
                let is_small = !self.is_perfect && self.random.chance(200);
                let room = if is_small { SMALL_BYTES } else { SLOT_BYTES };
                let cut = self.random.below(100);
                let side = &mut self.sides[at];
                if side.receives == RECEIVES || !side.post_receive(&mut self.network, at, room, cut) {
                    break;
                }
            }
            if self.sides[at].posted < MESSAGES && self.random.chance(500) {
                self.post(at);
            }
            if !self.sides[at].is_armed && self.random.chance(100) {
                self.sides[at].port.completions.req_notify(true);
                self.sides[at].is_armed = true;
            }
        }
    }

    fn post(&mut self, at: usize) {
        let random = &mut self.random;
        let to = random.below(HOSTS as u64) as usize;
        let length = if random.chance(500) { random.below(200) } else { random.below(4_097) };
        let (own, theirs) = (self.sides[at].qkey, self.sides[to].qkey);
        let qkey = random.choose(&[theirs, theirs, OWN_QKEY, Qkey(0x33)]);
        let effective = if qkey == OWN_QKEY { own } else { qkey };
        let solicited = random.chance(200);
        let number = self.sent.len() as u64;
        let destination = Destination {
            source: self.network.hosts[at].address,
            source_port: Host::source_port(),
            address: self.network.hosts[to].address,
            traffic_class: 0,
            hop_limit: 64,
            qpn: self.sides[to].port.qpn,
            qkey,
            is_too_long: false,
        };
        let side = &mut self.sides[at];
        let offset = slot_offset(true, side.posted);
        side.region.write_at(offset, &pattern(self.salt, number, length)).expect("in the region");
        let sges = [side.sge(offset, length)];
        let mut flags = SendFlags::SIGNALED;
        flags.set(SendFlags::SOLICITED, solicited);
        let operation = Operation::SendWithImmediate(number as u32);
        let request = SendRequest { wr_id: side.posted, operation, flags, data: Data::Sges(&sges) };
        let now = self.network.time_at(at);
        if self.network.hosts[at].post_datagram(now, &side.port, &request, &destination) {
            side.posted += 1;
            let is_addressed = effective == theirs;
            self.sent.push(Sent { from: at, to, length, solicited, is_addressed, arrived: 0, received: 0 });
        }
    }

    fn judge_step(&mut self) {
        for sighting in self.network.sightings.iter_mut().flat_map(std::mem::take) {
            if let (true, Some(number)) = (sighting.arrived, sighting.headers.immediate) {
                self.sent[number as usize].arrived += 1;
            }
        }
        let mut completions = Vec::new();
        for at in 0..HOSTS {
            self.sides[at].port.poll(&mut completions);
            let mut is_solicited = false;
            for completion in completions.drain(..) {
                assert!(completion.status.is_success(), "{completion:?}");
                assert_eq!(completion.qpn, self.sides[at].port.qpn);
                if completion.opcode == CompletionOpcode::Send {
                    let side = &mut self.sides[at];
                    assert_eq!(completion.wr_id, side.completed, "datagrams complete in order");
                    side.completed += 1;
                } else {
                    is_solicited |= self.judge_receive(at, &completion);
                }
            }
            let side = &mut self.sides[at];
            let is_due = side.is_armed && is_solicited;
            assert_eq!(side.port.bell.rung(), u32::from(is_due), "notifications of solicited datagrams");
            side.is_armed &= !is_due;
        }
    }

    /// Judges a received datagram. Returns whether it was solicited.
    fn judge_receive(&mut self, at: usize, completion: &RawCompletion) -> bool {
        let number = completion.immediate_or_key;
        let sent = self.sent.get_mut(number as usize).expect("a datagram that was sent");
        sent.received += 1;
        let sent = *sent;
        assert!(sent.to == at && sent.is_addressed, "{sent:?} arrived at {at}");
        assert!(sent.received <= sent.arrived, "{sent:?} was received more often than it arrived");
        let flags = CompletionFlags::GLOBAL_ROUTE_HEADER | CompletionFlags::WITH_IMMEDIATE;
        let expected = (CompletionOpcode::Receive, flags, self.sides[sent.from].port.qpn);
        assert_eq!((completion.opcode, completion.flags, completion.source_qpn), expected, "{sent:?}");
        let header_kind = if self.network.hosts[at].address.is_ipv4() { 10 } else { 9 };
        assert_eq!(completion.sl, header_kind, "{sent:?}");
        let length = GlobalRouteHeader::BYTES as u64 + sent.length;
        assert_eq!(u64::from(completion.byte_len), length, "{sent:?}");
        let side = &mut self.sides[at];
        assert_eq!(completion.wr_id, side.received, "receives complete in order");
        side.received += 1;
        let room = side.rooms.remove(&completion.wr_id).expect("a receive that was posted");
        assert!(length <= room, "{sent:?} was received into {room} bytes");
        let found = side.read(slot_offset(false, completion.wr_id), SLOT_BYTES);
        let (header, rest) = found.split_at(GlobalRouteHeader::BYTES);
        let (message, rest) = rest.split_at(sent.length as usize);
        assert!(message == pattern(self.salt, number.into(), sent.length), "wrong bytes of {sent:?}");
        assert!(rest.iter().all(|byte| *byte == UNTOUCHED), "{sent:?} was written further than it is long");
        let header = header.try_into().ok().and_then(GlobalRouteHeader::from_bytes).expect("a route header");
        let addresses = [sent.from, sent.to].map(|at| self.network.hosts[at].address);
        assert_eq!([header.source, header.destination], addresses, "the addresses of {sent:?}");
        let udp_bytes = HEADER_BYTES + sent.length.next_multiple_of(4);
        assert_eq!(u64::from(header.udp_bytes), udp_bytes, "{sent:?}");
        self.outcome.count("datagram came", 1);
        self.outcome.count_if(sent.received > 1, "datagram came again");
        sent.solicited
    }

    fn finish(&mut self) {
        for sent in self.sent.iter().filter(|_| self.is_perfect) {
            assert_eq!(sent.received, u64::from(sent.is_addressed), "a perfect link loses nothing: {sent:?}");
        }
        for (host, side) in self.network.hosts.iter().zip(&self.sides) {
            let state = host.endpoint.queue_pair_state(side.port.qpn);
            assert_eq!(state, Some(QueuePairState::ReadyToSend), "no packet ends a datagram queue pair");
            assert_eq!(side.port.poll_event(), None);
            for (number, room) in &side.rooms {
                let found = side.read(slot_offset(false, *number), *room);
                assert!(found.iter().all(|byte| *byte == UNTOUCHED), "receive {number} was written and not completed");
            }
            let counters = host.endpoint.counters();
            assert_eq!(counters.get(Counter::RetransmittedPackets), 0);
            self.outcome.count("datagram with a wrong Q_Key", counters.get_drop(DropReason::BadQkey));
            self.outcome.count("datagram without a receive", counters.get_drop(DropReason::NoReceive));
            self.outcome.count("datagram too long", counters.get_drop(DropReason::ReceiveTooSmall));
            self.outcome.count("datagram damaged", counters.get_drop(DropReason::BadIcrc));
        }
        self.outcome.packets = self.network.packets;
        self.outcome.simulated = Duration::from_nanos(self.network.now.as_nanos());
        self.outcome.trace_hash = self.network.trace_hash();
    }
}
