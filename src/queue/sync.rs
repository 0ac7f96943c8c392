//! The synchronization primitives of this module: the standard library's, or loom's when its models run.
//!
//! `Arc` is always the standard library's: reference counting is not what the models check, and the types of this
//! module's interface must not change with the configuration.
#![forbid(unsafe_code)]

use std::sync::PoisonError;

#[cfg(not(loom))]
mod primitive {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
    pub(crate) use std::thread::yield_now;
    pub(crate) use std::thread_local;

    /// Number of checks by a waiting thread before it yields its processor.
    pub(crate) const SPINS: u32 = 64;

    /// Stands for the accesses to one slot; loom's variant checks that they are ordered. Here it is empty.
    pub(crate) struct Witness;

    impl Witness {
        pub(crate) fn new() -> Self {
            Self
        }

        /// Records a read of the slot.
        #[inline]
        pub(crate) fn read(&self) {}

        /// Records a write of the slot.
        #[inline]
        pub(crate) fn write(&self) {}
    }
}

#[cfg(loom)]
mod primitive {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
    pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
    pub(crate) use loom::thread::yield_now;
    pub(crate) use loom::thread_local;

    /// Checking again without yielding would only multiply the interleavings.
    pub(crate) const SPINS: u32 = 0;

    /// Stands for the accesses to one slot: a cell without content, whose accesses loom checks for their order. The
    /// consumer hands out references, which loom's own cell cannot do.
    pub(crate) struct Witness(loom::cell::UnsafeCell<()>);

    impl Witness {
        pub(crate) fn new() -> Self {
            Self(loom::cell::UnsafeCell::new(()))
        }

        /// Records a read of the slot: fails the model unless every write happened before.
        pub(crate) fn read(&self) {
            self.0.with(|_| ());
        }

        /// Records a write of the slot: fails the model unless every other access happened before.
        pub(crate) fn write(&self) {
            self.0.with_mut(|_| ());
        }
    }
}

pub(crate) use std::sync::atomic::Ordering;

pub(crate) use primitive::*;

/// Locks the mutex, even if an earlier holder panicked: no critical section of this module leaves its data half
/// changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A value on cache lines of its own (two, because processors fetch them in pairs).
#[repr(align(128))]
pub(crate) struct CachePadded<T>(pub(crate) T);
