//! Messages of connected Unix sockets that carry descriptors.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::control_message::{Arrived, receive_with, send_with};

/// Sends a message with a descriptor, without waiting.
pub(crate) fn send_with_descriptor(socket: BorrowedFd<'_>, bytes: &[u8], descriptor: BorrowedFd<'_>) -> io::Result<()> {
    send_with(socket, bytes, None, libc::SCM_RIGHTS, descriptor.as_raw_fd())
}

/// Receives a message without waiting, with its descriptor if it carries one; returns `None` if there is none. The
/// length is 0 if the peer has closed the connection.
pub(crate) fn receive_with_descriptor(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> io::Result<Option<(usize, Option<OwnedFd>)>> {
    // SAFETY: `receive_with` passes the message as `recvmsg` left it, with its control buffer, to its first reader.
    let arrived = receive_with::<libc::c_int, _>(socket, buffer, |message| unsafe { take_descriptor(message) })?;
    Ok(arrived.map(|Arrived { length, control, is_whole }| (length, control.filter(|_| is_whole))))
}

/// Returns the descriptor in the only control message, if it carries exactly one. Closes all others: the padding of the
/// control buffer has room for a second one.
///
/// # Safety
///
/// `message` is as a successful `recvmsg` left it, its control buffer is alive, and nothing else has read it.
unsafe fn take_descriptor(message: &libc::msghdr) -> Option<OwnedFd> {
    // SAFETY: `message` describes the control messages that the kernel wrote.
    let header = unsafe { libc::CMSG_FIRSTHDR(message).as_ref() }?;
    if (header.cmsg_level, header.cmsg_type) != (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
        return None;
    }
    // SAFETY: takes no pointers.
    let begin = unsafe { libc::CMSG_LEN(0) } as usize;
    let count = (header.cmsg_len as usize).saturating_sub(begin) / size_of::<libc::c_int>();
    let mut taken = (0..count).map(|index| {
        // SAFETY: the message has `count` descriptors, which the kernel has just installed for this call, so nothing
        // else owns them. The read is unaligned, because nothing guarantees the data's alignment.
        unsafe {
            let data = libc::CMSG_DATA(header).cast::<libc::c_int>();
            OwnedFd::from_raw_fd(data.add(index).read_unaligned())
        }
    });
    let first = taken.next();
    // All are taken, whatever their number.
    let others = taken.map(drop).count();
    first.filter(|_| others == 0)
}

/// Makes the other end of a connection readable. Never waits: if the connection is full, the other end is readable
/// already, and if it has ended, there is nothing to wake.
pub(crate) fn ring(socket: BorrowedFd<'_>) {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the kernel reads one byte of a constant.
    unsafe { libc::send(socket.as_raw_fd(), [0u8].as_ptr().cast(), 1, flags) };
}

/// Takes at most `most` messages of the other end, without their contents. Returns their number.
pub(crate) fn discard_messages(socket: BorrowedFd<'_>, most: usize) -> usize {
    let mut byte = 0u8;
    let mut take = || {
        // SAFETY: the kernel writes at most one byte into a live local variable.
        let taken = unsafe { libc::recv(socket.as_raw_fd(), (&raw mut byte).cast(), 1, libc::MSG_DONTWAIT) };
        taken > 0
    };
    (0..most).take_while(|_| take()).count()
}

/// Returns whether the other end of a connection has closed it.
pub(crate) fn has_ended(socket: BorrowedFd<'_>) -> bool {
    let mut entry = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: the kernel reads and writes one structure, which lives until the call returns.
    let ready = unsafe { libc::poll(&raw mut entry, 1, 0) };
    ready > 0
}

/// Returns whether a file is open for writing.
pub(crate) fn is_writable(file: BorrowedFd<'_>) -> bool {
    // SAFETY: takes no pointers.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
    flags >= 0 && matches!(flags & libc::O_ACCMODE, libc::O_WRONLY | libc::O_RDWR)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::fd::AsFd;

    use socket2::{Domain, Socket, Type};

    use super::*;

    fn pair() -> (Socket, Socket) {
        Socket::pair(Domain::UNIX, Type::SEQPACKET.nonblocking(), None).unwrap()
    }

    #[test]
    fn a_message_carries_one_descriptor() {
        let (one, other) = pair();
        let mut buffer = [0; 8];
        assert!(receive_with_descriptor(other.as_fd(), &mut buffer).unwrap().is_none());
        let event = crate::sys::EventFd::new().unwrap();
        send_with_descriptor(one.as_fd(), b"take", event.as_fd()).unwrap();
        one.send(b"none").unwrap();
        let (length, carried) = receive_with_descriptor(other.as_fd(), &mut buffer).unwrap().unwrap();
        let link = |descriptor: BorrowedFd<'_>| {
            std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd())).unwrap()
        };
        assert_eq!((length, link(carried.unwrap().as_fd())), (4, link(event.as_fd())));
        assert!(matches!(receive_with_descriptor(other.as_fd(), &mut buffer), Ok(Some((4, None)))));
        // A message that does not fit is truncated, and its descriptor closed.
        send_with_descriptor(one.as_fd(), &[7; 9], event.as_fd()).unwrap();
        assert!(matches!(receive_with_descriptor(other.as_fd(), &mut buffer), Ok(Some((8, None)))));
    }

    #[test]
    fn no_descriptor_of_several_is_kept() {
        use std::io::Write;

        use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
        for count in [2, 3, 100] {
            let ((one, other), (reader, mut writer)) = (pair(), std::io::pipe().unwrap());
            let (descriptors, bytes) = (vec![reader.as_raw_fd(); count], [std::io::IoSlice::new(b"take")]);
            let rights = [ControlMessage::ScmRights(&descriptors)];
            sendmsg::<()>(one.as_raw_fd(), &bytes, &rights, MsgFlags::empty(), None).unwrap();
            let arrived = receive_with_descriptor(other.as_fd(), &mut [0; 8]);
            assert!(matches!(arrived, Ok(Some((4, None)))), "{count} descriptors");
            drop(reader);
            // Nothing reads it any more.
            assert_eq!(writer.write(b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe, "{count} descriptors");
        }
    }

    #[test]
    fn the_end_of_a_connection_is_seen() {
        let (one, other) = pair();
        (0..10_000).for_each(|_| ring(one.as_fd()));
        assert!(!has_ended(other.as_fd()));
        drop(one);
        assert!(has_ended(other.as_fd()));
        discard_messages(other.as_fd(), 20_000);
        ring(other.as_fd());
    }
}
