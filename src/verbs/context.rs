//! An open device.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::{
    AsyncEvent, Capture, CaptureOptions, CompletionChannel, CompletionQueue, CompletionQueueOptions, Counters,
    DeviceAttributes, Error, ErrorKind, EventObject, Gid, GidEntry, GidType, LiveObjects, PathReport, PeerCapabilities,
    PortAttributes, ProtectionDomain, Result, SharedMemory, UnacknowledgedEvent,
};
use crate::provider;

/// An open device (`ibv_context`): all other objects are created from it.
///
/// This is a handle: clones refer to the same device context. The device is closed when the last handle and the last
/// object created from it are dropped.
///
/// ```
/// use rdma_verbs::verbs;
///
/// let context = verbs::open("soft:127.0.1.2")?;
/// let limits = context.query_device();
/// println!("{}: up to {} queue pairs, {} byte messages", context.name(), limits.max_qp, 1u64 << 31);
/// # Ok::<(), verbs::Error>(())
/// ```
#[doc(alias("ibv_context", "ibv_close_device"))]
#[derive(Clone)]
pub struct Context {
    inner: Arc<dyn provider::Context>,
    /// Whether a provider of this crate opened it. Safe code relies on such a provider's guarantees about memory.
    built_in: bool,
}

impl Context {
    /// Returns the device's name.
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// Returns the limits and capabilities of the device (`ibv_query_device`).
    #[doc(alias("ibv_query_device", "ibv_query_device_ex"))]
    pub fn query_device(&self) -> DeviceAttributes {
        self.inner.query_device()
    }

    /// Returns the state and sizes of a port (`ibv_query_port`); ports are numbered from 1.
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
    #[doc(alias = "ibv_query_port")]
    pub fn query_port(&self, port_num: u8) -> Result<PortAttributes> {
        self.inner.query_port(port_num)
    }

    /// Returns one entry of a port's GID table (`ibv_query_gid`); entries are numbered from 0.
    ///
    /// # Errors
    /// The port or the entry does not exist; [`ErrorKind::NotFound`] if the entry lies within the table but is empty.
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
    #[doc(alias("ibv_query_gid", "ibv_query_gid_ex"))]
    pub fn query_gid(&self, port_num: u8, gid_index: u8) -> Result<GidEntry> {
        self.inner.query_gid(port_num, gid_index)
    }

    /// Returns all used entries of a port's GID table.
    ///
    /// # Errors
    /// The port does not exist.
    #[doc(alias = "ibv_query_gid_table")]
    pub fn gid_table(&self, port_num: u8) -> Result<Vec<GidEntry>> {
        self.inner.gid_table(port_num)
    }

    /// Returns one entry of a port's P_Key table (`ibv_query_pkey`), in host byte order; entries are numbered from 0.
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
    #[doc(alias = "ibv_query_pkey")]
    pub fn query_pkey(&self, port_num: u8, pkey_index: u16) -> Result<u16> {
        self.inner.query_pkey(port_num, pkey_index)
    }

    /// Returns the index of `gid` in a port's GID table, for [`gid_index`](super::QueuePairOptions::gid_index). If
    /// several entries have this GID, as on adapters that have RoCE v1 and v2, it is that of the first RoCE v2 entry.
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
        let found = table.iter().filter(|entry| entry.gid == gid);
        let found = found.min_by_key(|entry| entry.gid_type != GidType::RoceV2);
        found.map(|entry| entry.gid_index).ok_or_else(|| {
            let message = format!("port {port_num} of {} has no GID {gid}", self.name());
            Error::new("find_gid", ErrorKind::NotFound, message)
        })
    }

    /// Returns the index of the GID that a queue pair on this port uses by default. On an adapter's Ethernet port, this
    /// is the first RoCE v2 entry whose IPv4 address, or else IPv6 address, is not link-local, or else the first RoCE
    /// v2 entry; otherwise it is the first entry.
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

    /// Returns the number of live objects of each kind, created through any handle of this device context. A dropped
    /// object that is still in use counts until it is destroyed. Programs can use this to find leaks.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the provider does not count them.
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
        let unsupported = || {
            let message = format!("{} does not count its objects", self.name());
            Error::new("live_objects", ErrorKind::Unsupported, message)
        };
        self.inner.software().ok_or_else(unsupported)?.live_objects()
    }

    /// Returns the capabilities beyond the standard that this device advertises to its peers; part of a
    /// [`ConnectionInfo`](super::ConnectionInfo).
    pub fn advertised_capabilities(&self) -> PeerCapabilities {
        self.inner.advertised_capabilities()
    }

    /// Creates a protection domain (`ibv_alloc_pd`): regions and queue pairs work together only within one domain.
    ///
    /// # Errors
    /// [`ErrorKind::ResourceLimit`] at the device's `max_pd`.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn alloc_pd(&self) -> Result<ProtectionDomain> {
        Ok(ProtectionDomain::new(self.clone(), self.inner.alloc_pd()?))
    }

    /// Creates a completion channel (`ibv_create_comp_channel`), on which threads sleep until a request completes.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if no file descriptor is available.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn create_comp_channel(&self) -> Result<CompletionChannel> {
        Ok(CompletionChannel::new(self.clone(), self.inner.create_comp_channel()?))
    }

    /// Creates a completion queue for at least `cqe` completions (`ibv_create_cq`).
    ///
    /// Make it large enough for every request, send or receive, that can be outstanding on the queue pairs that use it:
    /// a completion that finds the queue full is lost, and the queue pairs go to the error state.
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
    #[doc(alias = "ibv_create_cq")]
    pub fn create_cq(&self, cqe: u32) -> Result<CompletionQueue> {
        self.create_cq_with(cqe, &CompletionQueueOptions::default())
    }

    /// Creates a completion queue like [`Context::create_cq`], with options (`ibv_create_cq_ex`).
    ///
    /// # Errors
    /// As for [`Context::create_cq`]; also if the channel belongs to another device context, the completion vector is
    /// not below the device's `num_comp_vectors`, or timestamps are requested and the device has no clock for them.
    ///
    /// See [`CompletionQueueOptions`] for an example.
    #[doc(alias = "ibv_create_cq_ex")]
    pub fn create_cq_with(&self, cqe: u32, options: &CompletionQueueOptions) -> Result<CompletionQueue> {
        let channel = options.wanted_channel();
        if let Some((channel, _)) = channel
            && !channel.context().is_same(self)
        {
            let message = format!("the channel belongs to {}, not to this opening of {}", channel.context(), self);
            return Err(Error::unsuitable("create_cq", "channel", message));
        }
        let queue = self.inner.create_cq_with(&options.lower(cqe))?;
        Ok(CompletionQueue::new(self.clone(), queue, channel.map(|(channel, _)| channel.clone())))
    }

    /// Returns the time of the clock that timestamps completions, in nanoseconds (`ibv_query_rt_values_ex`); its
    /// difference from a completion's timestamp is the completion's age. Software devices use the system's monotonic
    /// clock.
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
    #[doc(alias = "ibv_query_rt_values_ex")]
    pub fn query_clock(&self) -> Result<u64> {
        self.inner.query_clock()
    }

    /// Returns the next asynchronous event, if there is one: a change to a queue pair, a completion queue or a port
    /// that no completion reports. Never blocks. The event is acknowledged immediately.
    ///
    /// [`AsFd`] gives a descriptor that is readable while an event may be pending. It may wake spuriously, and then
    /// stays readable until this is called.
    ///
    /// ```
    /// let context = rdma_verbs::verbs::open("soft:127.0.1.5")?;
    /// assert_eq!(context.poll_async_event(), None);
    /// # Ok::<(), rdma_verbs::verbs::Error>(())
    /// ```
    #[doc(alias = "ibv_get_async_event")]
    pub fn poll_async_event(&self) -> Option<AsyncEvent> {
        self.inner.poll_async_event()
    }

    /// Returns the next asynchronous event like [`Context::poll_async_event`], but acknowledges it only when it is
    /// dropped.
    ///
    /// See [`UnacknowledgedEvent`] for an example.
    #[doc(alias = "ibv_get_async_event")]
    pub fn take_async_event(&self) -> Option<UnacknowledgedEvent> {
        self.inner.take_async_event().map(|event| UnacknowledgedEvent::new(self.clone(), event))
    }

    /// Waits up to `timeout` ([`Duration::MAX`]: forever) until all taken events about `object` have been acknowledged.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] if some have not been; or this process inherited the device through `fork`.
    pub fn wait_events_acked(&self, object: EventObject, timeout: Duration) -> Result<()> {
        self.inner.wait_events_acked(object, (timeout < Duration::MAX).then_some(timeout))
    }

    /// Waits up to `timeout` ([`Duration::MAX`]: forever) for the next asynchronous event (`ibv_get_async_event`) and
    /// acknowledges it.
    ///
    /// Polls once a millisecond. To wait for other events as well, use the descriptor instead.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] if no event arrives; or this process inherited the device through `fork`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use rdma_verbs::verbs::{self, ErrorKind};
    ///
    /// let context = verbs::open("soft:127.0.1.5")?;
    /// let error = context.wait_async_event(Duration::from_millis(5)).unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::TimedOut);
    /// # Ok::<(), verbs::Error>(())
    /// ```
    #[doc(alias = "ibv_get_async_event")]
    pub fn wait_async_event(&self, timeout: Duration) -> Result<AsyncEvent> {
        self.check_process("get_async_event")?;
        let start = Instant::now();
        loop {
            if let Some(event) = self.poll_async_event() {
                return Ok(event);
            }
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                let message = format!("no event came within {timeout:?}");
                return Err(Error::new("get_async_event", ErrorKind::TimedOut, message));
            }
            std::thread::sleep(Duration::from_millis(1).min(left));
        }
    }

    /// Returns the counters of the whole device: packets, bytes, retries, and dropped packets by reason.
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

    /// Returns whether this device shares memory with other processes of the user on this host: its option, that of the
    /// environment, or the default. `None` for adapters.
    ///
    /// ```
    /// use rdma_verbs::verbs::{self, SharedMemory, SoftOptions};
    ///
    /// let options = SoftOptions::new().shared_memory(SharedMemory::Off);
    /// let context = verbs::open_soft("soft:127.0.1.96", &options)?;
    /// assert_eq!(context.shared_memory(), Some(SharedMemory::Off));
    /// # Ok::<(), verbs::Error>(())
    /// ```
    pub fn shared_memory(&self) -> Option<SharedMemory> {
        self.inner.software().map(provider::SoftwareContext::shared_memory)
    }

    /// Returns a report on each path to a peer that queue pairs of this device use: round trips, window and rate, lost
    /// packets and their presumed cause, and where packets wait. Its `Display` text assesses the path. A path appears
    /// once for each shard that uses it. Empty for adapters, which do not report paths.
    ///
    /// ```
    /// use rdma_verbs::verbs;
    ///
    /// let context = verbs::open("soft:127.0.1.7")?;
    /// let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    /// let qp = pd.create_qp(&cq, &cq)?;
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
        self.inner.software().map_or_else(Vec::new, provider::SoftwareContext::path_reports)
    }

    /// Starts a capture: packets that the device sends and receives from now on are written to a pcapng file, for
    /// Wireshark and similar tools, until the [`Capture`] is stopped or dropped. Several captures may run at a time.
    ///
    /// Comments in the file mark dropped packets with the reason, and retransmitted packets.
    ///
    /// # Errors
    /// The file cannot be created; the message states why and what to do. [`ErrorKind::Unsupported`] if the device is
    /// not a software device.
    ///
    /// ```
    /// use rdma_verbs::verbs::{self, CaptureOptions};
    ///
    /// let context = verbs::open("soft:127.0.1.91")?;
    /// let capture = context.start_capture(&CaptureOptions::new(std::env::temp_dir()).max_bytes(1 << 20))?;
    /// // … traffic …
    /// let file = capture.path().to_owned();
    /// let summary = capture.stop()?;
    /// assert_eq!((summary.packets, summary.bytes), (0, file.metadata().unwrap().len()));
    /// # std::fs::remove_file(file).unwrap();
    /// # Ok::<(), verbs::Error>(())
    /// ```
    pub fn start_capture(&self, options: &CaptureOptions) -> Result<Capture> {
        let unsupported = || {
            let message =
                format!("{} cannot capture {}: only software devices see packets", self.name(), options.path.display());
            Error::new("start_capture", ErrorKind::Unsupported, message)
        };
        Ok(Capture::new(self.inner.software().ok_or_else(unsupported)?.start_capture(options)?))
    }

    /// Wraps a device that a provider of this crate opened.
    pub(super) fn built_in(inner: Arc<dyn provider::Context>) -> Self {
        Self { inner, built_in: true }
    }

    pub(super) fn is_software(&self) -> bool {
        self.inner.software().is_some()
    }

    pub(super) fn connection_manager(&self) -> Option<&dyn provider::ConnectionManager> {
        self.inner.connection_manager()
    }

    /// Returns a reference that does not keep the device open.
    pub(super) fn downgrade(&self) -> WeakContext {
        WeakContext { inner: Arc::downgrade(&self.inner), built_in: self.built_in }
    }

    /// Returns whether a provider of this crate opened it.
    pub(crate) fn is_built_in(&self) -> bool {
        self.built_in
    }

    /// Fails if this process inherited the device through `fork`; see [`provider::Context::check_process`].
    #[inline]
    pub(crate) fn check_process(&self, verb: &'static str) -> Result<()> {
        self.inner.check_process(verb)
    }

    pub(super) fn inner(&self) -> &Arc<dyn provider::Context> {
        &self.inner
    }

    /// Returns whether both are handles of one device context.
    pub(super) fn is_same(&self, other: &Context) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

/// Wraps a device of any provider that was opened at the provider tier. Buffers of the owned tiers and
/// [`reg_mr_implicit`](super::ProtectionDomain::reg_mr_implicit) need a device that [`open`](super::open),
/// [`open_soft`](super::open_soft) or [`Device::open`](super::Device::open) opened.
impl From<Arc<dyn provider::Context>> for Context {
    fn from(inner: Arc<dyn provider::Context>) -> Self {
        Self { inner, built_in: false }
    }
}

/// A device that stays open only while others use it.
pub(super) struct WeakContext {
    inner: Weak<dyn provider::Context>,
    built_in: bool,
}

impl WeakContext {
    /// Returns whether the device is still open.
    pub(super) fn is_open(&self) -> bool {
        self.inner.strong_count() > 0
    }

    /// Returns the device, if it is still open.
    pub(super) fn upgrade(&self) -> Option<Context> {
        Some(Context { inner: self.inner.upgrade()?, built_in: self.built_in })
    }
}

/// The descriptor that is readable while an asynchronous event may be pending.
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

/// Returns the device's name.
impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
