//! Socket options that no crate exposes.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Hop limit of a socket; packets with another one carry it as a send option.
pub(crate) const DEFAULT_HOP_LIMIT: u8 = 64;

/// A socket option with an integer value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SocketOption {
    /// Merge datagrams of one flow and report the length of each (UDP GRO).
    MergeReceived,
    /// Leave the UDP checksum of sent datagrams 0 (IPv4).
    NoChecksum4,
    /// Leave the UDP checksum of sent datagrams 0 (IPv6).
    NoChecksum6,
    /// Accept datagrams with UDP checksum 0 (IPv6).
    AcceptNoChecksum6,
    /// Report how many datagrams were dropped because the buffer was full.
    ReportOverflow,
    /// Never fragment, ignore the path MTU that routers report, set identification 0 (IPv4).
    ProbePathMtu4,
    /// Never fragment, ignore the path MTU that routers report (IPv6).
    ProbePathMtu6,
    /// Queue the errors that the network reports about sent packets (IPv4).
    ReportErrors4,
    /// Queue the errors that the network reports about sent packets (IPv6).
    ReportErrors6,
    /// Choose flow labels by hashing (IPv6).
    AutoFlowLabel,
    /// Deliver datagrams to groups that only other sockets have joined (IPv4).
    MulticastOfOthers4,
    /// Deliver datagrams to groups that only other sockets have joined (IPv6).
    MulticastOfOthers6,
    /// Report the time to live of received datagrams (IPv4).
    ReportHopLimit4,
    /// Report the hop limit of received datagrams (IPv6).
    ReportHopLimit6,
    /// Report the type of service of received datagrams (IPv4).
    ReportTrafficClass4,
    /// Report the traffic class of received datagrams (IPv6).
    ReportTrafficClass6,
}

impl SocketOption {
    const fn level_and_name(self) -> (libc::c_int, libc::c_int) {
        match self {
            Self::MergeReceived => (libc::SOL_UDP, libc::UDP_GRO),
            Self::NoChecksum4 => (libc::SOL_SOCKET, libc::SO_NO_CHECK),
            Self::NoChecksum6 => (libc::SOL_UDP, libc::UDP_NO_CHECK6_TX),
            Self::AcceptNoChecksum6 => (libc::SOL_UDP, libc::UDP_NO_CHECK6_RX),
            Self::ReportOverflow => (libc::SOL_SOCKET, libc::SO_RXQ_OVFL),
            Self::ProbePathMtu4 => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
            Self::ProbePathMtu6 => (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
            Self::ReportErrors4 => (libc::IPPROTO_IP, libc::IP_RECVERR),
            Self::ReportErrors6 => (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
            Self::AutoFlowLabel => (libc::IPPROTO_IPV6, libc::IPV6_AUTOFLOWLABEL),
            Self::MulticastOfOthers4 => (libc::IPPROTO_IP, libc::IP_MULTICAST_ALL),
            Self::MulticastOfOthers6 => (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_ALL),
            Self::ReportHopLimit4 => (libc::IPPROTO_IP, libc::IP_RECVTTL),
            Self::ReportHopLimit6 => (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT),
            Self::ReportTrafficClass4 => (libc::IPPROTO_IP, libc::IP_RECVTOS),
            Self::ReportTrafficClass6 => (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS),
        }
    }

    const fn value(self, on: bool) -> libc::c_int {
        match (self, on) {
            (_, false) => 0,
            (Self::ProbePathMtu4, true) => libc::IP_PMTUDISC_PROBE,
            (Self::ProbePathMtu6, true) => libc::IPV6_PMTUDISC_PROBE,
            (_, true) => 1,
        }
    }
}

/// Turns a socket option on or off.
pub(crate) fn set_option(socket: BorrowedFd<'_>, option: SocketOption, on: bool) -> io::Result<()> {
    set_number(socket, option.level_and_name(), option.value(on))
}

/// Sets the traffic class of packets that are sent without an explicit one.
pub(crate) fn set_traffic_class(socket: BorrowedFd<'_>, is_ipv6: bool, class: u8) -> io::Result<()> {
    let option = if is_ipv6 { (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) } else { (libc::IPPROTO_IP, libc::IP_TOS) };
    set_number(socket, option, class.into())
}

fn set_number(socket: BorrowedFd<'_>, (level, name): (libc::c_int, libc::c_int), value: libc::c_int) -> io::Result<()> {
    let size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel reads a number of the given size from a live local variable.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), size) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
