//! Listeners, and the requests that they take.

use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use super::connection::{Connection, ConnectionQueuePair, PendingConnection};
use super::datagram::DatagramListener;
use super::route::first_of;
use super::{ConnectError, ConnectionOptions, connection_manager, contexts};
use crate::provider::{
    self, ConnectionListener, ConnectionTransport, EventWait, ListenInit, ListenerEvent, PortSpace, RejectReason,
};
use crate::verbs::{Context, Error, Mtu, Result};

/// Default maximum number of requests that the application has not taken.
const DEFAULT_BACKLOG: u32 = 128;

/// Options of a listener.
#[derive(Clone, Debug)]
#[must_use]
pub struct ListenerOptions {
    backlog: u32,
    reuse_address: bool,
    only_v6: Option<bool>,
    context: Option<Context>,
}

impl Default for ListenerOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl ListenerOptions {
    /// Creates the default options.
    pub const fn new() -> Self {
        Self { backlog: DEFAULT_BACKLOG, reuse_address: false, only_v6: None, context: None }
    }

    /// Sets the maximum number of requests that the application has not taken; 128 by default. Further requests are
    /// dropped, and their senders repeat them; if the application takes none for ten seconds, they are rejected.
    pub const fn backlog(mut self, backlog: u32) -> Self {
        self.backlog = backlog;
        self
    }

    /// Lets several processes bind the port while none listens (`RDMA_OPTION_ID_REUSEADDR`).
    #[doc(alias = "rdma_set_option")]
    pub const fn reuse_address(mut self, reuse_address: bool) -> Self {
        self.reuse_address = reuse_address;
        self
    }

    /// Sets whether a listener on `::` refuses IPv4 (`RDMA_OPTION_ID_AFONLY`); by default it takes both, unless the
    /// system's `bindv6only` is set.
    #[doc(alias = "rdma_set_option")]
    pub const fn only_v6(mut self, only_v6: bool) -> Self {
        self.only_v6 = Some(only_v6);
        self
    }

    /// Listens on this device only, and makes it the context of the requests.
    pub fn on(mut self, context: &Context) -> Self {
        self.context = Some(context.clone());
        self
    }

    /// Listens on an address and port; see [`Listener::bind`].
    ///
    /// # Errors
    /// As for [`Listener::bind`].
    ///
    /// ```
    /// use rdma_verbs::verbs::cm::ListenerOptions;
    ///
    /// let listener = ListenerOptions::new().backlog(16).bind("127.46.1.3:7471")?;
    /// assert_eq!(listener.local_addr().port(), 7471);
    /// # Ok::<(), rdma_verbs::verbs::Error>(())
    /// ```
    #[doc(alias("rdma_bind_addr", "rdma_listen"))]
    pub fn bind(&self, address: impl ToSocketAddrs) -> Result<Listener> {
        self.bind_parts(PortSpace::Tcp, address).map(|parts| Listener { parts })
    }

    /// Listens for requests of datagram queue pairs on an address and port (`RDMA_PS_UDP`). These ports are separate
    /// from those of connections.
    ///
    /// # Errors
    /// As for [`Listener::bind`].
    pub fn bind_datagrams(&self, address: impl ToSocketAddrs) -> Result<DatagramListener> {
        self.bind_parts(PortSpace::Udp, address).map(DatagramListener::new)
    }

    fn bind_parts(&self, space: PortSpace, address: impl ToSocketAddrs) -> Result<Parts> {
        first_of("listen", address, |address| self.bind_address(space, address))
    }

    fn bind_address(&self, space: PortSpace, address: SocketAddr) -> Result<Parts> {
        let contexts = match &self.context {
            Some(context) => vec![context.clone()],
            None if address.ip().is_unspecified() => {
                let takes_v4 = address.is_ipv4() || self.only_v6 != Some(true);
                contexts::of_wildcard("listen", takes_v4, address.is_ipv6())?
            }
            None => vec![contexts::of_address("listen", address.ip())?],
        };
        let (mut parts, mut failure): (Vec<Part>, Option<Error>) = (Vec::new(), None);
        let is_wildcard = address.ip().is_unspecified();
        for context in contexts {
            let first = parts.first();
            let init = ListenInit {
                address: first.map_or(address, |first| first.inner.local_addr()),
                space,
                transport: ConnectionTransport::Reliable,
                backlog: self.backlog,
                reuse_address: self.reuse_address,
                only_v6: self.only_v6,
                shares_port_of: first.map(|part| &*part.inner),
                port: None,
            };
            let listening = connection_manager("listen", &context).and_then(|manager| manager.listen(&init));
            match listening.map_err(|error| contexts::explained(&context, address.ip(), error)) {
                Ok(inner) => parts.push(Part { inner, context }),
                // Of all devices, those that work.
                Err(error) if !parts.is_empty() || is_wildcard => {
                    tracing::warn!(
                        target: "rdma_verbs::connection", device = context.name(), %error, "no listener on a device"
                    );
                    failure = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        match failure {
            Some(error) if parts.is_empty() => Err(error),
            _ => Ok(Parts(parts)),
        }
    }
}

/// A listener on one device.
struct Part {
    inner: Arc<dyn ConnectionListener>,
    context: Context,
}

/// A listener on one device or on several, at least one.
pub(super) struct Parts(Vec<Part>);

impl Parts {
    pub(super) fn local_addr(&self) -> SocketAddr {
        let unknown = || SocketAddr::new(IpAddr::from([0; 4]), 0);
        self.0.first().map_or_else(unknown, |part| part.inner.local_addr())
    }

    pub(super) fn descriptors(&self) -> Result<Vec<BorrowedFd<'_>>> {
        self.0.iter().map(|part| part.inner.as_fd()).collect()
    }

    /// Waits for a request of the listener's kind.
    pub(super) fn accept<R>(&self, of: impl Fn((ListenerEvent, &Context)) -> Option<R>) -> Result<R> {
        loop {
            if let Some(request) = self.wait(None)?.and_then(&of) {
                return Ok(request);
            }
        }
    }

    /// Waits for a request of the listener's kind, at most for this time.
    pub(super) fn accept_within<R>(
        &self,
        timeout: Duration,
        of: impl FnOnce((ListenerEvent, &Context)) -> Option<R>,
    ) -> Result<Option<R>> {
        Ok(self.wait(Instant::now().checked_add(timeout))?.and_then(of))
    }

    /// Takes a request of the listener's kind, or has the task woken when one arrives.
    pub(super) fn poll_accept<R>(
        &self,
        cx: &TaskContext<'_>,
        of: impl Fn((ListenerEvent, &Context)) -> Option<R>,
    ) -> Poll<Result<R>> {
        loop {
            match self.poll(cx.waker()).map(|event| event.map(&of)) {
                Poll::Ready(Ok(None)) => {}
                Poll::Ready(Ok(Some(request))) => return Poll::Ready(Ok(request)),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Waits for an event, at most until `end`.
    fn wait(&self, end: Option<Instant>) -> Result<Option<(ListenerEvent, &Context)>> {
        if let [part] = &self.0[..] {
            return Ok(part.inner.next_event(EventWait::Until(end))?.map(|event| (event, &part.context)));
        }
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        loop {
            if let Poll::Ready(event) = self.poll(&waker) {
                return event.map(Some);
            }
            match end.map(|end| end.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => return Ok(None),
                Some(left) => std::thread::park_timeout(left),
                None => std::thread::park(),
            }
        }
    }

    fn poll(&self, waker: &Waker) -> Poll<Result<(ListenerEvent, &Context)>> {
        for part in &self.0 {
            if let Some(event) = part.inner.next_event(EventWait::Waker(waker))? {
                return Poll::Ready(Ok((event, &part.context)));
            }
        }
        Poll::Pending
    }
}

/// Wakes a thread that waits for several devices.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Takes requests of peers on an address and port. Dropping it rejects the requests that were not taken, and frees the
/// port at once; connections stay.
///
/// See [the module](super) for an example.
#[doc(alias("rdma_cm_id", "rdma_create_id"))]
pub struct Listener {
    parts: Parts,
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("local", &self.local_addr()).finish_non_exhaustive()
    }
}

impl Listener {
    /// Listens on an address and port, with the default options. Port 0 takes a free port. `0.0.0.0` and `::` listen on
    /// all devices that there are now, at most 16: a warning names those that are left out. They take requests to
    /// addresses that software devices get later, too. `::` takes IPv4 as well. A listener on a loopback address is not
    /// reachable from the network.
    ///
    /// The ports are those of `rdma_cm`: all processes of this user share them, and they are separate from TCP and UDP.
    ///
    /// # Errors
    /// [`AddressInUse`](crate::verbs::ErrorKind::AddressInUse) if the port has a listener there or on all addresses;
    /// [`NotFound`](crate::verbs::ErrorKind::NotFound) if it is not an address of this machine;
    /// [`PermissionDenied`](crate::verbs::ErrorKind::PermissionDenied) for privileged ports.
    #[doc(alias("rdma_bind_addr", "rdma_listen", "rdma_create_ep"))]
    pub fn bind(address: impl ToSocketAddrs) -> Result<Self> {
        ListenerOptions::new().bind(address)
    }

    /// Returns address and port.
    pub fn local_addr(&self) -> SocketAddr {
        self.parts.local_addr()
    }

    /// Returns descriptors, one for each device, that are readable while requests wait: then call
    /// [`Listener::accept_within`] with a time of zero.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn descriptors(&self) -> Result<Vec<BorrowedFd<'_>>> {
        self.parts.descriptors()
    }

    /// Waits for the next request.
    ///
    /// # Errors
    /// Any provider error.
    #[doc(alias("rdma_get_request", "RDMA_CM_EVENT_CONNECT_REQUEST", "rdma_get_cm_event"))]
    pub fn accept(&self) -> Result<Request> {
        self.parts.accept(Request::new)
    }

    /// Waits for the next request, at most for this time.
    ///
    /// # Errors
    /// Any provider error.
    pub fn accept_within(&self, timeout: Duration) -> Result<Option<Request>> {
        self.parts.accept_within(timeout, Request::new)
    }

    /// Takes the next request, or has the task woken when one arrives.
    pub fn poll_accept(&self, cx: &mut TaskContext<'_>) -> Poll<Result<Request>> {
        self.parts.poll_accept(cx, Request::new)
    }

    /// Waits for the next request, as a future of any runtime. Dropping the future loses no request.
    ///
    /// # Errors
    /// Any provider error.
    pub async fn accept_async(&self) -> Result<Request> {
        std::future::poll_fn(|cx| self.poll_accept(cx)).await
    }
}

/// A peer's request. Dropping it rejects it.
pub struct Request {
    inner: Box<provider::ConnectionRequest>,
    context: Context,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("peer", &self.peer_addr()).finish_non_exhaustive()
    }
}

impl Request {
    /// Returns the request of an event, if it is one for a connection.
    fn new((event, context): (ListenerEvent, &Context)) -> Option<Self> {
        match event {
            ListenerEvent::Connection(inner) => Some(Self { inner, context: context.clone() }),
            ListenerEvent::Datagram(_) => None,
        }
    }

    /// Returns the device at which the request arrived: create the queue pair on it.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Returns address and port that the peer wants to connect to.
    pub fn local_addr(&self) -> SocketAddr {
        self.inner.path.local
    }

    /// Returns address and port of the peer, as it states them.
    pub fn peer_addr(&self) -> SocketAddr {
        self.inner.path.remote
    }

    /// Returns the data of the peer's application: 56 bytes, with zeros behind the data.
    pub fn private_data(&self) -> &[u8] {
        &self.inner.remote.private_data
    }

    /// Returns the number of READs and atomics that the peer serves at once, and that it wants to have outstanding.
    pub fn peer_resources(&self) -> (u8, u8) {
        (self.inner.remote.responder_resources, self.inner.remote.initiator_depth)
    }

    /// Returns the path MTU that the peer has chosen for both ends.
    pub fn path_mtu(&self) -> Mtu {
        self.inner.path.path_mtu
    }

    /// Accepts the request with a queue pair in RESET or INIT, and waits until the peer is ready.
    ///
    /// Post receives before: the peer may send at once.
    ///
    /// # Errors
    /// The peer rejects the reply or does not respond, the deadline of the options passes, or a verb fails; a verb that
    /// fails rejects the request. The queue pair is then in RESET, INIT or the error state.
    #[doc(alias = "rdma_accept")]
    pub fn accept(
        self,
        qp: &impl ConnectionQueuePair,
        options: &ConnectionOptions,
    ) -> Result<Connection, ConnectError> {
        self.start_accept(qp, options)?.wait()
    }

    /// Accepts the request without waiting for the peer. The queue pair is in RTS then, and may be used: the peer is
    /// ready once something arrives from it.
    ///
    /// # Errors
    /// As for [`Request::accept`], if they occur at once.
    pub fn start_accept<'a, Q: ConnectionQueuePair>(
        self,
        qp: &'a Q,
        options: &ConnectionOptions,
    ) -> Result<PendingConnection<'a, Q>, ConnectError> {
        PendingConnection::accept(&self.inner, qp, options)
    }

    /// Rejects the request, with at most 148 bytes of data for the peer's application.
    ///
    /// # Errors
    /// The data is longer, or the peer has given up.
    #[doc(alias = "rdma_reject")]
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        self.inner.connection.reject(RejectReason::CONSUMER, private_data)
    }
}
