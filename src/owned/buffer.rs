//! Buffers: registered memory that has one owner.

use std::fmt;
use std::fs::File;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::exclusive::{Exclusive, check_device};
use super::pool::{Pool, PooledBytes};
use crate::verbs::{AccessFlags, Error, Memory, MemoryRegion, ProtectionDomain, RegionRange, Result};

/// Registered memory with one owner: the application, or a request that it moved into.
///
/// A buffer has a fixed capacity, and a length like a `Vec`: the number of filled bytes. It dereferences to a slice of
/// this length; nothing else can access it while the application holds it. It comes from a
/// [`BufferPool`](super::BufferPool), or from memory that is moved in and can be taken out again.
///
/// ```
/// # use rdma_verbs::verbs;
/// # let pd = verbs::open("soft:127.0.1.93")?.alloc_pd()?;
/// use rdma_verbs::owned::Buffer;
///
/// let mut buffer = Buffer::from_vec(&pd, vec![1, 2, 3])?;
/// buffer[0] = 9;
/// assert_eq!(*buffer, [9, 2, 3]);
/// assert_eq!(buffer.into_vec()?, [9, 2, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Buffer {
    storage: Storage,
    len: usize,
}

enum Storage {
    Pooled(PooledBytes),
    Moved(Exclusive),
}

impl Storage {
    #[inline]
    fn bytes(&self) -> &Exclusive {
        match self {
            Storage::Pooled(pooled) => pooled.bytes(),
            Storage::Moved(bytes) => bytes,
        }
    }

    #[inline]
    fn bytes_mut(&mut self) -> &mut Exclusive {
        match self {
            Storage::Pooled(pooled) => pooled.bytes_mut(),
            Storage::Moved(bytes) => bytes,
        }
    }
}

/// An error that returns the refused value: memory that could not be registered, or a request that could not be posted.
#[derive(thiserror::Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct Refused<T> {
    /// Reason for the refusal.
    #[source]
    pub error: Error,
    /// The refused value.
    pub given: T,
}

impl<T> Refused<T> {
    pub(crate) fn new(error: Error, given: T) -> Self {
        Self { error, given }
    }
}

impl<T> fmt::Debug for Refused<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<T> From<Refused<T>> for Error {
    fn from(refused: Refused<T>) -> Self {
        refused.error
    }
}

impl Buffer {
    pub(super) fn pooled(bytes: Exclusive, pool: Arc<Pool>) -> Self {
        Self { storage: Storage::Pooled(PooledBytes::new(bytes, pool)), len: 0 }
    }

    /// Registers a vector's bytes. Its spare capacity is kept, but is not part of the buffer.
    ///
    /// # Errors
    /// The vector is empty; the device belongs to a provider outside this crate; otherwise, as for
    /// [`ProtectionDomain::reg_mr`]. The error returns the vector.
    pub fn from_vec(domain: &ProtectionDomain, bytes: Vec<u8>) -> Result<Self, Refused<Vec<u8>>> {
        match Exclusive::from_vec(domain, bytes) {
            Ok(bytes) => Ok(Self { len: bytes.len(), storage: Storage::Moved(bytes) }),
            Err((error, given)) => Err(Refused::new(error, given)),
        }
    }

    /// Registers a boxed slice; see [`Buffer::from_vec`].
    ///
    /// # Errors
    /// As for [`Buffer::from_vec`].
    ///
    /// ```
    /// # use rdma_verbs::{owned::Buffer, verbs};
    /// # let pd = verbs::open("soft:127.0.1.94")?.alloc_pd()?;
    /// let buffer = Buffer::from_boxed_slice(&pd, Box::new([0; 64]))?;
    /// assert_eq!(buffer.len(), 64);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_boxed_slice(domain: &ProtectionDomain, bytes: Box<[u8]>) -> Result<Self, Refused<Box<[u8]>>> {
        Self::from_vec(domain, bytes.into_vec())
            .map_err(|Refused { error, given }| Refused::new(error, given.into_boxed_slice()))
    }

    /// Registers the bytes of a `BytesMut` (feature `bytes`). The bytes are copied if the allocation is shared.
    ///
    /// # Errors
    /// As for [`Buffer::from_vec`].
    ///
    /// ```
    /// # use rdma_verbs::{owned::Buffer, verbs};
    /// # let pd = verbs::open("soft:127.0.1.95")?.alloc_pd()?;
    /// let buffer = Buffer::from_bytes_mut(&pd, bytes::BytesMut::from("hello"))?;
    /// assert_eq!(*buffer, *b"hello");
    /// let bytes = bytes::Bytes::from(buffer.into_vec()?);
    /// # assert_eq!(bytes, "hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "bytes")]
    pub fn from_bytes_mut(domain: &ProtectionDomain, bytes: bytes::BytesMut) -> Result<Self, Refused<bytes::BytesMut>> {
        // The conversion reuses the allocation where possible.
        Self::from_vec(domain, bytes.into())
            .map_err(|Refused { error, given }| Refused::new(error, bytes::Bytes::from(given).into()))
    }

    /// Returns the bytes as a vector, truncated to the buffer's length. Memory that was moved in is deregistered and
    /// returned without a copy; a pool's buffer is copied, and returns to its pool.
    ///
    /// # Errors
    /// Deregistration fails; on a soft device it never does.
    pub fn into_vec(self) -> Result<Vec<u8>> {
        match self.storage {
            Storage::Pooled(pooled) => Ok(pooled.bytes().as_slice()[..self.len].to_vec()),
            Storage::Moved(bytes) => {
                let mut bytes = bytes.into_vec()?;
                bytes.truncate(self.len);
                Ok(bytes)
            }
        }
    }

    /// Returns the capacity in bytes.
    pub fn capacity(&self) -> usize {
        self.storage.bytes().len()
    }

    /// Sets the number of filled bytes. Newly exposed bytes keep their old contents (initially zero).
    ///
    /// # Panics
    /// If `len` exceeds the capacity.
    ///
    /// ```
    /// # use rdma_verbs::{owned::BufferPool, verbs};
    /// # let pd = verbs::open("soft:127.0.1.96")?.alloc_pd()?;
    /// let mut buffer = BufferPool::new(&pd, 1 << 20)?.take(100)?;
    /// assert_eq!((buffer.len(), buffer.capacity()), (0, 128));
    /// buffer.set_len(8);
    /// buffer[..4].copy_from_slice(b"head");
    /// buffer.extend_from_slice(b"body");
    /// assert_eq!(buffer.len(), 12);
    /// # Ok::<(), verbs::Error>(())
    /// ```
    pub fn set_len(&mut self, len: usize) {
        let capacity = self.capacity();
        assert!(len <= capacity, "a length of {len} bytes; the buffer has {capacity}");
        self.len = len;
    }

    /// Sets the length to 0.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Appends `bytes`.
    ///
    /// # Panics
    /// If they do not fit: a buffer never moves, so it cannot grow.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        let start = self.len;
        self.set_len(start.saturating_add(bytes.len()));
        self[start..].copy_from_slice(bytes);
    }

    /// Returns all bytes up to the capacity, filled or not.
    pub fn capacity_mut(&mut self) -> &mut [u8] {
        self.storage.bytes_mut().as_mut_slice()
    }

    /// Returns the first eight bytes as a number in host byte order, such as the original value of an atomic.
    ///
    /// `None` if the length is less.
    pub fn to_u64(&self) -> Option<u64> {
        Some(u64::from_ne_bytes(*self.first_chunk()?))
    }

    /// Returns the protection domain that the buffer is registered in.
    pub fn protection_domain(&self) -> &ProtectionDomain {
        self.storage.bytes().domain()
    }

    pub(super) fn range(&self, len: usize) -> Result<RegionRange<'_>> {
        self.storage.bytes().range(len)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.storage.bytes().as_slice()[..self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.storage.bytes_mut().as_mut_slice()[..self.len]
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("len", &self.len).field("capacity", &self.capacity()).finish_non_exhaustive()
    }
}

/// A registered part of a file, with one owner. Other processes may change or truncate the file, so it is never exposed
/// as a slice: bytes are copied in and out.
///
/// ```
/// # use rdma_verbs::verbs;
/// # let pd = verbs::open("soft:127.0.1.97")?.alloc_pd()?;
/// use rdma_verbs::owned::FileBuffer;
///
/// let file = std::fs::File::open("Cargo.toml")?;
/// let buffer = FileBuffer::map(&pd, &file, 0, 9, false)?;
/// let mut head = [0; 9];
/// buffer.read_at(0, &mut head)?;
/// assert_eq!(&head, b"[package]");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct FileBuffer {
    /// Boxed, because buffers are moved more often than files are mapped.
    region: Box<MemoryRegion>,
    len: usize,
}

impl FileBuffer {
    /// Maps and registers `len` bytes of `file`, starting at `offset`. Without `writable`, the memory can be sent, but
    /// not used for receives or READs.
    ///
    /// # Errors
    /// As for [`Memory::file`] and [`ProtectionDomain::reg_mr`].
    pub fn map(domain: &ProtectionDomain, file: &File, offset: u64, len: usize, writable: bool) -> Result<Self> {
        check_device(domain)?;
        let access = if writable { AccessFlags::LOCAL_WRITE } else { AccessFlags::empty() };
        let region = domain.reg_mr(Memory::file(file, offset, len, writable)?, access)?;
        Ok(Self { len: region.len(), region: Box::new(region) })
    }

    /// Returns the capacity in bytes.
    pub fn capacity(&self) -> usize {
        self.region.len()
    }

    /// Returns the number of filled bytes: initially all, later those that were received or read.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether no byte is filled.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sets the number of filled bytes.
    ///
    /// # Panics
    /// If `len` exceeds the capacity.
    pub fn set_len(&mut self, len: usize) {
        let capacity = self.capacity();
        assert!(len <= capacity, "a length of {len} bytes; the buffer has {capacity}");
        self.len = len;
    }

    /// Copies bytes out; see [`MemoryRegion::read_at`].
    ///
    /// # Errors
    /// The range exceeds the capacity, or the file was truncated.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        self.region.read_at(offset, out)
    }

    /// Copies bytes in; see [`MemoryRegion::write_at`].
    ///
    /// # Errors
    /// As for [`FileBuffer::read_at`], or the file is mapped read-only.
    pub fn write_at(&mut self, offset: usize, data: &[u8]) -> Result<()> {
        self.region.write_at(offset, data)
    }

    pub(super) fn range(&self, len: usize) -> Result<RegionRange<'_>> {
        self.region.slice(..len)
    }
}
