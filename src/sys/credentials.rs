//! Unix socket messages with the sender's credentials.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use socket2::SockAddr;

use super::control_message::{Arrived, receive_with, send_with};

/// Returns the effective user ID of this process.
pub(crate) fn own_user() -> u32 {
    // SAFETY: takes no arguments and cannot fail.
    unsafe { libc::geteuid() }
}

/// Returns the effective group ID of this process.
pub(crate) fn own_group() -> u32 {
    // SAFETY: takes no arguments and cannot fail.
    unsafe { libc::getegid() }
}

/// Returns the user at the other end of a connected Unix socket, as it was when it connected or listened.
pub(crate) fn peer_user(socket: BorrowedFd<'_>) -> io::Result<u32> {
    peer_credentials(socket).map(|(user, _)| user)
}

/// Returns the user and the process at the other end of a connected Unix socket, as they were when it connected or
/// listened. The process is 0 if it is of a PID namespace that this one does not see.
pub(crate) fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<(u32, u32)> {
    let mut credentials = MaybeUninit::<libc::ucred>::uninit();
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    let (descriptor, place) = (socket.as_raw_fd(), credentials.as_mut_ptr().cast());
    // SAFETY: the kernel writes at most `length` bytes to `place`, which is that long.
    let result = unsafe { libc::getsockopt(descriptor, libc::SOL_SOCKET, libc::SO_PEERCRED, place, &raw mut length) };
    if result < 0 || length as usize != size_of::<libc::ucred>() {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel wrote the whole structure.
    let credentials = unsafe { credentials.assume_init() };
    Ok((credentials.uid, u32::try_from(credentials.pid).unwrap_or(0)))
}

/// Sends a message with the effective user of this process: by default the kernel reports the user that started it,
/// which is a different one if the program is set-user-ID.
pub(crate) fn send_as_user(socket: BorrowedFd<'_>, bytes: &[u8], to: &SockAddr) -> io::Result<()> {
    // SAFETY: takes no arguments and cannot fail.
    let pid = unsafe { libc::getpid() };
    let credentials = libc::ucred { pid, uid: own_user(), gid: own_group() };
    send_with(socket, bytes, Some(to), libc::SCM_CREDENTIALS, credentials)
}

/// Receives a message without waiting, with the user that sent it (the socket must pass credentials); returns `None` if
/// there is none. A message that was truncated, or that carries descriptors, has no user: behind the credentials there
/// is no room for them.
pub(crate) fn receive_with_user(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Option<(usize, Option<u32>)>> {
    // SAFETY: `receive_with` passes the message as `recvmsg` left it, with its control buffer, to its first reader.
    let arrived = receive_with::<libc::ucred, _>(socket, buffer, |message| unsafe { read_user(message) })?;
    Ok(arrived.map(|Arrived { length, control: user, is_whole }| (length, user.filter(|_| is_whole))))
}

/// Returns the user in the only control message, if it carries credentials. Closes descriptors that came instead, which
/// happens if the socket does not pass credentials.
///
/// # Safety
///
/// `message` is as a successful `recvmsg` left it, its control buffer is alive, and nothing else has read it.
unsafe fn read_user(message: &libc::msghdr) -> Option<u32> {
    // SAFETY: `message` describes the control messages that the kernel wrote. There is room for one.
    let header = unsafe { libc::CMSG_FIRSTHDR(message) };
    if header.is_null() {
        return None;
    }
    // SAFETY: not null, so it points to a control message inside the buffer. Credentials and descriptors are plain
    // numbers, and the reads are unaligned, because nothing guarantees the data's alignment. The descriptors were
    // installed for this process by this call, so nothing else uses their numbers.
    unsafe {
        let data = libc::CMSG_DATA(header);
        match ((*header).cmsg_level, (*header).cmsg_type) {
            (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) => Some(data.cast::<libc::ucred>().read_unaligned().uid),
            (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                let bytes = (*header).cmsg_len as usize - (data as usize - header as usize);
                for index in 0..bytes / size_of::<libc::c_int>() {
                    libc::close(data.cast::<libc::c_int>().add(index).read_unaligned());
                }
                None
            }
            _ => None,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use super::*;
    use std::mem::zeroed;

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

    /// A thread can have an effective user other than the rest of its process, like a set-user-ID program.
    #[test]
    fn the_user_is_the_one_that_the_process_acts_as() {
        let path = std::env::temp_dir().join(format!("rdma-verbs-credentials-{}", std::process::id()));
        let inbox = UnixDatagram::bind(&path).unwrap();
        socket2::SockRef::from(&inbox).set_passcred(true).unwrap();
        let (to, other_user) = (SockAddr::unix(&path).unwrap(), 65_534);
        let sender = UnixDatagram::unbound().unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let acted_as = std::thread::spawn(move || {
            if own_user() == 0 {
                let unchanged = -1_i32 as libc::uid_t;
                // SAFETY: changes the effective user of this thread alone, which ends soon.
                assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, unchanged, other_user, unchanged) }, 0);
            }
            send_as_user(sender.as_fd(), b"whose", &to).unwrap();
            own_user()
        });
        let acted_as = acted_as.join().unwrap();
        let mut buffer = [0; 16];
        let received = receive_with_user(inbox.as_fd(), &mut buffer);
        std::fs::remove_file(path).unwrap();
        assert_eq!(received.unwrap(), Some((5, Some(acted_as))));
    }

    /// Sends a message with copies of a descriptor.
    fn send_descriptors(socket: &UnixDatagram) {
        let (mut control, mut bytes) = ([0u64; 8], *b"take");
        let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: zeros are an empty message; iovec, bytes and control outlive the call; the control message is written
        // inside `control`, which has room for it and is aligned.
        unsafe {
            let mut message: libc::msghdr = zeroed();
            (message.msg_iov, message.msg_iovlen) = (&raw mut piece, 1);
            (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control) as _);
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(16) as _;
            libc::CMSG_DATA(header).cast::<[libc::c_int; 4]>().write_unaligned([socket.as_raw_fd(); 4]);
            message.msg_controllen = libc::CMSG_SPACE(16) as _;
            assert_eq!(libc::sendmsg(socket.as_raw_fd(), &raw const message, 0), 4);
        }
    }

    /// Returns the number of descriptors of this process that refer to the same socket as this one. Other tests open
    /// others meanwhile.
    fn copies_of(socket: &UnixDatagram) -> usize {
        let link = |number: i32| std::fs::read_link(format!("/proc/self/fd/{number}")).ok();
        let own = link(socket.as_raw_fd());
        let numbers = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().file_name());
        numbers
            .filter_map(|number| link(number.to_str()?.parse().ok()?))
            .filter(|found| Some(found) == own.as_ref())
            .count()
    }

    #[test]
    fn descriptors_are_not_taken() {
        for passes_credentials in [true, false] {
            let (one, other) = UnixDatagram::pair().unwrap();
            socket2::SockRef::from(&other).set_passcred(passes_credentials).unwrap();
            send_descriptors(&one);
            let mut buffer = [0; 16];
            assert_eq!(receive_with_user(other.as_fd(), &mut buffer).unwrap(), Some((4, None)));
            assert_eq!(copies_of(&one), 1);
        }
    }

    #[test]
    fn connections_know_their_users() {
        let (one, _other) = UnixStream::pair().unwrap();
        assert_eq!(peer_user(one.as_fd()).unwrap(), own_user());
        assert_eq!(peer_credentials(one.as_fd()).unwrap(), (own_user(), std::process::id()));
    }
}
