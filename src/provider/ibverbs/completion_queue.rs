//! Completion queues.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::channel::{ChannelEntry, IbverbsChannel};
use super::device::{Device, KnownTrackers};
use super::errors::{self, check_range};
use super::sys;
use super::wr_tracker::WrTracker;
use crate::provider::{CompletionChannel, CompletionQueue, CompletionQueueInit, Error, ErrorKind, Result};
use crate::types::{
    Cause, CompletionFlags, CompletionOpcode, CompletionQueueNumber, CompletionStatus, EventObject, Qpn, RawCompletion,
};

/// The bit of `ibv_wc_opcode` that receives have.
const RECEIVE: u32 = 128;
/// Number of empty polls between two checks for events, which report an overflow.
const POLLS_PER_EVENT_CHECK: u32 = 1024;

/// A completion queue of an adapter.
pub(super) struct IbverbsCompletionQueue {
    sys: Arc<sys::CompletionQueue>,
    number: u32,
    entry: Option<Arc<ChannelEntry>>,
    channel: Option<Arc<dyn CompletionChannel>>,
    overflowed: Arc<AtomicBool>,
    empty_polls: AtomicU32,
    /// Held while completions are taken and entered in the trackers, so that both have the same order: a completion
    /// finishes all requests before it, and frees their slots for new ones.
    order: Mutex<KnownTrackers>,
    device: Arc<Device>,
}

impl IbverbsCompletionQueue {
    pub(super) fn new(device: &Arc<Device>, init: &CompletionQueueInit<'_>) -> Result<Self> {
        let limits = device.limits();
        check_range("create_cq", "cqe", init.cqe, 1..=limits.max_cqe)?;
        check_range("create_cq", "comp_vector", init.comp_vector, 0..=limits.num_comp_vectors.saturating_sub(1))?;
        let channel = init.channel.map(|channel| own_channel(device, channel)).transpose()?;
        if init.timestamps && limits.completion_timestamp_mask == 0 {
            let message = format!("{} has no clock for completions", device.name());
            return Err(Error::new("create_cq", ErrorKind::Unsupported, message));
        }
        let number = device.next_number("create_cq")?;
        let created = sys::CompletionQueue::create(
            &device.sys,
            &sys::CompletionQueueInit {
                cqe: init.cqe,
                number: number.into(),
                channel: channel.map(IbverbsChannel::sys),
                comp_vector: init.comp_vector,
                timestamps: init.timestamps,
            },
        );
        let sys = created.map_err(|error| {
            errors::from_errno(
                "create_cq",
                format!("a queue of {} entries (max_cq {})", init.cqe, limits.max_cq),
                &error,
            )
        })?;
        let entry = channel.map(|channel| {
            let entry = Arc::new(ChannelEntry { cq_context: init.cq_context, count: AtomicU32::new(0) });
            channel.add(number, &entry);
            entry
        });
        let overflowed = Arc::default();
        device.add_queue(number, &overflowed);
        Ok(Self {
            sys,
            number,
            entry,
            channel: init.channel.cloned(),
            overflowed,
            empty_polls: AtomicU32::new(0),
            order: Mutex::default(),
            device: Arc::clone(device),
        })
    }

    pub(super) fn sys(&self) -> &Arc<sys::CompletionQueue> {
        &self.sys
    }

    fn order(&self) -> MutexGuard<'_, KnownTrackers> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails after an overflow, because completions are missing then.
    fn check_overflow(&self) -> Result<()> {
        if self.empty_polls.fetch_add(1, Ordering::Relaxed) % POLLS_PER_EVENT_CHECK == POLLS_PER_EVENT_CHECK - 1 {
            self.device.events.pump(&self.device);
        }
        if !self.overflowed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let message = format!("the queue overflowed: completions were lost; it has {} entries", self.sys.cqe());
        Err(Error::new("poll_cq", ErrorKind::ResourceLimit, message))
    }
}

/// Returns the channel behind the trait, if it belongs to this device.
fn own_channel<'a>(device: &Arc<Device>, channel: &'a Arc<dyn CompletionChannel>) -> Result<&'a IbverbsChannel> {
    match channel.as_any().downcast_ref::<IbverbsChannel>() {
        Some(channel) if channel.is_of(device) => Ok(channel),
        _ => Err(errors::foreign("create_cq", "channel")),
    }
}

/// Returns the queue behind the trait, if it belongs to this device.
pub(super) fn own_queue<'a>(
    device: &Arc<Device>,
    queue: &'a Arc<dyn CompletionQueue>,
    verb: &'static str,
    name: &'static str,
) -> Result<&'a IbverbsCompletionQueue> {
    match queue.as_any().downcast_ref::<IbverbsCompletionQueue>() {
        Some(queue) if Arc::ptr_eq(&queue.device, device) => Ok(queue),
        _ => Err(errors::foreign(verb, name)),
    }
}

/// Blocks the polls of a queue pair's queue while the guard lives.
pub(super) fn pause_polls(queue: &Arc<dyn CompletionQueue>) -> impl Sized + '_ {
    let queue = queue.as_any().downcast_ref::<IbverbsCompletionQueue>();
    queue.expect("a queue pair is created with queues of its device").order()
}

impl CompletionQueue for IbverbsCompletionQueue {
    fn poll(&self, out: &mut [RawCompletion]) -> Result<usize> {
        self.device.check_process("poll_cq")?;
        let mut filled = 0;
        let mut known = self.order();
        while filled < out.len() {
            let taken = self.sys.poll(out.len() - filled, |wc, ticks| {
                let timestamp = if ticks == 0 { 0 } else { self.device.nanoseconds(ticks).max(1) };
                if let Some(completion) = translate(wc, timestamp, &self.device, &mut known) {
                    out[filled] = completion;
                    filled += 1;
                }
            });
            match taken {
                Ok(0) => break,
                Ok(_) => {}
                Err(_) if filled > 0 => break,
                Err(error) => return Err(errors::from_errno("poll_cq", "polling", &error)),
            }
        }
        drop(known);
        if filled == 0 && !out.is_empty() {
            self.check_overflow()?;
        }
        Ok(filled)
    }

    fn req_notify(&self, solicited_only: bool) -> Result<()> {
        self.device.check_process("req_notify_cq")?;
        if self.channel.is_none() {
            let message = "the queue was created without a channel";
            return Err(Error::new("req_notify_cq", ErrorKind::InvalidState, message));
        }
        let armed = self.sys.req_notify(solicited_only);
        armed.map_err(|error| errors::from_errno("req_notify_cq", "arming", &error))
    }

    fn cqe(&self) -> u32 {
        if self.device.is_inherited() { 0 } else { self.sys.cqe() }
    }

    fn number(&self) -> CompletionQueueNumber {
        CompletionQueueNumber::new(self.number)
    }

    fn comp_events_reported(&self) -> u32 {
        self.entry.as_ref().map_or(0, |entry| entry.count.load(Ordering::Relaxed))
    }

    fn moderate(&self, cq_count: u16, cq_period: Duration) -> Result<()> {
        self.device.check_process("modify_cq")?;
        let period = u32::try_from(cq_period.as_micros()).unwrap_or(u32::MAX);
        errors::check_cq_period(period, u16::MAX.into())?;
        let asked = format!("events for {cq_count} completions or {period} µs");
        let moderated = self.sys.moderate(cq_count, period as u16);
        moderated.map_err(|error| errors::from_errno("modify_cq", asked, &error))
    }

    fn resize(&self, cqe: u32) -> Result<()> {
        self.device.check_process("resize_cq")?;
        check_range("resize_cq", "cqe", cqe, 1..=self.device.limits().max_cqe)?;
        let asked = format!("cqe is {cqe} after {}", self.sys.cqe());
        self.sys.resize(cqe).map_err(|error| errors::from_errno("resize_cq", asked, &error))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for IbverbsCompletionQueue {
    fn drop(&mut self) {
        if self.device.is_inherited() {
            return;
        }
        if let Some(channel) =
            self.channel.as_ref().and_then(|channel| channel.as_any().downcast_ref::<IbverbsChannel>())
        {
            channel.remove(self.number);
        }
        self.device.remove_queue(self.number);
        self.device.events.discard(&self.device, EventObject::CompletionQueue(self.number()));
    }
}

/// Converts a completion to this crate's form; `None` if its queue pair was destroyed or reset since, or the request
/// has completed already.
#[inline]
fn translate(wc: &sys::Wc, timestamp: u64, device: &Device, known: &mut KnownTrackers) -> Option<RawCompletion> {
    let status = status(wc.status);
    let (number, index) = ((wc.wr_id >> 32) as u32, wc.wr_id as u32);
    let tracker = device.tracker(number, known)?;
    let (wr_id, retired, qpn, datagrams) = match &**tracker {
        WrTracker::Ordered(tracker) => {
            let (wr_id, retired) = tracker.complete(index, status.is_success())?;
            (wr_id, retired, tracker.qpn, tracker.datagrams)
        }
        WrTracker::Shared(tracker) => {
            let qpn = Qpn::new(wc.qp_num);
            (tracker.complete(index)?, 0, qpn, tracker.are_datagrams(qpn))
        }
    };
    let source = tracker.source(qpn);
    let outcome = RawCompletion { wr_id, retired, qpn, status, source, ..RawCompletion::default() };
    if !status.is_success() {
        return Some(RawCompletion { cause: cause(status), ..outcome });
    }
    // rxe sets flags of receives on sends too, and the flag of a route header on messages of connections.
    let is_receive = wc.opcode & RECEIVE != 0;
    let mut flags = CompletionFlags::from_bits_truncate(if is_receive { wc.wc_flags } else { 0 });
    if !datagrams {
        flags.remove(CompletionFlags::GLOBAL_ROUTE_HEADER);
    }
    let is_immediate = flags.contains(CompletionFlags::WITH_IMMEDIATE);
    Some(RawCompletion {
        opcode: opcode(wc.opcode),
        flags,
        byte_len: wc.byte_len,
        immediate_or_key: if is_immediate { u32::from_be(wc.imm_data) } else { wc.imm_data },
        source_qpn: Qpn::new(wc.src_qp),
        source_lid: wc.slid,
        sl: wc.sl,
        timestamp,
        ..outcome
    })
}

/// Converts a number of `ibv_wc_status`.
fn status(number: u32) -> CompletionStatus {
    match number {
        0 => CompletionStatus::Success,
        1 => CompletionStatus::LocalLengthError,
        2 | 3 => CompletionStatus::LocalQueuePairOperationError,
        4 => CompletionStatus::LocalProtectionError,
        5 => CompletionStatus::WorkRequestFlushedError,
        6 => CompletionStatus::MemoryWindowBindError,
        7 => CompletionStatus::BadResponseError,
        8 => CompletionStatus::LocalAccessError,
        9 | 15 => CompletionStatus::RemoteInvalidRequestError,
        10 => CompletionStatus::RemoteAccessError,
        11 => CompletionStatus::RemoteOperationError,
        12 => CompletionStatus::RetryExceededError,
        13 => CompletionStatus::ReceiverNotReadyRetryExceededError,
        16 => CompletionStatus::RemoteAbortedError,
        19 => CompletionStatus::FatalError,
        _ => CompletionStatus::GeneralError,
    }
}

/// Returns the cause, as far as the status alone implies it.
fn cause(status: CompletionStatus) -> Cause {
    match status {
        CompletionStatus::WorkRequestFlushedError => Cause::QueuePairInError,
        CompletionStatus::BadResponseError => Cause::BadResponse,
        CompletionStatus::RemoteInvalidRequestError => Cause::RefusedInvalid,
        CompletionStatus::RemoteAccessError => Cause::RefusedAccess,
        CompletionStatus::RemoteOperationError => Cause::RefusedOperational,
        CompletionStatus::RetryExceededError => Cause::NoResponse,
        CompletionStatus::ReceiverNotReadyRetryExceededError => Cause::ReceiverNotReady,
        _ => Cause::None,
    }
}

/// Converts a number of `ibv_wc_opcode`.
fn opcode(number: u32) -> CompletionOpcode {
    match number {
        1 => CompletionOpcode::Write,
        2 => CompletionOpcode::Read,
        3 => CompletionOpcode::CompareAndSwap,
        4 => CompletionOpcode::FetchAndAdd,
        5 => CompletionOpcode::BindMemoryWindow,
        6 => CompletionOpcode::LocalInvalidate,
        8 => CompletionOpcode::Flush,
        9 => CompletionOpcode::AtomicWrite,
        128 => CompletionOpcode::Receive,
        129 => CompletionOpcode::ReceiveWriteWithImmediate,
        _ => CompletionOpcode::Send,
    }
}
