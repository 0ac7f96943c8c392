//! Memory windows and invalidation on faulty links. In each round a type 2 window is bound again; the peer writes and
//! reads through its key, and then the key is revoked, by the peer's SEND or by its owner. No packet sent before the
//! revocation is refused, however often it is retransmitted; none touches the memory afterwards, and none ever touches
//! memory beside the window. In the last round one request trespasses.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use rdma_verbs::memory::{Backing, Region, Window};
use rdma_verbs::sim::{Connection, Host, Network, Port, Random};
use rdma_verbs::types::{
    AccessFlags, CompletionFlags, CompletionOpcode, CompletionStatus, Data, DomainId, MemoryWindowType, Mtu, Operation,
    PeerCapabilities, Psn, QueuePairCapabilities, RawCompletion, ReceiveRequest, Rkey, SendFlags, SendRequest, Sge,
};

use super::shared::{OURS, random_faults};
use super::store::pattern;
use super::world::Outcome;

const ROUNDS: u64 = 10;
const DEPTH: u32 = 16;
const BASE: u64 = 0x10_0000;
const REGION_BYTES: u64 = 16 << 10;
const LARGEST_WINDOW: u64 = 6 << 10;
const MOST_PARTS: u64 = 6;
const MESSAGE_BYTES: u64 = 700;
const MOST_STEPS: u32 = 400_000;
/// A connection that fails by itself has lost at least this many packets.
const TRIES: u64 = 8;

/// A request that exceeds its permissions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trespass {
    None,
    /// A WRITE right behind the SEND that revokes the key.
    AfterInvalidation,
    /// A WRITE that ends behind the window, but within the region.
    BeyondTheWindow,
    /// A WRITE through a window for READs.
    WithoutRight,
    /// A WRITE with the key of the previous round.
    WithOldKey,
    /// A WRITE by another queue pair of the same domain.
    FromElsewhere,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Idle,
    Binding,
    /// The peer works on it.
    Open,
    /// The owner revokes it.
    Revoking,
    /// The trespass is in flight.
    Last,
}

/// A request of the peer and its expected completion.
#[derive(Clone, Debug)]
struct Posted {
    number: u64,
    opcode: CompletionOpcode,
    status: CompletionStatus,
    /// The offset and the expected bytes of a READ.
    fetches: Option<(u64, Vec<u8>)>,
}

struct End {
    at: usize,
    port: Port,
    region: Arc<Region>,
}

struct World {
    network: Network,
    random: Random,
    owner: End,
    user: End,
    /// A second connection to the owner: the owner's end and the other one.
    elsewhere: [End; 2],
    window: Arc<Window>,
    phase: Phase,
    round: u64,
    keys: [Rkey; 2],
    /// Offset and length of this round's window.
    range: (u64, u64),
    rights: AccessFlags,
    is_revoked_by_peer: bool,
    trespass: Trespass,
    /// The expected contents of the owner's memory; within an open window, as of its revocation.
    model: Vec<u8>,
    outstanding: VecDeque<Posted>,
    posted: u64,
    has_receive: bool,
    is_over: bool,
    outcome: Outcome,
}

impl End {
    fn new(at: usize, host: &mut Host, bytes: u64) -> Self {
        let cap = QueuePairCapabilities { max_send_wr: DEPTH, max_recv_wr: 4, ..QueuePairCapabilities::default() };
        let port = host.create_queue_pair(cap);
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::MEMORY_WINDOW_BIND;
        let backing = Backing::from_vec(vec![0; bytes as usize]);
        let region = host.memory.register(DomainId(1), backing, Some(BASE), access).expect("a region");
        Self { at, port, region }
    }

    fn post(&self, network: &mut Network, wr_id: u64, operation: Operation, source: (u64, u64)) {
        self.post_with(network, wr_id, operation, source, SendFlags::SIGNALED);
    }

    fn post_with(
        &self,
        network: &mut Network,
        wr_id: u64,
        operation: Operation,
        (offset, length): (u64, u64),
        flags: SendFlags,
    ) {
        let sges = [Sge { addr: BASE + offset, length: length as u32, lkey: self.region.lkey() }];
        let sges = if length == 0 { &[][..] } else { &sges[..] };
        let request = SendRequest { wr_id, operation, flags, data: Data::Sges(sges) };
        let now = network.time_at(self.at);
        assert!(network.hosts[self.at].post_send(now, &self.port, &request), "no room for a request");
    }

    fn read(&self, offset: u64, length: u64) -> Vec<u8> {
        let mut bytes = vec![0; length as usize];
        self.region.read_at(offset, &mut bytes).expect("the region's own bytes");
        bytes
    }
}

/// Runs one seed to its end; panics if a promise is broken.
pub(crate) fn run(seed: u64, verbose: bool) -> Outcome {
    let mut world = World::new(seed, verbose);
    let mut steps = 0;
    while !world.is_over || world.network.packets_in_flight() > 0 {
        steps += 1;
        assert!(steps < MOST_STEPS, "no end: {:?} of round {}", world.phase, world.round);
        if !world.is_over {
            world.act();
        }
        world.network.step(Duration::from_micros(50));
        if !world.is_over {
            world.judge_step();
        }
        world.check_memory();
    }
    world.outcome.packets = world.network.packets;
    world.outcome.simulated = Duration::from_nanos(world.network.now.as_nanos());
    world.outcome.trace_hash = world.network.trace_hash();
    world.outcome
}

impl World {
    fn new(seed: u64, verbose: bool) -> Self {
        let mut random = Random::new(seed ^ 0x5a5a_0003);
        let mut hosts: Vec<_> =
            (1..=3).map(|at| Host::new([0x2001, 0xdb8, 0, 0, 0, 0, 0, at].into(), random.number())).collect();
        let owner = End::new(0, &mut hosts[0], REGION_BYTES);
        let user = End::new(1, &mut hosts[1], REGION_BYTES);
        let elsewhere = [0, 2].map(|at| End::new(at, &mut hosts[at], 64));
        let window = hosts[0].memory.alloc_window(DomainId(1), MemoryWindowType::Type2, 1).expect("a window");
        let faults = hosts.iter().map(|_| random_faults(&mut random)).collect();
        let mut network = Network::new(hosts, faults, random.number());
        network.observer = verbose.then_some(|line: &str| eprintln!("{line}"));
        let (peer, mtu) = (random.choose(&[OURS, PeerCapabilities::STANDARD]), random.choose(Mtu::ALL));
        for ends in [[&owner, &user], [&elsewhere[0], &elsewhere[1]]] {
            connect(&mut network, ends, peer, mtu, &mut random);
        }
        Self {
            network,
            random,
            owner,
            user,
            elsewhere,
            keys: [window.rkey(); 2],
            window,
            phase: Phase::Idle,
            round: 0,
            range: (0, 0),
            rights: AccessFlags::empty(),
            is_revoked_by_peer: false,
            trespass: Trespass::None,
            model: vec![0; REGION_BYTES as usize],
            outstanding: VecDeque::new(),
            posted: 0,
            has_receive: false,
            is_over: false,
            outcome: Outcome::default(),
        }
    }

    fn act(&mut self) {
        if !self.has_receive && self.random.chance(200) {
            let sges = [Sge { addr: BASE, length: MESSAGE_BYTES as u32, lkey: self.owner.region.lkey() }];
            let request = ReceiveRequest { wr_id: self.round, sges: &sges };
            let now = self.network.time_at(0);
            self.has_receive = self.network.hosts[0].post_receive(now, &self.owner.port, &request);
        }
        if self.phase == Phase::Idle && self.outstanding.is_empty() {
            self.bind();
        }
    }

    /// Begins a round. The first bytes of the region are for messages.
    fn bind(&mut self) {
        let random = &mut self.random;
        let is_last = self.round + 1 == ROUNDS;
        let tricks = [
            Trespass::AfterInvalidation,
            Trespass::BeyondTheWindow,
            Trespass::WithoutRight,
            Trespass::WithOldKey,
            Trespass::FromElsewhere,
        ];
        self.trespass = if is_last { random.choose(&tricks) } else { Trespass::None };
        let length = random.between(8, LARGEST_WINDOW / 8) * 8;
        let first = MESSAGE_BYTES.next_multiple_of(8);
        let offset = first + random.below((REGION_BYTES - 8 - first - length) / 8) * 8;
        self.range = (offset, length);
        self.is_revoked_by_peer = random.chance(600);
        let write =
            if self.trespass == Trespass::WithoutRight { AccessFlags::empty() } else { AccessFlags::REMOTE_WRITE };
        self.rights = AccessFlags::REMOTE_READ | write;
        let key = Rkey(self.keys[1].0 & !0xff | self.keys[1].0.wrapping_add(1) & 0xff);
        self.keys = [self.keys[1], key];
        let bind = Operation::BindMemoryWindow {
            rkey: key,
            lkey: self.owner.region.lkey(),
            addr: BASE + offset,
            length,
            access: self.rights,
        };
        self.owner.post(&mut self.network, self.round, bind, (0, 0));
        self.phase = Phase::Binding;
    }

    /// Posts the peer's requests of this round, through the open window.
    fn use_window(&mut self) {
        let (offset, length) = self.range;
        let count = self.random.between(1, MOST_PARTS);
        let part = (length / count) & !7;
        for number in 0..count {
            self.use_part(offset + number * part, part);
        }
        let key = self.keys[1];
        let message = (0, self.random.below(MESSAGE_BYTES + 1));
        match self.trespass {
            Trespass::None => {
                let operation =
                    if self.is_revoked_by_peer { Operation::SendWithInvalidate(key) } else { Operation::Send };
                self.post(operation, message, CompletionOpcode::Send, CompletionStatus::Success);
                self.phase = Phase::Open;
            }
            trespass => {
                self.trespass(trespass, key, message);
                self.phase = Phase::Last;
            }
        }
    }

    fn trespass(&mut self, trespass: Trespass, key: Rkey, message: (u64, u64)) {
        let (offset, length) = self.range;
        let write = |key, offset| Operation::Write { remote_addr: BASE + offset, rkey: key };
        let (operation, length) = match trespass {
            Trespass::AfterInvalidation => {
                let revoke = Operation::SendWithInvalidate(key);
                self.post(revoke, message, CompletionOpcode::Send, CompletionStatus::Success);
                (write(key, offset), 8)
            }
            Trespass::BeyondTheWindow => (write(key, offset), length + 8),
            Trespass::WithOldKey => (write(self.keys[0], offset), 8),
            _ => (write(key, offset), 8),
        };
        let source = (0, length);
        if trespass == Trespass::FromElsewhere {
            return self.elsewhere[1].post(&mut self.network, 0, operation, source);
        }
        self.post(operation, source, CompletionOpcode::Write, CompletionStatus::RemoteAccessError);
    }

    /// Posts one request through the window, to a range that no other request of this round touches.
    fn use_part(&mut self, offset: u64, length: u64) {
        if length < 8 {
            return;
        }
        let (remote_addr, rkey) = (BASE + offset, self.keys[1]);
        let may_write = self.rights.contains(AccessFlags::REMOTE_WRITE);
        let bytes = pattern(self.posted ^ 0x77, self.round, length);
        match self.random.below(3) {
            0 if may_write => {
                self.fill(offset, &bytes);
                let operation = Operation::Write { remote_addr, rkey };
                self.post(operation, (offset, length), CompletionOpcode::Write, CompletionStatus::Success);
            }
            1 if may_write => {
                self.fill(offset, &bytes[..8]);
                let operation = Operation::AtomicWrite { remote_addr, rkey };
                self.post(operation, (offset, 8), CompletionOpcode::AtomicWrite, CompletionStatus::Success);
            }
            _ => {
                let operation = Operation::Read { remote_addr, rkey };
                self.post(operation, (offset, length), CompletionOpcode::Read, CompletionStatus::Success);
                let expected = self.model[offset as usize..][..length as usize].to_vec();
                self.outstanding.back_mut().expect("it was posted").fetches = Some((offset, expected));
            }
        }
    }

    /// Writes these bytes to the peer's region and, in the model, to the same offset of the owner's.
    fn fill(&mut self, offset: u64, bytes: &[u8]) {
        self.user.region.write_at(offset, bytes).expect("in the region");
        self.model[offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn post(&mut self, operation: Operation, source: (u64, u64), opcode: CompletionOpcode, status: CompletionStatus) {
        // Only a fence keeps the key, and the connection, alive until a READ through it has its response.
        let ends = opcode == CompletionOpcode::Send || !status.is_success();
        let flags = if ends { SendFlags::SIGNALED | SendFlags::FENCE } else { SendFlags::SIGNALED };
        self.user.post_with(&mut self.network, self.posted, operation, source, flags);
        self.outstanding.push_back(Posted { number: self.posted, opcode, status, fetches: None });
        self.posted += 1;
    }

    fn judge_step(&mut self) {
        let mut completions = Vec::new();
        self.user.port.poll(&mut completions);
        for completion in completions.drain(..) {
            self.judge_user(&completion);
        }
        self.elsewhere[1].port.poll(&mut completions);
        for completion in completions.drain(..) {
            self.judge_elsewhere(&completion);
        }
        self.owner.port.poll(&mut completions);
        for completion in completions.drain(..) {
            self.judge_owner(&completion);
        }
    }

    /// Returns whether the connection was lost: it may end without a fault if its packets are lost again and again.
    fn is_lost(&mut self, completion: &RawCompletion, at: usize) -> bool {
        let is_lost =
            completion.status == CompletionStatus::RetryExceededError && self.network.harmed_between(0, at) >= TRIES;
        self.is_over |= is_lost;
        is_lost || (self.is_over && completion.status == CompletionStatus::WorkRequestFlushedError)
    }

    fn judge_user(&mut self, completion: &RawCompletion) {
        let posted = self.outstanding.pop_front().expect("a completion of an outstanding request");
        assert_eq!(completion.wr_id, posted.number, "requests complete in order");
        if self.is_lost(completion, 1) {
            return;
        }
        let found = (completion.opcode, completion.status);
        assert_eq!(found, (posted.opcode, posted.status), "{posted:?} of round {} ({:?})", self.round, self.trespass);
        if let Some((offset, expected)) = posted.fetches {
            let found = self.user.read(offset, expected.len() as u64);
            assert!(found == expected, "wrong bytes were read in round {}", self.round);
            self.outcome.count("window: read", 1);
        }
        if posted.status == CompletionStatus::RemoteAccessError {
            self.caught();
        }
    }

    fn judge_elsewhere(&mut self, completion: &RawCompletion) {
        if !self.is_lost(completion, 2) {
            assert_eq!(completion.status, CompletionStatus::RemoteAccessError, "from another queue pair");
            self.caught();
        }
    }

    fn caught(&mut self) {
        self.outcome.count("window: trespass refused", 1);
        self.is_over = true;
    }

    fn judge_owner(&mut self, completion: &RawCompletion) {
        let status = completion.status;
        if !status.is_success() {
            let is_refused = self.phase == Phase::Last && status == CompletionStatus::WorkRequestFlushedError;
            assert!(is_refused, "{completion:?} in round {} ({:?})", self.round, self.phase);
            return;
        }
        match (completion.opcode, self.phase) {
            (CompletionOpcode::BindMemoryWindow, Phase::Binding) => self.use_window(),
            (CompletionOpcode::Receive, Phase::Last) => self.has_receive = false,
            (CompletionOpcode::Receive, Phase::Open) => self.judge_message(completion),
            (CompletionOpcode::LocalInvalidate, Phase::Revoking) => {
                self.outcome.count("window: revoked by its owner", 1);
                self.close();
            }
            other => panic!("{other:?}: {completion:?}"),
        }
    }

    fn judge_message(&mut self, completion: &RawCompletion) {
        self.has_receive = false;
        let key = self.keys[1];
        let expected = match self.is_revoked_by_peer {
            true => (CompletionFlags::WITH_INVALIDATE, key.0),
            false => (CompletionFlags::empty(), 0),
        };
        assert_eq!((completion.flags, completion.immediate_or_key), expected, "{completion:?}");
        // All data sent before the message has been placed.
        let (offset, length) = self.range;
        let model = &self.model[offset as usize..][..length as usize];
        assert!(self.owner.read(offset, length) == model, "round {} is not complete", self.round);
        if self.is_revoked_by_peer {
            self.outcome.count("window: revoked by the peer", 1);
            return self.close();
        }
        self.owner.post(&mut self.network, self.round, Operation::LocalInvalidate(key), (0, 0));
        self.phase = Phase::Revoking;
    }

    /// Revokes the key: from then on the memory is the owner's alone, and it overwrites it.
    fn close(&mut self) {
        let (offset, length) = self.range;
        let bytes = pattern(0x99, self.round, length);
        self.owner.region.write_at(offset, &bytes).expect("the owner's own memory");
        self.model[offset as usize..][..length as usize].copy_from_slice(&bytes);
        self.phase = Phase::Idle;
        self.round += 1;
        assert_eq!(self.window.rkey(), self.keys[1], "the window keeps its last key");
    }

    /// Checks that nothing was written outside an open window.
    fn check_memory(&self) {
        let found = self.owner.read(0, REGION_BYTES);
        let is_open = !matches!(self.phase, Phase::Idle | Phase::Binding);
        let (offset, length) = if is_open { self.range } else { (0, 0) };
        let is_outside = |index: u64| index >= MESSAGE_BYTES && !(offset..offset + length).contains(&index);
        let differs = (0..REGION_BYTES).find(|index| {
            let index = *index;
            found[index as usize] != self.model[index as usize] && is_outside(index)
        });
        assert_eq!(differs, None, "written outside of {:?} in round {} ({:?})", self.range, self.round, self.phase);
    }
}

fn connect(network: &mut Network, ends: [&End; 2], peer: PeerCapabilities, mtu: Mtu, random: &mut Random) {
    let first = [0, 1].map(|_| Psn::new((0xff_ffff - random.below(100)) as u32));
    for (own, other) in [(0, 1), (1, 0)] {
        let connection = Connection {
            peer_address: network.hosts[ends[other].at].address,
            peer_qpn: ends[other].port.qpn,
            peer,
            key: None,
            path_mtu: mtu,
            sq_psn: first[own],
            rq_psn: first[other],
            access: AccessFlags::REMOTE,
            rd_atomic: 2,
            timeout: 9,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 2,
        };
        let now = network.time_at(ends[own].at);
        network.hosts[ends[own].at].connect(now, ends[own].port.qpn, &connection);
    }
}
