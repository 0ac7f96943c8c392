//! Creating queue pairs.

use std::ffi::c_void;
use std::sync::Arc;

use rdma_verbs::provider::abi::{self, create};
use rdma_verbs::provider::{self, QueuePairInit};
use rdma_verbs::types::{EventObject, QueuePairCapabilities, QueuePairType};

use crate::error::{INVALID, Result, UNSUPPORTED, pointer};
use crate::object::{QueuePairShell, Zeroed, make, own};
use crate::protection_domain::domain_of;
use crate::queue_pair::{Path, QueuePair};
use crate::queue_pair_ex::set_builders;
use crate::shared::{Shared, shared_of};
use crate::stage::Stage;
use crate::usage::Use;
use crate::version::exported;

/// Operations of extended posting: all but segmentation of raw packets.
const OPERATIONS: u64 = create::WITH_RDMA_WRITE
    | create::WITH_RDMA_WRITE_WITH_IMM
    | create::WITH_SEND
    | create::WITH_SEND_WITH_IMM
    | create::WITH_RDMA_READ
    | create::WITH_ATOMIC_CMP_AND_SWP
    | create::WITH_ATOMIC_FETCH_AND_ADD
    | create::WITH_LOCAL_INV
    | create::WITH_BIND_MW
    | create::WITH_SEND_WITH_INV
    | create::WITH_FLUSH
    | create::WITH_ATOMIC_WRITE;

/// Inline bytes that an ATOMIC WRITE of extended posting needs, even if fewer were requested.
const ATOMIC_WRITE_BYTES: u32 = 8;

/// Options for creating a queue pair, common to both functions that create one.
struct Wanted {
    qp_context: *mut c_void,
    pd: *mut abi::Pd,
    send_cq: *mut abi::Cq,
    recv_cq: *mut abi::Cq,
    srq: *mut abi::Srq,
    xrcd: *mut abi::Xrcd,
    qp_type: u32,
    cap: abi::QpCap,
    sq_sig_all: bool,
    operations: Option<u64>,
}

pub(crate) fn cap(from: QueuePairCapabilities) -> abi::QpCap {
    let QueuePairCapabilities { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } = from;
    abi::QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
}

fn capabilities(from: abi::QpCap) -> QueuePairCapabilities {
    let abi::QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } = from;
    QueuePairCapabilities { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
}

fn kind(number: u32) -> Result<QueuePairType> {
    match QueuePairType::ALL.iter().copied().find(|kind| *kind as u32 == number) {
        Some(kind) => Ok(kind),
        // Raw packets and vendors' own types.
        None if matches!(number, 8 | 255) => Err(UNSUPPORTED),
        None => Err(INVALID),
    }
}

/// The objects that a queue pair depends on.
struct Parts {
    pd: Arc<dyn provider::ProtectionDomain>,
    send_cq: Arc<dyn provider::CompletionQueue>,
    recv_cq: Arc<dyn provider::CompletionQueue>,
    srq: Option<Arc<dyn provider::SharedReceiveQueue>>,
    xrc_domain: Option<Arc<dyn provider::XrcDomain>>,
    uses: Vec<Use>,
}

/// Returns the program's completion queue. A queue pair that completes nothing there may have none, and gets a new one
/// that the program does not see.
///
/// # Safety
/// The queue is null or the program's.
unsafe fn completion_queue(
    shared: &Shared,
    cq: *mut abi::Cq,
    is_needed: bool,
    uses: &mut Vec<Use>,
) -> Result<Arc<dyn provider::CompletionQueue>> {
    if cq.is_null() {
        return if is_needed { Err(INVALID) } else { Ok(shared.device.create_cq(1, 0, None)?) };
    }
    // SAFETY: the caller's promise.
    let queue = unsafe { own(cq.cast::<abi::CqEx>()) };
    uses.push(queue.users.begin());
    Ok(Arc::clone(&queue.inner))
}

/// # Safety
/// All pointers in `wanted` are null or the program's.
unsafe fn parts(shared: &Shared, wanted: &Wanted, qp_type: QueuePairType) -> Result<Parts> {
    let mut uses = Vec::new();
    let (mut xrc_domain, mut srq) = (None, None);
    let (sends, receives) = match qp_type {
        QueuePairType::XrcReceive => (false, false),
        QueuePairType::XrcSend => (true, false),
        _ => (true, true),
    };
    // SAFETY: the caller's promise, for each object below.
    unsafe {
        if !wanted.xrcd.is_null() && !sends {
            let domain = own(wanted.xrcd);
            uses.push(domain.users.begin());
            xrc_domain = Some(domain);
        }
        if !wanted.srq.is_null() {
            let queue = own(wanted.srq);
            uses.push(queue.users.begin());
            srq = Some(Arc::clone(&queue.inner));
        }
        let pd = match (wanted.pd.is_null(), xrc_domain) {
            (true, Some(domain)) => domain.inner.protection(&*shared.device)?,
            _ => {
                let domain = domain_of(wanted.pd)?;
                uses.push(domain.users.begin());
                Arc::clone(&domain.domain.inner)
            }
        };
        Ok(Parts {
            pd,
            send_cq: completion_queue(shared, wanted.send_cq, sends, &mut uses)?,
            recv_cq: completion_queue(shared, wanted.recv_cq, receives, &mut uses)?,
            srq,
            xrc_domain: xrc_domain.map(|domain| Arc::clone(&domain.inner.inner)),
            uses,
        })
    }
}

/// Creates a queue pair and returns it with its actual sizes.
///
/// # Safety
/// The context and all pointers in `wanted` are the program's.
unsafe fn create_queue_pair(
    context: *mut abi::Context,
    wanted: &Wanted,
) -> Result<(*mut QueuePairShell, QueuePairCapabilities)> {
    // SAFETY: the caller's promise.
    let shared = unsafe { shared_of(context) };
    let qp_type = kind(wanted.qp_type)?;
    // SAFETY: the caller's promise.
    let parts = unsafe { parts(shared, wanted, qp_type)? };
    let mut cap = capabilities(wanted.cap);
    if wanted.operations.is_some_and(|operations| operations & create::WITH_ATOMIC_WRITE != 0) {
        cap.max_inline_data = cap.max_inline_data.max(ATOMIC_WRITE_BYTES);
    }
    let inner = shared.device.create_qp(&QueuePairInit {
        pd: &parts.pd,
        send_cq: &parts.send_cq,
        recv_cq: &parts.recv_cq,
        srq: parts.srq.as_ref(),
        xrc_domain: parts.xrc_domain.as_ref(),
        qp_type,
        cap,
        sq_sig_all: wanted.sq_sig_all,
    })?;
    let actual = inner.query()?.cap;
    let mut visible = QueuePairShell::zeroed();
    let base = &mut visible.base.qp_base;
    (base.context, base.qp_context, base.pd) = (context, wanted.qp_context, wanted.pd);
    (base.send_cq, base.recv_cq, base.srq) = (wanted.send_cq, wanted.recv_cq, wanted.srq);
    (base.handle, base.qp_num, base.qp_type) = (shared.next_handle(), inner.qpn().value(), wanted.qp_type);
    let stage = wanted.operations.map(|_| Stage::new(&actual));
    if stage.is_some() {
        set_builders(&mut visible);
    }
    let object = EventObject::QueuePair(inner.qpn());
    let (path, _uses) = (Path::default(), parts.uses);
    let made = make(visible, QueuePair { shared: Arc::clone(shared), inner, qp_type, stage, path, _uses });
    shared.event_objects.add(object, made);
    Ok((made, actual))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_qp(pd: *mut abi::Pd, init: *mut abi::QpInitAttr) -> *mut abi::Qp {
    let create = || {
        if pd.is_null() {
            return Err(INVALID);
        }
        // SAFETY: the program's domain and structure, which may be read and written, and the objects that it refers to.
        unsafe {
            let wanted = Wanted {
                qp_context: (*init).qp_context,
                pd,
                send_cq: (*init).send_cq,
                recv_cq: (*init).recv_cq,
                srq: (*init).srq,
                xrcd: std::ptr::null_mut(),
                qp_type: (*init).qp_type,
                cap: (*init).cap,
                sq_sig_all: (*init).sq_sig_all != 0,
                operations: None,
            };
            let (made, actual) = create_queue_pair((*pd).context, &wanted)?;
            (*init).cap = cap(actual);
            Ok(made.cast())
        }
    };
    pointer(create())
}

/// Creates a queue pair, with all options.
///
/// # Safety
/// The context, the structure and all objects that it refers to are the program's.
pub(crate) unsafe fn create_extended(context: *mut abi::Context, init: &mut abi::QpInitAttrEx) -> Result<*mut abi::Qp> {
    let has = |bit| init.comp_mask & bit != 0;
    // Only fields whose bit is in the mask have a value. The creation flags may be in the mask and be zero.
    let known = create::PD | create::XRCD | create::SEND_OPS_FLAGS | CREATE_FLAGS;
    if init.comp_mask & !known != 0 || has(CREATE_FLAGS) && init.create_flags != 0 {
        return Err(UNSUPPORTED);
    }
    let operations = has(create::SEND_OPS_FLAGS).then_some(init.send_ops_flags);
    if operations.is_some_and(|operations| operations & !OPERATIONS != 0) {
        return Err(UNSUPPORTED);
    }
    let wanted = Wanted {
        qp_context: init.qp_context,
        pd: if has(create::PD) { init.pd } else { std::ptr::null_mut() },
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        xrcd: if has(create::XRCD) { init.xrcd } else { std::ptr::null_mut() },
        qp_type: init.qp_type,
        cap: init.cap,
        sq_sig_all: init.sq_sig_all != 0,
        operations,
    };
    // SAFETY: the caller's promise.
    let (made, actual) = unsafe { create_queue_pair(context, &wanted)? };
    init.cap = cap(actual);
    Ok(made.cast())
}

/// `IBV_QP_INIT_ATTR_CREATE_FLAGS`.
const CREATE_FLAGS: u32 = 1 << 2;

pub(crate) unsafe extern "C" fn create_qp_ex(context: *mut abi::Context, init: *mut abi::QpInitAttrEx) -> *mut abi::Qp {
    // SAFETY: the program's context and structure.
    pointer(unsafe { create_extended(context, &mut *init) })
}

exported! {
    "IBVERBS_1.1": ibv_create_qp;
}
