//! What goes into the endpoint and comes out of it: datagrams with their addresses.

use std::net::IpAddr;

use crate::types::Mtu;

/// A datagram that arrived on port 4791.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// Who sent it.
    pub source: IpAddr,
    /// The own address that it was sent to.
    pub destination: IpAddr,
    /// The sender's UDP port.
    pub source_port: u16,
    /// Its place among the datagrams that the kernel merged into one; 0 if it came alone. Such datagrams carry this
    /// number as their IPv4 identification.
    pub segment_index: u16,
    /// From the base transport header to the ICRC.
    pub payload: &'a [u8],
}

/// Datagrams to be sent: one, or a run of equal size (the last may be shorter) to one destination.
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
    /// For a run: the size of each datagram but the last. The ICRCs expect the identifications 0, 1, 2, ….
    pub segment_size: Option<usize>,
    /// Type of service byte.
    pub traffic_class: u8,
    /// Time to live.
    pub hop_limit: u8,
}

impl Transmit {
    /// Datagrams in the run.
    pub fn segments(&self) -> usize {
        self.segment_size.map_or(1, |size| self.length.div_ceil(size.max(1)))
    }
}

/// Whether acknowledgements leave now or wait for the application's answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AckRelease {
    /// Keep them back for the answer, except those that have waited too long.
    Hold,
    /// Nobody will answer soon: send them.
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

/// What the device allows in a state change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ModifyLimits {
    /// Most READs and atomics that a queue pair may have outstanding.
    pub max_rd_atomic: u8,
    /// Most READs and atomics that peers may have outstanding at a queue pair.
    pub max_dest_rd_atomic: u8,
    /// Largest path MTU of the port now.
    pub active_mtu: Mtu,
}
