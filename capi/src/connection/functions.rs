//! The functions of librdmacm, with their versions and types: those of identifiers, and those of sockets. This library
//! implements them; `rdmacm-capi`, which has this file as well, exports them.

use super::types::*;

/// Passes the list of the functions of identifiers to a macro.
macro_rules! connection_functions {
    ($receiver:ident) => {
        $receiver! {
            "RDMACM_1.0" "C" fn rdma_create_event_channel() -> *mut EventChannel;
            "RDMACM_1.0" "C" fn rdma_destroy_event_channel(channel: *mut EventChannel) -> ();
            "RDMACM_1.0" "C-unwind" fn rdma_get_cm_event(channel: *mut EventChannel, event: *mut *mut Event) -> c_int;
            "RDMACM_1.0" "C" fn rdma_ack_cm_event(event: *mut Event) -> c_int;
            "RDMACM_1.0" "C" fn rdma_event_str(event: c_int) -> *const c_char;
            "RDMACM_1.0" "C" fn rdma_create_id(
                channel: *mut EventChannel, id: *mut *mut Id, context: *mut c_void, space: c_int
            ) -> c_int;
            "RDMACM_1.0" "C" fn rdma_destroy_id(id: *mut Id) -> c_int;
            "RDMACM_1.0" "C" fn rdma_migrate_id(id: *mut Id, channel: *mut EventChannel) -> c_int;
            "RDMACM_1.0" "C" fn rdma_set_option(
                id: *mut Id, level: c_int, name: c_int, value: *mut c_void, length: usize
            ) -> c_int;
            "RDMACM_1.0" "C" fn rdma_bind_addr(id: *mut Id, address: *mut sockaddr) -> c_int;
            "RDMACM_1.0" "C" fn rdma_resolve_addr(
                id: *mut Id, source: *mut sockaddr, destination: *mut sockaddr, milliseconds: c_int
            ) -> c_int;
            "RDMACM_1.0" "C" fn rdma_resolve_route(id: *mut Id, milliseconds: c_int) -> c_int;
            "RDMACM_1.0" "C" fn rdma_get_src_port(id: *mut Id) -> u16;
            "RDMACM_1.0" "C" fn rdma_get_dst_port(id: *mut Id) -> u16;
            "RDMACM_1.0" "C" fn rdma_listen(id: *mut Id, backlog: c_int) -> c_int;
            "RDMACM_1.0" "C" fn rdma_connect(id: *mut Id, parameters: *mut ConnParam) -> c_int;
            "RDMACM_1.0" "C" fn rdma_accept(id: *mut Id, parameters: *mut ConnParam) -> c_int;
            "RDMACM_1.0" "C" fn rdma_reject(id: *mut Id, data: *const c_void, length: u8) -> c_int;
            "RDMACM_1.0" "C" fn rdma_notify(id: *mut Id, event: c_int) -> c_int;
            "RDMACM_1.0" "C" fn rdma_disconnect(id: *mut Id) -> c_int;
            "RDMACM_1.0" "C" fn rdma_create_qp(id: *mut Id, pd: *mut Pd, init: *mut QpInitAttr) -> c_int;
            "RDMACM_1.0" "C" fn rdma_create_qp_ex(id: *mut Id, init: *mut QpInitAttrEx) -> c_int;
            "RDMACM_1.0" "C" fn rdma_destroy_qp(id: *mut Id) -> ();
            "RDMACM_1.0" "C" fn rdma_create_srq(id: *mut Id, pd: *mut Pd, init: *mut SrqInitAttr) -> c_int;
            "RDMACM_1.0" "C" fn rdma_create_srq_ex(id: *mut Id, init: *mut SrqInitAttrEx) -> c_int;
            "RDMACM_1.0" "C" fn rdma_destroy_srq(id: *mut Id) -> ();
            "RDMACM_1.0" "C" fn rdma_create_ep(
                id: *mut *mut Id, info: *mut AddrInfo, pd: *mut Pd, init: *mut QpInitAttr
            ) -> c_int;
            "RDMACM_1.0" "C" fn rdma_destroy_ep(id: *mut Id) -> ();
            "RDMACM_1.0" "C" fn rdma_get_request(listener: *mut Id, id: *mut *mut Id) -> c_int;
            "RDMACM_1.0" "C" fn rdma_join_multicast(id: *mut Id, address: *mut sockaddr, context: *mut c_void) -> c_int;
            "RDMACM_1.0" "C" fn rdma_leave_multicast(id: *mut Id, address: *mut sockaddr) -> c_int;
            "RDMACM_1.0" "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut Context;
            "RDMACM_1.0" "C" fn rdma_free_devices(list: *mut *mut Context) -> ();
            "RDMACM_1.0" "C" fn rdma_getaddrinfo(
                node: *const c_char, service: *const c_char, hints: *const AddrInfo, info: *mut *mut AddrInfo
            ) -> c_int;
            "RDMACM_1.0" "C" fn rdma_freeaddrinfo(info: *mut AddrInfo) -> ();
            "RDMACM_1.1" "C" fn rdma_join_multicast_ex(
                id: *mut Id, attributes: *mut JoinMcAttrEx, context: *mut c_void
            ) -> c_int;
            "RDMACM_1.2" "C" fn rdma_establish(id: *mut Id) -> c_int;
            "RDMACM_1.2" "C" fn rdma_init_qp_attr(id: *mut Id, attributes: *mut QpAttr, bits: *mut c_int) -> c_int;
            "RDMACM_1.3" "C" fn rdma_set_local_ece(id: *mut Id, ece: *mut Ece) -> c_int;
            "RDMACM_1.3" "C" fn rdma_get_remote_ece(id: *mut Id, ece: *mut Ece) -> c_int;
            "RDMACM_1.3" "C" fn rdma_reject_ece(id: *mut Id, data: *const c_void, length: u8) -> c_int;
        }
    };
}

/// Passes the list of the functions of sockets to a macro. The last argument of `rfcntl` is the optional one of C,
/// which is passed as a named one is.
macro_rules! socket_functions {
    ($receiver:ident) => {
        $receiver! {
            "RDMACM_1.0" "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
            "RDMACM_1.0" "C" fn rbind(socket: c_int, address: *const sockaddr, length: libc::socklen_t) -> c_int;
            "RDMACM_1.0" "C" fn rlisten(socket: c_int, backlog: c_int) -> c_int;
            "RDMACM_1.0" "C-unwind" fn raccept(
                socket: c_int, address: *mut sockaddr, length: *mut libc::socklen_t
            ) -> c_int;
            "RDMACM_1.0" "C-unwind" fn rconnect(
                socket: c_int, address: *const sockaddr, length: libc::socklen_t
            ) -> c_int;
            "RDMACM_1.0" "C-unwind" fn rshutdown(socket: c_int, how: c_int) -> c_int;
            "RDMACM_1.0" "C-unwind" fn rclose(socket: c_int) -> c_int;
            "RDMACM_1.0" "C-unwind" fn rrecv(socket: c_int, to: *mut c_void, length: usize, flags: c_int) -> isize;
            "RDMACM_1.0" "C-unwind" fn rrecvfrom(
                socket: c_int, to: *mut c_void, length: usize, flags: c_int, address: *mut sockaddr,
                address_length: *mut libc::socklen_t
            ) -> isize;
            "RDMACM_1.0" "C-unwind" fn rrecvmsg(socket: c_int, message: *mut libc::msghdr, flags: c_int) -> isize;
            "RDMACM_1.0" "C-unwind" fn rsend(socket: c_int, from: *const c_void, length: usize, flags: c_int) -> isize;
            "RDMACM_1.0" "C-unwind" fn rsendto(
                socket: c_int, from: *const c_void, length: usize, flags: c_int, address: *const sockaddr,
                address_length: libc::socklen_t
            ) -> isize;
            "RDMACM_1.0" "C-unwind" fn rsendmsg(socket: c_int, message: *const libc::msghdr, flags: c_int) -> isize;
            "RDMACM_1.0" "C-unwind" fn rread(socket: c_int, to: *mut c_void, length: usize) -> isize;
            "RDMACM_1.0" "C-unwind" fn rreadv(socket: c_int, list: *const libc::iovec, count: c_int) -> isize;
            "RDMACM_1.0" "C-unwind" fn rwrite(socket: c_int, from: *const c_void, length: usize) -> isize;
            "RDMACM_1.0" "C-unwind" fn rwritev(socket: c_int, list: *const libc::iovec, count: c_int) -> isize;
            "RDMACM_1.0" "C-unwind" fn rpoll(
                entries: *mut libc::pollfd, count: libc::nfds_t, milliseconds: c_int
            ) -> c_int;
            "RDMACM_1.0" "C-unwind" fn rselect(
                count: c_int, readable: *mut libc::fd_set, writable: *mut libc::fd_set,
                exceptional: *mut libc::fd_set, timeout: *mut libc::timeval
            ) -> c_int;
            "RDMACM_1.0" "C" fn rgetpeername(
                socket: c_int, address: *mut sockaddr, length: *mut libc::socklen_t
            ) -> c_int;
            "RDMACM_1.0" "C" fn rgetsockname(
                socket: c_int, address: *mut sockaddr, length: *mut libc::socklen_t
            ) -> c_int;
            "RDMACM_1.0" "C" fn rsetsockopt(
                socket: c_int, level: c_int, name: c_int, value: *const c_void, length: libc::socklen_t
            ) -> c_int;
            "RDMACM_1.0" "C" fn rgetsockopt(
                socket: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut libc::socklen_t
            ) -> c_int;
            "RDMACM_1.0" "C" fn rfcntl(socket: c_int, command: c_int, argument: libc::c_long) -> c_int;
            "RDMACM_1.0" "C" fn riomap(
                socket: c_int, memory: *mut c_void, length: usize, protection: c_int, flags: c_int, offset: libc::off_t
            ) -> libc::off_t;
            "RDMACM_1.0" "C" fn riounmap(socket: c_int, memory: *mut c_void, length: usize) -> c_int;
            "RDMACM_1.0" "C-unwind" fn riowrite(
                socket: c_int, from: *const c_void, length: usize, offset: libc::off_t, flags: c_int
            ) -> usize;
        }
    };
}

macro_rules! text {
    ($($token:tt)*) => {
        stringify!($($token)*)
    };
}

/// The version of the lists: it changes with each name and type.
pub(crate) const VERSION: u64 = hash(socket_functions!(text), hash(connection_functions!(text), 0xcbf2_9ce4_8422_2325));

/// FNV-1a.
const fn hash(text: &str, mut hash: u64) -> u64 {
    let (text, mut at) = (text.as_bytes(), 0);
    while at < text.len() {
        hash = (hash ^ text[at] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        at += 1;
    }
    hash
}

macro_rules! connection_table {
    ($($node:literal $abi:literal fn $name:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {
        /// The functions of identifiers in memory, in the order of the list.
        #[derive(Clone, Copy)]
        #[repr(C)]
        pub(crate) struct ConnectionTable {
            $(pub(crate) $name: unsafe extern $abi fn($($kind),*) -> $result,)*
        }
    };
}

macro_rules! socket_table {
    ($($node:literal $abi:literal fn $name:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {
        /// The functions of sockets in memory, in the order of the list.
        #[derive(Clone, Copy)]
        #[repr(C)]
        pub(crate) struct SocketTable {
            $(pub(crate) $name: unsafe extern $abi fn($($kind),*) -> $result,)*
        }
    };
}

pub(crate) use {connection_functions, socket_functions};

connection_functions!(connection_table);
socket_functions!(socket_table);

/// The functions in memory.
#[repr(C)]
pub(crate) struct Table {
    pub(crate) connections: ConnectionTable,
    pub(crate) sockets: SocketTable,
}
