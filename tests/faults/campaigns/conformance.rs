//! Checks that the conformance suite finds faults: it runs once with each of them, in its own process, and must find
//! every one.
//!
//! `tests/faults/run conformance` prints which scenario found which fault. `FAULT=AddReturnsSum` tries only this one.
//! `RDMA_VERBS_FAULT=AddReturnsSum tests/faults/run conformance` runs the suite itself with a fault and shows its
//! output.

#[path = "choice.rs"]
mod choice;
#[path = "../../conformance/main.rs"]
mod conformance;

use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rdma_verbs::fault::{self, Fault};

/// The value of the variable with the process's fault for none. If the variable is set, the process runs the suite.
const NONE: &str = "none";
/// Time limit of waits. With a fault, every wait for something that does not happen lasts this long; without one, no
/// scenario takes a tenth of it.
const TIME_LIMIT: Duration = Duration::from_secs(4);

/// Faults of the protocol that an application notices without a faulty network.
const OF_PROTOCOL: &[Fault] = &[
    Fault::CompletionOfWrongRequest,
    Fault::CompletionRetiresTooMuch,
    Fault::CompletionRetiresTooLittle,
    Fault::UnsignaledCompletes,
    Fault::ReadLengthNotTold,
    Fault::CompletionLost,
    Fault::FlushOutOfOrder,
    Fault::FlushSkipsReceives,
    Fault::PostedInErrorNotFlushed,
    Fault::ResetKeepsCompletions,
    Fault::ResetKeepsReceives,
    Fault::RnrTimerLost,
    Fault::RnrRetryNotCounted,
    Fault::RetryNotCounted,
    Fault::FenceIgnored,
    Fault::PieceOffsetKept,
    Fault::ReadCreditLost,
    Fault::ImmediateSwapped,
    Fault::SendLastNotCompleted,
    Fault::WriteConsumesNoReceive,
    Fault::EmptyMessageNotCompleted,
    Fault::MissingReceiveIgnored,
    Fault::LongMessageTaken,
    Fault::PaddingDelivered,
    Fault::CompareIgnored,
    Fault::KeyTagIgnored,
    Fault::QueuePairAccessIgnored,
    Fault::RegionAccessIgnored,
    Fault::DomainIgnored,
    Fault::DeregisteredRegionUsed,
    Fault::SourceAddressUnchecked,
    Fault::DrainDoesNotStop,
    Fault::DrainedNotAnnounced,
];

/// Runs the suite in this process.
fn be_the_suite(name: &str) -> ! {
    if name == NONE {
        conformance::main();
    }
    let named = choice::named(fault::VARIABLE, name, &[Fault::VERBS, Fault::PROTOCOL].concat());
    assert_eq!(fault::on(), Some(named));
    conformance::run(TIME_LIMIT, |said| {
        // The first scenario that finds the fault is enough.
        println!("found by {}", said.split_whitespace().collect::<Vec<_>>().join(" "));
        std::process::exit(1);
    });
}

/// Hunts a fault like [`hunt_with`]. Missing pages are detected in two ways: a fault of their detection must be found
/// with both, and without a fault the suite must pass with both.
fn hunt(fault: Option<Fault>) -> Option<String> {
    let found = hunt_with(fault, "kernel");
    match fault {
        Some(Fault::FaultIgnored) => found.and_then(|_| hunt_with(fault, "signal")),
        Some(_) => found,
        None => found.or_else(|| hunt_with(None, "signal")),
    }
}

/// Runs the suite in a process with this fault, or with none. Returns its failure.
fn hunt_with(fault: Option<Fault>, mode: &str) -> Option<String> {
    let mut suite = Command::new(std::env::current_exe().expect("the path of this program"));
    // The name selects every scenario.
    suite.arg("/").stdin(Stdio::null()).env("RDMA_VERBS_FAULTS", mode);
    suite.env(fault::VARIABLE, fault.map_or(NONE.to_owned(), |fault| format!("{fault:?}")));
    let output = suite.output().expect("this program can be started again");
    if output.status.success() {
        return None;
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let found = text.lines().find_map(|line| line.split_once("found by ")).map(|(_, found)| found.to_owned());
    Some(found.unwrap_or_else(|| format!("the end of the process, {}", output.status)))
}

fn main() -> ExitCode {
    if let Ok(name) = std::env::var(fault::VARIABLE) {
        be_the_suite(&name);
    }
    let faults = choice::chosen(&[Fault::VERBS, OF_PROTOCOL].concat());
    let start = Instant::now();
    if let Some(said) = hunt(None) {
        println!("without a fault the suite fails: {said}");
        return ExitCode::FAILURE;
    }
    let found = choice::hunt_each(&faults, |fault| {
        let said = hunt(Some(fault));
        println!("{fault:?}: {}", said.as_deref().unwrap_or("NOT FOUND").chars().take(150).collect::<String>());
        said
    });
    let missed: Vec<Fault> = found.iter().filter(|(_, said)| said.is_none()).map(|(fault, _)| *fault).collect();
    let (planted, found) = (faults.len(), faults.len() - missed.len());
    println!("conformance: planted {planted}, found {found}, {:.0?}; not found: {missed:?}", start.elapsed());
    if missed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
