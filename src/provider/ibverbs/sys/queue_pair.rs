//! Queue pairs: creation, attributes, destruction.

use std::ffi::c_int;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use super::abi::{self, create};
use super::completion::CompletionQueue;
use super::context::{Context, slot};
use super::memory::ProtectionDomain;
use super::shared_receive::{SharedReceiveQueue, XrcDomain};
use super::{check, not_supported};
use crate::types::RateLimit;

/// Options for creating a queue pair.
pub(in super::super) struct QueuePairInit<'a> {
    pub(in super::super) pd: &'a Arc<ProtectionDomain>,
    pub(in super::super) send_cq: &'a Arc<CompletionQueue>,
    pub(in super::super) recv_cq: &'a Arc<CompletionQueue>,
    pub(in super::super) srq: Option<&'a Arc<SharedReceiveQueue>>,
    pub(in super::super) xrc_domain: Option<&'a Arc<XrcDomain>>,
    /// `ibv_qp_type`.
    pub(in super::super) qp_type: u32,
    pub(in super::super) cap: abi::QpCap,
    pub(in super::super) sq_sig_all: bool,
}

/// `ibv_qp`.
pub(in super::super) struct QueuePair {
    /// Empty once it is destroyed.
    raw: RwLock<Option<NonNull<abi::Qp>>>,
    number: u32,
    /// Operations of extended posting that it has: bits of `ibv_qp_create_send_ops_flags`.
    send_ops: u64,
    cap: abi::QpCap,
    _srq: Option<Arc<SharedReceiveQueue>>,
    _xrc_domain: Option<Arc<XrcDomain>>,
    _queues: [Arc<CompletionQueue>; 2],
    domain: Arc<ProtectionDomain>,
}

// SAFETY: see the module's documentation.
unsafe impl Send for QueuePair {}
// SAFETY: as above.
unsafe impl Sync for QueuePair {}

const QPT_RC: u32 = 2;
const QPT_UC: u32 = 3;
const QPT_UD: u32 = 4;
const QPT_XRC_SEND: u32 = 9;
const QPT_XRC_RECV: u32 = 10;

const UD_OPS: u64 = create::WITH_SEND | create::WITH_SEND_WITH_IMM;
const UC_OPS: u64 = UD_OPS | create::WITH_RDMA_WRITE | create::WITH_RDMA_WRITE_WITH_IMM;
const RC_OPS: u64 = UC_OPS
    | create::WITH_RDMA_READ
    | create::WITH_ATOMIC_CMP_AND_SWP
    | create::WITH_ATOMIC_FETCH_AND_ADD
    | create::WITH_LOCAL_INV
    | create::WITH_BIND_MW
    | create::WITH_SEND_WITH_INV;

/// Returns the sets of operations to request, the richest first; the last is classic posting.
fn offers(qp_type: u32) -> &'static [u64] {
    match qp_type {
        QPT_RC | QPT_XRC_SEND => &[
            RC_OPS | create::WITH_ATOMIC_WRITE | create::WITH_FLUSH,
            RC_OPS | create::WITH_ATOMIC_WRITE,
            RC_OPS,
            UC_OPS,
            0,
        ],
        QPT_UC => &[UC_OPS, 0],
        QPT_UD => &[UD_OPS, 0],
        _ => &[0],
    }
}

/// The set of operations that a device accepted for each type, so that richer sets are not tried again.
pub(super) struct Accepted([AtomicU64; 16]);

impl Accepted {
    pub(super) const fn new() -> Self {
        Self([const { AtomicU64::new(u64::MAX) }; 16])
    }

    fn of(&self, qp_type: u32) -> &AtomicU64 {
        &self.0[qp_type as usize % 16]
    }
}

impl QueuePair {
    /// Creates a queue pair, with extended posting as far as the device supports it.
    pub(in super::super) fn create(init: &QueuePairInit<'_>) -> io::Result<Self> {
        let context = init.pd.context();
        let accepted = context.accepted_operations().of(init.qp_type);
        let first = accepted.load(Ordering::Relaxed);
        let mut outcome = Err(not_supported());
        for &send_ops in offers(init.qp_type).iter().filter(|offer| first == u64::MAX || **offer <= first) {
            let created = match init.srq {
                None => create_with(context, init, ptr::null_mut(), send_ops),
                // Locked for reading meanwhile, so the queue is not destroyed.
                Some(srq) => srq
                    .with(|srq| create_with(context, init, srq, send_ops))
                    .unwrap_or_else(|| Err(io::Error::from_raw_os_error(libc::EINVAL))),
            };
            outcome = created.map(|created| (created, send_ops));
            match &outcome {
                Ok(_) => {
                    accepted.store(send_ops, Ordering::Relaxed);
                    break;
                }
                // Other errors are final. If the sizes are excessive, the attempt without extended posting fails too,
                // and reports it.
                Err(error) if !matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL)) => {
                    break;
                }
                Err(_) => {}
            }
        }
        let ((raw, cap), send_ops) = outcome?;
        // SAFETY: just created.
        let number = unsafe { raw.as_ref().qp_num };
        Ok(Self {
            raw: RwLock::new(Some(raw)),
            number,
            send_ops,
            cap,
            _srq: init.srq.cloned(),
            _xrc_domain: init.xrc_domain.cloned(),
            _queues: [Arc::clone(init.send_cq), Arc::clone(init.recv_cq)],
            domain: Arc::clone(init.pd),
        })
    }

    pub(in super::super) fn number(&self) -> u32 {
        self.number
    }

    /// Returns the actual sizes.
    pub(in super::super) fn cap(&self) -> abi::QpCap {
        self.cap
    }

    /// Returns whether requests for ATOMIC WRITE can be built.
    pub(in super::super) fn can_atomic_write(&self) -> bool {
        self.send_ops & create::WITH_ATOMIC_WRITE != 0
    }

    /// Returns whether requests for FLUSH can be built.
    pub(in super::super) fn can_flush(&self) -> bool {
        self.send_ops & create::WITH_FLUSH != 0
    }

    pub(super) fn send_ops(&self) -> u64 {
        self.send_ops
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        self.domain.context()
    }

    /// Runs `use_it` with the pointer, unless the queue pair is destroyed.
    pub(super) fn with<R>(&self, use_it: impl FnOnce(*mut abi::Qp) -> R) -> Option<R> {
        let raw = self.raw.read().unwrap_or_else(PoisonError::into_inner);
        (*raw).map(|raw| use_it(raw.as_ptr()))
    }

    /// `None` once it is destroyed.
    pub(in super::super) fn modify(&self, attributes: &abi::QpAttr, mask: u32) -> Option<io::Result<()>> {
        let mut attributes = *attributes;
        let modify = self.context().functions.modify_qp;
        // SAFETY: the queue pair and the attributes live.
        self.with(|raw| check(unsafe { modify(raw, &raw mut attributes, mask as c_int) }))
    }

    /// `None` once it is destroyed.
    pub(in super::super) fn limit_rate(&self, limit: &RateLimit) -> Option<io::Result<()>> {
        let RateLimit { rate_limit, max_burst_sz, typical_pkt_sz } = *limit;
        let mut attributes = abi::QpRateLimitAttr { rate_limit, max_burst_sz, typical_pkt_sz, comp_mask: 0 };
        let Some(limit) = slot!(self.context(), modify_qp_rate_limit) else { return Some(Err(not_supported())) };
        // SAFETY: the queue pair and the attributes live.
        self.with(|raw| check(unsafe { limit(raw, &raw mut attributes) }))
    }

    /// `None` once it is destroyed.
    pub(in super::super) fn query(&self, mask: u32) -> Option<io::Result<abi::QpAttr>> {
        let mut attributes = abi::QpAttr::default();
        let mut init = abi::QpInitAttr {
            qp_context: ptr::null_mut(),
            send_cq: ptr::null_mut(),
            recv_cq: ptr::null_mut(),
            srq: ptr::null_mut(),
            cap: abi::QpCap::default(),
            qp_type: 0,
            sq_sig_all: 0,
        };
        let query = self.context().functions.query_qp;
        self.with(|raw| {
            // SAFETY: the queue pair and both structures live.
            let result = unsafe { query(raw, &raw mut attributes, mask as c_int, &raw mut init) };
            check(result).map(|()| attributes)
        })
    }

    /// `None` once it is destroyed.
    pub(in super::super) fn attach_mcast(&self, gid: [u8; 16]) -> Option<io::Result<()>> {
        let attach = self.context().functions.attach_mcast;
        let gid = abi::Gid(gid);
        // SAFETY: the queue pair and the address live. On Ethernet there are no LIDs.
        self.with(|raw| check(unsafe { attach(raw, &raw const gid, 0) }))
    }

    /// `None` once it is destroyed.
    pub(in super::super) fn detach_mcast(&self, gid: [u8; 16]) -> Option<io::Result<()>> {
        let detach = self.context().functions.detach_mcast;
        let gid = abi::Gid(gid);
        // SAFETY: as above.
        self.with(|raw| check(unsafe { detach(raw, &raw const gid, 0) }))
    }

    /// Destroys it; false if that was done already.
    pub(in super::super) fn destroy(&self) -> io::Result<bool> {
        let mut raw = self.raw.write().unwrap_or_else(PoisonError::into_inner);
        let Some(pointer) = *raw else { return Ok(false) };
        // SAFETY: nothing else uses the pointer while the lock is held for writing. All its events are acknowledged as
        // they are taken, so this waits only for a thread that is taking one right now.
        check(unsafe { (self.context().functions.destroy_qp)(pointer.as_ptr()) })?;
        *raw = None;
        Ok(true)
    }
}

type Created = (NonNull<abi::Qp>, abi::QpCap);

/// Creates a queue pair with the extended function, or with the classic one if neither extended posting nor an XRC
/// domain is requested.
fn create_with(context: &Context, init: &QueuePairInit<'_>, srq: *mut abi::Srq, send_ops: u64) -> io::Result<Created> {
    let (send_cq, recv_cq) = (init.send_cq.raw(), init.recv_cq.raw());
    let is_target = init.qp_type == QPT_XRC_RECV;
    if send_ops == 0 && !is_target {
        let mut attributes = abi::QpInitAttr {
            qp_context: ptr::null_mut(),
            send_cq,
            recv_cq,
            srq,
            cap: init.cap,
            qp_type: init.qp_type,
            sq_sig_all: init.sq_sig_all.into(),
        };
        // SAFETY: the domain, the attributes and all that they name live.
        let raw = unsafe { (context.functions.create_qp)(init.pd.raw(), &raw mut attributes) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        return Ok((raw, attributes.cap));
    }
    let create_qp = slot!(context, create_qp_ex).ok_or_else(not_supported)?;
    let mut attributes = abi::QpInitAttrEx {
        qp_context: ptr::null_mut(),
        send_cq: if is_target { ptr::null_mut() } else { send_cq },
        recv_cq: if is_target { ptr::null_mut() } else { recv_cq },
        srq,
        cap: init.cap,
        qp_type: init.qp_type,
        sq_sig_all: init.sq_sig_all.into(),
        comp_mask: if is_target { create::XRCD } else { create::PD | create::SEND_OPS_FLAGS },
        pd: if is_target { ptr::null_mut() } else { init.pd.raw() },
        xrcd: init.xrc_domain.map_or(ptr::null_mut(), |domain| domain.raw()),
        create_flags: 0,
        max_tso_header: 0,
        rwq_ind_tbl: ptr::null_mut(),
        rx_hash_conf: [0; 3],
        source_qpn: 0,
        send_ops_flags: send_ops,
    };
    // SAFETY: the context, the attributes and all that they name live.
    let raw = unsafe { create_qp(context.raw(), &raw mut attributes) };
    let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: just created.
    if send_ops != 0 && unsafe { (context.functions.qp_to_qp_ex)(raw.as_ptr()) }.is_null() {
        // A driver that ignores the flags has no extended posting.
        // SAFETY: just created, and nothing else uses it.
        check(unsafe { (context.functions.destroy_qp)(raw.as_ptr()) })?;
        return Err(not_supported());
    }
    Ok((raw, attributes.cap))
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if !self.context().is_inherited()
            && let Err(error) = self.destroy()
        {
            tracing::warn!(
                target: "rdma_verbs::queue_pair", qpn = self.number, %error, "a queue pair could not be destroyed"
            );
        }
    }
}
