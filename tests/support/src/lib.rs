//! The common parts of the test programs: ends of connections, processes, requests of the connection
//! manager, a counting allocator, and a collector of events.

pub mod allocator;
mod end;
pub mod events;
pub mod node;
pub mod process;
pub mod requests;

use std::time::Duration;

pub use end::{End, complete_one, open_without_shared_memory, poll_one};

use rdma_verbs::types::AccessFlags;

/// Time limit for waits in tests, longer than anything in a test takes.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// Local and remote access of every kind.
pub const ALL_ACCESS: AccessFlags = AccessFlags::REMOTE.union(AccessFlags::LOCAL_WRITE);

/// Returns the number of entries of a directory.
pub fn entries(directory: &str) -> usize {
    std::fs::read_dir(directory).unwrap().count()
}
