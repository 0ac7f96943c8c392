//! Socket addresses in the form of C.

use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Converts an address to the form of C.
pub(super) fn to_c(address: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: plain numbers, for which all zeros are valid.
    let mut storage: libc::sockaddr_storage = unsafe { MaybeUninit::zeroed().assume_init() };
    let first = &raw mut storage;
    match address {
        SocketAddr::V4(address) => {
            let converted = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is large enough for each kind of address, and aligned for it.
            unsafe { first.cast::<libc::sockaddr_in>().write(converted) }
        }
        SocketAddr::V6(address) => {
            let converted = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: address.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                sin6_scope_id: address.scope_id(),
            };
            // SAFETY: as above.
            unsafe { first.cast::<libc::sockaddr_in6>().write(converted) }
        }
    }
    storage
}

/// Converts an address from the form of C; `None` if it is of another family.
pub(super) fn from_c(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let first = std::ptr::from_ref(storage);
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the storage has an address of this family, for which all bits are valid.
            let address = unsafe { first.cast::<libc::sockaddr_in>().read() };
            let ip = Ipv4Addr::from(address.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(address.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let address = unsafe { first.cast::<libc::sockaddr_in6>().read() };
            let (ip, port) = (Ipv6Addr::from(address.sin6_addr.s6_addr), u16::from_be(address.sin6_port));
            Some(SocketAddrV6::new(ip, port, 0, address.sin6_scope_id).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_conversion() {
        for text in ["192.0.2.1:7471", "[2001:db8::1]:1", "[fe80::1%3]:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(from_c(&to_c(address)), Some(address));
        }
        let mut other = to_c("192.0.2.1:1".parse().unwrap());
        other.ss_family = libc::AF_UNIX as libc::sa_family_t;
        assert_eq!(from_c(&other), None);
    }
}
