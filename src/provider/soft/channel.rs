//! Completion channels.

use std::any::Any;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use super::device::Device;
use super::errors;
use crate::engine::{Channel, Shard};
use crate::provider::{CompletionChannel, Error, Result};

/// A completion channel of a software device.
pub(super) struct SoftChannel {
    channel: Arc<Channel>,
    device: Arc<Device>,
}

impl SoftChannel {
    /// Creates a channel whose descriptor also becomes readable when packets arrive.
    pub(super) fn new(device: Arc<Device>) -> Result<Self> {
        Self::with(Channel::new, device)
    }

    /// Creates an edge-exact channel: its descriptor is readable only while events are pending.
    pub(super) fn exact(device: Arc<Device>) -> Result<Self> {
        Self::with(Channel::exact, device)
    }

    fn with(make: impl FnOnce(Vec<Arc<Shard>>) -> io::Result<Channel>, device: Arc<Device>) -> Result<Self> {
        let channel = make(device.engine.shards().to_vec()).map_err(|error| {
            Error::from_io("create_comp_channel", "the system has no descriptors left for the channel", error)
        })?;
        Ok(Self { channel: Arc::new(channel), device })
    }

    pub(super) fn is_of(&self, device: &Arc<Device>) -> bool {
        Arc::ptr_eq(&self.device, device)
    }

    pub(super) fn engine_side(&self) -> &Arc<Channel> {
        &self.channel
    }
}

impl CompletionChannel for SoftChannel {
    fn fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    fn waiting_fd(&self) -> BorrowedFd<'_> {
        self.channel.waiting_fd()
    }

    fn poll_event(&self) -> Option<u64> {
        if self.device.is_inherited() { None } else { self.channel.poll() }
    }

    fn wait_event(&self, timeout: Option<Duration>) -> Result<u64> {
        self.device.check_process("get_cq_event")?;
        let event = self.channel.wait(timeout);
        let event = event.map_err(|error| Error::from_io("get_cq_event", "waiting failed", error))?;
        event.ok_or_else(errors::no_event)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
