//! Attaching the steering program to a group, and its listeners.

use std::net::IpAddr;
use std::os::fd::AsFd;

use super::super::registry::{MAX_LISTENERS, Member, MemberListener};
use super::super::steering::{self, Steered};
use super::{Group, GroupRef};
use crate::sys::{attach_steering, detach_steering};
use crate::wire::mad::ServiceId;

/// Has the requests for a listener at an address steered to the shard with this block, unless the process works alone.
/// Without it another process receives and forwards them, but not while it is stopped.
pub(crate) fn steer_requests(address: IpAddr, block: u16, service: ServiceId) {
    // The upper word is zero in all services with ports.
    if let Some(group) = GroupRef::find(address) {
        group.lock().steer_requests(block, service.0 as u32);
    }
}

impl Group {
    fn steer_requests(&self, block: u16, service: u32) {
        let Some(file) = &self.file else { return };
        let Some(own) = self.members.iter().find(|member| member.blocks.contains(&block)) else { return };
        let change = file.change().ok();
        let mut members = file.members(&self.slots());
        let numbers = members.iter().flat_map(|(_, member)| &member.listeners).map(|listener| listener.number);
        let number = numbers.max().unwrap_or_default().saturating_add(1);
        let Some((_, member)) = members.iter_mut().find(|(slot, _)| *slot == own.slot) else { return };
        member.listeners.retain(|listener| listener.service != service);
        member.listeners.push(MemberListener { service, number });
        let excess = member.listeners.len().saturating_sub(MAX_LISTENERS);
        member.listeners.drain(..excess);
        if let Err(error) = file.write_member(own.slot, member) {
            return tracing::warn!(
                target: "rdma_verbs::processes", local = %self.address.ip, %error, "the registry cannot be written"
            );
        }
        let header = file.header();
        if change.is_some() && header.is_settled {
            self.steer(&header.order, &members);
        } else {
            self.request_checks(&members);
        }
    }

    /// Attaches the program for a process that is alone.
    pub(super) fn steer_own(&self) {
        let members: Vec<Steered<'_>> =
            self.members.iter().map(|member| Steered { blocks: &member.blocks, listeners: &[] }).collect();
        self.attach(&members);
    }

    /// Attaches the program for members in this order. Dead ones in between get no packets.
    pub(super) fn steer(&self, order: &[u8], members: &[(u8, Member)]) {
        let find = |slot: &u8| members.iter().find(|(present, _)| present == slot).map(|(_, member)| member);
        let members: Vec<Steered<'_>> =
            order.iter().map(|slot| find(slot).map_or_else(Steered::default, Steered::of)).collect();
        self.attach(&members);
    }

    /// Attaches the program that sends the packets of `members[i]` to socket `i` of the group. It can be attached to
    /// any member's socket.
    fn attach(&self, members: &[Steered<'_>]) {
        let Some(socket) = self.members.first().map(|member| member.socket.as_fd()) else { return };
        if members.len() <= 1 {
            // All packets are for the only socket; without a program they arrive a little sooner. If an older kernel
            // keeps the last program, that does no harm: an index of a closed socket falls back to any socket.
            let _ = detach_steering(socket);
        } else if attach_steering(socket, &steering::program(members)).is_err() {
            // A kernel with a low limit may accept the program without listeners: their requests are forwarded.
            let blocks: Vec<Steered<'_>> = members.iter().map(|member| Steered { listeners: &[], ..*member }).collect();
            if let Err(error) = attach_steering(socket, &steering::program(&blocks)) {
                let (address, members) = (self.address.ip, members.len());
                tracing::warn!(
                    target: "rdma_verbs::processes",
                    local = %address, %error, count = members, "the kernel refused the steering program"
                );
            }
        }
    }
}
