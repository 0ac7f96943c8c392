//! The library's functions, except posting.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::ptr;

use super::posting;
use super::{FakeContext, LISTED, Pending, make, of, refuse, take_signal, unmake};
use crate::provider::ibverbs::sys::abi::{self, *};
use crate::provider::ibverbs::sys::library::Library;

pub(super) const LIBRARY: Library = Library {
    fork_init,
    get_device_list,
    free_device_list,
    open_device,
    close_device,
    query_device,
    query_port: query_port_compat,
    query_gid_ex,
    query_pkey,
    get_async_event,
    ack_async_event,
    alloc_pd,
    dealloc_pd,
    reg_mr_iova2,
    reg_dmabuf_mr,
    dereg_mr,
    create_comp_channel,
    destroy_comp_channel,
    create_cq,
    resize_cq,
    destroy_cq,
    get_cq_event,
    ack_cq_events,
    create_srq,
    modify_srq,
    query_srq,
    destroy_srq,
    create_qp: posting::create_qp,
    query_qp: posting::query_qp,
    modify_qp: posting::modify_qp,
    destroy_qp: posting::destroy_qp,
    create_ah,
    destroy_ah,
    attach_mcast: posting::attach_mcast,
    detach_mcast: posting::detach_mcast,
    qp_to_qp_ex: posting::qp_to_qp_ex,
    _file: None,
};

/// Functions of the library. They are sound if their callers follow the C headers.
macro_rules! calls {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block)*) => {
        $(
            $(#[$doc])*
            pub(super) unsafe extern "C" fn $name($($argument: $type),*) $(-> $result)? {
                // SAFETY: the caller follows the C headers: pointers are live and this library's.
                unsafe { $body }
            }
        )*
    };
}
pub(super) use calls;

/// Ends a function that returns a number if it is to fail.
macro_rules! errno_if_failing {
    ($fake:expr, $verb:literal, $($detail:tt)*) => {
        match $fake.called($verb, format_args!($($detail)*)) {
            0 => {}
            errno => return errno,
        }
    };
}
pub(super) use errno_if_failing;

/// Ends a function that returns a pointer if it is to fail.
macro_rules! null_if_failing {
    ($fake:expr, $verb:literal, $($detail:tt)*) => {
        match $fake.called($verb, format_args!($($detail)*)) {
            0 => {}
            errno => return refuse(errno),
        }
    };
}
pub(super) use null_if_failing;

unsafe extern "C" fn fork_init() -> c_int {
    0
}

calls! {
    fn get_device_list(count: *mut c_int) -> *mut *mut Device {
        *count = 1;
        Box::into_raw(Box::new([LISTED.get().cast::<Device>(), ptr::null_mut()])).cast()
    }

    fn free_device_list(list: *mut *mut Device) {
        unmake(list.cast::<[*mut Device; 2]>());
    }

    fn open_device(device: *mut Device) -> *mut Context {
        let fake = (*device.cast::<super::FakeDevice>()).fake;
        null_if_failing!(fake, "open_device", "");
        fake.count("context", 1);
        let context = make(|context: &mut FakeContext| {
            context.newer = [usize::MAX; super::NEWER_SLOTS];
            fill_table(&mut context.table);
            context.table.sz = fake.machine.sz.unwrap_or(usize::MAX);
            let inner = &mut context.table.context;
            (inner.device, inner.num_comp_vectors) = (device, 2);
            (inner.cmd_fd, inner.async_fd) = (-1, fake.async_fd);
            inner.abi_compat = ptr::without_provenance_mut(if fake.machine.sz.is_some() { usize::MAX } else { 0 });
            posting::fill_ops(&mut inner.ops);
        });
        context.cast::<u8>().add(BEFORE_CONTEXT).cast()
    }

    fn close_device(context: *mut Context) -> c_int {
        let fake = of(context);
        errno_if_failing!(fake, "close_device", "");
        fake.count("context", -1);
        unmake(context.cast::<u8>().sub(BEFORE_CONTEXT).cast::<FakeContext>());
        0
    }

    fn query_device(context: *mut Context, to: *mut DeviceAttr) -> c_int {
        errno_if_failing!(of(context), "query_device", "");
        *to = of(context).machine.attributes.orig_attr;
        0
    }

    fn query_device_ex(context: *mut Context, input: *const u32, to: *mut DeviceAttrEx, size: usize) -> c_int {
        errno_if_failing!(of(context), "query_device_ex", "");
        assert!(input.is_null() && size == size_of::<DeviceAttrEx>());
        *to = of(context).machine.attributes;
        0
    }

    /// Writes the first 48 bytes only.
    fn query_port_compat(context: *mut Context, port: u8, to: *mut PortAttr) -> c_int {
        errno_if_failing!(of(context), "query_port", "{port} compat");
        ptr::copy_nonoverlapping((&raw const of(context).machine.port).cast::<u8>(), to.cast::<u8>(), 48);
        0
    }

    fn query_port(context: *mut Context, port: u8, to: *mut PortAttr, size: usize) -> c_int {
        errno_if_failing!(of(context), "query_port", "{port}");
        let size = size.min(size_of::<PortAttrWithSpeed>());
        ptr::copy_nonoverlapping((&raw const of(context).machine.port).cast::<u8>(), to.cast::<u8>(), size);
        0
    }

    fn query_gid_ex(
        context: *mut Context, port: u32, index: u32, to: *mut GidEntry, flags: u32, size: usize,
    ) -> c_int {
        errno_if_failing!(of(context), "query_gid_ex", "{port} {index}");
        assert!(flags == 0 && size == size_of::<GidEntry>());
        let Some(entry) = of(context).machine.gids.iter().find(|entry| entry.gid_index == index) else {
            return libc::ENODATA;
        };
        *to = *entry;
        0
    }

    fn query_pkey(context: *mut Context, port: u8, index: c_int, key: *mut u16) -> c_int {
        if of(context).called("query_pkey", format_args!("{port} {index}")) != 0 {
            return -1;
        }
        *key = 0xffffu16.to_be();
        0
    }

    fn get_async_event(context: *mut Context, event: *mut AsyncEvent) -> c_int {
        let fake = of(context);
        if !take_signal(fake.async_fd) {
            return -1;
        }
        let mut state = fake.state();
        // Events of destroyed objects were dropped.
        let Some(Pending { event_type, element }) = state.events.pop_front() else { return -1 };
        (*event).event_type = event_type;
        match event_type {
            0..=7 | 14..=16 => {
                *state.taken.entry(element).or_default() += 1;
                (*event).element.cq = ptr::with_exposed_provenance_mut(element);
            }
            _ => (*event).element.port_num = element as c_int,
        }
        0
    }

    fn ack_async_event(event: *mut AsyncEvent) {
        let element = (*event).element.cq;
        let context = match (*event).event_type {
            0 => (*element).context,
            1..=7 | 16 => (*element.cast::<Qp>()).context,
            14 | 15 => (*element.cast::<Srq>()).context,
            _ => return,
        };
        of(context).acknowledge(element.addr(), 1);
    }

    fn alloc_pd(context: *mut Context) -> *mut Pd {
        null_if_failing!(of(context), "alloc_pd", "");
        of(context).count("pd", 1);
        make(|pd: &mut Pd| pd.context = context)
    }

    fn dealloc_pd(pd: *mut Pd) -> c_int {
        let fake = of((*pd).context);
        errno_if_failing!(fake, "dealloc_pd", "");
        fake.count("pd", -1);
        unmake(pd);
        0
    }

    fn reg_mr_iova2(pd: *mut Pd, addr: *mut c_void, length: usize, iova: u64, access: u32) -> *mut Mr {
        let fake = of((*pd).context);
        let place = if addr.is_null() { "null" } else { "memory" };
        null_if_failing!(fake, "reg_mr", "{place} length {length} iova {iova:#x} access {access:#x}");
        new_mr(pd)
    }

    fn reg_dmabuf_mr(pd: *mut Pd, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int) -> *mut Mr {
        let fake = of((*pd).context);
        assert!(fd >= 0);
        null_if_failing!(fake, "reg_dmabuf_mr", "offset {offset} length {length} iova {iova:#x} access {access:#x}");
        new_mr(pd)
    }

    fn reg_dm_mr(pd: *mut Pd, dm: *mut Dm, offset: u64, length: usize, access: u32) -> *mut Mr {
        let fake = of((*dm).context);
        null_if_failing!(fake, "reg_dm_mr", "offset {offset} length {length} access {access:#x}");
        new_mr(pd)
    }

    fn new_mr(pd: *mut Pd) -> *mut Mr {
        let fake = of((*pd).context);
        fake.count("mr", 1);
        let key = 0x100 * fake.next();
        make(|mr: &mut Mr| (mr.context, mr.pd, mr.lkey, mr.rkey) = ((*pd).context, pd, key, key))
    }

    fn dereg_mr(mr: *mut Mr) -> c_int {
        let fake = of((*mr).context);
        errno_if_failing!(fake, "dereg_mr", "");
        fake.count("mr", -1);
        unmake(mr);
        0
    }

    fn advise_mr(pd: *mut Pd, advice: u32, flags: u32, ranges: *mut Sge, count: u32) -> c_int {
        let first = (*ranges).length;
        errno_if_failing!(of((*pd).context), "advise_mr", "{advice} flags {flags} ranges {count}, first {first}");
        0
    }

    fn alloc_dm(context: *mut Context, attributes: *mut AllocDmAttr) -> *mut Dm {
        let fake = of(context);
        let AllocDmAttr { length, log_align_req, comp_mask } = attributes.read();
        null_if_failing!(fake, "alloc_dm", "{length} aligned {log_align_req} mask {comp_mask}");
        fake.count("dm", 1);
        // The bytes of the previous owner.
        fake.state().bytes = vec![0xee; length];
        make(|dm: &mut Dm| {
            dm.context = context;
            dm.memcpy_to_dm = Some(memcpy_to_dm);
            dm.memcpy_from_dm = Some(memcpy_from_dm);
        })
    }

    fn free_dm(dm: *mut Dm) -> c_int {
        let fake = of((*dm).context);
        errno_if_failing!(fake, "free_dm", "");
        fake.count("dm", -1);
        unmake(dm);
        0
    }

    fn memcpy_to_dm(dm: *mut Dm, offset: u64, from: *const c_void, length: usize) -> c_int {
        if !(offset.is_multiple_of(4) && length.is_multiple_of(4) && from.addr().is_multiple_of(4)) {
            return libc::EFAULT;
        }
        let from = std::slice::from_raw_parts(from.cast::<u8>(), length);
        of((*dm).context).state().bytes[offset as usize..][..length].copy_from_slice(from);
        0
    }

    fn memcpy_from_dm(to: *mut c_void, dm: *mut Dm, offset: u64, length: usize) -> c_int {
        let to = std::slice::from_raw_parts_mut(to.cast::<u8>(), length);
        to.copy_from_slice(&of((*dm).context).state().bytes[offset as usize..][..length]);
        0
    }

    fn create_comp_channel(context: *mut Context) -> *mut CompChannel {
        let fake = of(context);
        null_if_failing!(fake, "create_comp_channel", "");
        fake.count("channel", 1);
        make(|channel: &mut CompChannel| (channel.context, channel.fd) = (context, fake.channel_fd))
    }

    fn destroy_comp_channel(channel: *mut CompChannel) -> c_int {
        let fake = of((*channel).context);
        errno_if_failing!(fake, "destroy_comp_channel", "");
        fake.count("channel", -1);
        unmake(channel);
        0
    }

    fn new_cq(context: *mut Context, cqe: c_int, cq_context: *mut c_void, channel: *mut CompChannel) -> *mut CqEx {
        let fake = of(context);
        fake.count("cq", 1);
        let cq = make(|cq: &mut CqEx| {
            let base = &mut cq.base;
            (base.context, base.channel, base.cq_context, base.cqe) = (context, channel, cq_context, cqe);
        });
        fake.state().queues.push((cq.expose_provenance(), Default::default()));
        cq
    }

    fn create_cq(
        context: *mut Context, cqe: c_int, cq_context: *mut c_void, channel: *mut CompChannel, vector: c_int,
    ) -> *mut Cq {
        null_if_failing!(of(context), "create_cq", "{cqe} vector {vector}");
        new_cq(context, cqe, cq_context, channel).cast()
    }

    fn create_cq_ex(context: *mut Context, init: *mut CqInitAttrEx) -> *mut CqEx {
        let CqInitAttrEx { cqe, cq_context, channel, wc_flags, comp_mask, .. } = init.read();
        null_if_failing!(of(context), "create_cq_ex", "{cqe} flags {wc_flags:#x} mask {comp_mask}");
        let cq = new_cq(context, cqe as c_int, cq_context, channel);
        posting::fill_readers(&mut *cq);
        cq
    }

    fn resize_cq(cq: *mut Cq, cqe: c_int) -> c_int {
        errno_if_failing!(of((*cq).context), "resize_cq", "{cqe}");
        (*cq).cqe = cqe;
        0
    }

    fn modify_cq(cq: *mut Cq, attributes: *mut ModifyCqAttr) -> c_int {
        let ModifyCqAttr { attr_mask, cq_count, cq_period } = attributes.read();
        errno_if_failing!(of((*cq).context), "modify_cq", "mask {attr_mask} count {cq_count} period {cq_period}");
        0
    }

    fn destroy_cq(cq: *mut Cq) -> c_int {
        let fake = of((*cq).context);
        errno_if_failing!(fake, "destroy_cq", "");
        fake.drain_events(cq.addr());
        fake.count("cq", -1);
        unmake(cq.cast::<CqEx>());
        0
    }

    fn get_cq_event(channel: *mut CompChannel, cq: *mut *mut Cq, cq_context: *mut *mut c_void) -> c_int {
        let fake = of((*channel).context);
        if !take_signal((*channel).fd) {
            return -1;
        }
        let mut state = fake.state();
        let Some(address) = state.channel_events.pop_front() else { return -1 };
        *state.taken.entry(address).or_default() += 1;
        *cq = ptr::with_exposed_provenance_mut(address);
        *cq_context = (**cq).cq_context;
        0
    }

    fn ack_cq_events(cq: *mut Cq, count: u32) {
        of((*cq).context).acknowledge(cq.addr(), count);
    }

    fn new_srq(context: *mut Context, srq_context: *mut c_void, pd: *mut Pd) -> *mut Srq {
        let fake = of(context);
        fake.count("srq", 1);
        let handle = fake.next();
        let srq = make(|srq: &mut Srq| {
            (srq.context, srq.srq_context, srq.pd, srq.handle) = (context, srq_context, pd, handle);
        });
        fake.state().shared.push(srq.expose_provenance());
        srq
    }

    fn create_srq(pd: *mut Pd, init: *mut SrqInitAttr) -> *mut Srq {
        null_if_failing!(of((*pd).context), "create_srq", "{}", (*init).attr.max_wr);
        new_srq((*pd).context, (*init).srq_context, pd)
    }

    fn create_srq_ex(context: *mut Context, init: *mut SrqInitAttrEx) -> *mut Srq {
        let SrqInitAttrEx { srq_context, comp_mask, srq_type, pd, xrcd, cq, .. } = init.read();
        null_if_failing!(of(context), "create_srq_ex", "mask {comp_mask} type {srq_type}");
        assert!(!xrcd.is_null() && !cq.is_null());
        new_srq(context, srq_context, pd)
    }

    fn get_srq_num(srq: *mut Srq, number: *mut u32) -> c_int {
        errno_if_failing!(of((*srq).context), "get_srq_num", "");
        *number = (*srq).handle;
        0
    }

    fn modify_srq(srq: *mut Srq, attributes: *mut SrqAttr, mask: c_int) -> c_int {
        let SrqAttr { max_wr, srq_limit, .. } = attributes.read();
        errno_if_failing!(of((*srq).context), "modify_srq", "mask {mask} max_wr {max_wr} limit {srq_limit}");
        0
    }

    fn query_srq(srq: *mut Srq, attributes: *mut SrqAttr) -> c_int {
        errno_if_failing!(of((*srq).context), "query_srq", "");
        *attributes = SrqAttr { max_wr: 16, max_sge: 1, srq_limit: 0 };
        0
    }

    fn destroy_srq(srq: *mut Srq) -> c_int {
        let fake = of((*srq).context);
        errno_if_failing!(fake, "destroy_srq", "");
        fake.drain_events(srq.addr());
        fake.count("srq", -1);
        unmake(srq);
        0
    }

    fn open_xrcd(context: *mut Context, attributes: *mut XrcdInitAttr) -> *mut Xrcd {
        let XrcdInitAttr { comp_mask, fd, oflags } = attributes.read();
        null_if_failing!(of(context), "open_xrcd", "mask {comp_mask} fd {fd} flags {oflags:#x}");
        of(context).count("xrcd", 1);
        make(|domain: &mut Xrcd| domain.context = context)
    }

    fn close_xrcd(domain: *mut Xrcd) -> c_int {
        let fake = of((*domain).context);
        errno_if_failing!(fake, "close_xrcd", "");
        fake.count("xrcd", -1);
        unmake(domain);
        0
    }

    fn query_rt_values(context: *mut Context, values: *mut ValuesEx) -> c_int {
        errno_if_failing!(of(context), "query_rt_values", "mask {}", (*values).comp_mask);
        (*values).raw_clock = libc::timespec { tv_sec: 0, tv_nsec: 5_000 };
        0
    }

    fn create_ah(pd: *mut Pd, attributes: *mut AhAttr) -> *mut Ah {
        let AhAttr { dlid, sl, is_global, sgid_index, port_num, .. } = attributes.read();
        let fake = of((*pd).context);
        null_if_failing!(fake, "create_ah", "dlid {dlid} sl {sl} global {is_global} sgid {sgid_index} port {port_num}");
        fake.count("ah", 1);
        make(|ah: &mut Ah| (ah.context, ah.pd) = ((*pd).context, pd))
    }

    fn destroy_ah(ah: *mut Ah) -> c_int {
        let fake = of((*ah).context);
        errno_if_failing!(fake, "destroy_ah", "");
        fake.count("ah", -1);
        unmake(ah);
        0
    }
}

const BEFORE_CONTEXT: usize = offset_of!(FakeContext, table) + offset_of!(VerbsContext, context);

/// Fills all slots, whatever size the table reports, so that the call of a slot beyond that size appears in the log.
fn fill_table(table: &mut abi::VerbsContext) {
    table.query_port = Some(query_port);
    table.advise_mr = Some(advise_mr);
    table.reg_dm_mr = Some(reg_dm_mr);
    table.alloc_dm = Some(alloc_dm);
    table.free_dm = Some(free_dm);
    table.modify_cq = Some(modify_cq);
    table.query_rt_values = Some(query_rt_values);
    table.create_cq_ex = Some(create_cq_ex);
    table.query_device_ex = Some(query_device_ex);
    table.create_qp_ex = Some(posting::create_qp_ex);
    table.modify_qp_rate_limit = Some(posting::modify_qp_rate_limit);
    table.get_srq_num = Some(get_srq_num);
    table.create_srq_ex = Some(create_srq_ex);
    table.open_xrcd = Some(open_xrcd);
    table.close_xrcd = Some(close_xrcd);
}
