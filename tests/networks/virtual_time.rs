//! The fraction of its rate that a stream keeps under random losses, in virtual time: the figures are the same
//! everywhere.
//!
//! `cargo run --release -p rdma-verbs-tests --bin virtual_networks -- --help`

mod shared;
mod stream;
mod tcp;
mod world;

use std::time::Duration;

use clap::{Parser, ValueEnum};
use serde::Serialize;
use shared::{Crowd, Shares};
use stream::{Cell, Stream, measure};
use world::{Control, Link, Peers, Trouble};

const ROUND_TRIPS: [Duration; 3] = [Duration::from_micros(50), Duration::from_millis(1), Duration::from_millis(20)];
const LOSSES: [u32; 5] = [0, 1_000, 10_000, 50_000, 100_000];

/// Measures the fraction of their rate that streams of 64 KiB, and the model of TCP, keep on a link that loses packets,
/// in virtual time.
#[derive(Parser)]
struct Arguments {
    /// Rate of the link in Mbit/s
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    rate: u64,
    /// Length of the link's queue in bytes; without it all losses are random
    #[arg(long, default_value_t = 1 << 30, value_parser = clap::value_parser!(u64).range(1..))]
    queue: u64,
    /// Only this round trip, in microseconds
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    round_trip: Option<u64>,
    /// Only this loss per million packets, and none
    #[arg(long, value_parser = clap::value_parser!(u32).range(0..=900_000))]
    loss: Option<u32>,
    /// One packet of a hundred is late by up to this many microseconds
    #[arg(long, conflicts_with = "outage", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    lateness: Option<u64>,
    /// Outage in each second, in microseconds
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=900_000))]
    outage: Option<u64>,
    /// Milliseconds of virtual time to measure, at least 50 round trips; ten times as many for TCP
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    milliseconds: u64,
    /// Only this operation
    #[arg(long)]
    operation: Option<Stream>,
    /// Congestion control of the RoCE streams
    #[arg(long, value_enum, default_value_t = Control::Default)]
    control: Control,
    /// Capabilities that the ends of the RoCE streams know of each other
    #[arg(long, value_enum, default_value_t = Peers::Native)]
    peers: Peers,
    /// Number of streams, of as many pairs of hosts, that share the link, to show their shares
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=100))]
    streams: Option<u8>,
    /// Number of TCP streams beside them, as in Linux
    #[arg(long, requires = "streams", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=27))]
    tcp: u8,
    /// Seed of the losses
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON document instead of a table
    #[arg(long)]
    json: bool,
}

impl Arguments {
    fn link(&self, round_trip: Duration, loss: u32) -> Link {
        let Self { rate, queue, seed, peers, .. } = *self;
        Link { queue_bytes: queue, seed, peers, trouble: self.trouble(), ..Link::new(rate, round_trip, loss) }
    }

    fn operations(&self) -> Vec<Stream> {
        self.operation.map_or(Stream::value_variants().to_vec(), |only| vec![only])
    }

    fn round_trips(&self) -> Vec<Duration> {
        self.round_trip.map_or(ROUND_TRIPS.to_vec(), |only| vec![Duration::from_micros(only)])
    }

    fn trouble(&self) -> Trouble {
        match (self.lateness, self.outage) {
            (Some(lateness), _) => Trouble::Reordering(Duration::from_micros(lateness)),
            (None, Some(outage)) => Trouble::Outages(Duration::from_micros(outage)),
            (None, None) => Trouble::None,
        }
    }
}

fn print(cells: &[Cell]) {
    println!("{:<6} {:>10} {:>8} {:>9} {:>7} {:>9}", "", "round trip", "loss", "MB/s", "kept", "repeated");
    for cell in cells {
        let Cell { operation, round_trip_microseconds, loss, megabytes_per_second, kept, repeated, failed, .. } = cell;
        let name = format!("{operation:?}").to_uppercase();
        let (loss, kept, repeated) = (f64::from(*loss) / 1e4, kept * 100.0, repeated * 100.0);
        let end = if *failed { "  the connection ended" } else { "" };
        let column = format!("{name:<6} {round_trip_microseconds:>7} µs {loss:>6} %");
        println!("{column} {megabytes_per_second:>9.1} {kept:>5.0} % {repeated:>7.1} %{end}");
    }
}

/// Measures the cells of an operation at a round trip; the first is without losses.
fn measure_row(arguments: &Arguments, operation: Stream, round_trip: Duration) -> Vec<Cell> {
    let mut losses = arguments.loss.map_or(LOSSES.to_vec(), |loss| vec![0, loss]);
    losses.dedup();
    let mut cells: Vec<Cell> = Vec::new();
    for loss in losses {
        let (link, milliseconds) = (arguments.link(round_trip, loss), arguments.milliseconds);
        let mut cell = measure(operation, link, arguments.control, Duration::from_millis(milliseconds));
        let undisturbed = cells.first().map_or(cell.megabytes_per_second, |cell| cell.megabytes_per_second);
        cell.kept = cell.megabytes_per_second / undisturbed;
        cells.push(cell);
    }
    cells
}

/// The shares of streams on one link.
#[derive(Serialize)]
struct SharedRow {
    operation: Stream,
    round_trip_microseconds: u128,
    #[serde(flatten)]
    shares: Shares,
}

/// Returns the shares of this many streams of WRITEs or READs at each round trip.
fn measure_shares(arguments: &Arguments, streams: u8) -> Vec<SharedRow> {
    let is_verb = |operation: &Stream| matches!(operation, Stream::Write | Stream::Read);
    let mut rows = Vec::new();
    for operation in arguments.operations().into_iter().filter(is_verb) {
        for round_trip in arguments.round_trips() {
            let (control, streams, tcp) = (arguments.control, usize::from(streams), usize::from(arguments.tcp));
            let crowd = Crowd { operation, control, streams, tcp };
            let link = arguments.link(round_trip, arguments.loss.unwrap_or(0));
            let shares = shared::measure(crowd, link, Duration::from_millis(arguments.milliseconds));
            rows.push(SharedRow { operation, round_trip_microseconds: round_trip.as_micros(), shares });
        }
    }
    rows
}

/// Starts from 0, since an empty sum is -0.
fn total(rates: &[f64]) -> f64 {
    rates.iter().fold(0.0, |sum, rate| sum + rate)
}

fn print_shares(rows: &[SharedRow]) {
    println!(
        "{:<6} {:>10} {:>9} {:>9} {:>7} {:>9} {:>9}",
        "", "round trip", "MB/s", "TCP", "used", "fairness", "repeated"
    );
    for SharedRow { operation, round_trip_microseconds, shares } in rows {
        let name = format!("{operation:?}").to_uppercase();
        let (sum, tcp) = (total(&shares.rates), total(&shares.tcp));
        let repeated = shares.repeated.map_or("-".into(), |repeated| format!("{:.1} %", repeated * 100.0));
        let (used, fairness) = (shares.used * 100.0, shares.fairness);
        let end = if shares.failed == 0 { String::new() } else { format!("  {} connections ended", shares.failed) };
        let column = format!("{name:<6} {round_trip_microseconds:>7} µs {sum:>9.1} {tcp:>9.1}");
        println!("{column} {used:>5.1} % {fairness:>9.3} {repeated:>9}{end}");
    }
}

fn main() -> Result<(), serde_json::Error> {
    let arguments = Arguments::parse();
    if let Some(streams) = arguments.streams {
        let rows = measure_shares(&arguments, streams);
        if arguments.json {
            println!("{}", serde_json::to_string_pretty(&rows)?);
        } else {
            print_shares(&rows);
        }
        return Ok(());
    }
    let mut cells: Vec<Cell> = Vec::new();
    for operation in arguments.operations() {
        for round_trip in arguments.round_trips() {
            cells.extend(measure_row(&arguments, operation, round_trip));
        }
    }
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&cells)?);
    } else {
        print(&cells);
    }
    Ok(())
}
