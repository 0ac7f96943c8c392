//! Datagram queue pairs by address and port.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};
use std::time::{Duration, Instant};

use super::error::{ConnectError, Reason, Rejected, Unreachable};
use super::listener::Parts;
use super::{ConnectionOptions, Route, connection_manager, contexts};
use crate::provider::{self, DatagramEnd, EventWait, ListenerEvent, Resolution, ResolutionEvent, ResolveInit};
use crate::types::{AddressVector, Qkey, Qpn};
use crate::verbs::{Context, QueuePair, Result};

/// The Q_Key of datagram queue pairs whose applications have none of their own (`RDMA_UDP_QKEY`).
pub const DEFAULT_QKEY: Qkey = Qkey(0x0123_4567);

/// The datagram queue pair of a service, as its owner describes it.
#[derive(Clone, PartialEq, Eq)]
pub struct DatagramPeer {
    /// Its number.
    pub qpn: Qpn,
    /// Its Q_Key.
    pub qkey: Qkey,
    /// The path to it, for [`create_ah`](crate::verbs::ProtectionDomain::create_ah).
    pub address: AddressVector,
    /// Data of its application: 136 bytes, with zeros behind the data.
    pub private_data: Vec<u8>,
}

/// The private data may contain secrets.
impl fmt::Debug for DatagramPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatagramPeer").field("qpn", &self.qpn).field("address", &self.address).finish_non_exhaustive()
    }
}

impl Route {
    /// Asks the service at the peer's port for its datagram queue pair, and waits for the response. The private data of
    /// the options has at most 180 bytes.
    ///
    /// # Errors
    /// The peer refuses or does not respond, the deadline of the options passes, or a verb fails.
    #[doc(alias = "RDMA_PS_UDP")]
    pub fn resolve_datagram(&self, options: &ConnectionOptions) -> Result<DatagramPeer, ConnectError> {
        self.start_resolve_datagram(options)?.wait()
    }

    /// Begins to ask for the datagram queue pair of a service. The result is a future, too; dropping it ends the
    /// attempt.
    ///
    /// # Errors
    /// As for [`Route::resolve_datagram`], if they occur at once.
    pub fn start_resolve_datagram(&self, options: &ConnectionOptions) -> Result<PendingDatagram, ConnectError> {
        let path = options.path(self)?;
        let init = ResolveInit { path: &path, private_data: options.data(), timeout: options.deadline, port: None };
        let inner = connection_manager("resolve", self.context())?.resolve(&init);
        let inner = inner.map_err(|error| contexts::explained(self.context(), path.local.ip(), error))?;
        let address = AddressVector {
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
            port_num: super::contexts::PORT,
            ..AddressVector::new(path.remote_gid, self.context().find_gid(super::contexts::PORT, path.local_gid)?)
        };
        let deadline = options.deadline_time();
        Ok(PendingDatagram { inner, address, peer: self.remote_addr(), deadline })
    }
}

/// A request for a datagram queue pair that has no response yet. Dropping it ends the attempt. It is a future of any
/// runtime.
#[must_use = "dropping it ends the attempt"]
pub struct PendingDatagram {
    inner: Box<dyn Resolution>,
    address: AddressVector,
    peer: SocketAddr,
    deadline: Option<Instant>,
}

impl fmt::Debug for PendingDatagram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingDatagram").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl PendingDatagram {
    /// Waits for the response.
    ///
    /// # Errors
    /// As for [`Route::resolve_datagram`].
    pub fn wait(self) -> Result<DatagramPeer, ConnectError> {
        match self.inner.next_event(EventWait::Until(self.deadline))? {
            Some(event) => self.outcome(event),
            None => Err(ConnectError::TimedOut),
        }
    }

    fn outcome(&self, event: ResolutionEvent) -> Result<DatagramPeer, ConnectError> {
        let peer = self.peer;
        match event {
            ResolutionEvent::Resolved(DatagramEnd { qpn, qkey, private_data }) => {
                Ok(DatagramPeer { qpn, qkey, address: self.address, private_data })
            }
            ResolutionEvent::Rejected { status, private_data } => {
                Err(ConnectError::Rejected(Rejected { peer, reason: Reason::Datagram(status), private_data }))
            }
            ResolutionEvent::Unreachable if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) => {
                Err(ConnectError::TimedOut)
            }
            ResolutionEvent::Unreachable => Err(ConnectError::Unreachable(Unreachable { peer, message: "SIDR_REQ" })),
        }
    }
}

impl Future for PendingDatagram {
    type Output = Result<DatagramPeer, ConnectError>;

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        match self.inner.next_event(EventWait::Waker(cx.waker())) {
            Ok(Some(event)) => Poll::Ready(self.outcome(event)),
            Ok(None) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }
}

/// Takes requests for datagram queue pairs on an address and port. Dropping it rejects those that were not taken.
///
/// ```
/// use rdma_verbs::verbs::cm::{ConnectionOptions, DEFAULT_QKEY, ListenerOptions, Route};
/// use rdma_verbs::verbs::{QueuePairOptions, QueuePairType};
///
/// let listener = ListenerOptions::new().bind_datagrams("127.46.1.4:7174")?;
/// let server = std::thread::spawn(move || {
///     let request = listener.accept()?;
///     let (pd, cq) = (request.context().alloc_pd()?, request.context().create_cq(16)?);
///     let qp = pd.create_qp_with(&cq, &cq, &QueuePairOptions::default().qp_type(QueuePairType::UnreliableDatagram))?;
///     request.accept(&qp, DEFAULT_QKEY, b"here it is")?;
///     Ok::<_, rdma_verbs::verbs::Error>(qp)
/// });
/// let peer = Route::to("127.46.1.4:7174")?.from("127.46.1.5")?.resolve_datagram(&ConnectionOptions::new())?;
/// let qp = server.join().unwrap()?;
/// assert_eq!((peer.qpn, peer.qkey, &peer.private_data[..10]), (qp.qpn(), DEFAULT_QKEY, &b"here it is"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct DatagramListener {
    parts: Parts,
}

impl fmt::Debug for DatagramListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatagramListener").field("local", &self.local_addr()).finish_non_exhaustive()
    }
}

impl DatagramListener {
    pub(super) fn new(parts: Parts) -> Self {
        Self { parts }
    }

    /// Returns address and port.
    pub fn local_addr(&self) -> SocketAddr {
        self.parts.local_addr()
    }

    /// Returns descriptors, one for each device, that are readable while requests wait.
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
    pub fn accept(&self) -> Result<DatagramRequest> {
        self.parts.accept(DatagramRequest::new)
    }

    /// Waits for the next request, at most for this time.
    ///
    /// # Errors
    /// Any provider error.
    pub fn accept_within(&self, timeout: Duration) -> Result<Option<DatagramRequest>> {
        self.parts.accept_within(timeout, DatagramRequest::new)
    }

    /// Waits for the next request, as a future of any runtime. Dropping the future loses no request.
    ///
    /// # Errors
    /// Any provider error.
    pub async fn accept_async(&self) -> Result<DatagramRequest> {
        std::future::poll_fn(|cx| self.parts.poll_accept(cx, DatagramRequest::new)).await
    }
}

/// A peer's request for a datagram queue pair. Dropping it rejects it.
pub struct DatagramRequest {
    inner: Box<provider::DatagramRequest>,
    context: Context,
}

impl fmt::Debug for DatagramRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatagramRequest").field("peer", &self.peer_addr()).finish_non_exhaustive()
    }
}

impl DatagramRequest {
    fn new((event, context): (ListenerEvent, &Context)) -> Option<Self> {
        match event {
            ListenerEvent::Datagram(inner) => Some(Self { inner, context: context.clone() }),
            ListenerEvent::Connection(_) => None,
        }
    }

    /// Returns the device at which the request arrived.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Returns address and port that the peer asks.
    pub fn local_addr(&self) -> SocketAddr {
        self.inner.local
    }

    /// Returns address and port of the peer, as it states them.
    pub fn peer_addr(&self) -> SocketAddr {
        self.inner.remote
    }

    /// Returns the data of the peer's application: 180 bytes, with zeros behind the data.
    pub fn private_data(&self) -> &[u8] {
        &self.inner.private_data
    }

    /// Answers with a queue pair and its Q_Key, and at most 136 bytes of data. The queue pair must be ready to receive.
    ///
    /// # Errors
    /// The data is longer.
    #[doc(alias = "rdma_accept")]
    pub fn accept(self, qp: &QueuePair, qkey: Qkey, private_data: &[u8]) -> Result<()> {
        self.inner.inquiry.accept(&DatagramEnd { qpn: qp.qpn(), qkey, private_data: private_data.to_vec() })
    }

    /// Refuses, with at most 136 bytes of data.
    ///
    /// # Errors
    /// The data is longer.
    #[doc(alias = "rdma_reject")]
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        self.inner.inquiry.reject(private_data)
    }
}
