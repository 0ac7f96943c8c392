//! Sequences of packet numbers: which ones were seen, and which are missing.

use rdma_verbs::types::Psn;

/// Gaps in a sequence that are remembered.
const MOST_GAPS: usize = 64;
/// A jump in the sequence numbers that means another connection with the same queue pair.
pub(super) const LARGEST_JUMP: i32 = 1 << 16;

/// How a packet continues a sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Continuation {
    Next,
    /// After a gap of so many packets.
    After(u32),
    Late,
    /// In the numbers after a READ whose response has an unknown number of packets.
    Open,
    Again,
    /// Far away: another connection.
    Restart,
}

/// The sequence of one observer.
#[derive(Clone, Debug, Default)]
pub(super) struct Sequence {
    /// The lowest number.
    first: Option<Psn>,
    pub(super) next: Option<Psn>,
    /// The last packet was a READ whose number of packets is unknown, so a gap is none.
    is_open: bool,
    /// First number, count, and whether it may be none: the response of a READ.
    gaps: Vec<(Psn, u32, bool)>,
}

impl Sequence {
    /// A sequence that begins with this number.
    pub(super) fn at(first: Psn) -> Self {
        Self { first: Some(first), next: Some(first), ..Self::default() }
    }

    /// Whether this number was taken.
    pub(super) fn has(&self, psn: Psn) -> bool {
        let is_in_gap = self.gaps.iter().any(|(first, count, is_open)| !is_open && psn.is_within(*first, *count));
        self.next.is_some_and(|next| psn.is_before(next)) && !is_in_gap
    }

    /// Whether all numbers up to this one were taken.
    pub(super) fn is_complete(&self, last: Psn) -> bool {
        self.gaps.is_empty() && self.has(last)
    }

    /// Takes a packet that stands for `span` numbers.
    pub(super) fn take(&mut self, psn: Psn, span: u32, is_open: bool) -> Continuation {
        let Some(next) = self.next else {
            (self.first, self.next, self.is_open) = (Some(psn), Some(psn.plus(span)), is_open);
            return Continuation::Next;
        };
        let distance = psn.distance_from(next);
        if distance.abs() > LARGEST_JUMP && !self.is_open {
            return Continuation::Restart;
        }
        if distance >= 0 {
            self.add_gap(next, distance, self.is_open);
            let gap = if self.is_open { 0 } else { distance as u32 };
            (self.next, self.is_open) = (Some(psn.plus(span)), is_open);
            return if gap > 0 { Continuation::After(gap) } else { Continuation::Next };
        }
        if next.is_before(psn.plus(span)) {
            self.next = Some(psn.plus(span));
        }
        if let Some(first) = self.first.filter(|first| psn.is_before(*first)) {
            // The first packets that the observer saw were not the first ones that were sent.
            self.first = Some(psn);
            self.add_gap(psn.plus(span), first.distance_from(psn.plus(span)), is_open);
            return Continuation::Late;
        }
        match self.fill(psn, span) {
            Some(true) => Continuation::Open,
            Some(false) => Continuation::Late,
            None => Continuation::Again,
        }
    }

    /// Remembers a gap of this length, if there is one, and forgets the oldest if there are too many.
    fn add_gap(&mut self, first: Psn, length: i32, is_open: bool) {
        if length <= 0 {
            return;
        }
        if self.gaps.len() == MOST_GAPS {
            self.gaps.remove(0);
        }
        self.gaps.push((first, length as u32, is_open));
    }

    /// Removes so many numbers from the gap that contains the first one. Returns whether the gap may have been none.
    fn fill(&mut self, psn: Psn, span: u32) -> Option<bool> {
        let index = self.gaps.iter().position(|(first, count, _)| psn.is_within(*first, *count))?;
        let (first, count, is_open) = self.gaps.remove(index);
        let before = psn.distance_from(first) as u32;
        let parts = [(first, before, is_open), (psn.plus(span), (count - before).saturating_sub(span), is_open)];
        self.gaps.extend(parts.into_iter().filter(|(_, count, _)| *count > 0));
        self.gaps.truncate(MOST_GAPS);
        Some(is_open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_filled_and_repetitions_recognized() {
        let psn = Psn::new;
        let mut sequence = Sequence::default();
        assert_eq!(sequence.take(psn(0xff_fffe), 1, false), Continuation::Next);
        assert_eq!(sequence.take(psn(0xff_ffff), 1, false), Continuation::Next);
        assert_eq!(sequence.take(psn(4), 1, false), Continuation::After(4));
        assert!(sequence.has(psn(4)) && !sequence.has(psn(2)) && !sequence.is_complete(psn(4)));
        for late in [2, 0, 1, 3] {
            assert_eq!(sequence.take(psn(late), 1, false), Continuation::Late);
        }
        assert!(sequence.is_complete(psn(4)) && !sequence.is_complete(psn(5)));
        assert_eq!(sequence.take(psn(3), 1, false), Continuation::Again);
        assert_eq!(sequence.take(psn(3 + (1 << 20)), 1, false), Continuation::Restart);
        // A READ of unknown size, the next request, and one between them.
        sequence.take(psn(5), 1, true);
        assert_eq!(sequence.take(psn(40), 1, false), Continuation::Next);
        assert_eq!(sequence.take(psn(22), 1, false), Continuation::Open);
        assert_eq!(sequence.take(psn(22), 1, false), Continuation::Again);
    }

    #[test]
    fn numbers_before_the_first_one_are_late() {
        let psn = Psn::new;
        let mut sequence = Sequence::default();
        sequence.take(psn(2), 1, false);
        assert_eq!(sequence.take(psn(0xff_fffd), 2, false), Continuation::Late);
        assert!(sequence.has(psn(0xff_fffe)) && !sequence.has(psn(0)));
        for again in [psn(0xff_fffd), psn(0xff_fffe), psn(2)] {
            assert_eq!(sequence.take(again, 1, false), Continuation::Again);
        }
        for late in [0xff_ffff, 0, 1] {
            assert_eq!(sequence.take(psn(late), 1, false), Continuation::Late);
        }
        assert_eq!(sequence.take(psn(3), 1, false), Continuation::Next);
    }

    #[test]
    fn gaps_have_a_bound() {
        let mut sequence = Sequence::default();
        for number in 0..10_000 {
            sequence.take(Psn::new(number * 3), 1, false);
        }
        assert_eq!(sequence.gaps.len(), MOST_GAPS);
    }
}
