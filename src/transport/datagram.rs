//! Inputs and outputs of the endpoint: datagrams with their addresses.

use std::net::IpAddr;

use super::burst::Sending;
use crate::types::{DropReason, Mtu, Qpn};
use crate::wire::Flow;

/// Longest datagram that any port carries.
pub(super) const LONGEST_DATAGRAM: u32 = Mtu::Mtu4096.bytes();

/// A datagram that arrived on port 4791 (`ib_verbs.h`, `ROCE_V2_UDP_DPORT`).
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// Who sent it.
    pub source: IpAddr,
    /// The own address that it was sent to.
    pub destination: IpAddr,
    /// The sender's UDP port.
    pub source_port: u16,
    /// Its index among the datagrams that the kernel merged into one; 0 if it came alone. Such datagrams carry this
    /// number as their IPv4 identification.
    pub segment_index: u16,
    /// Time to live or hop limit, if known.
    pub hop_limit: Option<u8>,
    /// Type of service or traffic class, if known.
    pub traffic_class: Option<u8>,
    /// From the base transport header to the ICRC.
    pub payload: &'a [u8],
}

impl Datagram<'_> {
    /// The addresses that its ICRC covers.
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
    /// The ICRC under the mask of the connection, which it would give away.
    Keyed,
    /// Perhaps the ICRC of a damaged packet under the mask of the connection.
    Withheld,
}

/// The outcome of a datagram that arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DatagramOutcome {
    /// Why it was dropped without a response, if it was.
    pub dropped: Option<DropReason>,
    /// It belongs to a connection with a peer that is known to be a native one.
    pub is_from_own_peer: bool,
    /// It ended a WRITE that makes no completion: a thread that polls the memory may find what it waits for.
    pub ends_write: bool,
    /// The contents of its check field.
    pub check_field: CheckField,
}

impl DatagramOutcome {
    /// Dropped before its connection was found.
    pub(super) fn dropped(reason: DropReason) -> Self {
        Self { dropped: Some(reason), ..Self::default() }
    }
}

/// Which datagrams of a send were sent before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Repeats {
    again: u128,
    probes: u128,
}

impl Repeats {
    /// Notes how the datagram at this index of the send is sent. No send has more than 128.
    #[inline]
    pub fn note(&mut self, index: usize, sending: Sending) {
        let bit = Self::bit(index);
        match sending {
            Sending::First => {}
            Sending::Again => self.again |= bit,
            Sending::Probe => self.probes |= bit,
        }
    }

    /// How the datagram at this index of the send is sent.
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
    /// The own address to send from.
    pub source: IpAddr,
    /// The UDP port to send from; the ICRC covers it.
    pub source_port: u16,
    /// Where to; always to port 4791.
    pub destination: IpAddr,
    /// Bytes in the buffer.
    pub length: usize,
    /// Of several: the size of each datagram but the last. Identifications are 0, 1, 2, … (`inet_gso_segment`).
    pub segment_size: Option<usize>,
    /// Type of service byte.
    pub traffic_class: u8,
    /// Time to live.
    pub hop_limit: u8,
    /// The queue pair that sends them.
    pub qpn: Qpn,
    /// Which of them were sent before.
    pub repeats: Repeats,
    /// Whether their check fields are under the mask of the connection.
    pub is_keyed: bool,
}

impl Transmit {
    /// Datagrams in the send.
    pub fn segments(&self) -> usize {
        self.segment_size.map_or(1, |size| self.length.div_ceil(size.max(1)))
    }
}

/// Whether acknowledgements leave now or wait for the application's reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AckRelease {
    /// Keep them back for the application's reply, except those that have waited too long.
    Hold,
    /// The application does not respond soon: send them.
    Now,
}

/// The own end of a path: which socket its packets leave from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SourceAddress {
    /// Own address.
    pub address: IpAddr,
    /// UDP port of the sending socket.
    pub source_port: u16,
}

/// Limits of the device for a state change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ModifyLimits {
    /// Most READs and atomics that a queue pair may have outstanding.
    pub max_rd_atomic: u8,
    /// Most READs and atomics that peers may have outstanding at a queue pair.
    pub max_dest_rd_atomic: u8,
    /// Largest path MTU of the port now.
    pub active_mtu: Mtu,
    /// Entries of the port's P_Key table.
    pub pkey_tbl_len: u16,
    /// Ports of the device.
    pub ports: u8,
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
