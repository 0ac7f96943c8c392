//! Draws the plots of `docs/networks.md` from runs in virtual time.
//!
//! `cargo run --release -p rdma-verbs-tests --bin network_pictures -- docs/pictures`

#[path = "pictures/chart.rs"]
mod chart;
// `virtual_networks` uses all of it.
#[allow(dead_code)]
mod world;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use chart::{Axis, COLORS, Chart, Scale, Series};
use clap::Parser;
use rdma_verbs::sim::{Bottleneck, Growth, TcpConfig};
use world::{Control, Link, PAYLOAD_SHARE, Plan, World};

/// Rate of all links in Mbit/s.
const RATE: u64 = 1_000;
const ROUND_TRIP: Duration = Duration::from_millis(1);
/// Length of the links' queue, if it is limited: 0.8 ms at the rate.
const QUEUE_BYTES: u64 = 100_000;

/// Draws the pictures of docs/networks.md from runs in virtual time.
#[derive(Parser)]
struct Arguments {
    /// Folder of the pictures
    folder: PathBuf,
}

/// The kind of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Write,
    /// The model of TCP as in Linux.
    Tcp,
}

impl Kind {
    /// Starts a stream between two hosts.
    fn start(self, world: &mut World, link: Link, from: usize) {
        match self {
            Self::Write => world.add(Plan::new(false, (from, from + 1))),
            Self::Tcp => world.add_tcp(from, from + 1, TcpConfig { growth: Growth::Linux, ..link.tcp() }),
        }
    }
}

fn main() -> std::io::Result<()> {
    let Arguments { folder } = Arguments::parse();
    fs::create_dir_all(&folder)?;
    for (name, chart) in [("loss", loss()), ("joining", joining()), ("queue", queue())] {
        fs::write(folder.join(name).with_extension("svg"), chart.svg())?;
    }
    Ok(())
}

/// Plots the fraction of the link's rate that streams keep under random losses, by the loss rate.
fn loss() -> Chart {
    let lines = [
        ("WRITE, 1 ms", Kind::Write, ROUND_TRIP, COLORS[0], false),
        ("WRITE, 20 ms", Kind::Write, 20 * ROUND_TRIP, COLORS[0], true),
        ("TCP (CUBIC), 1 ms", Kind::Tcp, ROUND_TRIP, COLORS[1], false),
        ("TCP (CUBIC), 20 ms", Kind::Tcp, 20 * ROUND_TRIP, COLORS[1], true),
    ];
    let series = lines.map(|(name, kind, round_trip, color, is_dashed)| {
        let points = LOSSES.map(|loss| (f64::from(loss) / 1e4, kept(kind, Link::new(RATE, round_trip, loss)) * 100.0));
        Series { name: name.to_owned(), color, is_dashed, points: points.into() }
    });
    Chart {
        title: "What a stream keeps of 1 Gbit/s where packets are lost at random".into(),
        x: Axis {
            name: "packets lost (%)".into(),
            scale: Scale::Logarithmic,
            range: (0.01, 10.0),
            ticks: vec![0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0],
        },
        y: Axis::linear("part of the link's rate (%)", 100.0, 20.0),
        series: series.into(),
    }
}

/// Losses per million packets.
const LOSSES: [u32; 11] = [100, 200, 300, 1_000, 2_000, 3_000, 10_000, 20_000, 30_000, 50_000, 100_000];

/// Returns the fraction of the link's rate that reaches the application.
fn kept(kind: Kind, link: Link) -> f64 {
    // A TCP stream with many losses sends few packets per second.
    let length = if kind == Kind::Write { Duration::from_secs(4) } else { Duration::from_secs(20) };
    let mut world = World::of_pairs(link, Control::Cubic, 1);
    kind.start(&mut world, link, 0);
    let begin = world.network.now + Duration::from_secs(1);
    world.run(begin);
    let before = world.delivered()[0];
    world.run(begin + length);
    (world.delivered()[0] - before) as f64 / length.as_secs_f64() / payload_rate()
}

/// Returns the payload bytes that the link carries per second.
fn payload_rate() -> f64 {
    RATE as f64 * 125_000.0 * PAYLOAD_SHARE
}

/// Plots the rates of four streams that join a link one after the other.
fn joining() -> Chart {
    const STREAMS: usize = 4;
    const SAMPLE: Duration = Duration::from_millis(50);
    /// Number of samples between the starts of two streams.
    const APART: usize = 20;
    let link = Link { queue_bytes: QUEUE_BYTES, ..Link::new(RATE, ROUND_TRIP, 0) };
    let mut world = World::of_pairs(link, Control::Cubic, STREAMS);
    let mut series: Vec<Series> = Vec::new();
    let mut before: Vec<u64> = Vec::new();
    for sample in 0..(STREAMS + 2) * APART {
        let seconds = sample as f64 * SAMPLE.as_secs_f64();
        if sample % APART == 0 && series.len() < STREAMS {
            let stream = series.len();
            Kind::Write.start(&mut world, link, 2 * stream);
            let (name, points) = (format!("stream {}", stream + 1), vec![(seconds, 0.0)]);
            series.push(Series { name, color: COLORS[stream], is_dashed: false, points });
            before.push(0);
        }
        let end = world.network.now + SAMPLE;
        world.run(end);
        let delivered = world.delivered();
        for ((series, before), now) in series.iter_mut().zip(&before).zip(&delivered) {
            let rate = (now - before) as f64 / SAMPLE.as_secs_f64() / 1e6;
            series.points.push((seconds + SAMPLE.as_secs_f64(), rate));
        }
        before = delivered;
    }
    Chart {
        title: "Streams of four hosts join a link of 1 Gbit/s (1 ms, queue of 100 kB)".into(),
        x: Axis::linear("seconds", 6.0, 1.0),
        y: Axis::linear("MB/s, over 50 ms", 120.0, 20.0),
        series,
    }
}

/// Plots the length of the queue of a link that one stream fills.
fn queue() -> Chart {
    let line = |name: &str, kind: Kind, color| Series {
        name: name.to_owned(),
        color,
        is_dashed: false,
        points: queue_lengths(kind),
    };
    let limit = vec![(0.0, QUEUE_BYTES as f64 / 1e3), (QUEUE_SECONDS, QUEUE_BYTES as f64 / 1e3)];
    let room = Series { name: "what it holds".into(), color: "#77776f", is_dashed: true, points: limit };
    Chart {
        title: "The queue before a link of 1 Gbit/s that one stream fills (1 ms)".into(),
        x: Axis::linear("seconds", QUEUE_SECONDS, 0.1),
        y: Axis::linear("queue (kB, mean of 2 ms)", 120.0, 20.0),
        series: vec![line("TCP (CUBIC)", Kind::Tcp, COLORS[1]), line("WRITE", Kind::Write, COLORS[0]), room],
    }
}

const QUEUE_SECONDS: f64 = 1.0;

/// Returns the kilobytes in the queue over time, each the average since the time before.
fn queue_lengths(kind: Kind) -> Vec<(f64, f64)> {
    const SAMPLES: u32 = 500;
    /// A single sample right after a burst would exceed the average.
    const SAMPLES_PER_POINT: u32 = 10;
    let link = Link { queue_bytes: QUEUE_BYTES, ..Link::new(RATE, ROUND_TRIP, 0) };
    let mut world = World::of_pairs(link, Control::Cubic, 1);
    kind.start(&mut world, link, 0);
    let sample = Duration::from_secs_f64(QUEUE_SECONDS) / SAMPLES;
    let mut backlog_after_sample = || {
        let end = world.network.now + sample / SAMPLES_PER_POINT;
        world.run(end);
        let backlog = |bottleneck: &Bottleneck| bottleneck.backlog_bytes(world.network.now);
        world.network.bottleneck(0, 1).map_or(0, backlog)
    };
    let mut points = vec![(0.0, 0.0)];
    for number in 1..=SAMPLES {
        let bytes: u64 = (0..SAMPLES_PER_POINT).map(|_| backlog_after_sample()).sum();
        points.push(((sample * number).as_secs_f64(), bytes as f64 / f64::from(SAMPLES_PER_POINT) / 1e3));
    }
    points
}
