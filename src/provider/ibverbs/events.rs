//! Asynchronous events. They are taken from the library and acknowledged there at once, so that destroying an object
//! never waits for the program. A queue of this crate keeps them, and counts those that the program has taken.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::device::Device;
use super::sys;
use crate::queue::AsyncEventQueue;
use crate::sys::{Epoll, EventFd, Interest};
use crate::types::{AsyncEvent, CompletionQueueNumber, EventObject, Qpn};

/// Maximum number of pending events; the kernel holds no more for a process that does not read.
const MAX_EVENTS: u32 = 1 << 16;

/// The device's asynchronous events, and the descriptor that signals them.
pub(super) struct Events {
    queue: Arc<AsyncEventQueue>,
    /// Readable while events wait in the queue.
    waiting: EventFd,
    /// Readable while `waiting` is, or while the kernel has an event.
    set: Epoll,
    /// One thread moves events at a time, so that they keep their order.
    moving: Mutex<()>,
}

impl Events {
    pub(super) fn new(context: &sys::Context) -> io::Result<Self> {
        let (set, waiting) = (Epoll::new()?, EventFd::new()?);
        set.add(waiting.as_fd(), Interest::Readable)?;
        set.add(context.async_descriptor(), Interest::Readable)?;
        Ok(Self { queue: AsyncEventQueue::new(MAX_EVENTS, None), waiting, set, moving: Mutex::default() })
    }

    /// Moves the kernel's events to the queue.
    pub(super) fn pump(&self, device: &Device) {
        let _moving = self.moving();
        self.move_all(device);
    }

    fn moving(&self) -> MutexGuard<'_, ()> {
        self.moving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves the kernel's events; the caller holds `moving`.
    fn move_all(&self, device: &Device) {
        for _ in 0..MAX_EVENTS {
            let Some(event) = device.sys.next_event() else { return };
            if let Some(event) = translate(device, &event) {
                // Events of a queue that is being dropped are discarded.
                if let AsyncEvent::CompletionQueueError(number) = event
                    && !device.note_overflow(number.value())
                {
                    continue;
                }
                self.queue.push(event);
                self.waiting.signal();
            }
        }
    }

    /// Takes an event with `take`, and clears the descriptor if none is left.
    pub(super) fn next(
        &self,
        device: &Device,
        take: impl FnOnce(&AsyncEventQueue) -> Option<AsyncEvent>,
    ) -> Option<AsyncEvent> {
        let _moving = self.moving();
        self.move_all(device);
        let event = take(&self.queue);
        if self.queue.is_empty() {
            self.waiting.clear();
        }
        event
    }

    pub(super) fn queue(&self) -> &AsyncEventQueue {
        &self.queue
    }

    /// Removes the events about an object that is gone.
    pub(super) fn discard(&self, device: &Device, object: EventObject) {
        let _moving = self.moving();
        self.move_all(device);
        if self.queue.discard(|event| event.object() == object) > 0 && self.queue.is_empty() {
            self.waiting.clear();
        }
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }
}

/// Converts an event, by the numbers of `ibv_event_type`. `None` for types that this crate does not have.
fn translate(device: &Device, event: &sys::Event) -> Option<AsyncEvent> {
    let port = |number: u32| u8::try_from(number).unwrap_or(0);
    match (event.event_type, &event.source) {
        (0, sys::EventSource::CompletionQueue(number)) => {
            Some(AsyncEvent::CompletionQueueError(CompletionQueueNumber::new(*number as u32)))
        }
        (1, sys::EventSource::QueuePair(qpn)) => Some(AsyncEvent::QueuePairFatal(Qpn::new(*qpn))),
        (2, sys::EventSource::QueuePair(qpn)) => Some(AsyncEvent::QueuePairRequestError(Qpn::new(*qpn))),
        (3, sys::EventSource::QueuePair(qpn)) => Some(AsyncEvent::QueuePairAccessError(Qpn::new(*qpn))),
        (4, sys::EventSource::QueuePair(qpn)) => Some(AsyncEvent::CommunicationEstablished(Qpn::new(*qpn))),
        (5, sys::EventSource::QueuePair(qpn)) => Some(AsyncEvent::SendQueueDrained(Qpn::new(*qpn))),
        (16, sys::EventSource::QueuePair(qpn)) => Some(AsyncEvent::LastWorkQueueElementReached(Qpn::new(*qpn))),
        (8, _) => Some(AsyncEvent::DeviceFatal),
        (9, sys::EventSource::Port(number)) => Some(AsyncEvent::PortActive(port(*number))),
        (10, sys::EventSource::Port(number)) => Some(AsyncEvent::PortError(port(*number))),
        (11, sys::EventSource::Port(number)) => Some(AsyncEvent::LidChange(port(*number))),
        (12, sys::EventSource::Port(number)) => Some(AsyncEvent::PkeyChange(port(*number))),
        (13, sys::EventSource::Port(number)) => Some(AsyncEvent::SubnetManagerChange(port(*number))),
        (17, sys::EventSource::Port(number)) => Some(AsyncEvent::ClientReregister(port(*number))),
        (18, sys::EventSource::Port(number)) => Some(AsyncEvent::GidChange(port(*number))),
        (14, sys::EventSource::SharedReceiveQueue(number)) => {
            device.shared_receive_number(*number).map(AsyncEvent::SharedReceiveQueueError)
        }
        (15, sys::EventSource::SharedReceiveQueue(number)) => {
            device.shared_receive_number(*number).map(AsyncEvent::SharedReceiveQueueLimitReached)
        }
        (other, _) => {
            tracing::info!(
                target: "rdma_verbs::device", event = other, device = device.name(), "unknown asynchronous event"
            );
            None
        }
    }
}
