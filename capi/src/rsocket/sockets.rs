//! The sockets of the process, by number, and what they have in common.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use super::datagram::Datagram;
use super::settings::Defaults;
use super::stream::Stream;
use super::waiters::Signal;
use crate::error::{Errno, Result, last_errno};

/// A socket.
#[derive(Clone)]
pub(super) enum Socket {
    Stream(Arc<Stream>),
    Datagram(Arc<Datagram>),
}

/// The sockets of a process. A forked child has its own: it inherits none.
pub(super) struct Sockets {
    pub(super) defaults: Defaults,
    known: RwLock<HashMap<RawFd, Socket>>,
    /// Children of listeners that the program has not accepted.
    incoming: Mutex<HashMap<RawFd, Weak<Stream>>>,
    /// Descriptors that the service thread waits for.
    pub(super) epoll: OwnedFd,
    /// Wakes the service thread.
    pub(super) alarm: Arc<Signal>,
    /// Number of streams that are kept alive.
    pub(super) kept_alive: AtomicUsize,
    has_service: Mutex<bool>,
}

/// Those of this process, if it has any. Never freed: other threads may use it.
static CURRENT: AtomicPtr<Sockets> = AtomicPtr::new(null_mut());

/// Forgets the parent's sockets in a forked child.
extern "C" fn in_child() {
    CURRENT.store(null_mut(), Ordering::Release);
}

/// Watches forks from now on. Threads that call it first at the same time each register the handler, which may run more
/// than once.
fn watch_forks() {
    static IS_WATCHED: AtomicBool = AtomicBool::new(false);
    if !IS_WATCHED.load(Ordering::Acquire) {
        // SAFETY: the handler only stores a pointer, which is allowed between fork and exec, and is never unloaded.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        IS_WATCHED.store(true, Ordering::Release);
    }
}

impl Sockets {
    fn create() -> Result<Self> {
        // SAFETY: the call takes no pointers.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if epoll < 0 {
            return Err(last_errno());
        }
        Ok(Self {
            defaults: Defaults::read(),
            known: RwLock::default(),
            incoming: Mutex::default(),
            // SAFETY: a new descriptor with no other owner.
            epoll: unsafe { OwnedFd::from_raw_fd(epoll) },
            alarm: Signal::create()?,
            kept_alive: AtomicUsize::new(0),
            has_service: Mutex::new(false),
        })
    }

    fn existing() -> Option<&'static Self> {
        // SAFETY: null, or never freed.
        unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
    }

    /// Returns those of this process.
    pub(super) fn current() -> Result<&'static Self> {
        if let Some(found) = Self::existing() {
            return Ok(found);
        }
        watch_forks();
        let new = Box::into_raw(Box::new(Self::create()?));
        if CURRENT.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: nothing else has it. Another thread's is used.
            drop(unsafe { Box::from_raw(new) });
        }
        Self::existing().ok_or(Errno(libc::EAGAIN))
    }

    /// Returns the socket with this number.
    pub(super) fn find(number: RawFd) -> Result<Socket> {
        let bad = Errno(libc::EBADF);
        let known = Self::existing().ok_or(bad)?.known.read().unwrap_or_else(PoisonError::into_inner);
        known.get(&number).cloned().ok_or(bad)
    }

    /// Returns the stream with this number.
    pub(super) fn stream(number: RawFd) -> Result<Arc<Stream>> {
        match Self::find(number)? {
            Socket::Stream(stream) => Ok(stream),
            Socket::Datagram(_) => Err(Errno(libc::EOPNOTSUPP)),
        }
    }

    /// Returns all sockets.
    pub(super) fn all(&self) -> Vec<Socket> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    pub(super) fn add(&self, number: RawFd, socket: Socket) {
        self.known.write().unwrap_or_else(PoisonError::into_inner).insert(number, socket);
    }

    /// Removes a socket, whose number is free afterwards.
    pub(super) fn remove(&self, number: RawFd) {
        self.known.write().unwrap_or_else(PoisonError::into_inner).remove(&number);
        self.incoming.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
        // SAFETY: the call ignores the pointer. It fails if the descriptor is not watched.
        unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_DEL, number, null_mut()) };
    }

    /// Adds a stream that the program does not know yet.
    pub(super) fn add_incoming(&self, number: RawFd, stream: &Arc<Stream>) {
        self.incoming.lock().unwrap_or_else(PoisonError::into_inner).insert(number, Arc::downgrade(stream));
    }

    /// Returns the socket with this number, which the program need not know.
    pub(super) fn watched(&self, number: RawFd) -> Option<Socket> {
        let incoming =
            self.incoming.lock().unwrap_or_else(PoisonError::into_inner).get(&number).and_then(Weak::upgrade);
        incoming.map(Socket::Stream).or_else(|| Self::find(number).ok())
    }

    /// Has the service thread watch a descriptor, or stop watching it for a time, and starts the thread if needed.
    pub(super) fn watch(&'static self, number: RawFd, is_on: bool) -> Result<()> {
        let events = if is_on { libc::EPOLLIN as u32 } else { 0 };
        let mut event = libc::epoll_event { events, u64: number as u64 };
        let mut change = |operation| {
            // SAFETY: reads a local structure.
            match unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, number, &raw mut event) } {
                0 => Ok(()),
                _ => Err(last_errno()),
            }
        };
        match change(libc::EPOLL_CTL_ADD) {
            Err(Errno(libc::EEXIST)) => change(libc::EPOLL_CTL_MOD)?,
            other => other?,
        }
        let mut has_service = self.has_service.lock().unwrap_or_else(PoisonError::into_inner);
        if !*has_service {
            super::service::start(self)?;
            *has_service = true;
        }
        Ok(())
    }
}
