//! The holders of a UDP port, for the error message about a taken port.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;

/// A UDP socket of this network namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Holder {
    pub(crate) address: IpAddr,
    pub(super) user: u32,
    /// Inode of the socket; 0: the kernel's own.
    pub(crate) inode: u64,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.inode {
            0 => write!(f, "the kernel (on {})", self.address),
            _ => write!(f, "a process of user {} (on {})", self.user, self.address),
        }
    }
}

/// Most reads of the kernel's table. It is read in chunks: while sockets come and go, a line may be missing or appear
/// twice.
const MOST_READS: usize = 4;

/// Returns the sockets that hold `port` on `address`, or on all addresses of its family. Empty if the system does not
/// report them.
pub(crate) fn holders(address: IpAddr, port: u16) -> Vec<Holder> {
    let table = if address.is_ipv4() { "udp" } else { "udp6" };
    for _ in 0..MOST_READS {
        // The thread's namespace may differ from the process's.
        let Ok(text) = std::fs::read_to_string(format!("/proc/thread-self/net/{table}")) else { break };
        let found = holders_in(&text, address, port);
        if !found.is_empty() {
            return found;
        }
    }
    Vec::new()
}

/// Returns the holders in the text of the kernel's table.
fn holders_in(table: &str, address: IpAddr, port: u16) -> Vec<Holder> {
    let mut found = Vec::new();
    for holder in table.lines().skip(1).filter_map(|line| parse_line(line, port)) {
        let is_here = holder.address == address || holder.address.is_unspecified();
        if is_here && !found.contains(&holder) {
            found.push(holder);
        }
    }
    found
}

/// Returns the inode of a socket of this process, which identifies it among the holders.
pub(crate) fn inode(socket: BorrowedFd<'_>) -> Option<u64> {
    let path = format!("/proc/self/fd/{}", socket.as_raw_fd());
    std::fs::metadata(path).ok().map(|metadata| metadata.ino())
}

/// Returns whether the kernel's own software transport is loaded, which takes the port on all addresses.
pub(crate) fn is_kernel_transport_loaded() -> bool {
    std::path::Path::new("/sys/module/rdma_rxe").exists()
}

/// Parses a line of the kernel's table: number, local address, remote address, state, queues, timer, retransmits, user,
/// timeout, inode, and more.
fn parse_line(line: &str, wanted_port: u16) -> Option<Holder> {
    let mut words = line.split_ascii_whitespace();
    let (address, port) = words.nth(1)?.split_once(':')?;
    if u16::from_str_radix(port, 16).ok()? != wanted_port {
        return None;
    }
    let user = words.nth(5)?.parse().ok()?;
    let inode = words.nth(1)?.parse().ok()?;
    Some(Holder { address: parse_address(address)?, user, inode })
}

/// Parses words of eight hexadecimal digits, each in the processor's byte order.
fn parse_address(digits: &str) -> Option<IpAddr> {
    let word = |index: usize| {
        let digits = digits.get(index * 8..index * 8 + 8)?;
        u32::from_str_radix(digits, 16).ok().map(u32::to_ne_bytes)
    };
    match digits.len() {
        8 => Some(IpAddr::V4(Ipv4Addr::from(word(0)?))),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            let mut bytes = [0; 16];
            bytes.copy_from_slice(&words.concat());
            Some(IpAddr::V6(Ipv6Addr::from(bytes)))
        }
        _ => None,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn own_sockets_are_found() {
        for address in ["127.77.1.1", "::1"] {
            let Ok(socket) = UdpSocket::bind((address, 0)) else { continue };
            let local = socket.local_addr().unwrap();
            let found = holders(local.ip(), local.port());
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!(Some(found[0].inode), inode(socket.as_fd()));
            assert_eq!(found[0].address, local.ip());
            assert!(holders(local.ip(), local.port() ^ 1).is_empty());
        }
    }

    #[test]
    fn a_line_that_appears_twice_is_one_socket() {
        let line = "  1: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000 0 0 77 2 0 0";
        let found = holders_in(&["header", line, line].join("\n"), Ipv4Addr::LOCALHOST.into(), 4791);
        assert_eq!(found, [Holder { address: Ipv4Addr::LOCALHOST.into(), user: 0, inode: 77 }]);
    }

    #[test]
    fn malformed_lines_are_no_holders() {
        for line in ["", "1: 0100007F:12B7", "1: xyz:12B7 0 0 0 0 0 0 0 0", "1: 01:12B7 0 07 0 0 0 5 0 77"] {
            assert_eq!(parse_line(line, 4791), None, "{line}");
        }
    }
}
