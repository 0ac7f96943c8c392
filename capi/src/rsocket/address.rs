//! Addresses of C programs.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::error::{INVALID, Result};

/// Returns the length of the addresses of a family.
fn length_of(family: i32) -> Result<usize> {
    match family {
        libc::AF_INET => Ok(size_of::<libc::sockaddr_in>()),
        libc::AF_INET6 => Ok(size_of::<libc::sockaddr_in6>()),
        _ => Err(INVALID),
    }
}

/// Copies an address of the program.
///
/// # Safety
/// `from` is null, or has `length` bytes.
pub(super) unsafe fn read(from: *const libc::sockaddr, length: libc::socklen_t) -> Result<libc::sockaddr_storage> {
    if from.is_null() || (length as usize) < size_of::<libc::sa_family_t>() {
        return Err(INVALID);
    }
    // SAFETY: the caller's promise. Programs need not align it.
    let family = unsafe { from.cast::<libc::sa_family_t>().read_unaligned() };
    let needed = length_of(family.into())?;
    if (length as usize) < needed {
        return Err(INVALID);
    }
    // SAFETY: zero is valid for numbers and arrays of them.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    // SAFETY: the caller's promise; the storage is larger.
    unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), (&raw mut storage).cast(), needed) };
    Ok(storage)
}

/// Copies an address to the program, as much as it has room for, and returns its whole length.
///
/// # Safety
/// `to` has as many bytes as `length` says; both may be written, or `length` is null.
pub(super) unsafe fn write(
    from: &libc::sockaddr_storage,
    to: *mut libc::sockaddr,
    length: *mut libc::socklen_t,
) -> Result<()> {
    if length.is_null() {
        return Err(INVALID);
    }
    let whole = length_of(from.ss_family.into())?;
    // SAFETY: the caller's promise.
    unsafe {
        let room = if to.is_null() { 0 } else { whole.min(*length as usize) };
        std::ptr::copy_nonoverlapping((&raw const *from).cast::<u8>(), to.cast(), room);
        length.write(whole as libc::socklen_t);
    }
    Ok(())
}

/// Returns an address in the form of Rust.
pub(super) fn to_rust(from: &libc::sockaddr_storage) -> Result<SocketAddr> {
    match i32::from(from.ss_family) {
        libc::AF_INET => {
            // SAFETY: an address of this family.
            let from = unsafe { &*(&raw const *from).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(from.sin_addr.s_addr.to_ne_bytes());
            Ok(SocketAddrV4::new(ip, u16::from_be(from.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: an address of this family.
            let from = unsafe { &*(&raw const *from).cast::<libc::sockaddr_in6>() };
            let (ip, port) = (Ipv6Addr::from(from.sin6_addr.s6_addr), u16::from_be(from.sin6_port));
            Ok(SocketAddrV6::new(ip, port, from.sin6_flowinfo, from.sin6_scope_id).into())
        }
        _ => Err(INVALID),
    }
}

/// Returns an address in the form of C, and its length.
pub(super) fn to_c(from: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: zero is valid for numbers and arrays of them.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let to = &raw mut storage;
    let length = match from {
        SocketAddr::V4(from) => {
            let address = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: from.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(from.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is larger, and aligned for any address.
            unsafe { to.cast::<libc::sockaddr_in>().write(address) };
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(from) => {
            let address = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: from.port().to_be(),
                sin6_flowinfo: from.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: from.ip().octets() },
                sin6_scope_id: from.scope_id(),
            };
            // SAFETY: as above.
            unsafe { to.cast::<libc::sockaddr_in6>().write(address) };
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, length as libc::socklen_t)
}
