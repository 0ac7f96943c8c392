//! The conformance suite's power: it is run once with each of the planted bugs, in a process of its own, and must find
//! every one.
//!
//! `cargo test --features mutations --test conformance_mutations -- --nocapture` prints which scenario found which bug.
//! `MUTATION=AddReturnsSum` tries one of them only.

#[path = "../verbs/main.rs"]
mod verbs;

use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use rdma_verbs::mutation::Mutation;

/// Bugs of the protocol that an application notices without a faulty network.
const OF_PROTOCOL: &[Mutation] = &[
    Mutation::CompletionOfWrongRequest,
    Mutation::CompletionRetiresTooMuch,
    Mutation::CompletionRetiresTooLittle,
    Mutation::UnsignaledCompletes,
    Mutation::ReadLengthNotTold,
    Mutation::CompletionLost,
    Mutation::FlushOutOfOrder,
    Mutation::FlushSkipsReceives,
    Mutation::PostedInErrorNotFlushed,
    Mutation::ResetKeepsCompletions,
    Mutation::ResetKeepsReceives,
    Mutation::RnrTimerLost,
    Mutation::RnrRetryNotCounted,
    Mutation::RetryNotCounted,
    Mutation::FenceIgnored,
    Mutation::PieceOffsetKept,
    Mutation::ReadCreditLost,
    Mutation::ImmediateSwapped,
    Mutation::SendLastNotCompleted,
    Mutation::WriteConsumesNoReceive,
    Mutation::EmptyMessageNotCompleted,
    Mutation::MissingReceiveIgnored,
    Mutation::LongMessageTaken,
    Mutation::PaddingDelivered,
    Mutation::CompareIgnored,
    Mutation::KeyTagIgnored,
    Mutation::QueuePairAccessIgnored,
    Mutation::RegionAccessIgnored,
    Mutation::DomainIgnored,
    Mutation::DeregisteredRegionUsed,
    Mutation::SourceAddressUnchecked,
    Mutation::DrainDoesNotStop,
    Mutation::DrainedNotAnnounced,
];

fn chosen() -> Vec<Mutation> {
    let only = std::env::var("MUTATION").ok();
    let is_chosen = |mutation: &Mutation| only.as_ref().is_none_or(|name| *name == format!("{mutation:?}"));
    Mutation::OF_VERBS.iter().chain(OF_PROTOCOL).copied().filter(is_chosen).collect()
}

/// As [`hunt_with`]. Missing pages are found in two ways, of which each must be seen to fail.
fn hunt(mutation: Option<Mutation>) -> Option<String> {
    let found = hunt_with(mutation, "kernel");
    match mutation {
        Some(Mutation::FaultIgnored) => found.and_then(|_| hunt_with(mutation, "signal")),
        Some(_) => found,
        None => found.or_else(|| hunt_with(None, "signal")),
    }
}

/// Runs the suite in a process with this bug, or with none; what it found.
fn hunt_with(mutation: Option<Mutation>, faults: &str) -> Option<String> {
    let mut suite = Command::new(std::env::current_exe().expect("the path of this program"));
    // The name chooses every scenario, and tells the process that it is the suite.
    suite.arg("/").stdin(Stdio::null()).env("RDMA_VERBS_SUITE", "1").env("RDMA_VERBS_FAULTS", faults);
    match mutation {
        Some(mutation) => suite.env(verbs::planted::PLANTED, format!("{mutation:?}")),
        None => suite.env_remove(verbs::planted::PLANTED),
    };
    let output = suite.output().expect("this program can be started again");
    if output.status.success() {
        return None;
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let found = text.lines().find_map(|line| line.split_once("found by ")).map(|(_, found)| found.to_owned());
    Some(found.unwrap_or_else(|| format!("the end of the process, {}", output.status)))
}

fn main() -> ExitCode {
    if std::env::var_os("RDMA_VERBS_SUITE").is_some() {
        verbs::main();
    }
    let start = Instant::now();
    if let Some(said) = hunt(None) {
        println!("nothing is planted, but the suite fails: {said}");
        return ExitCode::FAILURE;
    }
    let mutations = chosen();
    let (next, missed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(2, |threads| threads.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(&mutation) = mutations.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match hunt(Some(mutation)) {
                        Some(said) => println!("{mutation:?}: {}", said.chars().take(150).collect::<String>()),
                        None => {
                            println!("{mutation:?}: NOT FOUND");
                            missed.lock().expect("no panic while it is held").push(mutation);
                        }
                    }
                }
            });
        }
    });
    let missed = missed.into_inner().expect("no panic while it was held");
    let (planted, found) = (mutations.len(), mutations.len() - missed.len());
    println!("conformance: planted {planted}, found {found}, {:.0?}; not found: {missed:?}", start.elapsed());
    if missed.is_empty() && planted > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
