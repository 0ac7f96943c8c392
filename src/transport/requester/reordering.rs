//! How much the path reorders: how many later packets show that one is lost rather than late.
//!
//! The number starts small. A packet that was sent again, and has arrived sooner than the retransmission can, was late:
//! from then on more later packets are needed, up to a quarter of those in flight, which is a quarter of a round trip
//! (RFC 8985, section 6.2, does so in time).

use crate::transport::common::LOSS_EVIDENCE;

/// Number of loss events without a spurious retransmission after which the path reorders no more (RFC 8985, section
/// 6.2).
const PERSISTENCE: u16 = 16;

/// State of a path's reordering.
pub(super) struct Reordering {
    evidence: u32,
    events_left: u16,
    /// Spurious retransmissions that are not counted yet.
    spurious: u16,
}

impl Default for Reordering {
    fn default() -> Self {
        Self { evidence: LOSS_EVIDENCE, events_left: 0, spurious: 0 }
    }
}

impl Reordering {
    /// Returns how many later packets, of those in flight, show that one is lost.
    pub(super) fn evidence(&self, packets_in_flight: u32) -> u32 {
        self.evidence.min(packets_in_flight / 4).max(LOSS_EVIDENCE)
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

    /// Notes that a packet that was sent again had been late.
    pub(super) fn note_late(&mut self) {
        self.note_false_repetition();
        self.spurious = self.spurious.saturating_add(1);
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

    /// Notes that packets are lost.
    pub(super) fn note_loss_event(&mut self) {
        self.events_left = self.events_left.saturating_sub(1);
        if self.events_left == 0 {
            *self = Self { spurious: self.spurious, ..Self::default() };
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
        assert_eq!([1_000, 20, 8, 0].map(|flight| reordering.evidence(flight)), [6, 5, 3, 3]);
        (0..40).for_each(|_| reordering.note_false_repetition());
        assert_eq!(reordering.evidence(1_000), 250);
        (1..PERSISTENCE).for_each(|_| reordering.note_loss_event());
        assert_eq!(reordering.evidence(1_000), 250);
        reordering.note_loss_event();
        assert_eq!(reordering.evidence(1_000), LOSS_EVIDENCE);
    }
}
