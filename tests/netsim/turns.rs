//! Tens of queue pairs between two hosts whose sockets hold few packets: they share a window and take turns.
//!
//! Requests of random sizes and kinds, most of them unsignaled, complete in order and whole, even if other queue pairs
//! are destroyed, reset or abandoned by their peers in the middle. Packets in flight never exceed the window, none
//! stays counted at the end, and without faults only packets that request an acknowledgement are sent again.

use std::sync::Arc;
use std::time::Duration;

use rdma_verbs::memory::{Backing, Region};
use rdma_verbs::sim::{Connection, Faults, Host, Network, Port, Random};
use rdma_verbs::types::{
    AccessFlags, CompletionStatus, Counter, Data, DomainId, Mtu, Operation, PeerCapabilities, Psn,
    QueuePairCapabilities, QueuePairState, RawCompletion, SendFlags, SendRequest, Sge,
};

use super::store::pattern;
use super::world::Outcome;

const REQUESTS: u64 = 12;
const DEPTH: u32 = 6;
const BASE: u64 = 0x10_0000;
const MOST_STEPS: u32 = 200_000;
/// Bytes that a packet occupies in a receive buffer besides its payload.
const CHARGE: u32 = 832;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// All requests complete.
    Whole,
    Destroyed,
    Reset,
    Failed,
    /// The peer's queue pair is destroyed and no longer responds.
    Abandoned,
}

/// A request, whose bytes have the same offset at both ends.
#[derive(Clone, Copy)]
struct Request {
    is_read: bool,
    length: u64,
}

/// A queue pair of the first host and its peer's.
struct Member {
    port: Port,
    server: Port,
    salt: u64,
    index: u64,
    requests: Vec<Request>,
    posted: u64,
    completed: u64,
    /// How it ends, and after how many requests.
    end: (End, u64),
    is_ended: bool,
    is_over: bool,
}

struct World {
    network: Network,
    random: Random,
    members: Vec<Member>,
    regions: [Arc<Region>; 2],
    /// Number of bytes of memory of each request.
    room: u64,
    window: u32,
    is_faultless: bool,
    outcome: Outcome,
}

/// Runs one seed to its end; panics if a promise is broken.
pub(crate) fn run(seed: u64, verbose: bool) -> Outcome {
    let mut world = World::new(seed, verbose);
    let mut steps = 0;
    while !world.members.iter().all(|member| member.is_over) || world.network.packets_in_flight() > 0 {
        steps += 1;
        assert!(steps < MOST_STEPS, "a queue pair waits forever");
        world.act();
        world.network.step(Duration::from_micros(50));
        world.judge_step();
    }
    world.finish();
    world.outcome
}

fn faults(random: &mut Random) -> Faults {
    Faults {
        loss: random.below(30) as u32,
        duplication: random.below(30) as u32,
        corruption: random.below(10) as u32,
        reordering: random.below(60) as u32,
        delay: Duration::from_micros(5),
        lateness: Duration::from_micros(50),
        ..Faults::default()
    }
}

impl World {
    fn new(seed: u64, verbose: bool) -> Self {
        let mut random = Random::new(seed ^ 0x7475_0001);
        let mut hosts = [1, 2].map(|at| Host::new([192, 0, 2, at].into(), random.number()));
        let (mtu, window) = (random.choose(&[Mtu::Mtu256, Mtu::Mtu1024, Mtu::Mtu4096]), random.between(16, 64) as u32);
        let receive_buffer_bytes = 2 * window * (mtu.bytes() + CHARGE);
        let peer =
            PeerCapabilities::STANDARD.version(1).segmentation_offload(true).receive_buffer_bytes(receive_buffer_bytes);
        let (count, room) = (random.between(10, 40), u64::from(mtu.bytes()) * random.between(1, 12));
        let regions = [0, 1].map(|at: usize| {
            let backing = Backing::from_vec(vec![0; (count * REQUESTS * room) as usize]);
            let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE;
            hosts[at].memory.register(DomainId(1), backing, Some(BASE), access).expect("a region")
        });
        let is_disturbed = random.chance(600);
        let members: Vec<_> =
            (0..count).map(|index| Member::new(index, &mut hosts, room, &mut random, is_disturbed)).collect();
        let is_faultless = random.chance(500);
        let faults = [(); 2].map(|()| if is_faultless { Faults::default() } else { faults(&mut random) });
        let mut network = Network::new(hosts.into(), faults.into(), random.number());
        network.observer = verbose.then_some(|line: &str| eprintln!("{line}"));
        let outcome = Outcome::default();
        let mut world = Self { network, random, members, regions, room, window, is_faultless, outcome };
        world.fill();
        world.connect(mtu, peer);
        world
    }

    /// Fills the memory that READs fetch and WRITEs send.
    fn fill(&self) {
        for member in &self.members {
            for (number, request) in (0..).zip(&member.requests) {
                let source = usize::from(request.is_read);
                self.regions[source]
                    .write_at(member.at(number, self.room), &member.bytes(number))
                    .expect("in the region");
            }
        }
    }

    fn connect(&mut self, path_mtu: Mtu, peer: PeerCapabilities) {
        let Self { network, random, members, .. } = self;
        let now = network.now;
        for member in members {
            let first = [0, 1].map(|_| Psn::new((0xff_ffff - random.below(100)) as u32));
            let ports = [&member.port, &member.server];
            for own in 0..2 {
                let connection = Connection {
                    peer_address: network.hosts[1 - own].address,
                    peer_qpn: ports[1 - own].qpn,
                    peer,
                    key: None,
                    path_mtu,
                    sq_psn: first[own],
                    rq_psn: first[1 - own],
                    access: AccessFlags::REMOTE,
                    rd_atomic: 4,
                    timeout: 12,
                    retry_cnt: 7,
                    rnr_retry: 7,
                    min_rnr_timer: 2,
                };
                network.hosts[own].connect(now, ports[own].qpn, &connection);
            }
        }
    }

    fn act(&mut self) {
        let Self { network, random, members, regions, room, outcome, .. } = self;
        for member in members.iter_mut().filter(|member| !member.is_over) {
            while member.may_post() && random.chance(700) {
                member.post(network, random, regions, *room);
            }
            let (end, after) = member.end;
            if end != End::Whole && !member.is_ended && member.posted >= after && random.chance(300) {
                member.end(network, outcome);
            }
        }
    }

    fn judge_step(&mut self) {
        let Self { network, members, regions, room, outcome, .. } = self;
        for member in members.iter_mut().filter(|member| !member.is_over) {
            member.judge_step(network, regions, *room, outcome);
        }
        let in_flight = network.hosts[0].endpoint.packets_in_flight(network.hosts[1].address);
        // Lost packets are not counted, and packets presumed lost may arrive late: the buffer holds twice the window.
        let most = if self.is_faultless { self.window } else { 2 * self.window };
        assert!(in_flight <= most, "{in_flight} packets in flight, {most} allowed");
        outcome.count_if(in_flight > self.window / 2, "turns: window in use");
    }

    fn finish(&mut self) {
        let Self { network, members, outcome, .. } = self;
        let endpoint = &network.hosts[0].endpoint;
        assert_eq!(endpoint.packets_in_flight(network.hosts[1].address), 0, "packets stay counted");
        let counters = endpoint.counters();
        let is_answered = members.iter().all(|member| member.end.0 != End::Abandoned);
        if self.is_faultless && is_answered {
            let (again, probes) = (counters.get(Counter::RetransmittedPackets), counters.get(Counter::TailProbe));
            assert_eq!(again, probes, "retransmitted packets, and probes");
            assert_eq!(counters.get(Counter::LocalAckTimeout), 0, "timeouts without faults");
            outcome.count("turns: without faults", 1);
            outcome.count("turns: asked while waiting", probes);
        }
        outcome.packets = network.packets;
        outcome.simulated = Duration::from_nanos(network.now.as_nanos());
        outcome.trace_hash = network.trace_hash();
    }
}

impl Member {
    fn new(index: u64, hosts: &mut [Host; 2], room: u64, random: &mut Random, is_disturbed: bool) -> Self {
        let cap = QueuePairCapabilities {
            max_send_wr: DEPTH,
            max_recv_wr: 1,
            max_send_sge: 1,
            ..QueuePairCapabilities::default()
        };
        let (port, server) = (hosts[0].create_queue_pair(cap), hosts[1].create_queue_pair(cap));
        let requests = (0..REQUESTS)
            .map(|_| {
                let length = if random.chance(300) { random.below(room.min(64)) } else { random.below(room + 1) };
                Request { is_read: random.chance(250), length }
            })
            .collect();
        let ends = [End::Destroyed, End::Reset, End::Failed, End::Abandoned];
        let end = if is_disturbed && random.chance(300) { random.choose(&ends) } else { End::Whole };
        let end = (end, random.between(1, REQUESTS));
        let salt = random.number();
        let (is_ended, is_over) = (false, false);
        Self { port, server, salt, index, requests, posted: 0, completed: 0, end, is_ended, is_over }
    }

    fn at(&self, number: u64, room: u64) -> u64 {
        (self.index * REQUESTS + number) * room
    }

    fn bytes(&self, number: u64) -> Vec<u8> {
        pattern(self.salt, number, self.requests[number as usize].length)
    }

    fn may_post(&self) -> bool {
        !self.is_ended && self.posted < REQUESTS && self.posted - self.completed < u64::from(DEPTH)
    }

    fn post(&mut self, network: &mut Network, random: &mut Random, regions: &[Arc<Region>; 2], room: u64) {
        let number = self.posted;
        let (at, request) = (self.at(number, room), self.requests[number as usize]);
        let (remote_addr, rkey) = (BASE + at, regions[1].rkey());
        let operation = match request.is_read {
            true => Operation::Read { remote_addr, rkey },
            false => Operation::Write { remote_addr, rkey },
        };
        // The last request that fits is signaled, otherwise its slot is never freed; and so is the last before an end.
        let may_be_last = self.end.0 != End::Whole && number + 1 >= self.end.1;
        let is_last = number + 1 == REQUESTS || number + 1 - self.completed == u64::from(DEPTH) || may_be_last;
        let flags = if is_last || random.chance(100) { SendFlags::SIGNALED } else { SendFlags::empty() };
        let sges = [Sge { addr: BASE + at, length: request.length as u32, lkey: regions[0].lkey() }];
        let request = SendRequest { wr_id: number, operation, flags, data: Data::Sges(&sges) };
        let now = network.time_at(0);
        assert!(network.hosts[0].post_send(now, &self.port, &request), "no room for a request");
        self.posted += 1;
    }

    /// Ends the member before its requests are done.
    fn end(&mut self, network: &mut Network, outcome: &mut Outcome) {
        self.is_ended = true;
        let (now, qpn) = (network.time_at(0), self.port.qpn);
        let name = match self.end.0 {
            End::Destroyed => {
                assert!(network.hosts[0].endpoint.destroy_queue_pair(qpn));
                self.is_over = true;
                "turns: destroyed"
            }
            End::Reset => {
                network.hosts[0].go_to(now, qpn, QueuePairState::Reset);
                self.is_over = true;
                "turns: reset"
            }
            End::Failed => {
                network.hosts[0].go_to(now, qpn, QueuePairState::Error);
                "turns: failed"
            }
            End::Abandoned | End::Whole => {
                assert!(network.hosts[1].endpoint.destroy_queue_pair(self.server.qpn));
                "turns: abandoned"
            }
        };
        outcome.count(name, 1);
    }

    /// Judges the completions.
    fn judge_step(&mut self, network: &Network, regions: &[Arc<Region>; 2], room: u64, outcome: &mut Outcome) {
        let mut completions = Vec::new();
        self.port.poll(&mut completions);
        for completion in completions {
            assert!(completion.wr_id >= self.completed, "requests complete in order");
            if completion.status.is_success() {
                (self.completed..=completion.wr_id).for_each(|number| self.judge(number, regions, room));
                outcome.count("turns: request done", completion.wr_id + 1 - self.completed);
            } else {
                self.judge_failure(&completion);
            }
            self.completed = completion.wr_id + 1;
        }
        let is_dead = network.hosts[0].endpoint.queue_pair_state(self.port.qpn) == Some(QueuePairState::Error);
        self.is_over = if is_dead { self.completed == self.posted } else { self.completed == REQUESTS };
        // Abandoning counts only if something was outstanding: otherwise nothing fails.
        self.is_over |= self.end.0 == End::Abandoned && self.is_ended && self.completed == self.posted;
    }

    /// Checks that the request's bytes have arrived.
    fn judge(&self, number: u64, regions: &[Arc<Region>; 2], room: u64) {
        let request = self.requests[number as usize];
        let mut found = vec![0; request.length as usize];
        let target = &regions[usize::from(!request.is_read)];
        target.read_at(self.at(number, room), &mut found).expect("the region's own bytes");
        assert!(found == self.bytes(number), "request {number} completed, and its bytes are elsewhere");
    }

    fn judge_failure(&self, completion: &RawCompletion) {
        let expected = [CompletionStatus::RetryExceededError, CompletionStatus::WorkRequestFlushedError];
        assert!(self.is_ended && expected.contains(&completion.status), "{completion:?} of a live connection");
    }
}
