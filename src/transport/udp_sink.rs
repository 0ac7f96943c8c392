//! UDP datagrams: the packets of a send, contiguous in one buffer, with the checksum fused into the copy.
//!
//! They are of equal size, and only the last may be shorter, because the kernel cuts a send into packets that way
//! (GSO).

use super::burst::{Burst, BurstSink, BurstWriter, Envelope, PayloadSource};
use super::datagram::{Repeats, Transmit};
use super::packet_check::LARGEST_SEGMENT_INDEX;
use crate::checksum::Sum;
use crate::memory::AccessError;
use crate::wire::{Opcode, icrc};

/// Maximum bytes of a segmented send (an IPv6 datagram's 65,535 less headers).
const LARGEST_SEND_BYTES: usize = 65_000;

/// A buffer for one send, and its description.
pub struct UdpSink<'a> {
    buffer: &'a mut [u8],
    max_segments: usize,
    sent: &'a mut Option<Transmit>,
}

impl<'a> UdpSink<'a> {
    /// Creates a sink that writes a send of at most `max_segments` datagrams to `buffer` (at least 4,200 bytes), and
    /// describes it in `sent`.
    pub fn new(buffer: &'a mut [u8], max_segments: usize, sent: &'a mut Option<Transmit>) -> Self {
        Self { buffer, max_segments, sent }
    }
}

impl BurstSink for UdpSink<'_> {
    type Writer<'b>
        = UdpWriter<'b>
    where
        Self: 'b;

    #[inline]
    fn open<'b>(&'b mut self, envelope: &'b Envelope) -> Option<UdpWriter<'b>> {
        let room = self.buffer.len().min(LARGEST_SEND_BYTES);
        let most = if envelope.segmentation_offload { self.max_segments } else { 1 };
        Some(UdpWriter {
            buffer: &mut self.buffer[..room],
            sent: self.sent,
            envelope,
            most: most.min(LARGEST_SEGMENT_INDEX.into()),
            count: 0,
            length: 0,
            segment: 0,
            repeats: Repeats::default(),
            last: None,
        })
    }
}

/// A send of datagrams to one destination.
pub struct UdpWriter<'a> {
    buffer: &'a mut [u8],
    sent: &'a mut Option<Transmit>,
    envelope: &'a Envelope,
    most: usize,
    count: usize,
    length: usize,
    /// Size of all datagrams but the last.
    segment: usize,
    repeats: Repeats,
    /// Size of the last datagram, and the checksum of its payload if the copy computed it. Its ICRC is appended later:
    /// a processor stalls when it reads bytes that it has just stored in parts.
    last: Option<(usize, Option<Sum>)>,
}

impl UdpWriter<'_> {
    /// Writes the next packet of the burst, which must fit.
    #[inline(always)]
    fn add_packet<P: PayloadSource>(&mut self, size: usize, burst: &mut Burst<'_, P>) -> Result<(), AccessError> {
        let out = &mut self.buffer[self.length..self.length + size];
        let header_bytes = burst.headers.emit(out);
        let payload = burst.payload_bytes as usize;
        let room = &mut out[header_bytes..];
        let sum = burst.payload.read_next(&mut room[..payload])?;
        room[payload..payload.next_multiple_of(4)].fill(0);
        self.append_last_icrc();
        self.repeats.note(self.count, burst.sending);
        if self.count == 0 {
            self.segment = size;
        }
        self.last = Some((size, sum));
        self.count += 1;
        self.length += size;
        Ok(())
    }

    #[inline]
    fn append_last_icrc(&mut self) {
        if let Some((size, sum)) = self.last.take() {
            self.append_icrc(size, sum);
        }
    }

    /// Appends the ICRC to the last packet.
    fn append_icrc(&mut self, size: usize, sum: Option<Sum>) {
        let packet = &mut self.buffer[self.length - size..self.length];
        let Envelope { flow, seed, flushes_as_linux, check, .. } = self.envelope;
        check.prepare(packet);
        let identification = check.identification(self.count as u16 - 1);
        if packet[0] == Opcode::RC_FLUSH.0 && *flushes_as_linux {
            icrc::append_as_linux(flow, identification, packet);
        } else {
            seed.append_summed(flow, identification, packet, sum.as_ref());
        }
        check.finish(packet);
    }
}

impl BurstWriter for UdpWriter<'_> {
    fn capacity(&self) -> usize {
        self.most
    }

    fn packets(&self) -> usize {
        self.count
    }

    fn bytes(&self) -> usize {
        self.length
    }

    #[inline]
    fn is_full(&self) -> bool {
        let ends = self.last.is_some_and(|(size, _)| size < self.segment);
        self.count >= self.most || ends
    }

    #[inline]
    fn fits(&self, size: usize) -> bool {
        !self.is_full() && (self.count == 0 || size <= self.segment) && self.length + size <= self.buffer.len()
    }

    #[inline]
    fn add<P: PayloadSource>(&mut self, burst: &mut Burst<'_, P>) -> Result<u32, AccessError> {
        debug_assert!(burst.count > 0, "a burst has a packet");
        let size = burst.packet_bytes();
        self.add_packet(size, burst)?;
        for index in 1..burst.count {
            burst.advance(index);
            if !self.fits(size) || self.add_packet(size, burst).is_err() {
                return Ok(index);
            }
        }
        Ok(burst.count)
    }

    #[inline]
    fn finish(mut self) {
        self.append_last_icrc();
        if self.count == 0 {
            return;
        }
        let Envelope { flow, traffic_class, hop_limit, qpn, check, .. } = self.envelope;
        *self.sent = Some(Transmit {
            source: flow.source,
            source_port: flow.source_port,
            destination: flow.destination,
            length: self.length,
            segment_size: (self.count > 1).then_some(self.segment),
            traffic_class: *traffic_class,
            hop_limit: *hop_limit,
            qpn: *qpn,
            repeats: self.repeats,
            is_keyed: check.is_keyed(),
        });
    }
}
