//! Device memory.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use rdma_verbs::provider::{self, DeviceMemoryInit, abi};
use rdma_verbs::types::AccessFlags;

use crate::error::{Errno, INVALID, Result, UNSUPPORTED, number, pointer};
use crate::memory_region;
use crate::object::{Object, make, own, take};
use crate::protection_domain::domain_of;
use crate::shared::{Shared, shared_of};
use crate::usage::Users;
use crate::version::exported;

/// `IBV_DM_MASK_HANDLE`.
const HAS_HANDLE: u32 = 1;

/// The state behind device memory.
pub(crate) struct DeviceMemory {
    shared: Arc<Shared>,
    memory: Arc<Memory>,
    users: Users,
    is_imported: bool,
}

impl Object for abi::Dm {
    type Own = DeviceMemory;
}

/// The state that imported memory shares with the original.
struct Memory(Arc<dyn provider::DeviceMemory>);

fn visible(
    shared: &Arc<Shared>,
    context: *mut abi::Context,
    memory: Arc<Memory>,
    handle: u32,
    is_imported: bool,
) -> *mut abi::Dm {
    let visible = abi::Dm {
        context,
        memcpy_to_dm: Some(memcpy_to_dm),
        memcpy_from_dm: Some(memcpy_from_dm),
        comp_mask: HAS_HANDLE,
        handle,
    };
    make(visible, DeviceMemory { shared: Arc::clone(shared), memory, users: Users::default(), is_imported })
}

pub(crate) unsafe extern "C" fn alloc_dm(context: *mut abi::Context, init: *mut abi::AllocDmAttr) -> *mut abi::Dm {
    // SAFETY: the program's context and structure.
    let (shared, init) = unsafe { (shared_of(context), &*init) };
    let alloc = || {
        if init.comp_mask != 0 {
            return Err(UNSUPPORTED);
        }
        let wanted = DeviceMemoryInit { length: init.length as u64, log_align_req: init.log_align_req };
        let memory = Arc::new(Memory(shared.device.alloc_dm(&wanted)?));
        let handle = shared.next_handle();
        let offered: std::sync::Weak<Memory> = Arc::downgrade(&memory);
        shared.offer(handle, offered);
        Ok(visible(shared, context, memory, handle, false))
    };
    pointer(alloc())
}

pub(crate) unsafe extern "C" fn free_dm(dm: *mut abi::Dm) -> c_int {
    // SAFETY: the program's memory; only this library uses the field `handle`.
    let (memory, handle) = unsafe { (own(dm), (*dm).handle) };
    let end = || {
        memory.shared.check_process("free_dm")?;
        memory.users.check_none()?;
        if !memory.is_imported {
            memory.shared.withdraw(handle);
        }
        // SAFETY: the program gives it up, and nothing uses it.
        drop(unsafe { take(dm) });
        Ok(())
    };
    number(end())
}

pub(crate) unsafe extern "C" fn reg_dm_mr(
    pd: *mut abi::Pd,
    dm: *mut abi::Dm,
    offset: u64,
    length: usize,
    access: u32,
) -> *mut abi::Mr {
    let register = || {
        // SAFETY: the program's domain and memory.
        let (domain, memory) = unsafe { (domain_of(pd)?, own(dm)) };
        let access = AccessFlags::from_bits_retain(access);
        if !access.contains(AccessFlags::ZERO_BASED) {
            return Err(INVALID);
        }
        let inner = domain.domain.inner.reg_dm_mr(&memory.memory.0, offset, length as u64, access)?;
        Ok(memory_region::visible(domain, pd, inner, (std::ptr::null_mut(), length), Some(memory.users.begin())))
    };
    pointer(register())
}

/// Returns whether offset and length are multiples of 4. Other ranges are refused, because adapters copy words.
fn is_aligned(offset: u64, length: usize) -> bool {
    offset.is_multiple_of(4) && length.is_multiple_of(4)
}

unsafe extern "C" fn memcpy_to_dm(dm: *mut abi::Dm, offset: u64, from: *const c_void, length: usize) -> c_int {
    if !is_aligned(offset, length) {
        return INVALID.0;
    }
    if length == 0 {
        return 0;
    }
    // SAFETY: the program's memory, and its bytes, which may be read.
    let (memory, from) = unsafe { (own(dm), std::slice::from_raw_parts(from.cast(), length)) };
    number(memory.memory.0.copy_in(offset, from).map_err(Errno::from))
}

unsafe extern "C" fn memcpy_from_dm(to: *mut c_void, dm: *mut abi::Dm, offset: u64, length: usize) -> c_int {
    if !is_aligned(offset, length) {
        return INVALID.0;
    }
    if length == 0 {
        return 0;
    }
    // SAFETY: the program's memory, and its bytes, which may be written; each of them holds some value.
    let (memory, to) = unsafe { (own(dm), std::slice::from_raw_parts_mut(to.cast(), length)) };
    number(memory.memory.0.copy_out(offset, to).map_err(Errno::from))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_dm(context: *mut abi::Context, handle: u32) -> *mut abi::Dm {
    // SAFETY: the program's context.
    let shared = unsafe { shared_of(context) };
    let imported: Result<Arc<Memory>> = shared.import(handle);
    pointer(imported.map(|memory| visible(shared, context, memory, handle, true)))
}

/// Releases imported memory; the original stays.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_unimport_dm(dm: *mut abi::Dm) {
    // SAFETY: the program gives it up.
    drop(unsafe { take(dm) });
}

exported! {
    "IBVERBS_1.13": ibv_import_dm ibv_unimport_dm;
}
