//! The connection manager without I/O: time and datagrams are arguments, datagrams and events are polled.
//!
//! A [`Manager`] sets up and ends the connections of one device in one process, by messages between the queue pairs 1
//! of two hosts. It neither has queue pairs nor moves them: its events say when their owner must do it.
//!
//! Each rule cites its source in a comment: *IBTA* is volume 1 of the InfiniBand architecture specification, by clause
//! of chapter 12 or by annex (*A11* is the RDMA IP CM service); `cm.c`, `cma.c` and `mad.c` are those of Linux 6.12
//! (`drivers/infiniband/core`), with the function that implements the rule. Where this crate differs from the source,
//! the comment says so.
//!
//! # Messages
//!
//! The active end sends REQ, the passive end REP, the active end RTU. A sender repeats REQ and REP until the other end
//! responds, and gives up after a bounded time. Either end sends DREQ, and repeats it until DREP. A REJ refuses a REQ
//! or a REP; it is not confirmed, so its sender keeps it for some seconds and repeats it in response to a repeated
//! message. SIDR_REQ and SIDR_REP are one question and one response.
//!
//! # Peers are not trusted
//!
//! No table, queue or loop grows without a bound. Requests without an answer of the application have a bound of their
//! own, so a flood of them affects no other connection. A datagram changes a connection only if it has the connection's
//! communication ids (a DREQ also its queue pair number), which are random. Addresses and transaction ids are not
//! compared: hosts with several addresses change them (`cm.c` compares neither).
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod active;
mod arrival;
mod connection;
mod counters;
mod deadlines;
mod disconnect;
mod error;
mod event;
mod handle;
mod held;
mod ids;
mod inquiry;
mod limits;
mod listener;
mod manager;
mod native;
mod orphan;
mod parameters;
mod passive;
mod reject;
mod repetition;
mod request_check;
mod resolution;
mod rest;
mod route;
mod statistics;

#[cfg(all(test, not(loom)))]
pub(crate) mod tests;

pub use connection::ConnectionState;
#[cfg(any(test, feature = "sim"))]
pub use counters::{Counters, Drops, MessageCounts};
pub use error::CallError;
pub use event::{DisconnectCause, Event, Unanswered};
pub use handle::{ConnectionHandle, InquiryHandle, ListenerHandle, Owner, ResolutionHandle};
pub use held::HeldRequest;
pub use limits::Limits;
pub use listener::ListenParameters;
pub use manager::{Manager, ManagerConfig};
pub use native::NativePeer;
pub use orphan::Orphan;
pub use parameters::{
    AcceptParameters, ConnectParameters, DatagramQueuePair, PathParameters, Rejection, ResolveParameters,
};
pub use route::{Arrival, Outgoing};
