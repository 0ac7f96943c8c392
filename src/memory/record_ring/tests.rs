use std::collections::VecDeque;
use std::os::fd::AsFd;

use proptest::prelude::*;

use super::*;

const CAPACITY: usize = 4_096;

/// A ring, and a third mapping of its memory.
fn ring(capacity: usize) -> (RingWriter, RingReader, Memory) {
    let (writer, file) = RingWriter::create(capacity).unwrap();
    let reader = RingReader::open(file.as_fd(), capacity).unwrap();
    let memory = Memory::new(Backing::open_shared(file.as_fd(), RECORDS + capacity).unwrap());
    (writer, reader, memory)
}

fn take(reader: &mut RingReader) -> Option<(u64, Vec<u8>)> {
    let mut buffer = vec![0; MOST_RECORD_BYTES];
    let record = reader.take(&mut buffer).unwrap()?;
    Some((record.tag, buffer[..record.length].to_vec()))
}

proptest! {
    /// The reader gets what the writer has placed, in order, whatever the lengths and the places of the records.
    #[test]
    fn records_arrive_in_order(lengths in prop::collection::vec((1_usize..1_016, 0_usize..4), 1..200)) {
        let (mut writer, mut reader, _) = ring(CAPACITY);
        let mut expected = VecDeque::new();
        for (number, (length, taken)) in lengths.into_iter().enumerate() {
            let bytes: Vec<u8> = (0..length).map(|at| (at + number) as u8).collect();
            if writer.push(number as u64, &bytes).unwrap() {
                expected.push_back((number as u64, bytes));
            } else {
                prop_assert!(!expected.is_empty(), "there is room for {length} bytes in an empty ring");
            }
            prop_assert_eq!(reader.is_empty(), expected.is_empty());
            for _ in 0..taken {
                prop_assert_eq!(take(&mut reader), expected.pop_front());
            }
        }
        while let Some(record) = expected.pop_front() {
            prop_assert_eq!(take(&mut reader), Some(record));
        }
        prop_assert!(reader.is_empty());
    }

    /// Records that were begun together arrive like others, whatever their lengths.
    #[test]
    fn records_of_one_room_arrive_in_order(
        sends in prop::collection::vec(prop::collection::vec(1_usize..600, 1..6), 1..60),
    ) {
        let (mut writer, mut reader, _) = ring(CAPACITY);
        let mut number = 0;
        for lengths in sends {
            let mut expected = Vec::new();
            let mut room = writer.begin(lengths[0], CAPACITY).unwrap().expect("the ring is empty");
            prop_assert!(room <= CAPACITY / 4);
            for length in lengths {
                if length > room {
                    break;
                }
                number += 1;
                let bytes: Vec<u8> = (0..length).map(|at| (at + number) as u8).collect();
                writer.write(0, &bytes);
                room = writer.end_and_begin(number as u64, length);
                expected.push(Some((number as u64, bytes)));
            }
            let taken: Vec<_> = expected.iter().map(|_| take(&mut reader)).collect();
            prop_assert_eq!(taken, expected);
            prop_assert!(reader.is_empty());
        }
    }

    /// Impossible contents break the ring, and nothing worse. No loop is endless, and no access leaves the memory.
    #[test]
    fn any_contents_are_safe(
        contents in prop::collection::vec(any::<u64>(), CAPACITY / WORD),
        small in prop::collection::vec(0_u64..600, CAPACITY / WORD),
        position in any::<u64>(),
    ) {
        let (mut writer, mut reader, memory) = ring(CAPACITY);
        let mut buffer = vec![0; MOST_RECORD_BYTES];
        for words in [contents, small, vec![SKIP; CAPACITY / WORD]] {
            for (index, word) in words.iter().enumerate() {
                memory.store_release_u64(RECORDS + index * WORD, *word).unwrap();
            }
            memory.store_release_u64(READER_POSITION, position).unwrap();
            for _ in 0..1_000 {
                match reader.take(&mut buffer) {
                    Ok(Some(record)) => prop_assert!((1..=CAPACITY / 4).contains(&record.length)),
                    Ok(None) | Err(Broken) => break,
                }
            }
            for _ in 0..20 {
                if !matches!(writer.push(1, &[7; 500]), Ok(true)) {
                    break;
                }
            }
        }
    }
}

/// A record that is written in parts gets the room that there is, and only what it ends with.
#[test]
fn records_are_written_in_parts() {
    let (mut writer, mut reader, _) = ring(CAPACITY);
    assert_eq!(writer.begin(8, CAPACITY).unwrap(), Some(CAPACITY / 4 - WORD));
    writer.write(0, b"not appended");
    assert!(reader.is_empty() && take(&mut reader).is_none());
    for number in 0..100_u8 {
        let room = writer.begin(100, 1_000).unwrap().expect("there is room for it");
        assert!((100..=1_000).contains(&room), "{room}");
        let rest = usize::from(number) % 50 + 1;
        writer.part(8, rest).write(&vec![number; rest]).unwrap();
        writer.write(0, b"a header");
        assert!(reader.is_empty());
        writer.end(7, 8 + rest);
        let (tag, bytes) = take(&mut reader).unwrap();
        assert_eq!((tag, &bytes[..8], &bytes[8..]), (7, &b"a header"[..], &vec![number; rest][..]));
    }
}

#[test]
fn a_record_gets_the_room_that_is_left() {
    let (mut writer, mut reader, _) = ring(CAPACITY);
    let mut rooms = Vec::new();
    while let Some(room) = writer.begin(256, 700).unwrap() {
        writer.end(0, room);
        rooms.push(room);
    }
    assert!(rooms.len() > 3 && rooms.iter().any(|room| *room < 700), "{rooms:?}");
    for room in rooms {
        assert_eq!(take(&mut reader).unwrap().1.len(), room);
    }
    assert!(reader.is_empty());
}

#[test]
fn full_ring_refuses_records() {
    let (mut writer, mut reader, _) = ring(CAPACITY);
    // With their headers 128 bytes each. The last word stays free.
    let placed = (0..100).take_while(|number| writer.push(*number, &[1; 120]).unwrap()).count();
    assert_eq!(placed, CAPACITY / 128 - 1);
    assert!(!writer.push(0, &[1; 120]).unwrap());
    // The reader publishes its position after an eighth of the ring.
    (0..4).for_each(|number| assert_eq!(take(&mut reader).unwrap().0, number));
    assert!(writer.push(0, &[1; 120]).unwrap());
}

#[test]
fn impossible_position_of_the_reader_breaks_the_ring() {
    let (mut writer, _reader, memory) = ring(CAPACITY);
    for impossible in [CAPACITY as u64, u64::MAX] {
        while writer.push(0, &[1; 500]) == Ok(true) {}
        memory.store_release_u64(READER_POSITION, impossible).unwrap();
        assert_eq!(writer.push(0, &[1; 500]), Err(Broken));
    }
}

#[test]
fn a_bell_is_taken_once_for_each_request() {
    let (mut writer, mut reader, _) = ring(CAPACITY);
    assert!(!writer.takes_bell(), "nothing was requested");
    assert!(!reader.request_bell());
    assert!(writer.push(0, b"one").unwrap() && writer.takes_bell());
    assert!(writer.push(0, b"two").unwrap() && !writer.takes_bell());
    assert!(reader.request_bell(), "a record waits");
    while take(&mut reader).is_some() {}
    assert!(reader.is_bell_requested() && reader.withdraw_bell() && !reader.is_bell_requested());
    assert!(writer.push(0, b"three").unwrap() && !writer.takes_bell());
    assert!(reader.request_bell() && writer.takes_bell() && !reader.withdraw_bell(), "it was taken");
}
