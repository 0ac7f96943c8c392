//! Owned tier: registered buffers that move into requests and come back with their completions.
//!
//! A thin layer over [`verbs`](crate::verbs). There, memory is shared with the device and with peers, so it is never a
//! slice. Here, a [`Buffer`] has one owner at a time: the application reads and writes it like a `&mut [u8]`, without a
//! copy; once posted, it is inaccessible until the request is finished.
//!
//! | | |
//! |---|---|
//! | [`BufferPool`] | registered buffers in size classes; dropped buffers return to it |
//! | [`Buffer`] | one of them, or a `Vec<u8>`, `Box<[u8]>` or `BytesMut` that was moved in |
//! | [`FileBuffer`] | part of a file; bytes are copied in and out |
//! | [`Request`] | an operation and its buffer, if it needs one |
//! | [`QueuePair`] | posts requests and receives |
//! | [`SharedReceiveQueue`] | receives for the messages of several queue pairs |
//! | [`CompletionQueue`] | returns [`Finished`] requests, with their buffers |
//!
//! ```text
//!  BufferPool ── take ──►  Buffer: a slice  ── Request::send ──►  post_send
//!      ▲                       ▲                                      │
//!      │ drop                  │ into_buffer                in flight, no access
//!      └───────────────────────┴──── Finished ◄── CompletionQueue ◄───┘
//! ```
//!
//! # Which tier
//!
//! Take this one for messages that the program builds and parses in place: no offsets to manage, no memory in use by
//! accident. Take [`verbs`](crate::verbs) for memory that peers access, for several ranges in one request, and for
//! XRC; both may be used with one [`ProtectionDomain`](crate::verbs::ProtectionDomain). With many connections, take
//! `asynchronous`, which has the same buffers.
//!
//! # Guarantees
//!
//! Buffers of one queue come back in posting order: with their completion; with the completion of a later request, if
//! they were unsignaled; with errors and flushes; from [`QueuePair::reset`] and [`QueuePair::destroy`]. Those of a
//! [`SharedReceiveQueue`] come back in any order, from the completion queue of the queue pair that took them. Dropping
//! a queue pair drops its buffers. Memory is returned or freed only when the device has finished with it, even on panic
//! or `mem::forget`; the worst case is a leak. Posting and polling allocate nothing.
//!
//! Peers cannot access buffers. For memory that peers read and write, use a
//! [`MemoryRegion`](crate::verbs::MemoryRegion).
//!
//! Order and visibility are those of the [verbs tier](crate::verbs#order-and-visibility). A request is unsignaled
//! unless [`Request::signaled`] is called; its buffer comes back with that of the next signaled one.
//!
//! # Errors
//!
//! A request that is refused returns its buffer in the error ([`Refused`]). A request that fails returns it with its
//! completion: [`Finished::result`] is the error, [`Finished::into_buffer`] the buffer. All requests behind it come
//! back flushed. [`QueuePair::explain`] says why. [`QueuePair::reset`] and [`QueuePair::destroy`] return all buffers in
//! flight.
//!
//! # Example
//!
//! ```
//! # use std::time::Duration;
//! use rdma_verbs::owned::{BufferPool, CompletionQueue, QueuePair, Request};
//! use rdma_verbs::verbs;
//!
//! let context = verbs::open("soft:127.0.1.105")?;
//! let pd = context.alloc_pd()?;
//! let cq = CompletionQueue::new(&context, 16)?;
//! let qp = QueuePair::new(&pd, &cq, &cq)?;
//! qp.connect(&qp.connection_info()?)?; // to itself
//!
//! let pool = BufferPool::new(&pd, 1 << 20)?;
//! qp.post_recv(pool.take(64)?, 1)?;
//! qp.post_send(Request::send(pool.copy_from(b"ping")?).wr_id(2))?;
//!
//! // The send is unsignaled: its buffer stays with the queue pair until a later one completes.
//! let received = cq.wait(Duration::from_secs(10))?;
//! assert_eq!(*received.into_buffer()?, *b"ping");
//! assert_eq!(qp.buffers_in_flight(), (1, 0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod batch;
mod buffer;
mod completion_queue;
mod datagram;
mod exclusive;
mod finished;
mod in_flight;
mod ledger;
mod memory_window;
mod pool;
mod queue_pair;
mod request;
mod shared_receive;
#[cfg(all(test, not(loom)))]
mod tests;

pub use batch::PartlyPosted;
pub use buffer::{Buffer, FileBuffer, Refused};
pub use completion_queue::CompletionQueue;
#[cfg(all(feature = "tokio", not(loom)))]
pub(crate) use datagram::{payload, route_header};
pub use finished::{Finished, NoBuffer};
#[cfg(feature = "sim")]
#[doc(hidden)]
pub use ledger::{OrderedLedger, UnorderedLedger};
pub use pool::{BufferPool, PoolStats};
pub use queue_pair::{QueuePair, QueuePairOptions};
pub use request::{Request, RequestBuffer};
pub use shared_receive::{SharedReceiveQueue, SharedReceiveQueueOptions};

const _: () = {
    const fn send_and_sync<T: Send + Sync>() {}
    send_and_sync::<Buffer>();
    send_and_sync::<FileBuffer>();
    send_and_sync::<BufferPool>();
    send_and_sync::<Request>();
    send_and_sync::<Finished>();
    send_and_sync::<CompletionQueue>();
    send_and_sync::<QueuePair>();
    send_and_sync::<QueuePairOptions>();
    send_and_sync::<SharedReceiveQueue>();
};
