//! Memory that two processes share: a file without a name, whose length is sealed.
//!
//! Such a file cannot be truncated, so its pages never vanish, and accesses are direct. The other process may change
//! any byte at any moment, like a peer that writes registered memory.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use memmap2::MmapOptions;

use crate::memory::backing::Backing;

/// The seals that keep the length, and these seals.
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

impl Backing {
    /// Creates `length` zeroed bytes, a multiple of the page size, and the descriptor by which another process maps
    /// them ([`Backing::open_shared`]).
    ///
    /// # Errors
    /// Those of the system calls, for lack of memory or descriptors, or because they are forbidden.
    pub(crate) fn create_shared(name: &CStr, length: usize) -> io::Result<(Self, OwnedFd)> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a string that ends with a zero.
        let created = unsafe { libc::memfd_create(name.as_ptr(), flags) };
        if created < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has just returned the descriptor, so nothing else owns it.
        let file = unsafe { OwnedFd::from_raw_fd(created) };
        let size = libc::off_t::try_from(length).map_err(io::Error::other)?;
        // SAFETY: takes no pointers.
        check(unsafe { libc::ftruncate(file.as_raw_fd(), size) })?;
        // SAFETY: takes no pointers.
        check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) })?;
        Ok((Self::open_shared(file.as_fd(), length)?, file))
    }

    /// Maps the bytes that another process has created with [`Backing::create_shared`].
    ///
    /// # Errors
    /// `InvalidData` if the descriptor is not that of such memory of this length; otherwise those of the system calls.
    pub(crate) fn open_shared(file: BorrowedFd<'_>, length: usize) -> io::Result<Self> {
        // SAFETY: takes no pointers.
        let seals = check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) })?;
        // After the seals: the length cannot change any more.
        if seals & SEALS != SEALS || file_length(file)? != length as u64 || length == 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self::sealed(MmapOptions::new().len(length).map_raw(&file)?))
    }
}

fn file_length(file: BorrowedFd<'_>) -> io::Result<u64> {
    std::fs::File::from(file.try_clone_to_owned()?).metadata().map(|metadata| metadata.len())
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
