//! Driving: which thread works on a shard's endpoint and sockets, and when.
//!
//! See `driver` for what each driver may do, `shard_lock` for the lock, `thread` for the shard's thread, `idle` for
//! pollers that find nothing, and `policy` for the rules that both follow.
#![forbid(unsafe_code)]

mod bells;
mod channel;
mod connection_log;
mod connections;
mod core;
mod disconnects;
mod doorbell;
mod driver;
mod emission;
mod event_queue;
mod groups;
mod held_acks;
mod idle;
mod memory_path;
mod policy;
mod shard;
mod shard_lock;
mod statistics;
mod thread;
mod wake;

pub(crate) use channel::{Channel, CqNotifier};
pub(crate) use connections::Connections;
pub(crate) use doorbell::Doorbell;
pub(crate) use event_queue::{Awaited, Delivery, EventQueue};
pub(crate) use shard::{Shard, ShardConfig};
pub(super) use thread::{end as end_thread, start as start_thread};

#[cfg(all(test, not(loom)))]
pub(in crate::engine) mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::engine::net::SocketSizes;
    use crate::engine::share::QpnBlocks;
    use crate::memory::RegionTable;
    use crate::queue::AsyncEventQueue;
    use crate::types::{CongestionAlgorithm, PeerCapabilities, SharedMemory};

    /// A shard without queue pairs.
    pub(in crate::engine) fn shard() -> Shard {
        let config = ShardConfig {
            device: "test",
            guid: 7,
            blocks: QpnBlocks::lease(1, 1).unwrap(),
            capabilities: PeerCapabilities::STANDARD,
            discovers: false,
            shared_memory: SharedMemory::Auto,
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
