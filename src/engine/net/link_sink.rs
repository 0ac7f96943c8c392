//! The sink of packets that may leave through shared memory: a send to a destination with a ring is written there at
//! once, with payloads straight from registered memory and without check fields. All others are written to the buffer.

use std::os::fd::AsFd;

use super::link_block::{BLOCK_HEADER_BYTES, block_header, packets_of_block};
use super::link_tag::Tag;
use super::memory_links::{MemoryLinks, Room};
use crate::engine::share::OutgoingLink;
use crate::memory::AccessError;
use crate::memory::record_ring::MOST_RECORD_BYTES;
use crate::sys::{DEFAULT_HOP_LIMIT, ring};
use crate::transport::{Burst, BurstSink, BurstWriter, Envelope, PayloadSource, UdpSink, UdpWriter};
use crate::types::{Counter, Counters, Time};
use crate::wire::{BTH_BYTES, ICRC_BYTES, header_bytes};

/// Room for the longest packet: a record that cannot have it begins at the start of the ring.
const LEAST_ROOM: usize = 4_224;
/// Maximum number of bytes of a send's records: the last packet of a message of 64 KiB, and all but the last of the
/// next one.
const MOST_SEND_BYTES: usize = 72 << 10;
/// Maximum number of packets of a send.
const MOST_PACKETS: usize = 128;
/// Packets up to this size are assembled in private memory, and copied to the ring at once.
const SMALL_PACKET_BYTES: usize = 256;
/// Room for the longest headers of a packet.
const MOST_HEADER_BYTES: usize = 128;

/// The rings of a shard.
pub(crate) struct Rings<'a> {
    memory: &'a mut MemoryLinks,
    counters: &'a mut Counters,
    /// Whether sends are written to the buffer even if there is a ring.
    are_whole: bool,
}

impl<'a> Rings<'a> {
    /// The rings, and the counters of sends. `are_whole`: captures need each send as a whole, in the buffer.
    pub(super) fn new(memory: &'a mut MemoryLinks, counters: &'a mut Counters, are_whole: bool) -> Self {
        Self { memory, counters, are_whole }
    }

    /// Returns a sink that writes sends for which there is no ring to the buffer.
    #[inline]
    pub(crate) fn with_buffer(self, now: Time, buffer: UdpSink<'a>) -> LinkSink<'a> {
        LinkSink { rings: self, now, buffer }
    }
}

/// The rings of a shard, and its buffer.
pub(crate) struct LinkSink<'a> {
    rings: Rings<'a>,
    now: Time,
    buffer: UdpSink<'a>,
}

impl BurstSink for LinkSink<'_> {
    type Writer<'b>
        = LinkWriter<'b>
    where
        Self: 'b;

    #[inline]
    fn open<'b>(&'b mut self, envelope: &'b Envelope) -> Option<LinkWriter<'b>> {
        let block = envelope.destination.block() as u16;
        let path = (envelope.flow.source, envelope.flow.destination, block);
        let Rings { memory, counters, are_whole } = &mut self.rings;
        // A send that is written to the buffer needs room for any record.
        let least = if *are_whole { MOST_RECORD_BYTES } else { LEAST_ROOM };
        match memory.begin(self.now, path, least..=MOST_SEND_BYTES) {
            Room::Here(link, room) if !*are_whole => Some(LinkWriter::Ring(RecordWriter {
                link,
                counters,
                envelope,
                room,
                written: Written::default(),
                count: 0,
                length: 0,
                segment: 0,
                last: 0,
            })),
            Room::NotNow => None,
            Room::Here(..) | Room::Elsewhere => self.buffer.open(envelope).map(LinkWriter::Buffer),
        }
    }
}

/// A send of either kind.
pub(crate) enum LinkWriter<'a> {
    Ring(RecordWriter<'a>),
    Buffer(UdpWriter<'a>),
}

/// The packets of the records of a send that are in the ring already, and their bytes.
#[derive(Clone, Copy, Default)]
struct Written {
    packets: usize,
    bytes: usize,
}

/// A send that becomes a record of a ring, or several: a block needs one of its own.
pub(crate) struct RecordWriter<'a> {
    link: &'a mut OutgoingLink,
    counters: &'a mut Counters,
    envelope: &'a Envelope,
    /// Maximum number of bytes of the record that is begun, and of those behind it.
    room: usize,
    written: Written,
    /// Number of packets of the record that is begun.
    count: usize,
    length: usize,
    /// Size of all packets but the last.
    segment: usize,
    /// Size of the last packet.
    last: usize,
}

impl RecordWriter<'_> {
    #[inline]
    fn is_full(&self) -> bool {
        self.written.packets + self.count >= MOST_PACKETS || (self.count > 0 && self.last < self.segment)
    }

    #[inline]
    fn fits(&self, size: usize) -> bool {
        let room = self.room.min(MOST_RECORD_BYTES);
        !self.is_full() && (self.count == 0 || size <= self.segment) && self.length + size <= room
    }

    /// Writes the next packet of the burst, which must fit.
    #[inline]
    fn add_packet<P: PayloadSource>(&mut self, size: usize, burst: &mut Burst<'_, P>) -> Result<(), AccessError> {
        match size <= SMALL_PACKET_BYTES {
            true => self.add_small(size, burst)?,
            false => self.add_large(size, burst)?,
        }
        self.note(size);
        Ok(())
    }

    #[inline]
    fn note(&mut self, size: usize) {
        if self.count == 0 {
            self.segment = size;
        }
        self.last = size;
        self.count += 1;
        self.length += size;
    }

    #[inline]
    fn add_small<P: PayloadSource>(&mut self, size: usize, burst: &mut Burst<'_, P>) -> Result<(), AccessError> {
        let mut packet = [0; SMALL_PACKET_BYTES];
        let start = burst.headers.emit(&mut packet);
        self.envelope.prepare(&mut packet);
        burst.payload.read_next(&mut packet[start..start + burst.payload_bytes as usize])?;
        self.link.ring.write(self.length, &packet[..size]);
        Ok(())
    }

    fn add_large<P: PayloadSource>(&mut self, size: usize, burst: &mut Burst<'_, P>) -> Result<(), AccessError> {
        let mut headers = [0; MOST_HEADER_BYTES];
        let start = burst.headers.emit(&mut headers);
        self.envelope.prepare(&mut headers);
        self.place_payload(size, start, burst)?;
        self.link.ring.write(self.length, &headers[..start]);
        Ok(())
    }

    /// Adds a packet that differs from the one with this base transport header in its PSN and its acknowledgement
    /// request. No bytes are read that were just stored in other parts: that would wait for all stores before, which
    /// are those of a payload to memory that another processor has just read.
    fn add_similar<P: PayloadSource>(
        &mut self,
        size: usize,
        first: &[u8; BTH_BYTES],
        burst: &mut Burst<'_, P>,
    ) -> Result<(), AccessError> {
        self.place_payload(size, BTH_BYTES, burst)?;
        let bth = &burst.headers.bth;
        let word = u32::from(bth.ack_request) << 31 | u32::from(first[8] & 0x7f) << 24 | bth.psn.value();
        self.link.ring.write(self.length, &first[..8]);
        self.link.ring.write(self.length + 8, &word.to_be_bytes());
        self.note(size);
        Ok(())
    }

    #[inline]
    fn place_payload<P: PayloadSource>(
        &mut self,
        size: usize,
        start: usize,
        burst: &mut Burst<'_, P>,
    ) -> Result<(), AccessError> {
        let payload = burst.payload_bytes as usize;
        let ring = &mut self.link.ring;
        burst.payload.place_next(ring.part(self.length + start, payload))?;
        // Padding, and the place of the check field.
        ring.write(self.length + start + payload, &[0; 3 + ICRC_BYTES][..size - start - payload]);
        Ok(())
    }

    #[inline]
    fn add<P: PayloadSource>(&mut self, burst: &mut Burst<'_, P>) -> Result<u32, AccessError> {
        let size = burst.packet_bytes();
        if burst.count == 1 {
            return self.add_packet(size, burst).map(|()| 1);
        }
        let has_only_base = header_bytes(burst.headers.bth.opcode) == BTH_BYTES;
        if has_only_base && let added @ 1.. = self.add_blocks(size, burst)? {
            return Ok(added);
        }
        self.add_packet(size, burst)?;
        let mut first = [0; BTH_BYTES];
        if has_only_base {
            burst.headers.emit(&mut first);
            self.envelope.prepare(&mut first);
        }
        for index in 1..burst.count {
            burst.advance(index);
            let fits = self.fits(size);
            let is_added = fits
                && match has_only_base && size > SMALL_PACKET_BYTES {
                    true => self.add_similar(size, &first, burst).is_ok(),
                    false => self.add_packet(size, burst).is_ok(),
                };
            if !is_added {
                return Ok(index);
            }
        }
        Ok(burst.count)
    }

    /// Adds packets of the burst as blocks, as far as there is room. Returns their number, 0 if they must be written
    /// one by one.
    fn add_blocks<P: PayloadSource>(&mut self, size: usize, burst: &mut Burst<'_, P>) -> Result<u32, AccessError> {
        let (payload, mut added) = (burst.payload_bytes as usize, 0);
        while let Some(packets) = self.packets_of_next_block(burst, burst.count - added) {
            if self.count > 0 {
                self.end_and_begin();
            }
            let bytes = packets * payload;
            match burst.payload.place_next(self.link.ring.part(BLOCK_HEADER_BYTES, bytes)) {
                Ok(()) => {}
                // They are planned again.
                Err(_) if added > 0 => break,
                Err(error) => return Err(error),
            }
            let header = self.header_of_block(burst, added, packets as u32);
            self.link.ring.write(0, &header);
            let block = Tag { segment: size as u16, is_block: true, ..self.tag() };
            self.room = self.link.ring.end_and_begin(block.pack(), BLOCK_HEADER_BYTES + bytes);
            self.note_record(Written { packets, bytes: packets * size });
            added += packets as u32;
        }
        Ok(added)
    }

    /// Returns the number of packets of a block behind the record that is begun, of the `left` ones of a burst.
    fn packets_of_next_block<P: PayloadSource>(&self, burst: &Burst<'_, P>, left: u32) -> Option<usize> {
        let begun = if self.count > 0 { self.link.ring.whole_bytes(self.length) } else { 0 };
        let room = self.room.saturating_sub(begun);
        packets_of_block(left, burst.payload_bytes as usize, burst.payload.joined_bytes(), room)
    }

    /// Returns the header of a block of the burst's packets from this index on.
    fn header_of_block<P>(&self, burst: &mut Burst<'_, P>, index: u32, packets: u32) -> [u8; BLOCK_HEADER_BYTES] {
        let mut ack_requests = 0;
        for packet in 0..packets {
            if index + packet > 0 {
                burst.advance(index + packet);
            }
            ack_requests |= u32::from(burst.headers.bth.ack_request) << packet;
        }
        let mut first = [0; BTH_BYTES];
        let last = burst.headers.bth.psn;
        burst.headers.bth.psn = last.minus(packets - 1);
        burst.headers.emit(&mut first);
        burst.headers.bth.psn = last;
        self.envelope.prepare(&mut first);
        block_header(&first, ack_requests)
    }

    fn tag(&self) -> Tag {
        let envelope = self.envelope;
        Tag {
            segment: if self.count > 1 { self.segment as u16 } else { 0 },
            port: envelope.flow.source_port,
            class: envelope.traffic_class,
            hop_limit: if envelope.hop_limit == 0 { DEFAULT_HOP_LIMIT } else { envelope.hop_limit },
            is_keyed: envelope.is_keyed(),
            is_block: false,
        }
    }

    /// Ends the record that is begun, and begins the next one.
    fn end_and_begin(&mut self) {
        self.room = self.link.ring.end_and_begin(self.tag().pack(), self.length);
        self.note_record(Written { packets: self.count, bytes: self.length });
        (self.count, self.length) = (0, 0);
    }

    /// Notes a record that is in the ring, and wakes the reader if it sleeps.
    #[inline]
    fn note_record(&mut self, record: Written) {
        self.written.packets += record.packets;
        self.written.bytes += record.bytes;
        if self.link.ring.takes_bell() {
            ring(self.link.bell.as_fd());
        }
        self.counters.add(Counter::SharedMemorySends, 1);
    }

    #[inline]
    fn finish(mut self) {
        if self.count > 0 {
            self.link.ring.end(self.tag().pack(), self.length);
            self.note_record(Written::default());
        }
    }
}

impl BurstWriter for LinkWriter<'_> {
    fn capacity(&self) -> usize {
        match self {
            Self::Ring(_) => MOST_PACKETS,
            Self::Buffer(writer) => writer.capacity(),
        }
    }

    fn packets(&self) -> usize {
        match self {
            Self::Ring(writer) => writer.written.packets + writer.count,
            Self::Buffer(writer) => writer.packets(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Ring(writer) => writer.written.bytes + writer.length,
            Self::Buffer(writer) => writer.bytes(),
        }
    }

    #[inline]
    fn is_full(&self) -> bool {
        match self {
            Self::Ring(writer) => writer.is_full(),
            Self::Buffer(writer) => writer.is_full(),
        }
    }

    #[inline]
    fn fits(&self, size: usize) -> bool {
        match self {
            Self::Ring(writer) => writer.fits(size),
            Self::Buffer(writer) => writer.fits(size),
        }
    }

    #[inline]
    fn add<P: PayloadSource>(&mut self, burst: &mut Burst<'_, P>) -> Result<u32, AccessError> {
        match self {
            Self::Ring(writer) => writer.add(burst),
            Self::Buffer(writer) => writer.add(burst),
        }
    }

    #[inline]
    fn finish(self) {
        match self {
            Self::Ring(writer) => writer.finish(),
            Self::Buffer(writer) => writer.finish(),
        }
    }
}
