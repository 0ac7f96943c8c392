//! Completion queues with a dispatcher: the task that polls, sleeps, and wakes the futures of finished requests.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::task::AbortHandle;

use super::cells::Cells;
use super::notifier::Notifier;
use super::queue_pair::Shared as QueuePairShared;
use super::shared_receive::SharedReceives;
use crate::owned::{self, Finished};
use crate::verbs::{CompletionQueueNumber, CompletionQueueOptions, Context, Error, ErrorKind, Notify, Result};

/// Number of empty polls before the dispatcher sleeps; other tasks run between them.
const POLLS: usize = 8;
/// Number of requests delivered before other tasks run.
const BUDGET: usize = 64;

/// A completion queue for asynchronous [`QueuePair`](super::QueuePair)s. Clones refer to the same queue.
///
/// A dedicated task polls it and wakes the futures of finished requests. The task ends when the queue, its queue pairs
/// and its shared receive queues are dropped. If it ends earlier, with the runtime or because of an overflow, these are
/// destroyed: their requests fail, and their buffers come back.
///
/// ```
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
/// # runtime.block_on(async {
/// use rdma_verbs::asynchronous::{CompletionQueue, QueuePair};
/// use rdma_verbs::owned::BufferPool;
/// # use rdma_verbs::verbs;
/// # let context = verbs::open("soft:127.0.1.108")?;
/// # let pd = context.alloc_pd()?;
/// let cq = CompletionQueue::new(&context, 64)?;
/// let qp = QueuePair::new(&pd, &cq)?;
/// # qp.connect(&qp.connection_info()?)?; // to itself
/// let pool = BufferPool::new(&pd, 1 << 20)?;
/// let (sent, received) = tokio::join!(qp.send(pool.copy_from(b"hello")?), qp.recv(pool.take(64)?));
/// assert_eq!(received.0?.byte_len, 5);
/// assert_eq!(*received.1, *b"hello");
/// sent.0?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct CompletionQueue {
    handle: Arc<Handle>,
}

/// Ends the dispatcher when the last handle is dropped.
struct Handle {
    core: Arc<Core>,
    dispatcher: AbortHandle,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.dispatcher.abort();
    }
}

struct Core {
    cq: owned::CompletionQueue,
    notifier: Notifier,
    routes: Mutex<Routes>,
}

/// Recipients of finished requests: the upper half of a `wr_id` is the route, the lower half the cell.
#[derive(Default)]
struct Routes {
    cells: HashMap<u32, (Arc<Cells>, Owner)>,
    next: u32,
    is_closed: bool,
}

/// The object whose futures wait in the cells of a route; it is destroyed when the task ends.
#[derive(Clone)]
enum Owner {
    QueuePair(Weak<QueuePairShared>),
    Shared(Weak<SharedReceives>),
}

impl CompletionQueue {
    /// Creates a queue for at least `cqe` completions. Must be called within a runtime, in which its task runs.
    ///
    /// # Errors
    /// As for [`Context::create_comp_channel`] and [`Context::create_cq`].
    ///
    /// # Panics
    /// If called outside a tokio runtime, or in one without I/O.
    pub fn new(context: &Context, cqe: u32) -> Result<Self> {
        let notifier = Notifier::new(context)?;
        let options = CompletionQueueOptions::default().channel(notifier.channel(), 0);
        let cq = owned::CompletionQueue::with_options(context, cqe, &options)?;
        let core = Arc::new(Core { cq, notifier, routes: Mutex::default() });
        // Created here, so that a task that ends before its first poll closes the queue as well.
        let closing = Closing(Arc::clone(&core));
        let dispatcher = tokio::spawn(dispatch(closing)).abort_handle();
        Ok(Self { handle: Arc::new(Handle { core, dispatcher }) })
    }

    /// Returns the device that the queue belongs to.
    pub fn context(&self) -> &Context {
        self.handle.core.cq.context()
    }

    /// Returns the capacity in completions.
    pub fn cqe(&self) -> u32 {
        self.handle.core.cq.cqe()
    }

    /// Returns the number by which asynchronous events identify the queue.
    pub fn number(&self) -> CompletionQueueNumber {
        self.handle.core.cq.number()
    }

    /// Changes the capacity in completions; see
    /// [`verbs::CompletionQueue::resize`](crate::verbs::CompletionQueue::resize).
    ///
    /// # Errors
    /// As for [`verbs::CompletionQueue::resize`](crate::verbs::CompletionQueue::resize).
    pub fn resize(&self, cqe: u32) -> Result<()> {
        self.handle.core.cq.resize(cqe)
    }

    /// Delays the event on the channel until `cq_count` completions have been added, or `cq_period` has passed; see
    /// [`verbs::CompletionQueue::moderate`](crate::verbs::CompletionQueue::moderate). While the queue's task sleeps,
    /// its wake-up is delayed accordingly.
    ///
    /// # Errors
    /// As for [`verbs::CompletionQueue::moderate`](crate::verbs::CompletionQueue::moderate).
    pub fn moderate(&self, cq_count: u16, cq_period: Duration) -> Result<()> {
        self.handle.core.cq.moderate(cq_count, cq_period)
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.owned().is_same(other.owned())
    }

    pub(super) fn owned(&self) -> &owned::CompletionQueue {
        &self.handle.core.cq
    }

    /// Reserves the numbers of two routes, the upper halves of their `wr_id`s. No number is assigned twice.
    pub(super) fn reserve_routes(&self) -> Result<[u32; 2]> {
        let mut routes = self.handle.core.routes();
        let first = routes.next;
        routes.next = first.checked_add(2).ok_or_else(|| {
            let message = "2^31 queue pairs were made on this completion queue; make another one";
            Error::new("create_qp", ErrorKind::ResourceLimit, message)
        })?;
        Ok([first, first + 1])
    }

    /// Delivers to the queue pair's cells from now on. The queue pair already exists, so that [`Core::close`] either
    /// finds it or has been noticed here.
    ///
    /// # Errors
    /// The task has ended.
    pub(super) fn add_routes(&self, queue_pair: &Arc<QueuePairShared>) -> Result<()> {
        self.add(&queue_pair.routes(), &Owner::QueuePair(Arc::downgrade(queue_pair)))
    }

    /// Delivers to the cells of a shared receive queue from now on, like [`CompletionQueue::add_routes`].
    ///
    /// # Errors
    /// The task has ended.
    pub(super) fn add_shared(&self, receives: &Arc<SharedReceives>) -> Result<()> {
        self.add(&[receives.route()], &Owner::Shared(Arc::downgrade(receives)))
    }

    fn add(&self, added: &[(u32, &Arc<Cells>)], owner: &Owner) -> Result<()> {
        let mut routes = self.handle.core.routes();
        if routes.is_closed {
            return Err(closed());
        }
        routes.cells.extend(added.iter().map(|&(route, cells)| (route, (Arc::clone(cells), owner.clone()))));
        Ok(())
    }

    pub(super) fn remove_route(&self, route: u32) {
        self.handle.core.routes().cells.remove(&route);
    }
}

/// Returns the error of a queue whose dispatcher has ended.
fn closed() -> Error {
    let message = "the completion queue's task has ended, with its runtime or because the queue overflowed";
    Error::new("poll_cq", ErrorKind::InvalidState, message)
}

impl Core {
    /// Delivers finished requests to their futures, at most [`BUDGET`]; returns their number.
    fn deliver(&self) -> Result<usize> {
        for count in 0..BUDGET {
            let Some(finished) = self.cq.poll()? else { return Ok(count) };
            self.route(finished);
        }
        Ok(BUDGET)
    }

    fn route(&self, finished: Finished) {
        let wr_id = finished.wr_id();
        let cells = self.routes().cells.get(&((wr_id >> 32) as u32)).map(|(cells, _)| Arc::clone(cells));
        if let Some(cells) = cells {
            cells.finish(wr_id as u32, finished);
        }
    }

    async fn run(&self) -> Result<()> {
        loop {
            let mut empty = 0;
            while empty < POLLS {
                empty = if self.deliver()? > 0 { 0 } else { empty + 1 };
                tokio::task::yield_now().await;
            }
            self.cq.req_notify(Notify::Any)?;
            if self.deliver()? == 0 {
                self.notifier.announced().await?;
            }
        }
    }

    /// Destroys the remaining queue pairs and then the shared receive queues, so that no future waits forever.
    fn close(&self) {
        let owners: Vec<Owner> = {
            let mut routes = self.routes();
            routes.is_closed = true;
            routes.cells.values().map(|(_, owner)| owner.clone()).collect()
        };
        for owner in &owners {
            if let Owner::QueuePair(queue_pair) = owner
                && let Some(queue_pair) = queue_pair.upgrade()
            {
                queue_pair.shut_down();
            }
        }
        for owner in &owners {
            if let Owner::Shared(receives) = owner
                && let Some(receives) = receives.upgrade()
            {
                receives.shut_down();
            }
        }
    }

    fn routes(&self) -> MutexGuard<'_, Routes> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes the queue when the dispatcher ends, for whatever reason.
struct Closing(Arc<Core>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

async fn dispatch(closing: Closing) {
    if let Err(error) = closing.0.run().await {
        tracing::error!(
            target: "rdma_verbs::queue_pair", %error, "a completion queue's task ends, its queue pairs are destroyed"
        );
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue").field("queue", &self.handle.core.cq).finish_non_exhaustive()
    }
}
