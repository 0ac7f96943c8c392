//! Memory regions.

use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};

use rdma_verbs::provider::{self, Backing, DmaBufInit, RegionInit, Reregistration, abi};
use rdma_verbs::types::{AccessFlags, AdviceFlags, MemoryAdvice};

use crate::error::{Errno, INVALID, Result, UNSUPPORTED, number, pointer, set_errno};
use crate::object::{Object, Zeroed, make, own, take};
use crate::protection_domain::{ProtectionDomain, domain_of};
use crate::shared::Shared;
use crate::usage::Use;
use crate::version::exported;

/// Bits of `ibv_rereg_mr_flags`.
mod change {
    pub(super) const TRANSLATION: super::c_int = 1;
    pub(super) const PD: super::c_int = 1 << 1;
    pub(super) const ACCESS: super::c_int = 1 << 2;
}

/// Results of `ibv_rereg_mr` for invalid arguments, and for a refusal by the device. The region is unchanged.
const WRONG_INPUT: c_int = -1;
const COMMAND_FAILED: c_int = -4;

/// The state behind a memory region.
pub(crate) struct MemoryRegion {
    shared: Arc<Shared>,
    registration: Arc<Registration>,
    is_imported: bool,
    uses: Mutex<Uses>,
}

impl Object for abi::Mr {
    type Own = MemoryRegion;
}

/// The objects that a region uses until it is re-registered.
struct Uses {
    _domain: Use,
    /// Set if the region is of device memory.
    _device_memory: Option<Use>,
}

/// The state that an imported region shares with the original.
pub(crate) struct Registration {
    /// The region; re-registration replaces it.
    inner: Mutex<Arc<dyn provider::MemoryRegion>>,
    is_device_memory: bool,
}

impl Registration {
    fn inner(&self) -> Arc<dyn provider::MemoryRegion> {
        Arc::clone(&self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Creates the region that the program sees.
pub(crate) fn visible(
    domain: &ProtectionDomain,
    pd: *mut abi::Pd,
    inner: Arc<dyn provider::MemoryRegion>,
    (addr, length): (*mut c_void, usize),
    device_memory: Option<Use>,
) -> *mut abi::Mr {
    let is_device_memory = device_memory.is_some();
    let uses = Uses { _domain: domain.users.begin(), _device_memory: device_memory };
    let handle = domain.shared.next_handle();
    let (lkey, rkey) = (inner.lkey().0, inner.rkey().0);
    let registration = Arc::new(Registration { inner: Mutex::new(inner), is_device_memory });
    let offered: std::sync::Weak<Registration> = Arc::downgrade(&registration);
    domain.shared.offer(handle, offered);
    // SAFETY: the domain is the program's, and this field never changes.
    let context = unsafe { (*pd).context };
    let visible = abi::Mr { context, pd, addr, length, handle, lkey, rkey };
    let shared = Arc::clone(&domain.shared);
    make(visible, MemoryRegion { shared, registration, is_imported: false, uses: Mutex::new(uses) })
}

/// Returns whether the arguments request the whole address space: an implicit on-demand region.
fn is_everything(addr: *mut c_void, length: usize, access: AccessFlags) -> bool {
    addr.is_null() && length == usize::MAX && access.contains(AccessFlags::ON_DEMAND)
}

/// Registers a range.
///
/// # Safety
/// The domain is the program's, and so is the memory.
unsafe fn register(
    pd: *mut abi::Pd,
    (addr, length): (*mut c_void, usize),
    iova: Option<u64>,
    access: c_int,
) -> Result<*mut abi::Mr> {
    // SAFETY: the caller's promise.
    let domain = unsafe { domain_of(pd)? };
    let access = AccessFlags::from_bits_retain(access as u32);
    let backing = if is_everything(addr, length, access) {
        // SAFETY: the program allows requests with the region's key to access any address, as the crate documents.
        unsafe { Backing::address_space() }
    } else {
        // SAFETY: the program's memory, which it allows requests to access until the region is deregistered.
        unsafe { Backing::raw(addr.cast(), length) }
    };
    let mut options = RegionInit::default().access(access);
    options.iova = iova;
    let inner = domain.domain.inner.reg_mr_with(backing, &options)?;
    Ok(visible(domain, pd, inner, (addr, length), None))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr(pd: *mut abi::Pd, addr: *mut c_void, length: usize, access: c_int) -> *mut abi::Mr {
    // SAFETY: the program's domain and memory.
    pointer(unsafe { register(pd, (addr, length), None, access) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut abi::Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut abi::Mr {
    // SAFETY: the program's domain and memory.
    pointer(unsafe { register(pd, (addr, length), Some(iova), access) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut abi::Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> *mut abi::Mr {
    // SAFETY: the program's domain and memory.
    pointer(unsafe { register(pd, (addr, length), Some(iova), access as c_int) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut abi::Pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut abi::Mr {
    let register = || {
        // SAFETY: the program's domain.
        let domain = unsafe { domain_of(pd)? };
        if fd < 0 {
            return Err(Errno(libc::EBADF));
        }
        // SAFETY: the program's descriptor, borrowed for this call; if it is not open, the call fails.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let access = AccessFlags::from_bits_retain(access as u32);
        let init = DmaBufInit { fd, offset, length: length as u64, iova: Some(iova), access };
        let inner = domain.domain.inner.reg_dmabuf_mr(&init)?;
        Ok(visible(domain, pd, inner, (offset as *mut c_void, length), None))
    };
    pointer(register())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(mr: *mut abi::Mr) -> c_int {
    // SAFETY: the program's region; only this library uses the field `handle`.
    let (region, handle) = unsafe { (own(mr), (*mr).handle) };
    let end = || {
        region.shared.check_process("dereg_mr")?;
        region.registration.inner().dereg()?;
        if !region.is_imported {
            region.shared.withdraw(handle);
        }
        // SAFETY: the program gives it up.
        drop(unsafe { take(mr) });
        Ok(())
    };
    number(end())
}

/// Converts the arguments of a change, if they are valid.
fn checked(
    flags: c_int,
    (addr, length): (*mut c_void, usize),
    access: c_int,
    has_domain: bool,
) -> Result<Reregistration> {
    let known = change::TRANSLATION | change::PD | change::ACCESS;
    let moves = flags & change::TRANSLATION != 0;
    let is_right = flags & !known == 0
        && flags != 0
        && (!moves || !addr.is_null() && length > 0)
        && (access == 0 || flags & change::ACCESS != 0)
        && (flags & change::PD == 0 || has_domain);
    if !is_right {
        return Err(INVALID);
    }
    let access = (flags & change::ACCESS != 0).then(|| AccessFlags::from_bits_retain(access as u32));
    // SAFETY: the program's memory, which it allows requests to access until the region is deregistered.
    let backing = moves.then(|| unsafe { Backing::raw(addr.cast(), length) });
    // Peers may have the key, so it stays valid for the same memory in the same domain.
    Ok(Reregistration { backing, iova: None, access, keep_keys: flags == change::ACCESS })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut abi::Mr,
    flags: c_int,
    pd: *mut abi::Pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let wanted = match checked(flags, (addr, length), access, !pd.is_null()) {
        Ok(wanted) => wanted,
        Err(error) => {
            set_errno(error);
            return WRONG_INPUT;
        }
    };
    let pd = (flags & change::PD != 0).then_some(pd);
    let moved = (flags & change::TRANSLATION != 0).then_some((addr, length));
    // SAFETY: the program's region and domain.
    let done = unsafe { reregister(mr, pd, wanted, moved) };
    done.map_or_else(
        |error| {
            set_errno(error);
            COMMAND_FAILED
        },
        |()| 0,
    )
}

/// Re-registers in this domain; `None`: in the same one.
///
/// # Safety
/// `mr` and `pd` are the program's.
unsafe fn reregister(
    mr: *mut abi::Mr,
    pd: Option<*mut abi::Pd>,
    wanted: Reregistration,
    moved: Option<(*mut c_void, usize)>,
) -> Result<()> {
    // SAFETY: the caller's promise.
    let region = unsafe { own(mr) };
    region.shared.check_process("rereg_mr")?;
    if region.registration.is_device_memory {
        tracing::info!(
            target: "rdma_verbs::c_library",
            "rereg_mr: the region is device memory, which cannot be re-registered, as in Linux"
        );
        return Err(INVALID);
    }
    let mut inner = region.registration.inner.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the caller's promise. This verb alone stores the field, under the lock, so that a concurrent call does
    // not go on with a domain that the region has left, and that may be deallocated.
    let (pd, domain) = unsafe {
        let pd = pd.unwrap_or_else(|| (*mr).pd);
        (pd, domain_of(pd)?)
    };
    *inner = domain.domain.inner.rereg_mr(&inner, wanted)?;
    let mut uses = region.uses.lock().unwrap_or_else(PoisonError::into_inner);
    uses._domain = domain.users.begin();
    // SAFETY: the program does not read these fields while this verb changes them.
    unsafe {
        ((*mr).lkey, (*mr).rkey, (*mr).pd) = (inner.lkey().0, inner.rkey().0, pd);
        if let Some((addr, length)) = moved {
            ((*mr).addr, (*mr).length) = (addr, length);
        }
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn advise_mr(
    pd: *mut abi::Pd,
    advice: u32,
    flags: u32,
    list: *mut abi::Sge,
    count: u32,
) -> c_int {
    let advice = match advice {
        0 => MemoryAdvice::Prefetch,
        1 => MemoryAdvice::PrefetchWrite,
        2 => MemoryAdvice::PrefetchNoFault,
        _ => return UNSUPPORTED.0,
    };
    if list.is_null() || count == 0 {
        return INVALID.0;
    }
    // SAFETY: the program's list of `count` entries, and its domain.
    let (list, domain) = unsafe { (std::slice::from_raw_parts(list, count as usize), domain_of(pd)) };
    let flags = AdviceFlags::from_bits_retain(flags);
    number(domain.and_then(|domain| Ok(domain.domain.inner.advise_mr(advice, flags, list)?)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_mr(pd: *mut abi::Pd, handle: u32) -> *mut abi::Mr {
    let import = || {
        // SAFETY: the program's domain.
        let domain = unsafe { domain_of(pd)? };
        let registration: Arc<Registration> = domain.shared.import(handle)?;
        let inner = registration.inner();
        // SAFETY: as above; this field never changes.
        let context = unsafe { (*pd).context };
        let (lkey, rkey) = (inner.lkey().0, inner.rkey().0);
        let length = usize::try_from(inner.region().len()).unwrap_or(usize::MAX);
        let visible = abi::Mr { context, pd, handle, lkey, rkey, length, ..abi::Mr::zeroed() };
        let uses = Mutex::new(Uses { _domain: domain.users.begin(), _device_memory: None });
        Ok(make(visible, MemoryRegion { shared: Arc::clone(&domain.shared), registration, is_imported: true, uses }))
    };
    pointer(import())
}

/// Releases an imported region; the original stays.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_unimport_mr(mr: *mut abi::Mr) {
    // SAFETY: the program gives it up.
    drop(unsafe { take(mr) });
}

exported! {
    "IBVERBS_1.1": ibv_reg_mr ibv_dereg_mr ibv_rereg_mr;
    "IBVERBS_1.7": ibv_reg_mr_iova;
    "IBVERBS_1.8": ibv_reg_mr_iova2;
    "IBVERBS_1.10": ibv_import_mr ibv_unimport_mr;
    "IBVERBS_1.12": ibv_reg_dmabuf_mr;
}
