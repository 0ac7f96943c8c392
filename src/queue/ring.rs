//! The slot ring: fixed slots of a header, scatter-gather entries and inline bytes, one producer at a time, one
//! consumer. All the `unsafe` code of the queues is here.
//!
//! # Why it is sound
//!
//! Four counters determine which thread may touch a slot (see [`super`]): `released <= retired <= published <= tail`
//! and `tail - released <= capacity`. They are 64 bits wide internally, so none ever returns to an old value; callers
//! see the low 32 bits.
//!
//! * Slots in `[published, tail]` belong to the producer, the thread that holds the producer lock. It alone changes
//!   `tail` and `published`. It writes a slot only after an acquire load has shown that `tail - released < capacity`.
//! * Slots in `[retired, published)` are read by the only consumer ([`Ring::consumer`]). It learns of them by an
//!   acquire load of `published`, and it alone changes `retired`, by release stores through `&mut self`: references
//!   that it handed out borrow it and have ended by then.
//! * Any thread may release slots. [`Ring::release`] only moves `released` forward, and never beyond a value of
//!   `retired` that it read by an acquire load; its own change is a release. The consumer itself stores its `retired`
//!   ([`RingConsumer::take_oldest`]), which no other thread's change exceeds. So a producer that sees a slot released
//!   also sees that the consumer's reads are over.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::producer_lock::ProducerLock;
use super::sync::{AtomicBool, AtomicU64, CachePadded, Witness};
use super::{MAX_DEPTH, MAX_SGES, QueueError};
use crate::types::{BatchEnd, Sge};

/// Sizes of a ring, and the number of its first request.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    /// Requests that fit. The slots are rounded up to a power of two, the limit is not.
    pub(super) limit: u32,
    pub(super) max_sge: u32,
    pub(super) max_inline: u32,
    /// Number of the first request; nonzero only in tests of wrapping numbers.
    pub(super) start: u64,
}

/// The fixed part of a slot.
#[derive(Clone, Copy, Default)]
struct Slot<H> {
    header: H,
    sge_count: u32,
    inline_length: u32,
}

/// State of the thread that holds the producer lock. The fields are atomics only so that the ring can be shared: apart
/// from the lock itself, only its holder accesses them, so they need no ordering.
struct Producer {
    lock: ProducerLock,
    tail: AtomicU64,
    /// An earlier value of `released`; saves reading the pollers' cache line on most pushes.
    released_seen: AtomicU64,
}

/// The shared part of a ring.
pub(super) struct Ring<H> {
    slots: Box<[UnsafeCell<Slot<H>>]>,
    sges: Box<[UnsafeCell<Sge>]>,
    inline: Box<[UnsafeCell<u8>]>,
    witnesses: Box<[Witness]>,
    layout: Layout,
    has_consumer: AtomicBool,
    producer: CachePadded<Producer>,
    published: CachePadded<AtomicU64>,
    retired: CachePadded<AtomicU64>,
    released: CachePadded<AtomicU64>,
}

// SAFETY: only the cells (and the witnesses, which stand for them) are not `Sync` by themselves. The module's
// documentation says why accesses to one slot by several threads exclude each other and are ordered; values are copied
// in by one thread and read in another, hence `H: Send`, and may be read through a shared consumer, hence `H: Sync`.
unsafe impl<H: Send + Sync> Sync for Ring<H> {}

impl<H: Copy + Default> Ring<H> {
    /// Creates an empty ring of these sizes.
    ///
    /// # Panics
    ///
    /// If the layout exceeds [`MAX_DEPTH`] or [`MAX_SGES`].
    pub(super) fn new(layout: Layout) -> Arc<Self> {
        assert!(layout.limit <= MAX_DEPTH, "a queue of {} requests; at most {MAX_DEPTH} are possible", layout.limit);
        assert!(layout.max_sge <= MAX_SGES, "{} entries a request; at most {MAX_SGES} are possible", layout.max_sge);
        let slots = layout.limit.max(1).next_power_of_two() as usize;
        let start = layout.start;
        Arc::new(Self {
            slots: cells(slots),
            sges: cells(slots * layout.max_sge as usize),
            inline: cells(slots * layout.max_inline as usize),
            witnesses: (0..slots).map(|_| Witness::new()).collect(),
            layout,
            has_consumer: AtomicBool::new(false),
            producer: CachePadded(Producer {
                lock: ProducerLock::new(),
                tail: AtomicU64::new(start),
                released_seen: AtomicU64::new(start),
            }),
            published: CachePadded(AtomicU64::new(start)),
            retired: CachePadded(AtomicU64::new(start)),
            released: CachePadded(AtomicU64::new(start)),
        })
    }

    /// Returns the consuming end; `None` if it was already taken.
    pub(super) fn consumer(self: &Arc<Self>) -> Option<RingConsumer<H>> {
        if self.has_consumer.swap(true, Relaxed) {
            return None;
        }
        Some(RingConsumer { retired: self.layout.start, ring: Arc::clone(self) })
    }

    /// The sizes that the ring was created with.
    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Begins a batch, waiting for other threads' batches to end. A batch that this thread has open stays open.
    pub(super) fn begin(&self) {
        self.producer.0.lock.acquire();
    }

    /// Fails unless this thread has a batch open.
    #[inline]
    pub(super) fn check_begun(&self) -> Result<(), QueueError> {
        if self.producer.0.lock.is_held() { Ok(()) } else { Err(QueueError::NotBegun) }
    }

    /// Copies a request into the batch; the slices of `inline` are concatenated.
    ///
    /// # Panics
    ///
    /// If there are more entries or inline bytes than the layout has room for.
    #[inline]
    pub(super) fn push(&self, header: H, sges: &[Sge], inline: &[&[u8]]) -> Result<(), QueueError> {
        self.push_segments(header, sges, inline.iter().copied())
    }

    /// As [`Ring::push`], with the inline bytes from an iterator.
    #[inline]
    pub(super) fn push_segments<'a>(
        &self,
        header: H,
        sges: &[Sge],
        inline: impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), QueueError> {
        self.check_begun()?;
        let producer = &self.producer.0;
        let tail = producer.tail.load(Relaxed);
        let limit = u64::from(self.layout.limit);
        if tail - producer.released_seen.load(Relaxed) >= limit {
            // Acquire: the consumer's reads of the slots that are now free happened before they are written.
            let released = self.released.0.load(Acquire);
            producer.released_seen.store(released, Relaxed);
            if tail - released >= limit {
                return Err(QueueError::Full { limit: self.layout.limit });
            }
        }
        self.write(self.slot_of(tail), header, sges, inline);
        producer.tail.store(tail + 1, Relaxed);
        Ok(())
    }

    /// Ends the batch; returns how many requests were published.
    #[inline]
    pub(super) fn end(&self, end: BatchEnd) -> Result<u32, QueueError> {
        self.check_begun()?;
        let producer = &self.producer.0;
        let tail = producer.tail.load(Relaxed);
        let published = self.published.0.load(Relaxed);
        let count = match end {
            BatchEnd::Publish => {
                // Release: publishes the slots' contents.
                self.published.0.store(tail, Release);
                (tail - published) as u32
            }
            BatchEnd::Rollback => {
                producer.tail.store(published, Relaxed);
                0
            }
        };
        producer.lock.release();
        Ok(count)
    }

    /// Frees the slots of requests before number `up_to`, as far as the consumer has retired them. A number that
    /// is already released has no effect.
    pub(super) fn release(&self, up_to: u32) {
        // Relaxed: the compare-exchange validates the value, and nothing is concluded from it alone.
        let mut released = self.released.0.load(Relaxed);
        loop {
            // Acquire: the consumer's reads of retired slots happened before the release below. A caller that learned
            // of a retirement from a completion sees at least that one here; an older value, even one behind
            // `released`, only releases less.
            let retired = self.retired.0.load(Acquire);
            let wanted = up_to.wrapping_sub(released as u32) as i32;
            let step = u64::try_from(wanted).unwrap_or(0).min(retired.saturating_sub(released));
            if step == 0 {
                return;
            }
            match self.released.0.compare_exchange(released, released + step, Release, Relaxed) {
                Ok(_) => return,
                Err(current) => released = current,
            }
        }
    }

    /// Frees the slots of all requests that the consumer has retired.
    pub(super) fn release_retired(&self) {
        self.release(self.retired.0.load(Relaxed) as u32);
    }

    /// Number of published requests whose slots are not free yet.
    pub(super) fn occupied(&self) -> u32 {
        // `published` is loaded after an acquire load of `released`, so it is not less, and the difference is not
        // negative.
        let released = self.released.0.load(Acquire);
        (self.published.0.load(Acquire) - released) as u32
    }

    /// Number of published requests that the consumer has not retired.
    pub(super) fn outstanding(&self) -> u32 {
        let retired = self.retired.0.load(Acquire);
        (self.published.0.load(Acquire) - retired) as u32
    }

    #[inline]
    fn slot_of(&self, number: u64) -> usize {
        number as usize & (self.slots.len() - 1)
    }

    /// Writes a slot. Only the holder of the producer lock may call it, and only with a free slot.
    #[inline]
    fn write<'a>(&self, slot: usize, header: H, sges: &[Sge], inline: impl Iterator<Item = &'a [u8]>) {
        self.witnesses[slot].write();
        let mut inline_length = 0;
        for segment in inline {
            let room = &part(&self.inline, slot, self.layout.max_inline)[inline_length..][..segment.len()];
            // SAFETY: `room` has exactly as many bytes as `segment`; its cells may be written through a shared
            // reference. The slot is in [published, tail] and free, so no other thread accesses it. `segment` does not
            // overlap it: no reference to a slot outside [retired, published) exists.
            unsafe { std::ptr::copy_nonoverlapping(segment.as_ptr(), room.as_ptr() as *mut u8, segment.len()) };
            inline_length += segment.len();
        }
        let room = &part(&self.sges, slot, self.layout.max_sge)[..sges.len()];
        // SAFETY: as above; the room is as long as `sges`, and `UnsafeCell<Sge>` is laid out like `Sge`.
        unsafe { std::ptr::copy_nonoverlapping(sges.as_ptr(), room.as_ptr() as *mut Sge, sges.len()) };
        let fixed = Slot { header, sge_count: sges.len() as u32, inline_length: inline_length as u32 };
        // SAFETY: the pointer is the cell's own, and no other thread accesses the slot, as above.
        unsafe { self.slots[slot].get().write(fixed) };
    }
}

/// The only consuming end of a ring.
pub(super) struct RingConsumer<H> {
    ring: Arc<Ring<H>>,
    /// The ring's `retired`, which only this end changes.
    retired: u64,
}

impl<H: Copy + Default> RingConsumer<H> {
    /// Number after the last published request.
    #[inline]
    pub(super) fn published(&self) -> u32 {
        self.ring.published.0.load(Acquire) as u32
    }

    /// Number of the first request that is not retired.
    #[inline]
    pub(super) fn retired(&self) -> u32 {
        self.retired as u32
    }

    /// As [`RingConsumer::retired`], without wrapping.
    pub(super) fn retired_in_all(&self) -> u64 {
        self.retired
    }

    /// Number of requests published and not retired.
    #[inline]
    pub(super) fn available(&self) -> u32 {
        (self.ring.published.0.load(Acquire) - self.retired) as u32
    }

    /// The header of request `index`.
    #[inline]
    pub(super) fn header(&self, index: u32) -> &H {
        &self.fixed(self.locate(index)).header
    }

    /// The scatter-gather entries of request `index`.
    #[inline]
    pub(super) fn sges(&self, index: u32) -> &[Sge] {
        self.sges_at(self.locate(index))
    }

    /// Passes the oldest request's number, header and entries to `take`, then retires the request and frees its slot;
    /// `None` if there is none. It frees the slot without checking `released`, because other threads never free more
    /// than is retired.
    #[inline]
    pub(super) fn take_oldest<R>(&mut self, take: impl FnOnce(u32, &H, &[Sge]) -> R) -> Option<R> {
        if self.available() == 0 {
            return None;
        }
        let slot = self.ring.slot_of(self.retired);
        let taken = take(self.retired as u32, &self.fixed(slot).header, self.sges_at(slot));
        self.retired += 1;
        // Both are release stores: the reads of the slot happened before.
        self.ring.retired.0.store(self.retired, Release);
        self.ring.released.0.store(self.retired, Release);
        Some(taken)
    }

    /// The entries of a slot in `[retired, published)`.
    #[inline]
    fn sges_at(&self, slot: usize) -> &[Sge] {
        let count = self.fixed(slot).sge_count as usize;
        let used = &part(&self.ring.sges, slot, self.ring.layout.max_sge)[..count];
        // SAFETY: the slot is in [retired, published): the producer does not write it before it is retired, which needs
        // `&mut self`, and the reference borrows `self`. The entries were initialized at creation, and their cells are
        // laid out like `Sge`.
        unsafe { std::slice::from_raw_parts(used.as_ptr() as *const Sge, used.len()) }
    }

    /// The inline bytes of request `index`.
    #[inline]
    pub(super) fn inline_data(&self, index: u32) -> &[u8] {
        let slot = self.locate(index);
        let length = self.fixed(slot).inline_length as usize;
        let used = &part(&self.ring.inline, slot, self.ring.layout.max_inline)[..length];
        // SAFETY: as for the scatter-gather entries.
        unsafe { std::slice::from_raw_parts(used.as_ptr() as *const u8, used.len()) }
    }

    /// Finishes the requests before number `up_to`: they can no longer be read, and their slots may be released.
    ///
    /// # Panics
    ///
    /// If `up_to` is not in `[retired, published]`.
    #[inline]
    pub(super) fn retire(&mut self, up_to: u32) {
        let count = up_to.wrapping_sub(self.retired as u32);
        let available = self.available();
        assert!(count <= available, "retire({up_to}): {available} requests from {} are available", self.retired as u32);
        self.retired += u64::from(count);
        // Release: the reads of the slots happened before.
        self.ring.retired.0.store(self.retired, Release);
    }

    /// Frees the slots of all retired requests.
    #[inline]
    pub(super) fn release_retired(&self) {
        self.ring.release(self.retired as u32);
    }

    /// Retires and releases everything published; returns the number of the next request.
    pub(super) fn reset(&mut self) -> u32 {
        self.retire(self.published());
        self.release_retired();
        self.retired as u32
    }

    /// The slot of request `index`.
    #[inline]
    fn locate(&self, index: u32) -> usize {
        let offset = index.wrapping_sub(self.retired as u32);
        let available = self.available();
        assert!(offset < available, "request {index}: {available} requests from {} are available", self.retired as u32);
        self.ring.slot_of(self.retired + u64::from(offset))
    }

    /// The fixed part of a slot in `[retired, published)`.
    #[inline]
    fn fixed(&self, slot: usize) -> &Slot<H> {
        self.ring.witnesses[slot].read();
        // SAFETY: the slot was written before it was published, which was seen by an acquire load, and is not written
        // before it is retired, which needs `&mut self`, while the reference borrows `self`.
        unsafe { &*self.ring.slots[slot].get() }
    }
}

/// Returns `count` default values in cells.
fn cells<T: Copy + Default>(count: usize) -> Box<[UnsafeCell<T>]> {
    (0..count).map(|_| UnsafeCell::new(T::default())).collect()
}

/// The part of an array that belongs to `slot`, with `each` elements per slot.
#[inline]
fn part<T>(array: &[UnsafeCell<T>], slot: usize, each: u32) -> &[UnsafeCell<T>] {
    let each = each as usize;
    &array[slot * each..][..each]
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn ring(limit: u32, start: u64) -> (Arc<Ring<u64>>, RingConsumer<u64>) {
        let ring = Ring::new(Layout { limit, max_sge: 2, max_inline: 8, start });
        let consumer = ring.consumer().unwrap();
        (ring, consumer)
    }

    fn post(ring: &Ring<u64>, value: u64) -> Result<(), QueueError> {
        ring.begin();
        let result = ring.push(value, &[], &[]);
        ring.end(BatchEnd::Publish).unwrap();
        result
    }

    #[test]
    fn release_is_clamped_to_retired_slots() {
        let (ring, mut consumer) = ring(2, 0);
        post(&ring, 1).unwrap();
        post(&ring, 2).unwrap();
        for up_to in [1, 2, 77, i32::MAX as u32] {
            ring.release(up_to);
            assert_eq!(post(&ring, 3), Err(QueueError::Full { limit: 2 }));
        }
        assert_eq!((*consumer.header(0), *consumer.header(1)), (1, 2));
        consumer.retire(1);
        ring.release(2);
        assert_eq!(ring.occupied(), 1);
        post(&ring, 3).unwrap();
        assert_eq!(post(&ring, 4), Err(QueueError::Full { limit: 2 }));
        assert_eq!((*consumer.header(1), *consumer.header(2)), (2, 3));
    }

    #[test]
    fn stale_release_does_nothing() {
        let (ring, mut consumer) = ring(4, u64::from(u32::MAX) - 1);
        (0..4).for_each(|value| post(&ring, value).unwrap());
        consumer.retire(0);
        ring.release(1);
        assert_eq!((ring.occupied(), ring.outstanding()), (2, 2));
        consumer.retire(1);
        for up_to in [u32::MAX, 0, 1 << 31] {
            ring.release(up_to);
            assert_eq!(ring.occupied(), 2);
        }
        ring.release_retired();
        assert_eq!((ring.occupied(), ring.outstanding()), (1, 1));
    }

    #[test]
    fn slots_do_not_run_into_each_other() {
        let (ring, consumer) = ring(2, 0);
        let sge = |addr| Sge { addr, length: 1, ..Sge::default() };
        ring.begin();
        ring.push(1, &[sge(1), sge(2)], &[b"abc", b"", b"defgh"]).unwrap();
        ring.push(2, &[sge(3)], &[b"xyz"]).unwrap();
        ring.end(BatchEnd::Publish).unwrap();
        assert_eq!(consumer.sges(0), [sge(1), sge(2)]);
        assert_eq!(consumer.sges(1), [sge(3)]);
        assert_eq!(consumer.inline_data(0), b"abcdefgh");
        assert_eq!(consumer.inline_data(1), b"xyz");
    }

    #[test]
    #[should_panic(expected = "request 1: 1 requests from 0 are available")]
    fn reading_an_unpublished_slot_panics() {
        let (ring, consumer) = ring(2, 0);
        post(&ring, 1).unwrap();
        consumer.header(1);
    }

    #[test]
    #[should_panic(expected = "request 0: 0 requests from 1 are available")]
    fn reading_a_retired_slot_panics() {
        let (ring, mut consumer) = ring(2, 0);
        post(&ring, 1).unwrap();
        consumer.retire(1);
        consumer.header(0);
    }

    #[test]
    #[should_panic(expected = "retire(2)")]
    fn retiring_an_unpublished_slot_panics() {
        let (ring, mut consumer) = ring(2, 0);
        post(&ring, 1).unwrap();
        consumer.retire(2);
    }

    #[test]
    #[should_panic(expected = "range end index 3")]
    fn more_entries_than_room_panic() {
        let (ring, _consumer) = ring(2, 0);
        ring.begin();
        let _ = ring.push(0, &[Sge::default(); 3], &[]);
    }

    #[test]
    #[should_panic(expected = "at most 255 are possible")]
    fn too_many_entries_a_request_panic_at_creation() {
        Ring::<u64>::new(Layout { limit: 1, max_sge: 256, max_inline: 0, start: 0 });
    }

    #[test]
    fn consumer_is_available_once() {
        let (ring, consumer) = ring(1, 0);
        drop(consumer);
        assert!(ring.consumer().is_none());
    }
}
