//! The first process: starts, stops and kills the others, and judges what its own connections report.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rdma_verbs::verbs::{CompletionStatus, Counter};

use super::Arguments;
use super::end::{End, Event, Failure, OF_PAIR};
use super::holdings::{Holdings, registry_entries};
use super::leftovers::{RegistryFiles, mapped_rings};
use super::life::{Fate, Life, Phase, are_reaped};
use super::pace::Pace;

/// Longest time from a kill to the failure of the last connection: four times the least time of eight tries with the
/// longer timeout, and some for a busy machine.
const BOUND: Duration = Duration::from_millis(4 * 8 * 268 + 8_000);
/// Longest time from a start to the exchange.
const LONGEST_START: Duration = Duration::from_secs(20);
/// Longest stop of a process that goes on: much less than eight tries with the longer timeout.
const LONGEST_STOP: Duration = Duration::from_millis(60);
/// 67 ms and 268 ms, for eight tries: if the process dies without having been stopped, or after.
const TIMEOUTS: [u8; 2] = [14, 16];
const NAP: Duration = Duration::from_millis(1);
/// Processes that live at a time. The connections of the others wait for their retries.
const MOST_LIVING: usize = 6;
/// The witness' timeout is 0.5 s, for eight tries: no busy machine exceeds it.
const WITNESS_TIMEOUT: u8 = 17;
/// Lives of each process before the resources are measured.
const WARM_UP: u64 = 2;
/// Longest time until what killed processes leave is gone.
const PATIENCE: Duration = Duration::from_secs(20);
const OWN: &str = "127.49.0.1";
const WITNESS: &str = "127.49.0.2";

/// The results.
#[derive(Default)]
struct Report {
    kills: u64,
    /// Of them, before the connections were made; of stopped processes.
    early: u64,
    stopped: u64,
    stops: u64,
    failed: u64,
    /// Failures of connections to living processes, and late failures, when a process got no processor.
    excused: u64,
    verified: u64,
    slowest: Duration,
    errors: Vec<String>,
}

struct Judge {
    random: StdRng,
    end: End,
    lives: Vec<Option<Life>>,
    witness: Life,
    /// The end of the witness' stop.
    witness_stop: Option<Instant>,
    most_kills: u64,
    pace: Pace,
    report: Report,
}

/// The holdings of this process and of the witness.
struct Held {
    own: Holdings,
    rings: usize,
    witness: Holdings,
    witness_rings: usize,
}

/// Runs the campaign.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let seed = arguments.seed.unwrap_or_else(rand::random);
    eprintln!("link_kills: {} processes, seed {seed}", arguments.processes);
    let begun = Instant::now();
    match Judge::new(arguments, seed).and_then(|judge| judge.campaign(arguments)) {
        Ok(report) => {
            print(&report, begun.elapsed());
            let is_done = report.errors.is_empty() && report.kills > 0 && report.failed > 0;
            if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            println!("link_kills: {error}");
            ExitCode::FAILURE
        }
    }
}

fn print(report: &Report, took: Duration) {
    println!(
        "link_kills: {} kills in {} s, {} before the connection and {} of stopped processes; {} stops; \
         {} connections failed with their cause, the slowest after {} ms, {} more while the machine was too busy; \
         {} operations verified; {} errors",
        report.kills,
        took.as_secs(),
        report.early,
        report.stopped,
        report.stops,
        report.failed,
        report.slowest.as_millis(),
        report.excused,
        report.verified,
        report.errors.len(),
    );
    report.errors.iter().take(50).for_each(|error| println!("  {error}"));
}

/// Returns the address of a process: two share one, and every eighth shares that of this process.
fn address_of(slot: usize) -> String {
    if slot % 8 == 7 { OWN.to_owned() } else { format!("127.49.1.{}", 1 + slot / 2) }
}

impl Judge {
    /// Connects to the witness, which has the first connections.
    fn new(arguments: &Arguments, seed: u64) -> Result<Self, Failure> {
        let slots = usize::from(arguments.processes);
        let mut end = End::new(OWN, 1 + slots, true)?;
        let never = Fate { after: Duration::MAX, dies_early: false, stop: None, is_stopped_forever: false };
        let mut witness = Life::start(WITNESS, never)?;
        let infos = expect(&mut witness, "infos ")?;
        let introduction = end.introduce(0)?;
        end.connect(0, &infos, WITNESS_TIMEOUT)?;
        witness.tell(&introduction);
        expect(&mut witness, "ready")?;
        end.begin(0, false)?;
        let random = StdRng::seed_from_u64(seed);
        let lives = (0..slots).map(|_| None).collect();
        Ok(Self {
            random,
            end,
            lives,
            witness,
            witness_stop: None,
            most_kills: 0,
            pace: Pace::new(),
            report: Report::default(),
        })
    }

    fn campaign(mut self, arguments: &Arguments) -> Result<Report, Failure> {
        let addresses: Vec<String> = (0..self.lives.len()).map(address_of).collect();
        self.most_kills = WARM_UP * self.lives.len() as u64;
        self.kill_all(None)?;
        self.drain()?;
        let (before, files) = (self.held()?, RegistryFiles::now());
        let entries = registry_entries(&addresses);
        let sends = self.end.context.counters().get(Counter::SharedMemorySends);
        self.report = Report { errors: std::mem::take(&mut self.report.errors), ..Report::default() };
        self.most_kills = arguments.kills;
        self.kill_all(arguments.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds)))?;
        self.drain()?;
        let sends = self.end.context.counters().get(Counter::SharedMemorySends) - sends;
        if sends < self.report.verified / 2 {
            let verified = self.report.verified;
            self.error(format!("{sends} sends left through shared memory, for {verified} operations and messages"));
        }
        self.compare(&before)?;
        self.compare_files(&files, &entries, &addresses)?;
        Ok(self.report)
    }

    fn error(&mut self, what: String) {
        eprintln!("link_kills: {what}");
        self.report.errors.push(what);
    }

    /// Lets processes live and die until there were enough kills, or the time is over.
    fn kill_all(&mut self, end: Option<Instant>) -> Result<(), Failure> {
        let mut next_report = Instant::now() + Duration::from_secs(10);
        let mut next_look = Instant::now();
        loop {
            self.exchange()?;
            if Instant::now() < next_look {
                continue;
            }
            next_look = Instant::now() + NAP;
            if let Some(blocked) = self.pace.note_turn() {
                self.error(format!("this process was blocked for {blocked:?}"));
            }
            let is_over = self.report.kills >= self.most_kills || end.is_some_and(|end| Instant::now() >= end);
            if is_over && self.lives.iter().all(Option::is_none) {
                return Ok(());
            }
            self.disturb_witness();
            for slot in 0..self.lives.len() {
                self.advance(slot, is_over)?;
            }
            if Instant::now() >= next_report {
                next_report += Duration::from_secs(10);
                let Report { kills, verified, errors, .. } = &self.report;
                eprintln!("link_kills: {kills} kills, {verified} verified, {} errors", errors.len());
            }
        }
    }

    /// Handles the completions of all connections.
    fn exchange(&mut self) -> Result<(), Failure> {
        let mut events = Vec::new();
        self.end.turn(NAP, |event| events.push(event))?;
        for event in events {
            match event {
                Event::Verified => self.report.verified += 1,
                Event::Wrong { index, what } => self.error(format!("connection {index}: {what}")),
                Event::Failed { index, status, why } => self.judge_failure(index, status, &why),
            }
        }
        while let Some(line) = self.witness.line()? {
            self.error(format!("witness: {line}"));
        }
        Ok(())
    }

    fn judge_failure(&mut self, index: usize, status: CompletionStatus, why: &str) {
        let life = (index / OF_PAIR).checked_sub(1).and_then(|slot| self.lives[slot].as_ref());
        let phase = life.map(|life| life.phase);
        let exceeds = status == CompletionStatus::RetryExceededError;
        let is_starved = || self.pace.is_starved() || life.is_some_and(Life::is_starved);
        match phase {
            Some(Phase::Gone(_)) if exceeds => self.report.failed += 1,
            Some(_) if exceeds && is_starved() => self.report.excused += 1,
            _ => self.error(format!("connection {index} fails in phase {phase:?}: {why}")),
        }
    }

    fn disturb_witness(&mut self) {
        match self.witness_stop {
            Some(end) if Instant::now() >= end => {
                self.witness.signal(Signal::SIGCONT);
                self.witness_stop = None;
            }
            None if self.random.random_bool(0.01) => {
                self.witness.signal(Signal::SIGSTOP);
                self.witness_stop = Some(Instant::now() + self.random.random_range(Duration::ZERO..LONGEST_STOP));
                self.report.stops += 1;
            }
            _ => {}
        }
    }

    fn fate(&mut self) -> Fate {
        let random = &mut self.random;
        let stop = random.random_bool(0.1).then(|| random.random_range(Duration::ZERO..LONGEST_STOP));
        Fate {
            after: random.random_range(Duration::ZERO..Duration::from_millis(25)),
            dies_early: random.random_bool(0.2),
            stop,
            is_stopped_forever: random.random_bool(0.1),
        }
    }

    /// Returns the number of processes that have not met their fate.
    fn living(&self) -> usize {
        let lives = self.lives.iter().flatten();
        lives.filter(|life| !matches!(life.phase, Phase::Gone(_))).count()
    }

    /// Continues the life of a process. Nothing begins if the campaign is over.
    fn advance(&mut self, slot: usize, is_over: bool) -> Result<(), Failure> {
        let peer = slot + 1;
        let Some(mut life) = self.lives[slot].take() else {
            if !is_over && self.living() < MOST_LIVING {
                let fate = self.fate();
                self.lives[slot] = Some(Life::start(&address_of(slot), fate)?);
            }
            return Ok(());
        };
        let now = Instant::now();
        match life.phase {
            Phase::Starts | Phase::Connects | Phase::Exchanges => {
                if life.due.is_some_and(|due| due <= now) {
                    self.strike(slot, &mut life)?;
                } else {
                    self.listen(slot, &mut life)?;
                }
            }
            Phase::Stopped(end) if end <= now => {
                life.signal(Signal::SIGCONT);
                (life.phase, life.due) = (Phase::Exchanges, Some(now + life.fate.after));
            }
            Phase::Stopped(_) => {}
            Phase::Gone(since) => {
                // A process that is being stopped may have acknowledged the last request.
                self.end.begin(peer, true)?;
                let left = End::of_peer(peer).filter(|index| self.end.connections[*index].is_live).count();
                if left == 0 {
                    self.report.slowest = self.report.slowest.max(since.elapsed());
                    return Ok(());
                }
                if since.elapsed() > BOUND && self.pace.is_starved() {
                    self.report.excused += left as u64;
                    self.end.introduce(peer)?;
                    return Ok(());
                }
                if since.elapsed() > BOUND {
                    self.error(format!("{left} connections of process {peer} have not failed after {BOUND:?}"));
                    self.end.introduce(peer)?;
                    return Ok(());
                }
            }
        }
        self.lives[slot] = Some(life);
        Ok(())
    }

    /// Stops or kills a process.
    fn strike(&mut self, slot: usize, life: &mut Life) -> Result<(), Failure> {
        let Fate { stop, is_stopped_forever, .. } = life.fate;
        let exchanges = life.phase == Phase::Exchanges;
        if let Some(length) = stop
            && exchanges
            && !life.has_been_stopped
        {
            self.report.stops += 1;
            life.stop(length);
            return Ok(());
        }
        self.report.kills += 1;
        self.report.early += u64::from(!exchanges);
        if is_stopped_forever && exchanges {
            // It is killed when its connections have failed.
            self.report.stopped += 1;
            life.signal(Signal::SIGSTOP);
        } else {
            life.kill();
        }
        life.phase = Phase::Gone(Instant::now());
        // It may have written before.
        self.listen(slot, life)?;
        self.end.begin(slot + 1, true)
    }

    /// Handles what a process has written.
    fn listen(&mut self, slot: usize, life: &mut Life) -> Result<(), Failure> {
        loop {
            let line = match life.line() {
                Ok(Some(line)) => line,
                Ok(None) => return Ok(()),
                Err(_) if matches!(life.phase, Phase::Gone(_)) => return Ok(()),
                Err(error) => return Err(format!("process {slot} ends by itself: {error}").into()),
            };
            match (life.phase, line.split_once(' ').unwrap_or((&line, ""))) {
                (_, ("error", what)) => self.error(format!("process {slot}: {what}")),
                (Phase::Starts, ("infos", infos)) => {
                    let introduction = self.end.introduce(slot + 1)?;
                    self.end.connect(slot + 1, infos, TIMEOUTS[usize::from(life.fate.stop.is_some())])?;
                    life.tell(&introduction);
                    life.note_connected();
                }
                (Phase::Connects, ("ready", _)) => {
                    life.phase = Phase::Exchanges;
                    life.due = life.due.or(Some(Instant::now() + life.fate.after));
                    self.end.begin(slot + 1, false)?;
                }
                (Phase::Gone(_), _) => {}
                (phase, _) => self.error(format!("process {slot} writes {line} in phase {phase:?}")),
            }
        }
    }

    /// Lets the witness go on, and waits until the rings of dead processes are gone.
    fn drain(&mut self) -> Result<(), Failure> {
        if self.witness_stop.take().is_some() {
            self.witness.signal(Signal::SIGCONT);
        }
        for peer in 1..=self.lives.len() {
            self.end.introduce(peer)?;
        }
        let end = Instant::now() + PATIENCE;
        // A ring in each direction, to the witness.
        while (mapped_rings() > 2 || !are_reaped()) && Instant::now() < end {
            self.exchange()?;
        }
        let settled = Instant::now() + Duration::from_millis(500);
        while Instant::now() < settled {
            self.exchange()?;
        }
        Ok(())
    }

    fn held(&mut self) -> Result<Held, Failure> {
        self.witness.tell("holdings");
        let said = loop {
            let mut events = Vec::new();
            self.end.turn(NAP, |event| events.push(event))?;
            if let Some(line) = self.witness.line()? {
                break line;
            }
        };
        let mut words = said.splitn(4, ' ').skip(1);
        let witness_rings = words.next().unwrap_or_default().parse()?;
        let witness = serde_json::from_str(words.nth(1).unwrap_or_default())?;
        Ok(Held { own: Holdings::now(&self.end.context), rings: mapped_rings(), witness, witness_rings })
    }

    fn compare(&mut self, before: &Held) -> Result<(), Failure> {
        let after = self.held()?;
        if (after.rings, after.witness_rings) != (2, 2) {
            self.error(format!("{} rings are mapped here, {} in the witness", after.rings, after.witness_rings));
        }
        // Neither this process nor the witness has neighbors now.
        let grown =
            [("this process", after.own.since(&before.own)), ("the witness", after.witness.since(&before.witness))];
        for (whose, grown) in grown.iter().filter(|(_, grown)| grown.leaks(0)) {
            self.error(format!("the holdings of {whose} have grown: {grown:?}"));
        }
        Ok(())
    }

    /// A process that starts removes the files of those that were dead before. Others on this machine may die
    /// meanwhile.
    fn compare_files(
        &mut self,
        files: &RegistryFiles,
        entries: &[PathBuf],
        addresses: &[String],
    ) -> Result<(), Failure> {
        let end = Instant::now() + PATIENCE;
        loop {
            let earlier = RegistryFiles::now().stale_since(files);
            let mut cleaner = Life::start(WITNESS, self.witness.fate)?;
            expect(&mut cleaner, "infos ")?;
            cleaner.end();
            let mut stale = RegistryFiles::now().stale_since(files);
            stale.retain(|file| earlier.contains(file));
            let left: Vec<PathBuf> =
                registry_entries(addresses).into_iter().filter(|path| !entries.contains(path)).collect();
            if stale.is_empty() && left.is_empty() {
                return Ok(());
            }
            if Instant::now() > end {
                self.error(format!("files of dead processes are left: {stale:?} {left:?}"));
                return Ok(());
            }
        }
    }
}

/// Waits for a line that begins with a word, and returns its rest.
fn expect(life: &mut Life, word: &str) -> Result<String, Failure> {
    let end = Instant::now() + LONGEST_START;
    while Instant::now() < end {
        match life.line()? {
            Some(line) => {
                let rest = line.strip_prefix(word).ok_or_else(|| format!("{line} instead of {word}"))?;
                return Ok(rest.to_owned());
            }
            None => std::thread::sleep(NAP),
        }
    }
    Err(format!("a process never writes {word}").into())
}
