//! Completion channels: events of completion queues, counted until they are acknowledged.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdma_verbs::provider::{self, ErrorKind, abi};

use crate::error::{Result, number, pointer};
use crate::object::{Object, Zeroed, make, own, take};
use crate::shared::{Shared, shared_of};
use crate::usage::Users;
use crate::version::exported;
use crate::waiting::{PollResult, Uncancelled, may_block, wait_for};

/// The state behind a channel.
pub(crate) struct Channel {
    pub(crate) shared: Arc<Shared>,
    pub(crate) events: Arc<ChannelEvents>,
    pub(crate) users: Users,
}

impl Object for abi::CompChannel {
    type Own = Channel;
}

/// The channel, and the completion queues that notify it.
pub(crate) struct ChannelEvents {
    pub(crate) inner: Arc<dyn provider::CompletionChannel>,
    queues: Mutex<Queues>,
}

#[derive(Default)]
struct Queues {
    known: HashMap<u64, NotifyingQueue>,
    next: u64,
}

/// A completion queue with this channel.
struct NotifyingQueue {
    cq: *mut abi::Cq,
    /// Number of the queue's events that the program received.
    reported: u32,
}

// SAFETY: the queue's address is dereferenced only under the channel's lock, while the queue is registered there.
unsafe impl Send for NotifyingQueue {}

impl ChannelEvents {
    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves the number of a queue that is about to be created.
    pub(crate) fn reserve(&self) -> u64 {
        let mut queues = self.queues();
        queues.next += 1;
        queues.next
    }

    /// Registers the queue with this number.
    pub(crate) fn add(&self, number: u64, cq: *mut abi::Cq) {
        self.queues().known.insert(number, NotifyingQueue { cq, reported: 0 });
    }

    /// Unregisters a queue: its events are no longer delivered. Returns the number delivered so far.
    pub(crate) fn remove(&self, number: u64) -> u32 {
        self.queues().known.remove(&number).map_or(0, |queue| queue.reported)
    }

    /// Returns the next event, if there is one: its queue and the queue's `cq_context`.
    fn next(&self) -> Result<Option<(*mut abi::Cq, *mut c_void)>> {
        loop {
            let number = match self.inner.wait_event(Some(Duration::ZERO)) {
                Ok(number) => number,
                Err(error) if error.kind() == ErrorKind::TimedOut => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            // The number is unknown if the queue was destroyed while its event was pending.
            if let Some(queue) = self.queues().known.get_mut(&number) {
                queue.reported = queue.reported.wrapping_add(1);
                // SAFETY: the queue is registered, so it exists; the field never changes.
                return Ok(Some((queue.cq, unsafe { (*queue.cq).cq_context })));
            }
        }
    }
}

/// Creates a channel.
pub(crate) fn create(shared: &Arc<Shared>, context: *mut abi::Context) -> Result<*mut abi::CompChannel> {
    // Edge-exact, because programs poll the descriptor and then block in `ibv_get_cq_event` until an event: there must
    // be one if the descriptor is readable.
    let inner = match shared.device.software() {
        Some(software) => software.create_exact_comp_channel()?,
        None => shared.device.create_comp_channel()?,
    };
    let mut visible = abi::CompChannel::zeroed();
    (visible.context, visible.fd) = (context, inner.fd().as_raw_fd());
    let events = Arc::new(ChannelEvents { inner, queues: Mutex::default() });
    Ok(make(visible, Channel { shared: Arc::clone(shared), events, users: Users::default() }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_comp_channel(context: *mut abi::Context) -> *mut abi::CompChannel {
    // SAFETY: the program's context.
    pointer(create(unsafe { shared_of(context) }, context))
}

/// Destroys a channel.
///
/// # Safety
/// `channel` is the program's, which gives it up.
pub(crate) unsafe fn destroy(channel: *mut abi::CompChannel) -> Result<()> {
    // SAFETY: the caller's promise.
    let Channel { users, shared, .. } = unsafe { own(channel) };
    shared.check_process("destroy_comp_channel")?;
    users.check_none()?;
    // SAFETY: the caller's promise, and nothing uses it.
    drop(unsafe { take(channel) });
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut abi::CompChannel) -> c_int {
    // SAFETY: the program gives it up.
    number(unsafe { destroy(channel) })
}

/// Polls for an event once, without waiting. Does not unwind.
///
/// # Safety
/// `channel` is the program's; `cq` and `context` may be written.
unsafe extern "C" fn try_event(
    channel: *mut abi::CompChannel,
    cq: *mut *mut abi::Cq,
    context: *mut *mut c_void,
) -> PollResult {
    // SAFETY: the caller's promise.
    let Channel { shared, events, .. } = unsafe { own(channel) };
    // The process is checked first: a lock inherited through a fork may be held by a thread that does not exist here.
    let found = shared.check_process("get_cq_event").and_then(|()| events.next());
    let waits = || {
        may_block(events.inner.fd())?;
        // Not the channel's own descriptor: packets wake a thread on this one directly, and therefore sooner.
        Ok(PollResult::Wait(events.inner.waiting_fd().as_raw_fd()))
    };
    PollResult::from(found.and_then(|found| match found {
        None => waits(),
        Some((queue, cq_context)) => {
            // SAFETY: the caller's promise.
            unsafe {
                cq.write(queue);
                context.write(cq_context);
            }
            Ok(PollResult::Found)
        }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut abi::CompChannel,
    cq: *mut *mut abi::Cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: the program's channel, and its pointers for both results.
    unsafe { wait_for(|| try_event(channel, cq, cq_context)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_cq_events(cq: *mut abi::Cq, count: u32) {
    let _held = Uncancelled::begin();
    // SAFETY: the program's completion queue, whose destruction waits for this.
    let queue = unsafe { own(cq.cast::<abi::CqEx>()) };
    if queue.shared.check_process("ack_cq_events").is_ok() {
        // The last acknowledgement allows another thread to destroy the queue, so it is made through a separate
        // reference.
        Arc::clone(&queue.acknowledgements).add(count);
    }
}

exported! {
    "IBVERBS_1.0": ibv_create_comp_channel ibv_destroy_comp_channel;
    "IBVERBS_1.1": ibv_get_cq_event ibv_ack_cq_events;
}
