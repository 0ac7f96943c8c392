//! Detection of processes that have ended: connections between processes that share addresses. A connection ends with
//! either process.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use socket2::{Domain, SockAddr, Socket, Type};

use super::super::registry::{Name, life_path, remove_sockets};
use crate::sys::{Epoll, Interest, NotInherited, own_user, peer_user};

/// Most processes that may watch this one at a time with an accepted connection: many times as many as can share an
/// address. Further ones stay in the listener's queue, which does not harm them.
const MAX_GUESTS: usize = 4_096;

/// The watched processes: the connection to a process ends with it.
pub(super) struct Neighbours {
    folder: PathBuf,
    /// Readable when a neighbour or a guest has ended.
    pub(super) set: Epoll,
    known: HashMap<Name, Neighbour>,
    /// Processes that watch this one. Their connections are accepted so that those of dead processes do not fill the
    /// listener's queue.
    guests: Vec<Guest>,
}

/// A process that watches this one. If the connection were closed, it would take this process for ended.
struct Guest {
    _not_inherited: NotInherited,
    connection: Socket,
    /// Whether the connection is in the set. If it could not be added, each call of `take_guests` tries again.
    is_watched: bool,
}

struct Neighbour {
    _not_inherited: NotInherited,
    connection: Socket,
    addresses: BTreeSet<IpAddr>,
}

impl Neighbours {
    /// Watches no process yet; the sockets are in `folder`.
    pub(super) fn new(folder: &Path) -> io::Result<Self> {
        Ok(Self { folder: folder.to_owned(), set: Epoll::new()?, known: HashMap::new(), guests: Vec::new() })
    }

    /// Watches exactly these processes for an address. Returns false if one cannot be watched: it has probably just
    /// ended.
    pub(super) fn watch(&mut self, address: IpAddr, names: &[Name]) -> bool {
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
        connection.connect(&SockAddr::unix(life_path(&self.folder, name))?)?;
        if peer_user(connection.as_fd())? != own_user() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        self.set.add(connection.as_fd(), Interest::Readable)?;
        Ok(connection)
    }

    /// Accepts the connections that wait, and watches all that are not watched yet. Without a spare descriptor they
    /// stay in the queue. Those that cannot be watched are checked here, because the set does not report their end.
    pub(super) fn take_guests(&mut self, listener: &Socket) {
        while self.guests.len() < MAX_GUESTS {
            let Ok((connection, _)) = listener.accept() else { break };
            let _not_inherited = NotInherited::new(connection.as_fd());
            self.guests.push(Guest { _not_inherited, connection, is_watched: false });
        }
        let set = &self.set;
        self.guests.retain_mut(|guest| {
            guest.is_watched = guest.is_watched || set.add(guest.connection.as_fd(), Interest::Readable).is_ok();
            guest.is_watched || lives(&guest.connection)
        });
    }

    /// Forgets processes that have ended and removes their sockets; returns the addresses of their groups, and their
    /// names.
    pub(super) fn reap_dead(&mut self) -> (BTreeSet<IpAddr>, Vec<Name>) {
        let (mut concerned, mut dead) = (BTreeSet::new(), Vec::new());
        self.guests.retain(|guest| lives(&guest.connection));
        self.known.retain(|name, neighbour| {
            let lives = lives(&neighbour.connection);
            if !lives {
                concerned.extend(&neighbour.addresses);
                remove_sockets(&self.folder, name);
                dead.push(*name);
            }
            lives
        });
        (concerned, dead)
    }
}

/// Returns whether the other process lives. Nothing is ever written to these connections: any result other than "would
/// block" means that it has ended.
fn lives(connection: &Socket) -> bool {
    let read = connection.recv_with_flags(&mut [MaybeUninit::uninit(); 1], libc::MSG_DONTWAIT);
    matches!(read, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::super::registry::NAME_BYTES;
    use super::super::tests::{Folder, mailbox};
    use super::*;
    use crate::sys::wait_readable;

    #[test]
    fn end_of_a_neighbour_is_detected() {
        let folder = Folder::new("neighbours");
        let (one, other) = (mailbox(&folder), mailbox(&folder));
        let address: IpAddr = "127.77.9.1".parse().unwrap();
        let mut neighbours = Neighbours::new(&folder.0).unwrap();
        assert!(neighbours.watch(address, &[one.postbox().name(), other.postbox().name()]));
        assert!(neighbours.reap_dead().0.is_empty());
        let name = one.postbox().name();
        drop(one);
        wait_readable([neighbours.set.as_fd()], None).unwrap();
        assert_eq!(neighbours.reap_dead(), (BTreeSet::from([address]), vec![name]));
        assert!(neighbours.watch(address, &[]));
        assert!(neighbours.known.is_empty());
        assert!(!neighbours.watch(address, &[[7; NAME_BYTES]]));
        drop(other);
        assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 0);
    }

    #[test]
    fn ended_guests_do_not_fill_the_queue() {
        let folder = Folder::new("guests");
        let listener = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None).unwrap();
        let name = [5; NAME_BYTES];
        listener.bind(&SockAddr::unix(life_path(&folder.0, &name)).unwrap()).unwrap();
        listener.listen(4).unwrap();
        let (mut host, guest) = (Neighbours::new(&folder.0).unwrap(), Neighbours::new(&folder.0).unwrap());
        let stays = guest.connect(&name).unwrap();
        for _ in 0..100 {
            drop(guest.connect(&name).unwrap());
            host.take_guests(&listener);
            host.reap_dead();
        }
        assert_eq!(host.guests.len(), 1);
        drop(stays);
        host.reap_dead();
        assert!(host.guests.is_empty());
    }
}
