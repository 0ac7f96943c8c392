//! The datagrams of raw streams: a header of 16 bytes, payload, and a CRC of 4 bytes over both, as a transport needs.

use std::io;

use rdma_verbs::checksum;

pub(super) const HEADER_BYTES: usize = 16;
pub(super) const CRC_BYTES: usize = 4;
/// Length of the header and CRC of a segment.
pub(super) const OVERHEAD_BYTES: usize = HEADER_BYTES + CRC_BYTES;

/// Returns the header: the number of the segment and the offset of its payload.
fn header(number: u64, offset: usize) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&number.to_le_bytes());
    header[8..].copy_from_slice(&(offset as u64).to_le_bytes());
    header
}

/// Writes a whole segment to `out`, which has exactly its length.
#[inline]
pub(super) fn write(out: &mut [u8], number: u64, offset: usize, payload: &[u8]) {
    let (covered, crc) = out.split_at_mut(HEADER_BYTES + payload.len());
    covered[..HEADER_BYTES].copy_from_slice(&header(number, offset));
    covered[HEADER_BYTES..].copy_from_slice(payload);
    crc.copy_from_slice(&checksum::update(0, covered).to_le_bytes());
}

/// Returns header and CRC of a segment whose payload is not copied.
#[inline]
pub(super) fn around(number: u64, offset: usize, payload: &[u8]) -> ([u8; HEADER_BYTES], [u8; CRC_BYTES]) {
    let header = header(number, offset);
    let crc = checksum::update(checksum::update(0, &header), payload);
    (header, crc.to_le_bytes())
}

/// Checks a segment and copies its payload to its offset; returns the payload's length.
#[inline]
pub(super) fn take(segment: &[u8], expected_number: u64, into: &mut [u8]) -> io::Result<usize> {
    let broken = |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("segment {expected_number}: {what}"));
    let (covered, crc) = segment.split_last_chunk::<CRC_BYTES>().ok_or_else(|| broken("too short"))?;
    let (header, payload) = covered.split_first_chunk::<HEADER_BYTES>().ok_or_else(|| broken("too short"))?;
    if checksum::update(0, covered).to_le_bytes() != *crc {
        return Err(broken("wrong CRC"));
    }
    let (number, offset) = header.split_at(8);
    if number != expected_number.to_le_bytes() {
        return Err(broken("another segment arrived: one was lost or overtaken"));
    }
    let offset = u64::from_le_bytes(offset.try_into().map_err(|_| broken("no offset"))?) as usize;
    let end = offset.checked_add(payload.len());
    let target = end.and_then(|end| into.get_mut(offset..end)).ok_or_else(|| broken("outside the memory"))?;
    target.copy_from_slice(payload);
    Ok(payload.len())
}
