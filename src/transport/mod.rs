//! The RoCE transport without I/O: time and datagrams are arguments, output is polled.
//!
//! Each rule of the protocol cites its source in a comment: *IBTA* is volume 1 of the InfiniBand architecture
//! specification, by clause (`9.7.5.2.8`; those of annexes begin with `A`), by compliance statement (`C9-88`) or by the
//! title of the chapter; `rxe_*.c` and `rxe_*.h` are Linux's software RoCE driver (`drivers/infiniband/sw/rxe`, as in
//! 6.12), with the function that implements the rule; `verbs.c`, `ib_verbs.h` and `ib_pack.h` are Linux's RDMA core
//! (`drivers/infiniband/core`, `include/rdma`), where `ib_modify_qp_is_ok` and `ib_get_rdma_header_version` are;
//! `inet_gso_segment` is in its IPv4 stack; names like `ibv_modify_qp(3)` are manual pages of rdma-core; RFCs are those
//! of the IETF. Where this crate differs from the source, the comment says so.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod burst;
mod common;
pub(crate) mod congestion;
mod datagram;
mod discovery;
mod endpoint;
mod history;
mod log;
mod loop_bound;
mod management;
mod marks;
mod pacing;
mod packet_check;
mod path;
mod path_control;
mod path_measures;
mod peer_fault;
mod queue_pair;
mod requester;
mod responder;
mod segments;
mod udp_sink;
mod window_share;

#[cfg(all(test, not(loom)))]
mod sizes;
#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(feature = "sim")]
pub use burst::AckRequests;
pub use burst::Sending;
pub use burst::{Burst, BurstSink, BurstWriter, Envelope, PayloadSource};
#[cfg(feature = "sim")]
pub use congestion::{Acked, CongestionEvent, CongestionKind, CubicFactory, Sent};
pub use congestion::{Capped, CongestionControl, CongestionFactory, ConstantWindow, Cubic, PathFacts};
#[cfg(feature = "sim")]
pub use datagram::Repeats;
pub(crate) use datagram::Similar;
pub use datagram::{AckRelease, CheckField, Datagram, DatagramOutcome, Medium, SourceAddress, Transmit};
#[cfg(feature = "sim")]
pub use endpoint::Deadlines;
pub(crate) use endpoint::WantedKey;
pub use endpoint::{CreateError, Endpoint, EndpointConfig, QueuePairView};
#[cfg(feature = "sim")]
pub use management::ManagementQueuePair;
pub use management::{MANAGEMENT_BUFFER_BYTES, MANAGEMENT_QPN, ManagementDatagram, ManagementPath};
pub use queue_pair::QueuePairInit;
pub use responder::{ReceiveSource, ReorderBudget};
pub use udp_sink::{UdpSink, UdpWriter};

#[cfg(feature = "sim")]
pub use crate::types::modify::{ModifyError, ModifyLimits};
