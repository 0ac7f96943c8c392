//! Connecting, accepting, rejecting and disconnecting.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use rdma_verbs::provider::abi::cm;
use rdma_verbs::provider::{
    ConnectInit, Connection, ConnectionEnd, DatagramEnd, Inquiry, PortSpace, QueuePair, RejectReason, ResolveInit,
    VendorId, VendorOptions,
};
use rdma_verbs::types::{Qpn, QueuePairState};

use super::bind::from_port;
use super::bring_up::{self, QKEY, RETRIES};
use super::devices::Device;
use super::event::{acknowledge_last, complete, fail_queue_pair};
use super::id::{Ends, Id, Phase, Role, Source, id_of};
use super::pump::Section;
use crate::error::{Errno, INVALID, Result, zero_or_minus_one};
use crate::modify::store_state;
use crate::queue_pair::queue_pair_of;

/// `RDMA_MAX_RESP_RES` and `RDMA_MAX_INIT_DEPTH`: as many as the device can.
const MAXIMUM: u8 = 0xff;
/// `IBV_EVENT_COMM_EST`.
const COMMUNICATION_ESTABLISHED: c_int = 4;

/// The parameters of the program for `rdma_connect` and `rdma_accept`.
struct Parameters {
    private_data: Vec<u8>,
    responder_resources: u8,
    initiator_depth: u8,
    flow_control: bool,
    retry_count: u8,
    rnr_retry_count: u8,
    has_srq: bool,
    qpn: Qpn,
}

impl Parameters {
    /// Reads the parameters; if the program may leave them out, the maxima are usual.
    ///
    /// # Safety
    /// `from` is null or the program's, and so is its private data.
    unsafe fn read(from: *const cm::ConnParam, may_be_absent: bool) -> Result<Self> {
        if from.is_null() {
            return if may_be_absent { Ok(Self::usual()) } else { Err(INVALID) };
        }
        // SAFETY: the caller's promise.
        let from = unsafe { *from };
        Ok(Self {
            // SAFETY: the caller's promise.
            private_data: unsafe { bytes(from.private_data, from.private_data_len) },
            responder_resources: from.responder_resources,
            initiator_depth: from.initiator_depth,
            flow_control: from.flow_control != 0,
            retry_count: from.retry_count.min(RETRIES),
            rnr_retry_count: from.rnr_retry_count.min(RETRIES),
            has_srq: from.srq != 0,
            qpn: Qpn::new(from.qp_num & 0xff_ffff),
        })
    }

    fn usual() -> Self {
        Self {
            private_data: Vec::new(),
            responder_resources: MAXIMUM,
            initiator_depth: MAXIMUM,
            flow_control: false,
            retry_count: RETRIES,
            rnr_retry_count: RETRIES,
            has_srq: false,
            qpn: Qpn::default(),
        }
    }

    /// Returns the end of a connection that these parameters describe. `most` are the most resources and the most depth
    /// if the program leaves them to the device.
    fn end(
        self,
        device: &Device,
        space: PortSpace,
        own: Option<&OwnQueuePair>,
        most: (u8, u8),
    ) -> Result<ConnectionEnd> {
        let attributes = &device.shared().attributes;
        let within = |given: u8, limit: u8, most: u8| match given {
            MAXIMUM => Ok(limit.min(most)),
            // As in rdma-core, only this space is checked.
            given if given <= limit || space != PortSpace::Tcp => Ok(given),
            given => {
                tracing::info!(
                    target: "rdma_verbs::c_library",
                    given, limit, "responder_resources or initiator_depth is more than the device allows"
                );
                Err(INVALID)
            }
        };
        let (qpn, has_srq, capabilities) = match own {
            Some(own) => (own.inner.qpn(), own.has_srq, device.shared().device.advertised_capabilities()),
            // The program moves its queue pair itself, without the key of native peers.
            None => (self.qpn, self.has_srq, Default::default()),
        };
        Ok(ConnectionEnd {
            qpn,
            starting_psn: bring_up::random_psn(),
            responder_resources: within(self.responder_resources, attributes.max_qp_rd_atom, most.0)?,
            initiator_depth: within(self.initiator_depth, attributes.max_qp_init_rd_atom, most.1)?,
            flow_control: self.flow_control,
            rnr_retry_count: self.rnr_retry_count,
            has_srq,
            ack_delay: attributes.local_ca_ack_delay,
            capabilities,
            private_data: self.private_data,
            ..ConnectionEnd::default()
        })
    }
}

/// The queue pair of an identifier.
struct OwnQueuePair {
    inner: Arc<dyn QueuePair>,
    has_srq: bool,
}

impl OwnQueuePair {
    /// Returns the queue pair of an identifier, if it has one.
    ///
    /// # Safety
    /// The identifier is the program's.
    unsafe fn of(visible: *mut cm::Id) -> Option<Self> {
        // SAFETY: the caller's promise; the queue pair is the program's as well.
        unsafe {
            let qp = (*visible).qp;
            (!qp.is_null()).then(|| Self { inner: Arc::clone(&queue_pair_of(qp).inner), has_srq: !(*qp).srq.is_null() })
        }
    }
}

/// Copies private data of the program.
///
/// # Safety
/// `data` has `length` bytes, or is null.
unsafe fn bytes(data: *const c_void, length: u8) -> Vec<u8> {
    if data.is_null() {
        return Vec::new();
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(data.cast::<u8>(), length.into()) }.to_vec()
}

/// # Safety
/// The identifier and the parameters are the program's.
unsafe fn connect(visible: *mut cm::Id, parameters: *const cm::ConnParam) -> Result<()> {
    // SAFETY: the caller's promise.
    let (id, own) = unsafe { (id_of(visible)?, OwnQueuePair::of(visible)) };
    let (device, port, local, remote, options, vendor_options, mut data) = {
        let inner = id.inner();
        let (Phase::RouteResolved, Some(device), Some(port), Some(local), Some(remote)) =
            (inner.phase, inner.device, inner.port.clone(), inner.local, inner.remote)
        else {
            return Err(INVALID);
        };
        (device, port, local, remote, inner.options, inner.vendor_options, inner.connect_data.clone())
    };
    // SAFETY: the caller's promise.
    let mut parameters = unsafe { Parameters::read(parameters, own.is_some() || id.space != PortSpace::Tcp)? };
    data.append(&mut parameters.private_data);
    let mut path = bring_up::path(device, local, remote, &options)?;
    path.retry_count = parameters.retry_count;
    if id.is_datagram() {
        let init = ResolveInit { path: &path, private_data: &data, timeout: None, port: Some(&*port) };
        let resolution = device.manager()?.resolve(&init).map_err(from_port)?;
        let (end, phase) = (ConnectionEnd::default(), Phase::Requesting);
        return begin(
            id,
            phase,
            Source::Resolution(Arc::from(resolution)),
            None,
            Ends { path, local: end, remote: None, is_active: true },
        );
    }
    if id.role() == Role::Target {
        tracing::info!(
            target: "rdma_verbs::c_library",
            "an endpoint of the type IBV_QPT_XRC_RECV cannot connect: listen, or use IBV_QPT_XRC_SEND"
        );
        return Err(INVALID);
    }
    parameters.private_data = data;
    let mut end = parameters.end(device, id.space, own.as_ref(), (MAXIMUM, MAXIMUM))?;
    if own.is_none() {
        end.vendor_options = vendor_options;
    }
    let ack_timeout = bring_up::own_timeout(&options);
    let transport = id.transport();
    let init = ConnectInit { path: &path, end: &end, transport, ack_timeout, timeout: None, port: Some(&*port) };
    let connection = device.manager()?.connect(&init).map_err(from_port)?;
    let ends = Ends { path, local: end, remote: None, is_active: true };
    begin(id, Phase::Requesting, Source::Connection(connection), own.map(|own| own.inner), ends)
}

/// Notes that a request has left, and takes the events that may have arrived meanwhile.
fn begin(id: &Arc<Id>, phase: Phase, source: Source, queue_pair: Option<Arc<dyn QueuePair>>, ends: Ends) -> Result<()> {
    let before = {
        let mut inner = id.inner();
        (inner.phase, inner.ends) = (phase, Some(ends));
        let source = std::mem::replace(&mut inner.source, source);
        (source, std::mem::replace(&mut inner.queue_pair, queue_pair))
    };
    drop(before);
    id.pump();
    Ok(())
}

pub(super) unsafe extern "C" fn rdma_connect(id: *mut cm::Id, parameters: *mut cm::ConnParam) -> c_int {
    let connect_it = || {
        let _section = Section::begin();
        // SAFETY: the program's identifier and parameters.
        unsafe { connect(id, parameters) }
    };
    // SAFETY: the program's identifier.
    zero_or_minus_one(connect_it().and_then(|()| unsafe { complete(id) }))
}

/// Returns whether the acceptance of a request is followed by an event.
///
/// # Safety
/// The identifier and the parameters are the program's.
unsafe fn accept(visible: *mut cm::Id, parameters: *const cm::ConnParam) -> Result<bool> {
    // SAFETY: the caller's promise.
    let (id, own) = unsafe { (id_of(visible)?, OwnQueuePair::of(visible)) };
    let (device, options, vendor_options) = {
        let inner = id.inner();
        let (Phase::Requested, Some(device)) = (inner.phase, inner.device) else { return Err(INVALID) };
        (device, inner.options, inner.vendor_options)
    };
    // SAFETY: the caller's promise.
    let parameters = unsafe { Parameters::read(parameters, own.is_some())? };
    if id.is_datagram() {
        let qpn = own.map_or(parameters.qpn, |own| own.inner.qpn());
        let end = DatagramEnd { qpn, qkey: QKEY, private_data: parameters.private_data };
        answer(id, |inquiry| Ok(inquiry.accept(&end)?))?;
        return Ok(false);
    }
    let (connection, mut ends) = {
        let inner = id.inner();
        let Source::Connection(connection) = &inner.source else { return Err(INVALID) };
        (Arc::clone(connection), inner.ends.clone().ok_or(INVALID)?)
    };
    let Some(remote) = &ends.remote else { return Err(INVALID) };
    // It serves no more than the peer has outstanding, and the other way round.
    let most = (remote.initiator_depth, remote.responder_resources);
    let mut end = parameters.end(device, id.space, own.as_ref(), most)?;
    (end.responder_resources, end.initiator_depth) =
        (end.responder_resources.min(most.0), end.initiator_depth.min(most.1));
    end.starting_psn = ends.local.starting_psn;
    if own.is_none() {
        end.vendor_options = vendor_options;
    }
    ends.local = end.clone();
    {
        let mut inner = id.inner();
        (inner.phase, inner.ends) = (Phase::Accepted, Some(ends.clone()));
    }
    let accepted = || -> Result<()> {
        if let Some(own) = &own {
            bring_up::to_ready_to_send(&*own.inner, id.role(), device, &ends, &options)?;
            // SAFETY: the caller's promise, and it has a queue pair.
            unsafe { store_state((*visible).qp, QueuePairState::ReadyToSend as u32) };
        }
        // Without a reply the peer does not use the queue pair.
        // SAFETY: the caller's promise.
        Ok(connection.accept(&end, None).inspect_err(|_| unsafe { fail_queue_pair(visible) })?)
    };
    accepted().inspect_err(|_| {
        let mut inner = id.inner();
        // Unless an event has ended it meanwhile.
        if inner.phase == Phase::Accepted {
            inner.phase = Phase::Requested;
        }
    })?;
    Ok(true)
}

/// Answers a request for a datagram queue pair.
fn answer(id: &Id, answer: impl FnOnce(&dyn Inquiry) -> Result<()>) -> Result<()> {
    let inquiry = {
        let mut inner = id.inner();
        let inquiry = inner.inquiry.take().ok_or(INVALID)?;
        inner.phase = Phase::Over;
        inquiry
    };
    let answered = answer(&*inquiry);
    if answered.is_err() {
        let mut inner = id.inner();
        (inner.phase, inner.inquiry) = (Phase::Requested, Some(inquiry));
    }
    answered
}

pub(super) unsafe extern "C" fn rdma_accept(id: *mut cm::Id, parameters: *mut cm::ConnParam) -> c_int {
    let accept_it = || {
        let _section = Section::begin();
        // SAFETY: the program's identifier and parameters.
        unsafe { accept(id, parameters) }
    };
    let accepted = accept_it().and_then(|has_event| {
        // SAFETY: the program's identifier.
        unsafe {
            match has_event {
                true => complete(id),
                false => acknowledge_last(id),
            }
        }
    });
    zero_or_minus_one(accepted)
}

/// Rejects a peer's request, or its reply.
///
/// # Safety
/// The identifier and the data are the program's.
unsafe fn reject(visible: *mut cm::Id, reason: RejectReason, data: *const c_void, length: u8) -> Result<()> {
    let _section = Section::begin();
    // SAFETY: the caller's promise.
    let (id, data) = unsafe { (id_of(visible)?, bytes(data, length)) };
    if !matches!(id.inner().phase, Phase::Requested | Phase::Replied) {
        return Err(INVALID);
    }
    if id.is_datagram() {
        return answer(id, |inquiry| Ok(inquiry.reject(&data)?));
    }
    connection_of(id)?.reject(reason, &data)?;
    id.inner().phase = Phase::Over;
    Ok(())
}

/// Returns the connection of an identifier.
fn connection_of(id: &Id) -> Result<Arc<dyn Connection>> {
    match &id.inner().source {
        Source::Connection(connection) => Ok(Arc::clone(connection)),
        _ => Err(INVALID),
    }
}

pub(super) unsafe extern "C" fn rdma_reject(id: *mut cm::Id, data: *const c_void, length: u8) -> c_int {
    // SAFETY: the program's identifier and data.
    zero_or_minus_one(unsafe { reject(id, RejectReason::CONSUMER, data, length) })
}

pub(super) unsafe extern "C" fn rdma_reject_ece(id: *mut cm::Id, data: *const c_void, length: u8) -> c_int {
    // SAFETY: the program's identifier and data.
    zero_or_minus_one(unsafe { reject(id, RejectReason::VENDOR_OPTION_NOT_SUPPORTED, data, length) })
}

/// Confirms the reply for a queue pair that the program has moved itself.
///
/// # Safety
/// The identifier is the program's.
unsafe fn establish(visible: *mut cm::Id) -> Result<()> {
    let _section = Section::begin();
    // SAFETY: the caller's promise.
    let (id, has_queue_pair) = unsafe { (id_of(visible)?, !(*visible).qp.is_null()) };
    if has_queue_pair || id.inner().phase != Phase::Replied {
        return Err(INVALID);
    }
    connection_of(id)?.ready()?;
    let mut inner = id.inner();
    if inner.phase == Phase::Replied {
        inner.phase = Phase::Connected;
    }
    Ok(())
}

pub(super) unsafe extern "C" fn rdma_establish(id: *mut cm::Id) -> c_int {
    // SAFETY: the program's identifier.
    zero_or_minus_one(unsafe { establish(id) })
}

/// Ends a connection, or confirms that the peer ends it. Returns whether an event follows.
///
/// # Safety
/// The identifier is the program's.
unsafe fn disconnect(visible: *mut cm::Id) -> Result<bool> {
    let _section = Section::begin();
    // SAFETY: the caller's promise.
    let id = unsafe { id_of(visible)? };
    let connection = connection_of(id)?;
    // SAFETY: the caller's promise.
    unsafe { fail_queue_pair(visible) };
    // One that has ended before has no event left, unless the program has not read it.
    let has_event = id.is_set_up_or_has_events();
    // As on Linux, nothing is left to do in the other states.
    Ok(connection.disconnect().is_ok() && has_event)
}

pub(super) unsafe extern "C" fn rdma_disconnect(id: *mut cm::Id) -> c_int {
    // SAFETY: the program's identifier.
    let disconnected = unsafe { disconnect(id) }.and_then(|has_event| {
        // SAFETY: the program's identifier.
        if has_event { unsafe { complete(id) } } else { Ok(()) }
    });
    zero_or_minus_one(disconnected)
}

/// # Safety
/// The identifier is the program's.
unsafe fn notify(visible: *mut cm::Id, event: c_int) -> Result<()> {
    let _section = Section::begin();
    // SAFETY: the caller's promise.
    let id = unsafe { id_of(visible)? };
    match id.inner().phase {
        _ if event != COMMUNICATION_ESTABLISHED => return Err(INVALID),
        Phase::Accepted => {}
        Phase::Connected => return Err(Errno(libc::EISCONN)),
        _ => return Err(INVALID),
    }
    Ok(connection_of(id)?.communication_established()?)
}

pub(super) unsafe extern "C" fn rdma_notify(id: *mut cm::Id, event: c_int) -> c_int {
    // SAFETY: the program's identifier.
    zero_or_minus_one(unsafe { notify(id, event) })
}

/// Sets the options of a vendor that the next request or reply has, for a queue pair that the program moves itself.
///
/// # Safety
/// The identifier and the structure are the program's.
unsafe fn set_local_ece(visible: *mut cm::Id, ece: *const cm::Ece) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe {
        let id = id_of(visible)?;
        if ece.is_null() || !(*visible).qp.is_null() || (*ece).vendor_id == 0 || (*ece).comp_mask != 0 {
            return Err(INVALID);
        }
        let vendor_options = VendorOptions { vendor: VendorId::new((*ece).vendor_id), options: (*ece).options };
        id.inner().vendor_options = vendor_options;
    }
    Ok(())
}

pub(super) unsafe extern "C" fn rdma_set_local_ece(id: *mut cm::Id, ece: *mut cm::Ece) -> c_int {
    // SAFETY: the program's identifier and structure.
    zero_or_minus_one(unsafe { set_local_ece(id, ece) })
}

/// # Safety
/// The identifier and the structure are the program's.
unsafe fn remote_ece(visible: *mut cm::Id, ece: *mut cm::Ece) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe {
        let id = id_of(visible)?;
        if ece.is_null() || !(*visible).qp.is_null() {
            return Err(INVALID);
        }
        let inner = id.inner();
        let remote = inner.ends.as_ref().and_then(|ends| ends.remote.as_ref());
        let VendorOptions { vendor, options } = remote.map(|remote| remote.vendor_options).unwrap_or_default();
        ece.write(cm::Ece { vendor_id: vendor.value(), options, comp_mask: 0 });
    }
    Ok(())
}

pub(super) unsafe extern "C" fn rdma_get_remote_ece(id: *mut cm::Id, ece: *mut cm::Ece) -> c_int {
    // SAFETY: the program's identifier and structure.
    zero_or_minus_one(unsafe { remote_ece(id, ece) })
}
