//! The file of a process's connections: the facts by which another process ends them when this one has died.
//!
//! The process holds a lock on a byte of the file, which ends with it. Another process that finds the lock gone takes
//! the records of its own addresses, with a second lock, so that each is taken once. A header of the size of a record
//! has the time when the process was found dead first.

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use super::connection_record::{RECORD_BYTES, parse, to_bytes};
use super::socket::{digits_of, parse as parse_name};
use super::{MAX_SWEPT, Name, find_file, namespace, options};
use crate::cm::Orphan;
use crate::sys::{Generation, NotInherited, is_byte_locked_by_others, try_lock_byte};

/// Begins the part of a file name after the namespace.
const PREFIX: &str = "connections-";
/// Name prefix of a file that is not locked yet (see `socket.rs`).
const NEW: &str = "new-";
/// Most connections of a process that are recorded.
const MOST_RECORDS: u32 = 1 << 16;
/// The byte that the process of the connections has locked.
const LIFE_OFFSET: u64 = 1 << 40;
/// The byte that a process has locked while it takes records.
const TAKING_OFFSET: u64 = LIFE_OFFSET + 1;
/// Time after which the records of a process that was found dead are void: its addresses do not return.
const LONGEST_KEPT: Duration = Duration::from_secs(600);

/// The file of this process's connections. Dropping it removes the file.
pub(crate) struct ConnectionsFile {
    _not_inherited: NotInherited,
    file: File,
    path: PathBuf,
    indices: Mutex<Indices>,
    generation: Generation,
}

/// The indices of records.
#[derive(Default)]
struct Indices {
    free: Vec<u32>,
    /// All from this one on are free.
    next: u32,
}

impl ConnectionsFile {
    /// Creates a file for the connections of the process with this name in the network namespace of this thread.
    pub(super) fn create(folder: &Path, name: &Name) -> io::Result<Self> {
        let path = path_of(folder, name);
        let new = folder.join(format!("{NEW}{}", path.file_name().unwrap_or_default().to_string_lossy()));
        let file = options().create_new(true).open(&new)?;
        // With its final name it would count as that of a dead process before it is locked.
        let placed = try_lock_byte(file.as_fd(), LIFE_OFFSET).and_then(|_| std::fs::rename(&new, &path));
        placed.inspect_err(|_| {
            let _ = std::fs::remove_file(&new);
        })?;
        let _not_inherited = NotInherited::new(file.as_fd());
        Ok(Self { _not_inherited, file, path, indices: Mutex::default(), generation: Generation::now() })
    }

    /// Adds a record; returns its index.
    pub(crate) fn add(&self, orphan: &Orphan) -> io::Result<u32> {
        self.check_process()?;
        let index = self.draw_index().ok_or(io::ErrorKind::QuotaExceeded)?;
        let written = self.file.write_all_at(&to_bytes(orphan), offset_of(index));
        written.map(|()| index).inspect_err(|_| self.remove(index))
    }

    /// Removes a record.
    pub(crate) fn remove(&self, index: u32) {
        if self.check_process().is_err() {
            return;
        }
        // If it stays, a peer gets a DREQ of a connection that it does not know.
        let _ = self.file.write_all_at(&[0; RECORD_BYTES], offset_of(index));
        self.indices.lock().unwrap_or_else(PoisonError::into_inner).free.push(index);
    }

    /// Fails in a forked child, whose descriptor and lock of the indices are copies of the parent's.
    fn check_process(&self) -> io::Result<()> {
        let message = "the connections belong to the process that this one was forked from";
        if self.generation.is_current() { Ok(()) } else { Err(io::Error::other(message)) }
    }

    fn draw_index(&self) -> Option<u32> {
        let mut indices = self.indices.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = indices.next;
        indices.free.pop().or_else(|| {
            indices.next = (fresh < MOST_RECORDS).then_some(fresh + 1)?;
            Some(fresh)
        })
    }
}

impl Drop for ConnectionsFile {
    fn drop(&mut self) {
        if self.generation.is_current() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn offset_of(index: u32) -> u64 {
    (u64::from(index) + 1) * RECORD_BYTES as u64
}

fn path_of(folder: &Path, name: &Name) -> PathBuf {
    folder.join(format!("{}-{PREFIX}{}", namespace(), digits_of(name)))
}

/// The outcome of an attempt to take the records of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Taking {
    /// All are taken that can be, or there are none.
    Done,
    /// The process lives, or its descriptors are not closed yet.
    Alive,
    /// Another process takes records, or some could not be ended: later attempts may find more.
    Again,
}

/// Returns the processes with files of connections in the network namespace of this thread.
pub(crate) fn processes_with_connections(folder: &Path) -> Vec<Name> {
    let prefix = format!("{}-{PREFIX}", namespace());
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let names = entries.take(MAX_SWEPT).flatten().map(|entry| entry.file_name());
    names.filter_map(|name| parse_name(name.to_str()?.strip_prefix(&prefix)?)).collect()
}

/// Calls `end` for the connections of a dead process whose address is this process's, until it returns false; then the
/// rest stays. Those of other addresses stay for their processes.
pub(crate) fn take_orphans(
    folder: &Path,
    name: &Name,
    is_own: impl Fn(IpAddr) -> bool,
    end: impl FnMut(&Orphan) -> bool,
) -> Taking {
    // A file that is gone has been taken, or its process has ended properly.
    take_from(&path_of(folder, name), is_own, end).unwrap_or(Taking::Done)
}

fn take_from(path: &Path, is_own: impl Fn(IpAddr) -> bool, mut end: impl FnMut(&Orphan) -> bool) -> io::Result<Taking> {
    let file = match find_abandoned(path)? {
        Ok(file) => file,
        Err(why) => return Ok(why),
    };
    let mut are_left = false;
    for (index, orphan) in records(&file)? {
        if !is_own(orphan.local) {
            are_left = true;
        } else if end(&orphan) {
            file.write_all_at(&[0; RECORD_BYTES], offset_of(index))?;
        } else {
            return Ok(Taking::Again);
        }
    }
    if are_left {
        time_since_found(&file)?;
    } else {
        let _ = std::fs::remove_file(path);
    }
    Ok(Taking::Done)
}

/// Returns the time since the process of a file was found dead; notes it if that is now.
fn time_since_found(file: &File) -> io::Result<Duration> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let mut found = [0; 8];
    // A file without a record is shorter.
    let _ = file.read_at(&mut found, 0)?;
    match u64::from_le_bytes(found) {
        0 => file.write_all_at(&now.to_le_bytes(), 0).map(|()| Duration::ZERO),
        found => Ok(Duration::from_secs(now.saturating_sub(found))),
    }
}

/// Opens a file whose process is dead, unless another process takes its records.
fn find_abandoned(path: &Path) -> io::Result<Result<File, Taking>> {
    let file = find_file(path)?;
    if is_byte_locked_by_others(file.as_fd(), LIFE_OFFSET)? {
        return Ok(Err(Taking::Alive));
    }
    // The lock ends when the file is closed.
    Ok(if try_lock_byte(file.as_fd(), TAKING_OFFSET)? { Ok(file) } else { Err(Taking::Again) })
}

fn records(file: &File) -> io::Result<Vec<(u32, Orphan)>> {
    let length = file.metadata()?.len().min(offset_of(MOST_RECORDS)).saturating_sub(offset_of(0));
    let mut bytes = vec![0; usize::try_from(length).unwrap_or_default()];
    file.read_exact_at(&mut bytes, offset_of(0))?;
    let (chunks, _) = bytes.as_chunks::<RECORD_BYTES>();
    Ok((0..).zip(chunks).filter_map(|(index, bytes)| Some((index, parse(bytes)?))).collect())
}

/// Removes the file of a dead process if it has no records, or if they are void. Returns false if the entry of the
/// folder is no such file.
pub(super) fn sweep(folder: &Path, entry: &str) -> bool {
    if !entry.split_once('-').is_some_and(|(_, rest)| rest.starts_with(PREFIX)) {
        return false;
    }
    let path = folder.join(entry);
    if let Ok(Ok(file)) = find_abandoned(&path) {
        let is_empty = records(&file).is_ok_and(|found| found.is_empty());
        if is_empty || time_since_found(&file).is_ok_and(|time| time > LONGEST_KEPT) {
            let _ = std::fs::remove_file(&path);
        }
    }
    true
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::NAME_BYTES;
    use super::super::connection_record::tests::orphan;
    use super::*;

    const NAME: Name = [7; NAME_BYTES];

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("rdma-verbs-records-{name}-{}", std::process::id()));
            std::fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn count(&self) -> usize {
            std::fs::read_dir(&self.0).unwrap().count()
        }

        fn entry(&self) -> String {
            std::fs::read_dir(&self.0).unwrap().next().unwrap().unwrap().file_name().into_string().unwrap()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// Ends a file as the death of its process does.
    fn kill(file: ConnectionsFile) {
        let ConnectionsFile { file: descriptor, .. } = &file;
        crate::sys::unlock_byte(descriptor.as_fd(), LIFE_OFFSET).unwrap();
        std::mem::forget(file);
    }

    /// Takes all records of an address.
    fn take(folder: &Folder, address: &str) -> (Taking, Vec<Orphan>) {
        let (address, mut taken): (IpAddr, _) = (address.parse().unwrap(), Vec::new());
        let end = |orphan: &Orphan| {
            taken.push(*orphan);
            true
        };
        let taking = take_orphans(&folder.0, &NAME, |local| local == address, end);
        (taking, taken)
    }

    #[test]
    fn records_of_a_dead_process_are_taken_once() {
        let folder = Folder::new("taken");
        let file = ConnectionsFile::create(&folder.0, &NAME).unwrap();
        let indices: Vec<u32> = (0..5).map(|number| file.add(&orphan(number)).unwrap()).collect();
        file.remove(indices[1]);
        let elsewhere = Orphan { local: "127.77.9.8".parse().unwrap(), ..orphan(9) };
        assert_eq!(file.add(&elsewhere).unwrap(), indices[1], "free indices are used again");
        assert_eq!(take(&folder, "127.77.9.9"), (Taking::Alive, vec![]));
        assert_eq!(processes_with_connections(&folder.0), [NAME]);
        kill(file);
        assert_eq!(take(&folder, "127.77.9.9"), (Taking::Done, [0, 2, 3, 4].map(orphan).to_vec()));
        assert_eq!(take(&folder, "127.77.9.9"), (Taking::Done, vec![]));
        assert_eq!(folder.count(), 1);
        assert_eq!(take(&folder, "127.77.9.8"), (Taking::Done, vec![elsewhere]));
        assert_eq!(folder.count(), 0);
        assert_eq!(take(&folder, "127.77.9.9"), (Taking::Done, vec![]), "there is no file");
    }

    #[test]
    fn records_that_cannot_be_taken_stay() {
        let folder = Folder::new("stay");
        let file = ConnectionsFile::create(&folder.0, &NAME).unwrap();
        (0..5).for_each(|number| assert!(file.add(&orphan(number)).is_ok()));
        kill(file);
        let mut room = 2;
        let end = |_: &Orphan| {
            room -= 1;
            room >= 0
        };
        assert_eq!(take_orphans(&folder.0, &NAME, |_| true, end), Taking::Again);
        assert_eq!(take(&folder, "127.77.9.9"), (Taking::Done, [2, 3, 4].map(orphan).to_vec()));
    }

    #[test]
    fn a_process_that_takes_records_is_alone() {
        let folder = Folder::new("alone");
        let file = ConnectionsFile::create(&folder.0, &NAME).unwrap();
        file.add(&orphan(1)).unwrap();
        kill(file);
        let taking = find_abandoned(&folder.0.join(folder.entry())).unwrap().unwrap();
        assert_eq!(take(&folder, "127.77.9.9"), (Taking::Again, vec![]));
        drop(taking);
        assert_eq!(take(&folder, "127.77.9.9"), (Taking::Done, vec![orphan(1)]));
    }

    /// Its last connection was set up long ago.
    #[test]
    fn records_are_kept_from_the_time_when_their_process_was_found_dead() {
        let folder = Folder::new("kept");
        let file = ConnectionsFile::create(&folder.0, &NAME).unwrap();
        file.add(&orphan(1)).unwrap();
        file.file.set_modified(SystemTime::now() - 2 * LONGEST_KEPT).unwrap();
        let descriptor = file.file.try_clone().unwrap();
        kill(file);
        let entry = folder.entry();
        assert!(sweep(&folder.0, &entry) && sweep(&folder.0, &entry) && folder.count() == 1);
        let found = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap() - LONGEST_KEPT;
        descriptor.write_all_at(&(found.as_secs() - 1).to_le_bytes(), 0).unwrap();
        assert!(sweep(&folder.0, &entry) && folder.count() == 0);
    }

    #[test]
    fn a_process_that_ends_leaves_no_file() {
        let folder = Folder::new("ends");
        drop(ConnectionsFile::create(&folder.0, &NAME).unwrap());
        assert_eq!(folder.count(), 0);
    }

    #[test]
    fn unused_files_are_swept() {
        let folder = Folder::new("swept");
        let file = ConnectionsFile::create(&folder.0, &NAME).unwrap();
        assert!(sweep(&folder.0, &folder.entry()) && folder.count() == 1, "its process lives");
        let index = file.add(&orphan(1)).unwrap();
        let descriptor = file.file.try_clone().unwrap();
        kill(file);
        assert!(sweep(&folder.0, &folder.entry()) && folder.count() == 1, "a record is left");
        descriptor.write_all_at(&[0; RECORD_BYTES], offset_of(index)).unwrap();
        assert!(sweep(&folder.0, &folder.entry()) && folder.count() == 0);
        assert!(!sweep(&folder.0, "4026531840-blocks"));
    }

    #[test]
    fn a_full_file_takes_no_more_records() {
        let folder = Folder::new("full");
        let file = ConnectionsFile::create(&folder.0, &NAME).unwrap();
        file.indices.lock().unwrap().next = MOST_RECORDS - 1;
        let last = file.add(&orphan(1)).unwrap();
        assert_eq!(file.add(&orphan(2)).unwrap_err().kind(), io::ErrorKind::QuotaExceeded);
        file.remove(last);
        assert_eq!(file.add(&orphan(2)).unwrap(), last);
    }
}
