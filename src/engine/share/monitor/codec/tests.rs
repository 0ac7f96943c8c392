//! Tests of the contents of pages.

use proptest::prelude::*;

use super::*;
use crate::types::ConnectionState;

fn counters(all: bool) -> Counters {
    let mut counters = Counters::default();
    for (value, counter) in (1..).zip(Counter::ALL) {
        counters.add(*counter, if all { u64::MAX } else { value % 3 });
    }
    for (value, reason) in (1..).zip(DropReason::ALL) {
        counters.add_drops(*reason, if all { u64::MAX } else { value % 2 });
    }
    counters
}

fn queue_pair(number: u32, all: bool) -> QueuePairStatistics {
    let mut queue_pair = QueuePairStatistics::new(Qpn::new(number), QueuePairType::ReliableConnection);
    queue_pair.state = QueuePairState::Error;
    queue_pair.own_address = Some("fd00::1".parse().unwrap());
    queue_pair.peer_address = Some(if all { "fd00::2" } else { "10.0.0.2" }.parse().unwrap());
    queue_pair.peer_qpn = Some(Qpn::new(number + 1));
    queue_pair.path = Some(PathKind::SharedMemory);
    (queue_pair.sends, queue_pair.receives) = (u64::MAX, 7);
    queue_pair.counters = counters(all);
    queue_pair.round_trip = Some(Duration::from_micros(17));
    (queue_pair.window, queue_pair.path_bytes_in_flight, queue_pair.bytes_in_flight) = (1 << 20, 4_096, 1_024);
    (queue_pair.pending_sends, queue_pair.pending_receives) = (3, 4);
    queue_pair.error = Some("x".repeat(MOST_CAUSE_BYTES));
    queue_pair
}

fn device(queue_pairs: u32, listeners: u64, all: bool) -> DeviceStatistics {
    let mut device = DeviceStatistics::new("soft_lo");
    device.id = 9;
    device.addresses = ["127.0.0.1", "::1"].map(|address| address.parse().unwrap()).to_vec();
    device.omitted_addresses = 1;
    device.shared_memory = SharedMemory::Require;
    device.counters = counters(all);
    device.objects = LiveObjects { queue_pairs, memory_regions: 5, ..LiveObjects::default() };
    (device.captures, device.states[6]) = (2, queue_pairs);
    device.queue_pairs = (0..queue_pairs).map(|number| queue_pair(number, all)).collect();
    device.omitted_queue_pairs = QueuePairSums { queue_pairs: 1, sends: 2, receives: 3, counters: counters(all) };
    device.connections.states[ConnectionState::Established as usize] = 4;
    (device.connections.received, device.connections.dropped_full) = (5, 6);
    device.listeners = (0..listeners)
        .map(|service_id| ListenerStatistics::new(service_id, QueuePairType::UnreliableDatagram))
        .collect();
    device.omitted_listeners = 8;
    device
}

/// A snapshot with some of everything.
pub(in crate::engine::share::monitor) fn filled() -> Snapshot {
    let mut snapshot = Snapshot { taken_at: 5, every: Duration::from_millis(100), ..Snapshot::default() };
    snapshot.devices = vec![device(2, 2, false), DeviceStatistics::new("soft:127.0.0.9")];
    snapshot.omitted_devices = 1;
    snapshot
}

/// A snapshot with as much as the bounds allow.
pub(in crate::engine::share::monitor) fn largest() -> Snapshot {
    let mut snapshot = filled();
    snapshot.devices = vec![device(1_024, 256, true)];
    let mut other = device(0, 0, true);
    other.name = "n".repeat(MOST_NAME_BYTES);
    other.addresses = vec!["fd00::1".parse().unwrap(); MOST_ADDRESSES];
    snapshot.devices.resize(MOST_DEVICES, other);
    snapshot
}

pub(in crate::engine::share::monitor) fn bytes_of(snapshot: &Snapshot) -> Vec<u8> {
    let mut bytes = Vec::new();
    Encoder(&mut bytes).snapshot(snapshot);
    bytes
}

#[test]
fn snapshots_are_read_as_written() {
    for snapshot in [filled(), Snapshot::default(), largest()] {
        assert_eq!(Decoder(&bytes_of(&snapshot)).snapshot(), Some(snapshot));
    }
}

#[test]
fn the_interval_can_be_replaced() {
    let (mut bytes, every) = (bytes_of(&filled()), Duration::from_secs(9));
    set_interval(&mut bytes, every);
    assert_eq!(Decoder(&bytes).snapshot(), Some(Snapshot { every, ..filled() }));
}

#[test]
fn truncated_snapshots_are_refused() {
    let bytes = bytes_of(&filled());
    for length in 0..bytes.len() {
        assert_eq!(Decoder(&bytes[..length]).snapshot(), None, "{length} bytes");
    }
    assert_eq!(Decoder(&[&bytes[..], &[0]].concat()).snapshot(), None);
}

#[test]
fn texts_are_cut_and_cleaned() {
    let mut bytes = Vec::new();
    Encoder(&mut bytes).text("ab\u{1b}[2Jü", 7);
    assert_eq!(Decoder(&bytes).text(7).as_deref(), Some("ab?[2J"));
    assert_eq!(Decoder(&bytes).text(5), None);
}

proptest! {
    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = Decoder(&bytes).snapshot();
    }

    #[test]
    fn any_change_is_survived(changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut bytes = bytes_of(&filled());
        for (index, value) in changes {
            let index = index.index(bytes.len());
            bytes[index] = value;
        }
        if let Some(snapshot) = Decoder(&bytes).snapshot() {
            prop_assert!(snapshot.devices.len() <= MOST_DEVICES);
            // Whatever is read is understood by the next reader, too.
            prop_assert_eq!(Decoder(&bytes_of(&snapshot)).snapshot(), Some(snapshot));
        }
    }
}
