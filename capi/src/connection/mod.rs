//! Connections by address and port: the functions of librdmacm.
//!
//! `librdmacm.so.1` (`rdmacm-capi`) has no engine of its own: it takes these functions from the loaded libibverbs, so
//! that a process has one engine, and the objects of both libraries fit.
//!
//! # Events
//!
//! An object of the provider ([`Connection`](rdma_verbs::provider::Connection), a listener) wakes its identifier when
//! an event arrives, on the thread that drives the device, which does not hold the shard then. The identifier takes the
//! event, and adds it to the queue of its channel (`pump`). No thread is started for this, and no code of the program
//! runs. A reply's queue pair is moved by the thread that reads the reply's event, as in rdma-core.
//!
//! # Cancellation
//!
//! A thread may be cancelled in `rdma_get_cm_event`, and in no other function.
//!
//! # Locks
//!
//! No lock of this folder is held while a function of the provider is called, except an identifier's `turn`, which
//! keeps its events in order. A thread that is woken while it calls the provider delays the work until the call has
//! returned (`pump::Section`), so that it never waits for its own lock.
//!
//! The woken thread may be in any verb, outside of every section, and hold locks of the provider, such as that of
//! the opened sockets or of a queue pair's path. Therefore taking events only calls `next_event`, and drops objects of
//! connections: both need the shard alone. Calls of the program move queue pairs and open sockets.

mod address;
mod addrinfo;
mod bind;
mod bring_up;
mod channel;
mod connect;
mod devices;
mod endpoint;
mod event;
mod functions;
mod id;
mod listen;
mod multicast;
mod pump;
mod queue_pair;
/// The types in the list of functions.
mod types {
    pub(super) use std::ffi::{c_char, c_int, c_void};

    pub(super) use libc::sockaddr;
    pub(super) use rdma_verbs::provider::abi::cm::{AddrInfo, ConnParam, Ece, Event, EventChannel, Id, JoinMcAttrEx};
    pub(super) use rdma_verbs::provider::abi::{
        Context, Pd, QpAttr, QpInitAttr, QpInitAttrEx, SrqInitAttr, SrqInitAttrEx,
    };
}

use addrinfo::{rdma_freeaddrinfo, rdma_getaddrinfo};
use bind::{
    rdma_bind_addr, rdma_get_dst_port, rdma_get_src_port, rdma_resolve_addr, rdma_resolve_route, rdma_set_option,
};
use bring_up::rdma_init_qp_attr;
use channel::{rdma_create_event_channel, rdma_destroy_event_channel};
use connect::{
    rdma_accept, rdma_connect, rdma_disconnect, rdma_establish, rdma_get_remote_ece, rdma_notify, rdma_reject,
    rdma_reject_ece, rdma_set_local_ece,
};
use devices::{rdma_free_devices, rdma_get_devices};
use endpoint::{rdma_create_ep, rdma_destroy_ep, rdma_get_request};
use event::{rdma_ack_cm_event, rdma_event_str, rdma_get_cm_event};
use functions::connection_functions;
pub(crate) use functions::{ConnectionTable, SocketTable, Table, VERSION, socket_functions};
use id::{rdma_create_id, rdma_destroy_id, rdma_migrate_id};
use listen::rdma_listen;
use multicast::{rdma_join_multicast, rdma_join_multicast_ex, rdma_leave_multicast};
use queue_pair::{
    rdma_create_qp, rdma_create_qp_ex, rdma_create_srq, rdma_create_srq_ex, rdma_destroy_qp, rdma_destroy_srq,
};
use types::*;

use crate::waiting::table_entry;

macro_rules! implemented {
    ($($node:literal $abi:tt fn $name:ident $arguments:tt -> $result:ty;)*) => {
        /// The functions, for the sockets and for librdmacm.
        pub(crate) const TABLE: ConnectionTable =
            ConnectionTable { $($name: table_entry!($abi $name $arguments -> $result),)* };
    };
}

connection_functions!(implemented);
