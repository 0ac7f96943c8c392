//! Completion queues, and classic polling.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use rdma_verbs::provider::{self, CompletionQueueInit, abi};
use rdma_verbs::types::{CompletionFlags, EventObject, RawCompletion};

use crate::completion_channel::ChannelEvents;
use crate::cursor::Cursor;
use crate::error::{Errno, INVALID, Result, UNSUPPORTED, number, pointer};
use crate::object::{Object, Zeroed, atomic_field, make, own, take};
use crate::shared::{Shared, shared_of};
use crate::usage::{Use, Users};
use crate::version::exported;
use crate::waiting::Uncancelled;

/// Number of completions taken at a time.
const BATCH: usize = 16;
/// `IBV_CQ_ATTR_MODERATE`.
const MODERATE: u32 = 1;

/// The state behind a completion queue. The visible part is always the extended form.
pub(crate) struct CompletionQueue {
    pub(crate) shared: Arc<Shared>,
    pub(crate) inner: Arc<dyn provider::CompletionQueue>,
    /// Shared with the acknowledging thread, because the queue may be destroyed after the last acknowledgement.
    pub(crate) acknowledgements: Arc<Acknowledgements>,
    pub(crate) users: Users,
    /// Number of polls to skip while the queue is known to be empty.
    skips: AtomicU32,
    /// The state of extended polling.
    pub(crate) cursor: Cursor,
    /// The channel, and the queue's number in it.
    channel: Option<(Arc<ChannelEvents>, u64)>,
    _uses: Vec<Use>,
}

impl CompletionQueue {
    /// Returns whether to skip this poll: after an empty poll, the provider returns how many more would be useless. No
    /// poll is skipped while a completion is queued, because a program that has armed the queue polls once more and
    /// then sleeps.
    #[inline]
    fn skips_poll(&self) -> bool {
        let left = self.skips.load(Ordering::Relaxed);
        if left > 0 {
            self.skips.store(left - 1, Ordering::Relaxed);
        }
        left > 0 && self.inner.is_known_empty()
    }
}

impl Object for abi::CqEx {
    type Own = CompletionQueue;
}

/// The acknowledged events of a queue.
#[derive(Default)]
pub(crate) struct Acknowledgements {
    state: Mutex<Acknowledged>,
    changed: Condvar,
}

#[derive(Default)]
struct Acknowledged {
    /// Number of events, modulo 2^32.
    count: u32,
    /// Number of threads that wait for more: without one, an acknowledgement needs no system call.
    waiters: u32,
}

impl Acknowledgements {
    /// Adds acknowledgements.
    pub(crate) fn add(&self, more: u32) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.count = state.count.wrapping_add(more);
        if state.waiters > 0 {
            self.changed.notify_all();
        }
    }

    /// Waits until this many events are acknowledged.
    fn wait(&self, events: u32) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.waiters += 1;
        while (events.wrapping_sub(state.count) as i32) > 0 {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.waiters -= 1;
    }
}

/// Options for creating a queue, common to both functions that create one.
pub(crate) struct Init {
    pub(crate) cqe: u32,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: *mut abi::CompChannel,
    pub(crate) comp_vector: u32,
    pub(crate) timestamps: bool,
    pub(crate) uses: Vec<Use>,
}

/// Creates a queue.
///
/// # Safety
/// The context and the channel, if there is one, are the program's.
pub(crate) unsafe fn create(
    context: *mut abi::Context,
    mut visible: abi::CqEx,
    mut init: Init,
) -> Result<*mut abi::CqEx> {
    // SAFETY: the caller's promise.
    let shared = unsafe { shared_of(context) };
    let mut channel = None;
    if !init.channel.is_null() {
        // SAFETY: the caller's promise.
        let given = unsafe { own(init.channel) };
        given.shared.check_process("create_cq")?;
        init.uses.push(given.users.begin());
        channel = Some((Arc::clone(&given.events), given.events.reserve()));
    }
    let inner = shared.device.create_cq_with(&CompletionQueueInit {
        cqe: init.cqe,
        cq_context: channel.as_ref().map_or(0, |(_, number)| *number),
        channel: channel.as_ref().map(|(channel, _)| &channel.inner),
        comp_vector: init.comp_vector,
        timestamps: init.timestamps,
    })?;
    let base = &mut visible.base;
    (base.context, base.channel, base.cq_context) = (context, init.channel, init.cq_context);
    (base.handle, base.cqe) = (shared.next_handle(), c_int::try_from(inner.cqe()).unwrap_or(c_int::MAX));
    let object = EventObject::CompletionQueue(inner.number());
    let made = make(
        visible,
        CompletionQueue {
            shared: Arc::clone(shared),
            inner,
            acknowledgements: Arc::default(),
            users: Users::default(),
            skips: AtomicU32::default(),
            cursor: Cursor::default(),
            channel: channel.clone(),
            _uses: init.uses,
        },
    );
    if let Some((channel, number)) = channel {
        channel.add(number, made.cast());
    }
    shared.event_objects.add(object, made);
    Ok(made)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_cq(
    context: *mut abi::Context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut abi::CompChannel,
    comp_vector: c_int,
) -> *mut abi::Cq {
    let init = || {
        let cqe = u32::try_from(cqe).map_err(|_| INVALID)?;
        let comp_vector = u32::try_from(comp_vector).map_err(|_| INVALID)?;
        Ok(Init { cqe, cq_context, channel, comp_vector, timestamps: false, uses: Vec::new() })
    };
    // SAFETY: the program's context and channel.
    pointer(init().and_then(|init| unsafe { create(context, abi::CqEx::zeroed(), init) })).cast()
}

/// Destroys a queue.
///
/// # Safety
/// `cq` is the program's, which gives it up.
pub(crate) unsafe fn destroy(cq: *mut abi::Cq) -> Result<()> {
    let cq: *mut abi::CqEx = cq.cast();
    // SAFETY: the caller's promise.
    let queue = unsafe { own(cq) };
    queue.shared.check_process("destroy_cq")?;
    queue.users.check_none()?;
    if let Some((channel, number)) = &queue.channel {
        let reported = channel.remove(*number);
        queue.acknowledgements.wait(reported);
    }
    queue.shared.end_events(EventObject::CompletionQueue(queue.inner.number()))?;
    // SAFETY: the caller's promise, and nothing uses it.
    drop(unsafe { take(cq) });
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_cq(cq: *mut abi::Cq) -> c_int {
    // SAFETY: the program gives it up.
    number(unsafe { destroy(cq) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_resize_cq(cq: *mut abi::Cq, cqe: c_int) -> c_int {
    // SAFETY: the program's completion queue.
    let queue = unsafe { own(cq.cast::<abi::CqEx>()) };
    let resized = u32::try_from(cqe).map_err(|_| INVALID).and_then(|cqe| Ok(queue.inner.resize(cqe)?));
    number(resized.map(|()| {
        let cqe = c_int::try_from(queue.inner.cqe()).unwrap_or(c_int::MAX);
        // SAFETY: the program's completion queue; only this verb accesses the field once the queue is created.
        unsafe { atomic_field((&raw mut (*cq).cqe).cast()) }.store(cqe as u32, Ordering::Relaxed);
    }))
}

/// Returns `imm_data` of a completion: immediate data in network order, or the key.
#[inline]
pub(crate) fn immediate(completion: &RawCompletion) -> u32 {
    if completion.flags.contains(CompletionFlags::WITH_IMMEDIATE) {
        completion.immediate_or_key.to_be()
    } else {
        completion.immediate_or_key
    }
}

#[inline]
fn work_completion(from: &RawCompletion) -> abi::Wc {
    abi::Wc {
        wr_id: from.wr_id,
        status: from.status as u32,
        opcode: from.opcode as u32,
        vendor_err: from.cause as u32,
        byte_len: from.byte_len,
        imm_data: immediate(from),
        qp_num: from.qpn.value(),
        src_qp: from.source_qpn.value(),
        wc_flags: from.flags.bits(),
        pkey_index: 0,
        slid: from.source_lid,
        sl: from.sl,
        dlid_path_bits: 0,
    }
}

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut abi::Cq, count: c_int, to: *mut abi::Wc) -> c_int {
    // SAFETY: the program's completion queue.
    let queue = unsafe { own(cq.cast::<abi::CqEx>()) };
    if queue.skips_poll() {
        return 0;
    }
    let _held = Uncancelled::begin();
    let wanted = usize::try_from(count).unwrap_or(0);
    // Programs that poll for one completion at a time should not pay for an array of many.
    // SAFETY: the program's array of `count` structures.
    let found =
        unsafe { if wanted == 1 { poll_by::<1>(queue, wanted, to) } else { poll_by::<BATCH>(queue, wanted, to) } };
    if found == 0 {
        queue.skips.store(queue.inner.polls_to_skip(), Ordering::Relaxed);
    }
    found
}

/// Polls completions, at most `AT_A_TIME` at a time.
///
/// # Safety
/// `to` has room for `wanted` structures.
unsafe fn poll_by<const AT_A_TIME: usize>(queue: &CompletionQueue, wanted: usize, to: *mut abi::Wc) -> c_int {
    let mut batch = [RawCompletion::default(); AT_A_TIME];
    let mut done = 0;
    while done < wanted {
        let requested = AT_A_TIME.min(wanted - done);
        let found = match queue.inner.poll(&mut batch[..requested]) {
            Ok(found) => found,
            Err(_) if done > 0 => break,
            Err(error) => {
                crate::error::set_errno(error.into());
                return -1;
            }
        };
        for (index, completion) in batch[..found].iter().enumerate() {
            // SAFETY: the caller provides room for `wanted` structures, and `done + index` is less.
            unsafe { to.add(done + index).write(work_completion(completion)) };
        }
        done += found;
        if found < requested {
            break;
        }
    }
    done as c_int
}

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut abi::Cq, solicited_only: c_int) -> c_int {
    let _held = Uncancelled::begin();
    // SAFETY: the program's completion queue.
    let queue = unsafe { own(cq.cast::<abi::CqEx>()) };
    if queue.channel.is_none() {
        // Arming a queue without a channel is allowed, and has no effect.
        return 0;
    }
    number(queue.inner.req_notify(solicited_only != 0).map_err(Errno::from))
}

pub(crate) unsafe extern "C" fn modify_cq(cq: *mut abi::Cq, attributes: *mut abi::ModifyCqAttr) -> c_int {
    // SAFETY: the program's completion queue and structure.
    let (queue, attributes) = unsafe { (own(cq.cast::<abi::CqEx>()), &*attributes) };
    if attributes.attr_mask != MODERATE {
        return UNSUPPORTED.0;
    }
    let period = Duration::from_micros(attributes.cq_period.into());
    number(queue.inner.moderate(attributes.cq_count, period).map_err(Errno::from))
}

exported! {
    "IBVERBS_1.1": ibv_create_cq ibv_destroy_cq ibv_resize_cq;
}
