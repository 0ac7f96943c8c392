//! Sending and receiving of datagrams with the features that plain socket calls lack: segmentation, merging, traffic
//! class, hop limit, and the count of dropped datagrams.

use std::io;
use std::mem::{MaybeUninit, zeroed};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

/// Room for the control messages of one call; aligned for their headers.
#[repr(C, align(8))]
struct Control([u8; 128]);

/// Result of a receive call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    /// Number of bytes in the buffer.
    pub(crate) length: usize,
    /// Address of the sender.
    pub(crate) source: SocketAddr,
    /// Length of each of the merged datagrams in the buffer but the last, which may be shorter.
    pub(crate) segment_size: Option<usize>,
    /// Number of datagrams that the socket has dropped since it was opened, if the kernel reports it (modulo 2^32).
    pub(crate) dropped: Option<u32>,
    /// Whether the datagram was longer than the buffer: its end is lost.
    pub(crate) truncated: bool,
    /// Time to live or hop limit, if the socket reports it.
    pub(crate) hop_limit: Option<u8>,
    /// Type of service or traffic class, if the socket reports it.
    pub(crate) traffic_class: Option<u8>,
}

/// Most datagrams that one call of [`receive_several`] receives. Discarding a packet takes 2.05 times a plain
/// receiver's processor time with one, 1.85 with two, 1.65 with four, 1.52 with eight, 1.49 with sixteen (the example
/// `garbage`, medians of 15).
pub(crate) const SEVERAL: usize = 8;

/// Receives a datagram, or several merged ones, without waiting; returns `None` if there is none.
#[inline]
pub(crate) fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Option<Received>> {
    let mut name = MaybeUninit::<libc::sockaddr_storage>::uninit();
    let mut control = MaybeUninit::<Control>::uninit();
    let mut piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut message = header(&mut name, &mut control, &mut piece);
    // SAFETY: name, control, iovec and buffer live until the call returns, and the lengths are theirs.
    let length = unsafe { libc::syscall(libc::SYS_recvmsg, socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    let Ok(length) = usize::try_from(length) else {
        return nothing_waits().map(|()| None);
    };
    // SAFETY: the kernel filled the message, and name and control are alive.
    unsafe { read_message(&message, length) }.map(Some)
}

/// Receives as many datagrams as `received` has slots, at most [`SEVERAL`], without waiting: each, or several merged
/// ones, into its own part of the buffer. A datagram whose sender's address cannot be read leaves its slot empty.
/// Returns how many there were.
pub(crate) fn receive_several(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    part_bytes: usize,
    received: &mut [Option<Received>],
) -> io::Result<usize> {
    let mut names = [const { MaybeUninit::<libc::sockaddr_storage>::uninit() }; SEVERAL];
    let mut controls = [const { MaybeUninit::<Control>::uninit() }; SEVERAL];
    let mut pieces = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; SEVERAL];
    // SAFETY: null pointers and zero lengths are valid for all fields.
    let mut messages: [libc::mmsghdr; SEVERAL] = unsafe { zeroed() };
    let places = received.len().min(SEVERAL);
    let parts = buffer.chunks_exact_mut(part_bytes).take(places);
    let mut prepared = 0_usize;
    for ((((part, name), control), piece), message) in
        parts.zip(&mut names).zip(&mut controls).zip(&mut pieces).zip(&mut messages)
    {
        *piece = libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() };
        message.msg_hdr = header(name, control, piece);
        prepared += 1;
    }
    let (first, timeout) = (messages.as_mut_ptr(), ptr::null_mut::<libc::timespec>());
    // SAFETY: the first `prepared` messages describe names, controls, iovecs and parts of the buffer that live until
    // the call returns, with their lengths.
    let count =
        unsafe { libc::syscall(libc::SYS_recvmmsg, socket.as_raw_fd(), first, prepared, libc::MSG_DONTWAIT, timeout) };
    let Ok(count) = usize::try_from(count) else {
        return nothing_waits().map(|()| 0);
    };
    for (message, received) in messages[..count].iter().zip(received) {
        // SAFETY: the kernel filled the first `count` messages, and names and controls are alive.
        *received = unsafe { read_message(&message.msg_hdr, message.msg_len as usize) }.ok();
    }
    Ok(count)
}

/// Returns the header of a message to be received.
#[inline]
fn header(
    name: &mut MaybeUninit<libc::sockaddr_storage>,
    control: &mut MaybeUninit<Control>,
    piece: &mut libc::iovec,
) -> libc::msghdr {
    // SAFETY: null pointers and zero lengths are valid for all fields.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_name = name.as_mut_ptr().cast();
    message.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    message.msg_iov = piece;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of::<Control>() as _;
    message
}

/// Maps the error of a failed receive call: `Ok` if no datagram waits.
fn nothing_waits() -> io::Result<()> {
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::EAGAIN) { Ok(()) } else { Err(error) }
}

/// # Safety
///
/// `message` is as a successful `recvmsg` left it, and its name and control buffer are alive.
#[inline]
unsafe fn read_message(message: &libc::msghdr, length: usize) -> io::Result<Received> {
    // SAFETY: the kernel wrote `msg_namelen` bytes of an address into the name.
    let source = unsafe { read_address(message.msg_name.cast(), message.msg_namelen) }?;
    let truncated = message.msg_flags & libc::MSG_TRUNC != 0;
    let mut received =
        Received { length, source, segment_size: None, dropped: None, truncated, hop_limit: None, traffic_class: None };
    // SAFETY: the kernel wrote the control messages that `message` describes, into its control buffer.
    unsafe { read_control(message, &mut received) };
    Ok(received)
}

/// # Safety
///
/// `name` points to `length` initialised bytes, aligned as `sockaddr_storage`.
pub(super) unsafe fn read_address(
    name: *const libc::sockaddr_storage,
    length: libc::socklen_t,
) -> io::Result<SocketAddr> {
    let length = length as usize;
    if length >= size_of::<libc::sockaddr_in>() {
        // SAFETY: at least an IPv4 address was written, and the family is the first field of both kinds.
        let address = unsafe { name.cast::<libc::sockaddr_in>().read() };
        if libc::c_int::from(address.sin_family) == libc::AF_INET {
            let ip = Ipv4Addr::from(address.sin_addr.s_addr.to_ne_bytes());
            return Ok(SocketAddrV4::new(ip, u16::from_be(address.sin_port)).into());
        }
        if libc::c_int::from(address.sin_family) == libc::AF_INET6 && length >= size_of::<libc::sockaddr_in6>() {
            // SAFETY: a whole IPv6 address was written.
            let address = unsafe { name.cast::<libc::sockaddr_in6>().read() };
            let (ip, port) = (Ipv6Addr::from(address.sin6_addr.s6_addr), u16::from_be(address.sin6_port));
            return Ok(SocketAddrV6::new(ip, port, 0, address.sin6_scope_id).into());
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

/// # Safety
///
/// `message` is as a successful `recvmsg` left it, and its control buffer is alive.
unsafe fn read_control(message: &libc::msghdr, received: &mut Received) {
    // SAFETY: `message` describes the control messages that the kernel wrote; the macros walk them within
    // `msg_controllen`.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: not null, so it points to a control message inside the buffer. The kinds that are read carry four
        // bytes of data, except the type of service, which is one byte; the reads are unaligned, because nothing
        // guarantees the data's alignment.
        unsafe {
            let data = libc::CMSG_DATA(header);
            match ((*header).cmsg_level, (*header).cmsg_type) {
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    let size = data.cast::<libc::c_int>().read_unaligned();
                    received.segment_size = usize::try_from(size).ok().filter(|size| *size > 0);
                }
                (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => {
                    received.dropped = Some(data.cast::<u32>().read_unaligned());
                }
                (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                    received.hop_limit = u8::try_from(data.cast::<libc::c_int>().read_unaligned()).ok();
                }
                (libc::IPPROTO_IP, libc::IP_TOS) => received.traffic_class = Some(data.read()),
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    received.traffic_class = u8::try_from(data.cast::<libc::c_int>().read_unaligned()).ok();
                }
                _ => {}
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

/// Options of a send call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SendOptions {
    /// Length of each of several datagrams but the last, which may be shorter; `None`: the bytes are one datagram.
    pub(crate) segment_size: Option<u16>,
    /// Type of service or traffic class; `None`: the socket's.
    pub(crate) traffic_class: Option<u8>,
    /// Time to live or hop limit; `None`: the socket's.
    pub(crate) hop_limit: Option<u8>,
}

/// Sends bytes as one datagram, or as several of equal length, without waiting.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    destination: &SocketAddr,
    bytes: &[u8],
    options: SendOptions,
) -> io::Result<()> {
    let destination = socket2::SockAddr::from(*destination);
    if options == SendOptions::default() {
        return send_plain(socket, &destination, bytes);
    }
    let mut piece = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut control = Control([0; 128]);
    // SAFETY: null pointers and zero lengths are valid for all fields.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_name = destination.as_ptr().cast_mut().cast();
    message.msg_namelen = destination.len();
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    write_control(&mut message, &mut control, destination.is_ipv6(), options);
    // SAFETY: address, iovec, bytes and control live until the call returns, and the lengths are theirs. The kernel
    // only reads them: the structure's fields force the casts to mutable pointers.
    let sent = unsafe { libc::syscall(libc::SYS_sendmsg, socket.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sends one datagram without control messages, by the system call that has less to read.
fn send_plain(socket: BorrowedFd<'_>, destination: &socket2::SockAddr, bytes: &[u8]) -> io::Result<()> {
    let (address, length) = (destination.as_ptr(), destination.len());
    // SAFETY: bytes and address live until the call returns, and the lengths are theirs.
    let sent = unsafe {
        libc::syscall(
            libc::SYS_sendto,
            socket.as_raw_fd(),
            bytes.as_ptr(),
            bytes.len(),
            libc::MSG_DONTWAIT,
            address,
            length,
        )
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn write_control(message: &mut libc::msghdr, control: &mut Control, ipv6: bool, options: SendOptions) {
    let mut used = 0;
    if let Some(size) = options.segment_size {
        used = push_control(control, used, libc::SOL_UDP, libc::UDP_SEGMENT, &size.to_ne_bytes());
    }
    if let Some(class) = options.traffic_class {
        let (level, name) =
            if ipv6 { (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) } else { (libc::IPPROTO_IP, libc::IP_TOS) };
        used = push_control(control, used, level, name, &libc::c_int::from(class).to_ne_bytes());
    }
    if let Some(limit) = options.hop_limit {
        let (level, name) =
            if ipv6 { (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) } else { (libc::IPPROTO_IP, libc::IP_TTL) };
        used = push_control(control, used, level, name, &libc::c_int::from(limit).to_ne_bytes());
    }
    if used > 0 {
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = used as _;
    }
}

/// Appends a control message as plain bytes: its header is a length, a level and a type, and its data follows at the
/// next aligned offset. Returns the number of bytes in use.
fn push_control(control: &mut Control, used: usize, level: libc::c_int, name: libc::c_int, data: &[u8]) -> usize {
    // SAFETY: pure arithmetic.
    let (space, length) =
        unsafe { (libc::CMSG_SPACE(data.len() as u32) as usize, libc::CMSG_LEN(data.len() as u32) as usize) };
    // Three messages of at most four bytes: 3 * 24 bytes.
    let place = &mut control.0[used..used + space];
    // SAFETY: null and zero are valid for all fields.
    let mut header: libc::cmsghdr = unsafe { zeroed() };
    header.cmsg_len = length as _;
    header.cmsg_level = level;
    header.cmsg_type = name;
    // SAFETY: `place` holds `CMSG_SPACE` bytes, thus a header and the data after it; the unaligned write needs no
    // more.
    unsafe { place.as_mut_ptr().cast::<libc::cmsghdr>().write_unaligned(header) };
    place[length - data.len()..length].copy_from_slice(data);
    used + space
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use super::super::{SocketOption, set_option};
    use super::*;

    fn exchange(address: &str) {
        let receiver = UdpSocket::bind((address, 0)).unwrap();
        let sender = UdpSocket::bind((address, 0)).unwrap();
        set_option(receiver.as_fd(), SocketOption::MergeReceived, true).unwrap();
        set_option(receiver.as_fd(), SocketOption::ReportOverflow, true).unwrap();
        let reports = match receiver.local_addr().unwrap() {
            SocketAddr::V4(_) => [SocketOption::ReportHopLimit4, SocketOption::ReportTrafficClass4],
            SocketAddr::V6(_) => [SocketOption::ReportHopLimit6, SocketOption::ReportTrafficClass6],
        };
        reports.into_iter().for_each(|option| set_option(receiver.as_fd(), option, true).unwrap());
        let destination = receiver.local_addr().unwrap();
        let bytes: Vec<u8> = (0..250).collect();
        let options = SendOptions { segment_size: Some(100), traffic_class: Some(0x28), hop_limit: Some(9) };
        send(sender.as_fd(), &destination, &bytes, options).unwrap();
        let mut buffer = vec![0; 65_536];
        let received = receive(receiver.as_fd(), &mut buffer).unwrap().unwrap();
        assert_eq!((received.length, received.segment_size), (250, Some(100)));
        assert_eq!((received.hop_limit, received.traffic_class), (Some(9), Some(0x28)));
        assert_eq!(&buffer[..250], &bytes[..]);
        assert_eq!(received.source, sender.local_addr().unwrap());

        send(sender.as_fd(), &destination, &bytes, SendOptions::default()).unwrap();
        let received = receive(receiver.as_fd(), &mut buffer[..100]).unwrap().unwrap();
        assert_eq!((received.length, received.segment_size, received.truncated), (100, None, true));
        assert!(receive(receiver.as_fd(), &mut buffer).unwrap().is_none());
    }

    #[test]
    fn several_datagrams_come_by_one_call() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let destination = receiver.local_addr().unwrap();
        let mut buffer = vec![0xAA; 4 * 100];
        let mut places = [None; 4];
        let mut call = |places: &mut [Option<Received>]| {
            receive_several(receiver.as_fd(), &mut buffer, 100, places).map(|count| (count, buffer.clone())).unwrap()
        };
        assert_eq!(call(&mut places).0, 0);
        for length in [10, 100, 101, 0, 7] {
            send(sender.as_fd(), &destination, &vec![length; length.into()], SendOptions::default()).unwrap();
        }
        let (count, bytes) = call(&mut places);
        assert_eq!(count, 4);
        let seen = places.map(|place| place.map(|received| (received.length, received.truncated)));
        assert_eq!(seen, [Some((10, false)), Some((100, false)), Some((100, true)), Some((0, false))]);
        assert!(places.iter().flatten().all(|received| received.source == sender.local_addr().unwrap()));
        let parts: Vec<&[u8]> = bytes.chunks(100).collect();
        assert_eq!((&parts[0][..10], parts[0][10], parts[1]), (&[10; 10][..], 0xAA, &[100; 100][..]));
        assert_eq!(call(&mut places[..2]).0, 1);
        assert_eq!(places[0].map(|received| received.length), Some(7));
        assert_eq!(call(&mut places[..0]).0, 0);
    }

    #[test]
    fn segments_are_sent_and_merged_over_ipv4() {
        exchange("127.0.0.1");
    }

    #[test]
    fn segments_are_sent_and_merged_over_ipv6() {
        // Some machines have no IPv6.
        if UdpSocket::bind("[::1]:0").is_ok() {
            exchange("::1");
        }
    }
}
