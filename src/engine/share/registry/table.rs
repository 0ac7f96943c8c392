//! The byte layout of a registry file. Everything read may be garbage: another process of the same user can write
//! anything there, and a crash can leave entries half written.

use crate::types::{KeyShare, PeerCapabilities};

/// Most sockets on one address.
pub(crate) const SLOTS: usize = 128;
pub(crate) const HEADER_BYTES: usize = 256;
pub(crate) const MEMBER_BYTES: usize = 256;
pub(crate) const ANSWER_BYTES: usize = 32;
/// Most blocks of a member.
pub(crate) const MAX_BLOCKS: usize = 16;
/// Most listeners of a member whose requests are steered to it. Those of further ones are forwarded.
pub(crate) const MAX_LISTENERS: usize = 16;
pub(crate) const NAME_BYTES: usize = 16;
pub(crate) const NONCE_BYTES: usize = 16;

const HEADER_MAGIC: [u8; 8] = *b"RDMVREG2";
const MEMBER_MAGIC: [u8; 4] = *b"RDMV";
const VERSION: u8 = 2;
/// Bits of a member's flags byte.
const FLAG_SEGMENTATION: u8 = 1;
const FLAG_KEY_SHARE: u8 = 2;
const LISTENERS_OFFSET: usize = 80;
const LISTENER_BYTES: usize = 8;
/// Offset of a member's key share: the last field before the checksum.
const KEY_SHARE_OFFSET: usize = MEMBER_BYTES - 4 - KeyShare::BYTES;

/// A random number in each probe, so that no other process can forge probes or answers.
pub(crate) type Nonce = [u8; NONCE_BYTES];
/// Identifies a process's mailbox: part of the names of its sockets.
pub(crate) type Name = [u8; NAME_BYTES];

/// State shared by all members of a group.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Header {
    /// Members' slots, in the order in which the kernel numbers their sockets.
    pub(crate) order: Vec<u8>,
    /// Whether the order is known; otherwise a process started to change it and did not finish.
    pub(crate) is_settled: bool,
    /// Nonce of the current probes.
    pub(crate) nonce: Nonce,
}

/// A member of a group: one socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Member {
    /// Process ID, for diagnostics only: it means nothing in another container.
    pub(crate) process: u32,
    /// Inode of the socket.
    pub(crate) inode: u64,
    pub(crate) name: Name,
    pub(crate) capabilities: PeerCapabilities,
    /// The process's share of the keys that it has with each other process.
    pub(crate) key_share: Option<KeyShare>,
    /// Blocks of queue pair numbers, at most [`MAX_BLOCKS`].
    pub(crate) blocks: Vec<u16>,
    /// Its latest listeners, at most [`MAX_LISTENERS`]. They stay after their end, because repetitions of requests
    /// that they have taken may come.
    pub(crate) listeners: Vec<MemberListener>,
}

/// A listener of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MemberListener {
    /// The lower word of its service id: port space and port.
    pub(crate) service: u32,
    /// Greater than that of each listener of the address that began before.
    pub(crate) number: u32,
}

/// A member's answer to a probe that arrived at its socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Answer {
    pub(crate) nonce: Nonce,
    /// The socket index that the probe was steered to.
    pub(crate) index: u16,
}

impl Header {
    pub(crate) fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&HEADER_MAGIC);
        bytes[8] = self.order.len().min(SLOTS) as u8;
        bytes[9] = u8::from(self.is_settled);
        bytes[16..32].copy_from_slice(&self.nonce);
        for (byte, slot) in bytes[32..32 + SLOTS].iter_mut().zip(&self.order) {
            *byte = *slot;
        }
        write_checksum(&mut bytes);
        bytes
    }

    /// Parses a header; returns `None` if it is invalid: then nothing is known of the group.
    pub(crate) fn parse(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        if !has_valid_checksum(bytes) || bytes[..8] != HEADER_MAGIC {
            return None;
        }
        let order = bytes[32..].get(..usize::from(bytes[8]))?.to_vec();
        let mut seen = [false; SLOTS];
        for slot in &order {
            if std::mem::replace(seen.get_mut(usize::from(*slot))?, true) {
                return None;
            }
        }
        let nonce = bytes[16..32].try_into().ok()?;
        Some(Self { order, is_settled: bytes[9] == 1, nonce })
    }
}

impl Member {
    pub(crate) fn to_bytes(&self) -> [u8; MEMBER_BYTES] {
        let mut bytes = [0; MEMBER_BYTES];
        bytes[..4].copy_from_slice(&MEMBER_MAGIC);
        bytes[4] = VERSION;
        bytes[5] = self.blocks.len().min(MAX_BLOCKS) as u8;
        bytes[6] = self.capabilities.version;
        if self.capabilities.segmentation_offload {
            bytes[7] |= FLAG_SEGMENTATION;
        }
        if let Some(share) = self.key_share {
            bytes[7] |= FLAG_KEY_SHARE;
            bytes[KEY_SHARE_OFFSET..KEY_SHARE_OFFSET + KeyShare::BYTES].copy_from_slice(&share.to_bytes());
        }
        bytes[8..12].copy_from_slice(&self.capabilities.receive_buffer_bytes.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.capabilities.extensions.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.process.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.inode.to_le_bytes());
        bytes[32..48].copy_from_slice(&self.name);
        for (word, block) in bytes[48..48 + 2 * MAX_BLOCKS].chunks_exact_mut(2).zip(&self.blocks) {
            word.copy_from_slice(&block.to_le_bytes());
        }
        bytes[20] = self.listeners.len().min(MAX_LISTENERS) as u8;
        let places = bytes[LISTENERS_OFFSET..][..MAX_LISTENERS * LISTENER_BYTES].chunks_exact_mut(LISTENER_BYTES);
        for (place, listener) in places.zip(&self.listeners) {
            place[..4].copy_from_slice(&listener.service.to_le_bytes());
            place[4..].copy_from_slice(&listener.number.to_le_bytes());
        }
        write_checksum(&mut bytes);
        bytes
    }

    /// Parses a member; returns `None` if it is invalid.
    pub(crate) fn parse(bytes: &[u8; MEMBER_BYTES]) -> Option<Self> {
        if !has_valid_checksum(bytes) || bytes[..4] != MEMBER_MAGIC || bytes[4] != VERSION {
            return None;
        }
        let count = usize::from(bytes[5]);
        let words = bytes[48..48 + 2 * MAX_BLOCKS].chunks_exact(2).map(|word| u16::from_le_bytes([word[0], word[1]]));
        let listener_count = usize::from(bytes[20]);
        if count > MAX_BLOCKS || listener_count > MAX_LISTENERS {
            return None;
        }
        let listeners = bytes[LISTENERS_OFFSET..].chunks_exact(LISTENER_BYTES).take(listener_count);
        let share: [u8; KeyShare::BYTES] = bytes[KEY_SHARE_OFFSET..].first_chunk().copied()?;
        Some(Self {
            process: u32::from_le_bytes(bytes[16..20].try_into().ok()?),
            inode: u64::from_le_bytes(bytes[24..32].try_into().ok()?),
            name: bytes[32..48].try_into().ok()?,
            capabilities: PeerCapabilities {
                version: bytes[6],
                segmentation_offload: bytes[7] & FLAG_SEGMENTATION != 0,
                receive_buffer_bytes: u32::from_le_bytes(bytes[8..12].try_into().ok()?),
                extensions: u32::from_le_bytes(bytes[12..16].try_into().ok()?),
            },
            key_share: (bytes[7] & FLAG_KEY_SHARE != 0).then_some(KeyShare::new(share)),
            blocks: words.take(count).filter(|block| *block < 4_096).collect(),
            listeners: listeners.map(MemberListener::parse).collect::<Option<_>>()?,
        })
    }
}

impl MemberListener {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let word = |offset: usize| bytes.get(offset..)?.first_chunk().map(|word| u32::from_le_bytes(*word));
        Some(Self { service: word(0)?, number: word(4)? })
    }
}

impl Answer {
    pub(crate) fn to_bytes(self) -> [u8; ANSWER_BYTES] {
        let mut bytes = [0; ANSWER_BYTES];
        bytes[..16].copy_from_slice(&self.nonce);
        bytes[16..18].copy_from_slice(&self.index.to_le_bytes());
        write_checksum(&mut bytes);
        bytes
    }

    pub(crate) fn parse(bytes: &[u8; ANSWER_BYTES]) -> Option<Self> {
        let nonce = bytes[..16].try_into().ok()?;
        has_valid_checksum(bytes).then_some(Self { nonce, index: u16::from_le_bytes([bytes[16], bytes[17]]) })
    }
}

/// Writes a checksum into the last four bytes: it detects entries that a crash left half written.
pub(super) fn write_checksum(bytes: &mut [u8]) {
    let Some((content, checksum)) = bytes.split_last_chunk_mut::<4>() else { return };
    *checksum = crc32fast::hash(content).to_le_bytes();
}

pub(super) fn has_valid_checksum(bytes: &[u8]) -> bool {
    bytes.split_last_chunk::<4>().is_some_and(|(content, checksum)| crc32fast::hash(content).to_le_bytes() == *checksum)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn member() -> Member {
        let capabilities =
            PeerCapabilities { version: 1, segmentation_offload: true, receive_buffer_bytes: 8 << 20, extensions: 5 };
        let key_share = Some(KeyShare::new(*b"sixteen bytes of"));
        Member {
            process: 77,
            inode: 1 << 40,
            name: [9; NAME_BYTES],
            capabilities,
            key_share,
            blocks: vec![1, 0xffe, 7],
            listeners: vec![
                MemberListener { service: 0x0106_1d2f, number: 7 },
                MemberListener { service: 1, number: 2 },
            ],
        }
    }

    #[test]
    fn records_are_read_as_written() {
        let header = Header { order: vec![3, 0, 127], is_settled: true, nonce: [7; NONCE_BYTES] };
        assert_eq!(Header::parse(&header.to_bytes()), Some(header));
        let full = Header { order: (0..SLOTS as u8).collect(), ..Header::default() };
        assert_eq!(Header::parse(&full.to_bytes()), Some(full));
        assert_eq!(Member::parse(&member().to_bytes()), Some(member()));
        let keyless = Member { key_share: None, ..member() };
        assert_eq!(Member::parse(&keyless.to_bytes()), Some(keyless));
        let listener = |number| MemberListener { service: 0xffff_ffff, number };
        let full = Member { listeners: (0..MAX_LISTENERS as u32).map(listener).collect(), ..member() };
        assert_eq!(Member::parse(&full.to_bytes()), Some(full));
        let answer = Answer { nonce: [3; NONCE_BYTES], index: 127 };
        assert_eq!(Answer::parse(&answer.to_bytes()), Some(answer));
    }

    #[test]
    fn order_with_a_repeated_or_unknown_slot_is_invalid() {
        let twice = Header { order: vec![1, 2, 1], ..Header::default() };
        assert_eq!(Header::parse(&twice.to_bytes()), None);
        let beyond = Header { order: vec![SLOTS as u8], ..Header::default() };
        assert_eq!(Header::parse(&beyond.to_bytes()), None);
    }

    #[test]
    fn half_written_records_are_invalid() {
        let mut bytes = member().to_bytes();
        bytes[60..].fill(0);
        assert_eq!(Member::parse(&bytes), None);
        assert_eq!(Header::parse(&[0; HEADER_BYTES]), None);
        assert_eq!(Answer::parse(&[0; ANSWER_BYTES]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_with_a_checksum_are_parsed(bytes in proptest::collection::vec(any::<u8>(), HEADER_BYTES)) {
            let mut header: [u8; HEADER_BYTES] = bytes.clone().try_into().unwrap();
            header[..8].copy_from_slice(&HEADER_MAGIC);
            write_checksum(&mut header);
            if let Some(header) = Header::parse(&header) {
                prop_assert!(header.order.len() <= SLOTS);
            }
            let mut member: [u8; MEMBER_BYTES] = bytes[..MEMBER_BYTES].try_into().unwrap();
            member[..4].copy_from_slice(&MEMBER_MAGIC);
            member[4] = VERSION;
            write_checksum(&mut member);
            if let Some(member) = Member::parse(&member) {
                prop_assert!(member.blocks.len() <= MAX_BLOCKS && member.blocks.iter().all(|block| *block < 4_096));
                prop_assert!(member.listeners.len() <= MAX_LISTENERS);
            }
        }
    }
}
