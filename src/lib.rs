//! RDMA verbs for Rust, with or without RDMA hardware.
//!
//! Opens a device on any address of this machine, without a kernel module or root privileges, and exchanges data with
//! any RoCEv2 peer: another process that uses this crate, Linux Soft-RoCE (`rxe`), or a hardware adapter.
//!
//! # Where to begin
//!
//! * [`verbs`] is the safe API: start with [`verbs::open`] and the table of names at the top of that module.
//!   `examples/rdma_write.rs` is the shortest complete program.
//! * [`owned`] offers the same verbs with owned buffers, which move into requests and come back with their completions.
//! * `asynchronous` (feature `tokio`) turns requests into futures.
//! * [`types`] holds the shared vocabulary as plain data: numbers, attributes, counters.
//! * [`provider`] defines the traits that a device implements. Use it to write a provider, or bindings for another
//!   language.
//!
//! # The life of a connection
//!
//! 1. [`verbs::open`] a device; call [`alloc_pd`](verbs::Context::alloc_pd) and
//!    [`create_cq`](verbs::Context::create_cq) on it, then [`create_qp`](verbs::ProtectionDomain::create_qp) with both.
//! 2. Register memory with [`alloc_mr`](verbs::ProtectionDomain::alloc_mr) or
//!    [`reg_mr`](verbs::ProtectionDomain::reg_mr).
//! 3. Exchange [`ConnectionInfo`](verbs::ConnectionInfo) with the peer over any stream, then call
//!    [`connect`](verbs::QueuePair::connect); or connect by address and port with [`verbs::cm`].
//! 4. Post requests that refer to ranges of regions with [`post_recv`](verbs::QueuePair::post_recv) and
//!    [`post_send`](verbs::QueuePair::post_send); [`poll`](verbs::CompletionQueue::poll) for their completions.
//! 5. Drop everything, in any order.
#![warn(missing_docs)]

// First, because the modules below use its macros.
#[cfg(all(target_arch = "x86_64", target_pointer_width = "64", not(any(loom, miri, rdma_verbs_sanitize))))]
#[macro_use]
mod recoverable;

/// Declares modules that are public only with the feature `sim`.
macro_rules! inner_modules {
    ($($name:ident)*) => { $(
        #[cfg(feature = "sim")]
        #[doc(hidden)]
        pub mod $name;
        #[cfg(not(feature = "sim"))]
        #[allow(unreachable_pub)]
        mod $name;
    )* };
}

inner_modules! { checksum cm memory queue transport wire }

#[cfg(all(feature = "tokio", not(loom)))]
pub mod asynchronous;
mod engine;
#[cfg(feature = "sim")]
#[doc(hidden)]
pub use engine::{inbox_message, link_offer, registry_file, statistics_page};
pub mod monitor;
pub mod owned;
pub mod provider;
#[cfg(feature = "sim")]
#[doc(hidden)]
pub mod sim;
mod sys;
pub mod types;
pub mod verbs;

#[cfg(feature = "sim")]
#[doc(hidden)]
pub use engine::capture_file;

/// Compiles and runs the README's program as a doc test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
