//! A ring of records in memory that two processes share: one writes, the other one reads.
//!
//! A record is a header word, which holds its length and a tag, and bytes. The reader polls the header at its position:
//! it is zero until the writer has placed the record, including the zero header of the next one. A record whose bytes
//! would not fit before the end of the ring begins at its start instead, after the header [`SKIP`].
//!
//! The reader publishes its position now and then; from it the writer knows the room. Each end keeps its own position
//! in private memory, and checks what it reads of the other end's: whatever the shared memory contains, no access
//! leaves the ring, and every call ends. An end that finds impossible contents reports [`Broken`].
//!
//! # Waking the reader
//!
//! A reader that is about to sleep requests a *bell*, and then checks once more whether a record waits. A writer that
//! has placed a record takes the request, if there is one, and wakes the reader. Between the store and the load of each
//! end is a fence, so at least one of them sees the other's store: no record waits for a reader that sleeps. The word
//! of the request is exchanged, so for each request the reader is woken once.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use super::grants::{AccessGate, WatchedGate};
use super::raw::Memory;
use super::{Backing, SharedPart};

/// Offsets of the shared words, each on cache lines of its own.
const READER_POSITION: usize = 0;
const BELL_REQUEST: usize = 128;
/// The gate of the writer's accesses to memory of the reader's process: see [`super::grants`].
const GATE: usize = 256;
/// Offset of the records.
const RECORDS: usize = 4_096;
/// Bytes of a header.
const WORD: usize = 8;
/// The header of the rest of the ring if the next record begins at its start.
const SKIP: u64 = u64::MAX;
/// Bits of the length in a header; the tag has the others.
const LENGTH_BITS: u32 = 17;
/// Bits of a tag.
#[cfg(all(test, not(loom)))]
pub(crate) const TAG_BITS: u32 = u64::BITS - LENGTH_BITS;
/// Maximum number of bytes of a record.
pub(crate) const MOST_RECORD_BYTES: usize = 65_536;
/// The reader publishes its position each time that it has read this part of the ring.
const PUBLISHED_PARTS: u64 = 8;

/// The contents of the shared memory are impossible: the other process is broken or hostile.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the memory shared with the peer has impossible contents")]
pub(crate) struct Broken;

/// The accesses to the shared memory. The offsets are in bounds, those of words aligned.
pub(crate) trait SharedBytes {
    /// Loads a word, with acquire ordering.
    fn load(&self, offset: usize) -> u64;

    /// Stores a word, with release ordering.
    fn store(&self, offset: usize, value: u64);

    /// Replaces `current` by `value`. Returns whether the word was `current`.
    fn exchange(&self, offset: usize, current: u64, value: u64) -> bool;

    /// Copies in, in any order.
    fn write(&self, offset: usize, bytes: &[u8]);

    /// Copies out, in any order.
    fn read(&self, offset: usize, out: &mut [u8]);

    /// A fence with sequentially consistent ordering.
    fn fence(&self);
}

/// The mapped memory of a ring.
pub(crate) struct Pages(Memory);

impl Pages {
    pub(super) fn new(memory: Memory) -> Self {
        Self(memory)
    }
}

// None of the accesses can fail: the memory neither faults nor shrinks, and the offsets are in bounds and aligned.
impl SharedBytes for Pages {
    #[inline]
    fn load(&self, offset: usize) -> u64 {
        let loaded = self.0.load_acquire_u64(offset);
        debug_assert!(loaded.is_ok());
        loaded.unwrap_or_default()
    }

    #[inline]
    fn store(&self, offset: usize, value: u64) {
        let stored = self.0.store_release_u64(offset, value);
        debug_assert!(stored.is_ok());
    }

    #[inline]
    fn exchange(&self, offset: usize, current: u64, value: u64) -> bool {
        self.0.compare_exchange_u64(offset, current, value) == Ok(current)
    }

    #[inline]
    fn write(&self, offset: usize, bytes: &[u8]) {
        let written = self.0.write(offset, bytes);
        debug_assert!(written.is_ok());
    }

    #[inline]
    fn read(&self, offset: usize, out: &mut [u8]) {
        let read = self.0.read(offset, out);
        debug_assert!(read.is_ok());
    }

    #[inline]
    fn fence(&self) {
        Memory::fence();
    }
}

/// Positions in a ring: they only grow, and each names a byte modulo the capacity.
#[derive(Clone, Copy)]
struct Layout {
    capacity: u64,
}

impl Layout {
    /// # Panics
    /// If the capacity is not a power of two, or too small for the longest record.
    fn new(capacity: usize) -> Self {
        assert!(capacity.is_power_of_two() && capacity >= 8 * WORD, "a ring of {capacity} bytes");
        Self { capacity: capacity as u64 }
    }

    /// Returns the offset of a position in the shared memory.
    #[inline]
    fn offset(self, position: u64) -> usize {
        RECORDS + (position & (self.capacity - 1)) as usize
    }

    /// Returns the number of bytes from a position to the end of the ring.
    #[inline]
    fn until_end(self, position: u64) -> u64 {
        self.capacity - (position & (self.capacity - 1))
    }

    /// Returns the maximum number of bytes that are begun at a time. They fit into an empty ring, whatever the reader
    /// has not published yet, and whatever is skipped.
    fn most_begun_bytes(self) -> usize {
        self.capacity as usize / 4 - WORD
    }

    /// Returns the maximum number of bytes of a record.
    fn most_record_bytes(self) -> usize {
        MOST_RECORD_BYTES.min(self.most_begun_bytes())
    }
}

/// Returns the bytes of a record with its header.
#[inline]
const fn whole_bytes(length: usize) -> u64 {
    (WORD + length.next_multiple_of(WORD)) as u64
}

/// The writing end.
pub(crate) struct RingWriter<B = Pages> {
    bytes: B,
    layout: Layout,
    position: u64,
    /// The reader's position, as last seen.
    read: u64,
    begun: Begun,
}

/// A record that is being written.
#[derive(Clone, Copy, Debug, Default)]
struct Begun {
    /// Its position.
    at: u64,
    /// Maximum number of its bytes.
    room: usize,
}

impl RingWriter {
    /// Creates a ring with this many bytes of records, a power of two, and the descriptor by which the other process
    /// opens its end.
    ///
    /// # Errors
    /// As [`Backing::create_shared`].
    pub(crate) fn create(capacity: usize) -> io::Result<(Self, OwnedFd)> {
        let (backing, file) = Backing::create_shared(c"rdma-verbs", RECORDS + capacity)?;
        Ok((Self::new(Pages(Memory::new(backing)), capacity), file))
    }

    /// The gate of this end's accesses to the reader's memory.
    pub(crate) fn gate(&self) -> AccessGate {
        AccessGate::new(Pages(self.bytes.0.share()), GATE)
    }

    /// Returns a part of the record that was begun.
    #[inline]
    pub(crate) fn part(&self, at: usize, length: usize) -> SharedPart<'_> {
        let length = length.min(self.begun.room.saturating_sub(at));
        SharedPart::new(&self.bytes.0, self.layout.offset(self.begun.at) + WORD + at, length)
    }
}

impl<B: SharedBytes> RingWriter<B> {
    fn new(bytes: B, capacity: usize) -> Self {
        Self { bytes, layout: Layout::new(capacity), position: 0, read: 0, begun: Begun::default() }
    }

    /// Appends a record of 1 to [`MOST_RECORD_BYTES`] bytes. Returns false if there is no room for it.
    ///
    /// # Errors
    /// [`Broken`]; then the ring must not be used any more.
    #[inline]
    pub(crate) fn push(&mut self, tag: u64, bytes: &[u8]) -> Result<bool, Broken> {
        if self.begin(bytes.len(), bytes.len())?.is_none() {
            return Ok(false);
        }
        self.write(0, bytes);
        self.end(tag, bytes.len());
        Ok(true)
    }

    /// Begins a record of `least` bytes or more, and returns the room for it and for those behind it
    /// ([`RingWriter::end_and_begin`]), at most `most`. The bytes follow by [`RingWriter::write`] and
    /// [`RingWriter::part`], in any order. [`RingWriter::end`] then appends the record; without, there is none. Returns
    /// `None` if there is no room for `least` bytes, or if no record has that length.
    ///
    /// # Errors
    /// [`Broken`]; then the ring must not be used any more.
    #[inline]
    pub(crate) fn begin(&mut self, least: usize, most: usize) -> Result<Option<usize>, Broken> {
        let most = most.min(self.layout.most_begun_bytes());
        if least == 0 || least > most.min(self.layout.most_record_bytes()) {
            debug_assert!(false, "a record of {least} bytes");
            return Ok(None);
        }
        let rest = self.layout.until_end(self.position);
        let (skipped, most) = match whole_bytes(least) > rest {
            true => (rest, most),
            false => (0, most.min((rest as usize) - WORD)),
        };
        let at = self.position + skipped;
        // The header of the next record must not replace one that is not read yet.
        let taken = skipped + WORD as u64;
        if !self.has_room(taken + whole_bytes(most))? && !self.has_room(taken + whole_bytes(least))? {
            return Ok(None);
        }
        let free = self.layout.capacity - (self.position - self.read) - taken - WORD as u64;
        let room = most.min((free as usize) & !(WORD - 1)).max(least);
        self.begun = Begun { at, room };
        Ok(Some(room))
    }

    /// Writes bytes of the record that was begun, from this one of its bytes on.
    #[inline]
    pub(crate) fn write(&mut self, at: usize, bytes: &[u8]) {
        if at + bytes.len() <= self.begun.room {
            self.bytes.write(self.layout.offset(self.begun.at) + WORD + at, bytes);
        } else {
            debug_assert!(false, "{} bytes at {at} of {:?}", bytes.len(), self.begun);
        }
    }

    /// Appends the record that was begun, with this number of its bytes.
    #[inline]
    pub(crate) fn end(&mut self, tag: u64, length: usize) {
        let Begun { at, room } = std::mem::take(&mut self.begun);
        if length == 0 || length > room.min(self.layout.most_record_bytes()) {
            debug_assert!(false, "{length} bytes of {room}");
            return;
        }
        let end = at + whole_bytes(length);
        self.bytes.store(self.layout.offset(end), 0);
        self.bytes.store(self.layout.offset(at), length as u64 | tag << LENGTH_BITS);
        if at != self.position {
            self.bytes.store(self.layout.offset(self.position), SKIP);
        }
        self.position = end;
    }

    /// Returns the number of bytes that a record of this length takes.
    #[inline]
    pub(crate) fn whole_bytes(&self, length: usize) -> usize {
        whole_bytes(length) as usize
    }

    /// As [`RingWriter::end`]; then begins the next record in the rest of the room, and returns that rest.
    #[inline]
    pub(crate) fn end_and_begin(&mut self, tag: u64, length: usize) -> usize {
        let room = self.begun.room.saturating_sub(whole_bytes(length) as usize);
        self.end(tag, length);
        self.begun = Begun { at: self.position, room };
        room
    }

    #[inline]
    fn has_room(&mut self, wanted: u64) -> Result<bool, Broken> {
        if self.position - self.read + wanted <= self.layout.capacity {
            return Ok(true);
        }
        let read = self.bytes.load(READER_POSITION);
        if read < self.read || read > self.position {
            return Err(Broken);
        }
        self.read = read;
        Ok(self.position - read + wanted <= self.layout.capacity)
    }

    /// Returns whether a quarter of the ring is free.
    ///
    /// # Errors
    /// [`Broken`]; then the ring must not be used any more.
    pub(crate) fn has_drained(&mut self) -> Result<bool, Broken> {
        self.has_room(self.layout.capacity / 4)
    }

    /// Returns whether the reader must be woken for the records so far, and takes its request.
    #[inline]
    pub(crate) fn takes_bell(&self) -> bool {
        self.bytes.fence();
        self.bytes.load(BELL_REQUEST) != 0 && self.bytes.exchange(BELL_REQUEST, 1, 0)
    }
}

/// A record: its tag, and the number of its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    pub(crate) tag: u64,
    pub(crate) length: usize,
}

/// The reading end.
pub(crate) struct RingReader<B = Pages> {
    bytes: B,
    layout: Layout,
    position: u64,
    published: u64,
}

impl RingReader {
    /// Opens the ring of this capacity that the other process has created.
    ///
    /// # Errors
    /// As [`Backing::open_shared`].
    pub(crate) fn open(file: BorrowedFd<'_>, capacity: usize) -> io::Result<Self> {
        let backing = Backing::open_shared(file, RECORDS + capacity)?;
        Ok(Self::new(Pages(Memory::new(backing)), capacity))
    }

    /// The gate of the writer's accesses to this end's memory.
    pub(crate) fn gate(&self) -> WatchedGate {
        WatchedGate::new(Pages(self.bytes.0.share()), GATE)
    }

    /// Returns a part of the next record.
    #[inline]
    pub(crate) fn part(&self, at: usize, length: usize) -> SharedPart<'_> {
        SharedPart::new(&self.bytes.0, self.layout.offset(self.position) + WORD + at, length)
    }
}

impl<B: SharedBytes> RingReader<B> {
    fn new(bytes: B, capacity: usize) -> Self {
        Self { bytes, layout: Layout::new(capacity), position: 0, published: 0 }
    }

    /// Returns the maximum number of records that are in the ring at a time.
    pub(crate) fn most_records(&self) -> usize {
        self.layout.capacity as usize / (2 * WORD)
    }

    /// Whether no record waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.load(self.layout.offset(self.position)) == 0
    }

    /// Takes the next record into `buffer`, which has [`MOST_RECORD_BYTES`].
    ///
    /// # Errors
    /// [`Broken`]; then the ring must not be used any more.
    #[cfg(any(test, loom))]
    pub(crate) fn take(&mut self, buffer: &mut [u8]) -> Result<Option<Record>, Broken> {
        let Some(record) = self.next()? else { return Ok(None) };
        self.read(0, buffer.get_mut(..record.length).ok_or(Broken)?);
        self.finish(&record);
        Ok(Some(record))
    }

    /// Returns the next record, which stays in the ring until [`RingReader::finish`].
    ///
    /// # Errors
    /// [`Broken`]; then the ring must not be used any more.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<Record>, Broken> {
        let mut header = self.header();
        if header == SKIP {
            let rest = self.layout.until_end(self.position);
            if rest == self.layout.capacity {
                return Err(Broken);
            }
            self.advance(rest);
            header = self.header();
        }
        if header == 0 {
            return Ok(None);
        }
        let length = (header & ((1 << LENGTH_BITS) - 1)) as usize;
        let whole = whole_bytes(length);
        if length == 0 || length > self.layout.most_record_bytes() || whole > self.layout.until_end(self.position) {
            return Err(Broken);
        }
        Ok(Some(Record { tag: header >> LENGTH_BITS, length }))
    }

    /// Copies bytes of the next record out, from this one on. They may differ from those of another copy.
    #[inline]
    pub(crate) fn read(&self, at: usize, out: &mut [u8]) {
        self.bytes.read(self.layout.offset(self.position) + WORD + at, out);
    }

    /// Leaves the place of the next record to the writer.
    #[inline]
    pub(crate) fn finish(&mut self, record: &Record) {
        self.advance(whole_bytes(record.length));
    }

    #[inline]
    fn header(&self) -> u64 {
        self.bytes.load(self.layout.offset(self.position))
    }

    #[inline]
    fn advance(&mut self, bytes: u64) {
        self.position += bytes;
        if self.position - self.published >= self.layout.capacity / PUBLISHED_PARTS {
            self.published = self.position;
            self.bytes.store(READER_POSITION, self.position);
        }
    }

    /// Requests that the writer wakes this end for the next record. Returns whether a record waits already.
    #[inline]
    pub(crate) fn request_bell(&self) -> bool {
        if self.bytes.load(BELL_REQUEST) == 0 {
            self.bytes.store(BELL_REQUEST, 1);
        }
        self.bytes.fence();
        !self.is_empty()
    }

    /// Whether the writer has not taken the request.
    #[inline]
    pub(crate) fn is_bell_requested(&self) -> bool {
        self.bytes.load(BELL_REQUEST) != 0
    }

    /// Withdraws the request. Returns false if the writer has taken it.
    #[inline]
    pub(crate) fn withdraw_bell(&self) -> bool {
        self.bytes.exchange(BELL_REQUEST, 1, 0)
    }
}

#[cfg(feature = "sim")]
mod fuzz;
#[cfg(feature = "sim")]
pub use self::fuzz::shared_ring;
#[cfg(loom)]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
