//! Files with captured packets, pcapng or pcap: their blocks one after the other, as records with a time.
//!
//! Files are not trusted: a block has at most [`LARGEST_BLOCK`] bytes, a section at most [`MOST_INTERFACES`]
//! interfaces, and a comment at most [`LONGEST_COMMENT`] characters, none of which controls a terminal.

use std::fs::File;
use std::io::{self, Cursor, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use pcap_parser::pcapng::{EnhancedPacketBlock, InterfaceDescriptionBlock, InterfaceStatisticsBlock};
use pcap_parser::traits::{PcapNGPacketBlock, PcapReaderIterator};
use pcap_parser::{Block, Linktype, PcapBlockOwned, PcapError, PcapNGOption};

use crate::common::printable_bytes;

/// The buffer of a file, which a block has to fit in.
const LARGEST_BLOCK: usize = 512 << 10;
const MOST_INTERFACES: usize = 4_096;
const LONGEST_COMMENT: usize = 400;
/// Bytes of the header of a pcap file, and the least of a pcapng file's first block.
const PCAP_HEADER: usize = 24;
/// Longest first block of a pcapng file.
const LONGEST_SECTION_HEADER: usize = 64 << 10;
const SECTION_HEADER: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// How often a file that grows is looked at.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(50);
const COMMENT: u16 = 1;
const PACKET_FLAGS: u16 = 2;
const PACKET_DROP_COUNT: u16 = 4;
const INTERFACE_TIME_RESOLUTION: u16 = 9;
const INTERFACE_TIME_OFFSET: u16 = 14;
const STATISTICS_DROPPED: u16 = 5;

const NANOSECONDS: u128 = 1_000_000_000;

/// The direction of a packet at the place where it was captured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Direction {
    #[default]
    Unknown,
    Inbound,
    Outbound,
}

/// A captured packet.
#[derive(Clone, Default, Debug)]
pub(super) struct Record {
    /// Nanoseconds since 1970.
    pub(super) time: u64,
    pub(super) link: Linktype,
    pub(super) data: Vec<u8>,
    pub(super) direction: Direction,
    pub(super) comment: Option<String>,
}

/// How the times of an interface are to be read.
#[derive(Clone, Copy)]
struct Interface {
    link: Linktype,
    units_per_second: u128,
    offset_seconds: i64,
}

/// Why a file cannot be read further.
#[derive(Debug, thiserror::Error)]
pub(super) enum Damage {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("this is neither a pcapng nor a pcap file")]
    NotACapture,
    #[error("the file is compressed with gzip: decompress it first (gunzip, or `zcat FILE | rdma-verbs show -`)")]
    Compressed,
    #[error("the file is empty")]
    Empty,
    #[error("the block at byte {0} has more than {kib} KiB", kib = LARGEST_BLOCK >> 10)]
    LargeBlock(usize),
    #[error("a block is damaged, at byte {0}: what follows is not read")]
    Block(usize),
    #[error("a section has more than {most} interfaces", most = MOST_INTERFACES)]
    Interfaces,
}

/// A file that is being read.
pub(super) struct Source {
    reader: Box<dyn PcapReaderIterator + Send>,
    interfaces: Vec<Interface>,
    legacy: Option<(Linktype, bool)>,
    /// Packets that the writer of the file reports as lost, by packet blocks and by statistics: the larger one counts.
    lost: [u64; 2],
    /// Whether the file ends within a block.
    pub(super) is_cut: bool,
    last_time: u64,
}

/// The content of a block.
enum Step {
    Packet,
    Other,
    End,
}

impl Source {
    /// Opens a file; `-` is the standard input.
    pub(super) fn open(path: &Path) -> Result<Self, Damage> {
        if path.as_os_str() == "-" {
            return Self::new(io::stdin());
        }
        let file = File::open(path)?;
        if file.metadata()?.is_dir() {
            return Err(io::Error::from(io::ErrorKind::IsADirectory).into());
        }
        Self::new(file)
    }

    pub(super) fn new(mut input: impl Read + Send + 'static) -> Result<Self, Damage> {
        let start = first_bytes(&mut input)?;
        if start.is_empty() {
            return Err(Damage::Empty);
        }
        if start.starts_with(&GZIP) {
            return Err(Damage::Compressed);
        }
        let input = Cursor::new(start).chain(input);
        let reader = pcap_parser::create_reader(LARGEST_BLOCK, input).map_err(|_| Damage::NotACapture)?;
        Ok(Self { reader, interfaces: Vec::new(), legacy: None, lost: [0; 2], is_cut: false, last_time: 0 })
    }

    /// Packets that are missing in the file, as far as it says so.
    pub(super) fn lost(&self) -> u64 {
        self.lost[0].max(self.lost[1])
    }

    /// Reads the next packet. Returns false at the end of the file.
    pub(super) fn next(&mut self, record: &mut Record) -> Result<bool, Damage> {
        loop {
            match self.step(record)? {
                Step::Packet => {
                    self.last_time = record.time;
                    return Ok(true);
                }
                Step::Other => {}
                Step::End => return Ok(false),
            }
        }
    }

    fn step(&mut self, record: &mut Record) -> Result<Step, Damage> {
        let at = self.reader.consumed();
        let (length, step) = match self.reader.next() {
            Ok((length, block)) => {
                let file = (&mut self.interfaces, &mut self.legacy, &mut self.lost, self.last_time);
                (length, take(block, file, record)?)
            }
            Err(PcapError::Eof) => return Ok(Step::End),
            Err(PcapError::UnexpectedEof) => {
                self.is_cut = true;
                return Ok(Step::End);
            }
            Err(PcapError::Incomplete(_)) => {
                self.reader.refill().map_err(|_| io::Error::other("the file cannot be read"))?;
                return Ok(Step::Other);
            }
            Err(PcapError::BufferTooSmall) => return Err(Damage::LargeBlock(at)),
            Err(PcapError::ReadError) => return Err(io::Error::other("the file cannot be read").into()),
            Err(_) => return Err(Damage::Block(at)),
        };
        self.reader.consume(length);
        Ok(step)
    }
}

/// A file that is being written: its end is the end only once it is complete.
pub(super) struct Following {
    file: File,
    is_complete: Arc<AtomicBool>,
}

impl Following {
    pub(super) const fn new(file: File, is_complete: Arc<AtomicBool>) -> Self {
        Self { file, is_complete }
    }
}

impl Read for Following {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            // Looked at first: what was written before must be read.
            let is_complete = self.is_complete.load(Ordering::Acquire);
            match self.file.read(buffer)? {
                0 if !is_complete && !buffer.is_empty() => thread::sleep(FOLLOW_INTERVAL),
                length => return Ok(length),
            }
        }
    }
}

/// Reads the whole first block of a pcapng file, or the header of a pcap file: pipes may deliver less at once.
fn first_bytes(input: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut start = Vec::new();
    input.by_ref().take(PCAP_HEADER as u64).read_to_end(&mut start)?;
    if start.len() == PCAP_HEADER && start.starts_with(&SECTION_HEADER) {
        let [length, magic] = [4, 8].map(|at| [start[at], start[at + 1], start[at + 2], start[at + 3]]);
        let is_big = magic == [0x1a, 0x2b, 0x3c, 0x4d];
        let length = if is_big { u32::from_be_bytes(length) } else { u32::from_le_bytes(length) } as usize;
        let rest = length.min(LONGEST_SECTION_HEADER).saturating_sub(start.len());
        input.take(rest as u64).read_to_end(&mut start)?;
    }
    Ok(start)
}

/// The parts of a [`Source`] that a block may change, besides the reader that it borrows.
type FileState<'a> = (&'a mut Vec<Interface>, &'a mut Option<(Linktype, bool)>, &'a mut [u64; 2], u64);

fn take(block: PcapBlockOwned<'_>, file: FileState<'_>, record: &mut Record) -> Result<Step, Damage> {
    let (interfaces, legacy, lost, last_time) = file;
    match block {
        PcapBlockOwned::LegacyHeader(header) => {
            *legacy = Some((header.network, header.is_nanosecond_precision()));
        }
        PcapBlockOwned::Legacy(packet) => {
            let Some((link, is_nanoseconds)) = *legacy else { return Ok(Step::Other) };
            let fraction = u64::from(packet.ts_usec) * if is_nanoseconds { 1 } else { 1_000 };
            let time = (u64::from(packet.ts_sec) * NANOSECONDS as u64).saturating_add(fraction);
            let captured = packet.data.get(..packet.caplen as usize).unwrap_or(packet.data);
            fill(record, time, link, captured);
            return Ok(Step::Packet);
        }
        PcapBlockOwned::NG(Block::SectionHeader(_)) => interfaces.clear(),
        PcapBlockOwned::NG(Block::InterfaceDescription(description)) => {
            if interfaces.len() == MOST_INTERFACES {
                return Err(Damage::Interfaces);
            }
            interfaces.push(Interface::new(&description));
        }
        PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => {
            let Some(interface) = interfaces.get(packet.if_id as usize) else { return Ok(Step::Other) };
            let time = interface.time(u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low));
            fill(record, time, interface.link, packet.packet_data());
            packet_options(&packet, record, &mut lost[0]);
            return Ok(Step::Packet);
        }
        PcapBlockOwned::NG(Block::SimplePacket(packet)) => {
            let Some(interface) = interfaces.first() else { return Ok(Step::Other) };
            // These blocks have no time.
            fill(record, last_time, interface.link, packet.packet_data());
            return Ok(Step::Packet);
        }
        PcapBlockOwned::NG(Block::InterfaceStatistics(statistics)) => {
            lost[1] = lost[1].saturating_add(dropped(&statistics));
        }
        PcapBlockOwned::NG(_) => {}
    }
    Ok(Step::Other)
}

fn fill(record: &mut Record, time: u64, link: Linktype, data: &[u8]) {
    record.time = time;
    record.link = link;
    record.data.clear();
    record.data.extend_from_slice(data);
    record.direction = Direction::Unknown;
    record.comment = None;
}

fn packet_options(packet: &EnhancedPacketBlock<'_>, record: &mut Record, lost: &mut u64) {
    let is_big = packet.big_endian();
    for option in &packet.options {
        match option.code.0 {
            COMMENT if record.comment.is_none() => record.comment = bytes_of(option).map(comment),
            PACKET_FLAGS => {
                record.direction = match number(option, is_big) & 3 {
                    1 => Direction::Inbound,
                    2 => Direction::Outbound,
                    _ => Direction::Unknown,
                }
            }
            PACKET_DROP_COUNT => *lost = lost.saturating_add(number(option, is_big)),
            _ => {}
        }
    }
}

fn dropped(statistics: &InterfaceStatisticsBlock<'_>) -> u64 {
    let is_big = statistics.block_type == 5_u32.swap_bytes();
    let option = statistics.options.iter().find(|option| option.code.0 == STATISTICS_DROPPED);
    option.map_or(0, |option| number(option, is_big))
}

fn bytes_of<'a>(option: &'a PcapNGOption<'_>) -> Option<&'a [u8]> {
    option.as_bytes().ok()
}

/// The number in an option of up to eight bytes; 0 if it has more.
fn number(option: &PcapNGOption<'_>, is_big: bool) -> u64 {
    let bytes = bytes_of(option).unwrap_or_default();
    if bytes.len() > 8 {
        return 0;
    }
    let join = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
    if is_big { bytes.iter().fold(0, join) } else { bytes.iter().rev().fold(0, join) }
}

fn comment(text: &[u8]) -> String {
    printable_bytes(text, LONGEST_COMMENT)
}

impl Interface {
    fn new(description: &InterfaceDescriptionBlock<'_>) -> Self {
        let find = |code| description.options.iter().find(|option| option.code.0 == code).and_then(bytes_of);
        let resolution = find(INTERFACE_TIME_RESOLUTION).and_then(|bytes| bytes.first()).copied().unwrap_or(6);
        let exponent = u32::from(resolution & 0x7f);
        let units_per_second =
            if resolution & 0x80 == 0 { 10_u128.checked_pow(exponent) } else { 2_u128.checked_pow(exponent) };
        let is_big = description.block_type == 1_u32.swap_bytes();
        let offset = description.options.iter().find(|option| option.code.0 == INTERFACE_TIME_OFFSET);
        Self {
            link: description.linktype,
            units_per_second: units_per_second.unwrap_or(u128::MAX),
            offset_seconds: offset.map_or(0, |option| number(option, is_big) as i64),
        }
    }

    /// Nanoseconds since 1970.
    fn time(&self, units: u64) -> u64 {
        let units = u128::from(units);
        let (seconds, fraction) = (units / self.units_per_second, units % self.units_per_second);
        // Fractions of finer units than 10^-28 s do not fit, and are below a nanosecond anyway.
        let nanoseconds = fraction.saturating_mul(NANOSECONDS) / self.units_per_second;
        let seconds = (seconds.min(u128::from(u32::MAX)) as i64).saturating_add(self.offset_seconds).max(0) as u64;
        seconds.saturating_mul(NANOSECONDS as u64).saturating_add(nanoseconds as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_all_resolutions_are_nanoseconds() {
        let interface =
            |units_per_second, offset_seconds| Interface { link: Linktype::RAW, units_per_second, offset_seconds };
        assert_eq!(interface(1_000_000, 0).time(3_000_001), 3_000_001_000);
        assert_eq!(interface(1_000_000_000, 2).time(3_000_000_001), 5_000_000_001);
        assert_eq!(interface(1 << 20, 0).time(3 << 19), 1_500_000_000);
        assert_eq!(interface(u128::MAX, i64::MIN).time(u64::MAX), 0);
        assert_eq!(interface(1, i64::MAX).time(u64::MAX), u64::MAX);
    }

    #[test]
    fn files_that_are_no_captures_say_so() {
        let open = |bytes: &'static [u8]| Source::new(bytes).err().map(|damage| damage.to_string()).unwrap_or_default();
        assert!(open(b"").contains("empty"));
        assert!(open(b"#!/bin/sh\necho this is a program").contains("neither"));
        assert!(open(b"\x1f\x8b\x08\x00").contains("gunzip"));
        assert!(open(&[0x0a, 0x0d, 0x0d, 0x0a, 0xff, 0xff, 0xff, 0x7f]).contains("neither"));
    }
}
