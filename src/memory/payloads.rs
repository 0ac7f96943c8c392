//! Payloads of consecutive packets, read from one range of registered memory.

use super::raw::Memory;
use super::table::Found;
use super::{AccessError, MemoryView, SharedPart};
use crate::checksum::Sum;
use crate::types::{AccessFlags, Accessor};

/// A range that is read packet by packet.
pub(crate) struct Payloads<'a> {
    memory: &'a Memory,
    next: usize,
    end: usize,
}

impl Payloads<'_> {
    /// Returns the number of bytes that are left.
    #[inline]
    pub(crate) fn left(&self) -> usize {
        self.end - self.next
    }

    /// Fills `out` with the next bytes, and sums them if that is nearly free.
    ///
    /// # Errors
    /// [`AccessError::OutOfBounds`] past the end, and [`AccessError::Fault`].
    #[inline]
    pub(crate) fn read_next(&mut self, out: &mut [u8]) -> Result<Option<Sum>, AccessError> {
        if out.len() > self.end - self.next {
            return Err(AccessError::OutOfBounds);
        }
        let sum = self.memory.read_summed(self.next, out, true)?;
        self.next += out.len();
        Ok(sum)
    }

    /// Places the next bytes in shared memory.
    ///
    /// # Errors
    /// As [`Payloads::read_next`].
    #[inline]
    pub(crate) fn place_next(&mut self, out: SharedPart<'_>) -> Result<(), AccessError> {
        if out.len() > self.end - self.next {
            return Err(AccessError::OutOfBounds);
        }
        out.fill(self.memory, self.next)?;
        self.next += out.len();
        Ok(())
    }
}

impl MemoryView<'_> {
    /// As [`MemoryView::read_payload`], for the consecutive payloads of several packets from `addr` on. `None`: the
    /// access is not allowed, or the key can be revoked during the copy. A revocation must wait for the copy of one
    /// packet only, not of many.
    pub(crate) fn payloads(
        &self,
        key: u32,
        accessor: impl Into<Accessor>,
        addr: u64,
        length: u64,
        need: AccessFlags,
    ) -> Option<Payloads<'_>> {
        let found = self.resolve(key, accessor.into(), addr, length, need).ok()?;
        let Found { region, offset, _using: None } = found else { return None };
        Some(Payloads { memory: region.memory(), next: offset, end: offset + length as usize })
    }
}
