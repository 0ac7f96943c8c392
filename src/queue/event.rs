//! Asynchronous events on their way from endpoints to the application.
#![forbid(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::Notify;
use super::sync::{Condvar, Mutex, lock};
use crate::types::{AsyncEvent, EventObject};

/// Number of events that a new queue has room for. Events are rare; the queue grows if there are more.
const FIRST_EVENTS: usize = 64;

struct State {
    events: VecDeque<AsyncEvent>,
    capacity: usize,
    lost: u64,
    /// Number of events handed out and not acknowledged, by object.
    handed_out: HashMap<EventObject, u32>,
}

/// The unread asynchronous events of a device: bounded, oldest first.
pub struct AsyncEventQueue {
    state: Mutex<State>,
    /// Signaled when the last event of an object is acknowledged.
    acknowledged: Condvar,
    notify: Option<Arc<dyn Notify>>,
}

impl AsyncEventQueue {
    /// The number that [`Notify::notify`] is called with for events, instead of a completion queue's.
    pub const NOTIFY_ID: u32 = u32::MAX;

    /// Creates a queue for `capacity` events. `notify` is called with [`AsyncEventQueue::NOTIFY_ID`] for every event
    /// added.
    pub fn new(capacity: u32, notify: Option<Arc<dyn Notify>>) -> Arc<Self> {
        let capacity = capacity as usize;
        let events = VecDeque::with_capacity(capacity.min(FIRST_EVENTS));
        let state = State { events, capacity, lost: 0, handed_out: HashMap::new() };
        Arc::new(Self { state: Mutex::new(state), acknowledged: Condvar::new(), notify })
    }

    /// Adds an event, then notifies. If the queue is full the event is lost and counted; returns whether it was added.
    pub fn push(&self, event: AsyncEvent) -> bool {
        let mut state = lock(&self.state);
        if state.events.len() == state.capacity {
            state.lost += 1;
            return false;
        }
        state.events.push_back(event);
        drop(state);
        if let Some(notify) = &self.notify {
            notify.notify(Self::NOTIFY_ID);
        }
        true
    }

    /// Takes the oldest event and acknowledges it at once.
    pub fn poll(&self) -> Option<AsyncEvent> {
        lock(&self.state).events.pop_front()
    }

    /// Takes the oldest event, which the caller must [acknowledge](Self::acknowledge).
    pub fn take(&self) -> Option<AsyncEvent> {
        let mut state = lock(&self.state);
        let event = state.events.pop_front()?;
        *state.handed_out.entry(event.object()).or_default() += 1;
        Some(event)
    }

    /// Acknowledges an event that was taken. Acknowledging more events than were taken does nothing.
    pub fn acknowledge(&self, event: &AsyncEvent) {
        let mut state = lock(&self.state);
        let object = event.object();
        let Some(count) = state.handed_out.get_mut(&object) else { return };
        *count -= 1;
        if *count == 0 {
            state.handed_out.remove(&object);
            // While the queue is locked: a waiter may drop the queue as soon as it is unlocked.
            self.acknowledged.notify_all();
        }
    }

    /// Returns whether all events about `object` are acknowledged. If not, first waits up to `limit` (`None`: forever)
    /// until the last event of any object is acknowledged.
    pub fn wait_acknowledged(&self, object: EventObject, limit: Option<Duration>) -> bool {
        let mut state = lock(&self.state);
        if state.handed_out.contains_key(&object) {
            state = match limit {
                Some(limit) => self.acknowledged.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0,
                None => self.acknowledged.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
        !state.handed_out.contains_key(&object)
    }

    /// Removes the events for which `is_stale` holds, because their object is being destroyed; returns how many.
    /// `is_stale` is called with the queue locked.
    pub fn discard(&self, mut is_stale: impl FnMut(&AsyncEvent) -> bool) -> usize {
        let mut state = lock(&self.state);
        let before = state.events.len();
        state.events.retain(|event| !is_stale(event));
        before - state.events.len()
    }

    /// Number of waiting events.
    pub fn len(&self) -> usize {
        lock(&self.state).events.len()
    }

    /// Whether no event waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of events lost because the queue was full.
    #[cfg(feature = "sim")]
    pub fn lost(&self) -> u64 {
        lock(&self.state).lost
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicU32 as Counter;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::types::Qpn;

    struct Bell(Counter);

    impl Notify for Bell {
        fn notify_within(&self, _: u32, _: std::time::Duration, _: u32) {
            unreachable!("events are not moderated");
        }

        fn notify(&self, completion_queue: u32) {
            assert_eq!(completion_queue, AsyncEventQueue::NOTIFY_ID);
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn events_come_out_in_order_and_losses_are_counted() {
        let bell = Arc::new(Bell(Counter::new(0)));
        let queue = AsyncEventQueue::new(2, Some(bell.clone()));
        assert!(queue.is_empty() && queue.poll().is_none());
        assert!(queue.push(AsyncEvent::PortActive(1)));
        assert!(queue.push(AsyncEvent::GidChange(1)));
        assert!(!queue.push(AsyncEvent::PortError(1)));
        assert_eq!((queue.len(), queue.lost(), bell.0.load(Relaxed)), (2, 1, 2));
        assert_eq!(queue.poll(), Some(AsyncEvent::PortActive(1)));
        assert_eq!(queue.poll(), Some(AsyncEvent::GidChange(1)));
        assert_eq!(queue.poll(), None);
    }

    #[test]
    fn acknowledgements_are_counted_for_each_object() {
        let queue = AsyncEventQueue::new(1_000, None);
        let (one, other) = (AsyncEvent::QueuePairFatal(Qpn::new(1)), AsyncEvent::QueuePairFatal(Qpn::new(2)));
        let established = AsyncEvent::CommunicationEstablished(Qpn::new(1));
        [one, other, established, one].into_iter().for_each(|event| assert!(queue.push(event)));
        let soon = Some(Duration::from_millis(5));
        let taken: Vec<AsyncEvent> = std::iter::from_fn(|| queue.take()).collect();
        assert_eq!(taken, [one, other, established, one]);
        queue.acknowledge(&one);
        queue.acknowledge(&established);
        assert!(!queue.wait_acknowledged(one.object(), soon));
        let waiter = Arc::clone(&queue);
        let waiting = std::thread::spawn(move || while !waiter.wait_acknowledged(one.object(), None) {});
        queue.acknowledge(&one);
        waiting.join().unwrap();
        queue.acknowledge(&one);
        assert!(!queue.wait_acknowledged(other.object(), soon));
        queue.acknowledge(&other);
        assert!(queue.wait_acknowledged(other.object(), None));
        assert!(queue.push(one) && queue.poll() == Some(one));
        assert!(queue.wait_acknowledged(one.object(), None), "polled is acknowledged");
    }

    #[test]
    fn events_of_an_object_can_be_discarded() {
        let queue = AsyncEventQueue::new(4, None);
        let event = |number| AsyncEvent::QueuePairFatal(Qpn::new(number));
        [1, 2, 1].into_iter().for_each(|number| assert!(queue.push(event(number))));
        assert_eq!(queue.discard(|queued| *queued == event(1)), 2);
        assert_eq!(queue.poll(), Some(event(2)));
        assert!(queue.is_empty());
    }
}
