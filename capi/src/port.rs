//! Queries of a device and its ports.

use std::ffi::{c_char, c_int};

use rdma_verbs::provider::{ErrorKind, abi};
use rdma_verbs::types::{AtomicCapability, DeviceAttributes, Gid, GidEntry, GidType, PortAttributes};

use crate::error::{Errno, INVALID, Result, UNSUPPORTED, number, set_errno, zero_or_minus_one};
use crate::object::Zeroed;
use crate::shared::{Shared, shared_of};
use crate::version::exported;

/// Bytes of `ibv_port_attr` that the exported function may write: the size of its first version.
const OLD_PORT_BYTES: usize = 48;
/// `IBV_VALUES_MASK_RAW_CLOCK`.
const RAW_CLOCK: u32 = 1;

/// Converts a count; one that does not fit saturates.
fn count(number: u32) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}

fn basic(from: &DeviceAttributes, guid: u64, to: &mut abi::DeviceAttr) {
    for (to, from) in to.fw_ver.iter_mut().zip(from.fw_ver.bytes().take(63)) {
        *to = from as c_char;
    }
    to.node_guid = guid.to_be();
    to.sys_image_guid = guid.to_be();
    to.max_mr_size = from.max_mr_size;
    to.page_size_cap = from.page_size_cap;
    (to.vendor_id, to.vendor_part_id, to.hw_ver) =
        (from.vendor.vendor_id, from.vendor.vendor_part_id, from.vendor.hw_ver);
    to.max_qp = count(from.max_qp);
    to.max_qp_wr = count(from.max_qp_wr);
    to.device_cap_flags = from.device_cap_flags.bits() as u32;
    (to.max_sge, to.max_sge_rd) = (count(from.max_sge), count(from.max_sge_rd));
    (to.max_cq, to.max_cqe) = (count(from.max_cq), count(from.max_cqe));
    (to.max_mr, to.max_mw, to.max_pd) = (count(from.max_mr), count(from.max_mw), count(from.max_pd));
    to.max_qp_rd_atom = from.max_qp_rd_atom.into();
    to.max_res_rd_atom = count(from.max_qp.saturating_mul(from.max_qp_rd_atom.into()));
    to.max_qp_init_rd_atom = from.max_qp_init_rd_atom.into();
    // The atomics are also atomic with respect to the processor's, but UCX does not use those of a device that reports
    // this.
    to.atomic_cap = (from.atomic_cap as u32).min(AtomicCapability::Device as u32);
    to.max_mcast_grp = count(from.max_mcast_grp);
    to.max_mcast_qp_attach = count(from.max_mcast_qp_attach);
    to.max_total_mcast_qp_attach = count(from.max_total_mcast_qp_attach);
    to.max_ah = count(from.max_ah);
    (to.max_srq, to.max_srq_wr, to.max_srq_sge) =
        (count(from.max_srq), count(from.max_srq_wr), count(from.max_srq_sge));
    to.max_pkeys = from.max_pkeys;
    to.local_ca_ack_delay = from.local_ca_ack_delay;
    to.phys_port_cnt = from.phys_port_cnt;
}

/// Queue pair types that send, as bits of their numbers: RC, UC, UD, XRC initiators.
const PACED_KINDS: u32 = 1 << 2 | 1 << 3 | 1 << 4 | 1 << 9;

fn extended(shared: &Shared) -> abi::DeviceAttrEx {
    let (from, mut to) = (&shared.attributes, abi::DeviceAttrEx::zeroed());
    basic(from, shared.guid, &mut to.orig_attr);
    to.odp_general_caps = from.odp_caps.general.bits();
    to.odp_transport_caps = [from.odp_caps.rc, from.odp_caps.uc, from.odp_caps.ud].map(|caps| caps.bits());
    to.xrc_odp_caps = from.odp_caps.xrc.bits();
    to.completion_timestamp_mask = from.completion_timestamp_mask;
    to.hca_core_clock = from.hca_core_clock_khz;
    to.device_cap_flags_ex = from.device_cap_flags.bits();
    (to.max_cq_count, to.max_cq_period) = (from.max_cq_count, from.max_cq_period);
    to.max_dm_size = from.max_dm_size;
    to.packet_pacing_caps =
        abi::PacketPacingCaps { qp_rate_limit_min: 1, qp_rate_limit_max: u32::MAX, supported_qpts: PACED_KINDS };
    to.phys_port_cnt_ex = from.phys_port_cnt.into();
    to
}

/// Copies a structure into the program's structure of `size` bytes, which may be from an older or newer version of the
/// headers. Bytes beyond this library's version are zeroed.
///
/// # Safety
/// `to` may be written for `size` bytes.
unsafe fn copy_out<T>(from: &T, to: *mut T, size: usize) {
    let known = size.min(size_of::<T>());
    // SAFETY: no more bytes are copied than both structures have; the program's structure does not overlap the one just
    // made. The caller promises the rest.
    unsafe {
        std::ptr::from_ref(from).cast::<u8>().copy_to_nonoverlapping(to.cast(), known);
        to.cast::<u8>().add(known).write_bytes(0, size - known);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(context: *mut abi::Context, attributes: *mut abi::DeviceAttr) -> c_int {
    // SAFETY: the program's context, and its structure that may be written.
    unsafe { attributes.write(extended(shared_of(context)).orig_attr) };
    0
}

pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut abi::Context,
    input: *const u32,
    attributes: *mut abi::DeviceAttrEx,
    size: usize,
) -> c_int {
    // SAFETY: the program's structure, or none; its only field is the mask.
    if !input.is_null() && unsafe { *input } != 0 {
        return INVALID.0;
    }
    // SAFETY: the program's context, and its structure of `size` bytes.
    unsafe { copy_out(&extended(shared_of(context)), attributes, size) };
    0
}

fn port(from: &PortAttributes) -> abi::PortAttrWithSpeed {
    let mut to = abi::PortAttrWithSpeed {
        base: abi::PortAttr {
            state: from.state as u32,
            max_mtu: from.max_mtu as u32,
            active_mtu: from.active_mtu as u32,
            gid_tbl_len: count(from.gid_tbl_len),
            port_cap_flags: from.port_cap_flags,
            max_msg_sz: from.max_msg_sz,
            bad_pkey_cntr: from.bad_pkey_cntr,
            qkey_viol_cntr: from.qkey_viol_cntr,
            pkey_tbl_len: from.pkey_tbl_len,
            lid: from.lid,
            sm_lid: from.sm_lid,
            lmc: from.lmc,
            max_vl_num: from.max_vl_num,
            sm_sl: from.sm_sl,
            active_width: from.active_width as u8,
            phys_state: from.phys_state,
            link_layer: from.link_layer as u8,
            flags: from.grh_required.into(),
            ..abi::PortAttr::default()
        },
        active_speed_ex: from.active_speed as u32,
    };
    // The 8-bit field ends with NDR.
    to.base.active_speed = u8::try_from(from.active_speed as u16).unwrap_or(128);
    to
}

pub(crate) unsafe extern "C" fn query_port(
    context: *mut abi::Context,
    port_num: u8,
    attributes: *mut abi::PortAttr,
    size: usize,
) -> c_int {
    // SAFETY: the program's context.
    let status = unsafe { shared_of(context) }.device.query_port(port_num);
    number(status.map_err(Errno::from).map(|found| {
        let found = port(&found);
        // SAFETY: the program's structure of `size` bytes.
        unsafe { copy_out(&found, attributes.cast(), size) };
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(context: *mut abi::Context, port_num: u8, to: *mut abi::PortAttr) -> c_int {
    // SAFETY: as for `query_port`; the program's structure has at least `OLD_PORT_BYTES`.
    unsafe { query_port(context, port_num, to, OLD_PORT_BYTES) }
}

fn entry(shared: &Shared, port_num: u32, index: u32) -> Result<GidEntry> {
    let (port_num, index) = (u8::try_from(port_num).map_err(|_| INVALID)?, u8::try_from(index).map_err(|_| INVALID)?);
    shared.device.query_gid(port_num, index).map_err(|error| match error.kind() {
        ErrorKind::NotFound => Errno(libc::ENODATA),
        _ => error.into(),
    })
}

fn gid_entry(from: &GidEntry, port_num: u32) -> abi::GidEntry {
    abi::GidEntry {
        gid: abi::Gid(from.gid.to_bytes()),
        gid_index: from.gid_index.into(),
        port_num,
        gid_type: from.gid_type as u32,
        ndev_ifindex: from.ndev_ifindex,
    }
}

/// Converts a number to a table index.
fn index(number: c_int) -> Result<u32> {
    u32::try_from(number).map_err(|_| INVALID)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid(
    context: *mut abi::Context,
    port_num: u8,
    gid_index: c_int,
    gid: *mut abi::Gid,
) -> c_int {
    // SAFETY: the program's context.
    let shared = unsafe { shared_of(context) };
    let found = index(gid_index).and_then(|index| match entry(shared, port_num.into(), index) {
        // Unused entries are read as zeros here.
        Err(Errno(libc::ENODATA)) => Ok(Gid::ZERO),
        other => other.map(|entry| entry.gid),
    });
    // SAFETY: the program's number, which may be written.
    zero_or_minus_one(found.map(|found| unsafe { gid.write(abi::Gid(found.to_bytes())) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut abi::Context,
    port_num: u32,
    gid_index: u32,
    to: *mut abi::GidEntry,
    flags: u32,
    size: usize,
) -> c_int {
    if flags != 0 {
        return UNSUPPORTED.0;
    }
    // SAFETY: the program's context.
    let found = entry(unsafe { shared_of(context) }, port_num, gid_index);
    // SAFETY: the program's structure of `size` bytes.
    number(found.map(|found| unsafe { copy_out(&gid_entry(&found, port_num), to, size) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut abi::Context,
    to: *mut abi::GidEntry,
    room: usize,
    flags: u32,
    size: usize,
) -> isize {
    if flags != 0 {
        return -(UNSUPPORTED.0 as isize);
    }
    // SAFETY: the program's context.
    let table = match unsafe { shared_of(context) }.device.gid_table(1) {
        Ok(table) => table,
        Err(error) => return -(Errno::from(error).0 as isize),
    };
    if table.len() > room {
        return -(INVALID.0 as isize);
    }
    for (index, found) in table.iter().enumerate() {
        // SAFETY: the program's array of `room` structures of `size` bytes; `index` is less than `room`.
        unsafe { copy_out(&gid_entry(found, 1), to.byte_add(index * size), size) };
    }
    table.len() as isize
}

/// Returns the kernel's number of a GID type: 0 for InfiniBand and RoCE v1, 1 for RoCE v2.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid_type(
    context: *mut abi::Context,
    port_num: u8,
    gid_index: u32,
    to: *mut u32,
) -> c_int {
    // SAFETY: the program's context.
    let found = match entry(unsafe { shared_of(context) }, port_num.into(), gid_index) {
        Ok(found) => Ok(u32::from(found.gid_type == GidType::RoceV2)),
        // The type that the kernel reports for an empty entry.
        Err(Errno(libc::ENODATA)) => Ok(0),
        Err(error) => Err(error),
    };
    // SAFETY: the program's number, which may be written.
    zero_or_minus_one(found.map(|found| unsafe { to.write(found) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_pkey(
    context: *mut abi::Context,
    port_num: u8,
    pkey_index: c_int,
    pkey: *mut u16,
) -> c_int {
    // SAFETY: the program's context.
    let shared = unsafe { shared_of(context) };
    let found = u16::try_from(pkey_index).map_err(|_| INVALID);
    let found = found.and_then(|index| Ok(shared.device.query_pkey(port_num, index)?));
    // SAFETY: the program's number, which may be written.
    zero_or_minus_one(found.map(|found| unsafe { pkey.write(found.to_be()) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_pkey_index(context: *mut abi::Context, port_num: u8, pkey: u16) -> c_int {
    // SAFETY: the program's context.
    let shared = unsafe { shared_of(context) };
    let is_wanted =
        |index: &u16| shared.device.query_pkey(port_num, *index).is_ok_and(|found| found == u16::from_be(pkey));
    match (0..shared.attributes.max_pkeys).find(is_wanted) {
        Some(index) => index.into(),
        None => {
            set_errno(INVALID);
            -1
        }
    }
}

pub(crate) unsafe extern "C" fn query_rt_values(context: *mut abi::Context, values: *mut abi::ValuesEx) -> c_int {
    // SAFETY: the program's structure, which may be read and written.
    let values = unsafe { &mut *values };
    if values.comp_mask & !RAW_CLOCK != 0 {
        return UNSUPPORTED.0;
    }
    // SAFETY: the program's context.
    let clock = unsafe { shared_of(context) }.device.query_clock();
    number(clock.map_err(Errno::from).map(|nanoseconds| {
        // A raw clock is a count, not a time: all of it is in `tv_nsec`, as with adapters (`mlx5_query_rt_values`).
        values.raw_clock.tv_sec = 0;
        values.raw_clock.tv_nsec = nanoseconds as libc::c_long;
        values.comp_mask = RAW_CLOCK;
    }))
}

exported! {
    "IBVERBS_1.1": ibv_query_device ibv_query_port ibv_query_gid ibv_query_pkey;
    "IBVERBS_1.5": ibv_get_pkey_index;
    "IBVERBS_1.11": _ibv_query_gid_ex _ibv_query_gid_table;
    "IBVERBS_PRIVATE_34": ibv_query_gid_type;
}
