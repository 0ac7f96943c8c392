//! Event channels.

use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::super::abi::cm::{ConnParam, Event as RawEvent, EventChannel};
use super::super::check;
use super::super::context::set_nonblocking;
use super::id::{Id, Parameters, UDP};
use super::library::Library;
use crate::sys::{Generation, NotInherited};

/// An event channel.
pub(in super::super::super) struct Channel {
    raw: NonNull<EventChannel>,
    pub(super) functions: &'static Library,
    pub(super) generation: Generation,
    /// A child's copy of the descriptor would keep listeners and connections after the end of this process. Set until
    /// the channel is destroyed.
    not_inherited: Option<NotInherited>,
    /// Held while an identifier of the channel is read or changed.
    lock: Mutex<()>,
}

// SAFETY: librdmacm documents its calls as thread-safe, as long as an identifier is not used by two at once, which the
// lock prevents.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

/// `rdma_cm_event_type`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super::super) struct EventType(pub(in super::super::super) u32);

impl EventType {
    pub(in super::super::super) const ADDR_RESOLVED: Self = Self(0);
    pub(in super::super::super) const ADDR_ERROR: Self = Self(1);
    pub(in super::super::super) const ROUTE_RESOLVED: Self = Self(2);
    pub(in super::super::super) const ROUTE_ERROR: Self = Self(3);
    pub(in super::super::super) const CONNECT_REQUEST: Self = Self(4);
    pub(in super::super::super) const CONNECT_RESPONSE: Self = Self(5);
    pub(in super::super::super) const CONNECT_ERROR: Self = Self(6);
    pub(in super::super::super) const UNREACHABLE: Self = Self(7);
    pub(in super::super::super) const REJECTED: Self = Self(8);
    pub(in super::super::super) const ESTABLISHED: Self = Self(9);
    pub(in super::super::super) const DISCONNECTED: Self = Self(10);
    pub(in super::super::super) const DEVICE_REMOVAL: Self = Self(11);
    pub(in super::super::super) const TIMEWAIT_EXIT: Self = Self(15);
}

/// An event, acknowledged already.
pub(in super::super::super) struct Event {
    pub(in super::super::super) event: EventType,
    /// A negated error number, or the reason of a refusal.
    pub(in super::super::super) status: i32,
    /// The identifier of a peer's request, on a channel of its own; an error if it had to be destroyed instead.
    pub(in super::super::super) child: Option<io::Result<Id>>,
    /// As the other end has sent them.
    pub(in super::super::super) parameters: Parameters,
    /// The Q_Key of a datagram queue pair.
    pub(in super::super::super) qkey: u32,
    pub(in super::super::super) private_data: Vec<u8>,
}

impl Channel {
    pub(in super::super::super) fn create(functions: &'static Library) -> io::Result<Arc<Self>> {
        // SAFETY: takes no arguments.
        let raw = unsafe { (functions.create_event_channel)() };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        let (generation, lock) = (Generation::now(), Mutex::default());
        let mut channel = Self { raw, functions, generation, not_inherited: None, lock };
        set_nonblocking(channel.number())?;
        channel.not_inherited = Some(NotInherited::new(channel.descriptor()));
        Ok(Arc::new(channel))
    }

    pub(super) fn raw(&self) -> *mut EventChannel {
        self.raw.as_ptr()
    }

    fn number(&self) -> RawFd {
        // SAFETY: the channel lives; its descriptor does not change.
        unsafe { self.raw.as_ref().fd }
    }

    /// Returns a descriptor that is readable while an event waits.
    pub(in super::super::super) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel is.
        unsafe { BorrowedFd::borrow_raw(self.number()) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the next event, if there is one, and acknowledges it at once.
    pub(in super::super::super) fn next_event(&self) -> io::Result<Option<Event>> {
        let _held = self.lock();
        let mut raw: *mut RawEvent = ptr::null_mut();
        // SAFETY: the channel and the variable live. The descriptor does not block.
        if let Err(error) = check(unsafe { (self.functions.get_cm_event)(self.raw(), &raw mut raw) }) {
            let is_none = matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
            return if is_none { Ok(None) } else { Err(error) };
        }
        let raw = NonNull::new(raw).ok_or_else(|| io::Error::from_raw_os_error(libc::EIO))?;
        // SAFETY: the event was just taken, and lives until it is acknowledged.
        let event = unsafe { self.copy(raw.as_ref()) };
        // SAFETY: as above; it is acknowledged once, and not used any more. `child` was not given to anyone yet.
        unsafe { (self.functions.ack_cm_event)(raw.as_ptr()) };
        let (mut event, child) = event;
        // SAFETY: the identifier was just taken from its event, which was the only one that named it.
        event.child = child.map(|child| unsafe { Id::adopt(child, self.functions) });
        Ok(Some(event))
    }

    /// Copies an event. The second value is the new identifier that a peer's request brings.
    ///
    /// # Safety
    /// The event is not acknowledged yet.
    unsafe fn copy(&self, event: &RawEvent) -> (Event, Option<NonNull<super::super::abi::cm::Id>>) {
        // SAFETY: every event has the identifier that it is about, which lives: destroying it waits for the event.
        let is_datagram = unsafe { (*event.id).ps } == UDP;
        // SAFETY: both members begin with the private data, and are plain numbers otherwise, of which the library
        // initialises all; the second one is valid in this port space only.
        let (conn, ud) = unsafe { (event.param.conn, is_datagram.then_some(event.param.ud)) };
        let ConnParam { private_data, private_data_len, .. } = conn;
        let private_data = match private_data.is_null() {
            true => Vec::new(),
            // SAFETY: the library's copy of that many bytes, valid until the event is acknowledged.
            false => unsafe { std::slice::from_raw_parts(private_data.cast(), private_data_len.into()) }.to_vec(),
        };
        let parameters = ud.map_or_else(
            || Parameters::of_event(&conn),
            |ud| Parameters { qp_num: ud.qp_num, ..Parameters::default() },
        );
        let (kind, status, qkey) = (EventType(event.event), event.status, ud.map_or(0, |ud| ud.qkey));
        let child = if kind == EventType::CONNECT_REQUEST { NonNull::new(event.id) } else { None };
        (Event { event: kind, status, child: None, parameters, qkey, private_data }, child)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if self.generation.is_current() {
            self.not_inherited = None;
            // SAFETY: its identifiers hold it, so this is the last use.
            unsafe { (self.functions.destroy_event_channel)(self.raw()) }
        }
    }
}
