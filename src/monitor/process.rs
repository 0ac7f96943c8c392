//! Processes of this user, and their statistics.

use std::fmt;
use std::fs::File;
use std::time::Duration;

use super::error::explain;
use super::{MonitorError, RemoteCapture, RemoteCaptureOptions, Result};
use crate::engine::{Finder, Found, OpenWatch};
use crate::types::Snapshot;

/// How long a process may take to answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
/// The intervals at which a process refreshes its statistics.
const INTERVALS: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(10);

/// Lists the processes of this user that have a software device in use: one with a queue pair that is ready to receive,
/// or with a listener. Sorted by their IDs.
///
/// It waits for none of them, so stopped processes are listed, too. Processes of another PID namespace are not listed,
/// because they have no ID here. To list processes often, keep a [`Processes`].
///
/// # Errors
/// The folder of the processes' sockets cannot be read.
pub fn processes() -> Result<Vec<Process>> {
    Processes::new().list()
}

/// The processes of this user, for programs that list them again and again: it connects to each process only once.
///
/// ```
/// use rdma_verbs::monitor::Processes;
///
/// let mut processes = Processes::new();
/// for process in processes.list()? {
///     println!("{} {}", process.id(), process.name());
/// }
/// # Ok::<(), rdma_verbs::monitor::MonitorError>(())
/// ```
#[derive(Default)]
pub struct Processes {
    finder: Finder,
}

impl Processes {
    /// Knows no process yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lists the processes, as [`processes`] does.
    ///
    /// # Errors
    /// The folder of the processes' sockets cannot be read.
    pub fn list(&mut self) -> Result<Vec<Process>> {
        let action = "the folder of the processes' sockets cannot be read";
        let found = self.finder.list().map_err(|source| MonitorError::System { action, source })?;
        Ok(found.into_iter().map(Process::new).collect())
    }
}

impl fmt::Debug for Processes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Processes").finish_non_exhaustive()
    }
}

/// A process of this user that has a software device in use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    found: Found,
    name: String,
}

impl Process {
    fn new(found: Found) -> Self {
        let name = std::fs::read(format!("/proc/{}/comm", found.process)).unwrap_or_default();
        let clean = |character: char| if character.is_control() { '?' } else { character };
        let name = String::from_utf8_lossy(&name).trim_end_matches('\n').chars().map(clean).collect();
        Self { found, name }
    }

    /// Finds the process with this ID.
    ///
    /// # Errors
    /// [`MonitorError::NotFound`] if there is no such process of this user.
    pub fn find(id: u32) -> Result<Self> {
        let found = processes()?.into_iter().find(|process| process.id() == id);
        found.ok_or(MonitorError::NotFound { process: id })
    }

    /// Returns the ID of the process.
    pub fn id(&self) -> u32 {
        self.found.process
    }

    /// Returns the name of the process, as `ps -o comm` shows it; empty if it has ended.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Has the process export its statistics, and refresh them at this interval, from 0.1 s to 10 s, until the watch is
    /// dropped. A process has at most 8 watches. One with thousands of queue pairs refreshes them less often, so that
    /// this takes at most a twentieth of the time of one processor.
    ///
    /// # Errors
    /// The process refuses, or does not answer within 2 s.
    pub fn watch(&self, every: Duration) -> Result<Watch> {
        if !INTERVALS.contains(&every) {
            return Err(MonitorError::Interval { given: every });
        }
        let watched = self.found.watch(every, PATIENCE);
        let inner = watched.map_err(|failure| explain(self.id(), PATIENCE, failure))?;
        Ok(Watch { process: self.clone(), inner })
    }

    /// Has the process record the packets of a device in a file, which must be a regular file of this user with one
    /// name, opened for writing; it is emptied. `device` names the device; `None` stands for the only one. The capture
    /// ends when the returned value is stopped or dropped, when the file has reached its maximum size, or when the
    /// device is closed.
    ///
    /// # Errors
    /// The process refuses, or does not answer within 2 s.
    pub fn start_capture(
        &self,
        device: Option<&str>,
        file: File,
        options: &RemoteCaptureOptions,
    ) -> Result<RemoteCapture> {
        RemoteCapture::start(self.id(), &self.found, device, &file, options)
    }
}

/// The exported statistics of a process. Dropping it ends the export.
///
/// The module's documentation has an example.
pub struct Watch {
    process: Process,
    inner: OpenWatch,
}

impl Watch {
    /// Returns the process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Reads the latest statistics. It never waits for the process: if that is stopped, the statistics are old
    /// ([`Snapshot::age`]).
    ///
    /// # Errors
    /// [`MonitorError::Ended`] once the process has ended or closed its devices.
    pub fn snapshot(&mut self) -> Result<Snapshot> {
        let read = self.inner.read();
        let snapshot = read.map_err(|failure| explain(self.process.id(), PATIENCE, failure))?;
        Ok(Snapshot { process: self.process.id(), name: self.process.name.clone(), ..snapshot })
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("process", &self.process).finish_non_exhaustive()
    }
}
