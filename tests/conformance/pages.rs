//! Pages of this process that are mapped, protected and unmapped under registered memory.

use std::io;
use std::ptr::{self, NonNull};

use libc::{MAP_ANONYMOUS, MAP_FAILED, MAP_PRIVATE, PROT_NONE, PROT_READ, PROT_WRITE, c_int};

/// Fresh pages without access, mapped until they are dropped. No reference to their bytes ever exists.
pub(crate) struct Pages {
    first: NonNull<u8>,
    count: usize,
}

// SAFETY: only this value owns the pages.
unsafe impl Send for Pages {}

impl Pages {
    pub(crate) fn size() -> usize {
        // SAFETY: sysconf has no preconditions.
        usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).expect("a page size")
    }

    /// Maps pages that may be read and written.
    pub(crate) fn new(count: usize) -> Self {
        let pages = Self::closed(count);
        pages.protect(PROT_READ | PROT_WRITE);
        pages
    }

    /// Maps pages without any access.
    pub(crate) fn closed(count: usize) -> Self {
        let (len, flags) = (count * Self::size(), MAP_PRIVATE | MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address that the kernel chooses replaces no other.
        let first = unsafe { libc::mmap(ptr::null_mut(), len, PROT_NONE, flags, -1, 0) };
        assert_ne!(first, MAP_FAILED, "mmap");
        Self { first: NonNull::new(first.cast()).expect("not at address 0"), count }
    }

    pub(crate) fn len(&self) -> usize {
        self.count * Self::size()
    }

    /// Returns the address of a byte.
    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.len());
        self.first.as_ptr().wrapping_add(offset)
    }

    /// Sets the protection of all pages.
    pub(crate) fn protect(&self, rights: c_int) {
        // SAFETY: the pages are ours, and no reference to them exists.
        assert_eq!(unsafe { libc::mprotect(self.at(0).cast(), self.len(), rights) }, 0, "mprotect");
    }

    /// Returns for each page whether it is present.
    pub(crate) fn present(&self) -> Vec<bool> {
        let mut found = vec![0u8; self.count];
        // SAFETY: `found` has a byte for each page.
        assert_eq!(unsafe { libc::mincore(self.at(0).cast(), self.len(), found.as_mut_ptr()) }, 0, "mincore");
        found.iter().map(|page| page & 1 == 1).collect()
    }

    /// Writes bytes. The kernel copies them, so a request may access them meanwhile.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        let (from, into) = (range(bytes.as_ptr().cast_mut(), bytes.len()), self.range(offset, bytes.len()));
        // SAFETY: `from` is readable for its length, and only the kernel accesses the pages: it reports missing access.
        let written = unsafe { libc::process_vm_writev(libc::getpid(), &from, 1, &into, 1, 0) };
        assert_eq!(usize::try_from(written), Ok(bytes.len()), "{}", io::Error::last_os_error());
    }

    /// Reads bytes. The kernel copies them, so a request may access them meanwhile.
    pub(crate) fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let (from, into) = (self.range(offset, len), range(bytes.as_mut_ptr(), len));
        // SAFETY: as for `write`; `into` is writable for its length.
        let read = unsafe { libc::process_vm_readv(libc::getpid(), &into, 1, &from, 1, 0) };
        assert_eq!(usize::try_from(read), Ok(len), "{}", io::Error::last_os_error());
        bytes
    }

    fn range(&self, offset: usize, len: usize) -> libc::iovec {
        assert!(offset + len <= self.len());
        range(self.at(offset), len)
    }
}

fn range(first: *mut u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: first.cast(), iov_len: len }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the pages are ours, and nothing uses them any more.
        unsafe { libc::munmap(self.at(0).cast(), self.len()) };
    }
}
