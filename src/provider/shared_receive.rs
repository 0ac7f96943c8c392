//! Shared receive queues and the domains of extended reliable connections, as providers offer them.

use std::any::Any;
use std::sync::Arc;

use super::{CompletionQueue, Result};
use crate::types::{
    BatchEnd, ReceiveRequest, SharedReceiveQueueAttributes, SharedReceiveQueueNumber, SharedReceiveQueueStatus,
};

/// What a new shared receive queue shall be.
pub struct SharedReceiveQueueInit<'a> {
    /// Receives that it holds at least.
    pub max_wr: u32,
    /// Scatter-gather entries of a receive at least.
    pub max_sge: u32,
    /// The limit that is armed from the beginning; 0: none.
    pub srq_limit: u32,
    /// For messages of extended reliable connections.
    pub xrc: Option<XrcReceives<'a>>,
}

/// What a shared receive queue of an extended reliable connection needs besides.
#[derive(Clone, Copy)]
pub struct XrcReceives<'a> {
    /// The domain whose targets may use it.
    pub domain: &'a Arc<dyn XrcDomain>,
    /// Where its receives complete.
    pub cq: &'a Arc<dyn CompletionQueue>,
}

/// A shared receive queue.
///
/// Receives are posted in batches as to a queue pair; see [`QueuePair`](super::QueuePair).
pub trait SharedReceiveQueue: Send + Sync {
    /// Its number.
    fn number(&self) -> SharedReceiveQueueNumber;

    /// Changes its size, its limit or both, all or nothing.
    fn modify(&self, attributes: &SharedReceiveQueueAttributes) -> Result<()>;

    /// Its sizes and its limit as they are now.
    fn query(&self) -> Result<SharedReceiveQueueStatus>;

    /// Begins a batch of receives.
    fn recv_begin(&self);

    /// Copies a receive into the batch.
    fn recv_push(&self, request: &ReceiveRequest<'_>) -> Result<()>;

    /// Ends the batch.
    fn recv_end(&self, end: BatchEnd) -> Result<()>;

    /// Takes it out of the device; what was posted is forgotten. [`ErrorKind::Busy`](super::ErrorKind::Busy) while
    /// queue pairs take their receives from it. Destroying again does nothing.
    fn destroy(&self) -> Result<()>;

    /// For the provider that made it.
    fn as_any(&self) -> &dyn Any;
}

/// A domain of extended reliable connections: its targets use the shared receive queues that were created in it.
pub trait XrcDomain: Send + Sync {
    /// For the provider that made it.
    fn as_any(&self) -> &dyn Any;
}
