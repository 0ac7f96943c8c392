//! The receiver: acknowledges every other segment, and out-of-order segments at once.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use super::Ack;
use super::ranges::Ranges;
use crate::types::Time;

/// Maximum delay of an acknowledgement (Linux's minimum; RFC 5681, 4.2 allows 500 ms).
const DELAY: Duration = Duration::from_millis(40);

/// Number of ranges that can be reported again, as in Linux.
const REMEMBERED: usize = 4;

/// The receiving end of a stream.
#[derive(Clone, Debug, Default)]
pub(in crate::sim) struct Receiver {
    /// The next segment expected: all before it have arrived.
    next: u64,
    /// Segments that arrived beyond it.
    early: Ranges,
    /// A segment of each reported range, the latest first.
    recent: VecDeque<u64>,
    /// Segments that arrived since the last acknowledgement.
    unacknowledged: u32,
    deadline: Option<Time>,
    duplicates: u64,
}

impl Receiver {
    /// Returns the segments delivered to the application.
    pub(in crate::sim) fn delivered(&self) -> u64 {
        self.next
    }

    /// Returns the duplicate segments received.
    pub(in crate::sim) fn duplicates(&self) -> u64 {
        self.duplicates
    }

    /// Returns when a delayed acknowledgement is due.
    pub(in crate::sim) fn next_timeout(&self) -> Option<Time> {
        self.deadline
    }

    pub(in crate::sim) fn handle_timeout(&mut self, now: Time) -> Option<Ack> {
        self.deadline.is_some_and(|deadline| deadline <= now).then(|| self.acknowledge(None))
    }

    /// Handles a segment. Returns an acknowledgement to send at once.
    pub(in crate::sim) fn handle_segment(&mut self, now: Time, sequence: u64) -> Option<Ack> {
        if sequence < self.next || self.early.around(sequence).is_some() {
            self.duplicates += 1;
            return Some(self.acknowledge(Some(sequence)));
        }
        self.unacknowledged += 1;
        if sequence > self.next {
            self.early.insert(sequence..sequence + 1);
            self.recent.push_front(sequence);
            return Some(self.acknowledge(None));
        }
        self.next += 1;
        // A segment that fills a gap or a part of it is acknowledged at once (RFC 5681, 4.2).
        let had_gap = !self.early.is_empty();
        if let Some(end) = self.early.take_from(self.next) {
            self.next = end;
        }
        if had_gap || self.unacknowledged >= 2 {
            return Some(self.acknowledge(None));
        }
        self.deadline.get_or_insert(now + DELAY);
        None
    }

    /// Builds an acknowledgement. The first block is the duplicate if there is one, else the range with the latest
    /// segment; ranges reported before follow (RFC 2018, section 4, and RFC 2883, section 4).
    fn acknowledge(&mut self, duplicate: Option<u64>) -> Ack {
        (self.unacknowledged, self.deadline) = (0, None);
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for range in self.recent.iter().filter_map(|sequence| self.early.around(*sequence)) {
            if !ranges.contains(&range) {
                ranges.push(range);
            }
        }
        ranges.truncate(REMEMBERED);
        self.recent = ranges.iter().map(|range| range.start).collect();
        if let Some(sequence) = duplicate {
            let around = self.early.around(sequence);
            ranges.retain(|range| Some(range) != around.as_ref());
            ranges.splice(0..0, std::iter::once(sequence..sequence + 1).chain(around));
        }
        let mut ack = Ack { cumulative: self.next, ..Ack::default() };
        ack.blocks.iter_mut().zip(ranges).for_each(|(block, range)| *block = range);
        ack
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::ZERO;

    /// Returns the left edge and the blocks.
    fn blocks(ack: Option<Ack>) -> (u64, Vec<(u64, u64)>) {
        let ack = ack.expect("an acknowledgement");
        (ack.cumulative, ack.blocks().map(|block| (block.start, block.end)).collect())
    }

    #[test]
    fn every_other_segment_is_acknowledged_and_a_single_one_after_40_ms() {
        let mut receiver = Receiver::default();
        assert_eq!(receiver.handle_segment(NOW, 0), None);
        assert_eq!(blocks(receiver.handle_segment(NOW, 1)), (2, vec![]));
        assert_eq!(receiver.next_timeout(), None);
        assert_eq!(receiver.handle_segment(NOW, 2), None);
        assert_eq!(receiver.next_timeout(), Some(NOW + DELAY));
        assert_eq!(receiver.handle_timeout(NOW), None);
        assert_eq!(blocks(receiver.handle_timeout(NOW + DELAY)), (3, vec![]));
        assert_eq!(receiver.next_timeout(), None);
    }

    #[test]
    fn gaps_are_reported_at_once_the_latest_range_first() {
        let mut receiver = Receiver::default();
        assert_eq!(blocks(receiver.handle_segment(NOW, 1)), (0, vec![(1, 2)]));
        assert_eq!(blocks(receiver.handle_segment(NOW, 3)), (0, vec![(3, 4), (1, 2)]));
        assert_eq!(blocks(receiver.handle_segment(NOW, 5)), (0, vec![(5, 6), (3, 4), (1, 2)]));
        assert_eq!(blocks(receiver.handle_segment(NOW, 7)), (0, vec![(7, 8), (5, 6), (3, 4)]));
        assert_eq!(blocks(receiver.handle_segment(NOW, 4)), (0, vec![(3, 6), (7, 8), (1, 2)]));
        assert_eq!(blocks(receiver.handle_segment(NOW, 0)), (2, vec![(3, 6), (7, 8)]));
        assert_eq!(blocks(receiver.handle_segment(NOW, 2)), (6, vec![(7, 8)]));
        assert_eq!(receiver.delivered(), 6);
    }

    #[test]
    fn duplicates_are_reported() {
        let mut receiver = Receiver::default();
        receiver.handle_segment(NOW, 0);
        assert_eq!(blocks(receiver.handle_segment(NOW, 0)), (1, vec![(0, 1)]));
        receiver.handle_segment(NOW, 3);
        receiver.handle_segment(NOW, 4);
        receiver.handle_segment(NOW, 6);
        assert_eq!(blocks(receiver.handle_segment(NOW, 4)), (1, vec![(4, 5), (3, 5), (6, 7)]));
        assert_eq!(receiver.duplicates(), 2);
    }
}
