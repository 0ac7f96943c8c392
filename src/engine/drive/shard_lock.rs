//! The shard's lock: the thread that holds it drives the shard.
//!
//! One atomic word is free, held, or held and rung. There are three kinds of callers:
//!
//! - A *poster* has new work. It publishes the work first and then calls [`ShardLock::ring`]: it drives if the word was
//!   free, and otherwise rings the holder. It never waits.
//! - A *poller* looks for completions. It calls [`ShardLock::try_drive`]: if another thread drives, the poller only
//!   takes what that thread delivers. It does not ring: two pollers would keep each other busy forever.
//! - A *control verb* or the shard's thread needs the value itself. It calls [`ShardLock::drive`] and waits for the
//!   lock, which pollers leave alone while a thread waits.
//!
//! A release fails while the word is rung; then the holder makes another pass. Their number is bounded: a holder that
//! is rung too often releases anyway, and the outcome reports that another pass is needed ([`DriveOutcome::HandOver`]).
//!
//! The models at the end check with every interleaving that no published work is missed.

#[cfg(loom)]
use loom::{
    sync::atomic::{AtomicU32, Ordering},
    thread::yield_now,
};
#[cfg(not(loom))]
use std::{
    sync::atomic::{AtomicU32, Ordering},
    thread::yield_now,
};

use crate::sys::{Guard, Guarded};

/// Attempts of a waiting thread before it yields its processor.
#[cfg(not(loom))]
const SPINS: u32 = 64;
#[cfg(loom)]
const SPINS: u32 = 0;

/// A pass of the holder over the value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pass {
    /// The holder just took the lock.
    First,
    /// Another thread rang meanwhile.
    Again,
}

/// Outcome of an attempt to drive.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DriveOutcome {
    /// This thread drove, and saw everything published before the release.
    Drove,
    /// Another thread holds the lock. If it was rung, that thread makes another pass.
    Held,
    /// This thread drove as long as it may. Another pass is needed, which the caller must arrange.
    HandOver,
}

/// A value that is driven by the thread that holds it.
pub(super) struct ShardLock<T> {
    guarded: Guarded<T>,
    /// Number of threads that wait for the lock; pollers leave it to them.
    waiting: AtomicU32,
}

impl<T> ShardLock<T> {
    pub(super) fn new(value: T) -> Self {
        Self { guarded: Guarded::new(value), waiting: AtomicU32::new(0) }
    }

    /// For posters: drives, or rings the holder.
    #[inline]
    pub(super) fn ring(&self, more_passes: usize, work: impl FnMut(&mut T, Pass)) -> DriveOutcome {
        match self.guarded.acquire_or_ring() {
            Some(guard) => drive_guarded(guard, more_passes, work),
            None => DriveOutcome::Held,
        }
    }

    /// For pollers: drives unless another thread does or waits to.
    #[inline]
    pub(super) fn try_drive(&self, more_passes: usize, work: impl FnMut(&mut T, Pass)) -> DriveOutcome {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            return DriveOutcome::Held;
        }
        match self.guarded.try_acquire() {
            Some(guard) => drive_guarded(guard, more_passes, work),
            None => DriveOutcome::Held,
        }
    }

    /// Returns whether a thread drives or waits to.
    pub(super) fn is_taken(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0 || self.guarded.is_held()
    }

    /// For control verbs and the shard's thread: waits for the lock and drives. The wait is bounded, because each
    /// holder's time is. Never returns [`DriveOutcome::Held`].
    pub(super) fn drive(&self, more_passes: usize, work: impl FnMut(&mut T, Pass)) -> DriveOutcome {
        drive_guarded(self.wait(), more_passes, work)
    }

    fn wait(&self) -> Guard<'_, T> {
        if let Some(guard) = self.guarded.try_acquire() {
            return guard;
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let mut spins = 0;
        let guard = loop {
            if let Some(guard) = self.guarded.try_acquire() {
                break guard;
            }
            if spins < SPINS {
                spins += 1;
                std::hint::spin_loop();
            } else {
                yield_now();
            }
        };
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        guard
    }
}

#[inline]
fn drive_guarded<T>(mut guard: Guard<'_, T>, more_passes: usize, mut work: impl FnMut(&mut T, Pass)) -> DriveOutcome {
    guard.with(|value| work(value, Pass::First));
    for _ in 0..more_passes {
        match guard.release() {
            Ok(()) => return DriveOutcome::Drove,
            Err(rung) => guard = rung,
        }
        guard.with(|value| work(value, Pass::Again));
    }
    if guard.abandon() { DriveOutcome::HandOver } else { DriveOutcome::Drove }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn free_lock_is_driven_once() {
        let lock = ShardLock::new(0);
        assert_eq!(
            lock.ring(4, |value, pass| *value += if pass == Pass::First { 1 } else { 100 }),
            DriveOutcome::Drove
        );
        assert_eq!(lock.try_drive(4, |value, _| assert_eq!(*value, 1)), DriveOutcome::Drove);
    }

    #[test]
    fn ringing_causes_another_pass() {
        let lock = ShardLock::new(Vec::new());
        let outcome = lock.drive(4, |passes, pass| {
            passes.push(pass);
            if passes.len() < 3 {
                assert_eq!(lock.ring(4, |_, _| unreachable!()), DriveOutcome::Held);
                assert_eq!(lock.try_drive(4, |_, _| unreachable!()), DriveOutcome::Held);
            }
        });
        assert_eq!(outcome, DriveOutcome::Drove);
        let _ = lock.drive(0, |passes, _| assert_eq!(*passes, [Pass::First, Pass::Again, Pass::Again]));
    }

    #[test]
    fn holder_that_is_rung_too_often_hands_over() {
        let lock = ShardLock::new(0);
        let outcome = lock.ring(3, |count, _| {
            *count += 1;
            assert_eq!(lock.ring(3, |_, _| unreachable!()), DriveOutcome::Held);
        });
        assert_eq!(outcome, DriveOutcome::HandOver);
        let _ = lock.drive(0, |count, _| assert_eq!(*count, 4));
    }

    #[test]
    fn panic_frees_the_lock() {
        let lock = Arc::new(ShardLock::new(0));
        let shared = Arc::clone(&lock);
        let panicked = std::thread::spawn(move || shared.drive(4, |_, _| panic!("on purpose"))).join();
        assert!(panicked.is_err());
        assert_eq!(lock.try_drive(4, |value, _| *value += 1), DriveOutcome::Drove);
    }

    #[test]
    fn poller_lets_a_waiting_thread_drive() {
        let lock = Arc::new(ShardLock::new(0u64));
        let (done, shared) = (Arc::new(AtomicBool::new(false)), Arc::clone(&lock));
        let (stop, polls) = (Arc::clone(&done), 1_000_000_000u64);
        let poller = std::thread::spawn(move || {
            (0..polls).find(|_| {
                let _ = shared.try_drive(4, |value, _| *value += 1);
                stop.load(Ordering::Relaxed)
            })
        });
        for _ in 0..100 {
            assert_eq!(lock.drive(4, |value, _| *value += 1), DriveOutcome::Drove);
        }
        done.store(true, Ordering::Relaxed);
        assert!(poller.join().unwrap().is_some());
    }
}

/// Run with `RUSTFLAGS="--cfg loom" cargo test --release --lib engine::`.
#[cfg(all(test, loom))]
mod loom_models {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;

    use super::*;

    /// Work that posters publish, and how often each was seen.
    struct Model {
        announced: [AtomicBool; 2],
        lock: ShardLock<[u32; 2]>,
    }

    impl Model {
        fn new() -> Arc<Self> {
            let announced = [AtomicBool::new(false), AtomicBool::new(false)];
            Arc::new(Self { announced, lock: ShardLock::new([0; 2]) })
        }

        fn take_published(&self, seen: &mut [u32; 2]) {
            for (announced, seen) in self.announced.iter().zip(seen) {
                // Relaxed on purpose: the lock's word alone must order a publication before the pass.
                if announced.load(Ordering::Relaxed) {
                    announced.store(false, Ordering::Relaxed);
                    *seen += 1;
                }
            }
        }

        fn post(&self, poster: usize, more_passes: usize) -> DriveOutcome {
            self.announced[poster].store(true, Ordering::Relaxed);
            self.lock.ring(more_passes, |seen, _| self.take_published(seen))
        }

        fn assert_all_seen(&self) {
            let _ = self.lock.drive(0, |seen, _| assert_eq!(*seen, [1, 1]));
        }
    }

    #[test]
    fn no_doorbell_of_two_posters_is_lost() {
        loom::model(|| {
            let model = Model::new();
            let other = Arc::clone(&model);
            let poster = loom::thread::spawn(move || other.post(1, 8));
            assert_ne!(model.post(0, 8), DriveOutcome::HandOver);
            assert_ne!(poster.join().unwrap(), DriveOutcome::HandOver);
            model.assert_all_seen();
        });
    }

    #[test]
    fn no_doorbell_is_lost_beside_a_poller() {
        // Three threads have too many interleavings to visit all of them.
        let mut bounded = loom::model::Builder::new();
        bounded.preemption_bound = Some(3);
        bounded.check(|| {
            let model = Model::new();
            let (poster, poller) = (Arc::clone(&model), Arc::clone(&model));
            let poster = loom::thread::spawn(move || poster.post(1, 8));
            let poller = loom::thread::spawn(move || poller.lock.try_drive(8, |seen, _| poller.take_published(seen)));
            assert_ne!(model.post(0, 8), DriveOutcome::HandOver);
            let (posted, polled) = (poster.join().unwrap(), poller.join().unwrap());
            assert!(posted != DriveOutcome::HandOver && polled != DriveOutcome::HandOver);
            model.assert_all_seen();
        });
    }

    #[test]
    fn no_doorbell_is_lost_after_a_hand_over() {
        loom::model(|| {
            let model = Model::new();
            let other = Arc::clone(&model);
            let pass_if_handed_over = |model: &Model, outcome| {
                if outcome == DriveOutcome::HandOver {
                    let _ = model.lock.drive(8, |seen, _| model.take_published(seen));
                }
            };
            let poster = loom::thread::spawn(move || {
                let outcome = other.post(1, 0);
                pass_if_handed_over(&other, outcome);
            });
            let outcome = model.post(0, 0);
            pass_if_handed_over(&model, outcome);
            poster.join().unwrap();
            model.assert_all_seen();
        });
    }

    #[test]
    fn no_doorbell_is_lost_beside_a_waiting_thread() {
        loom::model(|| {
            let model = Model::new();
            let other = Arc::clone(&model);
            let poster = loom::thread::spawn(move || other.post(1, 8));
            model.announced[0].store(true, Ordering::Relaxed);
            assert_ne!(model.lock.drive(8, |seen, _| model.take_published(seen)), DriveOutcome::Held);
            assert_ne!(poster.join().unwrap(), DriveOutcome::HandOver);
            model.assert_all_seen();
        });
    }
}
