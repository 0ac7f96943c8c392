//! A value behind one atomic word: {free, held, held and rung, reserved}, and whether threads wait for it.
//!
//! The word is the whole lock. A thread that finds it held may *ring* it instead of waiting: the holder's release is a
//! compare-and-swap that fails if the word was rung, and then the holder still has the value and looks again. So a
//! thread that publishes work and then rings knows that a look follows the publication: its own, if the word was free;
//! the holder's otherwise.
//!
//! A thread that must have the value *awaits* the word. The holder's release fails then, too: it reserves the word for
//! one of the waiting threads, which its caller chooses, and no other thread can take it in between.
//!
//! Every operation on the word reads and writes it. That matters when the word is already rung: a second ringer that
//! merely *saw* so would not be ordered before the holder's next look, which could miss its work.

#[cfg(loom)]
use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicU32, Ordering},
};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, Ordering};

const FREE: u32 = 0;
const HELD: u32 = 1;
const RUNG: u32 = 2;
/// The value is for a waiting thread, which takes it.
const RESERVED: u32 = 3;
const STATE: u32 = 3;
/// A bit beside the state: threads wait. A free word never has it.
const AWAITED: u32 = 4;

/// Stand-in for the model checker's cell, with the same call.
#[cfg(not(loom))]
struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    #[inline]
    fn with_mut<R>(&self, work: impl FnOnce(*mut T) -> R) -> R {
        work(self.0.get())
    }
}

/// A value that one thread at a time may use.
pub(crate) struct Guarded<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: a `Guard` is the only access to the value, and at most one exists at a time (see `Guard`). So sharing a
// `Guarded` moves exclusive access to the value between threads and never shares it: `T: Send` suffices, as for a
// mutex.
unsafe impl<T: Send> Sync for Guarded<T> {}
// SAFETY: the value moves along with its owner.
unsafe impl<T: Send> Send for Guarded<T> {}

/// Exclusive access to the value. It exists only while the word is held or rung, and only once: it is created by the
/// one thread whose compare-and-swap took the word from free or reserved, and the word becomes free or reserved again
/// only by consuming it.
pub(crate) struct Guard<'a, T> {
    guarded: &'a Guarded<T>,
}

/// Outcome of an attempt to free the word.
pub(crate) enum Released<'a, T> {
    /// It is free.
    Freed,
    /// It was rung and no longer is: its holder must look again.
    Rung(Guard<'a, T>),
    /// Threads wait: its holder must hand it over.
    Awaited(Guard<'a, T>),
}

impl<T> Guarded<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { word: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Takes the word if it is free.
    #[inline]
    pub(crate) fn try_acquire(&self) -> Option<Guard<'_, T>> {
        let taken = self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed);
        // Created only if the word was taken: dropping a guard frees it.
        taken.is_ok().then(|| Guard { guarded: self })
    }

    /// Returns whether a thread holds the value now, or held it just now.
    pub(crate) fn is_held(&self) -> bool {
        self.word.load(Ordering::Relaxed) != FREE
    }

    /// Takes the word if it is free, rings it otherwise. After `None`, the holder looks once more, or the thread that
    /// has the word reserved, and sees everything that this thread did before.
    #[inline]
    pub(crate) fn acquire_or_ring(&self) -> Option<Guard<'_, T>> {
        self.acquire_or(|found| if found & STATE == RESERVED { found } else { RUNG | found & AWAITED })
    }

    /// Takes the word if it is free. Otherwise its release fails from now on: after `None`, the word is handed over.
    #[cold]
    pub(crate) fn acquire_or_await(&self) -> Option<Guard<'_, T>> {
        self.acquire_or(|found| found | AWAITED)
    }

    #[inline]
    fn acquire_or(&self, change: impl Fn(u32) -> u32) -> Option<Guard<'_, T>> {
        let mut expected = FREE;
        loop {
            let wanted = if expected == FREE { HELD } else { change(expected) };
            // A release on success too: the holder's acquiring release sees the work published before the ring.
            match self.word.compare_exchange_weak(expected, wanted, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(FREE) => return Some(Guard { guarded: self }),
                Ok(_) => return None,
                Err(found) => expected = found,
            }
        }
    }

    /// Takes the word if it is reserved: for the thread that it was handed over to.
    #[cold]
    pub(crate) fn take_reserved(&self) -> Option<Guard<'_, T>> {
        let take = |found: u32| (found & STATE == RESERVED).then_some(HELD | found & AWAITED);
        let taken = self.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, take);
        taken.is_ok().then(|| Guard { guarded: self })
    }
}

impl<'a, T> Guard<'a, T> {
    /// Runs `work` on the value.
    #[inline]
    pub(crate) fn with<R>(&mut self, work: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: this is the only guard of the value (see the type's description), and it is borrowed exclusively for
        // as long as the reference lives. The acquiring operation that made the guard orders this access after the
        // release of the previous guard.
        self.guarded.value.with_mut(|value| work(unsafe { &mut *value }))
    }

    /// Frees the word, unless it was rung or threads wait.
    #[inline]
    pub(crate) fn release(self) -> Released<'a, T> {
        let word = &self.guarded.word;
        match word.compare_exchange(HELD, FREE, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => {
                std::mem::forget(self);
                Released::Freed
            }
            Err(found) if found & AWAITED != 0 => Released::Awaited(self),
            Err(_) => {
                // Ordered after every ring so far: each is a read-modify-write with release semantics.
                word.fetch_xor(HELD ^ RUNG, Ordering::AcqRel);
                Released::Rung(self)
            }
        }
    }

    /// Frees the word even if it was rung, unless threads wait. Returns true if it was rung: the caller must make sure
    /// that another look follows.
    ///
    /// # Errors
    /// The guard if threads wait.
    pub(crate) fn abandon(self) -> Result<bool, Self> {
        let free = |found: u32| (found & AWAITED == 0).then_some(FREE);
        match self.guarded.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, free) {
            Ok(found) => {
                std::mem::forget(self);
                Ok(found == RUNG)
            }
            Err(_) => Err(self),
        }
    }

    /// Reserves the word for a waiting thread, which sees everything that was done before each ring so far. `others`:
    /// more threads wait.
    #[cold]
    pub(crate) fn hand_over(self, others: bool) {
        let word = if others { RESERVED | AWAITED } else { RESERVED };
        self.guarded.word.swap(word, Ordering::AcqRel);
        std::mem::forget(self);
    }
}

/// Reached only by a panic of code that awaits no word: frees it.
impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.guarded.word.swap(FREE, Ordering::AcqRel);
    }
}
