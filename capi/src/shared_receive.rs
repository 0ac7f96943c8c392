//! Shared receive queues.

use std::ffi::c_int;
use std::sync::{Arc, PoisonError};

use rdma_verbs::provider::{self, SharedReceiveQueueInit, XrcReceives, abi};
use rdma_verbs::types::{BatchEnd, EventObject, ReceiveRequest, SharedReceiveQueueAttributes};

use crate::error::{Errno, INVALID, Result, UNSUPPORTED, number, pointer};
use crate::object::{Object, Zeroed, make, own, take};
use crate::post::{Receives, post_receives};
use crate::protection_domain::domain_of;
use crate::shared::Shared;
use crate::usage::{Use, Users};
use crate::version::exported;
use crate::waiting::Uncancelled;

/// Bits of `ibv_srq_init_attr_mask`.
pub(crate) mod init {
    pub(crate) const TYPE: u32 = 1;
    pub(crate) const PD: u32 = 1 << 1;
    pub(crate) const XRCD: u32 = 1 << 2;
    pub(crate) const CQ: u32 = 1 << 3;
    pub(super) const KNOWN: u32 = TYPE | PD | XRCD | CQ;
}

/// Values of `ibv_srq_type`.
pub(crate) const BASIC: u32 = 0;
pub(crate) const XRC: u32 = 1;

/// Bits of `ibv_srq_attr_mask`.
const MAX_WR: c_int = 1;
const LIMIT: c_int = 1 << 1;

/// The state behind a shared receive queue.
pub(crate) struct SharedReceiveQueue {
    pub(crate) shared: Arc<Shared>,
    pub(crate) inner: Arc<dyn provider::SharedReceiveQueue>,
    pub(crate) users: Users,
    is_xrc: bool,
    _uses: Vec<Use>,
}

impl Object for abi::Srq {
    type Own = SharedReceiveQueue;
}

impl Receives for SharedReceiveQueue {
    fn begin(&self) {
        self.inner.recv_begin();
    }

    fn push(&self, request: &ReceiveRequest<'_>) -> Result<()> {
        Ok(self.inner.recv_push(request)?)
    }

    fn end(&self) -> Result<()> {
        self.inner.recv_end(BatchEnd::Publish).map_err(Errno::from)
    }
}

/// Creates a queue and returns its actual sizes in `attributes`.
///
/// # Safety
/// All pointers are the program's; those of `xrc` are not null.
unsafe fn create(
    pd: *mut abi::Pd,
    srq_context: *mut std::ffi::c_void,
    attributes: &mut abi::SrqAttr,
    xrc: Option<(*mut abi::Xrcd, *mut abi::Cq)>,
) -> Result<*mut abi::Srq> {
    // SAFETY: the caller's promise.
    let domain = unsafe { domain_of(pd)? };
    let mut uses = vec![domain.users.begin()];
    // SAFETY: as above.
    let xrc = xrc.map(|(xrcd, cq)| unsafe { (own(xrcd), own(cq.cast::<abi::CqEx>())) });
    if let Some((xrcd, cq)) = xrc {
        uses.extend([xrcd.users.begin(), cq.users.begin()]);
    }
    let inner = domain.domain.inner.create_srq(&SharedReceiveQueueInit {
        max_wr: attributes.max_wr,
        max_sge: attributes.max_sge,
        // The limit has no effect until it is modified, as the manual page says.
        srq_limit: 0,
        xrc: xrc.map(|(xrcd, cq)| XrcReceives { domain: &xrcd.inner.inner, cq: &cq.inner }),
    })?;
    if let Some((xrcd, _)) = xrc {
        let mut protection = xrcd.inner.protection.lock().unwrap_or_else(PoisonError::into_inner);
        *protection = Some(Arc::clone(&domain.domain.inner));
    }
    let actual = inner.query()?;
    (attributes.max_wr, attributes.max_sge) = (actual.max_wr, actual.max_sge);
    let mut visible = abi::Srq::zeroed();
    // SAFETY: the caller's promise; this field never changes.
    (visible.context, visible.srq_context, visible.pd) = (unsafe { (*pd).context }, srq_context, pd);
    visible.handle = domain.shared.next_handle();
    let (object, shared) = (EventObject::SharedReceiveQueue(inner.number()), Arc::clone(&domain.shared));
    let (is_xrc, users) = (xrc.is_some(), Users::default());
    let made = make(visible, SharedReceiveQueue { shared, inner, users, is_xrc, _uses: uses });
    domain.shared.event_objects.add(object, made);
    Ok(made)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_srq(pd: *mut abi::Pd, init: *mut abi::SrqInitAttr) -> *mut abi::Srq {
    // SAFETY: the program's domain and structure.
    pointer(unsafe { create(pd, (*init).srq_context, &mut (*init).attr, None) })
}

/// Creates a queue, with all options.
///
/// # Safety
/// All pointers are the program's.
pub(crate) unsafe fn create_extended(init: &mut abi::SrqInitAttrEx) -> Result<*mut abi::Srq> {
    let has = |bit| init.comp_mask & bit != 0;
    if init.comp_mask & !init::KNOWN != 0 {
        return Err(UNSUPPORTED);
    }
    if !has(init::PD) {
        return Err(INVALID);
    }
    let xrc = match if has(init::TYPE) { init.srq_type } else { BASIC } {
        BASIC => None,
        XRC if has(init::XRCD) && has(init::CQ) && !init.xrcd.is_null() && !init.cq.is_null() => {
            Some((init.xrcd, init.cq))
        }
        XRC => return Err(INVALID),
        _ => return Err(UNSUPPORTED),
    };
    // SAFETY: the caller's promise.
    unsafe { create(init.pd, init.srq_context, &mut init.attr, xrc) }
}

pub(crate) unsafe extern "C" fn create_srq_ex(
    _context: *mut abi::Context,
    init: *mut abi::SrqInitAttrEx,
) -> *mut abi::Srq {
    // SAFETY: the program's structure and the objects that it refers to.
    pointer(unsafe { create_extended(&mut *init) })
}

pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut abi::Srq, to: *mut u32) -> c_int {
    // SAFETY: the program's queue.
    let queue = unsafe { own(srq) };
    if !queue.is_xrc {
        return UNSUPPORTED.0;
    }
    // SAFETY: the program's number, which may be written.
    unsafe { to.write(queue.inner.number().value()) };
    0
}

/// Destroys a queue.
///
/// # Safety
/// `srq` is the program's, which gives it up.
pub(crate) unsafe fn destroy(srq: *mut abi::Srq) -> Result<()> {
    // SAFETY: the caller's promise.
    let queue = unsafe { own(srq) };
    queue.shared.check_process("destroy_srq")?;
    queue.users.check_none()?;
    queue.shared.end_events(EventObject::SharedReceiveQueue(queue.inner.number()))?;
    queue.inner.destroy()?;
    // SAFETY: the caller's promise, and nothing uses it.
    drop(unsafe { take(srq) });
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_srq(srq: *mut abi::Srq) -> c_int {
    // SAFETY: the program gives it up.
    number(unsafe { destroy(srq) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_srq(srq: *mut abi::Srq, from: *mut abi::SrqAttr, bits: c_int) -> c_int {
    // SAFETY: the program's queue and structure.
    let (queue, from) = unsafe { (own(srq), &*from) };
    if bits & !(MAX_WR | LIMIT) != 0 {
        return number(Err(INVALID));
    }
    let wanted = SharedReceiveQueueAttributes {
        max_wr: (bits & MAX_WR != 0).then_some(from.max_wr),
        srq_limit: (bits & LIMIT != 0).then_some(from.srq_limit),
    };
    number(queue.inner.modify(&wanted).map_err(Errno::from))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_srq(srq: *mut abi::Srq, to: *mut abi::SrqAttr) -> c_int {
    // SAFETY: the program's queue.
    let found = unsafe { own(srq) }.inner.query();
    number(found.map_err(Errno::from).map(|found| {
        let found = abi::SrqAttr { max_wr: found.max_wr, max_sge: found.max_sge, srq_limit: found.srq_limit };
        // SAFETY: the program's structure, which may be written.
        unsafe { to.write(found) };
    }))
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut abi::Srq,
    request: *mut abi::RecvWr,
    refused: *mut *mut abi::RecvWr,
) -> c_int {
    let _held = Uncancelled::begin();
    // SAFETY: the program's queue and list.
    unsafe { post_receives(own(srq), request, refused) }
}

exported! {
    "IBVERBS_1.1": ibv_create_srq ibv_destroy_srq ibv_modify_srq ibv_query_srq;
}
