//! The view that programs which watch this process have of a device.

use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use super::limit::Limit;
use super::port::Port;
use crate::engine::{Capture, Engine, Monitored, Room, Shard, StartedCapture};
use crate::memory::RegionTable;
use crate::types::{CaptureOptions, DeviceStatistics, LiveObjects, SharedMemory};

/// Most addresses that are listed.
const MOST_ADDRESSES: usize = 16;

/// Counts of a device's objects.
#[derive(Clone)]
pub(super) struct ObjectCounts {
    pub(super) completion_queues: Limit,
    pub(super) shared_receive_queues: Limit,
    pub(super) domains: Limit,
    pub(super) xrc_domains: Limit,
    pub(super) address_handles: Limit,
    pub(super) captures: Limit,
}

impl ObjectCounts {
    /// Returns the counts, with those that the shards and the table of regions have.
    pub(super) fn live_objects(&self, queue_pairs: u32, memory: &RegionTable) -> LiveObjects {
        LiveObjects {
            queue_pairs,
            memory_regions: memory.len() as u32,
            memory_windows: memory.windows() as u32,
            completion_queues: self.completion_queues.used(),
            shared_receive_queues: self.shared_receive_queues.used(),
            protection_domains: self.domains.used(),
            xrc_domains: self.xrc_domains.used(),
            address_handles: self.address_handles.used(),
        }
    }
}

/// The parts of a device that are watched. It keeps none of them: the thread that watches must not be the one that
/// closes the device.
pub(super) struct DeviceMonitor {
    id: u64,
    name: String,
    shards: Vec<Weak<Shard>>,
    port: Weak<Port>,
    memory: Weak<RegionTable>,
    shared_memory: SharedMemory,
    counts: ObjectCounts,
}

impl DeviceMonitor {
    /// Creates the monitor of a device.
    pub(super) fn create(
        name: &str,
        engine: &Engine,
        port: &Arc<Port>,
        memory: &Arc<RegionTable>,
        shared_memory: SharedMemory,
        counts: ObjectCounts,
    ) -> Arc<dyn Monitored> {
        static LAST_ID: AtomicU64 = AtomicU64::new(0);
        Arc::new(Self {
            id: LAST_ID.fetch_add(1, Ordering::Relaxed) + 1,
            name: name.to_owned(),
            shards: engine.shards().iter().map(Arc::downgrade).collect(),
            port: Arc::downgrade(port),
            memory: Arc::downgrade(memory),
            shared_memory,
            counts,
        })
    }

    fn shards(&self) -> impl Iterator<Item = Arc<Shard>> {
        self.shards.iter().filter_map(Weak::upgrade)
    }
}

impl Monitored for DeviceMonitor {
    fn id(&self) -> u64 {
        self.id
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn statistics(&self, room: &mut Room) -> DeviceStatistics {
        let mut device = DeviceStatistics::new(self.name.as_str());
        device.id = self.id;
        // As they were read last: a question to the system may wait.
        let gids = self.port.upgrade().map(|port| port.gids()).unwrap_or_default();
        device.omitted_addresses = gids.len().saturating_sub(MOST_ADDRESSES) as u32;
        device.addresses = gids.into_iter().map(|(_, address)| address.ip).take(MOST_ADDRESSES).collect();
        device.shared_memory = self.shared_memory;
        device.captures = self.counts.captures.used();
        self.shards().for_each(|shard| shard.add_statistics(&mut device, room));
        if let Some(memory) = self.memory.upgrade() {
            device.objects = self.counts.live_objects(device.states.iter().sum(), &memory);
        }
        device
    }

    fn start_capture(&self, file: File, options: &CaptureOptions) -> Result<StartedCapture, String> {
        let share = self.counts.captures.take("start_capture").map_err(|error| error.to_string())?;
        let capture = Capture::start_in(file, options, &self.name).map_err(|error| error.message)?;
        let capture = Arc::new(capture);
        self.shards().for_each(|shard| shard.add_capture(&capture));
        Ok((capture, Box::new(share)))
    }

    fn detach_capture(&self, capture: &Arc<Capture>) {
        self.shards().for_each(|shard| shard.remove_capture(capture));
    }
}
