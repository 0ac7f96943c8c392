//! A thread that watches for changes to the machine's interfaces, for callers that cannot wait themselves.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use crate::sys::{EventFd, Generation, LinkWatch, wait_readable, with_signals_blocked};

/// Stack size of the thread. It calls a function and sleeps: its own frames are few, but the function may run an
/// allocator and a logger.
const STACK_BYTES: usize = 256 << 10;

/// The thread that watches the interfaces. Dropping this ends the thread.
pub(crate) struct LinkListener {
    thread: Option<JoinHandle<()>>,
    end: Arc<End>,
    generation: Generation,
}

struct End {
    is_requested: AtomicBool,
    event: EventFd,
}

impl LinkListener {
    /// Calls `on_change` on every change; it consumes the changes with [`LinkWatch::has_changed`].
    pub(crate) fn start(name: &str, watch: Arc<LinkWatch>, on_change: impl Fn() + Send + 'static) -> io::Result<Self> {
        let end = Arc::new(End { is_requested: AtomicBool::new(false), event: EventFd::new()? });
        let shared = Arc::clone(&end);
        // The kernel shows the first 15 bytes.
        let builder = Builder::new().name(format!("rdma-link-{name}")).stack_size(STACK_BYTES);
        let thread = with_signals_blocked(|| builder.spawn(move || listen(&shared, &watch, on_change)))?;
        Ok(Self { thread: Some(thread), end, generation: Generation::now() })
    }
}

fn listen(end: &End, watch: &LinkWatch, on_change: impl Fn()) {
    while !end.is_requested.load(Ordering::Acquire) {
        match wait_readable([watch.as_fd(), end.event.as_fd()], None) {
            Ok([true, _]) => on_change(),
            Ok(_) => {}
            Err(error) => {
                // Probably out of memory. Do not spin meanwhile.
                tracing::warn!(%error, "cannot wait for changes of the interfaces");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

impl Drop for LinkListener {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if !self.generation.is_current() {
            // The thread belongs to the parent process.
            return std::mem::forget(thread);
        }
        self.end.is_requested.store(true, Ordering::Release);
        let is_signalled = self.end.event.signal();
        crate::sys::end_thread(thread, is_signalled);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn listener_ends_when_it_is_dropped() {
        let watch = Arc::new(LinkWatch::open().unwrap());
        let changed = Arc::clone(&watch);
        let on_change = move || {
            changed.has_changed();
        };
        let listener = LinkListener::start("test", Arc::clone(&watch), on_change).unwrap();
        std::thread::sleep(Duration::from_millis(10));
        drop(listener);
        assert_eq!(Arc::strong_count(&watch), 1, "the thread has ended and dropped its reference");
    }
}
