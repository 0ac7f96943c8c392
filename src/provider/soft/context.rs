//! The context: a device as the application holds it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::capture::SoftCapture;
use super::channel::SoftChannel;
use super::completion_queue::SoftCompletionQueue;
use super::device::Device;
use super::errors;
use super::limit::check_range;
use super::memory_source::SoftDeviceMemory;
use super::protection_domain::SoftProtectionDomain;
use super::queue_pair::SoftQueuePair;
use super::shared_receive::SoftXrcDomain;
use crate::provider::{
    Capture, CompletionChannel, CompletionQueue, CompletionQueueInit, ConnectionManager, Context, DeviceMemory,
    DeviceMemoryInit, ProtectionDomain, QueuePair, QueuePairInit, Result, SoftwareContext, XrcDomain,
};
use crate::queue::AsyncEventQueue;
use crate::sys::{LocalAddress, timestamp};
use crate::types::{
    AsyncEvent, CaptureOptions, Counters, DEFAULT_PKEY, DeviceAttributes, EventObject, GidEntry, GidType, LiveObjects,
    PathReport, PeerCapabilities, PortAttributes, SharedMemory,
};

/// An open software device.
pub(super) struct SoftContext {
    device: Arc<Device>,
}

impl SoftContext {
    pub(super) fn new(device: Arc<Device>) -> Self {
        Self { device }
    }

    pub(super) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    fn next_event(&self, take: impl FnOnce(&AsyncEventQueue) -> Option<AsyncEvent>) -> Option<AsyncEvent> {
        if self.device.is_inherited() {
            return None;
        }
        self.device.refresh_port();
        self.device.events.next(take)
    }

    fn gid(&self, index: u8) -> Result<GidEntry> {
        let address = self.device.local_address("query_gid", "gid_index", index)?;
        Ok(self.entry(index, address))
    }

    fn entry(&self, gid_index: u8, address: LocalAddress) -> GidEntry {
        let ndev_ifindex = self.device.interface.index;
        GidEntry { gid: address.ip.into(), gid_index, gid_type: GidType::RoceV2, ndev_ifindex }
    }
}

fn check_port(verb: &'static str, port_num: u8) -> Result<()> {
    check_range(verb, "port_num", port_num.into(), 1..=1)
}

impl Context for SoftContext {
    fn name(&self) -> &str {
        &self.device.interface.device_name
    }

    fn check_process(&self, verb: &'static str) -> Result<()> {
        self.device.check_process(verb)
    }

    fn query_device(&self) -> DeviceAttributes {
        self.device.attributes.clone()
    }

    fn query_port(&self, port_num: u8) -> Result<PortAttributes> {
        self.device.check_process("query_port")?;
        check_port("query_port", port_num)?;
        Ok(self.device.port())
    }

    fn query_gid(&self, port_num: u8, gid_index: u8) -> Result<GidEntry> {
        self.device.check_process("query_gid")?;
        check_port("query_gid", port_num)?;
        self.gid(gid_index)
    }

    fn query_pkey(&self, port_num: u8, pkey_index: u16) -> Result<u16> {
        self.device.check_process("query_pkey")?;
        check_port("query_pkey", port_num)?;
        check_range(
            "query_pkey",
            "pkey_index",
            pkey_index.into(),
            0..=u32::from(self.device.attributes.max_pkeys) - 1,
        )?;
        Ok(DEFAULT_PKEY)
    }

    fn gid_table(&self, port_num: u8) -> Result<Vec<GidEntry>> {
        self.device.check_process("gid_table")?;
        check_port("gid_table", port_num)?;
        Ok(self.device.addresses().into_iter().map(|(index, address)| self.entry(index, address)).collect())
    }

    fn advertised_capabilities(&self) -> PeerCapabilities {
        self.device.advertised_capabilities()
    }

    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>> {
        self.device.check_process("alloc_pd")?;
        Ok(Arc::new(SoftProtectionDomain::new(Arc::clone(&self.device))?))
    }

    fn create_comp_channel(&self) -> Result<Arc<dyn CompletionChannel>> {
        self.device.check_process("create_comp_channel")?;
        Ok(Arc::new(SoftChannel::new(Arc::clone(&self.device))?))
    }

    fn create_cq_with(&self, init: &CompletionQueueInit<'_>) -> Result<Arc<dyn CompletionQueue>> {
        self.device.check_process("create_cq")?;
        let channel = match init.channel.map(|channel| channel.as_any().downcast_ref::<SoftChannel>()) {
            None => None,
            Some(Some(channel)) if channel.is_of(&self.device) => Some(channel),
            Some(_) => return Err(errors::foreign("create_cq", "channel")),
        };
        Ok(Arc::new(SoftCompletionQueue::new(&self.device, init, channel)?))
    }

    fn query_clock(&self) -> Result<u64> {
        Ok(timestamp())
    }

    fn create_qp(&self, init: &QueuePairInit<'_>) -> Result<Arc<dyn QueuePair>> {
        self.device.check_process("create_qp")?;
        Ok(Arc::new(SoftQueuePair::new(&self.device, init)?))
    }

    fn alloc_dm(&self, init: &DeviceMemoryInit) -> Result<Arc<dyn DeviceMemory>> {
        self.device.check_process("alloc_dm")?;
        Ok(Arc::new(SoftDeviceMemory::new(&self.device, init)?))
    }

    fn open_xrcd(&self) -> Result<Arc<dyn XrcDomain>> {
        self.device.check_process("open_xrcd")?;
        Ok(Arc::new(SoftXrcDomain::new(&self.device)?))
    }

    fn poll_async_event(&self) -> Option<AsyncEvent> {
        self.next_event(AsyncEventQueue::poll)
    }

    fn take_async_event(&self) -> Option<AsyncEvent> {
        self.next_event(AsyncEventQueue::take)
    }

    fn ack_async_event(&self, event: &AsyncEvent) {
        if !self.device.is_inherited() {
            self.device.events.queue.acknowledge(event);
        }
    }

    fn wait_events_acked(&self, object: EventObject, timeout: Option<Duration>) -> Result<()> {
        self.device.check_process("ack_async_event")?;
        let start = Instant::now();
        loop {
            let left = timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
            if self.device.events.queue.wait_acknowledged(object, left) {
                return Ok(());
            }
            if left == Some(Duration::ZERO) {
                return Err(errors::unacknowledged(object, timeout));
            }
        }
    }

    fn async_fd(&self) -> BorrowedFd<'_> {
        self.device.events.as_fd()
    }

    fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        if self.device.is_inherited() {
            return sum;
        }
        self.device.engine.shards().iter().for_each(|shard| sum.merge(&shard.counters()));
        sum
    }

    fn connection_manager(&self) -> Option<&dyn ConnectionManager> {
        Some(self)
    }

    fn software(&self) -> Option<&dyn SoftwareContext> {
        Some(self)
    }
}

impl SoftwareContext for SoftContext {
    fn shared_memory(&self) -> SharedMemory {
        self.device.shared_memory
    }

    fn create_exact_comp_channel(&self) -> Result<Arc<dyn CompletionChannel>> {
        self.device.check_process("create_comp_channel")?;
        Ok(Arc::new(SoftChannel::exact(Arc::clone(&self.device))?))
    }

    fn exact_async_fd(&self) -> Result<BorrowedFd<'_>> {
        self.device.check_process("get_async_event")?;
        self.device.listen_to_system()?;
        Ok(self.device.events.waiting())
    }

    fn live_objects(&self) -> Result<LiveObjects> {
        self.device.check_process("live_objects")?;
        let device = &self.device;
        let queue_pairs = device.engine.shards().iter().map(|shard| shard.queue_pairs() as u32).sum();
        Ok(device.counts.live_objects(queue_pairs, &device.memory))
    }

    fn path_reports(&self) -> Vec<PathReport> {
        if self.device.is_inherited() {
            return Vec::new();
        }
        self.device.engine.shards().iter().flat_map(|shard| shard.path_reports()).collect()
    }

    fn start_capture(&self, options: &CaptureOptions) -> Result<Box<dyn Capture>> {
        self.device.check_process("start_capture")?;
        Ok(Box::new(SoftCapture::start(&self.device, options)?))
    }
}
