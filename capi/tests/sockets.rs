//! The protocol of sockets, without input and output: bytes of rdma-core's sockets between two machines with Linux rxe,
//! and what hostile peers may send.
#![allow(dead_code, reason = "the library uses all of it")]

#[path = "../src/rsocket/datagram/header.rs"]
mod header;
#[path = "../src/rsocket"]
mod protocol {
    pub(crate) mod flow;
    pub(crate) mod wire;
}

use std::net::{IpAddr, SocketAddr};

use header::{Exchange, data_header, read_data_header};
use protocol::flow::{CONTROLS, Change, Flow, Sent, Sizes, Violation};
use protocol::wire::{Buffer, ConnectionData, Mapping, Message, from_scale, to_scale};

const SIZES: Sizes = Sizes { send_queue: 20, receive_queue: 16, send_buffer: 8192, receive_buffer: 8192 };

/// The private data of a peer of the same sizes.
fn peer() -> ConnectionData {
    ConnectionData {
        credits: 16,
        mappings: Some(2),
        table: Buffer { address: 0x10_000, key: 7, length: 2 },
        buffer: Buffer { address: 0x20_000, key: 8, length: 4096 },
        is_swapped: false,
    }
}

fn flow() -> Flow {
    Flow::new(SIZES, peer())
}

/// Receives a message that brings no entry of the table.
fn receive(flow: &mut Flow, message: Message, length: u32) -> Result<Change, Violation> {
    flow.receive(message.to_immediate(), length, |_| panic!("no entry is read"))
}

fn random(state: &mut u64) -> u64 {
    // xorshift64
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// The private data of a reply of rdma-core 44, and the first messages of its `rstream`.
#[test]
fn bytes_of_rdma_core_are_understood_and_made() {
    let reply = "010201800000000000007fe4b4004000000004150000000200007fe4b9808000000005a400080000";
    let bytes: Vec<u8> = (0..40).map(|at| u8::from_str_radix(&reply[2 * at..2 * at + 2], 16).unwrap()).collect();
    let data = ConnectionData::from_bytes(&bytes).expect("private data");
    let expected = ConnectionData {
        credits: 384,
        mappings: Some(0),
        table: Buffer { address: 0x7fe4_b400_4000, key: 0x415, length: 2 },
        buffer: Buffer { address: 0x7fe4_b980_8000, key: 0x5a4, length: 512 << 10 },
        is_swapped: cfg!(target_endian = "big"),
    };
    assert_eq!(data, expected);
    if cfg!(target_endian = "little") {
        assert_eq!(data.to_bytes()[..], bytes[..]);
    }
    // As the capture has it: a second half of 512 KiB, with key 0xae0.
    let entry = Buffer { address: 0x7fa3_37cd_3000, key: 0xae0, length: 512 << 10 };
    assert_eq!(entry.to_bytes(false)[8..], [0xe0, 0x0a, 0, 0, 0, 0, 8, 0]);
    assert_eq!(Buffer::from_bytes(&entry.to_bytes(false)), entry);
    let immediates = [0x8000_0180, 0x10, 0x40, 0xe000_0000, 0xe000_0002, 0xc000_0001, 0xe000_0001];
    let messages = [
        Message::Credit(384),
        Message::Data(16),
        Message::Data(64),
        Message::Disconnect,
        Message::Shutdown,
        Message::Mapping(1),
        Message::Keepalive,
    ];
    for (immediate, message) in immediates.into_iter().zip(messages) {
        assert_eq!(Message::from_immediate(immediate), Some(message));
        assert_eq!(message.to_immediate(), immediate);
    }
    // A sum of more than 16 bits.
    assert_eq!(Message::from_immediate(0x8001_0005), Some(Message::Credit(5)));
    for reserved in [1 << 29, 2 << 29, 3 << 29, 5 << 29, 0xe000_0003] {
        assert_eq!(Message::from_immediate(reserved), None);
    }
}

/// The first message of each end lends the second half of its ring.
#[test]
fn first_grant_is_that_of_rdma_core() {
    let sizes = Sizes { receive_queue: 384, receive_buffer: 1 << 20, ..SIZES };
    let mut flow = Flow::new(sizes, peer());
    let grant = flow.take_grant().expect("half of the ring is free");
    assert_eq!(grant.message.to_immediate(), 0x8000_0180);
    // The second entry of the peer's table.
    assert_eq!(grant.lent, Some((0x10_010, 512 << 10, 512 << 10)));
    assert_eq!(flow.take_grant(), None);
}

#[test]
fn private_data_of_others_is_refused() {
    let good = peer().to_bytes();
    assert!(ConnectionData::from_bytes(&good).is_some());
    // With the zeros behind it that a request has.
    assert!(ConnectionData::from_bytes(&[&good[..], &[0; 16]].concat()).is_some());
    assert_eq!(ConnectionData::from_bytes(&good[..39]), None);
    let with = |at: usize, bytes: &[u8]| {
        let mut changed = good;
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        ConnectionData::from_bytes(&changed)
    };
    assert_eq!(with(0, &[2]), None, "another version");
    assert_eq!(with(20, &[0; 4]), None, "a table without entries");
    assert_eq!(with(8, &[0xff; 8]), None, "a table behind the end of memory");
    assert_eq!(with(24, &[0xff; 8]), None, "a buffer behind the end of memory");
    assert_eq!(with(1, &[3]).map(|data| data.is_swapped), Some(cfg!(target_endian = "little")));
    assert_eq!([0, 128, 129, 0xff].map(from_scale), [0, 128, 256, 127 << 8]);
    assert_eq!([0, 128, 129, 256, 32512].map(to_scale), [0, 128, 128, 129, 255]);
}

/// The order in which a sender uses the peer's buffers, its own ring, and the limits that it keeps.
#[test]
fn sender_keeps_to_buffers_credits_and_slots() {
    let mut flow = flow();
    let (target, room) = flow.take_data(3000).expect("a buffer");
    assert_eq!((target.address, target.length, room.first, room.second), (0x20_000, 3000, (0, 3000), (0, 0)));
    // The rest of the first buffer.
    let (target, room) = flow.take_data(3000).expect("a buffer");
    assert_eq!((target.address, target.length, room.first), (0x20_000 + 3000, 1096, (3000, 1096)));
    assert!(!flow.can_send() && flow.take_data(1).is_none(), "there is no other buffer");
    let second = Buffer { address: 0x30_000, key: 9, length: 4096 };
    assert_eq!(
        flow.receive(Message::Credit(18).to_immediate(), 16, |index| [Buffer::default(), second][index]),
        Ok(Change::None)
    );
    // The ring's end.
    let (target, room) = flow.take_data(4096).expect("a buffer");
    assert_eq!((target, room.first, room.second), (second, (4096, 4096), (0, 0)));
    assert!(!flow.has_sent_all());
    [3000, 1096, 4096].into_iter().for_each(|length| flow.complete(Sent::Data(length)));
    assert!(flow.has_sent_all());
    // Credits: 18 messages in all, of which three are sent.
    let third = Buffer { length: 100, ..second };
    assert_eq!(flow.receive(Message::Credit(18).to_immediate(), 16, |_| third), Ok(Change::None));
    for _ in 3..18 {
        let (target, _) = flow.take_data(1).expect("a credit");
        assert_eq!(target.length, 1);
        flow.complete(Sent::Data(1));
    }
    assert!(!flow.can_send());
    assert_eq!(receive(&mut flow, Message::Credit(40), 0), Ok(Change::None));
    // Slots: 20 less those for messages without data.
    for _ in 0..20 - CONTROLS {
        assert!(flow.take_data(1).is_some());
    }
    assert!(!flow.can_send());
    for _ in 0..CONTROLS {
        assert!(flow.take_control());
    }
    assert!(!flow.take_control());
    flow.complete(Sent::Control);
    assert!(flow.can_control() && !flow.can_send());
    for sent in [Sent::Data(65536), Sent::Control, Sent::Disconnect] {
        assert_eq!(Sent::from_id(sent.to_id()), sent);
    }
}

#[test]
fn receiver_lends_halves_again_and_returns_data_in_order() {
    let mut flow = flow();
    assert_eq!(flow.take_grant().and_then(|grant| grant.lent), Some((0x10_010, 4096, 4096)));
    assert_eq!(flow.data(0, 10), None);
    assert_eq!(receive(&mut flow, Message::Data(4096), 4096), Ok(Change::None));
    assert_eq!(receive(&mut flow, Message::Data(1000), 1000), Ok(Change::None));
    assert_eq!(flow.data(0, usize::MAX), Some((0, 5096)));
    assert_eq!(flow.data(5000, usize::MAX), Some((5000, 96)));
    flow.consume(4000);
    assert_eq!(flow.take_grant(), None, "no half is free");
    flow.consume(96);
    let grant = flow.take_grant().expect("half of the ring is free");
    assert_eq!((grant.message, grant.lent), (Message::Credit(17), Some((0x10_000, 0, 4096))));
    assert_eq!(receive(&mut flow, Message::Data(3096), 3096), Ok(Change::None));
    assert_eq!(receive(&mut flow, Message::Data(50), 50), Ok(Change::None));
    flow.consume(1000);
    // Up to the end of the ring, and behind it.
    assert_eq!(flow.data(0, usize::MAX), Some((5096, 3096)));
    assert_eq!(flow.data(3096, usize::MAX), Some((0, 50)));
    flow.consume(3146);
    assert!(!flow.has_data());
    // Half of the messages are read, with little data.
    for _ in 0..8 {
        assert_eq!(receive(&mut flow, Message::Data(1), 1), Ok(Change::None));
        flow.consume(1);
    }
    let granted = std::iter::from_fn(|| flow.take_grant()).last().expect("credits");
    assert_eq!(granted.message, Message::Credit(12 + 16));
}

#[test]
fn peers_that_violate_the_protocol_are_found() {
    assert_eq!(receive(&mut flow(), Message::Data(10), 11), Err(Violation::Length), "another number of bytes");
    assert_eq!(receive(&mut flow(), Message::Data(4097), 4097), Err(Violation::Length), "more than was lent");
    assert_eq!(receive(&mut flow(), Message::Credit(1), 5), Err(Violation::Length), "a part of an entry");
    assert_eq!(flow().receive(5 << 29, 0, |_| Buffer::default()), Err(Violation::Message));
    let mut many = flow();
    for _ in 0..16 {
        assert_eq!(receive(&mut many, Message::Data(1), 1), Ok(Change::None));
    }
    assert_eq!(receive(&mut many, Message::Data(1), 1), Err(Violation::Count), "more than it has credits for");
    let credit = Message::Credit(1).to_immediate();
    let behind = Buffer { address: u64::MAX, key: 0, length: 2 };
    assert_eq!(flow().receive(credit, 16, |_| behind), Err(Violation::Buffer));
    let mut full = flow();
    let buffer = Buffer { address: 1, key: 0, length: 2 };
    assert_eq!(full.receive(credit, 16, |_| buffer), Ok(Change::None));
    assert_eq!(full.receive(credit, 16, |_| buffer), Err(Violation::Buffer), "the entry is in use");
    // A message without data is not the end of the data.
    let mut empty = flow();
    assert_eq!(receive(&mut empty, Message::Data(0), 0), Ok(Change::None));
    assert!(!empty.has_data());
}

#[test]
fn ends_of_both_directions_are_the_end() {
    let mut flow = flow();
    assert_eq!(receive(&mut flow, Message::Shutdown, 0), Ok(Change::EndOfData));
    flow.is_writable = false;
    assert_eq!(receive(&mut flow, Message::Shutdown, 0), Ok(Change::Disconnected));
    assert_eq!(receive(&mut flow, Message::Disconnect, 0), Ok(Change::Disconnected));
}

/// Whatever a peer states, nothing panics, no offset is outside of the ring, and this end sends no more than it may.
#[test]
fn any_messages_leave_a_sound_state() {
    let mut seed = 0x9e37_79b9_7f4a_7c15;
    for _ in 0..2000 {
        let mut data = [0; 40];
        data.iter_mut().for_each(|byte| *byte = random(&mut seed) as u8);
        data[0] = 1;
        let Some(peer) = ConnectionData::from_bytes(&data) else { continue };
        let mut flow = Flow::new(SIZES, peer);
        for _ in 0..200 {
            let (choice, value) = (random(&mut seed), random(&mut seed));
            match choice % 6 {
                0 => drop(flow.receive(value as u32, (value >> 32) as u32 % 5000, |_| entry(value))),
                1 => drop(receive(&mut flow, Message::Data(value as u32 % 5000), value as u32 % 5000)),
                2 => drop(flow.receive(Message::Credit(value as u16).to_immediate(), 16, |_| entry(value))),
                3 => drop(flow.take_grant()),
                4 => {
                    if let Some((target, room)) = flow.take_data(value as u32 % 70_000) {
                        assert!(target.length > 0 && target.address.checked_add(target.length.into()).is_some());
                        for (at, length) in [room.first, room.second] {
                            assert!(at + length <= SIZES.send_buffer);
                        }
                        flow.complete(Sent::Data(target.length));
                    }
                }
                _ => {
                    if let Some((at, length)) = flow.data(0, value as usize % 3000) {
                        assert!(at + length <= SIZES.receive_buffer);
                        flow.consume(length);
                    }
                }
            }
        }
    }
}

fn entry(value: u64) -> Buffer {
    Buffer { address: value.rotate_left(17), key: value as u32, length: value as u32 >> (value % 32) }
}

#[test]
fn mapped_ranges_have_the_bounds_that_they_state() {
    let mapping = Mapping { offset: 100, buffer: Buffer { address: 0x1000, key: 3, length: 50 } };
    assert_eq!(mapping.at_offset(99), None);
    assert_eq!(mapping.at_offset(100), Some(mapping.buffer));
    assert_eq!(mapping.at_offset(149), Some(Buffer { address: 0x1031, key: 3, length: 1 }));
    assert_eq!(mapping.at_offset(150), None);
    assert_eq!(Mapping::from_bytes(&mapping.to_bytes(false)), mapping);
    let mut swapped = mapping.to_bytes(true);
    [0..8, 8..16, 16..20, 20..24].into_iter().for_each(|field| swapped[field].reverse());
    assert_eq!(Mapping::from_bytes(&swapped), mapping);
    let behind = Mapping { offset: u64::MAX, buffer: Buffer { address: u64::MAX - 1, key: 0, length: 9 } };
    assert_eq!(behind.at_offset(u64::MAX), None);
    assert_eq!(Mapping::default().at_offset(0), None);
    // The peer's table has two entries.
    let mut flow = flow();
    assert_eq!(flow.take_mapping(1).map(|(address, _)| address), Some(0x10_000 + 2 * 16 + 24));
    assert_eq!(flow.take_mapping(2), None);
}

#[test]
fn headers_of_datagrams_are_checked() {
    let from: SocketAddr = "192.0.2.1:7471".parse().unwrap();
    assert_eq!(data_header(from), [4, 8, 0x1d, 0x2f, 192, 0, 2, 1]);
    let six: SocketAddr = "[2001:db8::1]:7471".parse().unwrap();
    for address in [from, six] {
        let header = data_header(address);
        assert_eq!(read_data_header(&header), Some((address, header.len())));
        (0..header.len()).for_each(|length| assert_eq!(read_data_header(&header[..length]), None));
    }
    assert_eq!(read_data_header(&[4, 24, 0, 0, 0, 0, 0, 0]), None);
    let told = Exchange { has_data: true, qpn: 0x12_3456, address: IpAddr::from([192, 0, 2, 1]) };
    let bytes = told.to_bytes();
    assert_eq!(bytes, [0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0, 0, 0x12, 0x34, 0x56, 192, 0, 2, 1]);
    assert_eq!(Exchange::from_bytes(&bytes, true), Some((told, 16)));
    assert_eq!(Exchange::from_bytes(&bytes, false), None, "it came with the other version of IP");
    for address in [told.address, six.ip()] {
        let bytes = Exchange { has_data: false, address, ..told }.to_bytes();
        for at in 0..bytes.len() {
            assert_eq!(Exchange::from_bytes(&bytes[..at], address.is_ipv4()), None);
        }
        for at in [0, 4, 5, 6] {
            let mut changed = bytes.clone();
            changed[at] ^= 0x41;
            assert_eq!(Exchange::from_bytes(&changed, address.is_ipv4()), None);
        }
    }
}
