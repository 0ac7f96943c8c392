//! Provider tier: the traits a device must fulfil.
//!
//! This is the contract between devices and everything that uses them: the safe verbs of [`crate::verbs`], and C
//! programs. It hands raw numbers through untouched and promises little; safety is added above. Memory enters here as
//! plain data ([`Sge`]): a provider resolves keys when it *uses* them, so a wrong or stale key is
//! an error completion and never an access to memory that is not registered.
//!
//! All verbs may be called from several threads at once. Objects are reference counted: a queue pair keeps its
//! completion queues and its protection domain alive.

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
#[doc(hidden)]
pub mod abi;
mod error;
#[cfg(all(feature = "ibverbs", target_os = "linux", target_pointer_width = "64"))]
pub mod ibverbs;
mod memory_source;
mod refusal;
mod shared_receive;
pub mod soft;

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub use error::{Error, ErrorKind, RefusedBacking, RefusedChange, Result};
pub use memory_source::{DeviceMemory, DeviceMemoryInit, DmaBufInit};
pub use shared_receive::{SharedReceiveQueue, SharedReceiveQueueInit, XrcDomain, XrcReceives};

use crate::memory::{Backing, Region, RegisterOptions};
use crate::types::{
    AccessFlags, AddressVector, AdviceFlags, AsyncEvent, BatchEnd, CaptureConfig, CaptureSummary, CompletionSource,
    Counters, DeviceAttributes, DomainId, EventObject, Gid, GidEntry, GlobalRouteHeader, LiveObjects, Lkey,
    MemoryAdvice, MemoryWindowType, PathReport, PeerCapabilities, PortAttributes, Qkey, Qpn, QueuePairAttributes,
    QueuePairCapabilities, QueuePairReport, QueuePairStatus, QueuePairType, RateLimit, RawCompletion, ReceiveRequest,
    Rkey, SendRequest, Sge, SharedReceiveQueueNumber,
};

/// A kind of device: finds and opens devices by name.
pub trait Provider: Send + Sync {
    /// Name of the provider, the part before the colon of a device name such as `soft:192.0.2.1`.
    fn name(&self) -> &'static str;

    /// Names of the devices that exist now.
    fn device_names(&self) -> Result<Vec<String>>;

    /// Why the provider has no devices on this machine at all, if what all of them need is missing: what to install.
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

    /// Opens a device by name. [`ErrorKind::NotFound`] if this provider has none of that name.
    fn open(&self, name: &str) -> Result<Arc<dyn Context>>;
}

/// The providers of this build.
pub fn providers() -> &'static [&'static dyn Provider] {
    static SOFT: soft::SoftProvider = soft::SoftProvider::new();
    static ALL: &[&dyn Provider] = &[
        &SOFT,
        #[cfg(all(feature = "ibverbs", target_os = "linux", target_pointer_width = "64"))]
        &ibverbs::IbverbsProvider,
    ];
    ALL
}

/// An open device.
pub trait Context: Send + Sync {
    /// The device's name.
    fn name(&self) -> &str;

    /// Fails, as an error of `verb`, if this process only inherited the device in a fork. What stands above a provider
    /// asks before it takes a lock of its own, which a thread of the parent may have held.
    fn check_process(&self, verb: &'static str) -> Result<()> {
        let _ = verb;
        Ok(())
    }

    /// Limits and capabilities.
    fn query_device(&self) -> DeviceAttributes;

    /// State and sizes of a port (from 1).
    fn query_port(&self, port_num: u8) -> Result<PortAttributes>;

    /// An entry of the port's GID table; [`ErrorKind::NotFound`] if it is below the table's length and empty.
    fn query_gid(&self, port_num: u8, gid_index: u8) -> Result<GidEntry>;

    /// An entry of the port's P_Key table, in host byte order.
    fn query_pkey(&self, port_num: u8, pkey_index: u16) -> Result<u16>;

    /// All used entries of the port's GID table.
    fn gid_table(&self, port_num: u8) -> Result<Vec<GidEntry>>;

    /// The GID that a queue pair on this port uses if none is chosen.
    fn default_gid_index(&self, port_num: u8) -> Result<u8> {
        let _ = port_num;
        Ok(0)
    }

    /// What peers should know of this device beyond the standard; part of the out-of-band exchange.
    fn peer_capabilities(&self) -> PeerCapabilities;

    /// Creates a protection domain.
    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>>;

    /// Creates a completion channel.
    fn create_comp_channel(&self) -> Result<Arc<dyn CompletionChannel>>;

    /// Creates a completion channel whose descriptor is readable only while an event waits, as an adapter's is: for
    /// programs that ask the descriptor, and then wait for the event that it promised.
    fn create_exact_comp_channel(&self) -> Result<Arc<dyn CompletionChannel>> {
        self.create_comp_channel()
    }

    /// Creates a completion queue of at least `cqe` entries. `cq_context` comes back from the channel.
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

    /// The clock that completions are stamped with, in nanoseconds. [`ErrorKind::Unsupported`] if the device has none.
    fn query_clock(&self) -> Result<u64> {
        let message = format!("{} has no clock for completions", self.name());
        Err(Error::new("query_clock", ErrorKind::Unsupported, message))
    }

    /// How many objects of the device there are. [`ErrorKind::Unsupported`] if the provider cannot tell.
    fn live_objects(&self) -> Result<LiveObjects> {
        let message = format!("{} does not tell how many objects it has", self.name());
        Err(Error::new("live_objects", ErrorKind::Unsupported, message))
    }

    /// Creates a queue pair in the RESET state.
    fn create_qp(&self, init: &QueuePairInit<'_>) -> Result<Arc<dyn QueuePair>>;

    /// Allocates device memory. [`ErrorKind::Unsupported`] if the device has none.
    fn alloc_dm(&self, init: &DeviceMemoryInit) -> Result<Arc<dyn DeviceMemory>> {
        let message = format!("max_dm_size is 0: the device has no memory; length is {}", init.length);
        Err(Error::new("alloc_dm", ErrorKind::Unsupported, message))
    }

    /// Opens a domain of extended reliable connections. [`ErrorKind::Unsupported`] if this kind of device has none.
    fn open_xrcd(&self) -> Result<Arc<dyn XrcDomain>> {
        let message = format!("{} has no extended reliable connections", self.name());
        Err(Error::new("open_xrcd", ErrorKind::Unsupported, message))
    }

    /// The next asynchronous event, if there is one, acknowledged at once. Events of an object that was destroyed do
    /// not come any more.
    fn poll_async_event(&self) -> Option<AsyncEvent>;

    /// The next asynchronous event, if there is one; it must be acknowledged.
    fn take_async_event(&self) -> Option<AsyncEvent> {
        self.poll_async_event()
    }

    /// Acknowledges an event that [`Context::take_async_event`] handed out.
    fn ack_async_event(&self, event: &AsyncEvent) {
        let _ = event;
    }

    /// Waits up to `timeout` (`None`: for ever) until all events about an object that were handed out are acknowledged;
    /// whether they are. No verb that destroys waits by itself: the destroying verbs of C, which have to, destroy and
    /// then wait here.
    fn wait_events_acked(&self, object: EventObject, timeout: Option<Duration>) -> Result<bool> {
        let _ = (object, timeout);
        Ok(true)
    }

    /// Readable while an asynchronous event may wait; it may be readable for nothing, until it is polled.
    fn async_fd(&self) -> BorrowedFd<'_>;

    /// Readable only while an asynchronous event waits, as an adapter's descriptor is. A software device starts a
    /// thread for it, which listens to what the system says of its interface.
    fn exact_async_fd(&self) -> Result<BorrowedFd<'_>> {
        Ok(self.async_fd())
    }

    /// Counters of the whole device.
    fn counters(&self) -> Counters;

    /// The paths that its queue pairs have. Empty if this kind of device does not say.
    fn path_reports(&self) -> Vec<PathReport> {
        Vec::new()
    }

    /// Begins a capture of the device's packets. [`ErrorKind::Unsupported`] if this kind of device cannot capture.
    fn start_capture(&self, config: &CaptureConfig) -> Result<Box<dyn Capture>> {
        let message =
            format!("{} cannot capture {}: only software devices see packets", self.name(), config.path.display());
        Err(Error::new("start_capture", ErrorKind::Unsupported, message))
    }
}

/// A capture of a device's packets into a file. It ends when it is dropped.
pub trait Capture: Send + Sync {
    /// The file.
    fn path(&self) -> &Path;

    /// What it has come to so far.
    fn summary(&self) -> CaptureSummary;

    /// Ends it. When it returns, the file is complete. Stopping again does nothing.
    fn stop(&self) -> Result<CaptureSummary>;
}

/// What a new completion queue shall be.
#[derive(Clone, Copy, Default)]
pub struct CompletionQueueInit<'a> {
    /// Entries at least; [`CompletionQueue::cqe`] tells how many there are.
    pub cqe: u32,
    /// What the channel names the queue by.
    pub cq_context: u64,
    /// Where an armed queue announces completions.
    pub channel: Option<&'a Arc<dyn CompletionChannel>>,
    /// Which of the device's completion vectors serves the queue, from 0.
    pub comp_vector: u32,
    /// Whether completions bear the time of the device's clock.
    pub timestamps: bool,
}

/// What a new queue pair shall be.
pub struct QueuePairInit<'a> {
    /// Its protection domain.
    pub pd: &'a Arc<dyn ProtectionDomain>,
    /// Where sends complete.
    pub send_cq: &'a Arc<dyn CompletionQueue>,
    /// Where receives complete.
    pub recv_cq: &'a Arc<dyn CompletionQueue>,
    /// The shared receive queue that it takes its receives from, instead of having a receive queue of its own.
    pub srq: Option<&'a Arc<dyn SharedReceiveQueue>>,
    /// For an XRC target: the domain whose shared receive queues its messages may name.
    pub xrc_domain: Option<&'a Arc<dyn XrcDomain>>,
    /// Its transport service.
    pub qp_type: QueuePairType,
    /// Sizes at least; the actual ones are reported by [`QueuePair::query`].
    pub cap: QueuePairCapabilities,
    /// Every send request makes a completion, signaled or not.
    pub sq_sig_all: bool,
}

/// A protection domain.
pub trait ProtectionDomain: Send + Sync {
    /// Its number.
    fn id(&self) -> DomainId;

    /// Registers memory, with all options. A refusal gives the memory back.
    fn reg_mr_with(&self, backing: Backing, options: &RegisterOptions)
    -> Result<Arc<dyn MemoryRegion>, RefusedBacking>;

    /// Registers memory. Requests name its first byte by `iova`, or by its host address if that is `None`. A refusal
    /// gives the memory back.
    fn reg_mr(
        &self,
        backing: Backing,
        iova: Option<u64>,
        access: AccessFlags,
    ) -> Result<Arc<dyn MemoryRegion>, RefusedBacking> {
        self.reg_mr_with(backing, &RegisterOptions { access, iova, ..RegisterOptions::default() })
    }

    /// Registers a region anew in this domain, in one step. On success the old region is deregistered and a new one in
    /// its place; when it returns, nothing accesses memory through the old one any more. A refusal leaves the region as
    /// it was and gives the memory back; [`ErrorKind::Busy`] while memory windows are bound to it.
    fn rereg_mr(
        &self,
        _region: &Arc<dyn MemoryRegion>,
        change: Reregistration,
    ) -> Result<Arc<dyn MemoryRegion>, RefusedChange> {
        let error = Error::new("rereg_mr", ErrorKind::Unsupported, "this kind of device cannot register regions anew");
        Err(RefusedChange { error, backing: change.backing })
    }

    /// Registers a part of device memory; requests name its first byte by 0. The region keeps the memory.
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

    /// Registers memory behind a descriptor. [`ErrorKind::Unsupported`] if the device cannot access it.
    fn reg_dmabuf_mr(&self, init: &DmaBufInit<'_>) -> Result<Arc<dyn MemoryRegion>> {
        let message = format!("the device takes no memory by descriptor; fd is {:?}", init.fd);
        Err(Error::new("reg_dmabuf_mr", ErrorKind::Unsupported, message))
    }

    /// Takes advice about ranges of on-demand regions. A failure names the range. [`ErrorKind::Unsupported`] if the
    /// device takes none.
    fn advise_mr(&self, advice: MemoryAdvice, flags: AdviceFlags, sg_list: &[Sge]) -> Result<()> {
        let message = format!("the device takes no advice; {advice:?}, {flags:?} for {} ranges given", sg_list.len());
        Err(Error::new("advise_mr", ErrorKind::Unsupported, message))
    }

    /// Allocates a memory window. [`ErrorKind::Unsupported`] if the device has none.
    fn alloc_mw(&self, _kind: MemoryWindowType) -> Result<Arc<dyn MemoryWindow>> {
        Err(Error::new("alloc_mw", ErrorKind::Unsupported, "max_mw is 0: the device has no memory windows"))
    }

    /// Creates an address handle: a way to receivers of datagrams.
    fn create_ah(&self, vector: &AddressVector) -> Result<Arc<dyn AddressHandle>> {
        let message = format!("this kind of device has no datagrams; dgid is {}", vector.dgid);
        Err(Error::new("create_ah", ErrorKind::Unsupported, message))
    }

    /// Creates an address handle for answers to a received datagram, from its completion and its first 40 bytes.
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
        let message = format!("the device has no shared receive queues; {} receives were asked for", init.max_wr);
        Err(Error::new("create_srq", ErrorKind::Unsupported, message))
    }

    /// For the provider that made it.
    fn as_any(&self) -> &dyn Any;
}

/// An address handle.
pub trait AddressHandle: Send + Sync {
    /// What it was made with.
    fn address_vector(&self) -> AddressVector;

    /// For the provider that made it.
    fn as_any(&self) -> &dyn Any;
}

/// Where a datagram goes.
#[derive(Clone, Copy)]
pub struct DatagramTarget<'a> {
    /// The way there. The request keeps a copy of what it needs.
    pub handle: &'a dyn AddressHandle,
    /// The receiving queue pair; [`Qpn::MULTICAST`] for a group.
    pub remote_qpn: Qpn,
    /// Its Q_Key; with the highest bit set, the sending queue pair's own is sent instead.
    pub remote_qkey: Qkey,
    /// Whether a message that is longer than the path takes is posted all the same and fails when its turn comes, with
    /// [`CompletionStatus::LocalLengthError`](crate::types::CompletionStatus), as with adapters. Otherwise it is
    /// refused. A hint: providers of adapters refuse it always.
    pub long_fails_later: bool,
}

/// What a region shall be from now on.
#[derive(Debug, Default)]
pub struct Reregistration {
    /// Other memory; `None`: the same.
    pub backing: Option<Backing>,
    /// First address; `None`: as it was for the same memory, the host address for other memory.
    pub iova: Option<u64>,
    /// Other rights; `None`: the same.
    pub access: Option<AccessFlags>,
    /// The keys shall stay as they are, which C programs rely on. A provider whose devices choose the keys need not be
    /// able to.
    pub keep_keys: bool,
}

/// A memory region.
pub trait MemoryRegion: Send + Sync {
    /// The registered memory and its rights.
    fn region(&self) -> &Arc<Region>;

    /// Key for this host's scatter-gather entries.
    fn lkey(&self) -> Lkey;

    /// Key for peers.
    fn rkey(&self) -> Rkey;

    /// Revokes the keys; when it returns, nothing accesses the memory any more through this region. Requests that
    /// still name it end in a protection error. Doing so again does nothing. [`ErrorKind::Busy`], and nothing happens,
    /// while memory windows are bound to it.
    fn dereg(&self) -> Result<()>;

    /// As [`MemoryRegion::dereg`], but bound windows do not hinder it: they lead nowhere from then on.
    fn revoke(&self) -> Result<()> {
        self.dereg()
    }
}

/// A memory window.
pub trait MemoryWindow: Send + Sync {
    /// Its kind.
    fn kind(&self) -> MemoryWindowType;

    /// Its key: that of the last binding that was executed, or the one that it was allocated with. The upper 24 bits
    /// stay the same; a binding says the lower eight.
    fn rkey(&self) -> Rkey;

    /// Takes it out of the device, bound or not. When it returns, no peer reaches memory through it. Doing so again
    /// does nothing.
    fn dealloc(&self) -> Result<()>;
}

/// Where completion queues announce completions.
pub trait CompletionChannel: Send + Sync {
    /// Readable when an event may wait, edge or level triggered; it may be readable for nothing, unless the channel is
    /// [exact](Context::create_exact_comp_channel).
    fn fd(&self) -> BorrowedFd<'_>;

    /// What a thread sleeps on, after it found no event, that does nothing else until there is one: readable when one
    /// may wait, and for nothing. It wakes sooner than [`CompletionChannel::fd`] of an exact channel.
    fn waiting_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }

    /// The next event: the `cq_context` of a queue that was armed and got a completion. Drives the device; `None`
    /// if there is no event yet. Never blocks.
    fn poll_event(&self) -> Option<u64>;

    /// As [`CompletionChannel::poll_event`], waiting up to `timeout` (`None`: for ever).
    fn wait_event(&self, timeout: Option<Duration>) -> Result<Option<u64>>;

    /// For the provider that made it.
    fn as_any(&self) -> &dyn Any;
}

/// A completion queue.
pub trait CompletionQueue: Send + Sync {
    /// Takes up to `out.len()` completions, oldest first, and drives the device. Returns how many.
    ///
    /// A failure means that the queue overflowed: completions were lost and its queue pairs are in error.
    fn poll(&self, out: &mut [RawCompletion]) -> Result<usize>;

    /// After a poll that found nothing: how many polls may be left out as long as
    /// [`is_known_empty`](Self::is_known_empty), because they would find nothing either, as far as is known. What
    /// arrives meanwhile is found some microseconds later.
    fn polls_to_skip(&self) -> u32 {
        0
    }

    /// Whether no completion waits that was added before. `false` also where that takes a poll to know. Takes no lock.
    fn is_known_empty(&self) -> bool {
        false
    }

    /// Arms the queue: the next completion that is added makes one event on the channel. Completions added before
    /// do not count: poll again after arming.
    fn req_notify(&self, solicited_only: bool) -> Result<()>;

    /// Entries that fit.
    fn cqe(&self) -> u32;

    /// Its number, which asynchronous events name it by.
    fn number(&self) -> u32;

    /// Events on the channel that were handed out for it, modulo 2^32. C programs acknowledge each of them before the
    /// queue is destroyed; the safe tier need not, because its events are numbers.
    fn comp_events_reported(&self) -> u32 {
        0
    }

    /// Lets an event on the channel wait until `cq_count` completions have come, or `cq_period` has passed since the
    /// first of them; failed and solicited ones wait for nothing. 0 or 1, or no period, ends that.
    fn moderate(&self, cq_count: u16, cq_period: Duration) -> Result<()>;

    /// Changes the number of entries; refused if fewer than are waiting.
    fn resize(&self, cqe: u32) -> Result<()>;

    /// For the provider that made it.
    fn as_any(&self) -> &dyn Any;
}

/// A queue pair.
///
/// Requests are posted in batches: `send_begin`, any number of `send_push`, `send_end`. The thread that began a batch
/// holds the queue until it ends it; other posting threads wait. After a failed push the batch is still open: ending
/// it with [`BatchEnd::Publish`] posts what was pushed before (as C programs expect), [`BatchEnd::Rollback`] posts
/// nothing. No step allocates.
pub trait QueuePair: Send + Sync {
    /// Its number.
    fn qpn(&self) -> Qpn;

    /// Changes state and attributes, all or nothing.
    fn modify(&self, attributes: &QueuePairAttributes) -> Result<()>;

    /// State and attributes as they are now.
    fn query(&self) -> Result<QueuePairStatus>;

    /// Limits the rate of what it sends, or ends the limit.
    fn limit_rate(&self, limit: &RateLimit) -> Result<()> {
        let message = format!("this kind of device limits no queue pair's rate; {limit:?} was given");
        Err(Error::new("modify_qp_rate_limit", ErrorKind::Unsupported, message))
    }

    /// Begins a batch of send requests.
    fn send_begin(&self);

    /// Copies a request into the batch.
    fn send_push(&self, request: &SendRequest<'_>) -> Result<()>;

    /// Copies a request of an XRC initiator into the batch, with the number of the peer's shared receive queue that it
    /// is for. [`ErrorKind::InvalidArgument`] on queue pairs of other kinds.
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

    /// Has it receive what is sent to a multicast group. Attaching again does nothing.
    fn attach_mcast(&self, gid: Gid) -> Result<()> {
        let message = format!("this kind of device has no multicast; gid is {gid}");
        Err(Error::new("attach_mcast", ErrorKind::Unsupported, message))
    }

    /// The opposite; fails if it is not attached.
    fn detach_mcast(&self, gid: Gid) -> Result<()> {
        let message = format!("this kind of device has no multicast; gid is {gid}");
        Err(Error::new("detach_mcast", ErrorKind::Unsupported, message))
    }

    /// Ends the batch.
    fn send_end(&self, end: BatchEnd) -> Result<()>;

    /// Posts a request alone, as a batch of one: what can be done without the batch is faster so. Not to be called by a
    /// thread that has a batch open.
    fn send_one(&self, request: &SendRequest<'_>) -> Result<()> {
        send_batch_of_one(self, request)
    }

    /// Begins a batch of receive requests.
    fn recv_begin(&self);

    /// Copies a request into the batch.
    fn recv_push(&self, request: &ReceiveRequest<'_>) -> Result<()>;

    /// Ends the batch.
    fn recv_end(&self, end: BatchEnd) -> Result<()>;

    /// Before RESET or destruction of a queue pair that takes its receives from a shared queue: it takes no more of
    /// them, and what has completed can be polled before it is removed. Returns the `wr_id` of the receive that a
    /// message had begun to fill, if there is one: it will not complete, and nobody accesses its memory any more. A
    /// provider that cannot tell says that there is none; whoever posted it waits then for the end of the shared queue.
    fn stop_receiving(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    /// What its completions bear as their source: those of its sends, and those of its receives. A provider that does
    /// not say lends itself to no tier that gives memory back by completions.
    fn completion_sources(&self) -> [CompletionSource; 2] {
        [CompletionSource::NONE; 2]
    }

    /// Takes the queue pair out of the device: nothing is sent or received for it any more, its completions are
    /// removed from its queues. Later verbs on it fail. Destroying again does nothing.
    fn destroy(&self) -> Result<()>;

    /// Its counters.
    fn counters(&self) -> Counters;

    /// What it knows of itself and of its peer, for explanations. A provider that keeps no memory of it tells its state
    /// and counters.
    fn report(&self) -> Result<QueuePairReport> {
        Ok(QueuePairReport::new(self.query()?, self.counters()))
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
