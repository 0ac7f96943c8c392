//! The cost of garbage: processor time for each packet that the engine discards, against a plain receiver that discards
//! the same packets; and the rate of a connection beside a flood to its own device, against the same flood to an
//! unrelated socket.
//!
//! `cargo run --release -p rdma-verbs-tests --bin garbage` measures, `-- --check` also fails if a target is missed.
//! Only ratios count: the two sides of each are measured in turns, and their medians are compared.

#[path = "garbage/flood.rs"]
mod flood;
#[path = "garbage/receiver.rs"]
mod receiver;
#[path = "garbage/victim.rs"]
mod victim;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use flood::{Flood, Kind};
use victim::Victim;

/// Maximum ratio of the engine's processor time to that of a plain receiver.
const MOST_PROCESSOR_TIME: f64 = 2.0;
/// Minimum part of its rate that a connection keeps.
const LEAST_RATE: f64 = 0.5;

/// Measures the cost of garbage.
#[derive(Parser)]
struct Arguments {
    /// Packets a second beside the connection.
    #[arg(long, default_value_t = 200_000)]
    rate: u64,
    /// Length of one measurement of the rate in milliseconds.
    #[arg(long, default_value_t = 300)]
    milliseconds: u64,
    /// Measurements of each side.
    #[arg(long, default_value_t = 9)]
    repetitions: usize,
    /// Only kinds of garbage whose name contains this.
    #[arg(long, default_value = "")]
    kind: String,
    /// Prints one JSON object instead of text.
    #[arg(long)]
    json: bool,
    /// Fails if a target is missed.
    #[arg(long)]
    check: bool,
}

/// The cost of one kind of garbage, from medians.
struct Cost {
    kind: Kind,
    /// Nanoseconds for each packet, of the plain receiver and of the engine.
    processor: [f64; 2],
    /// Messages a second beside the flood to an unrelated socket and beside the flood to the device.
    rates: [f64; 2],
}

impl Cost {
    fn processor_ratio(&self) -> f64 {
        self.processor[1] / self.processor[0]
    }

    fn rate_ratio(&self) -> f64 {
        self.rates[1] / self.rates[0]
    }

    fn meets_targets(&self) -> bool {
        self.processor_ratio() <= MOST_PROCESSOR_TIME && self.rate_ratio() >= LEAST_RATE
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Takes turns between two measurements. Returns their medians.
fn alternate(repetitions: usize, mut measure: impl FnMut(usize) -> f64) -> [f64; 2] {
    let mut values = [Vec::new(), Vec::new()];
    for _ in 0..repetitions {
        (0..2).for_each(|side| values[side].push(measure(side)));
    }
    values.map(median)
}

fn measure(victim: &Victim, kind: Kind, arguments: &Arguments) -> Cost {
    let length = Duration::from_millis(arguments.milliseconds);
    let unrelated = receiver::Unrelated::bind();
    let to_device = Flood::new(victim, kind, victim.address(), arguments.rate);
    let to_unrelated = to_device.to(unrelated.address());
    let processor = alternate(arguments.repetitions, |side| match side {
        0 => unrelated.nanoseconds_a_packet(&to_unrelated),
        _ => victim.nanoseconds_a_packet(&to_device),
    });
    let rates = alternate(arguments.repetitions, |side| {
        victim.rate_beside(if side == 0 { &to_unrelated } else { &to_device }, length)
    });
    Cost { kind, processor, rates }
}

fn print(cost: &Cost) {
    println!(
        "{:<18} processor: plain receiver {:.0} ns, engine {:.0} ns a packet, ratio  {:.2} (at most \
         {MOST_PROCESSOR_TIME}); rate beside it: {:.0} and {:.0} messages a second, ratio  {:.2} (at least \
         {LEAST_RATE})",
        cost.kind.name(),
        cost.processor[0],
        cost.processor[1],
        cost.processor_ratio(),
        cost.rates[0],
        cost.rates[1],
        cost.rate_ratio(),
    );
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let victim = Victim::new();
    let mut costs = Vec::new();
    for kind in Kind::ALL.into_iter().filter(|kind| kind.name().contains(&arguments.kind)) {
        let cost = measure(&victim, kind, &arguments);
        if !arguments.json {
            print(&cost);
        }
        costs.push(cost);
    }
    if arguments.json {
        let rows = costs.iter().map(|cost| {
            serde_json::json!({
                "kind": cost.kind.name(),
                "processor_ratio": cost.processor_ratio(),
                "rate_ratio": cost.rate_ratio(),
            })
        });
        println!("{}", serde_json::Value::from_iter(rows));
    }
    let missed = costs.iter().filter(|cost| !cost.meets_targets()).count();
    if arguments.check && missed > 0 {
        eprintln!("{missed} of {} kinds of garbage miss a target", costs.len());
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
