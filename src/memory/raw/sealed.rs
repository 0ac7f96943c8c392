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
pub(super) const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

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
        check_sealed(file, length)?;
        Ok(Self::sealed(MmapOptions::new().len(length).map_raw(&file)?))
    }
}

/// Checks that the pages of a file of another process never vanish: its length is sealed, and it has no huge pages, of
/// which the system may have none left when one is used.
///
/// # Errors
/// `InvalidData` if not, or if its length is not this one, or 0; otherwise those of the system calls.
pub(in crate::memory) fn check_sealed(file: BorrowedFd<'_>, length: usize) -> io::Result<()> {
    // SAFETY: takes no pointers.
    let seals = check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) })?;
    let mut system = std::mem::MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the kernel writes one structure.
    check(unsafe { libc::fstatfs(file.as_raw_fd(), system.as_mut_ptr()) })?;
    // SAFETY: zeros are valid in all of its fields, and the kernel has filled it.
    let system = unsafe { system.assume_init() };
    let is_plain = seals & SEALS == SEALS && system.f_type == libc::TMPFS_MAGIC;
    // After the seals: the length cannot change any more.
    let metadata = std::fs::File::from(file.try_clone_to_owned()?).metadata()?;
    if !is_plain || metadata.len() != length as u64 || length == 0 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(())
}

pub(super) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
