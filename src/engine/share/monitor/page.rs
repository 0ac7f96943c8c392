//! The page of a watcher: the last two snapshots, each in a slot of its own.
//!
//! The writer replaces the older one. A slot begins with a header that has the number of the snapshot and a checksum
//! over all of it, so a reader recognizes a snapshot that is being replaced, and takes the other one: also if the
//! writer was stopped in the middle of it.

use std::io;
use std::os::fd::OwnedFd;

use super::codec::{Decoder, FORMAT};
use crate::memory::{PageReader, PageWriter};
use crate::types::Snapshot;

/// Bytes of a slot. Those that are never written take no memory.
const SLOT_BYTES: usize = 2 << 20;
/// Bytes of a page.
pub(super) const PAGE_BYTES: usize = 2 * SLOT_BYTES;
const HEADER_BYTES: usize = 24;
/// Most bytes of a snapshot.
pub(super) const MOST_BYTES: usize = SLOT_BYTES - HEADER_BYTES;
const MAGIC: [u8; 4] = *b"RVst";
/// Attempts to read a page that is replaced meanwhile. The writer replaces it ten times a second at most.
const ATTEMPTS: usize = 8;

/// Why there is no snapshot in a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Unreadable;

/// The header of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Header {
    number: u64,
    length: usize,
    checksum: u32,
}

impl Header {
    fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..20].copy_from_slice(&(self.length as u32).to_le_bytes());
        bytes[20..].copy_from_slice(&self.checksum.to_le_bytes());
        bytes
    }

    fn parse(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let word = |offset: usize| u32::from_le_bytes([0, 1, 2, 3].map(|index| bytes[offset + index]));
        let number = u64::from(word(8)) | u64::from(word(12)) << 32;
        let header = Self { number, length: word(16) as usize, checksum: word(20) };
        (bytes[..4] == MAGIC && word(4) == FORMAT && header.length <= MOST_BYTES).then_some(header)
    }
}

/// Returns the checksum of a snapshot with this number.
fn checksum(number: u64, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&number.to_le_bytes());
    hasher.update(bytes);
    hasher.finalize()
}

/// The writer's end.
pub(super) struct StatisticsWriter {
    page: PageWriter,
    number: u64,
}

impl StatisticsWriter {
    /// Creates a page without a snapshot, and the file for its reader.
    pub(super) fn create() -> io::Result<(Self, OwnedFd)> {
        let (page, file) = PageWriter::create(PAGE_BYTES)?;
        Ok((Self { page, number: 0 }, file))
    }

    /// Replaces the older snapshot. One that does not fit is not written: the bounds of its lists prevent that.
    pub(super) fn write(&mut self, snapshot: &[u8]) {
        if snapshot.len() > MOST_BYTES {
            return;
        }
        self.number += 1;
        let header = Header { number: self.number, length: snapshot.len(), checksum: checksum(self.number, snapshot) };
        let offset = (self.number % 2) as usize * SLOT_BYTES;
        self.page.write(offset, &header.to_bytes());
        self.page.write(offset + HEADER_BYTES, snapshot);
    }
}

/// A reader's end.
#[derive(Debug)]
pub(super) struct StatisticsReader {
    page: PageReader,
    bytes: Vec<u8>,
}

impl StatisticsReader {
    /// Takes the file of a page, as [`PageReader::open`].
    pub(super) fn open(file: OwnedFd) -> io::Result<Self> {
        Ok(Self { page: PageReader::open(file, PAGE_BYTES)?, bytes: Vec::new() })
    }

    /// Returns the latest whole snapshot.
    pub(super) fn read(&mut self) -> Result<Snapshot, Unreadable> {
        for _ in 0..ATTEMPTS {
            let mut headers = [0, SLOT_BYTES].map(|offset| self.header(offset).map(|header| (offset, header)));
            headers.sort_by_key(|found| std::cmp::Reverse(found.map(|(_, header)| header.number)));
            for (offset, header) in headers.into_iter().flatten() {
                if self.read_body(offset, header) {
                    return Decoder(&self.bytes).snapshot().ok_or(Unreadable);
                }
            }
        }
        Err(Unreadable)
    }

    fn header(&self, offset: usize) -> Option<Header> {
        let mut bytes = [0; HEADER_BYTES];
        self.page.read(offset, &mut bytes).ok()?;
        Header::parse(&bytes)
    }

    /// Reads the bytes of a snapshot. Returns false if they are not those of the header.
    fn read_body(&mut self, offset: usize, header: Header) -> bool {
        self.bytes.resize(header.length, 0);
        let read = self.page.read(offset + HEADER_BYTES, &mut self.bytes);
        read.is_ok() && checksum(header.number, &self.bytes) == header.checksum
    }
}

/// Reads the contents of a page that is not shared.
#[cfg(feature = "sim")]
pub(super) fn parse(bytes: &[u8]) -> Option<Snapshot> {
    Decoder(bytes).snapshot()
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::super::codec::tests::{bytes_of, filled, largest};
    use super::*;

    fn snapshot(taken_at: u64) -> Snapshot {
        Snapshot { taken_at, ..filled() }
    }

    #[test]
    fn the_latest_whole_snapshot_is_read() {
        let (mut writer, file) = StatisticsWriter::create().unwrap();
        let mut reader = StatisticsReader::open(file).unwrap();
        assert_eq!(reader.read(), Err(Unreadable));
        for taken_at in 1..5 {
            writer.write(&bytes_of(&snapshot(taken_at)));
            assert_eq!(reader.read(), Ok(snapshot(taken_at)));
        }
        // Stopped in the middle of the next one.
        let offset = (writer.number + 1) as usize % 2 * SLOT_BYTES;
        writer.page.write(offset, &Header { number: writer.number + 1, length: 9, checksum: 7 }.to_bytes());
        assert_eq!(reader.read(), Ok(snapshot(4)));
    }

    #[test]
    fn the_largest_snapshot_fits() {
        let (mut writer, file) = StatisticsWriter::create().unwrap();
        writer.write(&bytes_of(&largest()));
        assert_eq!(StatisticsReader::open(file).unwrap().read(), Ok(largest()));
    }

    #[test]
    fn impossible_contents_are_refused() {
        let (mut writer, file) = StatisticsWriter::create().unwrap();
        let mut reader = StatisticsReader::open(file).unwrap();
        for length in [0, 1, MOST_BYTES, MOST_BYTES + 1, u32::MAX as usize] {
            writer.page.write(0, &Header { number: u64::MAX, length, checksum: checksum(u64::MAX, &[]) }.to_bytes());
            assert_eq!(reader.read(), Err(Unreadable), "{length} bytes");
        }
    }

    #[test]
    fn a_page_that_changes_is_read_whole() {
        let (mut writer, file) = StatisticsWriter::create().unwrap();
        let mut reader = StatisticsReader::open(file).unwrap();
        writer.write(&bytes_of(&snapshot(1)));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for taken_at in 2..200 {
                    writer.write(&bytes_of(&snapshot(taken_at)));
                    std::thread::sleep(std::time::Duration::from_micros(200));
                }
            });
            let mut last = 1;
            while last < 199 {
                let read = reader.read().expect("a whole snapshot");
                assert!(read.taken_at >= last, "{} after {last}", read.taken_at);
                assert_eq!(read.devices, snapshot(0).devices);
                last = read.taken_at;
            }
        });
    }
}
