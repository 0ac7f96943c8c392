//! The program behind `examples/perf.rs`; a test runs it in its own process.

mod arguments;
mod bandwidth;
mod channel;
mod compare;
mod end;
pub(crate) mod external;
#[cfg(feature = "tokio")]
mod futures;
mod job;
mod latency;
mod machine;
mod outcome;
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

use std::ffi::OsString;
use std::process::ExitCode;

use arguments::{Arguments, Command};
use clap::Parser;
use clap::error::ErrorKind;
use outcome::{Failure, Outcome};

/// Runs with the process's arguments.
pub(crate) fn main() -> ExitCode {
    main_with(std::env::args_os())
}

/// Runs with these arguments. Returns 0: measured; 1: it failed, or `table --strict` is below a target; 2: wrong usage;
/// 3: `table --strict` is below no target, but not all rows could be measured; 130: Ctrl-C.
pub(crate) fn main_with(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            // Fails only if the terminal is gone.
            let _ = error.print();
            let is_asked = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            return ExitCode::from(if is_asked { 0 } else { 2 });
        }
    };
    machine::watch_for_interrupt();
    match dispatch(&arguments) {
        Ok(code) => code,
        Err(_) if machine::is_interrupted() => ExitCode::from(130),
        Err(Failure::Usage(message)) => {
            eprintln!("perf: {message}\n\nFor more information, try '--help'.");
            ExitCode::from(2)
        }
        // The other process reports why it ended.
        Err(Failure::PeerLeft) if matches!(arguments.command, Command::Partner { .. } | Command::Near) => {
            ExitCode::FAILURE
        }
        Err(failure) => {
            eprintln!("perf: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(arguments: &Arguments) -> Outcome<ExitCode> {
    match &arguments.command {
        Command::Near => veth::serve()?,
        Command::Partner { address } => partner::serve(*address)?,
        Command::Table(wanted) => return table::run(wanted),
        Command::Both { test } => run::run(&test.wanted(true)?)?,
        Command::One(test) => run::run(&test.wanted(false)?)?,
    }
    Ok(ExitCode::SUCCESS)
}
