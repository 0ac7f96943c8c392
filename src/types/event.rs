//! Asynchronous events of a device.

use super::{Qpn, SharedReceiveQueueNumber};

/// Something that happened without a request of its own. Names are those of `ibv_event_type`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// The queue pair went to the error state through a fault of its own completion queue or memory.
    QueuePairFatal(Qpn),
    /// A peer's request broke the protocol.
    QueuePairRequestError(Qpn),
    /// A peer's request was refused for its key, bounds or rights.
    QueuePairAccessError(Qpn),
    /// The first packet arrived on a queue pair that is ready to receive but not yet to send.
    CommunicationEstablished(Qpn),
    /// The send queue has drained.
    SendQueueDrained(Qpn),
    /// A queue pair that takes its receives from a shared receive queue went to the error state: it takes no more, and
    /// all that it took have completed.
    LastWorkQueueElementReached(Qpn),
    /// Fewer receives wait in the shared receive queue than the limit that was armed. The limit is disarmed now.
    SharedReceiveQueueLimitReached(SharedReceiveQueueNumber),
    /// The completion queue overflowed; its number is the one it was created with.
    CompletionQueueError(u32),
    /// The port's interface came up.
    PortActive(u8),
    /// The port's interface went down.
    PortError(u8),
    /// The port's addresses changed.
    GidChange(u8),
}
