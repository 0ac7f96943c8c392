//! Completion channels.

use std::any::Any;
use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::device::Device;
use super::{errors, sys};
use crate::provider::{CompletionChannel, Error, Result};
use crate::sys::wait_readable;

/// A completion channel of an adapter.
pub(super) struct IbverbsChannel {
    sys: Arc<sys::Channel>,
    /// Completion queues of the channel, by number.
    queues: Mutex<HashMap<u64, Arc<ChannelEntry>>>,
    device: Arc<Device>,
}

/// A channel's record of a completion queue.
pub(super) struct ChannelEntry {
    pub(super) cq_context: u64,
    /// Number of events delivered.
    pub(super) count: AtomicU32,
}

impl IbverbsChannel {
    pub(super) fn new(device: &Arc<Device>) -> Result<Self> {
        let created = sys::Channel::create(&device.sys);
        let sys = created.map_err(|error| errors::from_errno("create_comp_channel", "a completion channel", &error))?;
        Ok(Self { sys, queues: Mutex::default(), device: Arc::clone(device) })
    }

    pub(super) fn sys(&self) -> &Arc<sys::Channel> {
        &self.sys
    }

    pub(super) fn is_of(&self, device: &Arc<Device>) -> bool {
        Arc::ptr_eq(&self.device, device)
    }

    fn queues(&self) -> MutexGuard<'_, HashMap<u64, Arc<ChannelEntry>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, number: u32, entry: &Arc<ChannelEntry>) {
        self.queues().insert(number.into(), Arc::clone(entry));
    }

    pub(super) fn remove(&self, number: u32) {
        self.queues().remove(&number.into());
    }
}

impl CompletionChannel for IbverbsChannel {
    fn fd(&self) -> BorrowedFd<'_> {
        self.sys.descriptor()
    }

    fn poll_event(&self) -> Option<u64> {
        if self.device.is_inherited() {
            return None;
        }
        loop {
            let number = self.sys.next_event()?;
            // Events of a queue that is being dropped are discarded. There is one for each time that it was armed, and
            // it cannot be armed again, so the loop ends. A bound would hide the events of other queues behind them.
            if let Some(queue) = self.queues().get(&number) {
                queue.count.fetch_add(1, Ordering::Relaxed);
                return Some(queue.cq_context);
            }
        }
    }

    fn wait_event(&self, timeout: Option<Duration>) -> Result<u64> {
        self.device.check_process("get_cq_event")?;
        let start = Instant::now();
        loop {
            if let Some(event) = self.poll_event() {
                return Ok(event);
            }
            let left = timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
            if left == Some(Duration::ZERO) {
                return Err(errors::no_event());
            }
            wait_readable([self.fd()], left)
                .map_err(|error| Error::from_io("get_cq_event", "waiting failed", error))?;
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
