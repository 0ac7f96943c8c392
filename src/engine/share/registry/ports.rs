//! The file of the ports of a network namespace, which the connection managers of all processes share.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::change::Change;
use super::port_record::{
    Binding, FILE_BYTES, Owner, PROCESS_BYTES, PROCESSES, PortRecord, ProcessEntry, RECORD_BYTES, RECORDS, port_offset,
};
use super::shared_file::SharedFile;
use super::{Registry, is_in_place};
use crate::sys::{file_size_limit, is_byte_locked_by_others, try_lock_byte};
use crate::wire::mad::PortSpace;

/// Suffix of the file name.
pub(super) const SUFFIX: &str = "ports";
/// Offset of the bytes whose locks show that a process is alive, one for each. They are never written.
const LIFE_OFFSET: u64 = 1 << 42;
/// Most owners whose life a change remembers.
const MAX_KNOWN: usize = 1_024;

/// An open file of ports; it is not removed while this exists.
pub(crate) struct PortsFile {
    shared: SharedFile,
    path: PathBuf,
    /// This process in the file, once it has bound a port.
    own: OnceLock<Owner>,
}

/// Exclusive permission to bind ports and to listen.
pub(crate) struct PortsChange<'a> {
    file: &'a PortsFile,
    change: Change<'a>,
    own: Owner,
    /// Whether owners are alive. A process may own thousands of ports.
    known: RefCell<BTreeMap<Owner, bool>>,
}

/// The owners of a port in other processes.
pub(crate) struct Others {
    pub(crate) records: Vec<PortRecord>,
    /// Indices of records that this process must not overwrite.
    in_use: [bool; RECORDS],
}

impl Registry {
    /// Opens or creates the file of the ports of a network namespace.
    pub(crate) fn ports(&self, namespace: u64) -> io::Result<PortsFile> {
        self.prepare()?;
        PortsFile::open(self.path_of_ports(namespace))
    }

    /// Opens the file of the ports of a network namespace if it exists.
    pub(crate) fn find_ports(&self, namespace: u64) -> io::Result<PortsFile> {
        PortsFile::find(self.path_of_ports(namespace))
    }

    fn path_of_ports(&self, namespace: u64) -> PathBuf {
        self.folder().join(format!("{namespace}-{SUFFIX}"))
    }
}

impl PortsFile {
    fn open(path: PathBuf) -> io::Result<Self> {
        if file_size_limit() < FILE_BYTES {
            let message = format!("the limit on file sizes (ulimit -f) is below {} KiB", FILE_BYTES >> 10);
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
        }
        Ok(Self { shared: SharedFile::open(&path)?, path, own: OnceLock::new() })
    }

    /// Opens the file if it exists.
    fn find(path: PathBuf) -> io::Result<Self> {
        Ok(Self { shared: SharedFile::find(&path)?, path, own: OnceLock::new() })
    }

    /// Removes the file unless a process has it open.
    pub(super) fn remove_unused(path: &Path) -> io::Result<()> {
        SharedFile::remove_unused(path, |_| Ok(false))
    }

    /// Returns whether the file was not removed: some systems remove a user's files when the last session ends.
    pub(crate) fn is_in_place(&self) -> bool {
        is_in_place(self.shared.file(), &self.path)
    }

    /// Begins a change.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::NotFound`] if the file was removed: open it again.
    pub(crate) fn change(&self) -> io::Result<PortsChange<'_>> {
        let change = Change::begin(self.shared.file(), &self.path)?;
        let own = match self.own.get() {
            Some(own) => *own,
            None => self.claim()?,
        };
        Ok(PortsChange { file: self, change, own, known: RefCell::default() })
    }

    /// Claims the slot of a process.
    fn claim(&self) -> io::Result<Owner> {
        let nonce = getrandom::u64().map_err(io::Error::other)?;
        for slot in 0..PROCESSES {
            if try_lock_byte(self.shared.file().as_fd(), LIFE_OFFSET + u64::from(slot))? {
                let entry = ProcessEntry { nonce, process: std::process::id() };
                // If it fails, a later attempt claims the same slot: the lock is this process's own.
                self.shared.file().write_all_at(&entry.to_bytes(), process_offset(slot))?;
                return Ok(*self.own.get_or_init(|| Owner { slot, nonce }));
            }
        }
        let message = format!("{PROCESSES} processes of this user have ports of the connection manager");
        Err(io::Error::new(io::ErrorKind::QuotaExceeded, message))
    }

    /// Returns the records of a port with their indices, also those of dead processes.
    pub(crate) fn records(&self, space: PortSpace, port: u16) -> impl Iterator<Item = (usize, PortRecord)> {
        let mut bytes = [0; RECORDS * RECORD_BYTES];
        // Bytes that do not exist or cannot be read stay zero: no records.
        let _ = self.shared.file().read_at(&mut bytes, port_offset(index_of(space), port));
        let records: [_; RECORDS] = std::array::from_fn(|index| {
            let bytes = bytes[index * RECORD_BYTES..].first_chunk::<RECORD_BYTES>();
            bytes.filter(|bytes| **bytes != [0; RECORD_BYTES]).and_then(PortRecord::parse)
        });
        records.into_iter().enumerate().filter_map(|(index, record)| Some((index, record?)))
    }

    /// Writes or clears a record of this process.
    pub(crate) fn write(&self, space: PortSpace, port: u16, index: usize, binding: Option<&Binding>) -> io::Result<()> {
        let Some(own) = self.own.get() else { return Err(io::ErrorKind::NotFound.into()) };
        let record = |binding: &Binding| PortRecord { binding: *binding, owner: *own }.to_bytes();
        let bytes = binding.map_or([0; RECORD_BYTES], record);
        let offset = port_offset(index_of(space), port) + (index % RECORDS * RECORD_BYTES) as u64;
        self.shared.file().write_all_at(&bytes, offset)
    }

    /// Returns whether another process has this slot and this nonce.
    pub(crate) fn is_alive_elsewhere(&self, owner: Owner) -> bool {
        let is_locked = || is_byte_locked_by_others(self.shared.file().as_fd(), LIFE_OFFSET + u64::from(owner.slot));
        // If the lock cannot be queried, keep the port rather than give it to two.
        self.entry(owner).is_some() && is_locked().unwrap_or(true)
    }

    /// Returns the process ID of an owner, if it is known.
    pub(crate) fn process(&self, owner: Owner) -> Option<u32> {
        self.entry(owner).map(|entry| entry.process)
    }

    fn entry(&self, owner: Owner) -> Option<ProcessEntry> {
        let mut bytes = [0; PROCESS_BYTES];
        self.shared.file().read_exact_at(&mut bytes, process_offset(owner.slot)).ok()?;
        ProcessEntry::parse(&bytes).filter(|entry| entry.nonce == owner.nonce)
    }
}

impl PortsChange<'_> {
    /// Returns the file.
    pub(crate) fn file(&self) -> &PortsFile {
        self.file
    }

    /// Returns whether no other process can have changed the file since the change began.
    pub(crate) fn is_exclusive(&self) -> bool {
        self.change.is_exclusive()
    }

    /// Returns the owners of a port in other live processes.
    pub(crate) fn others(&self, space: PortSpace, port: u16) -> Others {
        let mut others = Others { records: Vec::new(), in_use: [false; RECORDS] };
        for (index, record) in self.file.records(space, port) {
            let is_own = record.owner == self.own;
            others.in_use[index] = is_own || self.is_alive(record.owner);
            if others.in_use[index] && !is_own {
                others.records.push(record);
            }
        }
        others
    }

    /// Returns the index of a record for this process, or `None` if all are in use.
    pub(crate) fn free_index(&self, others: &Others) -> Option<usize> {
        // Processes begin at different indices: if one is stopped for so long that another proceeds without the lock,
        // neither overwrites the other's record.
        let start = usize::from(self.own.slot);
        (start..start + RECORDS).map(|index| index % RECORDS).find(|index| !others.in_use[*index])
    }

    fn is_alive(&self, owner: Owner) -> bool {
        let mut known = self.known.borrow_mut();
        if let Some(is_alive) = known.get(&owner) {
            return *is_alive;
        }
        let is_alive = self.file.is_alive_elsewhere(owner);
        if known.len() < MAX_KNOWN {
            known.insert(owner, is_alive);
        }
        is_alive
    }
}

fn process_offset(slot: u16) -> u64 {
    u64::from(slot) * PROCESS_BYTES as u64
}

fn index_of(space: PortSpace) -> u64 {
    // Every space is in the list.
    PortSpace::ALL.iter().position(|other| *other == space).unwrap_or_default() as u64
}
