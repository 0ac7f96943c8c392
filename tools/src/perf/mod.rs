//! `rdma-verbs perf`: latency, bandwidth and message rate, as perftest measures them for C.

mod arguments;
mod bandwidth;
mod channel;
mod compare;
mod end;
mod external;
mod file;
mod futures;
mod job;
mod latency;
mod machine;
mod outcome;
mod page;
mod partner;
mod pattern;
mod plot;
mod progress;
mod reference;
mod report;
mod run;
mod table;
mod task;
mod veth;

use std::process::ExitCode;

pub(crate) use arguments::Arguments;
use arguments::Command;
use outcome::{Failure, Outcome};

use crate::common::note;

/// Runs a measurement. Returns 0: measured; 1: it failed, or `table --strict` is below a target; 2: wrong usage;
/// 3: `table --strict` is below no target, but not all rows could be measured; 130: Ctrl-C.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    machine::watch_for_interrupt();
    match dispatch(arguments) {
        Ok(code) => code,
        Err(_) if machine::is_interrupted() => ExitCode::from(130),
        Err(Failure::OutputClosed) => ExitCode::SUCCESS,
        Err(Failure::Usage(message)) => {
            note!("perf: {message}\n\nFor more information, try '--help'.");
            ExitCode::from(2)
        }
        // The other process reports why it ended.
        Err(Failure::PeerLeft) if matches!(arguments.command, Command::Partner { .. } | Command::Near) => {
            ExitCode::FAILURE
        }
        Err(failure) => {
            note!("perf: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(arguments: &Arguments) -> Outcome<ExitCode> {
    match &arguments.command {
        Command::Near => veth::serve()?,
        Command::Partner { address } => partner::serve(*address)?,
        Command::Table(wanted) => return table::run(wanted),
        Command::Report(wanted) => page::run(wanted)?,
        Command::Both { test } => run::run(&test.wanted(true)?)?,
        Command::One(test) => run::run(&test.wanted(false)?)?,
    }
    Ok(ExitCode::SUCCESS)
}
