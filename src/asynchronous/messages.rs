//! Received messages as a stream.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::Stream;

use super::RequestError;
use super::cells::{Cells, Ticket};
use super::queue_pair::{QueuePair, outcome};
use super::shared_receive::SharedReceiveQueue;
use crate::owned::{Buffer, BufferPool, Finished, Refused, RequestBuffer};
use crate::verbs::{Error, ErrorKind, Result, Success};

/// A message that arrived.
#[derive(Debug)]
#[non_exhaustive]
pub struct Message {
    /// Bytes of the message.
    pub buffer: Buffer,
    /// Its immediate data and the other details of its completion.
    pub success: Success,
    /// Whether it begins with the route header of a datagram.
    pub(super) is_datagram: bool,
}

/// The messages that arrive on a queue pair, in order, or on the queue pairs of a shared receive queue; created by
/// [`QueuePair::messages`] and [`SharedReceiveQueue::messages`].
///
/// A bounded number of receives is posted, each with a buffer of the pool; each message that is taken is replaced by
/// another receive. If the pool is exhausted, or other receives fill the queue, fewer are posted until buffers or slots
/// become available. The stream of a queue pair ends after the first failure, such as the flush when it goes to the
/// error state; that of a shared queue when the queue is destroyed, because each queue pair fails alone. When the
/// stream is dropped, posted receives stay posted until they are filled or flushed.
///
/// ```
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
/// # runtime.block_on(async {
/// # use rdma_verbs::{asynchronous::{CompletionQueue, QueuePair}, owned::BufferPool, verbs};
/// # let context = verbs::open("soft:127.0.1.110")?;
/// # let pd = context.alloc_pd()?;
/// # let cq = CompletionQueue::new(&context, 64)?;
/// # let qp = QueuePair::new(&pd, &cq)?;
/// # qp.connect(&qp.connection_info()?)?; // to itself
/// # let pool = BufferPool::new(&pd, 1 << 20)?;
/// let mut messages = qp.messages(&pool, 4096, 8)?;
/// for text in ["one", "two"] {
///     let (sent, _buffer) = qp.send(pool.copy_from(text.as_bytes())?).await;
///     sent?;
///     let message = messages.next().await.expect("the queue pair is well")?;
///     assert_eq!(*message.buffer, *text.as_bytes());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Messages {
    source: Source,
    pool: BufferPool,
    len: usize,
    depth: usize,
    posted: VecDeque<Ticket>,
    /// The wait for a slot while nothing is posted.
    claim: Option<Claim>,
    is_over: bool,
}

type Claim = Pin<Box<dyn Future<Output = Ticket> + Send + Sync>>;

/// The queue that the receives are posted to.
pub(super) enum Source {
    QueuePair(QueuePair),
    Shared(SharedReceiveQueue),
}

impl Source {
    /// Returns the name of its size, and its value.
    fn size(&self) -> (&'static str, u32) {
        match self {
            Source::QueuePair(qp) => ("max_recv_wr", qp.cap().max_recv_wr),
            Source::Shared(srq) => ("max_wr", srq.max_wr()),
        }
    }

    /// Returns whether its receives finish in the order in which they were posted, and after a failure none succeeds.
    fn is_ordered(&self) -> bool {
        matches!(self, Source::QueuePair(_))
    }

    fn cells(&self) -> &Arc<Cells> {
        match self {
            Source::QueuePair(qp) => qp.receive_cells(),
            Source::Shared(srq) => srq.cells(),
        }
    }

    #[expect(clippy::async_yields_async, reason = "the slot is awaited here, not its request")]
    fn claim(&self) -> Claim {
        let cells = Arc::clone(self.cells());
        Box::pin(async move { cells.claim().await })
    }

    fn post(&self, ticket: Ticket, buffer: RequestBuffer) -> Result<Ticket, Refused<RequestBuffer>> {
        match self {
            Source::QueuePair(qp) => qp.post_recv(ticket, buffer),
            Source::Shared(srq) => srq.post_recv(ticket, buffer),
        }
    }
}

impl Messages {
    pub(super) fn new(source: Source, pool: BufferPool, len: usize, depth: usize) -> Result<Self> {
        let (name, max) = source.size();
        if depth == 0 || depth > max as usize {
            let message = format!("depth is {depth}; allowed are 1 to {name}, {max}");
            return Err(Error::out_of_range("messages", "depth", depth as u64, 1..=u64::from(max), message));
        }
        let posted = VecDeque::with_capacity(depth);
        let mut messages = Self { source, pool, len, depth, posted, claim: None, is_over: false };
        messages.top_up()?;
        Ok(messages)
    }

    /// Waits for the next message; `None` once the stream has ended. Dropping the future loses no message.
    ///
    /// # Errors
    /// The receive failed: see [`RequestError`]. [`ErrorKind::ResourceLimit`], after which the stream continues, if no
    /// receive is posted because the application holds all buffers that the pool may have.
    pub async fn next(&mut self) -> Option<Result<Message, RequestError>> {
        poll_fn(|context| self.poll_message(context)).await
    }

    fn poll_message(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Message, RequestError>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let mut topped_up = self.top_up();
        if topped_up.is_ok() && self.posted.is_empty() {
            // Other receives fill the queue.
            let ticket = ready!(self.poll_claim(context));
            topped_up = self.post(ticket);
        }
        self.claim = None;
        if let Err(refused) = topped_up
            && self.posted.is_empty()
        {
            self.is_over = refused.kind() != ErrorKind::ResourceLimit;
            return Poll::Ready(Some(Err(RequestError::Refused(refused))));
        }
        let finished = ready!(self.poll_finished(context));
        let is_datagram = finished.is_datagram();
        let (result, buffer) = outcome(finished);
        self.is_over = result.is_err() && self.source.is_ordered();
        if !self.is_over {
            // While the application processes the message, receives are posted for the next ones. If no buffer can be
            // posted now, the next poll reports it.
            let _ = self.top_up();
        }
        let buffer = buffer.into_buffer().expect("a buffer was posted");
        Poll::Ready(Some(result.map(|success| Message { buffer, success, is_datagram })))
    }

    /// Takes the first finished receive, in the order in which they were posted. A queue pair takes the receives of a
    /// shared queue in this order too, so each one's messages stay in order.
    fn poll_finished(&mut self, context: &mut Context<'_>) -> Poll<Finished> {
        let candidates = if self.source.is_ordered() { 1 } else { self.posted.len() };
        let index = ready!(self.source.cells().poll_first(self.posted.iter().take(candidates), context));
        let mut ticket = self.posted.remove(index).expect("one of the candidates");
        Pin::new(&mut ticket).poll(context)
    }

    fn poll_claim(&mut self, context: &mut Context<'_>) -> Poll<Ticket> {
        let source = &self.source;
        self.claim.get_or_insert_with(|| source.claim()).as_mut().poll(context)
    }

    /// Posts receives until there are `depth`, or as many as possible.
    fn top_up(&mut self) -> Result<()> {
        while self.posted.len() < self.depth
            && let Some(ticket) = self.source.cells().try_claim()
        {
            self.post(ticket)?;
        }
        Ok(())
    }

    fn post(&mut self, ticket: Ticket) -> Result<()> {
        let buffer = self.pool.take(self.len)?;
        let posted = self.source.post(ticket, buffer.into()).map_err(|Refused { error, .. }| error)?;
        self.posted.push_back(posted);
        Ok(())
    }
}

impl Stream for Messages {
    type Item = Result<Message, RequestError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_message(context)
    }
}

impl fmt::Debug for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Messages")
            .field("posted", &self.posted.len())
            .field("depth", &self.depth)
            .finish_non_exhaustive()
    }
}
