//! Completion channels: threads and asynchronous runtimes sleep on them until a completion queue has completions.
//!
//! A waiter sleeps on an epoll set of the shards' sockets and an eventfd. A packet wakes it directly; the waiter then
//! drives the shards and checks whether that queued a notification. Deadlines stay with the shard's thread, which
//! signals the resulting notifications through the eventfd.
//!
//! The eventfd is readable while notifications wait and no thread drives for the channel; so a thread that drives and
//! finds its own notification needs no system call for it.
//!
//! An *edge-exact* channel exposes the eventfd itself, which is readable only while notifications wait. A thread that
//! sleeps on that descriptor sleeps until the shard's thread has served the packet; one that waits within the library
//! sleeps on the set. Arming a queue does not show which of the two a program will do next, so the channel assumes that
//! it does the same as last time: a thread that waited is expected to wait again, until many notifications in a row
//! were queued before they were polled for. A wrong assumption only costs time: a thread that sleeps on the descriptor
//! is served when the poller lease or the sleep of the shard's thread ends; a thread that waits in the library is woken
//! by the packet, and so is the shard's thread.
//!
//! Packets wake the waiters of a bounded number of channels ([`DIRECT`]). Those of further channels sleep on the
//! eventfd only, and the shard's thread serves them.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::policy::ArmedFor;
use super::shard::Shard;
use crate::sys::{Epoll, EventFd, Interest, wait_readable};

/// Passes over the shards in one call; the descriptor stays readable if there is more to do.
const ROUNDS: usize = 8;
/// Most waiting notifications of one completion queue. A program that arms a queue this often without taking a
/// notification needs no more of them to poll it.
const MOST_WAITING: u32 = 64;
/// Most channels of a shard whose sets have the shard's sockets. Each packet visits all of these sets, and the kernel
/// limits the paths from a socket to sets: to 500 through the shard's and the channel's set, and to 100 if the
/// channel's set is itself in a set of the application.
const DIRECT: u32 = 64;
/// After this many notifications consumed without waiting, the application is assumed to poll the descriptor.
const PROMPT: u32 = 32;

/// The notification state of a completion queue. It changes under the channel's lock.
pub(crate) struct CqNotifier {
    context: u64,
    /// Whether its next completion causes a notification.
    armed: AtomicBool,
    /// Notifications not taken yet.
    waiting: AtomicU32,
    /// Notifications taken, modulo 2^32.
    taken: AtomicU32,
    /// The queue was destroyed: a late notification is discarded.
    gone: AtomicBool,
}

impl CqNotifier {
    /// Creates the state of an unarmed queue. `context` identifies the queue to the application.
    pub(crate) fn new(context: u64) -> Self {
        Self {
            context,
            armed: AtomicBool::new(false),
            waiting: AtomicU32::new(0),
            taken: AtomicU32::new(0),
            gone: AtomicBool::new(false),
        }
    }

    /// Notifications taken, modulo 2^32.
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
    is_exact: bool,
    /// Whether the set has the sockets of the shards.
    is_direct: bool,
}

struct State {
    /// Completion queues with notifications, an entry for each notification.
    waiting: VecDeque<Arc<CqNotifier>>,
    /// Whether the eventfd is readable.
    signalled: bool,
    /// Threads that drive at the moment, and check for notifications afterwards.
    inside: u32,
    /// Number of armed completion queues, and the kind of waiter that the shards expect.
    armed: u32,
    armed_for: ArmedFor,
    /// Notifications in a row that were queued before they were polled for.
    prompt: u32,
    /// A thread was given the descriptor to sleep on since the last poll.
    has_slept: bool,
}

impl Channel {
    /// Creates a channel whose descriptor is the set: packets of these shards wake the threads that sleep on it.
    pub(crate) fn new(shards: Vec<Arc<Shard>>) -> io::Result<Self> {
        Self::with_event(shards, EventFd::new()?, false)
    }

    /// Creates a channel whose descriptor is readable only while notifications wait.
    pub(crate) fn exact(shards: Vec<Arc<Shard>>) -> io::Result<Self> {
        Self::with_event(shards, EventFd::for_programs()?, true)
    }

    fn with_event(shards: Vec<Arc<Shard>>, event: EventFd, is_exact: bool) -> io::Result<Self> {
        let set = Epoll::new()?;
        set.add(event.as_fd(), Interest::Readable)?;
        let is_direct = take_places(&shards);
        let armed_for = if is_exact || !is_direct { ArmedFor::Descriptor } else { ArmedFor::Sleeper };
        let waiting = VecDeque::new();
        let state = State { waiting, signalled: false, inside: 0, armed: 0, armed_for, prompt: 0, has_slept: false };
        let channel = Self { set, event, state: Mutex::new(state), shards, is_exact, is_direct };
        for shard in channel.shards.iter().filter(|_| is_direct) {
            channel.set.add(shard.sockets.as_fd(), Interest::Readable)?;
        }
        Ok(channel)
    }

    /// Notes that a completion queue is about to be armed.
    pub(crate) fn arm(&self, queue: &CqNotifier) {
        let mut state = self.state();
        if queue.armed.swap(true, Ordering::Relaxed) {
            return;
        }
        state.armed += 1;
        self.shards.iter().for_each(|shard| shard.channel_armed(state.armed_for, 1));
        drop(state);
        // After the unlock: a pass may notify.
        self.shards.iter().for_each(|shard| shard.end_silence());
    }

    fn disarm(&self, state: &mut State, queue: &CqNotifier) {
        if queue.armed.swap(false, Ordering::Relaxed) {
            state.armed -= 1;
            self.shards.iter().for_each(|shard| shard.channel_disarmed(state.armed_for, 1));
        }
    }

    /// Changes the kind of waiter that queues are armed for, including those armed now. Packets do not wake the waiters
    /// of a channel that is not direct.
    fn set_armed_for(&self, state: &mut State, armed_for: ArmedFor) {
        let armed_for = if self.is_direct { armed_for } else { ArmedFor::Descriptor };
        let before = std::mem::replace(&mut state.armed_for, armed_for);
        if before != armed_for {
            for shard in &self.shards {
                shard.channel_armed(armed_for, state.armed);
                shard.channel_disarmed(before, state.armed);
            }
        }
    }

    /// Queues a notification of a completion queue, and disarms it. May be called with a shard held.
    pub(crate) fn notify(&self, queue: &Arc<CqNotifier>) {
        let mut state = self.state();
        self.disarm(&mut state, queue);
        if queue.gone.load(Ordering::Relaxed) {
            return;
        }
        if queue.note_waiting() {
            state.waiting.push_back(Arc::clone(queue));
        }
        if state.inside == 0 {
            // A thread that waits for edges of an edge-exact descriptor gets one for each notification, as from an
            // adapter.
            state.signalled &= !self.is_exact;
            self.signal(&mut state);
        }
    }

    /// Removes a completion queue: discards its waiting notifications and all later ones.
    pub(crate) fn remove(&self, queue: &Arc<CqNotifier>) {
        let mut state = self.state();
        self.disarm(&mut state, queue);
        queue.gone.store(true, Ordering::Relaxed);
        state.waiting.retain(|waiting| !Arc::ptr_eq(waiting, queue));
        self.update_event(&mut state);
    }

    /// Takes the next notification, after driving the shards if there is none.
    pub(crate) fn poll(&self) -> Option<u64> {
        // The channel does not know of threads that sleep on the set by themselves.
        let mut was_woken = !self.is_exact;
        {
            let mut state = self.state();
            if let Some(queue) = state.waiting.pop_front() {
                self.update_event(&mut state);
                self.note_prompt(&mut state);
                return Some(queue.take());
            }
            self.update_event(&mut state);
            state.inside += 1;
            was_woken |= std::mem::take(&mut state.has_slept);
        }
        let leaving = Leaving(self);
        let mut has_more = true;
        for _ in 0..ROUNDS {
            has_more = self.shards.iter().fold(false, |more, shard| shard.serve_channel(was_woken) | more);
            if !has_more || self.has_events() {
                break;
            }
        }
        let mut state = self.state();
        let context = state.waiting.pop_front().map(|queue| queue.take());
        if has_more {
            self.signal_leftovers(&mut state);
        }
        drop(state);
        drop(leaving);
        context
    }

    /// Makes sure that a thread which waits for edges of the descriptor does not miss packets left in the sockets.
    fn signal_leftovers(&self, state: &mut State) {
        if self.is_exact {
            for shard in &self.shards {
                shard.wake.call();
            }
        } else {
            self.signal(state);
        }
    }

    /// Notes that a notification was queued before it was polled for.
    fn note_prompt(&self, state: &mut State) {
        state.prompt = (state.prompt + 1).min(PROMPT);
        if self.is_exact && state.prompt == PROMPT {
            self.set_armed_for(state, ArmedFor::Descriptor);
        }
    }

    /// Returns the descriptor for a thread that waits for a notification, and polls as soon as it is readable.
    pub(crate) fn waiting_fd(&self) -> BorrowedFd<'_> {
        let mut state = self.state();
        state.prompt = 0;
        state.has_slept = true;
        self.set_armed_for(&mut state, ArmedFor::Sleeper);
        self.set.as_fd()
    }

    /// Takes the next notification like [`Channel::poll`], waiting up to `timeout` for one.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> io::Result<Option<u64>> {
        let start = Instant::now();
        loop {
            if let Some(context) = self.poll() {
                return Ok(Some(context));
            }
            if self.has_failed() {
                return Err(io::Error::other("the engine panicked"));
            }
            let left = timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            wait_readable([self.waiting_fd()], left)?;
        }
    }

    fn has_failed(&self) -> bool {
        self.shards.iter().any(|shard| shard.has_failed())
    }

    fn has_events(&self) -> bool {
        !self.state().waiting.is_empty()
    }

    fn signal(&self, state: &mut State) {
        if !std::mem::replace(&mut state.signalled, true) {
            self.event.signal();
        }
    }

    /// Updates the eventfd after a change of the waiting notifications.
    fn update_event(&self, state: &mut State) {
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

/// Takes a place for a direct channel at each shard; returns whether all of them had one.
fn take_places(shards: &[Arc<Shard>]) -> bool {
    let take = |count: u32| (count < DIRECT).then_some(count + 1);
    let has_place =
        |shard: &Arc<Shard>| shard.direct_channels.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok();
    let taken = shards.iter().take_while(|shard| has_place(shard)).count();
    if taken < shards.len() {
        free_places(&shards[..taken]);
    }
    taken == shards.len()
}

fn free_places(shards: &[Arc<Shard>]) {
    for shard in shards {
        shard.direct_channels.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if self.is_direct {
            free_places(&self.shards);
        }
    }
}

/// Notes on drop that a thread no longer drives, even if it panics.
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

/// Returns the channel's descriptor.
impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        if self.is_exact { self.event.as_fd() } else { self.set.as_fd() }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io::Read;

    use super::super::tests::shard;
    use super::*;

    fn is_readable(channel: &Channel) -> bool {
        wait_readable([channel.as_fd()], Some(Duration::ZERO)).unwrap()[0]
    }

    #[test]
    fn descriptor_is_readable_until_the_notifications_are_taken() {
        keeps_readable(&Channel::new(vec![Arc::new(shard())]).unwrap());
        keeps_readable(&Channel::exact(vec![Arc::new(shard())]).unwrap());
    }

    fn keeps_readable(channel: &Channel) {
        assert_eq!(channel.poll(), None);
        assert!(!is_readable(channel));
        let queues = [7, 8, 9].map(|context| Arc::new(CqNotifier::new(context)));
        queues.iter().for_each(|queue| channel.notify(queue));
        assert!(is_readable(channel));
        assert_eq!(channel.poll(), Some(7));
        assert!(is_readable(channel));
        assert_eq!(channel.poll(), Some(8));
        channel.remove(&queues[2]);
        assert!(!is_readable(channel));
        assert_eq!(channel.poll(), None);
        assert!(!is_readable(channel));
        channel.notify(&queues[2]);
        assert!(!is_readable(channel), "its queue is gone");
        assert_eq!(channel.poll(), None);
        assert_eq!(queues.map(|queue| queue.taken()), [1, 1, 0]);
    }

    /// Returns the shard's counts of a channel's armed queues: for threads that sleep on packets, and on descriptors.
    fn armed(shard: &Shard) -> (u32, u32) {
        shard.policy.armed()
    }

    #[test]
    fn armed_queues_count_for_the_expected_kind_of_waiter() {
        let shard = Arc::new(shard());
        let channel = Channel::exact(vec![Arc::clone(&shard)]).unwrap();
        let queues = [1, 2].map(|context| Arc::new(CqNotifier::new(context)));
        queues.iter().for_each(|queue| channel.arm(queue));
        assert_eq!(armed(&shard), (0, 2), "no thread has waited yet");
        assert_eq!(channel.wait(Some(Duration::from_millis(1))).unwrap(), None);
        assert_eq!(armed(&shard), (2, 0), "a thread waits");
        for taken in 1..=PROMPT {
            channel.notify(&queues[0]);
            assert_eq!(channel.poll(), Some(1));
            channel.arm(&queues[0]);
            assert_eq!(armed(&shard), if taken < PROMPT { (2, 0) } else { (0, 2) });
        }
        channel.arm(&queues[0]);
        channel.remove(&queues[0]);
        channel.notify(&queues[1]);
        assert_eq!(armed(&shard), (0, 0));
    }

    #[test]
    fn packets_wake_the_waiters_of_a_bounded_number_of_channels() {
        let shards = [Arc::new(shard()), Arc::new(shard())];
        let of_one: Vec<_> = (0..DIRECT).map(|_| Channel::exact(vec![Arc::clone(&shards[0])]).unwrap()).collect();
        assert!(of_one.iter().all(|channel| channel.is_direct));
        let further: Vec<_> = (0..100).map(|_| Channel::new(shards.to_vec()).unwrap()).collect();
        assert!(further.iter().all(|channel| !channel.is_direct));
        further[0].arm(&CqNotifier::new(1));
        further[0].waiting_fd();
        assert_eq!(shards.each_ref().map(|shard| armed(shard)), [(0, 1); 2], "the threads of the shards serve them");
        let queue = Arc::new(CqNotifier::new(2));
        further[1].notify(&queue);
        assert!(is_readable(&further[1]));
        assert_eq!(further[1].wait(None).unwrap(), Some(2));
        drop(further);
        assert!(Channel::new(vec![Arc::clone(&shards[1])]).unwrap().is_direct, "no place was taken there");
        drop(of_one);
        assert!(Channel::new(shards.to_vec()).unwrap().is_direct);
    }

    #[test]
    fn exact_descriptor_signals_each_notification() {
        let channel = Channel::exact(vec![Arc::new(shard())]).unwrap();
        let queue = Arc::new(CqNotifier::new(3));
        let count = || {
            channel.notify(&queue);
            let mut count = [0; 8];
            // A program must not do this; the channel tolerates it.
            std::fs::File::from(channel.as_fd().try_clone_to_owned().unwrap()).read_exact(&mut count).unwrap();
            u64::from_ne_bytes(count)
        };
        assert_eq!([count(), count()], [1, 1]);
        assert_eq!([channel.poll(), channel.poll(), channel.poll()], [Some(3), Some(3), None]);
    }

    #[test]
    fn waiting_notifications_of_a_queue_are_bounded() {
        let channel = Channel::new(vec![Arc::new(shard())]).unwrap();
        let [frequent, other] = [1, 2].map(|context| Arc::new(CqNotifier::new(context)));
        (0..10_000).for_each(|_| channel.notify(&frequent));
        channel.notify(&other);
        let taken: Vec<u64> = std::iter::from_fn(|| channel.poll()).collect();
        assert_eq!(taken.len(), MOST_WAITING as usize + 1);
        assert_eq!(taken.last(), Some(&2));
        channel.notify(&frequent);
        assert_eq!(channel.poll(), Some(1));
    }

    #[test]
    fn wait_ends_with_a_notification_or_the_timeout() {
        let channel = Arc::new(Channel::new(vec![Arc::new(shard())]).unwrap());
        let start = Instant::now();
        assert_eq!(channel.wait(Some(Duration::from_millis(20))).unwrap(), None);
        assert!(start.elapsed() >= Duration::from_millis(20));
        let notifying = Arc::clone(&channel);
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(10));
            notifying.notify(&Arc::new(CqNotifier::new(5)));
        });
        assert_eq!(channel.wait(None).unwrap(), Some(5));
        thread.join().unwrap();
    }
}
