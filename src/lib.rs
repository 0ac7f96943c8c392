//! RDMA verbs for Rust, with or without the hardware.
#![warn(missing_docs)]

pub mod types;
pub mod wire;
