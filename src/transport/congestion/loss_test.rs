//! The test whether losses show congestion or are random. Without it, CUBIC has a window of 12 packets on a path
//! that loses 1 % of them, however fast the path is.
//!
//! A queue shows in the round trip before it overflows. So losses count as random while no queue is seen and they are
//! few (the bound is BBRv2's: draft-cardwell-iccrg-bbr-congestion-control-02, `BBRLossThresh`). If there are more, a
//! trial decides: the window is reduced as for congestion, and if as many packets are lost then, the window was not the
//! reason. Without the trial, the losses of a policer, which has no queue, would be considered random.

use std::time::Duration;

use super::round_trips::ShortestRoundTrip;
use crate::types::Time;

/// A queue is seen when the shortest round trip of a round exceeds the path's by an eighth, and by at least this: hosts
/// that take turns on a processor add as much. A stream over veth that loses 10 % of its packets keeps 0.02 of its rate
/// with 100 µs. On processors half as fast it keeps 0.4 with 250 µs and 0.8 with this (READs 0.25 and 0.43). The cases
/// of shared links still pass.
const LEAST_RISE: Duration = Duration::from_micros(500);
/// Fraction of such a queue at which the window is large enough on a path that loses packets randomly.
const FULL: f64 = 0.5;
/// Highest loss rate that counts as random without a trial.
const TOLERATED: f64 = 0.02;
/// Highest loss rate that a trial can show to be random. A queue that an initial window overflows loses more.
const MOST_TOLERATED: f64 = 0.2;
/// Multiple of the loss rate shown by a trial that is tolerated afterwards: losses come in bursts.
const SPARE: f64 = 2.0;
/// Minimum fraction of the loss rate that remains with the reduced window if losses are random.
const SAME: f64 = 0.5;
/// Expected losses in a trial, enough that its outcome is not itself an accident.
const LOSSES_OF_A_TRIAL: f64 = 8.0;
/// How long the result of a trial is trusted. Only paths whose round trip is at most `NEAR` have trials: on a longer
/// path, a queue that never runs empty may be taken for a part of the path, and each of many flows that share it would
/// find that its window makes no difference.
const TRIAL_VALIDITY: Duration = Duration::from_secs(10);
const NEAR: Duration = Duration::from_millis(2);
/// Minimum number of packets over which the loss rate is computed.
const LEAST_PACKETS: u64 = 64;
/// Number of losses beyond the tolerated rate that count as an accident.
const ACCIDENTS: f64 = 2.0;
/// Rounds during which losses that were considered random are judged again: a queue that caused them is seen by then.
const DOUBTFUL_ROUNDS: u32 = 2;
/// Rounds after such losses during which the window is kept too small to build a queue. The number is bounded because
/// the queue may be that of other flows, which would get the whole link: without a bound, one of four streams had 2 of
/// 118 MB/s.
const HOLD_ROUNDS: u32 = 16;

/// Rounds for which a mark shows a queue, this one and the next: losses are noticed a round trip later.
const MARKED_ROUNDS: u32 = 2;

/// The judgment on a loss or a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Nothing to do.
    Random,
    Congestion,
    /// The reduction of the window was unnecessary.
    UnnecessaryReduction,
}

/// The loss test of a path, with the round trips and losses that it is based on.
#[derive(Clone, Debug, Default)]
pub(super) struct LossTest {
    shortest: ShortestRoundTrip,
    /// The shortest round trip of this round and of the one before.
    current: Option<Duration>,
    last: Option<Duration>,
    /// Packets sent since the count began, and those of them that repeat a lost packet.
    sent: u64,
    lost: u64,
    /// `sent` and `lost` of the previous count. A packet lost in one round is sent again in the next, which may be a
    /// small one.
    before: (u64, u64),
    doubtful_rounds: u32,
    /// Rounds left during which losses considered random keep a queue out of the window.
    hold_rounds: u32,
    /// Rounds left for which a mark shows a queue.
    marked_rounds: u32,
    trial: Trial,
}

#[derive(Clone, Copy, PartialEq, Debug, Default)]
enum Trial {
    #[default]
    None,
    /// The window is reduced because this fraction of the packets was lost.
    Runs { share: f64 },
    /// This fraction is lost randomly, as a trial showed at this time.
    Over { share: f64, at: Time },
}

impl LossTest {
    /// Records a round trip.
    pub(super) fn note_round_trip(&mut self, now: Time, measured: Duration) {
        self.shortest.note(now, measured);
        self.current = Some(self.current.map_or(measured, |current| current.min(measured)));
    }

    /// Notes that a queue marked a packet.
    pub(super) fn note_marked(&mut self) {
        self.marked_rounds = MARKED_ROUNDS;
    }

    /// Counts sent packets, and those of them that repeat a lost one.
    pub(super) fn note_sent(&mut self, packets: u64, lost: u64) {
        self.sent += packets;
        self.lost += lost;
    }

    /// Returns the shortest round trip of this round and of the one before.
    fn recent(&self) -> Option<Duration> {
        [self.current, self.last].into_iter().flatten().min()
    }

    /// Returns whether a queue is seen that is longer than this fraction of the least one that counts.
    fn sees_queue_of(&self, part: f64) -> bool {
        self.marked_rounds > 0 || self.recent().is_none_or(|recent| self.has_queue(recent, part))
    }

    /// Returns whether this round trip shows a queue longer than this fraction of the least one that counts.
    fn has_queue(&self, measured: Duration, part: f64) -> bool {
        let full = |shortest: Duration| shortest + (shortest / 8).max(LEAST_RISE).mul_f64(part);
        self.shortest.get().is_none_or(|shortest| measured > full(shortest))
    }

    /// Returns whether a queue is seen, or nothing is known about the path.
    pub(super) fn sees_queue(&self) -> bool {
        self.sees_queue_of(1.0)
    }

    /// Returns the fraction of the window that builds no queue long enough for the next loss to be taken for
    /// congestion. `None`: the whole window builds no such queue.
    pub(super) fn excess(&self) -> Option<f64> {
        if self.hold_rounds == 0 || !self.sees_queue_of(FULL) {
            return None;
        }
        let (shortest, recent) = (self.shortest.get()?, self.recent()?);
        let full = shortest + (shortest / 8).max(LEAST_RISE).mul_f64(FULL);
        Some((full.as_secs_f64() / recent.as_secs_f64()).min(1.0))
    }

    /// Returns whether losses were considered random recently.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.doubtful_rounds > 0
    }

    /// Judges a loss by the measurements so far. A window that doubles may have filled a queue in this round: then the
    /// previous round does not show it.
    pub(super) fn judge(&mut self, is_doubling: bool) -> Verdict {
        let is_full_now = || self.current.is_some_and(|current| self.has_queue(current, 1.0));
        if self.sees_queue() || is_doubling && is_full_now() {
            return Verdict::Congestion;
        }
        (self.doubtful_rounds, self.hold_rounds) = (DOUBTFUL_ROUNDS, HOLD_ROUNDS);
        Verdict::Random
    }

    /// Restarts the count: the window was reduced, and all packets that were in flight then are acknowledged.
    pub(super) fn begin_count(&mut self) {
        (self.sent, self.lost, self.before) = (0, 0, (0, 0));
    }

    /// Notes that the window was reduced, or restarted.
    pub(super) fn note_reduced(&mut self) {
        (self.doubtful_rounds, self.hold_rounds) = (0, 0);
        self.begin_count();
    }

    /// Judges a round, which is over.
    pub(super) fn end_round(&mut self, now: Time) -> Verdict {
        let is_congestion = self.is_in_doubt() && self.sees_queue();
        self.doubtful_rounds = self.doubtful_rounds.saturating_sub(1);
        self.hold_rounds = self.hold_rounds.saturating_sub(1);
        self.marked_rounds = self.marked_rounds.saturating_sub(1);
        self.last = self.current.take().or(self.last);
        if is_congestion {
            return Verdict::Congestion;
        }
        self.judge_share(now)
    }

    fn judge_share(&mut self, now: Time) -> Verdict {
        let counted = (self.sent, self.lost);
        let (sent, lost) = (counted.0 + self.before.0, counted.1 + self.before.1);
        let needed = match self.trial {
            Trial::Runs { share } => (LOSSES_OF_A_TRIAL / share) as u64,
            Trial::None | Trial::Over { .. } => LEAST_PACKETS,
        };
        if sent < needed {
            return Verdict::Random;
        }
        (self.sent, self.lost, self.before) = (0, 0, counted);
        let (sent, lost) = (sent as f64, lost as f64);
        let share = lost / sent;
        if let Trial::Runs { share: before } = self.trial {
            let is_same = share >= SAME * before && !self.sees_queue();
            self.trial = if is_same { Trial::Over { share: before.max(share), at: now } } else { Trial::None };
            return if is_same { Verdict::UnnecessaryReduction } else { Verdict::Random };
        }
        if lost <= self.tolerated(now) * sent + ACCIDENTS {
            return Verdict::Random;
        }
        let is_near = self.shortest.get().is_some_and(|shortest| shortest <= NEAR);
        let may_be_random = is_near && share <= MOST_TOLERATED && !self.sees_queue();
        self.trial = if may_be_random { Trial::Runs { share } } else { Trial::None };
        Verdict::Congestion
    }

    fn tolerated(&self, now: Time) -> f64 {
        match self.trial {
            Trial::Over { share, at } if now.saturating_since(at) < TRIAL_VALIDITY => {
                (SPARE * share).min(MOST_TOLERATED)
            }
            _ => TOLERATED,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND_TRIP: Duration = Duration::from_micros(400);

    fn at(round: u64) -> Time {
        Time::from_nanos(round * 400_000)
    }

    /// Returns a test that has measured the path.
    fn begun() -> LossTest {
        let mut test = LossTest::default();
        round(&mut test, 1, ROUND_TRIP, (0, 0));
        test
    }

    /// Runs a round with this shortest round trip, these sent packets and these losses.
    fn round(test: &mut LossTest, number: u64, shortest: Duration, (sent, lost): (u64, u64)) -> Verdict {
        test.note_round_trip(at(number), shortest);
        test.note_sent(sent, lost);
        test.end_round(at(number))
    }

    #[test]
    fn few_losses_without_a_queue_are_random() {
        let mut test = begun();
        for number in 2..100 {
            assert_eq!(test.judge(false), Verdict::Random);
            let verdict = round(&mut test, number, ROUND_TRIP + LEAST_RISE, (100, 2));
            assert_eq!(verdict, Verdict::Random, "round {number}");
        }
    }

    #[test]
    fn losses_with_a_queue_are_congestion() {
        let mut test = begun();
        let queue = ROUND_TRIP + LEAST_RISE * 11 / 10;
        test.note_round_trip(at(2), queue);
        assert_eq!(test.judge(false), Verdict::Random, "one round alone may have met a busy host");
        assert_eq!(test.clone().judge(true), Verdict::Congestion, "the window was half as large in the round before");
        assert_eq!(round(&mut test, 2, queue, (100, 0)), Verdict::Random);
        assert_eq!(round(&mut test, 3, queue, (100, 1)), Verdict::Congestion);
        assert_eq!(test.judge(false), Verdict::Congestion);
        assert_eq!(LossTest::default().judge(false), Verdict::Congestion, "nothing is known of the path");
    }

    #[test]
    fn losses_beside_marks_are_congestion() {
        let mut test = begun();
        test.note_marked();
        assert_eq!(test.judge(false), Verdict::Congestion);
        round(&mut test, 2, ROUND_TRIP, (100, 0));
        assert_eq!(test.judge(false), Verdict::Congestion, "they are noticed a round trip later");
        round(&mut test, 3, ROUND_TRIP, (100, 0));
        assert_eq!(test.judge(false), Verdict::Random);
    }

    #[test]
    fn many_losses_are_random_if_a_smaller_window_loses_as_much() {
        let mut test = begun();
        test.judge(false);
        assert_eq!(round(&mut test, 2, ROUND_TRIP, (100, 10)), Verdict::Congestion);
        test.note_reduced();
        assert_eq!(round(&mut test, 3, ROUND_TRIP, (70, 7)), Verdict::Random, "too few to tell");
        assert_eq!(round(&mut test, 4, ROUND_TRIP, (70, 7)), Verdict::UnnecessaryReduction);
        let verdicts: Vec<_> = (5..50).map(|number| round(&mut test, number, ROUND_TRIP, (100, 15))).collect();
        assert!(verdicts.iter().all(|verdict| *verdict == Verdict::Random));
        assert_eq!(round(&mut test, 50, ROUND_TRIP, (100, 30)), Verdict::Congestion, "twice as much is tolerated");
        // The result of a trial expires.
        let later = at(100) + TRIAL_VALIDITY;
        test.trial = Trial::Over { share: 0.1, at: at(100) };
        test.note_round_trip(later, ROUND_TRIP);
        test.note_sent(100, 10);
        assert_eq!(test.end_round(later), Verdict::Congestion);
    }

    #[test]
    fn many_losses_are_congestion_if_a_smaller_window_loses_less() {
        let mut test = begun();
        assert_eq!(round(&mut test, 2, ROUND_TRIP, (100, 10)), Verdict::Congestion);
        test.note_reduced();
        assert_eq!(round(&mut test, 3, ROUND_TRIP, (100, 2)), Verdict::Random);
        assert_eq!(round(&mut test, 4, ROUND_TRIP, (100, 10)), Verdict::Congestion, "so it is tried again");
        // Where a queue may pass for the path there is no trial.
        let mut far = LossTest::default();
        let round_trip = NEAR + LEAST_RISE;
        round(&mut far, 1, round_trip, (0, 0));
        assert_eq!(round(&mut far, 2, round_trip, (100, 10)), Verdict::Congestion);
        assert_eq!(round(&mut far, 3, round_trip, (100, 10)), Verdict::Congestion);
    }

    #[test]
    fn a_queue_seen_during_random_losses_is_taken_out_of_the_window() {
        let mut test = begun();
        assert_eq!(test.excess(), None);
        test.judge(false);
        (2..4).for_each(|number| _ = round(&mut test, number, ROUND_TRIP + LEAST_RISE * 3 / 4, (100, 0)));
        let part = test.excess().expect("a queue is seen");
        let [full, seen] = [LEAST_RISE / 2, LEAST_RISE * 3 / 4].map(|queue| (ROUND_TRIP + queue).as_secs_f64());
        assert!((part - full / seen).abs() < 0.001, "{part}");
        test.note_reduced();
        assert_eq!(test.excess(), None, "the verdict was congestion");
    }
}
