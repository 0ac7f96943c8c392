//! RDMA verbs for Rust, with or without the hardware.
//!
//! Open a device on an address of this machine, with no kernel module and no root, and move memory with verbs to any
//! RoCEv2 peer: another process with this crate, Linux' Soft-RoCE (`rxe`), a real adapter.
//!
//! # Where to begin
//!
//! * [`verbs`] is the safe API: start with [`verbs::open`] and the table of names at the top of that module.
//!   `examples/rdma_write.rs` is the shortest whole program.
//! * [`owned`] is the same with buffers that move into requests and come back.
//! * [`types`] is the vocabulary: numbers, attributes, counters, as plain data.
//! * [`provider`] is what a device must fulfil: for those who write one, or bind another language.
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

// First, so that its macros are known below.
#[cfg(all(target_arch = "x86_64", target_pointer_width = "64", not(any(loom, miri, rdma_verbs_sanitize))))]
#[macro_use]
mod recoverable;

#[cfg(all(feature = "tokio", not(loom)))]
pub mod asynchronous;
#[doc(hidden)]
pub mod checksum;
mod engine;
#[cfg(feature = "sim")]
#[doc(hidden)]
pub use engine::{inbox_message, registry_file};
pub mod memory;
pub mod owned;
pub mod provider;
#[doc(hidden)]
pub mod queue;
#[cfg(feature = "sim")]
#[doc(hidden)]
pub mod sim;
#[doc(hidden)]
pub mod transport;
pub mod types;
pub mod verbs;
#[doc(hidden)]
pub mod wire;

#[cfg(feature = "sim")]
#[doc(hidden)]
pub use engine::capture_file;

/// The program in the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
