//! Completion queues.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Completion, CompletionChannel, Context, Error, ErrorKind, Polling, Result};
use crate::provider;
use crate::types::{CompletionQueueNumber, RawCompletion};

/// Number of completions taken from the provider at once, into memory on the stack.
const POLL_BATCH: usize = 8;
/// Time for which [`CompletionQueue::wait`] polls without a pause.
const SPIN: Duration = Duration::from_millis(1);
/// Pause between polls afterwards.
const PAUSE: Duration = Duration::from_micros(100);

/// The completions that trigger an event of an armed queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notify {
    /// Every completion.
    Any,
    /// Failures, and receives of messages sent [`solicited`](super::SendRequest::solicited).
    SolicitedOnly,
}

/// A completion queue (`ibv_cq`): it collects the completions of any number of queue pairs.
///
/// This is a handle: clones refer to the same queue. Several threads may poll it; each completion goes to one of them.
#[doc(alias("ibv_cq", "ibv_destroy_cq"))]
#[derive(Clone)]
pub struct CompletionQueue {
    context: Context,
    inner: Arc<dyn provider::CompletionQueue>,
    channel: Option<CompletionChannel>,
}

impl CompletionQueue {
    pub(super) fn new(
        context: Context,
        inner: Arc<dyn provider::CompletionQueue>,
        channel: Option<CompletionChannel>,
    ) -> Self {
        Self { context, inner, channel }
    }

    /// Returns the device that the queue belongs to.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Takes up to `out.len()` completions, oldest first, and returns their number (`ibv_poll_cq`). Never blocks and
    /// allocates nothing.
    ///
    /// Polling drives the device: packets that have arrived are processed on the caller's thread, which gives the
    /// lowest latency. A peer's writes that precede a completion are visible once it is polled.
    ///
    /// # Errors
    /// The queue overflowed: completions were lost, and its queue pairs are in the error state.
    ///
    /// ```
    /// use rdma_verbs::verbs::{self, Completion};
    ///
    /// let cq = verbs::open("soft:127.0.1.70")?.create_cq(16)?;
    /// let mut completions = [Completion::default(); 16];
    /// assert_eq!(cq.poll(&mut completions)?, 0);
    /// # Ok::<(), verbs::Error>(())
    /// ```
    #[doc(alias = "ibv_poll_cq")]
    pub fn poll(&self, out: &mut [Completion]) -> Result<usize> {
        if let [one] = out {
            let mut raw = [RawCompletion::default()];
            let count = self.inner.poll(&mut raw)?;
            *one = raw[0].into();
            return Ok(count);
        }
        let mut total = 0;
        for chunk in out.chunks_mut(POLL_BATCH) {
            let mut raw = [RawCompletion::default(); POLL_BATCH];
            let raw = &mut raw[..chunk.len()];
            // After an overflow, return the completions already in `out` first.
            let count = match self.inner.poll(raw) {
                Err(_) if total > 0 => 0,
                result => result?,
            };
            for (completion, raw) in chunk.iter_mut().zip(&raw[..count]) {
                *completion = (*raw).into();
            }
            total += count;
            if count < raw.len() {
                break;
            }
        }
        Ok(total)
    }

    /// Starts a poll that takes completions one by one, without an array.
    ///
    /// See [`Polling`] for an example.
    #[doc(alias("ibv_start_poll", "ibv_next_poll", "ibv_end_poll"))]
    pub fn polling(&self) -> Polling<'_> {
        Polling::new(self)
    }

    /// Passes each queued completion to `look`, oldest first, until none is left, `look` breaks, or as many have been
    /// taken as the queue has entries. Returns the number taken; the rest stay in the queue. `look` may post and poll.
    ///
    /// # Errors
    /// As for [`CompletionQueue::poll`], if the queue overflowed and is empty. If completions were taken before the
    /// failure, this returns their number, and the next call fails.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use rdma_verbs::verbs;
    ///
    /// let cq = verbs::open("soft:127.0.1.113")?.create_cq(16)?;
    /// let count = cq.poll_with(|completion| match completion.result() {
    ///     Ok(_) => ControlFlow::Continue(()),
    ///     Err(failure) => {
    ///         eprintln!("{failure}");
    ///         ControlFlow::Break(())
    ///     }
    /// })?;
    /// assert_eq!(count, 0);
    /// # Ok::<(), verbs::Error>(())
    /// ```
    pub fn poll_with(&self, mut look: impl FnMut(&Completion) -> ControlFlow<()>) -> Result<usize> {
        let mut polling = self.polling();
        for taken in 0..self.cqe().max(1) {
            let completion = match polling.next() {
                Ok(Some(completion)) => completion,
                Err(error) if taken == 0 => return Err(error),
                Ok(None) | Err(_) => break,
            };
            if look(completion).is_break() {
                break;
            }
        }
        Ok(polling.count())
    }

    /// Takes one completion, waiting up to `timeout` for it.
    ///
    /// Spins for 1 ms, then polls every 100 µs. Programs that need the lowest latency call [`CompletionQueue::poll`]
    /// themselves; programs that mostly sleep use a [`CompletionChannel`].
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] if nothing completed in time; otherwise, as for [`CompletionQueue::poll`]. A failed
    /// request is an error of [`Completion::result`], not of this method.
    ///
    /// ```
    /// use std::time::Duration;
    /// use rdma_verbs::verbs::{self, ErrorKind};
    ///
    /// let cq = verbs::open("soft:127.0.1.71")?.create_cq(16)?;
    /// let error = cq.wait(Duration::from_millis(5)).unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::TimedOut);
    /// # Ok::<(), verbs::Error>(())
    /// ```
    pub fn wait(&self, timeout: Duration) -> Result<Completion> {
        let mut completion = [Completion::default()];
        poll_until(timeout, || Ok((self.poll(&mut completion)? == 1).then_some(completion[0])))
    }

    /// Arms the queue (`ibv_req_notify_cq`): the next completion that `notify` selects triggers one event on the
    /// queue's channel.
    ///
    /// Completions already queued do not trigger an event, so poll once more after arming, before going to sleep.
    ///
    /// # Errors
    /// The queue was created without a channel.
    ///
    /// See [`CompletionChannel`] for an example.
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn req_notify(&self, notify: Notify) -> Result<()> {
        if self.channel.is_none() {
            let message = "the queue has no channel; create it with CompletionQueueOptions::channel";
            return Err(Error::new("req_notify", ErrorKind::InvalidState, message));
        }
        self.inner.req_notify(notify == Notify::SolicitedOnly)
    }

    /// Returns the channel that the queue notifies, if any.
    pub fn channel(&self) -> Option<&CompletionChannel> {
        self.channel.as_ref()
    }

    /// Returns the queue's number, by which
    /// [`AsyncEvent::CompletionQueueError`](super::AsyncEvent::CompletionQueueError) identifies it.
    pub fn number(&self) -> CompletionQueueNumber {
        self.inner.number()
    }

    /// Returns the capacity in completions, at least the number requested.
    pub fn cqe(&self) -> u32 {
        self.inner.cqe()
    }

    /// Delays the event on the channel until `cq_count` completions have been added since the queue was armed, or until
    /// `cq_period` (at most 65,535 µs) has passed since the first of them (`ibv_modify_cq`). This saves wake-ups for a
    /// stream of completions at the cost of latency. Failed completions, and solicited ones if the queue is armed for
    /// those only, are not delayed. Pass a count of 0 or 1, or a zero period, to disable. Polling is unaffected.
    ///
    /// # Errors
    /// `cq_period` is longer than 65,535 µs.
    ///
    /// ```
    /// use std::time::Duration;
    /// use rdma_verbs::verbs::{self, ErrorKind};
    ///
    /// let cq = verbs::open("soft:127.0.1.73")?.create_cq(16)?;
    /// cq.moderate(8, Duration::from_micros(50))?;
    /// assert_eq!(cq.moderate(8, Duration::from_secs(1)).unwrap_err().kind(), ErrorKind::InvalidArgument);
    /// # Ok::<(), verbs::Error>(())
    /// ```
    #[doc(alias = "ibv_modify_cq")]
    pub fn moderate(&self, cq_count: u16, cq_period: Duration) -> Result<()> {
        self.inner.moderate(cq_count, cq_period)
    }

    /// Changes the capacity in completions (`ibv_resize_cq`). Queued completions are kept.
    ///
    /// # Errors
    /// `cqe` is 0, above the device's `max_cqe`, or below the number of queued completions.
    ///
    /// ```
    /// let cq = rdma_verbs::verbs::open("soft:127.0.1.72")?.create_cq(16)?;
    /// cq.resize(1000)?;
    /// assert!(cq.cqe() >= 1000);
    /// # Ok::<(), rdma_verbs::verbs::Error>(())
    /// ```
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize(&self, cqe: u32) -> Result<()> {
        self.inner.resize(cqe)
    }

    pub(super) fn inner(&self) -> &Arc<dyn provider::CompletionQueue> {
        &self.inner
    }
}

/// Polls until there is a result or `timeout` has passed: spins for [`SPIN`], then pauses for [`PAUSE`] between polls.
pub(crate) fn poll_until<T>(timeout: Duration, mut poll: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(done) = poll()? {
            return Ok(done);
        }
        let waited = start.elapsed();
        if waited >= timeout {
            let message = format!("nothing completed within {timeout:?}");
            return Err(Error::new("wait", ErrorKind::TimedOut, message));
        }
        if waited > SPIN {
            std::thread::sleep(PAUSE);
        }
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue").field("cqe", &self.cqe()).field("channel", &self.channel).finish()
    }
}
