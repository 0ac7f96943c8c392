//! The application's handle of an open adapter.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::channel::IbverbsChannel;
use super::completion_queue::IbverbsCompletionQueue;
use super::device::Device;
use super::memory::IbverbsProtectionDomain;
use super::memory_source::IbverbsDeviceMemory;
use super::queue_pair::IbverbsQueuePair;
use super::shared_receive::IbverbsXrcDomain;
use super::{convert, counters, errors, gid};
use crate::provider::{
    CompletionChannel, CompletionQueue, CompletionQueueInit, ConnectionManager, Context, DeviceMemory,
    DeviceMemoryInit, Error, ErrorKind, ProtectionDomain, QueuePair, QueuePairInit, Result, XrcDomain,
};
use crate::queue::AsyncEventQueue;
use crate::types::{AsyncEvent, Counters, DeviceAttributes, EventObject, GidEntry, PeerCapabilities, PortAttributes};

/// An open adapter.
pub(super) struct IbverbsContext {
    device: Arc<Device>,
}

impl IbverbsContext {
    pub(super) fn new(device: Arc<Device>) -> Self {
        Self { device }
    }

    pub(super) fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

impl Device {
    /// Returns an entry of a port's GID table; `None` if it is unused or beyond the table.
    pub(super) fn gid(&self, port_num: u8, index: u8) -> Result<Option<GidEntry>> {
        if u32::from(index) >= self.port("query_gid", port_num)?.gid_tbl_len {
            return Ok(None);
        }
        let found = self.sys.query_gid(port_num, index.into());
        let found = found.map_err(|error| errors::from_errno("query_gid", format!("gid_index {index}"), &error))?;
        Ok(found.map(|entry| convert::gid(&entry, index)))
    }

    /// Returns all used entries of a port's GID table.
    pub(super) fn gid_table(&self, port_num: u8) -> Result<Vec<GidEntry>> {
        let length = self.port("query_gid", port_num)?.gid_tbl_len.min(256);
        let entries = (0..length).filter_map(|index| {
            let entry = self.sys.query_gid(port_num, index).ok()??;
            Some(convert::gid(&entry, index as u8))
        });
        Ok(entries.collect())
    }

    fn next_event(&self, take: impl FnOnce(&AsyncEventQueue) -> Option<AsyncEvent>) -> Option<AsyncEvent> {
        if self.is_inherited() { None } else { self.events.next(self, take) }
    }
}

impl Context for IbverbsContext {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn check_process(&self, verb: &'static str) -> Result<()> {
        self.device.check_process(verb)
    }

    fn query_device(&self) -> DeviceAttributes {
        self.device.attributes()
    }

    fn query_port(&self, port_num: u8) -> Result<PortAttributes> {
        self.device.check_process("query_port")?;
        self.device.port("query_port", port_num)
    }

    fn query_gid(&self, port_num: u8, gid_index: u8) -> Result<GidEntry> {
        self.device.check_process("query_gid")?;
        self.device.check_port("query_gid", port_num)?;
        if let Some(entry) = self.device.gid(port_num, gid_index)? {
            return Ok(entry);
        }
        let last = self.device.port("query_gid", port_num)?.gid_tbl_len.saturating_sub(1);
        errors::check_range("query_gid", "gid_index", gid_index.into(), 0..=last)?;
        let message = format!("gid_index is {gid_index}; that entry of the GID table is empty");
        Err(Error::new("query_gid", ErrorKind::NotFound, message))
    }

    fn query_pkey(&self, port_num: u8, pkey_index: u16) -> Result<u16> {
        self.device.check_process("query_pkey")?;
        let last = self.device.port("query_pkey", port_num)?.pkey_tbl_len.saturating_sub(1);
        errors::check_range("query_pkey", "pkey_index", pkey_index.into(), 0..=last.into())?;
        let asked = || format!("pkey_index is {pkey_index}");
        let found = self.device.sys.query_pkey(port_num, pkey_index);
        found.map_err(|error| errors::from_errno("query_pkey", asked(), &error))
    }

    fn gid_table(&self, port_num: u8) -> Result<Vec<GidEntry>> {
        self.device.check_process("query_gid")?;
        self.device.check_port("query_gid", port_num)?;
        self.device.gid_table(port_num)
    }

    fn default_gid_index(&self, port_num: u8) -> Result<u8> {
        self.device.check_process("query_gid")?;
        let port = self.device.port("query_gid", port_num)?;
        gid::choose(port.link_layer, &self.device.gid_table(port_num)?).ok_or_else(|| {
            let message =
                format!("port {port_num} of {} has no GID: does its interface have an address?", self.device.name());
            Error::new("query_gid", ErrorKind::NotFound, message)
        })
    }

    fn advertised_capabilities(&self) -> PeerCapabilities {
        PeerCapabilities::STANDARD
    }

    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>> {
        self.device.check_process("alloc_pd")?;
        Ok(Arc::new(IbverbsProtectionDomain::new(&self.device)?))
    }

    fn create_comp_channel(&self) -> Result<Arc<dyn CompletionChannel>> {
        self.device.check_process("create_comp_channel")?;
        Ok(Arc::new(IbverbsChannel::new(&self.device)?))
    }

    fn create_cq_with(&self, init: &CompletionQueueInit<'_>) -> Result<Arc<dyn CompletionQueue>> {
        self.device.check_process("create_cq")?;
        Ok(Arc::new(IbverbsCompletionQueue::new(&self.device, init)?))
    }

    fn query_clock(&self) -> Result<u64> {
        self.device.check_process("query_clock")?;
        let asked = || format!("the clock of {}", self.device.name());
        let ticks = self.device.sys.query_clock();
        let ticks = ticks.map_err(|error| errors::from_errno("query_clock", asked(), &error))?;
        Ok(self.device.nanoseconds(ticks))
    }

    fn create_qp(&self, init: &QueuePairInit<'_>) -> Result<Arc<dyn QueuePair>> {
        self.device.check_process("create_qp")?;
        Ok(Arc::new(IbverbsQueuePair::new(&self.device, init)?))
    }

    fn alloc_dm(&self, init: &DeviceMemoryInit) -> Result<Arc<dyn DeviceMemory>> {
        self.device.check_process("alloc_dm")?;
        Ok(Arc::new(IbverbsDeviceMemory::new(&self.device, init)?))
    }

    fn open_xrcd(&self) -> Result<Arc<dyn XrcDomain>> {
        self.device.check_process("open_xrcd")?;
        Ok(Arc::new(IbverbsXrcDomain::new(&self.device)?))
    }

    fn poll_async_event(&self) -> Option<AsyncEvent> {
        self.device.next_event(AsyncEventQueue::poll)
    }

    fn take_async_event(&self) -> Option<AsyncEvent> {
        self.device.next_event(AsyncEventQueue::take)
    }

    fn ack_async_event(&self, event: &AsyncEvent) {
        if !self.device.is_inherited() {
            self.device.events.queue().acknowledge(event);
        }
    }

    fn wait_events_acked(&self, object: EventObject, timeout: Option<Duration>) -> Result<()> {
        self.device.check_process("ack_async_event")?;
        let start = Instant::now();
        loop {
            let left = timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
            if self.device.events.queue().wait_acknowledged(object, left) {
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

    fn connection_manager(&self) -> Option<&dyn ConnectionManager> {
        Some(self)
    }

    fn counters(&self) -> Counters {
        counters::read(&self.device.sys.info().ibdev_path, self.device.limits().phys_port_cnt)
    }
}
