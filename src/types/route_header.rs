//! The global route header that precedes a received datagram: its source and its destination.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The first 40 bytes of a received datagram (IBTA A17.4.5.2; `ibv_grh`).
///
/// Over IPv4 they are 20 zero bytes and an IPv4 header, over IPv6 an IPv6 header.
///
/// ```
/// use rdma_verbs::types::GlobalRouteHeader;
///
/// let header = GlobalRouteHeader {
///     source: "192.0.2.1".parse().unwrap(),
///     destination: "192.0.2.2".parse().unwrap(),
///     traffic_class: 0,
///     flow_label: 0,
///     hop_limit: 64,
///     identification: 7,
///     dont_fragment: true,
///     udp_bytes: 100,
/// };
/// let bytes = header.to_bytes();
/// assert_eq!(bytes[..20], [0; 20]);
/// assert_eq!(GlobalRouteHeader::from_bytes(&bytes), Some(header));
/// assert_eq!(GlobalRouteHeader::from_bytes(&[0; 40]), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GlobalRouteHeader {
    /// Address of the sender.
    pub source: IpAddr,
    /// Destination address; for a multicast, that of the group.
    pub destination: IpAddr,
    /// Type of service (IPv4) or traffic class.
    pub traffic_class: u8,
    /// Flow label (IPv6).
    pub flow_label: u32,
    /// Time to live or hop limit, as it arrived.
    pub hop_limit: u8,
    /// Identification (IPv4).
    pub identification: u16,
    /// "Don't fragment" (IPv4).
    pub dont_fragment: bool,
    /// Length of the UDP datagram, its header included.
    pub udp_bytes: u16,
}

const V4_BYTES: usize = 20;
const UDP: u8 = 17;
const DONT_FRAGMENT: u16 = 0x4000;

impl GlobalRouteHeader {
    /// Number of bytes in front of every received datagram.
    pub const BYTES: usize = 40;

    /// Returns the header as it precedes a datagram.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let ip = &mut bytes[V4_BYTES..];
                ip[0] = 0x45;
                ip[1] = self.traffic_class;
                ip[2..4].copy_from_slice(&self.udp_bytes.saturating_add(V4_BYTES as u16).to_be_bytes());
                ip[4..6].copy_from_slice(&self.identification.to_be_bytes());
                ip[6..8].copy_from_slice(&(u16::from(self.dont_fragment) << 14).to_be_bytes());
                ip[8] = self.hop_limit;
                ip[9] = UDP;
                ip[12..16].copy_from_slice(&source.octets());
                ip[16..20].copy_from_slice(&destination.octets());
                let checksum = !sum_of(ip);
                ip[10..12].copy_from_slice(&checksum.to_be_bytes());
            }
            (source, destination) => {
                let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff;
                bytes[..4].copy_from_slice(&first.to_be_bytes());
                bytes[4..6].copy_from_slice(&self.udp_bytes.to_be_bytes());
                bytes[6] = UDP;
                bytes[7] = self.hop_limit;
                bytes[8..24].copy_from_slice(&to_v6(source).octets());
                bytes[24..40].copy_from_slice(&to_v6(destination).octets());
            }
        }
        bytes
    }

    /// Parses the 40 bytes; `None` if they hold neither kind of header. An IPv4 header is recognized by its correct
    /// checksum, because the 20 bytes in front of it may hold anything.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let (_, v4) = bytes.split_at(V4_BYTES);
        if v4[0] == 0x45 && sum_of(v4) == 0xffff {
            return Some(Self::from_v4(v4));
        }
        (bytes[0] >> 4 == 6).then(|| Self::from_v6(bytes))
    }

    fn from_v4(ip: &[u8]) -> Self {
        let number = |at: usize| u16::from_be_bytes([ip[at], ip[at + 1]]);
        let address = |at: usize| Ipv4Addr::new(ip[at], ip[at + 1], ip[at + 2], ip[at + 3]);
        Self {
            source: address(12).into(),
            destination: address(16).into(),
            traffic_class: ip[1],
            flow_label: 0,
            hop_limit: ip[8],
            identification: number(4),
            dont_fragment: number(6) & DONT_FRAGMENT != 0,
            udp_bytes: number(2).saturating_sub(V4_BYTES as u16),
        }
    }

    fn from_v6(bytes: &[u8; Self::BYTES]) -> Self {
        let first = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let address = |at: usize| {
            let mut octets = [0; 16];
            octets.copy_from_slice(&bytes[at..at + 16]);
            Ipv6Addr::from(octets)
        };
        Self {
            source: address(8).into(),
            destination: address(24).into(),
            traffic_class: (first >> 20) as u8,
            flow_label: first & 0xf_ffff,
            hop_limit: bytes[7],
            identification: 0,
            dont_fragment: true,
            udp_bytes: u16::from_be_bytes([bytes[4], bytes[5]]),
        }
    }
}

fn to_v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

/// Returns the one's complement sum of the 16-bit words: all ones over a header with a correct checksum.
fn sum_of(header: &[u8]) -> u16 {
    let mut sum: u32 = header.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(source: &str, destination: &str) -> GlobalRouteHeader {
        GlobalRouteHeader {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            traffic_class: 0x28,
            flow_label: 0,
            hop_limit: 9,
            identification: 0,
            dont_fragment: true,
            udp_bytes: 280,
        }
    }

    #[test]
    fn ipv4_header_is_that_of_the_published_capture() {
        // Total length 64, identification 0x0478, "don't fragment", TTL 64, 192.168.0.7 to itself:
        // its checksum is 0xb4d5.
        let published = GlobalRouteHeader {
            traffic_class: 1,
            hop_limit: 64,
            identification: 0x478,
            udp_bytes: 44,
            ..header("192.168.0.7", "192.168.0.7")
        };
        let bytes = published.to_bytes();
        assert_eq!(bytes[20..32], [0x45, 1, 0, 64, 4, 0x78, 0x40, 0, 64, 17, 0xb4, 0xd5]);
        assert_eq!(GlobalRouteHeader::from_bytes(&bytes), Some(published));
    }

    #[test]
    fn ipv6_header_comes_back() {
        let sent = GlobalRouteHeader { flow_label: 0xf_edcb, ..header("2001:db8::1", "ff0e::31") };
        let bytes = sent.to_bytes();
        assert_eq!((bytes[0], bytes[6], bytes[7]), (0x62, 17, 9));
        assert_eq!(GlobalRouteHeader::from_bytes(&bytes), Some(sent));
    }

    #[test]
    fn wrong_checksum_is_no_ipv4_header() {
        let mut bytes = header("10.0.0.1", "10.0.0.2").to_bytes();
        bytes[33] ^= 1;
        assert_eq!(GlobalRouteHeader::from_bytes(&bytes), None);
        // The bytes in front of an IPv4 header do not matter, even if they look like an IPv6 header.
        let mut bytes = header("10.0.0.1", "10.0.0.2").to_bytes();
        bytes[0] = 0x60;
        assert!(GlobalRouteHeader::from_bytes(&bytes).unwrap().source.is_ipv4());
    }
}
