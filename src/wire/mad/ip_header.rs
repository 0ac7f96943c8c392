//! The header of IP connections, at the beginning of the private data of a REQ or SIDR_REQ (IBTA A11; `cma_hdr`).
//!
//! It has the addresses of both ends, as their applications see them. They may differ from those of the packet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::PrivateData;

/// Version of the header.
const VERSION: u8 = 0;

/// The header of IP connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpHeader {
    /// Port of the sender. The receiver's is in the service id.
    pub source_port: u16,
    /// Addresses of both.
    pub addresses: IpAddresses,
}

/// Two addresses of one version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IpAddresses {
    /// IPv4.
    V4 {
        /// Address of the sender.
        source: Ipv4Addr,
        /// Address of the receiver.
        destination: Ipv4Addr,
    },
    /// IPv6.
    V6 {
        /// Address of the sender.
        source: Ipv6Addr,
        /// Address of the receiver.
        destination: Ipv6Addr,
    },
}

/// Why private data does not begin with a header of IP connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IpHeaderError {
    /// There are fewer bytes than in a header.
    #[error("the header of IP connections has {0} bytes instead of {bytes}", bytes = IpHeader::BYTES)]
    Length(usize),
    /// The version of the header is not 0.
    #[error("the header of IP connections has version {0} instead of {version}", version = VERSION)]
    Version(u8),
    /// The IP version is neither 4 nor 6.
    #[error("the header of IP connections has IP version {0} instead of 4 or 6")]
    IpVersion(u8),
}

impl IpHeader {
    /// Size of the header in bytes.
    pub const BYTES: usize = 36;

    /// Creates the header. Returns `None` if the addresses have different versions. Scopes and flow information of IPv6
    /// addresses are not part of it.
    pub fn new(source: SocketAddr, destination: IpAddr) -> Option<Self> {
        let addresses = match (source.ip(), destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => IpAddresses::V4 { source, destination },
            (IpAddr::V6(source), IpAddr::V6(destination)) => IpAddresses::V6 { source, destination },
            _ => return None,
        };
        Some(Self { source_port: source.port(), addresses })
    }

    /// Returns address and port of the sender.
    pub fn source(&self) -> SocketAddr {
        let address = match self.addresses {
            IpAddresses::V4 { source, .. } => source.into(),
            IpAddresses::V6 { source, .. } => source.into(),
        };
        SocketAddr::new(address, self.source_port)
    }

    /// Returns the address of the receiver.
    pub fn destination(&self) -> IpAddr {
        match self.addresses {
            IpAddresses::V4 { destination, .. } => destination.into(),
            IpAddresses::V6 { destination, .. } => destination.into(),
        }
    }

    /// Reads the header at the beginning of private data. Returns it and the application's data behind it.
    ///
    /// The low four bits of the second byte and the first twelve bytes of IPv4 addresses are reserved and ignored.
    pub fn read(private_data: &[u8]) -> Result<(Self, &[u8]), IpHeaderError> {
        let length = private_data.len();
        let (header, rest) = private_data.split_first_chunk().ok_or(IpHeaderError::Length(length))?;
        let [version, ip_version, high, low, ends @ ..]: [u8; Self::BYTES] = *header;
        if version != VERSION {
            return Err(IpHeaderError::Version(version));
        }
        let (source, destination) = ends.split_at(16);
        let [source, destination] = [source, destination].map(|bytes| {
            let mut address = [0; 16];
            address.copy_from_slice(bytes);
            Ipv6Addr::from(address)
        });
        let addresses = match ip_version >> 4 {
            4 => IpAddresses::V4 { source: last_four(source), destination: last_four(destination) },
            6 => IpAddresses::V6 { source, destination },
            other => return Err(IpHeaderError::IpVersion(other)),
        };
        Ok((Self { source_port: u16::from_be_bytes([high, low]), addresses }, rest))
    }

    /// Returns the bytes of the header.
    pub fn write(&self) -> [u8; Self::BYTES] {
        let (ip_version, source, destination) = match self.addresses {
            IpAddresses::V4 { source, destination } => (4, padded(source), padded(destination)),
            IpAddresses::V6 { source, destination } => (6, source.octets(), destination.octets()),
        };
        let mut bytes = [0; Self::BYTES];
        bytes[0] = VERSION;
        bytes[1] = ip_version << 4;
        bytes[2..4].copy_from_slice(&self.source_port.to_be_bytes());
        bytes[4..20].copy_from_slice(&source);
        bytes[20..].copy_from_slice(&destination);
        bytes
    }

    /// Returns private data of the header and the application's data behind it, or `None` if both exceed `N` bytes: an
    /// application has 56 bytes in a REQ, 180 in a SIDR_REQ.
    pub fn with_data<const N: usize>(&self, data: &[u8]) -> Option<PrivateData<N>> {
        let mut bytes = [0; N];
        let (header, rest) = bytes.split_first_chunk_mut()?;
        *header = self.write();
        rest.get_mut(..data.len())?.copy_from_slice(data);
        PrivateData::new(&bytes)
    }
}

/// Returns the address in the last four bytes. The bytes before it are zeros, not those of a mapped address.
fn last_four(address: Ipv6Addr) -> Ipv4Addr {
    let [.., a, b, c, d] = address.octets();
    Ipv4Addr::new(a, b, c, d)
}

/// Returns an IPv4 address behind twelve zeros.
fn padded(address: Ipv4Addr) -> [u8; 16] {
    u128::from(address.to_bits()).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    #[test]
    fn headers_have_the_standard_layout() {
        let header = IpHeader::new("10.99.0.3:51044".parse().unwrap(), "10.99.0.2".parse().unwrap()).unwrap();
        let mut expected = [0; IpHeader::BYTES];
        expected[..4].copy_from_slice(&[0, 0x40, 0xc7, 0x64]);
        expected[16..20].copy_from_slice(&[10, 99, 0, 3]);
        expected[32..].copy_from_slice(&[10, 99, 0, 2]);
        assert_eq!(header.write(), expected);
        assert_eq!(IpHeader::read(&expected), Ok((header, &[][..])));
        let header = IpHeader::new("[fd99::3]:39968".parse().unwrap(), "fd99::2".parse().unwrap()).unwrap();
        let bytes = header.write();
        assert_eq!(bytes[..8], [0, 0x60, 0x9c, 0x20, 0xfd, 0x99, 0, 0]);
        assert_eq!([bytes[19], bytes[20], bytes[35]], [3, 0xfd, 2]);
        assert_eq!(IpHeader::read(&bytes), Ok((header, &[][..])));
    }

    #[test]
    fn other_versions_are_refused() {
        let bytes = IpHeader::new("10.99.0.3:1".parse().unwrap(), "10.99.0.2".parse().unwrap()).unwrap().write();
        let with = |index: usize, value: u8| {
            let mut changed = bytes;
            changed[index] = value;
            IpHeader::read(&changed).map(|_| ())
        };
        for version in 1..=255 {
            assert_eq!(with(0, version), Err(IpHeaderError::Version(version)));
        }
        for ip_version in 0..16 {
            let is_known = [4, 6].contains(&ip_version);
            let expected = if is_known { Ok(()) } else { Err(IpHeaderError::IpVersion(ip_version)) };
            assert_eq!(with(1, ip_version << 4), expected);
        }
        for length in 0..IpHeader::BYTES {
            assert_eq!(IpHeader::read(&bytes[..length]), Err(IpHeaderError::Length(length)));
        }
        let mixed = IpHeader::new("10.99.0.3:1".parse().unwrap(), "fd99::2".parse().unwrap());
        assert_eq!(mixed, None);
    }

    #[test]
    fn reserved_bits_are_ignored() {
        let header = IpHeader::new("10.99.0.3:1".parse().unwrap(), "10.99.0.2".parse().unwrap()).unwrap();
        let mut bytes = header.write();
        bytes[1] |= 0xf;
        bytes[4..16].fill(0xff);
        bytes[20..32].fill(0xff);
        assert_eq!(IpHeader::read(&bytes), Ok((header, &[][..])));
    }

    #[test]
    fn an_application_has_the_rest_of_the_private_data() {
        let header = IpHeader::new("[::1]:1".parse().unwrap(), "::1".parse().unwrap()).unwrap();
        let data = header.with_data::<92>(&[7; 56]).unwrap();
        assert_eq!(IpHeader::read(data.as_bytes()), Ok((header, &[7; 56][..])));
        assert_eq!(header.with_data::<92>(&[7; 57]), None);
        assert!(header.with_data::<216>(&[7; 180]).is_some() && header.with_data::<216>(&[7; 181]).is_none());
        assert_eq!(header.with_data::<35>(&[]), None);
        let short = header.with_data::<92>(b"hello").unwrap();
        assert_eq!(IpHeader::read(short.as_bytes()).unwrap().1[..6], *b"hello\0");
    }

    proptest! {
        #[test]
        fn headers_round_trip(source: SocketAddr, destination: IpAddr) {
            let header = IpHeader::new(source, destination);
            prop_assert_eq!(header.is_some(), source.is_ipv4() == destination.is_ipv4());
            if let Some(header) = header {
                let bytes = header.write();
                prop_assert_eq!(IpHeader::read(&bytes), Ok((header, &[][..])));
                prop_assert_eq!((header.source().ip(), header.source().port()), (source.ip(), source.port()));
                prop_assert_eq!(header.destination(), destination);
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: [u8; IpHeader::BYTES]) {
            if let Ok((header, _)) = IpHeader::read(&bytes) {
                let bytes = header.write();
                prop_assert_eq!(IpHeader::read(&bytes), Ok((header, &[][..])));
            }
        }
    }
}
