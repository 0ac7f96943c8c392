//! Entry point of the fuzz target of rings: another process that changes the memory between any two accesses.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::{BELL_REQUEST, Broken, READER_POSITION, RECORDS, RingReader, RingWriter, SKIP, SharedBytes, WORD};

const CAPACITY: usize = 1_024;
/// Most accesses of a call to an end of the ring: none is repeated until the other process allows it to end.
const MOST_ACCESSES: usize = 8;

/// The shared memory, with the process that changes it as the rest of the input says.
struct Adversary<'a> {
    memory: RefCell<Vec<u8>>,
    script: RefCell<&'a [u8]>,
    /// Accesses of the current call.
    accesses: Cell<usize>,
}

impl<'a> Adversary<'a> {
    fn next(&self) -> Option<u8> {
        let mut script = self.script.borrow_mut();
        let (first, rest) = script.split_first()?;
        *script = rest;
        Some(*first)
    }

    fn number<const BYTES: usize>(&self) -> u64 {
        (0..BYTES).fold(0, |number, _| number << 8 | u64::from(self.next().unwrap_or_default()))
    }

    fn word(&self, offset: usize) -> u64 {
        let bytes = self.memory.borrow()[offset..offset + WORD].try_into();
        u64::from_ne_bytes(bytes.unwrap_or_default())
    }

    fn set_word(&self, offset: usize, value: u64) {
        self.memory.borrow_mut()[offset..offset + WORD].copy_from_slice(&value.to_ne_bytes());
    }

    /// Counts an access, which must lie within the memory, and changes the memory before it.
    fn note_access(&self, offset: usize, length: usize, is_word: bool) {
        assert!(
            offset + length <= RECORDS + CAPACITY && (!is_word || offset.is_multiple_of(WORD)),
            "{offset}+{length}"
        );
        self.accesses.set(self.accesses.get() + 1);
        assert!(self.accesses.get() <= MOST_ACCESSES, "a call does not end");
        if self.next().is_some_and(|byte| byte & 7 == 1) {
            self.change(offset);
        }
    }

    /// Changes the word at this offset, one near it, or any.
    fn change(&self, offset: usize) {
        let choice = self.number::<1>();
        let place = match choice & 7 {
            0 => READER_POSITION,
            1 => BELL_REQUEST,
            2 => RECORDS + self.number::<2>() as usize % CAPACITY,
            3 => (offset + self.number::<1>() as usize).min(RECORDS + CAPACITY - WORD),
            _ => offset.min(RECORDS + CAPACITY - WORD),
        } & !(WORD - 1);
        let value = match choice >> 3 & 7 {
            0 => 0,
            1 => SKIP,
            2 => self.number::<8>(),
            3 => self.number::<1>(),
            4 => self.number::<2>(),
            5 => self.word(place) ^ 1 << (self.number::<1>() & 63),
            6 => self.word(place).wrapping_add(self.number::<1>()),
            _ => self.number::<3>(),
        };
        self.set_word(place, value);
    }
}

impl SharedBytes for Rc<Adversary<'_>> {
    fn load(&self, offset: usize) -> u64 {
        self.note_access(offset, WORD, true);
        self.word(offset)
    }

    fn store(&self, offset: usize, value: u64) {
        self.note_access(offset, WORD, true);
        self.set_word(offset, value);
    }

    fn exchange(&self, offset: usize, current: u64, value: u64) -> bool {
        self.note_access(offset, WORD, true);
        let is_it = self.word(offset) == current;
        if is_it {
            self.set_word(offset, value);
        }
        is_it
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        self.note_access(offset, bytes.len(), false);
        self.memory.borrow_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn read(&self, offset: usize, out: &mut [u8]) {
        self.note_access(offset, out.len(), false);
        out.copy_from_slice(&self.memory.borrow()[offset..offset + out.len()]);
    }

    fn fence(&self) {}
}

/// Begins two records at once, and writes the second one if the rest of the room suffices.
fn write_two<'a>(writer: &mut RingWriter<Rc<Adversary<'a>>>, adversary: &Adversary<'a>) -> Result<(), Broken> {
    let lengths = [0; 2].map(|_| 1 + adversary.number::<1>() as usize % (CAPACITY / 8));
    let Some(room) = writer.begin(lengths[0], CAPACITY)? else { return Ok(()) };
    writer.write(0, &vec![4; lengths[0]]);
    adversary.accesses.set(0);
    let rest = writer.end_and_begin(4, lengths[0]);
    assert!(rest + lengths[0] <= room, "{rest} of {room} bytes are left");
    adversary.accesses.set(0);
    if lengths[1] <= rest {
        writer.write(0, &vec![5; lengths[1]]);
        writer.end(5, lengths[1]);
    }
    Ok(())
}

/// Reads and writes a ring while another process changes the memory. Whatever it contains, the accesses stay within it,
/// every call ends, records have a possible length, and a ring that is broken stays so for its user.
pub fn shared_ring(bytes: &[u8]) {
    let adversary = Rc::new(Adversary {
        memory: RefCell::new(vec![0; RECORDS + CAPACITY]),
        script: RefCell::new(bytes),
        accesses: Cell::new(0),
    });
    let mut writer = RingWriter::new(Rc::clone(&adversary), CAPACITY);
    let mut reader = RingReader::new(Rc::clone(&adversary), CAPACITY);
    let (mut buffer, mut is_readable, mut is_writable) = ([0; CAPACITY], true, true);
    while let Some(command) = adversary.next() {
        adversary.accesses.set(0);
        match command & 7 {
            0..=2 if is_readable => match reader.next() {
                Ok(Some(record)) => {
                    assert!((1..=CAPACITY / 4 - WORD).contains(&record.length), "{record:?}");
                    reader.read(0, &mut buffer[..record.length]);
                    reader.finish(&record);
                }
                Ok(None) => {}
                Err(_) => is_readable = false,
            },
            3 if is_writable => {
                let length = 1 + adversary.number::<1>() as usize % (CAPACITY / 4 - WORD);
                is_writable = writer.push(u64::from(command), &vec![command; length]).is_ok();
            }
            4 if is_writable => is_writable = write_two(&mut writer, &adversary).is_ok(),
            5 => {
                let _ = (reader.request_bell(), writer.takes_bell());
            }
            6 => {
                let _ = reader.is_empty();
                reader.withdraw_bell();
            }
            _ => adversary.change(RECORDS + adversary.number::<2>() as usize % CAPACITY),
        }
    }
}
