//! The mailbox: how processes of one user that share addresses communicate, and detect that one has ended.
//!
//! Each process has Unix sockets in the registry's folder, which other users cannot enter, so they can neither send to
//! the sockets nor fill their queues. One socket receives messages: packets that reached the wrong process, and
//! requests to check a group. Another one accepts connections and carries no bytes: a connection ends when either
//! process ends, however it ends. The other two are for links through memory and for processes that watch this one.
//!
//! A thread sleeps until a message arrives or a connection ends. It starts with the first socket on an address and ends
//! with the last.

mod access;
mod links;
mod message;
mod neighbours;
mod orphans;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, SockRef, Socket, Type};

pub(crate) use self::access::AccessRequest;
use self::links::Links;
#[cfg(feature = "sim")]
pub use self::links::link_offer;
pub(crate) use self::links::{DeclinedLink, IncomingLink, LinkId, LinkRequest, OutgoingLink};
pub(in crate::engine) use self::message::destination_block;
#[cfg(feature = "sim")]
pub use self::message::inbox_message;
use self::message::{MESSAGE_BYTES, Message};
use self::neighbours::Neighbours;
use self::orphans::OrphanSearch;
use super::listener::{BACKLOG, Listener};
use super::monitor::Monitor;
use super::registry::{
    Member, NAME_BYTES, Name, Registry, inbox_path, life_path, links_path, place_socket, remove_sockets, watch_path,
};
use crate::cm::Orphan;
use crate::memory::Offer;
use crate::sys::{
    EventFd, Generation, NotInherited, PerGeneration, ask_for_short_slices, own_user, receive_with_user, send_as_user,
    wait_readable, with_signals_blocked,
};
use crate::transport::{Datagram, WantedKey};

/// Messages taken per iteration.
const MESSAGES: usize = 64;
/// Requests for direct access that may wait for the thread.
const MOST_ACCESS_REQUESTS: usize = 64;
/// Least time between two group checks that misdirected packets trigger.
const CHECK_EVERY: Duration = Duration::from_millis(50);

/// Pause of the thread if it cannot wait for its descriptors.
const WAIT_RETRY: Duration = Duration::from_millis(10);

/// Takes the packets for a socket of this process that another process received and forwarded.
pub(crate) trait Recipient: Send + Sync {
    /// Handles the packet as if it had arrived at the socket.
    fn deliver(&self, datagram: &Datagram<'_>);

    /// Returns whether it has a socket that sends from this address.
    fn sends_from(&self, address: IpAddr) -> bool;

    /// Ends a connection of a process that has died, in the background. Returns false if it cannot now.
    fn end_orphan(&self, orphan: &Orphan) -> bool;

    /// Returns whether it wants links through memory.
    fn shares_memory(&self) -> bool;

    /// Notes that it will not get a link that it has requested.
    fn note_declined(&self, link: DeclinedLink);

    /// Takes the writing end of a link that it has requested.
    fn add_writer(&self, link: OutgoingLink);

    /// Takes the reading end of a link that another process has requested. Returns false if it does not want it.
    fn add_reader(&self, link: IncomingLink) -> bool;

    /// Ends a link whose other end is closed.
    fn end_link(&self, id: LinkId);

    /// Returns the table of the grants to other processes, if memory can be accessed directly.
    fn grant_table(&self) -> Option<OwnedFd>;

    /// Offers another process access to a region, or returns `None`.
    fn offer_access(&self, key: &WantedKey) -> Option<Offer>;

    /// Takes the access that another process offers.
    fn take_offer(&self, request: &AccessRequest, offer: &Offer);
}

/// The questions of the mailbox's thread about groups.
#[derive(Clone, Copy)]
pub(super) struct GroupSearches {
    /// Checks the group of an address, and returns the names of the other processes in it.
    pub(super) check: fn(IpAddr) -> Vec<Name>,
    /// Finds the registered process with this block on an address of this machine.
    pub(super) find: fn(IpAddr, u16) -> Option<Member>,
}

static MAILBOX: PerGeneration<Mutex<Current>> = PerGeneration::new();

/// The mailbox of this process.
#[derive(Default)]
struct Current {
    mailbox: Weak<Mailbox>,
    postbox: Weak<Postbox>,
}

/// A process's mailbox. Dropping it removes its sockets and ends its thread. Only sockets on addresses own it, so that
/// the thread that closes the last one ends it, and never its own thread, which the end of the program may overtake.
pub(super) struct Mailbox {
    postbox: Arc<Postbox>,
    thread: Option<JoinHandle<()>>,
    generation: Generation,
}

/// The part of a mailbox that threads use without owning the mailbox.
pub(super) struct Postbox {
    /// Dropped first: the numbers of closed descriptors are reused.
    _not_inherited: [NotInherited; 2],
    name: Name,
    folder: PathBuf,
    inbox: UnixDatagram,
    listener: Socket,
    wake: EventFd,
    stop: AtomicBool,
    /// The recipient of each block, by address of this process.
    recipients: Mutex<HashMap<(IpAddr, u16), Weak<dyn Recipient>>>,
    /// Addresses whose groups are to be checked, and whether the check is urgent.
    checks: Mutex<BTreeMap<IpAddr, bool>>,
    /// An address can be sent from since the last search for connections of dead processes.
    has_new_address: AtomicBool,
    /// Links that shards have requested, for the mailbox's thread.
    links: Mutex<Vec<LinkRequest>>,
    /// Requests of shards for direct access, for the mailbox's thread.
    accesses: Mutex<Vec<AccessRequest>>,
}

/// The sockets of a process in the registry's folder.
struct Sockets {
    inbox: UnixDatagram,
    listener: Socket,
    links: Listener,
    watchers: Listener,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the name of this process's mailbox, if it has one.
pub(super) fn name_of_process() -> Option<Name> {
    postbox_of_process().map(|postbox| postbox.name)
}

fn postbox_of_process() -> Option<Arc<Postbox>> {
    let current = lock(MAILBOX.get()?);
    // Without a mailbox, only users of its sockets keep the rest.
    current.postbox.upgrade().filter(|_| current.mailbox.strong_count() > 0)
}

/// Requests a search for connections of dead processes, because this process can send from a further address.
pub(crate) fn search_orphans() {
    if let Some(postbox) = postbox_of_process() {
        postbox.has_new_address.store(true, Ordering::Release);
        postbox.wake.signal();
    }
}

/// Requests a link to another process's shard, in the background.
pub(super) fn request_link(request: LinkRequest) {
    if let Some(postbox) = postbox_of_process() {
        postbox.request_link(request);
    }
}

/// Asks another process for direct access, in the background. Drops the request if many wait.
pub(crate) fn request_access(request: AccessRequest) {
    if let Some(postbox) = postbox_of_process() {
        let mut accesses = lock(&postbox.accesses);
        if accesses.len() < MOST_ACCESS_REQUESTS {
            accesses.push(request);
            drop(accesses);
            postbox.wake.signal();
        }
    }
}

impl Mailbox {
    /// Returns the mailbox of this process, which lives as long as there is a reference to it.
    pub(super) fn of_process(registry: &Registry, groups: GroupSearches) -> Option<Arc<Self>> {
        let mut current = lock(MAILBOX.get()?);
        if let Some(mailbox) = current.mailbox.upgrade() {
            return Some(mailbox);
        }
        match registry.prepare().and_then(|()| Self::open(registry.folder(), groups)) {
            Ok(mailbox) => {
                *current = Current { mailbox: Arc::downgrade(&mailbox), postbox: Arc::downgrade(&mailbox.postbox) };
                Some(mailbox)
            }
            Err(error) => {
                tracing::warn!(
                    target: "rdma_verbs::processes",
                    %error, "no mailbox for other processes of this user: addresses are not shared"
                );
                None
            }
        }
    }

    /// Opens a mailbox in the registry's folder and starts its thread.
    fn open(folder: &Path, groups: GroupSearches) -> io::Result<Arc<Self>> {
        let mut name = [0; NAME_BYTES];
        getrandom::fill(&mut name).map_err(io::Error::other)?;
        let opened = Self::open_sockets(folder, &name).and_then(|sockets| Self::start(folder, name, sockets, groups));
        opened.inspect_err(|_| remove_sockets(folder, &name))
    }

    fn open_sockets(folder: &Path, name: &Name) -> io::Result<Sockets> {
        let inbox = UnixDatagram::unbound()?;
        inbox.set_nonblocking(true)?;
        // Before messages can arrive.
        SockRef::from(&inbox).set_passcred(true)?;
        place_socket(&inbox_path(folder, name), |path| SockRef::from(&inbox).bind(&SockAddr::unix(path)?))?;
        let listener = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
        place_socket(&life_path(folder, name), |path| {
            listener.bind(&SockAddr::unix(path)?)?;
            listener.listen(BACKLOG)
        })?;
        let links = place_socket(&links_path(folder, name), Listener::bind)?;
        let watchers = place_socket(&watch_path(folder, name), Listener::bind)?;
        Ok(Sockets { inbox, listener, links, watchers })
    }

    fn start(folder: &Path, name: Name, sockets: Sockets, groups: GroupSearches) -> io::Result<Arc<Self>> {
        let Sockets { inbox, listener, links, watchers } = sockets;
        let postbox = Arc::new(Postbox {
            name,
            folder: folder.to_owned(),
            wake: EventFd::new()?,
            stop: AtomicBool::new(false),
            recipients: Mutex::default(),
            checks: Mutex::default(),
            has_new_address: AtomicBool::new(false),
            links: Mutex::default(),
            accesses: Mutex::default(),
            _not_inherited: [NotInherited::new(inbox.as_fd()), NotInherited::new(listener.as_fd())],
            inbox,
            listener,
        });
        let neighbours = Neighbours::new(folder)?;
        let links = Links::new(folder, links, &neighbours.set, groups.find)?;
        let monitor = Monitor::new(watchers, &neighbours.set)?;
        let mine = Arc::clone(&postbox);
        let builder = std::thread::Builder::new().name("rdma-mailbox".to_owned());
        let thread = with_signals_blocked(|| builder.spawn(move || run(&mine, neighbours, links, monitor, groups)))?;
        Ok(Arc::new(Self { postbox, thread: Some(thread), generation: Generation::now() }))
    }

    /// Returns the part that threads use without owning the mailbox.
    pub(super) fn postbox(&self) -> &Arc<Postbox> {
        &self.postbox
    }
}

impl Postbox {
    /// Returns the name by which other processes find it.
    pub(super) fn name(&self) -> Name {
        self.name
    }

    /// Sets the recipient of packets to this address and these blocks that other processes forward.
    pub(super) fn add_recipient(&self, address: IpAddr, blocks: &[u16], recipient: &Weak<dyn Recipient>) {
        let mut recipients = lock(&self.recipients);
        // Removes those of closed devices. Until the next call, at most as many stay as there are sockets and blocks
        // for each.
        recipients.retain(|_, recipient| recipient.strong_count() > 0);
        recipients.extend(blocks.iter().map(|block| ((address, *block), Weak::clone(recipient))));
    }

    /// Requests that other processes check the group of an address.
    pub(super) fn request_remote_checks(&self, names: impl Iterator<Item = Name>, address: IpAddr) {
        names.filter(|name| *name != self.name).for_each(|name| {
            // A process that has ended needs no request.
            let _ = self.send(&name, &Message::CheckGroup(address));
        });
    }

    /// Forwards a packet to the process that it is for. Returns false if that is not possible.
    pub(super) fn forward(&self, name: &Name, datagram: &Datagram<'_>) -> bool {
        self.send(name, &Message::Packet(*datagram)).is_ok()
    }

    /// Forwards a packet to queue pair 1 to the process that has the shard with this block. If that is not possible, it
    /// is lost.
    pub(super) fn forward_management(&self, name: &Name, block: u16, datagram: &Datagram<'_>) {
        let _ = self.send(name, &Message::ManagementPacket(block, *datagram));
    }

    fn send(&self, name: &Name, message: &Message<'_>) -> io::Result<()> {
        let mut buffer = [0; MESSAGE_BYTES];
        let length = message.write(&mut buffer).ok_or(io::ErrorKind::InvalidInput)?;
        let to = SockAddr::unix(inbox_path(&self.folder, name))?;
        send_as_user(self.inbox.as_fd(), &buffer[..length], &to)
    }
}

impl Postbox {
    /// Requests a check of an address's group. Without `urgent` it may be delayed, because any host can trigger it with
    /// packets.
    pub(super) fn request_check(&self, address: IpAddr, urgent: bool) {
        let mut checks = lock(&self.checks);
        let is_new = !checks.contains_key(&address);
        let before = checks.entry(address).or_default();
        let is_more = urgent && !*before;
        *before |= urgent;
        drop(checks);
        if is_new || is_more {
            self.wake.signal();
        }
    }

    /// Handles up to [`MESSAGES`] messages; the rest wait for the next iteration.
    fn take_messages(&self) {
        let mut buffer = [0; MESSAGE_BYTES];
        for _ in 0..MESSAGES {
            match receive_with_user(self.inbox.as_fd(), &mut buffer) {
                Ok(None) => return,
                Ok(Some((length, Some(user)))) if user == own_user() => self.take_message(&buffer[..length]),
                // From another user, or truncated: ignored.
                Ok(Some(_)) | Err(_) => {}
            }
        }
    }

    fn take_message(&self, bytes: &[u8]) {
        match Message::parse(bytes) {
            Some(Message::CheckGroup(address)) => self.request_check(address, true),
            Some(Message::Packet(datagram)) => {
                if let Some(block) = destination_block(datagram.payload) {
                    self.deliver(block, &datagram);
                }
            }
            Some(Message::ManagementPacket(block, datagram)) => self.deliver(block, &datagram),
            None => {}
        }
    }
}

impl Postbox {
    fn recipient(&self, address: IpAddr, block: u16) -> Option<Arc<dyn Recipient>> {
        lock(&self.recipients).get(&(address, block)).and_then(Weak::upgrade)
    }

    /// Requests a link, unless it is requested already.
    fn request_link(&self, request: LinkRequest) {
        let mut links = lock(&self.links);
        if !links.iter().any(|known| known.is_same(&request)) {
            links.push(request);
            drop(links);
            self.wake.signal();
        }
    }

    /// Delivers a forwarded packet to the shard with this block.
    fn deliver(&self, block: u16, datagram: &Datagram<'_>) {
        if let Some(recipient) = self.recipient(datagram.destination, block) {
            recipient.deliver(datagram);
        }
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if !self.generation.is_current() {
            // The thread belongs to the parent process.
            std::mem::forget(thread);
            return;
        }
        remove_sockets(&self.postbox.folder, &self.postbox.name);
        self.postbox.stop.store(true, Ordering::Release);
        let is_signalled = self.postbox.wake.signal();
        crate::sys::end_thread(thread, is_signalled);
    }
}

/// The mailbox's thread.
fn run(postbox: &Postbox, mut neighbours: Neighbours, mut links: Links, mut monitor: Monitor, groups: GroupSearches) {
    // Packets take sockets until a link is set up, in which this thread has three parts.
    if let Err(error) = ask_for_short_slices() {
        tracing::debug!(target: "rdma_verbs::processes", %error, "the mailbox's thread keeps the usual time slices");
    }
    let (mut last_check, mut orphans): (Option<Instant>, _) = (None, OrphanSearch::default());
    let mut pause = None;
    while !postbox.stop.load(Ordering::Acquire) {
        let descriptors = [postbox.wake.as_fd(), postbox.inbox.as_fd(), neighbours.set.as_fd()];
        let ready = wait_readable(descriptors, pause.take());
        let [_, has_messages, has_ends] = ready.unwrap_or_else(|error| {
            // Probably out of memory. Do not spin meanwhile.
            tracing::warn!(target: "rdma_verbs::processes", %error, "the mailbox's thread cannot wait");
            std::thread::sleep(WAIT_RETRY);
            [true; 3]
        });
        // Before the requests are read: a thread that adds one signals afterwards.
        postbox.wake.clear();
        if has_messages {
            postbox.take_messages();
        }
        // After a change of a group, which sends this process a request, others may have connected.
        neighbours.take_guests(&postbox.listener);
        if has_ends {
            links.take_messages(postbox, &neighbours.set);
            monitor.take_messages(&neighbours.set);
        }
        links.take_requests(postbox, &neighbours.set);
        if has_ends {
            let (addresses, dead) = neighbours.reap_dead();
            addresses.into_iter().for_each(|address| postbox.request_check(address, true));
            orphans.note_deaths(dead);
        }
        let is_due = last_check.is_none_or(|last| last.elapsed() >= CHECK_EVERY);
        let requested = std::mem::take(&mut *lock(&postbox.checks));
        let (checks, waiting): (BTreeMap<IpAddr, bool>, BTreeMap<IpAddr, bool>) =
            requested.into_iter().partition(|(_, urgent)| *urgent || is_due);
        // Urgent checks do not delay the others.
        if checks.values().any(|urgent| !urgent) {
            last_check = Some(Instant::now());
        }
        for address in checks.into_keys() {
            if !neighbours.watch(address, &(groups.check)(address)) {
                postbox.request_check(address, false);
            }
        }
        pause = postbox.search(&mut orphans);
        if !waiting.is_empty() {
            pause = Some(CHECK_EVERY);
            let mut checks = lock(&postbox.checks);
            waiting.into_keys().for_each(|address| {
                checks.entry(address).or_insert(false);
            });
        }
        pause = pause.into_iter().chain(links.resume_listening(&neighbours.set)).min();
        pause = pause.into_iter().chain(monitor.refresh(&neighbours.set)).min();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The folder of one test, removed at its end.
    pub(super) struct Folder(pub(super) PathBuf);

    impl Folder {
        pub(super) fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("rdma-verbs-{name}-{}", std::process::id()));
            std::fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    pub(super) fn mailbox(folder: &Folder) -> Arc<Mailbox> {
        Mailbox::open(&folder.0, GroupSearches { check: |_| Vec::new(), find: |_, _| None }).unwrap()
    }

    #[test]
    fn malformed_messages_are_ignored() {
        let folder = Folder::new("inbox");
        let mailbox = mailbox(&folder);
        for length in [0, 1, 39, 40, 47, 5_000] {
            for filling in [0, 1, 2, 0xff] {
                let mut message = vec![filling; length];
                if let Some(start) = message.get_mut(..2) {
                    start.copy_from_slice(&[1, 2]);
                }
                mailbox.postbox.take_message(&message);
            }
        }
    }

    #[test]
    fn packets_go_only_to_addresses_and_blocks_of_this_process() {
        let folder = Folder::new("routes");
        let mailbox = mailbox(&folder);
        struct Nothing;
        impl Recipient for Nothing {
            fn deliver(&self, _: &Datagram<'_>) {}
            fn sends_from(&self, _: IpAddr) -> bool {
                false
            }
            fn end_orphan(&self, _: &Orphan) -> bool {
                false
            }
            fn shares_memory(&self) -> bool {
                false
            }
            fn note_declined(&self, _: DeclinedLink) {}
            fn add_writer(&self, _: OutgoingLink) {}
            fn add_reader(&self, _: IncomingLink) -> bool {
                false
            }
            fn end_link(&self, _: LinkId) {}
            fn grant_table(&self) -> Option<OwnedFd> {
                None
            }
            fn offer_access(&self, _: &WantedKey) -> Option<Offer> {
                None
            }
            fn take_offer(&self, _: &AccessRequest, _: &Offer) {}
        }
        let recipient: Arc<dyn Recipient> = Arc::new(Nothing);
        let address: IpAddr = "127.77.9.3".parse().unwrap();
        mailbox.postbox.add_recipient(address, &[5], &Arc::downgrade(&recipient));
        let find = |address: &str, block| {
            lock(&mailbox.postbox.recipients).get(&(address.parse().unwrap(), block)).and_then(Weak::upgrade).is_some()
        };
        assert!(find("127.77.9.3", 5));
        assert!(!find("127.77.9.3", 6) && !find("127.77.9.4", 5));
        let ended = Arc::downgrade(&recipient);
        drop(recipient);
        mailbox.postbox.add_recipient(address, &[], &ended);
        assert!(lock(&mailbox.postbox.recipients).is_empty());
    }
}
