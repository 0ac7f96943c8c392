//! Exclusive changes of a registry file. A process that is stopped in the middle of one delays the others for a while
//! only.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use super::is_in_place;
use crate::sys::{try_lock_byte, unlock_byte};

/// Offset of the byte whose lock shows that the file is being changed. It is never written.
const CHANGE_OFFSET: u64 = 1 << 41;
/// Longest wait for another process's change to end. After it, the waiter proceeds: the other process was stopped in
/// the middle, and its later writes are detected and repaired like those of a crash.
pub(super) const LONGEST_CHANGE: Duration = Duration::from_secs(2);
/// Most times that the wait restarts because other processes' changes ended meanwhile, as happens when many processes
/// start at once on few processors: a minute in total.
const MOST_WAITS: usize = 30;
const RETRY: Duration = Duration::from_micros(200);

/// Exclusive permission to change a file.
pub(crate) struct Change<'a> {
    file: &'a File,
    /// Time of the lock; `None` if the change has no lock.
    locked: Option<Instant>,
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if self.is_locked() {
            let _ = unlock_byte(self.file.as_fd(), CHANGE_OFFSET);
        }
    }
}

impl<'a> Change<'a> {
    /// Waits for other processes' changes, and begins one.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::NotFound`] if the path does not name the file any more.
    pub(super) fn begin(file: &'a File, path: &Path) -> io::Result<Self> {
        let mut locked = try_lock(file)?;
        for _ in 0..MOST_WAITS {
            if locked.is_some() {
                break;
            }
            let before = modified(file)?;
            locked = wait_for_lock(file)?;
            if locked.is_none() && modified(file)? == before {
                break;
            }
        }
        if locked.is_none() {
            tracing::warn!(
                target: "rdma_verbs::processes",
                path = %path.display(), "a process was stopped while it changed the file; proceeding"
            );
        }
        let change = Self { file, locked };
        if !is_in_place(file, path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(change)
    }

    /// Begins a change unless another process makes one.
    pub(super) fn try_begin(file: &'a File) -> io::Result<Option<Self>> {
        let locked = try_lock(file)?;
        Ok(locked.map(|_| Self { file, locked }))
    }

    /// Returns whether the change has the lock: it proceeds without if another process was stopped.
    pub(super) fn is_locked(&self) -> bool {
        self.locked.is_some()
    }

    /// Returns whether no other process can have changed the file since the change began: it has the lock, and not for
    /// so long that another process proceeds without.
    pub(super) fn is_exclusive(&self) -> bool {
        self.locked.is_some_and(|since| since.elapsed() < LONGEST_CHANGE)
    }
}

/// Tries to take the lock. Returns the time before it was taken.
fn try_lock(file: &File) -> io::Result<Option<Instant>> {
    let now = Instant::now();
    let locked = try_lock_byte(file.as_fd(), CHANGE_OFFSET)?;
    if locked {
        // A waiting process must notice each change, also one that writes nothing, such as a check.
        let _ = file.set_modified(SystemTime::now());
    }
    Ok(locked.then_some(now))
}

/// Returns the time of the last write, or of the start of the last change if that is later.
fn modified(file: &File) -> io::Result<SystemTime> {
    file.metadata()?.modified()
}

/// Waits for a change to end, and takes the lock if it does.
fn wait_for_lock(file: &File) -> io::Result<Option<Instant>> {
    let end = Instant::now() + LONGEST_CHANGE;
    while Instant::now() < end {
        std::thread::sleep(RETRY);
        let locked = try_lock(file)?;
        if locked.is_some() {
            return Ok(locked);
        }
    }
    Ok(None)
}
