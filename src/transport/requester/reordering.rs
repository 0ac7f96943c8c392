//! How much the path reorders: how many later packets show that one is lost rather than late.
//!
//! The number starts small. A packet that was sent again, and has arrived sooner than the retransmission can, was late.
//! So was a READ response that counts as lost and arrives, or that arrives twice. From then on more later packets are
//! needed, up to half of those in flight, which is half of a round trip (RFC 8985, section 6.2, does so in time, up to
//! a round trip).
//!
//! If all packets of a loss event were late, the window of the path was reduced without need, and is restored (TCP
//! learns that from D-SACKs: RFC 3708).

use super::missing::NewLosses;
use crate::transport::common::LOSS_EVIDENCE;
use crate::transport::path_control::Reduction;
use crate::types::Psn;

/// Number of loss events without a spurious retransmission after which the path reorders no more (RFC 8985, section
/// 6.2).
const PERSISTENCE: u16 = 16;

/// Divisor of the packets in flight, of which at most as many show that one is lost. Four streams of READs through a
/// router on two cores, 15 s each: with 4, 2,545 loss events and 1,794 packets requested again, nearly all without
/// need; with 2, 287 and 282; with 1, 21 and 107, but a real loss is noticed a round trip later.
const PARTS_IN_FLIGHT: u32 = 2;

/// State of a path's reordering.
pub(super) struct Reordering {
    evidence: u32,
    events_left: u16,
    /// Spurious retransmissions that are not counted yet.
    spurious: u16,
    event: Option<Box<LossEvent>>,
}

/// A congestion event whose packets may all have been late.
struct LossEvent {
    begin: Psn,
    end: Psn,
    /// Packets that count as lost and have not turned out to be late.
    lost: u32,
    has_late: bool,
    reduction: Option<Reduction>,
}

impl Default for Reordering {
    fn default() -> Self {
        Self { evidence: LOSS_EVIDENCE, events_left: 0, spurious: 0, event: None }
    }
}

impl Reordering {
    /// Returns how many later packets, of those in flight, show that one is lost.
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

    /// Begins a congestion event, which reduced the window of the path in this way. Its packets begin at this number.
    pub(super) fn begin_event(&mut self, begin: Psn, reduction: Option<Reduction>) {
        self.note_loss_event();
        self.event = Some(Box::new(LossEvent { begin, end: begin, lost: 0, has_late: false, reduction }));
    }

    /// Notes that packets before `end` count as lost: they belong to the current event. If a retransmission is lost,
    /// the event is none of late packets.
    pub(super) fn note_lost(&mut self, losses: NewLosses, end: Psn) {
        self.event.take_if(|_| losses.again > 0);
        if let Some(event) = self.event.as_mut().filter(|_| losses.first > 0) {
            (event.lost, event.end) = (event.lost.saturating_add(losses.first), end);
        }
    }

    /// Notes that a packet that counted as lost was late. `was_repeated`: it was sent again before that was known.
    /// Returns the reduction of the window if all packets of the event were late.
    pub(super) fn note_late(&mut self, psn: Psn, was_repeated: bool) -> Option<Reduction> {
        let event = self.event.as_mut()?;
        let length = u32::try_from(event.end.distance_from(event.begin)).unwrap_or(0);
        if !psn.is_within(event.begin, length) {
            return None;
        }
        event.lost = event.lost.saturating_sub(1);
        let is_over = event.lost == 0;
        if !std::mem::replace(&mut event.has_late, true) {
            self.note_false_repetition();
        }
        self.spurious = self.spurious.saturating_add(was_repeated.into());
        self.event.take_if(|_| is_over)?.reduction
    }

    /// Takes the spurious retransmissions since the last call.
    pub(super) fn take_spurious(&mut self) -> u16 {
        std::mem::take(&mut self.spurious)
    }

    /// Notes that something was sent again that had been late.
    fn note_false_repetition(&mut self) {
        self.evidence = self.evidence.saturating_mul(2);
        self.events_left = PERSISTENCE;
    }

    /// Notes a loss event.
    pub(super) fn note_loss_event(&mut self) {
        self.event = None;
        self.events_left = self.events_left.saturating_sub(1);
        if self.events_left == 0 {
            self.evidence = LOSS_EVIDENCE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evidence_grows_with_what_was_sent_again_in_vain_and_is_forgotten() {
        let mut reordering = Reordering::default();
        assert_eq!(reordering.evidence(1_000), LOSS_EVIDENCE);
        reordering.note_false_repetition();
        assert_eq!([1_000, 20, 8, 0].map(|flight| reordering.evidence(flight)), [6, 6, 4, 3]);
        (0..40).for_each(|_| reordering.note_false_repetition());
        assert_eq!(reordering.evidence(1_000), 500);
        (1..PERSISTENCE).for_each(|_| reordering.note_loss_event());
        assert_eq!(reordering.evidence(1_000), 500);
        reordering.note_loss_event();
        assert_eq!(reordering.evidence(1_000), LOSS_EVIDENCE);
    }

    const BEGIN: Psn = Psn::new(0xff_fffe);

    fn lost(first: u32, again: u32) -> NewLosses {
        NewLosses { first, again }
    }

    /// Begins an event of this many lost packets.
    fn event(packets: u32) -> Reordering {
        let mut reordering = Reordering::default();
        reordering.begin_event(BEGIN, Some(Reduction::default()));
        reordering.note_lost(lost(packets, 0), BEGIN.plus(100));
        reordering
    }

    #[test]
    fn a_reduction_was_unnecessary_if_all_packets_of_the_event_were_late() {
        let mut reordering = event(2);
        assert_eq!(reordering.note_late(BEGIN.plus(100), true), None, "it belongs to no event");
        assert_eq!(reordering.note_late(BEGIN.minus(1), true), None);
        assert_eq!((reordering.evidence(1_000), reordering.take_spurious()), (LOSS_EVIDENCE, 0));
        assert_eq!(reordering.note_late(BEGIN.plus(7), true), None);
        assert_eq!(reordering.note_late(BEGIN, false), Some(Reduction::default()));
        assert_eq!((reordering.evidence(1_000), reordering.take_spurious()), (2 * LOSS_EVIDENCE, 1));
        assert_eq!(reordering.note_late(BEGIN, false), None, "the event is over");
    }

    #[test]
    fn an_event_with_a_lost_retransmission_or_of_another_kind_is_none_of_late_packets() {
        let mut reordering = event(1);
        reordering.note_lost(lost(0, 1), BEGIN.plus(100));
        assert_eq!(reordering.note_late(BEGIN, false), None);
        let mut reordering = event(1);
        reordering.note_loss_event();
        assert_eq!(reordering.note_late(BEGIN, false), None);
        let mut reordering = event(1);
        reordering.note_lost(lost(1, 0), BEGIN.plus(100));
        assert_eq!(reordering.note_late(BEGIN, false), None, "another one is lost");
    }
}
