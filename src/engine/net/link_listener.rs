//! A thread that watches for changes to the machine's interfaces, for callers that cannot wait themselves.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Builder, JoinHandle};
use std::time::{Duration, Instant};

use crate::sys::{EventFd, Generation, LinkWatch, wait_readable, with_signals_blocked};

/// Stack size of the thread. It calls a function and sleeps: its own frames are few, but the function may run an
/// allocator and a logger.
const STACK_BYTES: usize = 256 << 10;
/// Time between two calls. The kernel announces one change of an interface with many messages.
const PAUSE: Duration = Duration::from_millis(100);

/// The thread that watches the interfaces. Dropping this ends the thread.
pub(crate) struct LinkListener {
    thread: Option<JoinHandle<()>>,
    control: Arc<Control>,
    generation: Generation,
}

struct Control {
    has_ended: AtomicBool,
    is_woken: AtomicBool,
    /// Wakes the thread for either.
    event: EventFd,
}

impl LinkListener {
    /// Calls `on_change` soon after every change, at most every 100 ms. It consumes the changes with
    /// [`LinkWatch::has_changed`]; its error ends the thread.
    pub(crate) fn start(
        name: &str,
        watch: Arc<LinkWatch>,
        on_change: impl FnMut() -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        let (has_ended, is_woken) = (AtomicBool::new(false), AtomicBool::new(false));
        let control = Arc::new(Control { has_ended, is_woken, event: EventFd::new()? });
        let shared = Arc::clone(&control);
        let run = move || {
            if let Err(error) = listen(&shared, &watch, on_change) {
                tracing::warn!(
                    target: "rdma_verbs::device", %error, "changes of the interfaces are not noticed any more"
                );
            }
        };
        // The kernel shows the first 15 bytes.
        let builder = Builder::new().name(format!("rdma-link-{name}")).stack_size(STACK_BYTES);
        let thread = with_signals_blocked(|| builder.spawn(run))?;
        Ok(Self { thread: Some(thread), control, generation: Generation::now() })
    }

    /// Has the function called as after a change.
    pub(crate) fn wake(&self) {
        self.control.is_woken.store(true, Ordering::Release);
        self.control.event.signal();
    }
}

impl Control {
    fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Sleeps until the next call is allowed, or the thread must end.
    fn pause(&self) {
        let end = Instant::now() + PAUSE;
        while !self.has_ended() {
            match end.saturating_duration_since(Instant::now()) {
                Duration::ZERO => return,
                left => thread::park_timeout(left),
            }
        }
    }
}

fn listen(control: &Control, watch: &LinkWatch, mut on_change: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    while !control.has_ended() {
        let has_changed = match wait_readable([watch.as_fd(), control.event.as_fd()], None) {
            Ok([has_changed, _]) => has_changed,
            // Waiting takes memory. There will be some after the pause.
            Err(error) if error.kind() == io::ErrorKind::OutOfMemory => false,
            Err(error) => return Err(error),
        };
        // Before the flag is read: what comes from now on leaves the event readable.
        control.event.clear();
        if control.is_woken.swap(false, Ordering::AcqRel) || has_changed {
            on_change()?;
        }
        // Also without a change: an event that the program has closed is always ready.
        control.pause();
    }
    Ok(())
}

impl Drop for LinkListener {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if !self.generation.is_current() {
            // The thread belongs to the parent process.
            return std::mem::forget(thread);
        }
        self.control.has_ended.store(true, Ordering::Release);
        let is_signalled = self.control.event.signal();
        thread.thread().unpark();
        crate::sys::end_thread(thread, is_signalled);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Starts a thread whose calls are counted.
    fn start(result: fn() -> io::Result<()>) -> (LinkListener, Arc<LinkWatch>, Arc<AtomicUsize>) {
        let (watch, calls) = (Arc::new(LinkWatch::open().unwrap()), Arc::new(AtomicUsize::new(0)));
        let (changed, counted) = (Arc::clone(&watch), Arc::clone(&calls));
        let on_change = move || {
            changed.has_changed()?;
            counted.fetch_add(1, Ordering::AcqRel);
            result()
        };
        (LinkListener::start("test", Arc::clone(&watch), on_change).unwrap(), watch, calls)
    }

    fn becomes(condition: impl Fn() -> bool) -> bool {
        let end = Instant::now() + Duration::from_secs(20);
        while !condition() && Instant::now() < end {
            thread::sleep(Duration::from_millis(1));
        }
        condition()
    }

    #[test]
    fn listener_ends_when_it_is_dropped() {
        let (listener, watch, calls) = start(|| Ok(()));
        // In its wait, or in its pause.
        listener.wake();
        assert!(becomes(|| calls.load(Ordering::Acquire) > 0));
        drop(listener);
        assert_eq!(Arc::strong_count(&watch), 1, "the thread has ended and dropped its reference");
    }

    #[test]
    fn many_changes_are_few_calls() {
        let (listener, _watch, calls) = start(|| Ok(()));
        let start = Instant::now();
        while start.elapsed() < 3 * PAUSE {
            listener.wake();
            thread::sleep(Duration::from_millis(1));
        }
        let most = (start.elapsed().as_millis() / PAUSE.as_millis()) as usize + 1;
        let calls = calls.load(Ordering::Acquire);
        assert!((1..=most).contains(&calls), "{calls} calls");
        // The last change is not forgotten.
        assert!(becomes(|| !listener.control.is_woken.load(Ordering::Acquire)));
    }

    #[test]
    fn error_ends_the_thread() {
        let (listener, watch, calls) = start(|| Err(io::ErrorKind::NotConnected.into()));
        listener.wake();
        assert!(becomes(|| Arc::strong_count(&watch) == 1));
        assert_eq!(calls.load(Ordering::Acquire), 1);
        drop(listener);
    }
}
