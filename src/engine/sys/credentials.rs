//! Unix sockets that say whose message it is.

use std::io;
use std::mem::{MaybeUninit, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd};

/// The user that this process acts as.
pub(crate) fn own_user() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// The user at the other end of a connected Unix socket, as it was when it connected or listened.
pub(crate) fn peer_user(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut credentials = MaybeUninit::<libc::ucred>::uninit();
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    let (descriptor, place) = (socket.as_raw_fd(), credentials.as_mut_ptr().cast());
    // SAFETY: the kernel writes at most `length` bytes to `place`, which is that long.
    let result = unsafe { libc::getsockopt(descriptor, libc::SOL_SOCKET, libc::SO_PEERCRED, place, &raw mut length) };
    if result < 0 || length as usize != size_of::<libc::ucred>() {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel wrote the whole structure.
    Ok(unsafe { credentials.assume_init() }.uid)
}

/// Room for one control message with credentials; aligned as its header needs.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// Receives a message without waiting, with the user that sent it (the socket must pass credentials); `None` if there
/// is none.
pub(crate) fn receive_with_user(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Option<(usize, Option<u32>)>> {
    let mut control = MaybeUninit::<Control>::uninit();
    let mut piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: null pointers and zero lengths are values of all fields.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of::<Control>() as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: control, piece and buffer live until the call returns, and the lengths are theirs.
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    let Ok(length) = usize::try_from(length) else {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
    };
    // SAFETY: `message` describes the control messages that the kernel wrote.
    let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    if header.is_null() || message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
        return Ok(Some((length, None)));
    }
    // SAFETY: not null, so it points to a control message inside the buffer; credentials are plain numbers, and the
    // read is unaligned, because the data's place promises nothing.
    let user = unsafe {
        let is_credentials = (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_CREDENTIALS;
        is_credentials.then(|| libc::CMSG_DATA(header).cast::<libc::ucred>().read_unaligned().uid)
    };
    Ok(Some((length, user)))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use super::*;

    #[test]
    fn messages_bear_their_users() {
        let (one, other) = UnixDatagram::pair().unwrap();
        socket2::SockRef::from(&other).set_passcred(true).unwrap();
        let mut buffer = [0; 16];
        assert_eq!(receive_with_user(other.as_fd(), &mut buffer).unwrap(), None);
        one.send(b"whose").unwrap();
        assert_eq!(receive_with_user(other.as_fd(), &mut buffer).unwrap(), Some((5, Some(own_user()))));
        assert_eq!(&buffer[..5], b"whose");
    }

    #[test]
    fn connections_know_their_users() {
        let (one, _other) = UnixStream::pair().unwrap();
        assert_eq!(peer_user(one.as_fd()).unwrap(), own_user());
    }
}
