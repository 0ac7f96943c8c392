//! Statistics of a manager, for programs that watch the process. They read what is counted anyway.

use super::counters::{Counters, MessageCounts};
use super::handle::ConnectionHandle;
use super::manager::Manager;
use crate::types::{ConnectionState, ConnectionStatistics, ListenerStatistics, QueuePairType};
use crate::wire::mad::ConnectionTransport;

impl Manager {
    /// Adds the states of at most `most` connections, beginning behind `after`. Returns the last one of them, if there
    /// may be more.
    pub fn count_states(
        &self,
        after: Option<ConnectionHandle>,
        most: usize,
        states: &mut [u32; ConnectionState::ALL.len()],
    ) -> Option<ConnectionHandle> {
        use std::ops::Bound::{Excluded, Unbounded};
        let begin = after.map_or(Unbounded, Excluded);
        let (mut last, mut seen) = (None, 0);
        for (handle, connection) in self.connections.range((begin, Unbounded)).take(most) {
            states[connection.state as usize] += 1;
            last = Some(*handle);
            seen += 1;
        }
        last.filter(|_| seen == most)
    }

    /// Adds the counters.
    pub fn add_counts_to(&self, sum: &mut ConnectionStatistics) {
        let Counters { received, sent, repeated, duplicates, stale, refused, drops, .. } = &self.counters;
        let full = drops.backlog_full + drops.half_open_full + drops.connections_full;
        let malformed = drops.length + drops.header + drops.wrong_queue_pair + drops.alternate_path;
        sum.received += received.total();
        sum.sent += sent.total();
        sum.repeated += repeated.total();
        sum.duplicates += duplicates.total();
        sum.stale += stale;
        sum.refused += refused;
        sum.dropped += full + malformed + total(&drops.unknown, &drops.unexpected) + drops.outputs_full;
        sum.dropped_full += full;
    }

    /// Returns at most `most` listeners, and the number of the others.
    pub fn listener_statistics(&self, most: usize) -> (Vec<ListenerStatistics>, usize) {
        let listeners = self.listeners.iter().take(most).map(|listener| {
            let parameters = &listener.parameters;
            let qp_type = match (parameters.is_datagram, parameters.transport) {
                (true, _) => QueuePairType::UnreliableDatagram,
                (false, ConnectionTransport::Reliable) => QueuePairType::ReliableConnection,
                (false, ConnectionTransport::ExtendedReliable) => QueuePairType::XrcReceive,
            };
            let mut statistics = ListenerStatistics::new(parameters.service_id.0, qp_type);
            statistics.address = parameters.address;
            statistics.backlog = parameters.backlog as u32;
            statistics.waiting = listener.waiting_requests() as u32;
            statistics
        });
        let listeners: Vec<_> = listeners.collect();
        let others = self.listeners.count() - listeners.len();
        (listeners, others)
    }
}

fn total(one: &MessageCounts, other: &MessageCounts) -> u64 {
    one.total() + other.total()
}
