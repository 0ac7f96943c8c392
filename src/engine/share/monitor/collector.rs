//! Collects the snapshots of this process.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::codec::{Encoder, MOST_DEVICES, set_interval};
use super::source::{Room, devices};
use crate::sys::{thread_time, timestamp};
use crate::types::{Counters, DeviceStatistics, Snapshot};

/// The part of a processor's time that the snapshots for all watchers may take, one in this many: with many queue pairs
/// they come less often.
const LARGEST_PART: u32 = 20;

/// Collects snapshots, and remembers what the next one needs of the last one.
#[derive(Default)]
pub(super) struct Collector {
    /// The counters of each device in the last snapshot.
    past: HashMap<u64, Counters>,
    last: Collected,
}

/// A snapshot, and the time for which no other one is collected, whatever watchers ask for.
#[derive(Default)]
struct Collected {
    /// Its bytes in pages, all the same but for the interval.
    bytes: Vec<u8>,
    /// `None`: nothing was collected.
    at: Option<Instant>,
    pause: Duration,
}

impl Collected {
    fn is_young(&self) -> bool {
        self.at.is_some_and(|at| at.elapsed() < self.pause)
    }
}

impl Collector {
    /// Takes a snapshot of all devices of this process, or returns the last one if that is young. Returns its bytes for
    /// a watcher with this interval, and the time until the watcher's next one, which is longer if snapshots take long.
    pub(super) fn collect(&mut self, every: Duration) -> (&[u8], Duration) {
        if !self.last.is_young() {
            let start = thread_time();
            let snapshot = self.collect_now();
            self.last.bytes.clear();
            Encoder(&mut self.last.bytes).snapshot(&snapshot);
            (self.last.at, self.last.pause) = (Some(Instant::now()), Duration::ZERO);
            self.add_cost(thread_time().saturating_sub(start));
        }
        let every = every.max(self.last.pause);
        set_interval(&mut self.last.bytes, every);
        (&self.last.bytes, every)
    }

    /// Counts processor time that the last snapshot has taken.
    pub(super) fn add_cost(&mut self, took: Duration) {
        self.last.pause += took.saturating_mul(LARGEST_PART);
    }

    fn collect_now(&mut self) -> Snapshot {
        let mut snapshot = Snapshot { taken_at: timestamp(), ..Snapshot::default() };
        let (devices, mut room) = (devices(), Room::default());
        snapshot.omitted_devices = devices.len().saturating_sub(MOST_DEVICES) as u32;
        self.past.retain(|id, _| devices.iter().any(|device| device.id() == *id));
        for device in devices.iter().take(MOST_DEVICES) {
            let mut statistics = device.statistics(&mut room);
            keep_counters(self.past.entry(device.id()).or_default(), &mut statistics);
            snapshot.devices.push(statistics);
        }
        snapshot
    }

    /// Forgets the past. The last snapshot stays as long as it is young: a watcher that comes and goes gets it again.
    pub(super) fn reset(&mut self) {
        self.past = HashMap::new();
        if !self.last.is_young() {
            self.last = Collected::default();
        }
    }
}

/// Repeats the counters of the snapshot before where they are higher: a queue pair that is destroyed while the snapshot
/// is taken is missing in it.
fn keep_counters(past: &mut Counters, device: &mut DeviceStatistics) {
    device.counters.raise_to(past);
    past.clone_from(&device.counters);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::codec::Decoder;
    use super::*;
    use crate::types::Counter;

    const EVERY: Duration = Duration::from_millis(100);

    fn collected(pause: Duration) -> Collector {
        let (mut bytes, snapshot) = (Vec::new(), Snapshot { taken_at: 7, ..Snapshot::default() });
        Encoder(&mut bytes).snapshot(&snapshot);
        let last = Collected { bytes, at: Some(Instant::now()), pause };
        Collector { last, ..Collector::default() }
    }

    fn read((bytes, every): (&[u8], Duration)) -> (u64, Duration) {
        let snapshot = Decoder(bytes).snapshot().unwrap();
        assert_eq!(snapshot.every, every);
        (snapshot.taken_at, every)
    }

    #[test]
    fn snapshots_of_a_process_with_many_queue_pairs_come_less_often() {
        let (minute, hour) = (Duration::from_secs(60), Duration::from_secs(3_600));
        let mut collector = collected(minute);
        collector.reset();
        assert_eq!(read(collector.collect(EVERY)), (7, minute));
        assert_eq!(read(collector.collect(hour)), (7, hour));
        // The pages of many watchers count, too.
        collector.add_cost(minute);
        assert_eq!(read(collector.collect(EVERY)), (7, 21 * minute));
        let mut collector = collected(Duration::ZERO);
        assert!(read(collector.collect(EVERY)).0 > 7);
        // Collecting it took some time.
        assert!(collector.last.pause > Duration::ZERO);
    }

    #[test]
    fn counters_never_go_back() {
        let (mut past, mut device) = (Counters::default(), DeviceStatistics::default());
        device.counters.add(Counter::SentPackets, 5);
        keep_counters(&mut past, &mut device);
        let mut later = DeviceStatistics::default();
        later.counters.add(Counter::SentPackets, 3);
        later.counters.add(Counter::SentBytes, 9);
        keep_counters(&mut past, &mut later);
        assert_eq!((later.counters.get(Counter::SentPackets), later.counters.get(Counter::SentBytes)), (5, 9));
    }
}
