//! The network: hosts, links between them, and one queue of what will happen when.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::time::Duration;

use super::link::{Fate, corrupt};
use super::{Faults, Host, Random};
use crate::transport::{AckRelease, Datagram, Transmit};
use crate::types::{Psn, Time};
use crate::wire::{Opcode, Packet};

/// A packet on its way.
struct Flight {
    at: Time,
    order: u64,
    to: usize,
    source: IpAddr,
    source_port: u16,
    segment_index: u16,
    bytes: Vec<u8>,
}

/// What the observer of the wire is told.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub struct Record {
    /// When it was sent.
    pub at: Time,
    /// Who sent it.
    pub from: usize,
    /// What it is.
    pub opcode: Opcode,
    /// Its number.
    pub psn: Psn,
    /// Its length in bytes.
    pub length: usize,
    /// Whether the link lost or damaged it.
    pub harmed: bool,
}

/// Hosts, and a link from each to every other with the faults of its sender.
pub struct Network {
    /// The hosts.
    pub hosts: Vec<Host>,
    /// Faults of what each host sends.
    pub faults: Vec<Faults>,
    /// The time now.
    pub now: Time,
    /// Packets sent.
    pub packets: u64,
    /// Packets of each host that were lost or damaged.
    pub harmed: Vec<u64>,
    /// Prints each packet.
    pub verbose: bool,
    random: Random,
    flights: BinaryHeap<Reverse<(Time, u64)>>,
    /// What is in flight, by its order number.
    cargo: HashMap<u64, Flight>,
    order: u64,
    trace: DefaultHasher,
    last_psn: Vec<Option<Psn>>,
    /// How often a sender's numbers wrapped.
    pub wraps: u64,
    buffer: Vec<u8>,
}

impl Network {
    /// A network of these hosts.
    pub fn new(hosts: Vec<Host>, faults: Vec<Faults>, seed: u64) -> Self {
        let count = hosts.len();
        Self {
            hosts,
            faults,
            now: Time::from_nanos(1_000),
            packets: 0,
            harmed: vec![0; count],
            verbose: false,
            random: Random::new(seed),
            flights: BinaryHeap::new(),
            cargo: HashMap::new(),
            order: 0,
            trace: DefaultHasher::new(),
            last_psn: vec![None; count],
            wraps: 0,
            buffer: vec![0; 65_536],
        }
    }

    /// A number that depends on everything that was sent, when, and what became of it.
    pub fn trace_hash(&self) -> u64 {
        self.trace.clone().finish()
    }

    /// Puts everything on the wire that the hosts have to say now.
    pub fn transmit(&mut self) {
        for from in 0..self.hosts.len() {
            let release = if self.random.chance(500) { AckRelease::Hold } else { AckRelease::Now };
            loop {
                let host = &mut self.hosts[from];
                let view = host.memory.read();
                let transmit = host.endpoint.poll_transmit(self.now, &view, &mut self.buffer, release);
                drop(view);
                let Some(transmit) = transmit else { break };
                self.send(from, &transmit);
            }
        }
    }

    fn send(&mut self, from: usize, transmit: &Transmit) {
        let Some(to) = self.hosts.iter().position(|host| host.address == transmit.destination) else { return };
        // Some kernels hand a run over as it is, others one by one: then the place in the run is not known.
        let is_merged = self.random.chance(500);
        let size = transmit.segment_size.unwrap_or(transmit.length);
        let run = self.buffer[..transmit.length].to_vec();
        for (index, bytes) in run.chunks(size).enumerate() {
            self.packets += 1;
            let fates = self.faults[from].decide(self.now, &mut self.random);
            self.observe(from, bytes, fates[0]);
            for fate in fates.into_iter().flatten() {
                let Fate::Arrives { at, corrupt: is_corrupt } = fate else { continue };
                let mut bytes = bytes.to_vec();
                if is_corrupt {
                    corrupt(&mut bytes, &mut self.random);
                }
                let segment_index = if is_merged { index as u16 } else { 0 };
                let (source, source_port) = (transmit.source, transmit.source_port);
                self.order += 1;
                self.flights.push(Reverse((at, self.order)));
                let flight = Flight { at, order: self.order, to, source, source_port, segment_index, bytes };
                self.cargo.insert(flight.order, flight);
            }
        }
    }

    fn observe(&mut self, from: usize, bytes: &[u8], fate: Option<Fate>) {
        let harmed = !matches!(fate, Some(Fate::Arrives { corrupt: false, .. }));
        self.harmed[from] += u64::from(harmed);
        let Ok(packet) = Packet::parse(bytes) else { return };
        let (opcode, psn) = (packet.headers.bth.opcode, packet.headers.bth.psn);
        if opcode.is_request() {
            let before = self.last_psn[from].replace(psn);
            let wrapped = before.is_some_and(|before| psn.value() < before.value() && before.is_before(psn));
            self.wraps += u64::from(wrapped);
        }
        let record = Record { at: self.now, from, opcode, psn, length: bytes.len(), harmed };
        record.hash(&mut self.trace);
        if self.verbose {
            let mark = if harmed { " HARMED" } else { "" };
            eprintln!("{:>12} host {from}: {packet}{mark}", self.now.as_nanos());
        }
    }

    /// Goes to the next arrival or deadline, at most by `limit`, and lets it happen. Packets that answer it are sent.
    pub fn step(&mut self, limit: Duration) {
        self.transmit();
        let arrival = self.flights.peek().map(|Reverse((at, _))| *at);
        let deadline = self.hosts.iter().filter_map(|host| host.endpoint.next_timeout()).min();
        let horizon = self.now + limit;
        let next = [arrival, deadline].into_iter().flatten().min().unwrap_or(horizon).min(horizon);
        self.now = self.now.max(next);
        while let Some(Reverse((at, order))) = self.flights.peek().copied()
            && at <= self.now
        {
            self.flights.pop();
            if let Some(flight) = self.cargo.remove(&order) {
                self.deliver(&flight);
            }
        }
        for host in &mut self.hosts {
            if host.endpoint.next_timeout().is_some_and(|deadline| deadline <= self.now) {
                host.endpoint.handle_timeout(self.now, &host.memory.read());
            }
        }
        self.transmit();
    }

    fn deliver(&mut self, flight: &Flight) {
        debug_assert!(flight.at <= self.now);
        let host = &mut self.hosts[flight.to];
        let datagram = Datagram {
            source: flight.source,
            destination: host.address,
            source_port: flight.source_port,
            segment_index: flight.segment_index,
            payload: &flight.bytes,
        };
        host.endpoint.handle_datagram(self.now, &host.memory.read(), &datagram);
    }
}
