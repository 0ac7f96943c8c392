//! Membership in IP multicast groups. Ethernet adapters leave it to the host: without it no switch forwards a group's
//! packets, and the kernel does not loop back those that its own software adapter sends.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::types::{Gid, GidEntry};

/// The groups that the host has joined for a device's queue pairs.
#[derive(Default)]
pub(super) struct Memberships(Mutex<HashMap<Gid, Weak<UdpSocket>>>);

/// A queue pair's share of a membership, which ends when the last share is dropped.
pub(super) type Membership = Arc<UdpSocket>;

impl Memberships {
    /// Joins a group on the interface of a GID. `None` if their address families differ: then there is nothing to join.
    pub(super) fn join(&self, group: Gid, own: &GidEntry) -> io::Result<Option<Membership>> {
        let mut groups = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(membership) = groups.get(&group).and_then(Weak::upgrade) {
            return Ok(Some(membership));
        }
        groups.retain(|_, membership| membership.strong_count() > 0);
        // The socket only holds the membership; its port receives nothing.
        let socket = match (group.to_ip(), own.gid.to_ip()) {
            (IpAddr::V4(group), IpAddr::V4(own)) => {
                let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
                socket.join_multicast_v4(&group, &own)?;
                socket
            }
            (IpAddr::V6(group), IpAddr::V6(_)) => {
                let socket = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0))?;
                socket.join_multicast_v6(&group, own.ndev_ifindex)?;
                socket
            }
            _ => return Ok(None),
        };
        let membership = Arc::new(socket);
        groups.insert(group, Arc::downgrade(&membership));
        Ok(Some(membership))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::GidType;

    fn entry(address: &str) -> GidEntry {
        let address: IpAddr = address.parse().unwrap();
        GidEntry { gid: address.into(), gid_index: 0, gid_type: GidType::RoceV2, ndev_ifindex: 1 }
    }

    #[test]
    fn queue_pairs_of_a_group_share_the_membership() {
        let memberships = Memberships::default();
        let (own, group) = (entry("127.0.0.1"), entry("239.1.2.3").gid);
        let first = memberships.join(group, &own).unwrap().unwrap();
        let second = memberships.join(group, &own).unwrap().unwrap();
        assert!(Arc::ptr_eq(&first, &second));
        let other = memberships.join(entry("239.1.2.4").gid, &own).unwrap().unwrap();
        assert!(!Arc::ptr_eq(&first, &other));
        drop((first, second));
        memberships.join(entry("239.1.2.5").gid, &own).unwrap();
        assert!(!memberships.0.lock().unwrap().contains_key(&group), "the last one ends it");
        assert!(memberships.join(entry("ff15::7").gid, &own).unwrap().is_none(), "another address family");
    }
}
