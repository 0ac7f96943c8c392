//! Sockets over RDMA: the `rsocket` functions of librdmacm. `transfer` is for streams what one attempt of a call does,
//! `flow` and `wire` are the protocol, which is that of rdma-core.
//!
//! # Threads
//!
//! Each socket has one lock, which is not held while a thread waits. A thread that waits is among the socket's
//! `waiters` and wakes when another one has changed the socket. One thread of the process (`service`) accepts requests,
//! completes connections, and exchanges the addresses of datagram sockets.
//!
//! # Cancellation
//!
//! A call that waits consists of attempts, which cannot be cancelled, and waits between them, in which the call has no
//! value with a destructor (`waiting::wait_for_any`).

mod address;
mod calls;
mod datagram;
mod endpoint;
mod flow;
mod identifier;
mod inside;
mod mapped;
mod option_calls;
mod options;
mod polling;
mod service;
mod settings;
mod sockets;
mod stream;
mod transfer;
mod waiters;
mod wire;

use std::ffi::{c_int, c_void};

use calls::{
    raccept, rbind, rclose, rconnect, riomap, riounmap, riowrite, rlisten, rread, rreadv, rrecv, rrecvfrom, rrecvmsg,
    rsend, rsendmsg, rsendto, rshutdown, rsocket, rwrite, rwritev,
};
use libc::sockaddr;
use option_calls::{rfcntl, rgetpeername, rgetsockname, rgetsockopt, rsetsockopt};
use polling::{rpoll, rselect};

use crate::connection::{SocketTable, socket_functions};
use crate::waiting::table_entry;

macro_rules! implemented {
    ($($node:literal $abi:tt fn $name:ident $arguments:tt -> $result:ty;)*) => {
        /// The functions, for librdmacm.
        pub(crate) const SOCKETS: SocketTable =
            SocketTable { $($name: table_entry!($abi $name $arguments -> $result),)* };
    };
}

socket_functions!(implemented);
