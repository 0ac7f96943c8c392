//! The network side of a shard: its sockets, and the link through which every packet passes.
#![forbid(unsafe_code)]

mod bell;
mod inbound;
mod link;
mod link_block;
mod link_listener;
mod link_log;
mod link_sink;
mod link_tag;
mod memory_links;
mod multicast;
mod path_errors;
mod paths;
mod receive_sockets;
mod udp;

pub(super) use inbound::Deliver;
pub(super) use link::{Link, MAX_SEND_BYTES, Sent};
pub(crate) use link_listener::LinkListener;
pub(super) use memory_links::LinkState;
pub(crate) use multicast::Group;
pub(super) use multicast::GroupSocket;
pub(super) use paths::{congestion_of, leaves_host};
pub(crate) use udp::{Capabilities, SocketSizes, probe};
pub(super) use udp::{Checksums, ReceiveSocket, SendSocket};
