//! An open device.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{
    AsyncEvent, Capture, CaptureConfig, CompletionChannel, CompletionQueue, CompletionQueueOptions, Counters,
    DeviceAttributes, Error, ErrorKind, EventObject, Gid, GidEntry, LiveObjects, PathReport, PeerCapabilities,
    PortAttributes, ProtectionDomain, Result, UnacknowledgedEvent,
};
use crate::provider;

/// An open device (`ibv_context`): everything else is made from it.
///
/// A handle: clones name the same opening. The device is closed when the last handle and the last object made from it
/// are gone.
///
/// ```
/// use rdma_verbs::verbs;
///
/// let context = verbs::open("soft:127.0.1.2")?;
/// let limits = context.query_device();
/// println!("{}: up to {} queue pairs, {} byte messages", context.name(), limits.max_qp, 1u64 << 31);
/// # Ok::<(), verbs::Error>(())
/// ```
#[derive(Clone)]
pub struct Context {
    inner: Arc<dyn provider::Context>,
    /// Made by a provider of this crate. Code that is safe relies on what such a one promises about memory.
    built_in: bool,
}

impl Context {
    /// The device's name.
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// Limits and capabilities of the device (`ibv_query_device`).
    pub fn query_device(&self) -> DeviceAttributes {
        self.inner.query_device()
    }

    /// State and sizes of a port (`ibv_query_port`); ports count from 1.
    ///
    /// # Errors
    /// The port does not exist.
    ///
    /// ```
    /// use rdma_verbs::verbs::{self, PortState};
    ///
    /// let port = verbs::open("soft:127.0.1.3")?.query_port(1)?;
    /// assert_eq!(port.state, PortState::Active);
    /// assert!(port.active_mtu <= port.max_mtu);
    /// # Ok::<(), verbs::Error>(())
    /// ```
    pub fn query_port(&self, port_num: u8) -> Result<PortAttributes> {
        self.inner.query_port(port_num)
    }

    /// One entry of a port's GID table (`ibv_query_gid`); entries count from 0.
    ///
    /// # Errors
    /// The port or the entry does not exist; [`ErrorKind::NotFound`] if the entry is below the table's length and
    /// empty.
    ///
    /// ```
    /// use rdma_verbs::verbs::{self, ErrorKind};
    ///
    /// let context = verbs::open("soft:127.45.1.7")?;
    /// let length = context.query_port(1)?.gid_tbl_len as u8;
    /// assert_eq!(context.query_gid(1, length - 1).unwrap_err().kind(), ErrorKind::NotFound);
    /// assert_eq!(context.query_gid(1, length).unwrap_err().kind(), ErrorKind::InvalidArgument);
    /// # Ok::<(), verbs::Error>(())
    /// ```
    pub fn query_gid(&self, port_num: u8, gid_index: u8) -> Result<GidEntry> {
        self.inner.query_gid(port_num, gid_index)
    }

    /// All used entries of a port's GID table.
    ///
    /// # Errors
    /// The port does not exist.
    pub fn gid_table(&self, port_num: u8) -> Result<Vec<GidEntry>> {
        self.inner.gid_table(port_num)
    }

    /// One entry of a port's P_Key table (`ibv_query_pkey`), in host byte order; entries count from 0.
    ///
    /// # Errors
    /// The port or the entry does not exist.
    ///
    /// ```
    /// let context = rdma_verbs::verbs::open("soft:127.45.1.6")?;
    /// // Full membership of the default partition.
    /// assert_eq!(context.query_pkey(1, 0)?, 0xffff);
    /// # Ok::<(), rdma_verbs::verbs::Error>(())
    /// ```
    pub fn query_pkey(&self, port_num: u8, pkey_index: u16) -> Result<u16> {
        self.inner.query_pkey(port_num, pkey_index)
    }

    /// The place of `gid` in a port's GID table, for [`gid_index`](super::QueuePairBuilder::gid_index).
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the port has no such GID.
    ///
    /// ```
    /// use std::net::Ipv4Addr;
    /// use rdma_verbs::verbs;
    ///
    /// let context = verbs::open("soft_lo")?;
    /// let index = context.find_gid(1, Ipv4Addr::LOCALHOST.into())?;
    /// assert_eq!(context.query_gid(1, index)?.gid, Ipv4Addr::LOCALHOST.into());
    /// # Ok::<(), verbs::Error>(())
    /// ```
    pub fn find_gid(&self, port_num: u8, gid: Gid) -> Result<u8> {
        let table = self.inner.gid_table(port_num)?;
        table.iter().find(|entry| entry.gid == gid).map(|entry| entry.gid_index).ok_or_else(|| {
            let message = format!("port {port_num} of {} has no GID {gid}", self.name());
            Error::new("find_gid", ErrorKind::NotFound, message)
        })
    }

    /// The place of the GID that a queue pair on this port uses if none is chosen: of an adapter's on Ethernet the
    /// first RoCE v2 entry of an IPv4 address, or else of an IPv6 address that is not link-local; otherwise the first.
    ///
    /// # Errors
    /// The port does not exist, or has no GID.
    ///
    /// ```
    /// let context = rdma_verbs::verbs::open("soft:127.0.1.114")?;
    /// let index = context.default_gid_index(1)?;
    /// assert_eq!(context.query_gid(1, index)?.gid.to_string(), "::ffff:127.0.1.114");
    /// # Ok::<(), rdma_verbs::verbs::Error>(())
    /// ```
    pub fn default_gid_index(&self, port_num: u8) -> Result<u8> {
        self.inner.default_gid_index(port_num)
    }

    /// How many objects of the device there are, made through this or any other handle of this opening. What was
    /// dropped and lives only because something else uses it is counted until it is gone, so a program can look for
    /// leaks.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the provider cannot tell.
    ///
    /// ```
    /// use rdma_verbs::verbs::{self, AccessFlags};
    ///
    /// let context = verbs::open("soft:127.45.1.3")?;
    /// let before = context.live_objects()?;
    /// let pd = context.alloc_pd()?;
    /// let region = pd.alloc_mr(64, AccessFlags::LOCAL_WRITE)?;
    /// assert_eq!(context.live_objects()?.total(), before.total() + 2);
    /// drop((region, pd));
    /// assert_eq!(context.live_objects()?, before);
    /// # Ok::<(), verbs::Error>(())
    /// ```
    pub fn live_objects(&self) -> Result<LiveObjects> {
        self.inner.live_objects()
    }

    /// What peers should know of this device beyond the standard; part of a [`ConnectionInfo`](super::ConnectionInfo).
    pub fn peer_capabilities(&self) -> PeerCapabilities {
        self.inner.peer_capabilities()
    }

    /// Creates a protection domain (`ibv_alloc_pd`): regions and queue pairs work together only within one.
    ///
    /// # Errors
    /// [`ErrorKind::ResourceLimit`] at the device's `max_pd`.
    pub fn alloc_pd(&self) -> Result<ProtectionDomain> {
        Ok(ProtectionDomain::new(self.clone(), self.inner.alloc_pd()?))
    }

    /// Creates a completion channel (`ibv_create_comp_channel`), for threads that sleep until something completes.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if the system gives no more descriptors.
    pub fn create_comp_channel(&self) -> Result<CompletionChannel> {
        Ok(CompletionChannel::new(self.clone(), self.inner.create_comp_channel()?))
    }

    /// Creates a completion queue for at least `cqe` completions (`ibv_create_cq`).
    ///
    /// Give it room for every request that can be outstanding on the queue pairs that use it, sends and receives: a
    /// completion that finds the queue full is lost, and the queue pairs go to error.
    ///
    /// # Errors
    /// `cqe` is 0 or above the device's `max_cqe`.
    ///
    /// ```
    /// let context = rdma_verbs::verbs::open("soft:127.0.1.4")?;
    /// let cq = context.create_cq(100)?;
    /// assert!(cq.cqe() >= 100);
    /// # Ok::<(), rdma_verbs::verbs::Error>(())
    /// ```
    pub fn create_cq(&self, cqe: u32) -> Result<CompletionQueue> {
        self.create_cq_with(&CompletionQueueOptions::new(cqe))
    }

    /// Creates a completion queue that announces completions on a channel. `cq_context` is any number of the caller's;
    /// [`CompletionChannel::poll_event`] hands it out when the queue has something.
    ///
    /// # Errors
    /// As [`Context::create_cq`]; also if the channel belongs to another opening of a device.
    pub fn create_cq_on(&self, channel: &CompletionChannel, cqe: u32, cq_context: u64) -> Result<CompletionQueue> {
        self.create_cq_with(&CompletionQueueOptions::new(cqe).channel(channel, cq_context))
    }

    /// Creates a completion queue with all options (`ibv_create_cq_ex`).
    ///
    /// # Errors
    /// As [`Context::create_cq_on`]; also if the completion vector is not below the device's `num_comp_vectors`, or the
    /// device has no clock for the timestamps that are wanted.
    ///
    /// [`CompletionQueueOptions`] has an example.
    pub fn create_cq_with(&self, options: &CompletionQueueOptions) -> Result<CompletionQueue> {
        let channel = options.wanted_channel();
        if let Some((channel, _)) = channel
            && !channel.context().is_same(self)
        {
            let message = format!("the channel belongs to {}, not to this opening of {}", channel.context(), self);
            return Err(Error::new("create_cq", ErrorKind::InvalidArgument, message));
        }
        let queue = self.inner.create_cq_with(&options.lower())?;
        Ok(CompletionQueue::new(self.clone(), queue, channel.map(|(channel, _)| channel.clone())))
    }

    /// The clock that completions are stamped with, in nanoseconds (`ibv_query_rt_values_ex`): the age of a completion
    /// is the difference. For software devices it is the system's monotonic clock.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the device has no such clock.
    ///
    /// ```
    /// let context = rdma_verbs::verbs::open("soft:127.0.1.110")?;
    /// let before = context.query_clock()?;
    /// assert!(context.query_clock()? >= before);
    /// # Ok::<(), rdma_verbs::verbs::Error>(())
    /// ```
    pub fn query_clock(&self) -> Result<u64> {
        self.inner.query_clock()
    }

    /// The next asynchronous event, if there is one: something that happened to a queue pair, a completion queue or
    /// a port without a request of its own. Never blocks. The event is acknowledged at once.
    ///
    /// [`AsFd`] gives a descriptor that is readable while one may wait; it may be readable for nothing, until this is
    /// called.
    ///
    /// ```
    /// let context = rdma_verbs::verbs::open("soft:127.0.1.5")?;
    /// assert_eq!(context.poll_async_event(), None);
    /// # Ok::<(), rdma_verbs::verbs::Error>(())
    /// ```
    pub fn poll_async_event(&self) -> Option<AsyncEvent> {
        self.inner.poll_async_event()
    }

    /// As [`Context::poll_async_event`], but the event is acknowledged only when it is dropped.
    ///
    /// [`UnacknowledgedEvent`] has an example.
    pub fn take_async_event(&self) -> Option<UnacknowledgedEvent> {
        self.inner.take_async_event().map(|event| UnacknowledgedEvent::new(self.clone(), event))
    }

    /// Waits up to `timeout` until all events about `object` that were taken are acknowledged; whether they are.
    ///
    /// # Errors
    /// The process was forked since the device was opened.
    pub fn wait_events_acked(&self, object: EventObject, timeout: Duration) -> Result<bool> {
        self.inner.wait_events_acked(object, Some(timeout))
    }

    /// Waits up to `timeout` for the next asynchronous event (`ibv_get_async_event`); `None` if none came.
    ///
    /// It looks once a millisecond. To await events among others, use the descriptor instead.
    pub fn get_async_event(&self, timeout: Duration) -> Option<AsyncEvent> {
        let start = Instant::now();
        loop {
            let event = self.poll_async_event();
            let waited = start.elapsed();
            if event.is_some() || waited >= timeout {
                return event;
            }
            std::thread::sleep(Duration::from_millis(1).min(timeout - waited));
        }
    }

    /// Counters of the whole device: packets, bytes, retries, and every dropped packet by its reason.
    ///
    /// ```
    /// use rdma_verbs::verbs::{self, Counter};
    ///
    /// let counters = verbs::open("soft:127.0.1.6")?.counters();
    /// assert_eq!(counters.get(Counter::RetransmittedPackets), 0);
    /// for (name, value) in counters.iter().filter(|(_, value)| *value > 0) {
    ///     println!("{name} {value}");
    /// }
    /// # Ok::<(), verbs::Error>(())
    /// ```
    pub fn counters(&self) -> Counters {
        self.inner.counters()
    }

    /// The paths to peers that queue pairs of this device have, with what is seen there: round trips, window and rate,
    /// lost packets and what they are taken for, and what packets wait for. As text, each one is a judgement of its
    /// path. A path is in the list once for each shard that has it. Empty for adapters, which do not say.
    ///
    /// ```
    /// use rdma_verbs::verbs;
    ///
    /// let context = verbs::open("soft:127.0.1.7")?;
    /// let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    /// let qp = pd.create_qp(&cq, &cq).build()?;
    /// qp.connect(&qp.connection_info()?)?; // to itself
    /// for path in context.path_reports() {
    ///     println!("{path}"); // The path from 127.0.1.7 to 127.0.1.7 is not controlled: …
    ///     if let Some(control) = path.control {
    ///         println!("{} packets lost, {} events", path.total.lost, control.congestion_events);
    ///     }
    /// }
    /// # assert_eq!(context.path_reports().len(), 1);
    /// # Ok::<(), verbs::Error>(())
    /// ```
    pub fn path_reports(&self) -> Vec<PathReport> {
        self.inner.path_reports()
    }

    /// Begins a capture: what the device sends and receives from now on goes into a file in pcapng format, for
    /// Wireshark and its like, until the [`Capture`] is stopped or dropped. Several captures may be under way.
    ///
    /// Packets that were dropped say why, packets that were sent again say so.
    ///
    /// # Errors
    /// The file cannot be made; the text says why and what to do. [`ErrorKind::Unsupported`] if the device is no
    /// software device.
    ///
    /// ```
    /// use rdma_verbs::verbs::{self, CaptureConfig};
    ///
    /// let context = verbs::open("soft:127.0.1.91")?;
    /// let capture = context.start_capture(&CaptureConfig::new(std::env::temp_dir()).max_bytes(1 << 20))?;
    /// // … traffic …
    /// let file = capture.path().to_owned();
    /// let summary = capture.stop()?;
    /// assert_eq!((summary.packets, summary.bytes), (0, file.metadata().unwrap().len()));
    /// # std::fs::remove_file(file).unwrap();
    /// # Ok::<(), verbs::Error>(())
    /// ```
    pub fn start_capture(&self, config: &CaptureConfig) -> Result<Capture> {
        Ok(Capture::new(self.inner.start_capture(config)?))
    }

    /// What a provider of this crate opened.
    pub(super) fn built_in(inner: Arc<dyn provider::Context>) -> Self {
        Self { inner, built_in: true }
    }

    /// Whether a provider of this crate made it.
    pub(crate) fn is_built_in(&self) -> bool {
        self.built_in
    }

    /// Fails if this process only inherited the device in a fork; see [`provider::Context::check_process`].
    #[inline]
    pub(crate) fn check_process(&self, verb: &'static str) -> Result<()> {
        self.inner.check_process(verb)
    }

    pub(super) fn inner(&self) -> &Arc<dyn provider::Context> {
        &self.inner
    }

    /// Whether both are handles of one opening.
    pub(super) fn is_same(&self, other: &Context) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

/// From a device that was opened at the provider tier, for example with a configuration of its own.
impl From<Arc<dyn provider::Context>> for Context {
    fn from(inner: Arc<dyn provider::Context>) -> Self {
        Self { inner, built_in: false }
    }
}

/// The descriptor that is readable while an asynchronous event may wait.
impl AsFd for Context {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.async_fd()
    }
}

impl AsRawFd for Context {
    fn as_raw_fd(&self) -> RawFd {
        self.inner.async_fd().as_raw_fd()
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Context").field(&self.name()).finish()
    }
}

/// The device's name.
impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
