//! The functions of sockets, but those of options and those that wait for several sockets.

use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};

use super::datagram::Datagram;
use super::inside::Inside;
use super::sockets::{Socket, Sockets};
use super::stream::Stream;
use super::transfer::{self, Parts, Progress};
use super::{address, mapped};
use crate::error::{Errno, INVALID, Result, set_errno, zero_or_minus_one};
use crate::waiting::{Attempt, wait_for_any};

const NOT_SUPPORTED: Errno = Errno(libc::ENOTSUP);

/// A list with its number of entries, or an address with its length.
#[derive(Clone, Copy)]
#[repr(C)]
struct Counted<P, N>(P, N);

type List = Counted<*const libc::iovec, usize>;
type Source = Counted<*mut libc::sockaddr, *mut libc::socklen_t>;
type Destination = Counted<*const libc::sockaddr, libc::socklen_t>;

pub(super) unsafe extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let create = || {
        let file_flags = if kind & libc::SOCK_NONBLOCK != 0 { libc::O_NONBLOCK } else { 0 };
        let descriptor_flags = if kind & libc::SOCK_CLOEXEC != 0 { libc::FD_CLOEXEC } else { 0 };
        match (domain, kind & !flags, protocol) {
            // A socket of the system is needed.
            _ if Inside::is_now() => Err(NOT_SUPPORTED),
            (libc::AF_INET | libc::AF_INET6, libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => {
                Stream::create(domain, file_flags, descriptor_flags)
            }
            (libc::AF_INET | libc::AF_INET6, libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => {
                Datagram::create(domain, file_flags, descriptor_flags)
            }
            _ => Err(NOT_SUPPORTED),
        }
    };
    number_or_minus_one(create())
}

fn number_or_minus_one(result: Result<c_int>) -> c_int {
    result.unwrap_or_else(|error| {
        set_errno(error);
        -1
    })
}

pub(super) unsafe extern "C" fn rbind(socket: c_int, address: *const libc::sockaddr, length: libc::socklen_t) -> c_int {
    let bind = || {
        let _inside = Inside::begin();
        let socket = Sockets::find(socket)?;
        // SAFETY: the program's address.
        let address = unsafe { address::read(address, length)? };
        match socket {
            // SAFETY: the copy, which is large enough.
            Socket::Stream(stream) => unsafe { stream.bind((&raw const address).cast()) },
            Socket::Datagram(datagram) => datagram.bind(&address),
        }
    };
    zero_or_minus_one(bind())
}

pub(super) unsafe extern "C" fn rlisten(socket: c_int, backlog: c_int) -> c_int {
    let _inside = Inside::begin();
    zero_or_minus_one(Sockets::stream(socket).and_then(|stream| stream.listen(backlog)))
}

/// Leaves the threads that wait for a socket.
extern "C" fn give_up(socket: c_int) {
    match (Sockets::find(socket), super::waiters::Signal::of_thread()) {
        (Ok(Socket::Stream(stream)), Ok(signal)) => stream.waiters.remove(&signal),
        (Ok(Socket::Datagram(datagram)), Ok(signal)) => datagram.waiters.remove(&signal),
        _ => {}
    }
}

/// # Safety
/// `progress` is the caller's.
unsafe extern "C" fn try_accept(socket: c_int, progress: *mut Progress) -> Attempt {
    // SAFETY: the caller's promise.
    let progress = unsafe { &mut *progress };
    let _inside = Inside::begin();
    Sockets::stream(socket).and_then(|stream| transfer::accept(&stream, progress)).into()
}

pub(super) unsafe extern "C-unwind" fn raccept(
    socket: c_int,
    address: *mut libc::sockaddr,
    length: *mut libc::socklen_t,
) -> c_int {
    let mut progress = Progress::new();
    let progress = &raw mut progress;
    // SAFETY: the progress, with the list in it, stays until the call ends.
    let accepted = unsafe { wait_for_any(true, || try_accept(socket, progress), || give_up(socket)) } as c_int;
    if accepted >= 0 && !address.is_null() && !length.is_null() {
        // SAFETY: the program's address and length. A failure leaves them as they are.
        unsafe { super::option_calls::rgetpeername(accepted, address, length) };
    }
    accepted
}

/// # Safety
/// `progress` is the caller's, and the address has `length` bytes.
unsafe extern "C" fn try_connect(
    socket: c_int,
    progress: *mut Progress,
    address: *const libc::sockaddr,
    length: libc::socklen_t,
) -> Attempt {
    let connect = || {
        let _inside = Inside::begin();
        // SAFETY: the caller's promise.
        let (progress, address) = unsafe { (&mut *progress, address::read(address, length)?) };
        match Sockets::find(socket)? {
            // SAFETY: the copy, which is large enough.
            Socket::Stream(stream) => unsafe { transfer::connect(&stream, progress, (&raw const address).cast()) },
            Socket::Datagram(datagram) => datagram.connect(&address).map(|()| Attempt::Done(0)),
        }
    };
    connect().into()
}

pub(super) unsafe extern "C-unwind" fn rconnect(
    socket: c_int,
    address: *const libc::sockaddr,
    length: libc::socklen_t,
) -> c_int {
    let mut progress = Progress::new();
    let progress = &raw mut progress;
    // SAFETY: as in `raccept`.
    unsafe { wait_for_any(true, || try_connect(socket, progress, address, length), || give_up(socket)) as c_int }
}

/// # Safety
/// `progress` is the caller's.
unsafe extern "C" fn try_shutdown(socket: c_int, progress: *mut Progress, how: c_int) -> Attempt {
    let shut = || {
        let _inside = Inside::begin();
        // SAFETY: the caller's promise.
        let progress = unsafe { &mut *progress };
        match Sockets::find(socket)? {
            Socket::Stream(stream) => transfer::shutdown(&stream, progress, how),
            Socket::Datagram(datagram) => datagram.drain(progress),
        }
    };
    shut().into()
}

pub(super) unsafe extern "C-unwind" fn rshutdown(socket: c_int, how: c_int) -> c_int {
    if !matches!(how, libc::SHUT_RD | libc::SHUT_WR | libc::SHUT_RDWR) {
        set_errno(INVALID);
        return -1;
    }
    let mut progress = Progress::new();
    let progress = &raw mut progress;
    // SAFETY: as in `raccept`.
    unsafe { wait_for_any(true, || try_shutdown(socket, progress, how), || give_up(socket)) as c_int }
}

/// Destroys a socket.
extern "C" fn destroy(socket: c_int) -> c_int {
    let close = || {
        let _inside = Inside::begin();
        let found = Sockets::find(socket)?;
        Sockets::current()?.remove(socket);
        match found {
            Socket::Stream(stream) => {
                Stream::note_keepalive(stream.lock().options.keepalive.is_some(), false);
                stream.close();
            }
            Socket::Datagram(datagram) => datagram.close(),
        }
        Ok(())
    };
    zero_or_minus_one(close())
}

pub(super) unsafe extern "C-unwind" fn rclose(socket: c_int) -> c_int {
    // SAFETY: the call takes no pointers. A failure does not keep the socket from being closed.
    unsafe { rshutdown(socket, libc::SHUT_RDWR) };
    destroy(socket)
}

/// # Safety
/// The pointers are the caller's: the progress, the list, and an address with its length, which may be null.
unsafe extern "C" fn try_receive(
    socket: c_int,
    progress: *mut Progress,
    Counted(list, count): List,
    flags: c_int,
    Counted(address, length): Source,
) -> Attempt {
    let receive = || {
        let _inside = Inside::begin();
        // SAFETY: the caller's promise.
        let (progress, parts) = unsafe { (&mut *progress, Parts::new(list, count)?) };
        let (attempt, source) = match Sockets::find(socket)? {
            Socket::Stream(stream) => {
                let attempt = transfer::receive(&stream, progress, parts, flags)?;
                let peer = if address.is_null() { None } else { stream.lock().address(true).ok() };
                (attempt, peer)
            }
            Socket::Datagram(datagram) => datagram.receive(progress, parts, flags)?,
        };
        if let (Attempt::Done(_), Some(source), false, false) = (attempt, source, address.is_null(), length.is_null()) {
            // SAFETY: the caller's promise.
            unsafe { address::write(&source, address, length)? };
        }
        Ok(attempt)
    };
    receive().into()
}

/// # Safety
/// As [`try_receive`].
unsafe extern "C-unwind" fn receive(socket: c_int, list: List, flags: c_int, address: Source) -> isize {
    let mut progress = Progress::new();
    let progress = &raw mut progress;
    // SAFETY: the caller's promise, and as in `raccept`.
    unsafe { wait_for_any(true, || try_receive(socket, progress, list, flags, address), || give_up(socket)) }
}

const NOWHERE: Source = Counted(null_mut(), null_mut());

pub(super) unsafe extern "C-unwind" fn rrecv(socket: c_int, to: *mut c_void, length: usize, flags: c_int) -> isize {
    let part = libc::iovec { iov_base: to, iov_len: length };
    // SAFETY: a local list of the program's memory.
    unsafe { receive(socket, Counted(&raw const part, 1), flags, NOWHERE) }
}

pub(super) unsafe extern "C-unwind" fn rrecvfrom(
    socket: c_int,
    to: *mut c_void,
    length: usize,
    flags: c_int,
    address: *mut libc::sockaddr,
    address_length: *mut libc::socklen_t,
) -> isize {
    let part = libc::iovec { iov_base: to, iov_len: length };
    // SAFETY: a local list of the program's memory, and its address.
    unsafe { receive(socket, Counted(&raw const part, 1), flags, Counted(address, address_length)) }
}

pub(super) unsafe extern "C-unwind" fn rrecvmsg(socket: c_int, message: *mut libc::msghdr, flags: c_int) -> isize {
    // SAFETY: the program's structure, with its list and its address.
    unsafe {
        if message.is_null() || (!(*message).msg_control.is_null() && (*message).msg_controllen > 0) {
            set_errno(if message.is_null() { INVALID } else { NOT_SUPPORTED });
            return -1;
        }
        let address = Counted((*message).msg_name.cast(), &raw mut (*message).msg_namelen);
        receive(socket, Counted((*message).msg_iov, (*message).msg_iovlen), flags, address)
    }
}

pub(super) unsafe extern "C-unwind" fn rread(socket: c_int, to: *mut c_void, length: usize) -> isize {
    // SAFETY: the program's memory.
    unsafe { rrecv(socket, to, length, 0) }
}

pub(super) unsafe extern "C-unwind" fn rreadv(socket: c_int, list: *const libc::iovec, count: c_int) -> isize {
    // SAFETY: the program's list. Negative counts are too large.
    unsafe { receive(socket, Counted(list, count as usize), 0, NOWHERE) }
}

/// # Safety
/// The pointers are the caller's: the progress, the list, and an address with its length, which may be null.
unsafe extern "C" fn try_send(
    socket: c_int,
    progress: *mut Progress,
    Counted(list, count): List,
    flags: c_int,
    Counted(address, length): Destination,
) -> Attempt {
    let send = || {
        let _inside = Inside::begin();
        // SAFETY: the caller's promise.
        let (progress, parts) = unsafe { (&mut *progress, Parts::new(list, count)?) };
        match Sockets::find(socket)? {
            Socket::Stream(_) if !address.is_null() || length > 0 => Err(Errno(libc::EISCONN)),
            Socket::Stream(stream) => transfer::send(&stream, progress, parts, flags),
            Socket::Datagram(datagram) => {
                let address = match address.is_null() {
                    true => None,
                    // SAFETY: the caller's promise.
                    false => Some(unsafe { address::read(address, length)? }),
                };
                datagram.send(progress, parts, flags, address)
            }
        }
    };
    send().into()
}

/// # Safety
/// As [`try_send`].
unsafe extern "C-unwind" fn send(socket: c_int, list: List, flags: c_int, address: Destination) -> isize {
    let mut progress = Progress::new();
    let progress = &raw mut progress;
    // SAFETY: the caller's promise, and as in `raccept`.
    unsafe { wait_for_any(true, || try_send(socket, progress, list, flags, address), || give_up(socket)) }
}

pub(super) unsafe extern "C-unwind" fn rsend(socket: c_int, from: *const c_void, length: usize, flags: c_int) -> isize {
    let part = libc::iovec { iov_base: from.cast_mut(), iov_len: length };
    // SAFETY: a local list of the program's memory, which is only read.
    unsafe { send(socket, Counted(&raw const part, 1), flags, Counted(null(), 0)) }
}

pub(super) unsafe extern "C-unwind" fn rsendto(
    socket: c_int,
    from: *const c_void,
    length: usize,
    flags: c_int,
    address: *const libc::sockaddr,
    address_length: libc::socklen_t,
) -> isize {
    let part = libc::iovec { iov_base: from.cast_mut(), iov_len: length };
    // SAFETY: a local list of the program's memory, which is only read, and its address.
    unsafe { send(socket, Counted(&raw const part, 1), flags, Counted(address, address_length)) }
}

pub(super) unsafe extern "C-unwind" fn rsendmsg(socket: c_int, message: *const libc::msghdr, flags: c_int) -> isize {
    // SAFETY: the program's structure, with its list and its address.
    unsafe {
        if message.is_null() || (!(*message).msg_control.is_null() && (*message).msg_controllen > 0) {
            set_errno(if message.is_null() { INVALID } else { NOT_SUPPORTED });
            return -1;
        }
        // As the original, a stream ignores an address here.
        let is_stream = matches!(is_stream(socket), 1);
        let address = if is_stream {
            Counted(null(), 0)
        } else {
            Counted((*message).msg_name.cast_const().cast(), (*message).msg_namelen)
        };
        send(socket, Counted((*message).msg_iov, (*message).msg_iovlen), flags, address)
    }
}

extern "C" fn is_stream(socket: c_int) -> c_int {
    matches!(Sockets::find(socket), Ok(Socket::Stream(_))).into()
}

pub(super) unsafe extern "C-unwind" fn rwrite(socket: c_int, from: *const c_void, length: usize) -> isize {
    // SAFETY: the program's memory.
    unsafe { rsend(socket, from, length, 0) }
}

pub(super) unsafe extern "C-unwind" fn rwritev(socket: c_int, list: *const libc::iovec, count: c_int) -> isize {
    // SAFETY: the program's list. Negative counts are too large.
    unsafe { send(socket, Counted(list, count as usize), 0, Counted(null(), 0)) }
}

pub(super) unsafe extern "C" fn riomap(
    socket: c_int,
    memory: *mut c_void,
    length: usize,
    protection: c_int,
    _flags: c_int,
    offset: libc::off_t,
) -> libc::off_t {
    let map = || {
        let stream = Sockets::stream(socket)?;
        if protection & !(libc::PROT_WRITE | libc::PROT_NONE) != 0 {
            return Err(INVALID);
        }
        let is_writable = protection & libc::PROT_WRITE != 0;
        // SAFETY: the program's memory, which it maps for its peer until it unmaps it.
        unsafe { mapped::map(&mut stream.lock(), memory.cast(), length, is_writable, offset) }
    };
    map().unwrap_or_else(|error| {
        set_errno(error);
        -1
    })
}

pub(super) unsafe extern "C" fn riounmap(socket: c_int, memory: *mut c_void, length: usize) -> c_int {
    let unmap = || mapped::unmap(&mut Sockets::stream(socket)?.lock(), memory as usize, length);
    zero_or_minus_one(unmap())
}

/// # Safety
/// `progress` and the memory are the caller's.
unsafe extern "C" fn try_write_mapped(
    socket: c_int,
    progress: *mut Progress,
    part: *const libc::iovec,
    offset: libc::off_t,
    flags: c_int,
) -> Attempt {
    let write = || {
        let _inside = Inside::begin();
        // SAFETY: the caller's promise.
        let (progress, parts) = unsafe { (&mut *progress, Parts::new(part, 1)?) };
        transfer::write_mapped(&*Sockets::stream(socket)?, progress, parts, offset as u64, flags)
    };
    write().into()
}

pub(super) unsafe extern "C-unwind" fn riowrite(
    socket: c_int,
    from: *const c_void,
    length: usize,
    offset: libc::off_t,
    flags: c_int,
) -> usize {
    let part = libc::iovec { iov_base: from.cast_mut(), iov_len: length };
    let (part, mut progress) = (&raw const part, Progress::new());
    let progress = &raw mut progress;
    // SAFETY: as in `raccept`; the program's memory is only read.
    let written =
        unsafe { wait_for_any(true, || try_write_mapped(socket, progress, part, offset, flags), || give_up(socket)) };
    written as usize
}
