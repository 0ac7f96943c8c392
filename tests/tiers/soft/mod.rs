//! The software device end to end, over the loopback interface.

mod device;
mod errors;
mod events;
mod operations;
mod paths;
mod threads;
mod used;
