//! Hearing of it when a network interface or an address of this machine comes, goes or changes: a routing socket of the
//! kernel. What exactly happened is then asked for in other ways, so the messages themselves are not read.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::NotInherited;

/// Messages that are taken at a time.
const MESSAGES: usize = 256;

/// Hears of changes to interfaces and addresses in its network namespace.
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

    /// Whether anything changed since it was last asked. If there are very many messages, it remains readable.
    pub(crate) fn has_changed(&self) -> bool {
        // Longer messages are cut, which is all the same.
        let mut message = [MaybeUninit::uninit(); 64];
        let mut has_changed = false;
        for _ in 0..MESSAGES {
            match self.socket.recv(&mut message) {
                Ok(_) => has_changed = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // Messages were lost: something has changed.
                Err(_) => return true,
            }
        }
        has_changed
    }
}

/// Readable while there is news.
impl AsFd for LinkWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// An address that subscribes to news of interfaces and of their addresses.
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
        // News of other programs may come at any time, but not without end.
        assert!((0..100).any(|_| !watch.has_changed()));
    }
}
