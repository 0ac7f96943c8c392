//! Multicast groups of a device: the attached queue pairs, within its limits.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::errors;
use super::queue_pair::SoftQueuePair;
use crate::engine::Group;
use crate::provider::{Error, ErrorKind, Result};
use crate::types::{Gid, Qpn, QueuePairType};

/// Largest number of groups of a device; each needs a socket on each shard that has members.
pub(super) const MAX_MCAST_GRP: u32 = 128;
/// Largest number of queue pairs attached to a group: each packet is copied to all of them.
pub(super) const MAX_MCAST_QP_ATTACH: u32 = 64;

/// Multicast attachments of a device.
#[derive(Default)]
pub(super) struct Attachments {
    groups: Mutex<BTreeMap<IpAddr, Vec<Qpn>>>,
}

impl Attachments {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<IpAddr, Vec<Qpn>>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SoftQueuePair {
    /// Attaches the queue pair to a group. Attaching twice has no effect, as in Linux.
    pub(super) fn attach_group(&self, gid: Gid) -> Result<()> {
        let group = self.check_group("attach_mcast", gid)?;
        let mut groups = self.device.attachments.lock();
        // Checked under the lock: destruction marks the queue pair before it takes the lock.
        self.state.check_alive("attach_mcast")?;
        let members = groups.get(&group.address).map_or(&[][..], Vec::as_slice);
        if members.contains(&self.qpn) {
            return Ok(());
        }
        let limit = |attribute: &str, limit: u32, what: &str| {
            let message = format!("{attribute} is {limit}, and {what}; detach queue pairs first");
            Err(Error::new("attach_mcast", ErrorKind::ResourceLimit, message))
        };
        if members.is_empty() && groups.len() >= MAX_MCAST_GRP as usize {
            return limit("max_mcast_grp", MAX_MCAST_GRP, "that many groups have members");
        }
        if members.len() >= MAX_MCAST_QP_ATTACH as usize {
            return limit("max_mcast_qp_attach", MAX_MCAST_QP_ATTACH, "that many queue pairs are in the group");
        }
        let attached = self.shard.attach_multicast(self.qpn, &group);
        attached.map_err(|error| errors::from_open("attach_mcast", error))?;
        groups.entry(group.address).or_default().push(self.qpn);
        Ok(())
    }

    pub(super) fn detach_group(&self, gid: Gid) -> Result<()> {
        let group = self.check_group("detach_mcast", gid)?;
        let mut groups = self.device.attachments.lock();
        let members = groups.get_mut(&group.address).filter(|members| members.contains(&self.qpn));
        let members = members.ok_or_else(|| errors::not_attached(self.qpn, gid))?;
        members.retain(|member| *member != self.qpn);
        if members.is_empty() {
            groups.remove(&group.address);
        }
        self.shard.detach_multicast(self.qpn, group.address);
        Ok(())
    }

    /// Detaches the queue pair from all groups when it is destroyed.
    pub(super) fn leave_groups(&self) {
        if self.qp_type != QueuePairType::UnreliableDatagram {
            return;
        }
        let mut groups = self.device.attachments.lock();
        groups.retain(|group, members| {
            if members.contains(&self.qpn) {
                members.retain(|member| *member != self.qpn);
                self.shard.detach_multicast(self.qpn, *group);
            }
            !members.is_empty()
        });
    }

    fn check_group(&self, verb: &'static str, gid: Gid) -> Result<Group> {
        errors::check_group(verb, self.qpn, self.qp_type, gid)?;
        let address = gid.to_ip();
        let interface = &self.device.interface;
        let addresses = self.device.addresses();
        let own = addresses.iter().find(|(_, own)| own.ip.is_ipv4() == address.is_ipv4());
        match own {
            Some((_, own)) => Ok(Group { address, own: own.ip, interface: interface.index }),
            None => {
                let message = format!("gid is {gid}, but the device has no address of that family");
                Err(Error::new(verb, ErrorKind::InvalidArgument, message))
            }
        }
    }
}
