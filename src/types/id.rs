//! Identifiers: queue pair numbers, packet sequence numbers, keys, GIDs.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const MASK_24: u32 = 0x00ff_ffff;

/// Queue pair number: 24 bits. 0 is reserved, 1 is the general services queue pair, 0xffffff means multicast.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(transparent)]
pub struct Qpn(u32);

impl Qpn {
    /// The general services queue pair, which carries the connection manager's datagrams.
    pub const GENERAL_SERVICES: Qpn = Qpn(1);
    /// Destination of multicast datagrams.
    pub const MULTICAST: Qpn = Qpn(MASK_24);

    /// Creates the queue pair number with the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value & MASK_24)
    }

    /// Returns the number, at most 24 bits.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// Returns the block of 4,096 numbers that this one belongs to: its top 12 bits.
    pub const fn block(self) -> u32 {
        self.0 >> 12
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qpn({:#08x})", self.0)
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// Packet sequence number: 24 bits, arithmetic modulo 2^24.
///
/// Deliberately not `Ord`: whether a number precedes another depends on a window; see [`Psn::distance_from`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct Psn(u32);

impl Psn {
    /// Creates the sequence number with the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value & MASK_24)
    }

    /// Returns the number, at most 24 bits.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// Returns the number `count` packets later.
    #[must_use]
    pub const fn plus(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count) & MASK_24)
    }

    /// Returns the number `count` packets earlier.
    #[must_use]
    pub const fn minus(self, count: u32) -> Self {
        Self(self.0.wrapping_sub(count) & MASK_24)
    }

    /// Returns the signed distance in packets from `earlier` to this number, in -2^23 ..= 2^23 - 1.
    pub const fn distance_from(self, earlier: Psn) -> i32 {
        ((self.0.wrapping_sub(earlier.0) << 8) as i32) >> 8
    }

    /// Returns the number of packets from `earlier` to the one before this number; 0 if this number is the earlier one.
    pub(crate) const fn packets_since(self, earlier: Psn) -> u32 {
        let distance = self.distance_from(earlier);
        if distance < 0 { 0 } else { distance as u32 }
    }

    /// Returns whether this number lies in the window of `count` packets that starts at `first`.
    pub const fn is_within(self, first: Psn, count: u32) -> bool {
        self.0.wrapping_sub(first.0) & MASK_24 < count
    }

    /// Returns whether this number comes before `other`, within half the number space.
    pub const fn is_before(self, other: Psn) -> bool {
        self.distance_from(other) < 0
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psn({:#08x})", self.0)
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// Number of a completion queue, unique among the live ones of its device. Events identify the queue by it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
#[repr(transparent)]
pub struct CompletionQueueNumber(u32);

impl CompletionQueueNumber {
    /// Creates the number with this value; for providers.
    pub const fn new(value: u32) -> Self {
        Self(value)
    }

    /// Returns the number.
    pub const fn value(self) -> u32 {
        self.0
    }
}

impl fmt::Display for CompletionQueueNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

macro_rules! key {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(pub u32);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#010x})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#010x}", self.0)
            }
        }
    };
}

key! {
    /// Local key of a memory region: identifies it in the scatter-gather entries of local requests.
    Lkey
}
key! {
    /// Remote key of a memory region or window: identifies it in the requests of a peer.
    Rkey
}
key! {
    /// Queue key: a datagram is accepted only with the key of the receiving queue pair.
    Qkey
}

/// Protection domain number: regions and queue pairs work together only within one domain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct DomainId(pub u32);

/// The party that accesses memory by a key: a queue pair, in its protection domain.
///
/// A domain alone converts into an accessor without a queue pair, which reaches all memory not bound to one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Accessor {
    /// The protection domain.
    pub domain: DomainId,
    /// The queue pair, or 0 for none.
    pub queue_pair: Qpn,
}

impl From<DomainId> for Accessor {
    fn from(domain: DomainId) -> Self {
        Self { domain, queue_pair: Qpn::default() }
    }
}

/// Global identifier of a port: an IPv6 address, or an IPv4 address mapped into one (`::ffff:a.b.c.d`; IBTA A17.4.1.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(transparent)]
pub struct Gid([u8; 16]);

impl Gid {
    /// The unset GID, all zero.
    pub const ZERO: Gid = Gid([0; 16]);

    /// Creates the GID with these bytes, in network order.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Returns the 16 bytes in network order.
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// Returns the IP address that the GID stands for.
    pub fn to_ip(self) -> IpAddr {
        let address = Ipv6Addr::from(self.0);
        match address.to_ipv4_mapped() {
            Some(mapped) => IpAddr::V4(mapped),
            None => IpAddr::V6(address),
        }
    }

    /// Returns whether the GID is that of a multicast group: `ff00::/8`, or a mapped IPv4 group (224.0.0.0/4).
    pub fn is_multicast(self) -> bool {
        self.to_ip().is_multicast()
    }

    /// Returns whether no address is set.
    pub fn is_zero(self) -> bool {
        self == Self::ZERO
    }
}

impl From<IpAddr> for Gid {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => address.into(),
        }
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(address: Ipv4Addr) -> Self {
        Self(address.to_ipv6_mapped().octets())
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(address: Ipv6Addr) -> Self {
        Self(address.octets())
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({})", Ipv6Addr::from(self.0))
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psn_arithmetic_wraps_at_24_bits() {
        let last = Psn::new(0xff_ffff);
        assert_eq!(last.plus(1), Psn::new(0));
        assert_eq!(Psn::new(0).minus(1), last);
        assert_eq!(Psn::new(0).distance_from(last), 1);
        assert_eq!(last.distance_from(Psn::new(0)), -1);
        assert_eq!(Psn::new(0x80_0000).distance_from(Psn::new(0)), -(1 << 23));
        assert_eq!(Psn::new(0x7f_ffff).distance_from(Psn::new(0)), (1 << 23) - 1);
        assert!(last.is_before(Psn::new(5)));
        assert!(Psn::new(2).is_within(Psn::new(0xff_fffe), 5));
        assert!(!Psn::new(3).is_within(Psn::new(0xff_fffe), 5));
    }

    #[test]
    fn gid_maps_ipv4_addresses() {
        let address = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
        assert_eq!(Gid::from(address).to_ip(), address);
        assert_eq!(Gid::from(address).to_string(), "::ffff:192.0.2.1");
        let address: IpAddr = "2001:db8::1".parse().unwrap();
        assert_eq!(Gid::from(address).to_ip(), address);
    }
}
