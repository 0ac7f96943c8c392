//! Conversions between the library's structures and this crate's.

use super::sys;
use crate::types::{
    AccessFlags, AddressVector, AtomicCapability, DeviceAttributes, DeviceCapabilities, Gid, GidEntry, GidType,
    LinkLayer, LinkSpeed, LinkWidth, Mtu, OnDemandCapabilities, OnDemandOperations, OnDemandSupport, PortAttributes,
    PortState, QueuePairCapabilities, Transport, VendorIdentity,
};

/// Converts a count; a negative one becomes 0.
fn count(number: i32) -> u32 {
    number.try_into().unwrap_or(0)
}

fn byte(number: i32) -> u8 {
    number.clamp(0, u8::MAX.into()) as u8
}

fn transport(context: &sys::Context) -> Transport {
    // `ibv_transport_type`; RNIC is the node type of iWARP.
    match (context.info().transport_type, context.info().node_type) {
        (1, _) | (_, 4) => Transport::Iwarp,
        (0, _) => Transport::InfiniBand,
        _ => Transport::Other,
    }
}

pub(super) fn device(from: &sys::DeviceAttrEx, context: &sys::Context) -> DeviceAttributes {
    let basic = &from.orig_attr;
    let fw_ver = basic.fw_ver.iter().map(|character| *character as u8).take_while(|byte| *byte != 0);
    let flags = u64::from(basic.device_cap_flags) | from.device_cap_flags_ex;
    let capabilities = DeviceCapabilities::from_bits_truncate(flags);
    let mut supported_access = AccessFlags::LOCAL_WRITE
        | AccessFlags::REMOTE_WRITE
        | AccessFlags::REMOTE_READ
        | AccessFlags::ZERO_BASED
        | AccessFlags::HUGETLB
        | AccessFlags::RELAXED_ORDERING;
    supported_access.set(AccessFlags::REMOTE_ATOMIC, basic.atomic_cap != 0);
    supported_access.set(AccessFlags::MEMORY_WINDOW_BIND, basic.max_mw > 0);
    supported_access.set(AccessFlags::ON_DEMAND, from.odp_general_caps & 1 != 0);
    supported_access.set(AccessFlags::FLUSH_GLOBAL, capabilities.contains(DeviceCapabilities::FLUSH_GLOBAL));
    supported_access.set(AccessFlags::FLUSH_PERSISTENT, capabilities.contains(DeviceCapabilities::FLUSH_PERSISTENT));
    let ports = if from.phys_port_cnt_ex > 0 { from.phys_port_cnt_ex } else { basic.phys_port_cnt.into() };
    DeviceAttributes {
        transport: transport(context),
        fw_ver: String::from_utf8_lossy(&fw_ver.collect::<Vec<u8>>()).into_owned(),
        node_guid: u64::from_be(basic.node_guid),
        sys_image_guid: u64::from_be(basic.sys_image_guid),
        vendor: VendorIdentity {
            vendor_id: basic.vendor_id,
            vendor_part_id: basic.vendor_part_id,
            hw_ver: basic.hw_ver,
        },
        max_mr_size: basic.max_mr_size,
        page_size_cap: basic.page_size_cap,
        max_qp: count(basic.max_qp),
        max_qp_wr: count(basic.max_qp_wr),
        max_sge: count(basic.max_sge),
        max_sge_rd: count(basic.max_sge_rd),
        max_cq: count(basic.max_cq),
        max_cqe: count(basic.max_cqe),
        max_mr: count(basic.max_mr),
        max_mw: count(basic.max_mw),
        device_cap_flags: capabilities,
        max_pd: count(basic.max_pd),
        max_srq: count(basic.max_srq),
        max_srq_wr: count(basic.max_srq_wr),
        max_srq_sge: count(basic.max_srq_sge),
        max_ah: count(basic.max_ah),
        max_mcast_grp: count(basic.max_mcast_grp),
        max_mcast_qp_attach: count(basic.max_mcast_qp_attach),
        max_total_mcast_qp_attach: count(basic.max_total_mcast_qp_attach),
        max_qp_rd_atom: byte(basic.max_qp_rd_atom),
        max_qp_init_rd_atom: byte(basic.max_qp_init_rd_atom),
        atomic_cap: match basic.atomic_cap {
            0 => AtomicCapability::None,
            1 => AtomicCapability::Device,
            _ => AtomicCapability::Global,
        },
        max_pkeys: basic.max_pkeys,
        local_ca_ack_delay: basic.local_ca_ack_delay,
        phys_port_cnt: ports.try_into().unwrap_or(u8::MAX),
        supported_access,
        odp_caps: on_demand(from),
        max_dm_size: from.max_dm_size,
        num_comp_vectors: context.num_comp_vectors(),
        completion_timestamp_mask: from.completion_timestamp_mask,
        hca_core_clock_khz: from.hca_core_clock,
        max_cq_count: from.max_cq_count,
        max_cq_period: from.max_cq_period,
        invalidatable_regions: false,
        ..DeviceAttributes::empty()
    }
}

fn on_demand(from: &sys::DeviceAttrEx) -> OnDemandCapabilities {
    let [rc, uc, ud] = from.odp_transport_caps.map(OnDemandOperations::from_bits_truncate);
    OnDemandCapabilities {
        general: OnDemandSupport::from_bits_truncate(from.odp_general_caps),
        rc,
        uc,
        ud,
        xrc: OnDemandOperations::from_bits_truncate(from.xrc_odp_caps),
    }
}

/// Returns the speed in the wider field, where there is one: the other ends with NDR.
fn speed(from: &sys::PortAttrWithSpeed) -> LinkSpeed {
    let code = if from.active_speed_ex != 0 { from.active_speed_ex } else { from.base.active_speed.into() };
    LinkSpeed::ALL.iter().copied().find(|speed| u32::from(*speed as u16) == code).unwrap_or(LinkSpeed::Sdr)
}

fn mtu(code: u32) -> Mtu {
    u8::try_from(code).ok().and_then(Mtu::from_code).unwrap_or(Mtu::Mtu256)
}

pub(super) fn port(port: &sys::PortAttrWithSpeed) -> PortAttributes {
    let from = &port.base;
    let state = match from.state {
        1 => PortState::Down,
        2 => PortState::Initialize,
        3 => PortState::Armed,
        4 => PortState::Active,
        5 => PortState::ActiveDeferred,
        _ => PortState::Unknown,
    };
    PortAttributes {
        state,
        max_mtu: mtu(from.max_mtu),
        active_mtu: mtu(from.active_mtu),
        gid_tbl_len: count(from.gid_tbl_len),
        max_msg_sz: from.max_msg_sz,
        pkey_tbl_len: from.pkey_tbl_len,
        link_layer: match from.link_layer {
            1 => LinkLayer::InfiniBand,
            2 => LinkLayer::Ethernet,
            // Old kernels do not report the link layer of InfiniBand adapters' ports.
            _ if from.lid != 0 => LinkLayer::InfiniBand,
            _ => LinkLayer::Unspecified,
        },
        lid: from.lid,
        lmc: from.lmc,
        sm_lid: from.sm_lid,
        sm_sl: from.sm_sl,
        grh_required: from.flags & 1 != 0,
        port_cap_flags: from.port_cap_flags,
        max_vl_num: from.max_vl_num,
        active_width: LinkWidth::ALL
            .iter()
            .copied()
            .find(|width| *width as u8 == from.active_width)
            .unwrap_or(LinkWidth::X1),
        active_speed: speed(port),
        phys_state: from.phys_state,
        bad_pkey_cntr: from.bad_pkey_cntr,
        qkey_viol_cntr: from.qkey_viol_cntr,
    }
}

pub(super) fn gid(from: &sys::GidEntry, gid_index: u8) -> GidEntry {
    GidEntry {
        gid: Gid::from_bytes(from.gid.0),
        gid_index,
        gid_type: match from.gid_type {
            1 => GidType::RoceV1,
            2 => GidType::RoceV2,
            _ => GidType::InfiniBand,
        },
        ndev_ifindex: from.ndev_ifindex,
    }
}

/// Converts an address vector. Without a GID the packets have no global route header, which only LIDs allow.
pub(super) fn address(from: &AddressVector) -> sys::AhAttr {
    sys::AhAttr {
        dgid: sys::Gid(from.dgid.to_bytes()),
        flow_label: from.flow_label,
        sgid_index: from.sgid_index,
        hop_limit: if from.hop_limit == 0 { 64 } else { from.hop_limit },
        traffic_class: from.traffic_class,
        dlid: from.dlid,
        sl: from.sl,
        src_path_bits: 0,
        static_rate: 0,
        is_global: (!from.dgid.is_zero()).into(),
        port_num: from.port_num,
    }
}

pub(super) fn cap(from: QueuePairCapabilities) -> sys::QpCap {
    let QueuePairCapabilities { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } = from;
    sys::QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
}

pub(super) fn capabilities(from: sys::QpCap) -> QueuePairCapabilities {
    let sys::QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } = from;
    QueuePairCapabilities { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
}
