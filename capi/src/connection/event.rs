//! Events: from the queue of a channel to the program, and their acknowledgement.

use std::ffi::{CStr, c_char, c_int};
use std::net::SocketAddr;
use std::ptr::null_mut;
use std::sync::Arc;

use rdma_verbs::provider::abi::{self, cm};
use rdma_verbs::provider::{ConnectionEnd, ConnectionRequest, DatagramEnd, DatagramRequest, ListenerEvent};
use rdma_verbs::types::{AddressVector, Gid, QueuePairState};

use super::bind::{set_path_record, set_route};
use super::channel::{Queue, queue_of};
use super::devices::{Device, PORT};
use super::id::{Ends, Id, Options, Phase, Source, destroy, id_of, migrate};
use super::pump::Section;
use super::{bring_up, multicast};
use crate::address_handle::address_attributes;
use crate::error::{Errno, INVALID, Result, last_errno, zero_or_minus_one};
use crate::modify::store_state;
use crate::object::{Object, Zeroed, make, take};
use crate::queue_pair::queue_pair_of;
use crate::waiting::{PollResult, Uncancelled, may_block, wait_for};

/// Values of `rdma_cm_event_type`.
pub(super) mod event_type {
    pub(crate) const ADDR_RESOLVED: u32 = 0;
    pub(crate) const ROUTE_RESOLVED: u32 = 2;
    pub(crate) const CONNECT_REQUEST: u32 = 4;
    pub(crate) const CONNECT_RESPONSE: u32 = 5;
    pub(crate) const CONNECT_ERROR: u32 = 6;
    pub(crate) const UNREACHABLE: u32 = 7;
    pub(crate) const REJECTED: u32 = 8;
    pub(crate) const ESTABLISHED: u32 = 9;
    pub(crate) const DISCONNECTED: u32 = 10;
    pub(crate) const DEVICE_REMOVAL: u32 = 11;
    pub(crate) const MULTICAST_JOIN: u32 = 12;
    pub(crate) const MULTICAST_ERROR: u32 = 13;
    pub(crate) const TIMEWAIT_EXIT: u32 = 15;
}

const NAMES: &[&CStr] = &[
    c"RDMA_CM_EVENT_ADDR_RESOLVED",
    c"RDMA_CM_EVENT_ADDR_ERROR",
    c"RDMA_CM_EVENT_ROUTE_RESOLVED",
    c"RDMA_CM_EVENT_ROUTE_ERROR",
    c"RDMA_CM_EVENT_CONNECT_REQUEST",
    c"RDMA_CM_EVENT_CONNECT_RESPONSE",
    c"RDMA_CM_EVENT_CONNECT_ERROR",
    c"RDMA_CM_EVENT_UNREACHABLE",
    c"RDMA_CM_EVENT_REJECTED",
    c"RDMA_CM_EVENT_ESTABLISHED",
    c"RDMA_CM_EVENT_DISCONNECTED",
    c"RDMA_CM_EVENT_DEVICE_REMOVAL",
    c"RDMA_CM_EVENT_MULTICAST_JOIN",
    c"RDMA_CM_EVENT_MULTICAST_ERROR",
    c"RDMA_CM_EVENT_ADDR_CHANGE",
    c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
];

/// The data of an event.
pub(super) enum Content {
    None,
    /// Private data.
    Data(Vec<u8>),
    /// A peer's request, and the device at which it has arrived.
    Request(Box<ListenerEvent>, &'static Device),
    /// The reply of a peer.
    Reply(Box<ConnectionEnd>),
    /// The datagram queue pair of a peer.
    Datagram(Box<DatagramEnd>),
    /// The number of a group that is joined.
    Group(u64),
}

impl Content {
    pub(super) fn data(private_data: Vec<u8>) -> Self {
        Self::Data(private_data)
    }
}

/// An event that the program has not read.
pub(super) struct Queued {
    pub(super) id: Arc<Id>,
    pub(super) event: u32,
    status: c_int,
    pub(super) content: Content,
}

impl Queued {
    pub(super) fn new(id: &Arc<Id>, event: u32, status: c_int, content: Content) -> Self {
        Self { id: Arc::clone(id), event, status, content }
    }
}

/// The state behind an event that the program has read.
pub(crate) struct Reported {
    /// The identifier that cannot be destroyed before the event is acknowledged.
    id: Arc<Id>,
    /// The memory that the event's pointer leads to.
    _private_data: Box<[u8]>,
}

impl Object for cm::Event {
    type Own = Reported;
}

/// Creates the event that the program sees.
fn visible(id: Arc<Id>, mut event: cm::Event, private_data: Vec<u8>) -> *mut cm::Event {
    let private_data = private_data.into_boxed_slice();
    if !private_data.is_empty() {
        // Both forms begin with the pointer and the length, which is 196 at most.
        event.param.conn.private_data = private_data.as_ptr().cast();
        event.param.conn.private_data_len = private_data.len() as u8;
    }
    make(event, Reported { id, _private_data: private_data })
}

/// Makes an event that is read next one that the program sees. Returns null if it has vanished.
///
/// # Safety
/// The identifier of the event is the program's.
unsafe fn deliver(queued: Queued) -> *mut cm::Event {
    let Queued { id, event, status, content } = queued;
    let shown = id.visible();
    let mut to = cm::Event::zeroed();
    (to.id, to.event, to.status) = (shown, event, status);
    // SAFETY: the caller's promise; the identifier lives at least until the event is acknowledged.
    unsafe {
        match event {
            event_type::ESTABLISHED if matches!(content, Content::Reply(_)) => {
                if let Err(Errno(error)) = id.confirm_reply() {
                    tracing::info!(target: "rdma_verbs::c_library", error, "the queue pair cannot be moved to RTS");
                    fail_queue_pair(shown);
                    (to.event, to.status) = (event_type::CONNECT_ERROR, -1);
                    return visible(id, to, Vec::new());
                }
                note_ready(shown);
            }
            event_type::REJECTED => fail_queue_pair(shown),
            _ => {}
        }
        match content {
            Content::None => visible(id, to, Vec::new()),
            Content::Data(data) => visible(id, to, data),
            Content::Request(request, device) => deliver_request(id, to, *request, device),
            Content::Reply(end) => {
                to.param.conn = parameters(&end, 0);
                visible(id, to, end.private_data)
            }
            Content::Datagram(end) => {
                to.param.ud = datagram_parameters(&id, &end);
                visible(id, to, end.private_data)
            }
            Content::Group(number) => {
                multicast::complete(&id, number, &mut to);
                visible(id, to, Vec::new())
            }
        }
    }
}

/// Shows the state of a queue pair that was just moved.
///
/// # Safety
/// The identifier is the program's.
unsafe fn note_ready(id: *mut cm::Id) {
    // SAFETY: the caller's promise.
    unsafe {
        if !(*id).qp.is_null() {
            store_state((*id).qp, QueuePairState::ReadyToSend as u32);
        }
    }
}

/// Moves the queue pair of an identifier to the error state, if it has one.
///
/// # Safety
/// The identifier is the program's.
pub(super) unsafe fn fail_queue_pair(id: *mut cm::Id) {
    // SAFETY: the caller's promise.
    unsafe {
        if (*id).qp.is_null() {
            return;
        }
        let error = bring_up::moving(QueuePairState::Error);
        if queue_pair_of((*id).qp).inner.modify(&error).is_ok() {
            store_state((*id).qp, QueuePairState::Error as u32);
        }
    }
}

/// Returns the parameters of a peer's message. Its resources are swapped: an event tells what this end may have.
fn parameters(end: &ConnectionEnd, retry_count: u8) -> cm::ConnParam {
    cm::ConnParam {
        private_data: std::ptr::null(),
        private_data_len: 0,
        responder_resources: end.initiator_depth,
        initiator_depth: end.responder_resources,
        flow_control: end.flow_control.into(),
        retry_count,
        rnr_retry_count: end.rnr_retry_count,
        srq: end.has_srq.into(),
        qp_num: end.qpn.value(),
    }
}

fn datagram_parameters(id: &Id, end: &DatagramEnd) -> cm::UdParam {
    let inner = id.inner();
    let gids = inner.ends.as_ref().map(|ends| (ends.path.remote_gid, ends.path.local_gid, ends.path.traffic_class));
    let (remote, local, traffic_class) = gids.unwrap_or_default();
    let sgid_index = inner.device.and_then(|device| device.gid_index(local).ok()).unwrap_or(0);
    drop(inner);
    let mut vector = path_to(remote, sgid_index);
    vector.traffic_class = traffic_class;
    cm::UdParam {
        private_data: std::ptr::null(),
        private_data_len: 0,
        ah_attr: address_attributes(&vector),
        qp_num: end.qpn.value(),
        qkey: end.qkey.0,
    }
}

/// Returns the path to a GID.
pub(super) fn path_to(gid: Gid, sgid_index: u8) -> AddressVector {
    let mut vector = AddressVector::new(gid, sgid_index);
    (vector.hop_limit, vector.port_num) = (64, PORT);
    vector
}

/// Creates the identifier of a peer's request, and its event.
///
/// # Safety
/// The listener is the program's.
unsafe fn deliver_request(
    listener: Arc<Id>,
    mut to: cm::Event,
    request: ListenerEvent,
    device: &'static Device,
) -> *mut cm::Event {
    listener.inner().has_request = false;
    // SAFETY: the caller's promise.
    let made = unsafe {
        match request {
            ListenerEvent::Connection(request) => connection_child(&listener, *request, device),
            ListenerEvent::Datagram(request) => datagram_child(&listener, *request, device),
            _ => Err(INVALID),
        }
    };
    let delivered = match made {
        Ok((child, parameters, private_data)) => {
            (to.listen_id, to.id, to.param) = (to.id, child, parameters);
            visible(Arc::clone(&listener), to, private_data)
        }
        Err(Errno(error)) => {
            tracing::warn!(
                target: "rdma_verbs::c_library",
                error, "a peer's request is rejected, because it cannot have an identifier"
            );
            listener.note_acknowledged();
            null_mut()
        }
    };
    listener.pump();
    delivered
}

/// Creates the identifier of a request that has arrived at a listener, with both addresses.
///
/// # Safety
/// The listener is the program's.
unsafe fn child(listener: &Id, device: &'static Device, local: SocketAddr, remote: SocketAddr) -> Result<*mut cm::Id> {
    // SAFETY: the caller's promise.
    unsafe {
        let shown = listener.visible();
        let child = Id::create((*shown).channel, (*shown).context, listener.space, listener.qp_type)?;
        set_route(child, device, local, remote);
        if listener.is_synchronous()
            && let Err(error) = migrate(child, null_mut())
        {
            destroy(child)?;
            return Err(error);
        }
        let options = listener.inner().options;
        let mut inner = id_of(child)?.inner();
        (inner.phase, inner.device) = (Phase::Requested, Some(device));
        inner.options.type_of_service = options.type_of_service;
        drop(inner);
        Ok(child)
    }
}

/// The identifier of a peer's request, the parameters of its event, and the data that comes with it.
type Child = (*mut cm::Id, cm::Param, Vec<u8>);

/// # Safety
/// The listener is the program's.
unsafe fn connection_child(listener: &Id, request: ConnectionRequest, device: &'static Device) -> Result<Child> {
    let ConnectionRequest { path, remote, connection } = request;
    // SAFETY: the caller's promise, and the identifier that was just made.
    unsafe {
        let made = child(listener, device, path.local, path.remote)?;
        set_path_record(made, &path);
        let child = id_of(made)?;
        let local = bring_up::local_end(device, &remote);
        let parameters = cm::Param { conn: parameters(&remote, path.retry_count) };
        let private_data = remote.private_data.clone();
        {
            let mut inner = child.inner();
            inner.ends = Some(Ends { path, local, remote: Some(remote), is_active: false });
            inner.source = Source::Connection(connection);
        }
        child.pump();
        Ok((made, parameters, private_data))
    }
}

/// # Safety
/// The listener is the program's.
unsafe fn datagram_child(listener: &Id, request: DatagramRequest, device: &'static Device) -> Result<Child> {
    let DatagramRequest { local, remote, private_data, inquiry } = request;
    let path = bring_up::path(device, local, remote, &Options::default())?;
    // SAFETY: the caller's promise, and the identifier that was just made.
    unsafe {
        let made = child(listener, device, local, remote)?;
        set_path_record(made, &path);
        id_of(made)?.inner().inquiry = Some(inquiry);
        let (ah_attr, none) = (abi::AhAttr::default(), std::ptr::null());
        let ud = cm::UdParam { private_data: none, private_data_len: 0, ah_attr, qp_num: 0, qkey: 0 };
        Ok((made, cm::Param { ud }, private_data))
    }
}

/// Takes the next event, if there is one.
fn next(queue: &Queue) -> Option<*mut cm::Event> {
    let _section = Section::begin();
    // Each turn takes an event out of the queue.
    while let Some(queued) = queue.pop() {
        // SAFETY: an identifier is the program's until it is destroyed, which removes its events from the queue, or
        // waits for those that were taken.
        let event = unsafe { deliver(queued) };
        if !event.is_null() {
            return Some(event);
        }
    }
    None
}

/// Polls for an event once, without waiting. Does not unwind.
///
/// # Safety
/// `channel` is the program's; `event` may be written.
unsafe extern "C" fn try_event(channel: *mut cm::EventChannel, event: *mut *mut cm::Event) -> PollResult {
    let poll = || {
        // SAFETY: the caller's promise.
        let queue = unsafe { queue_of(channel)? };
        if event.is_null() {
            return Err(INVALID);
        }
        match next(queue) {
            Some(found) => {
                // SAFETY: the caller's promise.
                unsafe { event.write(found) };
                Ok(PollResult::Found)
            }
            None => {
                // SAFETY: the descriptor is open as long as the queue.
                may_block(unsafe { std::os::fd::BorrowedFd::borrow_raw(queue.fd()) })?;
                Ok(PollResult::Wait(queue.fd()))
            }
        }
    };
    PollResult::from(poll())
}

pub(super) unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut cm::EventChannel,
    event: *mut *mut cm::Event,
) -> c_int {
    // SAFETY: the program's channel, and its pointer for the result.
    unsafe { wait_for(|| try_event(channel, event)) }
}

/// Waits for the next event of a channel.
///
/// # Safety
/// `channel` is the program's.
pub(super) unsafe fn wait(channel: *mut cm::EventChannel) -> Result<*mut cm::Event> {
    let _held = Uncancelled::begin();
    let mut event = null_mut();
    let found = &raw mut event;
    // SAFETY: the caller's promise, and a local variable.
    match unsafe { wait_for(|| try_event(channel, found)) } {
        0 => Ok(event),
        _ => Err(last_errno()),
    }
}

/// Completes a call of an identifier: a synchronous one waits for the call's event, and keeps it until its next call.
///
/// # Safety
/// The identifier is the program's.
pub(super) unsafe fn complete(visible: *mut cm::Id) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe {
        if !id_of(visible)?.is_synchronous() {
            return Ok(());
        }
        acknowledge_last(visible)?;
        let event = wait((*visible).channel)?;
        (*visible).event = event;
        match ((*event).event, (*event).status) {
            (_, 0) => Ok(()),
            (event_type::REJECTED, _) => Err(Errno(libc::ECONNREFUSED)),
            (_, status) => Err(Errno(status.saturating_abs())),
        }
    }
}

/// Completes a call of an identifier that no event follows: the event of a synchronous one's last call ends.
///
/// # Safety
/// The identifier is the program's.
pub(super) unsafe fn acknowledge_last(visible: *mut cm::Id) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe {
        if id_of(visible)?.is_synchronous() {
            let event = std::mem::replace(&mut (*visible).event, null_mut());
            if !event.is_null() {
                acknowledge(event);
            }
        }
    }
    Ok(())
}

/// Frees an event; its identifier can be destroyed then.
///
/// # Safety
/// The program has read it and gives it up.
pub(super) unsafe fn acknowledge(event: *mut cm::Event) {
    // SAFETY: the caller's promise.
    let Reported { id, .. } = unsafe { take(event) };
    id.note_acknowledged();
}

pub(super) unsafe extern "C" fn rdma_ack_cm_event(event: *mut cm::Event) -> c_int {
    if event.is_null() {
        return zero_or_minus_one(Err(INVALID));
    }
    // SAFETY: the program gives it up.
    unsafe { acknowledge(event) };
    0
}

pub(super) unsafe extern "C" fn rdma_event_str(event: c_int) -> *const c_char {
    let name = usize::try_from(event).ok().and_then(|event| NAMES.get(event));
    name.unwrap_or(&c"UNKNOWN EVENT").as_ptr()
}
