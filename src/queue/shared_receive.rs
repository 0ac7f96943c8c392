//! The shared receive queue: buffers waiting for the messages of several queue pairs (IBTA 10.2.9).
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};

use thiserror::Error;

use super::producer_lock::ProducerLock;
use super::sync::{AtomicU32, CachePadded, Mutex, lock};
use super::{AsyncEventQueue, CompletionQueue, MAX_DEPTH, MAX_SGES, QueueError, SourceToken};
use crate::types::{
    AsyncEvent, BatchEnd, DomainId, ReceiveRequest, Sge, SharedReceiveQueueNumber, SharedReceiveQueueStatus,
};

/// Why a shared receive queue was not changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// More receives wait than would fit.
    #[error("max_wr is {requested}, but {waiting} receives wait; allowed are {waiting} and more")]
    TooSmall {
        /// Receives requested.
        requested: u32,
        /// Receives that wait.
        waiting: u32,
    },
    /// The limit is more than the queue holds.
    #[error("srq_limit is {limit}; allowed are 0 to {max_wr}, the receives that the queue holds")]
    LimitTooLarge {
        /// The requested or armed limit.
        limit: u32,
        /// Receives that the queue holds, or would hold.
        max_wr: u32,
    },
    /// The calling thread has a batch open on this queue.
    #[error("this thread has an open batch of this queue; post or drop it first")]
    BatchOpen,
}

/// Why no request was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotTaken {
    /// None waits.
    Empty,
    /// The oldest has less room than is needed; it stays.
    TooSmall,
}

/// Parameters of a new shared receive queue.
pub struct SharedReceiveInit {
    /// Its number.
    pub number: SharedReceiveQueueNumber,
    /// Protection domain of its memory.
    pub domain: DomainId,
    /// Receives that it holds.
    pub max_wr: u32,
    /// Scatter-gather entries of a receive.
    pub max_sge: u32,
    /// The limit that is armed initially.
    pub srq_limit: u32,
    /// The queue for its events.
    pub events: Arc<AsyncEventQueue>,
    /// The completion queue of its receives, if the shared queue determines it and not the queue pair that takes them.
    pub completions: Option<(Arc<CompletionQueue>, SourceToken)>,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    wr_id: u64,
    sge_count: u32,
}

/// Slots by request number modulo their count: `taken..published` wait, `published..tail` belong to an open batch.
struct State {
    slots: Box<[Slot]>,
    sges: Box<[Sge]>,
    taken: u64,
    published: u64,
    tail: u64,
    srq_limit: u32,
    closed: bool,
}

impl State {
    fn waiting(&self) -> u32 {
        (self.published - self.taken) as u32
    }

    fn slot_index(&self, number: u64) -> usize {
        (number % self.slots.len() as u64) as usize
    }

    /// Whether the limit event is due; it is then disarmed.
    fn falls_below_limit(&mut self) -> bool {
        let is_due = self.waiting() < self.srq_limit;
        if is_due {
            self.srq_limit = 0;
        }
        is_due
    }
}

/// A shared receive queue: bounded, for any number of posting threads and of consuming queue pairs, on any shards.
///
/// Requests are posted in batches as in the [`ReceiveQueue`](super::ReceiveQueue), and taken in the order in which they
/// were posted. A slot is free again once its request is taken.
pub struct SharedReceiveQueue {
    number: SharedReceiveQueueNumber,
    domain: DomainId,
    max_sge: u32,
    events: Arc<AsyncEventQueue>,
    completions: Option<(Arc<CompletionQueue>, SourceToken)>,
    producer: ProducerLock,
    state: Mutex<State>,
    /// Number of waiting requests; changed under the lock, read without it to find an empty queue cheaply.
    waiting: CachePadded<AtomicU32>,
}

impl SharedReceiveQueue {
    /// Creates an empty queue.
    ///
    /// # Panics
    ///
    /// If `max_wr` is 0 or exceeds [`MAX_DEPTH`], or `max_sge` exceeds [`MAX_SGES`].
    pub fn new(init: SharedReceiveInit) -> Arc<Self> {
        assert!((1..=MAX_DEPTH).contains(&init.max_wr), "max_wr is {}; 1 to {MAX_DEPTH} are possible", init.max_wr);
        assert!(init.max_sge <= MAX_SGES, "max_sge is {}; at most {MAX_SGES} are possible", init.max_sge);
        let (slots, sges) = storage(init.max_wr, init.max_sge);
        let srq_limit = init.srq_limit;
        let state = State { slots, sges, taken: 0, published: 0, tail: 0, srq_limit, closed: false };
        Arc::new(Self {
            number: init.number,
            domain: init.domain,
            max_sge: init.max_sge,
            events: init.events,
            completions: init.completions,
            producer: ProducerLock::new(),
            state: Mutex::new(state),
            waiting: CachePadded(AtomicU32::new(0)),
        })
    }

    /// Its number.
    pub fn number(&self) -> SharedReceiveQueueNumber {
        self.number
    }

    /// The protection domain of its memory.
    pub fn domain(&self) -> DomainId {
        self.domain
    }

    /// Scatter-gather entries of a request.
    pub fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// The completion queue of its requests, if the shared queue determines it.
    pub fn completions(&self) -> Option<&(Arc<CompletionQueue>, SourceToken)> {
        self.completions.as_ref()
    }

    /// Begins a batch. Waits while another thread has one open: spins briefly, then yields the processor.
    ///
    /// Beginning again continues the open batch of this thread; a single end ends it.
    pub fn begin(&self) {
        self.producer.acquire();
    }

    /// Copies a request into the batch.
    ///
    /// # Errors
    ///
    /// [`QueueError::NotBegun`], [`QueueError::TooManySges`] or [`QueueError::Full`], in this order.
    pub fn push(&self, request: &ReceiveRequest<'_>) -> Result<(), QueueError> {
        self.check_begun()?;
        let (given, limit) = (request.sges.len(), self.max_sge);
        if given > limit as usize {
            return Err(QueueError::TooManySges { given, limit });
        }
        let mut state = lock(&self.state);
        let max_wr = state.slots.len();
        if state.tail - state.taken >= max_wr as u64 {
            return Err(QueueError::Full { limit: max_wr as u32 });
        }
        let index = state.slot_index(state.tail);
        state.slots[index] = Slot { wr_id: request.wr_id, sge_count: given as u32 };
        state.sges[index * limit as usize..][..given].copy_from_slice(request.sges);
        state.tail += 1;
        Ok(())
    }

    /// Ends the batch: hands it over or discards it. Returns how many requests were handed over.
    ///
    /// # Errors
    ///
    /// [`QueueError::NotBegun`].
    pub fn end(&self, end: BatchEnd) -> Result<u32, QueueError> {
        self.check_begun()?;
        let mut state = lock(&self.state);
        let count = match end {
            BatchEnd::Publish => (state.tail - state.published) as u32,
            BatchEnd::Rollback => 0,
        };
        match end {
            BatchEnd::Publish => state.published = state.tail,
            BatchEnd::Rollback => state.tail = state.published,
        }
        self.publish_waiting(&state);
        drop(state);
        self.producer.release();
        Ok(count)
    }

    fn check_begun(&self) -> Result<(), QueueError> {
        if self.producer.is_held() { Ok(()) } else { Err(QueueError::NotBegun) }
    }

    /// Takes the oldest request and frees its slot. Its entries replace the contents of `sges`; its `wr_id` and number
    /// are returned. Allocates nothing if `sges` has room for [`SharedReceiveQueue::max_sge`] entries. Raises the limit
    /// event if fewer are left than the limit.
    pub fn take(&self, sges: &mut Vec<Sge>) -> Option<(u64, u32)> {
        self.take_with_room(0, sges).ok()
    }

    /// As [`SharedReceiveQueue::take`], if the oldest request has room for `needed` bytes. Checking and taking are one
    /// step, because other queue pairs take concurrently.
    ///
    /// # Errors
    ///
    /// [`NotTaken`], if nothing was taken.
    pub fn take_with_room(&self, needed: u64, sges: &mut Vec<Sge>) -> Result<(u64, u32), NotTaken> {
        let mut state = lock(&self.state);
        if state.waiting() == 0 || state.closed {
            return Err(NotTaken::Empty);
        }
        let (number, index) = (state.taken, state.slot_index(state.taken));
        let Slot { wr_id, sge_count } = state.slots[index];
        let entries = &state.sges[index * self.max_sge as usize..][..sge_count as usize];
        let room: u64 = entries.iter().map(|entry| u64::from(entry.length)).sum();
        if room < needed {
            return Err(NotTaken::TooSmall);
        }
        sges.clear();
        sges.extend_from_slice(entries);
        state.taken += 1;
        self.publish_waiting(&state);
        let is_due = state.falls_below_limit();
        drop(state);
        self.raise_limit_if(is_due);
        Ok((wr_id, number as u32))
    }

    /// Number of waiting requests. Takes no lock; other queue pairs may take them at any time.
    #[inline]
    pub fn available(&self) -> u32 {
        self.waiting.0.load(Acquire)
    }

    /// The current sizes, and the armed limit.
    pub fn status(&self) -> SharedReceiveQueueStatus {
        let state = lock(&self.state);
        let max_wr = state.slots.len() as u32;
        SharedReceiveQueueStatus { max_wr, max_sge: self.max_sge, srq_limit: state.srq_limit }
    }

    /// Arms the limit event, or disarms it with 0. If fewer requests than `limit` wait, the event is raised at once.
    ///
    /// # Errors
    ///
    /// [`ChangeError::LimitTooLarge`]; nothing is changed.
    pub fn arm(&self, limit: u32) -> Result<(), ChangeError> {
        let mut state = lock(&self.state);
        let max_wr = state.slots.len() as u32;
        if limit > max_wr {
            return Err(ChangeError::LimitTooLarge { limit, max_wr });
        }
        state.srq_limit = limit;
        let is_due = state.falls_below_limit();
        drop(state);
        self.raise_limit_if(is_due);
        Ok(())
    }

    /// Changes how many requests fit, keeping those that wait, and arms the limit event if `limit` is given. Waits for
    /// another thread's open batch.
    ///
    /// # Errors
    ///
    /// Any [`ChangeError`]; nothing is changed.
    ///
    /// # Panics
    ///
    /// If `max_wr` is 0 or exceeds [`MAX_DEPTH`].
    pub fn resize(&self, max_wr: u32, limit: Option<u32>) -> Result<(), ChangeError> {
        assert!((1..=MAX_DEPTH).contains(&max_wr), "max_wr is {max_wr}; 1 to {MAX_DEPTH} are possible");
        if !self.producer.acquire() {
            return Err(ChangeError::BatchOpen);
        }
        let resized = self.resize_between_batches(max_wr, limit);
        self.producer.release();
        resized
    }

    fn resize_between_batches(&self, max_wr: u32, limit: Option<u32>) -> Result<(), ChangeError> {
        // Allocated before and freed after the lock is held, so that no endpoint waits for the allocator.
        let (mut slots, mut sges) = storage(max_wr, self.max_sge);
        let mut state = lock(&self.state);
        let waiting = state.waiting();
        if waiting > max_wr {
            return Err(ChangeError::TooSmall { requested: max_wr, waiting });
        }
        let arms = limit.is_some();
        let limit = limit.unwrap_or(state.srq_limit);
        if limit > max_wr {
            return Err(ChangeError::LimitTooLarge { limit, max_wr });
        }
        let each = self.max_sge as usize;
        for number in state.taken..state.published {
            let (old, new) = (state.slot_index(number), (number % u64::from(max_wr)) as usize);
            slots[new] = state.slots[old];
            sges[new * each..][..each].copy_from_slice(&state.sges[old * each..][..each]);
        }
        std::mem::swap(&mut state.slots, &mut slots);
        std::mem::swap(&mut state.sges, &mut sges);
        state.srq_limit = limit;
        // A limit that was armed before stays armed: nothing was taken.
        let is_due = arms && state.falls_below_limit();
        drop(state);
        self.raise_limit_if(is_due);
        Ok(())
    }

    /// Closes the queue: no further request can be taken.
    pub fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        self.waiting.0.store(0, Release);
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        lock(&self.state).closed
    }

    /// Raises the limit event if it is due. Called without the lock, because the receiver of the event may query the
    /// queue's status.
    fn raise_limit_if(&self, is_due: bool) {
        if is_due {
            self.events.push(AsyncEvent::SharedReceiveQueueLimitReached(self.number));
        }
    }

    fn publish_waiting(&self, state: &State) {
        let waiting = if state.closed { 0 } else { state.waiting() };
        self.waiting.0.store(waiting, Release);
    }
}

/// Allocates room for `max_wr` requests.
fn storage(max_wr: u32, max_sge: u32) -> (Box<[Slot]>, Box<[Sge]>) {
    let sges = max_wr as usize * max_sge as usize;
    (vec![Slot::default(); max_wr as usize].into(), vec![Sge::default(); sges].into())
}

#[cfg(all(test, not(loom)))]
mod tests;
