//! `rdma_getaddrinfo`: names to addresses.

use std::ffi::{CStr, CString, c_char, c_int};
use std::net::SocketAddr;
use std::ptr::null_mut;

use rdma_verbs::provider::PortSpace;
use rdma_verbs::provider::abi::cm;

use super::address::{read, storage};
use super::endpoint::PASSIVE;
use super::id::{DATAGRAM, RELIABLE};
use crate::error::{INVALID, set_errno};
use crate::object::{Object, Zeroed, make, take};

/// `RAI_NUMERICHOST`.
const NUMERIC_HOST: c_int = 2;
const TCP: c_int = PortSpace::Tcp as c_int;
const UDP: c_int = PortSpace::Udp as c_int;
const IPOIB: c_int = PortSpace::Ipoib as c_int;

/// The memory that a result refers to.
pub(crate) struct Referred {
    _addresses: [Option<Box<libc::sockaddr_storage>>; 2],
    _names: [Option<CString>; 2],
}

impl Object for cm::AddrInfo {
    type Own = Referred;
}

/// The result of a look-up.
struct Found {
    address: SocketAddr,
    socket_type: c_int,
    protocol: c_int,
    name: Option<CString>,
}

/// Returns the hints in the form of the C library.
fn socket_hints(hints: &cm::AddrInfo) -> libc::addrinfo {
    // SAFETY: zero is valid for numbers and pointers.
    let mut to: libc::addrinfo = unsafe { std::mem::zeroed() };
    to.ai_flags |= if hints.ai_flags & PASSIVE != 0 { libc::AI_PASSIVE } else { 0 };
    to.ai_flags |= if hints.ai_flags & NUMERIC_HOST != 0 { libc::AI_NUMERICHOST } else { 0 };
    to.ai_family = hints.ai_family;
    to.ai_socktype = match hints.ai_qp_type as u32 {
        0 => 0,
        DATAGRAM => libc::SOCK_DGRAM,
        _ => libc::SOCK_STREAM,
    };
    to.ai_protocol = match hints.ai_port_space {
        TCP => libc::IPPROTO_TCP,
        UDP | IPOIB => libc::IPPROTO_UDP,
        _ if to.ai_socktype == libc::SOCK_STREAM => libc::IPPROTO_TCP,
        _ if to.ai_socktype == libc::SOCK_DGRAM => libc::IPPROTO_UDP,
        _ => 0,
    };
    to
}

/// Looks a name up, and returns the first result or the error of `getaddrinfo`.
///
/// # Safety
/// Both names are null or the program's.
unsafe fn look_up(node: *const c_char, service: *const c_char, hints: &libc::addrinfo) -> Result<Found, c_int> {
    let mut list = null_mut();
    // SAFETY: the caller's promise, and local structures.
    match unsafe { libc::getaddrinfo(node, service, hints, &raw mut list) } {
        0 => {}
        error => return Err(error),
    }
    // SAFETY: the list that was just made has at least one entry, and is freed once.
    unsafe {
        let first = &*list;
        let name = (!first.ai_canonname.is_null()).then(|| CStr::from_ptr(first.ai_canonname).to_owned());
        let address = read(first.ai_addr).map_err(|_| libc::EAI_FAMILY);
        let (socket_type, protocol) = (first.ai_socktype, first.ai_protocol);
        libc::freeaddrinfo(list);
        Ok(Found { address: address?, socket_type, protocol, name })
    }
}

/// Returns an address in memory that a result may refer to, and its length.
fn kept(address: Option<SocketAddr>) -> (Option<Box<libc::sockaddr_storage>>, u32) {
    match address.map(storage) {
        Some((storage, length)) => (Some(Box::new(storage)), length),
        None => (None, 0),
    }
}

/// Makes a result that the program sees.
fn result(
    mut info: cm::AddrInfo,
    addresses: [Option<SocketAddr>; 2],
    names: [Option<CString>; 2],
) -> *mut cm::AddrInfo {
    let [(mut source, source_length), (mut destination, destination_length)] = addresses.map(kept);
    let start = |kept: &mut Option<Box<libc::sockaddr_storage>>| {
        kept.as_deref_mut().map_or(null_mut(), |kept| std::ptr::from_mut(kept).cast())
    };
    (info.ai_src_addr, info.ai_src_len) = (start(&mut source), source_length);
    (info.ai_dst_addr, info.ai_dst_len) = (start(&mut destination), destination_length);
    let text = |name: &Option<CString>| name.as_ref().map_or(null_mut(), |name| name.as_ptr().cast_mut());
    (info.ai_src_canonname, info.ai_dst_canonname) = (text(&names[0]), text(&names[1]));
    make(info, Referred { _addresses: [source, destination], _names: names })
}

/// Returns an address of the hints; `None` if there is none.
///
/// # Safety
/// The address is null or the program's.
unsafe fn hinted(address: *const libc::sockaddr, length: u32) -> Option<SocketAddr> {
    // SAFETY: the caller's promise.
    if length == 0 { None } else { unsafe { read(address) }.ok() }
}

/// # Safety
/// All pointers are null or the program's.
unsafe fn find(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&cm::AddrInfo>,
) -> Result<*mut cm::AddrInfo, c_int> {
    let none = cm::AddrInfo::zeroed();
    let hints = hints.unwrap_or(&none);
    // SAFETY: the caller's promise, for the hints' addresses.
    let own = unsafe { [hinted(hints.ai_src_addr, hints.ai_src_len), hinted(hints.ai_dst_addr, hints.ai_dst_len)] };
    let mut info = cm::AddrInfo::zeroed();
    (info.ai_family, info.ai_qp_type, info.ai_port_space) = (hints.ai_family, hints.ai_qp_type, hints.ai_port_space);
    info.ai_flags = hints.ai_flags & PASSIVE;
    if node.is_null() && service.is_null() {
        return Ok(result(info, own, [None, None]));
    }
    // SAFETY: the caller's promise.
    let found = unsafe { look_up(node, service, &socket_hints(hints))? };
    info.ai_family = if found.address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    if info.ai_qp_type == 0 {
        let is_datagram = found.socket_type == libc::SOCK_DGRAM;
        info.ai_qp_type = if is_datagram { DATAGRAM } else { RELIABLE } as c_int;
    }
    if info.ai_port_space == 0 {
        info.ai_port_space = if found.protocol == libc::IPPROTO_UDP { UDP } else { TCP };
    }
    Ok(match info.ai_flags & PASSIVE != 0 {
        true => result(info, [Some(found.address), None], [found.name, None]),
        false => result(info, [own[0], Some(found.address)], [None, found.name]),
    })
}

pub(super) unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const cm::AddrInfo,
    info: *mut *mut cm::AddrInfo,
) -> c_int {
    if node.is_null() && service.is_null() && hints.is_null() {
        set_errno(INVALID);
        return -1;
    }
    // SAFETY: the program's names and structures.
    match unsafe { find(node, service, hints.as_ref()) } {
        Ok(found) => {
            // SAFETY: the program's pointer for the result.
            unsafe { info.write(found) };
            0
        }
        Err(error) => error,
    }
}

pub(super) unsafe extern "C" fn rdma_freeaddrinfo(info: *mut cm::AddrInfo) {
    if !info.is_null() {
        // SAFETY: the program gives up a result of `rdma_getaddrinfo`, which has no next one.
        drop(unsafe { take(info) });
    }
}
