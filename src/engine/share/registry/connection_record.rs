//! The byte layout of a file of connections. Everything read may be garbage, as in the file of an address.

use std::net::{IpAddr, Ipv6Addr};

use super::table::{has_valid_checksum, write_checksum};
use crate::cm::Orphan;
use crate::types::Qpn;
use crate::wire::mad::{CommunicationId, FlowLabel};

pub(super) const RECORD_BYTES: usize = 64;
const VERSION: u8 = 1;

fn to_v6(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

pub(super) fn to_bytes(orphan: &Orphan) -> [u8; RECORD_BYTES] {
    let mut bytes = [0; RECORD_BYTES];
    bytes[0] = VERSION;
    bytes[1] = orphan.traffic_class;
    bytes[4..8].copy_from_slice(&orphan.local_id.0.to_le_bytes());
    bytes[8..12].copy_from_slice(&orphan.remote_id.0.to_le_bytes());
    bytes[12..16].copy_from_slice(&orphan.remote_qpn.value().to_le_bytes());
    bytes[16..24].copy_from_slice(&orphan.remote_guid.to_le_bytes());
    bytes[24..40].copy_from_slice(&to_v6(orphan.local));
    bytes[40..56].copy_from_slice(&to_v6(orphan.remote));
    bytes[56..60].copy_from_slice(&orphan.flow_label.value().to_le_bytes());
    write_checksum(&mut bytes);
    bytes
}

/// Parses a record; returns `None` if it is invalid or empty.
pub(super) fn parse(bytes: &[u8; RECORD_BYTES]) -> Option<Orphan> {
    let word = |offset: usize| bytes[offset..].first_chunk().map(|word| u32::from_le_bytes(*word));
    let address = |offset: usize| {
        let octets: [u8; 16] = *bytes[offset..].first_chunk()?;
        Some(IpAddr::V6(Ipv6Addr::from(octets)).to_canonical())
    };
    let (local, remote) = (address(24)?, address(40)?);
    // No message can be sent from an address of one IP version to one of the other.
    if bytes[0] != VERSION || local.is_ipv4() != remote.is_ipv4() || !has_valid_checksum(bytes) {
        return None;
    }
    Some(Orphan {
        local_id: CommunicationId(word(4)?),
        remote_id: CommunicationId(word(8)?),
        remote_guid: u64::from_le_bytes(*bytes[16..].first_chunk()?),
        remote_qpn: Qpn::new(word(12)?),
        local,
        remote,
        traffic_class: bytes[1],
        flow_label: FlowLabel::new(word(56)?),
    })
}

#[cfg(all(test, not(loom)))]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn orphan(number: u32) -> Orphan {
        Orphan {
            local_id: CommunicationId(0xabc0_0000 | number),
            remote_id: CommunicationId(77),
            remote_guid: 0x5054_00ff_fe00_000b,
            remote_qpn: Qpn::new(0x12_3456),
            local: "127.77.9.9".parse().unwrap(),
            remote: "10.0.0.7".parse().unwrap(),
            traffic_class: 0x68,
            flow_label: FlowLabel::new(0x8_38a5),
        }
    }

    #[test]
    fn records_are_read_as_written() {
        let v6 = Orphan { local: "fd00::7".parse().unwrap(), remote: "::1".parse().unwrap(), ..orphan(1) };
        for orphan in [orphan(7), v6] {
            assert_eq!(parse(&to_bytes(&orphan)), Some(orphan));
        }
    }

    #[test]
    fn empty_and_half_written_records_are_invalid() {
        let written = to_bytes(&orphan(3));
        for length in 0..RECORD_BYTES {
            let mut bytes = [0; RECORD_BYTES];
            bytes[..length].copy_from_slice(&written[..length]);
            assert_eq!(parse(&bytes), None, "{length} bytes");
        }
    }

    #[test]
    fn addresses_of_two_ip_versions_are_invalid() {
        let mixed = Orphan { remote: "fd00::7".parse().unwrap(), ..orphan(1) };
        assert_eq!(parse(&to_bytes(&mixed)), None);
    }

    proptest! {
        #[test]
        fn any_bytes_with_a_checksum_are_parsed(mut bytes in any::<[u8; RECORD_BYTES]>()) {
            bytes[0] = VERSION;
            write_checksum(&mut bytes);
            if let Some(orphan) = parse(&bytes) {
                prop_assert_eq!(parse(&to_bytes(&orphan)), Some(orphan));
            }
        }
    }
}
