//! Asynchronous events on their way from endpoints to the application.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;

use super::Notify;
use super::sync::{Mutex, lock};
use crate::types::AsyncEvent;

struct State {
    events: VecDeque<AsyncEvent>,
    capacity: usize,
    lost: u64,
}

/// The asynchronous events of a device that nobody has read yet: bounded, oldest first.
pub struct AsyncEventQueue {
    state: Mutex<State>,
    notify: Option<Arc<dyn Notify>>,
}

impl AsyncEventQueue {
    /// What [`Notify::notify`] is called with for events, in place of a completion queue's number.
    pub const NOTIFY_ID: u32 = u32::MAX;

    /// A queue for `capacity` events. `notify` hears [`AsyncEventQueue::NOTIFY_ID`] for every event added.
    pub fn new(capacity: u32, notify: Option<Arc<dyn Notify>>) -> Arc<Self> {
        let capacity = capacity as usize;
        let state = State { events: VecDeque::with_capacity(capacity), capacity, lost: 0 };
        Arc::new(Self { state: Mutex::new(state), notify })
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

    /// Takes the oldest event.
    pub fn poll(&self) -> Option<AsyncEvent> {
        lock(&self.state).events.pop_front()
    }

    /// Removes the events for which `is_stale` holds, because their object is going away; returns how many. It is
    /// called with the queue locked.
    pub fn discard(&self, mut is_stale: impl FnMut(&AsyncEvent) -> bool) -> usize {
        let mut state = lock(&self.state);
        let before = state.events.len();
        state.events.retain(|event| !is_stale(event));
        before - state.events.len()
    }

    /// Events that wait.
    pub fn len(&self) -> usize {
        lock(&self.state).events.len()
    }

    /// Whether no event waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Events lost because the queue was full.
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
    fn events_of_an_object_can_be_discarded() {
        let queue = AsyncEventQueue::new(4, None);
        let event = |number| AsyncEvent::QueuePairFatal(Qpn::new(number));
        [1, 2, 1].into_iter().for_each(|number| assert!(queue.push(event(number))));
        assert_eq!(queue.discard(|queued| *queued == event(1)), 2);
        assert_eq!(queue.poll(), Some(event(2)));
        assert!(queue.is_empty());
    }
}
