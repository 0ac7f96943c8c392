//! Structures of the kernel's interface that connection managers translate: `ib_uverbs_qp_attr` and `ib_uverbs_ah_attr`
//! of `rdma/ib_user_verbs.h`, `ib_user_path_rec` of `rdma/ib_user_sa.h`, and `ibv_sa_path_rec`.

use std::ffi::c_int;

use rdma_verbs::provider::abi::cm::PathRecord;
use rdma_verbs::provider::abi::{AhAttr, Gid, QpAttr, QpCap};

use crate::version::exported;

#[repr(C)]
struct KernelAhAttr {
    dgid: [u8; 16],
    flow_label: u32,
    sgid_index: u8,
    hop_limit: u8,
    traffic_class: u8,
    reserved_route: u8,
    dlid: u16,
    sl: u8,
    src_path_bits: u8,
    static_rate: u8,
    is_global: u8,
    port_num: u8,
    reserved: u8,
}

#[repr(C)]
struct KernelQpAttr {
    qp_attr_mask: u32,
    qp_state: u32,
    cur_qp_state: u32,
    path_mtu: u32,
    path_mig_state: u32,
    qkey: u32,
    rq_psn: u32,
    sq_psn: u32,
    dest_qp_num: u32,
    qp_access_flags: u32,
    ah_attr: KernelAhAttr,
    alt_ah_attr: KernelAhAttr,
    cap: QpCap,
    pkey_index: u16,
    alt_pkey_index: u16,
    en_sqd_async_notify: u8,
    sq_draining: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    port_num: u8,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    alt_port_num: u8,
    alt_timeout: u8,
    reserved: [u8; 5],
}

#[repr(C)]
struct KernelPathRecord {
    dgid: [u8; 16],
    sgid: [u8; 16],
    dlid: u16,
    slid: u16,
    raw_traffic: u32,
    flow_label: u32,
    reversible: u32,
    mtu: u32,
    pkey: u16,
    hop_limit: u8,
    traffic_class: u8,
    numb_path: u8,
    sl: u8,
    mtu_selector: u8,
    rate_selector: u8,
    rate: u8,
    packet_life_time_selector: u8,
    packet_life_time: u8,
    preference: u8,
}

const _: () = assert!(size_of::<KernelAhAttr>() == 32 && size_of::<KernelQpAttr>() == 144);
const _: () = assert!(size_of::<KernelPathRecord>() == 64);

fn address(from: &KernelAhAttr) -> AhAttr {
    AhAttr {
        dgid: Gid(from.dgid),
        flow_label: from.flow_label,
        sgid_index: from.sgid_index,
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
        dlid: from.dlid,
        sl: from.sl,
        src_path_bits: from.src_path_bits,
        static_rate: from.static_rate,
        is_global: from.is_global,
        port_num: from.port_num,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_copy_ah_attr_from_kern(to: *mut AhAttr, from: *const KernelAhAttr) {
    // SAFETY: the program's structures; one may be read and the other written.
    unsafe { to.write(address(&*from)) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_copy_qp_attr_from_kern(to: *mut QpAttr, from: *const KernelQpAttr) {
    // SAFETY: the program's structure, which may be read.
    let from = unsafe { &*from };
    let attributes = QpAttr {
        qp_state: 0,
        cur_qp_state: from.cur_qp_state,
        path_mtu: from.path_mtu,
        path_mig_state: from.path_mig_state,
        qkey: from.qkey,
        rq_psn: from.rq_psn,
        sq_psn: from.sq_psn,
        dest_qp_num: from.dest_qp_num,
        qp_access_flags: from.qp_access_flags,
        cap: from.cap,
        ah_attr: address(&from.ah_attr),
        alt_ah_attr: address(&from.alt_ah_attr),
        pkey_index: from.pkey_index,
        alt_pkey_index: from.alt_pkey_index,
        en_sqd_async_notify: from.en_sqd_async_notify,
        sq_draining: from.sq_draining,
        max_rd_atomic: from.max_rd_atomic,
        max_dest_rd_atomic: from.max_dest_rd_atomic,
        min_rnr_timer: from.min_rnr_timer,
        port_num: from.port_num,
        timeout: from.timeout,
        retry_cnt: from.retry_cnt,
        rnr_retry: from.rnr_retry,
        alt_port_num: from.alt_port_num,
        alt_timeout: from.alt_timeout,
        rate_limit: 0,
    };
    // SAFETY: the program's structure, which may be written.
    unsafe { to.write(attributes) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_copy_path_rec_from_kern(to: *mut PathRecord, from: *const KernelPathRecord) {
    // SAFETY: the program's structure, which may be read.
    let from = unsafe { &*from };
    let record = PathRecord {
        dgid: Gid(from.dgid),
        sgid: Gid(from.sgid),
        dlid: from.dlid,
        slid: from.slid,
        raw_traffic: from.raw_traffic as c_int,
        flow_label: from.flow_label,
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
        reversible: from.reversible as c_int,
        numb_path: from.numb_path,
        pkey: from.pkey,
        sl: from.sl,
        mtu_selector: from.mtu_selector,
        mtu: from.mtu as u8,
        rate_selector: from.rate_selector,
        rate: from.rate,
        packet_life_time_selector: from.packet_life_time_selector,
        packet_life_time: from.packet_life_time,
        preference: from.preference,
    };
    // SAFETY: the program's structure, which may be written.
    unsafe { to.write(record) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_copy_path_rec_to_kern(to: *mut KernelPathRecord, from: *const PathRecord) {
    // SAFETY: the program's structure, which may be read.
    let from = unsafe { &*from };
    let record = KernelPathRecord {
        dgid: from.dgid.0,
        sgid: from.sgid.0,
        dlid: from.dlid,
        slid: from.slid,
        raw_traffic: from.raw_traffic as u32,
        flow_label: from.flow_label,
        reversible: from.reversible as u32,
        mtu: from.mtu.into(),
        pkey: from.pkey,
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
        numb_path: from.numb_path,
        sl: from.sl,
        mtu_selector: from.mtu_selector,
        rate_selector: from.rate_selector,
        rate: from.rate,
        packet_life_time_selector: from.packet_life_time_selector,
        packet_life_time: from.packet_life_time,
        preference: from.preference,
    };
    // SAFETY: the program's structure, which may be written.
    unsafe { to.write(record) };
}

exported! {
    "IBVERBS_1.0": ibv_copy_qp_attr_from_kern ibv_copy_path_rec_from_kern ibv_copy_path_rec_to_kern;
    "IBVERBS_1.1": ibv_copy_ah_attr_from_kern;
}
