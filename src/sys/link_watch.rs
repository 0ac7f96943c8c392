//! Notification when a network interface or an address of this machine appears, disappears or changes, from a routing
//! socket of the kernel. The messages themselves are not read: callers query the new state by other means.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::NotInherited;

/// Messages taken per call.
const MESSAGES: usize = 256;

/// A watch on the interfaces and addresses of its network namespace.
pub(crate) struct LinkWatch {
    _not_inherited: NotInherited,
    socket: Socket,
}

impl LinkWatch {
    pub(crate) fn open() -> io::Result<Self> {
        let protocol = Protocol::from(libc::NETLINK_ROUTE);
        let kind = Type::RAW.nonblocking().cloexec();
        let socket = Socket::new(Domain::from(libc::AF_NETLINK), kind, Some(protocol))?;
        socket.bind(&groups()?)?;
        Ok(Self { _not_inherited: NotInherited::new(socket.as_fd()), socket })
    }

    /// Returns whether anything changed since the last call. If there are very many messages, the descriptor stays
    /// readable.
    ///
    /// # Errors
    /// If the socket reports nothing any more, for example because the program has closed its descriptor, as daemons do
    /// with all open ones.
    pub(crate) fn has_changed(&self) -> io::Result<bool> {
        // Longer messages are cut, which does not matter.
        let mut message = [MaybeUninit::uninit(); 64];
        let mut has_changed = false;
        for _ in 0..MESSAGES {
            match self.socket.recv(&mut message) {
                Ok(_) => has_changed = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // Messages were lost: something has changed.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        Ok(has_changed)
    }
}

/// Readable while changes are pending.
impl AsFd for LinkWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Returns an address that subscribes to changes of interfaces and of their addresses.
fn groups() -> io::Result<SockAddr> {
    let write = |storage: *mut socket2::SockAddrStorage, length: *mut libc::socklen_t| {
        let address = storage.cast::<libc::sockaddr_nl>();
        // SAFETY: the storage is zeroed, large enough and aligned for every kind of address, and `length` is a live
        // variable; both belong to the caller of this closure, which reads them afterwards.
        unsafe {
            (*address).nl_family = libc::AF_NETLINK as libc::sa_family_t;
            (*address).nl_groups = (libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR) as u32;
            *length = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
        }
        Ok(())
    };
    // SAFETY: the closure wrote a whole netlink address, and its length.
    let ((), address) = unsafe { SockAddr::try_init(write) }?;
    Ok(address)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn quiet_machine_has_no_news() {
        let watch = LinkWatch::open().unwrap();
        // Other programs may cause changes at any time, but not without end.
        assert!((0..100).any(|_| !watch.has_changed().unwrap()));
    }

    #[test]
    fn socket_without_messages_is_an_error() {
        // As with a closed descriptor whose number the program has used again.
        let socket = Socket::new(Domain::IPV4, Type::STREAM.nonblocking().cloexec(), None).unwrap();
        let watch = LinkWatch { _not_inherited: NotInherited::new(socket.as_fd()), socket };
        assert_eq!(watch.has_changed().unwrap_err().raw_os_error(), Some(libc::ENOTCONN));
    }
}
