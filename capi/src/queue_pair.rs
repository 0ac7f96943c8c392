//! Queue pairs: their state, and the verbs other than creation, state changes and posting.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::AtomicU8;

use rdma_verbs::provider::{self, abi};
use rdma_verbs::types::{EventObject, Gid, QueuePairType};

use crate::error::{Errno, Result, UNSUPPORTED, number, pointer};
use crate::object::{Object, QueuePairShell, own, take};
use crate::shared::Shared;
use crate::stage::Stage;
use crate::usage::Use;
use crate::version::exported;

/// The state behind a queue pair. The visible part is always the extended form.
pub(crate) struct QueuePair {
    pub(crate) shared: Arc<Shared>,
    pub(crate) inner: Arc<dyn provider::QueuePair>,
    pub(crate) qp_type: QueuePairType,
    /// The stage of extended posting, if the queue pair was created for that.
    pub(crate) stage: Option<Stage>,
    pub(crate) path: Path,
    pub(crate) _uses: Vec<Use>,
}

/// Path attributes that Ethernet does not use: they are only returned by queries.
#[derive(Default)]
pub(crate) struct Path {
    pub(crate) static_rate: AtomicU8,
    pub(crate) src_path_bits: AtomicU8,
}

impl Object for QueuePairShell {
    type Own = QueuePair;
}

impl QueuePair {
    /// Returns whether its requests name neither an address handle nor a shared receive queue.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.qp_type, QueuePairType::ReliableConnection | QueuePairType::UnreliableConnection)
    }
}

/// Returns the state behind a queue pair that the program holds.
///
/// # Safety
/// `qp` is the program's.
#[inline]
pub(crate) unsafe fn queue_pair_of<'a>(qp: *mut abi::Qp) -> &'a QueuePair {
    // SAFETY: every queue pair is created in this form; the caller promises the rest.
    unsafe { own(qp.cast::<QueuePairShell>()) }
}

/// Destroys a queue pair.
///
/// # Safety
/// `qp` is the program's, which gives it up.
pub(crate) unsafe fn destroy(qp: *mut abi::Qp) -> Result<()> {
    // SAFETY: the caller's promise.
    let queue_pair = unsafe { queue_pair_of(qp) };
    queue_pair.shared.check_process("destroy_qp")?;
    queue_pair.shared.end_events(EventObject::QueuePair(queue_pair.inner.qpn()))?;
    queue_pair.inner.destroy()?;
    // SAFETY: the caller's promise.
    drop(unsafe { take(qp.cast::<QueuePairShell>()) });
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_qp(qp: *mut abi::Qp) -> c_int {
    // SAFETY: the program gives it up.
    number(unsafe { destroy(qp) })
}

/// Returns the extended form of a queue pair, if it was created with operations for it.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut abi::Qp) -> *mut abi::QpEx {
    // SAFETY: the program's queue pair.
    match unsafe { queue_pair_of(qp) }.stage {
        Some(_) => qp.cast(),
        None => pointer(Err(UNSUPPORTED)),
    }
}

/// Returns 0. The last byte of a WRITE is written last, and never before that of an earlier WRITE, but no order is
/// guaranteed for whole messages.
#[unsafe(no_mangle)]
extern "C" fn ibv_query_qp_data_in_order(_qp: *mut abi::Qp, _operation: u32, _flags: u32) -> c_int {
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_attach_mcast(qp: *mut abi::Qp, gid: *const abi::Gid, _lid: u16) -> c_int {
    // SAFETY: the program's queue pair and number.
    let (queue_pair, gid) = unsafe { (queue_pair_of(qp), (*gid).0) };
    number(queue_pair.inner.attach_mcast(Gid::from_bytes(gid)).map_err(Errno::from))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_detach_mcast(qp: *mut abi::Qp, gid: *const abi::Gid, _lid: u16) -> c_int {
    // SAFETY: the program's queue pair and number.
    let (queue_pair, gid) = unsafe { (queue_pair_of(qp), (*gid).0) };
    number(queue_pair.inner.detach_mcast(Gid::from_bytes(gid)).map_err(Errno::from))
}

/// Fails: these devices have no vendor-specific connection options (ECE).
#[unsafe(no_mangle)]
extern "C" fn ibv_set_ece(_qp: *mut abi::Qp, _ece: *mut c_void) -> c_int {
    number(Err(UNSUPPORTED))
}

/// Fails like [`ibv_set_ece`].
#[unsafe(no_mangle)]
extern "C" fn ibv_query_ece(_qp: *mut abi::Qp, _ece: *mut c_void) -> c_int {
    number(Err(UNSUPPORTED))
}

exported! {
    "IBVERBS_1.1": ibv_destroy_qp ibv_attach_mcast ibv_detach_mcast;
    "IBVERBS_1.6": ibv_qp_to_qp_ex;
    "IBVERBS_1.10": ibv_set_ece ibv_query_ece;
    "IBVERBS_1.14": ibv_query_qp_data_in_order;
}
