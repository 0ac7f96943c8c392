//! An open adapter: the state that all its objects share.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak};

use super::events::Events;
use super::memory::Window;
use super::multicast::Memberships;
use super::wr_tracker::{WrTracker, WrTrackers};
use super::{convert, errors, sys};
use crate::provider::{Error, ErrorKind, Result};
use crate::types::{
    DeviceAttributes, DeviceCapabilities, LinkLayer, PortAttributes, SharedReceiveQueueNumber, Transport,
};

/// An open adapter.
pub(super) struct Device {
    pub(super) sys: Arc<sys::Context>,
    pub(super) events: Events,
    attributes: DeviceAttributes,
    /// Capabilities that the adapter does not report, probed on first use.
    probed: OnceLock<ProbedCapabilities>,
    /// Trackers by work queue number, which is the upper half of the `wr_id`s that the adapter gets.
    trackers: RwLock<WrTrackers>,
    /// Number of trackers removed so far.
    removed_trackers: AtomicU64,
    /// Regions by local key, for binds, ATOMIC WRITEs, advice and re-registration.
    regions: Mutex<HashMap<u32, Weak<sys::MemoryRegion>>>,
    /// Windows by the upper 24 bits of their key.
    windows: Mutex<HashMap<u32, Weak<Window>>>,
    /// Numbers of shared receive queues, by the number by which events identify them.
    pub(super) shared_receive_numbers: Mutex<HashMap<u64, SharedReceiveQueueNumber>>,
    /// Whether each completion queue overflowed, by its number.
    queues: Mutex<HashMap<u32, Arc<AtomicBool>>>,
    pub(super) memberships: Memberships,
    next_number: AtomicU32,
}

impl Device {
    pub(super) fn open(context: Arc<sys::Context>) -> io::Result<Arc<Self>> {
        let attributes = convert::device(&context.query_device()?, &context);
        let events = Events::new(&context)?;
        Ok(Arc::new(Self {
            sys: context,
            events,
            attributes,
            probed: OnceLock::new(),
            trackers: RwLock::default(),
            removed_trackers: AtomicU64::new(0),
            regions: Mutex::default(),
            windows: Mutex::default(),
            shared_receive_numbers: Mutex::default(),
            queues: Mutex::default(),
            memberships: Memberships::default(),
            next_number: AtomicU32::new(1),
        }))
    }

    pub(super) fn name(&self) -> &str {
        &self.sys.info().name
    }

    /// Returns whether this process inherited the device through a fork.
    pub(super) fn is_inherited(&self) -> bool {
        self.sys.is_inherited()
    }

    /// Fails if this process inherited the device. Every verb begins with this check.
    #[inline]
    pub(super) fn check_process(&self, verb: &'static str) -> Result<()> {
        if self.is_inherited() { Err(errors::inherited(verb)) } else { Ok(()) }
    }

    /// Returns the limits and capabilities, except `max_inline_data`.
    pub(super) fn limits(&self) -> &DeviceAttributes {
        &self.attributes
    }

    /// Returns the limits and capabilities, except those of the adapter that the library has no requests for.
    pub(super) fn attributes(&self) -> DeviceAttributes {
        let mut attributes = self.attributes.clone();
        if let Some(probed) = self.probed() {
            attributes.max_inline_data = probed.max_inline_data;
            let flush = DeviceCapabilities::FLUSH_GLOBAL | DeviceCapabilities::FLUSH_PERSISTENT;
            let missing = |has: bool, flags| if has { DeviceCapabilities::empty() } else { flags };
            attributes.device_cap_flags.remove(missing(probed.can_flush, flush));
            attributes.device_cap_flags.remove(missing(probed.can_atomic_write, DeviceCapabilities::ATOMIC_WRITE));
        }
        attributes
    }

    /// Converts ticks of the completion timestamps' clock to nanoseconds.
    pub(super) fn nanoseconds(&self, ticks: u64) -> u64 {
        let DeviceAttributes { completion_timestamp_mask: mask, hca_core_clock_khz: khz, .. } = self.attributes;
        let ticks = if mask == 0 { ticks } else { ticks & mask };
        if khz == 0 { ticks } else { (u128::from(ticks) * 1_000_000 / u128::from(khz)) as u64 }
    }

    /// Returns the probed capabilities of queue pairs; `None` if no queue pair could be created for the probe.
    fn probed(&self) -> Option<ProbedCapabilities> {
        if self.probed.get().is_none() && !self.is_inherited() {
            match probe(&self.sys) {
                Ok(probed) => _ = self.probed.set(probed),
                Err(error) => {
                    tracing::info!(
                        target: "rdma_verbs::device",
                        %error, device = self.name(), "the capabilities of queue pairs could not be probed"
                    );
                }
            }
        }
        self.probed.get().copied()
    }

    /// Returns the maximum number of inline bytes of a queue pair, if it is known.
    pub(super) fn max_inline_data(&self) -> Option<u32> {
        self.probed().map(|probed| probed.max_inline_data)
    }

    pub(super) fn check_port(&self, verb: &'static str, port_num: u8) -> Result<()> {
        errors::check_range(verb, "port_num", port_num.into(), 1..=self.attributes.phys_port_cnt.into())
    }

    pub(super) fn port(&self, verb: &'static str, port_num: u8) -> Result<PortAttributes> {
        self.check_port(verb, port_num)?;
        let attributes = self.sys.query_port(port_num);
        let attributes = attributes
            .map_err(|error| errors::from_errno(verb, format!("port {port_num} of {}", self.name()), &error))?;
        Ok(convert::port(&attributes))
    }

    /// Fails if queue pairs cannot be connected by their attributes.
    pub(super) fn check_connectable(&self) -> Result<()> {
        if self.attributes.transport == Transport::InfiniBand {
            return Ok(());
        }
        let message = format!(
            "{} uses {}: its queue pairs are connected by a connection manager only, not by their attributes",
            self.name(),
            self.attributes.transport.name()
        );
        Err(Error::new("modify_qp", ErrorKind::Unsupported, message))
    }

    /// Returns whether packets of this port are addressed by LID.
    pub(super) fn has_lids(&self, port: &PortAttributes) -> bool {
        port.link_layer == LinkLayer::InfiniBand
    }

    /// Returns a number that no other object of the device ever has.
    pub(super) fn next_number(&self, verb: &'static str) -> Result<u32> {
        let next = |number: u32| number.checked_add(1);
        self.next_number.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).map_err(|_| {
            let message = "2^32 objects were created since the device was opened; open it again";
            Error::new(verb, ErrorKind::ResourceLimit, message)
        })
    }

    pub(super) fn add_tracker(&self, tracker: &Arc<WrTracker>) {
        let mut trackers = self.trackers.write().unwrap_or_else(PoisonError::into_inner);
        trackers.insert(tracker.number(), Arc::clone(tracker));
    }

    /// Removes a tracker; its completions are dropped from now on.
    pub(super) fn remove_tracker(&self, tracker: &WrTracker) {
        let mut trackers = self.trackers.write().unwrap_or_else(PoisonError::into_inner);
        trackers.remove(&tracker.number());
        self.removed_trackers.fetch_add(1, Ordering::Release);
    }

    /// Returns the tracker of this number; `known` caches those that were looked up before.
    #[inline]
    pub(super) fn tracker<'a>(&self, number: u32, known: &'a mut KnownTrackers) -> Option<&'a Arc<WrTracker>> {
        let removed = self.removed_trackers.load(Ordering::Acquire);
        if known.removed != removed {
            *known = KnownTrackers { removed, ..KnownTrackers::default() };
        }
        let slot = &mut known.trackers[number as usize % KNOWN];
        if slot.as_ref().is_none_or(|tracker| tracker.number() != number) {
            *slot = self.trackers.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned();
        }
        slot.as_ref()
    }

    fn regions(&self) -> MutexGuard<'_, HashMap<u32, Weak<sys::MemoryRegion>>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add_region(&self, region: &Arc<sys::MemoryRegion>) {
        self.regions().insert(region.lkey(), Arc::downgrade(region));
    }

    /// Removes a region. Call this before it is deregistered: afterwards the key may belong to another region, which
    /// must stay.
    pub(super) fn remove_region(&self, region: &Arc<sys::MemoryRegion>) {
        let mut regions = self.regions();
        if regions.get(&region.lkey()).is_some_and(|found| found.as_ptr() == Arc::as_ptr(region)) {
            regions.remove(&region.lkey());
        }
    }

    pub(super) fn region(&self, lkey: u32) -> Option<Arc<sys::MemoryRegion>> {
        self.regions().get(&lkey).and_then(Weak::upgrade)
    }

    fn queues(&self) -> MutexGuard<'_, HashMap<u32, Arc<AtomicBool>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add_queue(&self, number: u32, overflowed: &Arc<AtomicBool>) {
        self.queues().insert(number, Arc::clone(overflowed));
    }

    pub(super) fn remove_queue(&self, number: u32) {
        self.queues().remove(&number);
    }

    /// Notes an overflow event of a completion queue. Returns false if the queue is gone.
    pub(super) fn note_overflow(&self, number: u32) -> bool {
        let queues = self.queues();
        let found = queues.get(&number);
        found.inspect(|overflowed| overflowed.store(true, Ordering::Relaxed)).is_some()
    }

    /// Returns the number of the shared receive queue that events identify by `number`.
    pub(super) fn shared_receive_number(&self, number: u64) -> Option<SharedReceiveQueueNumber> {
        self.shared_receive_numbers.lock().unwrap_or_else(PoisonError::into_inner).get(&number).copied()
    }

    /// Removes a window; see [`Device::remove_region`].
    pub(super) fn remove_window(&self, window: &Arc<Window>) {
        let mut windows = self.windows();
        if windows.get(&window.index()).is_some_and(|found| found.as_ptr() == Arc::as_ptr(window)) {
            windows.remove(&window.index());
        }
    }

    /// Returns the windows that were last bound to this region.
    pub(super) fn windows_of(&self, lkey: u32) -> Vec<Arc<Window>> {
        self.windows().values().filter_map(Weak::upgrade).filter(|window| window.bound_to() == lkey).collect()
    }

    pub(super) fn windows(&self) -> MutexGuard<'_, HashMap<u32, Weak<Window>>> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn window(&self, rkey: u32) -> Option<Arc<Window>> {
        self.windows().get(&(rkey >> 8)).and_then(Weak::upgrade)
    }
}

/// Number of trackers that a completion queue caches: for one or two queue pairs, whose queues have consecutive
/// numbers.
const KNOWN: usize = 4;

/// Trackers that were looked up recently; dropped when the device removes a tracker.
#[derive(Default)]
pub(super) struct KnownTrackers {
    removed: u64,
    trackers: [Option<Arc<WrTracker>>; KNOWN],
}

/// Capabilities that are probed by creating queue pairs.
#[derive(Clone, Copy)]
struct ProbedCapabilities {
    /// Maximum number of inline bytes of a queue pair.
    max_inline_data: u32,
    can_flush: bool,
    can_atomic_write: bool,
}

fn probe(context: &Arc<sys::Context>) -> io::Result<ProbedCapabilities> {
    const MOST: u32 = 4096;
    let pd = sys::ProtectionDomain::alloc(context)?;
    let init = sys::CompletionQueueInit { cqe: 1, number: 0, channel: None, comp_vector: 0, timestamps: false };
    let cq = sys::CompletionQueue::create(context, &init)?;
    let create = |max_inline_data| {
        let (max_send_wr, max_recv_wr, max_send_sge, max_recv_sge) = (1, 1, 1, 1);
        let cap = sys::QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data };
        let init = sys::QueuePairInit {
            pd: &pd,
            send_cq: &cq,
            recv_cq: &cq,
            srq: None,
            xrc_domain: None,
            qp_type: 2,
            cap,
            sq_sig_all: false,
        };
        sys::QueuePair::create(&init)
    };
    let plain = create(0)?;
    let (mut known, mut too_many) = (0, MOST + 1);
    while too_many - known > 1 {
        let middle = known.midpoint(too_many);
        match create(middle) {
            Ok(_) => known = middle,
            // Temporary, and not because of the size: the next use probes again.
            Err(error) if errors::kind(&error) == ErrorKind::ResourceLimit => return Err(error),
            Err(_) => too_many = middle,
        }
    }
    let (can_flush, can_atomic_write) = (plain.can_flush(), plain.can_atomic_write());
    Ok(ProbedCapabilities { max_inline_data: known, can_flush, can_atomic_write })
}
