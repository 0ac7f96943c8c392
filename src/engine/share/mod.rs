//! How the processes of one user share addresses and queue pair numbers.
//!
//! All of them receive on one UDP port of an address. The registry lists which process has which numbers, the kernel
//! steers each packet to its process, and a process that receives another one's packet forwards it. The ports of the
//! connection manager are shared in the same way.
#![forbid(unsafe_code)]

mod connection_records;
mod key_share;
mod listener;
mod mailbox;
mod management;
mod monitor;
mod port_group;
mod port_holder;
mod ports;
mod qpn_block;
mod registry;
mod steering;

pub(super) use connection_records::ConnectionRecords;
pub(super) use mailbox::{
    AccessRequest, DeclinedLink, IncomingLink, LinkId, OutgoingLink, Recipient, destination_block, request_access,
    search_orphans,
};
#[cfg(feature = "sim")]
pub use mailbox::{inbox_message, link_offer};
#[cfg(feature = "sim")]
pub use monitor::statistics_page;
pub(crate) use monitor::{
    CaptureNews, CaptureOutcome, CaptureRequest, Failure, Finder, Found, Monitored, OpenCapture, OpenWatch, Room,
    StartedCapture, register as register_monitored,
};
pub(super) use port_group::{JoinRequest, Membership, Route};
pub(crate) use port_group::{RegisteredPeer, link_to, other_user_at, registered_peer, steer_requests};
pub(super) use port_holder::{Holder, holders, inode, is_kernel_transport_loaded};
pub(crate) use ports::{Port, PortError, PortRequest};
pub(crate) use qpn_block::QpnBlocks;
#[cfg(feature = "sim")]
pub use registry::registry_file;
