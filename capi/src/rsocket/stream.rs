//! Stream sockets: their phases, from the first call to the last.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rdma_verbs::provider::PortSpace;
use rdma_verbs::provider::abi::cm;

use super::endpoint::{Endpoint, Init};
use super::flow::{Change, Flow};
use super::identifier::{Event, Identifier};
use super::mapped::Mappings;
use super::options::Options;
use super::sockets::{Socket, Sockets};
use super::waiters::{Signal, Waiters};
use super::wire::{ConnectionData, Message};
use crate::error::{Errno, INVALID, Result};

/// Largest number of connections that wait to be accepted, as of identifiers.
const MAX_BACKLOG: usize = 1024;
/// `RDMA_PS_TCP`.
const SPACE: c_int = PortSpace::Tcp as c_int;
/// Longest time that closing waits for the peer to acknowledge what was sent.
pub(super) const CLOSING: Duration = Duration::from_secs(20);

/// How far a stream is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    Idle,
    Bound,
    Listening,
    /// Its request has left.
    Connecting,
    /// Its reply has left.
    Accepting,
    Connected,
    /// The attempt to connect has failed.
    Refused,
    /// An end has closed the connection.
    Disconnected,
    /// The connection has failed.
    Failed,
    Closed,
}

/// The state of a listener.
#[derive(Default)]
pub(super) struct Listening {
    pub(super) accepted: VecDeque<Arc<Stream>>,
    /// Children whose connection is not complete.
    pub(super) incomplete: Vec<Arc<Stream>>,
    pub(super) backlog: usize,
    /// Whether the requests of peers stay at the identifier, because there are enough.
    is_full: bool,
}

/// The changing part of a stream.
pub(super) struct Inner {
    pub(super) phase: Phase,
    /// `SO_ERROR`.
    pub(super) error: c_int,
    pub(super) init: Init,
    /// Flags of `F_SETFL` and `F_SETFD`.
    pub(super) file_flags: c_int,
    pub(super) descriptor_flags: c_int,
    pub(super) options: Options,
    pub(super) endpoint: Option<Endpoint>,
    pub(super) mappings: Mappings,
    pub(super) listening: Listening,
    /// The listener of a child that the program has not accepted.
    parent: Weak<Stream>,
    domain: c_int,
    /// `None` once the socket is closed.
    identifier: Option<Identifier>,
}

/// A stream.
pub(super) struct Stream {
    number: AtomicI32,
    pub(super) waiters: Waiters,
    inner: Mutex<Inner>,
}

impl Inner {
    fn new(identifier: Identifier, domain: c_int, init: Init) -> Self {
        Self {
            phase: Phase::Idle,
            error: 0,
            init,
            file_flags: 0,
            descriptor_flags: 0,
            options: Options::default(),
            endpoint: None,
            mappings: Mappings::default(),
            listening: Listening::default(),
            parent: Weak::new(),
            domain,
            identifier: Some(identifier),
        }
    }

    pub(super) fn identifier(&self) -> Result<&Identifier> {
        self.identifier.as_ref().ok_or(Errno(libc::EBADF))
    }

    pub(super) fn set_id_option(&self, name: c_int, value: &[u8]) -> Result<()> {
        self.identifier()?.set_option(name, value)
    }

    /// Returns the number of bytes of the path's packets.
    pub(super) fn path_mtu(&self) -> Option<c_int> {
        let path = self.identifier.as_ref()?.path()?;
        Some(1 << (7 + u32::from(path.mtu).min(5)))
    }

    /// Returns the address of this end, or of the peer.
    pub(super) fn address(&self, is_peer: bool) -> Result<libc::sockaddr_storage> {
        let mut found = self.identifier()?.address(is_peer);
        if found.ss_family == 0 {
            found.ss_family = self.domain as libc::sa_family_t;
        }
        Ok(found)
    }

    pub(super) fn is_nonblocking(&self) -> bool {
        self.file_flags & libc::O_NONBLOCK != 0
    }

    pub(super) fn is_readable(&self) -> bool {
        self.phase == Phase::Connected && self.flow_is(|flow| flow.is_readable)
    }

    pub(super) fn is_writable(&self) -> bool {
        self.phase == Phase::Connected && self.flow_is(|flow| flow.is_writable)
    }

    pub(super) fn can_send(&self) -> bool {
        self.flow_is(Flow::can_send)
    }

    pub(super) fn has_data(&self) -> bool {
        self.flow_is(Flow::has_data)
    }

    /// Returns whether the stream has a connection of which this is so.
    pub(super) fn flow_is(&self, is: impl FnOnce(&Flow) -> bool) -> bool {
        self.endpoint.as_ref().and_then(|endpoint| endpoint.flow.as_ref()).is_some_and(is)
    }

    /// Ends an attempt to connect.
    fn refuse(&mut self, error: Errno) {
        (self.phase, self.error) = (Phase::Refused, error.0);
    }

    /// Ends a connection that has failed.
    pub(super) fn fail(&mut self, error: Errno) {
        if self.phase == Phase::Connected {
            (self.phase, self.error) = (Phase::Failed, error.0);
        }
    }

    /// Handles the completions that there are. Returns whether there were any. After a failure nothing that the peer
    /// sends counts.
    pub(super) fn process(&mut self) -> bool {
        if self.phase == Phase::Failed {
            return false;
        }
        let Some(endpoint) = &mut self.endpoint else { return false };
        let handled = endpoint.process();
        if handled.change == Change::Disconnected && self.phase == Phase::Connected {
            self.phase = Phase::Disconnected;
        }
        if let Some(error) = handled.failure {
            self.fail(error);
        }
        handled.count > 0
    }

    /// Begins the connection with the peer's data.
    fn begin(&mut self, peer: &[u8]) -> Result<()> {
        let peer = ConnectionData::from_bytes(peer).ok_or(Errno(libc::ENOTSUP))?;
        let endpoint = self.endpoint.as_mut().ok_or(INVALID)?;
        endpoint.flow = Some(Flow::new(endpoint.init.sizes, peer));
        Ok(())
    }

    /// Handles the events of the connection's identifier. Returns whether anything has changed.
    pub(super) fn take_events(&mut self) -> bool {
        let before = self.phase;
        // Each turn takes an event; an identifier has a bounded number of them.
        while let Some(event) = self.identifier.as_ref().and_then(Identifier::next_event) {
            match (self.phase, event) {
                (Phase::Connecting, Event::Established(data)) => match self.begin(&data) {
                    Ok(()) => self.phase = Phase::Connected,
                    Err(error) => self.refuse(error),
                },
                (Phase::Accepting, Event::Established(_)) => self.phase = Phase::Connected,
                (Phase::Connecting | Phase::Accepting, Event::Failed(error)) => self.refuse(error),
                (Phase::Connecting | Phase::Accepting, Event::Disconnected) => self.refuse(Errno(libc::ECONNRESET)),
                (Phase::Connected, Event::Disconnected) => {
                    // Messages that the peer sent before have arrived.
                    self.process();
                    if self.phase == Phase::Connected {
                        self.phase = Phase::Disconnected;
                    }
                }
                (Phase::Connected, Event::Failed(error)) => self.fail(error),
                _ => {}
            }
        }
        self.phase != before
    }

    /// Sends a request to a peer. A nonblocking identifier's events follow.
    ///
    /// # Safety
    /// The address has as many bytes as its family has.
    unsafe fn connect(&mut self, peer: *const libc::sockaddr) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.identifier()?.resolve(std::ptr::null(), peer)? };
        let identifier = self.identifier()?;
        let endpoint = Endpoint::create(identifier, self.init)?;
        let connected = identifier.connect(&endpoint.connection_data().to_bytes());
        self.init = endpoint.init;
        self.endpoint = Some(endpoint);
        connected
    }
}

impl Stream {
    fn make(inner: Inner) -> Result<Arc<Self>> {
        let number = AtomicI32::new(inner.identifier()?.fd());
        Ok(Arc::new(Self { number, waiters: Waiters::default(), inner: Mutex::new(inner) }))
    }

    /// Returns the number: a descriptor of the identifier's channel.
    pub(super) fn number(&self) -> RawFd {
        self.number.load(Ordering::Acquire)
    }

    /// Gives an accepted stream a number that is free now, and larger than the descriptors that the program has just
    /// opened.
    fn renumber(&self, sockets: &'static Sockets) {
        let mut inner = self.lock();
        inner.parent = Weak::new();
        sockets.remove(self.number());
        // With the number before, it works as well.
        if let Some(Err(Errno(error))) = inner.identifier.as_mut().map(Identifier::renumber) {
            tracing::info!(target: "rdma_verbs::rsocket", error, "an accepted socket keeps its number");
        }
        if let Some(identifier) = &inner.identifier {
            self.number.store(identifier.fd(), Ordering::Release);
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates a socket; returns its number.
    pub(super) fn create(domain: c_int, file_flags: c_int, descriptor_flags: c_int) -> Result<RawFd> {
        let sockets = Sockets::current()?;
        let defaults = &sockets.defaults;
        let init = Init { sizes: defaults.sizes, inline: defaults.inline.into(), mappings: defaults.mappings };
        let mut inner = Inner::new(Identifier::create(SPACE)?, domain, init);
        (inner.file_flags, inner.descriptor_flags) = (file_flags, descriptor_flags);
        let stream = Self::make(inner)?;
        let number = stream.number();
        sockets.add(number, Socket::Stream(stream));
        Ok(number)
    }

    /// Binds the socket to an address.
    ///
    /// # Safety
    /// The address has as many bytes as its family has.
    pub(super) unsafe fn bind(&self, address: *const libc::sockaddr) -> Result<()> {
        let mut inner = self.lock();
        // SAFETY: the caller's promise.
        unsafe { inner.identifier()?.bind(address)? };
        inner.phase = Phase::Bound;
        Ok(())
    }

    /// Listens. The service thread accepts requests.
    pub(super) fn listen(&self, backlog: c_int) -> Result<()> {
        let mut inner = self.lock();
        if inner.phase == Phase::Listening {
            return Ok(());
        }
        inner.identifier()?.listen(backlog)?;
        let backlog = usize::try_from(backlog).ok().filter(|backlog| *backlog > 0).unwrap_or(MAX_BACKLOG);
        inner.listening.backlog = backlog.min(MAX_BACKLOG);
        inner.phase = Phase::Listening;
        Sockets::current()?.watch(self.number(), true)
    }

    /// Begins to connect. Returns whether that is complete.
    ///
    /// # Safety
    /// The address has as many bytes as its family has.
    pub(super) unsafe fn connect(&self, peer: *const libc::sockaddr) -> Result<()> {
        let mut inner = self.lock();
        match inner.phase {
            Phase::Idle | Phase::Bound => {}
            Phase::Connecting | Phase::Accepting | Phase::Connected => return Ok(()),
            Phase::Refused | Phase::Disconnected | Phase::Failed => return Err(Errno(libc::ENOTCONN)),
            Phase::Listening | Phase::Closed => return Err(INVALID),
        }
        inner.phase = Phase::Connecting;
        // SAFETY: the caller's promise.
        let connected = unsafe { inner.connect(peer) }.and_then(|()| Sockets::current()?.watch(self.number(), true));
        connected.inspect_err(|error| {
            inner.refuse(*error);
            // The program gets it from this call.
            inner.error = 0;
        })
    }

    /// Handles events of the identifier, on the service thread.
    pub(super) fn serve(self: &Arc<Self>, sockets: &'static Sockets) {
        let mut inner = self.lock();
        if inner.phase == Phase::Listening {
            self.accept_requests(&mut inner, sockets);
            return;
        }
        if !inner.take_events() {
            return;
        }
        let (phase, parent) = (inner.phase, inner.parent.clone());
        drop(inner);
        self.waiters.wake();
        if let Some(listener) = parent.upgrade() {
            listener.note_child(self, phase == Phase::Connected, sockets);
        }
    }

    /// Accepts peers' requests as long as there is room for them.
    fn accept_requests(self: &Arc<Self>, inner: &mut Inner, sockets: &'static Sockets) {
        loop {
            let listening = &mut inner.listening;
            if listening.accepted.len() + listening.incomplete.len() >= listening.backlog {
                listening.is_full = true;
                let _ = sockets.watch(self.number(), false);
                return;
            }
            match inner.identifier.as_ref().and_then(Identifier::next_event) {
                None => return,
                Some(Event::Request(child, parameters, data)) => {
                    match self.accept_one(inner, child, &parameters, &data, sockets) {
                        Ok(stream) => inner.listening.incomplete.push(stream),
                        Err(Errno(error)) => tracing::info!(
                            target: "rdma_verbs::rsocket", error, "a peer's request for a socket is rejected"
                        ),
                    }
                }
                Some(_) => {}
            }
        }
    }

    /// Accepts a peer's request. A failure rejects it, because its identifier is destroyed.
    fn accept_one(
        self: &Arc<Self>,
        inner: &Inner,
        child: Identifier,
        parameters: &cm::ConnParam,
        data: &[u8],
        sockets: &'static Sockets,
    ) -> Result<Arc<Self>> {
        let mut new = Inner::new(child, inner.domain, inner.init);
        (new.file_flags, new.descriptor_flags) = (inner.file_flags, inner.descriptor_flags);
        (new.phase, new.parent) = (Phase::Accepting, Arc::downgrade(self));
        if ConnectionData::from_bytes(data).is_none() {
            return Err(Errno(libc::ENOTSUP));
        }
        let mut accept = || {
            let endpoint = Endpoint::create(new.identifier()?, new.init)?;
            let own = endpoint.connection_data().to_bytes();
            new.init = endpoint.init;
            new.endpoint = Some(endpoint);
            new.begin(data)?;
            new.identifier()?.accept(parameters, &own)
        };
        let result = accept();
        let stream = Self::make(new)?;
        if let Err(error) = result {
            stream.close();
            return Err(error);
        }
        sockets.add_incoming(stream.number(), &stream);
        sockets.watch(stream.number(), true).inspect_err(|_| stream.close())?;
        Ok(stream)
    }

    /// Notes that a child's connection is complete, or has failed.
    fn note_child(&self, child: &Arc<Self>, is_complete: bool, sockets: &'static Sockets) {
        let mut inner = self.lock();
        let incomplete = &mut inner.listening.incomplete;
        let Some(found) = incomplete.iter().position(|known| Arc::ptr_eq(known, child)) else { return };
        incomplete.swap_remove(found);
        if is_complete {
            inner.listening.accepted.push_back(Arc::clone(child));
        }
        self.resume(&mut inner, sockets);
        drop(inner);
        if is_complete {
            self.waiters.wake();
        } else {
            sockets.remove(child.number());
            child.close();
        }
    }

    /// Takes requests again, if there is room for them.
    fn resume(&self, inner: &mut Inner, sockets: &'static Sockets) {
        let listening = &mut inner.listening;
        if listening.is_full && listening.accepted.len() + listening.incomplete.len() < listening.backlog {
            listening.is_full = false;
            let _ = sockets.watch(self.number(), true);
        }
    }

    /// Takes the oldest connection that is complete.
    pub(super) fn accept(&self) -> Result<Option<Arc<Self>>> {
        let sockets = Sockets::current()?;
        let child = {
            let mut inner = self.lock();
            if inner.phase != Phase::Listening {
                return Err(Errno(libc::EBADF));
            }
            let Some(child) = inner.listening.accepted.pop_front() else { return Ok(None) };
            self.resume(&mut inner, sockets);
            child
        };
        child.renumber(sockets);
        sockets.add(child.number(), Socket::Stream(Arc::clone(&child)));
        sockets.watch(child.number(), true)?;
        Ok(Some(child))
    }

    /// Sends what keeps the connection alive, if it is due. Returns the time until the next.
    pub(super) fn keep_alive(&self, now: Instant) -> Option<Duration> {
        let mut inner = self.lock();
        let due = inner.options.keepalive?;
        if due > now {
            return Some(due - now);
        }
        let interval = inner.options.keepalive_interval();
        inner.options.keepalive = Some(now + interval);
        if inner.phase == Phase::Connected {
            inner.process();
            if let Some(Err(error)) = inner.endpoint.as_mut().map(Endpoint::keep_alive) {
                inner.fail(error);
            }
        }
        Some(interval)
    }

    /// Begins to end the directions that `how` names, if that can be done now. Returns whether it was done.
    pub(super) fn begin_shutdown(&self, inner: &mut Inner, how: c_int) -> Result<bool> {
        let Some(endpoint) = inner.endpoint.as_mut().filter(|_| inner.phase == Phase::Connected) else {
            return Ok(true);
        };
        let Some(flow) = &mut endpoint.flow else { return Ok(true) };
        let (stays_readable, stays_writable) = match how {
            libc::SHUT_RD => (false, flow.is_writable),
            libc::SHUT_WR => (flow.is_readable, false),
            _ => (false, false),
        };
        let message = match (stays_readable, stays_writable) {
            // The peer need not know.
            (_, true) => None,
            (true, false) => Some(Message::Shutdown),
            (false, false) => Some(Message::Disconnect),
        };
        if let Some(message) = message
            && !endpoint.control(message)?
        {
            return Ok(false);
        }
        if let Some(flow) = &mut endpoint.flow {
            (flow.is_readable, flow.is_writable) = (stays_readable, stays_writable);
        }
        self.waiters.wake();
        Ok(true)
    }

    /// Destroys everything of the socket.
    pub(super) fn close(&self) {
        let (endpoint, identifier, listening, mappings) = {
            let mut inner = self.lock();
            inner.phase = Phase::Closed;
            (
                inner.endpoint.take(),
                inner.identifier.take(),
                std::mem::take(&mut inner.listening),
                std::mem::take(&mut inner.mappings),
            )
        };
        self.waiters.wake();
        if let Ok(sockets) = Sockets::current() {
            for child in listening.accepted.into_iter().chain(listening.incomplete) {
                sockets.remove(child.number());
                child.close();
            }
        }
        if let (Some(endpoint), Some(identifier)) = (endpoint, &identifier) {
            endpoint.destroy(identifier);
        }
        mappings.end();
    }

    /// Counts the streams that are kept alive when the option changes.
    pub(super) fn note_keepalive(was_on: bool, is_on: bool) {
        let Ok(sockets) = Sockets::current() else { return };
        match (was_on, is_on) {
            (false, true) => sockets.kept_alive.fetch_add(1, Ordering::AcqRel),
            (true, false) => sockets.kept_alive.fetch_sub(1, Ordering::AcqRel),
            _ => return,
        };
        sockets.alarm.raise();
    }

    /// Arms what makes a descriptor readable when the stream may have changed. Returns the descriptor; -1 if only the
    /// thread's own matters. `is_ready` is what the thread waits for: `None` if it is so by now.
    pub(super) fn arm(inner: &mut Inner, is_ready: impl Fn(&Inner) -> bool) -> Result<Option<RawFd>> {
        match inner.phase {
            Phase::Connecting | Phase::Accepting => Ok(Some(inner.identifier()?.fd())),
            Phase::Connected | Phase::Disconnected | Phase::Failed => {
                let Some(endpoint) = &mut inner.endpoint else { return Ok(Some(-1)) };
                if endpoint.completions.arm()? {
                    inner.process();
                    if is_ready(inner) {
                        return Ok(None);
                    }
                }
                Ok(inner.endpoint.as_ref().map(|endpoint| endpoint.completions.fd()))
            }
            _ => Ok(Some(-1)),
        }
    }
}

/// Returns the thread's descriptor, as a waiter of a stream.
pub(super) fn waiter(waiters: &Waiters) -> Result<Arc<Signal>> {
    let signal = Signal::of_thread()?;
    signal.clear();
    waiters.add(&signal);
    Ok(signal)
}
