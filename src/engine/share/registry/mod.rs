//! The registry: how processes of one user that receive on the same address find each other.
//!
//! A folder holds a file for each address of each network namespace, one for the QPN blocks and one for the ports of
//! each namespace, and the sockets and connections of each process. A live process holds a lock on a byte of the file,
//! which ends with the process, however it ends: so entries without a live process are ignored. The next process that
//! starts removes everything unused.
//!
//! # Which folder
//!
//! All processes of a user must use the same folder, or they cannot share an address. So the environment does not
//! choose it: a login session has `XDG_RUNTIME_DIR`, a service or a scheduled job of the same user has none. The first
//! choice is a name in `/dev/shm`, then in `/tmp`, which exist for all. Both are open to all users, and another user
//! may have created the name first; such a folder is not used. The fallback is the private folder of the session
//! (`/run/user/USER`, then `XDG_RUNTIME_DIR`), which no other user can enter. The folder is never removed, so that no
//! other user can take its name later.

mod blocks;
mod change;
mod connection_record;
mod connections;
mod file;
mod folder;
#[cfg(feature = "sim")]
mod fuzz;
mod port_record;
mod ports;
mod shared_file;
mod socket;
mod table;

use std::fs::{File, OpenOptions};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use self::blocks::BlocksFile;
pub(crate) use self::change::Change;
pub(crate) use self::connections::{ConnectionsFile, Taking, processes_with_connections, take_orphans};
pub(crate) use self::file::AddressFile;
#[cfg(feature = "sim")]
pub use self::fuzz::registry_file;
pub(crate) use self::port_record::{Binding, PortRecord, RECORDS};
pub(crate) use self::ports::{Others, PortsChange, PortsFile};
pub(crate) use self::socket::{
    inbox_path, life_path, links_path, place_socket, remove_sockets, watch_path, watched_process,
};
pub(crate) use self::table::{
    Answer, Header, MAX_BLOCKS, MAX_LISTENERS, Member, MemberListener, NAME_BYTES, Name, Nonce, SLOTS,
};
use crate::sys::{PerGeneration, own_user};

/// Suffix of the file name for the blocks of a namespace.
const BLOCKS: &str = "blocks";
/// Most folder entries that a starting process examines. The folder is the user's own; this bounds the time.
pub(super) const MAX_SWEPT: usize = 8_192;

/// The registry of this process, opened when it is first used.
static REGISTRY: PerGeneration<Opened> = PerGeneration::new();

/// `None` if there is no folder for it.
struct Opened(Option<Registry>);

impl Default for Opened {
    fn default() -> Self {
        Self(Registry::open())
    }
}

/// This user's registry folder.
pub(super) struct Registry {
    folder: PathBuf,
    blocks: BlocksFile,
}

impl Registry {
    /// Returns the registry of this process, or `None` if there is no folder for it.
    pub(super) fn of_process() -> Option<&'static Self> {
        REGISTRY.get()?.0.as_ref()
    }

    /// Opens the folder, or creates it. Returns `None`, with a warning, if no folder can be used: then addresses are
    /// not shared.
    fn open() -> Option<Self> {
        let mut refused = Vec::new();
        for folder in folder::candidates() {
            match Self::open_in(&folder) {
                Ok(registry) => {
                    folder::warn_of_others(&refused, &folder);
                    registry.sweep();
                    return Some(registry);
                }
                Err(error) => refused.push((folder, error)),
            }
        }
        folder::warn_of_none(&refused);
        None
    }

    pub(super) fn open_in(folder: &Path) -> io::Result<Self> {
        folder::prepare(folder)?;
        let blocks = BlocksFile::open(&folder.join(format!("{}-{BLOCKS}", namespace())))?;
        Ok(Self { folder: folder.to_owned(), blocks })
    }

    /// Returns the folder of files and sockets.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Leases a block; returns false if another process has it.
    pub(super) fn lease_block(&self, block: u32) -> io::Result<bool> {
        self.blocks.lease(block)
    }

    /// Releases a block.
    pub(super) fn release_block(&self, block: u32) {
        self.blocks.release(block);
    }

    fn path_of(&self, address: IpAddr) -> PathBuf {
        self.folder.join(format!("{}-{address}", namespace()))
    }

    /// Opens the file of an address.
    pub(super) fn address(&self, address: IpAddr) -> io::Result<AddressFile> {
        self.prepare()?;
        AddressFile::open(self.path_of(address))
    }

    /// Creates the folder again if it was removed, as some systems do when the user's last session ends. Fails if
    /// another user has taken its name since.
    pub(super) fn prepare(&self) -> io::Result<()> {
        folder::prepare(&self.folder)
    }

    /// Opens the file of an address if it exists.
    pub(super) fn find_address(&self, address: IpAddr) -> Option<AddressFile> {
        AddressFile::find(self.path_of(address)).ok()
    }

    /// Creates the file of this process's connections, whose sockets have this name.
    pub(super) fn create_connections(&self, name: &Name) -> io::Result<ConnectionsFile> {
        self.prepare()?;
        ConnectionsFile::create(&self.folder, name)
    }

    /// Removes leftovers of dead processes: files of namespaces and addresses, and sockets. Entries that cannot be
    /// examined stay.
    pub(super) fn sweep(&self) {
        let Ok(entries) = std::fs::read_dir(&self.folder) else { return };
        for entry in entries.take(MAX_SWEPT).flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let Some(name) = name.to_str() else { continue };
            if socket::sweep(&self.folder, name) || connections::sweep(&self.folder, name) {
                continue;
            }
            let _ = match name.split_once('-') {
                Some((namespace, _)) if namespace.parse::<u64>().is_err() => Ok(()),
                Some((_, BLOCKS)) => BlocksFile::remove_unused(&path),
                Some((_, ports::SUFFIX)) => PortsFile::remove_unused(&path),
                Some((_, address)) if address.parse::<IpAddr>().is_ok() => {
                    AddressFile::find(path).and_then(|file| file.remove_unused())
                }
                _ => Ok(()),
            };
        }
    }
}

/// Returns the network namespace of this thread; addresses are only meaningful within it.
pub(super) fn namespace() -> u64 {
    std::fs::metadata("/proc/thread-self/ns/net").map_or(0, |metadata| metadata.ino())
}

fn open_file(path: &Path) -> io::Result<File> {
    options().create(true).truncate(false).open(path).and_then(check_owner)
}

fn find_file(path: &Path) -> io::Result<File> {
    options().open(path).and_then(check_owner)
}

/// Rejects files of other users: they are neither read nor written.
fn check_owner(file: File) -> io::Result<File> {
    let owner = file.metadata()?.uid();
    if owner == own_user() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("the file belongs to user {owner}")))
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    options
}

/// Returns whether the path still names this open file: another process may have removed it before a lock was taken.
fn is_in_place(file: &File, path: &Path) -> bool {
    let identity = |found: std::fs::Metadata| (found.dev(), found.ino());
    let identities = (file.metadata().map(identity), std::fs::symlink_metadata(path).map(identity));
    matches!(identities, (Ok(own), Ok(found)) if own == found)
}

#[cfg(all(test, not(loom)))]
mod tests;
