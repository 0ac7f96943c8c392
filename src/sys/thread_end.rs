//! The end of a thread of the engine.

use std::thread::JoinHandle;

/// Waits for a thread that was signalled to end. A thread that could not be signalled sleeps on.
pub(crate) fn end_thread(thread: JoinHandle<()>, is_told: bool) {
    if is_told {
        // A thread that panicked has already reported it.
        let _ = thread.join();
    } else {
        tracing::warn!("a thread keeps sleeping: the program has closed the descriptor that wakes it");
    }
}
