//! A part of memory that two processes share.

use std::fmt;
use std::ops::Range;

use super::AccessError;
use super::raw::Memory;

/// A part of memory that another process of this user can change at any moment. Bytes go in and out by copies only, so
/// whatever is checked is copied first.
#[derive(Clone, Copy)]
pub struct SharedPart<'a> {
    memory: &'a Memory,
    offset: usize,
    length: usize,
}

impl<'a> SharedPart<'a> {
    #[inline]
    pub(super) fn new(memory: &'a Memory, offset: usize, length: usize) -> Self {
        Self { memory, offset, length }
    }

    /// Number of bytes.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Returns some of the bytes; those past the end are left out.
    #[inline]
    pub(crate) fn slice(&self, range: Range<usize>) -> Self {
        let end = range.end.min(self.length);
        let start = range.start.min(end);
        Self { memory: self.memory, offset: self.offset + start, length: end - start }
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`AccessError::OutOfBounds`] if they are too many.
    #[inline]
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<(), AccessError> {
        if bytes.len() > self.length {
            return Err(AccessError::OutOfBounds);
        }
        self.memory.write(self.offset, bytes)
    }

    /// Fills it with the bytes of other memory from `offset` on.
    ///
    /// # Errors
    /// [`AccessError::OutOfBounds`] past the end of that memory, and [`AccessError::Fault`].
    #[inline]
    pub(super) fn fill(&self, memory: &Memory, offset: usize) -> Result<(), AccessError> {
        memory.copy_to(offset, self.memory, self.offset, self.length)
    }

    /// Copies all bytes to other memory, as a write.
    ///
    /// # Errors
    /// As a write.
    #[inline]
    pub(super) fn copy_to(&self, memory: &Memory, offset: usize) -> Result<(), AccessError> {
        self.memory.copy_to(self.offset, memory, offset, self.length)
    }
}

impl fmt::Debug for SharedPart<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedPart({} bytes)", self.length)
    }
}

/// Memory of a test in the place of memory that is shared.
#[cfg(all(test, not(loom)))]
pub(crate) struct SharedMemory(Memory);

#[cfg(all(test, not(loom)))]
impl SharedMemory {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        Self(Memory::new(super::Backing::from_vec(bytes.to_vec())))
    }

    pub(crate) fn part(&self, range: Range<usize>) -> SharedPart<'_> {
        SharedPart::new(&self.0, range.start, range.len())
    }
}
