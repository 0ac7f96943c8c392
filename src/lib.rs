//! RDMA verbs for Rust, with or without RDMA hardware.
//!
//! Opens a device on any address of this machine, without a kernel module or root privileges, and exchanges data with
//! any RoCEv2 peer: another process that uses this crate, Linux Soft-RoCE (`rxe`), or a hardware adapter.
//!
//! # First transfer
//!
//! One process, two devices on two loopback addresses. On two machines, each runs its half.
//!
//! ```
//! use std::time::Duration;
//! use rdma_verbs::verbs::{self, AccessFlags, SendRequest};
//!
//! // The server: memory that peers may write.
//! let server = verbs::open("soft:127.0.1.116")?;
//! let (pd, cq) = (server.alloc_pd()?, server.create_cq(16)?);
//! let server_qp = pd.create_qp(&cq, &cq)?;
//! let page = pd.alloc_mr(4096, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE)?;
//!
//! // The client: memory with the message.
//! let client = verbs::open("soft:127.0.1.117")?;
//! let (pd, cq) = (client.alloc_pd()?, client.create_cq(16)?);
//! let client_qp = pd.create_qp(&cq, &cq)?;
//! let message = pd.alloc_mr(5, AccessFlags::LOCAL_WRITE)?;
//! message.write_at(0, b"hello")?;
//!
//! // The ends exchange their connection info; the client also needs the page's address and key.
//! server_qp.connect(&client_qp.connection_info()?)?;
//! client_qp.connect(&server_qp.connection_info()?)?;
//! client_qp.post_send(&[SendRequest::write(&message, page.remote()).signaled()])?;
//! cq.wait(Duration::from_secs(10))?.result()?;
//!
//! // The server did nothing, and has the bytes.
//! assert_eq!(page.to_vec(..5)?, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Modules
//!
//! ```text
//!   asynchronous      requests are futures (tokio)
//!        │
//!      owned          buffers move into requests and come back
//!        │
//!      verbs ── cm    all verbs, memory is shared; connections by address and port
//!        │      │
//!     provider ─┘     the traits of a device
//!      │     │
//!    soft  ibverbs    UDP sockets or shared memory; adapters through libibverbs
//! ```
//!
//! | module | for | memory | waiting |
//! |---|---|---|---|
//! | [`verbs`] | all that a device can do | regions, shared with device and peers | polls, waits, descriptors |
//! | [`verbs::cm`] | connecting by address and port | | blocking, descriptors, futures |
//! | [`owned`] | messages without copies | buffers: slices while the program has them | the same as `verbs` |
//! | `asynchronous` (feature `tokio`) | many connections | the same buffers | `.await` |
//! | [`types`] | numbers, attributes, statuses, counters | | |
//! | [`provider`] | writing providers and bindings | keys and addresses | |
//! | [`provider::soft`] | the software device: names, options, captures | | |
//! | [`monitor`] | watching processes from outside: statistics, captures | | |
//!
//! All tiers may be used together: `owned` and `asynchronous` use the [`Context`](verbs::Context), the
//! [`ProtectionDomain`](verbs::ProtectionDomain) and the [`MemoryRegion`](verbs::MemoryRegion) of `verbs`, and `cm`
//! connects the queue pairs of each. Names in C lead to theirs here: search for `ibv_post_send`.
//!
//! # Features
//!
//! | feature | default | adds |
//! |---|---|---|
//! | `ibverbs` | yes | adapters of this machine, through libibverbs; it is loaded on first use and may be missing |
//! | `bytes` | | `owned::Buffer` from `BytesMut` |
//! | `tokio` | | module `asynchronous`; includes `bytes` |
//! | `sim` | | a simulator and the inner layers, for tests of this crate; not stable |
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
#![cfg_attr(docsrs, feature(doc_cfg))]

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

#[cfg(doctest)]
mod guide;
