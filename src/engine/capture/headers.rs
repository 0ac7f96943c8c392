//! IP and UDP headers as on the wire, rebuilt from the data that sockets and transport have.

use std::net::{IpAddr, Ipv6Addr};

use crate::types::ROCE_PORT;
use crate::wire::{Flow, icrc};

const UDP: u8 = 17;
const UDP_HEADER_BYTES: usize = 8;
const IPV4_HEADER_BYTES: usize = 20;
const IPV6_HEADER_BYTES: usize = 40;
const LARGEST_HEADERS: usize = IPV6_HEADER_BYTES + UDP_HEADER_BYTES;

/// Contents of the headers. The destination port is always 4791.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Addressing {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) source_port: u16,
    /// Hop limit or time to live.
    pub(crate) hop_limit: u8,
    /// Traffic class or type of service.
    pub(crate) traffic_class: u8,
    /// Only in IPv4 headers.
    pub(crate) identification: u16,
    /// Only in IPv4 headers.
    pub(crate) dont_fragment: bool,
    /// Whether the UDP checksum is computed; otherwise it is 0, "none".
    pub(crate) has_checksum: bool,
}

impl Addressing {
    /// Returns the ICRC of a packet up to its check field.
    pub(super) fn icrc(&self, covered: &[u8]) -> u32 {
        let Self { source, destination, source_port, identification, dont_fragment, .. } = *self;
        icrc::compute(&Flow { source, destination, source_port }, identification, dont_fragment, covered)
    }
}

/// An IP and a UDP header.
#[derive(Clone, Copy, Debug)]
pub(super) struct WireHeaders {
    bytes: [u8; LARGEST_HEADERS],
    length: usize,
}

impl WireHeaders {
    /// Builds the headers of a UDP payload; returns `None` if it is too long for a datagram.
    pub(super) fn build(addressing: &Addressing, payload: &[u8]) -> Option<Self> {
        let udp_length = u16::try_from(UDP_HEADER_BYTES + payload.len()).ok()?;
        let mut headers = Self { bytes: [0; LARGEST_HEADERS], length: 0 };
        let mut sum = Sum::default();
        match (addressing.source, addressing.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                headers.put_ipv4(addressing, udp_length, source.octets(), destination.octets())?;
                sum.add(&source.octets());
                sum.add(&destination.octets());
            }
            (source, destination) => {
                let (source, destination) = (to_v6(source).octets(), to_v6(destination).octets());
                headers.put_ipv6(addressing, udp_length, source, destination);
                sum.add(&source);
                sum.add(&destination);
            }
        }
        let udp = headers.length;
        headers.put(&addressing.source_port.to_be_bytes());
        headers.put(&ROCE_PORT.to_be_bytes());
        headers.put(&udp_length.to_be_bytes());
        headers.put(&[0; 2]);
        if addressing.has_checksum {
            sum.add(&[0, UDP]);
            sum.add(&udp_length.to_be_bytes());
            sum.add(&headers.bytes[udp..headers.length]);
            sum.add(payload);
            // 0 means "no checksum".
            let checksum = if sum.folded() == 0 { 0xffff } else { sum.folded() };
            headers.bytes[udp + 6..udp + 8].copy_from_slice(&checksum.to_be_bytes());
        }
        Some(headers)
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    fn put_ipv4(
        &mut self,
        addressing: &Addressing,
        udp_length: u16,
        source: [u8; 4],
        destination: [u8; 4],
    ) -> Option<()> {
        let total = udp_length.checked_add(IPV4_HEADER_BYTES as u16)?;
        self.put(&[0x45, addressing.traffic_class]);
        self.put(&total.to_be_bytes());
        self.put(&addressing.identification.to_be_bytes());
        self.put(&(u16::from(addressing.dont_fragment) << 14).to_be_bytes());
        self.put(&[addressing.hop_limit, UDP, 0, 0]);
        self.put(&source);
        self.put(&destination);
        let mut sum = Sum::default();
        sum.add(&self.bytes[..IPV4_HEADER_BYTES]);
        self.bytes[10..12].copy_from_slice(&sum.folded().to_be_bytes());
        Some(())
    }

    fn put_ipv6(&mut self, addressing: &Addressing, udp_length: u16, source: [u8; 16], destination: [u8; 16]) {
        // Flow label 0: this library's sockets set none, and do not report those of received packets.
        self.put(&(6 << 28 | u32::from(addressing.traffic_class) << 20).to_be_bytes());
        self.put(&udp_length.to_be_bytes());
        self.put(&[UDP, addressing.hop_limit]);
        self.put(&source);
        self.put(&destination);
    }

    fn put(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        self.bytes[self.length..end].copy_from_slice(bytes);
        self.length = end;
    }
}

fn to_v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

/// The internet checksum (RFC 1071) of slices, all but the last of even length.
#[derive(Clone, Copy, Default)]
struct Sum(u64);

impl Sum {
    fn add(&mut self, bytes: &[u8]) {
        let pairs = bytes.chunks(2).map(|pair| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0)));
        self.0 += pairs.sum::<u64>();
    }

    fn folded(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn addressing(source: &str, destination: &str) -> Addressing {
        Addressing {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            source_port: 0xc001,
            hop_limit: 64,
            traffic_class: 0x28,
            identification: 0x1234,
            dont_fragment: true,
            has_checksum: true,
        }
    }

    /// Returns whether the sum over everything that a checksum covers, itself included, is 0xffff.
    fn is_consistent(bytes: &[u8]) -> bool {
        let mut sum = Sum::default();
        sum.add(bytes);
        sum.folded() == 0
    }

    #[test]
    fn ipv4_headers_are_complete() {
        let headers = WireHeaders::build(&addressing("10.0.0.1", "10.0.0.2"), &[1, 2, 3]).unwrap();
        let bytes = headers.as_bytes();
        assert_eq!(bytes[..10], [0x45, 0x28, 0, 31, 0x12, 0x34, 0x40, 0, 64, 17]);
        assert_eq!(bytes[12..20], [10, 0, 0, 1, 10, 0, 0, 2]);
        assert!(is_consistent(&bytes[..20]));
        assert_eq!(bytes[20..26], [0xc0, 0x01, 0x12, 0xb7, 0, 11]);
        let pseudo = [&bytes[12..20], &[0, 17, 0, 11], &bytes[20..], &[1, 2, 3]].concat();
        assert!(is_consistent(&pseudo));
    }

    #[test]
    fn ipv6_headers_are_complete() {
        let headers = WireHeaders::build(&addressing("fd00::1", "fd00::2"), &[0xff; 64]).unwrap();
        let bytes = headers.as_bytes();
        assert_eq!(bytes[..8], [0x62, 0x80, 0, 0, 0, 72, 17, 64]);
        let pseudo = [&bytes[8..40], &[0, 17, 0, 72], &bytes[40..], &[0xff; 64]].concat();
        assert!(is_consistent(&pseudo));
        assert_eq!(bytes.len(), 48);
    }

    #[test]
    fn no_checksum_is_zero() {
        let addressing = Addressing { has_checksum: false, ..addressing("10.0.0.1", "10.0.0.2") };
        assert_eq!(WireHeaders::build(&addressing, &[1]).unwrap().as_bytes()[26..], [0, 0]);
    }

    #[test]
    fn payload_too_long_for_a_datagram_is_refused() {
        let v4 = addressing("10.0.0.1", "10.0.0.2");
        assert!(WireHeaders::build(&v4, &vec![0; 65_507]).is_some());
        assert!(WireHeaders::build(&v4, &vec![0; 65_508]).is_none());
        let mixed = addressing("10.0.0.1", "fd00::2");
        assert!(WireHeaders::build(&mixed, &vec![0; 65_527]).is_some());
        assert!(WireHeaders::build(&mixed, &vec![0; 65_528]).is_none());
    }
}
