//! What a stream keeps of its rate where packets are lost at random, in virtual time: the same figures everywhere.
//!
//! `cargo run --release --example virtual_networks -- --help`

mod stream;

use std::time::Duration;

use clap::Parser;
use stream::{Cell, LARGE_QUEUE, Link, Stream, measure};

const ROUND_TRIPS: [Duration; 3] = [Duration::from_micros(50), Duration::from_millis(1), Duration::from_millis(20)];
const LOSSES: [u32; 5] = [0, 1_000, 10_000, 50_000, 100_000];
/// What streams of 64 KiB keep of their rate on a link that loses packets, in virtual time.
#[derive(Parser)]
struct Arguments {
    /// Rate of the link in Mbit/s
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    rate: u64,
    /// Milliseconds of virtual time that are measured, and at least 50 round trips
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

fn print(cells: &[Cell]) {
    println!("{:<6} {:>10} {:>8} {:>9} {:>7} {:>9}", "", "round trip", "loss", "MB/s", "kept", "repeated");
    for cell in cells {
        let Cell { operation, round_trip_microseconds, loss, megabytes_per_second, kept, repeated, failed } = cell;
        let name = format!("{operation:?}").to_uppercase();
        let (loss, kept, repeated) = (f64::from(*loss) / 1e4, kept * 100.0, repeated * 100.0);
        let end = if *failed { "  the connection ended" } else { "" };
        let column = format!("{name:<6} {round_trip_microseconds:>7} µs {loss:>6} %");
        println!("{column} {megabytes_per_second:>9.1} {kept:>5.0} % {repeated:>7.1} %{end}");
    }
}

fn main() -> Result<(), serde_json::Error> {
    let arguments = Arguments::parse();
    let mut cells: Vec<Cell> = Vec::new();
    for operation in [Stream::Write, Stream::Read] {
        if arguments.operation.is_some_and(|only| only != operation) {
            continue;
        }
        for round_trip in ROUND_TRIPS {
            let without = cells.len();
            for loss in LOSSES {
                let link =
                    Link { rate: arguments.rate, round_trip, queue_bytes: LARGE_QUEUE, loss, seed: arguments.seed };
                let mut cell = measure(operation, link, Duration::from_millis(arguments.milliseconds));
                let undisturbed =
                    cells.get(without).map_or(cell.megabytes_per_second, |cell| cell.megabytes_per_second);
                cell.kept = cell.megabytes_per_second / undisturbed;
                cells.push(cell);
            }
        }
    }
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&cells)?);
    } else {
        print(&cells);
    }
    Ok(())
}
