//! Prints the statistics of the processes of this user that have software devices, once: as text, as JSON, or in the
//! format that Prometheus reads.
//!
//! ```text
//! rdma-verbs stat                    a table of devices
//! rdma-verbs stat --json             everything
//! rdma-verbs stat --openmetrics      for Prometheus
//! ```
//!
//! `docs/top.md` describes fields and metrics.

mod json;
mod metrics;
mod openmetrics;
mod text;

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use rdma_verbs::monitor::Process;

use crate::common::{self, exit_code, print_json};
use crate::watch::{Collector, Selection, Update};

/// Processes collect at this interval until they have been read, which is once.
const INTERVAL: Duration = Duration::from_secs(1);
/// Longer than the time that a process has to answer.
const PATIENCE: Duration = Duration::from_secs(4);

#[derive(Args)]
#[command(
    after_help = "Exit status: 0 done, 1 if it failed, 2 for wrong usage. Without processes, it prints none and \
                        ends with 0.\nExamples:\n  rdma-verbs stat                    a table of devices\n  \
                        rdma-verbs stat --queue-pairs      and one of queue pairs\n  \
                        rdma-verbs stat --json --pid 4711  everything about a process"
)]
pub(crate) struct Options {
    /// Only this process.
    #[arg(short, long)]
    pid: Option<u32>,
    /// Only devices with this name or address.
    #[arg(short, long, value_name = "NAME")]
    device: Option<String>,
    /// Prints JSON; `docs/json.md` describes the fields.
    #[arg(long, conflicts_with = "openmetrics")]
    json: bool,
    /// Prints OpenMetrics text, for Prometheus.
    #[arg(long)]
    openmetrics: bool,
    /// Each queue pair, too. JSON always has them.
    #[arg(long)]
    queue_pairs: bool,
}

/// Returns 0 if everything was printed, 1 if it failed.
pub(crate) fn run(options: &Options) -> ExitCode {
    let printed = collect(options).and_then(|update| print(options, &update));
    exit_code("stat", printed.map(|()| ExitCode::SUCCESS))
}

/// A process that was asked for must respond; one of many need not.
fn collect(options: &Options) -> io::Result<Update> {
    if let Some(process) = options.pid {
        Process::find(process).map_err(io::Error::other)?;
    }
    let selection = Selection { process: options.pid, device: options.device.clone() };
    let update = Collector::new(selection, INTERVAL).first(PATIENCE);
    let refusal =
        update.processes.first().filter(|_| options.pid.is_some()).and_then(|watched| watched.problem.clone());
    match update.problem.clone().or(refusal) {
        Some(problem) => Err(io::Error::other(problem)),
        None => Ok(update),
    }
}

fn print(options: &Options, update: &Update) -> io::Result<()> {
    if options.json {
        return print_json("stat", &json::Document::of(update));
    }
    let text = match options.openmetrics {
        true => openmetrics::exposition(&update.processes, options.queue_pairs),
        false => text::tables(&update.processes, options.queue_pairs),
    };
    common::print(format_args!("{text}"))
}
