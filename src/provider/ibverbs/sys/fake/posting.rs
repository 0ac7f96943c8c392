//! Queue pairs, and functions that are inline in the C headers: posting and polling.

use std::ffi::{c_int, c_void};
use std::ptr;

use super::objects::{calls, errno_if_failing, null_if_failing};
use super::{make, of, refuse, unmake};
use crate::provider::ibverbs::sys::abi::*;
use crate::types::Sge;

pub(super) fn fill_ops(ops: &mut ContextOps) {
    ops.alloc_mw = Some(alloc_mw);
    ops.bind_mw = Some(bind_mw);
    ops.dealloc_mw = Some(dealloc_mw);
    ops.poll_cq = Some(poll_cq);
    ops.req_notify_cq = Some(req_notify_cq);
    ops.post_send = Some(post_send);
    ops.post_recv = Some(post_recv);
    ops.post_srq_recv = Some(post_srq_recv);
}

pub(super) fn fill_readers(cq: &mut CqEx) {
    cq.start_poll = Some(start_poll);
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_vendor_err);
    cq.read_byte_len = Some(read_byte_len);
    cq.read_imm_data = Some(read_imm_data);
    cq.read_qp_num = Some(read_qp_num);
    cq.read_src_qp = Some(read_src_qp);
    cq.read_wc_flags = Some(read_wc_flags);
    cq.read_slid = Some(read_slid);
    cq.read_sl = Some(read_sl);
    cq.read_completion_ts = Some(read_completion_ts);
}

fn fill_builders(qp: &mut QpExWithFlush, send_ops: u64) {
    let has = |bit: u64| send_ops & bit != 0;
    let base = &mut qp.base;
    base.comp_mask = 1;
    base.wr_send = has(create::WITH_SEND).then_some(wr_send as _);
    base.wr_send_imm = has(create::WITH_SEND_WITH_IMM).then_some(wr_send_imm as _);
    base.wr_send_inv = has(create::WITH_SEND_WITH_INV).then_some(wr_send_inv as _);
    base.wr_rdma_write = has(create::WITH_RDMA_WRITE).then_some(wr_rdma_write as _);
    base.wr_rdma_write_imm = has(create::WITH_RDMA_WRITE_WITH_IMM).then_some(wr_rdma_write_imm as _);
    base.wr_rdma_read = has(create::WITH_RDMA_READ).then_some(wr_rdma_read as _);
    base.wr_atomic_cmp_swp = has(create::WITH_ATOMIC_CMP_AND_SWP).then_some(wr_atomic_cmp_swp as _);
    base.wr_atomic_fetch_add = has(create::WITH_ATOMIC_FETCH_AND_ADD).then_some(wr_atomic_fetch_add as _);
    base.wr_local_inv = has(create::WITH_LOCAL_INV).then_some(wr_local_inv as _);
    base.wr_bind_mw = has(create::WITH_BIND_MW).then_some(wr_bind_mw as _);
    base.wr_atomic_write = has(create::WITH_ATOMIC_WRITE).then_some(wr_atomic_write as _);
    base.wr_set_ud_addr = Some(wr_set_ud_addr);
    base.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    base.wr_set_inline_data = Some(wr_set_inline_data);
    base.wr_set_sge_list = Some(wr_set_sge_list);
    base.wr_start = Some(wr_start);
    base.wr_complete = Some(wr_complete);
    base.wr_abort = Some(wr_abort);
    qp.wr_flush = has(create::WITH_FLUSH).then_some(wr_flush as _);
}

/// Returns the lengths of entries.
unsafe fn lengths(first: *const Sge, count: usize) -> Vec<u32> {
    // SAFETY: the caller has `count` entries.
    (0..count).map(|index| unsafe { (*first.add(index)).length }).collect()
}

calls! {
    fn new_qp(pd: *mut Pd, context: *mut Context, qp_type: u32, cap: *mut QpCap, send_ops: u64) -> *mut Qp {
        let fake = of(context);
        fake.count("qp", 1);
        if let Some(claimed) = fake.machine.cap {
            *cap = claimed;
        }
        let number = 0x40 + fake.next();
        let qp = make(|qp: &mut QpExWithFlush| {
            let base = &mut qp.base.qp_base;
            (base.context, base.pd, base.qp_num, base.qp_type) = (context, pd, number, qp_type);
            if send_ops != 0 {
                fill_builders(qp, send_ops);
            }
        });
        fake.state().queue_pairs.push(qp.expose_provenance());
        qp.cast()
    }

    fn create_qp(pd: *mut Pd, init: *mut QpInitAttr) -> *mut Qp {
        let QpInitAttr { cap, qp_type, srq, .. } = init.read();
        let inline = cap.max_inline_data;
        null_if_failing!(of((*pd).context), "create_qp", "type {qp_type} inline {inline} srq {}", !srq.is_null());
        new_qp(pd, (*pd).context, qp_type, &raw mut (*init).cap, 0)
    }

    fn create_qp_ex(context: *mut Context, init: *mut QpInitAttrEx) -> *mut Qp {
        let QpInitAttrEx { qp_type, comp_mask, send_ops_flags, pd, .. } = init.read();
        let fake = of(context);
        null_if_failing!(fake, "create_qp_ex", "type {qp_type} mask {comp_mask:#x} ops {send_ops_flags:#x}");
        if comp_mask & create::SEND_OPS_FLAGS != 0 && send_ops_flags & !fake.machine.send_ops != 0 {
            return refuse(libc::EOPNOTSUPP);
        }
        let send_ops = if fake.machine.ignores_send_ops { 0 } else { send_ops_flags };
        new_qp(pd, context, qp_type, &raw mut (*init).cap, send_ops)
    }

    fn qp_to_qp_ex(qp: *mut Qp) -> *mut QpEx {
        let extended = qp.cast::<QpEx>();
        if (*extended).comp_mask == 0 { ptr::null_mut() } else { extended }
    }

    fn query_qp(qp: *mut Qp, attributes: *mut QpAttr, _mask: c_int, _init: *mut QpInitAttr) -> c_int {
        errno_if_failing!(of((*qp).context), "query_qp", "");
        *attributes = QpAttr { qp_state: (*qp).state, ..QpAttr::default() };
        0
    }

    fn modify_qp(qp: *mut Qp, attributes: *mut QpAttr, mask: c_int) -> c_int {
        let QpAttr { qp_state, ah_attr, .. } = attributes.read();
        let AhAttr { dlid, is_global, .. } = ah_attr;
        let fake = of((*qp).context);
        errno_if_failing!(fake, "modify_qp", "state {qp_state} mask {mask:#x} dlid {dlid} global {is_global}");
        if mask & 1 != 0 {
            (*qp).state = qp_state;
        }
        0
    }

    fn modify_qp_rate_limit(qp: *mut Qp, attributes: *mut QpRateLimitAttr) -> c_int {
        let QpRateLimitAttr { rate_limit, max_burst_sz, typical_pkt_sz, comp_mask } = attributes.read();
        let limit = format!("{rate_limit} kbit/s {max_burst_sz} at once of {typical_pkt_sz} mask {comp_mask}");
        errno_if_failing!(of((*qp).context), "modify_qp_rate_limit", "{limit}");
        0
    }

    fn destroy_qp(qp: *mut Qp) -> c_int {
        let fake = of((*qp).context);
        errno_if_failing!(fake, "destroy_qp", "in state {}", (*qp).state);
        for known in &mut fake.state().queue_pairs {
            if *known == qp.addr() {
                *known = 0;
            }
        }
        fake.drain_events(qp.addr());
        fake.count("qp", -1);
        unmake(qp.cast::<QpExWithFlush>());
        0
    }

    fn attach_mcast(qp: *mut Qp, _gid: *const Gid, lid: u16) -> c_int {
        errno_if_failing!(of((*qp).context), "attach_mcast", "lid {lid}");
        0
    }

    fn detach_mcast(qp: *mut Qp, _gid: *const Gid, lid: u16) -> c_int {
        errno_if_failing!(of((*qp).context), "detach_mcast", "lid {lid}");
        0
    }

    fn alloc_mw(pd: *mut Pd, kind: u32) -> *mut Mw {
        let fake = of((*pd).context);
        null_if_failing!(fake, "alloc_mw", "{kind}");
        fake.count("mw", 1);
        let rkey = 0x1_0000 + 0x100 * fake.next();
        make(|mw: &mut Mw| (mw.context, mw.pd, mw.rkey, mw.kind) = ((*pd).context, pd, rkey, kind))
    }

    fn bind_mw(qp: *mut Qp, mw: *mut Mw, bind: *mut MwBind) -> c_int {
        let MwBind { wr_id, send_flags, bind_info } = bind.read();
        let MwBindInfo { mr, length, mw_access_flags, .. } = bind_info;
        assert!(!mr.is_null());
        let fake = of((*qp).context);
        errno_if_failing!(fake, "bind_mw", "length {length} access {mw_access_flags:#x} flags {send_flags}");
        (*mw).rkey = (*mw).rkey & !0xff | (*mw).rkey.wrapping_add(1) & 0xff;
        fake.state().sent.push(wr_id);
        0
    }

    fn dealloc_mw(mw: *mut Mw) -> c_int {
        let fake = of((*mw).context);
        errno_if_failing!(fake, "dealloc_mw", "");
        fake.count("mw", -1);
        unmake(mw);
        0
    }

    fn post_send(qp: *mut Qp, list: *mut SendWr, bad: *mut *mut SendWr) -> c_int {
        let fake = of((*qp).context);
        let errno = fake.called("post_send", "");
        if (*qp).state == 0 {
            fake.state().log.push("posted in RESET".into());
        }
        let fails_at = fake.state().bad;
        let (mut entry, mut index) = (list, 0);
        while !entry.is_null() {
            if errno != 0 && fails_at == Some(index) {
                *bad = entry;
                return errno;
            }
            let SendWr { wr_id, opcode, send_flags, imm_data, num_sge, .. } = entry.read();
            let lengths = lengths((*entry).sg_list, num_sge as usize);
            let text = format!("  opcode {opcode} flags {send_flags} imm {:#x} {lengths:?}", u32::from_be(imm_data));
            let mut state = fake.state();
            state.log.push(text);
            state.sent.push(wr_id);
            (entry, index) = ((*entry).next, index + 1);
        }
        if fake.state().slow {
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
        errno
    }

    fn post_recv(qp: *mut Qp, list: *mut RecvWr, bad: *mut *mut RecvWr) -> c_int {
        take_receives((*qp).context, list, bad)
    }

    fn post_srq_recv(srq: *mut Srq, list: *mut RecvWr, bad: *mut *mut RecvWr) -> c_int {
        take_receives((*srq).context, list, bad)
    }

    fn take_receives(context: *mut Context, list: *mut RecvWr, bad: *mut *mut RecvWr) -> c_int {
        let fake = of(context);
        let errno = fake.called("post_recv", "");
        let fails_at = fake.state().bad;
        let (mut entry, mut index) = (list, 0);
        while !entry.is_null() {
            if errno != 0 && fails_at == Some(index) {
                *bad = entry;
                return errno;
            }
            fake.state().received.push((*entry).wr_id);
            (entry, index) = ((*entry).next, index + 1);
        }
        errno
    }

    fn req_notify_cq(cq: *mut Cq, solicited_only: c_int) -> c_int {
        errno_if_failing!(of((*cq).context), "req_notify_cq", "{solicited_only}");
        0
    }

    fn poll_cq(cq: *mut Cq, most: c_int, to: *mut Wc) -> c_int {
        let fake = of((*cq).context);
        let mut state = fake.state();
        if state.failure("poll_cq") != 0 {
            return -2;
        }
        let queue = state.queues.iter_mut().find(|(address, _)| *address == cq.addr()).expect("a queue");
        let count = queue.1.len().min(most as usize);
        for (index, (wc, _)) in queue.1.drain(..count).enumerate() {
            *to.add(index) = wc;
        }
        count as c_int
    }

    fn start_poll(cq: *mut CqEx, _attributes: *mut u32) -> c_int {
        assert!(of((*cq).base.context).state().current.is_none(), "two are polling");
        next_poll(cq)
    }

    fn next_poll(cq: *mut CqEx) -> c_int {
        let mut state = of((*cq).base.context).state();
        let queue = state.queues.iter_mut().find(|(address, _)| *address == cq.addr()).expect("a queue");
        let Some(next) = queue.1.pop_front() else { return libc::ENOENT };
        ((*cq).wr_id, (*cq).status) = (next.0.wr_id, next.0.status);
        state.current = Some(next);
        0
    }

    fn end_poll(cq: *mut CqEx) {
        of((*cq).base.context).state().current.take().expect("polling was started");
    }

    fn wr_start(qp: *mut QpEx) {
        let mut state = of((*qp).qp_base.context).state();
        assert!(state.building.replace(Vec::new()).is_none(), "two are posting");
        state.log.push("wr_start".into());
    }

    fn wr_complete(qp: *mut QpEx) -> c_int {
        let fake = of((*qp).qp_base.context);
        let errno = fake.called("wr_complete", "");
        let mut state = fake.state();
        let built = state.building.take().expect("posting was started");
        if errno == 0 {
            state.sent.extend(built);
        }
        errno
    }

    fn wr_abort(qp: *mut QpEx) {
        let mut state = of((*qp).qp_base.context).state();
        state.building.take().expect("posting was started");
        state.log.push("wr_abort".into());
    }

    fn built(qp: *mut QpEx, verb: *const String) {
        let mut state = of((*qp).qp_base.context).state();
        let text = format!("{} flags {}", *verb, (*qp).wr_flags);
        state.log.push(text);
        state.building.as_mut().expect("posting was started").push((*qp).wr_id);
    }

    fn set(qp: *mut QpEx, what: *const String) {
        of((*qp).qp_base.context).state().log.push((*what).clone());
    }

    fn wr_send(qp: *mut QpEx) { built(qp, &"wr_send".into()) }

    fn wr_send_imm(qp: *mut QpEx, data: u32) { built(qp, &format!("wr_send_imm {:#x}", u32::from_be(data))) }

    fn wr_send_inv(qp: *mut QpEx, rkey: u32) { built(qp, &format!("wr_send_inv {rkey:#x}")) }

    fn wr_rdma_write(qp: *mut QpEx, rkey: u32, addr: u64) { built(qp, &format!("wr_rdma_write {rkey:#x} {addr:#x}")) }

    fn wr_rdma_write_imm(qp: *mut QpEx, rkey: u32, addr: u64, data: u32) {
        built(qp, &format!("wr_rdma_write_imm {rkey:#x} {addr:#x} {:#x}", u32::from_be(data)));
    }

    fn wr_rdma_read(qp: *mut QpEx, rkey: u32, addr: u64) { built(qp, &format!("wr_rdma_read {rkey:#x} {addr:#x}")) }

    fn wr_atomic_cmp_swp(qp: *mut QpEx, rkey: u32, addr: u64, compare: u64, swap: u64) {
        built(qp, &format!("wr_atomic_cmp_swp {rkey:#x} {addr:#x} {compare} {swap}"));
    }

    fn wr_atomic_fetch_add(qp: *mut QpEx, rkey: u32, addr: u64, add: u64) {
        built(qp, &format!("wr_atomic_fetch_add {rkey:#x} {addr:#x} {add}"));
    }

    fn wr_local_inv(qp: *mut QpEx, rkey: u32) { built(qp, &format!("wr_local_inv {rkey:#x}")) }

    fn wr_bind_mw(qp: *mut QpEx, mw: *mut Mw, rkey: u32, bind: *const MwBindInfo) {
        let MwBindInfo { addr, length, mw_access_flags, .. } = bind.read();
        let kind = (*mw).kind;
        built(qp, &format!("wr_bind_mw type {kind} {rkey:#x} {addr:#x} {length} access {mw_access_flags:#x}"));
    }

    fn wr_atomic_write(qp: *mut QpEx, rkey: u32, addr: u64, data: *const c_void) {
        let word = data.cast::<u64>().read_unaligned();
        built(qp, &format!("wr_atomic_write {rkey:#x} {addr:#x} {word}"));
    }

    fn wr_flush(qp: *mut QpEx, rkey: u32, addr: u64, length: usize, kind: u8, level: u8) {
        built(qp, &format!("wr_flush {rkey:#x} {addr:#x} {length} kind {kind} level {level}"));
    }

    fn wr_set_ud_addr(qp: *mut QpEx, ah: *mut Ah, qpn: u32, qkey: u32) {
        assert!(!(*ah).pd.is_null());
        set(qp, &format!("  to {qpn} {qkey:#x}"));
    }

    fn wr_set_xrc_srqn(qp: *mut QpEx, number: u32) { set(qp, &format!("  srq {number}")) }

    fn wr_set_inline_data(qp: *mut QpEx, data: *const c_void, length: usize) {
        let bytes = std::slice::from_raw_parts(data.cast::<u8>(), length);
        set(qp, &format!("  inline {}", String::from_utf8_lossy(bytes)));
    }

    fn wr_set_sge_list(qp: *mut QpEx, count: usize, first: *const Sge) {
        set(qp, &format!("  {:?}", lengths(first, count)));
    }
}

macro_rules! readers {
    ($($name:ident -> $type:ty = $value:expr;)*) => {
        calls! {
            $(fn $name(cq: *mut CqEx) -> $type {
                let value: fn((Wc, u64)) -> $type = $value;
                value(of((*cq).base.context).state().current.expect("polling was started"))
            })*
        }
    };
}

readers! {
    read_opcode -> u32 = |(wc, _)| wc.opcode;
    read_vendor_err -> u32 = |(wc, _)| wc.vendor_err;
    read_byte_len -> u32 = |(wc, _)| wc.byte_len;
    read_imm_data -> u32 = |(wc, _)| wc.imm_data;
    read_qp_num -> u32 = |(wc, _)| wc.qp_num;
    read_src_qp -> u32 = |(wc, _)| wc.src_qp;
    read_wc_flags -> u32 = |(wc, _)| wc.wc_flags;
    read_slid -> u32 = |(wc, _)| wc.slid.into();
    read_sl -> u8 = |(wc, _)| wc.sl;
    read_completion_ts -> u64 = |(_, ticks)| ticks;
}
