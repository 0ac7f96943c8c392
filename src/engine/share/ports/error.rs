//! Errors of binding a port and of listening.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use crate::wire::mad::PortSpace;

/// The requested port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Requested {
    pub(crate) space: PortSpace,
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
}

/// A binding in conflict with the requested one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Holder {
    pub(crate) address: IpAddr,
    /// Process ID, if it is known; of another container's process, its number there.
    pub(crate) process: Option<u32>,
}

/// Why a port is not bound, or a bound one does not listen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum PortError {
    /// The same address is bound.
    #[error(
        "{requested} is in use by {holder}: choose another port or address, or set the reuse flag of both \
             before either listens"
    )]
    InUse { requested: Requested, holder: Holder },
    /// The same loopback address is bound. Linux has the error number of a wildcard for it.
    #[error(
        "{requested} is in use by {holder}: choose another port or address, or set the reuse flag of both \
             before either listens"
    )]
    LoopbackInUse { requested: Requested, holder: Holder },
    /// A wildcard is bound, or requested while an address is bound.
    #[error(
        "{requested} is not available, because {holder} has the port and one of the two is bound to all \
             addresses: choose another port, or bind both to different addresses"
    )]
    NotAvailable { requested: Requested, holder: Holder },
    /// The port is for privileged processes.
    #[error(
        "{requested} needs CAP_NET_BIND_SERVICE: choose a port from {first_unprivileged} on, or lower \
             net.ipv4.ip_unprivileged_port_start"
    )]
    Permission { requested: Requested, first_unprivileged: u16 },
    /// Too many owners share the port.
    #[error(
        "{requested} has {limit} owners, which is the limit; a listener on all addresses is one for each device: \
             choose another port, or listen on fewer devices"
    )]
    TooManyOwners { requested: Requested, limit: usize },
    /// All ports of the system's range are bound.
    #[error("{requested}: all ports from {} to {} are bound: choose a port, or widen net.ipv4.ip_local_port_range",
            range.start(), range.end())]
    NoneFree { requested: Requested, range: RangeInclusive<u16> },
    /// The system refused something.
    #[error("the port cannot be bound: {0}")]
    System(#[from] io::Error),
}

impl PortError {
    /// Returns the error number, which is that of `rdma_bind_addr` and `rdma_listen` on Linux.
    pub(crate) fn errno(&self) -> i32 {
        match self {
            Self::InUse { .. } => libc::EADDRINUSE,
            Self::LoopbackInUse { .. }
            | Self::NotAvailable { .. }
            | Self::TooManyOwners { .. }
            | Self::NoneFree { .. } => libc::EADDRNOTAVAIL,
            Self::Permission { .. } => libc::EACCES,
            Self::System(error) => error.raw_os_error().unwrap_or(libc::EINVAL),
        }
    }
}

impl fmt::Display for Requested {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let space = match self.space {
            PortSpace::Ipoib => "IPOIB",
            PortSpace::Tcp => "TCP",
            PortSpace::Udp => "UDP",
            PortSpace::Ib => "IB",
        };
        write!(f, "port {} of {} in the port space {space}", self.port, self.address)
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.process {
            Some(process) => write!(f, "process {process} ({})", self.address),
            None => write!(f, "another process ({})", self.address),
        }
    }
}

impl From<PortError> for io::Error {
    fn from(error: PortError) -> Self {
        match error {
            PortError::System(error) => error,
            other => Self::from_raw_os_error(other.errno()),
        }
    }
}
