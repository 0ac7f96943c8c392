//! The receive queue: buffers waiting for messages.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::QueueError;
use super::ring::{Layout, Ring, RingConsumer};
use super::sync::{AtomicBool, Ordering};
use crate::types::{BatchEnd, ReceiveRequest, Sge};

/// The receive queue of a queue pair, as posting threads see it.
///
/// Requests are posted in batches as in the [`SendQueue`](super::SendQueue). A slot is free again once the endpoint has
/// taken its request.
pub struct ReceiveQueue {
    ring: Arc<Ring<u64>>,
    flushes: Arc<AtomicBool>,
}

impl ReceiveQueue {
    /// Creates a queue for `max_wr` requests of up to `max_sge` entries.
    ///
    /// # Panics
    ///
    /// If `max_wr` exceeds [`MAX_DEPTH`](super::MAX_DEPTH) or `max_sge` exceeds [`MAX_SGES`](super::MAX_SGES).
    pub fn new(max_wr: u32, max_sge: u32) -> Arc<Self> {
        Self::starting_at(0, max_wr, max_sge)
    }

    /// Creates a queue whose first request has the number `start`.
    fn starting_at(start: u64, max_wr: u32, max_sge: u32) -> Arc<Self> {
        let ring = Ring::new(Layout { limit: max_wr, max_sge, max_inline: 0, start });
        Arc::new(Self { ring, flushes: Arc::default() })
    }

    /// Begins a batch. Waits while another thread has one open: spins briefly, then yields the processor.
    ///
    /// Beginning again continues the open batch of this thread; a single end ends it.
    pub fn begin(&self) {
        self.ring.begin();
    }

    /// Copies a request into the batch. More memory than the longest message needs is allowed: the rest is never
    /// filled.
    ///
    /// # Errors
    ///
    /// [`QueueError::NotBegun`], [`QueueError::TooManySges`] or [`QueueError::Full`], in this order.
    #[inline]
    pub fn push(&self, request: &ReceiveRequest<'_>) -> Result<(), QueueError> {
        self.ring.check_begun()?;
        let limit = self.ring.layout().max_sge;
        if request.sges.len() > limit as usize {
            return Err(QueueError::TooManySges { given: request.sges.len(), limit });
        }
        self.ring.push(request.wr_id, request.sges, &[])
    }

    /// Ends the batch: hands it to the endpoint or discards it. Returns how many requests were handed over.
    ///
    /// # Errors
    ///
    /// [`QueueError::NotBegun`].
    #[inline]
    pub fn end(&self, end: BatchEnd) -> Result<u32, QueueError> {
        self.ring.end(end)
    }

    /// Returns the endpoint's end of the queue; `None` if it was already taken.
    pub fn consumer(self: &Arc<Self>) -> Option<ReceiveConsumer> {
        self.ring.consumer().map(|ring| ReceiveConsumer { ring, flushes: Arc::clone(&self.flushes) })
    }

    /// Whether the endpoint must be notified of the requests just published, because it completes every request as
    /// flushed.
    ///
    /// Call it after publishing. Either it returns true, or [`ReceiveConsumer::set_flushes`] was not called yet and its
    /// caller will see the requests.
    #[inline]
    pub fn flushes(&self) -> bool {
        // All changes of the flag have one order, so one of the two calls sees the other, and all that precedes it.
        // That takes a quarter of the time of a fence.
        self.flushes.compare_exchange(false, false, Ordering::AcqRel, Ordering::Relaxed).is_err()
    }

    /// Number of published requests that the endpoint has not taken.
    #[cfg(feature = "sim")]
    pub fn pending(&self) -> u32 {
        self.ring.outstanding()
    }

    /// Number of requests that fit.
    #[cfg(feature = "sim")]
    pub fn max_wr(&self) -> u32 {
        self.ring.layout().limit
    }
}

/// The endpoint's end of a receive queue.
pub struct ReceiveConsumer {
    ring: RingConsumer<u64>,
    flushes: Arc<AtomicBool>,
}

impl ReceiveConsumer {
    /// Takes the oldest request and frees its slot. Its entries replace the contents of `sges`; its `wr_id` and number
    /// are returned. Allocates nothing if `sges` has room for the queue's longest list.
    #[inline]
    pub fn take(&mut self, sges: &mut Vec<Sge>) -> Option<(u64, u32)> {
        self.ring.take_oldest(|index, wr_id, entries| {
            sges.clear();
            sges.extend_from_slice(entries);
            (*wr_id, index)
        })
    }

    /// Sets whether requests are completed as flushed from now on, so that posting threads notify the endpoint of new
    /// ones. Afterwards, the requests that were published without a notification can be taken.
    pub fn set_flushes(&mut self, flushes: bool) {
        self.flushes.swap(flushes, Ordering::AcqRel);
    }

    /// Returns the number of bytes that the next request to be taken has room for; `None` if there is none.
    pub fn next_room(&self) -> Option<u64> {
        if self.ring.available() == 0 {
            return None;
        }
        Some(self.ring.sges(self.ring.retired()).iter().map(|sge| u64::from(sge.length)).sum())
    }

    /// Number of requests that can be taken.
    #[inline]
    pub fn available(&self) -> u32 {
        self.ring.available()
    }

    /// Number of the next request to be taken.
    #[cfg(feature = "sim")]
    #[inline]
    pub fn taken(&self) -> u32 {
        self.ring.retired()
    }

    /// Discards everything published and frees its slots; returns the number of the next request.
    pub fn reset(&mut self) -> u32 {
        self.ring.reset()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn post(queue: &ReceiveQueue, wr_id: u64, sges: &[Sge]) -> Result<(), QueueError> {
        queue.begin();
        let result = queue.push(&ReceiveRequest { wr_id, sges });
        queue.end(BatchEnd::Publish).unwrap();
        result
    }

    #[test]
    fn requests_are_taken_in_order_and_free_their_slots() {
        let queue = ReceiveQueue::starting_at(u64::from(u32::MAX), 3, 2);
        let mut consumer = queue.consumer().unwrap();
        assert!(queue.consumer().is_none());
        let mut sges = Vec::with_capacity(2);
        assert_eq!(consumer.take(&mut sges), None);
        let entry = Sge { addr: 1, length: u32::MAX, ..Sge::default() };
        post(&queue, 1, &[entry, entry]).unwrap();
        post(&queue, 2, &[]).unwrap();
        post(&queue, 3, &[entry]).unwrap();
        assert_eq!(post(&queue, 4, &[]), Err(QueueError::Full { limit: 3 }));
        assert_eq!((consumer.available(), queue.pending(), queue.max_wr()), (3, 3, 3));
        assert_eq!(consumer.next_room(), Some(2 * u64::from(u32::MAX)));
        assert_eq!(consumer.take(&mut sges), Some((1, u32::MAX)));
        assert_eq!(sges, [entry, entry]);
        post(&queue, 4, &[]).unwrap();
        assert_eq!(consumer.take(&mut sges), Some((2, 0)));
        assert!(sges.is_empty());
        assert_eq!(consumer.taken(), 1);
        assert_eq!(consumer.reset(), 3);
        assert_eq!((consumer.take(&mut sges), consumer.next_room(), queue.pending()), (None, None, 0));
    }

    #[test]
    fn errors_in_order() {
        let queue = ReceiveQueue::new(1, 1);
        let two = [Sge::default(); 2];
        assert_eq!(queue.push(&ReceiveRequest { wr_id: 1, sges: &two }), Err(QueueError::NotBegun));
        assert_eq!(queue.end(BatchEnd::Rollback), Err(QueueError::NotBegun));
        post(&queue, 1, &[]).unwrap();
        assert_eq!(post(&queue, 2, &two), Err(QueueError::TooManySges { given: 2, limit: 1 }));
        assert_eq!(post(&queue, 2, &[]), Err(QueueError::Full { limit: 1 }));
    }

    #[test]
    fn rollback_discards_the_batch() {
        let queue = ReceiveQueue::new(1, 1);
        let consumer = queue.consumer().unwrap();
        queue.begin();
        queue.push(&ReceiveRequest { wr_id: 1, sges: &[] }).unwrap();
        assert_eq!(queue.end(BatchEnd::Rollback), Ok(0));
        assert_eq!(consumer.available(), 0);
        post(&queue, 2, &[]).unwrap();
        assert_eq!(consumer.available(), 1);
    }
}
