//! A link that several senders share: it sends their packets one after the other, at its rate, and drops what it has no
//! room for.

use std::time::Duration;

use crate::types::Time;

/// Bytes of a packet in front of the base transport header, as queueing disciplines of Linux count them: Ethernet, IPv4
/// and UDP headers.
const HEADER_BYTES: u64 = 14 + 20 + 8;
const SECOND_PICOSECONDS: u128 = 1_000_000_000_000;
const NANOSECOND_PICOSECONDS: u128 = 1_000;

/// What becomes of packets that come faster than the link sends them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Discipline {
    /// They wait. A packet that does not fit into the queue is dropped.
    TailDrop {
        /// Bytes that the queue holds; one packet always fits.
        queue_bytes: u64,
    },
    /// None waits. A packet that is ahead of the rate by more than a burst is dropped (a token bucket without a queue).
    Policer {
        /// Bytes that pass at once; one packet always does.
        burst_bytes: u64,
    },
}

/// A link with a rate.
#[derive(Clone, Debug)]
pub struct Bottleneck {
    bytes_per_second: u64,
    discipline: Discipline,
    /// When all that it has taken is sent, in picoseconds: a packet of 1 KiB takes 86,560 of them at 100 Gbit/s.
    free_at: u128,
    passed_bytes: u64,
    dropped_packets: u64,
}

impl Bottleneck {
    /// An empty link.
    pub fn new(bytes_per_second: u64, discipline: Discipline) -> Self {
        let bytes_per_second = bytes_per_second.max(1);
        Self { bytes_per_second, discipline, free_at: 0, passed_bytes: 0, dropped_packets: 0 }
    }

    /// Bytes that have passed, headers included.
    pub fn passed_bytes(&self) -> u64 {
        self.passed_bytes
    }

    /// Packets that were dropped.
    pub fn dropped_packets(&self) -> u64 {
        self.dropped_packets
    }

    /// Bytes that are not sent yet.
    pub fn backlog_bytes(&self, now: Time) -> u64 {
        let left = self.free_at.saturating_sub(picoseconds(now));
        (left * u128::from(self.bytes_per_second)).div_ceil(SECOND_PICOSECONDS) as u64
    }

    /// How long a packet of so many bytes, from the Ethernet header on, is delayed. `None`: it is dropped.
    pub(super) fn pass(&mut self, now: Time, bytes: u64) -> Option<Duration> {
        let (Discipline::TailDrop { queue_bytes: room } | Discipline::Policer { burst_bytes: room }) = self.discipline;
        let backlog = self.backlog_bytes(now);
        if backlog > 0 && backlog + bytes > room {
            self.dropped_packets += 1;
            return None;
        }
        let cost = u128::from(bytes) * SECOND_PICOSECONDS / u128::from(self.bytes_per_second);
        self.free_at = self.free_at.max(picoseconds(now)) + cost;
        self.passed_bytes += bytes;
        match self.discipline {
            Discipline::Policer { .. } => Some(Duration::ZERO),
            Discipline::TailDrop { .. } => {
                let wait = (self.free_at - picoseconds(now)).div_ceil(NANOSECOND_PICOSECONDS);
                Some(Duration::from_nanos(wait as u64))
            }
        }
    }
}

/// Bytes from the Ethernet header on of a packet that has so many from the base transport header on.
pub(super) fn frame_bytes(bytes: usize) -> u64 {
    bytes as u64 + HEADER_BYTES
}

fn picoseconds(time: Time) -> u128 {
    u128::from(time.as_nanos()) * NANOSECOND_PICOSECONDS
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIGABIT: u64 = 125_000_000;
    /// With its headers 1,000 bytes: 8 µs at 1 Gbit/s.
    const PACKET: usize = 1_000 - HEADER_BYTES as usize;

    fn at(microseconds: u64) -> Time {
        Time::from_nanos(microseconds * 1_000)
    }

    #[test]
    fn packets_leave_one_after_the_other_at_the_rate() {
        let mut link = Bottleneck::new(GIGABIT, Discipline::TailDrop { queue_bytes: 1 << 20 });
        for packet in 1..=10 {
            assert_eq!(link.pass(at(100), frame_bytes(PACKET)), Some(Duration::from_micros(8 * packet)));
        }
        assert_eq!(link.backlog_bytes(at(100)), 10_000);
        assert_eq!(link.backlog_bytes(at(140)), 5_000);
        // It idles, and saves nothing up.
        assert_eq!(link.pass(at(500), frame_bytes(PACKET)), Some(Duration::from_micros(8)));
        assert_eq!((link.passed_bytes(), link.dropped_packets()), (11_000, 0));
    }

    #[test]
    fn a_full_queue_drops_what_comes_last() {
        let mut link = Bottleneck::new(GIGABIT, Discipline::TailDrop { queue_bytes: 3_500 });
        let passed: Vec<bool> = (0..5).map(|_| link.pass(at(0), frame_bytes(PACKET)).is_some()).collect();
        assert_eq!(passed, [true, true, true, false, false]);
        assert!(link.pass(at(4), frame_bytes(PACKET)).is_some(), "500 bytes have left");
        assert_eq!(link.dropped_packets(), 2);
        let mut narrow = Bottleneck::new(GIGABIT, Discipline::TailDrop { queue_bytes: 0 });
        assert_eq!(narrow.pass(at(0), frame_bytes(PACKET)), Some(Duration::from_micros(8)));
        assert_eq!(narrow.pass(at(7), frame_bytes(PACKET)), None);
        assert_eq!(narrow.pass(at(8), frame_bytes(PACKET)), Some(Duration::from_micros(8)));
    }

    #[test]
    fn a_policer_lets_a_burst_and_then_the_rate_pass_without_delay() {
        let mut link = Bottleneck::new(GIGABIT, Discipline::Policer { burst_bytes: 64_000 });
        let passed = (0..100).filter(|_| link.pass(at(0), frame_bytes(PACKET)) == Some(Duration::ZERO)).count();
        assert_eq!(passed, 64);
        // In each 8 µs one more.
        let passed = (1..=1_000).filter(|packet| link.pass(at(packet * 2), frame_bytes(PACKET)).is_some()).count();
        assert_eq!(passed, 250);
    }

    #[test]
    fn rounding_does_not_add_up() {
        let mut link = Bottleneck::new(100 * GIGABIT, Discipline::TailDrop { queue_bytes: u64::MAX });
        let last = (0..1_000_000).map(|_| link.pass(at(0), frame_bytes(PACKET))).last();
        assert_eq!(last, Some(Some(Duration::from_millis(80))));
    }
}
