//! The messages of an inbox, as bytes. They are described in `docs/wire.md`.

use std::net::{IpAddr, Ipv6Addr};

use crate::transport::{Datagram, Medium};

pub(super) const HEADER_BYTES: usize = 40;
/// Longest message.
pub(super) const MESSAGE_BYTES: usize = 8_192;
/// Base transport header and ICRC: a shorter packet has no destination.
const LEAST_PACKET_BYTES: usize = 16;
const VERSION: u8 = 1;
const KIND_CHECK_GROUP: u8 = 1;
const KIND_PACKET: u8 = 2;
const KIND_MANAGEMENT_PACKET: u8 = 8;

/// A message between two processes of one user.
#[derive(Clone, Copy, Debug)]
pub(super) enum Message<'a> {
    /// The group of this address has changed.
    CheckGroup(IpAddr),
    /// A packet that arrived at the wrong process.
    Packet(Datagram<'a>),
    /// A packet to queue pair 1 that belongs to the shard with this block.
    ManagementPacket(u16, Datagram<'a>),
}

impl<'a> Message<'a> {
    /// Writes the message to the front of `buffer`; returns its length, or `None` if there is no room.
    pub(super) fn write(&self, buffer: &mut [u8; MESSAGE_BYTES]) -> Option<usize> {
        let (header, rest) = buffer.split_first_chunk_mut::<HEADER_BYTES>()?;
        *header = [0; HEADER_BYTES];
        header[0] = VERSION;
        match self {
            Self::CheckGroup(address) => {
                header[1] = KIND_CHECK_GROUP;
                header[24..40].copy_from_slice(&to_v6(*address));
                Some(HEADER_BYTES)
            }
            Self::Packet(datagram) | Self::ManagementPacket(_, datagram) => {
                rest.get_mut(..datagram.payload.len())?.copy_from_slice(datagram.payload);
                header[1] = KIND_PACKET;
                if let Self::ManagementPacket(block, _) = self {
                    header[1] = KIND_MANAGEMENT_PACKET;
                    header[6..8].copy_from_slice(&block.to_le_bytes());
                }
                header[2..4].copy_from_slice(&datagram.segment_index.to_le_bytes());
                header[4..6].copy_from_slice(&datagram.source_port.to_le_bytes());
                header[8..24].copy_from_slice(&to_v6(datagram.source));
                header[24..40].copy_from_slice(&to_v6(datagram.destination));
                Some(HEADER_BYTES + datagram.payload.len())
            }
        }
    }

    /// Parses a message; returns `None` if this version does not support it: then it is ignored.
    pub(super) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (header, payload) = bytes.split_first_chunk::<HEADER_BYTES>()?;
        let address = |from: usize| header[from..from + 16].try_into().map(from_v6).ok();
        if header[0] != VERSION {
            return None;
        }
        let datagram = || {
            let datagram = Datagram {
                source: address(8)?,
                destination: address(24)?,
                source_port: u16::from_le_bytes([header[4], header[5]]),
                segment_index: u16::from_le_bytes([header[2], header[3]]),
                hop_limit: None,
                traffic_class: None,
                payload,
                medium: Medium::Network,
            };
            (payload.len() >= LEAST_PACKET_BYTES).then_some(datagram)
        };
        let block = u16::from_le_bytes([header[6], header[7]]);
        match header[1] {
            KIND_MANAGEMENT_PACKET => datagram().map(|datagram| Self::ManagementPacket(block, datagram)),
            // A later version may use the reserved bytes to change the meaning of the others.
            _ if block != 0 => None,
            KIND_CHECK_GROUP if payload.is_empty() && header[2..24] == [0; 22] => address(24).map(Self::CheckGroup),
            KIND_PACKET => datagram().map(Self::Packet),
            _ => None,
        }
    }
}

/// Returns the block of a packet's destination QPN.
pub(in crate::engine) fn destination_block(payload: &[u8]) -> Option<u16> {
    let word = payload.get(4..8)?;
    Some(u16::from(word[1]) << 4 | u16::from(word[2]) >> 4)
}

pub(super) fn to_v6(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

pub(super) fn from_v6(bytes: [u8; 16]) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()
}

/// Entry point of the inbox's fuzz target: parses a message with any content. A message that parses must be written
/// again with the same bytes.
#[cfg(feature = "sim")]
pub fn inbox_message(bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(MESSAGE_BYTES)];
    let Some(message) = Message::parse(bytes) else { return };
    if let Message::Packet(datagram) | Message::ManagementPacket(_, datagram) = message {
        assert!(destination_block(datagram.payload).is_some_and(|block| block < 4_096));
    }
    let mut again = [0; MESSAGE_BYTES];
    let length = message.write(&mut again).expect("it fitted before");
    let differs = (0..length).find(|index| again[*index] != bytes[*index]);
    assert!(length == bytes.len() && differs.is_none(), "byte {differs:?} of {length}");
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_blocks_are_read_as_written() {
        for address in ["127.1.2.3", "fe80::7"] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(from_v6(to_v6(address)), address);
        }
        assert_eq!(destination_block(&[0, 0, 0, 0, 9, 0xab, 0xcd, 0xef]), Some(0xabc));
        assert_eq!(destination_block(&[0; 7]), None);
    }

    fn packet(payload: &[u8]) -> Message<'_> {
        Message::Packet(Datagram {
            source: "127.77.9.2".parse().unwrap(),
            destination: "fe80::7".parse().unwrap(),
            source_port: 50_000,
            segment_index: 7,
            hop_limit: None,
            traffic_class: None,
            payload,
            medium: Medium::Network,
        })
    }

    #[test]
    fn messages_are_read_as_written() {
        let mut buffer = [0xff; MESSAGE_BYTES];
        let length = Message::CheckGroup("127.77.9.2".parse().unwrap()).write(&mut buffer).unwrap();
        let Some(Message::CheckGroup(read)) = Message::parse(&buffer[..length]) else { panic!("no request") };
        assert_eq!(read.to_string(), "127.77.9.2");
        let payload = [0x5a; 300];
        let length = packet(&payload).write(&mut buffer).unwrap();
        let Some(Message::Packet(read)) = Message::parse(&buffer[..length]) else { panic!("no packet") };
        assert_eq!((read.source.to_string(), read.destination.to_string()), ("127.77.9.2".into(), "fe80::7".into()));
        assert_eq!((read.source_port, read.segment_index, read.payload), (50_000, 7, &payload[..]));
        let Message::Packet(datagram) = packet(&payload) else { panic!("a packet") };
        let length = Message::ManagementPacket(0xabc, datagram).write(&mut buffer).unwrap();
        let Some(Message::ManagementPacket(block, read)) = Message::parse(&buffer[..length]) else { panic!("none") };
        assert_eq!((block, read.source_port, read.payload), (0xabc, 50_000, &payload[..]));
        assert_eq!(packet(&[0; MESSAGE_BYTES]).write(&mut buffer), None);
    }

    #[test]
    fn unknown_messages_are_not_parsed() {
        let mut buffer = [0; MESSAGE_BYTES];
        let length = packet(&[0; LEAST_PACKET_BYTES]).write(&mut buffer).unwrap();
        assert!(Message::parse(&buffer[..length]).is_some());
        assert!(Message::parse(&buffer[..length - 1]).is_none(), "too short a packet");
        for (offset, value) in [(0, 0), (0, 2), (1, 0), (1, 3), (6, 1), (7, 0x80)] {
            let mut changed = buffer;
            changed[offset] = value;
            assert!(Message::parse(&changed[..length]).is_none(), "byte {offset} is {value}");
        }
        let length = Message::CheckGroup("127.77.9.2".parse().unwrap()).write(&mut buffer).unwrap();
        assert!(Message::parse(&buffer[..length + 1]).is_none(), "a longer request");
        buffer[8] = 1;
        assert!(Message::parse(&buffer[..length]).is_none(), "a request with a source");
    }
}
