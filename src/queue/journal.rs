//! Events for subscribers of `tracing` that arise while a shard is held, on their way to the shard's thread.
//!
//! A subscriber is code of the application: it may be slow, and it may use this library. So it must not run while the
//! shard is held. The code that notices an event adds an entry, and the shard's thread emits it while it holds nothing.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::types::{Qpn, Time};

/// Emits one event; the argument is the name of the device.
type Entry = Box<dyn FnOnce(&str) + Send>;

/// The events of a shard that have not been emitted: bounded, oldest first.
///
/// The default journal keeps nothing. That of a device is made with [`Journal::new`].
#[derive(Default)]
pub struct Journal {
    device: String,
    capacity: usize,
    state: Mutex<State>,
    /// Whether the state has entries, or lost ones to report.
    has_entries: AtomicBool,
    /// The last events of kinds of which each queue pair has few, by queue pair and kind.
    limits: Mutex<BTreeMap<(Qpn, &'static str), Limit>>,
    /// Wakes the thread that emits entries.
    wake: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// Shortest time between two events of a queue pair of such a kind.
const BETWEEN_EVENTS: Duration = Duration::from_secs(1);
/// Most limits that are kept. If there are more, that of the earliest event is dropped with its count.
const MOST_LIMITS: usize = 1_024;

/// Admits one event in [`BETWEEN_EVENTS`], and counts the others.
#[derive(Clone, Copy, Default)]
struct Limit {
    next_at: Time,
    suppressed: u64,
}

#[derive(Default)]
struct State {
    entries: VecDeque<Entry>,
    /// Number of entries that found no room since the last one that did.
    lost: u64,
}

impl Journal {
    /// Creates a journal for the events of a device, at most `capacity` at a time.
    pub fn new(device: &str, capacity: usize) -> Self {
        Self { device: device.to_owned(), capacity, ..Self::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the name of the device.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Sets what wakes the thread that calls [`Journal::emit`]. It is called with the shard held. Only the first call
    /// has an effect.
    pub fn wake_with(&self, wake: impl Fn() + Send + Sync + 'static) {
        let _ = self.wake.set(Box::new(wake));
    }

    /// Adds an entry. If there is no room, it is lost and counted. Use `note_later!`, which adds only what a
    /// subscriber wants: an entry allocates.
    #[cold]
    pub fn add(&self, entry: impl FnOnce(&str) + Send + 'static) {
        if self.capacity == 0 {
            return;
        }
        let mut state = self.lock();
        if state.entries.len() < self.capacity {
            state.entries.push_back(Box::new(entry));
        } else {
            state.lost += 1;
        }
        let is_first = !self.has_entries.swap(true, Ordering::AcqRel);
        drop(state);
        if is_first && let Some(wake) = self.wake.get() {
            wake();
        }
    }

    /// Returns whether an event of a kind of which each queue pair has one a second may be added; if so, how many were
    /// suppressed since the last one.
    #[cold]
    pub fn admit(&self, now: Time, qpn: Qpn, kind: &'static str) -> Option<u64> {
        let mut limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        if limits.len() >= MOST_LIMITS && !limits.contains_key(&(qpn, kind)) {
            let earliest = limits.iter().min_by_key(|(_, limit)| limit.next_at).map(|(key, _)| *key);
            earliest.and_then(|key| limits.remove(&key));
        }
        let limit = limits.entry((qpn, kind)).or_default();
        if now < limit.next_at {
            limit.suppressed += 1;
            return None;
        }
        limit.next_at = now + BETWEEN_EVENTS;
        Some(std::mem::take(&mut limit.suppressed))
    }

    /// Forgets the limits of a queue pair that is destroyed.
    #[cold]
    pub fn forget(&self, qpn: Qpn) {
        let mut limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        limits.retain(|(owner, _), _| *owner != qpn);
    }

    /// Whether [`Journal::emit`] has something to do.
    #[inline]
    pub fn has_entries(&self) -> bool {
        self.has_entries.load(Ordering::Acquire)
    }

    /// Emits up to `most` entries. The caller holds no lock: subscribers may use this library. Returns whether more may
    /// be left.
    pub fn emit(&self, most: usize) -> bool {
        for _ in 0..most {
            let Some(entry) = self.take() else { return false };
            // A panic of a subscriber must not end the thread, which serves the peers.
            let _ = catch_unwind(AssertUnwindSafe(|| entry(&self.device)));
        }
        self.has_entries()
    }

    fn take(&self) -> Option<Entry> {
        let mut state = self.lock();
        if let Some(entry) = state.entries.pop_front() {
            return Some(entry);
        }
        self.has_entries.store(false, Ordering::Release);
        match std::mem::take(&mut state.lost) {
            0 => None,
            lost => Some(Box::new(move |device| {
                tracing::warn!(target: "rdma_verbs::device", device, lost, "events were lost: the subscriber is slow");
            })),
        }
    }
}

/// Adds an event to a [`Journal`] if a subscriber wants it: `note_later!(journal, target: "…", LEVEL, fields, "text")`.
/// The fields must be owned, and copied before: they are moved into the entry. Each event has the field `device`.
macro_rules! note_later {
    ($journal:expr, target: $target:literal, $level:ident, $($event:tt)+) => {
        if tracing::enabled!(target: $target, tracing::Level::$level) {
            $journal.add(move |device: &str| {
                tracing::event!(target: $target, tracing::Level::$level, device, $($event)+);
            });
        }
    };
}
pub(crate) use note_later;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn entries_are_emitted_in_order_with_the_device_and_lost_ones_are_counted() {
        let journal = Journal::new("soft0", 2);
        let (sender, receiver) = mpsc::channel();
        for number in 0..5 {
            let sender = sender.clone();
            journal.add(move |device| sender.send((device.to_owned(), number)).unwrap());
        }
        assert_eq!(journal.lock().lost, 3);
        assert!(journal.emit(1) && !journal.emit(8) && !journal.has_entries());
        assert_eq!(journal.lock().lost, 0);
        let emitted: Vec<_> = receiver.try_iter().collect();
        assert_eq!(emitted, [("soft0".to_owned(), 0), ("soft0".to_owned(), 1)]);
    }

    #[test]
    fn the_thread_is_woken_once_for_the_entries_until_it_emits_them() {
        let (journal, calls) = (Journal::new("soft0", 8), Arc::new(AtomicU32::new(0)));
        let counted = Arc::clone(&calls);
        journal.wake_with(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        (0..3).for_each(|_| journal.add(|_| {}));
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        assert!(!journal.emit(8));
        journal.add(|_| {});
        assert_eq!(calls.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_subscriber_may_panic_and_may_add_entries() {
        let journal = Arc::new(Journal::new("soft0", 8));
        let nested = Arc::clone(&journal);
        journal.add(|_| panic!("on purpose"));
        journal.add(move |_| nested.add(|_| {}));
        assert!(journal.emit(2), "the nested entry is left");
        assert!(!journal.emit(1) || !journal.emit(1));
    }

    #[test]
    fn one_event_of_a_kind_in_a_second_is_admitted_and_the_others_are_counted() {
        let (journal, qpn, second) = (Journal::default(), Qpn::new(7), Time::ZERO + BETWEEN_EVENTS);
        assert_eq!(journal.admit(Time::ZERO, qpn, "loss"), Some(0));
        (0..1_000).for_each(|_| assert_eq!(journal.admit(Time::from_nanos(999_999_999), qpn, "loss"), None));
        assert_eq!(journal.admit(Time::ZERO, qpn, "other"), Some(0));
        assert_eq!(journal.admit(Time::ZERO, Qpn::new(8), "loss"), Some(0));
        assert_eq!(journal.admit(second, qpn, "loss"), Some(1_000));
        assert_eq!(journal.admit(second, qpn, "loss"), None);
        journal.forget(qpn);
        assert_eq!(journal.admit(second, qpn, "loss"), Some(0));
    }

    #[test]
    fn limits_are_bounded() {
        let journal = Journal::default();
        for number in 0..3 * MOST_LIMITS as u32 {
            journal.admit(Time::from_nanos(number.into()), Qpn::new(number), "loss");
        }
        assert_eq!(journal.limits.lock().unwrap().len(), MOST_LIMITS);
        assert_eq!(journal.admit(Time::from_nanos(9_999), Qpn::new(3 * MOST_LIMITS as u32 - 1), "loss"), None);
    }

    #[test]
    fn a_default_journal_keeps_nothing() {
        let journal = Journal::default();
        journal.add(|_| unreachable!("it is not kept"));
        assert!(!journal.has_entries() && !journal.emit(8));
    }
}
