//! The first process: starts the members, passes on the messages between them, kills, stops and restarts them, and
//! compares their resources.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;

use super::Arguments;
use super::holdings::{Holdings, registry_entries};
use super::process::{Process, Said};

/// Longer than any action of a member takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// Duration of a member's work before its resources are measured: until every queue has been used.
const WARM_UP: Duration = Duration::from_secs(3);
const REPORT_EVERY: Duration = Duration::from_secs(5);
/// Longest stop; shorter than a connection's tries.
const LONGEST_STOP: Duration = Duration::from_millis(1_500);

type Outcome<T = ()> = Result<T, String>;

/// The results.
#[derive(Default, Serialize)]
struct Report {
    seconds: u64,
    seed: u64,
    queue_pairs: u64,
    processes: u64,
    /// Number of operations that clients completed and verified, of messages that servers verified, and of datagrams;
    /// of the members that were alive at the end.
    operations: u64,
    messages: u64,
    datagrams_sent: u64,
    datagrams: u64,
    kills: u64,
    stops: u64,
    errors: Vec<String>,
    /// The growth of each member's resources since its warm-up.
    grown: Vec<Holdings>,
    leaks: u64,
    registry_entries_left: Vec<PathBuf>,
}

struct Parent<'a> {
    arguments: &'a Arguments,
    random: StdRng,
    processes: Vec<Process>,
    sender: Sender<Said>,
    said: Receiver<Said>,
    report: Report,
    interrupted: Arc<AtomicBool>,
    lives: u64,
}

/// Runs the soak.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let seed = arguments.seed.unwrap_or_else(rand::random);
    let (sender, said) = channel();
    let interrupted = Arc::new(AtomicBool::new(false));
    watch_for_interrupts(Arc::clone(&interrupted));
    let of_pair = arguments.connections_of_pair() as u64;
    let members = u64::from(arguments.processes);
    let queue_pairs = members * (members - 1) * of_pair + members;
    let report = Report { seed, queue_pairs, processes: members, ..Report::default() };
    let random = StdRng::seed_from_u64(seed);
    let mut parent = Parent { arguments, random, processes: vec![], sender, said, report, interrupted, lives: 0 };
    eprintln!("soak: {queue_pairs} queue pairs in {members} processes for {} s, seed {seed}", arguments.seconds);
    if let Err(error) = parent.soak() {
        parent.report.errors.push(error);
    }
    let mut report = parent.finish();
    let addresses: Vec<String> = (0..arguments.processes).map(|member| arguments.address_of(member)).collect();
    report.registry_entries_left = registry_entries(&addresses);
    print(&report, arguments.json);
    let is_clean = report.errors.is_empty() && report.leaks == 0 && report.registry_entries_left.is_empty();
    if is_clean && report.operations > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The first Ctrl-C ends the soak early and in order; the second one ends it immediately.
fn watch_for_interrupts(interrupted: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let Ok(runtime) = runtime else { return };
        while runtime.block_on(tokio::signal::ctrl_c()).is_ok() {
            if interrupted.swap(true, Ordering::Relaxed) {
                std::process::exit(130);
            }
            eprintln!("soak: ends early; once more ends at once");
        }
    });
}

fn print(report: &Report, json: bool) {
    if json {
        println!("{}", serde_json::to_string(report).unwrap_or_default());
        return;
    }
    println!(
        "soak: {} s, {} queue pairs in {} processes: {} operations and {} messages verified, \
         {} of {} datagrams arrived; {} killed, {} stopped; {} errors, {} leaks, {} registry entries left",
        report.seconds,
        report.queue_pairs,
        report.processes,
        report.operations,
        report.messages,
        report.datagrams,
        report.datagrams_sent,
        report.kills,
        report.stops,
        report.errors.len(),
        report.leaks,
        report.registry_entries_left.len(),
    );
    report.errors.iter().for_each(|error| println!("  {error}"));
    report.grown.iter().for_each(|grown| println!("  grown: {grown:?}"));
    report.registry_entries_left.iter().for_each(|path| println!("  left: {}", path.display()));
}

impl Parent<'_> {
    fn soak(&mut self) -> Outcome {
        let count = self.arguments.processes as usize;
        for member in 0..count {
            self.start(member)?;
        }
        for member in 1..count {
            (0..member).try_for_each(|peer| self.link(member, peer))?;
        }
        self.rest(WARM_UP)?;
        (0..count).try_for_each(|member| self.take_baseline(member))?;
        let begin = Instant::now();
        let (end, mut next_report) = (begin + Duration::from_secs(self.arguments.seconds), begin + REPORT_EVERY);
        while Instant::now() < end && !self.interrupted.load(Ordering::Relaxed) {
            let pause = self.random.random_range(200..1_200);
            self.rest(Duration::from_millis(pause))?;
            self.disturb()?;
            if Instant::now() >= next_report {
                next_report += REPORT_EVERY;
                let Report { kills, stops, errors, .. } = &self.report;
                let elapsed = begin.elapsed().as_secs();
                eprintln!("soak: {elapsed} s, {kills} killed, {stops} stopped, {} errors", errors.len());
            }
        }
        self.report.seconds = begin.elapsed().as_secs();
        self.wind_up()
    }

    fn start(&mut self, member: usize) -> Outcome {
        self.lives += 1;
        let started = Process::start(self.arguments, member, self.lives, &self.sender);
        let process = started.map_err(|error| format!("a process cannot be started: {error}"))?;
        match self.processes.get_mut(member) {
            Some(slot) => *slot = process,
            None => self.processes.push(process),
        }
        self.expect(member, "ready").map(drop)
    }

    /// Returns the rest of this member's next line that begins with a word. Notes errors of all members meanwhile.
    fn expect(&mut self, member: usize, word: &str) -> Outcome<String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let said = self.said.recv_timeout(left).map_err(|_| format!("process {member} never reports {word}"))?;
            if said.life != self.processes[said.member].life {
                continue;
            }
            if said.member == member
                && let Some(rest) = said.line.strip_prefix(word)
            {
                return Ok(rest.trim().to_owned());
            }
            self.note(said);
        }
    }

    fn note(&mut self, said: Said) {
        if said.life != self.processes[said.member].life {
            return;
        }
        if let Some((peer, number)) = said.line.strip_prefix("failed ").and_then(|rest| rest.split_once(' ')) {
            let peer: Option<&mut Process> = peer.parse::<usize>().ok().and_then(|peer| self.processes.get_mut(peer));
            peer.into_iter().for_each(|peer| peer.command(&format!("explain {} {number}", said.member)));
        }
        if said.line.starts_with("end ") {
            eprintln!("soak: {}", said.line);
        }
        if said.line.starts_with("error ") && said.life == self.processes[said.member].life {
            eprintln!("soak: {}", said.line);
            self.report.errors.push(said.line);
        }
    }

    /// Lets the members work, and notes their errors.
    fn rest(&mut self, length: Duration) -> Outcome {
        let deadline = Instant::now() + length;
        while let Some(left) = deadline.checked_duration_since(Instant::now()) {
            if let Ok(said) = self.said.recv_timeout(left) {
                self.note(said);
            }
        }
        Ok(())
    }

    /// Connects two members, again if they were connected.
    fn link(&mut self, one: usize, other: usize) -> Outcome {
        let mut infos = Vec::new();
        for (member, peer) in [(one, other), (other, one)] {
            self.processes[member].command(&format!("link {peer}"));
            let said = self.expect(member, "infos")?;
            infos.push(said.split_once(' ').map(|(_, rest)| rest.to_owned()).unwrap_or_default());
        }
        self.processes[one].command(&format!("go {other} {}", infos[1]));
        self.processes[other].command(&format!("go {one} {}", infos[0]));
        Ok(())
    }

    fn holdings(&mut self, member: usize) -> Outcome<Holdings> {
        self.processes[member].command("holdings");
        let said = self.expect(member, "holdings")?;
        serde_json::from_str(&said).map_err(|error| format!("holdings of process {member}: {error}"))
    }

    fn take_baseline(&mut self, member: usize) -> Outcome {
        let holdings = self.holdings(member)?;
        self.processes[member].baseline = Some(holdings);
        Ok(())
    }

    /// Stops a member for a while, or kills it and starts it again.
    fn disturb(&mut self) -> Outcome {
        let count = self.processes.len();
        let victim = self.random.random_range(0..count);
        if self.random.random_bool(0.5) {
            self.report.stops += 1;
            self.processes[victim].signal(Signal::SIGSTOP);
            let length = self.random.random_range(Duration::from_millis(10)..LONGEST_STOP);
            let rested = self.rest(length);
            self.processes[victim].signal(Signal::SIGCONT);
            return rested;
        }
        self.report.kills += 1;
        self.processes[victim].signal(Signal::SIGKILL);
        let others = || (0..count).filter(move |member| *member != victim);
        others().for_each(|member| self.processes[member].command(&format!("cut {victim}")));
        // On a busy machine its end takes longer than the tries of its peers.
        self.processes[victim].kill();
        self.start(victim)?;
        others().try_for_each(|member| self.link(member, victim))?;
        self.rest(WARM_UP / 3)?;
        self.take_baseline(victim)
    }

    /// Lets all operations end, and compares the members' resources.
    fn wind_up(&mut self) -> Outcome {
        let count = self.processes.len();
        for member in 0..count {
            // One by one: stopped members still respond to the others.
            self.processes[member].command("stop");
            let said = self.expect(member, "idle")?;
            let numbers: Vec<u64> = said.split(' ').filter_map(|word| word.parse().ok()).collect();
            let [operations, messages, sent, datagrams, _, excused] = numbers[..] else {
                return Err(format!("process {member} reports {said}"));
            };
            self.report.operations += operations;
            self.report.messages += messages;
            self.report.datagrams_sent += sent;
            self.report.datagrams += datagrams;
            if excused > 0 {
                self.report.errors.push(format!("process {member}: {excused} connections failed at the end"));
            }
        }
        for member in 0..count {
            let (now, before) = (self.holdings(member)?, self.processes[member].baseline);
            let grown = before.map(|before| now.since(&before));
            self.report.leaks += u64::from(grown.is_some_and(|grown| grown.leaks(count - 1)));
            self.report.grown.extend(grown);
        }
        Ok(())
    }

    /// Ends all members.
    fn finish(mut self) -> Report {
        let mut report = std::mem::take(&mut self.report);
        for (member, process) in self.processes.iter_mut().enumerate() {
            if !process.end() {
                report.errors.push(format!("process {member} does not end well"));
            }
        }
        report
    }
}
