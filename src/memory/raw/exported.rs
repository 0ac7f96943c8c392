//! Memory that other processes of the user may map while it is registered: a file without a name of its own for each
//! region, whose length is sealed.
//!
//! Unlike [`super::sealed`], its owner can take it back: the range becomes a private mapping of the same file in one
//! step, and each page is then copied. Accesses of this process may run meanwhile; none is lost, because a page that is
//! not copied yet is the file's. Later writes of other processes reach the file only.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicUsize, Ordering};

use memmap2::{Advice, MmapOptions, MmapRaw};

use super::sealed::{SEALS, check, check_sealed};
use crate::memory::backing::Backing;

/// Most ranges of a process: each has a descriptor.
pub(in crate::memory) const MOST_EXPORTED: usize = 256;
/// Bytes that are copied at a time when a range becomes private.
const COPIED_AT_A_TIME: usize = 1 << 20;

/// A range that other processes may map, and its file.
#[derive(Debug)]
pub(in crate::memory) struct Exported {
    /// Dropped first: the address range of a mapping that is gone is reused.
    at_fork: ForkPlace,
    map: MmapRaw,
    file: OwnedFd,
    state: AtomicU8,
}

/// No other process has the file.
const KEPT: u8 = 0;
/// Other processes may have mapped it.
const PASSED_ON: u8 = 1;
/// The contents have moved to private pages.
const PRIVATE: u8 = 2;

impl Exported {
    /// Maps `length` zeroed bytes of a new file. Other processes can write them only if `is_writable_by_peers`.
    ///
    /// # Errors
    /// Those of the system calls; `OutOfMemory` if there are [`MOST_EXPORTED`] already.
    pub(in crate::memory) fn create(length: usize, is_writable_by_peers: bool) -> io::Result<Self> {
        let place = ForkPlace::claim().ok_or(io::ErrorKind::OutOfMemory)?;
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a string that ends with a zero.
        let created = unsafe { libc::memfd_create(c"rdma-verbs-region".as_ptr(), flags) };
        if created < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has just returned the descriptor, so nothing else owns it.
        let file = unsafe { OwnedFd::from_raw_fd(created) };
        let size = libc::off_t::try_from(file_bytes(length)).map_err(io::Error::other)?;
        // SAFETY: takes no pointers.
        check(unsafe { libc::ftruncate(file.as_raw_fd(), size) })?;
        let map = MmapOptions::new().len(length).map_raw(&file)?;
        // Before the seals, which forbid further writable mappings.
        let seals = if is_writable_by_peers { SEALS } else { SEALS | libc::F_SEAL_FUTURE_WRITE };
        // SAFETY: takes no pointers.
        check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
        place.set(map.as_mut_ptr(), length, file.as_fd());
        Ok(Self { at_fork: place, map, file, state: AtomicU8::new(KEPT) })
    }

    pub(in crate::memory) fn len(&self) -> usize {
        self.map.len()
    }

    pub(in crate::memory) fn as_mut_ptr(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    /// Returns a descriptor to pass to another process.
    ///
    /// # Errors
    /// If there is no descriptor left, or the contents are private.
    pub(in crate::memory) fn pass_on(&self) -> io::Result<OwnedFd> {
        let file = self.file.try_clone()?;
        let not_private = |state| (state != PRIVATE).then_some(PASSED_ON);
        let changed = self.state.fetch_update(Ordering::Relaxed, Ordering::Relaxed, not_private);
        changed.map_err(|_| io::ErrorKind::PermissionDenied)?;
        Ok(file)
    }

    /// Moves the contents to pages that no other process reaches. Accesses of this process may run meanwhile.
    ///
    /// # Errors
    /// That of `mmap`; the range is still shared.
    pub(in crate::memory) fn make_private(&self) -> io::Result<()> {
        if self.state.swap(PRIVATE, Ordering::Relaxed) == PRIVATE {
            return Ok(());
        }
        self.at_fork.rest();
        let (start, length) = (self.map.as_mut_ptr(), self.map.len());
        // SAFETY: the range is that of `map`, which stays mapped throughout: the call replaces the shared mapping of
        // the file by a private one of the same bytes, in one step. All accesses to it are those of `Memory`, which no
        // value that they read can confuse.
        if let Err(error) = unsafe { map_privately(start, length, self.file.as_fd()) } {
            self.at_fork.set(start, length, self.file.as_fd());
            self.state.store(PASSED_ON, Ordering::Relaxed);
            return Err(error);
        }
        let mut offset = 0;
        while offset < length {
            let part = COPIED_AT_A_TIME.min(length - offset);
            // SAFETY: the part lies within the mapping, which is writable, so the call changes no byte.
            let copied = unsafe { libc::madvise(start.wrapping_add(offset).cast(), part, libc::MADV_POPULATE_WRITE) };
            if copied < 0 {
                touch_pages(start.wrapping_add(offset), part);
            }
            offset += part;
        }
        self.free_pages();
        Ok(())
    }

    /// Frees the pages of the file, which other processes may keep mapped. A file that they cannot write keeps its
    /// pages until they are unmapped there. The caller has no use for the contents of the file any more.
    fn free_pages(&self) {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let size = libc::off_t::try_from(file_bytes(self.map.len())).unwrap_or(libc::off_t::MAX);
        // SAFETY: takes no pointers.
        unsafe { libc::fallocate(self.file.as_raw_fd(), mode, 0, size) };
    }
}

impl Drop for Exported {
    fn drop(&mut self) {
        // Not in a forked child, whose place is unset: it would erase its parent's memory.
        if self.state.load(Ordering::Relaxed) == PASSED_ON && self.at_fork.is_set() {
            self.free_pages();
        }
    }
}

/// Maps the range that another process has exported. The pages are not inherited by children.
///
/// # Errors
/// `InvalidData` if the descriptor is not that of such memory of this length; otherwise those of the system calls.
pub(in crate::memory) fn open(file: BorrowedFd<'_>, length: usize, is_writable: bool) -> io::Result<Backing> {
    check_sealed(file, file_bytes(length))?;
    let mut options = MmapOptions::new();
    options.len(length);
    let map = if is_writable { options.map_raw(&file)? } else { options.map_raw_read_only(&file)? };
    map.advise(Advice::DontFork)?;
    Ok(Backing::of_peer(map, is_writable))
}

/// Bytes of the file of a range: whole pages. No file has the length 0.
fn file_bytes(length: usize) -> usize {
    length.checked_next_multiple_of(4_096).unwrap_or(0)
}

/// Writes to each page without changing it.
fn touch_pages(start: *mut u8, length: usize) {
    for offset in (0..length).step_by(4_096) {
        let word = start.wrapping_add(offset).cast();
        // SAFETY: a page of the mapping begins here, so the word is mapped and aligned. An addition of 0 changes
        // nothing, however it overlaps with other accesses.
        unsafe { super::direct::fetch_add_u64(word, 0) };
    }
}

/// # Safety
/// The range is a mapping of the file from its first byte on, and nothing is lost by its being private.
unsafe fn map_privately(start: *mut u8, length: usize, file: BorrowedFd<'_>) -> io::Result<()> {
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_FIXED);
    // SAFETY: the caller names a mapping of its own, which is replaced by one of the same length.
    let mapped = unsafe { libc::mmap(start.cast(), length, access, flags, file.as_raw_fd(), 0) };
    if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The ranges that a forked child makes private before `fork` returns in it: it must not write into its parent's
/// memory.
static RANGES: [ForkRange; MOST_EXPORTED] = [const { ForkRange::free() }; MOST_EXPORTED];

struct ForkRange {
    is_claimed: AtomicBool,
    /// 0: nothing to do. Stored last.
    length: AtomicUsize,
    start: AtomicUsize,
    file: AtomicI32,
}

impl ForkRange {
    const fn free() -> Self {
        Self {
            is_claimed: AtomicBool::new(false),
            length: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            file: AtomicI32::new(-1),
        }
    }
}

/// A place in [`RANGES`].
#[derive(Debug)]
struct ForkPlace(usize);

impl ForkPlace {
    fn claim() -> Option<Self> {
        watch_forks();
        let claim = |range: &ForkRange| !range.is_claimed.swap(true, Ordering::AcqRel);
        RANGES.iter().position(claim).map(Self)
    }

    fn set(&self, start: *mut u8, length: usize, file: BorrowedFd<'_>) {
        let range = &RANGES[self.0];
        range.start.store(start.expose_provenance(), Ordering::Relaxed);
        range.file.store(file.as_raw_fd(), Ordering::Relaxed);
        range.length.store(length, Ordering::Release);
    }

    /// Whether a child would make the range private.
    fn is_set(&self) -> bool {
        RANGES[self.0].length.load(Ordering::Relaxed) > 0
    }

    /// A private mapping needs nothing: a child's is a copy of it.
    fn rest(&self) {
        RANGES[self.0].length.store(0, Ordering::Release);
    }
}

impl Drop for ForkPlace {
    fn drop(&mut self) {
        self.rest();
        RANGES[self.0].is_claimed.store(false, Ordering::Release);
    }
}

/// Threads that call it first at the same time each register the handler, which has nothing to do the second time.
fn watch_forks() {
    static IS_WATCHED: AtomicBool = AtomicBool::new(false);
    if !IS_WATCHED.load(Ordering::Acquire) {
        // SAFETY: the handler only makes calls that are allowed between fork and exec, and is never unloaded before the
        // program ends.
        unsafe { libc::pthread_atfork(None, None, Some(make_private_in_child)) };
        IS_WATCHED.store(true, Ordering::Release);
    }
}

/// Runs in the child before `fork` returns there. Only system calls and atomics are allowed. The child sees what its
/// parent writes until it writes to the page itself.
extern "C" fn make_private_in_child() {
    for range in &RANGES {
        let length = range.length.swap(0, Ordering::Acquire);
        if length == 0 {
            continue;
        }
        let start = std::ptr::with_exposed_provenance_mut(range.start.load(Ordering::Relaxed));
        // SAFETY: the descriptor is the range's, which is open as long as the place is set.
        let file = unsafe { BorrowedFd::borrow_raw(range.file.load(Ordering::Relaxed)) };
        // SAFETY: the range is mapped as long as the place is set, and the child has the parent's mappings.
        if unsafe { map_privately(start, length, file) }.is_err() {
            // Rather no memory than the parent's.
            // SAFETY: as above; an access then ends the child.
            unsafe { libc::mprotect(start.cast(), length, libc::PROT_NONE) };
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
