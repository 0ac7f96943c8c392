//! The public tiers on the software device, over loopback: providers, verbs, owned buffers, asynchronous verbs.

mod api;
mod connection_manager;
mod owned;
#[cfg(all(feature = "tokio", not(loom)))]
mod owned_async;
#[cfg(all(feature = "tokio", not(loom)))]
mod owned_async_batches;
#[cfg(all(feature = "tokio", not(loom)))]
mod owned_async_datagrams;
#[cfg(all(feature = "tokio", not(loom)))]
mod owned_async_requests;
#[cfg(all(feature = "tokio", not(loom)))]
mod owned_async_srq;
mod owned_batches;
mod owned_datagrams;
mod owned_reports;
mod owned_requests;
mod owned_srq;
mod soft;
