//! The attributes of queue pairs that connections determine, as Linux' connection manager does (`cm.c`,
//! `ib_cm_init_qp_attr`; `cma.c`, `rdma_init_qp_attr`).

use std::ffi::c_int;
use std::net::SocketAddr;

use rdma_verbs::provider::abi::{self, cm, qp_attr as mask};
use rdma_verbs::provider::{ConnectionEnd, ConnectionPath, QueuePair, combined_ack_timeout};
use rdma_verbs::types::{AccessFlags, Psn, Qkey, QueuePairAttributes, QueuePairState};

use super::devices::{Device, PORT};
use super::event::path_to;
use super::id::{DATAGRAM, Ends, Options, Role, id_of};
use crate::error::{INVALID, Result, zero_or_minus_one};
use crate::modify::c_attributes;

/// The Q_Key of datagram queue pairs (`RDMA_UDP_QKEY`).
pub(super) const QKEY: Qkey = Qkey(0x0123_4567);
/// Code of the time that a peer waits when no receive is posted: 0.64 ms. Linux leaves it 0, which is 655 ms.
const MIN_RNR_TIMER: u8 = 12;
/// Code of the transport timeout: 0.54 s, as on Linux 6.12, where a packet is assumed to take half of it at most. Eight
/// tries take 4.3 s, so that a peer that is not scheduled for seconds keeps its connections: adapters respond without
/// their programs, and programs rely on that.
const TIMEOUT: u8 = 17;
/// Number of retries of a path whose program chooses none.
pub(super) const RETRIES: u8 = 7;

/// Returns the path from a local address to a peer's.
pub(super) fn path(
    device: &Device,
    local: SocketAddr,
    remote: SocketAddr,
    options: &Options,
) -> Result<ConnectionPath> {
    let attributes = &device.shared().attributes;
    let timeout = options.ack_timeout.unwrap_or(TIMEOUT);
    Ok(ConnectionPath {
        local,
        remote,
        remote_gid: remote.ip().into(),
        local_gid: local.ip().into(),
        traffic_class: options.type_of_service,
        flow_label: 0,
        hop_limit: 64,
        path_mtu: device.shared().device.query_port(PORT)?.active_mtu,
        retry_count: RETRIES,
        ack_timeout: combined_ack_timeout(attributes.local_ca_ack_delay, timeout.saturating_sub(1)),
    })
}

/// Returns the code of the timeout that a request states for this end.
pub(super) fn own_timeout(options: &Options) -> u8 {
    options.ack_timeout.unwrap_or(TIMEOUT)
}

/// Returns a random packet number.
pub(super) fn random_psn() -> Psn {
    let mut bytes = [0; 4];
    // SAFETY: the buffer has as many bytes as the call may write. If it writes none, the number is 0, which is legal.
    unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    Psn::new(u32::from_ne_bytes(bytes) & 0xff_ffff)
}

/// Returns the end that receives a request, before the program accepts it.
pub(super) fn local_end(device: &Device, remote: &ConnectionEnd) -> ConnectionEnd {
    let attributes = &device.shared().attributes;
    ConnectionEnd {
        starting_psn: random_psn(),
        responder_resources: remote.initiator_depth.min(attributes.max_qp_rd_atom),
        initiator_depth: remote.responder_resources.min(attributes.max_qp_init_rd_atom),
        rnr_retry_count: RETRIES,
        ack_delay: attributes.local_ca_ack_delay,
        ..ConnectionEnd::default()
    }
}

/// Returns the attributes that move the queue pair of a connection to a state. An XRC initiator serves nothing, and a
/// target requests nothing (IBTA A14; `cm.c`, `cm_init_qp_rtr_attr` and `cm_init_qp_rts_attr`).
fn connected(
    state: QueuePairState,
    role: Role,
    device: &Device,
    ends: Option<&Ends>,
    options: &Options,
) -> Result<QueuePairAttributes> {
    let mut to = connected_both_ways(state, device, ends, options)?;
    match role {
        Role::Peer => {}
        Role::Initiator => (to.max_dest_rd_atomic, to.min_rnr_timer) = (None, None),
        Role::Target => (to.retry_cnt, to.rnr_retry, to.max_rd_atomic) = (None, None, None),
    }
    Ok(to)
}

fn connected_both_ways(
    state: QueuePairState,
    device: &Device,
    ends: Option<&Ends>,
    options: &Options,
) -> Result<QueuePairAttributes> {
    let mut to = moving(state);
    if state == QueuePairState::Init {
        to.qp_access_flags = Some(ends.map_or(AccessFlags::empty(), access));
        (to.pkey_index, to.port_num) = (Some(0), Some(PORT));
        return Ok(to);
    }
    let Some(Ends { path, local, remote: Some(remote), is_active }) = ends else { return Err(INVALID) };
    let attributes = &device.shared().attributes;
    if state == QueuePairState::ReadyToReceive {
        let mut vector = path_to(path.remote_gid, device.gid_index(path.local_gid)?);
        (vector.flow_label, vector.hop_limit) = (path.flow_label, path.hop_limit);
        vector.traffic_class = path.traffic_class;
        (to.ah_attr, to.path_mtu, to.dest_qp_num) = (Some(vector), Some(path.path_mtu), Some(remote.qpn));
        to.rq_psn = Some(local.starting_psn);
        to.max_dest_rd_atomic = Some(match is_active {
            // The peer may have more outstanding than it was offered, as far as the device allows.
            true => remote.initiator_depth.min(attributes.max_qp_rd_atom),
            false => local.responder_resources,
        });
        to.min_rnr_timer = Some(MIN_RNR_TIMER);
        // Both ends use the key, or neither: the peer of a native end has it only if this end is native as well.
        to.peer_key = remote.key.filter(|_| local.capabilities.is_native());
        to.peer = to.peer_key.map(|_| remote.capabilities);
        return Ok(to);
    }
    let (timeout, outstanding) = match is_active {
        true => {
            let usual = path.active_timeout(attributes.local_ca_ack_delay, remote.ack_delay);
            (usual, remote.responder_resources.min(local.initiator_depth))
        }
        // Linux takes 0 for 1: it would mean to wait without limit.
        false => (path.ack_timeout.max(1), local.initiator_depth),
    };
    (to.sq_psn, to.timeout) = (Some(remote.starting_psn), Some(options.ack_timeout.unwrap_or(timeout)));
    (to.retry_cnt, to.rnr_retry) = (Some(path.retry_count), Some(remote.rnr_retry_count));
    to.max_rd_atomic = Some(outstanding);
    Ok(to)
}

/// Returns the attributes of a change to a state, without others.
pub(super) fn moving(state: QueuePairState) -> QueuePairAttributes {
    let mut to = QueuePairAttributes::default();
    to.qp_state = Some(state);
    to
}

/// Returns the access of peers: WRITE, and the rest if this end serves READs and atomics.
fn access(ends: &Ends) -> AccessFlags {
    let serves = ends.remote.as_ref().is_some_and(|remote| match ends.is_active {
        true => remote.initiator_depth > 0,
        false => ends.local.responder_resources > 0,
    });
    let reads = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC | AccessFlags::FLUSH;
    if serves { AccessFlags::REMOTE_WRITE | reads } else { AccessFlags::REMOTE_WRITE }
}

/// Returns the attributes that move a datagram queue pair to a state.
fn datagram(state: QueuePairState) -> QueuePairAttributes {
    let mut to = moving(state);
    match state {
        QueuePairState::Init => (to.pkey_index, to.port_num, to.qkey) = (Some(0), Some(PORT), Some(QKEY)),
        QueuePairState::ReadyToSend => to.sq_psn = Some(Psn::default()),
        _ => {}
    }
    to
}

/// Moves the queue pair of a connection, which is in RESET or INIT, to RTS.
pub(super) fn to_ready_to_send(
    queue_pair: &dyn QueuePair,
    role: Role,
    device: &Device,
    ends: &Ends,
    options: &Options,
) -> Result<()> {
    for state in [QueuePairState::Init, QueuePairState::ReadyToReceive, QueuePairState::ReadyToSend] {
        queue_pair.modify(&connected(state, role, device, Some(ends), options)?)?;
    }
    Ok(())
}

/// Moves the queue pair of an identifier as far as possible before a connection: to INIT, or to RTS for datagrams.
/// Returns its state.
pub(super) fn initialize(
    queue_pair: &dyn QueuePair,
    is_datagram: bool,
    device: &Device,
    ends: Option<&Ends>,
) -> Result<QueuePairState> {
    if !is_datagram {
        queue_pair.modify(&connected_both_ways(QueuePairState::Init, device, ends, &Options::default())?)?;
        return Ok(QueuePairState::Init);
    }
    for state in [QueuePairState::Init, QueuePairState::ReadyToReceive, QueuePairState::ReadyToSend] {
        queue_pair.modify(&datagram(state))?;
    }
    Ok(QueuePairState::ReadyToSend)
}

/// Returns the mask of the attributes that are set.
fn bits(attributes: &QueuePairAttributes) -> u32 {
    let set = [
        (attributes.qp_state.is_some(), mask::STATE),
        (attributes.qp_access_flags.is_some(), mask::ACCESS_FLAGS),
        (attributes.pkey_index.is_some(), mask::PKEY_INDEX),
        (attributes.port_num.is_some(), mask::PORT),
        (attributes.qkey.is_some(), mask::QKEY),
        (attributes.ah_attr.is_some(), mask::AV),
        (attributes.path_mtu.is_some(), mask::PATH_MTU),
        (attributes.dest_qp_num.is_some(), mask::DEST_QPN),
        (attributes.rq_psn.is_some(), mask::RQ_PSN),
        (attributes.max_dest_rd_atomic.is_some(), mask::MAX_DEST_RD_ATOMIC),
        (attributes.min_rnr_timer.is_some(), mask::MIN_RNR_TIMER),
        (attributes.sq_psn.is_some(), mask::SQ_PSN),
        (attributes.max_rd_atomic.is_some(), mask::MAX_QP_RD_ATOMIC),
        (attributes.timeout.is_some(), mask::TIMEOUT),
        (attributes.retry_cnt.is_some(), mask::RETRY_CNT),
        (attributes.rnr_retry.is_some(), mask::RNR_RETRY),
    ];
    set.into_iter().filter(|(is_set, _)| *is_set).fold(0, |all, (_, bit)| all | bit)
}

/// Returns the attributes for a queue pair that the program moves itself.
///
/// # Safety
/// All pointers are the program's.
unsafe fn init_qp_attr(id: *mut cm::Id, to: *mut abi::QpAttr, to_bits: *mut c_int) -> Result<()> {
    // SAFETY: the caller's promise.
    let (id, wanted) = unsafe { (id_of(id)?, (*to).qp_state) };
    let known = [QueuePairState::Init, QueuePairState::ReadyToReceive, QueuePairState::ReadyToSend];
    let state = known.into_iter().find(|state| *state as u32 == wanted).ok_or(INVALID)?;
    let (device, ends, options) = {
        let inner = id.inner();
        (inner.device.ok_or(INVALID)?, inner.ends.clone(), inner.options)
    };
    let attributes = match id.qp_type {
        DATAGRAM => datagram(state),
        // Before the peer is known there is no end to describe.
        _ => connected(state, id.role(), device, ends.as_ref().filter(|ends| ends.remote.is_some()), &options)?,
    };
    let mut found = c_attributes(&attributes);
    found.qp_state = state as u32;
    // SAFETY: the caller's promise.
    unsafe {
        to.write(found);
        to_bits.write(bits(&attributes) as c_int);
    }
    Ok(())
}

pub(super) unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut cm::Id,
    attributes: *mut abi::QpAttr,
    bits: *mut c_int,
) -> c_int {
    // SAFETY: the program's identifier and structures.
    zero_or_minus_one(unsafe { init_qp_attr(id, attributes, bits) })
}
