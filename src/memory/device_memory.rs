//! Device memory, emulated in host memory: allocated by the byte, copied in and out, and registered in parts.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::raw::Memory;
use super::{AccessError, Backing};

/// The memory of a device, shared by all its allocations.
#[derive(Debug)]
pub struct DeviceMemoryPool {
    used: Arc<AtomicU64>,
    limit: u64,
}

/// Why device memory was not allocated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceMemoryError {
    /// The length is 0.
    #[error("length: 0 given; at least 1 byte is needed")]
    Empty,
    /// Fewer bytes are left than requested.
    #[error("length: {length} given; max_dm_size is {limit}, and {used} of it are in use")]
    Exhausted {
        /// Bytes requested.
        length: u64,
        /// Bytes in use.
        used: u64,
        /// Bytes in total.
        limit: u64,
    },
    /// The system cannot allocate the bytes.
    #[error("length: the system cannot allocate {length} bytes")]
    System {
        /// Bytes requested.
        length: u64,
        /// The system's error.
        source: io::Error,
    },
}

impl DeviceMemoryPool {
    /// Creates a pool of `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self { used: Arc::default(), limit }
    }

    /// Allocates `length` zeroed bytes, starting at a page boundary.
    ///
    /// # Errors
    /// See [`DeviceMemoryError`].
    pub fn alloc(&self, length: u64) -> Result<Arc<DeviceMemory>, DeviceMemoryError> {
        if length == 0 {
            return Err(DeviceMemoryError::Empty);
        }
        let limit = self.limit;
        let more = |used: u64| used.checked_add(length).filter(|sum| *sum <= limit);
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.map_err(|used| DeviceMemoryError::Exhausted { length, used, limit })?;
        let share = Share { used: Arc::clone(&self.used), length };
        let bytes = usize::try_from(length).map_err(io::Error::other).and_then(Backing::anonymous);
        let memory = Memory::new(bytes.map_err(|source| DeviceMemoryError::System { length, source })?);
        Ok(Arc::new(DeviceMemory { memory, _share: share }))
    }
}

/// An allocation's share of the pool.
#[derive(Debug)]
struct Share {
    used: Arc<AtomicU64>,
    length: u64,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.used.fetch_sub(self.length, Ordering::Relaxed);
    }
}

/// An allocation. It lives as long as a handle to it or a region of it.
pub struct DeviceMemory {
    memory: Memory,
    _share: Share,
}

impl DeviceMemory {
    /// Number of bytes, at least 1.
    #[allow(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> u64 {
        self.memory.len() as u64
    }

    /// Copies `data` to `offset`, as [`Region::write_at`](super::Region::write_at).
    ///
    /// # Errors
    /// [`AccessError::OutOfBounds`].
    pub fn copy_in(&self, offset: u64, data: &[u8]) -> Result<(), AccessError> {
        self.memory.write(usize::try_from(offset).map_err(|_| AccessError::OutOfBounds)?, data)
    }

    /// Copies from `offset` on, as [`Region::read_at`](super::Region::read_at).
    ///
    /// # Errors
    /// [`AccessError::OutOfBounds`].
    pub fn copy_out(&self, offset: u64, out: &mut [u8]) -> Result<(), AccessError> {
        self.memory.read(usize::try_from(offset).map_err(|_| AccessError::OutOfBounds)?, out)
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceMemory").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// A part of an allocation, which it keeps alive.
#[derive(Debug)]
pub(super) struct DevicePart {
    memory: Arc<DeviceMemory>,
    offset: usize,
    length: usize,
}

impl DevicePart {
    pub(super) fn len(&self) -> usize {
        self.length
    }

    pub(super) fn as_mut_ptr(&self) -> *mut u8 {
        self.memory.memory.base().wrapping_add(self.offset)
    }
}

impl Backing {
    /// Backs a region with `length` bytes of device memory from `offset`.
    ///
    /// # Errors
    /// [`AccessError::OutOfBounds`].
    pub(crate) fn device(memory: &Arc<DeviceMemory>, offset: u64, length: u64) -> Result<Self, AccessError> {
        let end = offset.checked_add(length).filter(|end| *end <= memory.len());
        end.ok_or(AccessError::OutOfBounds)?;
        // Both are at most the length of a mapping.
        let (offset, length) = (offset as usize, length as usize);
        Ok(DevicePart { memory: Arc::clone(memory), offset, length }.into())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::memory::{Region, RegionTable};
    use crate::types::{AccessFlags, DomainId};

    #[test]
    fn parts_keep_the_allocation_and_its_share() {
        let pool = DeviceMemoryPool::new(8192);
        let all = pool.alloc(8192).unwrap();
        let error = pool.alloc(1).unwrap_err();
        assert_eq!(error.to_string(), "length: 1 given; max_dm_size is 8192, and 8192 of it are in use");
        let table = RegionTable::new(4);
        let part = Backing::device(&all, 100, 50).unwrap();
        let region = table.register(DomainId(1), part, 0, AccessFlags::LOCAL_WRITE).unwrap();
        drop(all);
        assert!(pool.alloc(1).is_err(), "the region keeps it");
        region.write_at(49, &[7]).unwrap();
        assert_eq!(region.write_at(50, &[7]), Err(AccessError::OutOfBounds));
        assert!(table.deregister(&region));
        drop(Region::into_backing(region).unwrap());
        assert_eq!(pool.alloc(8192).unwrap().len(), 8192);
    }

    #[test]
    fn copies_and_parts_stay_in_bounds() {
        let pool = DeviceMemoryPool::new(1 << 20);
        let memory = pool.alloc(16).unwrap();
        assert_eq!(memory.copy_in(12, &[1, 2, 3, 4]), Ok(()));
        let mut out = [0; 3];
        assert_eq!(memory.copy_out(13, &mut out), Ok(()));
        assert_eq!(out, [2, 3, 4]);
        for offset in [14, 17, u64::MAX] {
            assert_eq!(memory.copy_out(offset, &mut out), Err(AccessError::OutOfBounds));
            assert_eq!(memory.copy_in(offset, &out), Err(AccessError::OutOfBounds));
        }
        for (offset, length) in [(0, 17), (17, 0), (8, 9), (1, u64::MAX), (u64::MAX, 1)] {
            assert_eq!(Backing::device(&memory, offset, length).err(), Some(AccessError::OutOfBounds));
        }
        let nothing = Backing::device(&memory, 16, 0).unwrap();
        let region = RegionTable::new(1).register(DomainId(1), nothing, 0, AccessFlags::LOCAL_WRITE).unwrap();
        assert_eq!((region.write_at(0, &[]), region.write_at(0, &[1])), (Ok(()), Err(AccessError::OutOfBounds)));
        assert!(matches!(pool.alloc(0), Err(DeviceMemoryError::Empty)));
        assert!(matches!(pool.alloc(u64::MAX), Err(DeviceMemoryError::Exhausted { .. })));
    }
}
