//! The shard's lock: the thread that holds it drives the shard.
//!
//! One atomic word is free, held, or held and rung. There are three kinds of callers:
//!
//! - A *poster* has new work. It publishes the work first and then calls [`ShardLock::ring`]: it drives if the word was
//!   free, and otherwise rings the holder. It never waits.
//! - A *poller* looks for completions. It calls [`ShardLock::try_drive`]: if another thread drives, the poller only
//!   takes what that thread delivers. It does not ring: two pollers would keep each other busy forever.
//! - A *control verb*, an event waiter or the shard's thread needs the value itself. It calls [`ShardLock::drive`] and
//!   waits for the lock.
//!
//! A release fails while the word is rung; then the holder makes another pass. Their number is bounded: a holder that
//! is rung too often releases anyway, and the outcome reports that another pass is needed ([`DriveOutcome::HandOver`]).
//!
//! Threads that wait stand in a line. A holder that ends a pass while there are any hands the lock to the first one,
//! which it is reserved for until that thread runs: neither the holder nor another thread takes it before. So a thread
//! waits for one pass of the holder and one of each thread before it, however soon the others come back. It makes the
//! pass that rings of the holder require.
//!
//! The models at the end check with every interleaving that no published work is missed and no thread waits forever.

use std::sync::PoisonError;

#[cfg(loom)]
use loom::{
    sync::atomic::{AtomicU32, Ordering},
    sync::{Condvar, Mutex, MutexGuard},
    thread::yield_now,
};
#[cfg(not(loom))]
use std::{
    sync::atomic::{AtomicU32, Ordering},
    sync::{Condvar, Mutex, MutexGuard},
    thread::yield_now,
};

use crate::sys::{Guard, Guarded, Released};

/// Looks of a waiting thread before it yields its processor, and yields before it sleeps.
#[cfg(not(loom))]
const LOOKS: [u32; 2] = [64, 4];
#[cfg(loom)]
const LOOKS: [u32; 2] = [0, 0];

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
    line: Mutex<Line>,
    /// Number of threads of the line that were called so far, modulo 2³²: the last one may take the lock. Changes with
    /// the line.
    called: AtomicU32,
    /// The next thread was called.
    call: Condvar,
}

/// The threads that wait for the lock.
#[derive(Default)]
struct Line {
    /// Number of threads that have entered so far, modulo 2³².
    entered: u32,
    sleeping: u32,
}

impl<T> ShardLock<T> {
    pub(super) fn new(value: T) -> Self {
        Self {
            guarded: Guarded::new(value),
            line: Mutex::new(Line::default()),
            called: AtomicU32::new(0),
            call: Condvar::new(),
        }
    }

    /// For posters: drives, or rings the holder.
    #[inline]
    pub(super) fn ring(&self, more_passes: usize, work: impl FnMut(&mut T, Pass)) -> DriveOutcome {
        match self.guarded.acquire_or_ring() {
            Some(guard) => self.drive_held(guard, more_passes, work),
            None => DriveOutcome::Held,
        }
    }

    /// For pollers: drives unless another thread does or waits to.
    #[inline]
    pub(super) fn try_drive(&self, more_passes: usize, work: impl FnMut(&mut T, Pass)) -> DriveOutcome {
        match self.guarded.try_acquire() {
            Some(guard) => self.drive_held(guard, more_passes, work),
            None => DriveOutcome::Held,
        }
    }

    /// Returns whether a thread drives or waits to.
    pub(super) fn is_taken(&self) -> bool {
        self.guarded.is_held()
    }

    /// For control verbs, event waiters and the shard's thread: waits for the lock and drives. The wait is bounded,
    /// because each holder's pass is. Never returns [`DriveOutcome::Held`].
    pub(super) fn drive(&self, more_passes: usize, work: impl FnMut(&mut T, Pass)) -> DriveOutcome {
        self.drive_held(self.wait(), more_passes, work)
    }

    #[inline]
    fn wait(&self) -> Guard<'_, T> {
        loop {
            // A turn in the line always succeeds.
            if let Some(guard) = self.guarded.try_acquire().or_else(|| self.wait_in_line()) {
                return guard;
            }
        }
    }

    #[cold]
    fn wait_in_line(&self) -> Option<Guard<'_, T>> {
        let mut line = self.line();
        // Under the line's lock: a holder that finds the word awaited finds this thread in the line.
        if let Some(guard) = self.guarded.acquire_or_await() {
            return Some(guard);
        }
        line.entered = line.entered.wrapping_add(1);
        let turn = line.entered;
        drop(line);
        self.await_turn(turn);
        self.guarded.take_reserved()
    }

    fn await_turn(&self, turn: u32) {
        let is_called = || self.called.load(Ordering::Acquire) == turn;
        for (looks, pause) in LOOKS.into_iter().zip([std::hint::spin_loop as fn(), yield_now]) {
            for _ in 0..looks {
                if is_called() {
                    return;
                }
                pause();
            }
        }
        let mut line = self.line();
        line.sleeping += 1;
        while !is_called() {
            line = self.call.wait(line).unwrap_or_else(PoisonError::into_inner);
        }
        line.sleeping -= 1;
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands the lock to the first thread of the line, which is not empty.
    #[cold]
    fn call_next(&self, guard: Guard<'_, T>) {
        let line = self.line();
        let called = self.called.load(Ordering::Relaxed).wrapping_add(1);
        guard.hand_over(line.entered != called);
        self.called.store(called, Ordering::Release);
        if line.sleeping > 0 {
            self.call.notify_all();
        }
    }

    #[inline]
    fn drive_held(&self, guard: Guard<'_, T>, more_passes: usize, mut work: impl FnMut(&mut T, Pass)) -> DriveOutcome {
        let mut held = Held { lock: self, guard: Some(guard) };
        held.with(|value| work(value, Pass::First));
        for _ in 0..more_passes {
            if held.is_released() {
                return DriveOutcome::Drove;
            }
            held.with(|value| work(value, Pass::Again));
        }
        if held.abandon() { DriveOutcome::HandOver } else { DriveOutcome::Drove }
    }
}

/// The lock while a thread drives. A panic of a pass leaves it to the next thread.
struct Held<'a, T> {
    lock: &'a ShardLock<T>,
    guard: Option<Guard<'a, T>>,
}

impl<T> Held<'_, T> {
    #[inline]
    fn with(&mut self, work: impl FnOnce(&mut T)) {
        if let Some(guard) = &mut self.guard {
            guard.with(work);
        }
    }

    /// Frees the lock or hands it over. Returns false if it was rung: then this thread still holds it.
    #[inline]
    fn is_released(&mut self) -> bool {
        match self.guard.take().map(Guard::release) {
            None | Some(Released::Freed) => true,
            Some(Released::Rung(guard)) => {
                self.guard = Some(guard);
                false
            }
            Some(Released::Awaited(guard)) => {
                self.lock.call_next(guard);
                true
            }
        }
    }

    /// Frees the lock or hands it over in any case. Returns whether another pass is needed that no thread makes.
    fn abandon(&mut self) -> bool {
        match self.guard.take().map(Guard::abandon) {
            None => false,
            Some(Ok(was_rung)) => was_rung,
            Some(Err(guard)) => {
                self.lock.call_next(guard);
                false
            }
        }
    }
}

impl<T> Drop for Held<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.guard.is_some() {
            self.abandon();
        }
    }
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

    impl<T> ShardLock<T> {
        fn is_awaited(&self) -> bool {
            self.line().entered != self.called.load(Ordering::Relaxed)
        }

        /// Waits in a pass until another thread is in the line.
        fn until_awaited(&self) {
            while !self.is_awaited() {
                yield_now();
            }
        }
    }

    #[test]
    fn waiting_thread_drives_after_one_pass_of_a_holder_that_comes_back_at_once() {
        const TURNS: u64 = 200;
        let lock = Arc::new(ShardLock::new(0));
        let busy = Arc::clone(&lock);
        let holder = std::thread::spawn(move || {
            for _ in 0..TURNS {
                let outcome = busy.drive(4, |passes, _| {
                    busy.until_awaited();
                    *passes += 1;
                    // The waiting thread makes the pass for this.
                    assert_eq!(busy.ring(4, |_, _| unreachable!()), DriveOutcome::Held);
                });
                assert_eq!(outcome, DriveOutcome::Drove);
                assert_eq!(busy.try_drive(4, |_, _| unreachable!("it is reserved")), DriveOutcome::Held);
            }
        });
        while !lock.is_taken() {
            yield_now();
        }
        for turn in 1..=TURNS {
            let outcome = lock.drive(4, |passes, pass| {
                assert_eq!((*passes, pass), (turn, Pass::First));
                // Otherwise the holder of the first turn would not come back.
                if turn < TURNS {
                    lock.until_awaited();
                }
            });
            assert_eq!(outcome, DriveOutcome::Drove);
        }
        holder.join().unwrap();
    }

    #[test]
    fn waiting_threads_drive_in_their_order() {
        let lock = Arc::new(ShardLock::new(Vec::new()));
        let mut threads = Vec::new();
        let outcome = lock.drive(0, |_, _| {
            for number in 0..8 {
                let shared = Arc::clone(&lock);
                threads.push(std::thread::spawn(move || shared.drive(0, |order, _| order.push(number))));
                while lock.line().entered != number + 1 {
                    yield_now();
                }
            }
        });
        assert_eq!(outcome, DriveOutcome::Drove);
        threads.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), DriveOutcome::Drove));
        let _ = lock.drive(0, |order, _| assert_eq!(*order, [0, 1, 2, 3, 4, 5, 6, 7]));
    }

    #[test]
    fn panic_leaves_the_lock_to_a_waiting_thread() {
        let lock = Arc::new(ShardLock::new(0));
        let shared = Arc::clone(&lock);
        let panicked = std::thread::spawn(move || {
            shared.drive(4, |_, _| {
                shared.until_awaited();
                panic!("on purpose");
            })
        });
        while !lock.is_taken() {
            yield_now();
        }
        assert_eq!(lock.drive(4, |value, _| *value += 1), DriveOutcome::Drove);
        assert!(panicked.join().is_err());
        assert_eq!(lock.try_drive(4, |value, _| assert_eq!(*value, 1)), DriveOutcome::Drove);
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

    /// A thread that no other wakes would be a deadlock, which the model checker reports.
    #[test]
    fn no_doorbell_and_no_thread_is_lost_between_waiting_threads() {
        let mut bounded = loom::model::Builder::new();
        bounded.preemption_bound = Some(3);
        bounded.check(|| {
            let model = Model::new();
            let (poster, waiter) = (Arc::clone(&model), Arc::clone(&model));
            let poster = loom::thread::spawn(move || poster.post(1, 8));
            let waiter = loom::thread::spawn(move || waiter.lock.drive(8, |seen, _| waiter.take_published(seen)));
            model.announced[0].store(true, Ordering::Relaxed);
            assert_eq!(model.lock.drive(8, |seen, _| model.take_published(seen)), DriveOutcome::Drove);
            assert_eq!(waiter.join().unwrap(), DriveOutcome::Drove);
            assert_ne!(poster.join().unwrap(), DriveOutcome::HandOver);
            model.assert_all_seen();
        });
    }

    #[test]
    fn no_doorbell_is_lost_by_a_holder_that_may_make_no_further_pass() {
        loom::model(|| {
            let model = Model::new();
            let other = Arc::clone(&model);
            let waiter = loom::thread::spawn(move || {
                other.announced[1].store(true, Ordering::Relaxed);
                other.lock.drive(0, |seen, _| other.take_published(seen))
            });
            let outcome = model.post(0, 0);
            let waited = waiter.join().unwrap();
            if outcome == DriveOutcome::HandOver || waited == DriveOutcome::HandOver {
                let _ = model.lock.drive(8, |seen, _| model.take_published(seen));
            }
            model.assert_all_seen();
        });
    }
}
