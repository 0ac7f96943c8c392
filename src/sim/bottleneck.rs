//! A link that several senders share: it sends their packets one after the other at its rate and drops those that do
//! not fit.

use std::time::Duration;

use super::{Delays, Random};
use crate::types::Time;

/// Bytes before the base transport header, as Linux queueing disciplines count them: Ethernet, IPv4 and UDP headers.
const HEADER_BYTES: u64 = 14 + 20 + 8;
const SECOND_PICOSECONDS: u128 = 1_000_000_000_000;
const NANOSECOND_PICOSECONDS: u128 = 1_000;

/// The handling of packets that arrive faster than the link sends them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Discipline {
    /// Packets wait. One that does not fit into the queue is dropped.
    TailDrop {
        /// Bytes that the queue holds; one packet always fits.
        queue_bytes: u64,
    },
    /// None waits. A packet that is ahead of the rate by more than a burst is dropped (a token bucket without a queue).
    Policer {
        /// Bytes that pass at once; one packet always passes.
        burst_bytes: u64,
    },
    /// Packets wait. One that finds more than `mark_bytes` queued is marked if its sender supports ECN (RFC 3168); one
    /// that does not fit is dropped.
    Step {
        /// Bytes that the queue holds; one packet always fits.
        queue_bytes: u64,
        /// Queue length in bytes above which packets are marked.
        mark_bytes: u64,
    },
    /// Random early detection by the instantaneous queue, not its mean, as switches are configured: the longer the
    /// queue, the more packets are marked or dropped.
    Red {
        /// Bytes that the queue holds; one packet always fits.
        queue_bytes: u64,
        /// Queue length in bytes up to which no packet is chosen.
        least_bytes: u64,
        /// Queue length in bytes from which every packet is chosen.
        most_bytes: u64,
        /// Permille of packets chosen just below `most_bytes`.
        permille: u32,
        /// Whether chosen packets are marked if their sender supports ECN. Else they are dropped.
        marks: bool,
    },
}

impl Discipline {
    /// Returns the limit of the queue in bytes, the new packet included.
    fn room(&self) -> u64 {
        match *self {
            Self::TailDrop { queue_bytes } | Self::Step { queue_bytes, .. } | Self::Red { queue_bytes, .. } => {
                queue_bytes
            }
            Self::Policer { burst_bytes } => burst_bytes,
        }
    }

    /// Whether a packet that finds `backlog` bytes queued is chosen.
    fn chooses(&self, backlog: u64, random: &mut Random) -> bool {
        match *self {
            Self::TailDrop { .. } | Self::Policer { .. } => false,
            Self::Step { mark_bytes, .. } => backlog > mark_bytes,
            Self::Red { least_bytes, most_bytes, permille, .. } => {
                let above = backlog.saturating_sub(least_bytes);
                let range = most_bytes.saturating_sub(least_bytes);
                backlog >= most_bytes || above > 0 && random.below(1_000 * range) < above * u64::from(permille)
            }
        }
    }

    fn drops_chosen(&self, knows_marks: bool) -> bool {
        matches!(self, Self::Red { marks, .. } if !(*marks && knows_marks))
    }
}

/// Delay and mark of a packet that passes a bottleneck.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Passage {
    /// Time until it is sent.
    pub(super) wait: Duration,
    pub(super) is_marked: bool,
}

/// A link with a rate and a queueing discipline.
#[derive(Clone, Debug)]
pub struct Bottleneck {
    bytes_per_second: u64,
    discipline: Discipline,
    /// When all accepted packets are sent, in picoseconds: a packet of 1 KiB takes 86,560 of them at 100 Gbit/s.
    free_at: u128,
    /// The backlog at the last rate change: when it is sent, and at which rate.
    earlier: (u128, u64),
    passed_bytes: u64,
    passed_packets: u64,
    dropped_packets: u64,
    marked_packets: u64,
    delays: Delays,
}

impl Bottleneck {
    /// Creates an empty link.
    pub fn new(bytes_per_second: u64, discipline: Discipline) -> Self {
        Self {
            bytes_per_second: bytes_per_second.max(1),
            discipline,
            free_at: 0,
            earlier: (0, 1),
            passed_bytes: 0,
            passed_packets: 0,
            dropped_packets: 0,
            marked_packets: 0,
            delays: Delays::default(),
        }
    }

    /// Returns the bytes that have passed, headers included.
    pub fn passed_bytes(&self) -> u64 {
        self.passed_bytes
    }

    /// Returns the number of packets that have passed.
    pub fn passed_packets(&self) -> u64 {
        self.passed_packets
    }

    /// Returns the number of packets dropped.
    pub fn dropped_packets(&self) -> u64 {
        self.dropped_packets
    }

    /// Returns the number of packets marked.
    pub fn marked_packets(&self) -> u64 {
        self.marked_packets
    }

    /// Returns the queueing delays of the packets.
    pub fn delays(&self) -> &Delays {
        &self.delays
    }

    /// Resets the queueing delays.
    pub fn forget_delays(&mut self) {
        self.delays = Delays::default();
    }

    /// Changes the rate from now on. Packets already queued are still sent at the previous rate.
    pub fn set_rate(&mut self, now: Time, bytes_per_second: u64) {
        // If the rate changes twice before the queue empties, the rate between the two applies to all that is left.
        self.earlier = (self.free_at.max(picoseconds(now)), self.bytes_per_second);
        self.bytes_per_second = bytes_per_second.max(1);
    }

    /// Returns the bytes not sent yet.
    pub fn backlog_bytes(&self, now: Time) -> u64 {
        let (now, (changed_at, rate)) = (picoseconds(now), self.earlier);
        let earlier = changed_at.saturating_sub(now) * u128::from(rate);
        let later = self.free_at.saturating_sub(changed_at.max(now)) * u128::from(self.bytes_per_second);
        (earlier + later).div_ceil(SECOND_PICOSECONDS) as u64
    }

    /// Accepts a packet of `bytes` bytes, counted from the Ethernet header. Returns `None` if it is dropped.
    pub(super) fn pass(&mut self, now: Time, bytes: u64, knows_marks: bool, random: &mut Random) -> Option<Passage> {
        let backlog = self.backlog_bytes(now);
        let is_full = backlog > 0 && backlog + bytes > self.discipline.room();
        let is_chosen = !is_full && self.discipline.chooses(backlog, random);
        if is_full || is_chosen && self.discipline.drops_chosen(knows_marks) {
            self.dropped_packets += 1;
            return None;
        }
        let is_marked = is_chosen && knows_marks;
        let (now, before) = (picoseconds(now), self.free_at);
        let cost = u128::from(bytes) * SECOND_PICOSECONDS / u128::from(self.bytes_per_second);
        self.free_at = before.max(now) + cost;
        self.passed_bytes += bytes;
        self.passed_packets += 1;
        self.marked_packets += u64::from(is_marked);
        let nanoseconds = |wait: u128| Duration::from_nanos(wait.div_ceil(NANOSECOND_PICOSECONDS) as u64);
        if matches!(self.discipline, Discipline::Policer { .. }) {
            return Some(Passage { wait: Duration::ZERO, is_marked });
        }
        self.delays.note(nanoseconds(before.saturating_sub(now)));
        Some(Passage { wait: nanoseconds(self.free_at - now), is_marked })
    }
}

/// Converts a length from the base transport header on to one from the Ethernet header on.
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
    /// 1,000 bytes with its headers: 8 µs at 1 Gbit/s.
    const PACKET: usize = 1_000 - HEADER_BYTES as usize;

    /// Returns how long a packet without ECN support waits.
    fn wait(link: &mut Bottleneck, now: Time) -> Option<Duration> {
        link.pass(now, frame_bytes(PACKET), false, &mut Random::new(1)).map(|passage| passage.wait)
    }

    fn at(microseconds: u64) -> Time {
        Time::from_nanos(microseconds * 1_000)
    }

    #[test]
    fn packets_leave_one_after_the_other_at_the_rate() {
        let mut link = Bottleneck::new(GIGABIT, Discipline::TailDrop { queue_bytes: 1 << 20 });
        for packet in 1..=10 {
            assert_eq!(wait(&mut link, at(100)), Some(Duration::from_micros(8 * packet)));
        }
        assert_eq!(link.backlog_bytes(at(100)), 10_000);
        assert_eq!(link.backlog_bytes(at(140)), 5_000);
        // An idle link accumulates no credit.
        assert_eq!(wait(&mut link, at(500)), Some(Duration::from_micros(8)));
        assert_eq!((link.passed_bytes(), link.dropped_packets()), (11_000, 0));
    }

    #[test]
    fn a_full_queue_drops_what_comes_last() {
        let mut link = Bottleneck::new(GIGABIT, Discipline::TailDrop { queue_bytes: 3_500 });
        let passed: Vec<bool> = (0..5).map(|_| wait(&mut link, at(0)).is_some()).collect();
        assert_eq!(passed, [true, true, true, false, false]);
        assert!(wait(&mut link, at(4)).is_some(), "500 bytes have left");
        assert_eq!(link.dropped_packets(), 2);
        let mut narrow = Bottleneck::new(GIGABIT, Discipline::TailDrop { queue_bytes: 0 });
        assert_eq!(wait(&mut narrow, at(0)), Some(Duration::from_micros(8)));
        assert_eq!(wait(&mut narrow, at(7)), None);
        assert_eq!(wait(&mut narrow, at(8)), Some(Duration::from_micros(8)));
    }

    #[test]
    fn a_policer_lets_a_burst_and_then_the_rate_pass_without_delay() {
        let mut link = Bottleneck::new(GIGABIT, Discipline::Policer { burst_bytes: 64_000 });
        let passed = (0..100).filter(|_| wait(&mut link, at(0)) == Some(Duration::ZERO)).count();
        assert_eq!(passed, 64);
        // One more every 8 µs.
        let passed = (1..=1_000).filter(|packet| wait(&mut link, at(packet * 2)).is_some()).count();
        assert_eq!(passed, 250);
    }

    /// Returns how many of 1,000 packets that find `backlog` bytes queued are marked, and how many are dropped.
    fn chosen(discipline: Discipline, backlog: u64, knows_marks: bool) -> (u64, u64) {
        let mut random = Random::new(1);
        let (mut marked, mut dropped) = (0, 0);
        for _ in 0..1_000 {
            let mut link = Bottleneck::new(GIGABIT, Discipline::TailDrop { queue_bytes: u64::MAX });
            (0..backlog / 1_000).for_each(|_| assert!(wait(&mut link, at(0)).is_some()));
            link.discipline = discipline;
            let passage = link.pass(at(0), frame_bytes(PACKET), knows_marks, &mut random);
            marked += u64::from(passage.is_some_and(|passage| passage.is_marked));
            dropped += u64::from(passage.is_none());
        }
        (marked, dropped)
    }

    #[test]
    fn a_step_marks_what_finds_a_longer_queue() {
        let step = Discipline::Step { queue_bytes: 20_000, mark_bytes: 10_000 };
        assert_eq!(chosen(step, 10_000, true), (0, 0));
        assert_eq!(chosen(step, 11_000, true), (1_000, 0));
        assert_eq!(chosen(step, 11_000, false), (0, 0), "its sender knows no marks");
        assert_eq!(chosen(step, 20_000, true), (0, 1_000), "it does not fit");
    }

    #[test]
    fn early_detection_chooses_more_the_longer_the_queue_is() {
        let red = |marks| {
            let (least_bytes, most_bytes) = (10_000, 30_000);
            Discipline::Red { queue_bytes: 40_000, least_bytes, most_bytes, permille: 200, marks }
        };
        assert_eq!(chosen(red(true), 10_000, true), (0, 0));
        let (marked, dropped) = chosen(red(true), 20_000, true);
        assert!((80..120).contains(&marked) && dropped == 0, "a tenth, not {marked}, and {dropped}");
        let (marked, _) = chosen(red(true), 29_000, true);
        assert!((160..220).contains(&marked), "{marked}");
        assert_eq!(chosen(red(true), 30_000, true), (1_000, 0));
        // Without marking, or without ECN support of the sender, they are dropped.
        for (marks, knows_marks) in [(false, true), (true, false)] {
            let (marked, dropped) = chosen(red(marks), 20_000, knows_marks);
            assert!(marked == 0 && (80..120).contains(&dropped), "{marked}, {dropped}");
            assert_eq!(chosen(red(marks), 30_000, knows_marks), (0, 1_000));
        }
    }

    /// Packets queued at a change leave as they would have, so that nothing is overtaken.
    #[test]
    fn a_rate_changes_for_what_comes_later() {
        for (rate, expected) in [(GIGABIT / 10, 80 + 80), (GIGABIT * 8, 80 + 1)] {
            let mut link = Bottleneck::new(GIGABIT, Discipline::TailDrop { queue_bytes: 12_000 });
            (0..10).for_each(|_| assert!(wait(&mut link, at(0)).is_some()));
            link.set_rate(at(0), rate);
            assert_eq!(link.backlog_bytes(at(0)), 10_000);
            assert_eq!(wait(&mut link, at(0)), Some(Duration::from_micros(expected)));
            assert_eq!(link.backlog_bytes(at(0)), 11_000);
            assert_eq!(link.backlog_bytes(at(40)), 6_000);
            assert_eq!(link.backlog_bytes(at(80)), 1_000);
        }
    }

    #[test]
    fn delays_are_those_of_waiting() {
        let mut link = Bottleneck::new(GIGABIT, Discipline::TailDrop { queue_bytes: u64::MAX });
        (0..100).for_each(|_| assert!(wait(&mut link, at(0)).is_some()));
        let median = link.delays().quantile(0.5).as_nanos() as f64 / 1e3;
        assert!((49.0 * 8.0..51.0 * 8.0).contains(&median), "{median}");
        link.forget_delays();
        assert_eq!(link.delays().total(), 0);
    }

    #[test]
    fn rounding_does_not_add_up() {
        let mut link = Bottleneck::new(100 * GIGABIT, Discipline::TailDrop { queue_bytes: u64::MAX });
        let last = (0..1_000_000).map(|_| wait(&mut link, at(0))).last();
        assert_eq!(last, Some(Some(Duration::from_millis(80))));
    }
}
