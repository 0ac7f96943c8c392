//! Extension traits of devices that handle their packets in software: captures, reports, descriptors as exact as an
//! adapter's. The core traits return them.
#![forbid(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use super::{CompletionChannel, Result};
use crate::types::{CaptureOptions, CaptureSummary, LiveObjects, PathReport, QueuePairReport, SharedMemory};

/// An open device that handles its packets in software: [`Context::software`](super::Context::software).
pub trait SoftwareContext: Send + Sync {
    /// Creates a completion channel whose descriptor is readable only while an event is pending, like an adapter's: for
    /// programs that check the descriptor and then block for the event that it signals.
    fn create_exact_comp_channel(&self) -> Result<Arc<dyn CompletionChannel>>;

    /// Returns a descriptor that is readable only while an asynchronous event is pending, like an adapter's. The device
    /// starts a thread for it, which listens to the system's notifications about its interface.
    fn exact_async_fd(&self) -> Result<BorrowedFd<'_>>;

    /// Returns the numbers of live objects.
    fn live_objects(&self) -> Result<LiveObjects>;

    /// Returns reports on the paths of the device's queue pairs.
    fn path_reports(&self) -> Vec<PathReport>;

    /// Returns whether it shares memory with other processes.
    fn shared_memory(&self) -> SharedMemory;

    /// Starts a capture of the device's packets.
    fn start_capture(&self, options: &CaptureOptions) -> Result<Box<dyn Capture>>;
}

/// A queue pair whose packets are handled in software: [`QueuePair::software`](super::QueuePair::software).
pub trait SoftwareQueuePair: Send + Sync {
    /// Stops taking receives from the shared queue, before a queue pair that uses one goes to RESET or is destroyed;
    /// completions that exist can be polled before they are removed. Returns the `wr_id` of the receive that a message
    /// had begun to fill, if there is one: it never completes, and nothing accesses its memory any more. Without this
    /// verb, the receive's memory stays in use until the shared queue is destroyed.
    fn stop_receiving(&self) -> Result<Option<u64>>;

    /// Returns what the queue pair knows about itself and its peer, for explanations.
    fn report(&self) -> Result<QueuePairReport>;
}

/// A capture of a device's packets into a file. Dropping it ends the capture.
pub trait Capture: Send + Sync {
    /// Returns the path of the file.
    fn path(&self) -> &Path;

    /// Returns a summary of the capture so far.
    fn summary(&self) -> CaptureSummary;

    /// Ends the capture. The file is complete when this returns. Stopping again does nothing.
    fn stop(&self) -> Result<CaptureSummary>;
}
