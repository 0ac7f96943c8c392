//! Completion channels.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use super::{Context, Result};
use crate::provider;

/// A completion channel (`ibv_comp_channel`): where a thread sleeps until an armed completion queue has something.
///
/// Its descriptor ([`AsFd`]) suits `poll`, `epoll` and asynchronous runtimes. It is readable when an event may wait,
/// and may be readable for nothing: when it is, call [`CompletionChannel::poll_event`], which does the work that the
/// wake-up was for, and sleep again if that has no event.
///
/// A handle: clones name the same channel.
///
/// ```
/// use std::time::Duration;
/// use rdma_verbs::verbs::{self, Completion, Notify, Payload, ReceiveRequest, RegionList, SendRequest};
///
/// let context = verbs::open("soft:127.0.1.75")?;
/// let channel = context.create_comp_channel()?;
/// let cq = context.create_cq_on(&channel, 16, 42)?;
/// # let pd = context.alloc_pd()?;
/// # let qp = pd.create_qp(&cq, &cq).build()?;
/// # qp.connect(&qp.connection_info()?)?; // to itself
/// qp.post_recv(&[ReceiveRequest::new(RegionList::EMPTY)])?;
///
/// cq.req_notify(Notify::Any)?;
/// qp.post_send(&[SendRequest::send(Payload::EMPTY)])?;
/// let event = channel.wait_event(Some(Duration::from_secs(10)))?;
/// assert_eq!(event, Some(42));
///
/// let mut completion = [Completion::default()];
/// assert_eq!(cq.poll(&mut completion)?, 1);
/// # Ok::<(), verbs::Error>(())
/// ```
#[derive(Clone)]
pub struct CompletionChannel {
    context: Context,
    inner: Arc<dyn provider::CompletionChannel>,
}

impl CompletionChannel {
    pub(super) fn new(context: Context, inner: Arc<dyn provider::CompletionChannel>) -> Self {
        Self { context, inner }
    }

    /// The device it belongs to.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The next event, if there is one: the `cq_context` of a queue that was armed and has got a completion. Drives the
    /// device, never blocks. The queue is no longer armed.
    pub fn poll_event(&self) -> Option<u64> {
        self.inner.poll_event()
    }

    /// Waits up to `timeout` (`None`: for ever) for the next event (`ibv_get_cq_event`); `None` if none came.
    ///
    /// # Errors
    /// The system fails to wait.
    pub fn wait_event(&self, timeout: Option<Duration>) -> Result<Option<u64>> {
        self.inner.wait_event(timeout)
    }

    pub(super) fn inner(&self) -> &Arc<dyn provider::CompletionChannel> {
        &self.inner
    }
}

/// Readable when an event may wait. It stays open as long as any handle of the channel.
impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.fd()
    }
}

/// The same descriptor, for interfaces that take numbers.
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
