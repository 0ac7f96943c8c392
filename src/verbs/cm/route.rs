//! Routes: the device and the addresses of a connection.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};

use super::connection::{Connection, ConnectionQueuePair, PendingConnection};
use super::contexts;
use super::{ConnectError, ConnectionOptions};
use crate::verbs::{Context, Error, ErrorKind, Result};

/// The way to a peer's address and port: the device and the address that the system routes its packets from
/// (`rdma_resolve_addr` and `rdma_resolve_route`). Nothing is sent before [`Route::connect`].
///
/// ```
/// use rdma_verbs::verbs::cm::{ConnectionOptions, Listener, Route};
///
/// let listener = Listener::bind("127.46.1.1:0")?;
/// let route = Route::to(listener.local_addr())?.from("127.46.1.2")?;
/// assert_eq!(route.context().name(), "soft:127.46.1.2");
/// # Ok::<(), rdma_verbs::verbs::Error>(())
/// ```
#[doc(alias("rdma_cm_id", "rdma_create_id"))]
#[derive(Clone)]
pub struct Route {
    context: Context,
    local: SocketAddr,
    remote: SocketAddr,
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Route").field("local", &self.local).field("remote", &self.remote).finish_non_exhaustive()
    }
}

impl Route {
    /// Finds the way to an address and port, or to a host name and port. Of several addresses of a name, it takes the
    /// first one to which the system has a route.
    ///
    /// # Errors
    /// The name is unknown, there is no route, or no device has the address that packets leave from.
    #[doc(alias("rdma_resolve_addr", "rdma_resolve_route", "rdma_getaddrinfo", "rdma_create_ep"))]
    pub fn to(remote: impl ToSocketAddrs) -> Result<Self> {
        let verb = "resolve_addr";
        first_of(verb, remote, |remote| {
            let source = contexts::source_of(verb, remote)?;
            Ok(Self { context: contexts::of_address(verb, source)?, local: SocketAddr::new(source, 0), remote })
        })
    }

    /// Finds the way to an address and port from a local address, with the device that has it. A port may follow the
    /// local address; without one, or with port 0, a free one is taken.
    ///
    /// # Errors
    /// The name is unknown, or the local address is not one of this machine or of another IP version.
    ///
    /// ```
    /// use rdma_verbs::verbs::cm::Route;
    ///
    /// let route = Route::between("127.46.1.8", "127.46.1.9:7471")?;
    /// assert_eq!(route.context().name(), "soft:127.46.1.8");
    /// # Ok::<(), rdma_verbs::verbs::Error>(())
    /// ```
    pub fn between(local: impl LocalEnd, remote: impl ToSocketAddrs) -> Result<Self> {
        let local = local.to_local_end()?;
        let remotes = resolved("resolve_addr", remote)?;
        let remote = remotes.iter().find(|remote| remote.is_ipv4() == local.is_ipv4()).or(remotes.first());
        let remote = remote.ok_or_else(|| no_address("resolve_addr"))?;
        check_versions(local, *remote)?;
        let context = contexts::of_address("bind_addr", local.ip())?;
        Ok(Self { context, local, remote: *remote })
    }

    /// Finds the way to an address and port from a device that the application has opened.
    ///
    /// # Errors
    /// The name is unknown, there is no route, or the device does not have the address that packets leave from.
    ///
    /// ```
    /// use rdma_verbs::verbs::{self, cm::Route};
    ///
    /// let context = verbs::open("soft:127.0.0.1")?;
    /// let route = Route::on(&context, "127.0.0.1:7471")?;
    /// assert_eq!(route.local_addr().ip().to_string(), "127.0.0.1");
    /// # Ok::<(), verbs::Error>(())
    /// ```
    pub fn on(context: &Context, remote: impl ToSocketAddrs) -> Result<Self> {
        let verb = "resolve_addr";
        first_of(verb, remote, |remote| {
            let source = contexts::source_of(verb, remote)?;
            context.find_gid(contexts::PORT, source.into())?;
            Ok(Self { context: context.clone(), local: SocketAddr::new(source, 0), remote })
        })
    }

    /// Chooses the local address, and with it the device. A port may follow the address; without one, or with port 0,
    /// a free one is taken.
    ///
    /// # Errors
    /// It is not an address of this machine, or not one of the peer's IP version.
    pub fn from(self, local: impl LocalEnd) -> Result<Self> {
        let local = local.to_local_end()?;
        check_versions(local, self.remote)?;
        let context = match self.context.find_gid(contexts::PORT, local.ip().into()) {
            Ok(_) => self.context,
            Err(_) => contexts::of_address("bind_addr", local.ip())?,
        };
        Ok(Self { context, local, ..self })
    }

    /// Returns the device: create the queue pair on it.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Returns the local address; the port is 0 if none was chosen.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Returns the peer's address and port.
    pub fn remote_addr(&self) -> SocketAddr {
        self.remote
    }

    /// Connects a queue pair in RESET or INIT, and waits until it is in RTS and the peer knows it.
    ///
    /// Post receives before: the peer may send as soon as it has accepted.
    ///
    /// # Errors
    /// The peer refuses or does not respond, the deadline of the options passes, or a verb fails. The queue pair is
    /// then in RESET, INIT or the error state; [`QueuePair::reset`](crate::verbs::QueuePair::reset) starts over.
    ///
    /// See [the module](super) for an example with both ends.
    #[doc(alias = "rdma_connect")]
    pub fn connect(
        &self,
        qp: &impl ConnectionQueuePair,
        options: &ConnectionOptions,
    ) -> Result<Connection, ConnectError> {
        self.start_connect(qp, options)?.wait()
    }

    /// Begins to connect a queue pair. The result is a future, too; dropping it ends the attempt.
    ///
    /// # Errors
    /// As for [`Route::connect`], if they occur at once.
    pub fn start_connect<'a, Q: ConnectionQueuePair>(
        &self,
        qp: &'a Q,
        options: &ConnectionOptions,
    ) -> Result<PendingConnection<'a, Q>, ConnectError> {
        PendingConnection::request(self, qp, options)
    }
}

fn check_versions(local: SocketAddr, remote: SocketAddr) -> Result<()> {
    if local.is_ipv4() == remote.is_ipv4() {
        return Ok(());
    }
    let message = format!("{} and {} have different IP versions", local.ip(), remote.ip());
    Err(Error::unsuitable("bind_addr", "local", message))
}

/// A local address, with or without a port.
pub trait LocalEnd {
    /// Returns the address and the port, or port 0.
    ///
    /// # Errors
    /// It cannot be parsed.
    fn to_local_end(&self) -> Result<SocketAddr>;
}

impl LocalEnd for SocketAddr {
    fn to_local_end(&self) -> Result<SocketAddr> {
        Ok(*self)
    }
}

impl LocalEnd for std::net::IpAddr {
    fn to_local_end(&self) -> Result<SocketAddr> {
        Ok(SocketAddr::new(*self, 0))
    }
}

impl LocalEnd for &str {
    fn to_local_end(&self) -> Result<SocketAddr> {
        let whole = self.parse::<SocketAddr>().ok();
        let address = || self.parse().ok().map(|address| SocketAddr::new(address, 0));
        whole.or_else(address).ok_or_else(|| {
            let message = format!("\"{self}\" is not an address, or an address and a port");
            Error::unsuitable("bind_addr", "local", message)
        })
    }
}

/// Returns the first success with an address of a name, or the last failure.
pub(super) fn first_of<T>(
    verb: &'static str,
    name: impl ToSocketAddrs,
    mut attempt: impl FnMut(SocketAddr) -> Result<T>,
) -> Result<T> {
    let mut failure = no_address(verb);
    for address in resolved(verb, name)? {
        match attempt(address) {
            Ok(found) => return Ok(found),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn no_address(verb: &'static str) -> Error {
    Error::new(verb, ErrorKind::NotFound, "the name has no address")
}

/// Returns the addresses of a name.
fn resolved(verb: &'static str, name: impl ToSocketAddrs) -> Result<Vec<SocketAddr>> {
    let found = name.to_socket_addrs().map_err(|error| Error::from_io(verb, "the name cannot be resolved", error))?;
    Ok(found.collect())
}
