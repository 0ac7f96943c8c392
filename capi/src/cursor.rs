//! The state of extended polling.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};

use rdma_verbs::types::RawCompletion;

/// The position of a thread between `ibv_start_poll` and `ibv_end_poll`. Other threads wait in `ibv_start_poll`.
#[derive(Default)]
pub(crate) struct Cursor {
    is_held: AtomicBool,
    /// The holder's current completion. Only the holder uses the cell (`completion_queue_ex`).
    pub(crate) completion: UnsafeCell<RawCompletion>,
}

impl Cursor {
    /// Takes the cursor for this thread.
    pub(crate) fn hold(&self) {
        while self.is_held.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
    }

    /// Releases the cursor to the next thread.
    pub(crate) fn release(&self) {
        self.is_held.store(false, Ordering::Release);
    }
}
