//! Watches the processes of this user: those that come, those that go, those that refuse or do not answer.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use rdma_verbs::monitor::{self, Process, Processes, Snapshot, Watch};

use super::Watched;

/// Requests to processes that are open at the same time. One to a stopped process lasts until its time is over.
const ASKED_AT_ONCE: usize = 16;
/// Time from a refusal to the next request.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// The processes and devices to watch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    /// Only this process.
    pub(crate) process: Option<u32>,
    /// Only devices with this name or address.
    pub(crate) device: Option<String>,
}

impl Selection {
    /// Removes the devices that are not selected.
    fn apply(&self, snapshot: &mut Snapshot) {
        if let Some(wanted) = &self.device {
            snapshot.devices.retain(|device| {
                device.name == *wanted || device.addresses.iter().any(|address| address.to_string() == *wanted)
            });
        }
    }
}

/// The values of all watched processes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Update {
    pub(crate) processes: Vec<Watched>,
    /// Why the processes could not be listed.
    pub(crate) problem: Option<String>,
}

/// How far it is with a process.
enum Progress {
    /// It is not asked yet, because many others are.
    New,
    /// A thread waits for its answer.
    Asked,
    Watching(Watch),
    Refused {
        at: Instant,
    },
}

struct Entry {
    process: Process,
    watched: Watched,
    progress: Progress,
}

type Answer = (u32, monitor::Result<Watch>);

pub(crate) struct Collector {
    selection: Selection,
    every: Duration,
    processes: Processes,
    entries: BTreeMap<u32, Entry>,
    answers: Receiver<Answer>,
    answer: Sender<Answer>,
}

impl Collector {
    /// Watches processes that refresh their values at this interval.
    pub(crate) fn new(selection: Selection, every: Duration) -> Self {
        let (answer, answers) = channel();
        Self { selection, every, processes: Processes::new(), entries: BTreeMap::new(), answers, answer }
    }

    /// Reads the values of all processes. It waits for none of them.
    pub(crate) fn refresh(&mut self) -> Update {
        let problem = self.list().err().map(|error| error.to_string());
        while let Ok(answer) = self.answers.try_recv() {
            self.take(answer);
        }
        self.ask();
        for entry in self.entries.values_mut() {
            entry.read(&self.selection);
        }
        Update { processes: self.entries.values().map(|entry| entry.watched.clone()).collect(), problem }
    }

    /// Reads the values of all processes, after each one has answered, or after this time.
    pub(crate) fn first(&mut self, patience: Duration) -> Update {
        let end = Instant::now() + patience;
        let mut update = self.refresh();
        while self.entries.values().any(|entry| matches!(entry.progress, Progress::New | Progress::Asked)) {
            let Ok(answer) = self.answers.recv_timeout(end.saturating_duration_since(Instant::now())) else { break };
            self.take(answer);
            update = self.refresh();
        }
        update
    }

    /// Finds the processes that came, and forgets those that went.
    fn list(&mut self) -> monitor::Result<()> {
        let is_selected = |process: &Process| self.selection.process.is_none_or(|id| id == process.id());
        let listed: Vec<Process> = self.processes.list()?.into_iter().filter(is_selected).collect();
        self.entries.retain(|_, entry| listed.contains(&entry.process));
        for process in listed {
            self.entries.entry(process.id()).or_insert_with(|| Entry {
                watched: Watched::new(process.id(), process.name()),
                process,
                progress: Progress::New,
            });
        }
        Ok(())
    }

    /// Asks the processes that are not watched, each in a thread of its own.
    fn ask(&mut self) {
        let asked = self.entries.values().filter(|entry| matches!(entry.progress, Progress::Asked)).count();
        let waiting = self.entries.values_mut().filter(|entry| match entry.progress {
            Progress::New => true,
            Progress::Refused { at } => at.elapsed() >= ASK_AGAIN,
            Progress::Asked | Progress::Watching(_) => false,
        });
        for entry in waiting.take(ASKED_AT_ONCE.saturating_sub(asked)) {
            let (process, every, answer) = (entry.process.clone(), self.every, self.answer.clone());
            // There is no receiver if the program ends.
            let ask = move || drop(answer.send((process.id(), process.watch(every))));
            match thread::Builder::new().spawn(ask) {
                Ok(_) => entry.progress = Progress::Asked,
                Err(error) => entry.refuse(&format!("no thread can be started to ask it: {error}")),
            }
        }
    }

    fn take(&mut self, (process, answer): Answer) {
        let Some(entry) = self.entries.get_mut(&process) else { return };
        match answer {
            Ok(watch) => entry.progress = Progress::Watching(watch),
            Err(error) => entry.refuse(&error.to_string()),
        }
    }
}

impl Entry {
    fn read(&mut self, selection: &Selection) {
        let Progress::Watching(watch) = &mut self.progress else { return };
        match watch.snapshot() {
            Ok(mut snapshot) => {
                selection.apply(&mut snapshot);
                self.watched.update(snapshot);
            }
            Err(error) => self.refuse(&error.to_string()),
        }
    }

    fn refuse(&mut self, problem: &str) {
        self.watched.problem = Some(problem.to_owned());
        self.progress = Progress::Refused { at: Instant::now() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::tests::snapshot;

    #[test]
    fn devices_are_selected_by_name_or_address() {
        for (wanted, left) in [(None, 1), (Some("soft_eth0"), 1), (Some("10.0.0.1"), 1), (Some("10.0.0.2"), 0)] {
            let mut snapshot = snapshot(0, Vec::new());
            Selection { process: None, device: wanted.map(str::to_owned) }.apply(&mut snapshot);
            assert_eq!(snapshot.devices.len(), left, "{wanted:?}");
        }
    }
}
