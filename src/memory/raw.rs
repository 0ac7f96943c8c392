//! The unsafe part of registered memory: the ownership of the bytes, and every access to them.
//!
//! Every access goes through [`Memory`]: it holds a backing and its address, checks bounds, and picks one of two access
//! methods.
//!
//! *Direct*, for the library's own memory. On x86-64 every access, copies and atomics alike, is a machine instruction
//! in an `asm!` block. Such an access is opaque to the compiler, which must assume that it reads and writes any memory
//! it can reach; so when it overlaps the access of another thread, of any size, only the rules of the machine apply.
//! Elsewhere, and where a checker must see the accesses (loom, Miri, sanitizers with `--cfg rdma_verbs_sanitize`), they
//! are relaxed atomics of bytes and words.
//!
//! *Guarded*, for raw ranges and file mappings, whose pages others can unmap. Again there are two methods.
//!
//! * If the program called [`recover_from_faults`], accesses are the direct ones, in blocks of their own. A table
//!   lists the addresses of these blocks, and a signal handler ends a block that hits a missing page, and sets a flag.
//!   That costs some nanoseconds.
//! * Otherwise, and whenever a check finds that the handler is not in place or that the thread blocks its signals, the
//!   kernel makes the copy (`process_vm_readv` and `process_vm_writev` on this process), and reports a missing page as
//!   an error. That costs 0.4 to 0.9 µs for a copy out, and about 0.4 µs more for a copy in, whose tail is a separate
//!   segment. Loads and stores of words use the same calls.
//!
//! There is no such call for read-modify-write atomics. Reading a word and writing it back through the kernel would not
//! be atomic with respect to the processor or another process: it would lose updates silently, although a peer's
//! atomics are documented as host atomics. So without the handler a guarded atomic first has the kernel make the page
//! present and writable, which reports [`AccessError::Fault`] if it cannot, and then executes the instruction. The
//! process gets the signal only if the page is unmapped between these two steps, nanoseconds apart unless the thread is
//! interrupted just there. That is better than lost updates: it happens only if a program unmaps or truncates memory at
//! the very moment at which a peer changes it, and it cannot go unnoticed.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::{AccessError, Backing, RecoverError};
use crate::checksum::{self, Sum};

#[cfg(all(target_arch = "x86_64", target_pointer_width = "64", not(any(loom, miri, rdma_verbs_sanitize))))]
#[path = "raw/instructions.rs"]
mod direct;
#[cfg(not(all(target_arch = "x86_64", target_pointer_width = "64", not(any(loom, miri, rdma_verbs_sanitize)))))]
#[path = "raw/atomics.rs"]
mod direct;
pub(super) mod exported;
mod guarded;
#[cfg(all(target_arch = "x86_64", target_pointer_width = "64", not(any(loom, miri, rdma_verbs_sanitize))))]
mod handler;
mod kernel;
#[cfg(all(target_arch = "x86_64", target_pointer_width = "64", not(any(loom, miri, rdma_verbs_sanitize))))]
mod recovery;
#[cfg(not(all(target_arch = "x86_64", target_pointer_width = "64", not(any(loom, miri, rdma_verbs_sanitize)))))]
#[path = "raw/no_recovery.rs"]
mod recovery;
#[cfg(all(test, target_arch = "x86_64", target_pointer_width = "64", not(any(loom, miri, rdma_verbs_sanitize))))]
mod recovery_tests;
pub(super) mod sealed;
#[cfg(all(test, not(loom)))]
mod tests;

pub(super) use kernel::{Unusable, probe};

/// Distance in bytes between a read and the memory that it prefetches: large enough for the data to arrive in time from
/// any cache or memory.
const FETCHED_AHEAD_BYTES: usize = 8_192;

impl Backing {
    /// Wraps `len` bytes from `addr`, which the caller owns.
    ///
    /// Accesses never raise a signal, even if the range is unmapped after all: they fail with [`AccessError::Fault`].
    /// The kernel makes them, unless [`recover_from_faults`] was called, which makes them several times as fast. (The
    /// exception is a peer's atomic within nanoseconds of the unmapping: without that call, and with it wherever the
    /// kernel still makes the copies.) Registration refuses a range that is not fully mapped.
    ///
    /// # Safety
    /// Until the backing is dropped (a region owns it while it is registered, and may give it back):
    /// * the range belongs to the caller, who lets this library, and every party that the region's access flags admit,
    ///   read it and, with `LOCAL_WRITE`, write it at any time;
    /// * no `&mut` to any of these bytes is used, and with `LOCAL_WRITE` no `&` either, except to bytes in
    ///   `UnsafeCell`s or atomics; plain accesses through pointers must not race with this library's;
    /// * nothing else is placed at these addresses: if the memory is freed or unmapped, accesses would read and
    ///   overwrite whatever lies there next.
    pub unsafe fn raw(addr: *mut u8, len: usize) -> Self {
        RawRange { address: addr, length: len }.into()
    }

    /// Wraps all memory of this process, present and future: 2^64 - 1 bytes from address 0. Register it with
    /// [`AccessFlags::ON_DEMAND`](crate::types::AccessFlags::ON_DEMAND). Requests name its bytes by their addresses;
    /// accessing a page that is missing or not writable is an [`AccessError::Fault`].
    ///
    /// Copies and atomics access the bytes by exposed provenance.
    ///
    /// # Safety
    /// From registration until the region is deregistered and dropped, everything that names bytes of it (requests of
    /// this process and of peers by its keys, windows that are bound to it, the methods of [`Region`](super::Region))
    /// names only bytes for which the requirements of [`Backing::raw`] hold as long as the access may happen, and whose
    /// provenance was exposed. Nothing in this process is out of reach: neither the stacks, nor the heap, nor this
    /// library's own memory.
    pub unsafe fn address_space() -> Self {
        RawRange { address: std::ptr::null_mut(), length: usize::MAX }.into()
    }
}

/// Memory whose validity the caller of [`Backing::raw`] guarantees.
#[derive(Debug)]
pub(super) struct RawRange {
    address: *mut u8,
    length: usize,
}

// SAFETY: a `RawRange` only names memory. The caller of `Backing::raw` promised that the library may access that memory
// at any time; nothing in the promise depends on the thread.
unsafe impl Send for RawRange {}
// SAFETY: as for `Send`; and `&RawRange` allows nothing but reading the two numbers.
unsafe impl Sync for RawRange {}

impl RawRange {
    pub(super) fn len(&self) -> usize {
        self.length
    }

    pub(super) fn as_mut_ptr(&self) -> *mut u8 {
        self.address
    }
}

/// Makes accesses to memory owned by others, raw ranges and files, as fast as those to the library's
/// own memory, by handlers of the signals SIGSEGV and SIGBUS. An access of this library that hits a missing page then
/// fails. All other signals go to the handlers that were installed before; where there was
/// none, the process ends as it would have. The handlers stay until the process ends; calling this again changes
/// nothing.
///
/// The library never installs them by itself, because a process has only one handler of each signal. Without them the
/// kernel makes each copy, at half a microsecond and more. It also does so at any later time
///
/// * in a thread that blocks one of the two signals;
/// * in all threads, permanently, if the program installed another handler: the library's handlers are not installed a
///   second time.
///
/// In both cases, a peer's atomic within nanoseconds of the unmapping may raise the signal.
///
/// Both conditions are checked before an access, at first about every 100 µs, and less and less often while nothing
/// changes, down to once every few milliseconds. If a program does one of the two *and* unmaps or truncates registered
/// memory that is in use, between two checks or during one access, its own handler is called, or the signal ends the
/// process.
///
/// The handlers are code of the program or library that contains this crate. A library that can be unloaded must not
/// call this, unless it is linked with `-z nodelete`, as the library for C programs is. If two libraries in one process
/// call it, only the later one has its handlers in place.
///
/// # Errors
/// The kernel makes the copies as before:
///
/// * [`RecoverError::Unsupported`] on processors other than x86-64, and under Miri and sanitizers;
/// * [`RecoverError::Refused`] if the kernel refuses a handler; the first one stays if it was accepted, and passes all
///   signals to the previous handler. The call may be repeated;
/// * [`RecoverError::Replaced`] if another handler was installed since the first call.
///
/// ```
/// use std::fs::File;
/// use rdma_verbs::verbs::{self, AccessFlags, Memory, RecoverError};
///
/// match verbs::recover_from_faults() {
///     Ok(()) | Err(RecoverError::Unsupported) => {}
///     Err(error) => return Err(error.into()),
/// }
/// # let path = std::env::temp_dir().join(format!("rdma-verbs-recover-{}", std::process::id()));
/// # let file = File::options().read(true).write(true).create_new(true).open(&path)?;
/// # std::fs::remove_file(&path)?;
/// file.set_len(8192)?;
/// let pd = verbs::open("soft:127.0.1.242")?.alloc_pd()?;
/// let mr = pd.reg_mr(Memory::file(&file, 0, 8192, true)?, AccessFlags::LOCAL_WRITE)?;
/// mr.write_at(8000, b"there")?;
/// file.set_len(0)?;
/// assert!(mr.write_at(8000, b"gone").is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn recover_from_faults() -> Result<(), RecoverError> {
    recovery::install()
}

/// The raw parts of a vector. Moving a `Vec` or `Box` asserts that nothing else accesses its bytes, which does not
/// hold while they are registered; the parts assert nothing.
#[derive(Debug)]
pub(super) struct OwnedBytes {
    address: NonNull<u8>,
    length: usize,
    capacity: usize,
}

// SAFETY: an `OwnedBytes` is the only owner of its bytes, as the `Vec<u8>` it came from, which is `Send`.
unsafe impl Send for OwnedBytes {}
// SAFETY: `&OwnedBytes` allows nothing but reading the numbers; the bytes are accessed through `Memory` alone.
unsafe impl Sync for OwnedBytes {}

impl OwnedBytes {
    pub(super) fn len(&self) -> usize {
        self.length
    }

    pub(super) fn as_mut_ptr(&self) -> *mut u8 {
        self.address.as_ptr()
    }
}

impl From<Vec<u8>> for OwnedBytes {
    fn from(bytes: Vec<u8>) -> Self {
        let mut bytes = ManuallyDrop::new(bytes);
        let address = NonNull::new(bytes.as_mut_ptr()).expect("the pointer of a vector is never null");
        Self { address, length: bytes.len(), capacity: bytes.capacity() }
    }
}

impl From<OwnedBytes> for Vec<u8> {
    fn from(bytes: OwnedBytes) -> Self {
        let bytes = ManuallyDrop::new(bytes);
        // SAFETY: the parts are those of a `Vec<u8>` that was forgotten in `From<Vec<u8>>`, the only constructor, and
        // never change. `bytes` is consumed without running its destructor, so the vector is rebuilt only once.
        unsafe { Vec::from_raw_parts(bytes.address.as_ptr(), bytes.length, bytes.capacity) }
    }
}

impl Drop for OwnedBytes {
    fn drop(&mut self) {
        // SAFETY: as in `From<OwnedBytes>`; the destructor runs at most once, and not after that conversion.
        drop(unsafe { Vec::from_raw_parts(self.address.as_ptr(), self.length, self.capacity) });
    }
}

/// A backing together with the address of its bytes. All accesses of this library go through it.
///
/// Every access relies on the *invariant*: `base` and `length` name the bytes of `owner`, which stay allocated as long
/// as any of its holders lives (a mapping is unmapped and a vector freed in its destructor, both types are private to
/// this layer, neither shrinks, and a part of device memory holds the whole), except that the pages of a backing that
/// `can_fault` may vanish; a backing elsewhere has no bytes here, and no access to it gets past `exposed`. No reference
/// to these bytes exists: `owner` holds pointers; for a raw range the caller of [`Backing::raw`] promised it, and for
/// the whole address space the caller of [`Backing::address_space`] did, for the bytes that are accessed.
#[derive(Debug)]
pub(super) struct Memory {
    base: *mut u8,
    length: usize,
    guarded: bool,
    writable: bool,
    owner: Arc<Backing>,
}

// SAFETY: `owner` is `Send` and `Sync`, and `base` names what it owns.
unsafe impl Send for Memory {}
// SAFETY: the methods that take `&self` access the bytes only by the copies and atomics of this module, which may run
// at the same time in any number of threads; nothing else is changed through `&self`.
unsafe impl Sync for Memory {}

impl Memory {
    pub(super) fn new(owner: Backing) -> Self {
        Self {
            base: owner.as_mut_ptr(),
            length: owner.len(),
            guarded: owner.can_fault(),
            writable: owner.is_writable(),
            owner: Arc::new(owner),
        }
    }

    /// Returns another handle to the same bytes, which both keep alive.
    pub(super) fn share(&self) -> Self {
        let owner = Arc::clone(&self.owner);
        Self { base: self.base, length: self.length, guarded: self.guarded, writable: self.writable, owner }
    }

    pub(super) fn backing(&self) -> &Backing {
        &self.owner
    }

    /// Returns the backing, unless the bytes are shared.
    pub(super) fn into_owner(self) -> Result<Backing, Self> {
        let Self { base, length, guarded, writable, owner } = self;
        Arc::try_unwrap(owner).map_err(|owner| Self { base, length, guarded, writable, owner })
    }

    pub(super) fn base(&self) -> *mut u8 {
        self.base
    }

    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// Copies out, in any order.
    #[inline]
    pub(super) fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), AccessError> {
        let source = self.at(offset, out.len())?;
        if self.guarded {
            // SAFETY: `at` found the range in bounds of a raw range or file mapping. The caller of `Backing::raw`
            // promised that reading it is allowed where it is readable, and that nothing else lies there; a file
            // mapping of ours is only ever unmapped by `owner`'s destructor. `out` does not overlap it, because no
            // reference to it exists.
            return unsafe { guarded::read(self.exposed(source)?, out) };
        }
        // SAFETY: `at` found the range in bounds, so by the invariant it is mapped; `out` cannot overlap it, because
        // no reference to registered bytes exists.
        unsafe { direct::copy_out(source, out) };
        Ok(())
    }

    /// Copies out, and sums the bytes if that is nearly free. `more_follow`: the bytes that follow are read soon.
    #[inline]
    pub(super) fn read_summed(
        &self,
        offset: usize,
        out: &mut [u8],
        more_follow: bool,
    ) -> Result<Option<Sum>, AccessError> {
        let source = self.at(offset, out.len())?;
        let ahead = if more_follow { FETCHED_AHEAD_BYTES.min(self.length - offset - out.len()) } else { 0 };
        let sum = if self.guarded {
            // SAFETY: as in `read`.
            unsafe { guarded::read_summed(self.exposed(source)?, out, ahead) }?
        } else {
            // SAFETY: as in `read`. Its loads are as opaque to the compiler as those of `direct`.
            unsafe { checksum::copy(source, out, ahead) }
        };
        if sum.is_some() {
            return Ok(sum);
        }
        self.read(offset, out).map(|()| None)
    }

    /// Copies in: body first, then the tail in naturally aligned stores, the last byte in the last store.
    #[inline]
    pub(super) fn write(&self, offset: usize, data: &[u8]) -> Result<(), AccessError> {
        let target = self.at(offset, data.len())?;
        self.check_writable()?;
        if self.guarded {
            // SAFETY: as in `read`, and writing is allowed where the range is writable.
            return unsafe { guarded::write(self.exposed(target)?, data) };
        }
        // SAFETY: as in `read`, and the pages of a backing that is not guarded are writable.
        unsafe { direct::copy_in(target, data) };
        Ok(())
    }

    /// Copies to other memory, as [`Memory::write`] does. Of ranges that overlap, a mixture of old and new bytes.
    #[inline]
    pub(super) fn copy_to(
        &self,
        offset: usize,
        target: &Self,
        target_offset: usize,
        length: usize,
    ) -> Result<(), AccessError> {
        let (source, place) = (self.at(offset, length)?, target.at(target_offset, length)?);
        target.check_writable()?;
        if self.guarded || target.guarded {
            // SAFETY: as in `read` for the one and in `write` for the other; what is not guarded is mapped.
            return unsafe { guarded::copy_across(target.exposed(place)?, self.exposed(source)?, length) };
        }
        // SAFETY: as in `read` for the one and in `write` for the other.
        unsafe { direct::copy_across(place, source, length) };
        Ok(())
    }

    /// Atomically replaces the word with `new` if it equals `current`; returns the previous value.
    pub(super) fn compare_exchange_u64(&self, offset: usize, current: u64, new: u64) -> Result<u64, AccessError> {
        let word = self.word_for_update(offset)?;
        if self.guarded {
            // SAFETY: `word_for_update` found the word in bounds and aligned; changing it is allowed where it is
            // writable, as in `write`.
            return unsafe { guarded::compare_exchange_u64(word, current, new) };
        }
        // SAFETY: as above, and it is mapped and writable.
        Ok(unsafe { direct::compare_exchange_u64(word, current, new) })
    }

    /// Atomically adds to the word, modulo 2^64; returns the previous value.
    pub(super) fn fetch_add_u64(&self, offset: usize, add: u64) -> Result<u64, AccessError> {
        let word = self.word_for_update(offset)?;
        if self.guarded {
            // SAFETY: as in `compare_exchange_u64`.
            return unsafe { guarded::fetch_add_u64(word, add) };
        }
        // SAFETY: as in `compare_exchange_u64`.
        Ok(unsafe { direct::fetch_add_u64(word, add) })
    }

    /// Stores the word in place with a single store, visible after everything stored before. The kernel's copy, which
    /// may be torn, is never used.
    pub(super) fn store_in_place_u64(&self, offset: usize, value: u64) -> Result<(), AccessError> {
        let word = self.word_for_update(offset)?;
        if self.guarded {
            // SAFETY: as in `compare_exchange_u64`.
            return unsafe { guarded::store_in_place_u64(word, value) };
        }
        // SAFETY: as in `compare_exchange_u64`.
        unsafe { direct::store_release_u64(word, value) };
        Ok(())
    }

    /// A fence with sequentially consistent ordering, between accesses to any memory.
    #[inline]
    pub(super) fn fence() {
        direct::full_fence();
    }

    /// Makes earlier writes globally visible and, if `persist`, durable in the file.
    pub(super) fn flush(&self, offset: usize, length: usize, persist: bool) -> Result<(), AccessError> {
        let start = self.at(offset, length)?;
        fence(Ordering::SeqCst);
        if persist { kernel::synchronize(start, length) } else { Ok(()) }
    }

    /// Makes the pages of a range present, and writable if `write`.
    pub(super) fn make_present(&self, offset: usize, length: usize, write: bool) -> Result<(), Unusable> {
        let start = self.at(offset, length).map_err(|_| Unusable::NotMapped)?;
        if self.owner.is_elsewhere() {
            return Err(Unusable::NotMapped);
        }
        match probe(start, length, write) {
            // The library's own memory works without these calls: its pages become present on access.
            Err(Unusable::NoCopy { .. }) if !self.guarded => Ok(()),
            other => other,
        }
    }

    fn word_for_update(&self, offset: usize) -> Result<*mut u64, AccessError> {
        let word = self.aligned_at(offset, size_of::<u64>())?;
        self.check_writable()?;
        Ok(if self.guarded { self.exposed(word)? } else { word }.cast())
    }

    /// Returns the pointer by which memory owned by others is accessed. In the whole address space every allocation has
    /// its own provenance, so the pointer takes an exposed one. Memory elsewhere has no pointer.
    fn exposed(&self, pointer: *mut u8) -> Result<*mut u8, AccessError> {
        if !self.base.is_null() {
            return Ok(pointer);
        }
        if self.owner.is_elsewhere() {
            return Err(AccessError::Elsewhere);
        }
        Ok(std::ptr::with_exposed_provenance_mut(pointer.addr()))
    }

    fn aligned_at(&self, offset: usize, size: usize) -> Result<*mut u8, AccessError> {
        let word = self.at(offset, size)?;
        if !word.addr().is_multiple_of(size) {
            return Err(AccessError::Misaligned);
        }
        Ok(word)
    }

    fn check_writable(&self) -> Result<(), AccessError> {
        if self.writable { Ok(()) } else { Err(AccessError::NoPermission) }
    }

    /// Returns the address of the range, if it is in bounds.
    #[inline]
    fn at(&self, offset: usize, length: usize) -> Result<*mut u8, AccessError> {
        if offset > self.length || length > self.length - offset {
            return Err(AccessError::OutOfBounds);
        }
        Ok(self.base.wrapping_add(offset))
    }
}

macro_rules! word_access {
    ($($word:ty, $load:ident, $store:ident;)*) => {
        impl Memory {
            $(
                pub(super) fn $load(&self, offset: usize) -> Result<$word, AccessError> {
                    let word = self.aligned_at(offset, size_of::<$word>())?;
                    if self.guarded {
                        // SAFETY: as in `read`; the word is aligned.
                        return unsafe { guarded::$load(self.exposed(word)?.cast()) };
                    }
                    // SAFETY: the word is in bounds and aligned, and by the invariant it is mapped.
                    Ok(unsafe { direct::$load(word.cast()) })
                }

                pub(super) fn $store(&self, offset: usize, value: $word) -> Result<(), AccessError> {
                    let word = self.aligned_at(offset, size_of::<$word>())?;
                    self.check_writable()?;
                    if self.guarded {
                        // SAFETY: as in `write`; the word is aligned.
                        return unsafe { guarded::$store(self.exposed(word)?.cast(), value) };
                    }
                    // SAFETY: as for the load, and the pages of a backing that is not guarded are writable.
                    unsafe { direct::$store(word.cast(), value) };
                    Ok(())
                }
            )*
        }
    };
}

word_access! {
    u8, load_acquire_u8, store_release_u8;
    u16, load_acquire_u16, store_release_u16;
    u32, load_acquire_u32, store_release_u32;
    u64, load_acquire_u64, store_release_u64;
}

/// Number of bytes of a write to `address` before its tail. The tail is the part of the write in the last aligned word
/// of 8 bytes; `length` is not 0.
const fn body_length(address: usize, length: usize) -> usize {
    let last_word = (address + (length - 1)) & !7;
    last_word.saturating_sub(address)
}

/// Size of the naturally aligned store at `address` in a tail with `remaining` bytes to go, at least 1.
const fn store_size(address: usize, remaining: usize) -> usize {
    let aligned = address.trailing_zeros();
    let fitting = remaining.ilog2();
    let bits = if aligned < fitting { aligned } else { fitting };
    if bits < 3 { 1 << bits } else { 8 }
}
