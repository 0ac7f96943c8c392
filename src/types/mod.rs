//! The vocabulary: plain data that every layer shares, and the rules for a queue pair's attributes. No I/O, no locks,
//! no packets.
//!
//! Programs find most of these types in [`verbs`](crate::verbs), which exports those that its verbs need; providers and
//! bindings use them from here. Numbers are those of the C API, so that they can be passed on as they are.
//!
//! | about | types |
//! |---|---|
//! | numbers and keys | [`Qpn`], [`Psn`], [`Lkey`], [`Rkey`], [`Qkey`], [`Gid`], [`DomainId`] |
//! | devices and ports | [`DeviceAttributes`], [`DeviceCapabilities`], [`PortAttributes`], [`GidEntry`], [`Mtu`] |
//! | queue pairs | [`QueuePairType`], [`QueuePairState`], [`QueuePairAttributes`], [`AddressVector`] |
//! | memory | [`AccessFlags`], [`Sge`], [`MemoryAdvice`], [`OnDemandCapabilities`], [`SharedMemory`] |
//! | requests | [`Operation`], [`SendFlags`], [`FlushFlags`], [`SendRequest`], [`ReceiveRequest`] |
//! | completions, events | [`RawCompletion`], [`CompletionStatus`], [`CompletionOpcode`], [`Cause`], [`AsyncEvent`] |
//! | observation | [`Counters`], [`Counter`], [`DropReason`], [`PathReport`], [`QueuePairReport`], [`LiveObjects`] |
//!
//! ```
//! use rdma_verbs::types::{AccessFlags, Gid, Mtu};
//!
//! let gid = Gid::from("192.0.2.1".parse::<std::net::IpAddr>()?);
//! assert_eq!(gid.to_ip().to_string(), "192.0.2.1");
//! assert_eq!(Mtu::from_size(4096).map(Mtu::bytes), Some(4096));
//! let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
//! assert!(!access.contains(AccessFlags::REMOTE_WRITE));
//! # Ok::<(), std::net::AddrParseError>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod access;
mod capture;
mod completion;
mod congestion;
mod connection_state;
mod counter;
mod destination;
mod device;
mod event;
mod id;
mod key;
mod live_objects;
#[allow(unreachable_pub, reason = "the feature `sim` opens `transport`, which shows some of it")]
pub(crate) mod modify;
mod mtu;
mod on_demand;
mod path;
mod peer;
mod port;
mod queue_pair;
mod rate_limit;
mod report;
mod request;
mod route_header;
pub(crate) mod setters;
mod shared_memory;
mod shared_receive;
mod statistics;
mod time;
mod window;

pub use access::AccessFlags;
pub use capture::{CaptureOptions, CaptureSummary};
pub use completion::{Cause, CompletionFlags, CompletionOpcode, CompletionSource, CompletionStatus, RawCompletion};
pub use congestion::{CongestionAlgorithm, UnknownAlgorithm};
pub use connection_state::ConnectionState;
pub use counter::{Counter, Counters, DropReason};
pub use destination::{Destination, effective_qkey};
pub use device::{AtomicCapability, DeviceAttributes, DeviceCapabilities, Transport, VendorIdentity};
pub use event::{AsyncEvent, EventObject};
pub use id::{Accessor, CompletionQueueNumber, DomainId, Gid, Lkey, Psn, Qkey, Qpn, Rkey};
pub use key::{KeyShare, PeerKey};
pub use live_objects::LiveObjects;
pub use mtu::Mtu;
pub use on_demand::{AdviceFlags, MemoryAdvice, OnDemandCapabilities, OnDemandOperations, OnDemandSupport};
pub use path::{ControlReport, PacketCounts, PathReport, RoundTripReport};
pub use peer::PeerCapabilities;
pub use port::{GidEntry, GidType, LinkLayer, LinkSpeed, LinkWidth, PortAttributes, PortState};
pub use queue_pair::{
    AddressVector, QueuePairAttributes, QueuePairCapabilities, QueuePairState, QueuePairStatus, QueuePairType,
    RNR_TIMER_MICROSECONDS,
};
pub use rate_limit::RateLimit;
pub use report::{
    ErrorOrigin, FailedPeerRequest, FailedRequest, LastPeerPacket, LastSuccesses, PathError, PeerFault, PeerPacketKind,
    QueuePairReport, RemoteAccess, UnmatchedPackets,
};
pub use request::{BatchEnd, Data, FlushFlags, Operation, ReceiveRequest, SendFlags, SendRequest, Sge};
pub use route_header::GlobalRouteHeader;
pub use shared_memory::{NoSharedMemory, PacketPath, SharedMemory, UnknownSharedMemory};
pub use shared_receive::{SharedReceiveQueueAttributes, SharedReceiveQueueNumber, SharedReceiveQueueStatus};
pub use statistics::{
    ConnectionStatistics, DeviceStatistics, ListenerStatistics, PathKind, QueuePairStatistics, QueuePairSums, Snapshot,
};
pub use time::Time;
pub use window::MemoryWindowType;

/// UDP port of RoCEv2 (IBTA A17.3.2.2).
pub const ROCE_PORT: u16 = 4791;
/// The only P_Key: the default partition, full member (IBTA 10.9.1.2).
pub const DEFAULT_PKEY: u16 = 0xffff;
/// Longest message: 2^31 bytes (IBTA C9-94).
pub const MAX_MESSAGE_BYTES: u32 = 1 << 31;
