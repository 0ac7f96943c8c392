//! The multicast groups of a shard.

use std::io;
use std::net::IpAddr;

use super::shard::{Shard, cannot_watch};
use crate::engine::net::{Group, GroupSocket};
use crate::sys::{Interest, OpenError};
use crate::types::Qpn;

impl Shard {
    /// Lets the sending socket on this port send to multicast groups.
    pub(crate) fn allow_multicast(&self, address: IpAddr, port: u16, interface: u32) -> io::Result<()> {
        let mut allowed = Ok(());
        self.command(|core, _| allowed = core.link.allow_multicast(address, port, interface));
        allowed
    }

    /// Attaches the queue pair to the group, and joins the group if necessary. Calls for one group must not overlap.
    pub(crate) fn attach_multicast(&self, qpn: Qpn, group: &Group) -> Result<(), OpenError> {
        let mut has_joined = false;
        self.command(|core, _| has_joined = core.link.has_group(group.address));
        if !has_joined {
            let socket = GroupSocket::open(group, &self.sizes)?;
            self.sockets.add(socket.descriptor(), Interest::Readable).map_err(cannot_watch)?;
            let mut added = Ok(());
            self.command(|core, _| added = core.link.add_group(socket));
            added.map_err(cannot_watch)?;
        }
        self.command(|core, _| core.endpoint.attach_multicast(qpn, group.address));
        Ok(())
    }

    /// Detaches the queue pair from the group, and leaves the group with its last member.
    pub(crate) fn detach_multicast(&self, qpn: Qpn, group: IpAddr) {
        self.command(|core, _| {
            if !core.endpoint.detach_multicast(qpn, group) {
                core.link.remove_group(group);
            }
        });
    }
}
