//! The byte layout of the file of ports. Everything read may be garbage, as in the file of an address.
//!
//! The file begins with an entry for each process. Records follow, [`RECORDS`] for each port of each port space, so a
//! port is found without a search. Most of the file is a hole, which takes no memory.

use std::net::{IpAddr, Ipv6Addr};

use super::table::{has_valid_checksum, write_checksum};
use crate::wire::mad::PortSpace;

/// Most processes of a user with ports in a network namespace.
pub(super) const PROCESSES: u16 = 1_024;
pub(super) const PROCESS_BYTES: usize = 16;
/// Most owners of a port in a port space.
pub(crate) const RECORDS: usize = 16;
pub(super) const RECORD_BYTES: usize = 32;
/// Length of a file in which all ports are bound.
pub(super) const FILE_BYTES: u64 = port_offset(PortSpace::ALL.len() as u64, 0);

const PORTS_OFFSET: u64 = PROCESSES as u64 * PROCESS_BYTES as u64;
const PORTS: u64 = 1 << 16;

/// The lower bits of the word with the flags: the block.
const BLOCK: u16 = 0x0fff;
const FLAG_ONLY_OWN_FAMILY: u16 = 1 << 12;
const FLAG_REUSE_ADDRESS: u16 = 1 << 13;
const FLAG_LISTENING: u16 = 1 << 14;
/// Set in all records. Another layout would have it clear.
const FLAG_VERSION: u16 = 1 << 15;

/// Returns the offset of a port's records; `space` is an index in [`PortSpace::ALL`].
pub(super) const fn port_offset(space: u64, port: u16) -> u64 {
    PORTS_OFFSET + (space * PORTS + port as u64) * (RECORDS * RECORD_BYTES) as u64
}

/// A process with ports: a slot of the file, and a random number by which records of an earlier process in that slot
/// are recognized.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Owner {
    pub(crate) slot: u16,
    pub(crate) nonce: u64,
}

/// The entry of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ProcessEntry {
    pub(crate) nonce: u64,
    /// Process ID, for diagnostics only: it means nothing in another container.
    pub(crate) process: u32,
}

/// A bound port, without its number: the attributes that decide who else may bind it, and which requests arrive at it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Binding {
    /// The address, not an IPv4 address in an IPv6 one. The unspecified address is the wildcard of its family.
    pub(crate) address: IpAddr,
    /// Whether the port stays free for the other address family (`RDMA_OPTION_ID_AFONLY`).
    pub(crate) only_own_family: bool,
    /// Whether others with this flag may bind the port, too (`RDMA_OPTION_ID_REUSEADDR`).
    pub(crate) reuse_address: bool,
    /// Whether connection requests are accepted.
    pub(crate) is_listening: bool,
    /// Block of the shard that listens: the upper 12 bits of its numbers.
    pub(crate) block: u16,
}

/// A port that a process has bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PortRecord {
    pub(crate) binding: Binding,
    pub(crate) owner: Owner,
}

impl ProcessEntry {
    pub(super) fn to_bytes(self) -> [u8; PROCESS_BYTES] {
        let mut bytes = [0; PROCESS_BYTES];
        bytes[..8].copy_from_slice(&self.nonce.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.process.to_le_bytes());
        write_checksum(&mut bytes);
        bytes
    }

    /// Parses an entry; returns `None` if it is invalid.
    pub(super) fn parse(bytes: &[u8; PROCESS_BYTES]) -> Option<Self> {
        let nonce = u64::from_le_bytes(bytes[..8].try_into().ok()?);
        let process = u32::from_le_bytes(bytes[8..12].try_into().ok()?);
        has_valid_checksum(bytes).then_some(Self { nonce, process })
    }
}

impl PortRecord {
    pub(super) fn to_bytes(self) -> [u8; RECORD_BYTES] {
        let Self { binding, owner } = self;
        let address = match binding.address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        let flags = [
            (binding.only_own_family, FLAG_ONLY_OWN_FAMILY),
            (binding.reuse_address, FLAG_REUSE_ADDRESS),
            (binding.is_listening, FLAG_LISTENING),
            (true, FLAG_VERSION),
        ];
        let flags = flags.iter().filter(|(is_set, _)| *is_set).fold(0, |word, (_, flag)| word | flag);
        let mut bytes = [0; RECORD_BYTES];
        bytes[..16].copy_from_slice(&address.octets());
        bytes[16..24].copy_from_slice(&owner.nonce.to_le_bytes());
        bytes[24..26].copy_from_slice(&owner.slot.to_le_bytes());
        bytes[26..28].copy_from_slice(&(binding.block & BLOCK | flags).to_le_bytes());
        write_checksum(&mut bytes);
        bytes
    }

    /// Parses a record; returns `None` if it is invalid or empty.
    pub(super) fn parse(bytes: &[u8; RECORD_BYTES]) -> Option<Self> {
        let address: [u8; 16] = bytes[..16].try_into().ok()?;
        let nonce = u64::from_le_bytes(bytes[16..24].try_into().ok()?);
        let slot = u16::from_le_bytes(bytes[24..26].try_into().ok()?);
        let word = u16::from_le_bytes(bytes[26..28].try_into().ok()?);
        let has = |flag| word & flag != 0;
        if !has(FLAG_VERSION) || slot >= PROCESSES || !has_valid_checksum(bytes) {
            return None;
        }
        let binding = Binding {
            address: IpAddr::V6(Ipv6Addr::from(address)).to_canonical(),
            only_own_family: has(FLAG_ONLY_OWN_FAMILY),
            reuse_address: has(FLAG_REUSE_ADDRESS),
            is_listening: has(FLAG_LISTENING),
            block: word & BLOCK,
        };
        Some(Self { binding, owner: Owner { slot, nonce } })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn records_are_read_as_written() {
        for (address, flags) in [("10.0.0.1", 0), ("0.0.0.0", 7), ("::", 1), ("fd00::7", 2), ("::1", 4)] {
            let binding = Binding {
                address: address.parse().unwrap(),
                only_own_family: flags & 1 != 0,
                reuse_address: flags & 2 != 0,
                is_listening: flags & 4 != 0,
                block: 0xffe,
            };
            let record = PortRecord { binding, owner: Owner { slot: PROCESSES - 1, nonce: u64::MAX - 7 } };
            assert_eq!(PortRecord::parse(&record.to_bytes()), Some(record));
        }
        let entry = ProcessEntry { nonce: 77, process: 1 };
        assert_eq!(ProcessEntry::parse(&entry.to_bytes()), Some(entry));
    }

    #[test]
    fn empty_and_half_written_records_are_invalid() {
        assert_eq!(PortRecord::parse(&[0; RECORD_BYTES]), None);
        assert_eq!(ProcessEntry::parse(&[0; PROCESS_BYTES]), None);
        let address = IpAddr::from([10, 0, 0, 1]);
        let binding = Binding { address, only_own_family: true, reuse_address: false, is_listening: true, block: 5 };
        let written = PortRecord { binding, owner: Owner { slot: 1, nonce: 2 } }.to_bytes();
        for length in 0..RECORD_BYTES {
            let mut bytes = [0; RECORD_BYTES];
            bytes[..length].copy_from_slice(&written[..length]);
            assert_eq!(PortRecord::parse(&bytes), None, "{length} bytes");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_with_a_checksum_are_parsed(mut bytes in any::<[u8; RECORD_BYTES]>()) {
            write_checksum(&mut bytes);
            if let Some(record) = PortRecord::parse(&bytes) {
                prop_assert!(record.owner.slot < PROCESSES && record.binding.block <= BLOCK);
                prop_assert_eq!(PortRecord::parse(&record.to_bytes()), Some(record));
            }
        }
    }
}
