//! Whether the shard's thread must watch the sockets although a thread polls.
//!
//! A poller lease lets the thread sleep without watching them. But a program that sleeps on an edge-exact channel's
//! descriptor sleeps until another thread has served the packet, and that program may have been the poller a moment
//! ago.
//!
//! Some programs arm a queue that rarely has completions, and poll others all the time; UCX does. After many polls
//! since a queue was armed, the poller counts as one that stays: its polls make the descriptor readable. The thread
//! would compete for each packet, and leaves until the lease ends.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::constants::PASSES_OF_A_LASTING_POLLER;

/// The waiters on descriptors, which need the shard's thread to watch the sockets.
#[derive(Default)]
pub(super) struct FdWaiters {
    /// Completion queues armed for threads that sleep on a descriptor.
    queues: AtomicU32,
    /// Passes of pollers since a queue was last armed, up to a limit.
    passes: AtomicU32,
    /// The thread sleeps without watching the sockets.
    is_away: AtomicBool,
}

impl FdWaiters {
    /// Notes that more queues are armed. Returns whether the thread must be woken.
    pub(super) fn add(&self, queues: u32) -> bool {
        // Before the thread's state is read. The thread writes its state before it reads the count, so at least one of
        // the two sees the other's write.
        self.queues.fetch_add(queues, Ordering::SeqCst);
        self.passes.store(0, Ordering::SeqCst);
        self.call()
    }

    /// Returns whether the thread must be woken because it sleeps without watching the sockets.
    pub(super) fn call(&self) -> bool {
        self.is_away.load(Ordering::SeqCst) && self.is_away.swap(false, Ordering::SeqCst)
    }

    /// Notes that queues are no longer armed.
    pub(super) fn remove(&self, queues: u32) {
        self.queues.fetch_sub(queues, Ordering::Relaxed);
    }

    /// Notes a pass of a poller.
    #[inline]
    pub(super) fn note_pass(&self) {
        if self.queues.load(Ordering::Relaxed) > 0 && self.passes.load(Ordering::Relaxed) < PASSES_OF_A_LASTING_POLLER {
            self.passes.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Returns the number of armed queues.
    pub(super) fn queues(&self) -> u32 {
        self.queues.load(Ordering::SeqCst)
    }

    /// Returns whether the thread must watch the sockets although a thread polls.
    pub(super) fn need_thread(&self) -> bool {
        self.queues.load(Ordering::SeqCst) > 0 && self.passes.load(Ordering::SeqCst) < PASSES_OF_A_LASTING_POLLER
    }

    /// Called by the thread before it sleeps without watching the sockets; a waiter that needs the thread wakes it.
    /// Returns false if a waiter needs it already.
    pub(super) fn leave(&self) -> bool {
        self.is_away.store(true, Ordering::SeqCst);
        let leaves = !self.need_thread();
        if !leaves {
            self.come_back();
        }
        leaves
    }

    /// Called by the thread when it is awake.
    pub(super) fn come_back(&self) {
        self.is_away.store(false, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn thread_is_called_once_if_it_is_away() {
        let fd_waiters = FdWaiters::default();
        assert!(!fd_waiters.add(1), "it is there");
        assert!(!fd_waiters.leave());
        fd_waiters.remove(1);
        assert!(fd_waiters.leave());
        assert!(fd_waiters.add(1), "it is away");
        assert!(!fd_waiters.add(1), "it was called");
        fd_waiters.remove(2);
        assert!(fd_waiters.leave());
        fd_waiters.come_back();
        assert!(!fd_waiters.add(1));
    }

    #[test]
    fn poller_that_stays_frees_the_thread_until_a_queue_is_armed_again() {
        let fd_waiters = FdWaiters::default();
        assert!(!fd_waiters.add(1) && fd_waiters.need_thread());
        (1..PASSES_OF_A_LASTING_POLLER).for_each(|_| fd_waiters.note_pass());
        assert!(fd_waiters.need_thread() && !fd_waiters.leave());
        fd_waiters.note_pass();
        assert!(!fd_waiters.need_thread() && fd_waiters.leave());
        assert!(fd_waiters.add(1), "it is away");
        assert!(fd_waiters.need_thread());
    }
}
