//! What a port is and can do.

use super::{Gid, Mtu};

/// State of a port. The numbers are those of `ibv_port_state`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum PortState {
    /// The interface is down.
    Down = 1,
    /// The interface is up.
    Active = 4,
}

/// Lanes of a link. The numbers are those of `active_width` in `ibv_port_attr`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
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
    pub const ALL: [LinkWidth; 5] = [Self::X1, Self::X4, Self::X8, Self::X12, Self::X2];

    /// How many lanes.
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
pub enum LinkSpeed {
    /// Single data rate: 2.5 Gb/s a lane.
    Sdr = 1,
    /// Double data rate: 5 Gb/s a lane.
    Ddr = 2,
    /// Quad data rate: 10 Gb/s a lane.
    Qdr = 4,
    /// FDR10: 10 Gb/s a lane, with the better line code.
    Fdr10 = 8,
    /// Fourteen data rate: 14 Gb/s a lane.
    Fdr = 16,
    /// Enhanced data rate: 25 Gb/s a lane.
    Edr = 32,
    /// High data rate: 50 Gb/s a lane.
    Hdr = 64,
    /// Next data rate: 100 Gb/s a lane.
    Ndr = 128,
    /// Extended data rate: 200 Gb/s a lane.
    Xdr = 256,
}

impl LinkSpeed {
    /// All speeds.
    pub const ALL: [LinkSpeed; 9] =
        [Self::Sdr, Self::Ddr, Self::Qdr, Self::Fdr10, Self::Fdr, Self::Edr, Self::Hdr, Self::Ndr, Self::Xdr];

    /// Megabits per second of a lane.
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

/// What a port's packets travel on. The numbers are those of `link_layer` in `ibv_port_attr`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum LinkLayer {
    /// InfiniBand: peers have LIDs.
    InfiniBand = 1,
    /// Ethernet (RoCE): peers have GIDs only.
    Ethernet = 2,
}

/// Attributes of a port; names are those of `ibv_port_attr`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortAttributes {
    /// Whether it works now.
    pub state: PortState,
    /// Largest path MTU that the device knows.
    pub max_mtu: Mtu,
    /// Largest path MTU that the link carries.
    pub active_mtu: Mtu,
    /// Entries of the GID table, the unused ones included.
    pub gid_tbl_len: u32,
    /// Longest message in bytes.
    pub max_msg_sz: u32,
    /// Entries of the P_Key table.
    pub pkey_tbl_len: u16,
    /// What it is connected to.
    pub link_layer: LinkLayer,
    /// Local identifier of an InfiniBand port; 0 on Ethernet.
    pub lid: u16,
    /// Lanes of the link as it runs now.
    pub active_width: LinkWidth,
    /// Speed of each of them.
    pub active_speed: LinkSpeed,
}

/// An entry of a port's GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The GID.
    pub gid: Gid,
    /// Its place in the table.
    pub gid_index: u8,
    /// Number of the network interface; 0: unknown.
    pub ndev_ifindex: u32,
}
