//! The messages between two rsockets: the private data of the connection's messages, immediate data, and the entries
//! that they write into each other's tables. The format is that of rdma-core's rsockets, version 1.

/// Version of the format.
const VERSION: u8 = 1;
/// Number of bytes of the private data.
pub(crate) const CONNECTION_BYTES: usize = 40;
/// Number of bytes of an entry of the table of buffers.
pub(crate) const BUFFER_BYTES: usize = 16;
/// Number of bytes of an entry of the table of mapped ranges.
pub(crate) const MAPPING_BYTES: usize = 24;
/// Number of entries of this end's table of buffers.
pub(crate) const BUFFERS: usize = 2;

/// Bits of the private data's flags.
mod flag {
    pub(super) const BIG_ENDIAN: u8 = 1;
    pub(super) const HAS_MAPPINGS: u8 = 2;
}

/// A range of memory of an end of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Buffer {
    pub(crate) address: u64,
    pub(crate) key: u32,
    pub(crate) length: u32,
}

impl Buffer {
    /// Encodes an entry for an end whose byte order is the other one if `is_swapped`.
    pub(crate) fn to_bytes(self, is_swapped: bool) -> [u8; BUFFER_BYTES] {
        let mut bytes = [0; BUFFER_BYTES];
        bytes[..8].copy_from_slice(&ordered(self.address.to_ne_bytes(), is_swapped));
        bytes[8..12].copy_from_slice(&ordered(self.key.to_ne_bytes(), is_swapped));
        bytes[12..].copy_from_slice(&ordered(self.length.to_ne_bytes(), is_swapped));
        bytes
    }

    /// Decodes an entry that the peer has written in this end's byte order.
    pub(crate) fn from_bytes(bytes: &[u8; BUFFER_BYTES]) -> Self {
        Self {
            address: u64::from_ne_bytes(part(bytes, 0)),
            key: u32::from_ne_bytes(part(bytes, 8)),
            length: u32::from_ne_bytes(part(bytes, 12)),
        }
    }

    fn from_network(bytes: &[u8; CONNECTION_BYTES], at: usize) -> Self {
        Self {
            address: u64::from_be_bytes(part(bytes, at)),
            key: u32::from_be_bytes(part(bytes, at + 8)),
            length: u32::from_be_bytes(part(bytes, at + 12)),
        }
    }

    fn to_network(self, bytes: &mut [u8; CONNECTION_BYTES], at: usize) {
        bytes[at..at + 8].copy_from_slice(&self.address.to_be_bytes());
        bytes[at + 8..at + 12].copy_from_slice(&self.key.to_be_bytes());
        bytes[at + 12..at + 16].copy_from_slice(&self.length.to_be_bytes());
    }
}

/// Returns `N` bytes at a constant offset.
fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut found = [0; N];
    found.copy_from_slice(&bytes[at..at + N]);
    found
}

fn ordered<const N: usize>(mut bytes: [u8; N], is_swapped: bool) -> [u8; N] {
    if is_swapped {
        bytes.reverse();
    }
    bytes
}

/// A range that a program has mapped for its peer's writes: `offset` is where the range begins for the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Mapping {
    pub(crate) offset: u64,
    pub(crate) buffer: Buffer,
}

impl Mapping {
    /// Encodes an entry for an end whose byte order is the other one if `is_swapped`.
    pub(crate) fn to_bytes(self, is_swapped: bool) -> [u8; MAPPING_BYTES] {
        let mut bytes = [0; MAPPING_BYTES];
        bytes[..8].copy_from_slice(&ordered(self.offset.to_ne_bytes(), is_swapped));
        bytes[8..].copy_from_slice(&self.buffer.to_bytes(is_swapped));
        bytes
    }

    /// Decodes an entry that the peer has written in this end's byte order.
    pub(crate) fn from_bytes(bytes: &[u8; MAPPING_BYTES]) -> Self {
        Self { offset: u64::from_ne_bytes(part(bytes, 0)), buffer: Buffer::from_bytes(&part(bytes, 8)) }
    }

    /// Returns the part of the range that begins at this offset; `None` if the offset is outside, or if no range ends
    /// where this one claims to end.
    pub(crate) fn at_offset(self, offset: u64) -> Option<Buffer> {
        let skipped = offset.checked_sub(self.offset)?;
        let length = u64::from(self.buffer.length).checked_sub(skipped).filter(|length| *length > 0)?;
        self.buffer.address.checked_add(u64::from(self.buffer.length))?;
        Some(Buffer { address: self.buffer.address + skipped, length: length as u32, ..self.buffer })
    }
}

/// The private data of a request and of its reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ConnectionData {
    /// Number of messages that the sender can receive.
    pub(crate) credits: u16,
    /// Number of entries of its table of mapped ranges; `None` if it has no such table.
    pub(crate) mappings: Option<u16>,
    /// Its table of buffers; the length is the number of entries. The table of mapped ranges follows it.
    pub(crate) table: Buffer,
    /// The first buffer for data.
    pub(crate) buffer: Buffer,
    /// Whether it expects entries in the other byte order than this machine's.
    pub(crate) is_swapped: bool,
}

impl ConnectionData {
    /// Encodes the private data of this end.
    pub(crate) fn to_bytes(self) -> [u8; CONNECTION_BYTES] {
        let mut bytes = [0; CONNECTION_BYTES];
        bytes[0] = VERSION;
        bytes[1] = if cfg!(target_endian = "big") { flag::BIG_ENDIAN } else { 0 };
        if let Some(mappings) = self.mappings {
            bytes[1] |= flag::HAS_MAPPINGS;
            bytes[7] = to_scale(mappings);
        }
        bytes[2..4].copy_from_slice(&self.credits.to_be_bytes());
        self.table.to_network(&mut bytes, 8);
        self.buffer.to_network(&mut bytes, 24);
        bytes
    }

    /// Decodes the private data of a peer, which may be longer; `None` if it is of no rsocket, of another version, or
    /// if one of its ranges lies at no place in memory.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; CONNECTION_BYTES] = bytes.get(..CONNECTION_BYTES)?.try_into().ok()?;
        if bytes[0] != VERSION {
            return None;
        }
        let (table, buffer) = (Buffer::from_network(bytes, 8), Buffer::from_network(bytes, 24));
        let mappings = (bytes[1] & flag::HAS_MAPPINGS != 0).then(|| from_scale(bytes[7]));
        let table_bytes =
            u64::from(table.length) * BUFFER_BYTES as u64 + u64::from(mappings.unwrap_or(0)) * MAPPING_BYTES as u64;
        table.address.checked_add(table_bytes)?;
        buffer.address.checked_add(u64::from(buffer.length))?;
        (table.length > 0).then_some(Self {
            credits: u16::from_be_bytes(part(bytes, 2)),
            mappings,
            table,
            buffer,
            is_swapped: (bytes[1] & flag::BIG_ENDIAN != 0) != cfg!(target_endian = "big"),
        })
    }
}

/// Returns the code of a number of mapped ranges: numbers up to 128 are exact, larger ones in units of 256.
pub(crate) fn to_scale(value: u16) -> u8 {
    if value <= 128 { value as u8 } else { 0x80 | (value >> 8) as u8 }
}

/// Returns the number of a code.
pub(crate) fn from_scale(code: u8) -> u16 {
    if code <= 128 { code.into() } else { u16::from(code & 0x7f) << 8 }
}

/// The kind of a message, in the upper three bits of its immediate data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Message {
    /// So many bytes were written to the receiver's current buffer.
    Data(u32),
    /// The sender of this can receive messages up to this number. With 16 bytes, it has another buffer for data.
    Credit(u16),
    /// An entry of the table of mapped ranges was written.
    Mapping(u16),
    /// The sender ends the connection.
    Disconnect,
    /// Nothing.
    Keepalive,
    /// The sender sends no more data.
    Shutdown,
}

const VALUE: u32 = 0x1fff_ffff;

impl Message {
    pub(crate) fn to_immediate(self) -> u32 {
        match self {
            Self::Data(length) => length & VALUE,
            Self::Credit(credit) => 4 << 29 | u32::from(credit),
            Self::Mapping(index) => 6 << 29 | u32::from(index),
            Self::Disconnect => 7 << 29,
            Self::Keepalive => 7 << 29 | 1,
            Self::Shutdown => 7 << 29 | 2,
        }
    }

    /// Decodes immediate data of a peer; `None` if it is reserved.
    pub(crate) fn from_immediate(immediate: u32) -> Option<Self> {
        let value = immediate & VALUE;
        match (immediate >> 29, value) {
            (0, length) => Some(Self::Data(length)),
            // The upper bits of the sum that a peer sends are meaningless.
            (4, credit) => Some(Self::Credit(credit as u16)),
            (6, index) => Some(Self::Mapping(index as u16)),
            (7, 0) => Some(Self::Disconnect),
            (7, 1) => Some(Self::Keepalive),
            (7, 2) => Some(Self::Shutdown),
            _ => None,
        }
    }
}
