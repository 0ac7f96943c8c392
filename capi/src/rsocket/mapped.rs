//! Ranges of memory that a program maps for its peer's direct writes.

use std::sync::Arc;

use rdma_verbs::provider::MemoryRegion;
use rdma_verbs::types::AccessFlags;

use super::stream::Inner;
use super::wire::{Buffer, Mapping};
use crate::error::{Errno, INVALID, Result};

/// Largest number of ranges: as many as a table can have.
const MAX_MAPPINGS: usize = 0x7f00;

struct Entry {
    region: Arc<dyn MemoryRegion>,
    memory: (usize, usize),
    mapping: Mapping,
    /// The entry of the peer's table; `None` for a range that the peer does not write.
    index: Option<u16>,
    is_announced: bool,
}

/// The ranges of a socket.
#[derive(Default)]
pub(super) struct Mappings(Vec<Entry>);

impl Mappings {
    /// Deregisters all of them.
    pub(super) fn end(self) {
        self.0.iter().for_each(|entry| drop(entry.region.dereg()));
    }

    fn free_index(&self, count: u16) -> Option<u16> {
        (0..count).find(|index| !self.0.iter().any(|entry| entry.index == Some(*index)))
    }
}

/// Maps memory of the program. Returns its offset for the peer.
///
/// # Safety
/// The program allows the peer to write the memory, if `is_writable`, until it is unmapped.
pub(super) unsafe fn map(
    inner: &mut Inner,
    memory: *mut u8,
    length: usize,
    is_writable: bool,
    offset: libc::off_t,
) -> Result<libc::off_t> {
    let (_, pd) = inner.identifier()?.device();
    let endpoint = inner.endpoint.as_ref().filter(|_| !pd.is_null()).ok_or(INVALID)?;
    let count = endpoint.flow.as_ref().and_then(|flow| flow.peer().mappings).unwrap_or(0);
    let bytes = u32::try_from(length).map_err(|_| INVALID)?;
    if inner.mappings.0.len() >= MAX_MAPPINGS {
        return Err(Errno(libc::ENOMEM));
    }
    let index = match is_writable {
        true => Some(inner.mappings.free_index(count).ok_or(Errno(libc::ENOMEM))?),
        false => None,
    };
    let access = if is_writable { AccessFlags::REMOTE_WRITE } else { AccessFlags::empty() };
    // SAFETY: the caller's promise.
    let region = unsafe { endpoint.register(pd, memory, length, AccessFlags::LOCAL_WRITE | access)? };
    let offset = if offset == -1 { memory as libc::off_t } else { offset };
    let buffer = Buffer { address: region.region().iova(), key: region.rkey().0, length: bytes };
    let mapping = Mapping { offset: offset as u64, buffer };
    let is_announced = index.is_none();
    inner.mappings.0.push(Entry { region, memory: (memory as usize, length), mapping, index, is_announced });
    Ok(offset)
}

/// Ends a mapping. The peer's writes there fail from now on.
pub(super) fn unmap(inner: &mut Inner, memory: usize, length: usize) -> Result<()> {
    let entries = &mut inner.mappings.0;
    let found = entries.iter().position(|entry| entry.memory == (memory, length)).ok_or(INVALID)?;
    let entry = entries.remove(found);
    Ok(entry.region.dereg()?)
}

/// Announces new ranges to the peer, as far as that is possible now. Returns whether all are announced.
pub(super) fn announce(inner: &mut Inner) -> Result<bool> {
    let Some(endpoint) = &mut inner.endpoint else { return Ok(true) };
    for entry in inner.mappings.0.iter_mut().filter(|entry| !entry.is_announced) {
        let Some(index) = entry.index else { continue };
        if !endpoint.announce(index, entry.mapping)? {
            return Ok(false);
        }
        entry.is_announced = true;
    }
    Ok(true)
}
