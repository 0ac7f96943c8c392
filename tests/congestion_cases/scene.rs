//! Streams on a link, and measurements of them.

use std::time::Duration;

use rdma_verbs::sim::{Bottleneck, Discipline, Growth, TcpConfig};
use rdma_verbs::types::{Counter, Time};

use super::world::{Control, Link, PAYLOAD_SHARE, Plan, World, fairness};

/// Number of READs that a stream may have outstanding: as many as a device allows. With 16, a connection's default, 1
/// MiB is in flight, less than half of the BDP of 1 Gbit/s and 20 ms.
pub(crate) const READS: u8 = 128;

/// Length on the wire of a full packet of 1 KiB.
pub(crate) const PACKET_BYTES: u64 = 1_082;
const PAYLOAD_BYTES: f64 = 1_024.0;
/// Maximum number of packets of a run, so that none takes more than a few seconds.
const MOST_PACKETS: u64 = 1_500_000;

/// Streams that share a link.
pub(crate) struct Scene {
    pub(crate) world: World,
    pub(crate) link: Link,
    /// Sender and receiver of the data of one of the streams.
    pub(crate) direction: (usize, usize),
}

/// The totals at one time.
#[derive(Clone)]
pub(crate) struct Snapshot {
    pub(crate) at: Time,
    /// Number of bytes delivered to each application.
    delivered: Vec<u64>,
    /// Number of bytes that the link carried.
    pub(crate) wire_bytes: u64,
    packets: u64,
    drops: u64,
    /// Number of retransmitted RoCE packets.
    repeated: u64,
}

/// The changes between two times.
pub(crate) struct Span {
    /// The rate of each stream, as a fraction of the payload rate that packets of 1 KiB have on the link; those of TCP
    /// last.
    pub(crate) rates: Vec<f64>,
    /// The fraction of the packets reaching the link that was dropped.
    pub(crate) dropped: f64,
    pub(crate) drops: u64,
    /// Retransmitted RoCE packets, as a fraction of those that the messages need.
    pub(crate) repeated: f64,
}

impl Span {
    pub(crate) fn sum(&self) -> f64 {
        self.rates.iter().sum()
    }

    pub(crate) fn fairness(&self) -> f64 {
        fairness(&self.rates)
    }
}

impl Scene {
    /// Makes streams of pairs of hosts, with CUBIC, and streams of TCP beside them.
    pub(crate) fn pairs(link: Link, is_read: bool, ours: usize, tcp: usize) -> Self {
        let plan = |pair: usize| Plan::new(is_read, (2 * pair, 2 * pair + 1));
        let mut scene = Self::of_pairs(link, ours + tcp, plan(0).direction());
        (0..ours).for_each(|pair| scene.world.add(plan(pair)));
        (ours..ours + tcp).for_each(|pair| scene.add_tcp(plan(pair).direction()));
        scene
    }

    /// Makes pairs of hosts without streams.
    pub(crate) fn of_pairs(link: Link, pairs: usize, direction: (usize, usize)) -> Self {
        Self { world: World::of_pairs(link, Control::Cubic, pairs), link, direction }
    }

    /// Makes one stream of WRITEs.
    pub(crate) fn write(link: Link) -> Self {
        Self::pairs(link, false, 1, 0)
    }

    /// Makes one stream of TCP.
    pub(crate) fn tcp(link: Link) -> Self {
        Self::pairs(link, false, 0, 1)
    }

    /// Adds a stream of TCP as in Linux. Its receive window fills the queue, too.
    pub(crate) fn add_tcp(&mut self, (from, to): (usize, usize)) {
        let config = self.link.tcp();
        let fills = 2.0 * (bdp(self.link.rate, self.link.round_trip) + self.link.queue_bytes as f64);
        let receive_window_bytes = config.receive_window_bytes.max(fills as u32);
        let config = TcpConfig { growth: Growth::Linux, receive_window_bytes, ..config };
        self.world.add_tcp(from, to, config);
    }

    /// Sets the queue discipline from the first to the second host of each pair.
    pub(crate) fn with_discipline(mut self, discipline: Discipline) -> Self {
        let there: Vec<(usize, usize)> =
            (0..self.world.network.hosts.len()).step_by(2).map(|at| (at, at + 1)).collect();
        self.world.network.share(Bottleneck::new(self.link.rate * 125_000, discipline), &there);
        self
    }

    pub(crate) fn bottleneck(&self) -> &Bottleneck {
        let (from, to) = self.direction;
        self.world.network.bottleneck(from, to).expect("data passes a bottleneck")
    }

    pub(crate) fn bottleneck_mut(&mut self) -> &mut Bottleneck {
        let (from, to) = self.direction;
        self.world.network.bottleneck_mut(from, to).expect("data passes a bottleneck")
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let link = self.bottleneck();
        Snapshot {
            at: self.world.network.now,
            delivered: self.world.delivered(),
            wire_bytes: self.world.wire_bytes(self.direction),
            packets: link.passed_packets(),
            drops: link.dropped_packets(),
            repeated: self.count(Counter::RetransmittedPackets),
        }
    }

    /// Returns the changes from one time to another.
    pub(crate) fn span(&self, from: &Snapshot, to: &Snapshot) -> Span {
        let carried = self.link.rate as f64 * 125_000.0 * PAYLOAD_SHARE * (to.at - from.at).as_secs_f64();
        // A stream may have started in between.
        let before = from.delivered.iter().chain(std::iter::repeat(&0));
        let rates: Vec<f64> = to.delivered.iter().zip(before).map(|(to, from)| (to - from) as f64 / carried).collect();
        let needed = rates[..self.world.flows.len()].iter().sum::<f64>() * carried / PAYLOAD_BYTES;
        let drops = to.drops - from.drops;
        Span {
            rates,
            dropped: drops as f64 / (drops + to.packets - from.packets).max(1) as f64,
            drops,
            repeated: (to.repeated - from.repeated) as f64 / needed,
        }
    }

    /// Lets the streams run.
    pub(crate) fn run(&mut self, length: Duration) -> Span {
        let before = self.snapshot();
        let end = before.at + length;
        self.world.run(end);
        self.span(&before, &self.snapshot())
    }

    /// Measures for this time, or less for a fast link, after the warm-up.
    pub(crate) fn measure(&mut self, length: Duration) -> Span {
        self.measure_after(warm_up(self.link), affordable(self.link, length))
    }

    /// Measures for all of this time after this warm-up.
    pub(crate) fn measure_after(&mut self, warm_up: Duration, length: Duration) -> Span {
        self.run(warm_up);
        self.bottleneck_mut().forget_delays();
        self.run(length)
    }

    /// Returns the number of RoCE streams that have failed.
    pub(crate) fn failures(&self) -> u64 {
        self.world.flows.iter().filter(|flow| flow.failed).count() as u64
    }

    /// Returns a counter's value since the start, summed over all hosts.
    pub(crate) fn count(&self, counter: Counter) -> u64 {
        self.world.network.hosts.iter().map(|host| host.endpoint.counters().get(counter)).sum()
    }

    /// Returns the 99th percentile of the packets' delay in the queue, in milliseconds.
    pub(crate) fn p99_milliseconds(&self) -> f64 {
        milliseconds(self.bottleneck().delays().quantile(0.99))
    }
}

pub(crate) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Returns the BDP: the number of bytes that the path holds without a queue.
pub(crate) fn bdp(rate: u64, round_trip: Duration) -> f64 {
    rate as f64 * 125_000.0 * round_trip.as_secs_f64()
}

/// Returns a link with a queue of this many BDP, and at least eight packets.
pub(crate) fn link(rate: u64, round_trip: Duration, queue: f64, seed: u64) -> Link {
    let queue_bytes = ((queue * bdp(rate, round_trip)) as u64).max(8 * PACKET_BYTES);
    Link { queue_bytes, seed, reads: READS, ..Link::new(rate, round_trip, 0) }
}

/// Returns a link with a queue of one BDP, and at least 200 kB, as the smallest switches have.
pub(crate) fn switch(rate: u64, round_trip: Duration, seed: u64) -> Link {
    let link = link(rate, round_trip, 1.0, seed);
    Link { queue_bytes: link.queue_bytes.max(200_000), ..link }
}

/// Returns how long streams run before they are measured.
pub(crate) fn warm_up(link: Link) -> Duration {
    link.warm_up().max(Duration::from_millis(200))
}

/// Returns the time, shortened if it would take too many packets.
fn affordable(link: Link, length: Duration) -> Duration {
    let most = (MOST_PACKETS * PACKET_BYTES) as f64 / (link.rate as f64 * 125_000.0);
    length.min(Duration::from_secs_f64(most))
}

/// Formats a rate for a row's parameters.
pub(crate) fn rate_text(rate: u64) -> String {
    if rate < 1_000 { format!("{rate} Mbit/s") } else { format!("{} Gbit/s", rate / 1_000) }
}

/// Formats a time for a row's parameters.
pub(crate) fn time_text(time: Duration) -> String {
    let microseconds = time.as_micros();
    match microseconds {
        0..1_000 => format!("{microseconds} µs"),
        1_000..1_000_000 => format!("{} ms", microseconds / 1_000),
        _ => format!("{} s", microseconds / 1_000_000),
    }
}
