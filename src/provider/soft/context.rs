//! The device as the application holds it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::capture::SoftCapture;
use super::channel::SoftChannel;
use super::completion_queue::SoftCompletionQueue;
use super::device::Device;
use super::errors;
use super::limit::check_range;
use super::protection_domain::SoftProtectionDomain;
use super::queue_pair::SoftQueuePair;
use super::shared_receive::SoftXrcDomain;
use crate::provider::{
    Capture, CompletionChannel, CompletionQueue, Context, Error, ErrorKind, ProtectionDomain, QueuePair, QueuePairInit,
    Result, XrcDomain,
};
use crate::types::{AsyncEvent, CaptureConfig, Counters, DeviceAttributes, GidEntry, PeerCapabilities, PortAttributes};

/// An open software device.
pub(super) struct SoftContext {
    device: Arc<Device>,
}

impl SoftContext {
    pub(super) fn new(device: Arc<Device>) -> Self {
        Self { device }
    }

    fn gid(&self, index: u8) -> Option<GidEntry> {
        let interface = &self.device.interface;
        let address = interface.addresses.get(usize::from(index))?;
        Some(GidEntry { gid: address.ip.into(), gid_index: index, ndev_ifindex: interface.index })
    }
}

fn check_port(verb: &'static str, port_num: u8) -> Result<()> {
    check_range(verb, "port_num", port_num.into(), 1..=1)
}

impl Context for SoftContext {
    fn name(&self) -> &str {
        &self.device.interface.device_name
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
        check_port("query_gid", port_num)?;
        self.gid(gid_index).ok_or_else(|| {
            let last = self.device.interface.addresses.len() - 1;
            let message = format!("gid_index is {gid_index}; allowed are 0 to {last}");
            Error::new("query_gid", ErrorKind::InvalidArgument, message)
        })
    }

    fn gid_table(&self, port_num: u8) -> Result<Vec<GidEntry>> {
        check_port("query_gid", port_num)?;
        Ok((0..=u8::MAX).map_while(|index| self.gid(index)).collect())
    }

    fn peer_capabilities(&self) -> PeerCapabilities {
        self.device.peer_capabilities()
    }

    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>> {
        self.device.check_process("alloc_pd")?;
        Ok(Arc::new(SoftProtectionDomain::new(Arc::clone(&self.device))?))
    }

    fn create_comp_channel(&self) -> Result<Arc<dyn CompletionChannel>> {
        self.device.check_process("create_comp_channel")?;
        Ok(Arc::new(SoftChannel::new(Arc::clone(&self.device))?))
    }

    fn create_cq(
        &self,
        cqe: u32,
        cq_context: u64,
        channel: Option<&Arc<dyn CompletionChannel>>,
    ) -> Result<Arc<dyn CompletionQueue>> {
        self.device.check_process("create_cq")?;
        let channel = match channel.map(|channel| channel.as_any().downcast_ref::<SoftChannel>()) {
            None => None,
            Some(Some(channel)) if channel.is_of(&self.device) => Some(channel),
            Some(_) => return Err(errors::foreign("create_cq", "channel")),
        };
        Ok(Arc::new(SoftCompletionQueue::new(&self.device, cqe, cq_context, channel)?))
    }

    fn create_qp(&self, init: &QueuePairInit<'_>) -> Result<Arc<dyn QueuePair>> {
        self.device.check_process("create_qp")?;
        Ok(Arc::new(SoftQueuePair::new(&self.device, init)?))
    }

    fn open_xrcd(&self) -> Result<Arc<dyn XrcDomain>> {
        self.device.check_process("open_xrcd")?;
        Ok(Arc::new(SoftXrcDomain::new(&self.device)?))
    }

    fn poll_async_event(&self) -> Option<AsyncEvent> {
        if self.device.is_inherited() {
            return None;
        }
        // Cleared first: an event that is added meanwhile makes it readable again.
        self.device.async_event.clear();
        let event = self.device.events.poll();
        if !self.device.events.is_empty() {
            self.device.async_event.signal();
        }
        event
    }

    fn async_fd(&self) -> BorrowedFd<'_> {
        self.device.async_event.as_fd()
    }

    fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        if self.device.is_inherited() {
            return sum;
        }
        self.device.engine.shards().iter().for_each(|shard| sum.merge(&shard.counters()));
        sum
    }

    fn start_capture(&self, config: &CaptureConfig) -> Result<Box<dyn Capture>> {
        self.device.check_process("start_capture")?;
        Ok(Box::new(SoftCapture::start(&self.device, config)?))
    }
}
