//! Rings in shared memory to and from other processes of the user, set up over connections between them.
//!
//! A process that sends to another one's shard connects to that process's socket for links, and passes the descriptor
//! of a ring that it writes and the other one reads. Each direction has a connection and a ring of its own. The
//! connection wakes the reader, and its end is that of the link, however either process ends. The shards own the
//! connections, so a link also ends with its shard.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use socket2::{Domain, SockAddr, Socket, Type};

use super::super::listener::Listener;
use super::super::registry::{MAX_BLOCKS, Member, Name, links_path};
use super::access::{AccessRequest, Asked, REQUEST_BYTES, answer, write_request};
use super::message::{from_v6, to_v6};
use super::{Postbox, Recipient, lock};
use crate::memory::record_ring::{RingReader, RingWriter};
use crate::memory::{GateWatch, PeerMemory};
use crate::sys::{
    Epoll, Interest, NotInherited, descriptor_limit, has_ended, own_user, peer_user, receive_with_descriptor,
    send_with_descriptor,
};
use crate::types::NoSharedMemory;

/// Bytes of a ring's records. A stream is as fast with more; with a quarter of a mebibyte, it is not.
const RING_BYTES: usize = 1 << 19;
/// Most links in each direction, and the part of the descriptors of this process that they may have. The application
/// needs descriptors, too, whatever other processes do.
const MOST_LINKS: usize = 1_024;
const DESCRIPTORS_PER_LINK: u64 = 4;
/// Most connections that have not offered a link yet. The offer is the first message, so it has usually arrived when
/// the connection is accepted.
const MOST_GUESTS: usize = 64;
/// Most requests for direct access that are not answered.
const MOST_ASKED: usize = 64;
const VERSION: u8 = 3;
/// Second byte of the message with which a device declines that has shared memory switched off.
const SWITCHED_OFF: u8 = 1;
const HELLO_BYTES: usize = 96;

/// A connection that wakes the reader of a ring.
pub(crate) struct Connection {
    /// Dropped first: the number of a closed descriptor is reused.
    _not_inherited: NotInherited,
    socket: Socket,
}

impl Connection {
    fn new(socket: Socket) -> Arc<Self> {
        Arc::new(Self { _not_inherited: NotInherited::new(socket.as_fd()), socket })
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Finds the registered process with a block on an address of this machine.
type FindMember = fn(IpAddr, u16) -> Option<Member>;

/// Identifies a link within the process.
pub(crate) type LinkId = u64;

/// The destination that a shard wants a link to.
#[derive(Clone, Debug)]
pub(crate) struct LinkRequest {
    pub(crate) own: IpAddr,
    /// Blocks of the shard.
    pub(crate) own_blocks: Vec<u16>,
    pub(crate) peer: IpAddr,
    /// Blocks of the peer's shard.
    pub(crate) peer_blocks: Vec<u16>,
    /// Name of the peer's process.
    pub(crate) name: Name,
}

impl LinkRequest {
    /// Whether both are about the same two shards.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let is_shard = |own: &[u16], other: &[u16]| own.iter().any(|block| other.contains(block));
        (self.own, self.peer, self.name) == (other.own, other.peer, other.name)
            && is_shard(&self.own_blocks, &other.own_blocks)
            && is_shard(&self.peer_blocks, &other.peer_blocks)
    }

    /// Tells the requesting shard why there is no link.
    fn decline(&self, postbox: &Postbox, problem: NoSharedMemory) {
        let LinkRequest { own, peer, .. } = self;
        if let Some(recipient) = self.recipient(postbox) {
            recipient.note_declined(DeclinedLink { own: *own, peer: *peer, blocks: self.peer_blocks.clone(), problem });
        }
    }

    /// Returns the request with the peer's blocks as the registry has them, if they are those of the named process.
    fn if_registered(self, find: FindMember) -> Option<Self> {
        let member = find(self.peer, *self.peer_blocks.first()?)?;
        if member.name != self.name {
            return None;
        }
        Some(Self { peer_blocks: member.blocks, ..self })
    }

    /// Returns the requesting shard.
    fn recipient(&self, postbox: &Postbox) -> Option<Arc<dyn Recipient>> {
        postbox.recipient(self.own, *self.own_blocks.first()?)
    }
}

/// A link that a shard has requested, and will not get.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DeclinedLink {
    pub(crate) own: IpAddr,
    pub(crate) peer: IpAddr,
    /// Blocks of the peer's shard.
    pub(crate) blocks: Vec<u16>,
    pub(crate) problem: NoSharedMemory,
}

/// The writing end of a link.
pub(crate) struct OutgoingLink {
    pub(crate) id: LinkId,
    pub(crate) own: IpAddr,
    pub(crate) peer: IpAddr,
    pub(crate) peer_blocks: Vec<u16>,
    /// Name of the peer's process.
    pub(crate) name: Name,
    pub(crate) ring: RingWriter,
    pub(crate) bell: Arc<Connection>,
    /// The memory that the peer's process exports, if it exports any.
    pub(crate) memory: Option<Arc<PeerMemory>>,
}

impl Drop for OutgoingLink {
    fn drop(&mut self) {
        // Before the connection ends: the peer watches accesses until then.
        self.memory.iter().for_each(|memory| memory.end());
    }
}

/// The reading end of a link.
pub(crate) struct IncomingLink {
    pub(crate) id: LinkId,
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    /// Blocks of the shard that writes.
    pub(crate) source_blocks: Vec<u16>,
    pub(crate) ring: RingReader,
    pub(crate) bell: Arc<Connection>,
    /// Watches the accesses of the link's writer to memory of this process.
    pub(crate) watch: Option<GateWatch>,
}

#[cfg(all(test, not(loom)))]
impl IncomingLink {
    /// Creates a link whose other end is the returned one.
    pub(crate) fn with_writer(source: IpAddr, destination: IpAddr) -> (Self, RingWriter, Arc<Connection>) {
        let (writer, file) = RingWriter::create(RING_BYTES).unwrap();
        let ring = RingReader::open(file.as_fd(), RING_BYTES).unwrap();
        let ends = Socket::pair(Domain::UNIX, Type::SEQPACKET, None).unwrap();
        let (bell, other) = (Connection::new(ends.0), Connection::new(ends.1));
        (Self { id: 1, source, destination, source_blocks: vec![1], ring, bell, watch: None }, writer, other)
    }
}

/// A link that this process has requested.
struct Outgoing {
    id: LinkId,
    request: LinkRequest,
    connection: Weak<Connection>,
    /// Until the peer has accepted.
    offer: Option<(RingWriter, Arc<Connection>)>,
}

/// A link that another process has requested.
struct Incoming {
    id: LinkId,
    connection: Weak<Connection>,
    /// Until the peer has said what it wants.
    guest: Option<Arc<Connection>>,
    recipient: Option<Weak<dyn Recipient>>,
}

/// The links of the process. They belong to the mailbox's thread.
pub(super) struct Links {
    folder: PathBuf,
    listener: Listener,
    find: FindMember,
    last_id: LinkId,
    outgoing: Vec<Outgoing>,
    incoming: Vec<Incoming>,
    /// Requests for direct access that are not answered.
    asked: Vec<Asked>,
}

impl Links {
    /// Creates the links of a process, which has none. `set` is readable while there is something to do.
    pub(super) fn new(folder: &Path, listener: Listener, set: &Epoll, find: FindMember) -> io::Result<Self> {
        listener.watch(set)?;
        let (outgoing, incoming, asked) = (Vec::new(), Vec::new(), Vec::new());
        let folder = folder.to_owned();
        Ok(Self { folder, listener, find, last_id: 0, outgoing, incoming, asked })
    }

    /// Handles everything that has arrived: offers, answers, and the ends of links.
    pub(super) fn take_messages(&mut self, postbox: &Postbox, set: &Epoll) {
        self.outgoing.retain_mut(|link| link.take_welcome(postbox, set) && link.lives(postbox, set));
        self.accept(set);
        self.incoming.retain_mut(|link| link.take_hello(postbox, set, self.find) && link.lives(set));
        self.dismiss_silent();
        self.asked.retain(|asked| asked.waits(postbox));
    }

    /// Closes the oldest connections that have offered nothing, if there are too many.
    fn dismiss_silent(&mut self) {
        let silent = self.incoming.iter().filter(|link| link.guest.is_some()).count();
        let mut many = silent.saturating_sub(MOST_GUESTS);
        self.incoming.retain(|link| {
            let is_dismissed = many > 0 && link.guest.is_some();
            many -= usize::from(is_dismissed);
            !is_dismissed
        });
    }

    /// Watches the listener again if its pause is over. Returns the rest of the pause.
    pub(super) fn resume_listening(&mut self, set: &Epoll) -> Option<Duration> {
        self.listener.resume(set)
    }

    /// Handles the requests of this process's shards.
    pub(super) fn take_requests(&mut self, postbox: &Postbox, set: &Epoll) {
        for request in std::mem::take(&mut *lock(&postbox.links)) {
            if let Err(error) = self.request(request.clone(), postbox, set) {
                request.decline(postbox, problem_of(&error));
            }
        }
        for request in std::mem::take(&mut *lock(&postbox.accesses)) {
            let peer = request.key.peer;
            if let Err(error) = self.ask(request, set) {
                tracing::debug!(
                    target: "rdma_verbs::processes",
                    %peer, %error, "the process of the peer cannot be asked for direct access"
                );
            }
        }
    }

    /// Asks other processes for direct access, for this process's shards.
    fn ask(&mut self, request: AccessRequest, set: &Epoll) -> io::Result<()> {
        if self.asked.len() >= MOST_ASKED {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let (connection, user) = self.connect(&request.name)?;
        if user != own_user() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        connection.socket.send(&write_request(&request.key))?;
        set.add(connection.as_fd(), Interest::Readable)?;
        self.asked.push(Asked { request, connection });
        Ok(())
    }

    /// Connects to the socket for links of another process. Returns the user of that process, too.
    fn connect(&self, name: &Name) -> io::Result<(Arc<Connection>, u32)> {
        let socket = Socket::new(Domain::UNIX, Type::SEQPACKET.nonblocking(), None)?;
        socket.connect(&SockAddr::unix(links_path(&self.folder, name))?)?;
        let user = peer_user(socket.as_fd())?;
        Ok((Connection::new(socket), user))
    }

    /// Offers a ring, unless there is one.
    fn request(&mut self, request: LinkRequest, postbox: &Postbox, set: &Epoll) -> io::Result<()> {
        // Without the links of closed devices.
        self.outgoing.retain(|link| link.connection.strong_count() > 0);
        if self.outgoing.iter().any(|link| link.request.is_same(&request)) {
            return Ok(());
        }
        let most = most_links();
        if self.outgoing.len() >= most {
            let message = format!("this process has {most} links to others, the most that RLIMIT_NOFILE allows");
            return Err(io::Error::other(message));
        }
        let (connection, user) = self.connect(&request.name)?;
        if user != own_user() {
            request.decline(postbox, NoSharedMemory::OtherUser(user));
            return Ok(());
        }
        let (ring, file) = RingWriter::create(RING_BYTES)?;
        send_with_descriptor(connection.as_fd(), &hello(&request, &postbox.name), file.as_fd())?;
        set.add(connection.as_fd(), Interest::Readable)?;
        let (id, weak) = (next(&mut self.last_id), Arc::downgrade(&connection));
        self.outgoing.push(Outgoing { id, request, connection: weak, offer: Some((ring, connection)) });
        Ok(())
    }

    /// Accepts the connections that wait, and closes those that are too many: their processes use the sockets.
    fn accept(&mut self, set: &Epoll) {
        self.incoming.retain(|link| link.connection.strong_count() > 0);
        let most = most_links();
        let Self { listener, incoming, last_id, .. } = self;
        listener.accept(set, MOST_LINKS, |socket| {
            // After a pause, many may have been closed meanwhile: they must not take the place of the others.
            if incoming.len() >= most || has_ended(socket.as_fd()) {
                return;
            }
            let connection = Connection::new(socket);
            if set.add(connection.as_fd(), Interest::Readable).is_ok() {
                let (id, weak) = (next(last_id), Arc::downgrade(&connection));
                incoming.push(Incoming { id, connection: weak, guest: Some(connection), recipient: None });
            }
        });
    }
}

/// Returns the next identifier of a link.
fn next(last_id: &mut LinkId) -> LinkId {
    *last_id += 1;
    *last_id
}

impl Outgoing {
    /// Hands the ring to its shard if the peer has accepted it. Returns false if it cannot.
    fn take_welcome(&mut self, postbox: &Postbox, set: &Epoll) -> bool {
        let Some((_, connection)) = &self.offer else { return true };
        let mut welcome = [0; 2];
        let table = match receive_with_descriptor(connection.as_fd(), &mut welcome) {
            Ok(None) => return true,
            Ok(Some((1, table))) if welcome[0] == VERSION => table,
            Ok(Some(_)) | Err(_) => {
                let is_off = welcome == [VERSION, SWITCHED_OFF];
                let problem = if is_off { NoSharedMemory::SwitchedOffByPeer } else { NoSharedMemory::Refused };
                self.request.decline(postbox, problem);
                return false;
            }
        };
        let LinkRequest { own, peer, ref peer_blocks, name, .. } = self.request;
        let recipient = self.request.recipient(postbox);
        let (Some((ring, bell)), Some(recipient)) = (self.offer.take(), recipient) else { return false };
        let is_watched = set.change(bell.as_fd(), Interest::End).is_ok();
        if is_watched {
            let memory = table.and_then(|table| PeerMemory::open(table, ring.gate()).ok());
            let peer_blocks = peer_blocks.clone();
            recipient.add_writer(OutgoingLink { id: self.id, own, peer, peer_blocks, name, ring, bell, memory });
        }
        is_watched
    }

    fn lives(&self, postbox: &Postbox, set: &Epoll) -> bool {
        lives(&self.connection, set, self.id, || self.request.recipient(postbox))
    }
}

impl Incoming {
    /// Hands the ring to the shard that the peer wants, if the peer has said which. Returns false if that is not
    /// possible.
    fn take_hello(&mut self, postbox: &Postbox, set: &Epoll, find: FindMember) -> bool {
        let Some(connection) = &self.guest else { return true };
        let mut bytes = [0; HELLO_BYTES + 1];
        let (length, file) = match receive_with_descriptor(connection.as_fd(), &mut bytes) {
            Ok(None) => return true,
            Ok(Some((length, Some(file)))) => (length, file),
            Ok(Some((length, None))) => {
                if let Ok(request) = <&[u8; REQUEST_BYTES]>::try_from(&bytes[..length]) {
                    answer(request, connection, postbox);
                }
                return false;
            }
            Err(_) => return false,
        };
        let Some(wanted) = parse_hello(&bytes[..length]) else { return false };
        let Some(recipient) = wanted.recipient(postbox) else { return false };
        if !recipient.shares_memory() {
            // There is room: it is the first message in this direction.
            let _ = connection.socket.send(&[VERSION, SWITCHED_OFF]);
            return false;
        }
        let (source, destination, source_blocks) = (wanted.peer, wanted.own, wanted.peer_blocks.clone());
        let ring = match RingReader::open(file.as_fd(), RING_BYTES) {
            Ok(ring) => ring,
            Err(error) => {
                tracing::debug!(
                    target: "rdma_verbs::processes",
                    peer = %source, %error, "a process offers memory that cannot be shared"
                );
                return false;
            }
        };
        let Some(bell) = self.guest.take() else { return false };
        if set.change(bell.as_fd(), Interest::End).is_err() {
            return false;
        }
        self.recipient = Some(Arc::downgrade(&recipient));
        let welcome = Arc::clone(&bell);
        let (id, watch) = (self.id, None);
        if !recipient.add_reader(IncomingLink { id, source, destination, source_blocks, ring, bell, watch }) {
            return false;
        }
        // There is room: it is the first message in this direction.
        let _ = match recipient.grant_table() {
            Some(table) => send_with_descriptor(welcome.as_fd(), &[VERSION], table.as_fd()),
            None => welcome.socket.send(&[VERSION]).map(drop),
        };
        // When its own shard asked the registry, this peer was perhaps not there yet. The registry says whose blocks
        // they are: the offer may name those of another process, whose packets would go the wrong way.
        if let Some(wanted) = wanted.if_registered(find) {
            postbox.request_link(wanted);
        }
        true
    }

    fn lives(&self, set: &Epoll) -> bool {
        lives(&self.connection, set, self.id, || self.recipient.as_ref()?.upgrade())
    }
}

/// Returns the maximum number of links in each direction.
fn most_links() -> usize {
    let part = (descriptor_limit() / DESCRIPTORS_PER_LINK).try_into().unwrap_or(MOST_LINKS);
    MOST_LINKS.min(part)
}

/// Returns whether both ends of a link are open. Otherwise ends the link of its shard, the recipient.
fn lives(
    connection: &Weak<Connection>,
    set: &Epoll,
    id: LinkId,
    recipient: impl FnOnce() -> Option<Arc<dyn Recipient>>,
) -> bool {
    let Some(connection) = connection.upgrade() else { return false };
    if !has_ended(connection.as_fd()) {
        return true;
    }
    let _ = set.remove(connection.as_fd());
    if let Some(recipient) = recipient() {
        recipient.end_link(id);
    }
    false
}

/// Returns why there is no link after an error of the system.
fn problem_of(error: &io::Error) -> NoSharedMemory {
    match error.kind() {
        // The process has ended, or takes no more connections.
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::WouldBlock => {
            NoSharedMemory::Refused
        }
        _ => NoSharedMemory::System(error.to_string()),
    }
}

/// Returns the message that offers a ring, from the process with this name.
fn hello(request: &LinkRequest, own_name: &Name) -> [u8; HELLO_BYTES] {
    let mut bytes = [0; HELLO_BYTES];
    bytes[0] = VERSION;
    bytes[1] = request.own_blocks.len().min(MAX_BLOCKS) as u8;
    bytes[2..4].copy_from_slice(&request.peer_blocks.first().copied().unwrap_or_default().to_le_bytes());
    bytes[8..24].copy_from_slice(&to_v6(request.own));
    bytes[24..40].copy_from_slice(&to_v6(request.peer));
    bytes[40..56].copy_from_slice(own_name);
    for (place, block) in bytes[56..88].chunks_exact_mut(2).zip(&request.own_blocks) {
        place.copy_from_slice(&block.to_le_bytes());
    }
    bytes
}

/// Parses an offer, as the request for the other direction: from the shard that is wanted to the one that offers.
fn parse_hello(bytes: &[u8]) -> Option<LinkRequest> {
    let bytes: &[u8; HELLO_BYTES] = bytes.try_into().ok()?;
    let count = usize::from(bytes[1]);
    if bytes[0] != VERSION || !(1..=MAX_BLOCKS).contains(&count) || bytes[4..8] != [0; 4] || bytes[88..] != [0; 8] {
        return None;
    }
    let number = |pair: &[u8]| u16::from_le_bytes([pair[0], pair[1]]);
    let address = |from: usize| bytes[from..from + 16].try_into().map(from_v6).ok();
    Some(LinkRequest {
        own: address(24)?,
        own_blocks: vec![number(&bytes[2..4])],
        peer: address(8)?,
        peer_blocks: bytes[56..88].chunks_exact(2).take(count).map(number).collect(),
        name: bytes[40..56].try_into().ok()?,
    })
}

/// Entry point of the fuzz target of offers: parses an offer with any content. An offer that parses must be written
/// again with the same bytes, but for blocks beyond those that it has.
#[cfg(feature = "sim")]
pub fn link_offer(bytes: &[u8]) {
    let Some(wanted) = parse_hello(bytes) else { return };
    assert!(wanted.own_blocks.len() == 1 && (1..=MAX_BLOCKS).contains(&wanted.peer_blocks.len()));
    let count = wanted.peer_blocks.len();
    let offer = LinkRequest {
        own: wanted.peer,
        own_blocks: wanted.peer_blocks,
        peer: wanted.own,
        peer_blocks: wanted.own_blocks,
        name: [0; 16],
    };
    let (again, end) = (hello(&offer, &wanted.name), 56 + 2 * count);
    assert!(again[..end] == bytes[..end], "{offer:?}");
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_offer_is_read_as_a_request_for_the_other_direction() {
        let request = LinkRequest {
            own: "127.62.0.1".parse().unwrap(),
            own_blocks: vec![7, 4_095, 9],
            peer: "fe80::1".parse().unwrap(),
            peer_blocks: vec![3, 5],
            name: [1; 16],
        };
        let offer = hello(&request, &[2; 16]);
        let answer = parse_hello(&offer).unwrap();
        assert_eq!((answer.own, answer.peer, answer.name), (request.peer, request.own, [2; 16]));
        assert_eq!((answer.own_blocks, answer.peer_blocks), (vec![3], vec![7, 4_095, 9]));
        for (place, value) in [(0, 2), (1, 0), (1, 17), (4, 1), (95, 1)] {
            let mut changed = offer;
            changed[place] = value;
            assert!(parse_hello(&changed).is_none(), "byte {place} is {value}");
        }
        assert!(parse_hello(&offer[..95]).is_none());
    }
}
