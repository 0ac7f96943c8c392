//! The error queue of a datagram socket: the errors that the network reported about sent packets (ICMP). The kernel
//! keeps it for sockets that enabled it.

use std::io;
use std::mem::{MaybeUninit, zeroed};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};

use super::message::read_address;

/// Room for the control messages of one call; aligned for their headers.
#[repr(C, align(8))]
struct Control([u8; 256]);

/// An entry of the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct QueuedError {
    /// Destination of the packet.
    pub(crate) destination: IpAddr,
    /// The error number.
    pub(crate) errno: i32,
    /// Address of the host that reported it; `None`: this host.
    pub(crate) reporter: Option<IpAddr>,
    /// Whether a router or the destination reported it, not this host's own stack.
    pub(crate) is_remote: bool,
    /// Largest IP packet that fits, if the packet was too big.
    pub(crate) mtu: Option<u32>,
}

/// Takes the next entry without waiting; returns `None` if there is none.
pub(crate) fn receive_error(socket: BorrowedFd<'_>) -> io::Result<Option<QueuedError>> {
    let mut name = MaybeUninit::<libc::sockaddr_storage>::uninit();
    let mut control = MaybeUninit::<Control>::uninit();
    // SAFETY: null pointers and zero lengths are valid for all fields.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_name = name.as_mut_ptr().cast();
    message.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of::<Control>() as _;
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: name and control live until the call returns, and the lengths are theirs; the packet's bytes are not
    // requested.
    let length = unsafe { libc::syscall(libc::SYS_recvmsg, socket.as_raw_fd(), &raw mut message, flags) };
    if length < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
    }
    // SAFETY: the kernel wrote `msg_namelen` bytes of an address into `name`.
    let destination = unsafe { read_address(name.as_ptr(), message.msg_namelen) }.map(|address| address.ip())?;
    // SAFETY: the kernel wrote the control messages that `message` describes, into `control`.
    let entry = unsafe { read_entry(&message, destination) };
    entry.map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// # Safety
///
/// `message` is as a successful `recvmsg` left it, and its control buffer is alive.
unsafe fn read_entry(message: &libc::msghdr, destination: IpAddr) -> Option<QueuedError> {
    // SAFETY: `message` describes the control messages that the kernel wrote; the macros walk them within
    // `msg_controllen`.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: not null, so it points to a control message inside the buffer. Both kinds that are read carry an
        // extended error, and behind it the reporter's address, as far as `cmsg_len` reaches; the reads are unaligned,
        // because nothing guarantees the data's alignment.
        unsafe {
            let kind = ((*header).cmsg_level, (*header).cmsg_type);
            if matches!(kind, (libc::SOL_IP, libc::IP_RECVERR) | (libc::SOL_IPV6, libc::IPV6_RECVERR)) {
                let data = libc::CMSG_DATA(header);
                let error = data.cast::<libc::sock_extended_err>().read_unaligned();
                let offset = size_of::<libc::sock_extended_err>();
                let room = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize - offset;
                return Some(entry(&error, destination, reporter(data.add(offset), room)));
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    None
}

/// # Safety
///
/// `address` points to `room` initialised bytes.
unsafe fn reporter(address: *const u8, room: usize) -> Option<SocketAddr> {
    let mut copy = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let length = room.min(size_of::<libc::sockaddr_storage>());
    // SAFETY: both hold `length` bytes and do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(address, copy.as_mut_ptr().cast(), length) };
    // SAFETY: all bytes are initialised, and the copy is aligned.
    unsafe { read_address(copy.as_ptr(), length as libc::socklen_t) }.ok()
}

fn entry(error: &libc::sock_extended_err, destination: IpAddr, reporter: Option<SocketAddr>) -> QueuedError {
    let errno = error.ee_errno as i32;
    let is_remote = matches!(error.ee_origin, libc::SO_EE_ORIGIN_ICMP | libc::SO_EE_ORIGIN_ICMP6);
    QueuedError {
        destination,
        errno,
        reporter: reporter.filter(|_| is_remote).map(|address| address.ip()),
        is_remote,
        mtu: Some(error.ee_info).filter(|mtu| errno == libc::EMSGSIZE && *mtu > 0),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use super::super::{SendOptions, SocketOption, send, set_option};
    use super::*;

    fn send_to_closed_port(socket: &UdpSocket, option: SocketOption, destination: SocketAddr) {
        set_option(socket.as_fd(), option, true).unwrap();
        assert!(receive_error(socket.as_fd()).unwrap().is_none());
        send(socket.as_fd(), &destination, b"anybody there?", SendOptions::default()).unwrap();
        let error = receive_error(socket.as_fd()).unwrap().expect("loopback responds before a send returns");
        assert_eq!((error.destination, error.errno), (destination.ip(), libc::ECONNREFUSED));
        assert_eq!((error.reporter, error.is_remote, error.mtu), (Some(destination.ip()), true, None));
        assert!(receive_error(socket.as_fd()).unwrap().is_none());
        // Taking it cleared the socket's stored error.
        send(socket.as_fd(), &socket.local_addr().unwrap(), b"next", SendOptions::default()).unwrap();
    }

    #[test]
    fn closed_port_is_reported_with_its_address() {
        let socket = UdpSocket::bind("127.77.6.1:0").unwrap();
        send_to_closed_port(&socket, SocketOption::ReportErrors4, "127.77.6.2:4791".parse().unwrap());
    }

    #[test]
    fn closed_port_is_reported_over_ipv6() {
        // Some machines have no IPv6.
        let Ok(socket) = UdpSocket::bind("[::1]:0") else { return };
        let closed = UdpSocket::bind("[::1]:0").unwrap().local_addr().unwrap();
        send_to_closed_port(&socket, SocketOption::ReportErrors6, closed);
    }
}
