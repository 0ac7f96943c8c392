//! The GID that a queue pair uses by default.

use std::net::IpAddr;

use crate::types::{GidEntry, GidType, LinkLayer};

/// Returns the index of the best entry: on Ethernet the first RoCE v2 entry with an IPv4 address, else with an IPv6
/// address, neither link-local; failing these, the first RoCE v2 entry, or else any. On other links the first entry.
pub(super) fn choose(link_layer: LinkLayer, table: &[GidEntry]) -> Option<u8> {
    let best = match link_layer {
        LinkLayer::Ethernet => table.iter().min_by_key(|entry| rank(entry)),
        _ => table.first(),
    };
    best.map(|entry| entry.gid_index)
}

fn rank(entry: &GidEntry) -> u8 {
    match (entry.gid_type, entry.gid.to_ip()) {
        (GidType::RoceV2, IpAddr::V4(address)) if !address.is_link_local() => 0,
        (GidType::RoceV2, IpAddr::V6(address)) if !address.is_unicast_link_local() => 1,
        (GidType::RoceV2, _) => 2,
        _ => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(gid_index: u8, gid_type: GidType, address: &str) -> GidEntry {
        let address: IpAddr = address.parse().unwrap();
        GidEntry { gid: address.into(), gid_index, gid_type, ndev_ifindex: 0 }
    }

    #[test]
    fn roce_v2_with_ipv4_is_preferred() {
        let table = [
            entry(0, GidType::RoceV1, "fe80::1"),
            entry(1, GidType::RoceV2, "fe80::1"),
            entry(2, GidType::RoceV1, "192.0.2.1"),
            entry(3, GidType::RoceV2, "2001:db8::1"),
            entry(4, GidType::RoceV2, "192.0.2.1"),
            entry(5, GidType::RoceV2, "192.0.2.2"),
        ];
        assert_eq!(choose(LinkLayer::Ethernet, &table), Some(4));
        assert_eq!(choose(LinkLayer::Ethernet, &table[..4]), Some(3));
        assert_eq!(choose(LinkLayer::Ethernet, &table[..3]), Some(1));
        assert_eq!(choose(LinkLayer::Ethernet, &table[..1]), Some(0));
        assert_eq!(choose(LinkLayer::Ethernet, &[]), None);
    }

    #[test]
    fn infiniband_ports_use_the_first_gid() {
        let table = [entry(0, GidType::InfiniBand, "fe80::2"), entry(1, GidType::InfiniBand, "192.0.2.1")];
        assert_eq!(choose(LinkLayer::InfiniBand, &table), Some(0));
    }
}
