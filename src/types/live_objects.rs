//! Counts of the objects of a device.

/// Counts of the live objects of one opened device, as shown by `rdma resource show`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct LiveObjects {
    /// Queue pairs.
    pub queue_pairs: u32,
    /// Completion queues.
    pub completion_queues: u32,
    /// Shared receive queues.
    pub shared_receive_queues: u32,
    /// Registered memory regions.
    pub memory_regions: u32,
    /// Memory windows.
    pub memory_windows: u32,
    /// Protection domains.
    pub protection_domains: u32,
    /// Domains of extended reliable connections.
    pub xrc_domains: u32,
    /// Address handles.
    pub address_handles: u32,
}

impl LiveObjects {
    /// Returns the sum of all counts.
    pub const fn total(&self) -> u32 {
        self.queue_pairs
            + self.completion_queues
            + self.shared_receive_queues
            + self.memory_regions
            + self.memory_windows
            + self.protection_domains
            + self.xrc_domains
            + self.address_handles
    }
}
