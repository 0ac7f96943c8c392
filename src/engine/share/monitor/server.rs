//! The side of the process that is watched.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::Socket;

use super::super::listener::Listener;
use super::collector::Collector;
use super::message::{MOST_BYTES, NotUnderstood, RefusalKind, Request, Response};
use super::page::{PAGE_BYTES, StatisticsWriter};
use super::session;
use crate::sys::{
    Epoll, Interest, NotInherited, file_size_limit, has_ended, is_protected, receive_with_descriptor,
    send_with_descriptor, thread_time,
};

/// Most watchers of a process.
const MOST_WATCHERS: usize = 8;
/// Most captures that other processes have requested. Each has a thread.
const MOST_SESSIONS: usize = 16;
/// Most connections that have not requested anything yet. The request has usually arrived when one is accepted.
const MOST_GUESTS: usize = 16;
/// Most connections accepted at a time.
const ACCEPTS: usize = 64;
/// The intervals that a watcher may choose.
pub(super) const INTERVALS: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(10);

/// A connection of another process of this user.
pub(super) struct Connection {
    /// Dropped first: the number of a closed descriptor is reused.
    _not_inherited: NotInherited,
    socket: Socket,
}

impl Connection {
    pub(super) fn new(socket: Socket) -> Self {
        Self { _not_inherited: NotInherited::new(socket.as_fd()), socket }
    }

    /// Sends a message without waiting. Returns whether it was sent.
    pub(super) fn send(&self, response: &Response) -> bool {
        self.send_bytes(&response.to_bytes()).is_ok()
    }

    pub(super) fn send_bytes(&self, bytes: &[u8]) -> io::Result<()> {
        self.socket.send_with_flags(bytes, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL).map(drop)
    }

    /// Returns the next message and the descriptor that it carries, without waiting; `None` if there is none. The end
    /// of the connection is an empty message.
    pub(super) fn receive(&self) -> io::Result<Option<(Vec<u8>, Option<OwnedFd>)>> {
        let mut bytes = [0; MOST_BYTES + 1];
        let received = receive_with_descriptor(self.as_fd(), &mut bytes)?;
        Ok(received.map(|(length, file)| (bytes[..length].to_vec(), file)))
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

struct Watcher {
    connection: Connection,
    page: StatisticsWriter,
    every: Duration,
    due: Instant,
}

/// The monitor of this process. It belongs to the mailbox's thread.
pub(in crate::engine::share) struct Monitor {
    listener: Listener,
    guests: Vec<Connection>,
    watchers: Vec<Watcher>,
    collector: Collector,
    /// Each capture has a reference.
    sessions: Arc<()>,
    is_protected: fn() -> bool,
}

impl Monitor {
    /// Creates the monitor. `set` is readable while there is something to do.
    pub(in crate::engine::share) fn new(listener: Listener, set: &Epoll) -> io::Result<Self> {
        Self::with_protection(listener, set, is_protected)
    }

    fn with_protection(listener: Listener, set: &Epoll, is_protected: fn() -> bool) -> io::Result<Self> {
        listener.watch(set)?;
        Ok(Self {
            listener,
            guests: Vec::new(),
            watchers: Vec::new(),
            collector: Collector::default(),
            sessions: Arc::default(),
            is_protected,
        })
    }

    /// Handles everything that has arrived.
    pub(in crate::engine::share) fn take_messages(&mut self, set: &Epoll) {
        // A watcher has nothing to say: whatever can be read ends it.
        self.watchers.retain(|watcher| matches!(watcher.connection.receive(), Ok(None)));
        if self.watchers.is_empty() {
            self.collector.reset();
        }
        self.accept(set);
        for guest in std::mem::take(&mut self.guests) {
            match guest.receive() {
                Ok(None) => self.guests.push(guest),
                Ok(Some((bytes, file))) if !bytes.is_empty() => self.answer(guest, &bytes, file, set),
                Ok(Some(_)) | Err(_) => {}
            }
        }
        // The oldest ones have said nothing for the longest time.
        let many = self.guests.len().saturating_sub(MOST_GUESTS);
        self.guests.drain(..many);
    }

    /// Accepts the connections that wait.
    fn accept(&mut self, set: &Epoll) {
        let Self { listener, guests, .. } = self;
        listener.accept(set, ACCEPTS, |socket| {
            let connection = Connection::new(socket);
            if set.add(connection.as_fd(), Interest::Readable).is_ok() {
                guests.push(connection);
            }
        });
    }

    /// Answers a request.
    fn answer(&mut self, guest: Connection, bytes: &[u8], file: Option<OwnedFd>, set: &Epoll) {
        let refused = match (Request::parse(bytes), file) {
            (Err(NotUnderstood::Version), _) => Some((RefusalKind::Version, String::new())),
            (Err(NotUnderstood::Malformed), _) => None,
            (Ok(_), _) if (self.is_protected)() => Some((RefusalKind::Protected, String::new())),
            (Ok(Request::Watch { every }), None) if INTERVALS.contains(&every) => match self.watch(guest, every) {
                Ok(()) => return,
                Err((guest, kind, text)) => {
                    guest.send(&Response::Refused { kind, text });
                    return;
                }
            },
            (Ok(Request::Capture(request)), Some(file)) if Arc::strong_count(&self.sessions) <= MOST_SESSIONS => {
                // The capture's thread waits for its further messages.
                let _ = set.remove(guest.as_fd());
                session::start(guest, request, File::from(file), Arc::clone(&self.sessions));
                return;
            }
            (Ok(Request::Capture(_)), Some(_)) => {
                let text = format!("{MOST_SESSIONS} captures have been requested, the most that a process allows");
                Some((RefusalKind::TooMany, text))
            }
            (Ok(_), _) => None,
        };
        if let Some((kind, text)) = refused {
            guest.send(&Response::Refused { kind, text });
        }
    }

    /// Gives a guest a page, with a first snapshot.
    fn watch(&mut self, guest: Connection, every: Duration) -> Result<(), (Connection, RefusalKind, String)> {
        if self.watchers.len() >= MOST_WATCHERS {
            let text = format!("it has {MOST_WATCHERS} watchers, the most that a process allows");
            return Err((guest, RefusalKind::TooMany, text));
        }
        // A larger page would raise a signal.
        if file_size_limit() < PAGE_BYTES as u64 {
            let text = format!("it may create files of at most {} bytes (RLIMIT_FSIZE)", file_size_limit());
            return Err((guest, RefusalKind::Other, text));
        }
        let created = StatisticsWriter::create().and_then(|(page, file)| Ok((page, read_only(&file)?)));
        let (mut page, file) = match created {
            Ok(created) => created,
            Err(error) => {
                let text = format!("its system denies it the memory for statistics: {error}");
                return Err((guest, RefusalKind::Other, text));
            }
        };
        let (snapshot, pause) = self.collector.collect(every);
        page.write(snapshot);
        let due = Instant::now() + pause;
        // A guest that has ended, or does not read, gets nothing.
        if send_with_descriptor(guest.as_fd(), &Response::Page.to_bytes(), file.as_fd()).is_ok() {
            self.watchers.push(Watcher { connection: guest, page, every, due });
        }
        Ok(())
    }

    /// Refreshes the pages that are due, and watches the listener again if its pause is over. Returns when the next one
    /// is due.
    pub(in crate::engine::share) fn refresh(&mut self, set: &Epoll) -> Option<Duration> {
        let start = Instant::now();
        let listens_in = self.listener.resume(set);
        // The end of one may not have been handled yet.
        self.watchers.retain(|watcher| watcher.due > start || !has_ended(watcher.connection.as_fd()));
        for watcher in self.watchers.iter_mut().filter(|watcher| watcher.due <= start) {
            let (snapshot, pause) = self.collector.collect(watcher.every);
            let begin = thread_time();
            watcher.page.write(snapshot);
            self.collector.add_cost(thread_time().saturating_sub(begin));
            watcher.due = Instant::now() + pause;
        }
        let due = self.watchers.iter().map(|watcher| watcher.due).min();
        due.map(|due| due.saturating_duration_since(Instant::now())).into_iter().chain(listens_in).min()
    }
}

/// Returns a descriptor of the same file that cannot be written.
fn read_only(file: &OwnedFd) -> io::Result<File> {
    File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests;
