//! Asynchronous events of a device.

use super::{CompletionQueueNumber, Qpn, SharedReceiveQueueNumber};

/// An asynchronous event, independent of any request. Names are those of `ibv_event_type`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// The queue pair went to the error state because of a fault in its own completion queue or memory.
    QueuePairFatal(Qpn),
    /// A peer's request violated the protocol.
    QueuePairRequestError(Qpn),
    /// A peer's request was refused for its key, bounds or access.
    QueuePairAccessError(Qpn),
    /// The first packet arrived on a queue pair that is ready to receive but not yet to send.
    CommunicationEstablished(Qpn),
    /// The send queue has drained (IBTA 10.3.1).
    SendQueueDrained(Qpn),
    /// A queue pair with a shared receive queue went to the error state: it takes no more receives, and all that it
    /// took have completed.
    LastWorkQueueElementReached(Qpn),
    /// Fewer receives wait in the shared receive queue than the armed limit. The limit is now disarmed.
    SharedReceiveQueueLimitReached(SharedReceiveQueueNumber),
    /// The shared receive queue failed: no queue pair takes receives from it any more.
    SharedReceiveQueueError(SharedReceiveQueueNumber),
    /// The completion queue overflowed.
    CompletionQueueError(CompletionQueueNumber),
    /// The port's interface came up.
    PortActive(u8),
    /// The port's interface went down.
    PortError(u8),
    /// The port's addresses changed.
    GidChange(u8),
    /// The subnet manager gave the port another LID (InfiniBand).
    LidChange(u8),
    /// The port's P_Key table changed.
    PkeyChange(u8),
    /// Another subnet manager took over (InfiniBand).
    SubnetManagerChange(u8),
    /// The subnet manager requests that clients register again (InfiniBand).
    ClientReregister(u8),
    /// The device failed because of an internal error. All its queue pairs are unusable.
    DeviceFatal,
}

/// The object that an event concerns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum EventObject {
    /// A queue pair.
    QueuePair(Qpn),
    /// A shared receive queue.
    SharedReceiveQueue(SharedReceiveQueueNumber),
    /// A completion queue.
    CompletionQueue(CompletionQueueNumber),
    /// A port.
    Port(u8),
    /// The whole device.
    Device,
}

impl AsyncEvent {
    /// Returns the object that the event concerns.
    ///
    /// ```
    /// use rdma_verbs::types::{AsyncEvent, EventObject, Qpn};
    ///
    /// let event = AsyncEvent::QueuePairFatal(Qpn::new(7));
    /// assert_eq!(event.object(), EventObject::QueuePair(Qpn::new(7)));
    /// ```
    pub const fn object(&self) -> EventObject {
        match *self {
            Self::QueuePairFatal(qpn)
            | Self::QueuePairRequestError(qpn)
            | Self::QueuePairAccessError(qpn)
            | Self::CommunicationEstablished(qpn)
            | Self::SendQueueDrained(qpn)
            | Self::LastWorkQueueElementReached(qpn) => EventObject::QueuePair(qpn),
            Self::SharedReceiveQueueLimitReached(number) | Self::SharedReceiveQueueError(number) => {
                EventObject::SharedReceiveQueue(number)
            }
            Self::CompletionQueueError(number) => EventObject::CompletionQueue(number),
            Self::PortActive(port)
            | Self::PortError(port)
            | Self::GidChange(port)
            | Self::LidChange(port)
            | Self::PkeyChange(port)
            | Self::SubnetManagerChange(port)
            | Self::ClientReregister(port) => EventObject::Port(port),
            Self::DeviceFatal => EventObject::Device,
        }
    }
}
