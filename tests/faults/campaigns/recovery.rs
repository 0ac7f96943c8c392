//! Checks that the streams in virtual time find faults: each fault of recovery is switched on, and streams over lossy
//! links are measured until one is slower, pauses longer, retransmits more or sends more probes than without it.
//!
//! `tests/faults/run recovery` prints which fault was found by which stream. `FAULT=LateIsLost` tries only this one.

#[path = "choice.rs"]
mod choice;

#[path = "../../networks/stream.rs"]
mod stream;
#[path = "../../networks/tcp.rs"]
mod tcp;
#[path = "../../networks/world.rs"]
mod world;

use std::time::{Duration, Instant};

use rdma_verbs::fault::{Fault, enable};
use stream::{Cell, Stream, measure};
use world::{Control, Link, Peers, Trouble};

/// The least fraction of the rate, the largest multiple of the longest pause and the additional retransmissions that
/// pass, all compared with the same stream without a fault.
const SLOWER: f64 = 0.95;
const LONGER: f64 = 1.3;
const REPEATED: f64 = 0.003;
/// This many probes more than twice the number without a fault are no coincidence.
const MORE_PROBES: u64 = 8;

/// A stream over a link, and its duration.
type Case = (Stream, Link, Duration);

fn cases() -> Vec<Case> {
    let (short, long) = (Duration::from_millis(300), Duration::from_secs(2));
    let [metre, land, sea] = [50, 1_000, 20_000].map(Duration::from_micros);
    let troubled = |rate, round_trip, trouble| Link { trouble, ..Link::new(rate, round_trip, 0) };
    let standard = |round_trip, loss| Link { peers: Peers::Standard, ..Link::new(50, round_trip, loss) };
    let late = Trouble::Reordering(Duration::from_micros(500));
    let links = [
        (Link::new(1_000, land, 10_000), short),
        (Link::new(1_000, land, 100_000), short),
        (Link::new(1_000, sea, 50_000), short),
        (Link::new(1_000, metre, 100_000), short),
        (troubled(1_000, land, late), short),
        (troubled(10_000, land, Trouble::Outages(Duration::from_micros(55))), Duration::from_millis(1_500)),
        (Link { loss: 10_000, ..troubled(1_000, metre, Trouble::Outages(Duration::from_millis(300))) }, long),
        // The transport timeout does not bound the delay of probes.
        (Link { timeout: 18, ..troubled(1_000, metre, Trouble::Outages(Duration::from_millis(300))) }, long),
        (Link { queue_bytes: 100_000, ..Link::new(1_000, land, 0) }, short),
        (standard(land, 10_000), long),
        (standard(land, 50_000), long),
        (standard(sea, 0), long),
        (standard(sea, 10_000), Duration::from_secs(8)),
    ];
    links
        .into_iter()
        .flat_map(|(link, time)| [Stream::Write, Stream::Read].map(|stream| (stream, link, time)))
        .collect()
}

fn run((operation, link, time): Case) -> Cell {
    measure(operation, link, Control::Default, time)
}

/// Describes the first value that is worse with a fault.
fn difference(sound: &Cell, cell: &Cell) -> Option<String> {
    let (rate, before) = (cell.megabytes_per_second, sound.megabytes_per_second);
    if cell.failed {
        Some("the connection ended".into())
    } else if rate < SLOWER * before {
        Some(format!("{rate:.1} MB/s instead of {before:.1}"))
    } else if cell.repeated > sound.repeated + REPEATED.max(sound.repeated / 4.0) {
        Some(format!("{:.1} % retransmitted instead of {:.1}", 100.0 * cell.repeated, 100.0 * sound.repeated))
    } else if cell.longest_pause > sound.longest_pause.mul_f64(LONGER) {
        Some(format!("a pause of {:?} instead of {:?}", cell.longest_pause, sound.longest_pause))
    } else if cell.probes > 2 * sound.probes + MORE_PROBES {
        Some(format!("{} probes instead of {}", cell.probes, sound.probes))
    } else {
        None
    }
}

/// Returns the first case that finds the fault, with the difference.
fn hunt(fault: Fault, sound: &[(Case, Cell)]) -> Option<String> {
    enable(Some(fault));
    let found = sound.iter().find_map(|(case, sound)| {
        let seen = difference(sound, &run(*case))?;
        let (operation, Link { round_trip, loss, .. }, _) = case;
        Some(format!("{operation:?}, {round_trip:?}, {loss} of a million lost: {seen}"))
    });
    enable(None);
    println!("{fault:?}: {}", found.as_deref().unwrap_or("NOT FOUND"));
    found
}

#[test]
fn faults_are_found() {
    let start = Instant::now();
    let sound: Vec<(Case, Cell)> = cases().into_iter().map(|case| (case, run(case))).collect();
    assert!(sound.iter().all(|(_, cell)| !cell.failed), "a stream ends without a fault: {sound:?}");
    let faults = choice::chosen(Fault::RECOVERY);
    let found = choice::hunt_each(&faults, |fault| hunt(fault, &sound));
    let missed: Vec<Fault> = found.iter().filter(|(_, seen)| seen.is_none()).map(|(fault, _)| *fault).collect();
    let (planted, found) = (faults.len(), faults.len() - missed.len());
    println!("recovery: planted {planted}, found {found}, {:.0?}", start.elapsed());
    assert!(missed.is_empty(), "not found: {missed:?}");
}
