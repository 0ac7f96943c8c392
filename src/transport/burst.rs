//! Bursts: consecutive packets of one message as a value, the payloads they carry, and the sinks that write them on a
//! medium.
//!
//! A queue pair opens a sink with the [`Envelope`] that the packets of a send have in common, adds bursts while they
//! fit, and finishes the send. What a burst becomes is the sink's business: UDP datagrams with an ICRC
//! ([`super::udp_sink::UdpSink`]), or records of another link.

use super::packet_check::Departing;
use crate::checksum::Sum;
use crate::memory::{AccessError, Payloads};
use crate::types::Qpn;
use crate::wire::icrc::Seed;
use crate::wire::{Flow, Headers, packet_bytes};

/// Whether packets are sent for the first time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sending {
    /// They are.
    First,
    /// They were sent before and are not, or seem not, to have arrived.
    Again,
    /// The last packet once more, to find out whether it arrived.
    Probe,
}

/// Which packets of a burst ask for an acknowledgement. The headers of the first say it for themselves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AckRequests {
    /// The index of the first that does.
    pub first: u32,
    /// From there on each packet at this distance; 0: none does.
    pub every: u32,
}

impl AckRequests {
    /// Whether the packet at this index of the burst asks.
    #[inline]
    pub fn contains(self, index: u32) -> bool {
        index >= self.first && (index - self.first).checked_rem(self.every) == Some(0)
    }

    /// The last packet that asks among the first `count` of the burst.
    pub fn last_before(self, count: u32) -> Option<u32> {
        let behind_first = count.checked_sub(1)?.checked_sub(self.first)?;
        Some(self.first + behind_first - behind_first.checked_rem(self.every)?)
    }
}

/// Packets of one message with consecutive PSNs and payloads of equal size. Nothing of them is written yet.
pub struct Burst<'a, P> {
    /// Of the first packet. Those of the others differ in their PSN and their request for an acknowledgement.
    pub headers: &'a mut Headers,
    /// Packets, at least one.
    pub count: u32,
    /// Bytes of payload in each.
    pub payload_bytes: u32,
    /// The payloads, in order.
    pub payload: P,
    /// Which of the packets behind the first ask for an acknowledgement.
    pub ack_requests: AckRequests,
    /// Whether they are sent for the first time.
    pub sending: Sending,
}

impl<'a, P> Burst<'a, P> {
    /// A burst of one packet.
    #[inline]
    pub(super) fn single(headers: &'a mut Headers, payload_bytes: u32, payload: P, sending: Sending) -> Self {
        Self { headers, count: 1, payload_bytes, payload, ack_requests: AckRequests::default(), sending }
    }

    /// Bytes of each packet, from the base transport header to the ICRC.
    #[inline]
    pub fn packet_bytes(&self) -> usize {
        packet_bytes(self.headers.bth.opcode, self.payload_bytes)
    }

    /// Goes on to the packet at this index of the burst.
    #[inline]
    pub fn advance(&mut self, index: u32) {
        self.headers.bth.psn = self.headers.bth.psn.plus(1);
        self.headers.bth.ack_request = self.ack_requests.contains(index);
    }
}

/// Where the payloads of a burst come from.
pub trait PayloadSource {
    /// Fills `out` with the next payload, and sums it if that costs next to nothing.
    ///
    /// # Errors
    /// The memory cannot be read.
    fn read_next(&mut self, out: &mut [u8]) -> Result<Option<Sum>, AccessError>;
}

/// The packets carry none.
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
}

/// What the packets of a send have in common beside their headers.
pub struct Envelope {
    /// The addresses that packets leave from and go to.
    pub flow: Flow,
    /// Type of service byte.
    pub traffic_class: u8,
    /// Time to live.
    pub hop_limit: u8,
    /// The queue pair that sends.
    pub qpn: Qpn,
    /// The peer takes datagrams that were cut out of one send.
    pub segmentation_offload: bool,
    /// The start of the ICRCs.
    pub(super) seed: Seed,
    /// FLUSH packets have the ICRC that Linux gives to them.
    pub(super) flushes_as_linux: bool,
    pub(super) check: Departing,
}

/// A medium that packets are sent on.
pub trait BurstSink {
    /// Writes a send.
    type Writer<'a>: BurstWriter
    where
        Self: 'a;

    /// Begins a send of one queue pair.
    fn open<'a>(&'a mut self, envelope: &'a Envelope) -> Self::Writer<'a>;
}

/// A send that has begun: the packets so far. One that is dropped without [`BurstWriter::finish`], because its queue
/// pair has panicked, is not sent.
pub trait BurstWriter {
    /// Packets that it takes in all.
    fn capacity(&self) -> usize;

    /// Packets so far.
    fn packets(&self) -> usize;

    /// Their bytes, from the base transport headers to the ICRCs.
    fn bytes(&self) -> usize;

    /// Whether nothing can follow.
    fn is_full(&self) -> bool;

    /// Whether a packet of this size fits behind the others.
    fn fits(&self, size: usize) -> bool;

    /// Adds the packets of the burst, of which the first fits, in order, as far as they fit and their payloads can be
    /// read. How many.
    ///
    /// # Errors
    /// The payload of the first cannot be read; nothing was added.
    fn add<P: PayloadSource>(&mut self, burst: &mut Burst<'_, P>) -> Result<u32, AccessError>;

    /// The send is complete. It may have no packets.
    fn finish(self);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_are_asked_for_at_equal_distances() {
        let asks = |first, every| -> Vec<u32> {
            (0..10).filter(|index| AckRequests { first, every }.contains(*index)).collect()
        };
        assert_eq!(asks(2, 3), [2, 5, 8]);
        assert_eq!(asks(0, 1), (0..10).collect::<Vec<_>>());
        assert_eq!(asks(0, 0), []);
        assert_eq!(asks(12, 4), []);
        let last = |first, every, count| AckRequests { first, every }.last_before(count);
        assert_eq!([last(2, 3, 2), last(2, 3, 3), last(2, 3, 9), last(0, 0, 9)], [None, Some(2), Some(8), None]);
    }
}
