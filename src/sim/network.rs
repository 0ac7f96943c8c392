//! The network: hosts, links between them, and one queue of packets in flight.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::time::Duration;

use super::bottleneck::{Passage, frame_bytes};
use super::forger::{forge, shorten_answer};
use super::link::{Fate, corrupt};
use super::machine::{Machine, Socket};
use super::shared_memory::SharedMemory;
use super::streams::Streams;
use super::{Bottleneck, Faults, Host, Random};
use crate::transport::{AckRelease, Datagram, Medium, Transmit};
use crate::types::{Psn, Time};
use crate::wire::{GapRun, GapRuns, Headers, ICRC_BYTES, Opcode, Packet};

/// Bound of the packets that one host sends at one moment; more are an endless loop.
const MOST_PACKETS_AT_ONCE: u64 = 100_000;

/// ECN bits of the traffic class of a marked packet (RFC 3168: CE).
const MARKED: u8 = 0b11;

/// A packet in flight.
#[derive(Clone)]
pub(super) struct Flight {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) source: IpAddr,
    pub(super) source_port: u16,
    pub(super) segment_index: u16,
    pub(super) traffic_class: u8,
    pub(super) bytes: Vec<u8>,
    pub(super) medium: Medium,
    pub(super) is_corrupt: bool,
    pub(super) is_forged: bool,
}

/// One packet in the trace.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub struct Record {
    /// Time of sending.
    pub at: Time,
    /// Index of the sending host.
    pub from: usize,
    /// Its opcode.
    pub opcode: Opcode,
    /// Its packet sequence number.
    pub psn: Psn,
    /// Its length in bytes.
    pub length: usize,
    /// Whether the link lost or damaged it.
    pub harmed: bool,
}

/// An observed packet: on departure, or on undamaged arrival.
#[derive(Clone, Debug)]
pub struct Sighting {
    /// Time of departure or arrival.
    pub at: Time,
    /// Index of the sending host.
    pub from: usize,
    /// Index of the receiving host.
    pub to: usize,
    /// Whether this is its arrival.
    pub arrived: bool,
    /// Its headers.
    pub headers: Headers,
    /// The gaps that a NAK lists; else empty.
    pub gap_runs: Vec<GapRun>,
}

impl Sighting {
    fn new(at: Time, from: usize, to: usize, arrived: bool, packet: &Packet<'_>) -> Self {
        let is_nak = packet.headers.bth.opcode == Opcode::RC_ACKNOWLEDGE;
        let runs = GapRuns::parse(packet.payload).filter(|_| is_nak);
        Self {
            at,
            from,
            to,
            arrived,
            headers: packet.headers,
            gap_runs: runs.into_iter().flat_map(GapRuns::iter).collect(),
        }
    }
}

/// Hosts and a link between each pair, with the sender's faults.
pub struct Network {
    /// The hosts.
    pub hosts: Vec<Host>,
    /// Faults of the packets that each host sends.
    pub faults: Vec<Faults>,
    /// The current time.
    pub now: Time,
    /// Packets sent.
    pub packets: u64,
    /// Receives a line of text for each packet.
    pub observer: Option<fn(&str)>,
    /// Observed packets, recorded only if `Some`. The caller takes them out.
    pub sightings: Option<Vec<Sighting>>,
    /// Probability in permille that a transmission releases held acknowledgements.
    pub release: u32,
    /// How often a sender's packet sequence numbers wrapped.
    pub wraps: u64,
    /// Forged packets delivered.
    pub forged: u64,
    /// READ responses that were truncated.
    pub shortened: u64,
    pub(super) random: Random,
    pub(super) streams: Streams,
    pub(super) shared: SharedMemory,
    machines: Vec<Machine>,
    pub(super) in_burst: Vec<bool>,
    /// Packets lost, damaged or held up, by sender and receiver.
    harmed: Vec<u64>,
    /// Packets that later ones could overtake, by sender and receiver.
    late: Vec<u64>,
    bottlenecks: Vec<Bottleneck>,
    /// Index of the bottleneck, by sender and receiver.
    routes: Vec<Option<usize>>,
    flights: BinaryHeap<Reverse<(Time, u64)>>,
    /// Packets in flight, by order number.
    cargo: HashMap<u64, Flight>,
    order: u64,
    trace: DefaultHasher,
    last_psn: Vec<Option<Psn>>,
    buffer: Vec<u8>,
}

impl Network {
    /// Creates a network of these hosts.
    pub fn new(hosts: Vec<Host>, faults: Vec<Faults>, seed: u64) -> Self {
        let count = hosts.len();
        Self {
            hosts,
            faults,
            now: Time::from_nanos(1_000),
            packets: 0,
            observer: None,
            sightings: None,
            release: 500,
            wraps: 0,
            forged: 0,
            shortened: 0,
            random: Random::new(seed),
            streams: Streams::default(),
            shared: SharedMemory::default(),
            machines: std::iter::repeat_with(Machine::default).take(count).collect(),
            in_burst: vec![false; count],
            harmed: vec![0; count * count],
            late: vec![0; count * count],
            bottlenecks: Vec::new(),
            routes: vec![None; count * count],
            flights: BinaryHeap::new(),
            cargo: HashMap::new(),
            order: 0,
            trace: DefaultHasher::new(),
            last_psn: vec![None; count],
            buffer: vec![0; 65_536],
        }
    }

    /// Returns a hash of every packet sent, its time and its fate.
    pub fn trace_hash(&self) -> u64 {
        self.trace.clone().finish()
    }

    /// Number of packets in flight.
    pub fn packets_in_flight(&self) -> usize {
        self.cargo.len() + self.machines.iter().map(|machine| machine.waiting.len()).sum::<usize>()
    }

    /// Returns the packets between two hosts that were lost, damaged or held up, plus jumps of their clocks.
    pub fn harmed_between(&self, one: usize, other: usize) -> u64 {
        let count = self.hosts.len();
        self.harmed[one * count + other] + self.harmed[other * count + one]
    }

    /// Returns the packets between two hosts that later ones could overtake.
    pub fn late_between(&self, one: usize, other: usize) -> u64 {
        let count = self.hosts.len();
        self.late[one * count + other] + self.late[other * count + one]
    }

    /// Returns the time on a host's clock.
    pub fn time_at(&self, host: usize) -> Time {
        self.machines[host].clock(self.now)
    }

    /// Whether a host is stopped.
    pub fn is_stopped(&self, host: usize) -> bool {
        self.machines[host].is_stopped(self.now)
    }

    /// Gives a host's socket a bounded buffer and a slow reader.
    pub fn set_socket(&mut self, host: usize, socket: Socket) {
        self.machines[host].socket = Some(socket);
    }

    /// Sends all packets of these pairs of hosts, from the first to the second, through one shared bottleneck.
    pub fn share(&mut self, bottleneck: Bottleneck, pairs: &[(usize, usize)]) {
        for (from, to) in pairs {
            self.routes[from * self.hosts.len() + to] = Some(self.bottlenecks.len());
        }
        self.bottlenecks.push(bottleneck);
    }

    /// Returns the bottleneck on the path from one host to another.
    pub fn bottleneck(&self, from: usize, to: usize) -> Option<&Bottleneck> {
        self.routes[from * self.hosts.len() + to].map(|index| &self.bottlenecks[index])
    }

    /// Returns the bottleneck on the path from one host to another, mutably.
    pub fn bottleneck_mut(&mut self, from: usize, to: usize) -> Option<&mut Bottleneck> {
        self.routes[from * self.hosts.len() + to].map(|index| &mut self.bottlenecks[index])
    }

    /// Sends a packet through the bottleneck between two hosts. `bytes` counts from the Ethernet header. Returns `None`
    /// if the packet is dropped.
    pub(super) fn pass(&mut self, from: usize, to: usize, bytes: u64, knows_marks: bool) -> Option<Passage> {
        match self.routes[from * self.hosts.len() + to] {
            Some(index) => self.bottlenecks[index].pass(self.now, bytes, knows_marks, &mut self.random),
            None => Some(Passage { wait: Duration::ZERO, is_marked: false }),
        }
    }

    /// Makes a host's timers expire only at multiples of `period`. The host then sends when one expires or a packet
    /// arrives, not at every step of the simulation.
    pub fn set_timer_period(&mut self, host: usize, period: Duration) {
        self.machines[host].timer_period = period;
    }

    /// Makes a host's clock jump ahead.
    pub fn jump(&mut self, host: usize, by: Duration) {
        self.machines[host].ahead += by;
        (0..self.hosts.len()).for_each(|other| self.note_harm(host, other));
    }

    /// Stops a host for a while: it neither sends nor receives, and its timers expire late.
    pub fn stop(&mut self, host: usize, length: Duration) {
        self.machines[host].stop(self.now + length);
        (0..self.hosts.len()).for_each(|other| self.note_harm(host, other));
    }

    fn note_harm(&mut self, from: usize, to: usize) {
        self.harmed[from * self.hosts.len() + to] += 1;
    }

    /// Sends everything that the hosts have to send now.
    pub fn transmit(&mut self) {
        for from in 0..self.hosts.len() {
            if self.is_stopped(from) || !self.machines[from].may_send(self.now) {
                continue;
            }
            let release = if self.random.chance(self.release) { AckRelease::Now } else { AckRelease::Hold };
            let before = self.packets;
            loop {
                let now = self.time_at(from);
                let host = &mut self.hosts[from];
                let view = host.memory.read();
                let transmit = host.endpoint.poll_transmit(now, &view, &mut self.buffer, release);
                drop(view);
                let Some(transmit) = transmit else { break };
                self.send(from, &transmit);
                assert!(self.packets - before < MOST_PACKETS_AT_ONCE, "host {from} does not stop sending");
            }
        }
    }

    fn send(&mut self, from: usize, transmit: &Transmit) {
        let Some(to) = self.hosts.iter().position(|host| host.address == transmit.destination) else { return };
        // Some kernels deliver a burst as a whole (GRO), others one by one: then the index in the burst is unknown.
        let is_merged = self.random.chance(500);
        let size = transmit.segment_size.unwrap_or(transmit.length);
        let run = self.buffer[..transmit.length].to_vec();
        for (index, bytes) in run.chunks(size).enumerate() {
            self.packets += 1;
            let fates = self.faults[from].decide(self.now, &mut self.in_burst[from], &mut self.random);
            self.observe(from, to, bytes, fates[0]);
            for fate in fates.into_iter().flatten() {
                let Fate::Arrives { at, corrupt: is_corrupt } = fate else { continue };
                let knows_marks = matches!(transmit.traffic_class & MARKED, 0b01 | 0b10);
                let Some(passage) = self.pass(from, to, frame_bytes(bytes.len()), knows_marks) else {
                    self.note_harm(from, to);
                    continue;
                };
                let mark = if passage.is_marked { MARKED } else { 0 };
                let is_late = at > self.now + self.faults[from].delay;
                self.late[from * self.hosts.len() + to] += u64::from(is_late);
                let (source, source_port) = (transmit.source, transmit.source_port);
                let segment_index = if is_merged { index as u16 } else { 0 };
                let medium = self.medium(from, to, transmit.is_keyed);
                let mut flight = Flight {
                    from,
                    to,
                    source,
                    source_port,
                    segment_index,
                    traffic_class: transmit.traffic_class | mark,
                    bytes: bytes.to_vec(),
                    medium,
                    is_corrupt,
                    is_forged: false,
                };
                if medium != Medium::Network {
                    clear_check_field(&mut flight);
                } else if self.random.chance(self.faults[from].short_answers)
                    && shorten_answer(&mut flight, transmit.destination)
                {
                    // A keyed peer drops it.
                    self.shortened += 1;
                    self.note_harm(from, to);
                }
                if flight.is_corrupt {
                    flight.is_corrupt = corrupt(&mut flight.bytes, &mut self.random);
                }
                self.launch(at + passage.wait, flight);
            }
        }
    }

    fn launch(&mut self, at: Time, flight: Flight) {
        self.order += 1;
        self.flights.push(Reverse((at, self.order)));
        self.cargo.insert(self.order, flight);
    }

    fn observe(&mut self, from: usize, to: usize, bytes: &[u8], fate: Option<Fate>) {
        let harmed = !matches!(fate, Some(Fate::Arrives { corrupt: false, .. }));
        if harmed {
            self.note_harm(from, to);
        }
        let Ok(packet) = Packet::parse(bytes) else { return };
        let (opcode, psn) = (packet.headers.bth.opcode, packet.headers.bth.psn);
        if opcode.is_request() {
            let before = self.last_psn[from].replace(psn);
            let wrapped = before.is_some_and(|before| psn.value() < before.value() && before.is_before(psn));
            self.wraps += u64::from(wrapped);
        }
        let record = Record { at: self.now, from, opcode, psn, length: bytes.len(), harmed };
        record.hash(&mut self.trace);
        if let Some(sightings) = &mut self.sightings {
            sightings.push(Sighting::new(self.now, from, to, false, &packet));
        }
        if let Some(observer) = self.observer {
            let mark = if harmed { " HARMED" } else { "" };
            observer(&format!("{:>12} host {from}: {packet}{mark}", self.now.as_nanos()));
        }
    }

    /// Returns the time of the next arrival, read or timeout.
    fn next_event(&self) -> Option<Time> {
        let arrival = self.flights.peek().map(|Reverse((at, _))| *at);
        let read = self.machines.iter().filter_map(|machine| machine.reads_at).min();
        let deadline = |(host, machine): (&Host, &Machine)| host.endpoint.next_timeout().map(|at| machine.due(at));
        let timeout = self.hosts.iter().zip(&self.machines).filter_map(deadline).min();
        [arrival, read, timeout, self.streams.next_event()].into_iter().flatten().min()
    }

    /// Advances to the next arrival or deadline, by at most `limit`, processes it and sends the packets that follow.
    ///
    /// # Panics
    /// If a queue pair has panicked, which the endpoint catches.
    pub fn step(&mut self, limit: Duration) {
        self.transmit();
        let horizon = self.now + limit;
        let next = self.next_event().unwrap_or(horizon).min(horizon);
        self.now = self.now.max(next);
        while let Some(Reverse((at, order))) = self.flights.peek().copied()
            && at <= self.now
        {
            self.flights.pop();
            if let Some(flight) = self.cargo.remove(&order) {
                self.arrive(flight);
            }
        }
        self.step_streams();
        for at in 0..self.hosts.len() {
            self.read_socket(at);
            let now = self.time_at(at);
            let host = &mut self.hosts[at];
            host.endpoint.settle_arrivals(now);
            let machine = &mut self.machines[at];
            if host.endpoint.next_timeout().is_some_and(|deadline| machine.due(deadline) <= self.now) {
                machine.active_at = self.now;
                host.endpoint.handle_timeout(now);
            }
        }
        self.transmit();
        self.exchange_keys();
        let panics: u64 = self.hosts.iter().map(|host| host.endpoint.panics()).sum();
        assert_eq!(panics, 0, "queue pairs panicked");
    }

    fn arrive(&mut self, flight: Flight) {
        let (from, to) = (flight.from, flight.to);
        if self.is_stopped(to) {
            self.note_harm(from, to);
        }
        match self.machines[to].arrive(self.now, flight, &mut self.random) {
            Ok(Some(flight)) => self.deliver(&flight),
            Ok(None) => {}
            Err(()) => self.note_harm(from, to),
        }
    }

    /// Reads a host's socket if its reader is due.
    fn read_socket(&mut self, at: usize) {
        let machine = &mut self.machines[at];
        if machine.reads_at.is_none_or(|time| time > self.now) || machine.is_stopped(self.now) {
            return;
        }
        machine.reads_at = None;
        while let Some(flight) = self.machines[at].waiting.pop_front() {
            self.deliver(&flight);
        }
    }

    fn deliver(&mut self, flight: &Flight) {
        let now = self.time_at(flight.to);
        self.machines[flight.to].active_at = self.now;
        let is_real = !flight.is_corrupt && !flight.is_forged;
        if is_real
            && let Some(sightings) = &mut self.sightings
            && let Ok(packet) = Packet::parse(&flight.bytes)
        {
            let Flight { from, to, .. } = *flight;
            sightings.push(Sighting::new(self.now, from, to, true, &packet));
        }
        let host = &mut self.hosts[flight.to];
        let datagram = Datagram {
            source: flight.source,
            destination: host.address,
            source_port: flight.source_port,
            segment_index: flight.segment_index,
            hop_limit: None,
            traffic_class: Some(flight.traffic_class),
            payload: &flight.bytes,
            medium: flight.medium,
        };
        // As in an engine, the follow-up work is done after all current arrivals are taken.
        host.endpoint.handle_arrival(now, &host.memory.read(), &datagram);
        self.forged += u64::from(flight.is_forged);
        let faults = &self.faults[flight.from];
        if is_real && self.random.chance(faults.forgery) {
            let address = host.address;
            if let Some(forged) = forge(flight, address, faults.pins_ports, &mut self.random) {
                if let (Some(observer), Ok(packet)) = (self.observer, Packet::parse(&forged.bytes)) {
                    let Flight { source, source_port, .. } = forged;
                    observer(&format!("{:>12} forged from {source} port {source_port}: {packet}", self.now.as_nanos()));
                }
                self.launch(self.now, forged);
            }
        }
    }
}

/// A packet in memory is not damaged, and its check field has no contents.
fn clear_check_field(flight: &mut Flight) {
    flight.is_corrupt = false;
    if let Some(field) = flight.bytes.last_chunk_mut::<ICRC_BYTES>() {
        *field = [0; ICRC_BYTES];
    }
}
