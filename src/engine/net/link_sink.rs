//! The sink of packets that may leave through shared memory: a send to a destination with a ring is written there at
//! once, with payloads straight from registered memory and without check fields. All others are written to the buffer.

use std::os::fd::AsFd;

use super::memory_links::{MemoryLinks, Tag};
use crate::engine::share::OutgoingLink;
use crate::memory::AccessError;
use crate::memory::record_ring::MOST_RECORD_BYTES;
use crate::sys::{DEFAULT_HOP_LIMIT, ring};
use crate::transport::{Burst, BurstSink, BurstWriter, Envelope, PayloadSource, UdpSink, UdpWriter};
use crate::types::{Counter, Counters};
use crate::wire::{BTH_BYTES, ICRC_BYTES, header_bytes};

/// Room for the longest packet: a record that cannot have it begins at the start of the ring.
const LEAST_ROOM: usize = 4_224;
/// Maximum number of packets of a record.
const MOST_PACKETS: usize = 128;
/// Packets up to this size are assembled in private memory, and copied to the ring at once.
const SMALL_PACKET_BYTES: usize = 256;
/// Room for the longest headers of a packet.
const MOST_HEADER_BYTES: usize = 128;

/// The rings of a shard.
pub(crate) struct Rings<'a> {
    memory: &'a mut MemoryLinks,
    counters: &'a mut Counters,
}

impl<'a> Rings<'a> {
    pub(super) fn new(memory: &'a mut MemoryLinks, counters: &'a mut Counters) -> Self {
        Self { memory, counters }
    }

    /// Returns a sink that writes sends for which there is no ring to the buffer.
    #[inline]
    pub(crate) fn with_buffer(self, buffer: UdpSink<'a>) -> LinkSink<'a> {
        LinkSink { memory: self.memory, counters: self.counters, buffer }
    }
}

/// The rings of a shard, and its buffer.
pub(crate) struct LinkSink<'a> {
    memory: &'a mut MemoryLinks,
    counters: &'a mut Counters,
    buffer: UdpSink<'a>,
}

impl BurstSink for LinkSink<'_> {
    type Writer<'b>
        = LinkWriter<'b>
    where
        Self: 'b;

    #[inline]
    fn open<'b>(&'b mut self, envelope: &'b Envelope) -> LinkWriter<'b> {
        let block = envelope.destination.block() as u16;
        let flow = &envelope.flow;
        match self.memory.begin(flow.source, flow.destination, block, LEAST_ROOM, MOST_RECORD_BYTES) {
            Some((link, room)) => LinkWriter::Ring(RecordWriter {
                link,
                counters: self.counters,
                envelope,
                room,
                count: 0,
                length: 0,
                segment: 0,
                last: 0,
            }),
            // The buffer, too, if the ring is full: the send then counts as lost there.
            None => LinkWriter::Buffer(self.buffer.open(envelope)),
        }
    }
}

/// A send of either kind.
pub(crate) enum LinkWriter<'a> {
    Ring(RecordWriter<'a>),
    Buffer(UdpWriter<'a>),
}

/// A send that becomes a record of a ring.
pub(crate) struct RecordWriter<'a> {
    link: &'a mut OutgoingLink,
    counters: &'a mut Counters,
    envelope: &'a Envelope,
    /// Maximum number of bytes.
    room: usize,
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
        self.count >= MOST_PACKETS || (self.count > 0 && self.last < self.segment)
    }

    #[inline]
    fn fits(&self, size: usize) -> bool {
        !self.is_full() && (self.count == 0 || size <= self.segment) && self.length + size <= self.room
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
        self.add_packet(size, burst)?;
        if burst.count == 1 {
            return Ok(1);
        }
        let has_only_base = header_bytes(burst.headers.bth.opcode) == BTH_BYTES;
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

    #[inline]
    fn finish(self) {
        if self.count == 0 {
            return;
        }
        let envelope = self.envelope;
        let tag = Tag {
            segment: if self.count > 1 { self.segment as u16 } else { 0 },
            port: envelope.flow.source_port,
            class: envelope.traffic_class,
            hop_limit: if envelope.hop_limit == 0 { DEFAULT_HOP_LIMIT } else { envelope.hop_limit },
            is_keyed: envelope.is_keyed(),
        };
        self.link.ring.end(tag.pack(), self.length);
        if self.link.ring.takes_bell() {
            ring(self.link.bell.as_fd());
        }
        self.counters.add(Counter::SharedMemorySends, 1);
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
            Self::Ring(writer) => writer.count,
            Self::Buffer(writer) => writer.packets(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Ring(writer) => writer.length,
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
