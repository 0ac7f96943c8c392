//! A set of segments, kept as ranges.

use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges of sequence numbers that neither overlap nor touch.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges {
    /// Ends, by start.
    ends: BTreeMap<u64, u64>,
}

impl Ranges {
    /// Adds a range. Returns its new parts in ascending order.
    pub(super) fn insert(&mut self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut added = Vec::new();
        if range.is_empty() {
            return added;
        }
        let touched = self.ends.range(..=range.end).rev().take_while(|(_, end)| **end >= range.start);
        let touched: Vec<(u64, u64)> = touched.map(|(start, end)| (*start, *end)).collect();
        let (mut start, mut end, mut next) = (range.start, range.end, range.start);
        for (known_start, known_end) in touched.into_iter().rev() {
            self.ends.remove(&known_start);
            if next < known_start {
                added.push(next..known_start);
            }
            next = next.max(known_end);
            (start, end) = (start.min(known_start), end.max(known_end));
        }
        if next < range.end {
            added.push(next..range.end);
        }
        self.ends.insert(start, end);
        added
    }

    /// Returns the range that contains a sequence number.
    pub(super) fn around(&self, sequence: u64) -> Option<Range<u64>> {
        let (start, end) = self.ends.range(..=sequence).next_back()?;
        (sequence < *end).then_some(*start..*end)
    }

    /// Removes everything before a sequence number.
    pub(super) fn remove_before(&mut self, sequence: u64) {
        while let Some(entry) = self.ends.first_entry().filter(|entry| *entry.key() < sequence) {
            let end = entry.remove();
            if end > sequence {
                self.ends.insert(sequence, end);
            }
        }
    }

    /// Removes the range that begins at `start`. Returns its end.
    pub(super) fn take_from(&mut self, start: u64) -> Option<u64> {
        self.ends.remove(&start)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(ranges: &mut Ranges, start: u64, end: u64) -> Vec<(u64, u64)> {
        ranges.insert(start..end).into_iter().map(|part| (part.start, part.end)).collect()
    }

    #[test]
    fn only_new_parts_are_returned_and_neighbors_merge() {
        let mut ranges = Ranges::default();
        assert_eq!(insert(&mut ranges, 10, 20), [(10, 20)]);
        assert_eq!(insert(&mut ranges, 30, 40), [(30, 40)]);
        assert_eq!(insert(&mut ranges, 12, 18), []);
        assert_eq!(insert(&mut ranges, 5, 45), [(5, 10), (20, 30), (40, 45)]);
        assert_eq!(insert(&mut ranges, 45, 50), [(45, 50)]);
        assert_eq!((ranges.around(49), ranges.around(50), ranges.around(4)), (Some(5..50), None, None));
        assert_eq!(insert(&mut ranges, 60, 60), []);
    }

    #[test]
    fn what_lies_before_is_forgotten() {
        let mut ranges = Ranges::default();
        [1..3, 5..9, 12..14].into_iter().for_each(|range| drop(ranges.insert(range)));
        ranges.remove_before(7);
        assert_eq!((ranges.around(6), ranges.around(7)), (None, Some(7..9)));
        assert_eq!(ranges.take_from(7), Some(9));
        assert_eq!((ranges.take_from(7), ranges.is_empty()), (None, false));
        assert_eq!((ranges.take_from(12), ranges.is_empty()), (Some(14), true));
    }
}
