//! Extended posting: builders and setters between `ibv_wr_start` and `ibv_wr_complete`.
//!
//! Meanwhile the provider's batch is open and excludes other threads, so the stage belongs to the posting thread. A
//! builder begins a request in the stage, setters complete it, and the next builder or `ibv_wr_complete` adds it to the
//! batch.

use std::ffi::{c_int, c_void};
use std::slice;

use rdma_verbs::provider::abi;
use rdma_verbs::types::{BatchEnd, FlushFlags, Lkey, Operation, Rkey, SendFlags, Sge};

use crate::error::{Errno, INVALID, UNSUPPORTED, number};
use crate::memory_window::bind_operation_of_type_2;
use crate::object::{QueuePairShell, own};
use crate::queue_pair::QueuePair;
use crate::stage::{Payload, Pending, State, Target};
use crate::waiting::Uncancelled;

/// Returns the queue pair and its stage.
///
/// # Safety
/// The queue pair is the program's, and this thread is between `ibv_wr_start` and `ibv_wr_complete` or `ibv_wr_abort`.
unsafe fn parts<'a>(qp: *mut abi::QpEx) -> Option<(&'a QueuePair, &'a mut State)> {
    // SAFETY: every queue pair is created in this form; the caller promises the rest.
    let queue_pair = unsafe { own(qp.cast::<QueuePairShell>()) };
    let stage = queue_pair.stage.as_ref()?;
    // SAFETY: the open batch is this thread's, so no other thread uses the stage, and no reference of ours outlives a
    // builder.
    Some((queue_pair, unsafe { &mut *stage.0.get() }))
}

/// Begins a request. The one before it is complete, and is added to the batch.
///
/// # Safety
/// As [`parts`].
unsafe fn begin(qp: *mut abi::QpEx, operation: Operation) {
    // SAFETY: the caller's promise; the program has set these fields for this request.
    let (Some((queue_pair, state)), wr_id, flags) = (unsafe { (parts(qp), (*qp).wr_id, (*qp).wr_flags) }) else {
        return;
    };
    state.flush(&*queue_pair.inner, queue_pair.qp_type);
    let flags = SendFlags::from_bits_truncate(flags);
    state.pending = Some(Pending { wr_id, flags, operation, payload: Payload::Sges(0), target: Target::Connected });
}

/// Refuses the batch.
///
/// # Safety
/// As [`parts`].
unsafe fn refuse(qp: *mut abi::QpEx, error: Errno) {
    // SAFETY: the caller's promise.
    if let Some((_, state)) = unsafe { parts(qp) } {
        state.fail(error);
    }
}

unsafe extern "C" fn wr_start(qp: *mut abi::QpEx) {
    // SAFETY: the program's queue pair.
    let queue_pair = unsafe { own(qp.cast::<QueuePairShell>()) };
    queue_pair.inner.send_begin();
    // SAFETY: the batch is open.
    if let Some((_, state)) = unsafe { parts(qp) } {
        (state.pending, state.error) = (None, None);
    }
}

unsafe extern "C" fn wr_complete(qp: *mut abi::QpEx) -> c_int {
    let _held = Uncancelled::begin();
    // SAFETY: the program's queue pair, whose batch is open.
    let Some((queue_pair, state)) = (unsafe { parts(qp) }) else { return UNSUPPORTED.0 };
    state.flush(&*queue_pair.inner, queue_pair.qp_type);
    let end = if state.error.is_some() { BatchEnd::Rollback } else { BatchEnd::Publish };
    let error = state.error.take();
    // From here on, the stage may belong to another thread.
    let ended = queue_pair.inner.send_end(end).map_err(Errno::from);
    number(error.map_or(ended, Err))
}

unsafe extern "C" fn wr_abort(qp: *mut abi::QpEx) {
    // SAFETY: the program's queue pair, whose batch is open.
    let Some((queue_pair, state)) = (unsafe { parts(qp) }) else { return };
    state.pending = None;
    // No error to report: nothing is posted in any case.
    let _ = queue_pair.inner.send_end(BatchEnd::Rollback);
}

macro_rules! builders {
    ($($name:ident($($argument:ident: $type:ty),*) => $operation:expr;)*) => {
        $(
            unsafe extern "C" fn $name(qp: *mut abi::QpEx $(, $argument: $type)*) {
                // SAFETY: the program calls builders between start and end.
                unsafe { begin(qp, $operation) };
            }
        )*
    };
}

builders! {
    wr_send() => Operation::Send;
    wr_send_imm(immediate: u32) => Operation::SendWithImmediate(u32::from_be(immediate));
    wr_send_inv(key: u32) => Operation::SendWithInvalidate(Rkey(key));
    wr_rdma_write(rkey: u32, remote_addr: u64) => Operation::Write { remote_addr, rkey: Rkey(rkey) };
    wr_rdma_write_imm(rkey: u32, remote_addr: u64, immediate: u32) =>
        Operation::WriteWithImmediate { remote_addr, rkey: Rkey(rkey), immediate: u32::from_be(immediate) };
    wr_rdma_read(rkey: u32, remote_addr: u64) => Operation::Read { remote_addr, rkey: Rkey(rkey) };
    wr_atomic_cmp_swp(rkey: u32, remote_addr: u64, compare: u64, swap: u64) =>
        Operation::CompareAndSwap { remote_addr, rkey: Rkey(rkey), compare, swap };
    wr_atomic_fetch_add(rkey: u32, remote_addr: u64, add: u64) =>
        Operation::FetchAndAdd { remote_addr, rkey: Rkey(rkey), add };
    wr_local_inv(key: u32) => Operation::LocalInvalidate(Rkey(key));
}

unsafe extern "C" fn wr_atomic_write(qp: *mut abi::QpEx, rkey: u32, remote_addr: u64, value: *const c_void) {
    // SAFETY: the program calls builders between start and end, and gives eight bytes.
    unsafe {
        begin(qp, Operation::AtomicWrite { remote_addr, rkey: Rkey(rkey) });
        if let Some((_, state)) = parts(qp) {
            state.set_inline(std::iter::once(slice::from_raw_parts(value.cast(), 8)));
        }
    }
}

unsafe extern "C" fn wr_flush(qp: *mut abi::QpEx, rkey: u32, remote_addr: u64, length: usize, kind: u8, level: u8) {
    // `kind` is a mask of placements; `level` 0 is a range, 1 the whole region.
    let mut flags = FlushFlags::from_bits_truncate(kind);
    flags.set(FlushFlags::WHOLE_REGION, level == 1);
    // SAFETY: the program calls builders between start and end.
    unsafe {
        match u32::try_from(length) {
            Ok(length) if level <= 1 => begin(qp, Operation::Flush { remote_addr, rkey: Rkey(rkey), length, flags }),
            _ => refuse(qp, INVALID),
        }
    }
}

unsafe extern "C" fn wr_bind_mw(qp: *mut abi::QpEx, mw: *mut abi::Mw, rkey: u32, info: *const abi::MwBindInfo) {
    // SAFETY: the program calls builders between start and end, with its window and structure.
    unsafe {
        match bind_operation_of_type_2(mw, rkey, &*info) {
            Ok(operation) => begin(qp, operation),
            Err(error) => refuse(qp, error),
        }
    }
}

/// Refuses the batch: segmentation offload is for raw packets.
unsafe extern "C" fn wr_send_tso(qp: *mut abi::QpEx, _header: *mut c_void, _header_bytes: u16, _segment: u16) {
    // SAFETY: the program calls builders between start and end.
    unsafe { refuse(qp, UNSUPPORTED) };
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut abi::QpEx, ah: *mut abi::Ah, qpn: u32, qkey: u32) {
    // SAFETY: the program calls setters between start and end.
    if let Some(pending) = unsafe { parts(qp) }.and_then(|(_, state)| state.pending()) {
        pending.target = Target::Datagram { ah, qpn, qkey };
    }
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut abi::QpEx, queue: u32) {
    // SAFETY: the program calls setters between start and end.
    if let Some(pending) = unsafe { parts(qp) }.and_then(|(_, state)| state.pending()) {
        pending.target = Target::SharedReceiveQueue(queue);
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut abi::QpEx, lkey: u32, addr: u64, length: u32) {
    // SAFETY: the program calls setters between start and end.
    let Some((_, state)) = (unsafe { parts(qp) }) else { return };
    match state.sges.first_mut() {
        Some(sge) => {
            *sge = Sge { addr, length, lkey: Lkey(lkey) };
            state.set_payload(Payload::Sges(1));
        }
        None => state.fail(INVALID),
    }
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut abi::QpEx, count: usize, list: *const abi::Sge) {
    // SAFETY: the program calls setters between start and end.
    let Some((_, state)) = (unsafe { parts(qp) }) else { return };
    match state.sges.get_mut(..count) {
        Some([]) => state.set_payload(Payload::Sges(0)),
        Some(sges) => {
            // SAFETY: the program's list of `count` entries.
            sges.copy_from_slice(unsafe { slice::from_raw_parts(list, count) });
            state.set_payload(Payload::Sges(count));
        }
        None => state.fail(INVALID),
    }
}

/// Returns the bytes of a segment.
///
/// # Safety
/// The bytes are the program's.
unsafe fn bytes<'a>(addr: *const c_void, length: usize) -> &'a [u8] {
    if length == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts(addr.cast(), length) }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut abi::QpEx, addr: *const c_void, length: usize) {
    // SAFETY: the program calls setters between start and end, with its bytes.
    unsafe {
        if let Some((_, state)) = parts(qp) {
            state.set_inline(std::iter::once(bytes(addr, length)));
        }
    }
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut abi::QpEx, count: usize, list: *const abi::DataBuf) {
    // SAFETY: the program calls setters between start and end, with its list of `count` segments, and their bytes.
    unsafe {
        if let Some((_, state)) = parts(qp) {
            state.set_inline((0..count).map(|index| bytes((*list.add(index)).addr, (*list.add(index)).length)));
        }
    }
}

/// Sets the builders and setters. All are present, whichever operations were requested.
pub(crate) fn set_builders(shell: &mut QueuePairShell) {
    let table = &mut shell.base;
    table.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    table.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    table.wr_bind_mw = Some(wr_bind_mw);
    table.wr_local_inv = Some(wr_local_inv);
    table.wr_rdma_read = Some(wr_rdma_read);
    table.wr_rdma_write = Some(wr_rdma_write);
    table.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    table.wr_send = Some(wr_send);
    table.wr_send_imm = Some(wr_send_imm);
    table.wr_send_inv = Some(wr_send_inv);
    table.wr_send_tso = Some(wr_send_tso);
    table.wr_set_ud_addr = Some(wr_set_ud_addr);
    table.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    table.wr_set_inline_data = Some(wr_set_inline_data);
    table.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    table.wr_set_sge = Some(wr_set_sge);
    table.wr_set_sge_list = Some(wr_set_sge_list);
    table.wr_start = Some(wr_start);
    table.wr_complete = Some(wr_complete);
    table.wr_abort = Some(wr_abort);
    table.wr_atomic_write = Some(wr_atomic_write);
    shell.wr_flush = Some(wr_flush);
}
