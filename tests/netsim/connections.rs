//! Connection managers on faulty links: several processes on each host, applications that answer late, reject, destroy
//! and disconnect at any point, and processes that die at any point.
//!
//! Each application gets each event once and in a legal order. When all is quiet, a connection is set up at both ends
//! or at neither, and the end of a dead process is known at the other end. In calm worlds, where no process dies and
//! few datagrams are lost, no attempt fails unless an application ends it, however late the applications answer.

mod late_listeners;
mod verdicts;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rdma_verbs::cm::{
    AcceptParameters, Arrival, ConnectParameters, ConnectionHandle, ConnectionState, DatagramQueuePair,
    DisconnectCause, Event, Limits, Manager, ManagerConfig, Orphan, Outgoing, PathParameters, ResolveParameters,
};
use rdma_verbs::sim::Random;
use rdma_verbs::types::{Mtu, Psn, Time};
use rdma_verbs::wire::mad::{
    Attribute, FlowLabel, IpHeader, Mad, PortSpace, PrivateData, RetryCount, ServiceId, ServiceIdStatus, TimeoutCode,
};

use super::connection_ends::{
    Ends, HOSTS, Judgement, PROCESSES, Place, Process, address, confirmed, guid, host_of, offered, port_of,
};
use super::world::Outcome;

const ATTEMPTS: u64 = 40;
/// The time in which applications act.
const ACTIVE: Duration = Duration::from_secs(40);
/// A bound of all repetitions and patience of the managers and applications.
const QUIET: Duration = Duration::from_secs(400);
/// At a loss up to this many permille none of the 16 sends of a message has a response once in 10^11 times.
const CALM_LOSS: u32 = 100;
/// No phase has a tenth of it.
const MOST_STEPS: u32 = 100_000;
const LIMITED: Limits = Limits {
    connections: 400,
    half_open: 100,
    resting: 300,
    listeners: 2 + ATTEMPTS as usize,
    backlog: 64,
    held: 20,
    resolutions: 50,
    inquiries: 50,
    outputs: 300,
};

/// An action of an application.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Act {
    Take,
    Accept,
    Reject,
    Ready,
    Disconnect,
    Destroy,
    /// A packet has arrived at the queue pair.
    Packet,
}

enum Item {
    Datagram(usize, Box<Outgoing>),
    Act { process: usize, generation: u64, connection: ConnectionHandle, act: Act },
    Connect { process: usize },
    Listen { process: usize, port: u16 },
    Resolve { process: usize },
    Crash { process: usize },
    Start { process: usize },
}

/// Faults of the network; rates are in permille.
struct Faults {
    loss: u32,
    repetition: u32,
    lateness: u32,
}

struct World {
    random: Random,
    now: Time,
    order: u64,
    agenda: BTreeMap<(Time, u64), Item>,
    processes: Vec<Process>,
    faults: Faults,
    /// A process that has died is known to the others of its host, which end its connections.
    has_registry: bool,
    /// No process dies, and few datagrams are lost.
    is_calm: bool,
    /// Processes of different hosts draw the same communication ids.
    has_twins: bool,
    /// Blocks of communication ids that the processes of each host have had.
    blocks: [u32; HOSTS],
    attempts: u64,
    resolutions: u64,
    /// Attempts that an application or its deadline may end.
    disturbed: BTreeSet<u64>,
    /// When the application of each end has ended its connection.
    closed: BTreeMap<(u64, bool), Time>,
    /// Ends that must learn that their peer is dead, each with the process that tells them, which may die as well.
    doomed: Vec<(usize, Place)>,
    judgement: Judgement,
    verbose: bool,
    outcome: Outcome,
}

/// Runs one seed to its end; panics if a promise is broken.
pub(crate) fn run(seed: u64, verbose: bool) -> Outcome {
    let mut world = World::new(seed, verbose);
    world.advance(ACTIVE);
    world.advance(QUIET);
    world.judge_doomed();
    world.notice_losses();
    world.advance(QUIET);
    world.judge_agreement();
    world.destroy_all();
    world.advance(QUIET);
    world.finish()
}

impl World {
    fn new(seed: u64, verbose: bool) -> Self {
        let mut random = Random::new(seed ^ 0x636d_0001);
        let mut rate = |most: u64| if random.chance(700) { random.below(most) as u32 } else { 0 };
        let faults = Faults { loss: rate(300), repetition: rate(200), lateness: rate(300) };
        let crashes = if random.chance(500) { random.below(4) } else { 0 };
        let mut world = Self {
            has_registry: random.chance(500),
            is_calm: crashes == 0 && faults.loss <= CALM_LOSS,
            has_twins: random.chance(500),
            random,
            now: Time::from_nanos(1_000_000_000),
            order: 0,
            agenda: BTreeMap::new(),
            processes: Vec::new(),
            faults,
            blocks: [0; HOSTS],
            attempts: 0,
            resolutions: 0,
            disturbed: BTreeSet::new(),
            closed: BTreeMap::new(),
            doomed: Vec::new(),
            judgement: Judgement::default(),
            verbose,
            outcome: Outcome::default(),
        };
        for _ in 0..PROCESSES {
            world.processes.push(Process::dead());
        }
        (0..PROCESSES).for_each(|process| world.start(process));
        for _ in 0..ATTEMPTS {
            let (at, process) = (world.random.below(30_000), world.random.below(PROCESSES as u64) as usize);
            let is_resolution = world.random.chance(200);
            let item = if is_resolution { Item::Resolve { process } } else { Item::Connect { process } };
            world.plan(Duration::from_millis(at), item);
        }
        for _ in 0..crashes {
            let (at, process) = (world.random.below(30_000), world.random.below(PROCESSES as u64) as usize);
            world.plan(Duration::from_millis(at), Item::Crash { process });
        }
        world
    }

    fn plan(&mut self, wait: Duration, item: Item) {
        self.order += 1;
        self.agenda.insert((self.now + wait, self.order), item);
    }

    /// Starts a process with a new block of communication ids.
    fn start(&mut self, process: usize) {
        let host = host_of(process);
        self.blocks[host] += 1;
        let block = self.blocks[host];
        let number = self.random.number();
        let mut random = Random::new(if self.has_twins { u64::from(block) } else { number });
        let config = ManagerConfig {
            guid: guid(host),
            id_block: block,
            addresses: vec![address(host)],
            random: Box::new(move || (random.number() >> 32) as u32),
            limits: LIMITED,
        };
        let mut manager = Manager::new(config);
        for space in [PortSpace::Tcp, PortSpace::Udp] {
            manager.listen(late_listeners::parameters(space, port_of(process))).expect("a listener");
        }
        let slot = &mut self.processes[process];
        // After a crash the numbers of queue pairs may come again.
        let next_qpn = if self.random.chance(500) { 0 } else { slot.next_qpn };
        let generation = slot.generation + 1;
        *slot = Process { manager: Some(manager), generation, block, next_qpn, ..Process::dead() };
    }

    /// Lets time pass, event by event.
    fn advance(&mut self, duration: Duration) {
        let end = self.now + duration;
        self.outcome.simulated += duration;
        let mut steps = 0;
        loop {
            steps += 1;
            assert!(steps < MOST_STEPS, "the managers are never quiet");
            (0..PROCESSES).for_each(|process| self.search_all(process));
            (0..PROCESSES).for_each(|process| self.drain(process));
            let timers = self.processes.iter().filter_map(|process| process.manager.as_ref()?.next_deadline());
            let next = timers.chain(self.agenda.keys().next().map(|key| key.0)).min();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            self.now = self.now.max(next);
            while let Some(entry) = self.agenda.first_entry().filter(|entry| entry.key().0 <= self.now) {
                let item = entry.remove();
                self.perform(item);
            }
            for process in &mut self.processes {
                process.manager.iter_mut().for_each(|manager| manager.handle_timeout(self.now));
            }
        }
        self.now = end;
    }

    fn perform(&mut self, item: Item) {
        match item {
            Item::Datagram(host, outgoing) => self.arrive(host, &outgoing),
            Item::Act { process, generation, connection, act } => {
                if self.processes[process].generation == generation && self.processes[process].manager.is_some() {
                    self.act(process, connection, act);
                }
            }
            Item::Connect { process } => self.connect(process),
            Item::Listen { process, port } => self.listen_late(process, port),
            Item::Resolve { process } => self.resolve(process),
            Item::Crash { process } => self.crash(process),
            Item::Start { process } => self.start(process),
        }
        (0..PROCESSES).for_each(|process| self.drain(process));
    }

    /// Sends a manager's datagrams, and gives its events to the application.
    fn drain(&mut self, process: usize) {
        while let Some(outgoing) = self.processes[process].manager.as_mut().and_then(Manager::poll_output) {
            self.launch(outgoing);
        }
        while let Some(event) = self.processes[process].manager.as_mut().and_then(Manager::poll_event) {
            self.handle_event(process, event);
        }
    }

    fn launch(&mut self, outgoing: Outgoing) {
        assert_eq!(outgoing.bytes.len(), 256);
        let host = (0..HOSTS).find(|host| address(*host) == outgoing.destination).expect("a host");
        let copies = 1 + u32::from(self.random.chance(self.faults.repetition));
        for _ in 0..copies {
            if self.random.chance(self.faults.loss) {
                self.outcome.count("datagram lost", 1);
                continue;
            }
            let late = if self.random.chance(self.faults.lateness) { self.random.below(200_000) } else { 0 };
            let delay = Duration::from_micros(50 + self.random.below(200) + late);
            self.plan(delay, Item::Datagram(host, Box::new(outgoing.clone())));
        }
    }

    /// Gives a datagram to the process that it belongs to, as the steering of an address does.
    fn arrive(&mut self, host: usize, outgoing: &Outgoing) {
        let mad = Mad::read(&outgoing.bytes).expect("a datagram");
        self.outcome.packets += 1;
        self.note(mad.transaction_id ^ u64::from(mad.attribute.0) << 48);
        if self.verbose {
            println!("{:>14} {} -> {} {}", self.now.as_nanos(), outgoing.source, outgoing.destination, mad.attribute);
        }
        let word = |at: usize| u32::from_be_bytes([mad.data[at], mad.data[at + 1], mad.data[at + 2], mad.data[at + 3]]);
        let is_owner = |process: &usize| match mad.attribute {
            Attribute::CONNECT_REQUEST | Attribute::SERVICE_ID_REQUEST => {
                word(12) as u16 == port_of(*process) || self.processes[*process].listens(&mad)
            }
            Attribute::SERVICE_ID_REPLY => word(0) >> 20 == self.processes[*process].block,
            _ => word(4) >> 20 == self.processes[*process].block,
        };
        let living =
            (0..PROCESSES).filter(|process| host_of(*process) == host && self.processes[*process].manager.is_some());
        let leader = living.clone().next();
        let Some(owner) = living.clone().find(is_owner).or(leader) else { return };
        let arrival = Arrival {
            source: outgoing.source,
            destination: outgoing.destination,
            traffic_class: outgoing.traffic_class,
            flow_label: outgoing.flow_label,
            bytes: &outgoing.bytes,
        };
        if let Some(manager) = &mut self.processes[owner].manager {
            manager.handle_datagram(self.now, &arrival);
        }
    }

    fn path(&mut self, from: usize, to: usize) -> (PathParameters, IpHeader) {
        let (local, remote) = (address(host_of(from)), address(host_of(to)));
        let path = PathParameters {
            local,
            remote,
            traffic_class: 0,
            flow_label: FlowLabel::default(),
            hop_limit: 64,
            ack_timeout: TimeoutCode::saturating(self.random.between(17, 19) as u8),
        };
        (path, IpHeader::new((local, 1).into(), remote).expect("addresses of one version"))
    }

    fn connect(&mut self, process: usize) {
        let to = self.random.below(PROCESSES as u64) as usize;
        let (path, header) = self.path(process, to);
        self.attempts += 1;
        let port = self.requested_port(to);
        let qpn = self.processes[process].draw_qpn(process);
        let deadline = self.random.chance(200).then(|| self.now + Duration::from_millis(self.random.below(20_000)));
        let parameters = ConnectParameters {
            service_id: ServiceId::of_port(PortSpace::Tcp, port),
            header,
            path,
            transport: Default::default(),
            local_qpn: qpn,
            starting_psn: Psn::new(self.random.number() as u32),
            responder_resources: 4,
            initiator_depth: 4,
            end_to_end_flow_control: true,
            retry_count: RetryCount::MAX,
            rnr_retry_count: RetryCount::MAX,
            path_mtu: Mtu::Mtu1024,
            has_srq: false,
            vendor_options: Default::default(),
            native: offered(self.attempts),
            private_data: PrivateData::new(&self.attempts.to_be_bytes()).expect("eight bytes"),
            deadline,
        };
        let Some(manager) = &mut self.processes[process].manager else { return };
        let connection = manager.connect(self.now, &parameters).expect("a connection");
        self.disturbed.extend(deadline.map(|_| self.attempts));
        self.processes[process].ends.begin(connection, self.attempts, true);
        let generation = self.processes[process].generation;
        self.judgement.note_end(self.attempts, (process, generation, connection), true);
        self.outcome.count("connection requested", 1);
        if self.random.chance(100) {
            let at = self.random.below(10_000);
            self.plan_act(process, connection, at, Act::Destroy);
        }
    }

    fn resolve(&mut self, process: usize) {
        let to = self.random.below(PROCESSES as u64) as usize;
        let (path, header) = self.path(process, to);
        self.resolutions += 1;
        let service_id = ServiceId::of_port(PortSpace::Udp, port_of(to));
        let private_data = PrivateData::new(&self.resolutions.to_be_bytes()).expect("eight bytes");
        let parameters = ResolveParameters { service_id, header, path, private_data, deadline: None };
        let Some(manager) = &mut self.processes[process].manager else { return };
        let resolution = manager.resolve(self.now, &parameters).expect("a request");
        self.processes[process].resolutions.insert(resolution, self.resolutions);
    }

    fn plan_act(&mut self, process: usize, connection: ConnectionHandle, at_milliseconds: u64, act: Act) {
        let generation = self.processes[process].generation;
        let item = Item::Act { process, generation, connection, act };
        self.plan(Duration::from_millis(at_milliseconds), item);
    }

    /// An application acts, if it still has the connection.
    fn act(&mut self, process: usize, connection: ConnectionHandle, act: Act) {
        let slot = &mut self.processes[process];
        let Some(end) = slot.ends.get(connection) else { return };
        if matches!(act, Act::Reject | Act::Disconnect | Act::Destroy) {
            self.disturbed.insert(end.attempt);
            self.closed.entry((end.attempt, end.is_active)).or_insert(self.now);
        }
        let qpn = slot.draw_qpn(process);
        let Some(manager) = &mut slot.manager else { return };
        let result = match act {
            Act::Take => manager.take(connection),
            Act::Accept => {
                let native = confirmed(end.attempt);
                let limit = self.random.chance(200).then(|| Duration::from_millis(self.random.below(5_000)));
                self.disturbed.extend(limit.map(|_| end.attempt));
                let deadline = limit.map(|limit| self.now + limit);
                let parameters = AcceptParameters { local_qpn: qpn, native, deadline, ..AcceptParameters::default() };
                manager.accept(self.now, connection, &parameters)
            }
            Act::Reject => manager.reject(self.now, connection, &Default::default()),
            Act::Ready => manager.ready(self.now, connection),
            Act::Disconnect => manager.disconnect(self.now, connection),
            Act::Destroy => manager.destroy(self.now, connection),
            Act::Packet => manager.communication_established(self.now, connection),
        };
        slot.ends.note_act(self.now, connection, act, result.is_ok());
        self.note(connection_number(act, result.is_ok()));
        if act == Act::Destroy {
            self.outcome.count("connection destroyed", 1);
            assert!(result.is_ok(), "{result:?}");
        }
        if act == Act::Reject && result.is_ok() {
            self.outcome.count("connection rejected", 1);
            let at = self.random.below(2_000);
            self.plan_act(process, connection, at, Act::Destroy);
        }
        if act == Act::Ready && result.is_ok() {
            self.end_some_day(process, connection);
            // A packet of the ready end reaches the other end, sometimes before the RTU.
            if self.random.chance(300)
                && let Some((process, generation, other)) = self.judgement.other(end.attempt, true)
                && self.processes[process].generation == generation
            {
                self.plan_act(process, other, 1, Act::Packet);
            }
        }
    }

    /// Plans the end of a connection that is set up, or lets it be.
    fn end_some_day(&mut self, process: usize, connection: ConnectionHandle) {
        let at = self.random.below(8_000);
        match self.random.below(10) {
            0..=3 => self.plan_act(process, connection, at, Act::Disconnect),
            4 => self.plan_act(process, connection, at, Act::Destroy),
            _ => {}
        }
    }

    fn handle_event(&mut self, process: usize, event: Event) {
        if self.verbose {
            println!("{:>14} process {process}: {event:?}", self.now.as_nanos());
        }
        match event {
            Event::ConnectRequest { connection, private_data, request, header, native, .. } => {
                let attempt = number_of(&private_data);
                self.judgement.note_offer(attempt, native.map(|peer| peer.key));
                assert_eq!(header.destination(), address(host_of(process)));
                let generation = self.processes[process].generation;
                self.judgement.note_request(process, generation, request.local_guid, request.local_id.0);
                self.judgement.note_end(attempt, (process, generation, connection), false);
                self.processes[process].ends.begin(connection, attempt, false);
                self.answer_request(process, connection);
            }
            Event::Reply { connection, native, .. } => {
                let attempt = self.processes[process].ends.get(connection).expect("an end").attempt;
                self.judgement.judge_key(attempt, native.map(|peer| peer.key));
                self.outcome.count("connection with a key", native.is_some().into());
                self.answer_reply(process, connection);
            }
            Event::Established { connection } => {
                self.processes[process].ends.note_established(connection);
                self.outcome.count("connection set up", 1);
                self.end_some_day(process, connection);
            }
            Event::Rejected { connection, .. } => self.end_connection(process, connection, "rejection learned"),
            Event::Unreachable { connection, .. } => self.end_connection(process, connection, "silence learned"),
            Event::Disconnected { connection, cause } => {
                let name = match cause {
                    DisconnectCause::Peer => "end by the peer",
                    DisconnectCause::Confirmed => "end confirmed",
                    DisconnectCause::Timeout => "end not confirmed",
                };
                self.judge_confirmation(process, connection, cause);
                self.end_connection(process, connection, name);
                self.processes[process].ends.note_disconnected(connection, cause);
            }
            Event::TimeWaitExit { connection } => self.processes[process].ends.note_exit(self.now, connection),
            Event::Inquiry { inquiry, request, header, private_data, .. } => {
                let key = (header.source().ip(), request.request_id.0);
                assert!(self.processes[process].inquiries.insert(key), "a request for a datagram queue pair twice");
                let manager = self.processes[process].manager.as_mut().expect("a living process");
                let private_data = PrivateData::new(&number_of(&private_data).to_be_bytes()).expect("eight bytes");
                let answer = DatagramQueuePair { private_data, ..DatagramQueuePair::default() };
                manager.answer(self.now, inquiry, &answer).expect("no response yet");
            }
            Event::Resolved { resolution, reply } => {
                let number = self.processes[process].resolutions.remove(&resolution).expect("no outcome yet");
                self.outcome.count("datagram queue pair resolved", 1);
                // While the process of a service is dead, another one of the host responds that there is no service.
                match reply.status {
                    ServiceIdStatus::VALID => {
                        assert_eq!(number_of(&reply.private_data), number, "the response to another request");
                    }
                    other => assert!(!self.is_calm, "{other:?} from an application that lives"),
                }
            }
            Event::Unresolved { resolution } => {
                self.processes[process].resolutions.remove(&resolution).expect("no outcome yet");
                assert!(!self.is_calm, "no response of an application that lives");
            }
        }
    }

    fn answer_request(&mut self, process: usize, connection: ConnectionHandle) {
        let late = if self.random.chance(200) { self.random.below(15_000) } else { self.random.below(20) };
        let read = self.random.below(late + 1);
        self.plan_act(process, connection, read, Act::Take);
        let act = match self.random.below(20) {
            0 => Act::Reject,
            1 => Act::Destroy,
            _ => Act::Accept,
        };
        self.plan_act(process, connection, late + 1, act);
        if self.random.chance(50) {
            let at = self.random.below(2_000);
            self.plan_act(process, connection, late + at, Act::Destroy);
        }
    }

    fn answer_reply(&mut self, process: usize, connection: ConnectionHandle) {
        self.processes[process].ends.note_reply(connection);
        let late = if self.random.chance(100) { self.random.below(20_000) } else { self.random.below(5) };
        let act = match self.random.below(20) {
            0 => Act::Reject,
            1 => Act::Destroy,
            _ => Act::Ready,
        };
        self.plan_act(process, connection, late, act);
    }

    /// The application learns that a connection has ended: it confirms, and destroys it.
    fn end_connection(&mut self, process: usize, connection: ConnectionHandle, name: &'static str) {
        let attempt = self.processes[process].ends.note_end(self.now, connection);
        self.outcome.count(name, 1);
        let has_cause = self.disturbed.contains(&attempt);
        assert!(has_cause || !self.is_calm, "{name} without a cause: {connection:?} of process {process}");
        let (confirm, destroy) = (self.random.below(3_000), self.random.below(10_000));
        if self.random.chance(700) {
            self.plan_act(process, connection, confirm, Act::Disconnect);
        }
        self.plan_act(process, connection, destroy, Act::Destroy);
    }

    /// A process dies, and a new one takes its place. With a registry, a process of the host ends its connections.
    fn crash(&mut self, process: usize) {
        let Some(manager) = self.processes[process].manager.take() else { return };
        self.outcome.count("process died", 1);
        let generation = self.processes[process].generation;
        let handles: Vec<_> = self.processes[process].ends.handles().collect();
        let orphans: Vec<(Orphan, u64, bool)> = handles
            .iter()
            .filter_map(|handle| {
                let end = self.processes[process].ends.get(*handle)?;
                let is_set_up = manager.state(*handle) == Some(ConnectionState::Established);
                Some((manager.orphan(*handle)?, end.attempt, is_set_up))
            })
            .collect();
        self.judgement.note_crash(process, generation);
        self.doomed.retain(|(heir, _)| *heir != process);
        self.processes[process].ends = Ends::default();
        let wait = Duration::from_millis(self.random.below(3_000));
        self.plan(wait, Item::Start { process });
        let same_host = |other: &usize| host_of(*other) == host_of(process);
        let heir = (0..PROCESSES).filter(same_host).find(|other| self.processes[*other].manager.is_some());
        let Some(heir) = heir.filter(|_| self.has_registry) else { return };
        for (orphan, attempt, is_set_up) in orphans {
            let other = self.judgement.living_other(attempt, process, generation).filter(|_| is_set_up);
            if let Some(manager) = &mut self.processes[heir].manager
                && manager.end_orphan(self.now, &orphan).is_ok()
            {
                self.doomed.extend(other.map(|other| (heir, other)));
            }
        }
    }

    fn destroy_all(&mut self) {
        for process in 0..PROCESSES {
            let handles: Vec<_> = self.processes[process].ends.handles().collect();
            handles.into_iter().for_each(|connection| self.act(process, connection, Act::Destroy));
        }
    }

    /// Nothing is left.
    fn finish(self) -> Outcome {
        for (number, process) in self.processes.iter().enumerate() {
            let manager = process.manager.as_ref().expect("all processes live at last");
            assert_eq!(manager.connection_count(), 0, "process {number} has connections");
            assert_eq!(manager.next_deadline(), None, "process {number} has a deadline");
            assert!(process.resolutions.is_empty(), "process {number} waits for a datagram queue pair");
        }
        self.outcome
    }

    /// Adds to the hash of the trace.
    fn note(&mut self, value: u64) {
        let mixed = self.outcome.trace_hash ^ value ^ self.now.as_nanos().rotate_left(17);
        self.outcome.trace_hash = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    }
}

/// Returns the number at the beginning of private data, which has zeros behind it.
fn number_of<const N: usize>(private_data: &PrivateData<N>) -> u64 {
    let (number, rest) = private_data.as_bytes().split_first_chunk().expect("eight bytes");
    assert!(rest.iter().all(|byte| *byte == 0), "private data without its padding");
    u64::from_be_bytes(*number)
}

fn connection_number(act: Act, is_ok: bool) -> u64 {
    (act as u64) << 1 | u64::from(is_ok)
}
