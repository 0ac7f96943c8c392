//! Connections: requested, set up, ended.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context as TaskContext, Poll};
use std::time::{Duration, Instant};

use super::bring_up::{self, BringUp};
use super::error::{ConnectError, Reason, Rejected, Unreachable};
use super::options::ConnectionOptions;
use super::{Route, connection_manager, contexts};
use crate::provider::{
    self, ConnectInit, ConnectionEnd, ConnectionEvent, ConnectionPath, ConnectionTransport, EventWait, RejectReason,
};
use crate::verbs::{Error, QueuePair, Result};

/// A queue pair of any tier: of the [verbs tier](crate::verbs), of the [owned tier](crate::owned), or of the
/// asynchronous tier. It must be a reliable connection in RESET or INIT.
///
/// ```
/// use rdma_verbs::owned::{BufferPool, CompletionQueue, QueuePair, Request};
/// use rdma_verbs::verbs::cm::{ConnectionOptions, Listener, Route};
/// # use std::time::Duration;
///
/// let listener = Listener::bind("127.46.1.10:7471")?;
/// let server = std::thread::spawn(move || -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
///     let request = listener.accept()?;
///     let (pd, cq) = (request.context().alloc_pd()?, CompletionQueue::new(request.context(), 16)?);
///     let (qp, pool) = (QueuePair::new(&pd, &cq, &cq)?, BufferPool::new(&pd, 1 << 16)?);
///     qp.init()?;
///     qp.post_recv(pool.take(64)?, 1)?;
///     let connection = request.accept(&qp, &ConnectionOptions::new())?;
///     assert_eq!(*cq.wait(Duration::from_secs(10))?.into_buffer()?, *b"hello");
///     connection.wait_disconnected(Duration::from_secs(10))?;
///     Ok(())
/// });
///
/// let route = Route::to("127.46.1.10:7471")?.from("127.46.1.11")?;
/// let (pd, cq) = (route.context().alloc_pd()?, CompletionQueue::new(route.context(), 16)?);
/// let (qp, pool) = (QueuePair::new(&pd, &cq, &cq)?, BufferPool::new(&pd, 1 << 16)?);
/// let connection = route.connect(&qp, &ConnectionOptions::new())?;
/// qp.post_send(Request::send(pool.copy_from(b"hello")?).signaled())?;
/// cq.wait(Duration::from_secs(10))?.result()?;
/// connection.disconnect(&qp)?;
/// server.join().unwrap()?;
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
pub trait ConnectionQueuePair: sealed::Sealed {}

pub(crate) mod sealed {
    use crate::verbs::QueuePair;

    /// The queue pair of the verbs tier behind one of any tier. Only this crate can take it out: a function that is
    /// generic over [`ConnectionQueuePair`](super::ConnectionQueuePair) can call the methods of [`Sealed`], and a
    /// request behind the back of the owned tier would confuse its buffers.
    pub struct Inner<'a>(pub(crate) &'a QueuePair);

    pub trait Sealed {
        fn inner(&self) -> Inner<'_>;
    }
}

impl sealed::Sealed for QueuePair {
    fn inner(&self) -> sealed::Inner<'_> {
        sealed::Inner(self)
    }
}

impl ConnectionQueuePair for QueuePair {}

/// A connection that is requested, or accepted, and not set up yet. Dropping it ends the attempt: the peer learns it.
/// The queue pair then stays in its state.
///
/// It is a future of any runtime: awaiting it does the same as [`PendingConnection::wait`].
#[must_use = "dropping it ends the attempt"]
pub struct PendingConnection<'a, Q> {
    inner: Arc<dyn provider::Connection>,
    qp: &'a Q,
    path: ConnectionPath,
    local: ConnectionEnd,
    /// The peer, if it has requested the connection.
    requester: Option<ConnectionEnd>,
    options: ConnectionOptions,
    deadline: Option<Instant>,
}

impl<Q> fmt::Debug for PendingConnection<'_, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingConnection").field("remote", &self.path.remote).finish_non_exhaustive()
    }
}

impl<'a, Q: ConnectionQueuePair> PendingConnection<'a, Q> {
    /// Requests a connection.
    pub(super) fn request(route: &Route, qp: &'a Q, options: &ConnectionOptions) -> Result<Self, ConnectError> {
        let verbs = qp.inner().0;
        if !verbs.context().is_same(route.context()) {
            return Err(Error::unsuitable("connect", "qp", "the queue pair belongs to another device").into());
        }
        let (path, local) = (options.path(route)?, options.requesting_end(verbs)?);
        let deadline = options.deadline_time();
        bring_up::initialize("connect", verbs)?;
        let (ack_timeout, timeout) = (options.ack_timeout(), options.deadline);
        let transport = ConnectionTransport::Reliable;
        let init = ConnectInit { path: &path, end: &local, transport, ack_timeout, timeout, port: None };
        let inner = connection_manager("connect", route.context())?.connect(&init);
        let inner = inner.map_err(|error| contexts::explained(route.context(), path.local.ip(), error))?;
        Ok(Self { inner, qp, path, local, requester: None, options: options.clone(), deadline })
    }

    /// Accepts a peer's request.
    pub(super) fn accept(
        request: &provider::ConnectionRequest,
        qp: &'a Q,
        options: &ConnectionOptions,
    ) -> Result<Self, ConnectError> {
        let (verbs, remote, mut path) = (qp.inner().0, &request.remote, request.path);
        let mut local = options.accepting_end(verbs, remote)?;
        request.connection.settle(&mut path, &mut local)?;
        bring_up::initialize("accept", verbs)?;
        // Linux takes 0 for 1: it would mean to wait without limit.
        let timeout = options.own_timeout().unwrap_or(path.ack_timeout.max(1));
        let atomics = (local.responder_resources, local.initiator_depth);
        let bring_up = BringUp { path: &path, local: &local, remote, options, atomics, timeout };
        let deadline = options.deadline_time();
        let accepted = bring_up.apply(verbs).and_then(|()| request.connection.accept(&local, options.deadline));
        accepted.inspect_err(|_| drop(bring_up::fail(verbs)))?;
        Ok(Self {
            inner: Arc::clone(&request.connection),
            qp,
            path,
            local,
            requester: Some(request.remote.clone()),
            options: options.clone(),
            deadline,
        })
    }

    /// Waits until the connection is set up.
    ///
    /// # Errors
    /// The peer refuses or does not respond, the deadline of the options passes, or a verb fails.
    #[doc(alias = "rdma_get_cm_event")]
    pub fn wait(self) -> Result<Connection, ConnectError> {
        loop {
            match self.inner.next_event(EventWait::Until(self.deadline))? {
                Some(event) => {
                    if let Some(connected) = self.handle(event) {
                        return connected;
                    }
                }
                None => {
                    let _ = bring_up::fail(self.qp.inner().0);
                    return Err(ConnectError::TimedOut);
                }
            }
        }
    }

    /// Returns a descriptor that is readable when [`PendingConnection::try_wait`] can make progress.
    ///
    /// On an adapter it is readable for events of the system's connection manager only, and the deadline of the options
    /// is none of them: sleep until the deadline at most, and then call [`PendingConnection::try_wait`].
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn as_fd(&self) -> Result<BorrowedFd<'_>> {
        self.inner.as_fd()
    }

    /// Completes the connection if that is possible without waiting; otherwise returns it.
    ///
    /// # Errors
    /// As for [`PendingConnection::wait`].
    pub fn try_wait(self) -> Result<std::result::Result<Connection, Self>, ConnectError> {
        while let Some(event) = self.inner.next_event(EventWait::Until(Some(Instant::now())))? {
            if let Some(connected) = self.handle(event) {
                return connected.map(Ok);
            }
        }
        Ok(Err(self))
    }

    /// Handles an event; returns the outcome if there is one.
    fn handle(&self, event: ConnectionEvent) -> Option<Result<Connection, ConnectError>> {
        let peer = self.path.remote;
        match event {
            ConnectionEvent::Replied(remote) => Some(self.finish(*remote)),
            ConnectionEvent::Established => {
                let remote = self.requester.clone().unwrap_or_default();
                Some(Ok(self.connection(remote)))
            }
            ConnectionEvent::Rejected { reason, private_data } => {
                let _ = bring_up::fail(self.qp.inner().0);
                let reason = Reason::Connection(reason);
                Some(Err(ConnectError::Rejected(Rejected { peer, reason, private_data })))
            }
            // The peer was ready, used the connection and has ended it; the message that it is ready was lost.
            ConnectionEvent::Disconnected { is_confirmed: true } if self.requester.is_some() => {
                let connection = self.connection(self.requester.clone().unwrap_or_default());
                connection.has_ended.store(true, Ordering::Release);
                Some(Ok(connection))
            }
            ConnectionEvent::Unreachable | ConnectionEvent::Disconnected { .. } => {
                let _ = bring_up::fail(self.qp.inner().0);
                let is_over = self.deadline.is_some_and(|deadline| deadline <= Instant::now());
                let message = if self.requester.is_some() { "REP" } else { "REQ" };
                let error = match is_over {
                    true => ConnectError::TimedOut,
                    false => ConnectError::Unreachable(Unreachable { peer, message }),
                };
                Some(Err(error))
            }
            ConnectionEvent::TimeWaitExit => None,
        }
    }

    /// Brings up the queue pair after the peer's reply, and confirms the reply.
    fn finish(&self, remote: ConnectionEnd) -> Result<Connection, ConnectError> {
        let qp = self.qp.inner().0;
        let device = qp.context().query_device();
        let chosen = self.options.own_timeout();
        let timeout = chosen.unwrap_or_else(|| self.path.active_timeout(device.local_ca_ack_delay, remote.ack_delay));
        // A peer may have more outstanding than it was offered, as far as the device allows.
        let served = remote.initiator_depth.min(device.max_qp_rd_atom);
        let atomics = (served, remote.responder_resources.min(self.local.initiator_depth));
        let (mut path, mut local) = (self.path, self.local.clone());
        let settled = self.inner.settle(&mut path, &mut local);
        let bring_up =
            BringUp { path: &path, local: &local, remote: &remote, options: &self.options, atomics, timeout };
        let ready = settled.and_then(|()| bring_up.apply(qp)).and_then(|()| self.inner.ready());
        match ready {
            Ok(()) => Ok(self.connection(remote)),
            Err(error) => {
                let _ = self.inner.reject(RejectReason::CONSUMER, &[]);
                let _ = bring_up::fail(qp);
                Err(error.into())
            }
        }
    }

    fn connection(&self, remote: ConnectionEnd) -> Connection {
        let path = ConnectionPath { local: self.inner.local_addr(), ..self.path };
        Connection { inner: Arc::clone(&self.inner), path, remote, has_ended: AtomicBool::new(false) }
    }
}

impl<Q: ConnectionQueuePair> Future for PendingConnection<'_, Q> {
    type Output = Result<Connection, ConnectError>;

    /// The connection manager ends the attempt at the deadline of the options.
    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        loop {
            match self.inner.next_event(EventWait::Waker(cx.waker())) {
                Ok(Some(event)) => {
                    if let Some(connected) = self.handle(event) {
                        return Poll::Ready(connected);
                    }
                }
                Ok(None) => return Poll::Pending,
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }
}

/// A connection that is set up. Dropping it ends it in the background.
///
/// The drop of a device's last object, which may be this one or the queue pair, waits up to 40 ms for the peer to
/// confirm the end. Asynchronous programs keep the [`Context`](crate::verbs::Context) meanwhile, or drop it where
/// waiting does no harm.
///
/// The queue pair stays the application's. When the connection ends, requests of the peer are still answered until the
/// queue pair is moved to the error state, which [`Connection::disconnect`] does.
#[doc(alias = "rdma_cm_id")]
pub struct Connection {
    inner: Arc<dyn provider::Connection>,
    path: ConnectionPath,
    remote: ConnectionEnd,
    /// The connection has ended, as an event has said.
    has_ended: AtomicBool,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("local", &self.path.local)
            .field("remote", &self.path.remote)
            .finish_non_exhaustive()
    }
}

impl Connection {
    /// Returns address and port of this end.
    #[doc(alias("rdma_get_local_addr", "rdma_get_src_port"))]
    pub fn local_addr(&self) -> SocketAddr {
        self.path.local
    }

    /// Returns address and port of the peer, as it states them.
    #[doc(alias("rdma_get_peer_addr", "rdma_get_dst_port"))]
    pub fn peer_addr(&self) -> SocketAddr {
        self.path.remote
    }

    /// Returns the data of the peer's application, with zeros behind it: 196 bytes at the active end, 56 at the passive
    /// one.
    pub fn private_data(&self) -> &[u8] {
        &self.remote.private_data
    }

    /// Returns the number of READs and atomics that the peer serves at once, and that it has outstanding.
    pub fn peer_resources(&self) -> (u8, u8) {
        (self.remote.responder_resources, self.remote.initiator_depth)
    }

    /// Ends the connection: moves the queue pair to the error state, so that its requests complete with a flush error,
    /// and tells the peer. Does not wait for the peer; [`Connection::wait_disconnected`] does. The message is repeated
    /// in the background. A program that drops its last object of the device right afterwards waits there up to 40 ms
    /// until the peer confirms the end; to wait longer, it calls [`Connection::wait_disconnected`] first.
    ///
    /// # Errors
    /// Any provider error.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&self, qp: &impl ConnectionQueuePair) -> Result<()> {
        bring_up::fail(qp.inner().0)?;
        self.inner.disconnect()
    }

    /// Waits until the peer ends the connection, or confirms that this end does; at most for this time. Returns whether
    /// the connection has ended.
    ///
    /// # Errors
    /// Any provider error.
    #[doc(alias("RDMA_CM_EVENT_DISCONNECTED", "rdma_get_cm_event"))]
    pub fn wait_disconnected(&self, timeout: Duration) -> Result<bool> {
        let end = Instant::now().checked_add(timeout);
        while !self.has_ended.load(Ordering::Acquire) {
            match self.inner.next_event(EventWait::Until(end))? {
                Some(event) => self.note(&event),
                // Another thread may have taken the event.
                None => return Ok(self.has_ended.load(Ordering::Acquire)),
            }
        }
        Ok(true)
    }

    /// Waits until the connection has ended, as a future of any runtime.
    ///
    /// # Errors
    /// Any provider error.
    pub async fn disconnected(&self) -> Result<()> {
        std::future::poll_fn(|cx| {
            loop {
                if self.has_ended.load(Ordering::Acquire) {
                    return Poll::Ready(Ok(()));
                }
                match self.inner.next_event(EventWait::Waker(cx.waker()))? {
                    Some(event) => self.note(&event),
                    None => return Poll::Pending,
                }
            }
        })
        .await
    }

    /// Returns a descriptor that is readable while an event waits, such as the end of the connection: then call
    /// [`Connection::wait_disconnected`] with a time of zero. A program that sleeps on its completion channel
    /// [sleeps on both](super#noticing-the-peers-disconnect).
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn as_fd(&self) -> Result<BorrowedFd<'_>> {
        self.inner.as_fd()
    }

    fn note(&self, event: &ConnectionEvent) {
        if !matches!(event, ConnectionEvent::Established | ConnectionEvent::Replied(_)) {
            self.has_ended.store(true, Ordering::Release);
        }
    }
}
