//! The connection manager of a device: connections by address and port, as `rdma_cm` sets them up.
//!
//! It exchanges the facts that both ends need, and its events require state changes of queue pairs; it does not touch
//! queue pairs. [`verbs::cm`](crate::verbs::cm) does both.
#![forbid(unsafe_code)]

use std::any::Any;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::{Error, ErrorKind, Result};
use crate::types::{Gid, Mtu, PeerCapabilities, PeerKey, Psn, Qkey, Qpn};
pub use crate::wire::mad::{ConnectionTransport, PortSpace, RejectReason, ServiceIdStatus, VendorId, VendorOptions};

/// One end of a connection, as its request or its reply describes it to the other end.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct ConnectionEnd {
    /// Its queue pair.
    pub qpn: Qpn,
    /// The number of the first packet that the *other* end sends, which is this end's `rq_psn`.
    pub starting_psn: Psn,
    /// Maximum number of READs and atomics that it serves at once.
    pub responder_resources: u8,
    /// Maximum number of READs and atomics that it has outstanding.
    pub initiator_depth: u8,
    /// Its receive queue reports credits.
    pub flow_control: bool,
    /// Number of retries of the other end while it is not ready to receive, 0 to 7; 7 means without limit.
    pub rnr_retry_count: u8,
    /// Its queue pair has a shared receive queue.
    pub has_srq: bool,
    /// Code of the longest time from the arrival of a packet to its acknowledgement; only the passive end tells it.
    pub ack_delay: u8,
    /// Capabilities beyond the standard. An end that has some is native: if the device describes the other end with a
    /// key, the queue pair of this end uses it, with the other end's capabilities. A device without keys ignores them.
    pub capabilities: PeerCapabilities,
    /// Options of a vendor that both ends agree on (ECE). A reply may have those of the request's vendor only.
    /// [`Unsupported`](super::ErrorKind::Unsupported) for adapters if it names one.
    pub vendor_options: VendorOptions,
    /// The key of the connection, in the device's description of a native peer; `None` in that of this end.
    pub key: Option<PeerKey>,
    /// Data of the application. A request carries 56 bytes, a reply 196; the receiver gets all of them, with zeros
    /// after the data.
    pub private_data: Vec<u8>,
}

/// The private data may contain secrets of applications.
impl std::fmt::Debug for ConnectionEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnectionEnd")
            .field("qpn", &self.qpn)
            .field("responder_resources", &self.responder_resources)
            .field("initiator_depth", &self.initiator_depth)
            .field("private_data", &self.private_data.len())
            .finish_non_exhaustive()
    }
}

/// The path of a connection, which the active end determines for both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionPath {
    /// Address and port of this end.
    pub local: SocketAddr,
    /// Address and port of the other end.
    pub remote: SocketAddr,
    /// GID of the other end, where packets go.
    pub remote_gid: Gid,
    /// GID of this end.
    pub local_gid: Gid,
    /// Type of service byte (IPv6: traffic class).
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Time to live.
    pub hop_limit: u8,
    /// Path MTU of both queue pairs.
    pub path_mtu: Mtu,
    /// Number of retries after timeouts, 0 to 7, of both queue pairs.
    pub retry_count: u8,
    /// Code of the transport timeout, 0 to 31: for the passive end's queue pair.
    pub ack_timeout: u8,
}

impl ConnectionPath {
    /// Returns the code of the transport timeout of the active end's queue pair: the time for a packet is that of the
    /// request, and the reply has the peer's delay.
    ///
    /// ```
    /// use rdma_verbs::provider::{ConnectionPath, combined_ack_timeout};
    /// use rdma_verbs::types::{Gid, Mtu};
    ///
    /// let (local, remote) = ("192.0.2.1:0".parse()?, "192.0.2.2:7471".parse()?);
    /// let path = ConnectionPath {
    ///     local,
    ///     remote,
    ///     remote_gid: Gid::default(),
    ///     local_gid: Gid::default(),
    ///     traffic_class: 0,
    ///     flow_label: 0,
    ///     hop_limit: 64,
    ///     path_mtu: Mtu::Mtu1024,
    ///     retry_count: 7,
    ///     ack_timeout: combined_ack_timeout(15, 16),
    /// };
    /// assert_eq!([path.active_timeout(15, 15), path.active_timeout(15, 20)], [17, 20]);
    /// # Ok::<(), std::net::AddrParseError>(())
    /// ```
    pub fn active_timeout(&self, own_ack_delay: u8, peer_ack_delay: u8) -> u8 {
        let fits = |lifetime: &u8| combined_ack_timeout(own_ack_delay, *lifetime) <= self.ack_timeout;
        combined_ack_timeout(peer_ack_delay, (1..=31).rev().find(fits).unwrap_or(1))
    }
}

/// Returns the code of the time for a packet, its processing and its acknowledgement: the sum of twice the lifetime of
/// a packet and the peer's delay, rounded up (IBTA 12.7.34; `cm.c`, `cm_ack_timeout`).
pub const fn combined_ack_timeout(ack_delay: u8, lifetime: u8) -> u8 {
    let both_ways = lifetime.saturating_add(1);
    let code = if both_ways >= ack_delay {
        both_ways.saturating_add((ack_delay.saturating_add(1) >= both_ways) as u8)
    } else {
        ack_delay.saturating_add((both_ways.saturating_add(1) >= ack_delay) as u8)
    };
    if code < 31 { code } else { 31 }
}

/// A port to be bound before its use is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BindInit {
    /// Address and port. Port 0: a free one. The unspecified address: all of the device.
    pub address: SocketAddr,
    /// The port space.
    pub space: PortSpace,
    /// The port may have several owners while none of them listens (`RDMA_OPTION_ID_REUSEADDR`).
    pub reuse_address: bool,
    /// A port of `::` stays free for IPv4 (`RDMA_OPTION_ID_AFONLY`); `None`: as the system's `bindv6only`.
    pub only_v6: Option<bool>,
}

/// Options of a listener.
#[derive(Clone, Copy)]
pub struct ListenInit<'a> {
    /// Address and port. Port 0: a free one. The unspecified address: all of the device.
    pub address: SocketAddr,
    /// Connections, or datagram queue pairs.
    pub space: PortSpace,
    /// The transport service of the connections: requests with another one are rejected. Extended reliable connections
    /// are [`Unsupported`](super::ErrorKind::Unsupported) for adapters.
    pub transport: ConnectionTransport,
    /// Maximum number of requests that the application has not taken.
    pub backlog: u32,
    /// The port may have several owners while none of them listens (`RDMA_OPTION_ID_REUSEADDR`).
    pub reuse_address: bool,
    /// A listener on `::` takes no IPv4 requests (`RDMA_OPTION_ID_AFONLY`); `None`: as the system's `bindv6only`.
    pub only_v6: Option<bool>,
    /// The same port on another device of this provider.
    pub shares_port_of: Option<&'a dyn ConnectionListener>,
    /// A port that is bound already, with the address, the port space and the options of this listener.
    pub port: Option<&'a dyn BoundPort>,
}

/// A connection that this end requests.
#[derive(Clone, Copy)]
pub struct ConnectInit<'a> {
    /// The path. Local port 0: a free one.
    pub path: &'a ConnectionPath,
    /// This end.
    pub end: &'a ConnectionEnd,
    /// The transport service. An XRC initiator serves nothing, so its request has no responder resources, no retries
    /// and no shared receive queue; the reply describes the target. Extended reliable connections have no keys; they
    /// are [`Unsupported`](super::ErrorKind::Unsupported) for adapters.
    pub transport: ConnectionTransport,
    /// Code of the time that this end's queue pair waits for an acknowledgement, without the delays of the devices.
    pub ack_timeout: u8,
    /// When this end gives up, if that is before its repetitions end after 52 s.
    pub timeout: Option<Duration>,
    /// The local port, if it is bound already. The request is for the peer's port in its port space; without it, in
    /// that of connections.
    pub port: Option<&'a dyn BoundPort>,
}

/// A request for the datagram queue pair of a peer's service.
#[derive(Clone, Copy)]
pub struct ResolveInit<'a> {
    /// The path. Local port 0: a free one.
    pub path: &'a ConnectionPath,
    /// Data of the application, at most 180 bytes.
    pub private_data: &'a [u8],
    /// When this end gives up, if that is before its repetitions end after 52 s.
    pub timeout: Option<Duration>,
    /// The local port, if it is bound already.
    pub port: Option<&'a dyn BoundPort>,
}

/// How a call waits for an event.
#[derive(Clone, Copy)]
pub enum EventWait<'a> {
    /// Until this time; `None`: without limit.
    Until(Option<Instant>),
    /// Not at all: the waker is woken when an event arrives.
    Waker(&'a Waker),
}

/// An event of a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ConnectionEvent {
    /// The peer accepts: move the queue pair to RTS and call [`Connection::ready`], or [`Connection::reject`].
    Replied(Box<ConnectionEnd>),
    /// The peer is ready: the connection that this end has accepted is set up.
    Established,
    /// The peer rejects the connection, or gives up. The private data has 148 bytes.
    Rejected {
        /// Why.
        reason: RejectReason,
        /// Data of the peer's application.
        private_data: Vec<u8>,
    },
    /// The peer does not respond.
    Unreachable,
    /// The connection has ended. If the peer ends it, respond with [`Connection::disconnect`], or drop it.
    Disconnected {
        /// The peer confirms or requests it. Otherwise it does not respond.
        is_confirmed: bool,
    },
    /// No packet of the connection is in flight any more.
    TimeWaitExit,
}

/// A peer's request for a connection.
pub struct ConnectionRequest {
    /// The path, as the peer has chosen it.
    pub path: ConnectionPath,
    /// The peer.
    pub remote: ConnectionEnd,
    /// The connection. Dropping it rejects the request.
    pub connection: Arc<dyn Connection>,
}

/// A peer's request for a datagram queue pair.
pub struct DatagramRequest {
    /// Address and port of the listener, as the peer names it.
    pub local: SocketAddr,
    /// The peer's address and port.
    pub remote: SocketAddr,
    /// Data of the peer's application, 180 bytes.
    pub private_data: Vec<u8>,
    /// The request. Dropping it rejects the request.
    pub inquiry: Box<dyn Inquiry>,
}

/// An event of a listener.
#[non_exhaustive]
pub enum ListenerEvent {
    /// A peer requests a connection.
    Connection(Box<ConnectionRequest>),
    /// A peer requests a datagram queue pair.
    Datagram(Box<DatagramRequest>),
}

/// A datagram queue pair, as its owner describes it to peers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DatagramEnd {
    /// The queue pair.
    pub qpn: Qpn,
    /// Its Q_Key.
    pub qkey: Qkey,
    /// Data of the application: 136 bytes, with zeros after the data.
    pub private_data: Vec<u8>,
}

/// The response to a request for a datagram queue pair.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ResolutionEvent {
    /// The queue pair.
    Resolved(DatagramEnd),
    /// The peer refuses.
    Rejected {
        /// Why.
        status: ServiceIdStatus,
        /// Data of the peer's application.
        private_data: Vec<u8>,
    },
    /// The peer does not respond.
    Unreachable,
}

/// The connection manager of a device.
pub trait ConnectionManager: Send + Sync {
    /// Binds a port: no other process gets it, though nothing listens yet.
    /// [`Unsupported`](super::ErrorKind::Unsupported) for adapters, where listening and connecting bind the port.
    ///
    /// ```
    /// use rdma_verbs::provider::{BindInit, Context, PortSpace, Provider, soft::SoftProvider};
    ///
    /// let context = SoftProvider::new().open("soft:127.46.1.20")?;
    /// let manager = context.connection_manager().expect("software devices have one");
    /// let address = "127.46.1.20:7471".parse()?;
    /// let init = BindInit { address, space: PortSpace::Tcp, reuse_address: false, only_v6: None };
    /// let port = manager.bind(&init)?;
    /// assert_eq!(port.local_addr(), address);
    /// assert!(manager.bind(&init).is_err(), "the port is in use");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn bind(&self, init: &BindInit) -> Result<Arc<dyn BoundPort>> {
        let message = format!("{} cannot be bound alone on this kind of device: listen or connect", init.address);
        Err(Error::new("bind_addr", ErrorKind::Unsupported, message))
    }

    /// Listens on an address and port.
    fn listen(&self, init: &ListenInit<'_>) -> Result<Arc<dyn ConnectionListener>>;

    /// Requests a connection. Its first event is [`ConnectionEvent::Replied`], `Rejected` or `Unreachable`.
    fn connect(&self, init: &ConnectInit<'_>) -> Result<Arc<dyn Connection>>;

    /// Requests the datagram queue pair of a service.
    fn resolve(&self, init: &ResolveInit<'_>) -> Result<Box<dyn Resolution>>;
}

/// A bound port, which is released when it and all its users are dropped.
pub trait BoundPort: Send + Sync {
    /// Returns the address and the port.
    fn local_addr(&self) -> SocketAddr;

    /// Returns the object for downcasting by the provider that created it.
    fn as_any(&self) -> &dyn Any;
}

/// A listener. Dropping it rejects the requests that were not taken; the port is free then.
pub trait ConnectionListener: Send + Sync {
    /// Returns its address and port.
    fn local_addr(&self) -> SocketAddr;

    /// Takes the next request; `None` if none came in time.
    fn next_event(&self, wait: EventWait<'_>) -> Result<Option<ListenerEvent>>;

    /// Returns a descriptor that is readable while requests wait.
    fn as_fd(&self) -> Result<BorrowedFd<'_>>;

    /// For [`ListenInit::shares_port_of`].
    fn as_any(&self) -> &dyn Any;
}

/// A connection. Dropping it ends it in the background, in any state.
pub trait Connection: Send + Sync {
    /// Returns address and port of this end.
    fn local_addr(&self) -> SocketAddr;

    /// Takes the next event; `None` if none came in time.
    fn next_event(&self, wait: EventWait<'_>) -> Result<Option<ConnectionEvent>>;

    /// Returns a descriptor that is readable while events wait.
    fn as_fd(&self) -> Result<BorrowedFd<'_>>;

    /// Replaces what this end has proposed by what the connection manager determines itself: the number of the first
    /// packet, and the path. The queue pair is moved with these values, before [`Connection::accept`] or
    /// [`Connection::ready`]. A connection manager that takes all of them as they are proposed changes nothing.
    fn settle(&self, path: &mut ConnectionPath, end: &mut ConnectionEnd) -> Result<()> {
        let _ = (path, end);
        Ok(())
    }

    /// Accepts a peer's request. The queue pair must be in RTS, because the peer may send at once. The next event is
    /// [`ConnectionEvent::Established`], or the end of the connection: [`ConnectionEvent::Unreachable`] when the
    /// repetitions of the reply end, or after `timeout` if that is before.
    fn accept(&self, end: &ConnectionEnd, timeout: Option<Duration>) -> Result<()>;

    /// Confirms the peer's reply. The queue pair must be in RTS.
    fn ready(&self) -> Result<()>;

    /// Rejects the peer's request or reply, with at most 148 bytes of data.
    fn reject(&self, reason: RejectReason, private_data: &[u8]) -> Result<()>;

    /// Ends the connection, or confirms that the peer ends it.
    fn disconnect(&self) -> Result<()>;

    /// Notes that a packet of the peer has arrived: the peer is ready, though the message that says so is late or lost.
    fn communication_established(&self) -> Result<()>;
}

/// A request for the datagram queue pair of a peer. Dropping it ends it.
pub trait Resolution: Send + Sync {
    /// Takes the response; `None` if none came in time.
    fn next_event(&self, wait: EventWait<'_>) -> Result<Option<ResolutionEvent>>;
}

/// A peer's request for a datagram queue pair. Dropping it rejects it.
pub trait Inquiry: Send + Sync {
    /// Answers with a queue pair, with at most 136 bytes of data.
    fn accept(&self, end: &DatagramEnd) -> Result<()>;

    /// Refuses, with at most 136 bytes of data.
    fn reject(&self, private_data: &[u8]) -> Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_combined_as_by_linux() {
        // Seen on the wire: 6.12, 6.1, and the option ACK_TIMEOUT 14.
        let combined = combined_ack_timeout;
        assert_eq!([combined(15, 16), combined(15, 18), combined(15, 13)], [17, 19, 16]);
        assert_eq!([combined(8, 13), combined(0, 0), combined(31, 31), combined(31, 0)], [14, 2, 31, 31]);
        assert_eq!([combined(255, 255), combined(0, 255), combined(255, 0)], [31; 3]);
    }
}
