//! READ responses that came before their turn from a native peer that shares a key: their place in memory follows from
//! their number, so they are placed at once, and exactly those that are missing are asked for again.
//!
//! Responses leave in order. So one that comes shows that everything before it was executed, and that the responses
//! before it have left.

use std::time::Duration;

use super::missing::{LOSS_EVIDENCE, Missing, MissingPackets, Range};
use crate::types::{Psn, Time};

/// See the module.
#[derive(Debug)]
pub(super) struct EarlyResponses {
    missing: MissingPackets,
    /// The oldest number that is not acknowledged.
    begin: Psn,
    /// Everything before this number was executed.
    end: Psn,
    /// Packets before `end` that lie in no queue: they have come, or are lost and not asked for again yet.
    absent: u32,
    /// Losses before this number are one event of congestion.
    event_end: Psn,
}

impl EarlyResponses {
    /// Nothing from this number on has come.
    pub(super) fn new(begin: Psn) -> Self {
        let missing = MissingPackets::default();
        Self { missing, begin, end: begin, absent: 0, event_end: begin }
    }

    /// Everything before this number was executed.
    pub(super) fn end(&self) -> Psn {
        self.end
    }

    /// Everything before `end` was executed. Of what was not known to be, these numbers, in order, have responses.
    pub(super) fn extend(&mut self, end: Psn, expected: impl Iterator<Item = (Psn, u32)>) {
        for (first, packets) in expected {
            self.missing.push(Range { first, packets, missing: Missing::Late });
        }
        self.end = end;
        self.recount();
    }

    /// A response has come. Whether it was missing.
    pub(super) fn remove(&mut self, psn: Psn) -> bool {
        let was_missing = self.missing.remove(psn);
        self.recount();
        was_missing
    }

    /// What is missing although the response before `end` has come: lost if it is far enough behind it, or if it was
    /// asked for again before `patience`. Whether that is an event of congestion, which lasts to `limit`.
    pub(super) fn judge(&mut self, end: Psn, limit: Psn, now: Time, patience: Duration) -> bool {
        let lost_before = self.missing.lost();
        let is_far_behind = |range: &Range| end.distance_from(range.end()) >= LOSS_EVIDENCE as i32;
        self.missing.judge(|range| range.missing.still(is_far_behind(range), now, patience));
        self.recount();
        let is_event = self.missing.lost() > lost_before && !self.begin.is_before(self.event_end);
        if is_event {
            self.event_end = limit;
        }
        is_event
    }

    /// What may have been late, and what was asked for again long ago, is lost.
    pub(super) fn give_up_before(&mut self, end: Psn, now: Time, patience: Duration) {
        let is_due = |range: &Range| range.first.is_before(end);
        self.missing
            .judge(|range| if is_due(range) { range.missing.still(true, now, patience) } else { range.missing });
        self.recount();
    }

    /// What is missing.
    pub(super) fn missing(&self) -> &MissingPackets {
        &self.missing
    }

    /// Whether the response of this number has come.
    pub(super) fn has_come(&self, psn: Psn) -> bool {
        psn.is_before(self.end) && !self.missing.contains(psn)
    }

    /// Whether all responses of these numbers have come.
    pub(super) fn have_all_come(&self, begin: Psn, end: Psn) -> bool {
        !self.end.is_before(end) && !self.missing.contains_any(begin, end)
    }

    /// Whether the response of this number has left and has not come.
    pub(super) fn is_missing(&self, psn: Psn) -> bool {
        self.missing.contains(psn)
    }

    /// The number up to which everything has come.
    pub(super) fn complete_before(&self) -> Psn {
        self.missing.first().unwrap_or(self.end)
    }

    /// Everything before `psn` is acknowledged. Whether anything else is known.
    pub(super) fn acknowledge_before(&mut self, psn: Psn) -> bool {
        self.begin = psn;
        self.missing.remove_before(psn);
        self.recount();
        psn.is_before(self.end)
    }

    /// Packets before `end` that lie in no queue.
    #[inline]
    pub(super) fn absent(&self) -> u32 {
        self.absent
    }

    fn recount(&mut self) {
        let known = self.end.distance_from(self.begin).max(0) as u32;
        self.absent = known.saturating_sub(self.missing.packets()) + self.missing.lost();
    }

    /// The first responses that are to be asked for again.
    pub(super) fn first_lost(&self) -> Option<(Psn, u32)> {
        self.missing.first_lost().map(|range| (range.first, range.packets))
    }

    /// So many of [`EarlyResponses::first_lost`] were asked for again.
    pub(super) fn note_asked_again(&mut self, packets: u32, now: Time) {
        self.missing.note_sent_again(packets, now);
        self.absent = self.absent.saturating_sub(packets);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN: Psn = Psn::new(0xff_fff0);
    const PATIENCE: Duration = Duration::from_millis(1);

    fn at(microseconds: u64) -> Time {
        Time::from_nanos(1_000_000_000 + microseconds * 1_000)
    }

    struct Board(EarlyResponses);

    impl Board {
        fn new() -> Self {
            Self(EarlyResponses::new(BEGIN))
        }

        /// A response of one long READ comes.
        fn come(&mut self, place: u32, now: Time) -> bool {
            let (psn, from) = (BEGIN.plus(place), self.0.end());
            if from.is_before(psn.plus(1)) {
                let packets = psn.plus(1).distance_from(from) as u32;
                self.0.extend(psn.plus(1), [(from, packets)].into_iter());
            }
            assert!(self.0.remove(psn), "{place} came twice");
            self.0.judge(psn.plus(1), BEGIN.plus(100), now, PATIENCE)
        }

        fn ask_again(&mut self, now: Time) -> Vec<(i32, u32)> {
            let mut asked = Vec::new();
            while let Some((psn, packets)) = self.0.first_lost() {
                asked.push((psn.distance_from(BEGIN), packets));
                self.0.note_asked_again(packets, now);
            }
            asked
        }
    }

    #[test]
    fn what_is_missing_is_asked_for_again_after_three_later_responses() {
        let mut board = Board::new();
        assert!(!board.come(2, at(0)) && !board.come(3, at(0)));
        assert!(board.0.missing().has_late());
        assert_eq!(board.ask_again(at(0)), []);
        assert!(board.come(4, at(0)), "an event of congestion");
        assert_eq!(board.0.absent(), 5);
        assert_eq!(board.ask_again(at(0)), [(0, 2)]);
        assert_eq!(board.0.absent(), 3);
        assert!(!board.come(9, at(1)) && !board.come(1, at(2)));
        assert_eq!(board.0.complete_before(), BEGIN);
        assert!(board.0.has_come(BEGIN.plus(1)) && !board.0.has_come(BEGIN.plus(8)));
        // The one that was asked for again is lost again, the four before the last are late.
        board.come(10, at(1_000));
        assert_eq!(board.ask_again(at(1_000)), [(0, 1)]);
        board.0.give_up_before(BEGIN.plus(6), at(1_000), PATIENCE);
        assert_eq!(board.ask_again(at(1_000)), [(5, 4)]);
        board.come(0, at(1_100));
        assert_eq!(board.0.complete_before(), BEGIN.plus(5));
        assert!(board.0.acknowledge_before(BEGIN.plus(5)));
        assert!(!board.0.acknowledge_before(BEGIN.plus(11)));
    }

    #[test]
    fn numbers_without_a_response_are_not_missing() {
        let mut board = Board::new();
        board.0.extend(BEGIN.plus(10), [(BEGIN, 2), (BEGIN.plus(8), 2)].into_iter());
        assert!(board.0.has_come(BEGIN.plus(5)));
        board.0.remove(BEGIN);
        board.0.remove(BEGIN.plus(1));
        assert_eq!(board.0.complete_before(), BEGIN.plus(8));
    }
}
