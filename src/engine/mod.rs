//! The engine: the only place that does I/O, reads the clock and runs threads.
//!
//! # Who drives
//!
//! A [`Shard`] is a lock around one endpoint, its sockets and its deadlines. **Whoever holds the shard drives it**: a
//! thread that posts, a thread that polls, a thread that a completion channel woke, a control verb, or the shard's own
//! thread when nobody else comes. See `driver` for what each may do, `shard_lock` for the lock, `lease` and `thread`
//! for how the shard's thread keeps out of the way, `idle` for what a poller does when there is nothing.
//!
//! # Locks
//!
//! In this order, each optional: the list of opened sockets, the shard, the registry of port groups or the region
//! table's read side, a completion queue, a channel's state, a capture's buffer. No two shards are ever held by one
//! thread. Nothing calls back into the application.

mod capture;
mod drive;
mod net;
mod share;
mod sys;

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

pub(crate) use capture::Capture;
#[cfg(feature = "sim")]
pub use capture::capture_file;
pub(crate) use drive::{Announcing, Channel, Doorbell, Shard, ShardConfig};
pub(crate) use net::{Capabilities, Group, LinkListener, SocketSizes, probe};
pub(crate) use share::{QpnBlocks, RegisteredPeer, registered_peer};
#[cfg(feature = "sim")]
pub use share::{inbox_message, registry_file};
#[cfg(any(test, feature = "ibverbs"))]
pub(crate) use sys::wait_readable;
pub(crate) use sys::{
    Epoll, EventFd, Generation, Interest, LinkState, LinkWatch, LocalAddress, OpenError, link_megabits, link_state,
    timestamp, variable,
};

use crate::types::CaptureConfig;

/// All shards of a device, and their threads.
pub(crate) struct Engine {
    shards: Vec<Arc<Shard>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    name: String,
    generation: Generation,
}

impl Engine {
    /// An engine at rest; `name` is for its threads.
    pub(crate) fn new(name: &str, shards: Vec<Shard>) -> Self {
        let shards = shards.into_iter().map(Arc::new).collect();
        Self { shards, threads: Mutex::default(), name: name.to_owned(), generation: Generation::now() }
    }

    /// The shards.
    pub(crate) fn shards(&self) -> &[Arc<Shard>] {
        &self.shards
    }

    /// Begins a capture of what passes all shards; `device` is the name that it is given.
    pub(crate) fn start_capture(&self, config: &CaptureConfig, device: &str) -> Result<Arc<Capture>, OpenError> {
        let capture = Arc::new(Capture::start(config, device)?);
        self.shards.iter().for_each(|shard| shard.add_capture(&capture));
        Ok(capture)
    }

    /// Lets nothing more pass to a capture. It has not ended yet.
    pub(crate) fn detach_capture(&self, capture: &Arc<Capture>) {
        self.shards.iter().for_each(|shard| shard.remove_capture(capture));
    }

    /// Starts the shards' threads, unless they run.
    pub(crate) fn start(&self) -> io::Result<()> {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, shard) in self.shards.iter().enumerate().skip(threads.len()) {
            // The kernel shows the first 15 bytes.
            let name = format!("rdma{index}-{}", self.name);
            threads.push(drive::start_thread(Arc::clone(shard), name)?);
        }
        Ok(())
    }
}

impl Drop for Engine {
    /// Ends the threads. Each is at most one bounded pass away from seeing that it shall end.
    fn drop(&mut self) {
        if !self.generation.is_current() {
            // The threads are the parent's.
            return std::mem::forget(std::mem::take(&mut self.threads));
        }
        let told = self.shards.iter().map(|shard| drive::end_thread(shard));
        let told: Vec<bool> = told.collect();
        let threads = std::mem::take(self.threads.get_mut().unwrap_or_else(PoisonError::into_inner));
        for (thread, is_told) in threads.into_iter().zip(told) {
            sys::end_thread(thread, is_told);
        }
    }
}
