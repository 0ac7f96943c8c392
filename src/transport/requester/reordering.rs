//! How much the path reorders: how many later packets show that one is lost, and not late.
//!
//! It begins with a few. A packet that was sent again, and has come sooner than what is sent again can, was late: from
//! then on it takes more, up to a quarter of what is in flight, which is a quarter of a round trip (RFC 8985, section
//! 6.2, does so in time).

use crate::transport::common::LOSS_EVIDENCE;

/// After so many events of loss with nothing sent again in vain, the path reorders no more (RFC 8985, section 6.2).
const PERSISTENCE: u16 = 16;

/// What is known of the path.
pub(super) struct Reordering {
    evidence: u32,
    events_left: u16,
    /// Packets that were sent again in vain, and are not counted yet.
    spurious: u16,
}

impl Default for Reordering {
    fn default() -> Self {
        Self { evidence: LOSS_EVIDENCE, events_left: 0, spurious: 0 }
    }
}

impl Reordering {
    /// Of what is in flight, so many later packets show that one is lost.
    pub(super) fn evidence(&self, packets_in_flight: u32) -> u32 {
        self.evidence.min(packets_in_flight / 4).max(LOSS_EVIDENCE)
    }

    /// Something is learned of missing packets. `recent` counts those that were sent again so lately that they cannot
    /// have come: if there are fewer afterwards, they had been late.
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

    /// A packet was sent again, and it had been late.
    pub(super) fn note_late(&mut self) {
        self.note_false_repetition();
        self.spurious = self.spurious.saturating_add(1);
    }

    /// Packets that were sent again in vain since this was asked last.
    pub(super) fn take_spurious(&mut self) -> u16 {
        std::mem::take(&mut self.spurious)
    }

    /// Something was sent again that had been late.
    fn note_false_repetition(&mut self) {
        self.evidence = self.evidence.saturating_mul(2);
        self.events_left = PERSISTENCE;
    }

    /// Packets are lost.
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
