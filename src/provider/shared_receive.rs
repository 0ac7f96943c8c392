//! Provider traits of shared receive queues and XRC domains.

use std::any::Any;
use std::sync::Arc;

use super::{CompletionQueue, Result};
use crate::types::{
    BatchEnd, ReceiveRequest, SharedReceiveQueueAttributes, SharedReceiveQueueNumber, SharedReceiveQueueStatus,
};

/// Options for creating a shared receive queue.
pub struct SharedReceiveQueueInit<'a> {
    /// Minimum number of receives that it holds.
    pub max_wr: u32,
    /// Minimum number of scatter-gather entries of a receive.
    pub max_sge: u32,
    /// Limit that is armed at creation; 0: none.
    pub srq_limit: u32,
    /// XRC options, for messages of extended reliable connections.
    pub xrc: Option<XrcReceives<'a>>,
}

/// Further options of a shared receive queue for XRC.
#[derive(Clone, Copy)]
pub struct XrcReceives<'a> {
    /// The domain whose targets may use it.
    pub domain: &'a Arc<dyn XrcDomain>,
    /// Completion queue of its receives.
    pub cq: &'a Arc<dyn CompletionQueue>,
}

/// A shared receive queue.
///
/// Receives are posted in batches, as for a queue pair; see [`QueuePair`](super::QueuePair).
pub trait SharedReceiveQueue: Send + Sync {
    /// Returns the queue's number.
    fn number(&self) -> SharedReceiveQueueNumber;

    /// Changes the queue's size, its limit or both, all or nothing.
    fn modify(&self, attributes: &SharedReceiveQueueAttributes) -> Result<()>;

    /// Returns the current sizes and limit.
    fn query(&self) -> Result<SharedReceiveQueueStatus>;

    /// Begins a batch of receives.
    fn recv_begin(&self);

    /// Copies a receive into the batch.
    fn recv_push(&self, request: &ReceiveRequest<'_>) -> Result<()>;

    /// Ends the batch.
    fn recv_end(&self, end: BatchEnd) -> Result<()>;

    /// Destroys the queue and drops its posted receives. [`ErrorKind::Busy`](super::ErrorKind::Busy) while queue pairs
    /// take their receives from it. Destroying again does nothing.
    fn destroy(&self) -> Result<()>;

    /// Returns the object for downcasting by the provider that created it.
    fn as_any(&self) -> &dyn Any;
}

/// An XRC domain: its XRC targets use the shared receive queues that were created in it.
pub trait XrcDomain: Send + Sync {
    /// Returns the object for downcasting by the provider that created it.
    fn as_any(&self) -> &dyn Any;
}
