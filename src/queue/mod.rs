//! Queues: where the application and the engine meet.
//!
//! Posting threads put requests into a [`SendQueue`] or [`ReceiveQueue`]; the queue pair's endpoint holds the other end
//! ([`SendConsumer`], [`ReceiveConsumer`]) and puts its results into a [`CompletionQueue`], which polling threads read.
//! Everything is allocated at creation: posting, taking, completing and polling never allocate.
//!
//! # Lifecycle of a slot
//!
//! Requests are numbered from the creation of their queue. Four numbers that only grow divide the ring:
//!
//! ```text
//!  free | finished, completion not polled | at the endpoint | batch being posted | free
//!       released                          retired           published            tail
//! ```
//!
//! The producer writes a slot only before publishing and after release; the endpoint reads it only between publishing
//! and retiring. A send slot is free again when its completion, or that of a later request, was *polled*: then
//! [`CompletionQueue::poll`] releases the slots up to [`RawCompletion::retired`](crate::types::RawCompletion::retired).
//! A receive slot is free when the endpoint takes the request.
//!
//! # Locks
//!
//! The producer lock of a queue is held by the posting thread between `begin` and `end`, across calls. The only lock
//! taken under it is the mutex of a [`SharedReceiveQueue`]. A completion queue's mutex is a leaf: releasing slots takes
//! no lock, and [`Notify::notify`] is called after the mutex is released. The mutex of a [`SharedReceiveQueue`], from
//! which queue pairs of several shards take requests, is also a leaf: it is held while one request is copied, or while
//! a resize copies all of them, and the limit event is raised after it is released. The mutex of an [`XrcDomain`]
//! guards only its table.
//!
//! Only `ring.rs` contains `unsafe`. No sequence of calls, with any numbers, writes a slot while it can be read.
#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod completion;
mod event;
mod journal;
mod producer_lock;
mod receive;
#[allow(unsafe_code)]
mod ring;
mod send;
mod shared_receive;
mod source;
mod sync;
mod xrc_domain;

#[cfg(all(test, loom))]
mod loom_models;
#[cfg(all(test, loom))]
mod loom_shared_receive;
#[cfg(all(test, not(loom)))]
mod model_test;

use std::time::Duration;

use thiserror::Error;

#[cfg(feature = "sim")]
pub use completion::TooSmall;
pub use completion::{CompletionQueue, Overflow};
pub use event::AsyncEventQueue;
pub use journal::Journal;
pub(crate) use journal::note_later;
#[cfg(feature = "ibverbs")]
pub(crate) use producer_lock::ProducerLock;
pub(crate) use producer_lock::thread_token;
pub use receive::{ReceiveConsumer, ReceiveQueue};
#[cfg(feature = "ibverbs")]
pub(crate) use send::check_request;
pub use send::{SendConsumer, SendHeader, SendQueue};
pub use shared_receive::{ChangeError, NotTaken, SharedReceiveInit, SharedReceiveQueue};
pub use source::SourceToken;
pub use xrc_domain::XrcDomain;

/// Most requests that a send or receive queue may be created for.
pub const MAX_DEPTH: u32 = 1 << 24;
/// Most scatter-gather entries that the requests of a queue may be created for.
pub const MAX_SGES: u32 = u8::MAX as u32;

/// Receives notifications that a completion queue or the event queue has a new entry.
pub trait Notify: Send + Sync {
    /// Notifies that the queue with this number has a new entry. Called once per arming, by the thread that added it,
    /// with no lock of this module held.
    fn notify(&self, completion_queue: u32);

    /// Reports that the completion queue with this number holds completions whose notification is delayed, by at most
    /// `period`. When it has passed, call [`CompletionQueue::end_moderation`] with the number of this gathering. Called
    /// like [`Notify::notify`], once per gathering.
    fn notify_within(&self, completion_queue: u32, period: Duration, gathering: u32);
}

/// Why a request was not queued.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum QueueError {
    /// The calling thread has no batch open on this queue.
    #[error("no batch was begun by this thread")]
    NotBegun,
    /// All slots are in use, including those whose completions were not polled yet.
    #[error("the queue is full: all {limit} requests are outstanding; poll completions first")]
    Full {
        /// Number of requests that fit.
        limit: u32,
    },
    /// The scatter-gather list is too long.
    #[error("{given} scatter-gather entries; at most {limit} are allowed")]
    TooManySges {
        /// Entries given.
        given: usize,
        /// Entries allowed.
        limit: u32,
    },
    /// The inline data is too long.
    #[error("{given} bytes of inline data; at most {limit} are allowed")]
    InlineTooLong {
        /// Bytes given.
        given: u64,
        /// Bytes allowed.
        limit: u32,
    },
    /// The message is longer than the protocol allows (IBTA C9-94).
    #[error("a message of {given} bytes; at most {limit} are allowed")]
    MessageTooLong {
        /// Bytes given.
        given: u64,
        /// Bytes allowed.
        limit: u32,
    },
    /// A datagram needs a destination.
    #[error("a datagram queue pair needs a destination in each request: an address handle, remote_qpn and remote_qkey")]
    NoDestination,
    /// Only datagrams have a destination of their own.
    #[error("an address handle was given, but the queue pair is connected: its requests go to its one peer")]
    DestinationNotAllowed,
    /// READ and atomics return data and need registered memory for it.
    #[error("READ and atomic requests cannot be inline")]
    InlineNotAllowed,
    /// An atomic's scatter-gather list must hold exactly eight bytes.
    #[error("an atomic request needs room for exactly 8 bytes")]
    BadAtomicLength,
    /// A FLUSH or a local operation was given a message.
    #[error("length is {given} bytes; this operation carries none")]
    DataNotAllowed {
        /// Length of the message.
        given: u64,
    },
}
