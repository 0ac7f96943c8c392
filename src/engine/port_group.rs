//! Who of this process receives on which address: the groups of sockets on port 4791.
//!
//! A packet reaches the socket that owns its queue pair's block ([`super::steering`]). The kernel numbers a group's
//! sockets in the order in which they joined; when one is closed, the last takes its place. Closing happens here,
//! under the registry's lock, so the registry always knows the order and renews the program at once. Packets that
//! arrive in between may reach the wrong socket, where they are dropped and counted; reliable connections repeat them.
//!
//! Two processes do not share an address: the second one's program would take the first one's packets. Whoever finds a
//! foreign socket in its group gives up and says whose it is.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use socket2::Socket;

use super::steering;
use super::sys::{attach_steering, detach_steering};

/// The groups of this process, by address.
static GROUPS: Mutex<BTreeMap<IpAddr, Vec<Member>>> = Mutex::new(BTreeMap::new());

struct Member {
    socket: Arc<Socket>,
    blocks: Vec<u32>,
}

/// A bound socket's place in its group; it is closed when this is dropped.
pub(super) struct Membership {
    address: IpAddr,
    socket: Option<Arc<Socket>>,
}

impl Membership {
    /// Has `bind` make a socket bound to `address`, and steers packets for `blocks` to it.
    ///
    /// `bind` gets the sockets of this process that are in the group already.
    pub(super) fn join<E>(
        address: IpAddr,
        blocks: &[u32],
        bind: impl FnOnce(&[BorrowedFd<'_>]) -> Result<Socket, E>,
    ) -> Result<Self, E> {
        let mut groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
        let group = groups.entry(address).or_default();
        let present: Vec<BorrowedFd<'_>> = group.iter().map(|member| member.socket.as_fd()).collect();
        let result = bind(&present);
        drop(present);
        match result {
            Ok(socket) => {
                let socket = Arc::new(socket);
                group.push(Member { socket: Arc::clone(&socket), blocks: blocks.to_vec() });
                steer(address, group);
                Ok(Self { address, socket: Some(socket) })
            }
            Err(error) => {
                if group.is_empty() {
                    groups.remove(&address);
                }
                Err(error)
            }
        }
    }

    /// The socket.
    #[inline]
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_ref().expect("present until dropped").as_fd()
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let mut groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(socket) = self.socket.take() else { return };
        let Some(group) = groups.get_mut(&self.address) else { return };
        if let Some(index) = group.iter().position(|member| Arc::ptr_eq(&member.socket, &socket)) {
            drop(socket);
            // The last reference: the socket is closed, and the kernel moves the last one into its place as well.
            drop(group.swap_remove(index));
        }
        if group.is_empty() {
            groups.remove(&self.address);
        } else {
            steer(self.address, group);
        }
    }
}

/// Gives the group the program for its present members.
fn steer(address: IpAddr, group: &[Member]) {
    let blocks: Vec<&[u32]> = group.iter().map(|member| member.blocks.as_slice()).collect();
    let Some(first) = group.first() else { return };
    if group.len() == 1 {
        // All packets are its own; without a program they arrive a little sooner. If an older kernel keeps the last
        // one, that does no harm: sockets that it names and that are gone stand for any.
        let _ = detach_steering(first.socket.as_fd());
        return;
    }
    if let Err(error) = attach_steering(first.socket.as_fd(), &steering::program(&blocks)) {
        tracing::warn!(%address, %error, members = group.len(), "the kernel refused the steering program");
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io;
    use std::net::{SocketAddr, UdpSocket};
    use std::time::Duration;

    use socket2::{Domain, Type};

    use super::super::sys::{receive, wait_readable};
    use super::*;

    const PORT: u16 = 24_791;

    fn bind(address: IpAddr) -> io::Result<Socket> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM.nonblocking(), None)?;
        socket.set_reuse_port(true)?;
        socket.bind(&SocketAddr::new(address, PORT).into())?;
        Ok(socket)
    }

    fn send_to_block(sender: &UdpSocket, address: IpAddr, block: u32) {
        let mut packet = [0u8; 16];
        packet[5..8].copy_from_slice(&(block << 12 | 0x123).to_be_bytes()[1..]);
        sender.send_to(&packet, (address, PORT)).unwrap();
    }

    fn received(member: &Membership) -> usize {
        let mut buffer = [0; 64];
        let _ = wait_readable([member.descriptor()], Some(Duration::from_millis(1)));
        std::iter::from_fn(|| receive(member.descriptor(), &mut buffer).unwrap()).count()
    }

    #[test]
    fn members_get_their_blocks_also_after_another_has_left() {
        let address: IpAddr = "127.77.0.1".parse().unwrap();
        let sender = UdpSocket::bind("127.77.0.2:0").unwrap();
        let mut members: Vec<Membership> = (0..4u32)
            .map(|index| Membership::join(address, &[0x100 + index, 0x200 + index], |_| bind(address)).unwrap())
            .collect();
        let mut present = vec![0, 1, 2, 3];
        // The first leaves, then one in the middle, so that the kernel moves members around.
        for leaver in [None, Some(0), Some(1)] {
            if let Some(index) = leaver {
                drop(members.remove(index));
                present.remove(index);
            }
            for block in &present {
                (0..10).for_each(|_| send_to_block(&sender, address, 0x100 + block));
                send_to_block(&sender, address, 0x200 + block);
            }
            let counts: Vec<usize> = members.iter().map(received).collect();
            assert!(counts.iter().all(|count| *count == 11), "after {leaver:?}: {counts:?}");
        }
    }

    #[test]
    fn failed_binding_leaves_no_trace() {
        let address: IpAddr = "127.77.0.3".parse().unwrap();
        assert!(Membership::join(address, &[1], |present| Err::<Socket, usize>(present.len())).is_err());
        assert!(!GROUPS.lock().unwrap().contains_key(&address));
    }
}
