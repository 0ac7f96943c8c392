//! Addresses and routes of identifiers, and their options.

use std::ffi::{c_int, c_void};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;

use rdma_verbs::provider::abi::{Gid, cm};
use rdma_verbs::provider::{BindInit, BoundPort, ConnectionPath, Error, ErrorKind, PortSpace};

use super::address::{any, loopback, read, storage};
use super::devices::{self, Device, PORT};
use super::event::{Content, Queued, complete, event_type};
use super::id::{DATAGRAM, Id, Phase, id_of};
use super::{bring_up, pump::Section};
use crate::error::{Errno, INVALID, Result, zero_or_minus_one};
use crate::object::Zeroed;

const NOT_AVAILABLE: Errno = Errno(libc::EADDRNOTAVAIL);

/// Returns the error number of a port that cannot be bound. Linux has two for a port in use.
pub(super) fn from_port(error: Error) -> Errno {
    let (kind, number) = (error.kind(), error.os_error());
    let usual = Errno::from(error);
    match kind {
        ErrorKind::AddressInUse => Errno(number.unwrap_or(libc::EADDRINUSE)),
        ErrorKind::NotFound => NOT_AVAILABLE,
        _ => usual,
    }
}

/// Binds an identifier to an address and a port.
///
/// # Safety
/// The identifier is the program's.
pub(super) unsafe fn bind(visible: *mut cm::Id, address: SocketAddr) -> Result<()> {
    // SAFETY: the caller's promise.
    let id = unsafe { id_of(visible)? };
    let options = {
        let inner = id.inner();
        if inner.phase != Phase::Idle || id.space == PortSpace::Ipoib {
            return Err(INVALID);
        }
        inner.options
    };
    let ip = address.ip();
    if ip.is_multicast() || matches!(ip, IpAddr::V4(ip) if ip.is_broadcast()) {
        return Err(NOT_AVAILABLE);
    }
    let device = match ip.is_unspecified() {
        // Any device: it does not matter which one binds the port.
        true => devices::all()?.into_iter().next().ok_or(Errno(libc::ENODEV))?,
        false => devices::of_address(ip)?,
    };
    let (reuse_address, only_v6) = (options.reuse_address, options.only_own_family);
    let init = BindInit { address, space: id.space, reuse_address, only_v6 };
    let port = device.manager()?.bind(&init).map_err(from_port)?;
    // With the scope of a link-local address, which ports do not have.
    let local = with_port(address, &*port);
    let mut inner = id.inner();
    (inner.phase, inner.port, inner.local) = (Phase::Bound, Some(port), Some(local));
    inner.device = (!ip.is_unspecified()).then_some(device);
    let device = inner.device;
    drop(inner);
    // SAFETY: the caller's promise.
    unsafe {
        (*visible).route.addr.src_addr = storage(local).0;
        // As on Linux, the addresses of `localhost` name no device: libfabric binds one of them to ask which devices
        // there are, and would take no other than that of the loopback.
        if let Some(device) = device.filter(|_| ip != loopback(ip.is_ipv4())) {
            set_device(visible, device, ip);
        }
    }
    Ok(())
}

/// Shows the device of an identifier.
///
/// # Safety
/// The identifier is the program's.
unsafe fn set_device(visible: *mut cm::Id, device: &Device, local: IpAddr) {
    // SAFETY: the caller's promise.
    unsafe {
        (*visible).verbs = device.context;
        (*visible).port_num = PORT;
        if (*visible).pd.is_null() {
            (*visible).pd = device.pd;
        }
        (*visible).route.addr.ibaddr.sgid = Gid(rdma_verbs::types::Gid::from(local).to_bytes());
    }
}

/// Shows the device and both addresses of an identifier.
///
/// # Safety
/// The identifier is the program's.
pub(super) unsafe fn set_route(visible: *mut cm::Id, device: &Device, local: SocketAddr, remote: SocketAddr) {
    // SAFETY: the caller's promise.
    unsafe {
        set_device(visible, device, local.ip());
        let addresses = &raw mut (*visible).route.addr;
        (*addresses).src_addr = storage(local).0;
        (*addresses).dst_addr = storage(remote).0;
        (*addresses).ibaddr.dgid = Gid(rdma_verbs::types::Gid::from(remote.ip()).to_bytes());
    }
}

/// Values of `ib_sa_selector` and `ibv_rate`: exactly, and 10 Gbit/s.
const EXACTLY: u8 = 2;
const RATE: u8 = 3;
/// The P_Key of the only partition.
const DEFAULT_PKEY: u16 = 0xffff;
/// Code of the time that Linux assumes for a packet.
const PACKET_LIFE_TIME: u8 = 16;

/// Shows the path of an identifier.
///
/// # Safety
/// The identifier is the program's.
pub(super) unsafe fn set_path_record(visible: *mut cm::Id, path: &ConnectionPath) {
    let record = cm::PathRecord {
        dgid: Gid(path.remote_gid.to_bytes()),
        sgid: Gid(path.local_gid.to_bytes()),
        flow_label: path.flow_label.to_be(),
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        reversible: 1,
        numb_path: 1,
        pkey: DEFAULT_PKEY.to_be(),
        mtu_selector: EXACTLY,
        mtu: path.path_mtu as u8,
        rate_selector: EXACTLY,
        rate: RATE,
        packet_life_time_selector: EXACTLY,
        packet_life_time: PACKET_LIFE_TIME,
        ..cm::PathRecord::zeroed()
    };
    // SAFETY: the caller's promise; the record before was made here.
    unsafe {
        let before = std::mem::replace(&mut (*visible).route.path_rec, Box::into_raw(Box::new(record)));
        if !before.is_null() {
            drop(Box::from_raw(before));
        }
        (*visible).route.num_paths = 1;
    }
}

pub(super) unsafe extern "C" fn rdma_bind_addr(id: *mut cm::Id, address: *mut libc::sockaddr) -> c_int {
    let _section = Section::begin();
    // SAFETY: the program's identifier and address.
    zero_or_minus_one(unsafe { read(address).and_then(|address| bind(id, address)) })
}

/// Returns an address with a bound port.
fn with_port(mut address: SocketAddr, port: &dyn BoundPort) -> SocketAddr {
    address.set_port(port.local_addr().port());
    address
}

/// Returns the local address from which packets to a peer leave, as the system routes them.
fn source_of(mut local: SocketAddr, mut remote: SocketAddr) -> Result<SocketAddr> {
    let failed = |error: std::io::Error| Errno(error.raw_os_error().unwrap_or(libc::ENETUNREACH));
    // The port of the socket does not matter, and one of the peer is not needed to find a route; but the system refuses
    // port 0.
    local.set_port(0);
    remote.set_port(remote.port().max(1));
    // Connecting a UDP socket chooses its address and sends nothing.
    let source = UdpSocket::bind(local).and_then(|socket| {
        socket.set_broadcast(true)?;
        socket.connect(remote)?;
        socket.local_addr()
    });
    match source {
        Ok(source) => Ok(source),
        // A group needs no route if the interface is known.
        Err(_) if remote.ip().is_multicast() && !local.ip().is_unspecified() => Ok(local),
        Err(error) => Err(failed(error)),
    }
}

/// Finds the device and the address from which packets to a peer leave.
///
/// # Safety
/// All pointers are the program's; `source` may be null.
unsafe fn resolve(
    visible: *mut cm::Id,
    source: *const libc::sockaddr,
    destination: *const libc::sockaddr,
) -> Result<()> {
    // SAFETY: the caller's promise.
    let (id, destination) = unsafe { (id_of(visible)?, read(destination)?) };
    let phase = id.inner().phase;
    if !matches!(phase, Phase::Idle | Phase::Bound) || id.space == PortSpace::Ipoib {
        return Err(INVALID);
    }
    if !source.is_null() && phase == Phase::Idle {
        // SAFETY: the caller's promise.
        let source = unsafe { read(source)? };
        if source.is_ipv4() != destination.is_ipv4() {
            return Err(INVALID);
        }
        // SAFETY: the caller's promise.
        unsafe { bind(visible, source)? };
    }
    let bound = id.inner().local.unwrap_or(SocketAddr::new(any(destination.is_ipv4()), 0));
    if bound.is_ipv4() != destination.is_ipv4() {
        return Err(INVALID);
    }
    let mut remote = destination;
    if remote.ip().is_unspecified() {
        remote.set_ip(loopback(remote.is_ipv4()));
    }
    let local = source_of(bound, remote)?;
    let device = devices::of_address(local.ip())?;
    let port = match id.inner().port.clone() {
        Some(port) => port,
        None => {
            let address = SocketAddr::new(local.ip(), 0);
            let init = BindInit { address, space: id.space, reuse_address: false, only_v6: None };
            device.manager()?.bind(&init).map_err(from_port)?
        }
    };
    let local = with_port(local, &*port);
    {
        let mut inner = id.inner();
        (inner.phase, inner.device, inner.port) = (Phase::AddressResolved, Some(device), Some(port));
        (inner.local, inner.remote) = (Some(local), Some(remote));
    }
    // SAFETY: the caller's promise.
    unsafe { set_route(visible, device, local, remote) };
    id.push(Queued::new(id, event_type::ADDR_RESOLVED, 0, Content::None));
    Ok(())
}

/// Finds the route to a peer. Nothing is sent, so the time is not needed.
pub(super) unsafe extern "C" fn rdma_resolve_addr(
    id: *mut cm::Id,
    source: *mut libc::sockaddr,
    destination: *mut libc::sockaddr,
    _milliseconds: c_int,
) -> c_int {
    let resolve_it = || {
        let _section = Section::begin();
        // SAFETY: the program's identifier and addresses.
        unsafe { resolve(id, source, destination) }
    };
    // SAFETY: the program's identifier.
    zero_or_minus_one(resolve_it().and_then(|()| unsafe { complete(id) }))
}

/// # Safety
/// The identifier is the program's.
unsafe fn route(visible: *mut cm::Id) -> Result<()> {
    // SAFETY: the caller's promise.
    let id = unsafe { id_of(visible)? };
    let (device, local, remote, options) = {
        let inner = id.inner();
        let (Phase::AddressResolved, Some(device), Some(local), Some(remote)) =
            (inner.phase, inner.device, inner.local, inner.remote)
        else {
            return Err(INVALID);
        };
        (device, local, remote, inner.options)
    };
    let path = bring_up::path(device, local, remote, &options)?;
    id.inner().phase = Phase::RouteResolved;
    // SAFETY: the caller's promise.
    unsafe { set_path_record(visible, &path) };
    id.push(Queued::new(id, event_type::ROUTE_RESOLVED, 0, Content::None));
    Ok(())
}

pub(super) unsafe extern "C" fn rdma_resolve_route(id: *mut cm::Id, _milliseconds: c_int) -> c_int {
    // SAFETY: the program's identifier.
    zero_or_minus_one(unsafe { route(id).and_then(|()| complete(id)) })
}

/// Returns the port of an address in network order; 0 if it has none.
///
/// # Safety
/// The storage may be read.
unsafe fn port_of(storage: *const libc::sockaddr_storage) -> u16 {
    // SAFETY: the caller's promise; a storage has room for any address.
    unsafe { read(storage.cast()) }.map_or(0, |address| address.port().to_be())
}

pub(super) unsafe extern "C" fn rdma_get_src_port(id: *mut cm::Id) -> u16 {
    // SAFETY: the program's identifier.
    unsafe { port_of(&raw const (*id).route.addr.src_addr) }
}

pub(super) unsafe extern "C" fn rdma_get_dst_port(id: *mut cm::Id) -> u16 {
    // SAFETY: the program's identifier.
    unsafe { port_of(&raw const (*id).route.addr.dst_addr) }
}

/// Options of the level `RDMA_OPTION_ID`, and the other level.
mod option {
    pub(super) const LEVEL_ID: i32 = 0;
    pub(super) const TYPE_OF_SERVICE: i32 = 0;
    pub(super) const REUSE_ADDRESS: i32 = 1;
    pub(super) const ONLY_OWN_FAMILY: i32 = 2;
    pub(super) const ACK_TIMEOUT: i32 = 3;
    pub(super) const LEVEL_IB: i32 = 1;
    pub(super) const PATH: i32 = 1;
}

fn set_option(id: &Arc<Id>, level: c_int, name: c_int, value: &[u8]) -> Result<()> {
    let byte = || <[u8; 1]>::try_from(value).map(|[byte]| byte).map_err(|_| INVALID);
    let number = || <[u8; 4]>::try_from(value).map(i32::from_ne_bytes).map_err(|_| INVALID);
    let mut inner = id.inner();
    let is_early = matches!(inner.phase, Phase::Idle | Phase::Bound);
    match (level, name) {
        (option::LEVEL_ID, option::TYPE_OF_SERVICE) => inner.options.type_of_service = byte()?,
        (option::LEVEL_ID, option::REUSE_ADDRESS) => match number()? != 0 {
            true if inner.phase == Phase::Listening => return Err(INVALID),
            false if inner.phase != Phase::Idle => return Err(INVALID),
            reuse => inner.options.reuse_address = reuse,
        },
        (option::LEVEL_ID, option::ONLY_OWN_FAMILY) => match number()? {
            _ if !is_early => return Err(INVALID),
            only => inner.options.only_own_family = Some(only != 0),
        },
        (option::LEVEL_ID, option::ACK_TIMEOUT) => match byte()? {
            _ if id.qp_type == DATAGRAM => return Err(INVALID),
            timeout => inner.options.ack_timeout = Some(timeout & 0x1f),
        },
        // Paths are those of IP routes.
        (option::LEVEL_IB, option::PATH) => return Err(INVALID),
        _ => return Err(Errno(libc::ENOSYS)),
    }
    Ok(())
}

pub(super) unsafe extern "C" fn rdma_set_option(
    id: *mut cm::Id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: usize,
) -> c_int {
    let set = || {
        let value: *const u8 = value.cast();
        // No option is longer than a number, but for paths, which are refused.
        let length = if value.is_null() { 0 } else { length.min(size_of::<i64>()) };
        // SAFETY: the program's value, which has at least so many bytes.
        let value = if length == 0 { &[] } else { unsafe { std::slice::from_raw_parts(value, length) } };
        // SAFETY: the program's identifier.
        set_option(unsafe { id_of(id)? }, level, name, value)
    };
    zero_or_minus_one(set())
}
