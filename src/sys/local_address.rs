//! An address of this machine, as sockets are bound to it.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

/// A local address, with the scope that the kernel needs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct LocalAddress {
    /// The address.
    pub(crate) ip: IpAddr,
    /// Index of the interface, if the address is only valid there (IPv6 link-local); otherwise 0.
    pub(crate) scope: u32,
}

impl LocalAddress {
    /// Returns a socket address of the same scope.
    pub(crate) fn socket_address(&self, ip: IpAddr, port: u16) -> SocketAddr {
        match ip {
            IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, self.scope).into(),
            IpAddr::V4(_) => SocketAddr::new(ip, port),
        }
    }
}
