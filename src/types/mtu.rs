//! Path MTU: how much payload one packet of a message carries.

use std::fmt;

/// Payload bytes of a full packet (IBTA 5.2.13), with the standard's code as its discriminant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    Mtu256 = 1,
    /// 512 bytes.
    Mtu512 = 2,
    /// 1,024 bytes: the largest that an Ethernet link of 1,500 bytes carries.
    #[default]
    Mtu1024 = 3,
    /// 2,048 bytes.
    Mtu2048 = 4,
    /// 4,096 bytes: the maximum of RoCE.
    Mtu4096 = 5,
}

impl Mtu {
    /// All values, ascending.
    pub const ALL: &[Mtu] = &[Mtu::Mtu256, Mtu::Mtu512, Mtu::Mtu1024, Mtu::Mtu2048, Mtu::Mtu4096];

    /// Returns the size in bytes.
    pub const fn bytes(self) -> u32 {
        128 << self as u8
    }

    /// Returns the MTU of exactly `size` bytes.
    pub fn from_size(size: u32) -> Option<Self> {
        Self::ALL.iter().copied().find(|mtu| mtu.bytes() == size)
    }

    /// Returns the MTU with the standard's code, 1 to 5.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.iter().copied().find(|mtu| *mtu as u8 == code)
    }

    /// Returns the largest MTU whose packets, with `overhead_bytes` of headers, fit a link of `link_mtu_bytes`; never
    /// less than 256.
    pub fn largest_within(link_mtu_bytes: u32, overhead_bytes: u32) -> Self {
        let room = link_mtu_bytes.saturating_sub(overhead_bytes);
        Self::ALL.iter().copied().rev().find(|mtu| mtu.bytes() <= room).unwrap_or(Mtu::Mtu256)
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}
