//! Unreliable connections on faulty links. A message may vanish; one that arrives is whole and intact, arrives in the
//! order of sending and never twice, and at the sender all requests complete in order, even if the messages are lost.

use std::time::Duration;

use rdma_verbs::memory::{Backing, Region};
use rdma_verbs::sim::{Connection, Faults, Host, Network, Port, Random};
use rdma_verbs::types::{
    AccessFlags, CompletionOpcode, Counter, Data, DomainId, DropReason, Mtu, Operation, PeerCapabilities, Psn,
    QueuePairCapabilities, QueuePairState, QueuePairType, RawCompletion, ReceiveRequest, SendFlags, SendRequest, Sge,
};

use super::keys::keys_of;
use super::world::Outcome;

const MESSAGES: u64 = 150;
/// Size of the slot that each message and each receive has.
const SLOT_BYTES: u64 = 8 << 10;
const BASE: u64 = 0x10_0000;
const MOST_STEPS: u32 = 100_000;
const OURS: PeerCapabilities =
    PeerCapabilities::STANDARD.version(1).segmentation_offload(true).receive_buffer_bytes(1 << 20);

/// The state of one end: the requests posted and the completions seen.
struct Side {
    port: Port,
    region: std::sync::Arc<Region>,
    receives: u64,
    received: u64,
    completed: u64,
    /// The number of the last message that arrived.
    last: Option<u64>,
}

/// Returns the offset of a slot: the sender's slots lie first, then those that its peer writes to, then the receives.
fn slot_offset(kind: u64, number: u64) -> u64 {
    (kind * MESSAGES + number) * SLOT_BYTES
}

fn length(seed: u64, number: u64) -> u64 {
    let mixed = (seed ^ number << 20).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    if mixed.is_multiple_of(3) { 1 + mixed / 3 % 1500 } else { 1 + (mixed >> 7) % SLOT_BYTES }
}

fn bytes(number: u64, length: u64) -> Vec<u8> {
    (0..length).map(|at| (number.wrapping_mul(151) + at.wrapping_mul(7) + at / 256) as u8).collect()
}

/// Returns the kind of a message: every third one is a WRITE with immediate data.
fn is_write(number: u64) -> bool {
    number % 3 == 2
}

impl Side {
    fn new(host: &mut Host) -> Self {
        let cap = QueuePairCapabilities { max_send_wr: 16, max_recv_wr: 16, ..QueuePairCapabilities::default() };
        let port = host.create_queue_pair_of(QueuePairType::UnreliableConnection, cap);
        let backing = Backing::from_vec(vec![0; slot_offset(3, 0) as usize]);
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE;
        let region = host.memory.register(DomainId(1), backing, Some(BASE), access).expect("a region");
        Self { port, region, receives: 0, received: 0, completed: 0, last: None }
    }

    fn sge(&self, offset: u64, length: u64) -> Sge {
        Sge { addr: BASE + offset, length: length as u32, lkey: self.region.lkey() }
    }

    /// Posts the message of this number. Returns false if the queue is full.
    fn post(&self, network: &mut Network, at: usize, seed: u64, number: u64, peer: &Side) -> bool {
        let length = length(seed, number);
        self.region.write_at(slot_offset(0, number), &bytes(number, length)).expect("in the region");
        let operation = match is_write(number) {
            true => Operation::WriteWithImmediate {
                remote_addr: BASE + slot_offset(1, number),
                rkey: peer.region.rkey(),
                immediate: number as u32,
            },
            false => Operation::SendWithImmediate(number as u32),
        };
        let sges = [self.sge(slot_offset(0, number), length)];
        let request = SendRequest { wr_id: number, operation, flags: SendFlags::SIGNALED, data: Data::Sges(&sges) };
        let now = network.time_at(at);
        network.hosts[at].post_send(now, &self.port, &request)
    }

    /// Posts a receive. Returns false if the queue is full.
    fn post_receive(&mut self, network: &mut Network, at: usize) -> bool {
        let sges = [self.sge(slot_offset(2, self.receives), SLOT_BYTES)];
        let (now, request) = (network.time_at(at), ReceiveRequest { wr_id: self.receives, sges: &sges });
        let posted = network.hosts[at].post_receive(now, &self.port, &request);
        self.receives += u64::from(posted);
        posted
    }

    fn check(&mut self, seed: u64, completion: &RawCompletion, outcome: &mut Outcome) {
        assert!(completion.status.is_success(), "{completion:?}");
        if matches!(completion.opcode, CompletionOpcode::Send | CompletionOpcode::Write) {
            assert_eq!(completion.wr_id, self.completed, "requests complete in order");
            self.completed += 1;
            return;
        }
        assert_eq!(completion.wr_id, self.received, "receives complete in order, none is left out");
        self.received += 1;
        let number = u64::from(completion.immediate_or_key);
        assert!(self.last < Some(number), "message {number} arrived after {:?}", self.last);
        self.last = Some(number);
        let length = length(seed, number);
        assert_eq!(u64::from(completion.byte_len), length, "message {number} is not whole");
        let from = if is_write(number) { slot_offset(1, number) } else { slot_offset(2, completion.wr_id) };
        let mut found = vec![0; length as usize];
        self.region.read_at(from, &mut found).expect("in the region");
        assert!(found == bytes(number, length), "message {number} has wrong bytes");
        outcome.count(if is_write(number) { "unreliable write came" } else { "unreliable message came" }, 1);
    }
}

fn faults(random: &mut Random) -> Faults {
    let mut rate = |most: u64| if random.chance(600) { random.below(most) as u32 } else { 0 };
    Faults {
        loss: rate(150),
        duplication: rate(150),
        corruption: rate(50),
        reordering: rate(150),
        delay: Duration::from_micros(10),
        lateness: Duration::from_micros(200),
        bursts: (rate(10) > 5).then_some((5, 200)),
        ..Faults::default()
    }
}

/// Runs one seed to its end; panics if a promise is broken.
pub(crate) fn run(seed: u64, verbose: bool) -> Outcome {
    let mut random = Random::new(seed);
    let is_perfect = random.chance(150);
    let addresses = ["2001:db8::1", "2001:db8::2"].map(|address| address.parse().expect("an address"));
    let hosts = addresses.map(|address| Host::new(address, random.number()));
    let both = [0, 1].map(|_| if is_perfect { Faults::default() } else { faults(&mut random) });
    let mut network = Network::new(hosts.into(), both.into(), random.number());
    network.observer = verbose.then_some(|line: &str| eprintln!("{line}"));
    let mut sides = [0, 1].map(|at| Side::new(&mut network.hosts[at]));
    let first = [0, 1].map(|_| Psn::new((0xff_ffff - random.below(400)) as u32));
    let peer = if random.chance(500) { OURS } else { PeerCapabilities::STANDARD };
    let path_mtu = random.choose(Mtu::ALL);
    for at in [0, 1] {
        let connection = Connection {
            peer_address: addresses[1 - at],
            peer_qpn: sides[1 - at].port.qpn,
            peer,
            key: keys_of(peer, seed)[at],
            path_mtu,
            sq_psn: first[at],
            rq_psn: first[1 - at],
            access: AccessFlags::REMOTE_WRITE,
            rd_atomic: 0,
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            min_rnr_timer: 0,
        };
        let (now, qpn) = (network.time_at(at), sides[at].port.qpn);
        network.hosts[at].connect(now, qpn, &connection);
    }
    // Some receivers are often late, so that messages find no receive.
    let diligence = if is_perfect { 1000 } else { random.choose(&[1000, 900, 300]) };
    play(seed, network, &mut sides, &mut random, diligence, is_perfect)
}

fn play(
    seed: u64,
    mut network: Network,
    sides: &mut [Side; 2],
    random: &mut Random,
    diligence: u32,
    is_perfect: bool,
) -> Outcome {
    let mut outcome = Outcome::default();
    let mut posted = [0, 0];
    let mut completions = Vec::new();
    for step in 0.. {
        assert!(step < MOST_STEPS, "the messages do not end");
        for at in [0, 1] {
            while random.chance(diligence) && sides[at].receives < MESSAGES && sides[at].post_receive(&mut network, at)
            {
            }
            let [left, right] = sides;
            let (own, other) = if at == 0 { (left, right) } else { (right, left) };
            // On a perfect link a message is only sent if it has a receive.
            let has_receive = !is_perfect || posted[at] < other.receives;
            if posted[at] < MESSAGES && has_receive && own.post(&mut network, at, seed, posted[at], other) {
                posted[at] += 1;
            }
        }
        network.step(Duration::from_micros(50));
        for side in sides.iter_mut() {
            completions.clear();
            side.port.poll(&mut completions);
            completions.iter().for_each(|completion| side.check(seed, completion, &mut outcome));
        }
        if sides.iter().all(|side| side.completed == MESSAGES) && network.packets_in_flight() == 0 {
            break;
        }
    }
    finish(&network, sides, is_perfect, &mut outcome);
    outcome
}

fn finish(network: &Network, sides: &[Side; 2], is_perfect: bool, outcome: &mut Outcome) {
    for (host, side) in network.hosts.iter().zip(sides) {
        let state = host.endpoint.queue_pair_state(side.port.qpn);
        assert_eq!(state, Some(QueuePairState::ReadyToSend), "no loss ends an unreliable connection");
        assert_eq!(side.port.poll_event().filter(|event| !format!("{event:?}").contains("Established")), None);
        let counters = host.endpoint.counters();
        assert_eq!(counters.get(Counter::RetransmittedPackets), 0);
        if is_perfect {
            assert_eq!((side.last, counters.total_drops()), (Some(MESSAGES - 1), 0), "a perfect link loses nothing");
            outcome.count("unreliable on a perfect link", 1);
        }
        outcome.count("unreliable gap", counters.get(Counter::OutOfSequenceRequest));
        outcome.count("unreliable out of order", counters.get_drop(DropReason::OutOfOrder));
        outcome.count("unreliable repeated or late", counters.get_drop(DropReason::StaleDuplicate));
        outcome.count("unreliable without a receive", counters.get_drop(DropReason::NoReceive));
    }
    outcome.packets = network.packets;
    outcome.trace_hash = network.trace_hash();
    outcome.simulated = Duration::from_nanos(network.now.as_nanos());
}
