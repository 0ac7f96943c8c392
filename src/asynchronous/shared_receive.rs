//! Shared receive queues whose receives are futures.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::cells::{Cells, Ticket};
use super::completion_queue::CompletionQueue;
use super::messages::Source;
use super::queue_pair::outcome;
use super::{IntoRequestBuffer, Messages, RequestError};
use crate::owned::{self, BufferPool, Refused, RequestBuffer};
use crate::verbs::{
    Context, Error, ErrorKind, ProtectionDomain, Qpn, Result, SharedReceiveQueueAttributes, SharedReceiveQueueNumber,
    SharedReceiveQueueStatus, Success,
};

/// A shared receive queue whose receives are futures: buffers for the messages of several
/// [`QueuePair`](super::QueuePair)s, whose [options](super::QueuePairOptions) refer to it.
///
/// It belongs to a [`CompletionQueue`], which its queue pairs use as well. [`Success::qpn`] identifies the queue pair
/// that took a receive for a message. Messages of one queue pair take receives in the order in which these were posted;
/// those of different queue pairs finish in any order. Futures may be dropped like those of a
/// [`QueuePair`](super::QueuePair).
///
/// On adapters, a receive that a message has begun to fill when its queue pair is reset or destroyed is finished only
/// when the shared queue is destroyed.
///
/// Clones refer to the same queue. It is destroyed when its last clone and its last queue pair are dropped.
///
/// ```
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
/// # runtime.block_on(async {
/// use rdma_verbs::asynchronous::{CompletionQueue, QueuePair, QueuePairOptions, SharedReceiveQueue};
/// use rdma_verbs::owned::BufferPool;
/// # use rdma_verbs::verbs;
/// # let context = verbs::open("soft:127.45.1.32")?;
/// # let pd = context.alloc_pd()?;
/// let cq = CompletionQueue::new(&context, 64)?;
/// let srq = SharedReceiveQueue::new(&pd, &cq, 16)?;
/// let options = QueuePairOptions::default().srq(&srq);
/// let first = QueuePair::with_options(&pd, &cq, &options)?;
/// let second = QueuePair::with_options(&pd, &cq, &options)?;
/// first.connect(&second.connection_info()?)?;
/// second.connect(&first.connection_info()?)?;
///
/// let pool = BufferPool::new(&pd, 1 << 20)?;
/// let mut messages = srq.messages(&pool, 4096, 8)?;
/// first.send(pool.copy_from(b"to the second")?).await.0?;
/// let message = messages.next().await.expect("the queue exists")?;
/// assert_eq!((message.success.qpn, message.payload()), (second.qpn(), &b"to the second"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct SharedReceiveQueue {
    shared: Arc<SharedReceives>,
}

/// State shared by the clones of a queue and its queue pairs.
pub(super) struct SharedReceives {
    srq: owned::SharedReceiveQueue,
    cq: CompletionQueue,
    cells: Arc<Cells>,
    route: u32,
    max_wr: u32,
    /// The completion queue's task has ended.
    is_closed: AtomicBool,
}

impl SharedReceives {
    /// Returns its route at the completion queue.
    pub(super) fn route(&self) -> (u32, &Arc<Cells>) {
        (self.route, &self.cells)
    }

    /// Destroys the queue: its receives fail. Its queue pairs are destroyed, or each calls [`SharedReceives::released`]
    /// once it is.
    pub(super) fn shut_down(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.destroy();
    }

    /// Notes that a queue pair which used it is destroyed.
    fn released(&self) {
        // The last queue pair is destroyed in the device before this load, and the store precedes the attempt of
        // `shut_down` to destroy the queue: one of the two finds the queue unused.
        if self.is_closed.load(Ordering::SeqCst) {
            self.destroy();
        }
    }

    fn destroy(&self) {
        match self.srq.destroy() {
            Ok(returned) => {
                for finished in returned {
                    self.cells.finish(finished.wr_id() as u32, finished);
                }
            }
            Err(error) if error.kind() == ErrorKind::Busy => {}
            Err(error) => tracing::warn!(
                target: "rdma_verbs::queue_pair", %error, "a shared receive queue could not be destroyed"
            ),
        }
    }

    fn post(&self, ticket: Ticket, buffer: RequestBuffer) -> Result<Ticket, Refused<RequestBuffer>> {
        self.srq.post_recv(buffer, u64::from(self.route) << 32 | u64::from(ticket.index()))?;
        Ok(ticket.posted())
    }
}

impl Drop for SharedReceives {
    fn drop(&mut self) {
        // No future is waiting any longer; buffers in flight come back from the owned queue itself.
        self.cq.remove_route(self.route);
    }
}

/// The use of a shared queue by a queue pair, dropped after the queue pair.
pub(super) struct SharedUse(Arc<SharedReceives>);

impl SharedUse {
    pub(super) fn cells(&self) -> &Cells {
        &self.0.cells
    }

    /// Returns the error of a receive that is requested from the queue pair.
    pub(super) fn refusal(&self, verb: &'static str, qpn: Qpn) -> Error {
        let number = self.0.srq.number();
        let message = format!(
            "queue pair {qpn} takes its receives from shared receive queue {number}; request them from that queue"
        );
        Error::new(verb, ErrorKind::InvalidArgument, message)
    }
}

impl Drop for SharedUse {
    fn drop(&mut self) {
        self.0.released();
    }
}

impl SharedReceiveQueue {
    /// Creates a queue that holds at most `max_wr` buffers, for queue pairs that use `cq`.
    ///
    /// # Errors
    /// As for [`owned::SharedReceiveQueue::new`]; the task of `cq` has ended.
    pub fn new(domain: &ProtectionDomain, cq: &CompletionQueue, max_wr: u32) -> Result<Self> {
        let srq = owned::SharedReceiveQueue::new(domain, max_wr)?;
        let (max_wr, [route, _]) = (srq.query()?.max_wr, cq.reserve_routes()?);
        let (cq, cells, is_closed) = (cq.clone(), Cells::new(max_wr), AtomicBool::new(false));
        let shared = Arc::new(SharedReceives { srq, cq, cells, route, max_wr, is_closed });
        shared.cq.add_shared(&shared)?;
        Ok(Self { shared })
    }

    /// Receives a message of any of its queue pairs into the buffer, whose length becomes the message's; a datagram
    /// begins with its 40-byte route header. [`Success::qpn`] identifies the queue pair. If the queue is full, the
    /// request waits for a free slot, in order.
    pub async fn recv<B: IntoRequestBuffer>(&self, buffer: B) -> (Result<Success, RequestError>, B) {
        let ticket = self.shared.cells.claim().await;
        let (result, buffer) = match self.shared.post(ticket, buffer.into()) {
            Ok(ticket) => outcome(ticket.await),
            Err(Refused { error, given, .. }) => (Err(RequestError::Refused(error)), given),
        };
        (result, B::from_request_buffer(buffer))
    }

    /// Posts `depth` receives of `len` bytes each, and returns the stream of the messages that arrive on its queue
    /// pairs: those of each queue pair in order.
    ///
    /// # Errors
    /// As for [`owned::SharedReceiveQueue::post_recv`] and [`BufferPool::take`].
    pub fn messages(&self, pool: &BufferPool, len: usize, depth: usize) -> Result<Messages> {
        Messages::new(Source::Shared(self.clone()), pool.clone(), len, depth)
    }

    /// Posts a receive for this ticket.
    pub(super) fn post_recv(&self, ticket: Ticket, buffer: RequestBuffer) -> Result<Ticket, Refused<RequestBuffer>> {
        self.shared.post(ticket, buffer)
    }

    pub(super) fn cells(&self) -> &Arc<Cells> {
        &self.shared.cells
    }

    /// Returns the number of receives that were finished after their futures were dropped.
    pub fn abandoned(&self) -> u64 {
        self.shared.cells.abandoned()
    }

    /// Returns the number of receives in flight: waiting, or being filled by a message.
    pub fn buffers_in_flight(&self) -> usize {
        self.shared.srq.buffers_in_flight()
    }

    /// Arms the limit event, which [`AsyncEvents`](super::AsyncEvents) delivers; see
    /// [`verbs::SharedReceiveQueue::modify`](crate::verbs::SharedReceiveQueue::modify). The size is fixed, because
    /// futures wait for its slots.
    ///
    /// # Errors
    /// As for [`verbs::SharedReceiveQueue::modify`](crate::verbs::SharedReceiveQueue::modify).
    pub fn arm_limit(&self, srq_limit: u32) -> Result<()> {
        self.shared.srq.modify(&SharedReceiveQueueAttributes { max_wr: None, srq_limit: Some(srq_limit) })
    }

    /// Returns the queue's sizes and the armed limit.
    ///
    /// # Errors
    /// The queue is destroyed.
    pub fn query(&self) -> Result<SharedReceiveQueueStatus> {
        self.shared.srq.query()
    }

    /// Returns the queue's number, by which events identify it.
    pub fn number(&self) -> SharedReceiveQueueNumber {
        self.shared.srq.number()
    }

    /// Returns the queue's protection domain, in which buffers must be registered.
    pub fn protection_domain(&self) -> &ProtectionDomain {
        self.shared.srq.protection_domain()
    }

    /// Returns the device that the queue belongs to.
    pub fn context(&self) -> &Context {
        self.shared.srq.context()
    }

    pub(super) fn cq(&self) -> &CompletionQueue {
        &self.shared.cq
    }

    pub(super) fn owned(&self) -> &owned::SharedReceiveQueue {
        &self.shared.srq
    }

    pub(super) fn max_wr(&self) -> u32 {
        self.shared.max_wr
    }

    /// Notes the use by a queue pair.
    pub(super) fn in_use(&self) -> SharedUse {
        SharedUse(Arc::clone(&self.shared))
    }
}

impl fmt::Debug for SharedReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.srq.fmt(f)
    }
}
