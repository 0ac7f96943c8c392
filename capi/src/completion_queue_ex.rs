//! Extended polling: one completion at a time, read field by field.

use std::ffi::c_int;

use rdma_verbs::provider::abi;
use rdma_verbs::types::RawCompletion;

use crate::completion_queue::{CompletionQueue, Init, create, immediate};
use crate::error::{Errno, INVALID, Result, UNSUPPORTED, number, pointer};
use crate::object::{Zeroed, own};
use crate::protection_domain::domain_of;
use crate::waiting::Uncancelled;

/// Bits of `ibv_create_cq_wc_flags`.
mod with {
    pub(super) const STANDARD: u64 = 0x7f;
    pub(super) const COMPLETION_TIMESTAMP: u64 = 1 << 7;
    pub(super) const WALLCLOCK: u64 = 1 << 11;
    pub(super) const ALL: u64 = STANDARD | COMPLETION_TIMESTAMP | WALLCLOCK;
}

/// Bits of `ibv_cq_init_attr_mask`, and of `ibv_create_cq_attr_flags`.
mod init {
    pub(super) const FLAGS: u32 = 1;
    pub(super) const PD: u32 = 1 << 1;
    pub(super) const SINGLE_THREADED: u32 = 1;
}

/// Creates a queue for extended polling.
///
/// # Safety
/// All pointers are the program's.
unsafe fn create_extended(context: *mut abi::Context, init: &abi::CqInitAttrEx) -> Result<*mut abi::CqEx> {
    if init.comp_mask & !(init::FLAGS | init::PD) != 0 || init.wc_flags & !with::ALL != 0 {
        return Err(UNSUPPORTED);
    }
    if init.comp_mask & init::FLAGS != 0 && init.flags & !init::SINGLE_THREADED != 0 {
        return Err(UNSUPPORTED);
    }
    let mut uses = Vec::new();
    if init.comp_mask & init::PD != 0 {
        // SAFETY: the caller's promise.
        let parent = unsafe { domain_of(init.parent_domain)? };
        if !parent.is_parent {
            return Err(INVALID);
        }
        uses.push(parent.users.begin());
    }
    let visible = abi::CqEx {
        start_poll: Some(start_poll),
        next_poll: Some(next_poll),
        end_poll: Some(end_poll),
        read_opcode: Some(read_opcode),
        read_vendor_err: Some(read_vendor_err),
        read_byte_len: Some(read_byte_len),
        read_imm_data: Some(read_imm_data),
        read_qp_num: Some(read_qp_num),
        read_src_qp: Some(read_src_qp),
        read_wc_flags: Some(read_wc_flags),
        read_slid: Some(read_slid),
        read_sl: Some(read_sl),
        read_dlid_path_bits: Some(read_dlid_path_bits),
        read_completion_ts: Some(read_completion_ts),
        read_completion_wallclock_ns: Some(read_completion_wallclock_ns),
        ..abi::CqEx::zeroed()
    };
    let options = Init {
        cqe: init.cqe,
        cq_context: init.cq_context,
        channel: init.channel,
        comp_vector: init.comp_vector,
        timestamps: init.wc_flags & (with::COMPLETION_TIMESTAMP | with::WALLCLOCK) != 0,
        uses,
    };
    // SAFETY: the caller's promise.
    unsafe { create(context, visible, options) }
}

pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut abi::Context,
    init: *mut abi::CqInitAttrEx,
) -> *mut abi::CqEx {
    // SAFETY: the program's structure and the objects that it refers to.
    pointer(unsafe { create_extended(context, &*init) })
}

/// Takes the next completion.
///
/// # Safety
/// The queue is the program's, and this thread holds its cursor.
unsafe fn advance(cq: *mut abi::CqEx, queue: &CompletionQueue) -> Result<()> {
    let mut next = [RawCompletion::default()];
    if queue.inner.poll(&mut next)? == 0 {
        return Err(Errno(libc::ENOENT));
    }
    let [next] = next;
    // SAFETY: by the caller's promise no other thread uses the cursor, or these fields, now.
    unsafe {
        (*cq).status = next.status as u32;
        (*cq).wr_id = next.wr_id;
        queue.cursor.completion.get().write(next);
    }
    Ok(())
}

unsafe extern "C" fn start_poll(cq: *mut abi::CqEx, attributes: *mut u32) -> c_int {
    let _held = Uncancelled::begin();
    // SAFETY: the program's structure, whose only field is the mask.
    if !attributes.is_null() && unsafe { *attributes } != 0 {
        return INVALID.0;
    }
    // SAFETY: the program's completion queue.
    let queue = unsafe { own(cq) };
    queue.cursor.hold();
    // SAFETY: this thread holds the cursor.
    let started = unsafe { advance(cq, queue) };
    if started.is_err() {
        // Nothing was started, so the program does not call `ibv_end_poll`.
        queue.cursor.release();
    }
    number(started)
}

unsafe extern "C" fn next_poll(cq: *mut abi::CqEx) -> c_int {
    let _held = Uncancelled::begin();
    // SAFETY: the program's completion queue, which this thread has started to poll.
    number(unsafe { advance(cq, own(cq)) })
}

unsafe extern "C" fn end_poll(cq: *mut abi::CqEx) {
    // SAFETY: the program's completion queue.
    unsafe { own(cq) }.cursor.release();
}

/// Returns this thread's current completion.
///
/// # Safety
/// The queue is the program's, and this thread is between `ibv_start_poll` and `ibv_end_poll`.
unsafe fn current<'a>(cq: *mut abi::CqEx) -> &'a RawCompletion {
    // SAFETY: by the caller's promise this thread holds the cursor, so no other thread writes there.
    unsafe { &*own(cq).cursor.completion.get() }
}

macro_rules! readers {
    ($($name:ident -> $type:ty: |$completion:ident| $value:expr;)*) => {
        $(
            unsafe extern "C" fn $name(cq: *mut abi::CqEx) -> $type {
                // SAFETY: the program reads only between start and end.
                let $completion = unsafe { current(cq) };
                $value
            }
        )*
    };
}

readers! {
    read_opcode -> u32: |completion| completion.opcode as u32;
    read_vendor_err -> u32: |completion| completion.cause as u32;
    read_byte_len -> u32: |completion| completion.byte_len;
    read_imm_data -> u32: |completion| immediate(completion);
    read_qp_num -> u32: |completion| completion.qpn.value();
    read_src_qp -> u32: |completion| completion.source_qpn.value();
    read_wc_flags -> u32: |completion| completion.flags.bits();
    read_slid -> u32: |completion| completion.source_lid.into();
    read_sl -> u8: |completion| completion.sl;
    read_completion_ts -> u64: |completion| completion.timestamp;
    read_completion_wallclock_ns -> u64: |completion| wall_clock(completion.timestamp);
}

unsafe extern "C" fn read_dlid_path_bits(_cq: *mut abi::CqEx) -> u8 {
    0
}

fn nanoseconds(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: one local structure.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Returns the time of day at which the device's clock, the system's monotonic one, showed `stamp`.
fn wall_clock(stamp: u64) -> u64 {
    let age = nanoseconds(libc::CLOCK_MONOTONIC).saturating_sub(stamp);
    nanoseconds(libc::CLOCK_REALTIME).saturating_sub(age)
}
