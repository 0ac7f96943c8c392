//! Asynchronous events that are acknowledged after they are handled.

use std::fmt;
use std::ops::Deref;

use super::{AsyncEvent, Context};

/// An asynchronous event that has not been acknowledged yet, returned by [`Context::take_async_event`]. Dropping it
/// acknowledges it (`ibv_ack_async_event`).
///
/// No verb waits for acknowledgements by itself: destroying the object of an event returns immediately even while the
/// event is held, because an event is a number and holds no reference. Use [`Context::wait_events_acked`] to wait until
/// all holders have acknowledged their events about an object. Events that were not taken before their object is
/// destroyed are discarded.
///
/// ```
/// use std::time::Duration;
/// use rdma_verbs::types::EventObject;
/// # use rdma_verbs::verbs::{self, AsyncEvent, ErrorKind, Payload, ReceiveRequest, RegionList, SendRequest};
/// # let context = verbs::open("soft:127.0.1.114")?;
/// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(1)?);
/// # let qp = pd.create_qp(&cq, &cq)?;
/// # qp.connect(&qp.connection_info()?)?; // to itself
/// # qp.post_recv(&[ReceiveRequest::new(RegionList::EMPTY)])?;
/// # qp.post_send(&[SendRequest::send(Payload::EMPTY).signaled()])?; // two completions, room for one
/// let event = loop {
///     if let Some(event) = context.take_async_event() {
///         break event;
///     }
/// #   std::thread::sleep(Duration::from_millis(1));
/// };
/// assert_eq!(*event, AsyncEvent::CompletionQueueError(cq.number()));
/// let queue = EventObject::CompletionQueue(cq.number());
/// let error = context.wait_events_acked(queue, Duration::from_millis(1)).unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::TimedOut);
/// drop(event);
/// context.wait_events_acked(queue, Duration::from_millis(1))?;
/// # Ok::<(), verbs::Error>(())
/// ```
#[doc(alias = "ibv_ack_async_event")]
pub struct UnacknowledgedEvent {
    context: Context,
    event: AsyncEvent,
}

impl UnacknowledgedEvent {
    pub(super) fn new(context: Context, event: AsyncEvent) -> Self {
        Self { context, event }
    }
}

impl Deref for UnacknowledgedEvent {
    type Target = AsyncEvent;

    fn deref(&self) -> &AsyncEvent {
        &self.event
    }
}

impl Drop for UnacknowledgedEvent {
    fn drop(&mut self) {
        self.context.inner().ack_async_event(&self.event);
    }
}

impl fmt::Debug for UnacknowledgedEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("UnacknowledgedEvent").field(&self.event).finish()
    }
}
