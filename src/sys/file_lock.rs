//! Locks on bytes of a file, owned by the open file description, not by the process (`F_OFD_SETLK`): they end with its
//! last descriptor, however the process ends, and they work between containers that do not see each other's processes.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Tries to lock the byte at `offset`, which need not exist. Returns false if another open file holds it.
pub(crate) fn try_lock_byte(file: BorrowedFd<'_>, offset: u64) -> io::Result<bool> {
    try_lock(file, libc::F_WRLCK, offset)
}

/// Tries to share-lock the byte at `offset`, which any number of open files may do. Returns false if another one holds
/// it exclusively.
pub(crate) fn try_share_byte(file: BorrowedFd<'_>, offset: u64) -> io::Result<bool> {
    try_lock(file, libc::F_RDLCK, offset)
}

fn try_lock(file: BorrowedFd<'_>, kind: libc::c_int, offset: u64) -> io::Result<bool> {
    match control(file, libc::F_OFD_SETLK, kind, offset, 1) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Unlocks a byte.
pub(crate) fn unlock_byte(file: BorrowedFd<'_>, offset: u64) -> io::Result<()> {
    control(file, libc::F_OFD_SETLK, libc::F_UNLCK, offset, 1).map(drop)
}

/// Returns whether another open file has a lock on the byte.
pub(crate) fn is_byte_locked_by_others(file: BorrowedFd<'_>, offset: u64) -> io::Result<bool> {
    is_range_locked_by_others(file, offset, 1)
}

/// Returns whether another open file has a lock on any of the `length` bytes.
pub(crate) fn is_range_locked_by_others(file: BorrowedFd<'_>, offset: u64, length: u64) -> io::Result<bool> {
    control(file, libc::F_OFD_GETLK, libc::F_WRLCK, offset, length).map(|kind| kind != libc::F_UNLCK)
}

/// Issues a lock command; returns the lock type that the kernel left in the `flock`.
fn control(
    file: BorrowedFd<'_>,
    command: libc::c_int,
    kind: libc::c_int,
    offset: u64,
    length: u64,
) -> io::Result<libc::c_int> {
    let number = |value| libc::off_t::try_from(value).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
    let mut lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: number(offset)?,
        l_len: number(length)?,
        l_pid: 0,
    };
    // SAFETY: the kernel reads and writes one lock description, which lives until the call returns.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(lock.l_type.into()) }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_byte_is_locked_by_one_open_file() {
        let path = std::env::temp_dir().join(format!("rdma-verbs-lock-test-{}", std::process::id()));
        let open = || File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        let (one, other) = (open(), open());
        assert!(try_lock_byte(one.as_fd(), 1 << 40).unwrap());
        assert!(!try_lock_byte(other.as_fd(), 1 << 40).unwrap());
        assert!(try_lock_byte(other.as_fd(), 5).unwrap());
        assert!(is_byte_locked_by_others(other.as_fd(), 1 << 40).unwrap());
        assert!(!is_byte_locked_by_others(one.as_fd(), 1 << 40).unwrap());
        assert!(is_range_locked_by_others(other.as_fd(), 1 << 39, 1 << 40).unwrap());
        assert!(!is_range_locked_by_others(other.as_fd(), 0, 1 << 39).unwrap());
        assert!(try_share_byte(one.as_fd(), 9).unwrap() && try_share_byte(other.as_fd(), 9).unwrap());
        assert!(!try_lock_byte(one.as_fd(), 9).unwrap());
        drop(one);
        assert!(!is_byte_locked_by_others(other.as_fd(), 1 << 40).unwrap());
        unlock_byte(other.as_fd(), 5).unwrap();
        std::fs::remove_file(path).unwrap();
    }
}
