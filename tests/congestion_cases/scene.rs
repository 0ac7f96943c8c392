//! Streams on a link, and what is measured of them.

use std::time::Duration;

use rdma_verbs::sim::{Bottleneck, Discipline, Growth, TcpConfig};
use rdma_verbs::types::{Counter, Time};

use super::world::{Control, Link, PAYLOAD_SHARE, Plan, World, fairness};

/// READs of a stream that may be outstanding: as many as a device allows. With 16, what a connection has by default,
/// 1 MiB is in flight, less than half of what 1 Gbit/s and 20 ms hold.
pub(crate) const READS: u8 = 128;

/// Bytes of a full packet of 1 KiB on the wire.
pub(crate) const PACKET_BYTES: u64 = 1_082;
const PAYLOAD_BYTES: f64 = 1_024.0;
/// Of a run, so that none takes more than a few seconds.
const MOST_PACKETS: u64 = 1_500_000;

/// Streams that share a link.
pub(crate) struct Scene {
    pub(crate) world: World,
    pub(crate) link: Link,
    /// From whom to whom data goes, for one of the streams.
    pub(crate) direction: (usize, usize),
}

/// The totals at a time.
#[derive(Clone)]
pub(crate) struct Snapshot {
    pub(crate) at: Time,
    /// Bytes that each application has.
    delivered: Vec<u64>,
    /// Of the link.
    pub(crate) wire_bytes: u64,
    packets: u64,
    drops: u64,
    /// Packets of RoCE that were sent again.
    repeated: u64,
}

/// What has happened between two times.
pub(crate) struct Span {
    /// Of each stream, in parts of the payload that packets of 1 KiB have at the link's rate; those of TCP last.
    pub(crate) rates: Vec<f64>,
    /// In parts of the packets that have come to the link.
    pub(crate) dropped: f64,
    pub(crate) drops: u64,
    /// Packets of RoCE that were sent again, in parts of those that the messages need.
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
    /// Streams of pairs of hosts, with CUBIC, and streams of TCP beside them.
    pub(crate) fn pairs(link: Link, is_read: bool, ours: usize, tcp: usize) -> Self {
        let plan = |pair: usize| Plan::new(is_read, (2 * pair, 2 * pair + 1));
        let mut scene = Self::of_pairs(link, ours + tcp, plan(0).direction());
        (0..ours).for_each(|pair| scene.world.add(plan(pair)));
        (ours..ours + tcp).for_each(|pair| scene.add_tcp(plan(pair).direction()));
        scene
    }

    /// Pairs of hosts with nothing on the link yet.
    pub(crate) fn of_pairs(link: Link, pairs: usize, direction: (usize, usize)) -> Self {
        Self { world: World::of_pairs(link, Control::Cubic, pairs), link, direction }
    }

    /// One stream of WRITEs.
    pub(crate) fn write(link: Link) -> Self {
        Self::pairs(link, false, 1, 0)
    }

    /// One stream of TCP.
    pub(crate) fn tcp(link: Link) -> Self {
        Self::pairs(link, false, 0, 1)
    }

    /// TCP as Linux has it. Its receive window fills the queue, too.
    pub(crate) fn add_tcp(&mut self, (from, to): (usize, usize)) {
        let config = self.link.tcp();
        let fills = 2.0 * (bdp(self.link.rate, self.link.round_trip) + self.link.queue_bytes as f64);
        let receive_window_bytes = config.receive_window_bytes.max(fills as u32);
        let config = TcpConfig { growth: Growth::Linux, receive_window_bytes, ..config };
        self.world.add_tcp(from, to, config);
    }

    /// Another discipline for what goes from the first to the second host of each pair.
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

    /// What has happened from one time to another.
    pub(crate) fn span(&self, from: &Snapshot, to: &Snapshot) -> Span {
        let carried = self.link.rate as f64 * 125_000.0 * PAYLOAD_SHARE * (to.at - from.at).as_secs_f64();
        // A stream may have begun in between.
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

    /// Lets them begin, and then run for this time, as far as it is not too much.
    pub(crate) fn measure(&mut self, length: Duration) -> Span {
        self.measure_after(warm_up(self.link), affordable(self.link, length))
    }

    /// The same after another time, and for all of it.
    pub(crate) fn measure_after(&mut self, warm_up: Duration, length: Duration) -> Span {
        self.run(warm_up);
        self.bottleneck_mut().forget_delays();
        self.run(length)
    }

    /// Streams of RoCE that have ended.
    pub(crate) fn failures(&self) -> u64 {
        self.world.flows.iter().filter(|flow| flow.failed).count() as u64
    }

    /// Of a host's events since the beginning, the sum of all hosts.
    pub(crate) fn count(&self, counter: Counter) -> u64 {
        self.world.network.hosts.iter().map(|host| host.endpoint.counters().get(counter)).sum()
    }

    /// The delay that 99 of 100 packets do not exceed in the queue, in milliseconds.
    pub(crate) fn p99_milliseconds(&self) -> f64 {
        milliseconds(self.bottleneck().delays().quantile(0.99))
    }
}

pub(crate) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Bytes that the path holds without a queue.
pub(crate) fn bdp(rate: u64, round_trip: Duration) -> f64 {
    rate as f64 * 125_000.0 * round_trip.as_secs_f64()
}

/// A link with a queue of so many times what the path holds, and at least eight packets.
pub(crate) fn link(rate: u64, round_trip: Duration, queue: f64, seed: u64) -> Link {
    let queue_bytes = ((queue * bdp(rate, round_trip)) as u64).max(8 * PACKET_BYTES);
    Link { queue_bytes, seed, reads: READS, ..Link::new(rate, round_trip, 0) }
}

/// The same with a queue of what the path holds, and at least 200 kB, as the smallest switches have.
pub(crate) fn switch(rate: u64, round_trip: Duration, seed: u64) -> Link {
    let link = link(rate, round_trip, 1.0, seed);
    Link { queue_bytes: link.queue_bytes.max(200_000), ..link }
}

/// How long streams run before they are measured.
pub(crate) fn warm_up(link: Link) -> Duration {
    link.warm_up().max(Duration::from_millis(200))
}

/// A time, or less where it would be too many packets.
fn affordable(link: Link, length: Duration) -> Duration {
    let most = (MOST_PACKETS * PACKET_BYTES) as f64 / (link.rate as f64 * 125_000.0);
    length.min(Duration::from_secs_f64(most))
}

/// For parameters.
pub(crate) fn rate_text(rate: u64) -> String {
    if rate < 1_000 { format!("{rate} Mbit/s") } else { format!("{} Gbit/s", rate / 1_000) }
}

/// For parameters.
pub(crate) fn time_text(time: Duration) -> String {
    let microseconds = time.as_micros();
    match microseconds {
        0..1_000 => format!("{microseconds} µs"),
        1_000..1_000_000 => format!("{} ms", microseconds / 1_000),
        _ => format!("{} s", microseconds / 1_000_000),
    }
}
