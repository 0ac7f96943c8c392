//! The end of a thread of the engine.

use std::thread::{self, JoinHandle};

/// Waits for a thread that was signalled to end. A thread that could not be signalled sleeps on. A thread that ends
/// itself, because a task's waker that it calls drops the last object, ends after the call.
pub(crate) fn end_thread(thread: JoinHandle<()>, is_told: bool) {
    if thread.thread().id() == thread::current().id() {
        return;
    }
    if is_told {
        // A thread that panicked has already reported it.
        let _ = thread.join();
    } else {
        tracing::warn!(
            target: "rdma_verbs::device",
            "a thread keeps sleeping: the program has closed the descriptor that wakes it"
        );
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn thread_ends_itself_without_waiting() {
        let (give, take) = mpsc::channel::<JoinHandle<()>>();
        let (report, reported) = mpsc::channel();
        let thread = thread::spawn(move || {
            end_thread(take.recv().unwrap(), true);
            report.send(()).unwrap();
        });
        give.send(thread).unwrap();
        reported.recv().expect("the thread has not panicked");
    }

    #[test]
    fn another_thread_has_ended() {
        let (give, take) = mpsc::channel::<()>();
        let thread = thread::spawn(move || drop(give));
        end_thread(thread, true);
        assert_eq!(take.try_recv(), Err(mpsc::TryRecvError::Disconnected));
    }
}
