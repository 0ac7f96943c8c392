//! Shared receive queues whose receives own their memory.

use std::fmt;
use std::sync::Arc;

use super::Refused;
use super::finished::Finished;
use super::in_flight::PostedReceives;
use super::request::RequestBuffer;
use crate::verbs::{
    self, Context, ProtectionDomain, Result, SharedReceiveQueueAttributes, SharedReceiveQueueNumber,
    SharedReceiveQueueStatus,
};

/// Options for creating a [`SharedReceiveQueue`] with [`SharedReceiveQueue::with_options`].
#[derive(Clone, Debug, Default)]
#[must_use = "options do nothing by themselves"]
pub struct SharedReceiveQueueOptions {
    srq_limit: u32,
}

impl SharedReceiveQueueOptions {
    /// Arms the limit event at creation; see
    /// [`verbs::SharedReceiveQueueOptions::srq_limit`](crate::verbs::SharedReceiveQueueOptions::srq_limit).
    pub fn srq_limit(mut self, srq_limit: u32) -> Self {
        self.srq_limit = srq_limit;
        self
    }
}

/// A shared receive queue whose receives own their memory: buffers for the messages of several
/// [`QueuePair`](super::QueuePair)s, whose [options](super::QueuePairOptions) refer to it.
///
/// A posted buffer moves into the queue. It comes back from the receive completion queue of the queue pair that took it
/// for a message, which [`Finished::qpn`] reports. Buffers do not come back in posting order, because messages end in
/// any order. A queue pair that is reset or destroyed returns the buffer that a message had begun to fill (on adapters
/// the shared queue keeps it until it is destroyed); waiting buffers stay for the other queue pairs.
/// [`SharedReceiveQueue::destroy`] returns the remaining buffers. Dropping the last handle and the last queue pair that
/// uses it returns them to their pools.
///
/// Clones refer to the same queue. Posting allocates nothing.
///
/// ```
/// # use std::time::Duration;
/// # use rdma_verbs::verbs;
/// # let context = verbs::open("soft:127.0.1.241")?;
/// # let pd = context.alloc_pd()?;
/// use rdma_verbs::owned::{BufferPool, CompletionQueue, QueuePair, QueuePairOptions, Request, SharedReceiveQueue};
///
/// let cq = CompletionQueue::new(&context, 64)?;
/// let srq = SharedReceiveQueue::new(&pd, 16)?;
/// let sharing = QueuePairOptions::default().srq(&srq);
/// let first = QueuePair::with_options(&pd, &cq, &cq, &sharing)?;
/// let second = QueuePair::with_options(&pd, &cq, &cq, &sharing)?;
/// first.connect(&second.connection_info()?)?;
/// second.connect(&first.connection_info()?)?;
///
/// let pool = BufferPool::new(&pd, 1 << 20)?;
/// srq.post_recv(pool.take(64)?, 1)?;
/// srq.post_recv(pool.take(64)?, 2)?;
/// first.post_send(Request::send(pool.copy_from(b"to the second")?))?;
/// let received = cq.wait(Duration::from_secs(10))?;
/// assert_eq!((received.wr_id(), received.qpn()), (1, second.qpn()));
/// assert_eq!(*received.into_buffer()?, *b"to the second");
///
/// drop((first, second));
/// let left = srq.destroy()?;
/// assert_eq!((left.len(), left[0].wr_id()), (1, 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct SharedReceiveQueue {
    posted: Arc<PostedReceives>,
}

impl SharedReceiveQueue {
    /// Creates a queue that holds at most `max_wr` buffers.
    ///
    /// # Errors
    /// As for [`verbs::ProtectionDomain::create_srq`](crate::verbs::ProtectionDomain::create_srq); the device belongs
    /// to a provider outside this crate.
    pub fn new(domain: &ProtectionDomain, max_wr: u32) -> Result<Self> {
        Self::with_options(domain, max_wr, &SharedReceiveQueueOptions::default())
    }

    /// Creates a queue like [`SharedReceiveQueue::new`], with options.
    ///
    /// # Errors
    /// As for [`verbs::ProtectionDomain::create_srq_with`](crate::verbs::ProtectionDomain::create_srq_with); the device
    /// belongs to a provider outside this crate.
    pub fn with_options(domain: &ProtectionDomain, max_wr: u32, options: &SharedReceiveQueueOptions) -> Result<Self> {
        super::exclusive::check_device(domain)?;
        let lowered = verbs::SharedReceiveQueueOptions::default().srq_limit(options.srq_limit);
        Ok(Self { posted: Arc::new(PostedReceives::new(domain, max_wr, &lowered)?) })
    }

    /// Posts memory for one arriving message, which may use its whole capacity. `wr_id` is returned with it.
    ///
    /// # Errors
    /// As for [`verbs::SharedReceiveQueue::post_recv`](crate::verbs::SharedReceiveQueue::post_recv), with the memory.
    /// [`ErrorKind::QueueFull`](crate::verbs::ErrorKind::QueueFull) if as many buffers are posted, or taken and not
    /// polled, as the queue holds.
    pub fn post_recv(&self, buffer: impl Into<RequestBuffer>, wr_id: u64) -> Result<(), Refused<RequestBuffer>> {
        self.posted.post(buffer.into(), wr_id)
    }

    /// Returns the number of buffers in flight: waiting, being filled by a message, or filled and not yet polled.
    pub fn buffers_in_flight(&self) -> usize {
        self.posted.in_flight()
    }

    /// Changes the queue's size, arms the limit event, or both; see
    /// [`verbs::SharedReceiveQueue::modify`](crate::verbs::SharedReceiveQueue::modify). Buffers in flight stay.
    ///
    /// # Errors
    /// As for [`verbs::SharedReceiveQueue::modify`](crate::verbs::SharedReceiveQueue::modify).
    pub fn modify(&self, attributes: &SharedReceiveQueueAttributes) -> Result<()> {
        self.posted.modify(attributes)
    }

    /// Destroys the queue in the device. Returns every buffer in flight in no order, filled and unpolled ones included,
    /// flushed with the cause [`Cause::Destroyed`](crate::verbs::Cause::Destroyed) and without a queue pair
    /// ([`Finished::qpn`] is 0). Destroying it again returns nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](crate::verbs::ErrorKind::Busy) while queue pairs use it;
    /// [`ErrorKind::InvalidState`](crate::verbs::ErrorKind::InvalidState) in a process that inherited it.
    pub fn destroy(&self) -> Result<Vec<Finished>> {
        self.posted.destroy()
    }

    /// Returns the queue's sizes and the armed limit.
    ///
    /// # Errors
    /// The queue is destroyed.
    pub fn query(&self) -> Result<SharedReceiveQueueStatus> {
        self.posted.queue().query()
    }

    /// Returns the queue's number, by which events identify it.
    pub fn number(&self) -> SharedReceiveQueueNumber {
        self.posted.queue().number()
    }

    /// Returns the queue's protection domain, in which buffers must be registered.
    pub fn protection_domain(&self) -> &ProtectionDomain {
        self.posted.queue().protection_domain()
    }

    /// Returns the device that the queue belongs to.
    pub fn context(&self) -> &Context {
        self.posted.queue().context()
    }

    pub(super) fn posted(&self) -> &Arc<PostedReceives> {
        &self.posted
    }
}

impl fmt::Debug for SharedReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("SharedReceiveQueue");
        debug.field("queue", self.posted.queue()).field("buffers_in_flight", &self.buffers_in_flight()).finish()
    }
}
