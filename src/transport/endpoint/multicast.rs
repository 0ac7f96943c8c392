//! Multicast: the queue pairs attached to each group, and the delivery of copies to them.

use std::collections::HashMap;
use std::net::IpAddr;

use super::Endpoint;
use crate::memory::MemoryView;
use crate::transport::datagram::{Datagram, DatagramOutcome};
use crate::transport::responder::identify;
use crate::types::{DropReason, Gid, Qpn, Time};
use crate::wire::Packet;

/// The queue pairs attached to each group.
#[derive(Default)]
pub(in crate::transport) struct Groups {
    members: HashMap<IpAddr, Vec<Qpn>>,
}

impl Groups {
    /// Removes a destroyed queue pair from all groups.
    pub(in crate::transport) fn forget(&mut self, qpn: Qpn) {
        if self.members.is_empty() {
            return;
        }
        self.members.retain(|_, members| {
            members.retain(|member| *member != qpn);
            !members.is_empty()
        });
    }
}

impl Endpoint {
    /// Attaches a queue pair to a group: it gets a copy of each packet sent there. Attaching it again does nothing.
    pub fn attach_multicast(&mut self, qpn: Qpn, group: IpAddr) {
        let members = self.groups.members.entry(group).or_default();
        if !members.contains(&qpn) {
            members.push(qpn);
        }
    }

    /// Detaches a queue pair from a group. Returns whether the group has members left.
    pub fn detach_multicast(&mut self, qpn: Qpn, group: IpAddr) -> bool {
        let Some(members) = self.groups.members.get_mut(&group) else { return false };
        members.retain(|member| *member != qpn);
        let remain = !members.is_empty();
        if !remain {
            self.groups.members.remove(&group);
        }
        remain
    }

    /// Returns the groups that a queue pair is attached to, in order.
    pub(in crate::transport) fn groups_of(&self, qpn: Qpn) -> Vec<Gid> {
        let attached = self.groups.members.iter().filter(|(_, members)| members.contains(&qpn));
        let mut groups: Vec<IpAddr> = attached.map(|(group, _)| *group).collect();
        groups.sort_unstable();
        groups.into_iter().map(Gid::from).collect()
    }

    /// Delivers a packet to all members of a group: each takes it or drops it (`rxe_recv.c`, `rxe_rcv_mcast_pkt`).
    pub(in crate::transport) fn handle_multicast(
        &mut self,
        now: Time,
        memory: &MemoryView<'_>,
        datagram: &Datagram<'_>,
        packet: &Packet<'_>,
    ) -> DatagramOutcome {
        if self.groups.members.get(&datagram.destination).is_none_or(Vec::is_empty) {
            return self.drop_unmatched(now, datagram, Some(Qpn::MULTICAST), DropReason::UnknownQueuePair);
        }
        let identified = match identify(datagram) {
            Ok(identified) => identified,
            Err(reason) => return self.drop_datagram(reason),
        };
        let members = self.groups.members.get_mut(&datagram.destination).map(std::mem::take).unwrap_or_default();
        let (mut outcome, mut is_taken) = (DatagramOutcome::default(), false);
        for member in &members {
            let Some(slot) = self.slot_of(*member) else { continue };
            let taken = self.deliver(now, memory, slot, datagram, packet, |queue_pair, pass| {
                queue_pair.take_datagram(pass, datagram, packet, identified)
            });
            is_taken |= taken.dropped.is_none();
            outcome.dropped = outcome.dropped.or(taken.dropped);
        }
        if is_taken {
            outcome.dropped = None;
        }
        if let Some(emptied) = self.groups.members.get_mut(&datagram.destination) {
            *emptied = members;
        }
        outcome
    }
}
