//! State, attributes and GID table of a port.

use super::{Gid, Mtu};

/// State of a port. The numbers are those of `ibv_port_state`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
#[non_exhaustive]
pub enum PortState {
    /// The device does not report it.
    Unknown = 0,
    /// The interface is down.
    Down = 1,
    /// The link is up; the subnet manager has not configured the port yet.
    Initialize = 2,
    /// Configured, not yet active.
    Armed = 3,
    /// The interface is up.
    Active = 4,
    /// The link was lost for a moment.
    ActiveDeferred = 5,
}

impl PortState {
    /// Returns the standard's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "PORT_NOP",
            Self::Down => "PORT_DOWN",
            Self::Initialize => "PORT_INIT",
            Self::Armed => "PORT_ARMED",
            Self::Active => "PORT_ACTIVE",
            Self::ActiveDeferred => "PORT_ACTIVE_DEFER",
        }
    }
}

/// Lanes of a link. The numbers are those of `active_width` in `ibv_port_attr`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
#[non_exhaustive]
pub enum LinkWidth {
    /// One lane.
    X1 = 1,
    /// Four lanes.
    X4 = 2,
    /// Eight lanes.
    X8 = 4,
    /// Twelve lanes.
    X12 = 8,
    /// Two lanes.
    X2 = 16,
}

impl LinkWidth {
    /// All widths.
    pub const ALL: &[LinkWidth] = &[Self::X1, Self::X4, Self::X8, Self::X12, Self::X2];

    /// Returns the number of lanes.
    pub const fn lanes(self) -> u32 {
        match self {
            Self::X1 => 1,
            Self::X2 => 2,
            Self::X4 => 4,
            Self::X8 => 8,
            Self::X12 => 12,
        }
    }
}

/// Speed of each lane of a link. The numbers are those of `active_speed` in `ibv_port_attr`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u16)]
#[non_exhaustive]
pub enum LinkSpeed {
    /// Single data rate: 2.5 Gb/s per lane.
    Sdr = 1,
    /// Double data rate: 5 Gb/s per lane.
    Ddr = 2,
    /// Quad data rate: 10 Gb/s per lane.
    Qdr = 4,
    /// FDR10: 10 Gb/s per lane, with a more efficient line code.
    Fdr10 = 8,
    /// Fourteen data rate: 14 Gb/s per lane.
    Fdr = 16,
    /// Enhanced data rate: 25 Gb/s per lane.
    Edr = 32,
    /// High data rate: 50 Gb/s per lane.
    Hdr = 64,
    /// Next data rate: 100 Gb/s per lane.
    Ndr = 128,
    /// Extended data rate: 200 Gb/s per lane.
    Xdr = 256,
}

impl LinkSpeed {
    /// All speeds.
    pub const ALL: &[LinkSpeed] =
        &[Self::Sdr, Self::Ddr, Self::Qdr, Self::Fdr10, Self::Fdr, Self::Edr, Self::Hdr, Self::Ndr, Self::Xdr];

    /// Returns the speed of a lane in megabits per second.
    pub const fn megabits(self) -> u32 {
        match self {
            Self::Sdr => 2_500,
            Self::Ddr => 5_000,
            Self::Qdr | Self::Fdr10 => 10_000,
            Self::Fdr => 14_000,
            Self::Edr => 25_000,
            Self::Hdr => 50_000,
            Self::Ndr => 100_000,
            Self::Xdr => 200_000,
        }
    }
}

/// Link layer of a port. The numbers are those of `link_layer` in `ibv_port_attr`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
#[non_exhaustive]
pub enum LinkLayer {
    /// The device does not report it.
    Unspecified = 0,
    /// A subnet with LIDs and a subnet manager.
    InfiniBand = 1,
    /// Ethernet: RoCE or iWARP.
    Ethernet = 2,
}

impl LinkLayer {
    /// Returns its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unspecified => "unspecified",
            Self::InfiniBand => "InfiniBand",
            Self::Ethernet => "Ethernet",
        }
    }
}

/// Attributes of a port; names are those of `ibv_port_attr`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortAttributes {
    /// Current state.
    pub state: PortState,
    /// Largest path MTU that the device supports.
    pub max_mtu: Mtu,
    /// Largest path MTU that the link carries.
    pub active_mtu: Mtu,
    /// Number of entries of the GID table, unused ones included.
    pub gid_tbl_len: u32,
    /// Longest message in bytes.
    pub max_msg_sz: u32,
    /// Number of entries of the P_Key table.
    pub pkey_tbl_len: u16,
    /// Link layer.
    pub link_layer: LinkLayer,
    /// Local identifier of an InfiniBand port; 0 on Ethernet.
    pub lid: u16,
    /// Current width of the link.
    pub active_width: LinkWidth,
    /// Current speed of each lane.
    pub active_speed: LinkSpeed,
    /// LID mask control: the number of low LID bits that the port ignores. It has 2^lmc LIDs.
    pub lmc: u8,
    /// LID of the subnet manager.
    pub sm_lid: u16,
    /// Service level of packets to the subnet manager.
    pub sm_sl: u8,
    /// Whether every packet needs a global route header.
    pub grh_required: bool,
    /// Capabilities: the bits of `ibv_port_cap_flags`.
    pub port_cap_flags: u32,
    /// Number of virtual lanes, in the standard's encoding.
    pub max_vl_num: u8,
    /// Physical state of the link, in the standard's encoding: 5 is up.
    pub phys_state: u8,
    /// Number of packets with a wrong P_Key.
    pub bad_pkey_cntr: u32,
    /// Number of packets with a wrong Q_Key.
    pub qkey_viol_cntr: u32,
}

impl PortAttributes {
    /// Creates the attributes of an Ethernet port with minimal limits, to be filled in by a provider.
    pub const fn ethernet(state: PortState) -> Self {
        Self {
            state,
            max_mtu: Mtu::Mtu4096,
            active_mtu: Mtu::Mtu256,
            gid_tbl_len: 0,
            max_msg_sz: 0,
            pkey_tbl_len: 1,
            link_layer: LinkLayer::Ethernet,
            lid: 0,
            active_width: LinkWidth::X1,
            active_speed: LinkSpeed::Sdr,
            lmc: 0,
            sm_lid: 0,
            sm_sl: 0,
            grh_required: false,
            port_cap_flags: 0,
            max_vl_num: 1,
            phys_state: match state {
                PortState::Active => 5,
                _ => 3,
            },
            bad_pkey_cntr: 0,
            qkey_viol_cntr: 0,
        }
    }
}

/// An entry of a port's GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GidEntry {
    /// The GID.
    pub gid: Gid,
    /// Its index in the table.
    pub gid_index: u8,
    /// Type of the packets that use it.
    pub gid_type: GidType,
    /// Index of the network interface; 0: unknown.
    pub ndev_ifindex: u32,
}

impl GidEntry {
    /// Creates an entry for RoCE v2 packets of an unknown interface, to be completed by a provider.
    pub const fn new(gid: Gid, gid_index: u8) -> Self {
        Self { gid, gid_index, gid_type: GidType::RoceV2, ndev_ifindex: 0 }
    }
}

/// Type of the packets that use an entry of the GID table. The numbers are those of `ibv_gid_type`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u32)]
#[non_exhaustive]
pub enum GidType {
    /// InfiniBand packets.
    InfiniBand = 0,
    /// Ethernet frames without IP, which no router forwards.
    RoceV1 = 1,
    /// UDP over IP.
    #[default]
    RoceV2 = 2,
}

impl GidType {
    /// Returns its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::InfiniBand => "InfiniBand",
            Self::RoceV1 => "RoCE v1",
            Self::RoceV2 => "RoCE v2",
        }
    }
}
