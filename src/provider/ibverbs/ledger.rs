//! The work queues' books: which number of the program's belongs to which request of the adapter's, and which requests
//! are finished.
//!
//! Each work queue has a number among those of the device, each request its index in the queue, counted from 0 at the
//! queue's creation, also over RESET. Both together are what the adapter gets as the request's number, so a completion
//! leads back to the queue, whether it succeeded (then it says what it was) or not (then it does not).

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::memory::Window;
use super::sys;
use crate::types::{CompletionSource, Qpn};

/// Beside an index in `pending`.
const PENDING: u64 = 1 << 32;

/// What a request of the send queue needs until it is finished.
pub(super) enum Held {
    /// The adapter may look at the address handle when it sends.
    AddressHandle(#[expect(dead_code, reason = "held, not looked at")] Arc<sys::AddressHandle>),
    /// The window has its old key still, and leads where it led, if the bind fails or is not posted after all.
    Bind { window: Arc<Window>, old_rkey: u32, old_lkey: u32 },
}

impl Held {
    /// What it was needed for did not happen.
    fn undo(self) {
        if let Self::Bind { window, old_rkey, old_lkey } = self {
            window.restore(old_rkey, old_lkey);
        }
    }
}

/// A work queue's book.
pub(super) enum Ledger {
    /// Of requests that finish in the order in which they were posted.
    Ordered(Ordered),
    /// Of receives that any queue pair may take.
    Shared(Shared),
}

impl Ledger {
    pub(super) fn number(&self) -> u32 {
        match self {
            Self::Ordered(ledger) => ledger.number,
            Self::Shared(ledger) => ledger.number,
        }
    }

    /// What completions of this queue bear as their source; those of a shared queue also say which queue pair took the
    /// receive. No other queue ever has this number.
    #[inline]
    pub(super) fn source(&self, qpn: Qpn) -> CompletionSource {
        CompletionSource::new(u64::from(self.number()) << 32 | u64::from(qpn.value()))
    }
}

/// Books by their number.
pub(super) type Ledgers = HashMap<u32, Arc<Ledger>, BuildHasherDefault<CountedHasher>>;

/// For numbers that were counted out here, which nobody can choose to collide: the lookup is on the way of every
/// completion.
#[derive(Default)]
pub(super) struct CountedHasher(u64);

impl Hasher for CountedHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    /// The map takes the place from the low bits and a tag from the high ones; the product has the number in both.
    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0.rotate_left(8) ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The book of a send or receive queue.
pub(super) struct Ordered {
    number: u32,
    pub(super) qpn: Qpn,
    /// Receives begin with a route header.
    pub(super) datagrams: bool,
    /// The program's numbers, each at its index modulo the length, which is a power of two.
    wr_ids: Box<[AtomicU64]>,
    /// At the same places, the index and [`PENDING`] while the request's completion has not come. An adapter that
    /// tells of one twice is not believed the second time.
    pending: Box<[AtomicU64]>,
    /// Outstanding requests, at most.
    limit: u32,
    /// Index of the next request to be posted.
    posted: AtomicU32,
    /// All requests with an index below are finished.
    retired: AtomicU32,
    /// Completions of requests with an index below are forgotten: RESET came after them.
    floor: AtomicU32,
    /// At the same places. Empty if no request of the queue holds anything.
    held: Mutex<Box<[Option<Held>]>>,
    /// Whether any request ever held something. Until then nobody looks, which most connections never have to.
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
            floor: AtomicU32::new(0),
            held: Mutex::new(held),
            holds: AtomicBool::new(false),
        }
    }

    fn place(&self, index: u32) -> usize {
        index as usize & (self.wr_ids.len() - 1)
    }

    fn held(&self) -> MutexGuard<'_, Box<[Option<Held>]>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Most requests that may be outstanding.
    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    /// Requests that still fit, if so many are staged already.
    #[inline]
    pub(super) fn has_room(&self, staged: usize) -> bool {
        let (posted, retired) = (self.posted.load(Ordering::Relaxed), self.retired.load(Ordering::Acquire));
        // A poller may be ahead of the poster that has not counted its requests yet.
        let outstanding = (posted.wrapping_sub(retired) as i32).max(0) as usize;
        outstanding + staged < self.limit as usize
    }

    /// Enters the request that is the `staged`-th of a batch; its number for the adapter. Only the thread that holds
    /// the queue calls this.
    #[inline]
    pub(super) fn enter(&self, staged: usize, wr_id: u64, held: Option<Held>) -> u64 {
        let index = self.posted.load(Ordering::Relaxed).wrapping_add(staged as u32);
        if held.is_some() {
            self.holds.store(true, Ordering::Relaxed);
        }
        if self.holds.load(Ordering::Relaxed)
            && let Some(slot) = self.held().get_mut(self.place(index))
        {
            *slot = held;
        }
        self.wr_ids[self.place(index)].store(wr_id, Ordering::Release);
        self.pending[self.place(index)].store(PENDING | u64::from(index), Ordering::Release);
        u64::from(self.number) << 32 | u64::from(index)
    }

    /// So many requests of the batch were handed over.
    #[inline]
    pub(super) fn note_posted(&self, count: usize) {
        self.posted.fetch_add(count as u32, Ordering::Release);
    }

    /// So many requests of the batch were entered and are not handed over.
    pub(super) fn withdraw(&self, count: usize) {
        if !self.holds.load(Ordering::Relaxed) {
            return;
        }
        let posted = self.posted.load(Ordering::Relaxed);
        for staged in (0..count as u32).rev() {
            let held = self.held().get_mut(self.place(posted.wrapping_add(staged))).and_then(Option::take);
            held.into_iter().for_each(Held::undo);
        }
    }

    /// The request with this index has completed: the program's number for it, and the index below which all are
    /// finished. `None` if it is to be forgotten. Only one thread at a time calls this: the completion queue, of which
    /// there is one for all requests of this queue, sees to that.
    #[inline]
    pub(super) fn complete(&self, index: u32, succeeded: bool) -> Option<(u64, u32)> {
        if (index.wrapping_sub(self.floor.load(Ordering::Acquire)) as i32) < 0 {
            return None;
        }
        // While a request waits for its completion, its place is not entered anew.
        let pending = &self.pending[self.place(index)];
        if pending.load(Ordering::Acquire) != PENDING | u64::from(index) {
            return None;
        }
        pending.store(0, Ordering::Release);
        let wr_id = self.wr_ids[self.place(index)].load(Ordering::Acquire);
        // It was set before the request was entered, if this one holds something.
        if self.holds.load(Ordering::Relaxed)
            && let Some(held) = self.held().get_mut(self.place(index)).and_then(Option::take)
            && !succeeded
        {
            held.undo();
        }
        let retired = index.wrapping_add(1);
        let advance = |old: u32| ((retired.wrapping_sub(old) as i32) > 0).then_some(retired);
        let _ = self.retired.fetch_update(Ordering::AcqRel, Ordering::Relaxed, advance);
        Some((wr_id, retired))
    }

    /// RESET, or the end: what was posted is finished, and its completions are forgotten. What is entered for a batch
    /// that is open still is not.
    pub(super) fn reset(&self) {
        let posted = self.posted.load(Ordering::Acquire);
        self.floor.store(posted, Ordering::Release);
        let mut index = self.retired.swap(posted, Ordering::AcqRel);
        let holds = self.holds.load(Ordering::Relaxed);
        while holds && (posted.wrapping_sub(index) as i32) > 0 {
            if let Some(held) = self.held().get_mut(self.place(index)) {
                *held = None;
            }
            index = index.wrapping_add(1);
        }
    }
}

/// Receives in a shared queue, at most: more than any adapter has.
const MAX_SHARED: usize = 1 << 22;

/// The book of a shared receive queue.
pub(super) struct Shared {
    number: u32,
    places: Mutex<Places>,
    /// Queue pairs whose receives begin with a route header.
    datagrams: Mutex<HashSet<Qpn>>,
}

#[derive(Default)]
struct Places {
    /// The program's numbers; empty where nothing is posted.
    wr_ids: Vec<Option<u64>>,
    free: Vec<u32>,
}

impl Places {
    /// Frees a place. `None` if it is free: an adapter that tells of a receive twice is not believed the second time.
    fn take(&mut self, place: u32) -> Option<u64> {
        let wr_id = self.wr_ids.get_mut(place as usize)?.take()?;
        self.free.push(place);
        Some(wr_id)
    }
}

impl Shared {
    pub(super) fn new(number: u32) -> Self {
        Self { number, places: Mutex::default(), datagrams: Mutex::default() }
    }

    fn datagrams(&self) -> MutexGuard<'_, HashSet<Qpn>> {
        self.datagrams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether receives of this queue pair begin with a route header.
    pub(super) fn note_datagrams(&self, qpn: Qpn, takes: bool) {
        match takes {
            true => self.datagrams().insert(qpn),
            false => self.datagrams().remove(&qpn),
        };
    }

    pub(super) fn are_datagrams(&self, qpn: Qpn) -> bool {
        self.datagrams().contains(&qpn)
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a receive; its number for the adapter. `None` if there are too many of which nobody heard again.
    pub(super) fn enter(&self, wr_id: u64) -> Option<u64> {
        let mut places = self.places();
        let place = match places.free.pop() {
            Some(place) => place,
            None if places.wr_ids.len() == MAX_SHARED => return None,
            None => {
                places.wr_ids.push(None);
                (places.wr_ids.len() - 1) as u32
            }
        };
        places.wr_ids[place as usize] = Some(wr_id);
        Some(u64::from(self.number) << 32 | u64::from(place))
    }

    /// Receives that were entered, and of which nobody heard again.
    pub(super) fn outstanding(&self) -> usize {
        let places = self.places();
        places.wr_ids.len() - places.free.len()
    }

    /// The receive with this number for the adapter was not posted after all.
    pub(super) fn withdraw(&self, number: u64) {
        self.places().take(number as u32);
    }

    /// The receive has completed: the program's number for it.
    pub(super) fn complete(&self, place: u32) -> Option<u64> {
        self.places().take(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_lead_back_to_the_programs_numbers() {
        let ledger = Ordered::new(7, Qpn::new(1), 3, false);
        for (staged, wr_id) in [10, 20, 30].into_iter().enumerate() {
            assert!(ledger.has_room(staged));
            assert_eq!(ledger.enter(staged, wr_id, None), 7 << 32 | staged as u64);
        }
        assert!(!ledger.has_room(3));
        ledger.note_posted(3);
        assert_eq!(ledger.complete(1, true), Some((20, 2)));
        assert!(ledger.has_room(1) && !ledger.has_room(2));
        assert_eq!(ledger.enter(0, 40, None) as u32, 3);
        ledger.note_posted(1);
        assert_eq!(ledger.complete(3, false), Some((40, 4)));
        // A completion that was overtaken changes nothing.
        assert_eq!(ledger.complete(2, true), Some((30, 3)));
        assert!(ledger.has_room(2));
        // Told twice.
        assert_eq!((ledger.complete(1, true), ledger.complete(3, true)), (None, None));
    }

    #[test]
    fn reset_forgets_completions_and_goes_on_counting() {
        let ledger = Ordered::new(1, Qpn::new(1), 2, true);
        ledger.enter(0, 10, None);
        ledger.enter(1, 20, None);
        ledger.note_posted(2);
        ledger.reset();
        assert!(ledger.has_room(1));
        assert_eq!((ledger.complete(0, false), ledger.complete(1, false)), (None, None));
        assert_eq!(ledger.enter(0, 30, None) as u32, 2);
        ledger.note_posted(1);
        assert_eq!(ledger.complete(2, true), Some((30, 3)));
    }

    #[test]
    fn indices_wrap() {
        let ledger = Ordered::new(1, Qpn::new(1), 4, false);
        for start in [u32::MAX - 1, u32::MAX, 0] {
            ledger.posted.store(start, Ordering::Relaxed);
            ledger.retired.store(start, Ordering::Relaxed);
            ledger.floor.store(start.wrapping_sub(1), Ordering::Relaxed);
            let numbers: Vec<u32> = (0..4).map(|staged| ledger.enter(staged, staged as u64, None) as u32).collect();
            ledger.note_posted(4);
            assert!(!ledger.has_room(0));
            for (staged, number) in numbers.into_iter().enumerate() {
                assert_eq!(number, start.wrapping_add(staged as u32));
                assert_eq!(ledger.complete(number, true), Some((staged as u64, number.wrapping_add(1))));
            }
            assert!(ledger.has_room(3));
        }
    }

    #[test]
    fn places_of_a_shared_queue_are_used_again() {
        let ledger = Shared::new(3);
        let (first, second) = (ledger.enter(10).unwrap(), ledger.enter(20).unwrap());
        assert_eq!((first, second), (3 << 32, 3 << 32 | 1));
        assert_eq!(ledger.complete(1), Some(20));
        assert_eq!(ledger.enter(30), Some(second));
        ledger.withdraw(first);
        assert_eq!(ledger.enter(40), Some(first));
        assert_eq!((ledger.complete(0), ledger.complete(1), ledger.complete(2)), (Some(40), Some(30), None));
    }

    #[test]
    fn a_shared_receive_that_is_told_of_twice_frees_its_place_once() {
        let ledger = Shared::new(3);
        ledger.enter(10).unwrap();
        assert_eq!((ledger.complete(0), ledger.complete(0)), (Some(10), None));
        let places = [ledger.enter(20).unwrap(), ledger.enter(30).unwrap()];
        assert_ne!(places[0], places[1], "two receives in one place");
        assert_eq!(ledger.outstanding(), 2);
    }

    #[test]
    fn reset_keeps_what_an_open_batch_holds() {
        let ledger = Ordered::new(1, Qpn::new(1), 2, true);
        assert_eq!(ledger.enter(0, 10, None) as u32, 0);
        ledger.note_posted(1);
        ledger.enter(0, 20, None);
        ledger.reset();
        ledger.note_posted(1);
        assert_eq!((ledger.complete(0, true), ledger.complete(1, true)), (None, Some((20, 2))));
    }
}
