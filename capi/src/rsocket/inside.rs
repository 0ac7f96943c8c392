//! Whether a thread is in a call of a socket, or serves the sockets. `librspreload.so` replaces the `socket` of the C
//! library by `rsocket`, also for this library, whose devices need sockets of the system: in such a thread `rsocket`
//! fails, and the replacement calls the system.

use std::cell::Cell;

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// A part of a call in which the thread may open sockets of the system.
pub(super) struct Inside(());

impl Inside {
    pub(super) fn begin() -> Self {
        let _ = DEPTH.try_with(|depth| depth.set(depth.get() + 1));
        Self(())
    }

    /// Returns whether the calling thread is in such a part.
    pub(super) fn is_now() -> bool {
        DEPTH.try_with(|depth| depth.get() > 0).unwrap_or(false)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = DEPTH.try_with(|depth| depth.set(depth.get() - 1));
    }
}
