//! Provider tier: the traits that a device implements.
//!
//! This is the contract between devices and everything that uses them: the safe verbs of [`crate::verbs`], and C
//! programs. Raw numbers pass through untouched and few guarantees are made; the safe tier adds safety. Memory is plain
//! data here ([`Sge`]): a provider resolves keys when it *uses* them, so a wrong or stale key results in an error
//! completion and never in an access to unregistered memory.
//!
//! All verbs may be called from several threads at once. Objects are reference counted: a queue pair keeps its
//! completion queues and its protection domain alive.
#![doc = ""]
#![doc = include_str!("guide.md")]

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
#[doc(hidden)]
pub mod abi;
mod common;
mod connection;
mod error;
#[cfg(all(feature = "ibverbs", target_os = "linux", target_pointer_width = "64"))]
pub mod ibverbs;
mod invalid_attribute;
mod list;
mod memory_source;
mod shared_receive;
pub mod soft;
mod software;

use std::any::Any;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

pub use connection::{
    BindInit, BoundPort, ConnectInit, Connection, ConnectionEnd, ConnectionEvent, ConnectionListener,
    ConnectionManager, ConnectionPath, ConnectionRequest, ConnectionTransport, DatagramEnd, DatagramRequest, EventWait,
    Inquiry, ListenInit, ListenerEvent, PortSpace, RejectReason, Resolution, ResolutionEvent, ResolveInit,
    ServiceIdStatus, VendorId, VendorOptions, combined_ack_timeout,
};
pub use error::{Error, ErrorKind, RefusedBacking, RefusedChange, Result};
pub use invalid_attribute::{AttributeFault, InvalidAttribute};
pub use list::{SoftOptions, providers};
pub use memory_source::{DeviceMemory, DeviceMemoryInit, DmaBufInit};
pub use shared_receive::{SharedReceiveQueue, SharedReceiveQueueInit, XrcDomain, XrcReceives};
pub use software::{Capture, SoftwareContext, SoftwareQueuePair};

pub use crate::memory::{AccessError, Backing, RecoverError, Region, RegionInit, recover_from_faults};
use crate::types::{
    AccessFlags, AddressVector, AdviceFlags, AsyncEvent, BatchEnd, CompletionQueueNumber, CompletionSource, Counters,
    DeviceAttributes, DomainId, EventObject, Gid, GidEntry, GlobalRouteHeader, Lkey, MemoryAdvice, MemoryWindowType,
    PeerCapabilities, PortAttributes, Qkey, Qpn, QueuePairAttributes, QueuePairCapabilities, QueuePairStatus,
    QueuePairType, RateLimit, RawCompletion, ReceiveRequest, Rkey, SendRequest, Sge, SharedReceiveQueueNumber,
};

/// A kind of device: lists and opens devices by name.
pub trait Provider: Send + Sync {
    /// Returns the provider's name, the part before the colon of a device name such as `soft:192.0.2.1`.
    fn name(&self) -> &'static str;

    /// Returns the names of the devices that exist now.
    fn device_names(&self) -> Result<Vec<String>>;

    /// Returns why the provider can have no devices on this machine and what to install; `None` if nothing is missing.
    ///
    /// ```
    /// for provider in rdma_verbs::provider::providers() {
    ///     match provider.unavailable() {
    ///         Some(reason) => println!("{}: {reason}", provider.name()),
    ///         None => println!("{}: {:?}", provider.name(), provider.device_names()?),
    ///     }
    /// }
    /// # Ok::<(), rdma_verbs::provider::Error>(())
    /// ```
    fn unavailable(&self) -> Option<String> {
        None
    }

    /// Returns the names of the devices with a [connection manager](Context::connection_manager), and their addresses.
    fn connectable_devices(&self) -> Result<Vec<(String, Vec<IpAddr>)>> {
        Ok(Vec::new())
    }

    /// Returns why no device of this provider has a [connection manager](Context::connection_manager) and what to
    /// install; `None` if nothing is missing, or if there are no devices.
    ///
    /// ```
    /// for provider in rdma_verbs::provider::providers() {
    ///     if let Some(reason) = provider.connections_unavailable() {
    ///         println!("{}: {reason}", provider.name());
    ///     }
    /// }
    /// ```
    fn connections_unavailable(&self) -> Option<String> {
        None
    }

    /// Opens a device by name. [`ErrorKind::NotFound`] if this provider has no device of that name.
    fn open(&self, name: &str) -> Result<Arc<dyn Context>>;
}

/// An open device.
pub trait Context: Send + Sync {
    /// Returns the device's name.
    fn name(&self) -> &str;

    /// Fails with an error of `verb` if this process inherited the device through `fork`. The layers above a provider
    /// call this before they take a lock of their own, which a thread of the parent may have held.
    fn check_process(&self, verb: &'static str) -> Result<()> {
        let _ = verb;
        Ok(())
    }

    /// Returns the limits and capabilities.
    fn query_device(&self) -> DeviceAttributes;

    /// Returns the state and sizes of a port, numbered from 1.
    fn query_port(&self, port_num: u8) -> Result<PortAttributes>;

    /// Returns an entry of the port's GID table; [`ErrorKind::NotFound`] if it lies within the table but is empty.
    fn query_gid(&self, port_num: u8, gid_index: u8) -> Result<GidEntry>;

    /// Returns an entry of the port's P_Key table, in host byte order.
    fn query_pkey(&self, port_num: u8, pkey_index: u16) -> Result<u16>;

    /// Returns all used entries of the port's GID table.
    fn gid_table(&self, port_num: u8) -> Result<Vec<GidEntry>>;

    /// Returns the index of the GID that a queue pair on this port uses by default.
    fn default_gid_index(&self, port_num: u8) -> Result<u8> {
        let _ = port_num;
        Ok(0)
    }

    /// Returns the capabilities beyond the standard that peers learn in the out-of-band exchange.
    fn advertised_capabilities(&self) -> PeerCapabilities;

    /// Creates a protection domain.
    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>>;

    /// Creates a completion channel.
    fn create_comp_channel(&self) -> Result<Arc<dyn CompletionChannel>>;

    /// Creates a completion queue of at least `cqe` entries. The channel's events return `cq_context`.
    fn create_cq(
        &self,
        cqe: u32,
        cq_context: u64,
        channel: Option<&Arc<dyn CompletionChannel>>,
    ) -> Result<Arc<dyn CompletionQueue>> {
        self.create_cq_with(&CompletionQueueInit { cqe, cq_context, channel, ..CompletionQueueInit::default() })
    }

    /// Creates a completion queue, with all options.
    fn create_cq_with(&self, init: &CompletionQueueInit<'_>) -> Result<Arc<dyn CompletionQueue>>;

    /// Returns the time of the completion clock in nanoseconds. [`ErrorKind::Unsupported`] if the device has none.
    fn query_clock(&self) -> Result<u64> {
        let message = format!("{} has no clock for completions", self.name());
        Err(Error::new("query_clock", ErrorKind::Unsupported, message))
    }

    /// Creates a queue pair in the RESET state.
    fn create_qp(&self, init: &QueuePairInit<'_>) -> Result<Arc<dyn QueuePair>>;

    /// Allocates device memory. [`ErrorKind::Unsupported`] if the device has none.
    fn alloc_dm(&self, init: &DeviceMemoryInit) -> Result<Arc<dyn DeviceMemory>> {
        let message = format!("max_dm_size is 0: the device has no memory; length is {}", init.length);
        Err(Error::new("alloc_dm", ErrorKind::Unsupported, message))
    }

    /// Opens an XRC domain. [`ErrorKind::Unsupported`] if this kind of device has none.
    fn open_xrcd(&self) -> Result<Arc<dyn XrcDomain>> {
        let message = format!("{} has no extended reliable connections", self.name());
        Err(Error::new("open_xrcd", ErrorKind::Unsupported, message))
    }

    /// Returns the next asynchronous event, if any, and acknowledges it. Events of destroyed objects are dropped.
    fn poll_async_event(&self) -> Option<AsyncEvent>;

    /// Returns the next asynchronous event, if there is one. The caller must acknowledge it.
    fn take_async_event(&self) -> Option<AsyncEvent> {
        self.poll_async_event()
    }

    /// Acknowledges an event that [`Context::take_async_event`] returned.
    fn ack_async_event(&self, event: &AsyncEvent) {
        let _ = event;
    }

    /// Waits up to `timeout` (`None`: forever) until all events returned about an object have been acknowledged;
    /// [`ErrorKind::TimedOut`] if some have not been. Destroying verbs do not wait; those of the C interface, which
    /// must, wait here first.
    fn wait_events_acked(&self, object: EventObject, timeout: Option<Duration>) -> Result<()> {
        let _ = (object, timeout);
        Ok(())
    }

    /// Returns a descriptor that is readable while an asynchronous event may be pending. It may be readable spuriously
    /// until the events are polled.
    fn async_fd(&self) -> BorrowedFd<'_>;

    /// Returns the counters of the whole device.
    fn counters(&self) -> Counters;

    /// Returns the connection manager, which connects queue pairs by address and port; `None` if the provider has none.
    fn connection_manager(&self) -> Option<&dyn ConnectionManager> {
        None
    }

    /// Returns what the device offers because it handles its packets in software. `None` for adapters.
    fn software(&self) -> Option<&dyn SoftwareContext> {
        None
    }
}

/// Options for creating a completion queue.
#[derive(Clone, Copy, Default)]
pub struct CompletionQueueInit<'a> {
    /// Minimum number of entries; [`CompletionQueue::cqe`] returns the actual number.
    pub cqe: u32,
    /// Value that the channel's events return for the queue.
    pub cq_context: u64,
    /// Channel that an armed queue notifies of completions.
    pub channel: Option<&'a Arc<dyn CompletionChannel>>,
    /// Completion vector of the device that serves the queue, numbered from 0.
    pub comp_vector: u32,
    /// Whether completions carry a timestamp of the device's clock.
    pub timestamps: bool,
}

/// Options for creating a queue pair.
pub struct QueuePairInit<'a> {
    /// Protection domain of the queue pair.
    pub pd: &'a Arc<dyn ProtectionDomain>,
    /// Completion queue of the sends.
    pub send_cq: &'a Arc<dyn CompletionQueue>,
    /// Completion queue of the receives.
    pub recv_cq: &'a Arc<dyn CompletionQueue>,
    /// Shared receive queue that supplies its receives, in place of a receive queue of its own.
    pub srq: Option<&'a Arc<dyn SharedReceiveQueue>>,
    /// For an XRC target: the domain whose shared receive queues its messages may use.
    pub xrc_domain: Option<&'a Arc<dyn XrcDomain>>,
    /// Transport service.
    pub qp_type: QueuePairType,
    /// Minimum sizes; [`QueuePair::query`] returns the actual ones.
    pub cap: QueuePairCapabilities,
    /// Whether every send request generates a completion, signaled or not.
    pub sq_sig_all: bool,
}

/// A protection domain.
pub trait ProtectionDomain: Send + Sync {
    /// Returns the domain's number.
    fn id(&self) -> DomainId;

    /// Registers memory, with all options. A refusal returns the memory.
    fn reg_mr_with(&self, backing: Backing, options: &RegionInit) -> Result<Arc<dyn MemoryRegion>, RefusedBacking>;

    /// Registers memory. Requests address its first byte as `iova`, or by its host address if that is `None`. A refusal
    /// returns the memory.
    fn reg_mr(
        &self,
        backing: Backing,
        iova: Option<u64>,
        access: AccessFlags,
    ) -> Result<Arc<dyn MemoryRegion>, RefusedBacking> {
        self.reg_mr_with(backing, &RegionInit { access, iova, ..RegionInit::default() })
    }

    /// Re-registers a region in this domain, in one step. On success the old region is deregistered and replaced by the
    /// returned one; nothing accesses memory through the old one after this returns. A refusal leaves the region as it
    /// was and returns the memory; [`ErrorKind::Busy`] while memory windows are bound to it.
    fn rereg_mr(
        &self,
        _region: &Arc<dyn MemoryRegion>,
        change: Reregistration,
    ) -> Result<Arc<dyn MemoryRegion>, RefusedChange> {
        let error = Error::new("rereg_mr", ErrorKind::Unsupported, "this kind of device cannot re-register regions");
        Err(RefusedChange { error, backing: change.backing })
    }

    /// Registers a part of device memory; requests address its first byte as 0. The region keeps the memory alive.
    /// [`ErrorKind::Unsupported`] if the device has none.
    fn reg_dm_mr(
        &self,
        memory: &Arc<dyn DeviceMemory>,
        dm_offset: u64,
        length: u64,
        access: AccessFlags,
    ) -> Result<Arc<dyn MemoryRegion>> {
        let _ = (memory, access);
        let message = format!("the device has no memory; dm_offset is {dm_offset} and length {length}");
        Err(Error::new("reg_dm_mr", ErrorKind::Unsupported, message))
    }

    /// Registers memory behind a file descriptor. [`ErrorKind::Unsupported`] if the device cannot access it.
    fn reg_dmabuf_mr(&self, init: &DmaBufInit<'_>) -> Result<Arc<dyn MemoryRegion>> {
        let message = format!("the device takes no memory by descriptor; fd is {:?}", init.fd);
        Err(Error::new("reg_dmabuf_mr", ErrorKind::Unsupported, message))
    }

    /// Advises the device about ranges of on-demand regions. The error identifies the range. [`ErrorKind::Unsupported`]
    /// if the device takes no advice.
    fn advise_mr(&self, advice: MemoryAdvice, flags: AdviceFlags, sg_list: &[Sge]) -> Result<()> {
        let message = format!("the device takes no advice; {advice:?}, {flags:?} for {} ranges given", sg_list.len());
        Err(Error::new("advise_mr", ErrorKind::Unsupported, message))
    }

    /// Allocates a memory window. [`ErrorKind::Unsupported`] if the device has none.
    fn alloc_mw(&self, _kind: MemoryWindowType) -> Result<Arc<dyn MemoryWindow>> {
        Err(Error::new("alloc_mw", ErrorKind::Unsupported, "max_mw is 0: the device has no memory windows"))
    }

    /// Creates an address handle: a path to receivers of datagrams.
    fn create_ah(&self, vector: &AddressVector) -> Result<Arc<dyn AddressHandle>> {
        let message = format!("this kind of device has no datagrams; dgid is {}", vector.dgid);
        Err(Error::new("create_ah", ErrorKind::Unsupported, message))
    }

    /// Creates an address handle for replies to a received datagram, from its completion and its first 40 bytes.
    fn create_ah_from_completion(
        &self,
        completion: &RawCompletion,
        header: &[u8; GlobalRouteHeader::BYTES],
        port_num: u8,
    ) -> Result<Arc<dyn AddressHandle>> {
        let _ = header;
        let message = format!("this kind of device has no datagrams; port {port_num}, request {}", completion.wr_id);
        Err(Error::new("create_ah", ErrorKind::Unsupported, message))
    }

    /// Creates a shared receive queue. [`ErrorKind::Unsupported`] if this kind of device has none.
    fn create_srq(&self, init: &SharedReceiveQueueInit<'_>) -> Result<Arc<dyn SharedReceiveQueue>> {
        let message = format!("the device has no shared receive queues; {} receives were requested", init.max_wr);
        Err(Error::new("create_srq", ErrorKind::Unsupported, message))
    }

    /// Returns the object for downcasting by the provider that created it.
    fn as_any(&self) -> &dyn Any;
}

/// An address handle.
pub trait AddressHandle: Send + Sync {
    /// Returns the address vector that the handle was created with.
    fn address_vector(&self) -> AddressVector;

    /// Returns the object for downcasting by the provider that created it.
    fn as_any(&self) -> &dyn Any;
}

/// Destination of a datagram.
#[derive(Clone, Copy)]
pub struct DatagramTarget<'a> {
    /// Path to the receiver. The request keeps a copy of what it needs.
    pub handle: &'a dyn AddressHandle,
    /// The receiving queue pair; [`Qpn::MULTICAST`] for a group.
    pub remote_qpn: Qpn,
    /// Q_Key of the receiver. If its highest bit is set, the sending queue pair's own Q_Key is sent instead.
    pub remote_qkey: Qkey,
    /// Whether a message longer than the path carries is still posted and fails when it is processed, with
    /// [`CompletionStatus::LocalLengthError`](crate::types::CompletionStatus), as with adapters. Otherwise it is
    /// refused. A hint: providers of adapters always refuse it.
    pub long_fails_later: bool,
}

/// Changes that a re-registration makes to a region.
#[derive(Debug, Default)]
pub struct Reregistration {
    /// New memory; `None` keeps the current memory.
    pub backing: Option<Backing>,
    /// New first address; `None` keeps the current one, or uses the host address of new memory.
    pub iova: Option<u64>,
    /// New access flags; `None` keeps the current ones.
    pub access: Option<AccessFlags>,
    /// Whether the keys must stay the same, which C programs rely on. A provider whose devices choose the keys need not
    /// support it.
    pub keep_keys: bool,
}

/// A memory region.
pub trait MemoryRegion: Send + Sync {
    /// Returns the registered memory and its access flags.
    fn region(&self) -> &Arc<Region>;

    /// Returns the key for local scatter-gather entries.
    fn lkey(&self) -> Lkey;

    /// Returns the key for peers.
    fn rkey(&self) -> Rkey;

    /// Invalidates the keys; nothing accesses the memory through this region after this returns. Requests that still
    /// refer to it complete with a protection error. Deregistering again does nothing. [`ErrorKind::Busy`], changing
    /// nothing, while memory windows are bound to it.
    fn dereg(&self) -> Result<()>;

    /// Deregisters like [`MemoryRegion::dereg`], but also while windows are bound, which it invalidates.
    fn revoke(&self) -> Result<()> {
        self.dereg()
    }
}

/// A memory window.
pub trait MemoryWindow: Send + Sync {
    /// Returns the window's type.
    fn kind(&self) -> MemoryWindowType;

    /// Returns the key of the last executed binding, or the one that the window was allocated with. The upper 24 bits
    /// stay the same; a binding sets the lower eight.
    fn rkey(&self) -> Rkey;

    /// Deallocates the window, bound or not. No peer accesses memory through it after this returns. Deallocating again
    /// does nothing.
    fn dealloc(&self) -> Result<()>;
}

/// A completion channel, which armed completion queues notify of completions.
pub trait CompletionChannel: Send + Sync {
    /// Returns a descriptor that is readable when an event may be pending, edge or level triggered. It may be readable
    /// spuriously unless the channel is [exact](SoftwareContext::create_exact_comp_channel).
    fn fd(&self) -> BorrowedFd<'_>;

    /// Returns the descriptor for a thread that found no event and only waits for one. It is readable when an event may
    /// be pending, also spuriously, and wakes sooner than [`CompletionChannel::fd`] of an exact channel.
    fn waiting_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }

    /// Returns the next event: the `cq_context` of a queue that was armed and received a completion, or `None` if there
    /// is none yet. Drives the device. Never blocks.
    fn poll_event(&self) -> Option<u64>;

    /// Returns the next event like [`CompletionChannel::poll_event`], waiting up to `timeout` (`None`: forever);
    /// [`ErrorKind::TimedOut`] if there is none.
    fn wait_event(&self, timeout: Option<Duration>) -> Result<u64>;

    /// Returns the object for downcasting by the provider that created it.
    fn as_any(&self) -> &dyn Any;
}

/// A completion queue.
pub trait CompletionQueue: Send + Sync {
    /// Takes up to `out.len()` completions, oldest first, and drives the device. Returns their number.
    ///
    /// A failure means that the queue overflowed: completions were lost and its queue pairs are in error.
    fn poll(&self, out: &mut [RawCompletion]) -> Result<usize>;

    /// Returns, after a poll that found nothing, how many further polls may be skipped while
    /// [`is_known_empty`](Self::is_known_empty), because they are expected to find nothing either. Skipping delays
    /// completions that arrive meanwhile by some microseconds.
    fn polls_to_skip(&self) -> u32 {
        0
    }

    /// Returns whether the queue is known to be empty; `false` also if only a poll can determine this. Takes no lock.
    fn is_known_empty(&self) -> bool {
        false
    }

    /// Arms the queue: the next completion added generates one event on the channel. Completions already queued do not
    /// trigger an event: poll again after arming.
    fn req_notify(&self, solicited_only: bool) -> Result<()>;

    /// Returns the number of entries that fit.
    fn cqe(&self) -> u32;

    /// Returns the number by which asynchronous events identify the queue.
    fn number(&self) -> CompletionQueueNumber;

    /// Returns the number of channel events delivered for this queue, modulo 2^32. C programs acknowledge each of them
    /// before the queue is destroyed; the safe tier does not need to, because its events are numbers.
    fn comp_events_reported(&self) -> u32 {
        0
    }

    /// Delays an event on the channel until `cq_count` completions have been added, or `cq_period` has passed since the
    /// first of them; failed and solicited completions are not delayed. 0 or 1, or a zero period, disables it.
    fn moderate(&self, cq_count: u16, cq_period: Duration) -> Result<()>;

    /// Changes the number of entries; refused if more completions than that are queued.
    fn resize(&self, cqe: u32) -> Result<()>;

    /// Returns the object for downcasting by the provider that created it.
    fn as_any(&self) -> &dyn Any;
}

/// A queue pair.
///
/// Requests are posted in batches: `send_begin`, any number of `send_push`, `send_end`. The thread that began a batch
/// holds the queue until it ends it; other posting threads wait. After a failed push the batch is still open: ending
/// it with [`BatchEnd::Publish`] posts what was pushed before (as C programs expect), [`BatchEnd::Rollback`] posts
/// nothing. No step allocates.
pub trait QueuePair: Send + Sync {
    /// Returns the queue pair's number.
    fn qpn(&self) -> Qpn;

    /// Changes state and attributes, all or nothing.
    fn modify(&self, attributes: &QueuePairAttributes) -> Result<()>;

    /// Returns the current state and attributes.
    fn query(&self) -> Result<QueuePairStatus>;

    /// Limits the send rate, or removes the limit.
    fn limit_rate(&self, limit: &RateLimit) -> Result<()> {
        let message = format!("this kind of device limits no queue pair's rate; {limit:?} was given");
        Err(Error::new("modify_qp_rate_limit", ErrorKind::Unsupported, message))
    }

    /// Begins a batch of send requests.
    fn send_begin(&self);

    /// Copies a request into the batch.
    fn send_push(&self, request: &SendRequest<'_>) -> Result<()>;

    /// Copies a request of an XRC initiator into the batch, with the number of the peer's shared receive queue that
    /// receives it. [`ErrorKind::InvalidArgument`] on queue pairs of other types.
    fn send_push_to_srq(&self, request: &SendRequest<'_>, srq: SharedReceiveQueueNumber) -> Result<()> {
        let message = format!(
            "request {:#x} names shared receive queue {srq}; only the requests of an XRC initiator do",
            request.wr_id
        );
        Err(Error::new("post_send", ErrorKind::InvalidArgument, message))
    }

    /// Copies a datagram into the batch.
    fn send_push_to(&self, request: &SendRequest<'_>, target: &DatagramTarget<'_>) -> Result<()> {
        let message = format!("this kind of device has no datagrams; {} was given", target.remote_qpn);
        let _ = request;
        Err(Error::new("post_send", ErrorKind::Unsupported, message))
    }

    /// Attaches the queue pair to a multicast group, to receive its datagrams. Attaching again does nothing.
    fn attach_mcast(&self, gid: Gid) -> Result<()> {
        let message = format!("this kind of device has no multicast; gid is {gid}");
        Err(Error::new("attach_mcast", ErrorKind::Unsupported, message))
    }

    /// Detaches the queue pair from a multicast group; fails if it is not attached.
    fn detach_mcast(&self, gid: Gid) -> Result<()> {
        let message = format!("this kind of device has no multicast; gid is {gid}");
        Err(Error::new("detach_mcast", ErrorKind::Unsupported, message))
    }

    /// Ends the batch.
    fn send_end(&self, end: BatchEnd) -> Result<()>;

    /// Posts a request as a batch of one, on a faster path if there is one. The thread must not have a batch open.
    fn send_one(&self, request: &SendRequest<'_>) -> Result<()> {
        send_batch_of_one(self, request)
    }

    /// Begins a batch of receive requests.
    fn recv_begin(&self);

    /// Copies a request into the batch.
    fn recv_push(&self, request: &ReceiveRequest<'_>) -> Result<()>;

    /// Ends the batch.
    fn recv_end(&self, end: BatchEnd) -> Result<()>;

    /// Returns the sources that completions carry: that of the sends, and that of the receives. Tiers that return
    /// memory by completions cannot use a provider that does not set them.
    fn completion_sources(&self) -> [CompletionSource; 2] {
        [CompletionSource::NONE; 2]
    }

    /// Destroys the queue pair: nothing is sent or received for it afterwards, and its completions are removed from its
    /// queues. Later verbs on it fail. Destroying again does nothing.
    fn destroy(&self) -> Result<()>;

    /// Returns the queue pair's counters.
    fn counters(&self) -> Counters;

    /// Returns what the queue pair offers because its packets are handled in software. `None` for adapters.
    fn software(&self) -> Option<&dyn SoftwareQueuePair> {
        None
    }
}

/// Posts a request as a batch.
fn send_batch_of_one<Q: QueuePair + ?Sized>(queue_pair: &Q, request: &SendRequest<'_>) -> Result<()> {
    queue_pair.send_begin();
    if let Err(error) = queue_pair.send_push(request) {
        queue_pair.send_end(BatchEnd::Rollback)?;
        return Err(error);
    }
    queue_pair.send_end(BatchEnd::Publish)
}
