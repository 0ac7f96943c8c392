//! Attaching a classic BPF program that picks the socket of a `SO_REUSEPORT` group.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

/// An instruction of a classic BPF program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Instruction {
    pub(crate) code: u16,
    pub(crate) jump_true: u8,
    pub(crate) jump_false: u8,
    pub(crate) value: u32,
}

/// Makes `program` pick the sockets of the group that `socket` belongs to: its result is a socket's index, in the order
/// in which the sockets joined. It replaces the previous program.
pub(crate) fn attach_steering(socket: BorrowedFd<'_>, program: &[Instruction]) -> io::Result<()> {
    let mut filter: Vec<libc::sock_filter> = program
        .iter()
        .map(|i| libc::sock_filter { code: i.code, jt: i.jump_true, jf: i.jump_false, k: i.value })
        .collect();
    let length = libc::c_ushort::try_from(filter.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let mut description = MaybeUninit::<libc::sock_fprog>::uninit();
    let place = description.as_mut_ptr();
    // The padding is zeroed, because the kernel copies it as well, and checkers of memory report bytes of no value.
    // SAFETY: all writes stay within `description`, and are aligned.
    unsafe {
        place.write_bytes(0, 1);
        (&raw mut (*place).len).write(length);
        (&raw mut (*place).filter).write(filter.as_mut_ptr());
    }
    let size = size_of::<libc::sock_fprog>() as libc::socklen_t;
    let option = libc::SO_ATTACH_REUSEPORT_CBPF;
    // SAFETY: the kernel reads the description and, through it, `length` instructions; both live until the call
    // returns. It checks the program itself.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, place.cast(), size) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Removes the program of the group that `socket` belongs to (Linux 5.3); the kernel then picks by the packet's
/// addresses.
pub(crate) fn detach_steering(socket: BorrowedFd<'_>) -> io::Result<()> {
    let value: libc::c_int = 0;
    let (place, size) = ((&raw const value).cast(), size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: the kernel reads an integer, which lives until the call returns, and ignores it.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_DETACH_REUSEPORT_BPF, place, size) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
