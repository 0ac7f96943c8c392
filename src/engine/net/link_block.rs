//! Blocks: records of a ring with packets between the first and the last of a message, one header for all of them, and
//! their payloads in one piece. Each end copies the payloads at once: a copy of 4 KiB starts and ends slowly.
//!
//! ```text
//! 12 bytes   base transport header of the first packet; the others have the following PSNs
//!  4 bytes   the packets that request an acknowledgement, little-endian: bit 0 is the first packet
//!            the payloads, of equal length
//! ```

use super::inbound::{Deliver, Delivery};
use crate::memory::record_ring::{Record, RingReader};
use crate::transport::{Datagram, Similar};
use crate::types::Psn;
use crate::wire::{BTH_BYTES, ICRC_BYTES};

/// Bytes in front of the payloads.
pub(super) const BLOCK_HEADER_BYTES: usize = BTH_BYTES + 4;
/// Maximum number of packets of a block.
const MOST_BLOCK_PACKETS: usize = 32;
/// Maximum number of bytes of its payloads. The reader copies a block while the writer fills the next one, so a message
/// of 64 KiB has several.
const MOST_BLOCK_BYTES: usize = 32 << 10;
/// Minimum length of a payload: shorter packets are copied together as they are.
const LEAST_PAYLOAD: usize = 1_024;
/// Bit of the acknowledgement request in the byte in front of the PSN (IBTA 9.2).
const ACK_REQUEST: u8 = 0x80;
/// Attempts to take the packets at once: the first one of a message is often needed as a whole.
const ATTEMPTS: usize = 2;

/// Returns how many of `count` packets a block has, whose payloads have this length and of which `joined` bytes can be
/// copied at once, in this room for a record. `None`: they are written one by one.
pub(super) fn packets_of_block(count: u32, payload: usize, joined: usize, room: usize) -> Option<usize> {
    if payload < LEAST_PAYLOAD {
        return None;
    }
    let bytes = joined.min(MOST_BLOCK_BYTES).min(room.saturating_sub(BLOCK_HEADER_BYTES));
    Some((bytes / payload).min(count as usize).min(MOST_BLOCK_PACKETS)).filter(|packets| *packets > 1)
}

/// Returns the header of a block: that of its first packet, and which packets request an acknowledgement.
#[inline]
pub(super) fn block_header(first: &[u8; BTH_BYTES], ack_requests: u32) -> [u8; BLOCK_HEADER_BYTES] {
    let mut header = [0; BLOCK_HEADER_BYTES];
    header[..BTH_BYTES].copy_from_slice(first);
    header[BTH_BYTES..].copy_from_slice(&ack_requests.to_le_bytes());
    header
}

/// The packets of a block, as its record describes them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Block {
    /// The base transport header of the first packet.
    header: [u8; BTH_BYTES],
    packets: Similar,
    /// Bytes of each payload.
    payload: usize,
}

impl Block {
    /// Returns the block in a record of `length` bytes whose packets have `size`. `None` if it is impossible.
    pub(super) fn parse(header: &[u8; BLOCK_HEADER_BYTES], length: usize, size: usize) -> Option<Self> {
        let payload = size.checked_sub(BTH_BYTES + ICRC_BYTES).filter(|payload| *payload > 0)?;
        let bytes = length.checked_sub(BLOCK_HEADER_BYTES)?;
        let count = bytes / payload;
        if !bytes.is_multiple_of(payload) || !(1..=MOST_BLOCK_PACKETS).contains(&count) {
            return None;
        }
        let (first, rest) = header.split_first_chunk::<BTH_BYTES>()?;
        let ack_requests = u32::from_le_bytes(rest.try_into().ok()?);
        Some(Self { header: *first, packets: Similar { count: count as u32, ack_requests }, payload })
    }

    /// Returns the block in a record. `None` if it is impossible.
    pub(super) fn read(ring: &RingReader, record: &Record, size: usize) -> Option<Self> {
        if record.length < BLOCK_HEADER_BYTES {
            return None;
        }
        let mut header = [0; BLOCK_HEADER_BYTES];
        ring.read(0, &mut header);
        Self::parse(&header, record.length, size)
    }

    /// Returns the base transport header of the packet at this index.
    fn header_of(&self, index: usize) -> [u8; BTH_BYTES] {
        let mut header = self.header;
        let first = Psn::new(u32::from_be_bytes([0, header[9], header[10], header[11]]));
        let requests = self.packets.requests_ack(index as u32);
        header[8..].copy_from_slice(&first.plus(index as u32).value().to_be_bytes());
        header[8] = self.header[8] & !ACK_REQUEST | if requests { ACK_REQUEST } else { 0 };
        header
    }

    /// Delivers the packets of the next record of a ring: at once if that is possible, else one by one. Returns their
    /// number.
    pub(super) fn deliver(
        &self,
        ring: &RingReader,
        datagram: &mut Datagram<'_>,
        buffer: &mut [u8],
        delivery: &mut Delivery<'_, impl Deliver>,
    ) -> usize {
        let (count, payload) = (self.packets.count as usize, self.payload);
        for index in 0..count {
            let start = BLOCK_HEADER_BYTES + index * payload;
            let header = self.header_of(index);
            datagram.segment_index = index as u16;
            if index < ATTEMPTS {
                let rest = ring.part(start, (count - index) * payload);
                let head = Datagram { payload: &header, ..*datagram };
                if delivery.take_similar(&head, self.packets.from(index as u32), rest) {
                    break;
                }
            }
            let packet = &mut buffer[..BTH_BYTES + payload + ICRC_BYTES];
            packet[..BTH_BYTES].copy_from_slice(&header);
            ring.read(start, &mut packet[BTH_BYTES..BTH_BYTES + payload]);
            packet[BTH_BYTES + payload..].fill(0);
            delivery.take(&Datagram { payload: packet, ..*datagram });
        }
        count
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const FIRST: [u8; BTH_BYTES] = [1, 0x40, 0xff, 0xff, 0, 0, 0, 0x11, 0x80, 0xff, 0xff, 0xfe];
    const SIZE: usize = BTH_BYTES + 1_024 + ICRC_BYTES;

    #[test]
    fn a_block_has_the_headers_of_its_packets() {
        let header = block_header(&FIRST, 0b1010);
        let block = Block::parse(&header, BLOCK_HEADER_BYTES + 4 * 1_024, SIZE).unwrap();
        assert_eq!(block.packets, Similar { count: 4, ack_requests: 0b1010 });
        let ends: Vec<_> = (0..4).map(|index| block.header_of(index)[8..].to_vec()).collect();
        let expected = [[0, 0xff, 0xff, 0xfe], [0x80, 0xff, 0xff, 0xff], [0, 0, 0, 0], [0x80, 0, 0, 1]];
        assert_eq!(ends, expected, "the PSN wraps");
        assert!((0..4).all(|index| block.header_of(index)[..8] == FIRST[..8]));
    }

    #[test]
    fn impossible_blocks_are_refused() {
        let header = block_header(&FIRST, 0);
        let most = BLOCK_HEADER_BYTES + MOST_BLOCK_PACKETS * 1_024;
        assert!(Block::parse(&header, most, SIZE).is_some());
        for (length, size) in [
            (0, SIZE),
            (BLOCK_HEADER_BYTES - 1, SIZE),
            (BLOCK_HEADER_BYTES, SIZE),
            (BLOCK_HEADER_BYTES + 1_023, SIZE),
            (most + 1_024, SIZE),
            (most, 0),
            (most, BTH_BYTES + ICRC_BYTES),
        ] {
            assert_eq!(Block::parse(&header, length, size), None, "{length} bytes, packets of {size}");
        }
    }

    #[test]
    fn a_block_has_what_fits() {
        let room = 1 << 20;
        assert_eq!(packets_of_block(14, 4_096, 1 << 20, room), Some(8));
        assert_eq!(packets_of_block(6, 4_096, 1 << 20, room), Some(6));
        assert_eq!(packets_of_block(40, 1_024, 1 << 20, room), Some(32));
        assert_eq!(packets_of_block(6, 4_096, 3 * 4_096 - 1, room), Some(2));
        assert_eq!(packets_of_block(6, 4_096, 1 << 20, BLOCK_HEADER_BYTES + 3 * 4_096), Some(3));
        for (count, payload, joined, room) in
            [(1, 4_096, 1 << 20, room), (6, 512, 1 << 20, room), (6, 4_096, 0, room), (6, 4_096, 1 << 20, 8_000)]
        {
            assert_eq!(packets_of_block(count, payload, joined, room), None);
        }
    }
}
