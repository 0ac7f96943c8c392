//! The software device end to end, over the loopback interface.

mod common;
mod device;
mod errors;
mod events;
mod operations;
mod threads;
mod used;
