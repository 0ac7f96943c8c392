//! Doorbells: posting threads report queue pairs with new work to the shard.
//!
//! A queue pair is in the queue at most once, as its pending flag ensures. The flag is cleared *before* the queue
//! pair's queue is read, so work published after the read sets it again; and every access to the flag reads and writes
//! it, so work published by a thread that found the flag set is visible to the thread that clears it.

use std::sync::Arc;

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering};

use crate::types::Qpn;

/// A queue pair's doorbell.
pub(crate) struct Doorbell {
    qpn: Qpn,
    pending: AtomicBool,
}

impl Doorbell {
    pub(crate) fn new(qpn: Qpn) -> Arc<Self> {
        Arc::new(Self { qpn, pending: AtomicBool::new(false) })
    }

    /// Returns the QPN of the queue pair.
    pub(crate) fn qpn(&self) -> Qpn {
        self.qpn
    }
}

/// The doorbells of a shard that rang and were not handled yet.
pub(super) struct DoorbellQueue {
    rung: queue::Bounded<Arc<Doorbell>>,
}

impl DoorbellQueue {
    /// Creates a queue with room for `capacity` queue pairs.
    pub(super) fn new(capacity: usize) -> Self {
        Self { rung: queue::Bounded::new(capacity) }
    }

    /// Queues the doorbell, unless it is queued already. Returns false if there is no room: then the caller must handle
    /// the queue pair's work itself.
    #[inline]
    pub(super) fn ring(&self, doorbell: &Arc<Doorbell>) -> bool {
        if doorbell.pending.swap(true, Ordering::AcqRel) {
            return true;
        }
        let queued = self.rung.push(Arc::clone(doorbell));
        if !queued {
            doorbell.pending.swap(false, Ordering::AcqRel);
        }
        queued
    }

    /// Takes the next queue pair whose doorbell rang.
    #[inline]
    pub(super) fn pop(&self) -> Option<Qpn> {
        // Much cheaper than a pop from an empty queue. No doorbell is lost: a thread that queues one rings the shard's
        // lock afterwards.
        if self.rung.is_empty() {
            return None;
        }
        let doorbell = self.rung.pop()?;
        doorbell.pending.swap(false, Ordering::AcqRel);
        Some(doorbell.qpn)
    }
}

#[cfg(not(loom))]
mod queue {
    /// A bounded lock-free queue.
    pub(super) struct Bounded<T>(crossbeam_queue::ArrayQueue<T>);

    impl<T> Bounded<T> {
        pub(super) fn new(capacity: usize) -> Self {
            Self(crossbeam_queue::ArrayQueue::new(capacity.max(1)))
        }

        #[inline]
        pub(super) fn push(&self, value: T) -> bool {
            self.0.push(value).is_ok()
        }

        #[inline]
        pub(super) fn pop(&self) -> Option<T> {
            self.0.pop()
        }

        #[inline]
        pub(super) fn is_empty(&self) -> bool {
            self.0.is_empty()
        }
    }
}

/// Stand-in for the lock-free queue, which the model checker cannot inspect.
#[cfg(loom)]
mod queue {
    use std::collections::VecDeque;

    use loom::sync::Mutex;

    pub(super) struct Bounded<T> {
        values: Mutex<VecDeque<T>>,
        capacity: usize,
    }

    impl<T> Bounded<T> {
        pub(super) fn new(capacity: usize) -> Self {
            Self { values: Mutex::new(VecDeque::new()), capacity: capacity.max(1) }
        }

        pub(super) fn push(&self, value: T) -> bool {
            let mut values = self.values.lock().unwrap();
            let fits = values.len() < self.capacity;
            if fits {
                values.push_back(value);
            }
            fits
        }

        pub(super) fn pop(&self) -> Option<T> {
            self.values.lock().unwrap().pop_front()
        }

        pub(super) fn is_empty(&self) -> bool {
            self.values.lock().unwrap().is_empty()
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn queue_pair_is_queued_once() {
        let (queue, first, second) = (DoorbellQueue::new(2), Doorbell::new(Qpn::new(7)), Doorbell::new(Qpn::new(9)));
        assert!(queue.ring(&first) && queue.ring(&first) && queue.ring(&second));
        assert_eq!(queue.pop(), Some(Qpn::new(7)));
        assert!(queue.ring(&first));
        assert_eq!([queue.pop(), queue.pop(), queue.pop()], [Some(Qpn::new(9)), Some(Qpn::new(7)), None]);
    }

    #[test]
    fn full_queue_refuses_a_doorbell_which_can_ring_later() {
        let (queue, first, second) = (DoorbellQueue::new(1), Doorbell::new(Qpn::new(7)), Doorbell::new(Qpn::new(9)));
        assert!(queue.ring(&first) && !queue.ring(&second));
        assert_eq!(queue.pop(), Some(Qpn::new(7)));
        assert!(queue.ring(&second));
        assert_eq!(queue.pop(), Some(Qpn::new(9)));
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use loom::sync::Arc as LoomArc;
    use loom::sync::atomic::AtomicU32;

    use super::super::shard_lock::{DriveOutcome, ShardLock};
    use super::*;

    /// Two threads post to one queue pair: publish, ring the doorbell, ring the lock. The thread that handled the
    /// doorbell last must have read everything that was published.
    #[test]
    fn work_of_two_posters_to_one_queue_pair_is_seen() {
        loom::model(|| {
            let doorbell = Doorbell::new(Qpn::new(5));
            let shared = LoomArc::new((AtomicU32::new(0), DoorbellQueue::new(2), ShardLock::new(0u32), doorbell));
            let post = |shared: &(AtomicU32, DoorbellQueue, ShardLock<u32>, Arc<Doorbell>)| {
                let (published, queue, lock, doorbell) = shared;
                published.fetch_add(1, Ordering::Relaxed);
                assert!(queue.ring(doorbell));
                let outcome = lock.ring(8, |seen, _| {
                    while queue.pop().is_some() {
                        *seen = published.load(Ordering::Relaxed);
                    }
                });
                assert_ne!(outcome, DriveOutcome::HandOver);
            };
            let other = LoomArc::clone(&shared);
            let poster = loom::thread::spawn(move || post(&other));
            post(&shared);
            poster.join().unwrap();
            let _ = shared.2.drive(0, |seen, _| assert_eq!(*seen, 2));
        });
    }
}
