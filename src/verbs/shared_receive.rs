//! Shared receive queues.

use std::fmt;
use std::sync::Arc;

use super::batch::RangeCheck;
use super::open_batch::{BatchQueue, OpenBatch, Poster};
use super::{
    AccessFlags, CompletionQueue, Context, Error, ProtectionDomain, ReceiveRequest, Result,
    SharedReceiveQueueAttributes, SharedReceiveQueueNumber, SharedReceiveQueueStatus, XrcDomain,
};
use crate::provider;
use crate::types::{self, BatchEnd};

/// Options for creating a shared receive queue with [`ProtectionDomain::create_srq_with`]. They hold handles of the
/// objects that they refer to.
#[doc(alias("ibv_srq_init_attr", "ibv_srq_init_attr_ex"))]
#[derive(Clone, Debug, Default)]
#[must_use = "options do nothing by themselves"]
pub struct SharedReceiveQueueOptions {
    srq_limit: u32,
    xrc: Option<(XrcDomain, CompletionQueue)>,
}

impl SharedReceiveQueueOptions {
    /// Arms the limit event at creation: it is raised once, when a receive is consumed and fewer than `srq_limit` are
    /// left. By default no event is raised until [`SharedReceiveQueue::modify`] arms it.
    pub fn srq_limit(mut self, srq_limit: u32) -> Self {
        self.srq_limit = srq_limit;
        self
    }

    /// Makes it a queue for extended reliable connections: XRC targets of this domain use it when a message specifies
    /// its number. Its receives complete on `cq`.
    pub fn xrc(mut self, domain: &XrcDomain, cq: &CompletionQueue) -> Self {
        self.xrc = Some((domain.clone(), cq.clone()));
        self
    }
}

impl ProtectionDomain {
    /// Creates a shared receive queue that holds `max_wr` receives of up to `max_sge` memory ranges each
    /// (`ibv_create_srq`).
    ///
    /// # Errors
    /// A size is 0 or above the device's `max_srq_wr` or `max_srq_sge`;
    /// [`ErrorKind::ResourceLimit`](super::ErrorKind::ResourceLimit) at the device's `max_srq`;
    /// [`ErrorKind::Unsupported`](super::ErrorKind::Unsupported) if the device has no shared receive queues.
    ///
    /// See [`SharedReceiveQueue`] for an example.
    #[doc(alias("ibv_create_srq", "rdma_create_srq"))]
    pub fn create_srq(&self, max_wr: u32, max_sge: u32) -> Result<SharedReceiveQueue> {
        self.create_srq_with(max_wr, max_sge, &SharedReceiveQueueOptions::default())
    }

    /// Creates a shared receive queue like [`ProtectionDomain::create_srq`], with options (`ibv_create_srq_ex`).
    ///
    /// # Errors
    /// As for [`ProtectionDomain::create_srq`]; also if `srq_limit` is more than `max_wr`, or an object in `options`
    /// belongs to another device context.
    ///
    /// ```
    /// use rdma_verbs::verbs::{self, ErrorKind, SharedReceiveQueueOptions};
    ///
    /// let context = verbs::open("soft:127.0.1.210")?;
    /// let pd = context.alloc_pd()?;
    /// let options = SharedReceiveQueueOptions::default().srq_limit(16);
    /// let srq = pd.create_srq_with(64, 1, &options)?;
    /// assert_eq!(srq.query()?.srq_limit, 16);
    ///
    /// let too_much = context.query_device().max_srq_wr + 1;
    /// let error = pd.create_srq_with(too_much, 1, &options).unwrap_err();
    /// assert_eq!((error.verb(), error.kind()), ("create_srq", ErrorKind::InvalidArgument));
    /// # Ok::<(), verbs::Error>(())
    /// ```
    #[doc(alias("ibv_create_srq_ex", "rdma_create_srq_ex"))]
    pub fn create_srq_with(
        &self,
        max_wr: u32,
        max_sge: u32,
        options: &SharedReceiveQueueOptions,
    ) -> Result<SharedReceiveQueue> {
        let context = self.context();
        if let Some((domain, cq)) = &options.xrc {
            for (name, other) in [("xrc_domain", domain.context()), ("cq", cq.context())] {
                if !other.is_same(context) {
                    let message = format!("{name} belongs to {other}, not to this opening of {context}");
                    return Err(Error::unsuitable("create_srq", name, message));
                }
            }
        }
        let xrc = options.xrc.as_ref();
        let inner = self.inner().create_srq(&provider::SharedReceiveQueueInit {
            max_wr,
            max_sge,
            srq_limit: options.srq_limit,
            xrc: xrc.map(|(domain, cq)| provider::XrcReceives { domain: domain.inner(), cq: cq.inner() }),
        })?;
        let poster = Poster::default();
        Ok(SharedReceiveQueue { shared: Arc::new(Shared { inner, domain: self.clone(), poster }) })
    }
}

/// A shared receive queue (`ibv_srq`): receives for the messages of several queue pairs. A queue pair takes the oldest
/// receive when a message of its peer begins.
///
/// [`QueuePairOptions::srq`](super::QueuePairOptions::srq) attaches queue pairs to it. Completions appear on the queue
/// pair's completion queue and identify the queue pair; they need not appear in posting order, because messages end in
/// any order. A queue pair that finds the queue empty makes its peer retry (RNR NAK); a reliable connection loses no
/// message. Messages of unreliable connections and datagrams are dropped silently. A datagram that does not fit the
/// oldest receive is dropped as well, and the receive stays (`drop_receive_too_small`).
///
/// The receives belong to the queue, not to queue pairs: they stay when a queue pair goes to the error state or RESET,
/// or is destroyed. Only a receive that a message has begun to fill ends with its queue pair.
///
/// This is a handle: clones refer to the same queue. It is destroyed when the last handle and every queue pair that
/// uses it are dropped; receives still posted then are discarded without completions.
///
/// The owned tier has [shared receive queues](crate::owned::SharedReceiveQueue) of its own.
///
/// ```
/// use std::time::Duration;
/// use rdma_verbs::verbs::{self, AccessFlags, Payload, QueuePairOptions, ReceiveRequest, SendRequest};
///
/// let context = verbs::open("soft:127.0.1.211")?;
/// let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
/// let srq = pd.create_srq(8, 1)?;
/// let options = QueuePairOptions::default().srq(&srq);
/// let first = pd.create_qp_with(&cq, &cq, &options)?;
/// let second = pd.create_qp_with(&cq, &cq, &options)?;
/// first.connect(&second.connection_info()?)?;
/// second.connect(&first.connection_info()?)?;
///
/// let inbox = pd.alloc_mr(64, AccessFlags::LOCAL_WRITE)?;
/// srq.post_recv(&[
///     ReceiveRequest::new(inbox.slice(..32)?).wr_id(1),
///     ReceiveRequest::new(inbox.slice(32..)?).wr_id(2),
/// ])?;
/// first.post_send(&[SendRequest::send(Payload::inline(b"to the second"))])?;
/// let received = cq.wait(Duration::from_secs(10))?;
/// assert_eq!((received.wr_id(), received.qpn()), (1, second.qpn()));
/// second.post_send(&[SendRequest::send(Payload::inline(b"to the first"))])?;
/// let received = cq.wait(Duration::from_secs(10))?;
/// assert_eq!((received.wr_id(), received.qpn()), (2, first.qpn()));
/// # Ok::<(), verbs::Error>(())
/// ```
#[doc(alias("ibv_srq", "ibv_destroy_srq"))]
#[derive(Clone)]
pub struct SharedReceiveQueue {
    shared: Arc<Shared>,
}

/// The state shared by all handles.
struct Shared {
    inner: Arc<dyn provider::SharedReceiveQueue>,
    domain: ProtectionDomain,
    poster: Poster,
}

impl SharedReceiveQueue {
    /// Returns the queue's number, by which requests of extended reliable connections identify it.
    #[doc(alias = "ibv_get_srq_num")]
    pub fn number(&self) -> SharedReceiveQueueNumber {
        self.shared.inner.number()
    }

    /// Returns the protection domain that the memory of its receives belongs to. Queue pairs that use the queue may
    /// have another one.
    pub fn protection_domain(&self) -> &ProtectionDomain {
        &self.shared.domain
    }

    /// Returns the device that the queue belongs to.
    pub fn context(&self) -> &Context {
        self.shared.domain.context()
    }

    /// Changes the queue's size, arms the limit event, or both, all or nothing (`ibv_modify_srq`).
    ///
    /// A limit of n raises [`AsyncEvent::SharedReceiveQueueLimitReached`](super::AsyncEvent) once, when fewer than n
    /// receives are posted: immediately, if that is already so. The limit is then 0 until it is armed again. Posted
    /// receives are kept when the size changes.
    ///
    /// # Errors
    /// `max_wr` is less than the number of posted receives, or above the device's `max_srq_wr`; the limit is more than
    /// `max_wr`; [`ErrorKind::InvalidState`](super::ErrorKind::InvalidState) if this thread has an open batch of
    /// this queue.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use rdma_verbs::verbs::{self, AccessFlags, ReceiveRequest, RegionList};
    /// use rdma_verbs::verbs::{AsyncEvent, SharedReceiveQueueAttributes};
    /// # let context = verbs::open("soft:127.0.1.212")?;
    /// # let pd = context.alloc_pd()?;
    /// let srq = pd.create_srq(2, 1)?;
    /// srq.post_recv(&[ReceiveRequest::new(RegionList::EMPTY)])?;
    /// srq.modify(&SharedReceiveQueueAttributes { max_wr: Some(100), srq_limit: Some(2) })?;
    /// let event = context.wait_async_event(Duration::from_secs(1))?; // one receive waits, fewer than two
    /// assert_eq!(event, AsyncEvent::SharedReceiveQueueLimitReached(srq.number()));
    /// # Ok::<(), verbs::Error>(())
    /// ```
    #[doc(alias = "ibv_modify_srq")]
    pub fn modify(&self, attributes: &SharedReceiveQueueAttributes) -> Result<()> {
        self.shared.inner.modify(attributes)
    }

    /// Returns the queue's sizes and the armed limit (`ibv_query_srq`).
    ///
    /// # Errors
    /// Any provider error.
    #[doc(alias = "ibv_query_srq")]
    pub fn query(&self) -> Result<SharedReceiveQueueStatus> {
        self.shared.inner.query()
    }

    /// Posts receives, all or nothing (`ibv_post_srq_recv`). Allocates nothing.
    ///
    /// # Errors
    /// As for [`QueuePair::post_recv`](super::QueuePair::post_recv); the regions must belong to the protection domain
    /// of this queue.
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn post_recv(&self, requests: &[ReceiveRequest<'_>]) -> Result<()> {
        let mut batch = self.recv_batch()?;
        for request in requests {
            batch.push(request)?;
        }
        batch.post()
    }

    /// Opens a batch of receives. Until the batch is posted, this thread holds the queue for posting; other threads
    /// that post wait. Meanwhile, queue pairs still take receives posted before.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidState`](super::ErrorKind::InvalidState) if this thread already has an open batch of this
    /// queue.
    pub fn recv_batch(&self) -> Result<SharedReceiveBatch<'_>> {
        Ok(SharedReceiveBatch { batch: OpenBatch::open(self)? })
    }

    /// Destroys the queue while handles remain; see [`provider::SharedReceiveQueue::destroy`].
    pub(crate) fn destroy(&self) -> Result<()> {
        self.shared.inner.destroy()
    }

    pub(super) fn inner(&self) -> &Arc<dyn provider::SharedReceiveQueue> {
        &self.shared.inner
    }
}

impl fmt::Debug for SharedReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("SharedReceiveQueue");
        debug.field("number", &self.number()).field("context", &self.context().name()).finish()
    }
}

/// An open batch of receives for a shared receive queue: the counterpart of [`ReceiveBatch`](super::ReceiveBatch).
///
/// ```
/// # use rdma_verbs::verbs::{self, AccessFlags, ReceiveRequest};
/// # let pd = verbs::open("soft:127.0.1.213")?.alloc_pd()?;
/// # let mr = pd.alloc_mr(4096, AccessFlags::LOCAL_WRITE)?;
/// let srq = pd.create_srq(16, 1)?;
/// let mut batch = srq.recv_batch()?;
/// for slot in 0..16 {
///     batch.push(&ReceiveRequest::new(mr.slice(slot * 256..(slot + 1) * 256)?).wr_id(slot as u64))?;
/// }
/// batch.post()?;
/// # Ok::<(), verbs::Error>(())
/// ```
#[must_use = "a batch that is dropped posts nothing"]
pub struct SharedReceiveBatch<'a> {
    batch: OpenBatch<&'a SharedReceiveQueue>,
}

impl BatchQueue for &SharedReceiveQueue {
    const VERB: &'static str = "post_srq_recv";

    fn poster(&self) -> &Poster {
        &self.shared.poster
    }

    fn begin(&self) {
        self.shared.inner.recv_begin();
    }

    fn end(&self, end: BatchEnd) -> Result<()> {
        self.shared.inner.recv_end(end)
    }
}

impl SharedReceiveBatch<'_> {
    /// Adds a receive.
    ///
    /// # Errors
    /// As for [`SharedReceiveQueue::post_recv`]. The batch stays open and may be posted without the receive.
    pub fn push(&mut self, request: &ReceiveRequest<'_>) -> Result<&mut Self> {
        let shared = &self.batch.queue.shared;
        let check = RangeCheck { verb: "post_srq_recv", domain: &shared.domain, need: AccessFlags::LOCAL_WRITE };
        let wr_id = request.wr_id;
        check.with_sges(&request.data, |sges| shared.inner.recv_push(&types::ReceiveRequest { wr_id, sges }))?;
        self.batch.note_pushed();
        Ok(self)
    }

    /// Returns the number of receives in the batch.
    pub fn len(&self) -> usize {
        self.batch.len()
    }

    /// Returns whether the batch is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Posts all receives, in order.
    ///
    /// # Errors
    /// As for [`SharedReceiveQueue::post_recv`]; on failure nothing is posted.
    pub fn post(self) -> Result<()> {
        self.batch.post()
    }
}

impl fmt::Debug for SharedReceiveBatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceiveBatch")
            .field("queue", &self.batch.queue.number())
            .field("len", &self.len())
            .finish()
    }
}
