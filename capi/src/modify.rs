//! State changes and queries of queue pairs.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use rdma_verbs::provider::abi::{self, qp_attr as mask};
use rdma_verbs::types::{
    AccessFlags, Mtu, PeerCapabilities, Psn, Qkey, Qpn, QueuePairAttributes, QueuePairState, QueuePairStatus,
    QueuePairType, RateLimit,
};

use crate::address_handle::{address_attributes, address_vector};
use crate::error::{Errno, INVALID, Result, UNSUPPORTED, number};
use crate::object::{Zeroed, atomic_field};
use crate::queue_pair::{Path, QueuePair, queue_pair_of};
use crate::queue_pair_init::cap;
use crate::settings::settings;
use crate::version::exported;

/// Attributes that `ibv_modify_qp` refuses: alternate paths, capacities, and pacing (see `ibv_modify_qp_rate_limit`).
const NOT_OFFERED: u32 = mask::ALT_PATH | mask::PATH_MIG_STATE | mask::CAP | mask::RATE_LIMIT;
const KNOWN: u32 = 0x001f_ffff | mask::RATE_LIMIT;

fn state(number: u32) -> Result<QueuePairState> {
    QueuePairState::ALL.get(number as usize).copied().ok_or(INVALID)
}

/// Returns the attributes that apply to a queue pair of this type: as in the kernel, each half of an XRC connection
/// ignores the attributes of the other half.
fn own_bits(qp_type: QueuePairType, bits: u32) -> u32 {
    match qp_type {
        QueuePairType::XrcSend => bits & !(mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER),
        QueuePairType::XrcReceive => bits & !(mask::MAX_QP_RD_ATOMIC | mask::RETRY_CNT | mask::RNR_RETRY),
        _ => bits,
    }
}

/// Converts attributes to this library's form.
fn attributes(from: &abi::QpAttr, bits: u32) -> Result<QueuePairAttributes> {
    if bits & !KNOWN != 0 {
        return Err(INVALID);
    }
    if bits & NOT_OFFERED != 0 {
        return Err(UNSUPPORTED);
    }
    let mut to = QueuePairAttributes::default();
    macro_rules! take {
        ($($bit:ident $field:ident = $value:expr;)*) => { $(if bits & mask::$bit != 0 { to.$field = Some($value); })* };
    }
    take! {
        STATE qp_state = state(from.qp_state)?;
        CUR_STATE cur_qp_state = state(from.cur_qp_state)?;
        EN_SQD_ASYNC_NOTIFY en_sqd_async_notify = from.en_sqd_async_notify != 0;
        ACCESS_FLAGS qp_access_flags = AccessFlags::from_bits_retain(from.qp_access_flags);
        PKEY_INDEX pkey_index = from.pkey_index;
        PORT port_num = from.port_num;
        QKEY qkey = Qkey(from.qkey);
        AV ah_attr = address_vector(&from.ah_attr)?;
        PATH_MTU path_mtu = u8::try_from(from.path_mtu).ok().and_then(Mtu::from_code).ok_or(INVALID)?;
        TIMEOUT timeout = from.timeout;
        RETRY_CNT retry_cnt = from.retry_cnt;
        RNR_RETRY rnr_retry = from.rnr_retry;
        RQ_PSN rq_psn = Psn::new(from.rq_psn);
        MAX_QP_RD_ATOMIC max_rd_atomic = from.max_rd_atomic;
        MIN_RNR_TIMER min_rnr_timer = from.min_rnr_timer;
        SQ_PSN sq_psn = Psn::new(from.sq_psn);
        MAX_DEST_RD_ATOMIC max_dest_rd_atomic = from.max_dest_rd_atomic;
        DEST_QPN dest_qp_num = Qpn::new(from.dest_qp_num);
    }
    Ok(to)
}

/// Returns the capabilities of a peer that the environment lists: it runs the same software, so it has the same ones.
fn known_peer(queue_pair: &QueuePair, given: &QueuePairAttributes) -> Option<PeerCapabilities> {
    let peer = given.ah_attr?.dgid.to_ip();
    settings().peers.contains(&peer).then(|| queue_pair.shared.device.advertised_capabilities())
}

/// Sets the visible state. Concurrent verbs on the queue pair may do so at the same time; the last store counts.
///
/// # Safety
/// The queue pair is the program's.
pub(crate) unsafe fn store_state(qp: *mut abi::Qp, state: u32) {
    // SAFETY: the caller's promise; this library accesses the field only here once the queue pair is created.
    unsafe { atomic_field(&raw mut (*qp).state) }.store(state, Ordering::Relaxed);
}

/// # Safety
/// The queue pair is the program's.
unsafe fn modify(qp: *mut abi::Qp, from: &abi::QpAttr, bits: c_int) -> Result<()> {
    // SAFETY: the caller's promise.
    let queue_pair = unsafe { queue_pair_of(qp) };
    let mut given = attributes(from, own_bits(queue_pair.qp_type, bits as u32))?;
    if let Some(vector) = &mut given.ah_attr
        && vector.hop_limit == 0
    {
        // Programs leave the hop limit unset, but packets with a hop limit of 0 would not be delivered.
        vector.hop_limit = 64;
    }
    given.peer = known_peer(queue_pair, &given);
    queue_pair.inner.modify(&given)?;
    if given.ah_attr.is_some() {
        queue_pair.path.static_rate.store(from.ah_attr.static_rate, Ordering::Relaxed);
        queue_pair.path.src_path_bits.store(from.ah_attr.src_path_bits, Ordering::Relaxed);
    }
    if let Some(state) = given.qp_state {
        // SAFETY: the caller's promise.
        unsafe { store_state(qp, state as u32) };
    }
    Ok(())
}

/// # Safety
/// The queue pair and the structure are the program's.
pub(crate) unsafe extern "C" fn modify_qp_rate_limit(qp: *mut abi::Qp, attributes: *mut abi::QpRateLimitAttr) -> c_int {
    // SAFETY: the caller's promise.
    let (queue_pair, given) = unsafe { (queue_pair_of(qp), *attributes) };
    if given.comp_mask != 0 {
        return INVALID.0;
    }
    let abi::QpRateLimitAttr { rate_limit, max_burst_sz, typical_pkt_sz, .. } = given;
    let limit = RateLimit::default().rate_limit(rate_limit).max_burst_sz(max_burst_sz).typical_pkt_sz(typical_pkt_sz);
    number(queue_pair.inner.limit_rate(&limit).map_err(Errno::from))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_qp(qp: *mut abi::Qp, attributes: *mut abi::QpAttr, bits: c_int) -> c_int {
    // SAFETY: the program's queue pair and structure.
    number(unsafe { modify(qp, &*attributes, bits) })
}

/// Converts the status to its C form.
fn c_status(status: &QueuePairStatus, path: &Path) -> abi::QpAttr {
    let mut to = c_attributes(&status.attributes);
    (to.qp_state, to.cur_qp_state) = (status.qp_state as u32, status.qp_state as u32);
    to.sq_draining = status.sq_draining.into();
    to.cap = cap(status.cap);
    if status.attributes.ah_attr.is_some() {
        to.ah_attr.static_rate = path.static_rate.load(Ordering::Relaxed);
        to.ah_attr.src_path_bits = path.src_path_bits.load(Ordering::Relaxed);
    }
    to
}

/// Converts attributes to their C form; those never set are zero.
pub(crate) fn c_attributes(from: &QueuePairAttributes) -> abi::QpAttr {
    let mut to = abi::QpAttr::zeroed();
    to.path_mtu = from.path_mtu.map_or(0, |mtu| mtu as u32);
    to.qkey = from.qkey.map_or(0, |key| key.0);
    to.rq_psn = from.rq_psn.map_or(0, Psn::value);
    to.sq_psn = from.sq_psn.map_or(0, Psn::value);
    to.dest_qp_num = from.dest_qp_num.map_or(0, Qpn::value);
    to.qp_access_flags = from.qp_access_flags.map_or(0, |flags| flags.bits());
    if let Some(vector) = &from.ah_attr {
        to.ah_attr = address_attributes(vector);
    }
    to.pkey_index = from.pkey_index.unwrap_or(0);
    to.en_sqd_async_notify = from.en_sqd_async_notify.unwrap_or(false).into();
    to.max_rd_atomic = from.max_rd_atomic.unwrap_or(0);
    to.max_dest_rd_atomic = from.max_dest_rd_atomic.unwrap_or(0);
    to.min_rnr_timer = from.min_rnr_timer.unwrap_or(0);
    to.port_num = from.port_num.unwrap_or(0);
    to.timeout = from.timeout.unwrap_or(0);
    to.retry_cnt = from.retry_cnt.unwrap_or(0);
    to.rnr_retry = from.rnr_retry.unwrap_or(0);
    to
}

/// # Safety
/// The queue pair and both structures are the program's.
unsafe fn query(qp: *mut abi::Qp, attributes: *mut abi::QpAttr, init: *mut abi::QpInitAttr) -> Result<()> {
    // SAFETY: the caller's promise.
    let queue_pair = unsafe { queue_pair_of(qp) };
    let status = queue_pair.inner.query()?;
    let found = c_status(&status, &queue_pair.path);
    // SAFETY: the caller's promise; the fields that are read never change.
    unsafe {
        store_state(qp, found.qp_state);
        init.write(abi::QpInitAttr {
            qp_context: (*qp).qp_context,
            send_cq: (*qp).send_cq,
            recv_cq: (*qp).recv_cq,
            srq: (*qp).srq,
            cap: found.cap,
            qp_type: (*qp).qp_type,
            sq_sig_all: status.sq_sig_all.into(),
        });
        attributes.write(found);
    }
    Ok(())
}

/// Returns all attributes, whatever the mask requests.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp(
    qp: *mut abi::Qp,
    attributes: *mut abi::QpAttr,
    _bits: c_int,
    init: *mut abi::QpInitAttr,
) -> c_int {
    // SAFETY: the program's queue pair and structures.
    number(unsafe { query(qp, attributes, init) })
}

exported! {
    "IBVERBS_1.1": ibv_modify_qp ibv_query_qp;
}
