//! Whether a poller may have left to watch its memory.
//!
//! A program that exchanges WRITEs polls only for the completion of its own WRITE, and then watches its memory for the
//! peer's, without a call that would receive it. Its polls follow each other so closely that it gets a lease. While it
//! watches, only the shard's thread can receive the WRITE.
//!
//! A poll that takes completions may be the last one for a while. If peers write to this shard's memory, and no WRITE
//! has ended since the program's last post, the program counts as watching from then on, until its next call. If it has
//! ended, the program has something to respond to and comes back.
//!
//! A program that polls on although peers write to its memory would call the shard's thread again and again. Each time
//! that the program has come back before the thread runs, the watch tolerates twice as many such polls before the next
//! call.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The poller's watch of its memory.
#[derive(Default)]
pub(super) struct MemoryWatch {
    /// Peers write here without completions.
    is_written: AtomicBool,
    /// A WRITE has ended since the last post: the program has not responded to it yet.
    has_news: AtomicBool,
    /// The program may watch its memory. It has made no call since.
    is_watching: AtomicBool,
    /// The thread was called for a program that may watch its memory.
    was_called: AtomicBool,
    /// Polls left that begin no watch.
    tolerated: AtomicU32,
    /// Value of `tolerated` after the last unnecessary call.
    tolerance: AtomicU32,
    /// Only pollers look at the shared memory: a packet there calls no thread.
    is_silent: AtomicBool,
}

impl MemoryWatch {
    /// Notes that a WRITE without a completion ended.
    pub(super) fn note_write(&self) {
        self.is_written.store(true, Ordering::Relaxed);
        self.has_news.store(true, Ordering::Relaxed);
    }

    /// Notes whether only pollers look at the shared memory.
    #[inline]
    pub(super) fn note_silent_memory(&self, is_silent: bool) {
        if self.is_silent.load(Ordering::Relaxed) != is_silent {
            self.is_silent.store(is_silent, Ordering::SeqCst);
        }
    }

    /// Returns whether only pollers look at the shared memory.
    #[inline]
    pub(super) fn is_memory_silent(&self) -> bool {
        self.is_silent.load(Ordering::SeqCst)
    }

    /// Returns whether the thread must be called because a packet in the shared memory does not call it. Not if it was
    /// called already: then it will see that the program watches.
    pub(super) fn needs_thread(&self) -> bool {
        self.is_memory_silent() && !self.was_called.load(Ordering::SeqCst)
    }

    /// Notes a post: it responds to the WRITEs so far.
    #[inline]
    pub(super) fn note_post(&self) {
        if self.has_news.load(Ordering::Relaxed) {
            self.has_news.store(false, Ordering::Relaxed);
        }
        self.note_call();
    }

    /// Notes a post or a poll: the program does not watch its memory now.
    #[inline]
    pub(super) fn note_call(&self) {
        if self.is_watching.load(Ordering::Relaxed) {
            self.is_watching.store(false, Ordering::Relaxed);
        }
    }

    /// Notes that a poll took completions. Returns whether the program may watch its memory from now on.
    #[inline]
    pub(super) fn note_taken(&self) -> bool {
        self.is_written.load(Ordering::Relaxed) && !self.has_news.load(Ordering::Relaxed) && self.begin()
    }

    #[cold]
    fn begin(&self) -> bool {
        let tolerated = self.tolerated.load(Ordering::Relaxed);
        if tolerated > 0 {
            self.tolerated.store(tolerated - 1, Ordering::Relaxed);
            return false;
        }
        // Before the thread's state is read. The thread writes its state before it reads this, so at least one of the
        // two sees the other's write.
        self.is_watching.store(true, Ordering::SeqCst);
        true
    }

    /// Returns whether the program may watch its memory.
    #[inline]
    pub(super) fn is_watching(&self) -> bool {
        self.is_watching.load(Ordering::SeqCst)
    }

    /// Notes that the thread is called because the program may watch its memory.
    pub(super) fn note_thread_called(&self) {
        self.was_called.store(true, Ordering::Relaxed);
    }

    /// Called by the thread when it is awake. If it was called unnecessarily, because the program came back
    /// meanwhile, more polls are tolerated.
    pub(super) fn note_thread_awake(&self) {
        let was_called = self.was_called.load(Ordering::Relaxed) && self.was_called.swap(false, Ordering::SeqCst);
        if was_called && !self.is_watching() {
            let tolerance = self.tolerance.load(Ordering::Relaxed).saturating_mul(2).saturating_add(1);
            self.tolerance.store(tolerance, Ordering::Relaxed);
            self.tolerated.store(tolerance, Ordering::Relaxed);
        }
    }

    /// Notes that the thread received a WRITE, because no thread polled: from now on the program is not expected to
    /// come back at once.
    pub(super) fn end_tolerance(&self) {
        self.tolerance.store(0, Ordering::Relaxed);
        self.tolerated.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn program_watches_after_its_completion_unless_it_has_a_write_to_respond_to() {
        let watch = MemoryWatch::default();
        assert!(!watch.note_taken(), "no peer writes here");
        watch.note_write();
        assert!(!watch.note_taken() && !watch.is_watching());
        watch.note_post();
        assert!(watch.note_taken() && watch.is_watching());
        watch.note_call();
        assert!(!watch.is_watching());
    }

    #[test]
    fn unnecessary_calls_become_rare_until_the_thread_receives_a_write() {
        let watch = MemoryWatch::default();
        watch.note_write();
        watch.note_post();
        let unnecessary = || {
            let tolerated = (0..1_000).take_while(|_| !watch.note_taken()).count();
            watch.note_thread_called();
            watch.note_call();
            watch.note_thread_awake();
            tolerated
        };
        assert_eq!([(); 5].map(|()| unnecessary()), [0, 1, 3, 7, 15]);
        watch.end_tolerance();
        assert_eq!(unnecessary(), 0);
    }

    #[test]
    fn call_for_a_program_that_watches_is_necessary() {
        let watch = MemoryWatch::default();
        watch.note_write();
        watch.note_post();
        for _ in 0..3 {
            assert!(watch.note_taken());
            watch.note_thread_called();
            watch.note_thread_awake();
        }
    }
}
