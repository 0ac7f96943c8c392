//! The packets that a native peer has reported missing, and whether they were sent again.
//!
//! While there is a scoreboard, the requester does not go back: the peer keeps packets behind a gap, and each missing
//! one is retransmitted individually. The scoreboard lists the packets in flight that the peer misses; the peer keeps
//! the others before `end`.

use super::gaps::Gaps;
use super::missing::{LossDetection, Missing, MissingPackets, Range};
use crate::types::{Psn, Time};
use crate::wire::GapRun;

/// The packets that a native peer misses, and when it last reported them.
#[derive(Debug)]
pub(super) struct Scoreboard {
    gaps: Gaps,
    /// When the peer last reported its gaps.
    told_at: Time,
}

/// The news in a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Learned {
    /// The peer keeps packets that it did not keep before.
    pub(super) has_delivered: bool,
    /// More packets are lost than before, none of them in a known congestion event.
    pub(super) is_new_event: bool,
}

impl Scoreboard {
    /// Creates the scoreboard of a peer that has reported no gap yet.
    pub(super) fn new(begin: Psn) -> Self {
        Self { gaps: Gaps::new(begin), told_at: Time::ZERO }
    }

    pub(super) fn gaps(&self) -> &Gaps {
        &self.gaps
    }

    pub(super) fn gaps_mut(&mut self) -> &mut Gaps {
        &mut self.gaps
    }

    /// Takes a report of the peer's gaps. A packet is lost if enough that left later are kept. `limit` is the number
    /// after the last one sent.
    pub(super) fn take(
        &mut self,
        runs: impl Iterator<Item = GapRun> + Clone,
        limit: Psn,
        detection: LossDetection,
    ) -> Learned {
        let now = detection.now;
        let end = self.gaps.begin().plus(runs.clone().map(GapRun::packets).sum());
        let (missing, names_arrived) = self.missing_after(runs, end, detection);
        // A newer report has overtaken this one. If the peer has instead dropped packets that it kept, a later report
        // shows it again.
        let is_older = names_arrived || end.is_before(self.gaps.end());
        if is_older && now.saturating_since(self.told_at) < detection.time_threshold {
            return Learned::default();
        }
        self.told_at = now;
        let arrived_before = self.gaps.arrived();
        let is_new_event = self.gaps.replace(missing, end, limit);
        Learned { has_delivered: self.gaps.arrived() > arrived_before, is_new_event }
    }

    /// Returns the missing packets before `end` that a report names, with their known states, and whether some of them
    /// had arrived.
    fn missing_after(
        &self,
        runs: impl Iterator<Item = GapRun> + Clone,
        end: Psn,
        detection: LossDetection,
    ) -> (MissingPackets, bool) {
        let is_lost_again = |repetition| detection.is_lost_again(repetition, end);
        let mut names_arrived = false;
        let mut missing = MissingPackets::default();
        let mut known = self.gaps.missing().iter().peekable();
        let mut kept_behind: u32 = runs.clone().map(|run| u32::from(run.kept)).sum();
        let mut psn = self.gaps.begin();
        for run in runs {
            let is_lost = kept_behind >= detection.packet_threshold;
            for _ in 0..run.missing {
                while known.next_if(|range| !psn.is_before(range.end())).is_some() {}
                let before = known.peek().filter(|range| !psn.is_before(range.first)).map(|range| range.missing);
                names_arrived |= before.is_none() && psn.is_before(self.gaps.end());
                let still = before.unwrap_or(Missing::Late).still(is_lost, is_lost_again);
                missing.push(Range { first: psn, packets: 1, missing: still });
                psn = psn.plus(1);
            }
            psn = psn.plus(u32::from(run.kept));
            kept_behind -= u32::from(run.kept);
        }
        (missing, names_arrived)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::missing::Repetition;
    use super::*;
    use crate::transport::common::LOSS_EVIDENCE;

    const BEGIN: Psn = Psn::new(0xff_fff0);
    /// Later numbers are sent for the first time.
    const LIMIT: Psn = BEGIN.plus(100);

    fn at(microseconds: u64) -> Time {
        Time::from_nanos(1_000_000_000 + microseconds * 1_000)
    }

    struct Board(Scoreboard);

    impl Board {
        fn new() -> Self {
            Self(Scoreboard::new(BEGIN))
        }

        fn take(&mut self, runs: &[(u16, u16)], now: Time) -> Learned {
            let runs = runs.iter().map(|(missing, kept)| GapRun { missing: *missing, kept: *kept });
            let detection =
                LossDetection { now, packet_threshold: LOSS_EVIDENCE, time_threshold: Duration::from_millis(1) };
            self.0.take(runs, LIMIT, detection)
        }

        /// Sends all lost packets again. Returns their distances from the first number.
        fn send_again(&mut self, now: Time) -> Vec<i32> {
            let mut sent = Vec::new();
            while let Some(range) = self.0.gaps.missing().first_lost() {
                sent.push(range.first.distance_from(BEGIN));
                self.0.gaps.note_sent_again(1, Repetition { at: now, later: LIMIT });
            }
            sent
        }
    }

    #[test]
    fn gaps_with_enough_later_packets_are_lost_and_each_packet_is_retransmitted_once() {
        let mut board = Board::new();
        let learned = board.take(&[(2, 5), (1, 1), (3, 2)], at(0));
        assert_eq!(learned, Learned { has_delivered: true, is_new_event: true });
        // Eight are kept, three lost; the last three may be late.
        assert_eq!(board.0.gaps.absent(), 11);
        assert_eq!(board.send_again(at(1)), [0, 1, 7]);
        assert_eq!(board.0.gaps.absent(), 8);
        let learned = board.take(&[(2, 5), (1, 1), (3, 3)], at(2));
        assert_eq!(learned, Learned { has_delivered: true, ..Learned::default() });
        assert_eq!(board.send_again(at(3)), [9, 10, 11]);
    }

    #[test]
    fn a_lost_retransmission_is_repeated_after_a_while() {
        let mut board = Board::new();
        board.take(&[(1, 3)], at(0));
        assert_eq!(board.send_again(at(0)), [0]);
        board.take(&[(1, 9)], at(999));
        assert_eq!(board.send_again(at(999)), []);
        let learned = board.take(&[(1, 20)], at(1_000));
        assert!(!learned.is_new_event, "one event for all that was in flight");
        assert_eq!(board.send_again(at(1_000)), [0]);
    }

    #[test]
    fn a_lost_retransmission_is_repeated_when_enough_later_packets_are_kept() {
        let mut board = Board::new();
        board.take(&[(1, 99)], at(0));
        assert_eq!(board.send_again(at(0)), [0]);
        board.take(&[(1, 101)], at(1));
        assert_eq!(board.send_again(at(1)), []);
        board.take(&[(1, 102)], at(1));
        assert_eq!(board.send_again(at(1)), [0]);
    }

    #[test]
    fn acknowledgements_empty_the_scoreboard() {
        let mut board = Board::new();
        board.take(&[(2, 5), (2, 3)], at(0));
        assert!(board.0.gaps.acknowledge_before(BEGIN.plus(1)));
        assert_eq!(board.send_again(at(0)), [1, 7, 8]);
        assert!(board.0.gaps.acknowledge_before(BEGIN.plus(8)));
        assert_eq!(
            (board.0.gaps.absent(), board.0.gaps.has_arrived(BEGIN.plus(8)), board.0.gaps.has_arrived(BEGIN.plus(9))),
            (3, false, true)
        );
        assert!(!board.0.gaps.acknowledge_before(BEGIN.plus(12)));
        assert_eq!(board.0.gaps.absent(), 0);
    }

    #[test]
    fn an_overtaken_report_changes_nothing_unless_it_is_repeated() {
        let mut board = Board::new();
        board.take(&[(1, 9), (1, 9)], at(0));
        board.send_again(at(0));
        assert_eq!(board.take(&[(1, 5)], at(10)), Learned::default());
        assert!(board.0.gaps.has_arrived(BEGIN.plus(9)));
        // The peer has dropped the packets that it kept.
        board.take(&[(1, 5)], at(2_000));
        assert!(!board.0.gaps.has_arrived(BEGIN.plus(9)));
    }

    /// Both reports have the same end, and only the newer one is right.
    #[test]
    fn alternating_reports_cause_no_second_retransmission() {
        let mut board = Board::new();
        let (older, newer) = ([(1, 4), (1, 4)], [(1, 9)]);
        board.take(&older, at(0));
        assert_eq!(board.send_again(at(0)), [0, 5]);
        for round in 1..10 {
            board.take(&newer, at(10 * round));
            board.take(&older, at(10 * round + 5));
            assert_eq!(board.send_again(at(10 * round + 5)), []);
        }
    }

    #[test]
    fn late_packets_can_be_given_up() {
        let mut board = Board::new();
        board.take(&[(1, 2)], at(0));
        assert_eq!(board.send_again(at(0)), []);
        board.0.gaps.give_up_before(LIMIT, |_| false);
        assert_eq!(board.send_again(at(0)), [0]);
    }

    #[test]
    fn ranges_are_bounded() {
        let mut board = Board::new();
        let runs: Vec<(u16, u16)> = vec![(100, 1); GapRun::MOST];
        for round in 0..200 {
            board.take(&runs, at(round * 10_000));
            for _ in 0..round {
                board.0.gaps.note_sent_again(1, Repetition { at: at(round * 10_000), later: LIMIT });
            }
            assert!(board.0.gaps.missing().ranges() <= 1_024 + GapRun::MOST + 200);
        }
    }
}
