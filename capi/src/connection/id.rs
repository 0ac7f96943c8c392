//! Identifiers: `rdma_cm_id`.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdma_verbs::provider::abi::{self, cm};
use rdma_verbs::provider::{
    BoundPort, Connection, ConnectionEnd, ConnectionListener, ConnectionPath, ConnectionTransport, Inquiry, PortSpace,
    QueuePair, Resolution, VendorOptions,
};

use super::channel::{self, Queue, queue_of};
use super::devices::Device;
use super::event::{Queued, acknowledge};
use super::pump::Section;
use crate::error::{INVALID, Result, zero_or_minus_one};
use crate::object::{Object, Zeroed, make, own, take};

/// Values of `ibv_qp_type`.
pub(super) const RELIABLE: u32 = 2;
pub(super) const DATAGRAM: u32 = 4;
pub(super) const XRC_SEND: u32 = 9;
pub(super) const XRC_RECEIVE: u32 = 10;
/// Time after which a destruction that waits reports what it waits for.
const SLOW: Duration = Duration::from_secs(5);

/// The part of an identifier's queue pair in a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// It sends and receives.
    Peer,
    /// An XRC initiator: it only sends.
    Initiator,
    /// An XRC target: it only receives.
    Target,
}

/// How far an identifier is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    Idle,
    Bound,
    AddressResolved,
    RouteResolved,
    Listening,
    /// The request has left.
    Requesting,
    /// The reply has arrived, and the program moves its own queue pair.
    Replied,
    /// A peer's request has arrived.
    Requested,
    /// The reply has left.
    Accepted,
    Connected,
    /// It has ended, or the attempt has.
    Over,
}

/// The listeners of an identifier, one of each device. The first one has the next turn.
pub(super) type Listeners = Mutex<VecDeque<(&'static Device, Arc<dyn ConnectionListener>)>>;

/// The object of the provider whose events the identifier has.
#[derive(Clone, Default)]
pub(super) enum Source {
    #[default]
    None,
    Listeners(Arc<Listeners>),
    Connection(Arc<dyn Connection>),
    Resolution(Arc<dyn Resolution>),
}

/// The two ends of a connection, as far as they are known.
#[derive(Clone)]
pub(super) struct Ends {
    pub(super) path: ConnectionPath,
    pub(super) local: ConnectionEnd,
    pub(super) remote: Option<ConnectionEnd>,
    pub(super) is_active: bool,
}

/// Options of `rdma_set_option`.
#[derive(Clone, Copy, Default)]
pub(super) struct Options {
    pub(super) type_of_service: u8,
    pub(super) reuse_address: bool,
    pub(super) only_own_family: Option<bool>,
    pub(super) ack_timeout: Option<u8>,
}

/// A multicast group that an identifier has joined.
#[derive(Clone, Copy)]
pub(super) struct Group {
    pub(super) gid: rdma_verbs::types::Gid,
    pub(super) number: u64,
    pub(super) context: usize,
    pub(super) only_sends: bool,
    pub(super) is_attached: bool,
}

/// The attributes of the queue pairs of a passive endpoint's children.
#[derive(Clone, Copy)]
pub(super) struct Endpoint(pub(super) abi::QpInitAttr);

// SAFETY: the pointers are the program's, and are only used in its calls.
unsafe impl Send for Endpoint {}

/// The changing part of an identifier.
pub(super) struct Inner {
    pub(super) phase: Phase,
    pub(super) source: Source,
    pub(super) device: Option<&'static Device>,
    pub(super) port: Option<Arc<dyn BoundPort>>,
    /// Its addresses, as far as they are known.
    pub(super) local: Option<SocketAddr>,
    pub(super) remote: Option<SocketAddr>,
    pub(super) inquiry: Option<Box<dyn Inquiry>>,
    pub(super) ends: Option<Ends>,
    /// The identifier's queue pair when the connection was requested; it is moved when the program reads the
    /// reply's event.
    pub(super) queue_pair: Option<Arc<dyn QueuePair>>,
    pub(super) options: Options,
    pub(super) vendor_options: VendorOptions,
    pub(super) groups: Vec<Group>,
    pub(super) endpoint: Option<Endpoint>,
    /// Data in front of that of `rdma_connect`, from `rdma_create_ep`.
    pub(super) connect_data: Vec<u8>,
    /// A peer's request waits in the channel: the next one stays at the listener, which bounds them.
    pub(super) has_request: bool,
}

/// Where events go.
struct Destination {
    queue: Arc<Queue>,
    is_destroyed: bool,
}

/// An identifier.
pub(crate) struct Id {
    /// The structure that the program sees.
    visible: AtomicPtr<cm::Id>,
    pub(super) space: PortSpace,
    pub(super) qp_type: u32,
    pub(super) inner: Mutex<Inner>,
    destination: Mutex<Destination>,
    /// Whether the channel is the identifier's own: its calls wait for their events.
    is_synchronous: AtomicBool,
    /// Held while its events are taken.
    pub(super) turn: Mutex<()>,
    /// Events may have arrived since they were taken last.
    pub(super) may_have_events: AtomicBool,
    /// Number of events that the program has read and not acknowledged.
    unacknowledged: Mutex<u32>,
    acknowledged: Condvar,
    process: u32,
}

impl Object for cm::Id {
    type Own = Arc<Id>;
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Id {
    /// Creates an identifier that the program sees.
    ///
    /// # Safety
    /// `channel` is the program's; null: the identifier has a channel of its own.
    pub(super) unsafe fn create(
        channel: *mut cm::EventChannel,
        context: *mut c_void,
        space: PortSpace,
        qp_type: u32,
    ) -> Result<*mut cm::Id> {
        let is_synchronous = channel.is_null();
        let channel = if is_synchronous { channel::create()? } else { channel };
        // SAFETY: the caller's promise, or the channel that was just created.
        let queue = Arc::clone(unsafe { queue_of(channel)? });
        let mut visible = cm::Id::zeroed();
        (visible.channel, visible.context) = (channel, context);
        (visible.ps, visible.qp_type) = (space as u32, qp_type);
        let inner = Inner {
            phase: Phase::Idle,
            source: Source::None,
            device: None,
            port: None,
            local: None,
            remote: None,
            inquiry: None,
            ends: None,
            queue_pair: None,
            options: Options::default(),
            vendor_options: VendorOptions::default(),
            groups: Vec::new(),
            endpoint: None,
            connect_data: Vec::new(),
            has_request: false,
        };
        let id = Arc::new(Self {
            visible: AtomicPtr::new(null_mut()),
            space,
            qp_type,
            inner: Mutex::new(inner),
            destination: Mutex::new(Destination { queue, is_destroyed: false }),
            is_synchronous: AtomicBool::new(is_synchronous),
            turn: Mutex::default(),
            may_have_events: AtomicBool::new(false),
            unacknowledged: Mutex::default(),
            acknowledged: Condvar::new(),
            process: std::process::id(),
        });
        let made = make(visible, Arc::clone(&id));
        id.visible.store(made, Ordering::Release);
        Ok(made)
    }

    /// Returns the structure that the program sees.
    pub(super) fn visible(&self) -> *mut cm::Id {
        self.visible.load(Ordering::Acquire)
    }

    pub(super) fn inner(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    pub(super) fn is_datagram(&self) -> bool {
        matches!(self.space, PortSpace::Udp | PortSpace::Ipoib)
    }

    /// Returns the part of its queue pair. As on Linux, only the space `RDMA_PS_IB` has queue pairs of other types than
    /// the usual one (`ucma.c`, `ucma_get_qp_type`).
    pub(super) fn role(&self) -> Role {
        match (self.space, self.qp_type) {
            (PortSpace::Ib, XRC_SEND) => Role::Initiator,
            (PortSpace::Ib, XRC_RECEIVE) => Role::Target,
            _ => Role::Peer,
        }
    }

    /// Returns the transport service of its connections.
    pub(super) fn transport(&self) -> ConnectionTransport {
        match self.role() {
            Role::Peer => ConnectionTransport::Reliable,
            Role::Initiator | Role::Target => ConnectionTransport::ExtendedReliable,
        }
    }

    /// Returns whether a parent has created it.
    fn is_inherited(&self) -> bool {
        self.process != std::process::id()
    }

    pub(super) fn is_synchronous(&self) -> bool {
        self.is_synchronous.load(Ordering::Acquire)
    }

    /// Adds an event to the channel, unless the identifier is destroyed.
    pub(super) fn push(&self, queued: Queued) {
        let destination = lock(&self.destination);
        if !destination.is_destroyed {
            destination.queue.push([queued]);
        }
    }

    /// Returns whether the connection is set up, or the program has not read all events of the identifier.
    pub(super) fn is_set_up_or_has_events(&self) -> bool {
        // The last event is added while the lock is held under which it changes the phase.
        let inner = self.inner();
        matches!(inner.phase, Phase::Accepted | Phase::Connected) || lock(&self.destination).queue.has_event_of(self)
    }

    /// Removes events that the program has not read.
    pub(super) fn discard(&self, is_meant: impl Fn(&Queued) -> bool) -> Vec<Queued> {
        lock(&self.destination).queue.remove(self, is_meant)
    }

    /// Notes that the program reads an event.
    pub(super) fn note_reported(&self) {
        *lock(&self.unacknowledged) += 1;
    }

    /// Notes that the program has acknowledged an event. Nothing waits for that in a forked child, which may have
    /// inherited the lock taken.
    pub(super) fn note_acknowledged(&self) {
        if self.is_inherited() {
            return;
        }
        let mut count = lock(&self.unacknowledged);
        *count = count.saturating_sub(1);
        self.acknowledged.notify_all();
    }

    /// Waits until the program has acknowledged all events that it has read.
    fn wait_acknowledged(&self, call: &'static str) {
        let mut count = lock(&self.unacknowledged);
        let mut is_known = false;
        while *count > 0 {
            let (held, waited) = self.acknowledged.wait_timeout(count, SLOW).unwrap_or_else(PoisonError::into_inner);
            count = held;
            if waited.timed_out() && !is_known {
                is_known = true;
                let id = self.visible();
                tracing::warn!(
                    target: "rdma_verbs::c_library",
                    ?id, count = *count, "{call} waits for rdma_ack_cm_event of events of the identifier"
                );
            }
        }
    }
}

/// Returns the state behind an identifier.
///
/// # Safety
/// `id` is null or the program's.
pub(super) unsafe fn id_of<'a>(id: *mut cm::Id) -> Result<&'a Arc<Id>> {
    if id.is_null() {
        return Err(INVALID);
    }
    // SAFETY: the caller's promise.
    let id = unsafe { own(id) };
    // A child that inherited it may have inherited its locks taken.
    if id.is_inherited() { Err(INVALID) } else { Ok(id) }
}

pub(super) unsafe extern "C" fn rdma_create_id(
    channel: *mut cm::EventChannel,
    id: *mut *mut cm::Id,
    context: *mut c_void,
    space: c_int,
) -> c_int {
    let create = || {
        let space = PortSpace::ALL.iter().copied().find(|known| *known as c_int == space).ok_or(INVALID)?;
        let qp_type = if matches!(space, PortSpace::Udp | PortSpace::Ipoib) { DATAGRAM } else { RELIABLE };
        // SAFETY: the program's channel and pointer.
        unsafe { id.write(Id::create(channel, context, space, qp_type)?) };
        Ok(())
    };
    zero_or_minus_one(create())
}

/// Ends everything of an identifier: the peer learns it before this waits for the program's acknowledgements.
///
/// # Safety
/// `visible` is the program's, which gives it up.
pub(super) unsafe fn destroy(visible: *mut cm::Id) -> Result<()> {
    // SAFETY: the caller's promise.
    let id = Arc::clone(unsafe { id_of(visible)? });
    {
        let _section = Section::begin();
        let unread = {
            let mut destination = lock(&id.destination);
            destination.is_destroyed = true;
            destination.queue.remove(&id, |_| true)
        };
        let (source, parts) = {
            let mut inner = id.inner();
            inner.phase = Phase::Over;
            let parts = (inner.inquiry.take(), inner.port.take(), inner.queue_pair.take());
            inner.groups.clear();
            (std::mem::take(&mut inner.source), parts)
        };
        // The queue pair leaves the groups when it is destroyed. The program may have done that itself, so `qp` cannot
        // be used here.
        // A thread that takes events meanwhile uses the source as well. It finds none next time.
        drop(lock(&id.turn));
        // A peer's request that the program has not read is rejected, the connection ends, the port becomes free.
        drop((unread, source, parts));
    }
    // SAFETY: the program's identifier.
    unsafe {
        let event = std::mem::replace(&mut (*visible).event, null_mut());
        if !event.is_null() {
            acknowledge(event);
        }
        id.wait_acknowledged("rdma_destroy_id");
        if !(*visible).route.path_rec.is_null() {
            drop(Box::from_raw((*visible).route.path_rec));
        }
        let channel = (*visible).channel;
        drop(take(visible));
        if id.is_synchronous() {
            channel::destroy(channel);
        }
    }
    Ok(())
}

pub(super) unsafe extern "C" fn rdma_destroy_id(id: *mut cm::Id) -> c_int {
    // SAFETY: the program gives it up.
    zero_or_minus_one(unsafe { destroy(id) })
}

/// Moves an identifier to another channel, with the events that the program has not read.
///
/// # Safety
/// Both are the program's; `channel` may be null.
pub(super) unsafe fn migrate(visible: *mut cm::Id, channel: *mut cm::EventChannel) -> Result<()> {
    // SAFETY: the caller's promise.
    let id = unsafe { id_of(visible)? };
    let was_synchronous = id.is_synchronous();
    let becomes_synchronous = channel.is_null();
    if was_synchronous && becomes_synchronous {
        return Err(INVALID);
    }
    let channel = if becomes_synchronous { channel::create()? } else { channel };
    // SAFETY: the caller's promise, or the channel that was just created.
    let queue = Arc::clone(unsafe { queue_of(channel)? });
    {
        let mut destination = lock(&id.destination);
        if !Arc::ptr_eq(&destination.queue, &queue) {
            let moved = destination.queue.remove(id, |_| true);
            queue.push(moved);
            destination.queue = queue;
        }
    }
    // SAFETY: the caller's promise.
    unsafe {
        let before = std::mem::replace(&mut (*visible).channel, channel);
        if was_synchronous {
            let event = std::mem::replace(&mut (*visible).event, null_mut());
            if !event.is_null() {
                acknowledge(event);
            }
        }
        id.is_synchronous.store(becomes_synchronous, Ordering::Release);
        // Events of the old channel that the program has read refer to the identifier as one of that channel.
        id.wait_acknowledged("rdma_migrate_id");
        if was_synchronous {
            channel::destroy(before);
        }
    }
    Ok(())
}

pub(super) unsafe extern "C" fn rdma_migrate_id(id: *mut cm::Id, channel: *mut cm::EventChannel) -> c_int {
    // SAFETY: the program's identifier and channel.
    zero_or_minus_one(unsafe { migrate(id, channel) })
}
