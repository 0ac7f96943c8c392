//! Multicast groups: a socket for each, bound to the group's address, so that the kernel delivers a copy of each packet
//! to every process of the machine that has joined, and the unicast sockets are not affected.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use socket2::{InterfaceIndexOrAddress, Socket};

use super::udp::{SocketSizes, udp_socket};
use crate::sys::{Epoll, Interest, NotInherited, OpenError, SocketOption, set_option, wait_readable};
use crate::types::ROCE_PORT;

/// A multicast group and the interface that leads to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Group {
    /// The group's address.
    pub(crate) address: IpAddr,
    /// The local address, of the same family; it selects the interface if its index is not known.
    pub(crate) own: IpAddr,
    /// Index of the interface; 0: unknown.
    pub(crate) interface: u32,
}

/// A socket that has joined a group.
pub(crate) struct GroupSocket {
    _not_inherited: NotInherited,
    socket: Socket,
    pub(super) group: IpAddr,
    /// Value of the kernel's count of dropped datagrams when it was last seen.
    pub(super) dropped: u32,
}

impl GroupSocket {
    /// Opens a socket on the group's address and joins the group on the interface.
    pub(crate) fn open(group: &Group, sizes: &SocketSizes) -> Result<Self, OpenError> {
        let fail = |source: io::Error| OpenError {
            message: format!(
                "the multicast group {} cannot be joined on interface {} of {} (its port is {ROCE_PORT})",
                group.address, group.interface, group.own
            ),
            source,
        };
        let socket = open_socket(group, sizes).map_err(fail)?;
        let _not_inherited = NotInherited::new(socket.as_fd());
        Ok(Self { _not_inherited, socket, group: group.address, dropped: 0 })
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn open_socket(group: &Group, sizes: &SocketSizes) -> io::Result<Socket> {
    let socket = udp_socket(group.address)?;
    socket.set_recv_buffer_size(sizes.receive_bytes)?;
    set_option(socket.as_fd(), SocketOption::ReportOverflow, true)?;
    // Other members on this machine, of this user or another, have the same address.
    socket.set_reuse_address(true)?;
    let (report, only_joined) = match group.address {
        IpAddr::V4(_) => {
            ([SocketOption::ReportHopLimit4, SocketOption::ReportTrafficClass4], SocketOption::MulticastOfOthers4)
        }
        IpAddr::V6(_) => {
            set_option(socket.as_fd(), SocketOption::AcceptNoChecksum6, true)?;
            ([SocketOption::ReportHopLimit6, SocketOption::ReportTrafficClass6], SocketOption::MulticastOfOthers6)
        }
    };
    for option in report {
        set_option(socket.as_fd(), option, true)?;
    }
    // An older kernel (IPv6 before 4.20) also delivers packets that arrive on other interfaces.
    let _ = set_option(socket.as_fd(), only_joined, false);
    match (group.address, group.own) {
        (IpAddr::V4(address), IpAddr::V4(own)) => {
            socket.bind(&SocketAddr::new(address.into(), ROCE_PORT).into())?;
            let interface = match group.interface {
                0 => InterfaceIndexOrAddress::Address(own),
                index => InterfaceIndexOrAddress::Index(index),
            };
            socket.join_multicast_v4_n(&address, &interface)?;
        }
        (IpAddr::V6(address), _) => {
            socket.bind(&SocketAddr::from(SocketAddrV6::new(address, ROCE_PORT, 0, group.interface)).into())?;
            socket.join_multicast_v6(&address, group.interface)?;
        }
        (IpAddr::V4(_), IpAddr::V6(_)) => return Err(io::ErrorKind::InvalidInput.into()),
    }
    Ok(socket)
}

/// A shard's group sockets. Polling them while none is readable takes one system call, however many there are.
#[derive(Default)]
pub(super) struct GroupSockets {
    pub(super) sockets: Vec<GroupSocket>,
    set: Option<Epoll>,
}

impl GroupSockets {
    /// Adds a socket.
    pub(super) fn add(&mut self, socket: GroupSocket) -> io::Result<()> {
        let set = match self.set.take() {
            Some(set) => set,
            None => Epoll::new()?,
        };
        let added = set.add(socket.descriptor(), Interest::Readable);
        self.set = Some(set);
        added?;
        self.sockets.push(socket);
        Ok(())
    }

    /// Closes the group's socket, which leaves the group.
    pub(super) fn remove(&mut self, group: IpAddr) {
        self.sockets.retain(|socket| socket.group != group);
    }

    pub(super) fn contains(&self, group: IpAddr) -> bool {
        self.sockets.iter().any(|socket| socket.group == group)
    }

    /// Returns whether one of them may be readable. Without groups this makes no system call.
    #[inline]
    pub(super) fn may_be_ready(&self) -> bool {
        match &self.set {
            Some(set) if !self.sockets.is_empty() => {
                wait_readable([set.as_fd()], Some(Duration::ZERO)).map_or(true, |[ready]| ready)
            }
            _ => false,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::net::UdpSocket;

    use super::*;
    use crate::sys::receive;

    const SIZES: SocketSizes = SocketSizes { receive_bytes: 1 << 20, send_bytes: 1 << 20 };

    #[test]
    fn every_member_gets_a_copy_until_it_leaves() {
        let own: IpAddr = "127.77.5.1".parse().unwrap();
        let group = Group { address: "239.77.5.1".parse().unwrap(), own, interface: 0 };
        let mut members = GroupSockets::default();
        assert!(!members.may_be_ready());
        members.add(GroupSocket::open(&group, &SIZES).unwrap()).unwrap();
        let other = GroupSocket::open(&group, &SIZES).unwrap();
        let stranger = Group { address: "239.77.5.2".parse().unwrap(), ..group };
        let stranger = GroupSocket::open(&stranger, &SIZES).unwrap();
        let sender = UdpSocket::bind((own, 0)).unwrap();
        sender.send_to(b"all", (group.address, ROCE_PORT)).unwrap();
        assert!(members.may_be_ready() && members.contains(group.address));
        let mut buffer = [0; 16];
        for socket in [&members.sockets[0], &other] {
            let received = receive(socket.descriptor(), &mut buffer).unwrap().unwrap();
            assert_eq!((&buffer[..received.length], received.source.ip()), (&b"all"[..], own));
            assert!(received.hop_limit.is_some() && received.traffic_class == Some(0), "{received:?}");
        }
        assert!(receive(stranger.descriptor(), &mut buffer).unwrap().is_none());
        members.remove(group.address);
        assert!(!members.contains(group.address) && !members.may_be_ready());
    }
}
