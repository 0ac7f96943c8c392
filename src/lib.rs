//! RDMA verbs for Rust, with or without the hardware.
#![warn(missing_docs)]

pub mod memory;
pub mod queue;
pub mod transport;
pub mod types;
pub mod wire;
