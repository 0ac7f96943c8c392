//! Rates: what changed between two snapshots of a process, by the time between them.

use std::collections::HashMap;
use std::time::Duration;

use rdma_verbs::monitor::{DeviceStatistics, QueuePairStatistics, QueuePairSums, Snapshot};
use rdma_verbs::types::{Counter, Counters, Qpn};

/// Events and bits per second. `None` until there are two snapshots.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Rates {
    pub(crate) sends: Option<f64>,
    pub(crate) receives: Option<f64>,
    pub(crate) bits_out: Option<f64>,
    pub(crate) bits_in: Option<f64>,
    pub(crate) retransmissions: Option<f64>,
    pub(crate) drops: Option<f64>,
}

impl Rates {
    /// Adds the rates of messages of another queue pair.
    fn add_messages(&mut self, other: &Self) {
        add(&mut self.sends, other.sends);
        add(&mut self.receives, other.receives);
    }

    /// Adds those of another device or process. An unknown rate adds nothing.
    pub(crate) fn add(&mut self, other: &Self) {
        self.add_messages(other);
        add(&mut self.bits_out, other.bits_out);
        add(&mut self.bits_in, other.bits_in);
        add(&mut self.retransmissions, other.retransmissions);
        add(&mut self.drops, other.drops);
    }

    /// Whether anything moved.
    pub(crate) fn is_busy(&self) -> bool {
        [self.sends, self.receives, self.bits_out, self.bits_in].iter().flatten().any(|rate| *rate > 0.0)
    }
}

fn add(mine: &mut Option<f64>, theirs: Option<f64>) {
    *mine = match (*mine, theirs) {
        (Some(mine), Some(theirs)) => Some(mine + theirs),
        (mine, theirs) => mine.or(theirs),
    };
}

/// Returns the rate of a count, or `None` if no time passed.
fn per_second(before: u64, now: u64, apart: Duration) -> Option<f64> {
    (!apart.is_zero()).then(|| now.saturating_sub(before) as f64 / apart.as_secs_f64())
}

/// Two snapshots of a process, of which the earlier one may be missing.
#[derive(Debug)]
pub(crate) struct Change<'a> {
    now: &'a Snapshot,
    apart: Duration,
    devices: HashMap<u64, &'a DeviceStatistics>,
    queue_pairs: HashMap<(u64, Qpn), &'a QueuePairStatistics>,
}

impl<'a> Change<'a> {
    pub(crate) fn new(before: Option<&'a Snapshot>, now: &'a Snapshot) -> Self {
        let devices = before.map_or(&[][..], |before| &before.devices);
        let listed = |device: &'a DeviceStatistics| device.queue_pairs.iter().map(|qp| ((device.id, qp.qpn), qp));
        Self {
            now,
            apart: Duration::from_nanos(before.map_or(0, |before| now.taken_at.saturating_sub(before.taken_at))),
            devices: devices.iter().map(|device| (device.id, device)).collect(),
            queue_pairs: devices.iter().flat_map(listed).collect(),
        }
    }

    /// Returns the rate of a count of a device. A device that was not there before began at zero.
    pub(crate) fn of_device(&self, device: &DeviceStatistics, count: impl Fn(&DeviceStatistics) -> u64) -> Option<f64> {
        let before = self.devices.get(&device.id).map_or(0, |before| count(before));
        per_second(before, count(device), self.apart)
    }

    /// Returns the rates of a queue pair. They are unknown if it was there before, but not listed.
    pub(crate) fn queue_pair(&self, device: &DeviceStatistics, qp: &QueuePairStatistics) -> Rates {
        let unlisted = self.devices.get(&device.id).map_or(0, |before| before.omitted_queue_pairs.queue_pairs);
        match self.queue_pairs.get(&(device.id, qp.qpn)) {
            Some(before) => self.between((before.sends, before.receives, &before.counters), qp),
            None if unlisted > 0 => Rates::default(),
            None => self.between((0, 0, &Counters::default()), qp),
        }
    }

    fn between(&self, before: (u64, u64, &Counters), now: &QueuePairStatistics) -> Rates {
        let (sends, receives, counters) = before;
        let rate = |count: &dyn Fn(&Counters) -> u64| per_second(count(counters), count(&now.counters), self.apart);
        Rates {
            sends: per_second(sends, now.sends, self.apart),
            receives: per_second(receives, now.receives, self.apart),
            ..packets(rate)
        }
    }

    /// Returns the rates of a device: packets and bytes by its own counters, messages of its queue pairs. Messages of
    /// queue pairs that were destroyed in between are not known.
    pub(crate) fn device(&self, device: &DeviceStatistics) -> Rates {
        let mut rates = packets(|count: &dyn Fn(&Counters) -> u64| self.of_device(device, |one| count(&one.counters)));
        for qp in &device.queue_pairs {
            rates.add_messages(&self.queue_pair(device, qp));
        }
        rates.add_messages(&self.unlisted(device));
        rates
    }

    /// Returns the rates of messages of the queue pairs that are not listed.
    fn unlisted(&self, device: &DeviceStatistics) -> Rates {
        let sums = |device: &DeviceStatistics, count: fn(&QueuePairSums) -> u64| count(&device.omitted_queue_pairs);
        let rate = |count: fn(&QueuePairSums) -> u64| self.of_device(device, |one| sums(one, count));
        Rates { sends: rate(|sums| sums.sends), receives: rate(|sums| sums.receives), ..Rates::default() }
    }

    /// Returns the rates of the process.
    pub(crate) fn process(&self) -> Rates {
        let mut rates = Rates::default();
        for device in &self.now.devices {
            rates.add(&self.device(device));
        }
        rates
    }
}

fn packets(rate: impl Fn(&dyn Fn(&Counters) -> u64) -> Option<f64>) -> Rates {
    let counter = |counter: Counter| rate(&|counters: &Counters| counters.get(counter));
    Rates {
        sends: None,
        receives: None,
        bits_out: counter(Counter::SentBytes).map(|bytes| bytes * 8.0),
        bits_in: counter(Counter::ReceivedBytes).map(|bytes| bytes * 8.0),
        retransmissions: counter(Counter::RetransmittedPackets),
        drops: rate(&Counters::total_drops),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::tests::{queue_pair, snapshot};

    #[test]
    fn rates_are_by_the_time_between_the_snapshots() {
        let before = snapshot(1_000_000_000, vec![queue_pair(7, 100, 1000)]);
        let now = snapshot(1_500_000_000, vec![queue_pair(7, 150, 2000)]);
        let change = Change::new(Some(&before), &now);
        let device = &now.devices[0];
        let rates = change.queue_pair(device, &device.queue_pairs[0]);
        assert_eq!((rates.sends, rates.bits_out), (Some(100.0), Some(16_000.0)));
        assert_eq!(rates.retransmissions, Some(0.0));
        assert_eq!(change.process().sends, Some(100.0));
    }

    #[test]
    fn one_snapshot_has_no_rates() {
        let now = snapshot(5, vec![queue_pair(7, 100, 1000)]);
        let change = Change::new(None, &now);
        assert_eq!(change.process(), Rates::default());
        assert!(!change.process().is_busy());
    }

    #[test]
    fn a_new_queue_pair_began_at_zero_unless_some_were_not_listed() {
        let mut before = snapshot(0, vec![queue_pair(7, 100, 0)]);
        let now = snapshot(2_000_000_000, vec![queue_pair(7, 100, 0), queue_pair(8, 30, 0)]);
        let sends = |before: &Snapshot| {
            let change = Change::new(Some(before), &now);
            change.queue_pair(&now.devices[0], &now.devices[0].queue_pairs[1]).sends
        };
        assert_eq!(sends(&before), Some(15.0));
        before.devices[0].omitted_queue_pairs.queue_pairs = 1;
        assert_eq!(sends(&before), None);
    }

    #[test]
    fn a_queue_pair_that_goes_away_is_no_negative_rate() {
        let before = snapshot(0, vec![queue_pair(7, 100, 0), queue_pair(8, 1_000_000, 0)]);
        let now = snapshot(1_000_000_000, vec![queue_pair(7, 110, 0)]);
        assert_eq!(Change::new(Some(&before), &now).process().sends, Some(10.0));
    }
}
