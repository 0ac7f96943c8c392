//! Statistics of a shard, for programs that watch the process.
//!
//! The shard is held for [`QUEUE_PAIRS_AT_A_TIME`] queue pairs or [`CONNECTIONS_AT_A_TIME`] connections at a time, so
//! that many of them do not stop it.

use super::core::Core;
use super::shard::Shard;
use crate::cm::ConnectionHandle;
use crate::engine::share::Room;
use crate::transport::QueuePairView;
use crate::types::{Counters, DeviceStatistics, PathKind, QueuePairSums, Time};

/// Queue pairs whose statistics are read while the shard is held.
const QUEUE_PAIRS_AT_A_TIME: usize = 64;
/// Connections whose states are counted while the shard is held.
const CONNECTIONS_AT_A_TIME: usize = 1_024;

/// Adds the statistics of a shard to those of its device.
struct Collection<'a> {
    device: &'a mut DeviceStatistics,
    room: &'a mut Room,
}

impl Shard {
    /// Adds its statistics to those of its device.
    pub(crate) fn add_statistics(&self, device: &mut DeviceStatistics, room: &mut Room) {
        let mut collection = Collection { device, room };
        let (mut slot, mut slots, mut connection) = (0, 0, None);
        self.command(|core, now| {
            // Before those of the queue pairs: one that is destroyed meanwhile is missing once, and not counted twice.
            let mut counters = core.endpoint.counters_without_queue_pairs();
            counters.merge(core.link.counters());
            collection.device.counters.merge(&counters);
            slots = core.endpoint.queue_pair_slots();
            collection.add_queue_pairs(core, now, slot);
            connection = collection.add_connections(core);
        });
        slot += QUEUE_PAIRS_AT_A_TIME;
        while slot < slots {
            self.command(|core, now| collection.add_queue_pairs(core, now, slot));
            slot += QUEUE_PAIRS_AT_A_TIME;
        }
        while let Some(after) = connection.take() {
            self.command(|core, _| connection = collection.add_states(core, Some(after)));
        }
    }
}

impl Collection<'_> {
    /// Adds the queue pairs in the slots from this one on.
    fn add_queue_pairs(&mut self, core: &mut Core, now: Time, slot: usize) {
        let (first, mut counters) = (self.device.queue_pairs.len(), Counters::default());
        for queue_pair in core.endpoint.queue_pairs_in(slot..slot + QUEUE_PAIRS_AT_A_TIME) {
            counters.merge(queue_pair.counters());
            self.device.states[queue_pair.state() as usize] += 1;
            if self.room.take_queue_pair() {
                self.device.queue_pairs.push(queue_pair.statistics(now));
            } else {
                add(&mut self.device.omitted_queue_pairs, &queue_pair);
            }
        }
        self.device.counters.merge(&counters);
        for statistics in &mut self.device.queue_pairs[first..] {
            let ends = (statistics.own_address, statistics.peer_address, statistics.peer_qpn);
            if let (Some(own), Some(peer), Some(qpn)) = ends {
                let writes = core.link.memory_links().state(own, peer, qpn.block() as u16).writes;
                statistics.path = Some(if writes { PathKind::SharedMemory } else { PathKind::Sockets });
            }
        }
    }

    /// Adds the connection manager. Returns the connection behind which the rest of them begin.
    fn add_connections(&mut self, core: &Core) -> Option<ConnectionHandle> {
        let manager = core.connections.present_manager()?;
        manager.add_counts_to(&mut self.device.connections);
        let (listeners, omitted) = manager.listener_statistics(self.room.listeners());
        self.room.take_listeners(listeners.len());
        self.device.listeners.extend(listeners);
        self.device.omitted_listeners += omitted as u32;
        self.add_states(core, None)
    }

    fn add_states(&mut self, core: &Core, after: Option<ConnectionHandle>) -> Option<ConnectionHandle> {
        let manager = core.connections.present_manager()?;
        manager.count_states(after, CONNECTIONS_AT_A_TIME, &mut self.device.connections.states)
    }
}

fn add(sums: &mut QueuePairSums, queue_pair: &QueuePairView<'_>) {
    sums.queue_pairs += 1;
    sums.sends = sums.sends.wrapping_add(queue_pair.sends());
    sums.receives = sums.receives.wrapping_add(queue_pair.receives());
    sums.counters.merge(queue_pair.counters());
}
