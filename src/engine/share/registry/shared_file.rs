//! A file of the registry that processes keep open, and that is removed only when none has it open.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use super::{find_file, is_in_place, open_file};
use crate::sys::{NotInherited, try_lock_byte, try_share_byte};

/// Byte on which every process holds a shared lock while it has the file open.
const PRESENCE_OFFSET: u64 = 1 << 40;
/// Longest time that a process which removes the file holds the byte's exclusive lock. It takes one call, unless the
/// process is stopped meanwhile.
const LONGEST_REMOVAL: Duration = Duration::from_secs(2);
const RETRY: Duration = Duration::from_micros(200);

/// An open file; it is not removed while this exists.
pub(super) struct SharedFile {
    _not_inherited: NotInherited,
    file: File,
}

impl SharedFile {
    /// Opens or creates the file.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let end = Instant::now() + LONGEST_REMOVAL;
        loop {
            let file = open_file(path)?;
            if is_kept(&file, path)? || Instant::now() > end {
                return Ok(Self::of(file));
            }
            std::thread::sleep(RETRY);
        }
    }

    /// Opens the file if it exists and is not being removed.
    pub(super) fn find(path: &Path) -> io::Result<Self> {
        let file = find_file(path)?;
        if is_kept(&file, path)? { Ok(Self::of(file)) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    fn of(file: File) -> Self {
        Self { _not_inherited: NotInherited::new(file.as_fd()), file }
    }

    /// Returns the file.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Removes the file unless a process has it open, or `is_used`.
    pub(super) fn remove_unused(path: &Path, is_used: impl FnOnce(&File) -> io::Result<bool>) -> io::Result<()> {
        let file = find_file(path)?;
        // The lock ends when the file is closed. A process that opens the file meanwhile waits for the byte and then
        // opens the file again.
        let is_alone = try_lock_byte(file.as_fd(), PRESENCE_OFFSET)?;
        if is_alone && !is_used(&file)? && is_in_place(&file, path) {
            std::fs::remove_file(path)?;
        }
        Ok(())
    }
}

/// Makes the file stay, and returns whether it is still there.
fn is_kept(file: &File, path: &Path) -> io::Result<bool> {
    Ok(try_share_byte(file.as_fd(), PRESENCE_OFFSET)? && is_in_place(file, path))
}
