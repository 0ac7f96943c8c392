//! Statistics of a process: its devices, queue pairs and connections, as plain data.

use std::net::IpAddr;
use std::time::Duration;

use super::{ConnectionState, Counters, LiveObjects, Qpn, QueuePairState, QueuePairType, SharedMemory};

/// The statistics of a process at one time.
///
/// Lists are bounded: what they leave out is counted beside them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Snapshot {
    /// ID of the process, as the reader sees it.
    pub process: u32,
    /// Name of the process.
    pub name: String,
    /// When the process took the snapshot: nanoseconds of the system's monotonic clock (`CLOCK_MONOTONIC`). Two
    /// snapshots with the same time are the same.
    pub taken_at: u64,
    /// Time since then, when the snapshot was read.
    pub age: Duration,
    /// Time from one snapshot for this reader to the next: the interval, or more if the process has many queue pairs.
    pub every: Duration,
    /// The open software devices, in the order in which they were opened.
    pub devices: Vec<DeviceStatistics>,
    /// Number of devices that are not listed.
    pub omitted_devices: u32,
}

impl Snapshot {
    /// Creates a snapshot without devices.
    pub fn new(process: u32, name: impl Into<String>) -> Self {
        Self { process, name: name.into(), ..Self::default() }
    }

    /// Returns whether the process has not refreshed its statistics for so long that it is probably stopped: three
    /// times the interval, and at least a second.
    pub fn is_overdue(&self) -> bool {
        self.age > (self.every * 3).max(Duration::from_secs(1))
    }
}

/// The statistics of an open device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct DeviceStatistics {
    /// Name of the device. A process may open a device several times.
    pub name: String,
    /// Distinguishes the devices of the process, also over time.
    pub id: u64,
    /// Its addresses, at most 16.
    pub addresses: Vec<IpAddr>,
    /// Number of addresses that are not listed.
    pub omitted_addresses: u32,
    /// The setting of shared memory.
    pub shared_memory: SharedMemory,
    /// Counters since the device was opened, drops by reason included.
    pub counters: Counters,
    /// Numbers of live objects.
    pub objects: LiveObjects,
    /// Number of captures that run.
    pub captures: u32,
    /// Number of queue pairs in each state, in the order of [`QueuePairState::ALL`].
    pub states: [u32; QueuePairState::ALL.len()],
    /// The queue pairs; at most 1,024 in all devices of a process.
    pub queue_pairs: Vec<QueuePairStatistics>,
    /// Sums over the queue pairs that are not listed.
    pub omitted_queue_pairs: QueuePairSums,
    /// The connection manager.
    pub connections: ConnectionStatistics,
    /// The listeners of the connection manager, at most 256 in all devices of a process.
    pub listeners: Vec<ListenerStatistics>,
    /// Number of listeners that are not listed.
    pub omitted_listeners: u32,
}

impl DeviceStatistics {
    /// Creates the statistics of a device without objects.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }
}

/// Path of a queue pair's packets to its peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum PathKind {
    /// Through UDP sockets.
    Sockets,
    /// Through memory that both processes share.
    SharedMemory,
}

impl PathKind {
    /// Returns `UDP` or `memory`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sockets => "UDP",
            Self::SharedMemory => "memory",
        }
    }
}

/// The statistics of a queue pair.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct QueuePairStatistics {
    /// Number of the queue pair.
    pub qpn: Qpn,
    /// Transport service.
    pub qp_type: QueuePairType,
    /// State.
    pub state: QueuePairState,
    /// Own address, once the path is set.
    pub own_address: Option<IpAddr>,
    /// Address of the peer, once the path is set. Datagram queue pairs have none.
    pub peer_address: Option<IpAddr>,
    /// Number of the peer's queue pair.
    pub peer_qpn: Option<Qpn>,
    /// Path of the packets to the peer. `None` without a peer.
    pub path: Option<PathKind>,
    /// Send requests that are complete, flushed ones included, since the queue pair was created.
    pub sends: u64,
    /// Messages of peers that were executed since the queue pair was in RESET: SENDs, WRITEs, READs and atomics of a
    /// connection, datagrams that found a receive. Requests that the peer executes directly in memory are not seen
    /// here.
    pub receives: u64,
    /// Counters since the queue pair was created: packets and bytes in both directions, retransmissions, drops by
    /// reason. Requests that are executed directly in the peer's memory count as
    /// [`Counter::DirectRequests`](super::Counter::DirectRequests) and have no packets or bytes.
    pub counters: Counters,
    /// Smoothed round-trip time of the path. `None` if none was measured, as on paths that do not leave the host.
    pub round_trip: Option<Duration>,
    /// Bytes that may be in flight on the path, which all queue pairs to the same address share. 0 without a path.
    pub window: u64,
    /// Bytes in flight on the path, of all queue pairs that share it.
    pub path_bytes_in_flight: u64,
    /// Bytes in flight of this queue pair: its packets in flight, each counted as a whole path MTU.
    pub bytes_in_flight: u64,
    /// Send requests that are posted and not complete.
    pub pending_sends: u32,
    /// Receives that are posted and not used.
    pub pending_receives: u32,
    /// Cause of the last error, in words, if the queue pair is in an error state.
    pub error: Option<String>,
}

impl QueuePairStatistics {
    /// Creates the statistics of a queue pair in RESET.
    pub fn new(qpn: Qpn, qp_type: QueuePairType) -> Self {
        Self {
            qpn,
            qp_type,
            state: QueuePairState::Reset,
            own_address: None,
            peer_address: None,
            peer_qpn: None,
            path: None,
            sends: 0,
            receives: 0,
            counters: Counters::default(),
            round_trip: None,
            window: 0,
            path_bytes_in_flight: 0,
            bytes_in_flight: 0,
            pending_sends: 0,
            pending_receives: 0,
            error: None,
        }
    }
}

/// Sums over queue pairs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct QueuePairSums {
    /// Number of queue pairs.
    pub queue_pairs: u32,
    /// Sum of [`QueuePairStatistics::sends`].
    pub sends: u64,
    /// Sum of [`QueuePairStatistics::receives`].
    pub receives: u64,
    /// Sums of the counters.
    pub counters: Counters,
}

/// The statistics of a device's connection manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ConnectionStatistics {
    /// Number of connections in each state, in the order of [`ConnectionState::ALL`].
    pub states: [u32; ConnectionState::ALL.len()],
    /// Messages that arrived.
    pub received: u64,
    /// Messages sent, repetitions included.
    pub sent: u64,
    /// Messages sent again, because the peer did not respond or because its message came again.
    pub repeated: u64,
    /// Messages that arrived again.
    pub duplicates: u64,
    /// Requests that arrived with a stale connection's queue pair.
    pub stale: u64,
    /// Requests refused without asking the application.
    pub refused: u64,
    /// Messages dropped: malformed, of unknown connections, or without a meaning in the connection's state.
    pub dropped: u64,
    /// Of these, requests that found the listener's backlog or the manager's tables full.
    pub dropped_full: u64,
}

impl ConnectionStatistics {
    /// Returns the number of connections in a state.
    pub const fn in_state(&self, state: ConnectionState) -> u32 {
        self.states[state as usize]
    }
}

/// A listener of the connection manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ListenerStatistics {
    /// Service ID.
    pub service_id: u64,
    /// Address that it listens on. `None`: all addresses of the device.
    pub address: Option<IpAddr>,
    /// Service of its connections; [`QueuePairType::UnreliableDatagram`] if it takes requests for datagram queue pairs.
    pub qp_type: QueuePairType,
    /// Most requests that may wait for the application.
    pub backlog: u32,
    /// Requests that wait.
    pub waiting: u32,
}

impl ListenerStatistics {
    /// Creates the statistics of a listener on all addresses, without waiting requests.
    pub const fn new(service_id: u64, qp_type: QueuePairType) -> Self {
        Self { service_id, address: None, qp_type, backlog: 0, waiting: 0 }
    }

    /// Returns the port, if the service ID is that of a port of the RDMA IP connection manager (IBTA A11.3.2.1).
    pub const fn port(&self) -> Option<u16> {
        // 0x01, the port space in 8 bits, the port in 16 bits.
        if self.service_id >> 24 == 1 { Some(self.service_id as u16) } else { None }
    }
}
