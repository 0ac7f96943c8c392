//! Who receives on which address: the groups of sockets on port 4791.
//!
//! All sockets of a user's processes on one address form a group ([`super::steering`]). The kernel numbers a group's
//! sockets in the order in which they joined; when one is closed, the last takes its place. So whoever joins or leaves
//! properly knows the new order, under the lock of the address's registry file. When a process ends otherwise, the
//! order is found out with probes: packets that are steered to each number in turn, and that the members answer in the
//! file. A member that does not answer in time, because it is stopped, is given one of the numbers that are left.
//!
//! A packet that reaches the wrong process all the same is passed on to the right one ([`super::mailbox`]), and makes
//! the group be looked at.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use socket2::Socket;

use super::mailbox::{Mailbox, destination_block};
use super::port_holder::inode;
use super::process;
use super::registry::{AddressFile, Answer, Change, Header, Member, Name, Nonce};
use super::steering::{self, probe_destination, probed_index};
use super::sys::{NotInherited, attach_steering, detach_steering, generation, receive};
use super::udp::LocalAddress;
use crate::transport::Datagram;
use crate::types::PeerCapabilities;

/// How long members have to answer a round of probes.
const ANSWER_TIME: Duration = Duration::from_millis(30);
/// How long the answer of a newcomer's own socket takes at most.
const OWN_ANSWER_TIME: Duration = Duration::from_millis(5);
const ANSWER_PAUSE: Duration = Duration::from_micros(100);
/// Rounds before the order is guessed.
const ROUNDS: usize = 8;
/// Tries to open a file that is removed by whoever leaves last.
const OPENINGS: usize = 16;
const PROBE_BYTES: usize = 40;
const PROBE_MAGIC: [u8; 8] = *b"RDMVPROB";

/// What a newcomer brings.
#[derive(Clone, Copy)]
pub(super) struct Newcomer<'a> {
    pub(super) address: LocalAddress,
    /// Blocks of queue pair numbers, whose packets it wants.
    pub(super) blocks: &'a [u32],
    pub(super) capabilities: PeerCapabilities,
}

impl Newcomer<'_> {
    fn blocks(&self) -> Vec<u16> {
        self.blocks.iter().map(|block| *block as u16).collect()
    }
}

/// The sockets of this process on one address.
pub(super) struct Group {
    address: LocalAddress,
    /// What the processes agree on; without a registry this process is alone.
    file: Option<Arc<AddressFile>>,
    members: Vec<OwnMember>,
    routes: Arc<Routes>,
}

struct OwnMember {
    slot: u8,
    socket: Arc<Socket>,
    blocks: Vec<u16>,
}

/// Where packets for other processes on an address go.
struct Routes {
    address: IpAddr,
    mailbox: Option<Arc<Mailbox>>,
    by_block: RwLock<HashMap<u16, Name>>,
}

/// A bound socket's place in its group; it is closed when this is dropped.
pub(super) struct Membership {
    _not_inherited: NotInherited,
    address: IpAddr,
    socket: Option<Arc<Socket>>,
    blocks: Vec<u16>,
    slot: u8,
    file: Option<Arc<AddressFile>>,
    routes: Arc<Routes>,
    generation: usize,
}

/// What became of a packet that arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Route {
    /// It is for this socket, or for nobody that is known.
    Here,
    /// It was for another process, and is on its way there.
    Forwarded,
    /// It was one of the group's own.
    Probe,
}

impl Membership {
    /// Has `bind` make a socket bound to the address, and steers packets for the newcomer's blocks to it.
    ///
    /// `bind` gets the inodes of the sockets that are known to be in the group.
    pub(super) fn join<E: From<io::Error>>(
        newcomer: Newcomer<'_>,
        bind: impl FnOnce(&[u64]) -> Result<Socket, E>,
    ) -> Result<Self, E> {
        let Some(state) = process::state() else {
            return Err(io::Error::other("this process is a fork of a fork, too many generations deep").into());
        };
        let mut groups = state.groups();
        let group = groups.entry(newcomer.address.ip).or_insert_with(|| Group::new(newcomer.address, state));
        let result = group.join(newcomer, bind);
        let ended = if group.members.is_empty() { groups.remove(&newcomer.address.ip) } else { None };
        drop(groups);
        // Not before: it may be the mailbox's last owner, and the mailbox's thread may wait for the groups.
        drop(ended);
        result
    }

    /// The socket.
    #[inline]
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_ref().expect("present until dropped").as_fd()
    }

    /// The mailbox that takes packets for this process.
    pub(super) fn mailbox(&self) -> Option<&Arc<Mailbox>> {
        self.routes.mailbox.as_ref()
    }

    /// Sees to a packet that arrived at this socket.
    #[inline]
    pub(super) fn route(&self, datagram: &Datagram<'_>) -> Route {
        match destination_block(datagram.payload) {
            Some(block) if !self.blocks.contains(&block) => self.route_elsewhere(block, datagram),
            _ => Route::Here,
        }
    }

    #[cold]
    fn route_elsewhere(&self, block: u16, datagram: &Datagram<'_>) -> Route {
        if block == 0 {
            return if self.answer_probe(datagram) { Route::Probe } else { Route::Here };
        }
        let routes = &self.routes;
        let name = routes.by_block.read().unwrap_or_else(PoisonError::into_inner).get(&block).copied();
        if let Some(mailbox) = &routes.mailbox {
            mailbox.request_look(routes.address, false);
            if name.is_some_and(|name| mailbox.forward(&name, datagram)) {
                return Route::Forwarded;
            }
        }
        Route::Here
    }

    /// Answers if this is a probe that somebody of the group sent; the number used once shows it.
    fn answer_probe(&self, datagram: &Datagram<'_>) -> bool {
        let (Some(file), Some((index, nonce))) = (&self.file, parse_probe(datagram.payload)) else { return false };
        let header = file.header();
        if datagram.source != self.address || nonce != header.nonce {
            return false;
        }
        // Without an answer the prober takes this socket for stopped.
        let _ = file.write_answer(self.slot, Answer { nonce, index });
        let is_late = header.is_settled && header.order.get(usize::from(index)) != Some(&self.slot);
        if let Some(mailbox) = self.routes.mailbox.as_ref().filter(|_| is_late) {
            mailbox.request_look(self.address, true);
        }
        true
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let Some(socket) = self.socket.take() else { return };
        if self.generation != generation() {
            return;
        }
        let Some(state) = process::state() else { return };
        let mut groups = state.groups();
        let Some(group) = groups.get_mut(&self.address) else { return };
        group.leave(self.slot, socket);
        let ended = if group.members.is_empty() { groups.remove(&self.address) } else { None };
        drop(groups);
        // Not before: it may be the mailbox's last owner, and the mailbox's thread may wait for the groups.
        drop(ended);
    }
}

/// Looks at the group of an address: finds out its order if that is not known any more. Returns the names of the other
/// processes in it.
pub(super) fn look(address: IpAddr) -> Vec<Name> {
    let Some(state) = process::state() else { return Vec::new() };
    state.groups().get_mut(&address).map_or_else(Vec::new, Group::look)
}

/// What a process of this user that has this queue pair on an address of this machine can do beyond the standard.
pub(crate) fn registered_capabilities(address: IpAddr, qpn: u32) -> Option<PeerCapabilities> {
    let state = process::state()?;
    let block = (qpn >> 12) as u16;
    let of = |members: Vec<(u8, Member)>| {
        members.into_iter().find(|(_, member)| member.blocks.contains(&block)).map(|(_, member)| member.capabilities)
    };
    if let Some(group) = state.groups().get(&address) {
        let file = group.file.as_ref()?;
        return of(file.members(&group.slots()));
    }
    of(state.registry()?.find_address(address)?.members(&[]))
}

impl Group {
    fn new(address: LocalAddress, state: &process::State) -> Self {
        let registry = state.registry();
        let mailbox = registry.and_then(|_| state.mailbox());
        // Without a mailbox packets could not be passed on: then nothing is shared.
        let file = registry.filter(|_| mailbox.is_some()).and_then(|registry| match registry.address(address.ip) {
            Ok(file) => Some(Arc::new(file)),
            Err(error) => {
                tracing::warn!(address = %address.ip, %error, "the address cannot be shared with other processes");
                None
            }
        });
        let routes = Routes { address: address.ip, mailbox, by_block: RwLock::default() };
        Self { address, file, members: Vec::new(), routes: Arc::new(routes) }
    }

    fn slots(&self) -> Vec<u8> {
        self.members.iter().map(|member| member.slot).collect()
    }

    fn join<E: From<io::Error>>(
        &mut self,
        newcomer: Newcomer<'_>,
        bind: impl FnOnce(&[u64]) -> Result<Socket, E>,
    ) -> Result<Membership, E> {
        for _ in 0..OPENINGS {
            let Some(file) = self.file.clone() else { return self.join_alone(newcomer, bind) };
            match file.change() {
                Ok(change) => return self.join_others(newcomer, &file, change, bind),
                // Removed by whoever left last: opened again.
                Err(error) if error.kind() == io::ErrorKind::NotFound && self.members.is_empty() => {
                    let registry = process::state().and_then(process::State::registry);
                    self.file = registry.map(|registry| registry.address(self.address.ip)).transpose()?.map(Arc::new);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::Error::other("the registry's file is removed again and again").into())
    }

    fn join_others<E: From<io::Error>>(
        &mut self,
        newcomer: Newcomer<'_>,
        file: &Arc<AddressFile>,
        change: Change<'_>,
        bind: impl FnOnce(&[u64]) -> Result<Socket, E>,
    ) -> Result<Membership, E> {
        let own = self.slots();
        let Some(slot) = file.claim(&own)? else {
            let message = "128 sockets of this user receive on the address, and no more can";
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, message).into());
        };
        let bound = self.bind_member(newcomer, file, slot, bind);
        let socket = bound.inspect_err(|_| {
            file.release(slot);
            if file.members(&own).is_empty() {
                file.remove(&change);
            }
        })?;
        let membership = self.add(slot, socket, newcomer, Some(Arc::clone(file)));
        self.arrange(file, &change, Some(&membership));
        drop(change);
        self.call_others(file);
        Ok(membership)
    }

    /// A bound socket, and its entry in the file.
    fn bind_member<E: From<io::Error>>(
        &self,
        newcomer: Newcomer<'_>,
        file: &AddressFile,
        slot: u8,
        bind: impl FnOnce(&[u64]) -> Result<Socket, E>,
    ) -> Result<Socket, E> {
        let known: Vec<u64> = file.members(&self.slots()).iter().map(|(_, member)| member.inode).collect();
        let socket = bind(&known)?;
        let member = Member {
            process: std::process::id(),
            inode: inode(socket.as_fd()).unwrap_or_default(),
            name: self.routes.mailbox.as_ref().map_or_else(Name::default, |mailbox| mailbox.name()),
            capabilities: newcomer.capabilities,
            blocks: newcomer.blocks(),
        };
        file.write_member(slot, &member)?;
        Ok(socket)
    }

    fn join_alone<E: From<io::Error>>(
        &mut self,
        newcomer: Newcomer<'_>,
        bind: impl FnOnce(&[u64]) -> Result<Socket, E>,
    ) -> Result<Membership, E> {
        let known: Vec<u64> = self.members.iter().filter_map(|member| inode(member.socket.as_fd())).collect();
        let socket = bind(&known)?;
        // No file: a slot is only a name for the member.
        let slot = (0..=u8::MAX).find(|slot| !self.slots().contains(slot)).unwrap_or_default();
        let membership = self.add(slot, socket, newcomer, None);
        self.steer_own();
        Ok(membership)
    }

    fn add(&mut self, slot: u8, socket: Socket, newcomer: Newcomer<'_>, file: Option<Arc<AddressFile>>) -> Membership {
        let (socket, blocks) = (Arc::new(socket), newcomer.blocks());
        self.members.push(OwnMember { slot, socket: Arc::clone(&socket), blocks: blocks.clone() });
        Membership {
            _not_inherited: NotInherited::new(socket.as_fd()),
            address: self.address.ip,
            socket: Some(socket),
            blocks,
            slot,
            file,
            routes: Arc::clone(&self.routes),
            generation: generation(),
        }
    }

    fn leave(&mut self, slot: u8, socket: Arc<Socket>) {
        let Some(place) = self.members.iter().position(|member| member.slot == slot) else { return };
        let Some(file) = self.file.clone() else {
            drop(socket);
            // The last reference: the socket is closed, and the kernel moves the last one into its place as well.
            self.members.swap_remove(place);
            return self.steer_own();
        };
        // Without the lock the others find out by themselves.
        let change = file.change().ok();
        let mut header = file.header();
        let others: Vec<(u8, Member)> =
            file.members(&self.slots()).into_iter().filter(|(present, _)| *present != slot).collect();
        match header.order.iter().position(|present| *present == slot) {
            Some(index) => drop(header.order.swap_remove(index)),
            None => header.is_settled = false,
        }
        // What was answered before counts no more, because a socket moves. Should randomness fail, the group is probed.
        header.is_settled &= getrandom::fill(&mut header.nonce).is_ok();
        // Before the socket is closed, because it takes one to do so. Meanwhile the one that moves may miss packets.
        attach(&socket, &header.order, &others, self.address.ip);
        let _ = file.write_header(&header);
        drop(socket);
        self.members.swap_remove(place);
        file.release(slot);
        match &change {
            Some(change) if others.is_empty() => file.remove(change),
            _ => {}
        }
        drop(change);
        self.call_others(&file);
    }

    /// Finds out whether all is as it should be, and puts it right if not.
    fn look(&mut self) -> Vec<Name> {
        let Some(file) = self.file.clone() else { return Vec::new() };
        if let Ok(change) = file.change() {
            self.arrange(&file, &change, None);
        }
        self.refresh_routes(&file)
    }

    /// The names of the other processes in the group; from now on packets for them are passed on.
    fn refresh_routes(&self, file: &AddressFile) -> Vec<Name> {
        let own = self.slots();
        let others: Vec<Member> =
            file.members(&own).into_iter().filter(|(slot, _)| !own.contains(slot)).map(|(_, member)| member).collect();
        let routes = others.iter().flat_map(|member| member.blocks.iter().map(|block| (*block, member.name)));
        *self.routes.by_block.write().unwrap_or_else(PoisonError::into_inner) = routes.collect();
        others.into_iter().map(|member| member.name).collect()
    }

    /// Has all processes of the group, this one too, look at it.
    fn call_others(&self, file: &AddressFile) {
        let Some(mailbox) = &self.routes.mailbox else { return };
        let mut names: Vec<Name> = file.members(&self.slots()).into_iter().map(|(_, member)| member.name).collect();
        names.sort_unstable();
        names.dedup();
        mailbox.call(names.into_iter(), self.address.ip);
        if !self.members.is_empty() {
            mailbox.request_look(self.address.ip, true);
        }
    }

    /// Gives the group the program for its present members, if it has not got it.
    fn arrange(&self, file: &AddressFile, _change: &Change<'_>, newcomer: Option<&Membership>) {
        let own = self.slots();
        let members = file.members(&own);
        let Some(socket) = self.members.first().map(|member| &member.socket) else { return };
        let mut header = file.header();
        let was_settled = header.is_settled && header.order.iter().all(|slot| file.is_present(*slot, &own));
        let present =
            |order: &[u8]| order.len() == members.len() && members.iter().all(|(slot, _)| order.contains(slot));
        if newcomer.is_none() && was_settled && present(&header.order) && self.answers_fit(file, &header) {
            return self.adopt(socket, &header.order, &members);
        }
        if let Some(newcomer) = newcomer.filter(|_| was_settled) {
            header.order.push(newcomer.slot);
            if present(&header.order) && (members.len() == 1 || self.is_last(file, &mut header, &members, newcomer)) {
                return self.settle_with(file, socket, header, &members);
            }
        }
        header.is_settled = false;
        header.order = self.probe_order(file, &mut header, &members, newcomer);
        self.settle_with(file, socket, header, &members);
    }

    fn settle_with(&self, file: &AddressFile, socket: &Socket, mut header: Header, members: &[(u8, Member)]) {
        header.is_settled = true;
        self.adopt(socket, &header.order, members);
        if let Err(error) = file.write_header(&header) {
            tracing::warn!(address = %self.address.ip, %error, "the registry cannot be written");
        }
    }

    fn adopt(&self, socket: &Socket, order: &[u8], members: &[(u8, Member)]) {
        if members.len() > 1 {
            attach(socket, order, members, self.address.ip);
        } else {
            // All packets are its own; without a program they arrive a little sooner. If an older kernel keeps the last
            // one, that does no harm: sockets that it names and that are gone stand for any.
            let _ = detach_steering(socket.as_fd());
        }
    }

    /// Whether what the own members answered to the latest probes is what was made of it: somebody who was stopped then
    /// may have been given a wrong number.
    fn answers_fit(&self, file: &AddressFile, header: &Header) -> bool {
        self.members.iter().all(|member| {
            let answered = file.answer(member.slot, &header.nonce);
            answered.is_none_or(|index| header.order.get(usize::from(index)) == Some(&member.slot))
        })
    }

    /// Whether the newcomer's socket is the last one, as it must be if the order was known.
    fn is_last(
        &self,
        file: &AddressFile,
        header: &mut Header,
        members: &[(u8, Member)],
        newcomer: &Membership,
    ) -> bool {
        let index = header.order.len() - 1;
        attach(newcomer.socket.as_deref().unwrap_or(&self.members[0].socket), &header.order, members, self.address.ip);
        let Ok(prober) = self.begin_probing(file, header) else { return false };
        if self.probe(&prober, index as u16, &header.nonce).is_err() {
            return false;
        }
        let end = Instant::now() + OWN_ANSWER_TIME;
        while Instant::now() < end {
            self.take_probes(newcomer);
            if let Some(answered) = file.answer(newcomer.slot, &header.nonce) {
                return usize::from(answered) == index;
            }
            std::thread::sleep(ANSWER_PAUSE);
        }
        false
    }

    /// Finds out the order.
    fn probe_order(
        &self,
        file: &AddressFile,
        header: &mut Header,
        members: &[(u8, Member)],
        newcomer: Option<&Membership>,
    ) -> Vec<u8> {
        let mut found: Vec<Option<u8>> = vec![None; members.len()];
        if let (true, Some(socket)) = (members.len() > 1, self.members.first().map(|member| &member.socket)) {
            // Any order will do: probes go to the socket that they count.
            let guess: Vec<u8> = members.iter().map(|(slot, _)| *slot).collect();
            attach(socket, &guess, members, self.address.ip);
            for _ in 0..ROUNDS {
                match self.probe_round(file, header, members, newcomer) {
                    Ok(answers) => {
                        found = answers;
                        break;
                    }
                    // A socket is there that belongs to nobody alive: its process is about to close it.
                    Err(()) => std::thread::sleep(Duration::from_millis(2)),
                }
            }
        }
        fill_gaps(&found, members)
    }

    /// One probe to each number. What the members answered, by number; an error if that does not fit together.
    fn probe_round(
        &self,
        file: &AddressFile,
        header: &mut Header,
        members: &[(u8, Member)],
        newcomer: Option<&Membership>,
    ) -> Result<Vec<Option<u8>>, ()> {
        let prober = self.begin_probing(file, header).map_err(drop)?;
        for index in 0..members.len() {
            self.probe(&prober, index as u16, &header.nonce).map_err(drop)?;
        }
        let end = Instant::now() + ANSWER_TIME;
        loop {
            newcomer.iter().for_each(|newcomer| self.take_probes(newcomer));
            let answers: Vec<(u8, Option<u16>)> =
                members.iter().map(|(slot, _)| (*slot, file.answer(*slot, &header.nonce))).collect();
            if answers.iter().all(|(_, answer)| answer.is_some()) || Instant::now() >= end {
                let mut order = vec![None; members.len()];
                for (slot, index) in answers.into_iter().filter_map(|(slot, index)| Some((slot, index?))) {
                    let place = order.get_mut(usize::from(index)).ok_or(())?;
                    if place.replace(slot).is_some() {
                        return Err(());
                    }
                }
                return Ok(order);
            }
            std::thread::sleep(ANSWER_PAUSE);
        }
    }

    /// A socket to send probes from, and a new number for them in the file.
    fn begin_probing(&self, file: &AddressFile, header: &mut Header) -> io::Result<UdpSocket> {
        getrandom::fill(&mut header.nonce).map_err(io::Error::other)?;
        file.write_header(&Header { is_settled: false, ..header.clone() })?;
        UdpSocket::bind(self.address.socket_address(self.address.ip, 0))
    }

    fn probe(&self, prober: &UdpSocket, index: u16, nonce: &Nonce) -> io::Result<()> {
        prober.send_to(&probe_packet(index, nonce), self.receive_address()?).map(drop)
    }

    fn receive_address(&self) -> io::Result<SocketAddr> {
        let member = self.members.first().ok_or(io::ErrorKind::NotFound)?;
        member.socket.local_addr()?.as_socket().ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Receives for a socket that no shard has yet: probes are answered, and nobody can have sent anything else.
    fn take_probes(&self, newcomer: &Membership) {
        let mut buffer = [0; 256];
        while let Ok(Some(received)) = receive(newcomer.descriptor(), &mut buffer) {
            let datagram = Datagram {
                source: received.source.ip(),
                destination: self.address.ip,
                source_port: received.source.port(),
                segment_index: 0,
                payload: &buffer[..received.length],
            };
            newcomer.route(&datagram);
        }
    }

    /// The program for a process that is alone.
    fn steer_own(&self) {
        let Some(first) = self.members.first() else { return };
        if self.members.len() == 1 {
            let _ = detach_steering(first.socket.as_fd());
            return;
        }
        let blocks: Vec<&[u16]> = self.members.iter().map(|member| member.blocks.as_slice()).collect();
        attach_program(&first.socket, &blocks, self.address.ip);
    }
}

/// Those that did not answer get the numbers that are left.
fn fill_gaps(found: &[Option<u8>], members: &[(u8, Member)]) -> Vec<u8> {
    let mut silent = members.iter().map(|(slot, _)| *slot).filter(|slot| !found.contains(&Some(*slot)));
    found.iter().filter_map(|slot| slot.or_else(|| silent.next())).collect()
}

/// Attaches the program for members in this order. Dead ones in between get no packets.
fn attach(socket: &Socket, order: &[u8], members: &[(u8, Member)], address: IpAddr) {
    let blocks_of = |slot: &u8| {
        let member = members.iter().find(|(present, _)| present == slot);
        member.map_or(&[][..], |(_, member)| member.blocks.as_slice())
    };
    let blocks: Vec<&[u16]> = order.iter().map(blocks_of).collect();
    attach_program(socket, &blocks, address);
}

fn attach_program(socket: &Socket, blocks: &[&[u16]], address: IpAddr) {
    if let Err(error) = attach_steering(socket.as_fd(), &steering::program(blocks)) {
        tracing::warn!(%address, %error, members = blocks.len(), "the kernel refused the steering program");
    }
}

fn probe_packet(index: u16, nonce: &Nonce) -> [u8; PROBE_BYTES] {
    let mut packet = [0; PROBE_BYTES];
    packet[4..8].copy_from_slice(&probe_destination(index).to_be_bytes());
    packet[12..20].copy_from_slice(&PROBE_MAGIC);
    packet[20..36].copy_from_slice(nonce);
    packet
}

/// The number that a probe was steered to, and its number used once.
fn parse_probe(packet: &[u8]) -> Option<(u16, Nonce)> {
    let packet: &[u8; PROBE_BYTES] = packet.try_into().ok()?;
    let index = probed_index(u32::from_be_bytes(packet[4..8].try_into().ok()?))?;
    let nonce = packet[20..36].try_into().ok()?;
    (packet[12..20] == PROBE_MAGIC).then_some((index, nonce))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use socket2::{Domain, Type};

    use super::super::sys::wait_readable;
    use super::*;

    const PORT: u16 = 24_791;

    fn bind(address: IpAddr) -> io::Result<Socket> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM.nonblocking(), None)?;
        socket.set_reuse_port(true)?;
        socket.bind(&SocketAddr::new(address, PORT).into())?;
        Ok(socket)
    }

    fn join(address: IpAddr, blocks: &[u32]) -> Membership {
        let address = LocalAddress { ip: address, scope: 0 };
        let newcomer = Newcomer { address, blocks, capabilities: PeerCapabilities::STRANGER };
        Membership::join(newcomer, |_| bind(address.ip)).unwrap()
    }

    fn send_to_block(sender: &UdpSocket, address: IpAddr, block: u32) {
        let mut packet = [0u8; 16];
        packet[5..8].copy_from_slice(&(block << 12 | 0x123).to_be_bytes()[1..]);
        sender.send_to(&packet, (address, PORT)).unwrap();
    }

    /// Packets that arrived, but for the group's own.
    fn received(member: &Membership) -> usize {
        let mut buffer = [0; 64];
        let _ = wait_readable([member.descriptor()], Some(Duration::from_millis(1)));
        let lengths = std::iter::from_fn(|| Some(receive(member.descriptor(), &mut buffer).unwrap()?.length));
        lengths.filter(|length| *length != PROBE_BYTES).count()
    }

    #[test]
    fn members_get_their_blocks_also_after_another_has_left() {
        let address: IpAddr = "127.77.0.1".parse().unwrap();
        let sender = UdpSocket::bind("127.77.0.2:0").unwrap();
        let mut members: Vec<Membership> =
            (0..4u32).map(|index| join(address, &[0x100 + index, 0x200 + index])).collect();
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
        let address = LocalAddress { ip: "127.77.0.3".parse().unwrap(), scope: 0 };
        let newcomer = Newcomer { address, blocks: &[1], capabilities: PeerCapabilities::STRANGER };
        let failed = Membership::join(newcomer, |known| {
            assert!(known.is_empty());
            Err::<Socket, io::Error>(io::ErrorKind::AddrInUse.into())
        });
        assert_eq!(failed.err().map(|error| error.kind()), Some(io::ErrorKind::AddrInUse));
        assert!(!process::state().unwrap().groups().contains_key(&address.ip));
    }

    #[test]
    fn a_lost_order_is_found_out() {
        let address: IpAddr = "127.77.0.4".parse().unwrap();
        let sender = UdpSocket::bind("127.77.0.2:0").unwrap();
        let members: Vec<Membership> = (0..5u32).map(|index| join(address, &[0x300 + index])).collect();
        let file = members[0].file.clone().unwrap();
        // As after several members were killed at once.
        file.write_header(&Header::default()).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| look(address));
            let end = Instant::now() + Duration::from_secs(5);
            while !file.header().is_settled {
                assert!(Instant::now() < end, "nobody found out the order");
                let groups = &members;
                groups.iter().for_each(answer_waiting);
            }
        });
        assert_eq!(file.header().order.len(), 5);
        members.iter().for_each(answer_waiting);
        (0..5).for_each(|block| send_to_block(&sender, address, 0x300 + block));
        assert_eq!(members.iter().map(received).collect::<Vec<_>>(), [1; 5]);
    }

    /// What a shard does with what arrives.
    fn answer_waiting(member: &Membership) {
        let mut buffer = [0; 256];
        while let Some(received) = receive(member.descriptor(), &mut buffer).unwrap() {
            let datagram = Datagram {
                source: received.source.ip(),
                destination: member.address,
                source_port: received.source.port(),
                segment_index: 0,
                payload: &buffer[..received.length],
            };
            member.route(&datagram);
        }
    }

    #[test]
    fn gaps_are_filled_with_the_silent() {
        let member = |slot| {
            let capabilities = PeerCapabilities::STRANGER;
            (slot, Member { process: 1, inode: 1, name: Name::default(), capabilities, blocks: Vec::new() })
        };
        let members = [member(2), member(5), member(7)];
        assert_eq!(fill_gaps(&[None, Some(5), None], &members), [2, 5, 7]);
        assert_eq!(fill_gaps(&[Some(7), Some(2), Some(5)], &members), [7, 2, 5]);
    }
}
