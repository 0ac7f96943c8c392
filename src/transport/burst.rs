//! A burst: packets of one queue pair that leave together, as they are written.
//!
//! They are of equal size, and only the last may be shorter: so the kernel cuts a send into packets.

use super::datagram::{Repeats, Sending, Transmit};
use super::packet_check::{Departing, LARGEST_SEGMENT_INDEX};
use super::path::Path;
use crate::checksum::Sum;
use crate::memory::{AccessError, Payloads};
use crate::types::Qpn;
use crate::wire::icrc::{self, Seed};
use crate::wire::{Flow, Headers, Opcode, packet_bytes};

/// A send of segments carries at most this (an IPv6 datagram's 65,535 less headers).
const LARGEST_SEND_BYTES: usize = 65_000;

/// A packet that was written, all but its ICRC.
#[derive(Clone, Copy)]
pub(super) struct Written {
    pub(super) sending: Sending,
    /// Of its payload, if it was summed as it was copied.
    pub(super) sum: Option<Sum>,
}

impl Written {
    pub(super) fn unsummed(sending: Sending) -> Self {
        Self { sending, sum: None }
    }
}

/// The packets so far.
pub(super) struct Burst<'a> {
    buffer: &'a mut [u8],
    icrc: IcrcContext,
    most: usize,
    count: usize,
    length: usize,
    /// Size of the first, which all have but the last.
    segment: usize,
    repeats: Repeats,
    /// The last one, which has no ICRC yet: a processor reads late what it has just stored in pieces.
    last: Option<(usize, Option<Sum>)>,
}

/// The inputs of the ICRCs.
struct IcrcContext {
    flow: Flow,
    seed: Seed,
    flushes_as_linux: bool,
    check: Departing,
}

impl IcrcContext {
    #[inline]
    fn append(&self, index: u16, packet: &mut [u8], sum: Option<Sum>) {
        self.check.prepare(packet);
        let identification = self.check.identification(index);
        if packet[0] == Opcode::RC_FLUSH.0 && self.flushes_as_linux {
            icrc::append_as_linux(&self.flow, identification, packet);
        } else {
            self.seed.append_summed(&self.flow, identification, packet, sum.as_ref());
        }
        self.check.finish(packet);
    }
}

impl<'a> Burst<'a> {
    pub(super) fn new(
        buffer: &'a mut [u8],
        path: &Path,
        max_segments: usize,
        flushes_as_linux: bool,
        check: Departing,
    ) -> Self {
        let room = buffer.len().min(LARGEST_SEND_BYTES);
        let most = if path.peer.segmentation_offload { max_segments } else { 1 };
        Self {
            buffer: &mut buffer[..room],
            icrc: IcrcContext { flow: path.flow(), seed: path.seed, flushes_as_linux, check },
            most: most.min(LARGEST_SEGMENT_INDEX.into()),
            count: 0,
            length: 0,
            segment: 0,
            repeats: Repeats::default(),
            last: None,
        }
    }

    /// Whether nothing can follow.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        let ends = self.last.is_some_and(|(size, _)| size < self.segment);
        self.count >= self.most || ends
    }

    /// Whether a packet of this size fits behind the others.
    #[inline]
    pub(super) fn fits(&self, size: usize) -> bool {
        !self.is_full() && (self.count == 0 || size <= self.segment) && self.length + size <= self.buffer.len()
    }

    /// Where a packet of this size is to be written; `None` if it does not fit.
    #[inline]
    pub(super) fn room(&mut self, size: usize) -> Option<&mut [u8]> {
        if !self.fits(size) {
            return None;
        }
        self.buffer.get_mut(self.length..self.length + size)
    }

    /// A packet was written into the room.
    #[inline]
    pub(super) fn add(&mut self, size: usize, written: Written) {
        self.append_last_icrc();
        self.repeats.note(self.count, written.sending);
        if self.count == 0 {
            self.segment = size;
        }
        self.last = Some((size, written.sum));
        self.count += 1;
        self.length += size;
    }

    /// Adds a packet of these headers and full payload, which is sent for the first time. `None` if it does not fit.
    #[inline]
    pub(super) fn add_middle(
        &mut self,
        headers: &Headers,
        payload: u32,
        payloads: &mut Payloads<'_>,
    ) -> Option<Result<(), AccessError>> {
        let size = packet_bytes(headers.bth.opcode, payload);
        let out = self.room(size)?;
        let header_bytes = headers.emit(out);
        let sum = payloads.read_next(&mut out[header_bytes..header_bytes + payload as usize]);
        Some(sum.map(|sum| self.add(size, Written { sending: Sending::First, sum })))
    }

    /// Packets at most.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Size of the first packet; 0 if there is none.
    pub(super) fn segment(&self) -> usize {
        self.segment
    }

    /// The burst is complete: what is sent, and how many packets it has. `None` if it is empty.
    pub(super) fn finish(&mut self, path: &Path, qpn: Qpn) -> Option<(Transmit, usize)> {
        self.append_last_icrc();
        let transmit = Transmit {
            source: path.source.address,
            source_port: path.source.source_port,
            destination: path.peer_address,
            length: self.length,
            segment_size: (self.count > 1).then_some(self.segment),
            traffic_class: path.traffic_class,
            hop_limit: path.hop_limit,
            qpn,
            repeats: self.repeats,
            is_keyed: self.icrc.check.is_keyed(),
        };
        (self.count > 0).then_some((transmit, self.count))
    }

    #[inline]
    fn append_last_icrc(&mut self) {
        if let Some((size, sum)) = self.last.take() {
            let packet = &mut self.buffer[self.length - size..self.length];
            self.icrc.append(self.count as u16 - 1, packet, sum);
        }
    }
}
