//! Protection domains, the objects in them that are not queues (memory regions, windows, address handles), and device
//! memory.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::abi;
use super::context::{Context, slot};
use super::{check, not_supported};
use crate::memory::Region;
use crate::types::Sge;

/// `ibv_pd`.
pub(in super::super) struct ProtectionDomain {
    raw: NonNull<abi::Pd>,
    context: Arc<Context>,
}

// SAFETY: see the module's documentation.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    pub(in super::super) fn alloc(context: &Arc<Context>) -> io::Result<Arc<Self>> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.functions.alloc_pd)(context.raw()) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Arc::new(Self { raw, context: Arc::clone(context) }))
    }

    pub(super) fn raw(&self) -> *mut abi::Pd {
        self.raw.as_ptr()
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// `ibv_advise_mr`, with the library's numbers.
    pub(in super::super) fn advise(&self, advice: u32, flags: u32, ranges: &[Sge]) -> io::Result<()> {
        let advise = slot!(self.context, advise_mr).ok_or_else(not_supported)?;
        let count = u32::try_from(ranges.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        let mut ranges = ranges.to_vec();
        // SAFETY: the domain and `count` ranges live. Advice changes only when pages are looked up.
        check(unsafe { advise(self.raw(), advice, flags, ranges.as_mut_ptr(), count) })
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: everything in the domain holds it, so this is the last use.
        if !self.context.is_inherited() && unsafe { (self.context.functions.dealloc_pd)(self.raw()) } != 0 {
            tracing::warn!(
                target: "rdma_verbs::memory",
                device = self.context.info().name, "a protection domain could not be deallocated"
            );
        }
    }
}

/// A pointer that is taken out when its object is destroyed. Locked while it is used.
struct LockedPtr<T>(Mutex<Option<NonNull<T>>>);

impl<T> LockedPtr<T> {
    fn new(raw: NonNull<T>) -> Self {
        Self(Mutex::new(Some(raw)))
    }

    fn lock(&self) -> MutexGuard<'_, Option<NonNull<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `ibv_dm`.
pub(in super::super) struct DeviceMemory {
    raw: NonNull<abi::Dm>,
    length: u64,
    context: Arc<Context>,
}

// SAFETY: see the module's documentation; the copies have the semantics of memory that several threads may write at
// once.
unsafe impl Send for DeviceMemory {}
// SAFETY: as above.
unsafe impl Sync for DeviceMemory {}

/// Bytes that are copied to or from a device in one call. Aligned like words, because drivers copy words.
#[repr(C, align(8))]
struct Chunk([u8; 4096]);

impl DeviceMemory {
    /// Allocates zeroed memory, in whole words, because some devices copy nothing else.
    pub(in super::super) fn alloc(context: &Arc<Context>, length: u64, log_align_req: u32) -> io::Result<Arc<Self>> {
        let alloc = slot!(context, alloc_dm).ok_or_else(not_supported)?;
        let whole = length.checked_next_multiple_of(8).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let mut attributes = abi::AllocDmAttr { length: whole as usize, log_align_req, comp_mask: 0 };
        // SAFETY: the context and the attributes live.
        let raw = unsafe { alloc(context.raw(), &raw mut attributes) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        let mut memory = Self { raw, length: whole, context: Arc::clone(context) };
        memory.clear()?;
        memory.length = length;
        Ok(Arc::new(memory))
    }

    fn clear(&self) -> io::Result<()> {
        let zeros = [0; size_of::<Chunk>()];
        for offset in (0..self.length).step_by(zeros.len()) {
            let length = (self.length - offset).min(zeros.len() as u64);
            self.copy_in(offset, &zeros[..length as usize])?;
        }
        Ok(())
    }

    pub(in super::super) fn length(&self) -> u64 {
        self.length
    }

    /// Checks the bounds, which the library does not promise to do.
    fn check_bounds(&self, offset: u64, length: usize) -> io::Result<()> {
        let end = offset.checked_add(length as u64).filter(|end| *end <= self.length);
        end.map(drop).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))
    }

    pub(in super::super) fn copy_in(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check_bounds(offset, data.len())?;
        // SAFETY: allocated as long as this object lives; the functions do not change.
        let copy = unsafe { self.raw.as_ref().memcpy_to_dm }.ok_or_else(not_supported)?;
        let (mut chunk, mut offset) = (Chunk([0; size_of::<Chunk>()]), offset);
        for data in data.chunks(chunk.0.len()) {
            chunk.0[..data.len()].copy_from_slice(data);
            // SAFETY: the range lies in the device's memory, and `data.len()` bytes live here.
            check(unsafe { copy(self.raw.as_ptr(), offset, chunk.0.as_ptr().cast(), data.len()) })?;
            offset += data.len() as u64;
        }
        Ok(())
    }

    pub(in super::super) fn copy_out(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.check_bounds(offset, out.len())?;
        // SAFETY: as above.
        let copy = unsafe { self.raw.as_ref().memcpy_from_dm }.ok_or_else(not_supported)?;
        let (mut chunk, mut offset) = (Chunk([0; size_of::<Chunk>()]), offset);
        for out in out.chunks_mut(chunk.0.len()) {
            // SAFETY: as above, and the bytes here are this caller's alone.
            check(unsafe { copy(chunk.0.as_mut_ptr().cast(), self.raw.as_ptr(), offset, out.len()) })?;
            out.copy_from_slice(&chunk.0[..out.len()]);
            offset += out.len() as u64;
        }
        Ok(())
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.context.is_inherited() {
            return;
        }
        // SAFETY: regions of it hold it, so this is the last use.
        let freed = slot!(self.context, free_dm).map_or(0, |free| unsafe { free(self.raw.as_ptr()) });
        if freed != 0 {
            tracing::warn!(
                target: "rdma_verbs::memory", device = self.context.info().name, "device memory could not be freed"
            );
        }
    }
}

/// `ibv_mr`. Holds the memory until it is deregistered.
pub(in super::super) struct MemoryRegion {
    ptr: LockedPtr<abi::Mr>,
    region: Arc<Region>,
    lkey: u32,
    rkey: u32,
    /// Device memory that it is a part of, if any.
    _device_memory: Option<Arc<DeviceMemory>>,
    domain: Arc<ProtectionDomain>,
}

// SAFETY: see the module's documentation.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// Registers the memory of `region`. The object keeps it alive, forever if deregistration fails.
    pub(in super::super) fn register(
        domain: &Arc<ProtectionDomain>,
        region: &Arc<Region>,
        iova: u64,
        access: u32,
    ) -> io::Result<Self> {
        let length = usize::try_from(region.len()).map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let register = domain.context.functions.reg_mr_iova2;
        // SAFETY: the region owns `length` bytes from there on, or its creator vouches for them; it is held until they
        // are deregistered. Code that accesses them meanwhile does so in ways that may race with a device
        // (`crate::memory`).
        let raw = unsafe { register(domain.raw(), region.as_mut_ptr().cast(), length, iova, access) };
        Self::of(raw, domain, region, None)
    }

    /// Registers a part of device memory; `region` gives the length and has no bytes of this process.
    pub(in super::super) fn register_device(
        domain: &Arc<ProtectionDomain>,
        region: &Arc<Region>,
        memory: &Arc<DeviceMemory>,
        dm_offset: u64,
        access: u32,
    ) -> io::Result<Self> {
        memory.check_bounds(dm_offset, region.len() as usize)?;
        let register = slot!(domain.context, reg_dm_mr).ok_or_else(not_supported)?;
        let length = region.len() as usize;
        // SAFETY: the domain and the memory live, and the region holds the memory.
        let raw = unsafe { register(domain.raw(), memory.raw.as_ptr(), dm_offset, length, access) };
        Self::of(raw, domain, region, Some(Arc::clone(memory)))
    }

    /// Registers memory behind a descriptor, which the kernel keeps; `region` gives the length and has no bytes of this
    /// process.
    pub(in super::super) fn register_descriptor(
        domain: &Arc<ProtectionDomain>,
        region: &Arc<Region>,
        descriptor: BorrowedFd<'_>,
        offset: u64,
        access: u32,
    ) -> io::Result<Self> {
        let (register, number) = (domain.context.functions.reg_dmabuf_mr, descriptor.as_raw_fd());
        let length = region.len() as usize;
        // SAFETY: the domain lives, and the descriptor is open. Its memory is no part of this process.
        let raw = unsafe { register(domain.raw(), offset, length, region.iova(), number, access as c_int) };
        Self::of(raw, domain, region, None)
    }

    /// Wraps the result of a registering function.
    fn of(
        raw: *mut abi::Mr,
        domain: &Arc<ProtectionDomain>,
        region: &Arc<Region>,
        memory: Option<Arc<DeviceMemory>>,
    ) -> io::Result<Self> {
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: just made; the keys do not change.
        let (lkey, rkey) = unsafe { (raw.as_ref().lkey, raw.as_ref().rkey) };
        let (region, domain) = (Arc::clone(region), Arc::clone(domain));
        Ok(Self { ptr: LockedPtr::new(raw), region, lkey, rkey, _device_memory: memory, domain })
    }

    pub(in super::super) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    pub(in super::super) fn lkey(&self) -> u32 {
        self.lkey
    }

    pub(in super::super) fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Deregisters it: when this returns without an error, the device does not access the memory any more.
    /// Deregistering again does nothing.
    pub(in super::super) fn dereg(&self) -> io::Result<()> {
        let mut ptr = self.ptr.lock();
        let Some(raw) = *ptr else { return Ok(()) };
        // SAFETY: registered, and nothing else uses the pointer while it is locked. It is not used again if this
        // succeeds; if it fails, the library has kept it.
        check(unsafe { (self.domain.context.functions.dereg_mr)(raw.as_ptr()) })?;
        *ptr = None;
        Ok(())
    }

    /// Returns whether it is still registered.
    pub(in super::super) fn is_registered(&self) -> bool {
        self.ptr.lock().is_some()
    }

    /// Runs `use_it` with the pointer, if it is still registered.
    pub(super) fn with<R>(&self, use_it: impl FnOnce(*mut abi::Mr) -> R) -> Option<R> {
        let ptr = self.ptr.lock();
        (*ptr).map(|raw| use_it(raw.as_ptr()))
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        if self.domain.context.is_inherited() {
            // Kernels before 5.12 do not give registered pages to a child (`ibv_fork_init`), so it cannot free memory
            // in them.
            std::mem::forget(Arc::clone(&self.region));
            return;
        }
        if let Err(error) = self.dereg() {
            tracing::warn!(
                target: "rdma_verbs::memory",
                lkey = self.lkey, %error, "a memory region could not be deregistered: its memory is kept"
            );
            // The device may still access it, so it must never be freed.
            std::mem::forget(Arc::clone(&self.region));
        }
    }
}

/// `ibv_mw`.
pub(in super::super) struct MemoryWindow {
    ptr: LockedPtr<abi::Mw>,
    first_rkey: u32,
    domain: Arc<ProtectionDomain>,
}

// SAFETY: see the module's documentation.
unsafe impl Send for MemoryWindow {}
// SAFETY: as above.
unsafe impl Sync for MemoryWindow {}

impl MemoryWindow {
    pub(in super::super) fn alloc(domain: &Arc<ProtectionDomain>, kind: u32) -> io::Result<Self> {
        let alloc = domain.context.ops().alloc_mw.ok_or_else(not_supported)?;
        // SAFETY: the domain lives.
        let raw = unsafe { alloc(domain.raw(), kind) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: just made.
        let first_rkey = unsafe { raw.as_ref().rkey };
        Ok(Self { ptr: LockedPtr::new(raw), first_rkey, domain: Arc::clone(domain) })
    }

    /// Returns the key of the last binding that was posted, or the one that it was allocated with.
    pub(in super::super) fn rkey(&self) -> u32 {
        // SAFETY: allocated, and locked.
        self.with(|raw| unsafe { (*raw).rkey }).unwrap_or(self.first_rkey)
    }

    /// Restores the key after a posted binding failed.
    pub(in super::super) fn restore_rkey(&self, rkey: u32) {
        // SAFETY: allocated, and locked. The library requires programs to do this.
        self.with(|raw| unsafe { (*raw).rkey = rkey });
    }

    /// Deallocates it, bound or not. Deallocating again does nothing.
    pub(in super::super) fn dealloc(&self) -> io::Result<()> {
        let mut ptr = self.ptr.lock();
        let Some(raw) = *ptr else { return Ok(()) };
        let dealloc = self.domain.context.ops().dealloc_mw.ok_or_else(not_supported)?;
        // SAFETY: allocated, and nothing else uses the pointer while it is locked.
        check(unsafe { dealloc(raw.as_ptr()) })?;
        *ptr = None;
        Ok(())
    }

    /// Runs `use_it` with the pointer, if it is still allocated.
    pub(super) fn with<R>(&self, use_it: impl FnOnce(*mut abi::Mw) -> R) -> Option<R> {
        let ptr = self.ptr.lock();
        (*ptr).map(|raw| use_it(raw.as_ptr()))
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        if !self.domain.context.is_inherited()
            && let Err(error) = self.dealloc()
        {
            tracing::warn!(
                target: "rdma_verbs::memory",
                rkey = self.first_rkey, %error, "a memory window could not be deallocated"
            );
        }
    }
}

/// `ibv_ah`.
pub(in super::super) struct AddressHandle {
    raw: NonNull<abi::Ah>,
    domain: Arc<ProtectionDomain>,
}

// SAFETY: see the module's documentation.
unsafe impl Send for AddressHandle {}
// SAFETY: as above.
unsafe impl Sync for AddressHandle {}

impl AddressHandle {
    pub(in super::super) fn create(domain: &Arc<ProtectionDomain>, attributes: &abi::AhAttr) -> io::Result<Self> {
        let mut attributes = *attributes;
        // SAFETY: the domain and the attributes live.
        let raw = unsafe { (domain.context.functions.create_ah)(domain.raw(), &raw mut attributes) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { raw, domain: Arc::clone(domain) })
    }

    pub(super) fn raw(&self) -> *mut abi::Ah {
        self.raw.as_ptr()
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        let context = &self.domain.context;
        // SAFETY: requests that name it hold it, so this is the last use.
        if !context.is_inherited() && unsafe { (context.functions.destroy_ah)(self.raw()) } != 0 {
            tracing::warn!(
                target: "rdma_verbs::memory", device = context.info().name, "an address handle could not be destroyed"
            );
        }
    }
}
