//! The public structures of `infiniband/verbs.h`, field by field, as far as this crate uses them: the provider over
//! libibverbs reads them, and `capi`, the library for C programs, creates them.
//!
//! Since rdma-core 34 the layout has only grown at the ends; `layout` asserts sizes and offsets. Enumerations are plain
//! numbers: a newer library may return values that are unknown here.

pub mod cm;
mod layout;

use std::ffi::{c_char, c_int, c_void};

/// A function slot whose signature does not matter, only its offset.
pub type Slot = Option<unsafe extern "C" fn()>;

#[repr(C)]
pub struct Device {
    pub ops: [Slot; 2],
    pub node_type: c_int,
    pub transport_type: c_int,
    pub name: [c_char; 64],
    pub dev_name: [c_char; 64],
    pub dev_path: [c_char; 256],
    pub ibdev_path: [c_char; 256],
}

#[repr(C)]
pub struct ContextOps {
    pub compat_first: [Slot; 7],
    pub alloc_mw: Option<unsafe extern "C" fn(*mut Pd, u32) -> *mut Mw>,
    pub bind_mw: Option<unsafe extern "C" fn(*mut Qp, *mut Mw, *mut MwBind) -> c_int>,
    pub dealloc_mw: Option<unsafe extern "C" fn(*mut Mw) -> c_int>,
    pub compat_create_cq: Slot,
    pub poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int>,
    pub compat_cq: [Slot; 7],
    pub post_srq_recv: Option<unsafe extern "C" fn(*mut Srq, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    pub compat_qp: [Slot; 4],
    pub post_send: Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
    pub post_recv: Option<unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    pub compat_last: [Slot; 5],
}

#[repr(C)]
pub struct Context {
    pub device: *mut Device,
    pub ops: ContextOps,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    pub mutex: [u64; 5],
    pub abi_compat: *mut c_void,
}

/// `verbs_context`, which precedes an `ibv_context` in memory; as of rdma-core 34. Newer versions have more slots in
/// front, and report the size in `sz`.
#[repr(C)]
pub struct VerbsContext {
    pub query_port: Option<unsafe extern "C" fn(*mut Context, u8, *mut PortAttr, usize) -> c_int>,
    pub advise_mr: Option<unsafe extern "C" fn(*mut Pd, u32, u32, *mut Sge, u32) -> c_int>,
    pub unused_counters: [Slot; 5],
    pub reg_dm_mr: Option<unsafe extern "C" fn(*mut Pd, *mut Dm, u64, usize, u32) -> *mut Mr>,
    pub alloc_dm: Option<unsafe extern "C" fn(*mut Context, *mut AllocDmAttr) -> *mut Dm>,
    pub free_dm: Option<unsafe extern "C" fn(*mut Dm) -> c_int>,
    pub unused_flow_actions: [Slot; 3],
    pub modify_qp_rate_limit: Option<unsafe extern "C" fn(*mut Qp, *mut QpRateLimitAttr) -> c_int>,
    pub alloc_parent_domain: Option<unsafe extern "C" fn(*mut Context, *mut ParentDomainInitAttr) -> *mut Pd>,
    pub dealloc_td: Option<unsafe extern "C" fn(*mut Td) -> c_int>,
    pub alloc_td: Option<unsafe extern "C" fn(*mut Context, *mut TdInitAttr) -> *mut Td>,
    pub modify_cq: Option<unsafe extern "C" fn(*mut Cq, *mut ModifyCqAttr) -> c_int>,
    pub unused_wq: [Slot; 6],
    pub query_rt_values: Option<unsafe extern "C" fn(*mut Context, *mut ValuesEx) -> c_int>,
    pub create_cq_ex: Option<unsafe extern "C" fn(*mut Context, *mut CqInitAttrEx) -> *mut CqEx>,
    pub private: *mut c_void,
    pub query_device_ex: Option<unsafe extern "C" fn(*mut Context, *const u32, *mut DeviceAttrEx, usize) -> c_int>,
    pub unused_flow: [Slot; 5],
    pub create_qp_ex: Option<unsafe extern "C" fn(*mut Context, *mut QpInitAttrEx) -> *mut Qp>,
    pub get_srq_num: Option<unsafe extern "C" fn(*mut Srq, *mut u32) -> c_int>,
    pub create_srq_ex: Option<unsafe extern "C" fn(*mut Context, *mut SrqInitAttrEx) -> *mut Srq>,
    pub open_xrcd: Option<unsafe extern "C" fn(*mut Context, *mut XrcdInitAttr) -> *mut Xrcd>,
    pub close_xrcd: Option<unsafe extern "C" fn(*mut Xrcd) -> c_int>,
    pub unused_last: u64,
    pub sz: usize,
    pub context: Context,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct DeviceAttr {
    pub fw_ver: [c_char; 64],
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: u32,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    pub max_ee_init_rd_atom: c_int,
    pub atomic_cap: u32,
    pub max_ee: c_int,
    pub max_rdd: c_int,
    pub max_mw: c_int,
    pub max_raw_ipv6_qp: c_int,
    pub max_raw_ethy_qp: c_int,
    pub max_mcast_grp: c_int,
    pub max_mcast_qp_attach: c_int,
    pub max_total_mcast_qp_attach: c_int,
    pub max_ah: c_int,
    pub max_fmr: c_int,
    pub max_map_per_fmr: c_int,
    pub max_srq: c_int,
    pub max_srq_wr: c_int,
    pub max_srq_sge: c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

/// `ibv_qp_rate_limit_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct QpRateLimitAttr {
    pub rate_limit: u32,
    pub max_burst_sz: u32,
    pub typical_pkt_sz: u16,
    pub comp_mask: u32,
}

/// `ibv_packet_pacing_caps`: rates in kilobits per second, and one bit for each type of queue pair.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PacketPacingCaps {
    pub qp_rate_limit_min: u32,
    pub qp_rate_limit_max: u32,
    pub supported_qpts: u32,
}

/// `ibv_device_attr_ex`. The fields that `rest` (from `tso_caps` on) and `more` cover are not read.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DeviceAttrEx {
    pub orig_attr: DeviceAttr,
    pub comp_mask: u32,
    pub odp_general_caps: u64,
    pub odp_transport_caps: [u32; 3],
    pub completion_timestamp_mask: u64,
    pub hca_core_clock: u64,
    pub device_cap_flags_ex: u64,
    pub rest: [u32; 11],
    pub packet_pacing_caps: PacketPacingCaps,
    pub more: [u32; 6],
    pub max_cq_count: u16,
    pub max_cq_period: u16,
    pub max_dm_size: u64,
    pub pci_atomic_caps: [u16; 3],
    pub xrc_odp_caps: u32,
    pub phys_port_cnt_ex: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct PortAttr {
    pub state: u32,
    pub max_mtu: u32,
    pub active_mtu: u32,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
}

/// `PortAttr` with the field that rdma-core 60 and later append; older versions do not write it, so it stays zero.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct PortAttrWithSpeed {
    pub base: PortAttr,
    pub active_speed_ex: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct GidEntry {
    pub gid: Gid,
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}

/// Aligned like `union ibv_gid`, which holds 64-bit words.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub struct Gid(pub [u8; 16]);

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct AhAttr {
    pub dgid: Gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

#[repr(C)]
pub struct Pd {
    pub context: *mut Context,
    pub handle: u32,
}

#[repr(C)]
pub struct TdInitAttr {
    pub comp_mask: u32,
}

#[repr(C)]
pub struct Td {
    pub context: *mut Context,
}

#[repr(C)]
pub struct ParentDomainInitAttr {
    pub pd: *mut Pd,
    pub td: *mut Td,
    pub comp_mask: u32,
    pub alloc: Option<unsafe extern "C" fn(*mut Pd, *mut c_void, usize, usize, u64) -> *mut c_void>,
    pub free: Option<unsafe extern "C" fn(*mut Pd, *mut c_void, *mut c_void, u64)>,
    pub pd_context: *mut c_void,
}

#[repr(C)]
pub struct Mr {
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

#[repr(C)]
pub struct AllocDmAttr {
    pub length: usize,
    pub log_align_req: u32,
    pub comp_mask: u32,
}

#[repr(C)]
pub struct Dm {
    pub context: *mut Context,
    pub memcpy_to_dm: Option<unsafe extern "C" fn(*mut Dm, u64, *const c_void, usize) -> c_int>,
    pub memcpy_from_dm: Option<unsafe extern "C" fn(*mut c_void, *mut Dm, u64, usize) -> c_int>,
    pub comp_mask: u32,
    pub handle: u32,
}

#[repr(C)]
pub struct Mw {
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub rkey: u32,
    pub handle: u32,
    pub kind: u32,
}

#[repr(C)]
pub struct Ah {
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub handle: u32,
}

#[repr(C)]
pub struct Xrcd {
    pub context: *mut Context,
}

#[repr(C)]
pub struct CompChannel {
    pub context: *mut Context,
    pub fd: c_int,
    pub refcnt: c_int,
}

#[repr(C)]
pub struct Cq {
    pub context: *mut Context,
    pub channel: *mut CompChannel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
    pub mutex: [u64; 5],
    pub cond: [u64; 6],
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
}

#[repr(C)]
pub struct CqEx {
    pub base: Cq,
    pub comp_mask: u32,
    pub status: u32,
    pub wr_id: u64,
    pub start_poll: Option<unsafe extern "C" fn(*mut CqEx, *mut u32) -> c_int>,
    pub next_poll: Option<unsafe extern "C" fn(*mut CqEx) -> c_int>,
    pub end_poll: Option<unsafe extern "C" fn(*mut CqEx)>,
    pub read_opcode: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub read_vendor_err: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub read_byte_len: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub read_imm_data: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub read_qp_num: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub read_src_qp: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub read_wc_flags: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub read_slid: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub read_sl: Option<unsafe extern "C" fn(*mut CqEx) -> u8>,
    pub read_dlid_path_bits: Option<unsafe extern "C" fn(*mut CqEx) -> u8>,
    pub read_completion_ts: Option<unsafe extern "C" fn(*mut CqEx) -> u64>,
    pub unused: [Slot; 3],
    pub read_completion_wallclock_ns: Option<unsafe extern "C" fn(*mut CqEx) -> u64>,
}

#[repr(C)]
pub struct CqInitAttrEx {
    pub cqe: u32,
    pub cq_context: *mut c_void,
    pub channel: *mut CompChannel,
    pub comp_vector: u32,
    pub wc_flags: u64,
    pub comp_mask: u32,
    pub flags: u32,
    pub parent_domain: *mut Pd,
}

#[repr(C)]
pub struct ModifyCqAttr {
    pub attr_mask: u32,
    pub cq_count: u16,
    pub cq_period: u16,
}

#[repr(C)]
pub struct ValuesEx {
    pub comp_mask: u32,
    pub raw_clock: libc::timespec,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Wc {
    pub wr_id: u64,
    pub status: u32,
    pub opcode: u32,
    pub vendor_err: u32,
    pub byte_len: u32,
    /// Immediate data in network order, or the invalidated key.
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: u32,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct QpInitAttr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    pub cap: QpCap,
    pub qp_type: u32,
    pub sq_sig_all: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct QpInitAttrEx {
    pub qp_context: *mut c_void,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    pub cap: QpCap,
    pub qp_type: u32,
    pub sq_sig_all: c_int,
    pub comp_mask: u32,
    pub pd: *mut Pd,
    pub xrcd: *mut Xrcd,
    pub create_flags: u32,
    pub max_tso_header: u16,
    pub rwq_ind_tbl: *mut c_void,
    pub rx_hash_conf: [u64; 3],
    pub source_qpn: u32,
    pub send_ops_flags: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct QpAttr {
    pub qp_state: u32,
    pub cur_qp_state: u32,
    pub path_mtu: u32,
    pub path_mig_state: u32,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: u32,
    pub cap: QpCap,
    pub ah_attr: AhAttr,
    pub alt_ah_attr: AhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

#[repr(C)]
pub struct Qp {
    pub context: *mut Context,
    pub qp_context: *mut c_void,
    pub pd: *mut Pd,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    pub handle: u32,
    pub qp_num: u32,
    pub state: u32,
    pub qp_type: u32,
    pub mutex: [u64; 5],
    pub cond: [u64; 6],
    pub events_completed: u32,
}

/// Builders and setters of extended posting.
#[repr(C)]
pub struct QpEx {
    pub qp_base: Qp,
    pub comp_mask: u64,
    pub wr_id: u64,
    pub wr_flags: u32,
    pub wr_atomic_cmp_swp: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u64, u64)>,
    pub wr_atomic_fetch_add: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u64)>,
    pub wr_bind_mw: Option<unsafe extern "C" fn(*mut QpEx, *mut Mw, u32, *const MwBindInfo)>,
    pub wr_local_inv: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
    pub wr_rdma_read: Option<unsafe extern "C" fn(*mut QpEx, u32, u64)>,
    pub wr_rdma_write: Option<unsafe extern "C" fn(*mut QpEx, u32, u64)>,
    pub wr_rdma_write_imm: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u32)>,
    pub wr_send: Option<unsafe extern "C" fn(*mut QpEx)>,
    pub wr_send_imm: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
    pub wr_send_inv: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
    pub wr_send_tso: Option<unsafe extern "C" fn(*mut QpEx, *mut c_void, u16, u16)>,
    pub wr_set_ud_addr: Option<unsafe extern "C" fn(*mut QpEx, *mut Ah, u32, u32)>,
    pub wr_set_xrc_srqn: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
    pub wr_set_inline_data: Option<unsafe extern "C" fn(*mut QpEx, *const c_void, usize)>,
    pub wr_set_inline_data_list: Option<unsafe extern "C" fn(*mut QpEx, usize, *const DataBuf)>,
    pub wr_set_sge: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u32)>,
    pub wr_set_sge_list: Option<unsafe extern "C" fn(*mut QpEx, usize, *const Sge)>,
    pub wr_start: Option<unsafe extern "C" fn(*mut QpEx)>,
    pub wr_complete: Option<unsafe extern "C" fn(*mut QpEx) -> c_int>,
    pub wr_abort: Option<unsafe extern "C" fn(*mut QpEx)>,
    pub wr_atomic_write: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, *const c_void)>,
}

/// `QpEx` with the field that rdma-core 47 and later append: present only if the queue pair was created with
/// [`create::WITH_FLUSH`].
#[repr(C)]
pub struct QpExWithFlush {
    pub base: QpEx,
    pub wr_flush: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, usize, u8, u8)>,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct SrqAttr {
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
}

#[repr(C)]
pub struct SrqInitAttr {
    pub srq_context: *mut c_void,
    pub attr: SrqAttr,
}

#[repr(C)]
pub struct SrqInitAttrEx {
    pub srq_context: *mut c_void,
    pub attr: SrqAttr,
    pub comp_mask: u32,
    pub srq_type: u32,
    pub pd: *mut Pd,
    pub xrcd: *mut Xrcd,
    pub cq: *mut Cq,
    pub tm_cap: [u32; 2],
}

#[repr(C)]
pub struct Srq {
    pub context: *mut Context,
    pub srq_context: *mut c_void,
    pub pd: *mut Pd,
    pub handle: u32,
    pub mutex: [u64; 5],
    pub cond: [u64; 6],
    pub events_completed: u32,
}

#[repr(C)]
pub struct XrcdInitAttr {
    pub comp_mask: u32,
    pub fd: c_int,
    pub oflags: c_int,
}

/// `ibv_sge`, which has the layout of this crate's own type.
pub type Sge = crate::types::Sge;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct MwBindInfo {
    pub mr: *mut Mr,
    pub addr: u64,
    pub length: u64,
    pub mw_access_flags: u32,
}

#[repr(C)]
pub struct DataBuf {
    pub addr: *mut c_void,
    pub length: usize,
}

#[repr(C)]
pub struct MwBind {
    pub wr_id: u64,
    pub send_flags: u32,
    pub bind_info: MwBindInfo,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct RdmaWr {
    pub remote_addr: u64,
    pub rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct AtomicWr {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct UdWr {
    pub ah: *mut Ah,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union WrUnion {
    pub rdma: RdmaWr,
    pub atomic: AtomicWr,
    pub ud: UdWr,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct BindWr {
    pub mw: *mut Mw,
    pub rkey: u32,
    pub bind_info: MwBindInfo,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct SendWr {
    pub wr_id: u64,
    pub next: *mut SendWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
    pub opcode: u32,
    pub send_flags: u32,
    /// Immediate data in network order, or the key to be invalidated.
    pub imm_data: u32,
    pub wr: WrUnion,
    pub remote_srqn: u32,
    pub bind_mw: BindWr,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct RecvWr {
    pub wr_id: u64,
    pub next: *mut RecvWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union EventElement {
    pub cq: *mut Cq,
    pub qp: *mut Qp,
    pub srq: *mut Srq,
    pub port_num: c_int,
}

#[repr(C)]
pub struct AsyncEvent {
    pub element: EventElement,
    pub event_type: u32,
}

/// Numbers of `ibv_wr_opcode`.
pub mod wr {
    pub const RDMA_WRITE: u32 = 0;
    pub const RDMA_WRITE_WITH_IMM: u32 = 1;
    pub const SEND: u32 = 2;
    pub const SEND_WITH_IMM: u32 = 3;
    pub const RDMA_READ: u32 = 4;
    pub const ATOMIC_CMP_AND_SWP: u32 = 5;
    pub const ATOMIC_FETCH_AND_ADD: u32 = 6;
    pub const LOCAL_INV: u32 = 7;
    pub const BIND_MW: u32 = 8;
    pub const SEND_WITH_INV: u32 = 9;
    pub const ATOMIC_WRITE: u32 = 15;
}

/// Bits of `ibv_qp_attr_mask`.
pub mod qp_attr {
    pub const STATE: u32 = 1;
    pub const CUR_STATE: u32 = 1 << 1;
    pub const EN_SQD_ASYNC_NOTIFY: u32 = 1 << 2;
    pub const ACCESS_FLAGS: u32 = 1 << 3;
    pub const PKEY_INDEX: u32 = 1 << 4;
    pub const PORT: u32 = 1 << 5;
    pub const QKEY: u32 = 1 << 6;
    pub const AV: u32 = 1 << 7;
    pub const PATH_MTU: u32 = 1 << 8;
    pub const TIMEOUT: u32 = 1 << 9;
    pub const RETRY_CNT: u32 = 1 << 10;
    pub const RNR_RETRY: u32 = 1 << 11;
    pub const RQ_PSN: u32 = 1 << 12;
    pub const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub const ALT_PATH: u32 = 1 << 14;
    pub const MIN_RNR_TIMER: u32 = 1 << 15;
    pub const SQ_PSN: u32 = 1 << 16;
    pub const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub const PATH_MIG_STATE: u32 = 1 << 18;
    pub const CAP: u32 = 1 << 19;
    pub const DEST_QPN: u32 = 1 << 20;
    pub const RATE_LIMIT: u32 = 1 << 25;
}

/// Bits of `ibv_qp_init_attr_mask` and `ibv_qp_create_send_ops_flags`.
pub mod create {
    pub const PD: u32 = 1;
    pub const XRCD: u32 = 1 << 1;
    pub const SEND_OPS_FLAGS: u32 = 1 << 6;

    pub const WITH_RDMA_WRITE: u64 = 1;
    pub const WITH_RDMA_WRITE_WITH_IMM: u64 = 1 << 1;
    pub const WITH_SEND: u64 = 1 << 2;
    pub const WITH_SEND_WITH_IMM: u64 = 1 << 3;
    pub const WITH_RDMA_READ: u64 = 1 << 4;
    pub const WITH_ATOMIC_CMP_AND_SWP: u64 = 1 << 5;
    pub const WITH_ATOMIC_FETCH_AND_ADD: u64 = 1 << 6;
    pub const WITH_LOCAL_INV: u64 = 1 << 7;
    pub const WITH_BIND_MW: u64 = 1 << 8;
    pub const WITH_SEND_WITH_INV: u64 = 1 << 9;
    pub const WITH_FLUSH: u64 = 1 << 11;
    pub const WITH_ATOMIC_WRITE: u64 = 1 << 12;
}
