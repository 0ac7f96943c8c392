//! Bursts: consecutive packets of one message as a value, their payloads, and the sinks that write them to a medium.
//!
//! A queue pair opens a sink with the [`Envelope`] that the packets of a send have in common, adds bursts while they
//! fit, and finishes the send. The sink decides the format: UDP datagrams with an ICRC ([`super::udp_sink::UdpSink`]),
//! or records of another link.

use super::packet_check::Departing;
use crate::checksum::Sum;
use crate::memory::{AccessError, Payloads, SharedPart};
use crate::types::{Mtu, Qpn};
use crate::wire::icrc::Seed;
use crate::wire::{Flow, Headers, packet_bytes};

/// Whether packets are sent for the first time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sending {
    /// For the first time.
    First,
    /// Retransmitted: they were lost, or seem to be.
    Again,
    /// Repeated as a probe, to find out what has arrived.
    Probe,
}

/// Which packets of a burst request an acknowledgement. The first packet's own headers decide for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AckRequests {
    /// Index of the first packet that requests one.
    pub first: u32,
    /// Distance between packets that request one, from there on; 0: none does.
    pub every: u32,
}

impl AckRequests {
    /// Whether the packet at this index of the burst requests an acknowledgement.
    #[inline]
    pub fn contains(self, index: u32) -> bool {
        index >= self.first && (index - self.first).checked_rem(self.every) == Some(0)
    }

    /// Returns the index of the last requesting packet among the first `count` of the burst.
    pub fn last_before(self, count: u32) -> Option<u32> {
        let behind_first = count.checked_sub(1)?.checked_sub(self.first)?;
        Some(self.first + behind_first - behind_first.checked_rem(self.every)?)
    }
}

/// Packets of one message with consecutive PSNs and payloads of equal size, not written yet.
pub struct Burst<'a, P> {
    /// Headers of the first packet. The others differ in their PSN and their acknowledgement request.
    pub headers: &'a mut Headers,
    /// Number of packets, at least one.
    pub count: u32,
    /// Payload bytes in each packet.
    pub payload_bytes: u32,
    /// The payloads, in order.
    pub payload: P,
    /// Which of the packets after the first request an acknowledgement.
    pub ack_requests: AckRequests,
    /// Whether they are sent for the first time.
    pub sending: Sending,
}

impl<'a, P> Burst<'a, P> {
    /// Builds a burst of one packet.
    #[inline]
    pub(super) fn single(headers: &'a mut Headers, payload_bytes: u32, payload: P, sending: Sending) -> Self {
        Self { headers, count: 1, payload_bytes, payload, ack_requests: AckRequests::default(), sending }
    }

    /// Returns the bytes of each packet, from the base transport header to the ICRC.
    #[inline]
    pub fn packet_bytes(&self) -> usize {
        packet_bytes(self.headers.bth.opcode, self.payload_bytes)
    }

    /// Advances the headers to the packet at this index of the burst.
    #[inline]
    pub fn advance(&mut self, index: u32) {
        self.headers.bth.psn = self.headers.bth.psn.plus(1);
        self.headers.bth.ack_request = self.ack_requests.contains(index);
    }
}

/// Source of the payloads of a burst.
pub trait PayloadSource {
    /// Fills `out` with the next payload, and returns its checksum if computing it costs almost nothing.
    ///
    /// # Errors
    /// If the memory cannot be read.
    fn read_next(&mut self, out: &mut [u8]) -> Result<Option<Sum>, AccessError>;

    /// Returns how many of the next bytes may be placed at once, as the payloads of several packets.
    #[inline]
    fn joined_bytes(&self) -> usize {
        0
    }

    /// Places the next payload in memory that is shared with the peer, or the payloads of several packets.
    ///
    /// # Errors
    /// If the memory cannot be read.
    fn place_next(&mut self, out: SharedPart<'_>) -> Result<(), AccessError> {
        let mut payload = [0; Mtu::Mtu4096.bytes() as usize];
        let payload = payload.get_mut(..out.len()).ok_or(AccessError::OutOfBounds)?;
        self.read_next(payload)?;
        out.write(payload)
    }
}

/// The source of packets without payload.
pub(super) struct NoPayload;

impl PayloadSource for NoPayload {
    #[inline]
    fn read_next(&mut self, _: &mut [u8]) -> Result<Option<Sum>, AccessError> {
        Ok(None)
    }
}

impl PayloadSource for Payloads<'_> {
    #[inline]
    fn read_next(&mut self, out: &mut [u8]) -> Result<Option<Sum>, AccessError> {
        Payloads::read_next(self, out)
    }

    #[inline]
    fn joined_bytes(&self) -> usize {
        self.left()
    }

    #[inline]
    fn place_next(&mut self, out: SharedPart<'_>) -> Result<(), AccessError> {
        Payloads::place_next(self, out)
    }
}

/// Common properties of the packets of a send, besides their headers.
pub struct Envelope {
    /// Source and destination addresses.
    pub flow: Flow,
    /// Type of service byte.
    pub traffic_class: u8,
    /// Time to live.
    pub hop_limit: u8,
    /// The sending queue pair.
    pub qpn: Qpn,
    /// The queue pair that the packets are for.
    pub destination: Qpn,
    /// Whether the peer accepts datagrams that the kernel cuts from one send.
    pub segmentation_offload: bool,
    /// The start of the ICRCs.
    pub(super) seed: Seed,
    /// Whether FLUSH packets have Linux's ICRC.
    pub(super) flushes_as_linux: bool,
    pub(super) check: Departing,
}

impl Envelope {
    /// Prepares the headers of a packet that leaves without a check field.
    #[inline]
    pub fn prepare(&self, headers: &mut [u8]) {
        self.check.prepare(headers);
    }

    /// Whether the check fields are under the mask of the connection, wherever packets have check fields.
    #[inline]
    pub fn is_keyed(&self) -> bool {
        self.check.is_keyed()
    }
}

/// A medium that sends packets.
pub trait BurstSink {
    /// Writer of one send.
    type Writer<'a>: BurstWriter
    where
        Self: 'a;

    /// Begins a send of one queue pair. `None`: the medium to its destination has no room, and the queue pair waits.
    fn open<'a>(&'a mut self, envelope: &'a Envelope) -> Option<Self::Writer<'a>>;
}

/// A send in progress. If it is dropped without [`BurstWriter::finish`] because its queue pair panicked, its last
/// packets are not sent, over a network none of them.
pub trait BurstWriter {
    /// Returns the maximum number of packets.
    fn capacity(&self) -> usize;

    /// Returns the number of packets so far.
    fn packets(&self) -> usize;

    /// Returns their bytes, from the base transport headers to the ICRCs.
    fn bytes(&self) -> usize;

    /// Whether no further packet can follow.
    fn is_full(&self) -> bool;

    /// Whether a packet of this size fits behind the others.
    fn fits(&self, size: usize) -> bool;

    /// Adds the packets of the burst in order, as far as they fit and their payloads can be read; the first must fit.
    /// Returns their number.
    ///
    /// # Errors
    /// If the payload of the first cannot be read; nothing was added.
    fn add<P: PayloadSource>(&mut self, burst: &mut Burst<'_, P>) -> Result<u32, AccessError>;

    /// Completes the send, which may have no packets.
    fn finish(self);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_are_requested_at_equal_distances() {
        let requesting = |first, every| -> Vec<u32> {
            (0..10).filter(|index| AckRequests { first, every }.contains(*index)).collect()
        };
        assert_eq!(requesting(2, 3), [2, 5, 8]);
        assert_eq!(requesting(0, 1), (0..10).collect::<Vec<_>>());
        assert_eq!(requesting(0, 0), []);
        assert_eq!(requesting(12, 4), []);
        let last = |first, every, count| AckRequests { first, every }.last_before(count);
        assert_eq!([last(2, 3, 2), last(2, 3, 3), last(2, 3, 9), last(0, 0, 9)], [None, Some(2), Some(8), None]);
    }
}
