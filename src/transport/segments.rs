//! Access to memory through scatter-gather lists.

use std::ops::Range;

use crate::memory::{AccessError, MemoryView, SharedPart};
use crate::types::{AccessFlags, Accessor, DomainId, Sge};

/// Bytes that are placed in registered memory.
pub(super) trait Bytes: Copy {
    /// Returns their number.
    fn count(self) -> usize;

    /// Returns some of them, which are in bounds.
    fn part(self, range: Range<usize>) -> Self;

    /// Places them, as [`MemoryView::write`].
    fn place(
        self,
        memory: &MemoryView<'_>,
        key: u32,
        accessor: Accessor,
        addr: u64,
        need: AccessFlags,
    ) -> Result<(), AccessError>;
}

impl Bytes for &[u8] {
    #[inline]
    fn count(self) -> usize {
        self.len()
    }

    #[inline]
    fn part(self, range: Range<usize>) -> Self {
        &self[range]
    }

    #[inline]
    fn place(
        self,
        memory: &MemoryView<'_>,
        key: u32,
        accessor: Accessor,
        addr: u64,
        need: AccessFlags,
    ) -> Result<(), AccessError> {
        memory.write(key, accessor, addr, need, self)
    }
}

impl Bytes for SharedPart<'_> {
    #[inline]
    fn count(self) -> usize {
        self.len()
    }

    #[inline]
    fn part(self, range: Range<usize>) -> Self {
        self.slice(range)
    }

    #[inline]
    fn place(
        self,
        memory: &MemoryView<'_>,
        key: u32,
        accessor: Accessor,
        addr: u64,
        need: AccessFlags,
    ) -> Result<(), AccessError> {
        memory.write_shared(key, accessor, addr, need, self)
    }
}

/// Writes bytes of a message, starting at `offset`, to the memory of a scatter list.
pub(super) fn scatter(
    memory: &MemoryView<'_>,
    sges: &[Sge],
    domain: DomainId,
    offset: u64,
    bytes: impl Bytes,
) -> Result<(), AccessError> {
    if bytes.count() == 0 {
        return Ok(());
    }
    for_each_segment(sges, offset, bytes.count(), |sge, addr, range| {
        bytes.part(range).place(memory, sge.lkey.0, domain.into(), addr, AccessFlags::LOCAL_WRITE)
    })
}

/// Calls `access` for each segment of a scatter-gather list that holds bytes `offset .. offset + length` of the
/// message, with the entry, the address in it, and the range of the packet's payload.
pub(super) fn for_each_segment(
    sges: &[Sge],
    mut offset: u64,
    length: usize,
    mut access: impl FnMut(&Sge, u64, std::ops::Range<usize>) -> Result<(), AccessError>,
) -> Result<(), AccessError> {
    let mut done = 0;
    for sge in sges {
        let entry = u64::from(sge.length);
        if offset >= entry {
            offset -= entry;
            continue;
        }
        let segment = (entry - offset).min((length - done) as u64) as usize;
        if segment > 0 {
            let address = sge.addr.checked_add(offset).ok_or(AccessError::OutOfBounds)?;
            access(sge, address, done..done + segment)?;
        }
        done += segment;
        offset = 0;
        if done == length {
            return Ok(());
        }
    }
    if done == length { Ok(()) } else { Err(AccessError::OutOfBounds) }
}
