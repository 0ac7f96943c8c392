//! The engine: the only module that does I/O, reads the clock and runs threads.
//!
//! # Drivers
//!
//! A [`Shard`] is a lock around one endpoint, its sockets and its deadlines. **The thread that holds the shard drives
//! it**: a thread that posts, a thread that polls, a thread that a completion channel woke, a control verb, or the
//! shard's own thread if no other one does. See `driver` for what each may do, `shard_lock` for the lock, `lease` and
//! `thread` for how the shard's thread leaves the sockets to pollers, `idle` for the back-off of an idle poller.
//!
//! # Locks
//!
//! Locks are taken in this order, each optional: the list of opened sockets, the shard, the map of port groups, a port
//! group or the region table's read side, a completion queue, a channel's state, a capture's buffer, a journal. No
//! thread ever holds two shards or two port groups. Nothing calls back into the application while it holds a shard.

mod capture;
mod drive;
mod net;
mod share;

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

pub(crate) use capture::Capture;
#[cfg(feature = "sim")]
pub use capture::capture_file;
pub(crate) use drive::{Awaited, Channel, Connections, CqNotifier, Delivery, Doorbell, EventQueue, Shard, ShardConfig};
pub(crate) use net::{Capabilities, Group, LinkListener, SocketSizes, probe};
pub(crate) use share::{
    CaptureNews, CaptureOutcome, CaptureRequest, Failure, Finder, Found, Monitored, OpenCapture, OpenWatch, Port,
    PortError, PortRequest, QpnBlocks, RegisteredPeer, Room, StartedCapture, register_monitored, registered_peer,
    steer_requests,
};
#[cfg(feature = "sim")]
pub use share::{inbox_message, link_offer, registry_file, statistics_page};

use crate::sys::{self, Generation, OpenError};
use crate::types::CaptureOptions;

/// All shards of a device, and their threads.
pub(crate) struct Engine {
    shards: Vec<Arc<Shard>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    name: String,
    generation: Generation,
    /// Those that end with the engine, after the shards' sockets: writing a file may take any time.
    captures: Vec<Arc<Capture>>,
}

impl Engine {
    /// Creates an engine without running threads; `name` names its threads.
    pub(crate) fn new(name: &str, shards: Vec<Shard>) -> Self {
        let shards = shards.into_iter().map(Arc::new).collect();
        Self {
            shards,
            threads: Mutex::default(),
            name: name.to_owned(),
            generation: Generation::now(),
            captures: Vec::new(),
        }
    }

    /// Returns the shards.
    pub(crate) fn shards(&self) -> &[Arc<Shard>] {
        &self.shards
    }

    /// Starts a capture of the packets of all shards; `device` is the device name in the file.
    pub(crate) fn start_capture(&self, options: &CaptureOptions, device: &str) -> Result<Arc<Capture>, OpenError> {
        let capture = Arc::new(Capture::start(options, device)?);
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
            threads.push(drive::start_thread(Arc::clone(shard), name)?);
        }
        Ok(())
    }
}

impl Drop for Engine {
    /// Ends the connections, the threads, each after at most one bounded pass, the sockets and the captures.
    fn drop(&mut self) {
        if !self.generation.is_current() {
            // The threads belong to the parent process.
            return std::mem::forget(std::mem::take(&mut self.threads));
        }
        self.shards.iter().for_each(|shard| shard.finish_disconnects());
        let signalled: Vec<bool> = self.shards.iter().map(|shard| drive::end_thread(shard)).collect();
        let threads = std::mem::take(self.threads.get_mut().unwrap_or_else(PoisonError::into_inner));
        for (thread, is_signalled) in threads.into_iter().zip(signalled) {
            sys::end_thread(thread, is_signalled);
        }
        // Neither ends with the shards: the mailbox's thread may hold one for a moment longer than the program runs.
        self.shards.iter().for_each(|shard| shard.close_receivers());
        self.captures = self.shards.iter().flat_map(|shard| shard.take_captures()).collect();
        // Also if others have a reference.
        capture::close(&self.captures);
        self.shards.iter().for_each(|shard| shard.emit_last_events());
        if let Some(device) = self.shards.first().map(|shard| shard.device()) {
            tracing::info!(target: "rdma_verbs::device", device, "closed");
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sys::LocalAddress;
    use crate::types::ROCE_PORT;

    #[test]
    fn sockets_end_with_the_engine_while_a_shard_is_held() {
        let address = LocalAddress { ip: "127.77.0.41".parse().unwrap(), scope: 0 };
        let engine = Engine::new("test", vec![drive::tests::shard()]);
        let held = Arc::clone(&engine.shards()[0]);
        held.open_management(address).unwrap();
        assert!(!share::holders(address.ip, ROCE_PORT).is_empty());
        drop(engine);
        assert_eq!(share::holders(address.ip, ROCE_PORT), []);
    }
}
