//! The registry: how the processes of one user that receive on one address know of each other.
//!
//! A folder in shared memory holds a file for each address of each network namespace, and one for the blocks of queue
//! pair numbers. Whoever is there holds a lock on a byte of the file, which ends with its process, however that ends:
//! so nothing in a file has to be believed that belongs to nobody alive.

mod file;
#[cfg(feature = "sim")]
mod fuzz;
mod table;

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

pub(crate) use file::{AddressFile, Change};
#[cfg(feature = "sim")]
pub use fuzz::registry_file;
pub(crate) use table::{Answer, Header, Member, NAME_BYTES, Name, Nonce};

use super::sys::{NotInherited, own_user, try_lock_byte, unlock_byte};

/// Where shared memory usually is, and where else there is room.
const PLACES: [&str; 2] = ["/dev/shm", "/tmp"];

/// The folder of this user.
pub(super) struct Registry {
    folder: PathBuf,
    /// A byte for each block that may be leased.
    blocks: (NotInherited, File),
}

impl Registry {
    /// Opens the folder, or makes it. `None` if there is no place for it: then addresses are not shared.
    pub(super) fn open() -> Option<Self> {
        for place in PLACES {
            match Self::open_in(Path::new(place)) {
                Ok(registry) => return Some(registry),
                Err(error) => tracing::debug!(place, %error, "no registry here"),
            }
        }
        tracing::warn!("neither /dev/shm nor /tmp can be written: this process cannot share its addresses");
        None
    }

    fn open_in(place: &Path) -> io::Result<Self> {
        let folder = place.join(format!("rdma-verbs-{}", own_user()));
        match DirBuilder::new().mode(0o700).create(&folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let found = std::fs::symlink_metadata(&folder)?;
        if !found.is_dir() || found.uid() != own_user() || found.mode() & 0o077 != 0 {
            let message = format!("{} must be a folder that belongs to this user alone", folder.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
        }
        let blocks = open_file(&folder.join(format!("{}-blocks", namespace())))?;
        Ok(Self { folder, blocks: (NotInherited::new(blocks.as_fd()), blocks) })
    }

    /// Takes a block, unless another process has it.
    pub(super) fn lease_block(&self, block: u32) -> io::Result<bool> {
        try_lock_byte(self.blocks.1.as_fd(), block.into())
    }

    /// Gives a block back.
    pub(super) fn release_block(&self, block: u32) {
        // It ends with the process in any case.
        let _ = unlock_byte(self.blocks.1.as_fd(), block.into());
    }

    /// The file of an address.
    pub(super) fn address(&self, address: IpAddr) -> io::Result<AddressFile> {
        AddressFile::open(self.folder.join(format!("{}-{address}", namespace())))
    }

    /// The file of an address, if anybody has made it.
    pub(super) fn find_address(&self, address: IpAddr) -> Option<AddressFile> {
        let path = self.folder.join(format!("{}-{address}", namespace()));
        path.exists().then(|| AddressFile::open(path).ok()).flatten()
    }
}

/// The network namespace of this thread: addresses mean something only there.
fn namespace() -> u64 {
    std::fs::metadata("/proc/thread-self/ns/net").map_or(0, |metadata| metadata.ino())
}

fn open_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    options.open(path)
}
