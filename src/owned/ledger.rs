//! Ledgers of the memory in flight, and of the completions that return it.
//!
//! The rules are here, in safe code, for any kind of memory; [`super::in_flight`] applies them to registered memory. A
//! completion returns memory only if it comes from the work queue that the memory was posted to, and names the slot
//! that holds the memory. Both are checked against the records of this tier itself: values that other users of a
//! completion queue choose are not trusted. A completion that matches nothing returns nothing.
#![forbid(unsafe_code)]
#![cfg_attr(not(feature = "sim"), allow(unreachable_pub, reason = "fuzzing drives the ledgers alone"))]

use std::collections::VecDeque;

use crate::types::CompletionSource;

/// Memory in flight on a queue whose requests finish in posting order.
///
/// Requests are numbered from 0 for the life of the queue, even across RESET, and the device sees the number as
/// `wr_id`.
pub struct OrderedLedger<T> {
    source: CompletionSource,
    entries: VecDeque<T>,
    limit: usize,
    /// Number of the oldest request.
    first: u64,
}

impl<T> OrderedLedger<T> {
    /// Creates a ledger for at most `limit` requests of the work queue `source`. Nothing in it allocates later.
    pub fn new(source: CompletionSource, limit: u32) -> Self {
        Self { source, entries: VecDeque::with_capacity(limit as usize), limit: limit as usize, first: 0 }
    }

    /// Returns the `wr_id` of the next request.
    pub fn next_wr_id(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// Returns whether another request may be posted.
    pub fn has_room(&self) -> bool {
        self.entries.len() < self.limit
    }

    /// Returns the maximum number of requests in flight.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Returns the number of requests in flight.
    pub fn in_flight(&self) -> usize {
        self.entries.len()
    }

    /// Enters the request numbered [`OrderedLedger::next_wr_id`], before the device gets it.
    pub fn enter(&mut self, memory: T) {
        self.entries.push_back(memory);
    }

    /// Takes out the newest request, which the device did not get.
    pub fn withdraw(&mut self) -> Option<T> {
        self.entries.pop_back()
    }

    /// Takes out the oldest request that a completion finishes, and returns whether the completion is that request's
    /// own. Repeated calls until `None` also return the requests before the completed one, in order.
    ///
    /// `retired` is the device's count, modulo 2^32, of requests that it does not access any more. It never includes
    /// requests after the completed one: a completion that claims this finishes nothing.
    pub fn finish(&mut self, source: CompletionSource, wr_id: u64, retired: u32) -> Option<(T, bool)> {
        if source != self.source || source == CompletionSource::NONE {
            return None;
        }
        // Requests that RESET returned have numbers below the first.
        let completed = wr_id.checked_sub(self.first).filter(|&ahead| ahead < self.entries.len() as u64)?;
        let finished = u64::from(retired.wrapping_sub(self.first as u32));
        if !(1..=completed + 1).contains(&finished) {
            return None;
        }
        Some((self.take_oldest()?, completed == 0))
    }

    /// Takes out the oldest request, after the device has forgotten all of them.
    pub fn take_oldest(&mut self) -> Option<T> {
        let memory = self.entries.pop_front()?;
        self.first += 1;
        Some(memory)
    }
}

/// Memory in flight on a shared queue, whose requests finish in any order: each has a slot of its own.
pub struct UnorderedLedger<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    /// Maximum number of requests in flight; there may be more slots after the queue was made smaller.
    limit: usize,
}

struct Slot<T> {
    /// Counts the slot's uses, modulo 2^32. In the upper half of the `wr_id`, so that a completion of an earlier use
    /// does not match.
    uses: u32,
    memory: Option<T>,
}

impl<T> UnorderedLedger<T> {
    /// Creates a ledger for at most `limit` requests. Nothing in it allocates later, except
    /// [`UnorderedLedger::resize`].
    pub fn new(limit: u32) -> Self {
        let mut ledger = Self { slots: Vec::new(), free: Vec::new(), limit: 0 };
        ledger.resize(limit);
        ledger
    }

    /// Changes the maximum number of requests; those in flight stay.
    pub fn resize(&mut self, limit: u32) {
        self.limit = limit as usize;
        let before = self.slots.len();
        if before < self.limit {
            self.slots.resize_with(self.limit, || Slot { uses: 0, memory: None });
            // Room for all, so that freeing a slot never allocates.
            self.free.reserve_exact(self.limit - self.free.len());
            self.free.extend((before as u32..limit).rev());
        }
    }

    /// Returns the number of requests in flight.
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns the maximum number of requests in flight.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Returns the `wr_id` of the next request; `None` if there is no room.
    pub fn next_wr_id(&self) -> Option<u64> {
        let &slot = self.free.last().filter(|_| self.in_flight() < self.limit)?;
        Some(u64::from(self.slots[slot as usize].uses) << 32 | u64::from(slot))
    }

    /// Enters the request numbered [`UnorderedLedger::next_wr_id`], before the device gets it.
    ///
    /// # Panics
    /// If there is no slot for it.
    pub fn enter(&mut self, memory: T) {
        let slot = self.free.pop().expect("next_wr_id() gave a number, so a slot is free");
        self.slots[slot as usize].memory = Some(memory);
    }

    /// Takes out the request with this `wr_id`: its completion has come, or the device did not get it or gave it up.
    pub fn take(&mut self, wr_id: u64) -> Option<T> {
        let slot = self.slots.get_mut(wr_id as u32 as usize)?;
        if slot.uses != (wr_id >> 32) as u32 {
            return None;
        }
        let memory = slot.memory.take()?;
        slot.uses = slot.uses.wrapping_add(1);
        self.free.push(wr_id as u32);
        Some(memory)
    }

    /// Takes out all requests, in no order, after the device has forgotten them.
    pub fn take_all(&mut self) -> Vec<T> {
        let wr_ids = |(slot, Slot { uses, .. }): (usize, &Slot<T>)| u64::from(*uses) << 32 | slot as u64;
        let wr_ids: Vec<u64> = self.slots.iter().enumerate().map(wr_ids).collect();
        wr_ids.into_iter().filter_map(|wr_id| self.take(wr_id)).collect()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const QUEUE: CompletionSource = CompletionSource::new(7);

    fn filled(count: u64) -> OrderedLedger<u64> {
        let mut ledger = OrderedLedger::new(QUEUE, 4);
        (0..count).for_each(|memory| ledger.enter(memory));
        ledger
    }

    #[test]
    fn a_completion_finishes_its_request_and_those_before() {
        let mut ledger = filled(3);
        assert_eq!(ledger.finish(QUEUE, 1, 2), Some((0, false)));
        assert_eq!(ledger.finish(QUEUE, 1, 2), Some((1, true)));
        assert_eq!(ledger.finish(QUEUE, 1, 2), None);
        assert_eq!((ledger.in_flight(), ledger.next_wr_id()), (1, 3));
    }

    #[test]
    fn a_completion_of_another_queue_finishes_nothing() {
        let mut ledger = filled(3);
        for source in [CompletionSource::new(8), CompletionSource::NONE] {
            assert_eq!(ledger.finish(source, 0, 1), None);
        }
        let mut unnamed = OrderedLedger::new(CompletionSource::NONE, 4);
        unnamed.enter(0);
        assert_eq!(unnamed.finish(CompletionSource::NONE, 0, 1), None);
        assert_eq!((ledger.in_flight(), unnamed.in_flight()), (3, 1));
    }

    #[test]
    fn a_completion_that_names_no_slot_in_flight_finishes_nothing() {
        let mut ledger = filled(2);
        // Never posted, a number never assigned, retired beyond the completed request, nothing retired.
        for (wr_id, retired) in [(2, 1), (1 << 32, 1), (u64::MAX, 1), (0, 2), (1, 3), (0, 0), (0, u32::MAX)] {
            assert_eq!(ledger.finish(QUEUE, wr_id, retired), None, "wr_id {wr_id}, retired {retired}");
        }
        // RESET returned both.
        assert_eq!((ledger.take_oldest(), ledger.take_oldest(), ledger.take_oldest()), (Some(0), Some(1), None));
        ledger.enter(2);
        assert_eq!((ledger.finish(QUEUE, 0, 1), ledger.finish(QUEUE, 1, 2)), (None, None));
        assert_eq!(ledger.finish(QUEUE, 2, 3), Some((2, true)));
    }

    #[test]
    fn numbers_outlive_the_devices_32_bits() {
        let mut ledger = filled(0);
        ledger.first = u64::from(u32::MAX);
        ledger.enter(0);
        ledger.enter(1);
        // Numbers that the device, which counts modulo 2^32, used 2^32 requests before.
        assert_eq!((ledger.finish(QUEUE, 0, 1), ledger.finish(QUEUE, u64::from(u32::MAX), 1)), (None, None));
        assert_eq!(ledger.finish(QUEUE, 1 << 32, 1), Some((0, false)));
        assert_eq!(ledger.finish(QUEUE, 1 << 32, 1), Some((1, true)));
    }

    #[test]
    fn slots_are_left_once_and_not_by_an_earlier_completion() {
        let mut ledger = UnorderedLedger::new(2);
        let first = ledger.next_wr_id().unwrap();
        ledger.enter('a');
        let second = ledger.next_wr_id().unwrap();
        ledger.enter('b');
        assert_eq!((ledger.next_wr_id(), ledger.in_flight()), (None, 2));
        assert_eq!((ledger.take(first), ledger.take(first)), (Some('a'), None));
        let again = ledger.next_wr_id().unwrap();
        assert_eq!(again as u32, first as u32, "the slot is used again");
        ledger.enter('c');
        assert_eq!((ledger.take(first), ledger.take(u64::MAX)), (None, None));
        assert_eq!((ledger.take(again), ledger.take(second)), (Some('c'), Some('b')));
    }

    #[test]
    fn a_smaller_queue_takes_no_more_until_it_has_room() {
        let mut ledger = UnorderedLedger::new(3);
        (0..3).for_each(|memory| ledger.enter(memory));
        ledger.resize(1);
        assert_eq!(ledger.next_wr_id(), None);
        let mut left = ledger.take_all();
        left.sort_unstable();
        assert_eq!((left, ledger.in_flight()), (vec![0, 1, 2], 0));
        assert!(ledger.next_wr_id().is_some());
    }
}
