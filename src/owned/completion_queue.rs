//! Completion queues that give buffers back.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::finished::Finished;
use super::in_flight::{Posted, PostedReceives, Side};
use crate::verbs::{self, Completion, CompletionChannel, Context, Notify, Result, poll_until};

/// Completions taken from the device at a time.
const BATCH: usize = 16;

/// A completion queue that gives the memory of finished requests back. Clones are the same queue.
///
/// It serves any number of [`QueuePair`](super::QueuePair)s of this tier. Requests of one queue come back in the order
/// in which they were posted, whatever became of them.
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

/// Changed by one thread at a time, so that requests come back in order whoever polls.
struct State {
    polled: [Completion; BATCH],
    at: usize,
    count: usize,
    /// By tag, the upper half of the device's `wr_id`. A tag is used once, so a completion never meets a queue pair
    /// that it does not belong to, as it might by the queue pair's number.
    attached: HashMap<u32, Attached>,
    next_tag: u32,
    /// Completions that were taken from the device before it would have removed them, older than `polled`.
    kept: VecDeque<Completion>,
}

/// Whose requests a tag stands for.
enum Attached {
    Queue(Arc<Posted>, Side),
    /// A shared receive queue that queue pairs use, or used: what they have completed may still be on its way.
    Shared(Weak<PostedReceives>),
}

impl State {
    /// The request that this completion finishes; `None` if all that it finishes has come back.
    fn finish_one(&self, completion: &Completion) -> Option<Finished> {
        // Without one, the queue pair is gone, and its buffers with it.
        match self.attached.get(&tag_of(completion))? {
            Attached::Queue(posted, side) => posted.finish_one(*side, completion),
            Attached::Shared(posted) => posted.upgrade()?.finish(completion),
        }
    }

    /// Whether the completion may finish several requests, and must be looked at again.
    fn may_finish_more(&self, completion: &Completion) -> bool {
        matches!(self.attached.get(&tag_of(completion)), Some(Attached::Queue(..)))
    }

    /// What the next completion finishes, of those that were taken from the device.
    fn next(&mut self) -> Option<Finished> {
        loop {
            let completion = match self.kept.front() {
                Some(kept) => *kept,
                None if self.at < self.count => self.polled[self.at],
                None => return None,
            };
            let finished = self.finish_one(&completion);
            if finished.is_none() || !self.may_finish_more(&completion) {
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

/// The upper half of the device's `wr_id`.
fn tag_of(completion: &Completion) -> u32 {
    (completion.wr_id() >> 32) as u32
}

impl CompletionQueue {
    /// A queue of `cqe` completions, to be polled.
    ///
    /// # Errors
    /// As [`Context::create_cq`].
    pub fn new(context: &Context, cqe: u32) -> Result<Self> {
        Ok(Self::over(context.create_cq(cqe)?))
    }

    /// A queue that announces completions on `channel`, with `cq_context`.
    ///
    /// # Errors
    /// As [`Context::create_cq_on`].
    ///
    /// ```
    /// # use rdma_verbs::{owned::CompletionQueue, verbs};
    /// # let context = verbs::open("soft:127.0.1.102")?;
    /// let channel = context.create_comp_channel()?;
    /// let cq = CompletionQueue::on_channel(&channel, 16, 7)?;
    /// cq.req_notify(verbs::Notify::Any)?;
    /// assert!(cq.poll()?.is_none());
    /// assert_eq!(channel.poll_event(), None);
    /// # Ok::<(), verbs::Error>(())
    /// ```
    pub fn on_channel(channel: &CompletionChannel, cqe: u32, cq_context: u64) -> Result<Self> {
        Ok(Self::over(channel.context().create_cq_on(channel, cqe, cq_context)?))
    }

    fn over(queue: verbs::CompletionQueue) -> Self {
        let (polled, attached) = ([Completion::default(); BATCH], HashMap::new());
        let state = State { polled, at: 0, count: 0, attached, next_tag: 0, kept: VecDeque::new() };
        Self { shared: Arc::new(Shared { queue, state: Mutex::new(state) }) }
    }

    /// The oldest request that is finished; `None` if there is none yet. Drives the transport if nothing waits.
    ///
    /// # Errors
    /// The queue overflowed: completions were lost, and its queue pairs are in error. What is in flight comes back when
    /// they are reset or destroyed.
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

    /// Takes everything from the device, to be polled later: it is about to remove the completions of a queue pair, and
    /// with them would go those of its receives, which came from a shared queue. `own` are the queue pair's tags, whose
    /// requests come back otherwise. What is kept is bounded by what is in flight: nothing is kept of what is gone.
    pub(super) fn keep_completions(&self, own: [Option<u32>; 2]) {
        let mut state = self.state();
        loop {
            let State { polled, at, count, kept, .. } = &mut *state;
            kept.extend(&polled[*at..*count]);
            // An overflowed queue gives no more: the buffers come back with the shared queue.
            if !matches!(state.poll(&self.shared.queue), Ok(1..)) {
                break;
            }
        }
        let State { attached, kept, .. } = &mut *state;
        let is_alive = |attached: &Attached| match attached {
            Attached::Queue(..) => true,
            Attached::Shared(posted) => posted.strong_count() > 0,
        };
        attached.retain(|_, attached| is_alive(attached));
        kept.retain(|completion| {
            let tag = tag_of(completion);
            attached.contains_key(&tag) && !own.contains(&Some(tag))
        });
    }

    /// The oldest request that is finished, waiting up to `timeout` for it; see [`verbs::CompletionQueue::wait`].
    ///
    /// # Errors
    /// As [`CompletionQueue::poll`]; [`ErrorKind::TimedOut`](verbs::ErrorKind::TimedOut) if nothing was finished in
    /// time.
    pub fn wait(&self, timeout: Duration) -> Result<Finished> {
        poll_until(timeout, || self.poll())
    }

    /// Arms the queue for its channel; see [`verbs::CompletionQueue::req_notify`]. Poll until there is nothing after
    /// arming.
    ///
    /// # Errors
    /// The queue has no channel.
    pub fn req_notify(&self, notify: Notify) -> Result<()> {
        self.shared.queue.req_notify(notify)
    }

    /// The open device it belongs to.
    pub fn context(&self) -> &Context {
        self.shared.queue.context()
    }

    /// Completions that fit.
    pub fn cqe(&self) -> u32 {
        self.shared.queue.cqe()
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    pub(super) fn queue(&self) -> &verbs::CompletionQueue {
        &self.shared.queue
    }

    /// Takes completions of a queue from now on; gives the tag that they must carry.
    pub(super) fn attach(&self, posted: &Arc<Posted>, side: Side) -> u32 {
        let mut state = self.state();
        while state.attached.contains_key(&state.next_tag) {
            state.next_tag = state.next_tag.wrapping_add(1);
        }
        let tag = state.next_tag;
        state.next_tag = tag.wrapping_add(1);
        state.attached.insert(tag, Attached::Queue(Arc::clone(posted), side));
        tag
    }

    /// Takes completions of a shared receive queue from now on, until it is gone.
    pub(super) fn attach_shared(&self, posted: &Arc<PostedReceives>) {
        self.state().attached.insert(posted.tag(), Attached::Shared(Arc::downgrade(posted)));
    }

    /// And no longer.
    pub(super) fn detach(&self, tag: u32) {
        if self.context().check_process("destroy_qp").is_err() {
            return;
        }
        let attached = self.state().attached.remove(&tag);
        // It may be the last reference to the queue pair, which is not to be dropped under the lock.
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
