//! A socket that other processes of this user connect to, and that pauses while this process has no descriptors.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, Socket, Type};

use crate::sys::{Epoll, Interest, NotInherited, own_user, peer_user};

/// Connections that may wait to be accepted.
pub(super) const BACKLOG: i32 = 4_096;
/// Pause when the process has no descriptor for a connection, or the system no memory.
const PAUSE: Duration = Duration::from_millis(100);

/// A listening socket of a process, watched by a set.
pub(super) struct Listener {
    /// Dropped first: the number of a closed descriptor is reused.
    _not_inherited: NotInherited,
    socket: Socket,
    /// When the set gets the socket back, which is not in it meanwhile.
    resumes_at: Option<Instant>,
}

impl Listener {
    /// Opens the socket, without a set yet.
    pub(super) fn bind(path: &Path) -> io::Result<Self> {
        let socket = Socket::new(Domain::UNIX, Type::SEQPACKET.nonblocking(), None)?;
        socket.bind(&SockAddr::unix(path)?)?;
        socket.listen(BACKLOG)?;
        Ok(Self { _not_inherited: NotInherited::new(socket.as_fd()), socket, resumes_at: None })
    }

    /// Makes `set` readable while a connection waits.
    pub(super) fn watch(&self, set: &Epoll) -> io::Result<()> {
        set.add(self.socket.as_fd(), Interest::Readable)
    }

    /// Passes on the connections that wait, at most `most`, without those of other users. If the process has no
    /// descriptor for one, they wait. The socket, which stays readable, leaves the set for a while: it would keep the
    /// thread busy.
    pub(super) fn accept(&mut self, set: &Epoll, most: usize, mut take: impl FnMut(Socket)) {
        for _ in 0..most {
            match self.socket.accept() {
                Ok((socket, _)) => {
                    let is_own = peer_user(socket.as_fd()).is_ok_and(|user| user == own_user());
                    if is_own && socket.set_nonblocking(true).is_ok() {
                        take(socket);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    // Otherwise the pause lasts already.
                    if set.remove(self.socket.as_fd()).is_ok() {
                        self.resumes_at = Some(Instant::now() + PAUSE);
                    }
                    return;
                }
            }
        }
    }

    /// Watches the socket again if its pause is over. Returns the rest of the pause.
    pub(super) fn resume(&mut self, set: &Epoll) -> Option<Duration> {
        let rest = self.resumes_at?.saturating_duration_since(Instant::now());
        if rest > Duration::ZERO {
            return Some(rest);
        }
        if self.watch(set).is_err() {
            self.resumes_at = Some(Instant::now() + PAUSE);
            return Some(PAUSE);
        }
        self.resumes_at = None;
        None
    }
}
