//! The file of the blocks of queue pair numbers of a network namespace: empty, only its locks count.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{find_file, is_in_place, open_file};
use crate::engine::sys::{NotInherited, is_range_locked_by_others, try_lock_byte, try_share_byte, unlock_byte};

/// The byte that all processes share that have the file open for leases.
const PRESENCE_OFFSET: u64 = 1 << 40;
/// The byte of block N is N.
const BLOCKS: u64 = 4_096;
/// A process that removes the file has the byte alone for the time of one call; unless it is stopped then.
const LONGEST_REMOVAL: Duration = Duration::from_secs(2);
const RETRY: Duration = Duration::from_micros(200);

/// An open file of blocks, which is not removed while this lives.
pub(super) struct BlocksFile {
    _not_inherited: NotInherited,
    file: File,
}

impl BlocksFile {
    /// Opens the file, or makes it.
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

    /// Takes a block, unless another process has it.
    pub(super) fn lease(&self, block: u32) -> io::Result<bool> {
        try_lock_byte(self.file.as_fd(), block.into())
    }

    /// Gives a block back.
    pub(super) fn release(&self, block: u32) {
        // It ends with the process in any case.
        let _ = unlock_byte(self.file.as_fd(), block.into());
    }

    /// Removes a file that no process has open for leases.
    pub(super) fn remove_unused(path: &Path) -> io::Result<()> {
        let file = find_file(path)?;
        // The lock ends with the file. A process that opens it meanwhile waits for the byte, then opens it again.
        let is_alone = try_lock_byte(file.as_fd(), PRESENCE_OFFSET)?;
        // Leases of an earlier version, which does not share the byte.
        let is_used = is_range_locked_by_others(file.as_fd(), 0, BLOCKS)?;
        if is_alone && !is_used && is_in_place(&file, path) {
            std::fs::remove_file(path)?;
        }
        Ok(())
    }
}
