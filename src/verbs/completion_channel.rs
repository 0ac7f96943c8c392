//! Completion channels.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use super::{Context, Result};
use crate::provider;

/// A completion channel (`ibv_comp_channel`): a thread sleeps on it until an armed completion queue receives a
/// completion.
///
/// Its descriptor ([`AsFd`]) works with `poll`, `epoll` and asynchronous runtimes. It is readable when an event may be
/// pending, and may wake spuriously: call [`CompletionChannel::poll_event`], which drives the device, and sleep again
/// if it returns no event.
///
/// This is a handle: clones refer to the same channel.
///
/// ```
/// use std::time::Duration;
/// use rdma_verbs::verbs::{self, Completion, CompletionQueueOptions, Notify};
/// use rdma_verbs::verbs::{Payload, ReceiveRequest, RegionList, SendRequest};
///
/// let context = verbs::open("soft:127.0.1.75")?;
/// let channel = context.create_comp_channel()?;
/// let cq = context.create_cq_with(16, &CompletionQueueOptions::default().channel(&channel, 42))?;
/// # let pd = context.alloc_pd()?;
/// # let qp = pd.create_qp(&cq, &cq)?;
/// # qp.connect(&qp.connection_info()?)?; // to itself
/// qp.post_recv(&[ReceiveRequest::new(RegionList::EMPTY)])?;
///
/// cq.req_notify(Notify::Any)?;
/// qp.post_send(&[SendRequest::send(Payload::EMPTY)])?;
/// assert_eq!(channel.wait_event(Duration::from_secs(10))?, 42);
///
/// let mut completion = [Completion::default()];
/// assert_eq!(cq.poll(&mut completion)?, 1);
/// # Ok::<(), verbs::Error>(())
/// ```
#[doc(alias("ibv_comp_channel", "ibv_destroy_comp_channel"))]
#[derive(Clone)]
pub struct CompletionChannel {
    context: Context,
    inner: Arc<dyn provider::CompletionChannel>,
}

impl CompletionChannel {
    pub(super) fn new(context: Context, inner: Arc<dyn provider::CompletionChannel>) -> Self {
        Self { context, inner }
    }

    /// Returns the device that the channel belongs to.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Returns the next event, if there is one: the `cq_context` of a queue that was armed and received a completion.
    /// The queue is then no longer armed. Drives the device and never blocks.
    #[doc(alias = "ibv_get_cq_event")]
    pub fn poll_event(&self) -> Option<u64> {
        self.inner.poll_event()
    }

    /// Waits up to `timeout` ([`Duration::MAX`]: forever) for the next event (`ibv_get_cq_event`) and returns it as
    /// [`CompletionChannel::poll_event`] does.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`](super::ErrorKind::TimedOut) if no event arrives; or the waiting system call fails.
    #[doc(alias("ibv_get_cq_event", "ibv_ack_cq_events"))]
    pub fn wait_event(&self, timeout: Duration) -> Result<u64> {
        self.inner.wait_event((timeout < Duration::MAX).then_some(timeout))
    }

    pub(super) fn inner(&self) -> &Arc<dyn provider::CompletionChannel> {
        &self.inner
    }
}

/// The descriptor that is readable when an event may be pending. It stays open as long as any handle of the channel
/// exists.
impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.fd()
    }
}

/// The same descriptor as a raw number.
impl AsRawFd for CompletionChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.inner.fd().as_raw_fd()
    }
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionChannel").field("fd", &self.inner.fd()).finish_non_exhaustive()
    }
}
