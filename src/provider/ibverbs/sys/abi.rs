//! The public structures of `infiniband/verbs.h`, as far as this provider touches them, field by field as there.
//!
//! The layout has not changed since rdma-core 34 except by growth at the ends; `layout` holds these to the numbers.
//! Enumerations are plain numbers: a newer library may hand out values that are not known here.

use std::ffi::{c_char, c_int, c_void};

/// A function slot of which only the place matters.
type Slot = Option<unsafe extern "C" fn()>;

#[repr(C)]
pub(super) struct Device {
    pub(super) ops: [Slot; 2],
    pub(super) node_type: c_int,
    pub(super) transport_type: c_int,
    pub(super) name: [c_char; 64],
    pub(super) dev_name: [c_char; 64],
    pub(super) dev_path: [c_char; 256],
    pub(super) ibdev_path: [c_char; 256],
}

#[repr(C)]
pub(super) struct ContextOps {
    compat_first: [Slot; 7],
    pub(super) alloc_mw: Option<unsafe extern "C" fn(*mut Pd, u32) -> *mut Mw>,
    pub(super) bind_mw: Option<unsafe extern "C" fn(*mut Qp, *mut Mw, *mut MwBind) -> c_int>,
    pub(super) dealloc_mw: Option<unsafe extern "C" fn(*mut Mw) -> c_int>,
    compat_create_cq: Slot,
    pub(super) poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int>,
    pub(super) req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int>,
    compat_cq: [Slot; 7],
    pub(super) post_srq_recv: Option<unsafe extern "C" fn(*mut Srq, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    compat_qp: [Slot; 4],
    pub(super) post_send: Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
    pub(super) post_recv: Option<unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    compat_last: [Slot; 5],
}

#[repr(C)]
pub(super) struct Context {
    pub(super) device: *mut Device,
    pub(super) ops: ContextOps,
    pub(super) cmd_fd: c_int,
    pub(super) async_fd: c_int,
    pub(super) num_comp_vectors: c_int,
    mutex: [u64; 5],
    pub(super) abi_compat: *mut c_void,
}

/// What stands in memory before an `ibv_context`; as of rdma-core 34. Newer ones have more in front, and say so by
/// `sz`.
#[repr(C)]
pub(super) struct VerbsContext {
    pub(super) query_port: Option<unsafe extern "C" fn(*mut Context, u8, *mut PortAttr, usize) -> c_int>,
    pub(super) advise_mr: Option<unsafe extern "C" fn(*mut Pd, u32, u32, *mut Sge, u32) -> c_int>,
    unused_counters: [Slot; 5],
    pub(super) reg_dm_mr: Option<unsafe extern "C" fn(*mut Pd, *mut Dm, u64, usize, u32) -> *mut Mr>,
    pub(super) alloc_dm: Option<unsafe extern "C" fn(*mut Context, *mut AllocDmAttr) -> *mut Dm>,
    pub(super) free_dm: Option<unsafe extern "C" fn(*mut Dm) -> c_int>,
    unused_first: [Slot; 7],
    pub(super) modify_cq: Option<unsafe extern "C" fn(*mut Cq, *mut ModifyCqAttr) -> c_int>,
    unused_wq: [Slot; 6],
    pub(super) query_rt_values: Option<unsafe extern "C" fn(*mut Context, *mut ValuesEx) -> c_int>,
    pub(super) create_cq_ex: Option<unsafe extern "C" fn(*mut Context, *mut CqInitAttrEx) -> *mut CqEx>,
    private: *mut c_void,
    pub(super) query_device_ex:
        Option<unsafe extern "C" fn(*mut Context, *const u32, *mut DeviceAttrEx, usize) -> c_int>,
    unused_flow: [Slot; 5],
    pub(super) create_qp_ex: Option<unsafe extern "C" fn(*mut Context, *mut QpInitAttrEx) -> *mut Qp>,
    pub(super) get_srq_num: Option<unsafe extern "C" fn(*mut Srq, *mut u32) -> c_int>,
    pub(super) create_srq_ex: Option<unsafe extern "C" fn(*mut Context, *mut SrqInitAttrEx) -> *mut Srq>,
    pub(super) open_xrcd: Option<unsafe extern "C" fn(*mut Context, *mut XrcdInitAttr) -> *mut Xrcd>,
    pub(super) close_xrcd: Option<unsafe extern "C" fn(*mut Xrcd) -> c_int>,
    unused_last: u64,
    pub(super) sz: usize,
    pub(super) context: Context,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(in super::super) struct DeviceAttr {
    pub(in super::super) fw_ver: [c_char; 64],
    pub(in super::super) node_guid: u64,
    pub(in super::super) sys_image_guid: u64,
    pub(in super::super) max_mr_size: u64,
    pub(in super::super) page_size_cap: u64,
    pub(in super::super) vendor_id: u32,
    pub(in super::super) vendor_part_id: u32,
    pub(in super::super) hw_ver: u32,
    pub(in super::super) max_qp: c_int,
    pub(in super::super) max_qp_wr: c_int,
    pub(in super::super) device_cap_flags: u32,
    pub(in super::super) max_sge: c_int,
    pub(in super::super) max_sge_rd: c_int,
    pub(in super::super) max_cq: c_int,
    pub(in super::super) max_cqe: c_int,
    pub(in super::super) max_mr: c_int,
    pub(in super::super) max_pd: c_int,
    pub(in super::super) max_qp_rd_atom: c_int,
    pub(in super::super) max_ee_rd_atom: c_int,
    pub(in super::super) max_res_rd_atom: c_int,
    pub(in super::super) max_qp_init_rd_atom: c_int,
    pub(in super::super) max_ee_init_rd_atom: c_int,
    pub(in super::super) atomic_cap: u32,
    pub(in super::super) max_ee: c_int,
    pub(in super::super) max_rdd: c_int,
    pub(in super::super) max_mw: c_int,
    pub(in super::super) max_raw_ipv6_qp: c_int,
    pub(in super::super) max_raw_ethy_qp: c_int,
    pub(in super::super) max_mcast_grp: c_int,
    pub(in super::super) max_mcast_qp_attach: c_int,
    pub(in super::super) max_total_mcast_qp_attach: c_int,
    pub(in super::super) max_ah: c_int,
    pub(in super::super) max_fmr: c_int,
    pub(in super::super) max_map_per_fmr: c_int,
    pub(in super::super) max_srq: c_int,
    pub(in super::super) max_srq_wr: c_int,
    pub(in super::super) max_srq_sge: c_int,
    pub(in super::super) max_pkeys: u16,
    pub(in super::super) local_ca_ack_delay: u8,
    pub(in super::super) phys_port_cnt: u8,
}

/// What `rest` covers, from `tso_caps` on, is not looked at.
#[repr(C)]
#[derive(Clone, Copy)]
pub(in super::super) struct DeviceAttrEx {
    pub(in super::super) orig_attr: DeviceAttr,
    pub(in super::super) comp_mask: u32,
    pub(in super::super) odp_general_caps: u64,
    pub(in super::super) odp_transport_caps: [u32; 3],
    pub(in super::super) completion_timestamp_mask: u64,
    pub(in super::super) hca_core_clock: u64,
    pub(in super::super) device_cap_flags_ex: u64,
    pub(in super::super) rest: [u32; 20],
    pub(in super::super) max_cq_count: u16,
    pub(in super::super) max_cq_period: u16,
    pub(in super::super) max_dm_size: u64,
    pub(in super::super) pci_atomic_caps: [u16; 3],
    pub(in super::super) xrc_odp_caps: u32,
    pub(in super::super) phys_port_cnt_ex: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(in super::super) struct PortAttr {
    pub(in super::super) state: u32,
    pub(in super::super) max_mtu: u32,
    pub(in super::super) active_mtu: u32,
    pub(in super::super) gid_tbl_len: c_int,
    pub(in super::super) port_cap_flags: u32,
    pub(in super::super) max_msg_sz: u32,
    pub(in super::super) bad_pkey_cntr: u32,
    pub(in super::super) qkey_viol_cntr: u32,
    pub(in super::super) pkey_tbl_len: u16,
    pub(in super::super) lid: u16,
    pub(in super::super) sm_lid: u16,
    pub(in super::super) lmc: u8,
    pub(in super::super) max_vl_num: u8,
    pub(in super::super) sm_sl: u8,
    pub(in super::super) subnet_timeout: u8,
    pub(in super::super) init_type_reply: u8,
    pub(in super::super) active_width: u8,
    pub(in super::super) active_speed: u8,
    pub(in super::super) phys_state: u8,
    pub(in super::super) link_layer: u8,
    pub(in super::super) flags: u8,
    pub(in super::super) port_cap_flags2: u16,
}

/// What rdma-core 60 and later have behind it; others leave it zero.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(in super::super) struct PortAttrWithSpeed {
    pub(in super::super) base: PortAttr,
    pub(in super::super) active_speed_ex: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(in super::super) struct GidEntry {
    pub(in super::super) gid: Gid,
    pub(in super::super) gid_index: u32,
    pub(in super::super) port_num: u32,
    pub(in super::super) gid_type: u32,
    pub(in super::super) ndev_ifindex: u32,
}

/// Its address is aligned as `union ibv_gid`, which holds 64-bit words.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub(in super::super) struct Gid(pub(in super::super) [u8; 16]);

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(in super::super) struct AhAttr {
    pub(in super::super) dgid: Gid,
    pub(in super::super) flow_label: u32,
    pub(in super::super) sgid_index: u8,
    pub(in super::super) hop_limit: u8,
    pub(in super::super) traffic_class: u8,
    pub(in super::super) dlid: u16,
    pub(in super::super) sl: u8,
    pub(in super::super) src_path_bits: u8,
    pub(in super::super) static_rate: u8,
    pub(in super::super) is_global: u8,
    pub(in super::super) port_num: u8,
}

#[repr(C)]
pub(super) struct Pd {
    pub(super) context: *mut Context,
    pub(super) handle: u32,
}

#[repr(C)]
pub(super) struct Mr {
    pub(super) context: *mut Context,
    pub(super) pd: *mut Pd,
    pub(super) addr: *mut c_void,
    pub(super) length: usize,
    pub(super) handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

#[repr(C)]
pub(super) struct AllocDmAttr {
    pub(super) length: usize,
    pub(super) log_align_req: u32,
    pub(super) comp_mask: u32,
}

#[repr(C)]
pub(super) struct Dm {
    pub(super) context: *mut Context,
    pub(super) memcpy_to_dm: Option<unsafe extern "C" fn(*mut Dm, u64, *const c_void, usize) -> c_int>,
    pub(super) memcpy_from_dm: Option<unsafe extern "C" fn(*mut c_void, *mut Dm, u64, usize) -> c_int>,
    pub(super) comp_mask: u32,
    pub(super) handle: u32,
}

#[repr(C)]
pub(super) struct Mw {
    pub(super) context: *mut Context,
    pub(super) pd: *mut Pd,
    pub(super) rkey: u32,
    pub(super) handle: u32,
    pub(super) kind: u32,
}

#[repr(C)]
pub(super) struct Ah {
    pub(super) context: *mut Context,
    pub(super) pd: *mut Pd,
    pub(super) handle: u32,
}

#[repr(C)]
pub(super) struct Xrcd {
    pub(super) context: *mut Context,
}

#[repr(C)]
pub(super) struct CompChannel {
    pub(super) context: *mut Context,
    pub(super) fd: c_int,
    pub(super) refcnt: c_int,
}

#[repr(C)]
pub(super) struct Cq {
    pub(super) context: *mut Context,
    pub(super) channel: *mut CompChannel,
    pub(super) cq_context: *mut c_void,
    pub(super) handle: u32,
    pub(super) cqe: c_int,
    mutex: [u64; 5],
    cond: [u64; 6],
    pub(super) comp_events_completed: u32,
    pub(super) async_events_completed: u32,
}

#[repr(C)]
pub(super) struct CqEx {
    pub(super) base: Cq,
    pub(super) comp_mask: u32,
    pub(super) status: u32,
    pub(super) wr_id: u64,
    pub(super) start_poll: Option<unsafe extern "C" fn(*mut CqEx, *mut u32) -> c_int>,
    pub(super) next_poll: Option<unsafe extern "C" fn(*mut CqEx) -> c_int>,
    pub(super) end_poll: Option<unsafe extern "C" fn(*mut CqEx)>,
    pub(super) read_opcode: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub(super) read_vendor_err: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub(super) read_byte_len: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub(super) read_imm_data: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub(super) read_qp_num: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub(super) read_src_qp: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub(super) read_wc_flags: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub(super) read_slid: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub(super) read_sl: Option<unsafe extern "C" fn(*mut CqEx) -> u8>,
    pub(super) read_dlid_path_bits: Option<unsafe extern "C" fn(*mut CqEx) -> u8>,
    pub(super) read_completion_ts: Option<unsafe extern "C" fn(*mut CqEx) -> u64>,
    unused: [Slot; 4],
}

#[repr(C)]
pub(super) struct CqInitAttrEx {
    pub(super) cqe: u32,
    pub(super) cq_context: *mut c_void,
    pub(super) channel: *mut CompChannel,
    pub(super) comp_vector: u32,
    pub(super) wc_flags: u64,
    pub(super) comp_mask: u32,
    pub(super) flags: u32,
    pub(super) parent_domain: *mut Pd,
}

#[repr(C)]
pub(super) struct ModifyCqAttr {
    pub(super) attr_mask: u32,
    pub(super) cq_count: u16,
    pub(super) cq_period: u16,
}

#[repr(C)]
pub(super) struct ValuesEx {
    pub(super) comp_mask: u32,
    pub(super) raw_clock: libc::timespec,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(in super::super) struct Wc {
    pub(in super::super) wr_id: u64,
    pub(in super::super) status: u32,
    pub(in super::super) opcode: u32,
    pub(in super::super) vendor_err: u32,
    pub(in super::super) byte_len: u32,
    /// Immediate data in network order, or the invalidated key.
    pub(in super::super) imm_data: u32,
    pub(in super::super) qp_num: u32,
    pub(in super::super) src_qp: u32,
    pub(in super::super) wc_flags: u32,
    pub(in super::super) pkey_index: u16,
    pub(in super::super) slid: u16,
    pub(in super::super) sl: u8,
    pub(in super::super) dlid_path_bits: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(in super::super) struct QpCap {
    pub(in super::super) max_send_wr: u32,
    pub(in super::super) max_recv_wr: u32,
    pub(in super::super) max_send_sge: u32,
    pub(in super::super) max_recv_sge: u32,
    pub(in super::super) max_inline_data: u32,
}

#[repr(C)]
pub(super) struct QpInitAttr {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut Cq,
    pub(super) recv_cq: *mut Cq,
    pub(super) srq: *mut Srq,
    pub(super) cap: QpCap,
    pub(super) qp_type: u32,
    pub(super) sq_sig_all: c_int,
}

#[repr(C)]
pub(super) struct QpInitAttrEx {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut Cq,
    pub(super) recv_cq: *mut Cq,
    pub(super) srq: *mut Srq,
    pub(super) cap: QpCap,
    pub(super) qp_type: u32,
    pub(super) sq_sig_all: c_int,
    pub(super) comp_mask: u32,
    pub(super) pd: *mut Pd,
    pub(super) xrcd: *mut Xrcd,
    pub(super) create_flags: u32,
    pub(super) max_tso_header: u16,
    pub(super) rwq_ind_tbl: *mut c_void,
    pub(super) rx_hash_conf: [u64; 3],
    pub(super) source_qpn: u32,
    pub(super) send_ops_flags: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(in super::super) struct QpAttr {
    pub(in super::super) qp_state: u32,
    pub(in super::super) cur_qp_state: u32,
    pub(in super::super) path_mtu: u32,
    pub(in super::super) path_mig_state: u32,
    pub(in super::super) qkey: u32,
    pub(in super::super) rq_psn: u32,
    pub(in super::super) sq_psn: u32,
    pub(in super::super) dest_qp_num: u32,
    pub(in super::super) qp_access_flags: u32,
    pub(in super::super) cap: QpCap,
    pub(in super::super) ah_attr: AhAttr,
    pub(in super::super) alt_ah_attr: AhAttr,
    pub(in super::super) pkey_index: u16,
    pub(in super::super) alt_pkey_index: u16,
    pub(in super::super) en_sqd_async_notify: u8,
    pub(in super::super) sq_draining: u8,
    pub(in super::super) max_rd_atomic: u8,
    pub(in super::super) max_dest_rd_atomic: u8,
    pub(in super::super) min_rnr_timer: u8,
    pub(in super::super) port_num: u8,
    pub(in super::super) timeout: u8,
    pub(in super::super) retry_cnt: u8,
    pub(in super::super) rnr_retry: u8,
    pub(in super::super) alt_port_num: u8,
    pub(in super::super) alt_timeout: u8,
    pub(in super::super) rate_limit: u32,
}

#[repr(C)]
pub(super) struct Qp {
    pub(super) context: *mut Context,
    pub(super) qp_context: *mut c_void,
    pub(super) pd: *mut Pd,
    pub(super) send_cq: *mut Cq,
    pub(super) recv_cq: *mut Cq,
    pub(super) srq: *mut Srq,
    pub(super) handle: u32,
    pub(super) qp_num: u32,
    pub(super) state: u32,
    pub(super) qp_type: u32,
    mutex: [u64; 5],
    cond: [u64; 6],
    pub(super) events_completed: u32,
}

/// Builders and setters of extended posting.
#[repr(C)]
pub(super) struct QpEx {
    pub(super) qp_base: Qp,
    pub(super) comp_mask: u64,
    pub(super) wr_id: u64,
    pub(super) wr_flags: u32,
    pub(super) wr_atomic_cmp_swp: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u64, u64)>,
    pub(super) wr_atomic_fetch_add: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u64)>,
    pub(super) wr_bind_mw: Option<unsafe extern "C" fn(*mut QpEx, *mut Mw, u32, *const MwBindInfo)>,
    pub(super) wr_local_inv: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
    pub(super) wr_rdma_read: Option<unsafe extern "C" fn(*mut QpEx, u32, u64)>,
    pub(super) wr_rdma_write: Option<unsafe extern "C" fn(*mut QpEx, u32, u64)>,
    pub(super) wr_rdma_write_imm: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u32)>,
    pub(super) wr_send: Option<unsafe extern "C" fn(*mut QpEx)>,
    pub(super) wr_send_imm: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
    pub(super) wr_send_inv: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
    wr_send_tso: Slot,
    pub(super) wr_set_ud_addr: Option<unsafe extern "C" fn(*mut QpEx, *mut Ah, u32, u32)>,
    pub(super) wr_set_xrc_srqn: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
    pub(super) wr_set_inline_data: Option<unsafe extern "C" fn(*mut QpEx, *const c_void, usize)>,
    wr_set_inline_data_list: Slot,
    pub(super) wr_set_sge: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u32)>,
    pub(super) wr_set_sge_list: Option<unsafe extern "C" fn(*mut QpEx, usize, *const Sge)>,
    pub(super) wr_start: Option<unsafe extern "C" fn(*mut QpEx)>,
    pub(super) wr_complete: Option<unsafe extern "C" fn(*mut QpEx) -> c_int>,
    pub(super) wr_abort: Option<unsafe extern "C" fn(*mut QpEx)>,
    pub(super) wr_atomic_write: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, *const c_void)>,
}

/// What rdma-core 47 and later have behind it: there only if a queue pair was created with
/// [`create::WITH_FLUSH`].
#[repr(C)]
pub(super) struct QpExWithFlush {
    pub(super) base: QpEx,
    pub(super) wr_flush: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, usize, u8, u8)>,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(in super::super) struct SrqAttr {
    pub(in super::super) max_wr: u32,
    pub(in super::super) max_sge: u32,
    pub(in super::super) srq_limit: u32,
}

#[repr(C)]
pub(super) struct SrqInitAttr {
    pub(super) srq_context: *mut c_void,
    pub(super) attr: SrqAttr,
}

#[repr(C)]
pub(super) struct SrqInitAttrEx {
    pub(super) srq_context: *mut c_void,
    pub(super) attr: SrqAttr,
    pub(super) comp_mask: u32,
    pub(super) srq_type: u32,
    pub(super) pd: *mut Pd,
    pub(super) xrcd: *mut Xrcd,
    pub(super) cq: *mut Cq,
    pub(super) tm_cap: [u32; 2],
}

#[repr(C)]
pub(super) struct Srq {
    pub(super) context: *mut Context,
    pub(super) srq_context: *mut c_void,
    pub(super) pd: *mut Pd,
    pub(super) handle: u32,
    mutex: [u64; 5],
    cond: [u64; 6],
    pub(super) events_completed: u32,
}

#[repr(C)]
pub(super) struct XrcdInitAttr {
    pub(super) comp_mask: u32,
    pub(super) fd: c_int,
    pub(super) oflags: c_int,
}

/// `ibv_sge` is laid out like this crate's own.
pub(super) type Sge = crate::types::Sge;

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct MwBindInfo {
    pub(super) mr: *mut Mr,
    pub(super) addr: u64,
    pub(super) length: u64,
    pub(super) mw_access_flags: u32,
}

#[repr(C)]
pub(super) struct MwBind {
    pub(super) wr_id: u64,
    pub(super) send_flags: u32,
    pub(super) bind_info: MwBindInfo,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RdmaWr {
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct AtomicWr {
    pub(super) remote_addr: u64,
    pub(super) compare_add: u64,
    pub(super) swap: u64,
    pub(super) rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct UdWr {
    pub(super) ah: *mut Ah,
    pub(super) remote_qpn: u32,
    pub(super) remote_qkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) union WrUnion {
    pub(super) rdma: RdmaWr,
    pub(super) atomic: AtomicWr,
    pub(super) ud: UdWr,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct BindWr {
    pub(super) mw: *mut Mw,
    pub(super) rkey: u32,
    pub(super) bind_info: MwBindInfo,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct SendWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut SendWr,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
    pub(super) opcode: u32,
    pub(super) send_flags: u32,
    /// Immediate data in network order, or the key to be invalidated.
    pub(super) imm_data: u32,
    pub(super) wr: WrUnion,
    pub(super) remote_srqn: u32,
    pub(super) bind_mw: BindWr,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RecvWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut RecvWr,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) union EventElement {
    pub(super) cq: *mut Cq,
    pub(super) qp: *mut Qp,
    pub(super) srq: *mut Srq,
    pub(super) port_num: c_int,
}

#[repr(C)]
pub(super) struct AsyncEvent {
    pub(super) element: EventElement,
    pub(super) event_type: u32,
}

/// Numbers of `ibv_wr_opcode`.
pub(super) mod wr {
    pub(in super::super) const RDMA_WRITE: u32 = 0;
    pub(in super::super) const RDMA_WRITE_WITH_IMM: u32 = 1;
    pub(in super::super) const SEND: u32 = 2;
    pub(in super::super) const SEND_WITH_IMM: u32 = 3;
    pub(in super::super) const RDMA_READ: u32 = 4;
    pub(in super::super) const ATOMIC_CMP_AND_SWP: u32 = 5;
    pub(in super::super) const ATOMIC_FETCH_AND_ADD: u32 = 6;
    pub(in super::super) const LOCAL_INV: u32 = 7;
    pub(in super::super) const BIND_MW: u32 = 8;
    pub(in super::super) const SEND_WITH_INV: u32 = 9;
    pub(in super::super) const ATOMIC_WRITE: u32 = 15;
}

/// Bits of `ibv_qp_init_attr_mask` and `ibv_qp_create_send_ops_flags`.
pub(super) mod create {
    pub(in super::super) const PD: u32 = 1;
    pub(in super::super) const XRCD: u32 = 1 << 1;
    pub(in super::super) const SEND_OPS_FLAGS: u32 = 1 << 6;

    pub(in super::super) const WITH_RDMA_WRITE: u64 = 1;
    pub(in super::super) const WITH_RDMA_WRITE_WITH_IMM: u64 = 1 << 1;
    pub(in super::super) const WITH_SEND: u64 = 1 << 2;
    pub(in super::super) const WITH_SEND_WITH_IMM: u64 = 1 << 3;
    pub(in super::super) const WITH_RDMA_READ: u64 = 1 << 4;
    pub(in super::super) const WITH_ATOMIC_CMP_AND_SWP: u64 = 1 << 5;
    pub(in super::super) const WITH_ATOMIC_FETCH_AND_ADD: u64 = 1 << 6;
    pub(in super::super) const WITH_LOCAL_INV: u64 = 1 << 7;
    pub(in super::super) const WITH_BIND_MW: u64 = 1 << 8;
    pub(in super::super) const WITH_SEND_WITH_INV: u64 = 1 << 9;
    pub(in super::super) const WITH_FLUSH: u64 = 1 << 11;
    pub(in super::super) const WITH_ATOMIC_WRITE: u64 = 1 << 12;
}
