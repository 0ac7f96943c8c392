//! Memory windows.

use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError};

use rdma_verbs::provider::{self, abi};
use rdma_verbs::types::{AccessFlags, Data, Lkey, MemoryWindowType, Operation, Rkey, SendFlags, SendRequest};

use crate::error::{INVALID, Result, number, pointer};
use crate::object::{Object, QueuePairShell, make, own, take};
use crate::protection_domain::domain_of;
use crate::shared::Shared;
use crate::usage::Use;
use crate::waiting::Uncancelled;

/// The part of a key that the program chooses.
const TAG: u32 = 0xff;

/// The state behind a memory window.
pub(crate) struct MemoryWindow {
    shared: Arc<Shared>,
    inner: Arc<dyn provider::MemoryWindow>,
    /// The key of the last bind that `ibv_bind_mw` posted; at first that of the allocation. The visible key is stored
    /// under this lock.
    last_key: Mutex<u32>,
    _domain: Use,
}

impl Object for abi::Mw {
    type Own = MemoryWindow;
}

pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut abi::Pd, kind: u32) -> *mut abi::Mw {
    let alloc = || {
        // SAFETY: the program's domain.
        let domain = unsafe { domain_of(pd)? };
        let wanted = match kind {
            1 => MemoryWindowType::Type1,
            2 => MemoryWindowType::Type2,
            _ => return Err(INVALID),
        };
        let inner = domain.domain.inner.alloc_mw(wanted)?;
        // SAFETY: as above; this field never changes.
        let context = unsafe { (*pd).context };
        let key = inner.rkey().0;
        let visible = abi::Mw { context, pd, rkey: key, handle: domain.shared.next_handle(), kind };
        let (shared, last_key) = (Arc::clone(&domain.shared), Mutex::new(key));
        Ok(make(visible, MemoryWindow { shared, inner, last_key, _domain: domain.users.begin() }))
    };
    pointer(alloc())
}

pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut abi::Mw) -> c_int {
    // SAFETY: the program's window.
    let window = unsafe { own(mw) };
    let end = || {
        window.shared.check_process("dealloc_mw")?;
        window.inner.dealloc()?;
        // SAFETY: the program gives it up.
        drop(unsafe { take(mw) });
        Ok(())
    };
    number(end())
}

/// Returns the operation that binds a window.
///
/// # Safety
/// The region, if there is one, is the program's.
unsafe fn bind_operation(rkey: u32, info: &abi::MwBindInfo) -> Operation {
    let lkey = if info.mr.is_null() {
        0
    } else {
        // SAFETY: the caller's promise.
        unsafe { (*info.mr).lkey }
    };
    // Programs also pass LOCAL_WRITE, which applies to regions only.
    let access = AccessFlags::from_bits_retain(info.mw_access_flags).difference(AccessFlags::LOCAL_WRITE);
    Operation::BindMemoryWindow { rkey: Rkey(rkey), lkey: Lkey(lkey), addr: info.addr, length: info.length, access }
}

/// Returns the operation that binds a type 2 window. As with adapters, `mw` selects the window, and of `rkey` only the
/// tag is used.
///
/// # Safety
/// The window and the region, if not null, are the program's.
pub(crate) unsafe fn bind_operation_of_type_2(
    mw: *const abi::Mw,
    rkey: u32,
    info: &abi::MwBindInfo,
) -> Result<Operation> {
    // SAFETY: the caller's promise; the type never changes.
    if mw.is_null() || unsafe { (*mw).kind } != 2 {
        return Err(INVALID);
    }
    // SAFETY: the caller's promise. The key is not read from `mw`, where the program may have changed it.
    let key = unsafe { own(mw) }.inner.rkey().0 & !TAG | rkey & TAG;
    // SAFETY: the caller's promise.
    Ok(unsafe { bind_operation(key, info) })
}

/// Binds a type 1 window. Its new key is set when this returns, even if the request is not executed yet.
///
/// # Safety
/// All pointers are the program's.
unsafe fn bind(qp: *mut abi::Qp, mw: *mut abi::Mw, bind: &abi::MwBind) -> Result<()> {
    if bind.bind_info.length > 0 && bind.bind_info.mr.is_null() {
        return Err(INVALID);
    }
    // SAFETY: the caller's promise.
    let (queue_pair, window) = unsafe { (own(qp.cast::<QueuePairShell>()), own(mw)) };
    // The process is checked first: a lock inherited through a fork may be held by a thread that does not exist here.
    window.shared.check_process("bind_mw")?;
    // Held until the request is posted, so that concurrent binds get different keys, and the visible key is that of the
    // last one posted.
    let mut last_key = window.last_key.lock().unwrap_or_else(PoisonError::into_inner);
    let key = *last_key & !TAG | last_key.wrapping_add(1) & TAG;
    let request = SendRequest {
        wr_id: bind.wr_id,
        // SAFETY: the caller's promise.
        operation: unsafe { bind_operation(key, &bind.bind_info) },
        flags: SendFlags::from_bits_truncate(bind.send_flags),
        data: Data::Sges(&[]),
    };
    queue_pair.inner.send_one(&request)?;
    *last_key = key;
    // SAFETY: the caller's promise. This verb alone stores the key, under the lock.
    unsafe { (*mw).rkey = key };
    Ok(())
}

pub(crate) unsafe extern "C" fn bind_mw(qp: *mut abi::Qp, mw: *mut abi::Mw, info: *mut abi::MwBind) -> c_int {
    let _held = Uncancelled::begin();
    // SAFETY: the program's objects and structure.
    number(unsafe { bind(qp, mw, &*info) })
}
