//! Trackers of the work queues: they map the adapter's requests to the program's `wr_id`s, and record which requests
//! are finished.
//!
//! Each work queue has a number that is unique in the device, each request its index in the queue, counted from 0 at
//! the queue's creation and on across RESET. The adapter gets both together as the request's `wr_id`, so a completion
//! identifies its queue and its request, also if it failed and does not report its opcode.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::memory::Window;
use super::sys;
use crate::types::{CompletionSource, Qpn};

/// Marks an index in `pending`.
const PENDING: u64 = 1 << 32;

/// An object that a send request needs until it is finished.
pub(super) enum Retained {
    /// The adapter may read the address handle when it sends.
    AddressHandle(#[expect(dead_code, reason = "held, not looked at")] Arc<sys::AddressHandle>),
    /// If the bind fails or is not posted, the window keeps its old key and its old binding.
    Bind { window: Arc<Window>, old_rkey: u32, old_lkey: u32 },
}

impl Retained {
    /// Undoes the preparation of a request that failed or was not posted.
    fn undo(self) {
        if let Self::Bind { window, old_rkey, old_lkey } = self {
            window.restore(old_rkey, old_lkey);
        }
    }
}

/// The tracker of a work queue.
pub(super) enum WrTracker {
    /// For a queue whose requests finish in the order in which they were posted.
    Ordered(Ordered),
    /// For a shared receive queue, whose receives any queue pair may take.
    Shared(Shared),
}

impl WrTracker {
    pub(super) fn number(&self) -> u32 {
        match self {
            Self::Ordered(tracker) => tracker.number,
            Self::Shared(tracker) => tracker.number,
        }
    }

    /// Returns the source that completions of this queue carry; that of a shared queue includes the queue pair that
    /// took the receive. No other queue ever has this number.
    #[inline]
    pub(super) fn source(&self, qpn: Qpn) -> CompletionSource {
        CompletionSource::new(u64::from(self.number()) << 32 | u64::from(qpn.value()))
    }
}

/// Trackers by number.
pub(super) type WrTrackers = HashMap<u32, Arc<WrTracker>, BuildHasherDefault<CountedHasher>>;

/// A hasher for numbers that this crate assigns, so keys cannot be chosen to collide. It is cheap, because each
/// completion needs a lookup.
#[derive(Default)]
pub(super) struct CountedHasher(u64);

impl Hasher for CountedHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    /// The map takes the bucket from the low bits and a tag from the high ones; the product has the number in both.
    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0.rotate_left(8) ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The tracker of a send or receive queue.
pub(super) struct Ordered {
    number: u32,
    pub(super) qpn: Qpn,
    /// Whether receives begin with a route header.
    pub(super) datagrams: bool,
    /// The program's `wr_id`s, each in the slot of its index modulo the length, which is a power of two.
    wr_ids: Box<[AtomicU64]>,
    /// In the same slots, the index and [`PENDING`] until the request completes or a RESET discards it. Other
    /// completions are dropped, such as a second one of the same request.
    pending: Box<[AtomicU64]>,
    /// Maximum number of outstanding requests.
    limit: u32,
    /// Index of the next request to be posted.
    posted: AtomicU32,
    /// All requests with a lower index are finished.
    retired: AtomicU32,
    /// Objects of requests, in the same slots. Empty if no request of the queue can hold any.
    held: Mutex<Box<[Option<Retained>]>>,
    /// Whether any request ever held an object. Until then `held` is not searched; most connections never set this.
    holds: AtomicBool,
}

impl Ordered {
    pub(super) fn new(number: u32, qpn: Qpn, limit: u32, holds: bool) -> Self {
        let length = limit.max(1).next_power_of_two() as usize;
        let held = if holds { (0..length).map(|_| None).collect() } else { Box::default() };
        Self {
            number,
            qpn,
            datagrams: false,
            wr_ids: (0..length).map(|_| AtomicU64::new(0)).collect(),
            pending: (0..length).map(|_| AtomicU64::new(0)).collect(),
            limit,
            posted: AtomicU32::new(0),
            retired: AtomicU32::new(0),
            held: Mutex::new(held),
            holds: AtomicBool::new(false),
        }
    }

    fn slot_of(&self, index: u32) -> usize {
        index as usize & (self.wr_ids.len() - 1)
    }

    fn held(&self) -> MutexGuard<'_, Box<[Option<Retained>]>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the maximum number of outstanding requests.
    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    /// Returns whether another request fits after `staged` staged ones.
    #[inline]
    pub(super) fn has_room(&self, staged: usize) -> bool {
        let (posted, retired) = (self.posted.load(Ordering::Relaxed), self.retired.load(Ordering::Acquire));
        // A poller may be ahead of a poster that has not counted its requests yet.
        let outstanding = (posted.wrapping_sub(retired) as i32).max(0) as usize;
        outstanding + staged < self.limit as usize
    }

    /// Enters a request that follows `staged` others of its batch, and returns its `wr_id` for the adapter. Only the
    /// thread that holds the queue calls this.
    #[inline]
    pub(super) fn enter(&self, staged: usize, wr_id: u64, held: Option<Retained>) -> u64 {
        let index = self.posted.load(Ordering::Relaxed).wrapping_add(staged as u32);
        if held.is_some() {
            self.holds.store(true, Ordering::Relaxed);
        }
        if self.holds.load(Ordering::Relaxed)
            && let Some(slot) = self.held().get_mut(self.slot_of(index))
        {
            *slot = held;
        }
        self.wr_ids[self.slot_of(index)].store(wr_id, Ordering::Release);
        self.pending[self.slot_of(index)].store(PENDING | u64::from(index), Ordering::Release);
        u64::from(self.number) << 32 | u64::from(index)
    }

    /// Notes that `count` requests of the batch were posted.
    #[inline]
    pub(super) fn note_posted(&self, count: usize) {
        self.posted.fetch_add(count as u32, Ordering::Release);
    }

    /// Withdraws `count` requests of the batch, which were entered and not posted.
    pub(super) fn withdraw(&self, count: usize) {
        if !self.holds.load(Ordering::Relaxed) {
            return;
        }
        let posted = self.posted.load(Ordering::Relaxed);
        for staged in (0..count as u32).rev() {
            let held = self.held().get_mut(self.slot_of(posted.wrapping_add(staged))).and_then(Option::take);
            held.into_iter().for_each(Retained::undo);
        }
    }

    /// Completes the request with this index; returns the program's `wr_id` and the index below which all requests are
    /// finished. `None` if the completion must be dropped. Only one thread at a time calls this or
    /// [`Ordered::reset`]: all requests of this queue complete on one completion queue, whose polls are serialized, and
    /// a reset pauses them.
    #[inline]
    pub(super) fn complete(&self, index: u32, succeeded: bool) -> Option<(u64, u32)> {
        // While a request waits for its completion, its slot is not reused.
        let slot = self.slot_of(index);
        if self.pending[slot].load(Ordering::Acquire) != PENDING | u64::from(index) {
            return None;
        }
        self.pending[slot].store(0, Ordering::Release);
        let wr_id = self.wr_ids[slot].load(Ordering::Acquire);
        // If this request holds an object, the flag was set before the request was entered in `pending`.
        if self.holds.load(Ordering::Relaxed)
            && let Some(held) = self.held().get_mut(slot).and_then(Option::take)
            && !succeeded
        {
            held.undo();
        }
        let retired = index.wrapping_add(1);
        if (retired.wrapping_sub(self.retired.load(Ordering::Relaxed)) as i32) > 0 {
            self.retired.store(retired, Ordering::Release);
        }
        Some((wr_id, retired))
    }

    /// Discards all posted requests, at RESET or destruction: they are finished, and their completions are dropped.
    /// Requests that were entered for an open batch stay. The caller pauses posting and polls.
    pub(super) fn reset(&self) {
        let posted = self.posted.load(Ordering::Acquire);
        let mut held = self.held();
        for (slot, pending) in self.pending.iter().enumerate() {
            let waiting = pending.load(Ordering::Acquire);
            let is_posted = waiting != 0 && (posted.wrapping_sub(waiting as u32) as i32) > 0;
            if is_posted {
                pending.store(0, Ordering::Release);
                if let Some(held) = held.get_mut(slot) {
                    *held = None;
                }
            }
        }
        self.retired.store(posted, Ordering::Release);
    }
}

/// Maximum number of receives in a shared queue: more than any adapter has.
const MAX_SHARED: usize = 1 << 22;

/// The tracker of a shared receive queue.
pub(super) struct Shared {
    number: u32,
    slots: Mutex<Slots>,
    /// Queue pairs whose receives begin with a route header.
    datagrams: Mutex<HashSet<Qpn>>,
}

#[derive(Default)]
struct Slots {
    /// The program's `wr_id`s; `None` in free slots.
    wr_ids: Vec<Option<u64>>,
    free: Vec<u32>,
}

impl Slots {
    /// Frees a slot. `None` if it is free already: a second completion of the same receive is ignored.
    fn take(&mut self, slot: u32) -> Option<u64> {
        let wr_id = self.wr_ids.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        Some(wr_id)
    }
}

impl Shared {
    pub(super) fn new(number: u32) -> Self {
        Self { number, slots: Mutex::default(), datagrams: Mutex::default() }
    }

    fn datagrams(&self) -> MutexGuard<'_, HashSet<Qpn>> {
        self.datagrams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes whether receives of this queue pair begin with a route header.
    pub(super) fn note_datagrams(&self, qpn: Qpn, takes: bool) {
        match takes {
            true => self.datagrams().insert(qpn),
            false => self.datagrams().remove(&qpn),
        };
    }

    pub(super) fn are_datagrams(&self, qpn: Qpn) -> bool {
        self.datagrams().contains(&qpn)
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a receive and returns its `wr_id` for the adapter. `None` if too many receives are outstanding.
    pub(super) fn enter(&self, wr_id: u64) -> Option<u64> {
        let mut slots = self.slots();
        let slot = match slots.free.pop() {
            Some(slot) => slot,
            None if slots.wr_ids.len() == MAX_SHARED => return None,
            None => {
                slots.wr_ids.push(None);
                (slots.wr_ids.len() - 1) as u32
            }
        };
        slots.wr_ids[slot as usize] = Some(wr_id);
        Some(u64::from(self.number) << 32 | u64::from(slot))
    }

    /// Returns the number of receives that were entered and have not completed. Receives that were lost with a
    /// destroyed queue pair count: libraries may keep their slots, too.
    pub(super) fn outstanding(&self) -> usize {
        let slots = self.slots();
        slots.wr_ids.len() - slots.free.len()
    }

    /// Withdraws the receive with this `wr_id` for the adapter, which was not posted.
    pub(super) fn withdraw(&self, number: u64) {
        self.slots().take(number as u32);
    }

    /// Completes a receive and returns the program's `wr_id`.
    pub(super) fn complete(&self, slot: u32) -> Option<u64> {
        self.slots().take(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_return_the_programs_wr_ids() {
        let tracker = Ordered::new(7, Qpn::new(1), 3, false);
        for (staged, wr_id) in [10, 20, 30].into_iter().enumerate() {
            assert!(tracker.has_room(staged));
            assert_eq!(tracker.enter(staged, wr_id, None), 7 << 32 | staged as u64);
        }
        assert!(!tracker.has_room(3));
        tracker.note_posted(3);
        assert_eq!(tracker.complete(1, true), Some((20, 2)));
        assert!(tracker.has_room(1) && !tracker.has_room(2));
        assert_eq!(tracker.enter(0, 40, None) as u32, 3);
        tracker.note_posted(1);
        assert_eq!(tracker.complete(3, false), Some((40, 4)));
        // A completion that was overtaken does not move `retired` back.
        assert_eq!(tracker.complete(2, true), Some((30, 3)));
        assert!(tracker.has_room(2));
        // Reported twice.
        assert_eq!((tracker.complete(1, true), tracker.complete(3, true)), (None, None));
    }

    #[test]
    fn reset_drops_completions_and_keeps_counting() {
        let tracker = Ordered::new(1, Qpn::new(1), 2, true);
        tracker.enter(0, 10, None);
        tracker.enter(1, 20, None);
        tracker.note_posted(2);
        tracker.reset();
        assert!(tracker.has_room(1));
        assert_eq!((tracker.complete(0, false), tracker.complete(1, false)), (None, None));
        assert_eq!(tracker.enter(0, 30, None) as u32, 2);
        tracker.note_posted(1);
        assert_eq!(tracker.complete(2, true), Some((30, 3)));
    }

    #[test]
    fn reset_discards_requests_that_a_later_completion_overtook() {
        let tracker = Ordered::new(1, Qpn::new(1), 4, false);
        for (staged, wr_id) in [10, 20].into_iter().enumerate() {
            tracker.enter(staged, wr_id, None);
        }
        tracker.note_posted(2);
        assert_eq!(tracker.complete(1, true), Some((20, 2)));
        tracker.reset();
        assert_eq!(tracker.complete(0, true), None);
    }

    #[test]
    fn indices_wrap() {
        let tracker = Ordered::new(1, Qpn::new(1), 4, false);
        for start in [(1 << 31) - 2, 1 << 31, u32::MAX - 1, u32::MAX, 0] {
            tracker.posted.store(start, Ordering::Relaxed);
            tracker.retired.store(start, Ordering::Relaxed);
            let numbers: Vec<u32> = (0..4).map(|staged| tracker.enter(staged, staged as u64, None) as u32).collect();
            tracker.note_posted(4);
            assert!(!tracker.has_room(0));
            for (staged, number) in numbers.into_iter().enumerate() {
                assert_eq!(number, start.wrapping_add(staged as u32));
                assert_eq!(tracker.complete(number, true), Some((staged as u64, number.wrapping_add(1))));
            }
            assert!(tracker.has_room(3));
        }
    }

    #[test]
    fn slots_of_a_shared_queue_are_reused() {
        let tracker = Shared::new(3);
        let (first, second) = (tracker.enter(10).unwrap(), tracker.enter(20).unwrap());
        assert_eq!((first, second), (3 << 32, 3 << 32 | 1));
        assert_eq!(tracker.complete(1), Some(20));
        assert_eq!(tracker.enter(30), Some(second));
        tracker.withdraw(first);
        assert_eq!(tracker.enter(40), Some(first));
        assert_eq!((tracker.complete(0), tracker.complete(1), tracker.complete(2)), (Some(40), Some(30), None));
    }

    #[test]
    fn a_second_completion_does_not_free_a_slot_again() {
        let tracker = Shared::new(3);
        tracker.enter(10).unwrap();
        assert_eq!((tracker.complete(0), tracker.complete(0)), (Some(10), None));
        let slots = [tracker.enter(20).unwrap(), tracker.enter(30).unwrap()];
        assert_ne!(slots[0], slots[1], "two receives in one slot");
        assert_eq!(tracker.outstanding(), 2);
    }

    #[test]
    fn reset_keeps_the_requests_of_an_open_batch() {
        let tracker = Ordered::new(1, Qpn::new(1), 2, true);
        assert_eq!(tracker.enter(0, 10, None) as u32, 0);
        tracker.note_posted(1);
        tracker.enter(0, 20, None);
        tracker.reset();
        tracker.note_posted(1);
        assert_eq!((tracker.complete(0, true), tracker.complete(1, true)), (None, Some((20, 2))));
    }
}
