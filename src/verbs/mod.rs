//! The verbs tier: RDMA verbs as safe objects.
//!
//! A program posts requests to a queue; the device executes them and reports completions in another queue. A request
//! sends a message, or accesses the peer's memory while the peer's program does nothing.
//!
//! # Objects
//!
//! ```text
//! Context                        an open device
//!  ├── ProtectionDomain          what belongs together: keys are valid within their domain only
//!  │    ├── MemoryRegion         memory for the device; RemoteMemory names it to the peer
//!  │    ├── QueuePair  ────────── connected to one queue pair of the peer
//!  │    │    ├── send queue      SendRequest: SEND, WRITE, READ, atomics
//!  │    │    └── receive queue   ReceiveRequest, or a SharedReceiveQueue of several queue pairs
//!  │    └── AddressHandle        destination of datagrams
//!  ├── CompletionQueue           Completions of any number of queue pairs
//!  └── CompletionChannel         a descriptor to sleep on
//! ```
//!
//! # Example
//!
//! A message, its receive and both completions:
//!
//! ```
//! use std::time::Duration;
//! use rdma_verbs::verbs::{self, AccessFlags, ReceiveRequest, SendRequest};
//!
//! let context = verbs::open("soft:127.0.1.118")?;
//! let pd = context.alloc_pd()?;
//! let cq = context.create_cq(16)?;
//! let (one, two) = (pd.create_qp(&cq, &cq)?, pd.create_qp(&cq, &cq)?);
//! one.connect(&two.connection_info()?)?;
//! two.connect(&one.connection_info()?)?;
//!
//! let mr = pd.alloc_mr(128, AccessFlags::LOCAL_WRITE)?;
//! mr.write_at(0, b"request")?;
//! // Before the message arrives.
//! two.post_recv(&[ReceiveRequest::new(mr.slice(64..)?).wr_id(1)])?;
//! one.post_send(&[SendRequest::send(mr.slice(..7)?).wr_id(2).signaled()])?;
//!
//! for _ in 0..2 {
//!     let completion = cq.wait(Duration::from_secs(10))?;
//!     match (completion.wr_id(), completion.result()) {
//!         (1, Ok(received)) => {
//!             let end = 64 + received.byte_len as usize;
//!             assert_eq!(mr.to_vec(64..end)?, b"request");
//!         }
//!         (2, Ok(_)) => {} // the memory of the message may be changed
//!         (_, Ok(_)) => unreachable!(),
//!         (_, Err(error)) => panic!("{}", one.explain(&error)),
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Which operation
//!
//! | operation | moves | the peer's program | use it for |
//! |---|---|---|---|
//! | [SEND] | a message into the next posted receive | gets a completion | requests, responses, control |
//! | [WRITE] | bytes to an address of the peer | notices nothing | bulk data |
//! | [WRITE with immediate] | the same, and 32 bits | gets a completion | bulk data with a notification |
//! | [READ] | bytes from an address of the peer | notices nothing | fetching; a round trip each |
//! | [compare and swap], [fetch and add] | 8 bytes | notices nothing | locks, counters, allocation |
//! | [SEND to] | a datagram up to the path MTU; may be lost | gets a completion | discovery, multicast, many peers |
//!
//! | [type of queue pair](QueuePairType) | guarantees | operations |
//! |---|---|---|
//! | RC, reliable connection | each message arrives once, in order, or the queue pair fails | all |
//! | UC, unreliable connection | messages stay in order; one with a lost packet is dropped | SEND, WRITE |
//! | UD, unreliable datagram | none; one queue pair reaches all peers | SEND to |
//!
//! [SEND]: SendRequest::send
//! [WRITE]: SendRequest::write
//! [WRITE with immediate]: SendRequest::write_with_immediate
//! [READ]: SendRequest::read
//! [compare and swap]: SendRequest::compare_and_swap
//! [fetch and add]: SendRequest::fetch_and_add
//! [SEND to]: SendRequest::send_to
//!
//! # Names
//!
//! Names follow the standard. Objects have the C API's names, spelled out; verbs have the C API's names unchanged:
//!
//! | this module | C API | created by |
//! |---|---|---|
//! | [`Device`] | `ibv_device` | [`devices`] |
//! | [`Context`] | `ibv_context` | [`open`], [`open_soft`], [`Device::open`] |
//! | [`ProtectionDomain`] | `ibv_pd` | [`Context::alloc_pd`] |
//! | [`MemoryRegion`] | `ibv_mr` | [`ProtectionDomain::reg_mr`], [`ProtectionDomain::alloc_mr`] |
//! | [`ImplicitMemoryRegion`] | `ibv_mr` of address 0, `SIZE_MAX` | [`ProtectionDomain::reg_mr_implicit`] |
//! | [`DeviceMemory`] | `ibv_dm` | [`Context::alloc_dm`] |
//! | [`MemoryWindow`] | `ibv_mw` | [`ProtectionDomain::alloc_mw`] |
//! | [`CompletionChannel`] | `ibv_comp_channel` | [`Context::create_comp_channel`] |
//! | [`CompletionQueue`] | `ibv_cq` | [`Context::create_cq`] |
//! | [`QueuePair`] | `ibv_qp` | [`ProtectionDomain::create_qp`] |
//! | [`SharedReceiveQueue`] | `ibv_srq` | [`ProtectionDomain::create_srq`] |
//! | [`XrcDomain`] | `ibv_xrcd` | [`Context::open_xrcd`] |
//! | [`AddressHandle`] | `ibv_ah` | [`ProtectionDomain::create_ah`] |
//! | [`SendRequest`], [`ReceiveRequest`] | `ibv_send_wr`, `ibv_recv_wr` | their constructors |
//! | [`Completion`] | `ibv_wc` | [`CompletionQueue::poll`] |
//! | [`ConnectionInfo`] | none; each program defines its own | [`QueuePair::connection_info`] |
//!
//! # Order and visibility
//!
//! * The peer executes the requests of a queue pair in posting order, and the completions of each of its two queues
//!   appear in posting order. Requests of different queue pairs have no order.
//! * A READ or an atomic may still be under way while later requests are executed; [`SendRequest::fence`] makes a
//!   request wait for them.
//! * After the completion of a request, its local memory belongs to the program again. The completion of a WRITE means
//!   that the peer's memory holds the bytes; that of a SEND, that the message arrived, not that a program read it.
//! * Polling the completion of a receive makes the message visible, and all earlier WRITEs of its sender on that queue
//!   pair: the usual way to announce data is WRITE, then SEND.
//! * Without a completion at the receiver, wait for the last word with [`MemoryRegion::load_acquire_u64`] or a sibling:
//!   the bytes of a WRITE are placed in ascending order.
//! * An unsignaled request keeps its slot in the send queue until a later signaled one completes, so signal at least
//!   one in each queue length.
//!
//! # Waiting
//!
//! | | latency | processor | |
//! |---|---|---|---|
//! | [`CompletionQueue::poll`] in a loop | lowest | one core | programs with a core for it |
//! | [`CompletionQueue::wait`] | low for 1 ms, then up to 100 µs more | little | simple programs, tests |
//! | [`CompletionQueue::req_notify`], [`CompletionChannel`] | a wake-up more | none while idle | servers, `epoll` |
//! | `asynchronous` (feature `tokio`) | a wake-up more | none while idle | many connections |
//!
//! # Safety
//!
//! **Registered memory is never a slice.** A peer or the local device may change it at any time, so a [`MemoryRegion`]
//! never yields a `&[u8]`. [`MemoryRegion::read_at`] and [`MemoryRegion::write_at`] copy;
//! [`MemoryRegion::load_acquire_u64`] and its siblings are atomic.
//!
//! **Requests refer to memory by ranges of regions** ([`RegionRange`]), whose bounds are checked on creation, or carry
//! inline bytes, which are copied when posted. Local keys never appear.
//!
//! **Memory outlives every use of it.** The device looks up a key on each use. If a region is dropped or deregistered
//! while requests still refer to it, those requests complete with [`CompletionStatus::LocalProtectionError`]; the
//! device never touches freed memory.
//!
//! **Requests are complete from construction.** Each constructor of [`SendRequest`] takes everything that its operation
//! needs; the other methods only set options.
//!
//! # Threads
//!
//! Every object is `Send + Sync` (checked at compile time), and every verb may be called from several threads at once.
//! Posting and polling also drive the transport. The exception is an open batch ([`SendBatch`], [`ReceiveBatch`],
//! [`SharedReceiveBatch`]), which belongs to the thread that opened it.
//!
//! # Lifetimes
//!
//! [`Context`], [`ProtectionDomain`], [`CompletionQueue`], [`CompletionChannel`], [`SharedReceiveQueue`], [`XrcDomain`]
//! and [`DeviceMemory`] are handles: a clone is cheap and refers to the same object, which lives as long as anything
//! uses it, including queue pairs and regions. Drop them in any order. [`QueuePair`], [`MemoryRegion`],
//! [`ImplicitMemoryRegion`], [`MemoryWindow`] and [`AddressHandle`] are owned: dropping one destroys it.
//!
//! # Errors
//!
//! A verb that fails returns an [`Error`]: the verb, the kind, the refused [attributes](Error::attributes), and a
//! message that states what was requested and what is allowed. Unless documented otherwise, a failed verb has no
//! effect. A request that fails later is reported as a [`Completion`] whose [`Completion::result`] is an error.
//!
//! The first failed request moves its queue pair to the error state, and flushes all requests behind it, each with a
//! completion of its own. [`QueuePair::explain`] says what happened and most likely why, and what to try;
//! [`QueuePair::explain_state`] says why nothing completes; [`QueuePair::explain_event`] explains an [`AsyncEvent`] at
//! the end whose own requests did not fail. After [`QueuePair::reset`], the queue pair can be connected again.
//!
//! # Neighbours
//!
//! [`cm`] connects by address and port. [`owned`](crate::owned) gives memory back as slices, `asynchronous` as results
//! of futures. [`provider::soft`](crate::provider::soft) describes the software device: its names, its port, its
//! captures.
#![deny(unsafe_code)]

mod address_handle;
mod advise;
mod async_event;
mod batch;
mod capture;
pub mod cm;
mod completion;
mod completion_channel;
mod completion_queue;
mod completion_queue_options;
mod connect;
mod connection_info;
mod connection_tcp;
mod context;
mod datagram;
mod device;
mod device_memory;
mod dmabuf;
mod explain;
#[cfg(test)]
mod fake;
mod implicit_region;
mod memory;
mod memory_region;
mod memory_window;
mod open_batch;
mod polling;
mod protection_domain;
mod queue_pair;
mod queue_pair_options;
mod register_options;
mod remote;
mod request;
mod rereg;
mod shared_receive;
#[cfg(test)]
mod tests;
mod xrc_domain;

pub use address_handle::AddressHandle;
pub use async_event::UnacknowledgedEvent;
pub use batch::{ReceiveBatch, SendBatch};
pub use capture::Capture;
pub use completion::{Completion, CompletionError, Success};
pub use completion_channel::CompletionChannel;
pub(crate) use completion_queue::poll_until;
pub use completion_queue::{CompletionQueue, Notify};
pub use completion_queue_options::CompletionQueueOptions;
pub use connect::ConnectOptions;
pub use connection_info::ConnectionInfo;
pub use context::Context;
pub use device::{Device, devices, open, open_soft};
pub use device_memory::{DeviceMemory, DeviceMemoryOptions};
pub use implicit_region::ImplicitMemoryRegion;
pub use memory::{Memory, RefusedMemory};
pub use memory_region::{MemoryRegion, RegionRange};
pub use memory_window::{MemoryWindow, MemoryWindowBind};
pub use polling::Polling;
pub use protection_domain::ProtectionDomain;
pub use queue_pair::QueuePair;
pub use queue_pair_options::QueuePairOptions;
pub use register_options::RegisterOptions;
pub use remote::RemoteMemory;
pub use request::{Payload, ReceiveRequest, RegionList, SendRequest};
pub use rereg::{RefusedChange, Reregistration};
pub use shared_receive::{SharedReceiveBatch, SharedReceiveQueue, SharedReceiveQueueOptions};
pub use xrc_domain::XrcDomain;

pub use crate::provider::{
    AttributeFault, Error, ErrorKind, InvalidAttribute, RecoverError, Result, SoftOptions, recover_from_faults,
};
pub use crate::types::{
    AccessFlags, AddressVector, AdviceFlags, AsyncEvent, CaptureOptions, CaptureSummary, Cause, CompletionOpcode,
    CompletionQueueNumber, CompletionStatus, CongestionAlgorithm, Counter, Counters, DeviceAttributes,
    DeviceCapabilities, DropReason, EventObject, FlushFlags, Gid, GidEntry, GidType, GlobalRouteHeader, KeyShare,
    LinkLayer, LinkSpeed, LinkWidth, LiveObjects, Lkey, MemoryAdvice, MemoryWindowType, Mtu, NoSharedMemory,
    OnDemandCapabilities, OnDemandOperations, OnDemandSupport, PacketPath, PathReport, PeerCapabilities, PeerKey,
    PortAttributes, PortState, Psn, Qkey, Qpn, QueuePairAttributes, QueuePairCapabilities, QueuePairReport,
    QueuePairState, QueuePairStatus, QueuePairType, RateLimit, Rkey, SharedMemory, SharedReceiveQueueAttributes,
    SharedReceiveQueueNumber, SharedReceiveQueueStatus, Transport, VendorIdentity,
};

/// Enforces at compile time that these types may be shared between threads, as the module's documentation promises.
const _: () = {
    const fn send_and_sync<T: Send + Sync>() {}
    send_and_sync::<Device>();
    send_and_sync::<Context>();
    send_and_sync::<Capture>();
    send_and_sync::<AddressHandle>();
    send_and_sync::<ProtectionDomain>();
    send_and_sync::<Memory>();
    send_and_sync::<MemoryRegion>();
    send_and_sync::<ImplicitMemoryRegion>();
    send_and_sync::<DeviceMemory>();
    send_and_sync::<DeviceMemoryOptions>();
    send_and_sync::<MemoryWindow>();
    send_and_sync::<Reregistration<'_>>();
    send_and_sync::<MemoryWindowBind<'_>>();
    send_and_sync::<RegisterOptions>();
    send_and_sync::<RegionRange<'_>>();
    send_and_sync::<RegionList<'_>>();
    send_and_sync::<RemoteMemory>();
    send_and_sync::<CompletionQueue>();
    send_and_sync::<CompletionChannel>();
    send_and_sync::<UnacknowledgedEvent>();
    send_and_sync::<CompletionQueueOptions>();
    send_and_sync::<Polling<'_>>();
    send_and_sync::<QueuePair>();
    send_and_sync::<SharedReceiveQueue>();
    send_and_sync::<SharedReceiveQueueOptions>();
    send_and_sync::<XrcDomain>();
    send_and_sync::<QueuePairOptions>();
    send_and_sync::<SendRequest<'_>>();
    send_and_sync::<ReceiveRequest<'_>>();
    send_and_sync::<Payload<'_>>();
    send_and_sync::<Completion>();
    send_and_sync::<CompletionError>();
    send_and_sync::<Success>();
    send_and_sync::<ConnectionInfo>();
    send_and_sync::<ConnectOptions>();
    send_and_sync::<Notify>();
    send_and_sync::<Error>();
};
