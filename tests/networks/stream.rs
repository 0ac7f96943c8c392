//! A stream of WRITEs or READs of 64 KiB, or of TCP, over a link with a rate that loses packets, in virtual time.

use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use rdma_verbs::memory::{Backing, Region};
use rdma_verbs::sim::{Bottleneck, Connection, Discipline, Faults, Host, Network, Port, Socket};
use rdma_verbs::transport::{CongestionFactory, CubicFactory};
use rdma_verbs::types::{
    AccessFlags, Counter, Data, DomainId, KeyShare, Mtu, Operation, PeerCapabilities, PeerKey, Psn,
    QueuePairCapabilities, RawCompletion, SendFlags, SendRequest, Sge, Time,
};
use serde::Serialize;

const BASE: u64 = 0x10_0000;
const MESSAGE_BYTES: u32 = 64 << 10;
/// Requests that are posted and not complete: more than the largest window.
const DEPTH: usize = 256;
/// An engine takes all packets that have come before it sends any.
const SOCKET: Socket = Socket { packets: usize::MAX, wake: Duration::from_micros(20) };
const NATIVE: PeerCapabilities = PeerCapabilities {
    version: 1,
    segmentation_offload: true,
    receive_buffer_bytes: 8 << 20,
    extensions: PeerCapabilities::GAP_RUNS,
};

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Stream {
    Write,
    Read,
    /// The simulator's model of TCP in the same place, by the RFCs.
    Tcp,
    /// The same with the growth of the window that Linux has.
    Linux,
}

/// One measurement.
#[derive(Serialize, Debug)]
pub(crate) struct Cell {
    pub(crate) operation: Stream,
    pub(crate) round_trip_microseconds: u128,
    /// Packets lost of a million.
    pub(crate) loss: u32,
    pub(crate) megabytes_per_second: f64,
    /// Of the rate without losses.
    pub(crate) kept: f64,
    /// Bytes of data packets on the wire beyond those that are needed, of the needed ones.
    pub(crate) repeated: f64,
    /// Whether the connection ended.
    pub(crate) failed: bool,
    /// The longest time between two completions.
    pub(crate) longest_pause: Duration,
    /// Probes, those of the warm-up included.
    pub(crate) probes: u64,
}

/// How the ends of a stream know each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Peers {
    /// As endpoints of this crate, which share a key.
    #[default]
    Native,
    /// As any RoCE endpoints.
    Standard,
}

/// What is wrong with a link beside losses at random.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trouble {
    None,
    /// One packet of a hundred is late by up to this time.
    Reordering(Duration),
    /// Nothing passes in each second for this time.
    Outages(Duration),
}

/// The link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    /// Mbit/s.
    pub(crate) rate: u64,
    pub(crate) round_trip: Duration,
    /// Packets lost of a million.
    pub(crate) loss: u32,
    /// Bytes that wait before the link.
    pub(crate) queue_bytes: u64,
    pub(crate) seed: u64,
    pub(crate) trouble: Trouble,
    pub(crate) peers: Peers,
    /// Code of the transport timeout of the streams.
    pub(crate) timeout: u8,
}

impl Link {
    /// Of this rate in Mbit/s, with a queue that holds all that is in flight: nothing is lost but by chance.
    pub(crate) fn new(rate: u64, round_trip: Duration, loss: u32) -> Self {
        let (trouble, peers) = (Trouble::None, Peers::Native);
        Self { rate, round_trip, loss, queue_bytes: 1 << 30, seed: 1, trouble, peers, timeout: 14 }
    }

    /// Pairs of hosts that share the link, one bottleneck in each direction.
    pub(crate) fn network(self, hosts: Vec<Host>) -> Network {
        let Self { rate, round_trip, loss, queue_bytes, seed, trouble, .. } = self;
        let faults = Faults { rare_loss: loss, delay: round_trip / 2, ..Faults::default() };
        let faults = match trouble {
            Trouble::None => faults,
            Trouble::Reordering(lateness) => Faults { reordering: 10, lateness, ..faults },
            Trouble::Outages(length) => Faults { blackouts: Some((Duration::from_secs(1), length)), ..faults },
        };
        let there: Vec<(usize, usize)> = (0..hosts.len()).step_by(2).map(|first| (first, first + 1)).collect();
        let back: Vec<(usize, usize)> = there.iter().map(|(first, second)| (*second, *first)).collect();
        let faults = vec![faults; hosts.len()];
        let mut network = Network::new(hosts, faults, seed);
        network.release = 1_000;
        for pairs in [there, back] {
            let bottleneck = Bottleneck::new(rate * 125_000, Discipline::TailDrop { queue_bytes });
            network.share(bottleneck, &pairs);
        }
        network
    }

    /// How long a stream runs before it is measured.
    pub(crate) fn warm_up(self) -> Duration {
        (20 * self.round_trip).max(Duration::from_millis(50))
    }
}

/// What holds the streams of RoCE back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Control {
    /// As devices do: as much in flight as the peer's socket takes, towards standard peers less after a loss.
    #[default]
    Default,
    Cubic,
}

impl Control {
    fn factory(self) -> Option<Arc<dyn CongestionFactory>> {
        match self {
            Self::Default => None,
            Self::Cubic => Some(Arc::new(CubicFactory)),
        }
    }
}

/// A stream of messages from one host of a pair, or to it.
pub(crate) struct Flow {
    /// The host that requests.
    host: usize,
    port: Port,
    operation: Operation,
    sge: Sge,
    outstanding: usize,
    done: Vec<RawCompletion>,
    /// Bytes of the messages that have completed.
    pub(crate) bytes: u64,
    pub(crate) failed: bool,
    last_completion: Time,
    longest_pause: Duration,
}

impl Flow {
    /// A stream between these hosts, the first of which requests.
    fn new(is_read: bool, link: Link, hosts: &mut [Host; 2], host: usize) -> Self {
        let cap = QueuePairCapabilities { max_send_wr: DEPTH as u32, ..QueuePairCapabilities::default() };
        let ports = hosts.each_mut().map(|host| host.create_queue_pair(cap));
        let regions = hosts.each_ref().map(register);
        connect(hosts, &ports, link);
        let (remote_addr, rkey) = (BASE, regions[1].rkey());
        let operation =
            if is_read { Operation::Read { remote_addr, rkey } } else { Operation::Write { remote_addr, rkey } };
        let [port, _] = ports;
        Self {
            host,
            port,
            operation,
            sge: Sge { addr: BASE, length: MESSAGE_BYTES, lkey: regions[0].lkey() },
            outstanding: 0,
            done: Vec::new(),
            bytes: 0,
            failed: false,
            last_completion: Time::ZERO,
            longest_pause: Duration::ZERO,
        }
    }

    fn post(&mut self, network: &mut Network) {
        let (now, sges) = (network.now, [self.sge]);
        let (flags, operation) = (SendFlags::SIGNALED, self.operation);
        while self.outstanding < DEPTH && !self.failed {
            let request = SendRequest { wr_id: 1, operation, flags, data: Data::Sges(&sges) };
            assert!(network.hosts[self.host].post_send(now, &self.port, &request), "the send queue has room");
            self.outstanding += 1;
        }
    }

    fn poll(&mut self, now: Time) {
        self.port.poll(&mut self.done);
        if !self.done.is_empty() {
            let pause = now.saturating_since(std::mem::replace(&mut self.last_completion, now));
            self.longest_pause = self.longest_pause.max(pause);
        }
        for completion in self.done.drain(..) {
            self.failed |= !completion.status.is_success();
            self.outstanding -= 1;
            self.bytes += if self.failed { 0 } else { u64::from(MESSAGE_BYTES) };
        }
    }
}

/// Pairs of hosts that share a link, with a stream between those of the first pairs.
pub(crate) struct World {
    pub(crate) network: Network,
    pub(crate) flows: Vec<Flow>,
    /// The hosts of the first pair that data leaves and reaches.
    direction: (usize, usize),
}

impl World {
    /// So many streams, and so many pairs of hosts besides.
    pub(crate) fn new(is_read: bool, link: Link, control: Control, streams: usize, others: usize) -> Self {
        let mut all = Vec::new();
        let mut flows = Vec::new();
        for pair in 0..streams + others {
            let mut pair_hosts = hosts(pair, control);
            if pair < streams {
                flows.push(Flow::new(is_read, link, &mut pair_hosts, 2 * pair));
            }
            all.extend(pair_hosts);
        }
        let mut network = link.network(all);
        (0..2 * streams).for_each(|host| network.set_socket(host, SOCKET));
        let direction = if is_read { (1, 0) } else { (0, 1) };
        Self { network, flows, direction }
    }

    /// Runs until then, or until no stream is left.
    pub(crate) fn run(&mut self, end: Time) {
        let has_tcp = self.flows.len() * 2 < self.network.hosts.len();
        while self.network.now < end && (has_tcp || self.flows.iter().any(|flow| !flow.failed)) {
            for flow in &mut self.flows {
                flow.post(&mut self.network);
            }
            self.network.step(Duration::from_millis(1).min(end - self.network.now));
            let now = self.network.now;
            self.flows.iter_mut().for_each(|flow| flow.poll(now));
        }
    }

    /// Bytes on the wire in the direction of the data.
    pub(crate) fn data_bytes_on_the_wire(&self) -> u64 {
        let (from, to) = self.direction;
        self.network.bottleneck(from, to).map_or(0, Bottleneck::passed_bytes)
    }
}

/// Two hosts with nothing on them.
pub(crate) fn hosts(pair: usize, control: Control) -> [Host; 2] {
    [1, 2].map(|end| {
        let number = (2 * pair + end) as u8;
        Host::with_congestion([192, 0, 2, number].into(), number.into(), control.factory())
    })
}

fn register(host: &Host) -> std::sync::Arc<Region> {
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE;
    let backing = Backing::from_vec(vec![1; MESSAGE_BYTES as usize]);
    host.memory.register(DomainId(1), backing, Some(BASE), access).expect("a region")
}

fn connect(hosts: &mut [Host; 2], ports: &[Port; 2], link: Link) {
    for own in 0..2 {
        let share = |end: usize| KeyShare::new([end as u8; KeyShare::BYTES]);
        let key = PeerKey { local: share(own), remote: share(1 - own), is_agreed: true };
        let (peer, key) = match link.peers {
            Peers::Native => (NATIVE, Some(key)),
            Peers::Standard => (PeerCapabilities::default(), None),
        };
        let connection = Connection {
            peer_address: hosts[1 - own].address,
            peer_qpn: ports[1 - own].qpn,
            peer,
            key,
            path_mtu: Mtu::Mtu1024,
            sq_psn: Psn::new(100),
            rq_psn: Psn::new(100),
            access: AccessFlags::REMOTE,
            rd_atomic: 16,
            timeout: link.timeout,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 2,
        };
        hosts[own].connect(Time::ZERO, ports[own].qpn, &connection);
    }
}

/// Bytes of a data packet of 1 KiB on the wire, with all headers: what `Bottleneck` counts.
const WIRE_BYTES_OF_A_PACKET: f64 = 1_082.0;

/// Measures a stream for this time, and at least 50 round trips.
pub(crate) fn measure(operation: Stream, link: Link, control: Control, least: Duration) -> Cell {
    let length = least.max(50 * link.round_trip);
    match operation {
        Stream::Tcp | Stream::Linux => super::tcp::measure(operation, link, length),
        Stream::Write | Stream::Read => measure_verb(operation, link, control, length),
    }
}

fn measure_verb(operation: Stream, link: Link, control: Control, length: Duration) -> Cell {
    let Link { round_trip, loss, .. } = link;
    let mut world = World::new(operation == Stream::Read, link, control, 1, 0);
    let begin = world.network.now + link.warm_up();
    world.run(begin);
    world.flows[0].longest_pause = Duration::ZERO;
    let (bytes_before, wire_before) = (world.flows[0].bytes, world.data_bytes_on_the_wire());
    world.run(begin + length);
    let flow = &world.flows[0];
    let bytes = flow.bytes - bytes_before;
    let needed = bytes as f64 / 1_024.0 * WIRE_BYTES_OF_A_PACKET;
    let on_the_wire = (world.data_bytes_on_the_wire() - wire_before) as f64;
    Cell {
        operation,
        round_trip_microseconds: round_trip.as_micros(),
        loss,
        megabytes_per_second: bytes as f64 / 1e6 / length.as_secs_f64(),
        kept: 0.0,
        repeated: (on_the_wire / needed - 1.0).max(0.0),
        failed: flow.failed,
        longest_pause: flow.longest_pause,
        probes: world.network.hosts[flow.host].endpoint.counters().get(Counter::TailProbe),
    }
}
