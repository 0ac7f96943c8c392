//! Asynchronous verbs, for tokio (feature `tokio`).
//!
//! | | |
//! |---|---|
//! | [`QueuePair`] | requests are futures: `send(buffer).await` returns the result and the buffer |
//! | [`CompletionQueue`] | the task that wakes them |
//! | [`SharedReceiveQueue`] | receives for the messages of several queue pairs |
//! | [`Messages`] | received messages, as a stream |
//! | [`AsyncEvents`] | a device's asynchronous events, as a stream |
//! | [`CompletionBatches`] | completions of the [verbs tier](crate::verbs), a batch at a time |
//!
//! ```text
//!  task ── qp.send(buffer).await ──►  posted  ──►  device
//!   ▲                                               │
//!   └── (result, buffer) ◄── task of CompletionQueue┘  sleeps on the completion channel
//! ```
//!
//! # Which form of receiving
//!
//! | | |
//! |---|---|
//! | `qp.recv(buffer).await` | a protocol in which each side knows whose turn it is |
//! | [`QueuePair::messages`] | a stream of messages, with as many posted receives as the sender may be ahead |
//! | [`SharedReceiveQueue::messages`] | the same, for a server with many connections |
//! | [`CompletionBatches`] | memory of the [verbs tier](crate::verbs), completions by the batch: the least overhead |
//!
//! A sender that is ahead of the posted receives is slowed down, not failed, as long as its `rnr_retry` is 7, the
//! default.
//!
//! # Order, cancellation, errors
//!
//! Requests of a queue pair are executed in the order in which their futures are first polled: `join!` posts in the
//! order of its arguments, tasks in any order. Order and visibility otherwise are those of the [verbs
//! tier](crate::verbs#order-and-visibility).
//!
//! A dropped future does not stop a posted request; see [`QueuePair`](QueuePair#cancellation). A timeout is therefore
//! `tokio::time::timeout(limit, qp.send(buffer))`, after which the buffer returns to its pool by itself.
//!
//! A future returns [`RequestError::Refused`] if its request was not posted, [`RequestError::Failed`] if it failed, and
//! the buffer in each case. The first failure moves the queue pair to the error state, and all its futures end with a
//! flush error; [`QueuePair::explain`] says why the first one failed.
//!
//! Buffers are those of the [owned tier](crate::owned). Regardless of what is dropped or cancelled, a buffer is
//! returned or freed only when the device has finished with it. The module works on current-thread and multi-thread
//! runtimes; several tasks may share a queue pair, and a task may use several.
//!
//! A runtime does not survive a `fork`: its threads, and therefore the tasks that wake these futures, exist only in the
//! parent. A child may create a runtime and open devices itself; it must neither use nor drop inherited objects of this
//! module, as with those of tokio.
//!
//! # Example
//!
//! [`verbs::cm`](crate::verbs::cm) connects queue pairs of this module with futures of its own;
//! `examples/cm_echo_async.rs` is a server with many connections.
//!
//! ```
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! # runtime.block_on(async {
//! use rdma_verbs::asynchronous::{CompletionQueue, QueuePair};
//! use rdma_verbs::owned::BufferPool;
//! use rdma_verbs::verbs;
//!
//! let context = verbs::open("soft:127.0.1.111")?;
//! let pd = context.alloc_pd()?;
//! let cq = CompletionQueue::new(&context, 64)?;
//! let qp = QueuePair::new(&pd, &cq)?;
//! qp.connect(&qp.connection_info()?)?; // to itself
//! let pool = BufferPool::new(&pd, 1 << 20)?;
//! let mut messages = qp.messages(&pool, 4096, 16)?;
//!
//! let (sent, _buffer) = qp.send(pool.copy_from(b"hello")?).await;
//! sent?;
//! let message = messages.next().await.expect("the queue pair is well")?;
//! assert_eq!(*message.buffer, *b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod batch;
mod batches;
mod cells;
mod completion_queue;
mod datagram;
mod events;
mod into_request_buffer;
mod messages;
mod notifier;
mod operations;
mod queue_pair;
mod shared_receive;

pub use batches::CompletionBatches;
pub use completion_queue::CompletionQueue;
pub use events::AsyncEvents;
pub use into_request_buffer::IntoRequestBuffer;
pub use messages::{Message, Messages};
pub use queue_pair::{QueuePair, QueuePairOptions};
pub use shared_receive::SharedReceiveQueue;

use crate::verbs::{CompletionError, Error};

/// Reason why a request did not succeed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// It was not posted.
    #[error(transparent)]
    Refused(#[from] Error),
    /// It was posted and failed.
    #[error(transparent)]
    Failed(#[from] CompletionError),
}

const _: () = {
    const fn send_and_sync<T: Send + Sync>() {}
    send_and_sync::<QueuePair>();
    send_and_sync::<SharedReceiveQueue>();
    send_and_sync::<QueuePairOptions>();
    send_and_sync::<CompletionQueue>();
    send_and_sync::<CompletionBatches>();
    send_and_sync::<Messages>();
    send_and_sync::<AsyncEvents>();
    send_and_sync::<RequestError>();
};
