//! The file of the QPN blocks of a network namespace: empty, used for its locks only.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{find_file, is_in_place, open_file};
use crate::sys::{NotInherited, is_range_locked_by_others, try_lock_byte, try_share_byte, unlock_byte};

/// Byte on which every process holds a shared lock while it has the file open for leases.
const PRESENCE_OFFSET: u64 = 1 << 40;
/// Number of blocks; block N is locked by byte N.
const BLOCKS: u64 = 4_096;
/// Longest time that a process which removes the file holds the byte's exclusive lock. It takes one call, unless the
/// process is stopped meanwhile.
const LONGEST_REMOVAL: Duration = Duration::from_secs(2);
const RETRY: Duration = Duration::from_micros(200);

/// An open file of blocks; it is not removed while this exists.
pub(super) struct BlocksFile {
    _not_inherited: NotInherited,
    file: File,
}

impl BlocksFile {
    /// Opens or creates the file.
    pub(super) fn open(path: PathBuf) -> io::Result<Self> {
        let end = Instant::now() + LONGEST_REMOVAL;
        loop {
            let file = open_file(&path)?;
            let is_shared = try_share_byte(file.as_fd(), PRESENCE_OFFSET)?;
            if (is_shared && is_in_place(&file, &path)) || Instant::now() > end {
                return Ok(Self { _not_inherited: NotInherited::new(file.as_fd()), file });
            }
            std::thread::sleep(RETRY);
        }
    }

    /// Leases a block; returns false if another process has it.
    pub(super) fn lease(&self, block: u32) -> io::Result<bool> {
        try_lock_byte(self.file.as_fd(), block.into())
    }

    /// Releases a block.
    pub(super) fn release(&self, block: u32) {
        // The lock ends with the process in any case.
        let _ = unlock_byte(self.file.as_fd(), block.into());
    }

    /// Removes the file unless a process has it open for leases.
    pub(super) fn remove_unused(path: &Path) -> io::Result<()> {
        let file = find_file(path)?;
        // The lock ends when the file is closed. A process that opens the file meanwhile waits for the byte and then
        // opens the file again.
        let is_alone = try_lock_byte(file.as_fd(), PRESENCE_OFFSET)?;
        // An earlier version leases blocks without sharing the byte.
        let is_used = is_range_locked_by_others(file.as_fd(), 0, BLOCKS)?;
        if is_alone && !is_used && is_in_place(&file, path) {
            std::fs::remove_file(path)?;
        }
        Ok(())
    }
}
