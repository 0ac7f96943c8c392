//! The engine: the only module that does I/O, reads the clock and runs threads.
//!
//! # Drivers
//!
//! A [`Shard`] is a lock around one endpoint, its sockets and its deadlines. **The thread that holds the shard drives
//! it**: a thread that posts, a thread that polls, a thread that a completion channel woke, a control verb, or the
//! shard's own thread if no other one does. See `driver` for what each may do, `shard_lock` for the lock, `lease` and
//! `thread` for how the shard's thread keeps out of the way, `idle` for the back-off of an idle poller.
//!
//! # Locks
//!
//! Locks are taken in this order, each optional: the list of opened sockets, the shard, the registry of port groups or
//! the region table's read side, a completion queue, a channel's state, a capture's buffer. No thread ever holds two
//! shards. Nothing calls back into the application.

mod attendance;
mod capture;
mod channel;
mod clock;
mod contention;
mod doorbell;
mod driver;
mod held;
mod idle;
mod inbound;
mod lease;
mod link;
mod link_listener;
mod mailbox;
mod multicast;
mod path_errors;
mod paths;
mod port_group;
mod port_holder;
mod process;
mod qpn_block;
mod registry;
mod shard;
mod shard_lock;
mod steering;
mod sys;
mod thread;
mod udp;
mod wake;

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

pub(crate) use capture::Capture;
#[cfg(feature = "sim")]
pub use capture::capture_file;
pub(crate) use channel::{Announcing, Channel};
pub(crate) use clock::timestamp;
pub(crate) use doorbell::Doorbell;
pub(crate) use link_listener::LinkListener;
#[cfg(feature = "sim")]
pub use mailbox::inbox_message;
pub(crate) use multicast::Group;
pub(crate) use port_group::{RegisteredPeer, registered_peer};
pub(crate) use qpn_block::QpnBlocks;
#[cfg(feature = "sim")]
pub use registry::registry_file;
pub(crate) use shard::{Shard, ShardConfig};
#[cfg(any(test, feature = "ibverbs"))]
pub(crate) use sys::wait_readable;
pub(crate) use sys::{Epoll, EventFd, Generation, Interest, LinkState, LinkWatch, link_megabits, link_state, variable};
pub(crate) use udp::{Capabilities, LocalAddress, OpenError, SocketSizes, probe};

use crate::types::CaptureConfig;

/// All shards of a device, and their threads.
pub(crate) struct Engine {
    shards: Vec<Arc<Shard>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    name: String,
    generation: Generation,
}

impl Engine {
    /// Creates an engine without running threads; `name` names its threads.
    pub(crate) fn new(name: &str, shards: Vec<Shard>) -> Self {
        let shards = shards.into_iter().map(Arc::new).collect();
        Self { shards, threads: Mutex::default(), name: name.to_owned(), generation: Generation::now() }
    }

    /// Returns the shards.
    pub(crate) fn shards(&self) -> &[Arc<Shard>] {
        &self.shards
    }

    /// Starts a capture of the packets of all shards; `device` is the device name in the file.
    pub(crate) fn start_capture(&self, config: &CaptureConfig, device: &str) -> Result<Arc<Capture>, OpenError> {
        let capture = Arc::new(Capture::start(config, device)?);
        self.shards.iter().for_each(|shard| shard.add_capture(&capture));
        Ok(capture)
    }

    /// Detaches a capture from all shards. This does not end it.
    pub(crate) fn detach_capture(&self, capture: &Arc<Capture>) {
        self.shards.iter().for_each(|shard| shard.remove_capture(capture));
    }

    /// Starts the shards' threads that are not running.
    pub(crate) fn start(&self) -> io::Result<()> {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, shard) in self.shards.iter().enumerate().skip(threads.len()) {
            // The kernel shows the first 15 bytes.
            let name = format!("rdma{index}-{}", self.name);
            threads.push(thread::start(Arc::clone(shard), name)?);
        }
        Ok(())
    }
}

/// Waits for a thread that was signalled to end. A thread that could not be signalled sleeps on.
fn end_thread(thread: JoinHandle<()>, is_told: bool) {
    if is_told {
        // A thread that panicked has already reported it.
        let _ = thread.join();
    } else {
        tracing::warn!("a thread keeps sleeping: the program has closed the descriptor that wakes it");
    }
}

impl Drop for Engine {
    /// Ends the threads. Each is at most one bounded pass away from noticing it.
    fn drop(&mut self) {
        if !self.generation.is_current() {
            // The threads are the parent's.
            return std::mem::forget(std::mem::take(&mut self.threads));
        }
        let told = self.shards.iter().map(|shard| {
            shard.stop.store(true, Ordering::Release);
            shard.wake.call()
        });
        let told: Vec<bool> = told.collect();
        let threads = std::mem::take(self.threads.get_mut().unwrap_or_else(PoisonError::into_inner));
        for (thread, is_told) in threads.into_iter().zip(told) {
            end_thread(thread, is_told);
        }
    }
}

#[cfg(all(test, not(loom)))]
pub(crate) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::memory::RegionTable;
    use crate::queue::AsyncEventQueue;
    use crate::types::{CongestionAlgorithm, PeerCapabilities};

    /// A shard without queue pairs.
    pub(super) fn shard() -> Shard {
        let config = ShardConfig {
            blocks: QpnBlocks::lease(1, 1).unwrap(),
            capabilities: PeerCapabilities::STRANGER,
            sizes: SocketSizes { receive_bytes: 1 << 20, send_bytes: 1 << 20 },
            max_queue_pairs: 16,
            max_segments: 64,
            ack_hold: Duration::from_micros(50),
            congestion: CongestionAlgorithm::default(),
            max_bytes_per_second: None,
            reorder_budget: Arc::default(),
            events: AsyncEventQueue::new(16, None),
        };
        Shard::new(config, Arc::new(RegionTable::new(16))).unwrap()
    }
}
