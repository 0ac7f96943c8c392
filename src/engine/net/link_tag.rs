//! The tags of the records of links through memory.

use crate::sys::DEFAULT_HOP_LIMIT;
use crate::transport::Transmit;

/// The tag of a record: what the datagrams have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tag {
    /// Bytes of each datagram but the last, at most 8,191; 0: there is one.
    pub(super) segment: u16,
    pub(super) port: u16,
    pub(super) class: u8,
    pub(super) hop_limit: u8,
    /// The sender uses the key of the connection, wherever packets have check fields.
    pub(super) is_keyed: bool,
    /// The record is a [`Block`](super::link_block::Block).
    pub(super) is_block: bool,
}

impl Tag {
    pub(super) fn of(transmit: &Transmit) -> Self {
        Self {
            segment: transmit.segment_size.map_or(0, |size| size as u16),
            port: transmit.source_port,
            class: transmit.traffic_class,
            hop_limit: if transmit.hop_limit == 0 { DEFAULT_HOP_LIMIT } else { transmit.hop_limit },
            is_keyed: transmit.is_keyed,
            is_block: false,
        }
    }

    #[inline]
    pub(super) fn pack(self) -> u64 {
        let low = u64::from(self.port) | u64::from(self.class) << 16 | u64::from(self.hop_limit) << 24;
        low | u64::from(self.segment) << 32 | u64::from(self.is_keyed) << 45 | u64::from(self.is_block) << 46
    }

    #[inline]
    pub(super) fn unpack(tag: u64) -> Self {
        Self {
            segment: (tag >> 32) as u16 & 0x1fff,
            port: tag as u16,
            class: (tag >> 16) as u8,
            hop_limit: (tag >> 24) as u8,
            is_keyed: tag >> 45 & 1 != 0,
            is_block: tag >> 46 & 1 != 0,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::memory::record_ring::TAG_BITS;

    #[test]
    fn tags_are_read_as_written() {
        for tag in [
            Tag { segment: 0, port: 0, class: 0, hop_limit: 1, is_keyed: true, is_block: false },
            Tag { segment: 4_112, port: 65_535, class: 0xb9, hop_limit: 255, is_keyed: false, is_block: true },
            Tag { segment: 8_191, port: 1, class: 255, hop_limit: 0, is_keyed: true, is_block: true },
        ] {
            assert_eq!(Tag::unpack(tag.pack()), tag);
            assert!(tag.pack() < 1 << TAG_BITS);
        }
    }
}
