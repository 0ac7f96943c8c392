//! The public structures of `rdma/rdma_cma.h`: the provider over libibverbs reads them, and `capi` creates them. They
//! are the same in all versions of rdma-core from 34 on; newer ones add members to the last union of [`Event`] only.

use std::ffi::{c_char, c_int, c_void};

use super::{AhAttr, CompChannel, Context, Cq, Gid, Pd, Qp, Srq};

#[repr(C)]
pub struct EventChannel {
    pub fd: c_int,
}

#[repr(C)]
pub struct Id {
    pub verbs: *mut Context,
    pub channel: *mut EventChannel,
    pub context: *mut c_void,
    pub qp: *mut Qp,
    pub route: Route,
    pub ps: u32,
    pub port_num: u8,
    pub event: *mut Event,
    pub send_cq_channel: *mut CompChannel,
    pub send_cq: *mut Cq,
    pub recv_cq_channel: *mut CompChannel,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    pub pd: *mut Pd,
    pub qp_type: u32,
}

#[repr(C)]
pub struct Route {
    pub addr: Addr,
    pub path_rec: *mut PathRecord,
    pub num_paths: c_int,
}

/// The addresses of an identifier. Each of the first two is of the family that it begins with.
#[repr(C)]
pub struct Addr {
    pub src_addr: libc::sockaddr_storage,
    pub dst_addr: libc::sockaddr_storage,
    pub ibaddr: IbAddr,
}

#[repr(C)]
pub struct IbAddr {
    pub sgid: Gid,
    pub dgid: Gid,
    pub pkey: u16,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ConnParam {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct UdParam {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub ah_attr: AhAttr,
    pub qp_num: u32,
    pub qkey: u32,
}

/// The port space of the event's identifier decides which one is valid.
#[repr(C)]
#[derive(Clone, Copy)]
pub union Param {
    pub conn: ConnParam,
    pub ud: UdParam,
}

#[repr(C)]
pub struct Event {
    pub id: *mut Id,
    pub listen_id: *mut Id,
    pub event: u32,
    pub status: c_int,
    pub param: Param,
}

/// `ibv_sa_path_rec` of `infiniband/sa.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PathRecord {
    pub dgid: Gid,
    pub sgid: Gid,
    pub dlid: u16,
    pub slid: u16,
    pub raw_traffic: c_int,
    pub flow_label: u32,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub reversible: c_int,
    pub numb_path: u8,
    pub pkey: u16,
    pub sl: u8,
    pub mtu_selector: u8,
    pub mtu: u8,
    pub rate_selector: u8,
    pub rate: u8,
    pub packet_life_time_selector: u8,
    pub packet_life_time: u8,
    pub preference: u8,
}

#[repr(C)]
pub struct AddrInfo {
    pub ai_flags: c_int,
    pub ai_family: c_int,
    pub ai_qp_type: c_int,
    pub ai_port_space: c_int,
    pub ai_src_len: u32,
    pub ai_dst_len: u32,
    pub ai_src_addr: *mut libc::sockaddr,
    pub ai_dst_addr: *mut libc::sockaddr,
    pub ai_src_canonname: *mut c_char,
    pub ai_dst_canonname: *mut c_char,
    pub ai_route_len: usize,
    pub ai_route: *mut c_void,
    pub ai_connect_len: usize,
    pub ai_connect: *mut c_void,
    pub ai_next: *mut AddrInfo,
}

#[repr(C)]
pub struct JoinMcAttrEx {
    pub comp_mask: u32,
    pub join_flags: u32,
    pub addr: *mut libc::sockaddr,
}

/// `ibv_ece` of `infiniband/verbs.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Ece {
    pub vendor_id: u32,
    pub options: u32,
    pub comp_mask: u32,
}
