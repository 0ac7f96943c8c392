//! The side of a process that watches others. It trusts nothing that they send, and waits for none of them long.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, Socket, Type};

use super::super::registry::{MAX_SWEPT, Name, Registry, inbox_path, watch_path, watched_process};
use super::message::{CaptureOutcome, CaptureRequest, NotUnderstood, RefusalKind, Request, Response};
use super::page::StatisticsReader;
use super::server::Connection;
use crate::sys::{has_ended, own_user, peer_credentials, send_with_descriptor, timestamp, wait_readable};
use crate::types::{CaptureSummary, Snapshot};

/// Most processes that are listed.
const MOST_PROCESSES: usize = 4_096;
/// Most reports of a capture that are read at a time.
const MOST_REPORTS: usize = 1_024;

/// Why another process cannot be watched.
#[derive(Debug)]
pub(crate) enum Failure {
    Ended,
    OtherUser(u32),
    Protected,
    OtherVersion,
    TooMany(String),
    Refused(String),
    NoAnswer,
    Malformed,
    System(&'static str, io::Error),
}

impl From<NotUnderstood> for Failure {
    fn from(reason: NotUnderstood) -> Self {
        match reason {
            NotUnderstood::Version => Self::OtherVersion,
            NotUnderstood::Malformed => Self::Malformed,
        }
    }
}

/// A process that can be watched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    folder: PathBuf,
    name: Name,
    /// ID of the process.
    pub(crate) process: u32,
}

/// Finds the processes of this user that can be watched. It connects to each once: connections to a stopped process
/// stay in its queue.
#[derive(Default)]
pub(crate) struct Finder {
    known: HashMap<Name, u32>,
}

impl Finder {
    /// Returns the processes, sorted by their IDs.
    ///
    /// # Errors
    /// The folder of the sockets cannot be read.
    pub(crate) fn list(&mut self) -> io::Result<Vec<Found>> {
        let Some(registry) = Registry::of_process() else { return Ok(Vec::new()) };
        self.list_in(registry.folder())
    }

    pub(super) fn list_in(&mut self, folder: &Path) -> io::Result<Vec<Found>> {
        let names = std::fs::read_dir(folder)?.take(MAX_SWEPT).flatten().filter_map(|entry| {
            let entry = entry.file_name();
            watched_process(entry.to_str()?)
        });
        let (mut known, mut found) = (HashMap::new(), Vec::new());
        for name in names.take(MOST_PROCESSES) {
            let process = match self.known.get(&name) {
                Some(process) if lives(folder, &name) => Some(*process),
                _ => process_of(folder, &name),
            };
            if let Some(process) = process {
                known.insert(name, process);
                found.push(Found { folder: folder.to_owned(), name, process });
            }
        }
        self.known = known;
        found.sort_by_key(|found| found.process);
        Ok(found)
    }
}

/// Returns whether a process lives, without a connection to it.
fn lives(folder: &Path, name: &Name) -> bool {
    UnixDatagram::unbound().and_then(|socket| socket.connect(inbox_path(folder, name))).is_ok()
}

/// Returns the ID of a process of this user; `None` if it is dead, or of another PID namespace.
fn process_of(folder: &Path, name: &Name) -> Option<u32> {
    let socket = connect(folder, name).ok()?;
    let (user, process) = peer_credentials(socket.as_fd()).ok()?;
    Some(process).filter(|process| user == own_user() && *process != 0)
}

fn connect(folder: &Path, name: &Name) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::SEQPACKET.nonblocking(), None)?;
    socket.connect(&SockAddr::unix(watch_path(folder, name))?)?;
    Ok(socket)
}

impl Found {
    fn connect(&self) -> Result<Connection, Failure> {
        let socket = connect(&self.folder, &self.name).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Failure::Ended,
            // Its queue is full: it accepts nothing.
            io::ErrorKind::WouldBlock => Failure::NoAnswer,
            _ => Failure::System("the process cannot be connected to", error),
        })?;
        match peer_credentials(socket.as_fd()) {
            Ok((user, _)) if user == own_user() => Ok(Connection::new(socket)),
            Ok((user, _)) => Err(Failure::OtherUser(user)),
            Err(error) => Err(Failure::System("the user of the process cannot be found", error)),
        }
    }

    /// Has the process export its statistics.
    ///
    /// # Errors
    /// It refuses, or does not answer in time.
    pub(crate) fn watch(&self, every: Duration, patience: Duration) -> Result<OpenWatch, Failure> {
        let connection = self.connect()?;
        let request = Request::Watch { every };
        connection.send_request(&request, None)?;
        let (response, file) = await_response(&connection, patience)?;
        let (Response::Page, Some(file)) = (response, file) else { return Err(Failure::Malformed) };
        let page = StatisticsReader::open(file).map_err(|_| Failure::Malformed)?;
        Ok(OpenWatch { connection, page })
    }

    /// Has the process record packets in a file.
    ///
    /// # Errors
    /// It refuses, or does not answer in time.
    pub(crate) fn capture(
        &self,
        request: CaptureRequest,
        file: &File,
        patience: Duration,
    ) -> Result<(OpenCapture, String), Failure> {
        let connection = self.connect()?;
        connection.send_request(&Request::Capture(request), Some(file))?;
        let (Response::Started { device }, None) = await_response(&connection, patience)? else {
            return Err(Failure::Malformed);
        };
        Ok((OpenCapture { connection }, device))
    }
}

impl Connection {
    fn send_request(&self, request: &Request, file: Option<&File>) -> Result<(), Failure> {
        let bytes = request.to_bytes();
        let sent = match file {
            Some(file) => send_with_descriptor(self.as_fd(), &bytes, file.as_fd()),
            None => self.send_bytes(&bytes),
        };
        sent.map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Failure::Ended,
            _ => Failure::System("the request cannot be sent", error),
        })
    }
}

/// Waits for a message. A refusal is an error.
fn await_response(connection: &Connection, patience: Duration) -> Result<(Response, Option<OwnedFd>), Failure> {
    let deadline = Instant::now() + patience;
    loop {
        match take_response(connection)? {
            Some((Response::Refused { kind, text }, _)) => {
                return Err(match kind {
                    RefusalKind::Version => Failure::OtherVersion,
                    RefusalKind::Protected => Failure::Protected,
                    RefusalKind::TooMany => Failure::TooMany(text),
                    RefusalKind::Other => Failure::Refused(text),
                });
            }
            Some(answer) => return Ok(answer),
            None if !wait(connection, deadline)? => return Err(Failure::NoAnswer),
            None => {}
        }
    }
}

/// Waits until something has arrived. Returns false at the deadline.
fn wait(connection: &Connection, deadline: Instant) -> Result<bool, Failure> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Ok(false);
    }
    wait_readable([connection.as_fd()], Some(left)).map_err(|error| Failure::System("cannot wait", error))?;
    Ok(true)
}

fn take_response(connection: &Connection) -> Result<Option<(Response, Option<OwnedFd>)>, Failure> {
    let received = connection.receive().map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionReset => Failure::Ended,
        _ => Failure::System("the answer cannot be read", error),
    })?;
    match received {
        None => Ok(None),
        Some((bytes, _)) if bytes.is_empty() => Err(Failure::Ended),
        Some((bytes, file)) => Ok(Some((Response::parse(&bytes)?, file))),
    }
}

/// The exported statistics of a process.
pub(crate) struct OpenWatch {
    connection: Connection,
    page: StatisticsReader,
}

impl OpenWatch {
    /// Reads the latest statistics, without waiting for the process.
    ///
    /// # Errors
    /// It has ended, or its statistics are malformed.
    pub(crate) fn read(&mut self) -> Result<Snapshot, Failure> {
        if has_ended(self.connection.as_fd()) {
            return Err(Failure::Ended);
        }
        let mut snapshot = self.page.read().map_err(|_| Failure::Malformed)?;
        snapshot.age = Duration::from_nanos(timestamp().saturating_sub(snapshot.taken_at));
        Ok(snapshot)
    }
}

/// A capture in another process.
pub(crate) struct OpenCapture {
    connection: Connection,
}

/// A report of a process on a capture.
#[derive(Debug)]
pub(crate) enum CaptureNews {
    /// The counts so far.
    Progress(CaptureSummary),
    /// The capture has ended.
    Ended { outcome: CaptureOutcome, summary: CaptureSummary, text: String },
    /// The process has ended.
    ProcessEnded,
}

impl OpenCapture {
    /// Returns the latest news, without waiting.
    ///
    /// # Errors
    /// What the process says is malformed.
    pub(crate) fn latest(&self) -> Result<Option<CaptureNews>, Failure> {
        let mut latest = None;
        for _ in 0..MOST_REPORTS {
            match take_response(&self.connection) {
                Ok(None) => break,
                Ok(Some((Response::Progress(summary), _))) => latest = Some(CaptureNews::Progress(summary)),
                Ok(Some((Response::Ended { outcome, summary, text }, _))) => {
                    return Ok(Some(CaptureNews::Ended { outcome, summary, text }));
                }
                Ok(Some(_)) => return Err(Failure::Malformed),
                Err(Failure::Ended) => return Ok(Some(CaptureNews::ProcessEnded)),
                Err(failure) => return Err(failure),
            }
        }
        Ok(latest)
    }

    /// Waits until there is news. Returns false at the deadline.
    ///
    /// # Errors
    /// The system does not let this process wait.
    pub(crate) fn wait(&self, deadline: Instant) -> Result<bool, Failure> {
        wait(&self.connection, deadline)
    }

    /// Has the process end the capture.
    ///
    /// # Errors
    /// The process has ended.
    pub(crate) fn stop(&self) -> Result<(), Failure> {
        self.connection.send_request(&Request::Stop, None)
    }
}
