//! Copies made by the kernel, for memory whose pages can vanish.
//!
//! `process_vm_readv` and `process_vm_writev` on this process copy between two of its ranges, and return an error where
//! a plain access would raise a signal. They respect the protection of the pages, so read-only mappings are not
//! written. A call costs 0.4 to 0.9 µs up to a page, and every further segment of the target 0.4 µs.
//!
//! The kernel processes the segments of a call in order, but copies each with instructions of its choice. On recent
//! x86-64 processors that is `rep movsb`, whose stores may become visible in any order (SDM volume 3, 9.2.4). So the
//! tail becomes visible after the body, and its segments at rising addresses; that a segment of 2, 4 or 8 bytes becomes
//! visible at once holds on the processors tested (`aligned_tails_do_not_tear`), and no manual promises it.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use libc::{c_int, c_void, iovec, pid_t};
use once_cell::race::{OnceBool, OnceBox};

use super::{AccessError, body_length, store_size};

/// Most bytes of a call. The kernel copies at most 2^31 - 4096; this is the next lower power of two.
const MAX_CALL_BYTES: usize = 1 << 30;
/// Most segments of a tail: 1, 2, 2 and 1 bytes.
const MAX_TAIL_SEGMENTS: usize = 4;
/// Most attempts of an interrupted `madvise`.
const MAX_TRIES: usize = 64;
/// Value at which [`make_writable`] wakes a thread that waits on the word: any 12 bits, as the call has no way to wake
/// none.
const WAKES_AT: c_int = 0x7ff;
/// Addresses probed by one call.
const PROBES_PER_CALL: usize = 512;

/// Why a range cannot be registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unusable {
    /// The kernel refuses to copy.
    NoCopy { errno: i32 },
    /// Not all of it is mapped and readable.
    NotMapped,
    /// Not all of it is writable.
    NotWritable,
}

/// Copies out; after an error, `out` may have been written in part.
pub(super) fn read(source: *const u8, out: &mut [u8]) -> Result<(), AccessError> {
    let mut source = source.cast_mut();
    for chunk in out.chunks_mut(MAX_CALL_BYTES) {
        let local = span(chunk.as_mut_ptr(), chunk.len());
        // SAFETY: the kernel writes to `chunk`, which is ours, and checks the other range itself.
        let copied = unsafe { libc::process_vm_readv(own_process(), &local, 1, &span(source, chunk.len()), 1, 0) };
        expect_copied(copied, chunk.len())?;
        source = source.wrapping_add(chunk.len());
    }
    Ok(())
}

/// Copies in: the body, then the tail in naturally aligned segments. After an error, some of it may have been placed.
///
/// # Safety
/// If the range from `target` on is mapped and writable, then writing `data.len()` bytes there is allowed.
pub(super) unsafe fn write(target: *mut u8, data: &[u8]) -> Result<(), AccessError> {
    if data.is_empty() {
        return Ok(());
    }
    let body = body_length(target.addr(), data.len());
    // A body that is too long for one call goes first, in chunks. For the rest a single call suffices, as the kernel
    // processes the segments in order.
    let ahead = if body > MAX_CALL_BYTES { body } else { 0 };
    let (first, rest) = data.split_at(ahead);
    let mut address = target;
    for chunk in first.chunks(MAX_CALL_BYTES) {
        // SAFETY: the caller allows writes to the whole range if it can be written, and this is a part of it.
        unsafe { write_segments(&[span(address, chunk.len())], chunk) }?;
        address = address.wrapping_add(chunk.len());
    }
    let body = body - ahead;
    if cfg!(target_arch = "x86_64") {
        // SAFETY: as above.
        return unsafe { write_segments(segments(address, body, rest.len()).as_slice(), rest) };
    }
    // On other processors the kernel's stores may be reordered; the fence keeps those of the body before the tail's.
    let (body, tail) = rest.split_at(body);
    if !body.is_empty() {
        // SAFETY: as above.
        unsafe { write_segments(&[span(address, body.len())], body) }?;
        fence(Ordering::SeqCst);
    }
    let address = address.wrapping_add(body.len());
    // SAFETY: as above.
    unsafe { write_segments(segments(address, 0, tail.len()).as_slice(), tail) }
}

/// Ensures that an aligned word can be written in place at this moment.
///
/// The kernel atomically adds 0 to its first half: it makes the page present and writable, or returns an error.
/// `MADV_POPULATE_WRITE` exists since Linux 5.14 only, but waits for pages that the program provides itself
/// (userfaultfd), as a store does.
pub(super) fn make_writable(word: *mut u64) -> Result<(), AccessError> {
    let unused = AtomicU32::new(0);
    let add_nothing = libc::FUTEX_OP(libc::FUTEX_OP_ADD, 0, libc::FUTEX_OP_CMP_EQ, WAKES_AT);
    let command = libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the call changes no byte. It may wake a thread that waits on either word: nothing waits on the local one,
    // and a thread that waits on the other must expect to be woken without a reason, as every user of futexes.
    let result = unsafe { libc::syscall(libc::SYS_futex, unused.as_ptr(), command, 0, 0usize, word, add_nothing) };
    if result >= 0 {
        return Ok(());
    }
    populate(word.cast(), size_of::<u64>(), libc::MADV_POPULATE_WRITE).map_err(|_| AccessError::Fault)
}

/// Checks that a range can be registered: all of it mapped, and writable if `write`.
///
/// Makes the pages present, as pinning them for an adapter does.
pub(crate) fn probe(address: *mut u8, length: usize, write: bool) -> Result<(), Unusable> {
    copy_is_allowed().map_err(|errno| Unusable::NoCopy { errno })?;
    if length == 0 {
        return Ok(());
    }
    if address.addr().checked_add(length).is_none_or(|end| end > isize::MAX as usize) {
        return Err(Unusable::NotMapped);
    }
    if !populate_is_known() {
        return probe_by_reading(address, length);
    }
    if write && populate(address, length, libc::MADV_POPULATE_WRITE).is_ok() {
        return Ok(());
    }
    populate(address, length, libc::MADV_POPULATE_READ).map_err(|_| Unusable::NotMapped)?;
    if write { Err(Unusable::NotWritable) } else { Ok(()) }
}

/// Reads a byte of each page, for kernels before Linux 5.14. A read-only page is detected by the first write, which
/// fails: trying a write to each page here ([`make_writable`]) would take a call per page.
fn probe_by_reading(address: *mut u8, length: usize) -> Result<(), Unusable> {
    let page = page_size();
    let lead = address.addr() % page;
    let pages = (lead + length).div_ceil(page);
    let mut bytes = [0u8; PROBES_PER_CALL];
    for first in (0..pages).step_by(PROBES_PER_CALL) {
        let count = PROBES_PER_CALL.min(pages - first);
        let probes: [iovec; PROBES_PER_CALL] = std::array::from_fn(|index| {
            let offset = ((first + index.min(count - 1)) * page).saturating_sub(lead);
            span(address.wrapping_add(offset), 1)
        });
        let local = span(bytes.as_mut_ptr(), count);
        // SAFETY: the kernel writes `count` bytes to `bytes`, which has room, and checks the other ranges itself.
        let copied =
            unsafe { libc::process_vm_readv(own_process(), &local, 1, probes.as_ptr(), count as libc::c_ulong, 0) };
        expect_copied(copied, count).map_err(|_| Unusable::NotMapped)?;
    }
    Ok(())
}

/// The segments of a write: its body and its tail.
struct Segments {
    spans: [iovec; 1 + MAX_TAIL_SEGMENTS],
    count: usize,
}

impl Segments {
    fn as_slice(&self) -> &[iovec] {
        &self.spans[..self.count]
    }
}

fn segments(target: *mut u8, body: usize, length: usize) -> Segments {
    let mut segments = Segments { spans: [span(target, body); 1 + MAX_TAIL_SEGMENTS], count: usize::from(body > 0) };
    let mut offset = body;
    while offset < length {
        let address = target.wrapping_add(offset);
        let size = store_size(address.addr(), length - offset);
        segments.spans[segments.count] = span(address, size);
        segments.count += 1;
        offset += size;
    }
    segments
}

/// # Safety
/// As [`write`], for the ranges of `targets`, which together are as long as `data`.
unsafe fn write_segments(targets: &[iovec], data: &[u8]) -> Result<(), AccessError> {
    let local = span(data.as_ptr().cast_mut(), data.len());
    let count = targets.len() as libc::c_ulong;
    // SAFETY: the kernel reads `data` and writes to the ranges, which the caller allows, as far as they are mapped.
    let copied = unsafe { libc::process_vm_writev(own_process(), &local, 1, targets.as_ptr(), count, 0) };
    expect_copied(copied, data.len())
}

fn expect_copied(copied: isize, expected: usize) -> Result<(), AccessError> {
    if usize::try_from(copied) == Ok(expected) { Ok(()) } else { Err(AccessError::Fault) }
}

fn span(address: *mut u8, length: usize) -> iovec {
    iovec { iov_base: address.cast(), iov_len: length }
}

/// Queried each time: after a fork, a cached number would refer to the parent's memory.
fn own_process() -> pid_t {
    // SAFETY: has no preconditions.
    unsafe { libc::getpid() }
}

/// Checks that the kernel makes copies for this process. Otherwise returns the error number of the refusal, for example
/// by a seccomp filter, or by a kernel built without these calls.
fn copy_is_allowed() -> Result<(), i32> {
    // A lock would stay taken in a child that is forked while another thread checks.
    static ALLOWED: OnceBox<Result<(), i32>> = OnceBox::new();
    *ALLOWED.get_or_init(|| {
        let (mut source, mut target) = (0x5au8, 0u8);
        let (remote, local) = (span(&raw mut source, 1), span(&raw mut target, 1));
        // SAFETY: both ranges are a byte on this stack, which nothing else accesses.
        let read = unsafe { libc::process_vm_readv(own_process(), &local, 1, &remote, 1, 0) };
        // SAFETY: as above.
        if read == 1 && unsafe { libc::process_vm_writev(own_process(), &local, 1, &remote, 1, 0) } == 1 {
            return Box::new(Ok(()));
        }
        Box::new(Err(last_errno()))
    })
}

/// Whether the kernel has `MADV_POPULATE_READ` and `MADV_POPULATE_WRITE`: Linux 5.14.
fn populate_is_known() -> bool {
    static KNOWN: OnceBool = OnceBool::new();
    KNOWN.get_or_init(|| {
        // SAFETY: an empty range; the kernel only reports whether it knows the advice.
        unsafe { libc::madvise(std::ptr::null_mut(), 0, libc::MADV_POPULATE_WRITE) == 0 }
    })
}

/// Makes the pages of a range present, as if each were read or written.
fn populate(address: *mut u8, length: usize, advice: c_int) -> Result<(), i32> {
    let lead = address.addr() % page_size();
    let start: *mut c_void = address.wrapping_sub(lead).cast();
    for _ in 0..MAX_TRIES {
        // SAFETY: populating changes no byte and unmaps no page, whatever the range.
        if unsafe { libc::madvise(start, lead + length, advice) } == 0 {
            return Ok(());
        }
        let errno = last_errno();
        if errno != libc::EINTR && errno != libc::EAGAIN {
            return Err(errno);
        }
    }
    Err(libc::EAGAIN)
}

/// Writes the pages of a range of a file mapping to the file's storage, and waits for it.
pub(super) fn synchronize(address: *mut u8, length: usize) -> Result<(), AccessError> {
    if length == 0 {
        return Ok(());
    }
    let lead = address.addr() % page_size();
    let start: *mut c_void = address.wrapping_sub(lead).cast();
    // SAFETY: synchronizing changes no byte and unmaps no page, whatever the range.
    let result = unsafe { libc::msync(start, lead + length, libc::MS_SYNC) };
    if result == 0 { Ok(()) } else { Err(AccessError::Fault) }
}

fn page_size() -> usize {
    // SAFETY: has no preconditions. Not a system call: the C library knows the size.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}

fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
