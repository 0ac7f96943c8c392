//! Open batches: a thread holds a queue while it adds requests.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Error, ErrorKind, Result};
use crate::types::BatchEnd;

/// The thread that has an open batch of a queue. The provider makes other threads wait; the same thread would deadlock,
/// so its attempt is refused.
#[derive(Default)]
pub(super) struct Poster {
    owner: AtomicUsize,
}

impl Poster {
    /// Begins a batch with `begin`, unless this thread has one open.
    ///
    /// Relaxed suffices: only this thread stores its own token, and it clears the token before it releases the queue.
    fn enter(&self, verb: &'static str, begin: impl FnOnce()) -> Result<()> {
        self.check_free(verb)?;
        begin();
        self.owner.store(thread_token(), Ordering::Relaxed);
        Ok(())
    }

    /// Fails if this thread has a batch open.
    pub(super) fn check_free(&self, verb: &'static str) -> Result<()> {
        if self.owner.load(Ordering::Relaxed) == thread_token() { Err(already_open(verb)) } else { Ok(()) }
    }

    fn leave(&self) {
        self.owner.store(0, Ordering::Relaxed);
    }
}

fn already_open(verb: &'static str) -> Error {
    Error::new(verb, ErrorKind::InvalidState, "this thread has an open batch of this queue; post or drop it first")
}

/// Returns a nonzero number that is unique among live threads.
fn thread_token() -> usize {
    thread_local!(static TOKEN: u8 = const { 0 });
    TOKEN.with(|token| std::ptr::from_ref(token).addr())
}

/// A queue that takes requests in batches.
pub(super) trait BatchQueue {
    /// The verb that posts to it, for errors.
    const VERB: &'static str;

    fn poster(&self) -> &Poster;
    fn begin(&self);
    fn end(&self, end: BatchEnd) -> Result<()>;
}

/// A batch that this thread has open: it holds the queue until the batch is posted, or dropped and rolled back.
pub(super) struct OpenBatch<Q: BatchQueue> {
    pub(super) queue: Q,
    len: usize,
    is_open: bool,
    /// Makes the batch `!Send`: the thread holds the queue.
    thread_bound: PhantomData<*const ()>,
}

impl<Q: BatchQueue> OpenBatch<Q> {
    /// Begins a batch. Fails if this thread has one of the queue open.
    pub(super) fn open(queue: Q) -> Result<Self> {
        queue.poster().enter(Q::VERB, || queue.begin())?;
        Ok(Self { queue, len: 0, is_open: true, thread_bound: PhantomData })
    }

    /// Counts a request that was added.
    pub(super) fn note_pushed(&mut self) {
        self.len += 1;
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn post(mut self) -> Result<()> {
        self.end(BatchEnd::Publish)
    }

    fn end(&mut self, end: BatchEnd) -> Result<()> {
        self.is_open = false;
        self.queue.poster().leave();
        self.queue.end(end)
    }
}

impl<Q: BatchQueue> Drop for OpenBatch<Q> {
    fn drop(&mut self) {
        if self.is_open {
            // Rolling back cannot fail in a way that matters to the caller.
            let _ = self.end(BatchEnd::Rollback);
        }
    }
}
