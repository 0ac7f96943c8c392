//! The mailbox: how processes of one user that share addresses speak to each other, and learn that one is gone.
//!
//! Each process has two Unix sockets without a place in the file system, valid in its network namespace like the
//! addresses that they are about. One takes messages: packets that reached the wrong process, and calls to look at a
//! group. The other only listens: the others connect to it, and hear when it is gone, however its process ended.
//!
//! A thread sleeps on both. It starts with the first socket on an address and ends with the last.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, SockRef, Socket, Type};

use super::port_group;
use super::registry::{NAME_BYTES, Name};
use super::shard::Shard;
use super::sys::{
    Epoll, EventFd, Generation, Interest, NotInherited, own_user, peer_user, receive_with_user, wait_readable,
    with_signals_blocked,
};
use crate::transport::Datagram;

/// Longest packet, with the header of a message.
const MESSAGE_BYTES: usize = 8_192;
const HEADER_BYTES: usize = 40;
const VERSION: u8 = 1;
const KIND_LOOK: u8 = 1;
const KIND_PACKET: u8 = 2;
/// Messages that are taken at a time.
const MESSAGES: usize = 64;
/// Connections of others that may wait; nobody takes them.
const BACKLOG: i32 = 4_096;
/// How often strange packets may make a group be looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A process's mailbox; its thread ends when it is dropped.
pub(super) struct Mailbox {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    generation: Generation,
}

/// What the thread works with.
struct Shared {
    name: Name,
    inbox: UnixDatagram,
    /// Nobody takes its connections: that it is there is all.
    _listener: Socket,
    wake: EventFd,
    stop: AtomicBool,
    /// Whose queue pairs the blocks are.
    shards: Mutex<HashMap<u16, Weak<Shard>>>,
    /// Addresses whose groups are to be looked at, and whether it is urgent.
    looks: Mutex<BTreeMap<IpAddr, bool>>,
    _not_inherited: [NotInherited; 2],
}

fn hexadecimal(name: &Name) -> String {
    name.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn inbox_name(name: &Name) -> String {
    format!("rdma-verbs-inbox-{}", hexadecimal(name))
}

fn listener_address(name: &Name) -> io::Result<SockAddr> {
    SockAddr::unix(format!("\0rdma-verbs-life-{}", hexadecimal(name)))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Mailbox {
    /// Opens it and starts its thread.
    pub(super) fn open() -> io::Result<Arc<Self>> {
        let mut name = [0; NAME_BYTES];
        getrandom::fill(&mut name).map_err(io::Error::other)?;
        let inbox = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(inbox_name(&name))?)?;
        inbox.set_nonblocking(true)?;
        SockRef::from(&inbox).set_passcred(true)?;
        let listener = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        listener.bind(&listener_address(&name)?)?;
        listener.listen(BACKLOG)?;
        let shared = Arc::new(Shared {
            name,
            wake: EventFd::new()?,
            stop: AtomicBool::new(false),
            shards: Mutex::default(),
            looks: Mutex::default(),
            _not_inherited: [NotInherited::new(inbox.as_fd()), NotInherited::new(listener.as_fd())],
            inbox,
            _listener: listener,
        });
        let neighbours = Neighbours { set: Epoll::new()?, known: HashMap::new() };
        let mine = Arc::clone(&shared);
        let builder = std::thread::Builder::new().name("rdma-mailbox".to_owned());
        let thread = with_signals_blocked(|| builder.spawn(move || run(&mine, neighbours)))?;
        Ok(Arc::new(Self { shared, thread: Some(thread), generation: Generation::now() }))
    }

    /// What others find it by.
    pub(super) fn name(&self) -> Name {
        self.shared.name
    }

    /// Packets for these blocks that others pass on go to this shard.
    pub(super) fn add_shard(&self, blocks: &[u32], shard: &Arc<Shard>) {
        lock(&self.shared.shards).extend(blocks.iter().map(|block| (*block as u16, Arc::downgrade(shard))));
    }

    /// Has the group of an address looked at soon. What is not urgent may wait a little, because strangers can ask for
    /// it with packets.
    pub(super) fn request_look(&self, address: IpAddr, urgent: bool) {
        self.shared.request_look(address, urgent);
    }

    /// Has other processes look at the group of an address.
    pub(super) fn call(&self, names: impl Iterator<Item = Name>, address: IpAddr) {
        let mut message = [0; HEADER_BYTES];
        message[0] = VERSION;
        message[1] = KIND_LOOK;
        message[24..40].copy_from_slice(&to_v6(address));
        names.filter(|name| *name != self.shared.name).for_each(|name| {
            // Whoever is gone needs no call.
            let _ = self.send(&name, &message);
        });
    }

    /// Passes a packet on to the process that it is for. False if that is not possible.
    pub(super) fn forward(&self, name: &Name, datagram: &Datagram<'_>) -> bool {
        let length = HEADER_BYTES + datagram.payload.len();
        let mut message = [0; MESSAGE_BYTES];
        let Some(place) = message.get_mut(HEADER_BYTES..length) else { return false };
        place.copy_from_slice(datagram.payload);
        message[0] = VERSION;
        message[1] = KIND_PACKET;
        message[2..4].copy_from_slice(&datagram.segment_index.to_le_bytes());
        message[4..6].copy_from_slice(&datagram.source_port.to_le_bytes());
        message[8..24].copy_from_slice(&to_v6(datagram.source));
        message[24..40].copy_from_slice(&to_v6(datagram.destination));
        self.send(name, &message[..length]).is_ok()
    }

    fn send(&self, name: &Name, message: &[u8]) -> io::Result<()> {
        let address = SocketAddr::from_abstract_name(inbox_name(name))?;
        self.shared.inbox.send_to_addr(message, &address).map(drop)
    }
}

impl Shared {
    fn request_look(&self, address: IpAddr, urgent: bool) {
        let mut looks = lock(&self.looks);
        let is_new = !looks.contains_key(&address);
        let before = looks.entry(address).or_default();
        let is_more = urgent && !*before;
        *before |= urgent;
        drop(looks);
        if is_new || is_more {
            self.wake.signal();
        }
    }

    /// Takes messages; more wait than are taken at a time.
    fn take_messages(&self) {
        let mut buffer = [0; MESSAGE_BYTES];
        for _ in 0..MESSAGES {
            match receive_with_user(self.inbox.as_fd(), &mut buffer) {
                Ok(None) => return,
                Ok(Some((length, Some(user)))) if user == own_user() => self.take_message(&buffer[..length]),
                // Of another user, or cut: not for us.
                Ok(Some(_)) | Err(_) => {}
            }
        }
    }

    fn take_message(&self, message: &[u8]) {
        let Some((header, payload)) = message.split_first_chunk::<HEADER_BYTES>() else { return };
        let address = |from: usize| from_v6(header[from..from + 16].try_into().unwrap_or_default());
        match header[..2] {
            [VERSION, KIND_LOOK] => self.request_look(address(24), true),
            [VERSION, KIND_PACKET] => {
                let Some(destination) = destination_block(payload) else { return };
                let shard = lock(&self.shards).get(&destination).and_then(Weak::upgrade);
                if let Some(shard) = shard {
                    shard.deliver(&Datagram {
                        source: address(8),
                        destination: address(24),
                        source_port: u16::from_le_bytes([header[4], header[5]]),
                        segment_index: u16::from_le_bytes([header[2], header[3]]),
                        hop_limit: None,
                        traffic_class: None,
                        payload,
                    });
                }
            }
            _ => {}
        }
    }
}

/// The block that a packet's destination belongs to.
pub(super) fn destination_block(payload: &[u8]) -> Option<u16> {
    let word = payload.get(4..8)?;
    Some(u16::from(word[1]) << 4 | u16::from(word[2]) >> 4)
}

fn to_v6(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

fn from_v6(bytes: [u8; 16]) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if !self.generation.is_current() {
            // The thread is the parent's.
            std::mem::forget(thread);
            return;
        }
        self.shared.stop.store(true, Ordering::Release);
        let is_told = self.shared.wake.signal();
        if thread.thread().id() != std::thread::current().id() {
            super::end_thread(thread, is_told);
        }
    }
}

/// Processes that are watched: the connection to one ends with it.
struct Neighbours {
    /// Readable when one is gone.
    set: Epoll,
    known: HashMap<Name, Neighbour>,
}

struct Neighbour {
    _not_inherited: NotInherited,
    connection: Socket,
    addresses: BTreeSet<IpAddr>,
}

impl Neighbours {
    /// Watches these processes on account of an address, and no others. False if one cannot be watched: it has probably
    /// just ended.
    fn watch(&mut self, address: IpAddr, names: &[Name]) -> bool {
        let mut all = true;
        for name in names {
            if let Some(neighbour) = self.known.get_mut(name) {
                neighbour.addresses.insert(address);
            } else if let Ok(connection) = self.connect(name) {
                let neighbour = Neighbour {
                    _not_inherited: NotInherited::new(connection.as_fd()),
                    connection,
                    addresses: BTreeSet::from([address]),
                };
                self.known.insert(*name, neighbour);
            } else {
                all = false;
            }
        }
        self.known.retain(|name, neighbour| {
            if !names.contains(name) {
                neighbour.addresses.remove(&address);
            }
            !neighbour.addresses.is_empty()
        });
        all
    }

    fn connect(&self, name: &Name) -> io::Result<Socket> {
        let connection = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
        connection.connect(&listener_address(name)?)?;
        if peer_user(connection.as_fd())? != own_user() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        self.set.add(connection.as_fd(), Interest::Readable)?;
        Ok(connection)
    }

    /// Forgets those that are gone; returns the addresses whose groups they were in.
    fn bury(&mut self) -> BTreeSet<IpAddr> {
        let mut concerned = BTreeSet::new();
        self.known.retain(|_, neighbour| {
            let mut nothing = [MaybeUninit::uninit(); 1];
            // Nobody ever writes there: whatever comes but "nothing yet" is the end.
            let read = neighbour.connection.recv(&mut nothing);
            let lives = matches!(read, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
            if !lives {
                concerned.extend(&neighbour.addresses);
            }
            lives
        });
        concerned
    }
}

/// The mailbox's thread.
fn run(shared: &Shared, mut neighbours: Neighbours) {
    let mut last_look: Option<Instant> = None;
    let mut pause = None;
    while !shared.stop.load(Ordering::Acquire) {
        let descriptors = [shared.wake.as_fd(), shared.inbox.as_fd(), neighbours.set.as_fd()];
        let ready = wait_readable(descriptors, pause.take());
        // Before looking what was asked for: who asks signals afterwards.
        shared.wake.clear();
        let [_, has_messages, has_ends] = ready.unwrap_or([true; 3]);
        if has_messages {
            shared.take_messages();
        }
        if has_ends {
            neighbours.bury().into_iter().for_each(|address| shared.request_look(address, true));
        }
        let rested = last_look.is_none_or(|last| last.elapsed() >= LOOK_EVERY);
        let asked = std::mem::take(&mut *lock(&shared.looks));
        let (looks, waiting): (BTreeMap<IpAddr, bool>, BTreeMap<IpAddr, bool>) =
            asked.into_iter().partition(|(_, urgent)| *urgent || rested);
        if !looks.is_empty() {
            last_look = Some(Instant::now());
        }
        for address in looks.into_keys() {
            if !neighbours.watch(address, &port_group::look(address)) {
                shared.request_look(address, false);
            }
        }
        if !waiting.is_empty() {
            pause = Some(LOOK_EVERY);
            let mut looks = lock(&shared.looks);
            waiting.into_keys().for_each(|address| {
                looks.entry(address).or_insert(false);
            });
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_blocks_are_read_as_written() {
        for address in ["127.1.2.3", "fe80::7"] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(from_v6(to_v6(address)), address);
        }
        assert_eq!(destination_block(&[0, 0, 0, 0, 9, 0xab, 0xcd, 0xef]), Some(0xabc));
        assert_eq!(destination_block(&[0; 7]), None);
    }

    #[test]
    fn the_end_of_a_neighbour_is_noticed() {
        let (one, other) = (Mailbox::open().unwrap(), Mailbox::open().unwrap());
        let address: IpAddr = "127.77.9.1".parse().unwrap();
        let mut neighbours = Neighbours { set: Epoll::new().unwrap(), known: HashMap::new() };
        assert!(neighbours.watch(address, &[one.name(), other.name()]));
        assert!(neighbours.bury().is_empty());
        drop(one);
        wait_readable([neighbours.set.as_fd()], None).unwrap();
        assert_eq!(neighbours.bury(), BTreeSet::from([address]));
        assert!(neighbours.watch(address, &[]));
        assert!(neighbours.known.is_empty());
        assert!(!neighbours.watch(address, &[[7; NAME_BYTES]]));
    }

    #[test]
    fn nonsense_in_the_inbox_is_ignored() {
        let mailbox = Mailbox::open().unwrap();
        for length in [0, 1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 7, 5_000] {
            for filling in [0, VERSION, KIND_PACKET, 0xff] {
                let mut message = vec![filling; length];
                if let Some(start) = message.get_mut(..2) {
                    start.copy_from_slice(&[VERSION, KIND_PACKET]);
                }
                mailbox.shared.take_message(&message);
            }
        }
    }
}
