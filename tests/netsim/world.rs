//! One seed: two hosts, a connection on random terms, random requests in both directions, faults.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use rdma_verbs::memory::Backing;
use rdma_verbs::sim::{Connection, Faults, Host, Network, Random};
use rdma_verbs::types::{
    AccessFlags, Counter, DomainId, Mtu, PeerCapabilities, Psn, QueuePairCapabilities, QueuePairState, Time,
};

use super::oracle::{Layout, SLOTS, Side};

/// What happened in a seed, or in many.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) packets: u64,
    pub(crate) events: BTreeMap<&'static str, u64>,
    pub(crate) trace_hash: u64,
}

impl Outcome {
    pub(crate) fn merge(&mut self, other: &Outcome) {
        self.packets += other.packets;
        for (name, count) in &other.events {
            *self.events.entry(name).or_default() += count;
        }
    }

    pub(crate) fn count(&mut self, name: &'static str, amount: u64) {
        *self.events.entry(name).or_default() += amount;
    }
}

/// The terms of a seed.
pub(crate) struct Terms {
    pub(crate) mtu: Mtu,
    pub(crate) peer: PeerCapabilities,
    pub(crate) faults: [Faults; 2],
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) timeout: u8,
    pub(crate) rd_atomic: u8,
    /// Longest message.
    pub(crate) largest: u64,
    /// Requests of each side.
    pub(crate) requests: usize,
    pub(crate) addresses: [IpAddr; 2],
    /// Permille of the requests that are wrong on purpose.
    pub(crate) wrong: u32,
    /// How reluctantly receives are posted, in permille of the steps.
    pub(crate) receives: u32,
}

const OURS: PeerCapabilities =
    PeerCapabilities { version: 1, segmentation_offload: true, receive_buffer_bytes: 8 << 20, extensions: 0 };

fn random_faults(random: &mut Random) -> Faults {
    let delay = Duration::from_nanos(random.choose(&[2_000, 10_000, 50_000, 1_000_000, 20_000_000]));
    let is_calm = random.chance(250);
    let rate = |random: &mut Random, limit| if is_calm { 0 } else { random.below(limit) as u32 };
    Faults {
        loss: rate(random, 101),
        duplication: rate(random, 40),
        corruption: rate(random, 30),
        reordering: rate(random, 150),
        delay,
        lateness: delay * random.between(1, 10) as u32,
        partitions: Vec::new(),
    }
}

/// The code of a timeout that is longer than any round trip: answers that are merely late are not lost.
fn shortest_timeout(faults: &[Faults; 2]) -> u8 {
    let round_trip: Duration = faults.iter().map(|faults| faults.delay + faults.lateness).sum();
    let longest_hold = Duration::from_millis(1);
    (8..31).find(|code| Duration::from_nanos(4_096 << code) > round_trip + longest_hold).unwrap_or(31)
}

fn random_terms(random: &mut Random) -> Terms {
    let mut faults = [random_faults(random), random_faults(random)];
    if random.chance(100) {
        // Parted for a while, or for ever.
        let from = Time::from_nanos(random.between(1_000, 5_000_000));
        let length = Duration::from_millis(random.choose(&[1, 20, 100, 100_000_000]));
        let which = random.below(2) as usize;
        faults[which].partitions.push((from, from + length));
    }
    // Over IPv4 a damaged packet of a stranger passes the ICRC once in 65,536 times; over IPv6 never.
    let is_v6 = random.chance(500);
    let is_stranger = random.chance(500) && (is_v6 || faults.iter().all(|faults| faults.corruption == 0));
    let addresses = if is_v6 { ["2001:db8::1", "2001:db8::2"] } else { ["192.0.2.1", "192.0.2.2"] };
    let mtu = random.choose(&Mtu::ALL);
    Terms {
        mtu,
        peer: if is_stranger { PeerCapabilities::STRANGER } else { OURS },
        retry_cnt: random.between(3, 7) as u8,
        rnr_retry: random.choose(&[2, 6, 7, 7, 7]),
        timeout: shortest_timeout(&faults) + random.below(3) as u8,
        faults,
        rd_atomic: random.choose(&[1, 2, 3, 8, 16]),
        largest: random.choose(&[64, 2_000, 20_000, 100_000]),
        requests: random.between(20, 90) as usize,
        addresses: addresses.map(|address| address.parse().unwrap()),
        wrong: if random.chance(250) { 10 } else { 0 },
        receives: random.choose(&[20, 200, 800]),
    }
}

/// The connection as end `own` sees it.
fn connection(terms: &Terms, own: usize, sides: &[Side; 2], psns: [Psn; 2], random: &mut Random) -> Connection {
    Connection {
        peer_address: terms.addresses[1 - own],
        peer_qpn: sides[1 - own].port.qpn,
        peer: terms.peer,
        path_mtu: terms.mtu,
        sq_psn: psns[own],
        rq_psn: psns[1 - own],
        access: AccessFlags::REMOTE,
        rd_atomic: terms.rd_atomic,
        timeout: terms.timeout,
        retry_cnt: terms.retry_cnt,
        rnr_retry: terms.rnr_retry,
        min_rnr_timer: random.between(1, 14) as u8,
    }
}

fn create_sides(network: &mut Network, terms: &Terms, random: &mut Random) -> [Side; 2] {
    let layout = Layout::new(terms.largest);
    [0, 1].map(|at| {
        let host = &mut network.hosts[at];
        let cap = QueuePairCapabilities {
            max_send_wr: random.between(1, SLOTS) as u32,
            max_recv_wr: SLOTS as u32,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 128,
        };
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE;
        let backing = Backing::from_vec(vec![0; layout.region_bytes()]);
        let region = host.memory.register(DomainId(1), backing, Some(0x1000_0000), access).unwrap();
        let port = host.create_queue_pair(cap);
        Side::new(at, port, region, layout, cap.max_send_wr, random.number())
    })
}

/// Initial numbers, often such that they wrap soon.
fn initial_psn(random: &mut Random) -> Psn {
    let start = if random.chance(700) { 0xff_ffff - random.below(200) } else { random.number() };
    Psn::new(start as u32)
}

/// Runs one seed to its end; panics if a promise is broken.
pub(crate) fn run(seed: u64, verbose: bool) -> Outcome {
    let mut random = Random::new(seed);
    let terms = random_terms(&mut random);
    let hosts = [0, 1].map(|at| Host::new(terms.addresses[at], random.number()));
    let mut network = Network::new(hosts.into(), terms.faults.to_vec(), random.number());
    network.verbose = verbose;
    let mut outcome = Outcome::default();
    let mut sides = create_sides(&mut network, &terms, &mut random);
    let rounds = if random.chance(300) { 2 } else { 1 };
    for round in 0..rounds {
        run_connection(&mut network, &mut sides, &terms, &mut random, &mut outcome);
        if round + 1 < rounds {
            settle(&mut network);
            for side in &mut sides {
                network.hosts[side.at].go_to(network.now, side.port.qpn, QueuePairState::Reset);
                side.start_over();
                outcome.count("state RESET", 1);
            }
            // What is still on its way must not reach the new connection: let it arrive nowhere.
            settle(&mut network);
        }
    }
    collect(&network, &mut outcome);
    outcome
}

fn settle(network: &mut Network) {
    let until = network.now + Duration::from_secs(2);
    while network.now < until {
        network.step(Duration::from_millis(100));
    }
}

fn run_connection(
    network: &mut Network,
    sides: &mut [Side; 2],
    terms: &Terms,
    random: &mut Random,
    outcome: &mut Outcome,
) {
    let psns = [initial_psn(random), initial_psn(random)];
    for at in 0..2 {
        let connection = connection(terms, at, sides, psns, random);
        network.hosts[at].connect(network.now, sides[at].port.qpn, &connection);
        outcome.count("state INIT", 1);
        outcome.count("state RTR", 1);
        outcome.count("state RTS", 1);
    }
    let keys = [sides[0].region.rkey(), sides[1].region.rkey()];
    let deadline = network.now + Duration::from_secs(4_000);
    let mut steps = 0_u64;
    while sides.iter().any(|side| !side.is_done(terms.requests)) {
        steps += 1;
        assert!(network.now < deadline && steps < 3_000_000, "no end: {:?}", [&sides[0], &sides[1]]);
        for at in 0..2 {
            let (side, other) = pick(sides, at);
            side.act(network, terms, keys[1 - at], other, random, outcome);
        }
        network.step(Duration::from_micros(200));
        for at in 0..2 {
            let (side, other) = pick(sides, at);
            side.look(network, terms, other, outcome);
        }
    }
    sides.iter().for_each(|side| side.check_memory(&sides[1 - side.at]));
}

fn pick(sides: &mut [Side; 2], at: usize) -> (&mut Side, &mut Side) {
    let [first, second] = sides;
    if at == 0 { (first, second) } else { (second, first) }
}

/// Adds up what the endpoints counted.
fn collect(network: &Network, outcome: &mut Outcome) {
    outcome.packets = network.packets;
    outcome.trace_hash = network.trace_hash();
    outcome.count("PSN wrap", network.wraps);
    let watched = [
        Counter::DuplicateRequest,
        Counter::OutOfSequenceRequest,
        Counter::ReorderedRequest,
        Counter::ReceivedRnr,
        Counter::SentRnr,
        Counter::ReceivedSequenceNak,
        Counter::SentSequenceNak,
        Counter::ReceivedNak,
        Counter::SentNak,
        Counter::LocalAckTimeout,
        Counter::TailProbe,
        Counter::RetransmittedPackets,
        Counter::ReadRepair,
        Counter::DuplicateResponse,
        Counter::RetryExceeded,
        Counter::RnrRetryExceeded,
        Counter::Flushed,
    ];
    for host in &network.hosts {
        let counters = host.endpoint.counters();
        for counter in watched {
            outcome.count(counter.name(), counters.get(counter));
        }
    }
}
