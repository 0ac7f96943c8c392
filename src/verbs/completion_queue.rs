//! Completion queues.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Completion, CompletionChannel, Context, Error, ErrorKind, Polling, Result};
use crate::provider;
use crate::types::RawCompletion;

/// Completions that are taken from the provider at once, into memory on the stack.
const POLL_BATCH: usize = 8;
/// How long [`CompletionQueue::wait`] polls without a pause.
const SPIN: Duration = Duration::from_millis(1);
/// How long it pauses between polls afterwards.
const PAUSE: Duration = Duration::from_micros(100);

/// Which completions make an armed queue announce itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notify {
    /// Every completion.
    Any,
    /// Failures, and receives of messages that were sent [`solicited`](super::SendRequest::solicited).
    SolicitedOnly,
}

/// A completion queue (`ibv_cq`): where finished requests of any number of queue pairs are picked up.
///
/// A handle: clones name the same queue. Several threads may poll it; each completion goes to one of them.
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

    /// The device it belongs to.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Takes up to `out.len()` completions, oldest first, and returns how many (`ibv_poll_cq`). Never blocks, allocates
    /// nothing.
    ///
    /// Polling drives the device: what has arrived is processed on the caller's thread, which is the fastest way there
    /// is. What a peer wrote before a completion is visible to whoever polled it.
    ///
    /// # Errors
    /// The queue overflowed: completions were lost, and its queue pairs are in error.
    ///
    /// ```
    /// use rdma_verbs::verbs::{self, Completion};
    ///
    /// let cq = verbs::open("soft:127.0.1.70")?.create_cq(16)?;
    /// let mut completions = [Completion::default(); 16];
    /// assert_eq!(cq.poll(&mut completions)?, 0);
    /// # Ok::<(), verbs::Error>(())
    /// ```
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
            // After an overflow, completions that are in `out` already are handed over first.
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

    /// Begins a poll that takes completions one by one, without an array for them.
    ///
    /// [`Polling`] has an example.
    pub fn polling(&self) -> Polling<'_> {
        Polling::new(self)
    }

    /// Lends each completion that waits to `look`, oldest first, until there is none, `look` breaks off, or as many
    /// were taken as the queue has entries. Returns how many were taken; what is left stays in the queue. `look` may
    /// post and poll.
    ///
    /// # Errors
    /// As [`CompletionQueue::poll`], if the queue overflowed and nothing was left in it. Completions that were lent
    /// before are returned as their number; the next call fails.
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
    /// It polls for a millisecond and then ten thousand times a second, so it neither misses anything nor eats a
    /// processor. Programs that live on latency poll themselves; programs that sleep much use a [`CompletionChannel`].
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] if nothing completed; otherwise as [`CompletionQueue::poll`]. A request that failed is
    /// not an error here but in [`Completion::result`].
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

    /// Arms the queue (`ibv_req_notify_cq`): the next completion of that sort makes one event on the queue's channel.
    ///
    /// Completions that are in the queue already make none, so poll once more after arming, before going to sleep.
    ///
    /// # Errors
    /// The queue was created without a channel.
    ///
    /// [`CompletionChannel`] has an example.
    pub fn req_notify(&self, notify: Notify) -> Result<()> {
        if self.channel.is_none() {
            let message = "the queue has no channel; create it with create_cq_on";
            return Err(Error::new("req_notify", ErrorKind::InvalidState, message));
        }
        self.inner.req_notify(notify == Notify::SolicitedOnly)
    }

    /// The channel it announces completions on.
    pub fn channel(&self) -> Option<&CompletionChannel> {
        self.channel.as_ref()
    }

    /// Its number: what [`AsyncEvent::CompletionQueueError`](super::AsyncEvent::CompletionQueueError) names it by.
    pub fn number(&self) -> u32 {
        self.inner.number()
    }

    /// Completions that fit (at least what was asked for).
    pub fn cqe(&self) -> u32 {
        self.inner.cqe()
    }

    /// Lets an event on the channel wait until `cq_count` completions have come since the queue was armed, or until
    /// `cq_period` (at most 65,535 µs) has passed since the first of them (`ibv_modify_cq`). Fewer wake-ups for a
    /// stream of completions, at the price of latency. Failed completions, and solicited ones where the queue is armed
    /// for those only, wait for nothing. A count of 0 or 1, or no period, ends it. Polling does not change.
    ///
    /// # Errors
    /// The period is longer.
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
    pub fn moderate(&self, cq_count: u16, cq_period: Duration) -> Result<()> {
        self.inner.moderate(cq_count, cq_period)
    }

    /// Changes how many completions fit (`ibv_resize_cq`). Waiting ones stay.
    ///
    /// # Errors
    /// `cqe` is 0, above the device's `max_cqe`, or below the number that waits.
    ///
    /// ```
    /// let cq = rdma_verbs::verbs::open("soft:127.0.1.72")?.create_cq(16)?;
    /// cq.resize(1000)?;
    /// assert!(cq.cqe() >= 1000);
    /// # Ok::<(), rdma_verbs::verbs::Error>(())
    /// ```
    pub fn resize(&self, cqe: u32) -> Result<()> {
        self.inner.resize(cqe)
    }

    pub(super) fn inner(&self) -> &Arc<dyn provider::CompletionQueue> {
        &self.inner
    }
}

/// Polls until there is something or the time is over: without a pause at first, then ten thousand times a second.
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
