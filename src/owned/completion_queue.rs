//! Completion queues that return buffers.

use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::finished::Finished;
use super::in_flight::{Posted, PostedReceives, Side};
use crate::types::CompletionSource;
use crate::verbs::{
    self, Completion, CompletionQueueNumber, CompletionQueueOptions, Context, Error, ErrorKind, Notify, Result,
    poll_until,
};

/// Number of completions taken from the device at a time.
const BATCH: usize = 16;

/// A completion queue that returns the memory of finished requests. Clones refer to the same queue.
///
/// It serves any number of [`QueuePair`](super::QueuePair)s of this tier. Requests of one queue come back in posting
/// order, regardless of their result.
///
/// ```
/// # use std::time::Duration;
/// # use rdma_verbs::verbs;
/// # let context = verbs::open("soft:127.0.1.101")?;
/// # let pd = context.alloc_pd()?;
/// use rdma_verbs::owned::{BufferPool, CompletionQueue, QueuePair, Request};
///
/// let cq = CompletionQueue::new(&context, 16)?;
/// let qp = QueuePair::new(&pd, &cq, &cq)?;
/// # qp.connect(&qp.connection_info()?)?; // to itself
/// let pool = BufferPool::new(&pd, 1 << 20)?;
/// qp.post_recv(pool.take(64)?, 1)?;
/// qp.post_send(Request::send(pool.copy_from(b"hello")?).wr_id(2).signaled())?;
/// for _ in 0..2 {
///     let finished = cq.wait(Duration::from_secs(10))?;
///     assert_eq!(finished.wr_id(), if finished.is_receive() { 1 } else { 2 });
///     assert_eq!(*finished.into_buffer()?, *b"hello");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct CompletionQueue {
    shared: Arc<Shared>,
}

struct Shared {
    queue: verbs::CompletionQueue,
    state: Mutex<State>,
}

/// Changed by one thread at a time, so that requests come back in order no matter which thread polls.
struct State {
    polled: [Completion; BATCH],
    at: usize,
    count: usize,
    /// Owners by the source that the device assigned to each work queue, which identifies the queue that added a
    /// completion. Values that the poster of a request chooses are not used for matching. No source is assigned twice,
    /// so a completion never reaches a queue pair that it does not belong to; queue pair numbers would not guarantee
    /// this.
    attached: HashMap<CompletionSource, Attached>,
    /// Completions taken from the device before it would have removed them, older than `polled`.
    kept: VecDeque<Kept>,
}

/// Owner of the requests that a work queue completes.
enum Attached {
    Queue(Arc<Posted>, Side),
    /// A queue pair that takes its receives from a shared queue.
    Shared(SharedOwner),
}

/// The shared receive queue of a queue pair, which may be gone when its completions are polled.
#[derive(Clone)]
struct SharedOwner {
    posted: Weak<PostedReceives>,
    /// Whether the queue pair receives datagrams.
    is_datagram: bool,
}

impl SharedOwner {
    fn finish(&self, completion: &Completion) -> Option<Finished> {
        self.posted.upgrade()?.finish(completion, self.is_datagram)
    }
}

/// A completion taken early.
struct Kept {
    completion: Completion,
    /// The shared receive queue of its receive, because the queue pair that added it may be gone.
    shared: Option<SharedOwner>,
}

impl State {
    /// Returns the request that this completion finishes, and whether it may finish more and must be checked again.
    /// `None` if all requests that it finishes have come back.
    fn finish_one(&self, completion: &Completion) -> Option<(Finished, bool)> {
        // Without an owner, it is not a completion of this tier, or the queue pair is gone together with its buffers.
        match self.attached.get(&completion.source())? {
            Attached::Queue(posted, side) => Some((posted.finish_one(*side, completion)?, true)),
            Attached::Shared(owner) => Some((owner.finish(completion)?, false)),
        }
    }

    /// Returns the request that the next completion taken from the device finishes.
    fn next(&mut self) -> Option<Finished> {
        loop {
            let found = match self.kept.front() {
                Some(Kept { completion, shared: Some(shared) }) => {
                    shared.finish(completion).map(|finished| (finished, false))
                }
                Some(Kept { completion, shared: None }) => self.finish_one(completion),
                None if self.at < self.count => self.finish_one(&self.polled[self.at]),
                None => return None,
            };
            let (finished, may_finish_more) = found.unzip();
            if may_finish_more != Some(true) {
                match self.kept.pop_front() {
                    Some(_) => {}
                    None => self.at += 1,
                }
            }
            if finished.is_some() {
                return finished;
            }
        }
    }

    fn poll(&mut self, queue: &verbs::CompletionQueue) -> Result<u32> {
        self.at = 0;
        self.count = 0;
        self.count = queue.poll(&mut self.polled)?;
        Ok(self.count as u32)
    }
}

impl CompletionQueue {
    /// Creates a queue for at least `cqe` completions.
    ///
    /// # Errors
    /// As for [`Context::create_cq`].
    pub fn new(context: &Context, cqe: u32) -> Result<Self> {
        Self::with_options(context, cqe, &CompletionQueueOptions::default())
    }

    /// Creates a queue with options, for example the channel that it notifies.
    ///
    /// # Errors
    /// As for [`Context::create_cq_with`].
    ///
    /// ```
    /// # use rdma_verbs::{owned::CompletionQueue, verbs};
    /// # let context = verbs::open("soft:127.0.1.102")?;
    /// let channel = context.create_comp_channel()?;
    /// let options = verbs::CompletionQueueOptions::default().channel(&channel, 7);
    /// let cq = CompletionQueue::with_options(&context, 16, &options)?;
    /// cq.req_notify(verbs::Notify::Any)?;
    /// assert!(cq.poll()?.is_none());
    /// assert_eq!(channel.poll_event(), None);
    /// # Ok::<(), verbs::Error>(())
    /// ```
    pub fn with_options(context: &Context, cqe: u32, options: &CompletionQueueOptions) -> Result<Self> {
        Ok(Self::over(context.create_cq_with(cqe, options)?))
    }

    fn over(queue: verbs::CompletionQueue) -> Self {
        let (polled, attached) = ([Completion::default(); BATCH], HashMap::new());
        let state = State { polled, at: 0, count: 0, attached, kept: VecDeque::new() };
        Self { shared: Arc::new(Shared { queue, state: Mutex::new(state) }) }
    }

    /// Returns the oldest finished request; `None` if there is none yet. Drives the transport if no completion is
    /// queued.
    ///
    /// # Errors
    /// The queue overflowed: completions were lost, and its queue pairs are in the error state. Buffers in flight come
    /// back when the queue pairs are reset or destroyed.
    pub fn poll(&self) -> Result<Option<Finished>> {
        self.context().check_process("poll_cq")?;
        let mut state = self.state();
        loop {
            let finished = state.next();
            if finished.is_some() || state.poll(&self.shared.queue)? == 0 {
                return Ok(finished);
            }
        }
    }

    /// Takes all completions from the device, to be polled later. The device is about to remove the completions of a
    /// queue pair, and with them those of its receives from a shared queue. The requests of `ending`, the queue pair's
    /// send queue, come back from RESET or destruction itself. The kept completions are bounded by the requests in
    /// flight: none is kept of a queue that is gone.
    pub(super) fn keep_completions(&self, ending: CompletionSource) {
        let mut state = self.state();
        let State { attached, kept, .. } = &mut *state;
        kept.retain(|Kept { completion, shared }| match shared {
            Some(shared) => shared.posted.strong_count() > 0,
            None => completion.source() != ending && attached.contains_key(&completion.source()),
        });
        loop {
            let State { polled, at, count, attached, kept } = &mut *state;
            let waited_for = polled[*at..*count].iter().filter(|completion| completion.source() != ending);
            kept.extend(waited_for.filter_map(|completion| {
                let shared = match attached.get(&completion.source())? {
                    Attached::Queue(..) => None,
                    Attached::Shared(owner) => Some(owner.clone()),
                };
                Some(Kept { completion: *completion, shared })
            }));
            // An overflowed queue returns no more: the buffers come back with the shared queue.
            if !matches!(state.poll(&self.shared.queue), Ok(1..)) {
                break;
            }
        }
    }

    /// Waits up to `timeout` for the oldest finished request and returns it; see [`verbs::CompletionQueue::wait`].
    ///
    /// # Errors
    /// As for [`CompletionQueue::poll`]; [`ErrorKind::TimedOut`](verbs::ErrorKind::TimedOut) if no request finished in
    /// time.
    pub fn wait(&self, timeout: Duration) -> Result<Finished> {
        poll_until(timeout, || self.poll())
    }

    /// Arms the queue for its channel; see [`verbs::CompletionQueue::req_notify`]. After arming, poll until the queue
    /// is empty.
    ///
    /// # Errors
    /// The queue has no channel.
    pub fn req_notify(&self, notify: Notify) -> Result<()> {
        self.shared.queue.req_notify(notify)
    }

    /// Returns the device that the queue belongs to.
    pub fn context(&self) -> &Context {
        self.shared.queue.context()
    }

    /// Returns the capacity in completions.
    pub fn cqe(&self) -> u32 {
        self.shared.queue.cqe()
    }

    /// Returns the number by which asynchronous events identify the queue.
    pub fn number(&self) -> CompletionQueueNumber {
        self.shared.queue.number()
    }

    /// Changes the capacity in completions; see
    /// [`verbs::CompletionQueue::resize`](crate::verbs::CompletionQueue::resize).
    ///
    /// # Errors
    /// As for [`verbs::CompletionQueue::resize`](crate::verbs::CompletionQueue::resize).
    pub fn resize(&self, cqe: u32) -> Result<()> {
        self.shared.queue.resize(cqe)
    }

    /// Delays the event on the channel until `cq_count` completions have been added, or `cq_period` has passed; see
    /// [`verbs::CompletionQueue::moderate`](crate::verbs::CompletionQueue::moderate). Polling is unaffected.
    ///
    /// # Errors
    /// As for [`verbs::CompletionQueue::moderate`](crate::verbs::CompletionQueue::moderate).
    pub fn moderate(&self, cq_count: u16, cq_period: Duration) -> Result<()> {
        self.shared.queue.moderate(cq_count, cq_period)
    }

    /// Returns whether both are handles of the same queue.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    pub(super) fn queue(&self) -> &verbs::CompletionQueue {
        &self.shared.queue
    }

    /// Takes the completions of a work queue from now on.
    ///
    /// # Errors
    /// The device assigned no source of its own to the work queue.
    pub(super) fn attach(&self, posted: &Arc<Posted>, side: Side) -> Result<()> {
        let source = posted.source(side);
        let owner = match (side, posted.shared()) {
            (Side::Receive, Some(shared)) => {
                Attached::Shared(SharedOwner { posted: Arc::downgrade(shared), is_datagram: posted.is_datagram() })
            }
            _ => Attached::Queue(Arc::clone(posted), side),
        };
        match self.state().attached.entry(source) {
            Entry::Vacant(vacant) if source != CompletionSource::NONE => {
                vacant.insert(owner);
                Ok(())
            }
            _ => {
                let message = format!(
                    "{} does not distinguish its work queues in their completions ({source:?}); buffers need that",
                    self.context()
                );
                Err(Error::new("create_qp", ErrorKind::Unsupported, message))
            }
        }
    }

    /// Takes the completions of a work queue no longer.
    pub(super) fn detach(&self, source: CompletionSource) {
        if self.context().check_process("destroy_qp").is_err() {
            return;
        }
        let attached = self.state().attached.remove(&source);
        // It may be the last reference to the queue pair, which must not be dropped under the lock.
        drop(attached);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue").field("queue", &self.shared.queue).finish_non_exhaustive()
    }
}
