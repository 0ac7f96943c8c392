//! The events of a connection manager's object, and the threads, tasks and descriptors that wait for them.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use crate::cm::{Event, ListenerHandle, Owner};
use crate::sys::EventFd;

/// An event, and the queue of the object that it brings.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) event: Event,
    /// The queue of the new connection or inquiry, if the event is a peer's request.
    pub(crate) requested: Option<Arc<EventQueue>>,
}

/// The events of a listener, a connection or a request for a datagram queue pair.
///
/// It is bounded: an object has a bounded number of events in its life, and a listener has at most [`MOST_REQUESTS`].
#[derive(Default)]
pub(crate) struct EventQueue {
    state: Mutex<State>,
    arrived: Condvar,
    /// Readable while events wait; created when it is first asked for.
    descriptor: OnceLock<EventFd>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Box<Delivery>>,
    /// Tasks that wait, each once.
    wakers: Vec<Waker>,
    /// The shard has failed: no further event arrives.
    is_closed: bool,
}

impl std::fmt::Debug for EventQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventQueue").finish_non_exhaustive()
    }
}

/// The result of waiting for an event.
#[derive(Debug)]
pub(crate) enum Awaited {
    Event(Box<Delivery>),
    /// The time is over.
    TimedOut,
    /// No event arrives any more, because the shard has failed.
    Closed,
}

impl EventQueue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event, and wakes the threads that wait for one. Returns the tasks that wait, for the caller to wake:
    /// their code may use the shard, which the caller holds.
    fn push(&self, delivery: Delivery) -> Vec<Waker> {
        self.change(|state| state.waiting.push_back(Box::new(delivery)))
    }

    /// Ends all waiting: no event follows.
    fn close(&self) -> Vec<Waker> {
        self.change(|state| state.is_closed = true)
    }

    fn change(&self, change: impl FnOnce(&mut State)) -> Vec<Waker> {
        let mut state = self.lock();
        change(&mut state);
        let wakers = std::mem::take(&mut state.wakers);
        // While the lock is held: a thread that takes the event makes the descriptor unreadable afterwards.
        if let Some(descriptor) = self.descriptor.get() {
            descriptor.signal();
        }
        drop(state);
        self.arrived.notify_all();
        wakers
    }

    fn take(&self, state: &mut State) -> Option<Awaited> {
        let taken = state.waiting.pop_front();
        if state.waiting.is_empty()
            && !state.is_closed
            && let Some(descriptor) = self.descriptor.get()
        {
            descriptor.clear();
        }
        taken.map(Awaited::Event).or_else(|| state.is_closed.then_some(Awaited::Closed))
    }

    /// Takes an event if one waits.
    pub(crate) fn take_waiting(&self) -> Option<Box<Delivery>> {
        match self.take(&mut self.lock()) {
            Some(Awaited::Event(delivery)) => Some(delivery),
            _ => None,
        }
    }

    /// Waits for an event, at most until `deadline`.
    pub(crate) fn wait(&self, deadline: Option<Instant>) -> Awaited {
        let mut state = self.lock();
        loop {
            if let Some(awaited) = self.take(&mut state) {
                return awaited;
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            state = match left {
                Some(Duration::ZERO) => return Awaited::TimedOut,
                Some(left) => self.arrived.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
                None => self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Takes an event, or has the task woken when one arrives.
    pub(crate) fn poll(&self, waker: &Waker) -> Poll<Awaited> {
        // Before the lock is taken, and after it is released: the code of tasks may use the shard, whose thread may
        // wait for the lock.
        let cloned = waker.clone();
        let mut state = self.lock();
        if let Some(awaited) = self.take(&mut state) {
            return Poll::Ready(awaited);
        }
        if state.wakers.iter().any(|known| known.will_wake(&cloned)) {
            drop(state);
            return Poll::Pending;
        }
        // Tasks that are gone leave their wakers behind. Waking one that waits without an event is harmless.
        let too_many = if state.wakers.len() < MOST_WAKERS { Vec::new() } else { std::mem::take(&mut state.wakers) };
        state.wakers.push(cloned);
        drop(state);
        too_many.into_iter().for_each(Waker::wake);
        Poll::Pending
    }

    /// Returns a descriptor that is readable while events wait.
    pub(crate) fn descriptor(&self) -> io::Result<BorrowedFd<'_>> {
        if self.descriptor.get().is_none() {
            let state = self.lock();
            let created = EventFd::new()?;
            if !state.waiting.is_empty() || state.is_closed {
                created.signal();
            }
            // If two threads race, the second one's is closed.
            let _ = self.descriptor.set(created);
        }
        self.descriptor.get().map(AsFd::as_fd).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Returns whether an event waits.
    #[cfg(test)]
    fn has_events(&self) -> bool {
        !self.lock().waiting.is_empty()
    }
}

/// Maximum number of tasks that wait for one object.
const MOST_WAKERS: usize = 64;
/// Maximum number of requests that wait at a listener. The connection manager's backlog is not larger; but it does not
/// count requests whose senders have given up.
const MOST_REQUESTS: usize = 1_024;

/// The queues of a shard's objects.
#[derive(Default)]
pub(super) struct EventQueues {
    places: Mutex<BTreeMap<Owner, Place>>,
    /// Tasks to wake once the shard is released.
    to_wake: Mutex<Vec<Waker>>,
    /// Whether there are any.
    has_to_wake: AtomicBool,
}

struct Place {
    queue: Arc<EventQueue>,
    /// The listener whose queue has the request that has made the object, until the application takes it.
    waits_at: Option<ListenerHandle>,
}

impl EventQueues {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Owner, Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the queue of an object's events.
    pub(super) fn add(&self, object: Owner, queue: &Arc<EventQueue>) {
        self.lock().insert(object, Place { queue: Arc::clone(queue), waits_at: None });
    }

    /// Notes that the application has taken the request that has made an object.
    pub(super) fn note_taken(&self, object: Owner) {
        if let Some(place) = self.lock().get_mut(&object) {
            place.waits_at = None;
        }
    }

    /// Forgets an object.
    pub(super) fn remove(&self, object: Owner) {
        self.lock().remove(&object);
    }

    /// Brings an event to the queue of its object, or of the listener that a peer's request is for. Returns the object
    /// if it must be destroyed: its request has ended before the application took it, or too many requests wait.
    pub(super) fn deliver(&self, event: Event) -> Option<Owner> {
        let mut places = self.lock();
        let (object, listener) = (event.owner(), event.listener());
        if let Some(listener) = listener {
            let receiver = Arc::clone(&places.get(&listener.into())?.queue);
            if receiver.lock().waiting.len() >= MOST_REQUESTS {
                return Some(object);
            }
            let requested = Arc::<EventQueue>::default();
            places.insert(object, Place { queue: Arc::clone(&requested), waits_at: Some(listener) });
            drop(places);
            self.wake_later(receiver.push(Delivery { event, requested: Some(requested) }));
            return None;
        }
        let place = places.get(&object)?;
        if let Some(listener) = place.waits_at {
            if let Some(receiver) = places.get(&listener.into()) {
                receiver.queue.lock().waiting.retain(|delivery| delivery.event.owner() != object);
            }
            places.remove(&object);
            return Some(object);
        }
        let receiver = Arc::clone(&place.queue);
        drop(places);
        self.wake_later(receiver.push(Delivery { event, requested: None }));
        None
    }

    /// Ends all waiting, because the shard has failed.
    pub(super) fn close(&self) {
        let places = std::mem::take(&mut *self.lock());
        places.into_values().for_each(|place| self.wake_later(place.queue.close()));
    }

    fn wake_later(&self, wakers: Vec<Waker>) {
        if !wakers.is_empty() {
            self.to_wake.lock().unwrap_or_else(PoisonError::into_inner).extend(wakers);
            self.has_to_wake.store(true, Ordering::Release);
        }
    }

    /// Wakes the tasks whose events have arrived. The caller does not hold the shard.
    #[inline]
    pub(super) fn wake_tasks(&self) {
        if self.has_to_wake.load(Ordering::Acquire) {
            self.wake_all();
        }
    }

    #[cold]
    fn wake_all(&self) {
        let wakers = {
            let mut to_wake = self.to_wake.lock().unwrap_or_else(PoisonError::into_inner);
            self.has_to_wake.store(false, Ordering::Release);
            std::mem::take(&mut *to_wake)
        };
        for waker in wakers {
            // A panic of the task's code must not end the thread, which may be the shard's.
            if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
                tracing::error!(
                    target: "rdma_verbs::connection",
                    "the waker of a task that waits for an event of the connection manager panicked"
                );
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;
    use crate::cm::ConnectionHandle;
    use crate::sys::wait_readable;

    fn event() -> Delivery {
        Delivery { event: Event::Established { connection: ConnectionHandle::for_tests(1) }, requested: None }
    }

    fn is_readable(queue: &EventQueue) -> bool {
        wait_readable([queue.descriptor().unwrap()], Some(Duration::ZERO)).unwrap()[0]
    }

    #[test]
    fn descriptor_is_readable_while_events_wait() {
        let queue = EventQueue::default();
        queue.push(event());
        assert!(is_readable(&queue) && queue.has_events());
        queue.push(event());
        assert!(matches!(queue.wait(None), Awaited::Event(_)) && is_readable(&queue));
        assert!(matches!(queue.wait(None), Awaited::Event(_)) && !is_readable(&queue));
        assert!(matches!(queue.wait(Some(Instant::now())), Awaited::TimedOut));
        queue.push(event());
        assert!(is_readable(&queue));
    }

    #[test]
    fn waiting_ends_with_an_event_or_with_the_shard() {
        let queue = EventQueue::default();
        std::thread::scope(|threads| {
            let waits = threads.spawn(|| [queue.wait(None), queue.wait(None), queue.wait(None)]);
            queue.push(event());
            queue.close();
            let [first, second, third] = waits.join().unwrap();
            assert!(matches!(first, Awaited::Event(_)));
            assert!(matches!((second, third), (Awaited::Closed, Awaited::Closed)));
        });
        assert!(is_readable(&queue), "a closed queue never blocks");
    }

    #[test]
    fn all_tasks_that_wait_are_woken_once() {
        struct Count(AtomicU32);
        impl std::task::Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let tasks: Vec<Arc<Count>> = (0..3).map(|_| Arc::new(Count(AtomicU32::new(0)))).collect();
        let wakers: Vec<Waker> = tasks.iter().map(|task| Waker::from(Arc::clone(task))).collect();
        let woken = || -> Vec<u32> { tasks.iter().map(|task| task.0.load(Ordering::Relaxed)).collect() };
        let (queues, queue) = (EventQueues::default(), Arc::<EventQueue>::default());
        queues.add(ConnectionHandle::for_tests(1).into(), &queue);
        wakers.iter().chain(&wakers[..1]).for_each(|waker| assert!(queue.poll(waker).is_pending()));
        assert_eq!(queues.deliver(event().event), None);
        assert_eq!(woken(), [0; 3], "the shard is held");
        queues.wake_tasks();
        queues.wake_tasks();
        assert_eq!(woken(), [1; 3]);
        assert!(queue.poll(&wakers[0]).is_ready() && queue.poll(&wakers[1]).is_pending());
        queues.close();
        queues.wake_tasks();
        assert_eq!(woken(), [1, 2, 1]);
    }

    #[test]
    fn tasks_that_are_gone_do_not_fill_the_queue() {
        let queue = EventQueue::default();
        for _ in 0..3 * MOST_WAKERS {
            let waker = Waker::from(Arc::new(Nothing));
            assert!(queue.poll(&waker).is_pending());
        }
        assert!(queue.lock().wakers.len() <= MOST_WAKERS);
    }

    struct Nothing;

    impl std::task::Wake for Nothing {
        fn wake(self: Arc<Self>) {}
    }

    /// Otherwise a peer could fill the queue of a listener whose application takes nothing.
    #[test]
    fn a_request_that_ends_leaves_the_queue_of_its_listener() {
        let (queues, listener) = (EventQueues::default(), ListenerHandle::for_tests(1));
        let waiting = Arc::<EventQueue>::default();
        queues.add(listener.into(), &waiting);
        let connection = ConnectionHandle::for_tests(2);
        assert_eq!(queues.deliver(Event::request_for_tests(connection, listener)), None);
        assert!(waiting.has_events());
        let end = || Event::Unreachable { connection, unanswered: crate::cm::Unanswered::Answer };
        assert_eq!(queues.deliver(end()), Some(connection.into()));
        assert!(!waiting.has_events() && queues.lock().len() == 1);
        assert_eq!(queues.deliver(Event::request_for_tests(connection, listener)), None);
        let Awaited::Event(delivery) = waiting.wait(None) else { panic!("the request") };
        queues.note_taken(connection.into());
        assert_eq!(queues.deliver(end()), None);
        assert!(delivery.requested.unwrap().has_events());
    }

    #[test]
    fn requests_at_a_listener_are_bounded() {
        let (queues, listener) = (EventQueues::default(), ListenerHandle::for_tests(1));
        let waiting = Arc::<EventQueue>::default();
        queues.add(listener.into(), &waiting);
        let mut deliver = (0..MOST_REQUESTS as u64 + 1)
            .map(|number| queues.deliver(Event::request_for_tests(ConnectionHandle::for_tests(number), listener)));
        assert!(deliver.by_ref().take(MOST_REQUESTS).all(|destroyed| destroyed.is_none()));
        assert_eq!(deliver.next(), Some(Some(ConnectionHandle::for_tests(MOST_REQUESTS as u64).into())));
    }
}
