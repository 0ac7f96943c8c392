//! Twenty cases of congestion control in virtual time, each with a mark that it passes or misses: the figures are the
//! same on every machine.
//!
//! `cargo run --release -p rdma-verbs-tests --bin congestion_cases -- --help`

mod cases;
mod known;
mod print;
mod row;
mod run;
mod scene;
#[path = "../networks/world.rs"]
mod world;

use std::process::ExitCode;

use clap::Parser;
use row::Row;

/// The omitted measurements, and why.
const LEFT_OUT: &[&str] = &[
    "paths that hold more than 64 MiB: 10 Gbit/s at 100 ms, 100 Gbit/s from 20 ms on",
    "in case 16 the 8-byte ping-pong: the packets' queueing delay is measured instead",
    "in case 14 reductions of the window, which the rate shows only if there are many",
    "in case 19 an adapter that responds to marks with congestion notification packets",
    "in case 20 datagrams: unreliable connections represent them, without a rate limit",
    "case 21, faults in the controller: `tests/faults/run congestion`",
];

/// Twenty cases of congestion control in virtual time: for each the measured values, the mark, the values of this
/// crate's streams with CUBIC, those of the model of TCP, and whether the mark is passed. Exits with 1 if a mark is
/// missed that is not a known miss, or a known miss passes.
#[derive(Parser)]
struct Arguments {
    /// Only the case of this number; can be given several times
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=20))]
    case: Vec<u8>,
    /// Only a selection of the rows, which takes two minutes on one processor
    #[arg(long)]
    selection: bool,
    /// Number of seeds, whose worst result is reported; 3 by default, or 1 for a selection
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=100))]
    seeds: Option<u64>,
    /// Number of rows measured at a time
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    jobs: u8,
    /// Print one JSON document instead of a table
    #[arg(long)]
    json: bool,
}

impl Arguments {
    fn rows(&self) -> Vec<Row> {
        let wanted =
            |row: &Row| (self.case.is_empty() || self.case.contains(&row.case)) && (!self.selection || row.is_selected);
        cases::all().into_iter().filter(wanted).collect()
    }

    fn seeds(&self) -> u64 {
        self.seeds.unwrap_or(if self.selection { 1 } else { print::SEEDS })
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let (rows, seeds) = (arguments.rows(), arguments.seeds());
    let results = run::run(&rows, seeds, usize::from(arguments.jobs));
    let is_as_known = if arguments.json {
        print::json(&rows, &results, seeds)
    } else {
        print::table(&rows, &results, seeds, LEFT_OUT)
    };
    if is_as_known { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
