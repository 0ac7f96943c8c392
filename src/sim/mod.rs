//! Endpoints on a virtual clock, joined by links that lose, duplicate, reorder, delay and corrupt packets.
//!
//! Everything follows from one seed: no clock is read, no thread is started, and random numbers come from [`Random`]
//! alone (except the keys of memory regions, on which no decision depends).
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod bottleneck;
mod delays;
mod forger;
mod host;
mod link;
mod machine;
mod network;
mod random;
mod shared_memory;
mod streams;
mod tcp;

pub use bottleneck::{Bottleneck, Discipline};
pub use delays::Delays;
pub use host::{Bell, Connection, Host, Port, PortInit};
pub use link::Faults;
pub use machine::Socket;
pub use network::{Network, Record, Sighting};
pub use random::Random;
pub use streams::{Stream, StreamId};
pub use tcp::{Growth, TcpConfig};
