//! Compares copies and word accesses with plain slices, and accesses memory that vanishes.

use std::fs::{self, File};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use super::*;
use crate::memory::{Region, RegionTable, RegisterError};
use crate::types::{AccessFlags, DomainId};

const DOMAIN: DomainId = DomainId(1);
const ALL: AccessFlags = AccessFlags::REMOTE.union(AccessFlags::LOCAL_WRITE);

/// Pages owned by a test, which may unmap them early.
pub(super) struct Pages {
    pub(super) address: *mut u8,
    pub(super) length: usize,
}

impl Pages {
    pub(super) fn new(count: usize, protection: i32) -> Self {
        let length = count * page();
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let address = unsafe { libc::mmap(ptr::null_mut(), length, protection, flags, -1, 0) };
        assert_ne!(address, libc::MAP_FAILED);
        Self { address: address.cast(), length }
    }

    pub(super) fn backing(&self) -> Backing {
        // SAFETY: the tests access these pages through the region alone. They do unmap pages; nothing else is mapped
        // there meanwhile, because an inaccessible mapping replaces them.
        unsafe { Backing::raw(self.address, self.length) }
    }

    /// Unmaps pages. An inaccessible mapping replaces them, so that no other thread's memory is mapped there.
    pub(super) fn make_inaccessible(&self, first: usize, count: usize) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let address = self.address.wrapping_add(first * page()).cast();
        // SAFETY: replaces pages of this object, to which no reference exists.
        let result = unsafe { libc::mmap(address, count * page(), libc::PROT_NONE, flags, -1, 0) };
        assert_eq!(result, address);
    }

    fn unmap(self) {
        drop(self);
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is this object's, and no reference to it exists.
        unsafe { libc::munmap(self.address.cast(), self.length) };
    }
}

pub(super) const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

pub(super) fn page() -> usize {
    // SAFETY: has no preconditions.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

pub(super) fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 31 + seed * 17 + 1) as u8).collect()
}

/// Runs a test twice: with the kernel's copies, and with the fault handler where it is supported.
pub(super) fn with_and_without_handler(test: impl Fn() + Sync) {
    thread::scope(|scope| {
        scope.spawn(|| {
            block_faults(libc::SIG_BLOCK, &[libc::SIGSEGV, libc::SIGBUS]);
            assert!(recovery::ready().is_none());
            test();
        });
    });
    match recovery::install() {
        Err(RecoverError::Unsupported) => {}
        installed => {
            installed.unwrap();
            assert!(recovery::ready().is_some());
            test();
        }
    }
}

/// Changes which signals the calling thread blocks.
pub(super) fn block_faults(how: i32, signals: &[i32]) {
    // SAFETY: `sigemptyset` initializes the set that the other calls change and read.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in signals {
            libc::sigaddset(&mut set, *signal);
        }
        assert_eq!(libc::pthread_sigmask(how, &set, ptr::null_mut()), 0);
    }
}

/// Tests every length and alignment around the thresholds between the copy methods; no byte outside is touched.
fn copies_agree_with_slices(make: impl Fn(usize) -> Backing, lengths: &[usize]) {
    const MARGIN: usize = 24;
    let room = lengths.iter().max().unwrap() + 2 * MARGIN;
    let memory = Memory::new(make(room));
    for &length in lengths {
        for shift in 0..MARGIN {
            let data = pattern(length, shift);
            memory.write(0, &vec![0xa5; room]).unwrap();
            memory.write(shift, &data).unwrap();
            let mut all = vec![0; room];
            memory.read(0, &mut all).unwrap();
            assert_eq!(all[shift..shift + length], data, "{length} bytes at {shift}");
            assert!(all[..shift].iter().all(|&byte| byte == 0xa5), "{length} bytes at {shift}");
            assert!(all[shift + length..].iter().all(|&byte| byte == 0xa5), "{length} bytes at {shift}");
            let mut out = vec![0x5a; length + 2];
            memory.read(shift, &mut out[1..=length]).unwrap();
            assert_eq!(out[1..=length], data, "{length} bytes at {shift}");
            assert_eq!((out[0], out[length + 1]), (0x5a, 0x5a), "{length} bytes at {shift}");
        }
    }
}

#[test]
fn direct_copies_agree_with_slices() {
    let mut lengths: Vec<usize> = if cfg!(miri) { vec![0, 1, 7, 8, 9, 31] } else { (0..=140).collect() };
    if !cfg!(miri) {
        lengths.extend([255, 256, 257, 1023, 1024, 1025, 1279, 1280, 1281, 1288, 1289, 4095, 4096, 4097, 70_000]);
    }
    copies_agree_with_slices(|length| Backing::from_vec(vec![0; length]), &lengths);
}

#[test]
#[cfg_attr(miri, ignore = "needs process_vm_readv")]
fn guarded_copies_agree_with_slices() {
    with_and_without_handler(guarded_copies);
}

fn guarded_copies() {
    let pages = Pages::new(2, READ_WRITE);
    let lengths: Vec<usize> = (0..=40).chain([255, 4096, 4097]).collect();
    // SAFETY: as in `Pages::backing`; two pages are enough for all lengths.
    copies_agree_with_slices(|length| unsafe { Backing::raw(pages.address, length.min(pages.length)) }, &lengths);
}

#[test]
fn out_of_bounds_access_is_refused() {
    let memory = Memory::new(Backing::from_vec(vec![0; 16]));
    for (offset, length) in [(17, 0), (16, 1), (0, 17), (usize::MAX, 1), (1, usize::MAX >> 1)] {
        assert_eq!(memory.at(offset, length).map(|_| ()), Err(AccessError::OutOfBounds), "{length} at {offset}");
    }
    assert_eq!(memory.write(16, &[]), Ok(()));
    assert_eq!(memory.load_acquire_u64(9), Err(AccessError::OutOfBounds));
    assert_eq!(memory.fetch_add_u64(usize::MAX, 1), Err(AccessError::OutOfBounds));
}

#[test]
fn words_are_loaded_and_stored() {
    fn check(memory: &Memory) {
        memory.store_release_u64(8, 0x0102_0304_0506_0708).unwrap();
        assert_eq!(memory.load_acquire_u64(8), Ok(0x0102_0304_0506_0708));
        memory.store_release_u32(8, u32::MAX).unwrap();
        memory.store_release_u16(12, 0xabcd).unwrap();
        memory.store_release_u8(15, 0x77).unwrap();
        let mut bytes = [0; 8];
        memory.read(8, &mut bytes).unwrap();
        assert_eq!(bytes[..4], [0xff; 4]);
        assert_eq!((memory.load_acquire_u32(8), memory.load_acquire_u16(12)), (Ok(u32::MAX), Ok(0xabcd)));
        assert_eq!((memory.load_acquire_u8(15), bytes[7]), (Ok(0x77), 0x77));
        let before = memory.load_acquire_u64(8).unwrap();
        assert_eq!(memory.fetch_add_u64(8, u64::MAX), Ok(before));
        assert_eq!(memory.compare_exchange_u64(8, before, 1), Ok(before - 1));
        assert_eq!(memory.compare_exchange_u64(8, before - 1, 1), Ok(before - 1));
        assert_eq!(memory.load_acquire_u64(8), Ok(1));
        assert_eq!(memory.load_acquire_u64(4), Err(AccessError::Misaligned));
        assert_eq!(memory.store_release_u32(2, 0), Err(AccessError::Misaligned));
        assert_eq!(memory.load_acquire_u16(1), Err(AccessError::Misaligned));
        assert_eq!(memory.compare_exchange_u64(1, 0, 0), Err(AccessError::Misaligned));
        assert_eq!(memory.load_acquire_u64(0), Ok(0));
    }
    check(&Memory::new(Backing::anonymous(16).unwrap()));
    if !cfg!(miri) {
        let pages = Pages::new(1, READ_WRITE);
        let memory = Memory::new(pages.backing());
        with_and_without_handler(|| {
            memory.store_in_place_u64(0, 0).unwrap();
            check(&memory);
        });
    }
}

#[test]
fn tails_are_naturally_aligned_and_end_the_write() {
    for start in 0..16usize {
        for length in 1..64usize {
            let mut offset = body_length(start, length);
            assert!(offset < length && length - offset <= 8);
            assert!(offset == 0 || (start + offset).is_multiple_of(8));
            let mut stores = 0;
            while offset < length {
                let size = store_size(start + offset, length - offset);
                assert!((start + offset).is_multiple_of(size) && size.is_power_of_two());
                offset += size;
                stores += 1;
            }
            assert_eq!(offset, length);
            assert!(stores <= 4);
        }
    }
    assert_eq!((body_length(64, 8), store_size(64, 8)), (0, 8));
    assert_eq!((body_length(64, 16), store_size(72, 8)), (8, 8));
}

/// A plain processor load never sees an aligned word half written.
fn words_do_not_tear(memory: &Memory, offset: usize, rounds: usize) {
    let stop = AtomicBool::new(false);
    let word = memory.at(offset, 8).unwrap().addr();
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..rounds {
                memory.write(offset - 8, &[if round % 2 == 0 { 0xff } else { 0 }; 16]).unwrap();
            }
            stop.store(true, Ordering::Relaxed);
        });
        while !stop.load(Ordering::Relaxed) {
            // SAFETY: the word lies in the region, which outlives this scope, and is aligned to 8.
            let seen = unsafe { direct::load_acquire_u64(ptr::with_exposed_provenance(word)) };
            assert!(seen == 0 || seen == u64::MAX, "{seen:#x}");
        }
    });
}

#[test]
#[cfg_attr(miri, ignore = "too slow")]
fn aligned_tails_do_not_tear() {
    let memory = Memory::new(Backing::anonymous(4096).unwrap());
    memory.base().expose_provenance();
    words_do_not_tear(&memory, 64, 300_000);
    let pages = Pages::new(1, READ_WRITE);
    pages.address.expose_provenance();
    let memory = Memory::new(pages.backing());
    with_and_without_handler(|| words_do_not_tear(&memory, 64, 300_000));
}

fn register(backing: Backing, access: AccessFlags) -> Result<std::sync::Arc<Region>, RegisterError> {
    RegionTable::new(1).register(DOMAIN, backing, None, access)
}

#[test]
#[cfg_attr(miri, ignore = "needs mmap and process_vm_readv")]
fn unmapped_memory_is_refused() {
    let pages = Pages::new(4, READ_WRITE);
    let address = pages.address.addr() as u64;
    assert!(register(pages.backing(), ALL).is_ok());
    pages.make_inaccessible(2, 1);
    let length = pages.length as u64;
    for access in [ALL, AccessFlags::empty()] {
        let error = register(pages.backing(), access).unwrap_err();
        assert_eq!(error, RegisterError::NotMapped { address, length });
        assert_eq!(error.errno(), libc::EFAULT);
    }
    pages.make_inaccessible(0, 4);
    assert!(register(pages.backing(), ALL).is_err());
    // SAFETY: nothing can be mapped there, which registration must detect.
    let nowhere = unsafe { [Backing::raw(ptr::null_mut(), 8), Backing::raw(ptr::without_provenance_mut(!63), 64)] };
    for backing in nowhere {
        let result = RegionTable::new(1).register(DOMAIN, backing, 0u64, AccessFlags::empty());
        assert!(matches!(result, Err(RegisterError::NotMapped { .. })));
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs mmap and process_vm_readv")]
fn read_only_memory_takes_no_writes() {
    with_and_without_handler(read_only_memory);
}

fn read_only_memory() {
    let pages = Pages::new(2, libc::PROT_READ);
    assert!(matches!(register(pages.backing(), ALL), Err(RegisterError::NotWritable { .. })));
    let region = register(pages.backing(), AccessFlags::REMOTE_READ).unwrap();
    assert_eq!(region.read_at(0, &mut [1; 8]), Ok(()));
    assert_eq!(region.write_at(0, &[1; 8]), Err(AccessError::Fault));
    assert_eq!(region.fetch_add_u64(0, 1), Err(AccessError::Fault));
    assert_eq!(region.compare_exchange_u64(0, 0, 1), Err(AccessError::Fault));
    assert_eq!(region.store_release_u32(0, 1), Err(AccessError::Fault));
    assert_eq!(region.memory().store_in_place_u64(0, 1), Err(AccessError::Fault));
}

#[test]
#[cfg_attr(miri, ignore = "needs mmap and process_vm_readv")]
fn registration_changes_no_byte() {
    with_and_without_handler(registration);
}

fn registration() {
    let pages = Pages::new(3, READ_WRITE);
    let memory = Memory::new(pages.backing());
    let bytes = pattern(pages.length, 3);
    memory.write(0, &bytes).unwrap();
    drop(register(pages.backing(), ALL).unwrap());
    let mut after = vec![0; pages.length];
    memory.read(0, &mut after).unwrap();
    assert_eq!(after, bytes);
}

#[test]
#[cfg_attr(miri, ignore = "needs mmap and process_vm_readv")]
fn access_to_inaccessible_pages_faults() {
    with_and_without_handler(inaccessible_pages);
}

fn inaccessible_pages() {
    let pages = Pages::new(3, READ_WRITE);
    let (page, table) = (page(), RegionTable::new(1));
    let region = table.register(DOMAIN, pages.backing(), 0u64, ALL).unwrap();
    pages.make_inaccessible(1, 1);
    let middle = page as u64 + 64;
    assert_eq!(region.read_at(0, &mut vec![0; page]), Ok(()));
    assert_eq!(region.read_at(middle, &mut [0; 8]), Err(AccessError::Fault));
    assert_eq!(region.read_at(page as u64 - 4, &mut [0; 8]), Err(AccessError::Fault));
    assert_eq!(region.write_at(page as u64 - 4, &[1; 8]), Err(AccessError::Fault));
    assert_eq!(region.write_at(0, &vec![1; 3 * page]), Err(AccessError::Fault));
    assert_eq!(region.write_at(2 * page as u64, &[1; 8]), Ok(()));
    assert_eq!(region.load_acquire_u64(middle), Err(AccessError::Fault));
    assert_eq!(region.store_release_u8(middle, 1), Err(AccessError::Fault));
    assert_eq!(region.compare_exchange_u64(middle, 0, 1), Err(AccessError::Fault));
    let view = table.read();
    let key = region.rkey().0;
    assert_eq!(view.write(key, DOMAIN, middle, AccessFlags::REMOTE_WRITE, &[1; 99]), Err(AccessError::Fault));
    assert_eq!(view.read(key, DOMAIN, middle, AccessFlags::REMOTE_READ, &mut [1; 99]), Err(AccessError::Fault));
    assert_eq!(view.fetch_and_add(key, DOMAIN, middle, 1), Err(AccessError::Fault));
    assert_eq!(view.fetch_and_add(key, DOMAIN, 2 * page as u64, 1), Ok(0x0101_0101_0101_0101));
}

#[test]
#[cfg_attr(miri, ignore = "needs mmap and process_vm_readv")]
fn access_to_an_unmapped_range_faults() {
    with_and_without_handler(range_unmapped);
}

fn range_unmapped() {
    // Far larger than anything that another test thread may map meanwhile, which would lie at its upper end.
    let pages = Pages::new(4096, libc::PROT_READ);
    let region = register(pages.backing(), AccessFlags::REMOTE_READ).unwrap();
    pages.unmap();
    assert_eq!(region.read_at(0, &mut [0; 64]), Err(AccessError::Fault));
    assert_eq!(region.load_acquire_u8(0), Err(AccessError::Fault));
}

/// Creates a file that is deleted at once and lives as long as it is open.
pub(super) fn temporary_file(length: usize) -> File {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("rdma-verbs-memory-{}-{number}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    file.set_len(length as u64).unwrap();
    file
}

#[test]
#[cfg_attr(miri, ignore = "needs mmap and process_vm_readv")]
fn access_beyond_a_truncated_file_faults() {
    with_and_without_handler(truncated_file);
}

fn truncated_file() {
    let page = page();
    let file = temporary_file(3 * page);
    let region = register(Backing::file(&file, 0, 3 * page, true).unwrap(), ALL).unwrap();
    assert_eq!(region.write_at(0, &vec![7; 3 * page]), Ok(()));
    file.set_len(page as u64 + 10).unwrap();
    let gone = 2 * page as u64;
    assert_eq!(region.read_at(gone - 8, &mut [0; 8]), Ok(()), "the rest of the last page stays");
    assert_eq!(region.read_at(gone - 4, &mut [0; 8]), Err(AccessError::Fault));
    assert_eq!(region.write_at(gone, &[1]), Err(AccessError::Fault));
    assert_eq!(region.load_acquire_u64(gone), Err(AccessError::Fault));
    assert_eq!(region.fetch_add_u64(gone, 1), Err(AccessError::Fault));
    file.set_len(3 * page as u64).unwrap();
    assert_eq!(region.fetch_add_u64(gone, 5), Ok(0));
    assert_eq!(region.load_acquire_u64(gone), Ok(5));
}

#[test]
#[cfg_attr(miri, ignore = "needs mmap and process_vm_readv")]
fn files_are_checked_at_registration_and_written_through() {
    with_and_without_handler(files);
}

fn files() {
    use std::os::unix::fs::FileExt;
    let page = page();
    let file = temporary_file(page);
    let backing = Backing::file(&file, 0, 2 * page, true).unwrap();
    assert!(matches!(register(backing, ALL), Err(RegisterError::NotMapped { .. })));

    let region = register(Backing::file(&file, 100, 50, true).unwrap(), ALL).unwrap();
    assert_eq!(region.len(), 50);
    region.write_at(1, b"through").unwrap();
    let mut out = [0; 7];
    file.read_exact_at(&mut out, 101).unwrap();
    assert_eq!(&out, b"through");

    let backing = || Backing::file(&file, 0, page, false).unwrap();
    assert!(matches!(register(backing(), ALL), Err(RegisterError::NotWritable { .. })));
    let region = register(backing(), AccessFlags::REMOTE_READ).unwrap();
    region.read_at(101, &mut out).unwrap();
    assert_eq!(&out, b"through");
    assert_eq!(region.write_at(0, &[1]), Err(AccessError::NoPermission));
    assert_eq!(region.fetch_add_u64(0, 1), Err(AccessError::NoPermission));
}
