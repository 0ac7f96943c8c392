//! Inputs and outputs of the endpoint: datagrams with their addresses.

use std::net::IpAddr;

use super::burst::Sending;
use crate::types::{DropReason, Mtu, Qpn};
use crate::wire::Flow;

/// Longest payload of an unreliable datagram that any port carries.
pub(super) const LONGEST_DATAGRAM: u32 = Mtu::Mtu4096.bytes();

/// A datagram that arrived on port 4791 (IBTA A17.3.2.2; `ib_verbs.h`, `ROCE_V2_UDP_DPORT`).
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// The sender's address.
    pub source: IpAddr,
    /// The local address that it was sent to.
    pub destination: IpAddr,
    /// The sender's UDP port.
    pub source_port: u16,
    /// Its index among the datagrams that the kernel merged into one (GRO); 0 if it came alone. Such datagrams carry
    /// this number as their IPv4 identification.
    pub segment_index: u16,
    /// Time to live or hop limit, if known.
    pub hop_limit: Option<u8>,
    /// Type of service or traffic class, if known.
    pub traffic_class: Option<u8>,
    /// The UDP payload, from the base transport header to the ICRC.
    pub payload: &'a [u8],
    /// The medium that it came through, as the receiving end knows it: no contents of a datagram can claim another.
    pub medium: Medium,
}

/// Consecutive packets that differ in PSN, payload and acknowledgement request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Similar {
    /// Their number, at most 32.
    pub(crate) count: u32,
    /// Those that request an acknowledgement: bit 0 is the first packet.
    pub(crate) ack_requests: u32,
}

impl Similar {
    /// Whether the packet at this index requests an acknowledgement.
    #[inline]
    pub(crate) fn requests_ack(self, index: u32) -> bool {
        self.ack_requests >> index & 1 != 0
    }

    /// Returns those from the packet at this index on.
    #[inline]
    pub(crate) fn from(self, index: u32) -> Self {
        Self { count: self.count - index, ack_requests: self.ack_requests >> index }
    }
}

/// The medium that a datagram came through.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Medium {
    /// A network. The check field shows whether the packet is whole and, with a key, who has sent it.
    #[default]
    Network,
    /// Memory that only processes of this user write. It damages nothing, so the check field has no contents.
    SharedMemory {
        /// Whether the peer sends with the key of the connection, wherever packets have check fields.
        is_keyed: bool,
    },
}

impl Datagram<'_> {
    /// Returns the addresses that its ICRC covers.
    pub(super) fn flow(&self) -> Flow {
        Flow { source: self.source, destination: self.destination, source_port: self.source_port }
    }
}

/// The contents of a packet's check field, for captures.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CheckField {
    /// The standard's ICRC, right or wrong.
    #[default]
    Icrc,
    /// The ICRC under the mask of the connection. A capture must not show it: it would reveal the mask.
    Keyed,
    /// Possibly the ICRC of a damaged packet under the mask of the connection.
    Withheld,
}

/// The outcome of a datagram that arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DatagramOutcome {
    /// Why it was dropped without a response, if it was.
    pub dropped: Option<DropReason>,
    /// Whether it belongs to a connection with a native peer.
    pub is_from_own_peer: bool,
    /// Whether it ended a WRITE without a completion: a thread that polls the memory may find its data.
    pub ends_write: bool,
    /// The contents of its check field.
    pub check_field: CheckField,
}

impl DatagramOutcome {
    /// Returns the outcome of a datagram dropped before its connection was found.
    pub(super) fn dropped(reason: DropReason) -> Self {
        Self { dropped: Some(reason), ..Self::default() }
    }
}

/// Which datagrams of a send are retransmissions or probes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Repeats {
    again: u128,
    probes: u128,
}

impl Repeats {
    /// Records how the datagram at this index of the send is sent. No send has more than 128.
    #[inline]
    pub fn note(&mut self, index: usize, sending: Sending) {
        let bit = Self::bit(index);
        match sending {
            Sending::First => {}
            Sending::Again => self.again |= bit,
            Sending::Probe => self.probes |= bit,
        }
    }

    /// Returns how the datagram at this index of the send is sent.
    pub fn get(&self, index: usize) -> Sending {
        let bit = Self::bit(index);
        if self.again & bit != 0 {
            Sending::Again
        } else if self.probes & bit != 0 {
            Sending::Probe
        } else {
            Sending::First
        }
    }

    fn bit(index: usize) -> u128 {
        1_u128.checked_shl(index as u32).unwrap_or(0)
    }
}

/// Datagrams to be sent: one, or several of equal size (the last may be shorter) to one destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transmit {
    /// The local address to send from.
    pub source: IpAddr,
    /// The UDP port to send from; the ICRC covers it.
    pub source_port: u16,
    /// The destination address; the port is always 4791.
    pub destination: IpAddr,
    /// Bytes in the buffer.
    pub length: usize,
    /// Size of each datagram but the last, if there are several. Identifications are 0, 1, 2, … (`inet_gso_segment`).
    pub segment_size: Option<usize>,
    /// Type of service byte.
    pub traffic_class: u8,
    /// Time to live.
    pub hop_limit: u8,
    /// The sending queue pair.
    pub qpn: Qpn,
    /// Which of them are retransmissions or probes.
    pub repeats: Repeats,
    /// Whether their check fields are under the mask of the connection.
    pub is_keyed: bool,
}

impl Transmit {
    /// Returns the number of datagrams in the send.
    #[cfg(feature = "sim")]
    pub fn segments(&self) -> usize {
        self.segment_size.map_or(1, |size| self.length.div_ceil(size.max(1)))
    }
}

/// Whether acknowledgements leave now or wait for the application's reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AckRelease {
    /// Hold them for the application's reply, except those that have waited too long.
    Hold,
    /// Send them: the application will not reply soon.
    Now,
}

/// The local end of a path: the socket that sends its packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SourceAddress {
    /// Local address.
    pub address: IpAddr,
    /// UDP port of the sending socket.
    pub source_port: u16,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_are_known_by_their_index() {
        let mut repeats = Repeats::default();
        let cases = [(0, Sending::Again), (1, Sending::First), (63, Sending::Probe), (127, Sending::Again)];
        cases.iter().for_each(|(index, sending)| repeats.note(*index, *sending));
        for (index, sending) in cases {
            assert_eq!(repeats.get(index), sending, "{index}");
        }
        repeats.note(128, Sending::Again);
        assert_eq!((repeats.get(128), repeats.get(2)), (Sending::First, Sending::First));
    }
}
