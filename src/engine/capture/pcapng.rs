//! The blocks of a pcapng file (draft-ietf-opsawg-pcapng) that a capture needs.
//!
//! Four kinds of blocks, appended to a buffer without an allocation of their own. The crates that write the format
//! first build each block out of owned options, which is too expensive for a thread that drives a shard; the tests read
//! the blocks back with such a crate.

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;

const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const SECTION_LENGTH_UNKNOWN: u64 = u64::MAX;
/// Packets begin with an IPv4 or IPv6 header; the version field distinguishes them.
const LINKTYPE_RAW: u16 = 101;
/// The only interface of a file.
const INTERFACE: u32 = 0;

const END_OF_OPTIONS: u16 = 0;
const COMMENT: u16 = 1;
const SECTION_OS: u16 = 3;
const SECTION_APPLICATION: u16 = 4;
const INTERFACE_NAME: u16 = 2;
const INTERFACE_TIME_RESOLUTION: u16 = 9;
const PACKET_FLAGS: u16 = 2;
const PACKET_DROP_COUNT: u16 = 4;
const STATISTICS_START: u16 = 2;
const STATISTICS_END: u16 = 3;
const STATISTICS_RECEIVED: u16 = 4;
const STATISTICS_DROPPED: u16 = 5;

/// Time resolution: units of 10 to the minus this.
const NANOSECONDS: u8 = 9;
/// Longest text of an option; longer texts are truncated.
const LONGEST_TEXT: usize = 1_024;
/// Most bytes of a packet's block besides packet and comment.
pub(super) const PACKET_OVERHEAD: usize = 96;

/// Nanoseconds since 1970.
pub(super) type Timestamp = u64;

/// Direction of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    /// The packet arrived.
    Inbound = 1,
    /// The packet left.
    Outbound = 2,
}

/// Contents of a packet's block.
#[derive(Clone, Copy, Debug)]
pub(super) struct PacketBlock<'a> {
    pub(super) time: Timestamp,
    pub(super) direction: Direction,
    /// Rebuilt headers.
    pub(super) headers: &'a [u8],
    pub(super) payload: &'a [u8],
    /// Packets that the capture lost since the previous block.
    pub(super) lost: u64,
    pub(super) comment: Option<&'a str>,
}

/// Contents of the last block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Statistics<'a> {
    pub(super) start: Timestamp,
    pub(super) end: Timestamp,
    /// Packets that passed, lost ones included.
    pub(super) received: u64,
    /// Packets that the capture lost.
    pub(super) lost: u64,
    pub(super) comment: &'a str,
}

/// Appends the file's first block: byte order, and the program that wrote it.
pub(super) fn section_header(out: &mut Vec<u8>, application: &str, comment: &str) {
    block(out, SECTION_HEADER, |out| {
        out.extend_from_slice(&BYTE_ORDER_MAGIC.to_le_bytes());
        out.extend_from_slice(&1_u16.to_le_bytes());
        out.extend_from_slice(&0_u16.to_le_bytes());
        out.extend_from_slice(&SECTION_LENGTH_UNKNOWN.to_le_bytes());
        text(out, SECTION_OS, std::env::consts::OS);
        text(out, SECTION_APPLICATION, application);
        text(out, COMMENT, comment);
        end_of_options(out);
    });
}

/// Appends the second block: the device.
pub(super) fn interface(out: &mut Vec<u8>, name: &str) {
    block(out, INTERFACE_DESCRIPTION, |out| {
        out.extend_from_slice(&LINKTYPE_RAW.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        // Snap length: unlimited.
        out.extend_from_slice(&[0; 4]);
        text(out, INTERFACE_NAME, name);
        option(out, INTERFACE_TIME_RESOLUTION, &[NANOSECONDS]);
        end_of_options(out);
    });
}

/// Appends a packet.
pub(super) fn packet(out: &mut Vec<u8>, packet: &PacketBlock<'_>) {
    block(out, ENHANCED_PACKET, |out| {
        let length = packet.headers.len() + packet.payload.len();
        out.extend_from_slice(&INTERFACE.to_le_bytes());
        time(out, packet.time);
        out.extend_from_slice(&(length as u32).to_le_bytes());
        out.extend_from_slice(&(length as u32).to_le_bytes());
        out.extend_from_slice(packet.headers);
        out.extend_from_slice(packet.payload);
        pad(out, length);
        option(out, PACKET_FLAGS, &(packet.direction as u32).to_le_bytes());
        if packet.lost > 0 {
            option(out, PACKET_DROP_COUNT, &packet.lost.to_le_bytes());
        }
        if let Some(comment) = packet.comment {
            text(out, COMMENT, comment);
        }
        end_of_options(out);
    });
}

/// Appends the last block.
pub(super) fn statistics(out: &mut Vec<u8>, statistics: &Statistics<'_>) {
    block(out, INTERFACE_STATISTICS, |out| {
        out.extend_from_slice(&INTERFACE.to_le_bytes());
        time(out, statistics.end);
        for (code, at) in [(STATISTICS_START, statistics.start), (STATISTICS_END, statistics.end)] {
            out.extend_from_slice(&code.to_le_bytes());
            out.extend_from_slice(&8_u16.to_le_bytes());
            time(out, at);
        }
        option(out, STATISTICS_RECEIVED, &statistics.received.to_le_bytes());
        option(out, STATISTICS_DROPPED, &statistics.lost.to_le_bytes());
        text(out, COMMENT, statistics.comment);
        end_of_options(out);
    });
}

/// Appends a block with its frame, which holds the length at both ends.
fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    body(out);
    let length = (out.len() - start + 4) as u32;
    out[start + 4..start + 8].copy_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&length.to_le_bytes());
}

/// Appends a time: the upper half comes first, whatever the byte order.
fn time(out: &mut Vec<u8>, time: Timestamp) {
    out.extend_from_slice(&((time >> 32) as u32).to_le_bytes());
    out.extend_from_slice(&(time as u32).to_le_bytes());
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    out.extend_from_slice(&code.to_le_bytes());
    out.extend_from_slice(&(value.len() as u16).to_le_bytes());
    out.extend_from_slice(value);
    pad(out, value.len());
}

fn text(out: &mut Vec<u8>, code: u16, value: &str) {
    let mut end = value.len().min(LONGEST_TEXT);
    while !value.is_char_boundary(end) {
        end -= 1;
    }
    option(out, code, &value.as_bytes()[..end]);
}

fn end_of_options(out: &mut Vec<u8>) {
    option(out, END_OF_OPTIONS, &[]);
}

fn pad(out: &mut Vec<u8>, length: usize) {
    out.extend_from_slice(&[0; 3][..length.next_multiple_of(4) - length]);
}
