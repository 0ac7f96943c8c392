//! The memory behind a region, and its ownership.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use memmap2::{MmapOptions, MmapRaw};

use super::raw::exported::Exported;
use super::{DevicePart, OwnedBytes, RawRange};

/// Memory that can be registered. It owns its bytes, except for a raw range, and frees them when it is dropped.
#[derive(Debug)]
pub struct Backing(Kind);

/// The kinds of memory.
#[derive(Debug)]
enum Kind {
    /// Zeroed pages, private to this process, and whether their address was asked for: until then none of their bytes
    /// is accessed.
    Anonymous(Mapping, AtomicBool),
    /// Pages that other processes of the user may map while they are registered.
    Exported(Exported),
    /// Pages that another process has exported.
    OfPeer(Mapping),
    /// Part of a file, shared with all processes that map or write it.
    File(Mapping),
    /// A file without a name whose length is sealed, shared with another process.
    Sealed(MmapRaw),
    /// A vector or boxed slice, given back with its original allocation.
    Owned(OwnedBytes),
    /// Memory that the caller owns, and whose validity the caller guarantees.
    Raw(RawRange),
    /// Part of a device's memory.
    Device(DevicePart),
    /// Memory of this length that this process cannot reach: in an adapter, or behind a descriptor. It has no address
    /// here, and every access by this library fails with [`super::AccessError::Elsewhere`].
    #[cfg_attr(not(feature = "ibverbs"), allow(dead_code, reason = "only adapters have such memory"))]
    Elsewhere(usize),
}

impl From<OwnedBytes> for Backing {
    fn from(bytes: OwnedBytes) -> Self {
        Self(Kind::Owned(bytes))
    }
}

impl From<RawRange> for Backing {
    fn from(range: RawRange) -> Self {
        Self(Kind::Raw(range))
    }
}

impl From<DevicePart> for Backing {
    fn from(part: DevicePart) -> Self {
        Self(Kind::Device(part))
    }
}

impl Backing {
    /// Maps `len` zeroed bytes, starting at a page boundary.
    ///
    /// # Errors
    /// `InvalidInput` if `len` is 0; otherwise the error of `mmap`, for lack of memory or address space.
    pub fn anonymous(len: usize) -> io::Result<Self> {
        let map = MmapOptions::new().len(positive(len)?).map_anon()?;
        Ok(Self(Kind::Anonymous(Mapping { map: map.into(), writable: true }, AtomicBool::new(false))))
    }

    /// Maps `len` zeroed bytes that other processes of the user may map while they are registered.
    ///
    /// # Errors
    /// Those of the system calls, for lack of memory or descriptors, or because they are forbidden.
    pub(super) fn exported(len: usize, is_writable_by_peers: bool) -> io::Result<Self> {
        Exported::create(positive(len)?, is_writable_by_peers).map(|exported| Self(Kind::Exported(exported)))
    }

    /// Wraps a mapping of pages that another process has exported.
    pub(super) fn of_peer(map: MmapRaw, writable: bool) -> Self {
        Self(Kind::OfPeer(Mapping { map, writable }))
    }

    /// Whether these are zeroed pages that nothing has accessed or can access yet.
    pub(super) fn is_fresh(&self) -> bool {
        matches!(&self.0, Kind::Anonymous(_, was_exposed) if !was_exposed.load(Ordering::Relaxed))
    }

    /// The memory as one that other processes may map.
    pub(super) fn as_exported(&self) -> Option<&Exported> {
        match &self.0 {
            Kind::Exported(exported) => Some(exported),
            _ => None,
        }
    }

    /// Maps `len` bytes of `file` from `offset`, which need not be a multiple of the page size.
    ///
    /// Writes reach the file. Registration refuses bytes past the end of the file; if the file is truncated later,
    /// accesses past the new end fail with [`super::AccessError::Fault`].
    ///
    /// # Errors
    /// `InvalidInput` if `len` is 0; otherwise the error of `mmap`, such as `PermissionDenied` for `writable` on a file
    /// that is not open for writing.
    pub fn file(file: &File, offset: u64, len: usize, writable: bool) -> io::Result<Self> {
        Self::descriptor(file.as_fd(), offset, len, writable)
    }

    /// As [`Backing::file`], for any descriptor that `mmap` accepts.
    ///
    /// # Errors
    /// As [`Backing::file`].
    pub fn descriptor(fd: BorrowedFd<'_>, offset: u64, len: usize, writable: bool) -> io::Result<Self> {
        let mut options = MmapOptions::new();
        options.offset(offset).len(positive(len)?);
        let map = if writable { options.map_raw(&fd)? } else { options.map_raw_read_only(&fd)? };
        Ok(Self(Kind::File(Mapping { map, writable })))
    }

    /// Takes the bytes of a vector. Its spare capacity is kept but not registered.
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        OwnedBytes::from(bytes).into()
    }

    /// Takes the bytes of a boxed slice.
    pub fn from_boxed_slice(bytes: Box<[u8]>) -> Self {
        Self::from_vec(bytes.into_vec())
    }

    /// Returns the vector of [`Backing::from_vec`] or [`Backing::from_boxed_slice`] with its current contents, without
    /// copying.
    ///
    /// # Errors
    /// Returns the backing if it is of another kind.
    pub fn into_vec(self) -> Result<Vec<u8>, Self> {
        match self.0 {
            Kind::Owned(bytes) => Ok(bytes.into()),
            other => Err(Self(other)),
        }
    }

    /// Returns the boxed slice of [`Backing::from_boxed_slice`]. A vector's spare capacity is released.
    ///
    /// # Errors
    /// Returns the backing if it is of another kind.
    pub fn into_boxed_slice(self) -> Result<Box<[u8]>, Self> {
        self.into_vec().map(Vec::into_boxed_slice)
    }

    /// Wraps a mapping of a file whose length is sealed.
    pub(super) fn sealed(map: MmapRaw) -> Self {
        Self(Kind::Sealed(map))
    }

    /// Memory of this length that this process cannot reach.
    #[cfg(feature = "ibverbs")]
    pub(super) fn elsewhere(length: usize) -> Self {
        Self(Kind::Elsewhere(length))
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        match &self.0 {
            Kind::Anonymous(mapping, _) | Kind::File(mapping) | Kind::OfPeer(mapping) => mapping.map.len(),
            Kind::Exported(exported) => exported.len(),
            Kind::Sealed(map) => map.len(),
            Kind::Owned(bytes) => bytes.len(),
            Kind::Raw(range) => range.len(),
            Kind::Device(part) => part.len(),
            Kind::Elsewhere(length) => *length,
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a pointer to the first byte. While the memory is registered, others may access it at any time: no
    /// reference to its bytes may exist, and plain accesses through pointers must not race with theirs.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        match &self.0 {
            Kind::Anonymous(mapping, was_exposed) => {
                was_exposed.store(true, Ordering::Relaxed);
                mapping.map.as_mut_ptr()
            }
            Kind::File(mapping) | Kind::OfPeer(mapping) => mapping.map.as_mut_ptr(),
            Kind::Exported(exported) => exported.as_mut_ptr(),
            Kind::Sealed(map) => map.as_mut_ptr(),
            Kind::Owned(bytes) => bytes.as_mut_ptr(),
            Kind::Raw(range) => range.as_mut_ptr(),
            Kind::Device(part) => part.as_mut_ptr(),
            Kind::Elsewhere(_) => std::ptr::null_mut(),
        }
    }

    /// Whether the bytes may be written at all. A raw range counts as writable until an attempt fails.
    pub(super) fn is_writable(&self) -> bool {
        match &self.0 {
            Kind::Anonymous(mapping, _) | Kind::File(mapping) | Kind::OfPeer(mapping) => mapping.writable,
            Kind::Exported(_)
            | Kind::Sealed(_)
            | Kind::Owned(_)
            | Kind::Raw(_)
            | Kind::Device(_)
            | Kind::Elsewhere(_) => true,
        }
    }

    /// Whether the caller owns the bytes and guarantees their validity.
    pub fn is_raw(&self) -> bool {
        matches!(&self.0, Kind::Raw(_))
    }

    /// Whether its bytes outlast the process.
    pub(super) fn can_persist(&self) -> bool {
        matches!(&self.0, Kind::File(mapping) if mapping.writable)
    }

    /// Whether its pages may be absent when it is registered on demand.
    pub(super) fn may_be_absent(&self) -> bool {
        matches!(&self.0, Kind::Raw(_))
    }

    /// Whether an access must not touch the pages directly, because others can unmap them or there are none.
    pub(super) fn can_fault(&self) -> bool {
        matches!(&self.0, Kind::File(_) | Kind::Raw(_) | Kind::Elsewhere(_))
    }

    /// Whether the bytes are part of a device's memory.
    pub(crate) fn is_of_device(&self) -> bool {
        matches!(&self.0, Kind::Device(_))
    }

    /// Whether this process cannot reach the bytes.
    pub(crate) fn is_elsewhere(&self) -> bool {
        matches!(&self.0, Kind::Elsewhere(_))
    }
}

/// Pages mapped by this library.
#[derive(Debug)]
struct Mapping {
    map: MmapRaw,
    writable: bool,
}

fn positive(len: usize) -> io::Result<usize> {
    if len == 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "len: 0 given; at least 1 byte is needed"));
    }
    Ok(len)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn empty_mappings_are_refused() {
        assert_eq!(Backing::anonymous(0).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let file = File::open("/dev/zero").unwrap();
        assert_eq!(Backing::file(&file, 0, 0, false).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn vector_round_trip_keeps_its_allocation() {
        let mut bytes = Vec::with_capacity(100);
        bytes.extend_from_slice(b"abc");
        let (pointer, capacity) = (bytes.as_ptr(), bytes.capacity());
        let backing = Backing::from_vec(bytes);
        assert_eq!((backing.len(), backing.as_mut_ptr().cast_const()), (3, pointer));
        let bytes = backing.into_vec().unwrap();
        assert_eq!((bytes.as_ptr(), bytes.capacity(), &bytes[..]), (pointer, capacity, &b"abc"[..]));

        let boxed = Backing::from_boxed_slice(Box::new([1, 2])).into_boxed_slice().unwrap();
        assert_eq!(*boxed, [1, 2]);
        assert!(Backing::from_vec(Vec::new()).is_empty());
        assert!(Backing::anonymous(8).unwrap().into_vec().is_err());
    }
}
