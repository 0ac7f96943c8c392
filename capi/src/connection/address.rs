//! Socket addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::error::{INVALID, Result};

/// Reads an address of the program: IPv4 or IPv6.
///
/// # Safety
/// `from` is null, or an address of the program with as many bytes as its family has.
pub(super) unsafe fn read(from: *const libc::sockaddr) -> Result<SocketAddr> {
    if from.is_null() {
        return Err(INVALID);
    }
    // SAFETY: the caller's promise, for the family that the structure names. Programs need not align it.
    unsafe {
        match i32::from((*from).sa_family) {
            libc::AF_INET => {
                let from = from.cast::<libc::sockaddr_in>().read_unaligned();
                let address = Ipv4Addr::from(from.sin_addr.s_addr.to_ne_bytes());
                Ok(SocketAddrV4::new(address, u16::from_be(from.sin_port)).into())
            }
            libc::AF_INET6 => {
                let from = from.cast::<libc::sockaddr_in6>().read_unaligned();
                let (address, port) = (Ipv6Addr::from(from.sin6_addr.s6_addr), u16::from_be(from.sin6_port));
                // A link-local address belongs to an interface, which only the scope names.
                match address.is_unicast_link_local() && from.sin6_scope_id == 0 {
                    true => Err(INVALID),
                    false => Ok(SocketAddrV6::new(address, port, from.sin6_flowinfo, from.sin6_scope_id).into()),
                }
            }
            _ => Err(INVALID),
        }
    }
}

/// Returns an address in its C form, and its length.
pub(super) fn storage(address: SocketAddr) -> (libc::sockaddr_storage, u32) {
    // SAFETY: zero is valid for numbers and arrays of them.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let to = &raw mut storage;
    let length = match address {
        SocketAddr::V4(address) => {
            let from = libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is larger, and aligned for any address.
            unsafe { to.cast::<libc::sockaddr_in>().write(from) };
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(address) => {
            let from = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: address.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                sin6_scope_id: address.scope_id(),
            };
            // SAFETY: as above.
            unsafe { to.cast::<libc::sockaddr_in6>().write(from) };
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, length as u32)
}

/// Returns the wildcard address of an IP version.
pub(super) fn any(is_ipv4: bool) -> IpAddr {
    if is_ipv4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

/// Returns the loopback address of an IP version.
pub(super) fn loopback(is_ipv4: bool) -> IpAddr {
    if is_ipv4 { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() }
}
