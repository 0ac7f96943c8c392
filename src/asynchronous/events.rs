//! Asynchronous events of a device.

use std::fmt;
use std::future::poll_fn;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll, ready};

use futures_core::Stream;
use tokio::io::unix::AsyncFd;

use super::notifier::{failed, watch};
use crate::verbs::{AsyncEvent, Context, Result};

/// The asynchronous events of an open device, as a stream. Each event goes to one consumer and is acknowledged
/// immediately. Changes to interfaces and addresses wake the stream as well.
///
/// ```
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
/// # runtime.block_on(async {
/// use rdma_verbs::asynchronous::AsyncEvents;
/// # use rdma_verbs::verbs;
/// let context = verbs::open("soft:127.0.1.107")?;
/// let mut events = AsyncEvents::new(&context)?;
/// let quiet = tokio::time::timeout(std::time::Duration::from_millis(1), events.next_event()).await;
/// assert!(quiet.is_err(), "nothing has happened");
/// # Ok::<(), verbs::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct AsyncEvents {
    context: Context,
    descriptor: AsyncFd<OwnedFd>,
}

impl AsyncEvents {
    /// Creates the stream of the events of `context`. Must be called within a runtime.
    ///
    /// # Errors
    /// No file descriptor is available.
    ///
    /// # Panics
    /// If called outside a tokio runtime, or in one without I/O.
    pub fn new(context: &Context) -> Result<Self> {
        Ok(Self { descriptor: watch(context.as_fd(), "get_async_event")?, context: context.clone() })
    }

    /// Waits for the next event. Dropping the future consumes none.
    ///
    /// # Errors
    /// The runtime is shutting down.
    pub async fn next_event(&mut self) -> Result<AsyncEvent> {
        poll_fn(|task| self.poll_event(task)).await
    }

    fn poll_event(&mut self, task: &mut TaskContext<'_>) -> Poll<Result<AsyncEvent>> {
        loop {
            if let Some(event) = self.context.poll_async_event() {
                return Poll::Ready(Ok(event));
            }
            let ready = ready!(self.descriptor.poll_read_ready(task));
            ready.map_err(|error| failed("get_async_event", error))?.clear_ready();
        }
    }
}

impl Stream for AsyncEvents {
    type Item = Result<AsyncEvent>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut TaskContext<'_>) -> Poll<Option<Self::Item>> {
        self.poll_event(task).map(Some)
    }
}

impl fmt::Debug for AsyncEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncEvents").field("context", &self.context).finish_non_exhaustive()
    }
}
