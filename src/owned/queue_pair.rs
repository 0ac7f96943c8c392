//! Queue pairs whose requests own their memory.

use std::fmt;
use std::sync::Arc;

use super::Refused;
use super::completion_queue::CompletionQueue;
use super::finished::Finished;
use super::in_flight::{Posted, Side};
use super::request::{Request, RequestBuffer};
use super::shared_receive::SharedReceiveQueue;
use crate::types::CompletionSource;
use crate::verbs::cm::{ConnectionQueuePair, sealed};
use crate::verbs::{
    AsyncEvent, CompletionError, ConnectOptions, ConnectionInfo, Context, Counters, Error, ErrorKind, ProtectionDomain,
    Qpn, QueuePairAttributes, QueuePairCapabilities, QueuePairReport, QueuePairState, QueuePairStatus, RateLimit,
    Result,
};

/// Options of a [`QueuePair`], whose shared receive queue belongs to this tier.
pub type QueuePairOptions = crate::verbs::QueuePairOptions<SharedReceiveQueue>;

/// A queue pair whose requests own their memory.
///
/// A posted [`Buffer`](super::Buffer) moves into the request; the [`CompletionQueue`] returns it when the request is
/// finished. [`QueuePair::reset`] and [`QueuePair::destroy`] return the buffers in flight; dropping the queue pair
/// destroys it, and its buffers return to their pools.
///
/// ```
/// # use std::time::Duration;
/// # use rdma_verbs::verbs::{self, AccessFlags};
/// # let context = verbs::open("soft:127.0.1.103")?;
/// # let pd = context.alloc_pd()?;
/// # let region = pd.alloc_mr(4096, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE)?;
/// # let remote = region.remote();
/// use rdma_verbs::owned::{Buffer, CompletionQueue, QueuePair, QueuePairOptions, Request};
///
/// let cq = CompletionQueue::new(&context, 64)?;
/// let qp = QueuePair::with_options(&pd, &cq, &cq, &QueuePairOptions::default().max_send_wr(32))?;
/// # qp.connect(&qp.connection_info()?)?; // to itself
/// let buffer = Buffer::from_vec(&pd, vec![7; 100])?;
/// qp.post_send(Request::write(buffer, remote).signaled())?;
/// let buffer = cq.wait(Duration::from_secs(10))?.into_buffer()?;
/// assert_eq!(buffer.into_vec()?, [7; 100]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct QueuePair {
    posted: Arc<Posted>,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
}

impl QueuePair {
    /// Creates a queue pair with default options.
    ///
    /// # Errors
    /// As for [`verbs::ProtectionDomain::create_qp`](crate::verbs::ProtectionDomain::create_qp).
    pub fn new(domain: &ProtectionDomain, send_cq: &CompletionQueue, recv_cq: &CompletionQueue) -> Result<Self> {
        Self::with_options(domain, send_cq, recv_cq, &QueuePairOptions::default())
    }

    /// Creates a queue pair with options. `max_send_wr` and `max_recv_wr` also limit the number of buffers that it
    /// holds.
    ///
    /// With a [`SharedReceiveQueue`], receives are posted to that queue; their buffers come back from `recv_cq`.
    ///
    /// # Errors
    /// As for [`verbs::ProtectionDomain::create_qp_with`](crate::verbs::ProtectionDomain::create_qp_with).
    pub fn with_options(
        domain: &ProtectionDomain,
        send_cq: &CompletionQueue,
        recv_cq: &CompletionQueue,
        options: &QueuePairOptions,
    ) -> Result<Self> {
        super::exclusive::check_device(domain)?;
        let shared = options.wanted_srq().map(SharedReceiveQueue::posted);
        let lowered = options.lower(shared.map(|posted| posted.queue().clone()));
        let qp = domain.create_qp_with(send_cq.queue(), recv_cq.queue(), &lowered)?;
        Self::over(Posted::new(qp, shared.cloned()), send_cq, recv_cq)
    }

    fn over(posted: Posted, send_cq: &CompletionQueue, recv_cq: &CompletionQueue) -> Result<Self> {
        let posted = Arc::new(posted);
        send_cq.attach(&posted, Side::Send)?;
        if let Err(error) = recv_cq.attach(&posted, Side::Receive) {
            send_cq.detach(posted.source(Side::Send));
            return Err(error);
        }
        Ok(Self { send_cq: send_cq.clone(), recv_cq: recv_cq.clone(), posted })
    }

    /// Posts a request to the send queue.
    ///
    /// # Errors
    /// As for [`verbs::QueuePair::post_send`](crate::verbs::QueuePair::post_send), with the request.
    /// [`ErrorKind::QueueFull`] if as many requests are in flight as the queue has slots.
    #[expect(clippy::result_large_err, reason = "the request comes back by value, as it went in")]
    pub fn post_send(&self, request: Request) -> Result<(), Refused<Request>> {
        self.posted.post_send(request)
    }

    /// Posts memory for one arriving message, which may use its whole capacity. `wr_id` is returned with it.
    ///
    /// # Errors
    /// As for [`verbs::QueuePair::post_recv`](crate::verbs::QueuePair::post_recv), with the memory.
    /// [`ErrorKind::QueueFull`] if as many buffers are posted, or filled and not polled, as the queue has slots;
    /// [`ErrorKind::InvalidArgument`] if receives come from a shared queue.
    pub fn post_recv(&self, buffer: impl Into<RequestBuffer>, wr_id: u64) -> Result<(), Refused<RequestBuffer>> {
        let buffer = buffer.into();
        match self.posted.shared() {
            None => self.posted.post_recv(buffer, wr_id),
            Some(srq) => {
                let message = format!(
                    "queue pair {} takes its receives from shared receive queue {}; post them there",
                    self.qpn(),
                    srq.queue().number()
                );
                Err(Refused::new(Error::new("post_recv", ErrorKind::InvalidArgument, message), buffer))
            }
        }
    }

    /// Returns the number of buffers in flight in the send queue and in the receive queue. Requests without a buffer
    /// are counted as well.
    pub fn buffers_in_flight(&self) -> (usize, usize) {
        (self.posted.in_flight(Side::Send), self.posted.in_flight(Side::Receive))
    }

    /// Moves to the RESET state; see [`verbs::QueuePair::reset`](crate::verbs::QueuePair::reset). Returns the buffers
    /// in flight, in order, sends first; for receives from a shared receive queue, only the buffer that a message had
    /// begun to fill.
    ///
    /// # Errors
    /// The queue pair is destroyed.
    ///
    /// ```
    /// # use rdma_verbs::{owned::{BufferPool, CompletionQueue, QueuePair}, verbs};
    /// # let context = verbs::open("soft:127.0.1.104")?;
    /// # let pd = context.alloc_pd()?;
    /// # let cq = CompletionQueue::new(&context, 16)?;
    /// # let qp = QueuePair::new(&pd, &cq, &cq)?;
    /// # let pool = BufferPool::new(&pd, 1 << 20)?;
    /// qp.init()?;
    /// qp.post_recv(pool.take(64)?, 5)?;
    /// let returned = qp.reset()?;
    /// assert_eq!(returned[0].wr_id(), 5);
    /// assert_eq!(returned[0].result().unwrap_err().cause, verbs::Cause::Destroyed);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reset(&self) -> Result<Vec<Finished>> {
        self.posted.reset(|| self.keep_completions())
    }

    /// Destroys the queue pair in the device. Returns the buffers in flight, like [`QueuePair::reset`].
    ///
    /// # Errors
    /// The device refuses, for the reason that the [`verbs::Error`](crate::verbs::Error) states; a soft device never
    /// does.
    pub fn destroy(self) -> Result<Vec<Finished>> {
        self.end()
    }

    fn end(&self) -> Result<Vec<Finished>> {
        self.posted.destroy(|| self.keep_completions())
    }

    pub(super) fn posted(&self) -> &Posted {
        &self.posted
    }

    /// Polls completed receives of a shared queue from the device, before it removes their completions.
    fn keep_completions(&self) {
        // Sources are comparable only within one completion queue.
        let completes_sends = self.send_cq.is_same(&self.recv_cq);
        let ending = if completes_sends { self.posted.source(Side::Send) } else { CompletionSource::NONE };
        self.recv_cq.keep_completions(ending);
    }

    /// Destroys the queue pair like [`QueuePair::destroy`], while others still use it: their later calls fail.
    #[cfg(all(feature = "tokio", not(loom)))]
    pub(crate) fn shut_down(&self) -> Result<Vec<Finished>> {
        self.end()
    }

    /// Changes state and attributes; see [`verbs::QueuePair::modify`](crate::verbs::QueuePair::modify).
    ///
    /// # Errors
    /// As for [`verbs::QueuePair::modify`](crate::verbs::QueuePair::modify); RESET is refused, because it returns
    /// buffers: call [`QueuePair::reset`].
    pub fn modify(&self, attributes: &QueuePairAttributes) -> Result<()> {
        if attributes.qp_state == Some(QueuePairState::Reset) {
            let message = "qp_state is RESET, which returns buffers; call reset() instead";
            return Err(Error::new("modify_qp", ErrorKind::InvalidArgument, message));
        }
        self.posted.qp().modify(attributes)
    }

    /// Limits the queue pair's send rate; see [`verbs::QueuePair::limit_rate`](crate::verbs::QueuePair::limit_rate).
    ///
    /// # Errors
    /// As for [`verbs::QueuePair::limit_rate`](crate::verbs::QueuePair::limit_rate).
    pub fn limit_rate(&self, limit: &RateLimit) -> Result<()> {
        self.posted.qp().limit_rate(limit)
    }

    /// Moves to the INIT state; see [`verbs::QueuePair::init`](crate::verbs::QueuePair::init).
    ///
    /// # Errors
    /// As for [`verbs::QueuePair::init`](crate::verbs::QueuePair::init).
    pub fn init(&self) -> Result<()> {
        self.posted.qp().init()
    }

    /// Returns what the peer needs to connect; see
    /// [`verbs::QueuePair::connection_info`](crate::verbs::QueuePair::connection_info).
    ///
    /// # Errors
    /// As for [`verbs::QueuePair::connection_info`](crate::verbs::QueuePair::connection_info).
    pub fn connection_info(&self) -> Result<ConnectionInfo> {
        self.posted.qp().connection_info()
    }

    /// Connects to the peer; see [`verbs::QueuePair::connect`](crate::verbs::QueuePair::connect).
    ///
    /// # Errors
    /// As for [`verbs::QueuePair::connect`](crate::verbs::QueuePair::connect).
    pub fn connect(&self, remote: &ConnectionInfo) -> Result<()> {
        self.posted.qp().connect(remote)
    }

    /// Connects like [`QueuePair::connect`], with options.
    ///
    /// # Errors
    /// As for [`QueuePair::connect`].
    pub fn connect_with(&self, remote: &ConnectionInfo, options: &ConnectOptions) -> Result<()> {
        self.posted.qp().connect_with(remote, options)
    }

    /// Returns the current state and attributes.
    ///
    /// # Errors
    /// The queue pair is destroyed.
    pub fn query(&self) -> Result<QueuePairStatus> {
        self.posted.qp().query()
    }

    /// Returns the current state.
    ///
    /// # Errors
    /// As for [`QueuePair::query`].
    pub fn state(&self) -> Result<QueuePairState> {
        self.posted.qp().state()
    }

    /// Returns the queue pair's number.
    pub fn qpn(&self) -> Qpn {
        self.posted.qp().qpn()
    }

    /// Returns the actual sizes of its queues.
    pub fn cap(&self) -> QueuePairCapabilities {
        self.posted.qp().cap()
    }

    /// Returns the queue pair's protection domain, in which buffers must be registered.
    pub fn protection_domain(&self) -> &ProtectionDomain {
        self.posted.qp().protection_domain()
    }

    /// Returns the device that the queue pair belongs to.
    pub fn context(&self) -> &Context {
        self.posted.qp().context()
    }

    /// Returns the queue pair's counters.
    pub fn counters(&self) -> Counters {
        self.posted.qp().counters()
    }

    /// Returns what the queue pair has recorded about itself and its peer since it was connected; see
    /// [`verbs::QueuePair::report`](crate::verbs::QueuePair::report).
    ///
    /// # Errors
    /// The queue pair is destroyed.
    pub fn report(&self) -> Result<QueuePairReport> {
        self.posted.qp().report()
    }

    /// Explains a failure; see [`verbs::QueuePair::explain`](crate::verbs::QueuePair::explain).
    pub fn explain(&self, error: &CompletionError) -> String {
        self.posted.qp().explain(error)
    }

    /// Explains an asynchronous event of this queue pair or of its completion queue; see
    /// [`verbs::QueuePair::explain_event`](crate::verbs::QueuePair::explain_event).
    pub fn explain_event(&self, event: &AsyncEvent) -> String {
        self.posted.qp().explain_event(event)
    }

    /// Explains the state of the connection: why nothing completes, or that nothing is wrong; see
    /// [`verbs::QueuePair::explain_state`](crate::verbs::QueuePair::explain_state).
    pub fn explain_state(&self) -> String {
        self.posted.qp().explain_state()
    }
}

impl sealed::Sealed for QueuePair {
    fn inner(&self) -> sealed::Inner<'_> {
        sealed::Inner(self.posted.qp())
    }
}

/// The [connection manager](crate::verbs::cm) connects it. When the connection ends, the buffers in flight come back
/// with a flush error.
impl ConnectionQueuePair for QueuePair {}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::warn!(
                target: "rdma_verbs::queue_pair",
                qpn = %self.qpn(), %error, "the buffers of a dropped queue pair leak"
            );
        }
        self.send_cq.detach(self.posted.source(Side::Send));
        self.recv_cq.detach(self.posted.source(Side::Receive));
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("QueuePair");
        debug.field("queue_pair", self.posted.qp()).field("buffers_in_flight", &self.buffers_in_flight()).finish()
    }
}
