//! The file of the QPN blocks of a network namespace: empty, used for its locks only.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use super::shared_file::SharedFile;
use crate::sys::{is_range_locked_by_others, try_lock_byte, unlock_byte};

/// Number of blocks; block N is locked by byte N.
const BLOCKS: u64 = 4_096;

/// An open file of blocks; it is not removed while this exists.
pub(super) struct BlocksFile(SharedFile);

impl BlocksFile {
    /// Opens or creates the file.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        SharedFile::open(path).map(Self)
    }

    /// Leases a block; returns false if another process has it.
    pub(super) fn lease(&self, block: u32) -> io::Result<bool> {
        try_lock_byte(self.0.file().as_fd(), block.into())
    }

    /// Releases a block.
    pub(super) fn release(&self, block: u32) {
        // The lock ends with the process in any case.
        let _ = unlock_byte(self.0.file().as_fd(), block.into());
    }

    /// Removes the file unless a process has it open for leases.
    pub(super) fn remove_unused(path: &Path) -> io::Result<()> {
        // An earlier version leases blocks without sharing the file's presence.
        SharedFile::remove_unused(path, |file| is_range_locked_by_others(file.as_fd(), 0, BLOCKS))
    }
}
