//! What a stream keeps of its rate where packets are lost at random, in virtual time: the same figures everywhere.
//!
//! `cargo run --release --example virtual_networks -- --help`

mod stream;
mod tcp;

use std::time::Duration;

use clap::{Parser, ValueEnum};
use stream::{Cell, Link, Stream, Trouble, measure};

const ROUND_TRIPS: [Duration; 3] = [Duration::from_micros(50), Duration::from_millis(1), Duration::from_millis(20)];
const LOSSES: [u32; 5] = [0, 1_000, 10_000, 50_000, 100_000];

/// What streams of 64 KiB, and the model of TCP, keep of their rate on a link that loses packets, in virtual time.
#[derive(Parser)]
struct Arguments {
    /// Rate of the link in Mbit/s
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    rate: u64,
    /// Bytes of the queue before the link; without it nothing is lost but by chance
    #[arg(long, default_value_t = 1 << 30, value_parser = clap::value_parser!(u64).range(1..))]
    queue: u64,
    /// Only this round trip, in microseconds
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    round_trip: Option<u64>,
    /// Only this loss, in packets of a million, and none
    #[arg(long, value_parser = clap::value_parser!(u32).range(0..=900_000))]
    loss: Option<u32>,
    /// One packet of a hundred is late by up to so many microseconds
    #[arg(long, conflicts_with = "outage", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    lateness: Option<u64>,
    /// Nothing passes for so many microseconds of each second
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=900_000))]
    outage: Option<u64>,
    /// Milliseconds of virtual time that are measured, and at least 50 round trips; ten times as many for TCP
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    milliseconds: u64,
    /// Only this operation
    #[arg(long)]
    operation: Option<Stream>,
    /// Seed of the losses
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON document instead of a table
    #[arg(long)]
    json: bool,
}

impl Arguments {
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

/// The cells of an operation at a round trip; the first is without losses.
fn measure_row(arguments: &Arguments, operation: Stream, round_trip: Duration) -> Vec<Cell> {
    let mut losses = arguments.loss.map_or(LOSSES.to_vec(), |loss| vec![0, loss]);
    losses.dedup();
    let mut cells: Vec<Cell> = Vec::new();
    for loss in losses {
        let Arguments { rate, queue, seed, milliseconds, .. } = *arguments;
        let link = Link { queue_bytes: queue, seed, trouble: arguments.trouble(), ..Link::new(rate, round_trip, loss) };
        let mut cell = measure(operation, link, Duration::from_millis(milliseconds));
        let undisturbed = cells.first().map_or(cell.megabytes_per_second, |cell| cell.megabytes_per_second);
        cell.kept = cell.megabytes_per_second / undisturbed;
        cells.push(cell);
    }
    cells
}

fn main() -> Result<(), serde_json::Error> {
    let arguments = Arguments::parse();
    let operations = arguments.operation.map_or(Stream::value_variants().to_vec(), |only| vec![only]);
    let round_trips = arguments.round_trip.map_or(ROUND_TRIPS.to_vec(), |only| vec![Duration::from_micros(only)]);
    let mut cells: Vec<Cell> = Vec::new();
    for operation in operations {
        for round_trip in &round_trips {
            cells.extend(measure_row(&arguments, operation, *round_trip));
        }
    }
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&cells)?);
    } else {
        print(&cells);
    }
    Ok(())
}
