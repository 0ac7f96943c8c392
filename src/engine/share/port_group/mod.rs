//! The receivers of each address: groups of sockets on port 4791.
//!
//! All sockets of a user's processes on one address form a group ([`super::steering`]). The kernel numbers a group's
//! sockets in the order in which they joined; when one is closed, the last takes its index. So a process that joins or
//! leaves properly knows the new order, and publishes it under the lock of the address's registry file. When a process
//! ends without leaving, the order is determined with probes: packets that are steered to each index in turn, and that
//! the members answer in the file. A member that does not answer in time, because it is stopped, gets one of the
//! remaining indices.
//!
//! A packet that nevertheless reaches the wrong process is forwarded to the right one ([`super::mailbox`]), and
//! triggers a check of the group.

mod order;
mod routes;
mod steered;

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError, Weak};

use socket2::Socket;

use self::order::parse_probe;
use self::routes::Routes;
pub(crate) use self::steered::steer_requests;
use super::key_share::key_share;
use super::mailbox::{GroupSearches, LinkRequest, Mailbox, Postbox, Recipient, lock, request_link};
use super::port_holder::{holders, inode};
use super::ports;
use super::registry::{AddressFile, Answer, Change, Member, Name, Registry};
use crate::sys::{Generation, LocalAddress, NotInherited, PerGeneration, own_user};
use crate::transport::Datagram;
use crate::types::{PeerCapabilities, PeerKey, ROCE_PORT};

/// Attempts to open a file that the last member removes when it leaves.
const OPENINGS: usize = 16;

/// The groups of sockets that this process receives with, by address. This lock is held only for a moment; a group's
/// own lock is held while the group waits for other processes. Both are locked before a mailbox's locks.
static GROUPS: PerGeneration<Mutex<BTreeMap<IpAddr, Arc<Mutex<Group>>>>> = PerGeneration::new();

fn groups() -> Option<MutexGuard<'static, BTreeMap<IpAddr, Arc<Mutex<Group>>>>> {
    Some(lock(GROUPS.get()?))
}

/// A group that a thread uses. When the last thread has finished, a group without members is removed.
struct GroupRef {
    address: IpAddr,
    /// Present until dropped.
    group: Option<Arc<Mutex<Group>>>,
}

impl GroupRef {
    fn find(address: IpAddr) -> Option<Self> {
        let group = Arc::clone(groups()?.get(&address)?);
        Some(Self { address, group: Some(group) })
    }

    fn find_or_create(address: LocalAddress) -> Option<Self> {
        let mut groups = groups()?;
        let group = groups.entry(address.ip).or_insert_with(|| Arc::new(Mutex::new(Group::new(address))));
        Some(Self { address: address.ip, group: Some(Arc::clone(group)) })
    }

    fn lock(&self) -> MutexGuard<'_, Group> {
        lock(self.group.as_ref().expect("present until dropped"))
    }

    /// Returns the group unless it changes or is checked, which takes seconds if processes on the address are stopped.
    fn try_lock(&self) -> Option<MutexGuard<'_, Group>> {
        match self.group.as_ref()?.try_lock() {
            Ok(group) => Some(group),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl Drop for GroupRef {
    fn drop(&mut self) {
        self.group = None;
        let Some(mut groups) = groups() else { return };
        // Without another reference, no thread has the group locked, and none can find it now.
        let is_unused = |group: &Arc<Mutex<Group>>| Arc::strong_count(group) == 1 && lock(group).members.is_empty();
        if groups.get(&self.address).is_some_and(is_unused) {
            groups.remove(&self.address);
        }
    }
}

/// Description of a joining socket.
#[derive(Clone, Copy)]
pub(crate) struct JoinRequest<'a> {
    pub(crate) address: LocalAddress,
    /// QPN blocks whose packets it receives.
    pub(crate) blocks: &'a [u32],
    pub(crate) capabilities: PeerCapabilities,
    /// Takes what other processes send to it through this one's mailbox: the packets that they receive in its place,
    /// and offers of shared memory. They may come as soon as the registry has the socket.
    pub(crate) recipient: Option<&'a Weak<dyn Recipient>>,
}

impl JoinRequest<'_> {
    fn blocks(&self) -> Vec<u16> {
        self.blocks.iter().map(|block| *block as u16).collect()
    }
}

/// The sockets of this process on one address.
pub(super) struct Group {
    address: LocalAddress,
    /// State shared by the processes; `None` without a registry: then no other process can share the address.
    file: Option<Arc<AddressFile>>,
    members: Vec<OwnMember>,
    routes: Arc<Routes>,
}

struct OwnMember {
    slot: u8,
    socket: Arc<Socket>,
    blocks: Vec<u16>,
}

/// A bound socket's membership in its group. Dropping it closes the socket.
pub(crate) struct Membership {
    not_inherited: Option<NotInherited>,
    address: IpAddr,
    socket: Option<Arc<Socket>>,
    blocks: Vec<u16>,
    slot: u8,
    file: Option<Arc<AddressFile>>,
    routes: Arc<Routes>,
    generation: Generation,
    /// Dropped without a lock: the mailbox's thread, which ends with its last owner, may wait for the group.
    _mailbox: Option<Arc<Mailbox>>,
}

/// Outcome of routing a received packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Route {
    /// The packet is for this socket, or for no known one.
    Here,
    /// The packet was for another socket and was forwarded to it.
    Forwarded,
    /// The packet was for another socket, which could not be reached.
    Lost,
    /// The packet was one of the group's probes.
    Probe,
}

impl Membership {
    /// Binds a socket to the address with `bind`, and steers packets for its blocks to it unless `check` fails.
    ///
    /// `check` gets the bound socket, and a function that reads the inodes of the sockets that are known to be in the
    /// group. A later call may return more: if this process was stopped while it joined, another one may join at the
    /// same time.
    pub(crate) fn join<E: From<io::Error>>(
        request: JoinRequest<'_>,
        bind: impl FnOnce() -> Result<Socket, E>,
        check: impl FnOnce(&Socket, &dyn Fn() -> Vec<u64>) -> Result<(), E>,
    ) -> Result<Self, E> {
        // Kept until no lock is held, also if the socket cannot join.
        let mailbox = Registry::of_process().and_then(|registry| Mailbox::of_process(registry, SEARCHES));
        let Some(group) = GroupRef::find_or_create(request.address) else {
            return Err(io::Error::other("too many generations of forks").into());
        };
        let postbox = mailbox.as_ref().map(|mailbox| mailbox.postbox());
        if let (Some(postbox), Some(recipient)) = (&postbox, request.recipient) {
            postbox.add_recipient(request.address.ip, &request.blocks(), recipient);
        }
        let mut membership = group.lock().join(request, postbox, bind, check)?;
        membership._mailbox = mailbox;
        Ok(membership)
    }

    /// Returns the socket.
    #[inline]
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_ref().expect("present until dropped").as_fd()
    }

    /// Answers a probe of the group, which the nonce identifies. Returns whether the packet is one.
    fn answer_probe(&self, datagram: &Datagram<'_>) -> bool {
        if datagram.source != self.address {
            return false;
        }
        let (Some(file), Some((index, nonce))) = (&self.file, parse_probe(datagram.payload)) else { return false };
        let header = file.header();
        if nonce != header.nonce {
            return false;
        }
        // Without an answer the prober assumes that this process is stopped.
        let _ = file.write_answer(self.slot, Answer { nonce, index });
        let is_late = header.is_settled && header.order.get(usize::from(index)) != Some(&self.slot);
        if let Some(postbox) = self.routes.postbox.as_ref().filter(|_| is_late) {
            postbox.request_check(self.address, true);
        }
        true
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        // Before the socket is closed and its number is reused.
        self.not_inherited = None;
        let Some(socket) = self.socket.take() else { return };
        if !self.generation.is_current() {
            return;
        }
        if let Some(group) = GroupRef::find(self.address) {
            group.lock().leave(self.slot, socket);
        }
    }
}

/// The functions for the mailbox's thread.
const SEARCHES: GroupSearches = GroupSearches { check: check_group, find: member_with_block };

/// Checks the group of an address and determines its order if it is no longer known. Returns the names of the other
/// processes in it.
fn check_group(address: IpAddr) -> Vec<Name> {
    GroupRef::find(address).map(|group| group.lock().check()).unwrap_or_default()
}

/// The registry's entry for the process of this user that has a queue pair on an address of this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RegisteredPeer {
    /// Its capabilities beyond the standard.
    pub(crate) capabilities: PeerCapabilities,
    /// The key of its connections with this process; the peer may not have found it yet.
    pub(crate) key: Option<PeerKey>,
}

/// Finds the process of this user that has this queue pair on an address of this machine.
pub(crate) fn registered_peer(address: IpAddr, qpn: u32) -> Option<RegisteredPeer> {
    let member = registered_member(address, qpn)?;
    let key = key_share().zip(member.key_share);
    let key = key.map(|(local, remote)| PeerKey { local, remote, is_agreed: false });
    Some(RegisteredPeer { capabilities: member.capabilities, key })
}

/// Requests a link from a shard of this process to the process that has this queue pair on an address of this machine.
/// Returns false if there is no such process.
pub(crate) fn link_to(own: IpAddr, own_blocks: Vec<u16>, peer: IpAddr, qpn: u32) -> bool {
    let Some(Member { name, blocks: peer_blocks, .. }) = registered_member(peer, qpn) else { return false };
    request_link(LinkRequest { own, own_blocks, peer, peer_blocks, name });
    true
}

/// Returns the other user whose process receives RoCEv2 packets at an address of this machine, if it is another one.
pub(crate) fn other_user_at(address: IpAddr) -> Option<u32> {
    holders(address, ROCE_PORT).iter().map(|holder| holder.user).find(|user| *user != own_user())
}

/// Returns the member that has this queue pair on an address of this machine.
fn registered_member(address: IpAddr, qpn: u32) -> Option<Member> {
    member_with_block(address, (qpn >> 12) as u16)
}

/// Returns the member that has this block of queue pair numbers on an address of this machine.
fn member_with_block(address: IpAddr, block: u16) -> Option<Member> {
    if let Some(group) = GroupRef::find(address)
        && let Some(group) = group.try_lock()
        && !group.members.is_empty()
    {
        return group.file.as_ref()?.member_with_block(&group.slots(), block);
    }
    // In an open file of its own, the locks of this process's members are those of others.
    Registry::of_process()?.find_address(address)?.member_with_block(&[], block)
}

impl Group {
    fn new(address: LocalAddress) -> Self {
        Self { address, file: None, members: Vec::new(), routes: Arc::new(Routes::new(address.ip, None)) }
    }

    /// Prepares the group for its first member.
    fn begin(&mut self, postbox: Option<&Arc<Postbox>>) {
        self.file = None;
        self.routes = Arc::new(Routes::new(self.address.ip, postbox.cloned()));
        if postbox.is_some() {
            self.open_file();
        }
    }

    fn slots(&self) -> Vec<u8> {
        self.members.iter().map(|member| member.slot).collect()
    }

    fn join<E: From<io::Error>>(
        &mut self,
        request: JoinRequest<'_>,
        postbox: Option<&Arc<Postbox>>,
        bind: impl FnOnce() -> Result<Socket, E>,
        check: impl FnOnce(&Socket, &dyn Fn() -> Vec<u64>) -> Result<(), E>,
    ) -> Result<Membership, E> {
        if self.members.is_empty() {
            self.begin(postbox);
        }
        let own = self.slots();
        for _ in 0..OPENINGS {
            let Some(file) = self.file.clone() else { return self.join_alone(request, bind, check) };
            let claimed = file.change().and_then(|change| Ok((file.claim(&own)?, change)));
            match claimed {
                Ok((Some(slot), change)) => {
                    let bound = self.bind_member(request, &file, slot, bind, check);
                    return self.join_others(request, &file, slot, change, bound);
                }
                Ok((None, _)) => {
                    let message = "128 sockets of this user already receive on the address, which is the maximum";
                    return Err(io::Error::new(io::ErrorKind::QuotaExceeded, message).into());
                }
                // This process already shares the address, and must not lose the other processes' packets.
                Err(error) if !own.is_empty() => return Err(error.into()),
                // The last process that left removed the file: open it again.
                Err(error) if error.kind() == io::ErrorKind::NotFound => self.open_file(),
                Err(error) => self.work_alone(&error, Some(&file)),
            }
        }
        Err(io::Error::other("the registry's file was removed on every attempt to open it").into())
    }

    fn open_file(&mut self) {
        let Some(registry) = Registry::of_process() else { return self.file = None };
        match registry.address(self.address.ip) {
            Ok(file) => self.file = Some(Arc::new(file)),
            Err(error) => self.work_alone(&error, None),
        }
    }

    /// Falls back to working without the registry, for example because its file system is full. If there are other
    /// processes on the address, the check of the socket finds them and fails.
    fn work_alone(&mut self, error: &io::Error, file: Option<&AddressFile>) {
        let path = file.map_or(Path::new(""), AddressFile::path).display();
        tracing::warn!(
            target: "rdma_verbs::processes",
            local = %self.address.ip, %path, %error,
            "the registry cannot be used: until this process has closed the address, no other process can share it"
        );
        self.file = None;
    }

    fn join_others<E: From<io::Error>>(
        &mut self,
        request: JoinRequest<'_>,
        file: &Arc<AddressFile>,
        slot: u8,
        change: Change<'_>,
        bound: Result<Socket, E>,
    ) -> Result<Membership, E> {
        let socket = bound.inspect_err(|_| self.withdraw(file, slot, &change))?;
        let membership = self.add(slot, socket, request, Some(Arc::clone(file)));
        let members = file.members(&self.slots());
        self.arrange(file, &change, &members, Some(&membership));
        drop(change);
        self.request_checks(&members);
        // At once: requests for listeners of other processes may arrive before the check.
        self.refresh_routes(members);
        Ok(membership)
    }

    /// Gives up the slot of a socket that was not bound, or did not pass its check. A process that proceeds without the
    /// lock may have found the entry meanwhile.
    fn withdraw(&self, file: &AddressFile, slot: u8, change: &Change<'_>) {
        file.release(slot);
        let mut header = file.header();
        if header.order.contains(&slot) {
            header.is_settled = false;
            let _ = file.write_header(&header);
            self.request_checks(&file.members(&self.slots()));
        }
        if self.members.is_empty() {
            file.remove_if_unused(change);
        }
    }

    /// Binds a socket, writes its entry to the file, and checks it. The entry comes first: two processes that join at
    /// the same time would otherwise take each other's sockets for unknown ones.
    fn bind_member<E: From<io::Error>>(
        &self,
        request: JoinRequest<'_>,
        file: &AddressFile,
        slot: u8,
        bind: impl FnOnce() -> Result<Socket, E>,
        check: impl FnOnce(&Socket, &dyn Fn() -> Vec<u64>) -> Result<(), E>,
    ) -> Result<Socket, E> {
        let socket = bind()?;
        let member = Member {
            process: std::process::id(),
            inode: inode(socket.as_fd()).unwrap_or_default(),
            name: self.routes.postbox.as_ref().map_or_else(Name::default, |postbox| postbox.name()),
            capabilities: request.capabilities,
            key_share: key_share(),
            blocks: request.blocks(),
            listeners: Vec::new(),
        };
        file.write_member(slot, &member)?;
        let own = [self.slots(), vec![slot]].concat();
        check(&socket, &|| file.members(&own).iter().map(|(_, member)| member.inode).collect())?;
        Ok(socket)
    }

    fn join_alone<E: From<io::Error>>(
        &mut self,
        request: JoinRequest<'_>,
        bind: impl FnOnce() -> Result<Socket, E>,
        check: impl FnOnce(&Socket, &dyn Fn() -> Vec<u64>) -> Result<(), E>,
    ) -> Result<Membership, E> {
        let socket = bind()?;
        check(&socket, &|| self.members.iter().filter_map(|member| inode(member.socket.as_fd())).collect())?;
        // Without a file, a slot only identifies the member.
        let slot = (0..=u8::MAX).find(|slot| !self.slots().contains(slot)).unwrap_or_default();
        let membership = self.add(slot, socket, request, None);
        self.steer_own();
        Ok(membership)
    }

    fn add(
        &mut self,
        slot: u8,
        socket: Socket,
        request: JoinRequest<'_>,
        file: Option<Arc<AddressFile>>,
    ) -> Membership {
        let (socket, blocks) = (Arc::new(socket), request.blocks());
        self.members.push(OwnMember { slot, socket: Arc::clone(&socket), blocks: blocks.clone() });
        Membership {
            not_inherited: Some(NotInherited::new(socket.as_fd())),
            address: self.address.ip,
            socket: Some(socket),
            blocks,
            slot,
            file,
            routes: Arc::clone(&self.routes),
            generation: Generation::now(),
            _mailbox: None,
        }
    }

    fn leave(&mut self, slot: u8, socket: Arc<Socket>) {
        let Some(position) = self.members.iter().position(|member| member.slot == slot) else { return };
        let Some(file) = self.file.clone() else {
            drop(socket);
            // Drops the last reference: the socket is closed, and the kernel moves its last socket to the same index.
            self.members.swap_remove(position);
            return self.steer_own();
        };
        // Without the lock, the other processes detect the change by themselves.
        let change = file.change().ok();
        let mut header = file.header();
        let others: Vec<(u8, Member)> =
            file.members(&self.slots()).into_iter().filter(|(present, _)| *present != slot).collect();
        match header.order.iter().position(|present| *present == slot) {
            Some(index) => drop(header.order.swap_remove(index)),
            None => header.is_settled = false,
        }
        // Earlier answers are invalid, because a socket moves. If no random bytes are available, the group is probed.
        header.is_settled &= getrandom::fill(&mut header.nonce).is_ok();
        // Before the socket is closed, because attaching a program needs a socket. Until then the socket that moves may
        // miss packets.
        self.steer(&header.order, &others);
        let _ = file.write_header(&header);
        drop(socket);
        self.members.swap_remove(position);
        file.release(slot);
        if let Some(change) = change.as_ref().filter(|_| self.members.is_empty()) {
            file.remove_if_unused(change);
        }
        drop(change);
        self.request_checks(&others);
    }

    /// Checks the group and repairs it if necessary.
    fn check(&mut self) -> Vec<Name> {
        self.routes.note_check();
        ports::restore();
        // The last member may have left since the caller found the group. No socket here could receive probes then.
        let Some(file) = self.file.clone().filter(|_| !self.members.is_empty()) else { return Vec::new() };
        let change = file.change();
        let members = file.members(&self.slots());
        if let Ok(change) = &change {
            self.arrange(&file, change, &members, None);
        }
        drop(change);
        self.refresh_routes(members)
    }

    /// Updates the routes, so that packets for other members are forwarded, and returns the names of the other
    /// processes in the group.
    fn refresh_routes(&self, members: Vec<(u8, Member)>) -> Vec<Name> {
        let own = self.slots();
        // Including this process's other sockets: a packet for one of them may arrive at another one.
        self.routes.replace(&members);
        members.into_iter().filter(|(slot, _)| !own.contains(slot)).map(|(_, member)| member.name).collect()
    }

    /// Requests that all processes of the group, including this one, check it.
    fn request_checks(&self, members: &[(u8, Member)]) {
        let Some(postbox) = &self.routes.postbox else { return };
        let mut names: Vec<Name> = members.iter().map(|(_, member)| member.name).collect();
        names.sort_unstable();
        names.dedup();
        postbox.request_remote_checks(names.into_iter(), self.address.ip);
        if !self.members.is_empty() {
            postbox.request_check(self.address.ip, true);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
