//! The headers of datagrams: in front of data between queue pairs, and in front of what goes through the UDP sockets.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The first four bytes of what goes through the UDP sockets.
const TAG: u32 = 0x5555_5555;
/// Lengths of the headers for both versions of IP.
const DATA_BYTES: (usize, usize) = (8, 24);
const EXCHANGE_BYTES: (usize, usize) = (16, 28);
/// The longest header of data.
pub(crate) const MAX_DATA_HEADER: usize = DATA_BYTES.1;

/// Returns the header of data from this address.
pub(crate) fn data_header(from: SocketAddr) -> Vec<u8> {
    let (version, length) = match from {
        SocketAddr::V4(_) => (4, DATA_BYTES.0),
        SocketAddr::V6(_) => (6, DATA_BYTES.1),
    };
    let mut bytes = vec![version, length as u8];
    bytes.extend(from.port().to_be_bytes());
    match from {
        SocketAddr::V4(from) => bytes.extend(from.ip().octets()),
        SocketAddr::V6(from) => {
            bytes.extend(from.flowinfo().to_ne_bytes());
            bytes.extend(from.ip().octets());
        }
    }
    bytes
}

/// Returns the sender in a header of data, and the header's length; `None` if it is none.
pub(crate) fn read_data_header(bytes: &[u8]) -> Option<(SocketAddr, usize)> {
    let (version, length) = (*bytes.first()?, usize::from(*bytes.get(1)?));
    let port = u16::from_be_bytes([*bytes.get(2)?, *bytes.get(3)?]);
    let ip = match (version, length) {
        (4, length) if length == DATA_BYTES.0 => IpAddr::from(<[u8; 4]>::try_from(bytes.get(4..8)?).ok()?),
        (6, length) if length == DATA_BYTES.1 => IpAddr::from(<[u8; 16]>::try_from(bytes.get(8..24)?).ok()?),
        _ => return None,
    };
    Some((SocketAddr::new(ip, port), length))
}

/// A message through the UDP sockets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Exchange {
    /// Whether data follows.
    pub(crate) has_data: bool,
    pub(crate) qpn: u32,
    /// Address of the queue pair.
    pub(crate) address: IpAddr,
}

impl Exchange {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let (version, length) = match self.address {
            IpAddr::V4(_) => (4, EXCHANGE_BYTES.0),
            IpAddr::V6(_) => (6, EXCHANGE_BYTES.1),
        };
        let mut bytes = TAG.to_be_bytes().to_vec();
        bytes.extend([version, if self.has_data { 0 } else { 7 }, length as u8, 0]);
        bytes.extend(self.qpn.to_be_bytes());
        match self.address {
            IpAddr::V4(address) => bytes.extend(address.octets()),
            IpAddr::V6(address) => bytes.extend(address.octets()),
        }
        bytes
    }

    /// Returns what a peer has sent, and the length of the header; `None` if it is no header, or one of the other
    /// version of IP than it came with.
    pub(crate) fn from_bytes(bytes: &[u8], is_v4: bool) -> Option<(Self, usize)> {
        let word = |at: usize| Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        if word(0)? != TAG {
            return None;
        }
        let (version, operation, length) = (*bytes.get(4)?, *bytes.get(5)?, usize::from(*bytes.get(6)?));
        let address = match (version, length) {
            (4, length) if is_v4 && length == EXCHANGE_BYTES.0 => {
                IpAddr::from(<[u8; 4]>::try_from(bytes.get(12..16)?).ok()?)
            }
            (6, length) if !is_v4 && length == EXCHANGE_BYTES.1 => {
                IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes.get(12..28)?).ok()?))
            }
            _ => return None,
        };
        let has_data = match operation {
            0 => true,
            7 => false,
            _ => return None,
        };
        Some((Self { has_data, qpn: word(8)? & 0xff_ffff, address }, length))
    }
}
