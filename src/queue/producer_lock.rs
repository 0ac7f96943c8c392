//! The lock of a queue's producing end. A batch is begun and ended by separate calls, so there is no guard: the lock
//! stores its owner, and every call checks it.
#![forbid(unsafe_code)]

use std::cell::Cell;
use std::hint;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::sync::{AtomicU64, SPINS, thread_local, yield_now};

/// The owner of a free lock, which is no thread's token.
const FREE: u64 = 0;

// A plain number without a destructor, so that it can be read at any time, even while the thread exits.
#[cfg(not(loom))]
thread_local! {
    static TOKEN: Cell<u64> = const { Cell::new(FREE) };
}
#[cfg(loom)]
thread_local! {
    static TOKEN: Cell<u64> = Cell::new(FREE);
}

/// A lock that a thread holds across calls.
///
/// A thread that ends while it holds the lock leaves it locked forever. Tokens are never reused, so no later thread is
/// mistaken for the owner.
pub(crate) struct ProducerLock {
    owner: AtomicU64,
}

impl ProducerLock {
    pub(crate) fn new() -> Self {
        Self { owner: AtomicU64::new(FREE) }
    }

    /// Takes the lock, waiting until it is free. Returns `false`, at once, if this thread holds it already.
    pub(crate) fn acquire(&self) -> bool {
        let token = thread_token();
        let mut tries = 0;
        loop {
            match self.owner.compare_exchange(FREE, token, Acquire, Relaxed) {
                Ok(_) => return true,
                Err(owner) if owner == token => return false,
                Err(_) => {}
            }
            // A batch is short, unless its thread was preempted: then only yielding helps.
            while self.owner.load(Relaxed) != FREE && tries < SPINS {
                tries += 1;
                hint::spin_loop();
            }
            if tries >= SPINS {
                yield_now();
            }
        }
    }

    /// Whether this thread holds the lock.
    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        // Relaxed: only this thread ever stores this thread's token, so it reads its own store or another thread's.
        self.owner.load(Relaxed) == thread_token()
    }

    /// Releases the lock; `false` if this thread does not hold it.
    #[inline]
    pub(crate) fn release(&self) -> bool {
        let held = self.is_held();
        if held {
            self.owner.store(FREE, Release);
        }
        held
    }
}

/// Returns the token of this thread: never 0, and never that of another thread, not even of one that has ended.
#[inline]
pub(crate) fn thread_token() -> u64 {
    TOKEN.with(|own| match own.get() {
        FREE => {
            let fresh = next_token();
            own.set(fresh);
            fresh
        }
        token => token,
    })
}

#[cold]
fn next_token() -> u64 {
    // Always the standard library's: the numbers order nothing, and loom reinitializes its statics for each model.
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(FREE + 1);
    NEXT.fetch_add(1, Relaxed)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64 as Counter;
    use std::thread;

    use super::*;

    #[test]
    fn owner_is_checked() {
        let lock = Arc::new(ProducerLock::new());
        assert!(!lock.is_held());
        assert!(!lock.release());
        assert!(lock.acquire());
        assert!(!lock.acquire(), "a second acquire neither waits nor counts");
        let other = Arc::clone(&lock);
        thread::spawn(move || {
            assert!(!other.is_held());
            assert!(!other.release());
        })
        .join()
        .unwrap();
        assert!(lock.is_held());
        assert!(lock.release());
        assert!(!lock.release());
    }

    #[test]
    fn tokens_are_not_reused_after_a_thread_ended() {
        let lock = Arc::new(ProducerLock::new());
        let first = Arc::clone(&lock);
        thread::spawn(move || assert!(first.acquire())).join().unwrap();
        for _ in 0..32 {
            let later = Arc::clone(&lock);
            thread::spawn(move || assert!(!later.is_held())).join().unwrap();
        }
    }

    #[test]
    fn excludes_other_threads() {
        let shared = Arc::new((ProducerLock::new(), Counter::new(0)));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    for _ in 0..5_000 {
                        assert!(shared.0.acquire());
                        let before = shared.1.load(Relaxed);
                        shared.1.store(before + 1, Relaxed);
                        assert!(shared.0.release());
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(shared.1.load(Relaxed), 20_000);
    }
}
