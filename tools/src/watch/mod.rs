//! Statistics of processes, as `top` and `stat` show them: rates between two snapshots, and tables of them.

pub(crate) mod collect;
pub(crate) mod format;
pub(crate) mod process;
pub(crate) mod rates;
pub(crate) mod table;
pub(crate) mod views;

pub(crate) use collect::{Collector, Selection, Update};
pub(crate) use process::Watched;

#[cfg(test)]
pub(crate) mod tests {
    //! Snapshots for the tests of this folder and of its users.

    use std::time::Duration;

    use rdma_verbs::monitor::{DeviceStatistics, ListenerStatistics, PathKind, QueuePairStatistics, Snapshot};
    use rdma_verbs::types::{ConnectionState, Counter, DropReason, Qpn, QueuePairState, QueuePairType};

    pub(crate) fn queue_pair(number: u32, sends: u64, bytes: u64) -> QueuePairStatistics {
        let mut qp = QueuePairStatistics::new(Qpn::new(number), QueuePairType::ReliableConnection);
        qp.state = QueuePairState::ReadyToSend;
        qp.sends = sends;
        qp.counters.add(Counter::SentBytes, bytes);
        qp
    }

    /// A snapshot with one device, taken at this time in nanoseconds.
    pub(crate) fn snapshot(taken_at: u64, queue_pairs: Vec<QueuePairStatistics>) -> Snapshot {
        let mut device = DeviceStatistics::new("soft_eth0");
        for qp in &queue_pairs {
            device.counters.merge(&qp.counters);
            device.states[qp.state as usize] += 1;
        }
        device.addresses.push([10, 0, 0, 1].into());
        device.objects.queue_pairs = queue_pairs.len() as u32;
        device.queue_pairs = queue_pairs;
        let mut snapshot = Snapshot::new(7, "fio");
        snapshot.every = Duration::from_secs(1);
        (snapshot.taken_at, snapshot.devices) = (taken_at, vec![device]);
        snapshot
    }

    /// Two snapshots, a second apart, with something in each view.
    pub(crate) fn busy() -> [Snapshot; 2] {
        [0, 1].map(|second: u64| {
            let mut active = queue_pair(0x1b, 1000 + second * 250_000, 1_000_000 + second * 1_250_000_000);
            (active.peer_address, active.peer_qpn) = (Some([10, 0, 0, 2].into()), Some(Qpn::new(0x2c)));
            (active.path, active.round_trip) = (Some(PathKind::Sockets), Some(Duration::from_micros(52)));
            (active.window, active.bytes_in_flight) = (1 << 20, 65_536);
            active.counters.add(Counter::RetransmittedPackets, second * 3);
            active.counters.add_drop(DropReason::BadIcrc);
            let mut failed = queue_pair(0x1c, 0, 0);
            failed.state = QueuePairState::Error;
            failed.error = Some("the peer does not respond".to_owned());
            let mut snapshot = snapshot(1 + second * 1_000_000_000, vec![active, failed]);
            let device = &mut snapshot.devices[0];
            device.connections.states[ConnectionState::Established as usize] = 4;
            device.connections.received = 10 + second * 2;
            let mut listener = ListenerStatistics::new(0x0106_1d2f, QueuePairType::ReliableConnection);
            (listener.backlog, listener.waiting) = (16, 2);
            device.listeners.push(listener);
            snapshot
        })
    }
}
