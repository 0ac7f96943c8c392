//! Queue pairs whose requests are futures.

use std::fmt;
use std::sync::Arc;

use super::cells::{Cells, Ticket};
use super::completion_queue::CompletionQueue;
use super::messages::Source;
use super::shared_receive::{SharedReceiveQueue, SharedUse};
use super::{IntoRequestBuffer, Messages, RequestError};
use crate::owned::{self, BufferPool, Finished, Refused, Request, RequestBuffer};
use crate::verbs::cm::{ConnectionQueuePair, sealed};
use crate::verbs::{
    AsyncEvent, CompletionError, ConnectOptions, ConnectionInfo, Counters, Error, ProtectionDomain, Qpn,
    QueuePairAttributes, QueuePairCapabilities, QueuePairReport, QueuePairState, QueuePairStatus, RateLimit,
    RemoteMemory, Result, Success,
};

/// Options of a [`QueuePair`], whose shared receive queue belongs to this tier.
pub type QueuePairOptions = crate::verbs::QueuePairOptions<SharedReceiveQueue>;

/// A queue pair whose requests are futures: a buffer goes in, and comes back with the result.
///
/// Clones refer to the same queue pair, so that several tasks can use it; it is destroyed when the last clone is
/// dropped.
///
/// A request is posted when its future is first polled. If the queue is full, it waits for a free slot, in order.
///
/// # Cancellation
///
/// A future may be dropped at any time. If its request was not posted yet, it never is, and the buffer is dropped. If
/// it was, the request continues; its buffer stays with the queue pair until the request is finished or flushed, then
/// returns to its pool and is counted ([`QueuePair::abandoned`]). A message that arrives in an abandoned receive is
/// lost.
///
/// ```
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
/// # runtime.block_on(async {
/// # use rdma_verbs::verbs::{self, AccessFlags};
/// use rdma_verbs::asynchronous::{CompletionQueue, QueuePair};
/// use rdma_verbs::owned::BufferPool;
/// # let context = verbs::open("soft:127.0.1.109")?;
/// # let pd = context.alloc_pd()?;
/// # let region = pd.alloc_mr(4096, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE)?;
/// # let remote = region.remote();
///
/// let cq = CompletionQueue::new(&context, 64)?;
/// let qp = QueuePair::new(&pd, &cq)?;
/// # qp.connect(&qp.connection_info()?)?; // to itself
/// let pool = BufferPool::new(&pd, 1 << 20)?;
///
/// let (written, buffer) = qp.write(pool.copy_from(b"some bytes")?, remote).await;
/// written?;
/// let (read, buffer) = qp.read(buffer, remote.slice(5..10)?).await;
/// read?;
/// assert_eq!(*buffer, *b"bytes");
/// let (added, buffer) = qp.fetch_and_add(buffer, remote.slice(64..72)?, 1).await;
/// added?;
/// assert_eq!(buffer.to_u64(), Some(0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct QueuePair {
    shared: Arc<Shared>,
}

/// State shared by the clones of a queue pair.
pub(super) struct Shared {
    qp: owned::QueuePair,
    /// The shared queue that its receives come from. Dropped after the queue pair.
    srq: Option<SharedUse>,
    cq: CompletionQueue,
    sends: Half,
    receives: Half,
}

/// One queue: the cells in which its futures wait, and the route to them.
struct Half {
    cells: Arc<Cells>,
    route: u32,
}

impl Half {
    fn wr_id(&self, ticket: &Ticket) -> u64 {
        u64::from(self.route) << 32 | u64::from(ticket.index())
    }
}

impl Shared {
    /// Creates a queue pair that the completion queue's task does not know yet.
    fn new(srq: Option<SharedUse>, qp: owned::QueuePair, cq: &CompletionQueue) -> Result<Arc<Self>> {
        let (cap, [sends, receives]) = (qp.cap(), cq.reserve_routes()?);
        let half = |count, route| Half { cells: Cells::new(count), route };
        let (sends, receives) = (half(cap.max_send_wr, sends), half(cap.max_recv_wr, receives));
        Ok(Arc::new(Self { qp, srq, cq: cq.clone(), sends, receives }))
    }

    /// Returns its routes at the completion queue.
    pub(super) fn routes(&self) -> [(u32, &Arc<Cells>); 2] {
        [&self.sends, &self.receives].map(|half| (half.route, &half.cells))
    }

    /// Destroys the queue pair; its requests fail.
    pub(super) fn shut_down(&self) {
        match self.qp.shut_down() {
            Ok(returned) => self.give_back(returned),
            Err(error) => tracing::warn!(
                target: "rdma_verbs::queue_pair", %error, "a queue pair could not be destroyed"
            ),
        }
    }

    fn give_back(&self, returned: Vec<Finished>) {
        for finished in returned {
            let cells = match &self.srq {
                _ if !finished.is_receive() => &self.sends.cells,
                Some(srq) => srq.cells(),
                None => &self.receives.cells,
            };
            cells.finish(finished.wr_id() as u32, finished);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // No future is waiting any longer; buffers in flight come back from the queue pair itself.
        for route in [self.sends.route, self.receives.route] {
            self.cq.remove_route(route);
        }
    }
}

impl QueuePair {
    /// Creates a queue pair with default options.
    ///
    /// # Errors
    /// As for [`verbs::ProtectionDomain::create_qp`](crate::verbs::ProtectionDomain::create_qp); the queue's task has
    /// ended.
    pub fn new(domain: &ProtectionDomain, cq: &CompletionQueue) -> Result<Self> {
        Self::with_options(domain, cq, &QueuePairOptions::default())
    }

    /// Creates a queue pair with options.
    ///
    /// With a [`SharedReceiveQueue`], receives are requested from that queue, whose completion queue must be `cq`.
    ///
    /// # Errors
    /// As for [`verbs::ProtectionDomain::create_qp_with`](crate::verbs::ProtectionDomain::create_qp_with); the shared
    /// receive queue uses another completion queue; the queue's task has ended.
    pub fn with_options(domain: &ProtectionDomain, cq: &CompletionQueue, options: &QueuePairOptions) -> Result<Self> {
        let srq = options.wanted_srq();
        if let Some(srq) = srq.filter(|srq| !srq.cq().is_same(cq)) {
            let message = format!("srq is shared receive queue {}, which uses another completion queue", srq.number());
            return Err(Error::unsuitable("create_qp", "srq", message));
        }
        let lowered = options.lower(srq.map(|srq| srq.owned().clone()));
        let qp = owned::QueuePair::with_options(domain, cq.owned(), cq.owned(), &lowered)?;
        Self::over(srq.map(SharedReceiveQueue::in_use), qp, cq)
    }

    // The arguments are dropped in reverse order, so the queue pair first.
    fn over(srq: Option<SharedUse>, qp: owned::QueuePair, cq: &CompletionQueue) -> Result<Self> {
        let shared = Shared::new(srq, qp, cq)?;
        cq.add_routes(&shared)?;
        Ok(Self { shared })
    }

    /// Sends the buffer's filled part into the peer's next receive.
    pub async fn send<B: IntoRequestBuffer>(&self, buffer: B) -> (Result<Success, RequestError>, B) {
        self.typed(Request::send(buffer)).await
    }

    /// Receives the next message into the buffer, whose length becomes the message's; a datagram begins with its
    /// 40-byte route header. Refused if receives come from a shared queue: see [`SharedReceiveQueue::recv`].
    pub async fn recv<B: IntoRequestBuffer>(&self, buffer: B) -> (Result<Success, RequestError>, B) {
        let posted = match &self.shared.srq {
            Some(srq) => Err(Refused::new(srq.refusal("post_recv", self.qpn()), buffer.into())),
            None => {
                let ticket = self.shared.receives.cells.claim().await;
                self.post_recv(ticket, buffer.into())
            }
        };
        let (result, buffer) = match posted {
            Ok(ticket) => outcome(ticket.await),
            Err(Refused { error, given, .. }) => (Err(RequestError::Refused(error)), given),
        };
        (result, B::from_request_buffer(buffer))
    }

    /// Writes the buffer's filled part to the peer's memory.
    pub async fn write<B: IntoRequestBuffer>(
        &self,
        buffer: B,
        remote: RemoteMemory,
    ) -> (Result<Success, RequestError>, B) {
        self.typed(Request::write(buffer, remote)).await
    }

    /// Reads all of `remote` into the buffer.
    pub async fn read<B: IntoRequestBuffer>(
        &self,
        buffer: B,
        remote: RemoteMemory,
    ) -> (Result<Success, RequestError>, B) {
        self.typed(Request::read(buffer, remote)).await
    }

    /// Executes a compare-and-swap on the peer's memory; the original value is placed in the buffer.
    pub async fn compare_and_swap<B: IntoRequestBuffer>(
        &self,
        buffer: B,
        remote: RemoteMemory,
        compare: u64,
        swap: u64,
    ) -> (Result<Success, RequestError>, B) {
        self.typed(Request::compare_and_swap(buffer, remote, compare, swap)).await
    }

    /// Executes a fetch-and-add on the peer's memory; the original value is placed in the buffer.
    pub async fn fetch_and_add<B: IntoRequestBuffer>(
        &self,
        buffer: B,
        remote: RemoteMemory,
        add: u64,
    ) -> (Result<Success, RequestError>, B) {
        self.typed(Request::fetch_and_add(buffer, remote, add)).await
    }

    /// Executes any request of the owned tier, for instance with immediate data, fenced or solicited. The request's
    /// `wr_id` is replaced, and it is signaled.
    pub async fn execute(&self, request: Request) -> (Result<Success, RequestError>, RequestBuffer) {
        let (ticket, wr_id) = self.claim_send().await;
        match self.shared.qp.post_send(request.wr_id(wr_id).signaled()) {
            Ok(()) => outcome(ticket.posted().await),
            Err(Refused { error, given, .. }) => (Err(RequestError::Refused(error)), given.into_request_buffer()),
        }
    }

    /// Waits for a slot of the send queue. Returns it with the `wr_id` of its request.
    pub(super) async fn claim_send(&self) -> (Ticket, u64) {
        let sends = &self.shared.sends;
        let ticket = sends.cells.claim().await;
        let wr_id = sends.wr_id(&ticket);
        (ticket, wr_id)
    }

    /// Claims another slot of the send queue, if one is free.
    pub(super) fn try_claim_send(&self) -> Option<(Ticket, u64)> {
        let sends = &self.shared.sends;
        let ticket = sends.cells.try_claim()?;
        let wr_id = sends.wr_id(&ticket);
        Some((ticket, wr_id))
    }

    pub(super) fn owned(&self) -> &owned::QueuePair {
        &self.shared.qp
    }

    pub(super) async fn typed<B: IntoRequestBuffer>(&self, request: Request) -> (Result<Success, RequestError>, B) {
        let (result, buffer) = self.execute(request).await;
        (result, B::from_request_buffer(buffer))
    }

    /// Posts `depth` receives of `len` bytes each, and returns the stream of the messages that arrive, in order. For
    /// datagrams, `len` includes the 40 bytes of the route header.
    ///
    /// # Errors
    /// As for [`owned::QueuePair::post_recv`] and [`BufferPool::take`]. Receives come from a shared queue: see
    /// [`SharedReceiveQueue::messages`].
    pub fn messages(&self, pool: &BufferPool, len: usize, depth: usize) -> Result<Messages> {
        match &self.shared.srq {
            Some(srq) => Err(srq.refusal("messages", self.qpn())),
            None => Messages::new(Source::QueuePair(self.clone()), pool.clone(), len, depth),
        }
    }

    pub(super) fn receive_cells(&self) -> &Arc<Cells> {
        &self.shared.receives.cells
    }

    pub(super) fn post_recv(&self, ticket: Ticket, buffer: RequestBuffer) -> Result<Ticket, Refused<RequestBuffer>> {
        let wr_id = self.shared.receives.wr_id(&ticket);
        self.shared.qp.post_recv(buffer, wr_id)?;
        Ok(ticket.posted())
    }

    /// Returns the number of requests, sends and receives, that were finished after their futures were dropped.
    pub fn abandoned(&self) -> u64 {
        self.shared.sends.cells.abandoned() + self.shared.receives.cells.abandoned()
    }

    /// Returns the number of buffers in flight in the send queue and in the receive queue. Requests without a buffer
    /// are counted as well.
    pub fn buffers_in_flight(&self) -> (usize, usize) {
        self.shared.qp.buffers_in_flight()
    }

    /// Moves to the RESET state; the requests in flight fail with the cause
    /// [`Cause::Destroyed`](crate::verbs::Cause::Destroyed).
    ///
    /// # Errors
    /// The queue pair is destroyed.
    pub fn reset(&self) -> Result<()> {
        self.shared.give_back(self.shared.qp.reset()?);
        Ok(())
    }

    /// Changes state and attributes; see [`owned::QueuePair::modify`].
    ///
    /// # Errors
    /// As for [`owned::QueuePair::modify`].
    pub fn modify(&self, attributes: &QueuePairAttributes) -> Result<()> {
        self.shared.qp.modify(attributes)
    }

    /// Limits the queue pair's send rate; see [`verbs::QueuePair::limit_rate`](crate::verbs::QueuePair::limit_rate).
    ///
    /// # Errors
    /// As for [`verbs::QueuePair::limit_rate`](crate::verbs::QueuePair::limit_rate).
    pub fn limit_rate(&self, limit: &RateLimit) -> Result<()> {
        self.shared.qp.limit_rate(limit)
    }

    /// Moves to the INIT state, in which receives can be posted before the peer is known.
    ///
    /// # Errors
    /// As for [`verbs::QueuePair::init`](crate::verbs::QueuePair::init).
    pub fn init(&self) -> Result<()> {
        self.shared.qp.init()
    }

    /// Returns what the peer needs to connect; see
    /// [`verbs::QueuePair::connection_info`](crate::verbs::QueuePair::connection_info).
    ///
    /// # Errors
    /// As for [`verbs::QueuePair::connection_info`](crate::verbs::QueuePair::connection_info).
    pub fn connection_info(&self) -> Result<ConnectionInfo> {
        self.shared.qp.connection_info()
    }

    /// Connects to the peer; see [`verbs::QueuePair::connect`](crate::verbs::QueuePair::connect).
    ///
    /// # Errors
    /// As for [`verbs::QueuePair::connect`](crate::verbs::QueuePair::connect).
    pub fn connect(&self, remote: &ConnectionInfo) -> Result<()> {
        self.shared.qp.connect(remote)
    }

    /// Connects like [`QueuePair::connect`], with options.
    ///
    /// # Errors
    /// As for [`QueuePair::connect`].
    pub fn connect_with(&self, remote: &ConnectionInfo, options: &ConnectOptions) -> Result<()> {
        self.shared.qp.connect_with(remote, options)
    }

    /// Returns the current state and attributes.
    ///
    /// # Errors
    /// The queue pair is destroyed.
    pub fn query(&self) -> Result<QueuePairStatus> {
        self.shared.qp.query()
    }

    /// Returns the current state.
    ///
    /// # Errors
    /// As for [`QueuePair::query`].
    pub fn state(&self) -> Result<QueuePairState> {
        self.shared.qp.state()
    }

    /// Returns the queue pair's number.
    pub fn qpn(&self) -> Qpn {
        self.shared.qp.qpn()
    }

    /// Returns the actual sizes of its queues.
    pub fn cap(&self) -> QueuePairCapabilities {
        self.shared.qp.cap()
    }

    /// Returns the queue pair's protection domain, in which buffers must be registered.
    pub fn protection_domain(&self) -> &ProtectionDomain {
        self.shared.qp.protection_domain()
    }

    /// Returns the queue pair's counters.
    pub fn counters(&self) -> Counters {
        self.shared.qp.counters()
    }

    /// Returns what the queue pair has recorded about itself and its peer since it was connected; see
    /// [`verbs::QueuePair::report`](crate::verbs::QueuePair::report).
    ///
    /// # Errors
    /// The queue pair is destroyed.
    pub fn report(&self) -> Result<QueuePairReport> {
        self.shared.qp.report()
    }

    /// Explains a failure; see [`verbs::QueuePair::explain`](crate::verbs::QueuePair::explain).
    pub fn explain(&self, error: &CompletionError) -> String {
        self.shared.qp.explain(error)
    }

    /// Explains an asynchronous event of this queue pair or of its completion queue; see
    /// [`verbs::QueuePair::explain_event`](crate::verbs::QueuePair::explain_event).
    pub fn explain_event(&self, event: &AsyncEvent) -> String {
        self.shared.qp.explain_event(event)
    }

    /// Explains the state of the connection: why nothing completes, or that nothing is wrong; see
    /// [`verbs::QueuePair::explain_state`](crate::verbs::QueuePair::explain_state).
    pub fn explain_state(&self) -> String {
        self.shared.qp.explain_state()
    }
}

impl sealed::Sealed for QueuePair {
    fn inner(&self) -> sealed::Inner<'_> {
        sealed::Sealed::inner(&self.shared.qp)
    }
}

/// The [connection manager](crate::verbs::cm) connects it, without blocking a thread: the futures of the connection
/// manager work on any runtime.
///
/// ```
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
/// # runtime.block_on(async {
/// use rdma_verbs::asynchronous::{CompletionQueue, QueuePair};
/// use rdma_verbs::owned::BufferPool;
/// use rdma_verbs::verbs::Context;
/// use rdma_verbs::verbs::cm::{ConnectionOptions, Listener, Route};
///
/// fn end(context: &Context) -> rdma_verbs::verbs::Result<(QueuePair, BufferPool)> {
///     let pd = context.alloc_pd()?;
///     let qp = QueuePair::new(&pd, &CompletionQueue::new(context, 64)?)?;
///     qp.init()?;
///     Ok((qp, BufferPool::new(&pd, 1 << 16)?))
/// }
///
/// let listener = Listener::bind("127.46.1.12:7471")?;
/// let server = async {
///     let request = listener.accept_async().await?;
///     let (qp, pool) = end(request.context())?;
///     let mut messages = qp.messages(&pool, 64, 4)?; // posted before the peer can send
///     let connection = request.start_accept(&qp, &ConnectionOptions::new())?.await?;
///     let message = messages.next().await.expect("the queue pair is well")?;
///     qp.send(message.buffer).await.0?;
///     connection.disconnected().await?;
///     Ok::<(), Box<dyn std::error::Error>>(())
/// };
/// let client = async {
///     let route = Route::to("127.46.1.12:7471")?.from("127.46.1.13")?;
///     let (qp, pool) = end(route.context())?;
///     let connection = route.start_connect(&qp, &ConnectionOptions::new())?.await?;
///     let (received, sent) = tokio::join!(qp.recv(pool.take(64)?), qp.send(pool.copy_from(b"hello")?));
///     sent.0?;
///     received.0?;
///     assert_eq!(*received.1, *b"hello");
///     connection.disconnect(&qp)?;
///     Ok::<(), Box<dyn std::error::Error>>(())
/// };
/// tokio::try_join!(server, client)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl ConnectionQueuePair for QueuePair {}

/// Converts a finished request to the result of its future.
pub(super) fn outcome(finished: Finished) -> (Result<Success, RequestError>, RequestBuffer) {
    let result = match finished.result() {
        Ok(Some(success)) => Ok(success),
        Err(error) => Err(RequestError::Failed(error)),
        Ok(None) => unreachable!("every request here is signaled, and receives always are"),
    };
    (result, finished.into_request_buffer())
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.qp.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs;

    /// The queue's task ends before, during or after the creation of a queue pair: the queue pair is never left behind,
    /// so none of its futures waits forever.
    #[test]
    fn a_queue_pair_that_is_made_while_the_task_ends_is_destroyed() {
        for steps_before in 0..3 {
            let mut runtime = Some(tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap());
            let context = verbs::open("soft:127.90.9.5").unwrap();
            let pd = context.alloc_pd().unwrap();
            let made = runtime.as_ref().unwrap().block_on(async { CompletionQueue::new(&context, 16) });
            let cq = made.unwrap();
            let qp = owned::QueuePair::new(&pd, cq.owned(), cq.owned()).unwrap();
            let mut step = 0;
            let mut end_in_turn = || {
                if step == steps_before {
                    drop(runtime.take());
                }
                step += 1;
            };
            end_in_turn();
            let shared = Shared::new(None, qp, &cq).unwrap();
            end_in_turn();
            let added = cq.add_routes(&shared);
            end_in_turn();
            let state = shared.qp.state();
            assert!(added.is_err() || state.is_err(), "after {steps_before}: left behind in {state:?}");
            assert_eq!(added.is_err(), steps_before < 2, "after {steps_before}: {added:?}");
        }
    }
}
