//! Datagram sockets: a UDP socket, through which the ends learn of each other's queue pairs, and a queue pair for each
//! local address. Data for a peer whose queue pair is not known goes through the UDP sockets.

pub(super) mod header;
mod queue_pair;

use std::collections::{HashMap, VecDeque};
use std::ffi::{c_int, c_void};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rdma_verbs::provider::AddressHandle;

use super::address;
use super::endpoint::Init;
use super::options::{SOL_RDMA, Value, number, rdma};
use super::settings::{buffer_size, queue_size};
use super::sockets::{Socket, Sockets};
use super::stream::waiter;
use super::transfer::{Parts, Progress, wake_others};
use super::waiters::Waiters;
use crate::error::{Errno, INVALID, Result, last_errno};
use crate::waiting::Attempt;
use header::{Exchange, MAX_DATA_HEADER, read_data_header};
use queue_pair::{QueuePair, SLOT};

/// Largest number of peers that are known, and of queue pairs.
const MAX_PEERS: usize = 4096;
const MAX_QUEUE_PAIRS: usize = 256;
const AGAIN: Errno = Errno(libc::EAGAIN);
const BAD: Errno = Errno(libc::EBADF);

/// A peer whose queue pair is known.
struct Peer {
    handle: Arc<dyn AddressHandle>,
    qpn: u32,
}

/// A received datagram.
enum Received {
    /// In a slot of a queue pair, with its header: index, slot, length.
    Slot(usize, u32, u32),
    /// Through the UDP socket.
    Whole(SocketAddr, Vec<u8>),
}

struct Inner {
    /// `None` once the socket is closed.
    socket: Option<OwnedFd>,
    /// Readable when a queue pair has completions.
    epoll: OwnedFd,
    init: Init,
    file_flags: c_int,
    descriptor_flags: c_int,
    is_watched: bool,
    queue_pairs: Vec<QueuePair>,
    peers: HashMap<(usize, SocketAddr), Peer>,
    connected: Option<SocketAddr>,
    received: VecDeque<Received>,
}

/// A datagram socket.
pub(super) struct Datagram {
    number: RawFd,
    pub(super) waiters: Waiters,
    inner: Mutex<Inner>,
}

/// Returns the result of a system call.
fn called(result: c_int) -> Result<c_int> {
    if result < 0 { Err(last_errno()) } else { Ok(result) }
}

impl Inner {
    fn fd(&self) -> Result<RawFd> {
        self.socket.as_ref().map(AsRawFd::as_raw_fd).ok_or(BAD)
    }

    /// Returns the number of slots for sending and receiving.
    fn slots(&self) -> (u16, u16) {
        let sizes = self.init.sizes;
        let of = |queue: u16, bytes: u32| queue.min(u16::try_from(bytes / SLOT).unwrap_or(u16::MAX)).max(1);
        (of(sizes.send_queue, sizes.send_buffer), of(sizes.receive_queue, sizes.receive_buffer))
    }

    /// Returns an address of the UDP socket.
    fn name(&self, is_peer: bool) -> Result<libc::sockaddr_storage> {
        // SAFETY: zero is valid for numbers and arrays of them.
        let mut found: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        let mut length = size_of_val(&found) as libc::socklen_t;
        let (fd, to) = (self.fd()?, (&raw mut found).cast());
        // SAFETY: a local structure, with its length.
        called(unsafe {
            match is_peer {
                true => libc::getpeername(fd, to, &raw mut length),
                false => libc::getsockname(fd, to, &raw mut length),
            }
        })?;
        Ok(found)
    }

    /// Returns the local address from which packets to a peer leave.
    fn source_of(&self, peer: SocketAddr) -> Result<SocketAddr> {
        let mut own = address::to_rust(&self.name(false)?)?;
        if own.ip().is_unspecified() || own.ip().is_loopback() {
            let failed = |error: std::io::Error| Errno(error.raw_os_error().unwrap_or(libc::ENETUNREACH));
            // Connecting a UDP socket chooses its address and sends nothing.
            let any = SocketAddr::new(own.ip(), 0);
            let probe = UdpSocket::bind(any).and_then(|probe| probe.connect(peer).map(|()| probe));
            own.set_ip(probe.and_then(|probe| probe.local_addr()).map_err(failed)?.ip());
        }
        Ok(own)
    }

    /// Returns the index of the queue pair for a peer, which is created if needed.
    fn queue_pair_for(&mut self, peer: SocketAddr) -> Result<usize> {
        let source = self.source_of(peer)?;
        if let Some(found) = self.queue_pairs.iter().position(|known| known.local == source) {
            return Ok(found);
        }
        if self.queue_pairs.len() >= MAX_QUEUE_PAIRS {
            return Err(Errno(libc::ENOBUFS));
        }
        let queue_pair = QueuePair::create(source, self.slots())?;
        let fd = queue_pair.completions.fd();
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: reads a local structure.
        let added = called(unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) });
        match added {
            // Queue pairs of one device may share it.
            Ok(_) | Err(Errno(libc::EEXIST)) => {}
            Err(error) => return Err(error),
        }
        self.queue_pairs.push(queue_pair);
        Ok(self.queue_pairs.len() - 1)
    }

    /// Takes completions. Datagrams that there is no room for are dropped.
    fn process(&mut self) -> Result<bool> {
        let most = usize::from(self.slots().1);
        let (mut count, mut dropped) = (0, Vec::new());
        for (index, queue_pair) in self.queue_pairs.iter_mut().enumerate() {
            let received = &mut self.received;
            count += queue_pair.poll(|slot, length| match received.len() < most {
                true => received.push_back(Received::Slot(index, slot, length)),
                false => dropped.push((index, slot)),
            })?;
        }
        dropped.into_iter().try_for_each(|(index, slot)| self.queue_pairs[index].post_receive(slot))?;
        Ok(count > 0)
    }

    fn can_send(&self) -> bool {
        self.queue_pairs.is_empty() || self.queue_pairs.iter().any(QueuePair::can_send)
    }

    /// Arms the queues. Returns whether they must be polled once more.
    fn arm(&mut self) -> Result<bool> {
        let mut has_armed = false;
        for queue_pair in &mut self.queue_pairs {
            has_armed |= queue_pair.completions.arm()?;
        }
        Ok(has_armed)
    }

    /// Takes the oldest datagram, or looks at it. Returns its sender and the number of bytes copied; `None` if there is
    /// none.
    fn take(&mut self, parts: Parts, peeks: bool) -> Result<Option<(SocketAddr, usize)>> {
        loop {
            let (sender, data) = match self.received.front() {
                None => return Ok(None),
                Some(Received::Whole(sender, data)) => (Some(*sender), data.clone()),
                Some(Received::Slot(index, slot, length)) => {
                    let mut data = vec![0; *length as usize];
                    self.queue_pairs[*index].copy(*slot, 0, &mut data)?;
                    match read_data_header(&data) {
                        Some((sender, header)) => (Some(sender), data.split_off(header.min(data.len()))),
                        None => (None, data),
                    }
                }
            };
            if !(peeks && sender.is_some())
                && let Some(Received::Slot(index, slot, _)) = self.received.pop_front()
            {
                self.queue_pairs[index].post_receive(slot)?;
            }
            // A datagram without a header is none of a socket.
            if let Some(sender) = sender {
                return Ok(Some((sender, parts.fill(&data)?)));
            }
        }
    }

    /// Sends through the UDP socket.
    fn send_exchange(&self, peer: SocketAddr, index: usize, data: Option<Vec<u8>>, flags: c_int) -> Result<usize> {
        let queue_pair = &self.queue_pairs[index];
        let address = queue_pair.local.ip();
        let exchange = Exchange { has_data: data.is_some(), qpn: queue_pair.qpn(), address };
        let (mut bytes, length) = (exchange.to_bytes(), data.as_ref().map_or(0, Vec::len));
        bytes.extend(data.unwrap_or_default());
        let (to, to_length) = address::to_c(peer);
        let flags = flags & libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: local bytes and a local address, with their lengths.
        let sent = unsafe {
            libc::sendto(self.fd()?, bytes.as_ptr().cast(), bytes.len(), flags, (&raw const to).cast(), to_length)
        };
        if sent < 0 { Err(last_errno()) } else { Ok(length) }
    }

    /// Sends a datagram, if that can be done now.
    fn send(&mut self, peer: SocketAddr, parts: Parts, flags: c_int) -> Result<Option<usize>> {
        if parts.length + MAX_DATA_HEADER > SLOT as usize {
            return Err(Errno(libc::EMSGSIZE));
        }
        let index = self.queue_pair_for(peer)?;
        let Some(known) = self.peers.get(&(index, peer)) else {
            return self.send_exchange(peer, index, Some(parts.to_vec()?), flags).map(Some);
        };
        let queue_pair = &mut self.queue_pairs[index];
        if !queue_pair.can_send() {
            return Ok(None);
        }
        let copy = |put: &mut dyn FnMut(&[u8]) -> Result<()>| parts.read(0, parts.length as u32, put);
        queue_pair.send(&*known.handle, known.qpn, parts.length, copy)?;
        Ok(Some(parts.length))
    }

    /// Handles what has come through the UDP socket.
    fn take_exchange(&mut self, bytes: &[u8], peer: SocketAddr) -> Result<()> {
        let Some((exchange, header)) = Exchange::from_bytes(bytes, peer.is_ipv4()) else { return Ok(()) };
        let index = self.queue_pair_for(peer)?;
        if exchange.has_data {
            self.send_exchange(peer, index, None, libc::MSG_DONTWAIT)?;
        }
        if self.peers.get(&(index, peer)).is_none_or(|known| known.qpn != exchange.qpn) {
            if self.peers.len() >= MAX_PEERS {
                // They introduce themselves again when they are needed.
                self.peers.clear();
            }
            let handle = self.queue_pairs[index].path_to(peer)?;
            self.peers.insert((index, peer), Peer { handle, qpn: exchange.qpn });
        }
        if exchange.has_data && self.received.len() < usize::from(self.slots().1) {
            self.received.push_back(Received::Whole(peer, bytes[header..].to_vec()));
        }
        Ok(())
    }
}

impl Datagram {
    /// Creates a socket; returns its number.
    pub(super) fn create(domain: c_int, file_flags: c_int, descriptor_flags: c_int) -> Result<RawFd> {
        let sockets = Sockets::current()?;
        // SAFETY: the calls take no pointers; each descriptor is new and has no other owner.
        let (socket, epoll) = unsafe {
            let socket = OwnedFd::from_raw_fd(called(libc::socket(domain, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0))?);
            (socket, OwnedFd::from_raw_fd(called(libc::epoll_create1(libc::EPOLL_CLOEXEC))?))
        };
        let defaults = &sockets.defaults;
        let init = Init { sizes: defaults.sizes, inline: defaults.inline.into(), mappings: 0 };
        let number = socket.as_raw_fd();
        let inner = Inner {
            socket: Some(socket),
            epoll,
            init,
            file_flags,
            descriptor_flags,
            is_watched: false,
            queue_pairs: Vec::new(),
            peers: HashMap::new(),
            connected: None,
            received: VecDeque::new(),
        };
        let datagram = Arc::new(Self { number, waiters: Waiters::default(), inner: Mutex::new(inner) });
        sockets.add(number, Socket::Datagram(datagram));
        Ok(number)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the service thread read the UDP socket.
    fn watch(&self, inner: &mut Inner) -> Result<()> {
        if !inner.is_watched {
            Sockets::current()?.watch(self.number, true)?;
            inner.is_watched = true;
        }
        Ok(())
    }

    pub(super) fn bind(&self, address: &libc::sockaddr_storage) -> Result<()> {
        let mut inner = self.lock();
        let length = address::to_c(address::to_rust(address)?).1;
        // SAFETY: the address, with its length.
        called(unsafe { libc::bind(inner.fd()?, (&raw const *address).cast(), length) })?;
        self.watch(&mut inner)
    }

    pub(super) fn connect(&self, address: &libc::sockaddr_storage) -> Result<()> {
        let mut inner = self.lock();
        let peer = address::to_rust(address)?;
        let length = address::to_c(peer).1;
        // SAFETY: the address, with its length.
        called(unsafe { libc::connect(inner.fd()?, (&raw const *address).cast(), length) })?;
        inner.queue_pair_for(peer)?;
        inner.connected = Some(peer);
        self.watch(&mut inner)
    }

    /// Reads the UDP socket, on the service thread.
    pub(super) fn serve(&self) {
        let mut inner = self.lock();
        let mut bytes = [0; SLOT as usize];
        // SAFETY: zero is valid for numbers and arrays of them.
        let mut from: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        let mut length = size_of_val(&from) as libc::socklen_t;
        let Ok(fd) = inner.fd() else { return };
        // SAFETY: local bytes and a local address, with their lengths.
        let read = unsafe {
            let (to, from, flags) = (bytes.as_mut_ptr().cast(), (&raw mut from).cast(), libc::MSG_DONTWAIT);
            libc::recvfrom(fd, to, bytes.len(), flags, from, &raw mut length)
        };
        let (Ok(read), Ok(peer)) = (usize::try_from(read), address::to_rust(&from)) else { return };
        if let Err(Errno(error)) = inner.take_exchange(&bytes[..read], peer) {
            tracing::info!(
                target: "rdma_verbs::rsocket", error, %peer, "what a peer has sent to a datagram socket is dropped"
            );
        }
        drop(inner);
        self.waiters.wake();
    }

    /// Tries `step` until it returns something, and prepares for a wait otherwise.
    fn attempt(
        &self,
        progress: &mut Progress,
        flags: c_int,
        mut step: impl FnMut(&mut Inner) -> Result<Option<usize>>,
    ) -> Result<Attempt> {
        let signal = waiter(&self.waiters)?;
        let attempt = || {
            let begin = Instant::now();
            let mut inner = self.lock();
            self.watch(&mut inner)?;
            let mut was_armed = false;
            loop {
                inner.fd()?;
                let has_changed = inner.process()?;
                let done = step(&mut inner)?;
                wake_others(&self.waiters, has_changed);
                if let Some(count) = done {
                    return Ok(Attempt::Done(count as isize));
                }
                if (inner.file_flags & libc::O_NONBLOCK) | (flags & libc::MSG_DONTWAIT) != 0 {
                    return Err(AGAIN);
                }
                if begin.elapsed() < Sockets::current()?.defaults.polling {
                    continue;
                }
                if !was_armed && inner.arm()? {
                    was_armed = true;
                    continue;
                }
                return Ok(progress.wait(inner.epoll.as_raw_fd(), signal.fd(), -1));
            }
        };
        let mut attempt = attempt;
        let result = attempt();
        if !matches!(result, Ok(Attempt::Wait { .. })) {
            self.waiters.remove(&signal);
        }
        result
    }

    /// Tries to receive a datagram. Returns also its sender.
    pub(super) fn receive(
        &self,
        progress: &mut Progress,
        parts: Parts,
        flags: c_int,
    ) -> Result<(Attempt, Option<libc::sockaddr_storage>)> {
        let mut source = None;
        let attempt = self.attempt(progress, flags, |inner| {
            let taken = inner.take(parts, flags & libc::MSG_PEEK != 0)?;
            source = taken.map(|(sender, _)| address::to_c(sender).0);
            Ok(taken.map(|(_, length)| length))
        })?;
        Ok((attempt, source))
    }

    /// Tries to send a datagram.
    pub(super) fn send(
        &self,
        progress: &mut Progress,
        parts: Parts,
        flags: c_int,
        to: Option<libc::sockaddr_storage>,
    ) -> Result<Attempt> {
        let to = to.map(|to| address::to_rust(&to)).transpose()?;
        self.attempt(progress, flags, |inner| {
            let peer = to.or(inner.connected).ok_or(Errno(libc::EDESTADDRREQ))?;
            inner.send(peer, parts, flags)
        })
    }

    /// Returns the events; if there are none and the thread is going to wait, also the descriptor for that.
    pub(super) fn check(&self, asked: i16, waits: bool) -> Result<(i16, RawFd)> {
        let mut inner = self.lock();
        if inner.fd().is_err() {
            return Ok((libc::POLLNVAL, -1));
        }
        let events = |inner: &Inner| {
            let readable = if inner.received.is_empty() { 0 } else { libc::POLLIN };
            (readable | if inner.can_send() { libc::POLLOUT } else { 0 }) & asked
        };
        let mut has_changed = inner.process()?;
        let mut found = events(&inner);
        if found == 0 && waits && inner.arm()? {
            has_changed |= inner.process()?;
            found = events(&inner);
        }
        let fd = inner.epoll.as_raw_fd();
        drop(inner);
        wake_others(&self.waiters, has_changed);
        Ok((found, fd))
    }

    /// Sets an option, of the UDP socket or of the queue pairs to come.
    pub(super) fn set_option(&self, level: c_int, name: c_int, value: &[u8]) -> Result<()> {
        let mut inner = self.lock();
        if level != SOL_RDMA {
            let (fd, length) = (inner.fd()?, value.len() as libc::socklen_t);
            // SAFETY: the value, with its length.
            called(unsafe { libc::setsockopt(fd, level, name, value.as_ptr().cast(), length) })?;
        }
        let is_early = inner.queue_pairs.is_empty();
        let count = || number(value).map(|count| u64::from(count as u32));
        let sizes = &mut inner.init.sizes;
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_RCVBUF) if is_early => sizes.receive_buffer = buffer_size(count()? * 2),
            (libc::SOL_SOCKET, libc::SO_SNDBUF) if is_early => sizes.send_buffer = buffer_size(count()? * 2),
            (SOL_RDMA, rdma::SQSIZE) if is_early => sizes.send_queue = queue_size(count()?),
            (SOL_RDMA, rdma::RQSIZE) if is_early => sizes.receive_queue = queue_size(count()?),
            (SOL_RDMA, rdma::INLINE) if is_early => inner.init.inline = count()?.min(u16::MAX.into()) as u32,
            (SOL_RDMA, rdma::SQSIZE | rdma::RQSIZE | rdma::INLINE) => return Err(INVALID),
            (SOL_RDMA, _) => return Err(Errno(libc::ENOTSUP)),
            _ => {}
        }
        Ok(())
    }

    /// Returns an option; `None` if the UDP socket has given it to the program.
    ///
    /// # Safety
    /// The value has as many bytes as the length says; both may be written.
    pub(super) unsafe fn option(
        &self,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        length: *mut libc::socklen_t,
    ) -> Result<Option<Value>> {
        let inner = self.lock();
        let sizes = inner.init.sizes;
        let found = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => sizes.receive_buffer as c_int,
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => sizes.send_buffer as c_int,
            (SOL_RDMA, rdma::SQSIZE) => sizes.send_queue.into(),
            (SOL_RDMA, rdma::RQSIZE) => sizes.receive_queue.into(),
            (SOL_RDMA, rdma::INLINE) => inner.init.inline as c_int,
            (SOL_RDMA, _) => return Err(Errno(libc::ENOTSUP)),
            _ => {
                // SAFETY: the caller's promise.
                called(unsafe { libc::getsockopt(inner.fd()?, level, name, value, length) })?;
                return Ok(None);
            }
        };
        Ok(Some(Value::Number(found)))
    }

    pub(super) fn control(&self, command: c_int, flags: c_int) -> Result<c_int> {
        let mut inner = self.lock();
        match command {
            libc::F_GETFL => return Ok(inner.file_flags),
            libc::F_SETFL => inner.file_flags = flags,
            libc::F_GETFD => return Ok(inner.descriptor_flags),
            libc::F_SETFD => inner.descriptor_flags = flags,
            _ => return Err(Errno(libc::ENOTSUP)),
        }
        Ok(0)
    }

    pub(super) fn address(&self, is_peer: bool) -> Result<libc::sockaddr_storage> {
        self.lock().name(is_peer)
    }

    /// Tries to wait until all datagrams have been sent.
    pub(super) fn drain(&self, progress: &mut Progress) -> Result<Attempt> {
        self.attempt(progress, 0, |inner| Ok(inner.queue_pairs.iter().all(QueuePair::has_sent_all).then_some(0)))
    }

    /// Destroys everything of the socket.
    pub(super) fn close(&self) {
        let (socket, queue_pairs) = {
            let mut inner = self.lock();
            inner.received.clear();
            inner.peers.clear();
            (inner.socket.take(), std::mem::take(&mut inner.queue_pairs))
        };
        self.waiters.wake();
        drop((socket, queue_pairs));
    }
}
