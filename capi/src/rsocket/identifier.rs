//! An rsocket's identifier: an `rdma_cm_id` with an event channel of its own. The socket's number is a descriptor of
//! that channel.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::null_mut;

use rdma_verbs::provider::abi::{self, cm};

use super::wire::CONNECTION_BYTES;
use crate::connection::TABLE;
use crate::error::{Errno, Result, last_errno};

/// Values of `rdma_cm_event_type`.
mod event_type {
    pub(super) const ADDR_RESOLVED: u32 = 0;
    pub(super) const ROUTE_RESOLVED: u32 = 2;
    pub(super) const CONNECT_REQUEST: u32 = 4;
    pub(super) const REJECTED: u32 = 8;
    pub(super) const ESTABLISHED: u32 = 9;
    pub(super) const DISCONNECTED: u32 = 10;
    pub(super) const TIMEWAIT_EXIT: u32 = 15;
}

/// Time to resolve an address or a route, in milliseconds.
const RESOLVE: c_int = 2000;

/// The identifier, which is destroyed on drop.
pub(super) struct Identifier {
    id: *mut cm::Id,
    channel: *mut cm::EventChannel,
    number: OwnedFd,
}

// SAFETY: functions of identifiers may be called from any thread.
unsafe impl Send for Identifier {}
// SAFETY: as for `Send`; the fields that are read do not change while the identifier is shared.
unsafe impl Sync for Identifier {}

/// An event of an identifier.
pub(super) enum Event {
    /// A peer requests a connection: its identifier, the parameters, and its private data.
    Request(Identifier, cm::ConnParam, Vec<u8>),
    /// The connection exists; with the private data of the peer's reply.
    Established(Vec<u8>),
    /// The attempt has failed, or the device has.
    Failed(Errno),
    Disconnected,
    /// Nothing that matters here.
    Other,
}

/// Returns the error of a function that has returned -1.
fn called(result: c_int) -> Result<()> {
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Creates a channel whose events are read without waiting.
fn create_channel() -> Result<*mut cm::EventChannel> {
    // SAFETY: the call takes no pointers.
    let channel = unsafe { (TABLE.rdma_create_event_channel)() };
    if channel.is_null() {
        return Err(last_errno());
    }
    // SAFETY: the descriptor of the new channel.
    unsafe { libc::fcntl((*channel).fd, libc::F_SETFL, libc::O_NONBLOCK) };
    Ok(channel)
}

/// Returns a new descriptor of a channel. It is larger than those that the program has just opened: the functions of
/// Debian's `librspreload.so` for `select` rely on that for the descriptor that the program sees, which it opens before
/// it creates or accepts a socket. Other threads may close smaller ones meanwhile, so that the smallest is not enough.
fn number_of(channel: *mut cm::EventChannel) -> Result<OwnedFd> {
    const DISTANCE: c_int = 16;
    let duplicate = |least: c_int| {
        // SAFETY: the descriptor of a channel that exists.
        match unsafe { libc::fcntl((*channel).fd, libc::F_DUPFD_CLOEXEC, least) } {
            fd if fd < 0 => Err(last_errno()),
            // SAFETY: a new descriptor with no other owner.
            fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        }
    };
    let smallest = duplicate(0)?;
    // There may be none so large.
    Ok(duplicate(smallest.as_raw_fd() + DISTANCE).unwrap_or(smallest))
}

impl Identifier {
    /// Creates an identifier in a port space of rdma_cm.
    pub(super) fn create(space: c_int) -> Result<Self> {
        let (channel, mut id) = (create_channel()?, null_mut());
        // SAFETY: the new channel, and a local pointer.
        let created = called(unsafe { (TABLE.rdma_create_id)(channel, &raw mut id, null_mut(), space) });
        if let Err(error) = created {
            // SAFETY: the new channel, which nothing uses.
            unsafe { (TABLE.rdma_destroy_event_channel)(channel) };
            return Err(error);
        }
        Self::of(id, channel)
    }

    /// Gives an identifier with a channel of its own a number. A failure destroys both.
    fn of(id: *mut cm::Id, channel: *mut cm::EventChannel) -> Result<Self> {
        number_of(channel).map(|number| Self { id, channel, number }).inspect_err(|_| {
            // SAFETY: nothing else has them.
            unsafe {
                (TABLE.rdma_destroy_id)(id);
                (TABLE.rdma_destroy_event_channel)(channel);
            }
        })
    }

    /// Gives the identifier of a peer's request a channel of its own.
    fn adopt(id: *mut cm::Id) -> Result<Self> {
        let adopt = || {
            let channel = create_channel()?;
            // SAFETY: the identifier of an event that was just read, and the new channel.
            called(unsafe { (TABLE.rdma_migrate_id)(id, channel) }).map(|()| channel).inspect_err(|_| {
                // SAFETY: nothing uses it.
                unsafe { (TABLE.rdma_destroy_event_channel)(channel) };
            })
        };
        match adopt() {
            Ok(channel) => Self::of(id, channel),
            Err(error) => {
                // SAFETY: nothing else has the identifier.
                unsafe { (TABLE.rdma_destroy_id)(id) };
                Err(error)
            }
        }
    }

    /// Gives the socket a new number.
    pub(super) fn renumber(&mut self) -> Result<()> {
        self.number = number_of(self.channel)?;
        Ok(())
    }

    /// Returns the socket's number: a descriptor that is readable while events wait.
    pub(super) fn fd(&self) -> RawFd {
        self.number.as_raw_fd()
    }

    /// Returns the device's context and protection domain; null if the address belongs to no device yet.
    pub(super) fn device(&self) -> (*mut abi::Context, *mut abi::Pd) {
        // SAFETY: the identifier lives as long as this. The fields are set before it is shared.
        unsafe { ((*self.id).verbs, (*self.id).pd) }
    }

    /// Binds the identifier to an address.
    ///
    /// # Safety
    /// The address has as many bytes as its family has.
    pub(super) unsafe fn bind(&self, address: *const libc::sockaddr) -> Result<()> {
        // SAFETY: the caller's promise.
        called(unsafe { (TABLE.rdma_bind_addr)(self.id, address.cast_mut()) })
    }

    pub(super) fn listen(&self, backlog: c_int) -> Result<()> {
        // SAFETY: this identifier.
        called(unsafe { (TABLE.rdma_listen)(self.id, backlog) })
    }

    /// Finds the device and the route to an address. The events of both are waiting when the calls return.
    ///
    /// # Safety
    /// The addresses have as many bytes as their families have; `source` may be null.
    pub(super) unsafe fn resolve(&self, source: *const libc::sockaddr, peer: *const libc::sockaddr) -> Result<()> {
        // SAFETY: the caller's promise.
        called(unsafe { (TABLE.rdma_resolve_addr)(self.id, source.cast_mut(), peer.cast_mut(), RESOLVE) })?;
        // SAFETY: this identifier.
        called(unsafe { (TABLE.rdma_resolve_route)(self.id, RESOLVE) })
    }

    /// Sends a request with this private data.
    pub(super) fn connect(&self, data: &[u8; CONNECTION_BYTES]) -> Result<()> {
        let mut parameters = cm::ConnParam {
            private_data: data.as_ptr().cast(),
            private_data_len: CONNECTION_BYTES as u8,
            responder_resources: 0,
            initiator_depth: 0,
            flow_control: 1,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: 0,
            qp_num: 0,
        };
        // SAFETY: this identifier and local data.
        called(unsafe { (TABLE.rdma_connect)(self.id, &raw mut parameters) })
    }

    /// Accepts a peer's request with its parameters and this private data.
    pub(super) fn accept(&self, request: &cm::ConnParam, data: &[u8; CONNECTION_BYTES]) -> Result<()> {
        let mut parameters = *request;
        (parameters.private_data, parameters.private_data_len) = (data.as_ptr().cast(), CONNECTION_BYTES as u8);
        // SAFETY: this identifier and local data.
        called(unsafe { (TABLE.rdma_accept)(self.id, &raw mut parameters) })
    }

    /// Sets an option of the level `RDMA_OPTION_ID`.
    pub(super) fn set_option(&self, name: c_int, value: &[u8]) -> Result<()> {
        // SAFETY: this identifier; the value has as many bytes, and is only read.
        called(unsafe { (TABLE.rdma_set_option)(self.id, 0, name, value.as_ptr().cast_mut().cast(), value.len()) })
    }

    /// Creates the queue pair.
    pub(super) fn create_queue_pair(&self, init: &mut abi::QpInitAttr) -> Result<*mut abi::Qp> {
        // SAFETY: this identifier, a local structure, and the queues in it, which the caller has made.
        called(unsafe { (TABLE.rdma_create_qp)(self.id, null_mut(), init) })?;
        // SAFETY: the identifier lives as long as this.
        Ok(unsafe { (*self.id).qp })
    }

    /// Destroys the queue pair.
    pub(super) fn destroy_queue_pair(&self) {
        // SAFETY: this identifier, whose queue pair nothing uses any more.
        unsafe { (TABLE.rdma_destroy_qp)(self.id) };
    }

    /// Copies the address of this end, or of the peer.
    pub(super) fn address(&self, is_peer: bool) -> libc::sockaddr_storage {
        // SAFETY: the identifier lives as long as this, and the caller holds the lock of its socket.
        unsafe {
            let addresses = &raw const (*self.id).route.addr;
            if is_peer { (*addresses).dst_addr } else { (*addresses).src_addr }
        }
    }

    /// Returns the code of the path's MTU, and the path's GIDs: this end's and the peer's.
    pub(super) fn path(&self) -> Option<cm::PathRecord> {
        // SAFETY: as for `address`; the record is valid if there is one.
        unsafe { (*self.id).route.path_rec.as_ref().copied() }
    }

    /// Returns the next event, if there is one.
    pub(super) fn next_event(&self) -> Option<Event> {
        let mut event = null_mut();
        // SAFETY: this channel, which does not block, and a local pointer.
        if unsafe { (TABLE.rdma_get_cm_event)(self.channel, &raw mut event) } != 0 {
            return None;
        }
        // SAFETY: the event that was just read, until it is acknowledged.
        unsafe {
            let found = Self::read(&*event);
            (TABLE.rdma_ack_cm_event)(event);
            Some(found)
        }
    }

    /// # Safety
    /// The event was read and is not acknowledged.
    unsafe fn read(event: &cm::Event) -> Event {
        match event.event {
            event_type::CONNECT_REQUEST => {
                // SAFETY: requests of this port space have these parameters.
                let parameters = unsafe { event.param.conn };
                // SAFETY: the caller's promise.
                let data = unsafe { private_data(&parameters) };
                match Self::adopt(event.id) {
                    Ok(child) => Event::Request(child, parameters, data),
                    Err(Errno(error)) => {
                        tracing::warn!(
                            target: "rdma_verbs::rsocket",
                            error, "a peer's request is rejected, because it cannot have a socket"
                        );
                        Event::Other
                    }
                }
            }
            // SAFETY: as for a request, and the caller's promise.
            event_type::ESTABLISHED => Event::Established(unsafe { private_data(&event.param.conn) }),
            event_type::DISCONNECTED => Event::Disconnected,
            event_type::ADDR_RESOLVED | event_type::ROUTE_RESOLVED | event_type::TIMEWAIT_EXIT => Event::Other,
            event_type::REJECTED => Event::Failed(Errno(libc::ECONNREFUSED)),
            _ if event.status < 0 => Event::Failed(Errno(event.status.saturating_neg())),
            _ => Event::Failed(Errno(libc::ECONNABORTED)),
        }
    }
}

/// Copies the private data of an event.
///
/// # Safety
/// The event is not acknowledged.
unsafe fn private_data(parameters: &cm::ConnParam) -> Vec<u8> {
    let (data, length): (*const c_void, usize) = (parameters.private_data, parameters.private_data_len.into());
    match data.is_null() {
        true => Vec::new(),
        // SAFETY: the event has as many bytes until it is acknowledged.
        false => unsafe { std::slice::from_raw_parts(data.cast::<u8>(), length) }.to_vec(),
    }
}

impl Drop for Identifier {
    fn drop(&mut self) {
        // SAFETY: nothing uses the identifier any more; each event that was read is acknowledged. The channel goes
        // last.
        unsafe {
            (TABLE.rdma_destroy_id)(self.id);
            (TABLE.rdma_destroy_event_channel)(self.channel);
        }
    }
}
