//! How much the path reorders: how many later packets show that one is lost rather than late.
//!
//! The number starts small. A packet that was sent again, and has arrived sooner than the retransmission can, was late.
//! So was a READ response that counts as lost and arrives, or that arrives twice. From then on more later packets are
//! needed, up to those of a third of a round trip (RFC 8985, section 6.2, uses a time instead).
//!
//! If all packets of a loss event were late, the window of the path was reduced unnecessarily, and is restored (TCP
//! learns that from D-SACKs: RFC 3708).

use std::time::Duration;

use super::missing::{MissingPackets, NewLosses};
use crate::transport::common::LOSS_EVIDENCE;
use crate::transport::path_control::{CongestionOutcome, Reduction};
use crate::types::{Psn, Time};

/// Number of loss events without a spurious retransmission after which the path no longer counts as one that reorders
/// (RFC 8985, section 6.2).
const PERSISTENCE: u16 = 16;
/// Divisor of the packets sent since the oldest missing one: at most this part of them must arrive to show that it is
/// lost. One packet more is sent for each that arrives, so they arrive within a third of a round trip. With 2, which is
/// a whole round trip, four streams through a router on two cores have a ninth of the unnecessary retransmissions, but
/// WRITEs that lose 10 % of the packets get 0.25 GB/s instead of 0.5.
const PARTS_IN_FLIGHT: u32 = 4;
/// How long a path counts as lossy after a loss event, and how long an event lasts at most.
const LOSSY_FOR: Duration = Duration::from_secs(1);

/// State of a path's reordering.
pub(super) struct Reordering {
    evidence: u32,
    events_left: u16,
    /// Spurious retransmissions that are not counted yet.
    spurious: u16,
    event: Option<Box<LossEvent>>,
}

/// A congestion event of READ responses.
struct LossEvent {
    began: Time,
    /// Losses that are noticed before everything before this number is acknowledged belong to the event. `None`: all of
    /// them were only late.
    limit: Option<Psn>,
    /// Responses that count as lost and have not turned out to be late.
    lost: MissingPackets,
    /// Whether late copies are ignored: one has already shown that the path reorders, or, after a probe, they do not
    /// show it.
    ignores_late: bool,
    /// Whether the controller considered the losses random.
    is_random: bool,
    /// The reduction of the path's window, if it is undone when all turn out to have been late.
    reduction: Option<Reduction>,
}

impl Default for Reordering {
    fn default() -> Self {
        Self { evidence: LOSS_EVIDENCE, events_left: 0, spurious: 0, event: None }
    }
}

impl Reordering {
    /// Returns how many later packets show that one is lost, of those sent since the oldest missing one.
    pub(super) fn evidence(&self, packets_in_flight: u32) -> u32 {
        self.evidence.min(packets_in_flight / PARTS_IN_FLIGHT).max(LOSS_EVIDENCE)
    }

    /// Watches how missing packets change. `recent` counts those that were sent again so recently that the
    /// retransmissions cannot have arrived: if there are fewer afterwards, the originals were late.
    pub(super) fn watch<S, T>(
        &mut self,
        missing: &mut S,
        recent: impl Fn(&S) -> u32,
        learn: impl FnOnce(&mut S) -> T,
    ) -> T {
        let before = recent(missing);
        let learned = learn(missing);
        let late = before.saturating_sub(recent(missing));
        if late > 0 {
            self.note_false_repetition();
            self.spurious = self.spurious.saturating_add(u16::try_from(late).unwrap_or(u16::MAX));
        }
        learned
    }

    /// Returns whether a loss that is noticed now belongs to the latest event. Everything before `unacknowledged` is
    /// acknowledged.
    pub(super) fn is_in_event(&self, now: Time, unacknowledged: Psn) -> bool {
        let limit = self.latest_event(now).and_then(|event| event.limit);
        limit.is_some_and(|limit| unacknowledged.is_before(limit))
    }

    /// Returns whether the path had random losses lately.
    #[inline]
    pub(super) fn is_lossy(&self, now: Time) -> bool {
        self.latest_event(now).is_some_and(|event| event.is_random)
    }

    #[inline]
    fn latest_event(&self, now: Time) -> Option<&LossEvent> {
        self.event.as_deref().filter(|event| now.saturating_since(event.began) < LOSSY_FOR)
    }

    /// Begins a congestion event of READ responses. `limit` is the number after the last one sent; `outcome` is that of
    /// the path's controller.
    pub(super) fn begin_event(&mut self, now: Time, limit: Psn, outcome: Option<CongestionOutcome>) {
        self.note_loss_event();
        let reduction = match outcome {
            Some(CongestionOutcome::Reduced(reduction)) => Some(reduction),
            _ => None,
        };
        let (lost, is_random) = (MissingPackets::default(), outcome == Some(CongestionOutcome::ConsideredRandom));
        let event = LossEvent { began: now, limit: Some(limit), lost, ignores_late: false, is_random, reduction };
        self.event = Some(Box::new(event));
    }

    /// Notes that responses count as lost: they belong to the latest event. If retransmissions are among them, its
    /// reduction stays.
    pub(super) fn note_lost(&mut self, now: Time, losses: &NewLosses) {
        self.forget_old(now);
        let Some(event) = &mut self.event else { return };
        let has_room = losses.first.iter().all(|range| event.lost.push_apart(*range));
        event.reduction.take_if(|_| losses.has_again || !has_room);
    }

    /// Notes that a response that counts as lost was late. `was_repeated`: it was requested again before that was
    /// known. Returns the reduction of the window if all responses of the event were late.
    pub(super) fn note_late(&mut self, now: Time, psn: Psn, was_repeated: bool) -> Option<Reduction> {
        self.forget_old(now);
        let event = self.event.as_mut()?;
        event.lost.remove(psn)?;
        let reduction = event.reduction.take_if(|_| event.lost.packets() == 0);
        event.limit.take_if(|_| reduction.is_some());
        self.spurious = self.spurious.saturating_add(was_repeated.into());
        self.note_late_copy();
        reduction
    }

    /// Notes that a probe repeats packets that count as lost, and may not be: two copies do not show that the path
    /// reorders.
    pub(super) fn note_probed(&mut self) {
        if let Some(event) = &mut self.event {
            event.ignores_late = true;
        }
    }

    /// Notes that packets that may belong to the latest event are retransmitted: copies of them are expected, so its
    /// reduction stays (RFC 3708, section 2).
    pub(super) fn confirm_event(&mut self) {
        if let Some(event) = &mut self.event {
            event.reduction = None;
        }
    }

    /// Forgets which responses count as lost, because everything is retransmitted.
    pub(super) fn forget_lost(&mut self) {
        self.confirm_event();
        if let Some(event) = &mut self.event {
            event.lost = MissingPackets::default();
        }
    }

    /// Forgets which responses counted as lost long ago: their numbers may belong to other packets by now.
    fn forget_old(&mut self, now: Time) {
        if self.event.is_some() && self.latest_event(now).is_none() {
            self.forget_lost();
        }
    }

    /// Notes that a packet was late. Once in each event, this raises the number of later packets needed.
    pub(super) fn note_late_copy(&mut self) {
        let is_known = self.event.as_mut().is_some_and(|event| std::mem::replace(&mut event.ignores_late, true));
        if !is_known {
            self.note_false_repetition();
        }
    }

    /// Takes the spurious retransmissions since the last call.
    pub(super) fn take_spurious(&mut self) -> u16 {
        std::mem::take(&mut self.spurious)
    }

    /// Notes that a packet was retransmitted although it was only late.
    fn note_false_repetition(&mut self) {
        self.evidence = self.evidence.saturating_mul(2);
        self.events_left = PERSISTENCE;
    }

    /// Notes a loss event. The reduction of the one before stays.
    pub(super) fn note_loss_event(&mut self) {
        self.confirm_event();
        self.events_left = self.events_left.saturating_sub(1);
        if self.events_left == 0 {
            self.evidence = LOSS_EVIDENCE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::missing::{Missing, Range};
    use super::*;

    #[test]
    fn the_loss_threshold_grows_with_spurious_retransmissions_and_recovers() {
        let mut reordering = Reordering::default();
        assert_eq!(reordering.evidence(1_000), LOSS_EVIDENCE);
        reordering.note_false_repetition();
        assert_eq!([1_000, 20, 8, 0].map(|flight| reordering.evidence(flight)), [6, 5, 3, 3]);
        (0..40).for_each(|_| reordering.note_false_repetition());
        assert_eq!(reordering.evidence(1_000), 250);
        (1..PERSISTENCE).for_each(|_| reordering.note_loss_event());
        assert_eq!(reordering.evidence(1_000), 250);
        reordering.note_loss_event();
        assert_eq!(reordering.evidence(1_000), LOSS_EVIDENCE);
    }

    const BEGIN: Psn = Psn::new(0xff_fffe);
    const NOW: Time = Time::from_nanos(1_000_000_000);

    fn lost(offsets: &[u32]) -> NewLosses {
        let range =
            |offset: &u32| Range { first: BEGIN.plus(*offset), packets: 1, missing: Missing::Lost { again: false } };
        NewLosses { first: offsets.iter().map(range).collect(), has_again: false }
    }

    /// Begins an event in which responses are lost.
    fn event(offsets: &[u32]) -> Reordering {
        let mut reordering = Reordering::default();
        reordering.begin_event(NOW, BEGIN.plus(100), Some(CongestionOutcome::Reduced(Reduction::default())));
        reordering.note_lost(NOW, &lost(offsets));
        reordering
    }

    #[test]
    fn a_reduction_was_unnecessary_if_all_responses_of_the_event_were_late() {
        let mut reordering = event(&[0, 7]);
        assert_eq!(reordering.note_late(NOW, BEGIN.plus(6), true), None, "it did not count as lost");
        assert_eq!((reordering.evidence(1_000), reordering.take_spurious()), (LOSS_EVIDENCE, 0));
        assert_eq!(reordering.note_late(NOW, BEGIN.plus(7), true), None);
        assert_eq!(reordering.note_late(NOW, BEGIN.plus(7), true), None, "once");
        assert!(reordering.is_in_event(NOW, BEGIN.plus(99)) && !reordering.is_in_event(NOW, BEGIN.plus(100)));
        assert_eq!(reordering.note_late(NOW, BEGIN, false), Some(Reduction::default()));
        assert_eq!((reordering.evidence(1_000), reordering.take_spurious()), (2 * LOSS_EVIDENCE, 1));
        assert!(!reordering.is_in_event(NOW, BEGIN), "the next loss is another event");
    }

    #[test]
    fn an_event_is_over_after_a_while() {
        let (reordering, later) = (event(&[0]), NOW + LOSSY_FOR);
        assert!(reordering.is_in_event(NOW, BEGIN) && !reordering.is_in_event(later, BEGIN), "numbers begin again");
    }

    #[test]
    fn a_path_is_lossy_for_a_while_after_a_random_loss() {
        assert!(!event(&[0]).is_lossy(NOW), "a queue overflowed");
        let mut reordering = Reordering::default();
        reordering.begin_event(NOW, BEGIN, Some(CongestionOutcome::Unchanged));
        assert!(!reordering.is_lossy(NOW), "another queue pair's reduction covers it");
        reordering.begin_event(NOW, BEGIN, Some(CongestionOutcome::ConsideredRandom));
        assert!(reordering.is_lossy(NOW) && !reordering.is_lossy(NOW + LOSSY_FOR));
    }

    #[test]
    fn a_reduction_stays_if_a_response_or_a_retransmission_is_lost_or_another_event_follows() {
        let mut reordering = event(&[0]);
        reordering.note_lost(NOW, &NewLosses { has_again: true, ..NewLosses::default() });
        assert_eq!(reordering.note_late(NOW, BEGIN, false), None);
        let mut reordering = event(&[0]);
        reordering.note_loss_event();
        assert_eq!(reordering.note_late(NOW, BEGIN, false), None);
        let mut reordering = event(&[0]);
        reordering.note_lost(NOW, &lost(&[1]));
        assert_eq!(reordering.note_late(NOW, BEGIN, false), None);
    }
}
