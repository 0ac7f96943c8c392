//! Memory that can be registered.

use std::fmt;
use std::fs::File;

use super::{Error, ErrorKind, Result};
use crate::memory::Backing;

/// Memory that can be registered: allocated here, mapped from a file, or moved in.
///
/// [`ProtectionDomain::reg_mr`](super::ProtectionDomain::reg_mr) takes it, and
/// [`MemoryRegion::dereg`](super::MemoryRegion::dereg) returns it, to be registered again or, if it was moved in,
/// unpacked. A raw range can be registered again only with
/// [`ProtectionDomain::reg_mr_raw`](super::ProtectionDomain::reg_mr_raw), because its safety promise ended with its
/// region.
pub struct Memory {
    backing: Backing,
}

impl Memory {
    /// Allocates `len` zeroed bytes, page-aligned and not shared with other processes.
    ///
    /// # Errors
    /// `len` is 0, or the system is out of memory.
    pub fn anonymous(len: usize) -> Result<Self> {
        let backing = Backing::anonymous(len)
            .map_err(|error| Error::from_io("reg_mr", format!("cannot allocate {len} bytes"), error))?;
        Ok(Self { backing })
    }

    /// Maps `len` bytes of a file from `offset`, shared: a write to the region is a write to the file.
    ///
    /// The file may change or shrink under the mapping. An access beyond its end then fails the request, not the
    /// process. If `writable` is false, the region cannot have access flags that permit writing.
    ///
    /// # Errors
    /// The range does not lie within the file, or the system refuses to map it.
    ///
    /// ```
    /// use std::io::Write;
    /// use rdma_verbs::verbs::{self, AccessFlags, Memory};
    ///
    /// let path = std::env::temp_dir().join(format!("rdma-verbs-doc-{}", std::process::id()));
    /// let mut file = std::fs::File::options().read(true).write(true).create_new(true).open(&path)?;
    /// file.write_all(&[5u8; 8192])?;
    ///
    /// let pd = verbs::open("soft:127.0.1.20")?.alloc_pd()?;
    /// let mr = pd.reg_mr(Memory::file(&file, 0, 8192, false)?, AccessFlags::REMOTE_READ)?;
    /// let mut last = [0u8; 1];
    /// mr.read_at(8191, &mut last)?;
    /// assert_eq!(last, [5]);
    /// # std::fs::remove_file(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn file(file: &File, offset: u64, len: usize, writable: bool) -> Result<Self> {
        let backing = Backing::file(file, offset, len, writable).map_err(|error| {
            Error::from_io("reg_mr", format!("cannot map {len} bytes of the file from offset {offset}"), error)
        })?;
        Ok(Self { backing })
    }

    /// Returns the `Vec` that was moved in, with everything written to it since.
    ///
    /// # Errors
    /// Returns the memory unchanged if it is of another kind.
    pub fn into_vec(self) -> Result<Vec<u8>, Self> {
        self.backing.into_vec().map_err(|backing| Self { backing })
    }

    /// Returns the box that was moved in, with everything written to it since.
    ///
    /// # Errors
    /// Returns the memory unchanged if it is of another kind.
    pub fn into_boxed_slice(self) -> Result<Box<[u8]>, Self> {
        self.backing.into_boxed_slice().map_err(|backing| Self { backing })
    }

    /// Returns the size in bytes.
    pub fn len(&self) -> usize {
        self.backing.len()
    }

    /// Returns whether the size is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn from_backing(backing: Backing) -> Self {
        Self { backing }
    }

    /// Returns the backing for a registration without a safety promise. The promise for a raw range ended with its
    /// region: by now its owner may access the bytes, or other memory may be mapped there.
    pub(super) fn into_registrable(self, verb: &'static str) -> Result<Backing, RefusedMemory> {
        let message = match &self.backing {
            backing if backing.is_raw() => {
                "the memory is a raw range that was deregistered; register it again with reg_mr_raw"
            }
            backing if backing.is_of_device() => "the memory is a device's; register it again with reg_dm_mr",
            backing if backing.is_elsewhere() => {
                "the memory is an adapter's, or behind a descriptor; register it again with reg_dm_mr or reg_dmabuf_mr"
            }
            _ => return Ok(self.backing),
        };
        Err(RefusedMemory { error: Error::new(verb, ErrorKind::InvalidArgument, message), memory: self })
    }
}

/// A refused registration, with the memory that was to be registered.
#[derive(Debug)]
#[non_exhaustive]
pub struct RefusedMemory {
    /// Reason for the refusal.
    pub error: Error,
    /// The memory, unchanged.
    pub memory: Memory,
}

impl fmt::Display for RefusedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for RefusedMemory {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl From<RefusedMemory> for Error {
    fn from(refused: RefusedMemory) -> Self {
        refused.error
    }
}

impl From<Vec<u8>> for Memory {
    fn from(bytes: Vec<u8>) -> Self {
        Self { backing: Backing::from_vec(bytes) }
    }
}

impl From<Box<[u8]>> for Memory {
    fn from(bytes: Box<[u8]>) -> Self {
        Self { backing: Backing::from_boxed_slice(bytes) }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("len", &self.len()).finish()
    }
}
