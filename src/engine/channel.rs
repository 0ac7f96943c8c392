//! Completion channels: where threads and asynchronous runtimes sleep until a completion queue has something.
//!
//! The channel's descriptor is an epoll set of the shards' sockets and an event. A packet wakes whoever sleeps on it
//! directly; that thread then drives the shards and looks whether an event came of it. Deadlines stay with the shard's
//! thread, which announces what comes of them through the event.
//!
//! The event is readable while announcements wait and nobody is inside; so a thread that drives and finds its own
//! event needs no system call for it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::shard::Shard;
use super::sys::{Epoll, EventFd, Interest, wait_readable};

/// Passes over the shards in one visit; what is left then keeps the descriptor readable.
const ROUNDS: usize = 8;
/// Announcements of one completion queue that wait at most. Whoever arms a queue so often without ever taking an
/// announcement needs no more of them to come and look.
const MOST_WAITING: u32 = 64;

/// A completion queue, as its channel knows it. Its numbers change under the channel's lock.
pub(crate) struct Announcing {
    context: u64,
    /// Announcements that nobody has taken.
    waiting: AtomicU32,
    /// Announcements that were taken, modulo 2^32.
    taken: AtomicU32,
    /// The queue is gone: an announcement that was on its way comes too late.
    gone: AtomicBool,
}

impl Announcing {
    /// `context` is what the application knows the queue by.
    pub(crate) fn new(context: u64) -> Self {
        Self { context, waiting: AtomicU32::new(0), taken: AtomicU32::new(0), gone: AtomicBool::new(false) }
    }

    /// Announcements that were taken, modulo 2^32.
    pub(crate) fn taken(&self) -> u32 {
        self.taken.load(Ordering::Relaxed)
    }

    fn note_waiting(&self) -> bool {
        let waiting = self.waiting.load(Ordering::Relaxed);
        self.waiting.store((waiting + 1).min(MOST_WAITING), Ordering::Relaxed);
        waiting < MOST_WAITING
    }

    fn take(&self) -> u64 {
        self.waiting.store(self.waiting.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
        self.taken.store(self.taken().wrapping_add(1), Ordering::Relaxed);
        self.context
    }
}

/// A completion channel.
pub(crate) struct Channel {
    set: Epoll,
    event: EventFd,
    state: Mutex<State>,
    shards: Vec<Arc<Shard>>,
}

#[derive(Default)]
struct State {
    /// The completion queues that announced something, a place for each announcement.
    waiting: VecDeque<Arc<Announcing>>,
    /// The event is readable.
    signalled: bool,
    /// Threads that drive right now, and look here afterwards.
    inside: u32,
}

impl Channel {
    /// A channel that is woken by the packets of these shards.
    pub(crate) fn new(shards: Vec<Arc<Shard>>) -> io::Result<Self> {
        let (set, event) = (Epoll::new()?, EventFd::new()?);
        set.add(event.as_fd(), Interest::Readable)?;
        for shard in &shards {
            set.add(shard.sockets.as_fd(), Interest::Readable)?;
        }
        Ok(Self { set, event, state: Mutex::default(), shards })
    }

    /// A completion queue has something. May be called with a shard held.
    pub(crate) fn announce(&self, queue: &Arc<Announcing>) {
        let mut state = self.state();
        if queue.gone.load(Ordering::Relaxed) {
            return;
        }
        if queue.note_waiting() {
            state.waiting.push_back(Arc::clone(queue));
        }
        if state.inside == 0 {
            self.signal(&mut state);
        }
    }

    /// A completion queue goes away: what it announced and nobody took is forgotten, and nothing comes any more.
    pub(crate) fn forget(&self, queue: &Arc<Announcing>) {
        let mut state = self.state();
        queue.gone.store(true, Ordering::Relaxed);
        state.waiting.retain(|waiting| !Arc::ptr_eq(waiting, queue));
        self.settle(&mut state);
    }

    /// The next announcement, after driving the shards if there is none.
    pub(crate) fn poll(&self) -> Option<u64> {
        {
            let mut state = self.state();
            if let Some(queue) = state.waiting.pop_front() {
                self.settle(&mut state);
                return Some(queue.take());
            }
            self.settle(&mut state);
            state.inside += 1;
        }
        let leaving = Leaving(self);
        let mut has_more = true;
        for _ in 0..ROUNDS {
            has_more = self.shards.iter().fold(false, |more, shard| shard.serve_channel() | more);
            if !has_more || self.has_events() {
                break;
            }
        }
        let mut state = self.state();
        let context = state.waiting.pop_front().map(|queue| queue.take());
        if has_more {
            // Whoever sleeps on changes of the descriptor must not miss what is left in the sockets.
            self.signal(&mut state);
        }
        drop(state);
        drop(leaving);
        context
    }

    /// As [`Channel::poll`], waiting up to `timeout` for an announcement.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> io::Result<Option<u64>> {
        let start = Instant::now();
        loop {
            if let Some(context) = self.poll() {
                return Ok(Some(context));
            }
            if self.shards.iter().any(|shard| shard.has_failed()) {
                return Err(io::Error::other("the engine has failed by a panic"));
            }
            let left = timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            wait_readable([self.set.as_fd()], left)?;
        }
    }

    fn has_events(&self) -> bool {
        !self.state().waiting.is_empty()
    }

    fn signal(&self, state: &mut State) {
        if !std::mem::replace(&mut state.signalled, true) {
            self.event.signal();
        }
    }

    /// Makes the event's state follow from what waits.
    fn settle(&self, state: &mut State) {
        if !state.waiting.is_empty() && state.inside == 0 {
            self.signal(state);
        } else if state.waiting.is_empty() && std::mem::take(&mut state.signalled) {
            self.event.clear();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Notes that a thread is inside no more, also if it panics.
struct Leaving<'a>(&'a Channel);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.inside -= 1;
        if !state.waiting.is_empty() && state.inside == 0 {
            self.0.signal(&mut state);
        }
    }
}

/// The descriptor to sleep on.
impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::tests::shard;
    use super::*;

    fn is_readable(channel: &Channel) -> bool {
        wait_readable([channel.set.as_fd()], Some(Duration::ZERO)).unwrap()[0]
    }

    #[test]
    fn announcements_keep_the_descriptor_readable_until_taken() {
        let channel = Channel::new(vec![Arc::new(shard())]).unwrap();
        assert_eq!(channel.poll(), None);
        assert!(!is_readable(&channel));
        let queues = [7, 8, 9].map(|context| Arc::new(Announcing::new(context)));
        queues.iter().for_each(|queue| channel.announce(queue));
        assert!(is_readable(&channel));
        assert_eq!(channel.poll(), Some(7));
        assert!(is_readable(&channel));
        assert_eq!(channel.poll(), Some(8));
        channel.forget(&queues[2]);
        assert!(!is_readable(&channel));
        assert_eq!(channel.poll(), None);
        assert!(!is_readable(&channel));
        channel.announce(&queues[2]);
        assert!(!is_readable(&channel), "its queue is gone");
        assert_eq!(channel.poll(), None);
        assert_eq!(queues.map(|queue| queue.taken()), [1, 1, 0]);
    }

    #[test]
    fn a_queue_that_nobody_listens_to_fills_no_memory() {
        let channel = Channel::new(vec![Arc::new(shard())]).unwrap();
        let [loud, other] = [1, 2].map(|context| Arc::new(Announcing::new(context)));
        (0..10_000).for_each(|_| channel.announce(&loud));
        channel.announce(&other);
        let taken: Vec<u64> = std::iter::from_fn(|| channel.poll()).collect();
        assert_eq!(taken.len(), MOST_WAITING as usize + 1);
        assert_eq!(taken.last(), Some(&2));
        channel.announce(&loud);
        assert_eq!(channel.poll(), Some(1));
    }

    #[test]
    fn waiting_ends_with_an_announcement_or_in_time() {
        let channel = Arc::new(Channel::new(vec![Arc::new(shard())]).unwrap());
        let start = Instant::now();
        assert_eq!(channel.wait(Some(Duration::from_millis(20))).unwrap(), None);
        assert!(start.elapsed() >= Duration::from_millis(20));
        let announcer = Arc::clone(&channel);
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(10));
            announcer.announce(&Arc::new(Announcing::new(5)));
        });
        assert_eq!(channel.wait(None).unwrap(), Some(5));
        thread.join().unwrap();
    }
}
