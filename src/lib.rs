//! RDMA verbs for Rust, with or without the hardware.
//!
//! Opens a device on any address of this machine, without a kernel module or root, and exchanges memory with any RoCEv2
//! peer: another process that uses this crate, Linux Soft-RoCE (`rxe`), or a hardware adapter.
//!
//! # Where to begin
//!
//! * [`verbs`] is the safe API: start with [`verbs::open`] and the table of names at the top of that module.
//!   `examples/rdma_write.rs` is the shortest complete program.
//! * [`owned`] offers the same verbs with owned buffers, which move into requests and come back with their completions.
//! * `asynchronous` (feature `tokio`) makes requests futures.
//! * [`types`] holds the shared vocabulary as plain data: numbers, attributes, counters.
//! * [`provider`] defines the traits that a device implements. Use it to write a provider, or bindings for another
//!   language.
//!
//! # The life of a connection
//!
//! 1. [`verbs::open`] a device; [`alloc_pd`](verbs::Context::alloc_pd) and [`create_cq`](verbs::Context::create_cq) on
//!    it; [`create_qp`](verbs::ProtectionDomain::create_qp) from both.
//! 2. Register memory: [`alloc_mr`](verbs::ProtectionDomain::alloc_mr), [`reg_mr`](verbs::ProtectionDomain::reg_mr).
//! 3. Exchange [`ConnectionInfo`](verbs::ConnectionInfo) with the peer over any stream, and
//!    [`connect`](verbs::QueuePair::connect).
//! 4. [`post_recv`](verbs::QueuePair::post_recv) and [`post_send`](verbs::QueuePair::post_send) requests that name
//!    ranges of regions; [`poll`](verbs::CompletionQueue::poll) for their completions.
//! 5. Drop everything, in any order.
#![warn(missing_docs)]

// First, because the modules below use its macros.
#[cfg(all(target_arch = "x86_64", target_pointer_width = "64", not(any(loom, miri, rdma_verbs_sanitize))))]
#[macro_use]
mod recoverable;

/// Declares modules that are open with the feature `sim` only.
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

inner_modules! { checksum queue transport wire }

#[cfg(all(feature = "tokio", not(loom)))]
pub mod asynchronous;
mod engine;
#[cfg(feature = "sim")]
#[doc(hidden)]
pub use engine::{inbox_message, registry_file};
pub mod memory;
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
