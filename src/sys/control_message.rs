//! Messages of Unix sockets with one control message, which carries a plain value: credentials or a descriptor.

use std::io;
use std::mem::{MaybeUninit, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd};

use socket2::SockAddr;

/// Bytes of a control message with the largest of these values, the credentials.
// SAFETY: pure arithmetic.
const CONTROL_BYTES: usize = unsafe { libc::CMSG_SPACE(size_of::<libc::ucred>() as u32) } as usize;

/// Room for one control message; aligned for its header.
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

/// Returns the bytes of one control message with a `T`, which the room for control messages must hold.
const fn space_of<T>() -> usize {
    assert!(size_of::<T>() <= size_of::<libc::ucred>());
    // SAFETY: pure arithmetic.
    unsafe { libc::CMSG_SPACE(size_of::<T>() as u32) as usize }
}

/// Sends a message with a control message of the level `SOL_SOCKET`, without waiting: to an address, or over a
/// connection.
pub(super) fn send_with<T: Copy>(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    to: Option<&SockAddr>,
    kind: libc::c_int,
    value: T,
) -> io::Result<()> {
    let mut control = Control([0; CONTROL_BYTES]);
    let mut piece = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: null pointers and zero lengths are valid for all fields.
    let mut message: libc::msghdr = unsafe { zeroed() };
    if let Some(to) = to {
        message.msg_name = to.as_ptr().cast_mut().cast();
        message.msg_namelen = to.len();
    }
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = const { space_of::<T>() } as _;
    // SAFETY: `control` has room for one control message with a `T` and is aligned for its header, so the header is not
    // null and lies inside, and so does the data behind it.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = kind;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<T>() as u32) as _;
        libc::CMSG_DATA(header).cast::<T>().write_unaligned(value);
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: address, control, iovec and bytes live until the call returns, which only reads them.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A message that was received.
pub(super) struct Arrived<R> {
    pub(super) length: usize,
    /// The control message, as `read` read it.
    pub(super) control: R,
    /// Whether neither the message nor its control messages were truncated.
    pub(super) is_whole: bool,
}

/// Receives a message without waiting, with room for one control message with a `T` and nothing else: descriptors for
/// which there is no room are discarded by the kernel instead of being installed in this process. `read` gets the
/// message as `recvmsg` left it, with its control buffer, once. Returns `None` if there is no message.
pub(super) fn receive_with<T: Copy, R>(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    read: impl FnOnce(&libc::msghdr) -> R,
) -> io::Result<Option<Arrived<R>>> {
    let mut control = MaybeUninit::<Control>::uninit();
    let mut piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: null pointers and zero lengths are valid for all fields.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = const { space_of::<T>() } as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: control, iovec and buffer live until the call returns, and the lengths are theirs.
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    let Ok(length) = usize::try_from(length) else {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
    };
    let control = read(&message);
    let is_whole = message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) == 0;
    Ok(Some(Arrived { length, control, is_whole }))
}
