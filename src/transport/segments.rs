//! Access to memory through scatter-gather lists.

use crate::memory::{AccessError, MemoryView};
use crate::types::{AccessFlags, DomainId, Sge};

/// Writes bytes of a message, starting at `offset`, to the memory of a scatter list.
pub(super) fn scatter(
    memory: &MemoryView<'_>,
    sges: &[Sge],
    domain: DomainId,
    offset: u64,
    bytes: &[u8],
) -> Result<(), AccessError> {
    if bytes.is_empty() {
        return Ok(());
    }
    for_each_segment(sges, offset, bytes.len(), |sge, addr, range| {
        memory.write(sge.lkey.0, domain, addr, AccessFlags::LOCAL_WRITE, &bytes[range])
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
