//! The end of a thread of the engine.

use std::thread::JoinHandle;

/// Waits for the end of a thread that was told to end. One that could not be told sleeps on.
pub(crate) fn end_thread(thread: JoinHandle<()>, is_told: bool) {
    if is_told {
        // A thread that panicked has said so; there is nothing to add.
        let _ = thread.join();
    } else {
        tracing::warn!("a thread stays: the program has closed the descriptor by which it is woken");
    }
}
