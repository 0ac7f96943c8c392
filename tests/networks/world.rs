//! Hosts in virtual time that share a link with a limited rate, and streams of messages of 64 KiB between them.

use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use rdma_verbs::memory::{Backing, Region};
use rdma_verbs::sim::{Bottleneck, Connection, Discipline, Faults, Host, Network, Port, Socket, StreamId, TcpConfig};
use rdma_verbs::transport::{CongestionFactory, CubicFactory};
use rdma_verbs::types::{
    AccessFlags, Data, DomainId, KeyShare, Mtu, Operation, PeerCapabilities, PeerKey, Psn, QueuePairCapabilities,
    QueuePairType, RawCompletion, SendFlags, SendRequest, Sge, Time,
};
use serde::Serialize;

/// Payload per byte on the wire in packets of 1 KiB.
pub(crate) const PAYLOAD_SHARE: f64 = 1_024.0 / 1_082.0;
const BASE: u64 = 0x10_0000;
pub(crate) const MESSAGE_BYTES: u32 = 64 << 10;
/// Number of requests that a stream keeps outstanding: more than the largest window.
const DEPTH: usize = 256;
/// Default number of READs that a stream may have outstanding, as of a connection.
const READS: u8 = 16;
/// An engine receives all arrived packets before it sends any.
const SOCKET: Socket = Socket { packets: usize::MAX, wake: Duration::from_micros(20) };
const NATIVE: PeerCapabilities = PeerCapabilities::STANDARD
    .version(1)
    .segmentation_offload(true)
    .receive_buffer_bytes(8 << 20)
    .extensions(PeerCapabilities::GAP_RUNS | PeerCapabilities::MARKS);

/// The capabilities that the ends of a stream know of each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Peers {
    /// Those of native peers, which share a key.
    #[default]
    Native,
    /// Those of standard peers.
    Standard,
}

/// Faults of a link besides random losses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trouble {
    None,
    /// One packet of a hundred is late by up to this time.
    Reordering(Duration),
    /// An outage of this length in each second.
    Outages(Duration),
}

/// The properties of the link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    /// Rate in Mbit/s.
    pub(crate) rate: u64,
    pub(crate) round_trip: Duration,
    /// Losses per million packets.
    pub(crate) loss: u32,
    /// Length of the link's queue in bytes.
    pub(crate) queue_bytes: u64,
    pub(crate) seed: u64,
    pub(crate) trouble: Trouble,
    pub(crate) peers: Peers,
    /// Code of the transport timeout of the streams.
    pub(crate) timeout: u8,
    /// Number of READs that a stream may have outstanding.
    pub(crate) reads: u8,
}

impl Link {
    /// Returns a link of this rate in Mbit/s, with a queue that holds all packets in flight: all losses are random.
    pub(crate) fn new(rate: u64, round_trip: Duration, loss: u32) -> Self {
        let (trouble, peers) = (Trouble::None, Peers::Native);
        Self { rate, round_trip, loss, queue_bytes: 1 << 30, seed: 1, trouble, peers, timeout: 14, reads: READS }
    }

    fn faults(self) -> Faults {
        let Self { round_trip, loss, trouble, .. } = self;
        let faults = Faults { rare_loss: loss, delay: round_trip / 2, ..Faults::default() };
        match trouble {
            Trouble::None => faults,
            Trouble::Reordering(lateness) => Faults { reordering: 10, lateness, ..faults },
            Trouble::Outages(length) => Faults { blackouts: Some((Duration::from_secs(1), length)), ..faults },
        }
    }

    /// Returns a network of these hosts, with one bottleneck in each direction that the traffic from the first to the
    /// second hosts of the pairs shares.
    pub(crate) fn network(self, hosts: Vec<Host>, there: &[(usize, usize)]) -> Network {
        let Self { rate, queue_bytes, seed, .. } = self;
        let back: Vec<(usize, usize)> = there.iter().map(|(first, second)| (*second, *first)).collect();
        let faults = vec![self.faults(); hosts.len()];
        let mut network = Network::new(hosts, faults, seed);
        network.release = 1_000;
        for pairs in [there, &back] {
            let bottleneck = Bottleneck::new(rate * 125_000, Discipline::TailDrop { queue_bytes });
            network.share(bottleneck, pairs);
        }
        network
    }

    /// Returns how long a stream runs before it is measured.
    pub(crate) fn warm_up(self) -> Duration {
        (20 * self.round_trip).max(Duration::from_millis(50))
    }

    /// Returns the settings of TCP over it. The receive window holds two round trips at the link's rate, so that
    /// without losses it is no limit.
    pub(crate) fn tcp(self) -> TcpConfig {
        let config = TcpConfig::default();
        let two_round_trips = self.rate as f64 * 125_000.0 * 2.0 * self.round_trip.as_secs_f64();
        TcpConfig { receive_window_bytes: config.receive_window_bytes.max(two_round_trips as u32), ..config }
    }
}

/// The congestion control of the RoCE streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Control {
    /// A device's default: the peer's socket bounds the window, with standard peers also losses.
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

/// The properties of a stream of messages between two hosts, the first of which is the requester.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) hosts: (usize, usize),
    /// READs, otherwise WRITEs.
    pub(crate) is_read: bool,
    /// The transport service. Over an unreliable connection a WRITE completes when it was sent.
    pub(crate) service: QueuePairType,
    /// Number of requests kept outstanding.
    pub(crate) depth: usize,
    /// Total number of messages.
    pub(crate) messages: usize,
}

impl Plan {
    /// Returns a stream over a reliable connection that does not end.
    pub(crate) fn new(is_read: bool, hosts: (usize, usize)) -> Self {
        Self { hosts, is_read, service: QueuePairType::ReliableConnection, depth: DEPTH, messages: usize::MAX }
    }

    /// Returns the sender and the receiver of the data.
    pub(crate) fn direction(&self) -> (usize, usize) {
        let (requester, responder) = self.hosts;
        if self.is_read { (responder, requester) } else { (requester, responder) }
    }
}

/// A stream of messages.
pub(crate) struct Flow {
    /// The requesting host.
    pub(crate) host: usize,
    depth: usize,
    /// Number of messages left to post.
    pub(crate) left: usize,
    port: Port,
    operation: Operation,
    sge: Sge,
    outstanding: usize,
    done: Vec<RawCompletion>,
    /// Number of bytes of the completed messages.
    pub(crate) bytes: u64,
    pub(crate) failed: bool,
    pub(crate) last_completion: Time,
    pub(crate) longest_pause: Duration,
}

impl Flow {
    fn new(plan: Plan, link: Link, hosts: [&mut Host; 2]) -> Self {
        let cap = QueuePairCapabilities { max_send_wr: plan.depth as u32, ..QueuePairCapabilities::default() };
        let mut hosts = hosts;
        let ports = hosts.each_mut().map(|host| host.create_queue_pair_of(plan.service, cap));
        let regions = hosts.each_ref().map(|host| register(host));
        connect(&mut hosts, &ports, link);
        let (remote_addr, rkey) = (BASE, regions[1].rkey());
        let operation = match plan.is_read {
            true => Operation::Read { remote_addr, rkey },
            false => Operation::Write { remote_addr, rkey },
        };
        let [port, _] = ports;
        Self {
            host: plan.hosts.0,
            depth: plan.depth,
            left: plan.messages,
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

    fn is_over(&self) -> bool {
        self.failed || self.left == 0 && self.outstanding == 0
    }

    fn post(&mut self, network: &mut Network) {
        let (now, sges) = (network.now, [self.sge]);
        let (flags, operation) = (SendFlags::SIGNALED, self.operation);
        while self.outstanding < self.depth && self.left > 0 && !self.failed {
            let request = SendRequest { wr_id: 1, operation, flags, data: Data::Sges(&sges) };
            assert!(network.hosts[self.host].post_send(now, &self.port, &request), "the send queue has room");
            self.outstanding += 1;
            self.left -= 1;
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

/// Hosts that share a link, and the streams between them.
pub(crate) struct World {
    pub(crate) network: Network,
    pub(crate) flows: Vec<Flow>,
    pub(crate) tcp: Vec<StreamId>,
    /// Minimum interval of the applications' polls. Zero: whenever something happens.
    pub(crate) poll_interval: Duration,
    link: Link,
}

impl World {
    /// Makes this many pairs of hosts that share the link, without streams.
    pub(crate) fn of_pairs(link: Link, control: Control, pairs: usize) -> Self {
        let there: Vec<(usize, usize)> = (0..pairs).map(|pair| (2 * pair, 2 * pair + 1)).collect();
        Self::new(link, control, 2 * pairs, &there)
    }

    /// Makes this many hosts, and a link between the first and the second hosts of these pairs.
    pub(crate) fn new(link: Link, control: Control, hosts: usize, there: &[(usize, usize)]) -> Self {
        let hosts = (0..hosts).map(|index| host(index, control)).collect();
        let network = link.network(hosts, there);
        Self { network, flows: Vec::new(), tcp: Vec::new(), poll_interval: Duration::ZERO, link }
    }

    /// Starts a stream.
    pub(crate) fn add(&mut self, plan: Plan) {
        let (from, to) = plan.hosts;
        let hosts = self.network.hosts.get_disjoint_mut([from, to]).expect("two hosts of the network");
        self.flows.push(Flow::new(plan, self.link, hosts));
        [from, to].into_iter().for_each(|host| self.network.set_socket(host, SOCKET));
    }

    /// Starts a stream of TCP.
    pub(crate) fn add_tcp(&mut self, from: usize, to: usize, config: TcpConfig) {
        self.tcp.push(self.network.add_stream(from, to, config));
    }

    /// Runs until this time, or until no stream is left.
    pub(crate) fn run(&mut self, end: Time) {
        while self.network.now < end && (!self.tcp.is_empty() || self.flows.iter().any(|flow| !flow.is_over())) {
            for flow in &mut self.flows {
                flow.post(&mut self.network);
            }
            // At least every millisecond, to post to streams without events.
            let limit = if self.flows.is_empty() { Duration::MAX } else { Duration::from_millis(1) };
            let next_poll = end.min(self.network.now + self.poll_interval);
            self.network.step(limit.min(end - self.network.now));
            while self.network.now < next_poll {
                self.network.step(next_poll - self.network.now);
            }
            let now = self.network.now;
            self.flows.iter_mut().for_each(|flow| flow.poll(now));
        }
    }

    /// Returns the bytes delivered to the application of each stream, those of TCP last.
    pub(crate) fn delivered(&self) -> Vec<u64> {
        let messages = self.flows.iter().map(|flow| flow.bytes);
        messages.chain(self.tcp.iter().map(|id| self.network.stream(*id).delivered_bytes())).collect()
    }

    /// Returns the bytes on the wire from one host to another, including all traffic that shares their link.
    pub(crate) fn wire_bytes(&self, (from, to): (usize, usize)) -> u64 {
        self.network.bottleneck(from, to).map_or(0, Bottleneck::passed_bytes)
    }
}

/// Makes a host without streams.
fn host(index: usize, control: Control) -> Host {
    let number = index as u16 + 1;
    let [high, low] = number.to_be_bytes();
    Host::with_congestion([192, 0, 2 + high, low].into(), number.into(), control.factory())
}

fn register(host: &Host) -> Arc<Region> {
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE;
    let backing = Backing::from_vec(vec![1; MESSAGE_BYTES as usize]);
    host.memory.register(DomainId(1), backing, Some(BASE), access).expect("a region")
}

fn connect(hosts: &mut [&mut Host; 2], ports: &[Port; 2], link: Link) {
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
            rd_atomic: link.reads,
            timeout: link.timeout,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 2,
        };
        hosts[own].connect(Time::ZERO, ports[own].qpn, &connection);
    }
}

/// Returns Jain's index: 1 if all rates are equal, the inverse of their number if one has everything.
pub(crate) fn fairness(rates: &[f64]) -> f64 {
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    sum * sum / (rates.len() as f64 * squares)
}
