//! Polling completions one by one, without an array.

use std::fmt;

use super::{Completion, CompletionQueue, Result};
use crate::types::RawCompletion;

/// An in-progress poll of a completion queue (`ibv_start_poll`, `ibv_next_poll`, `ibv_end_poll`), created by
/// [`CompletionQueue::polling`].
///
/// [`Polling::next`] takes a completion from the queue and lends it until the following call. Completions not taken
/// when the poll is dropped stay in the queue. Other threads may poll the same queue meanwhile; nothing is locked
/// between completions, so posting and polling in between are allowed.
///
/// ```
/// use rdma_verbs::verbs;
///
/// let cq = verbs::open("soft:127.0.1.112")?.create_cq(16)?;
/// let mut polling = cq.polling();
/// while let Some(completion) = polling.next()? {
///     println!("request {} is done: {}", completion.wr_id(), completion.is_success());
/// }
/// assert_eq!(polling.count(), 0);
/// # Ok::<(), verbs::Error>(())
/// ```
#[must_use = "a poll takes nothing until it is asked for the next completion"]
pub struct Polling<'a> {
    queue: &'a CompletionQueue,
    current: Completion,
    count: usize,
}

impl<'a> Polling<'a> {
    pub(super) fn new(queue: &'a CompletionQueue) -> Self {
        Self { queue, current: Completion::default(), count: 0 }
    }

    /// Takes the oldest completion. Returns `None` if there is none now.
    ///
    /// # Errors
    /// As for [`CompletionQueue::poll`].
    #[expect(clippy::should_implement_trait, reason = "an iterator cannot lend")]
    pub fn next(&mut self) -> Result<Option<&Completion>> {
        let mut raw = [RawCompletion::default()];
        if self.queue.inner().poll(&mut raw)? == 0 {
            return Ok(None);
        }
        self.current = raw[0].into();
        self.count += 1;
        Ok(Some(&self.current))
    }

    /// Returns the number of completions taken so far.
    pub fn count(&self) -> usize {
        self.count
    }
}

impl fmt::Debug for Polling<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Polling").field("queue", &self.queue).field("count", &self.count).finish_non_exhaustive()
    }
}
