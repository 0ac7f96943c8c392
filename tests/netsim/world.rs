//! One seed: a server and its clients (mostly one), connections on random terms, random requests in both directions,
//! faults.

use std::collections::BTreeMap;
use std::time::Duration;

use rdma_verbs::sim::{Connection, Host, Network, Random};
use rdma_verbs::types::{Counter, Psn, QueuePairState, Time};

use super::oracle::Side;
use super::referee::Referee;
use super::store::Layout;
use super::terms::Terms;

const MOST_STEPS: u64 = 3_000_000;
const MOST_PACKETS: u64 = 5_000_000;
/// The distance of a new connection's first PSNs from the old ones, if old packets may still be in flight.
const FAR: u32 = 0x30_0000;

/// The events of one seed, or of many.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) packets: u64,
    pub(crate) simulated: Duration,
    pub(crate) events: BTreeMap<&'static str, u64>,
    pub(crate) trace_hash: u64,
}

impl Outcome {
    pub(crate) fn merge(&mut self, other: &Outcome) {
        self.packets += other.packets;
        self.simulated += other.simulated;
        for (name, count) in &other.events {
            *self.events.entry(name).or_default() += count;
        }
    }

    pub(crate) fn count_if(&mut self, is_so: bool, name: &'static str) {
        self.count(name, is_so.into());
    }

    pub(crate) fn count(&mut self, name: &'static str, amount: u64) {
        *self.events.entry(name).or_default() += amount;
    }
}

/// A connection: the server's end, the client's end, and the referee.
struct Pair {
    sides: [Side; 2],
    referee: Referee,
}

impl Pair {
    fn is_done(&self, requests: usize) -> bool {
        self.sides.iter().all(|side| side.is_done(requests))
    }
}

struct World {
    network: Network,
    terms: Terms,
    random: Random,
    outcome: Outcome,
    pairs: Vec<Pair>,
}

/// Runs one seed to its end; panics if a promise is broken.
pub(crate) fn run(seed: u64, verbose: bool) -> Outcome {
    let mut world = World::new(seed, verbose);
    let rounds = world.random.choose(&[1, 1, 2, 3]);
    for round in 0..rounds {
        let is_last = round + 1 == rounds;
        // Some connections are cut off in the middle, some of them while their packets are in flight.
        let is_cut = !is_last && world.random.chance(600);
        let most_steps = if is_cut { world.random.between(10, 2_000) } else { u64::MAX };
        world.run_connections(most_steps);
        if !is_last {
            if is_cut {
                // The applications no longer see the results.
                world.network.step(world.terms.step);
            }
            let is_drained = !is_cut || world.random.chance(500);
            world.start_over(is_drained, FAR * (round + 1));
        }
    }
    world.collect();
    world.outcome
}

/// Returns initial PSNs, which often wrap soon.
fn initial_psn(random: &mut Random) -> Psn {
    let start = if random.chance(700) { 0xff_ffff - random.below(200) } else { random.number() };
    Psn::new(start as u32)
}

impl World {
    fn new(seed: u64, verbose: bool) -> Self {
        let mut random = Random::new(seed);
        let terms = Terms::random(&mut random);
        let create = if terms.shares_memory { Host::sharing_memory } else { Host::new };
        let hosts = terms.addresses.iter().map(|address| create(*address, random.number())).collect();
        let mut network = Network::new(hosts, terms.faults.clone(), random.number());
        network.observer = verbose.then_some(|line: &str| eprintln!("{line}"));
        network.sightings = Some(Vec::new());
        network.release = terms.release;
        if let Some(socket) = terms.socket {
            network.set_socket(0, socket);
        }
        if terms.shares_memory {
            (1..terms.addresses.len()).for_each(|client| network.share_memory(0, client));
        }
        let layout = Layout::new(terms.largest);
        let mut pairs = Vec::new();
        for client in 1..terms.addresses.len() {
            let sides = [0, client].map(|at| Side::new(at, &mut network.hosts[at], layout, &terms, &mut random));
            let first = [initial_psn(&mut random), initial_psn(&mut random)];
            pairs.push(Pair { sides, referee: Referee::new([0, client], first) });
        }
        let mut world = Self { network, terms, random, outcome: Outcome::default(), pairs };
        world.connect();
        world
    }

    fn connect(&mut self) {
        let Self { network, terms, outcome, pairs, .. } = self;
        for pair in pairs {
            let first = pair.referee.first();
            let numbers = pair.sides.each_ref().map(|side| side.port.qpn);
            for own in 0..2 {
                let side = &mut pair.sides[own];
                let peer_at = if own == 0 { pair.referee.client() } else { 0 };
                let connection = Connection {
                    peer_address: terms.addresses[peer_at],
                    peer_qpn: numbers[1 - own],
                    peer: terms.peer,
                    key: terms.keys[own],
                    path_mtu: terms.mtu,
                    sq_psn: first[own],
                    rq_psn: first[1 - own],
                    access: terms.access[own],
                    rd_atomic: terms.rd_atomic,
                    timeout: terms.timeout,
                    retry_cnt: terms.retry_cnt,
                    rnr_retry: terms.rnr_retry,
                    min_rnr_timer: terms.min_rnr_timer,
                };
                let now = network.time_at(side.at);
                network.hosts[side.at].connect(now, side.port.qpn, &connection);
                side.connected(network, now);
                ["state INIT", "state RTR", "state RTS"].into_iter().for_each(|state| outcome.count(state, 1));
            }
        }
    }

    /// Runs until all is done, or for at most `most_steps` steps.
    fn run_connections(&mut self, most_steps: u64) {
        let deadline = self.network.now + Duration::from_secs(4_000);
        let (mut steps, mut last_sent) = (0_u64, (self.network.packets, self.network.now));
        while steps < most_steps && !self.pairs.iter().all(|pair| pair.is_done(self.terms.requests)) {
            steps += 1;
            let now = self.network.now;
            if self.network.packets != last_sent.0 {
                last_sent = (self.network.packets, now);
            }
            let silence = now.saturating_since(last_sent.1);
            assert!(silence < self.terms.longest_silence(), "nothing happens any more: {}", self.unfinished());
            let has_time = now < deadline && steps < MOST_STEPS && self.network.packets < MOST_PACKETS;
            assert!(has_time, "no end: {}", self.unfinished());
            self.step();
        }
        let is_finished = steps < most_steps;
        for pair in &self.pairs {
            let [server, client] = &pair.sides;
            server.check_memory(&self.network, client, is_finished);
            client.check_memory(&self.network, server, is_finished);
        }
        if is_finished {
            self.check_in_flight();
        }
    }

    fn unfinished(&self) -> String {
        let pair = self.pairs.iter().find(|pair| !pair.is_done(self.terms.requests));
        pair.map_or(String::new(), |pair| format!("{:?} on {:?}", pair.sides, self.terms))
    }

    fn step(&mut self) {
        let Self { network, terms, random, outcome, pairs } = self;
        for pair in pairs.iter_mut() {
            for own in 0..2 {
                let (side, other) = pick(&mut pair.sides, own);
                side.act(network, terms, other, random, outcome);
            }
        }
        disturb(network, terms, random, outcome);
        network.step(terms.step);
        for sighting in network.sightings.iter_mut().flat_map(std::mem::take) {
            let client = sighting.from.max(sighting.to);
            pairs[client - 1].referee.see(&sighting, terms);
        }
        for pair in pairs {
            for own in 0..2 {
                let (side, other) = pick(&mut pair.sides, own);
                side.judge_step(network, terms, other, pair.referee.flow(own), random, outcome);
            }
            if pair.sides.iter().any(|side| side.is_in_error(network)) {
                pair.referee.end();
            }
        }
    }

    /// Checks that no packet stays counted as in flight when all is done.
    fn check_in_flight(&self) {
        for (at, host) in self.network.hosts.iter().enumerate() {
            for peer in &self.terms.addresses {
                let count = host.endpoint.packets_in_flight(*peer);
                assert_eq!(count, 0, "host {at} counts packets in flight to {peer} when nothing is");
            }
        }
    }

    /// Takes both ends to RESET and connects them again, with the same queue pair numbers.
    fn start_over(&mut self, is_drained: bool, far: u32) {
        for pair in &mut self.pairs {
            for side in &mut pair.sides {
                let now = self.network.time_at(side.at);
                self.network.hosts[side.at].go_to(now, side.port.qpn, QueuePairState::Reset);
                side.start_over();
                self.outcome.count("state RESET", 1);
            }
        }
        self.check_in_flight();
        if is_drained {
            self.drain_network();
        } else {
            self.outcome.count("restart in traffic", 1);
        }
        for pair in &mut self.pairs {
            let before = pair.referee.first();
            pair.referee.collect(&mut self.outcome);
            let first = match self.random.below(2) {
                _ if is_drained => before.map(|_| initial_psn(&mut self.random)),
                0 => before.map(|psn| psn.plus(far)),
                _ => before.map(|psn| psn.minus(far)),
            };
            pair.referee = Referee::new([0, pair.referee.client()], first);
        }
        self.network.sightings.iter_mut().for_each(Vec::clear);
        self.connect();
    }

    /// Waits until all packets in flight have arrived, with no connection to receive them.
    fn drain_network(&mut self) {
        let until = self.network.now + Duration::from_secs(2);
        let mut steps = 0;
        while self.network.now < until || self.network.packets_in_flight() > 0 {
            steps += 1;
            assert!(steps < MOST_STEPS, "the links never fall silent");
            self.network.step(Duration::from_millis(100));
        }
    }

    /// Adds up the endpoints' counters.
    fn collect(&mut self) {
        let (network, outcome) = (&self.network, &mut self.outcome);
        self.pairs.iter().for_each(|pair| pair.referee.collect(outcome));
        outcome.packets = network.packets;
        outcome.simulated = network.now.saturating_since(Time::ZERO);
        outcome.trace_hash = network.trace_hash();
        outcome.count("PSN wrap", network.wraps);
        outcome.count("forged packet", network.forged);
        outcome.count("response shortened", network.shortened);
        if self.terms.addresses.len() > 2 {
            outcome.count("crowd", 1);
        }
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
            Counter::DirectRequests,
        ];
        for host in &network.hosts {
            let counters = host.endpoint.counters();
            for counter in watched {
                outcome.count(counter.name(), counters.get(counter));
            }
        }
    }
}

/// Makes clocks jump and stops hosts.
fn disturb(network: &mut Network, terms: &Terms, random: &mut Random, outcome: &mut Outcome) {
    let at = random.below(network.hosts.len() as u64) as usize;
    if terms.jumps && random.chance(2) {
        outcome.count("clock jump", 1);
        network.jump(at, Duration::from_millis(random.choose(&[1, 100, 10_000, 3_600_000])));
    }
    if terms.shares_memory && random.chance(10) {
        disturb_memory(network, at, random);
    }
    if terms.stops && random.chance(2) && !network.is_stopped(at) {
        outcome.count("host stopped", 1);
        network.stop(at, Duration::from_millis(random.choose(&[1, 100, 3_000])));
    }
}

/// Begins and ends links through memory between this host and the server, and direct accesses.
fn disturb_memory(network: &mut Network, at: usize, random: &mut Random) {
    match random.below(5) {
        0 if at != 0 => network.end_shared_memory(0, at),
        1 => network.hosts[at].allow_direct_access(false),
        2 => network.hosts[at].allow_direct_access(true),
        _ if at != 0 => network.share_memory(0, at),
        _ => {}
    }
}

fn pick(sides: &mut [Side; 2], own: usize) -> (&mut Side, &mut Side) {
    let [first, second] = sides;
    if own == 0 { (first, second) } else { (second, first) }
}
