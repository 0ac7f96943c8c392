//! The sender's scoreboard: the state of each segment between the left edge and the next new one (RFC 6675, section 3).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::Ack;
use super::ranges::Ranges;
use crate::types::Time;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    InFlight,
    /// Lost and not yet retransmitted.
    Lost,
    /// Selectively acknowledged.
    Kept,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    sent_at: Time,
    /// Number of its latest transmission, in order of time.
    transmission: u64,
    was_retransmitted: bool,
    state: State,
}

/// A segment that an acknowledgement reports as arrived for the first time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delivered {
    pub(super) sequence: u64,
    pub(super) sent_at: Time,
    pub(super) transmission: u64,
    pub(super) was_retransmitted: bool,
}

/// State of all segments not cumulatively acknowledged.
#[derive(Clone, Debug, Default)]
pub(super) struct Scoreboard {
    /// The left edge: the oldest unacknowledged segment.
    first: u64,
    segments: VecDeque<Segment>,
    /// Sequence numbers, by transmission.
    in_flight: BTreeMap<u64, u64>,
    lost: BTreeSet<u64>,
    kept: Ranges,
    kept_count: u64,
    transmissions: u64,
    retransmissions: u64,
}

impl Scoreboard {
    /// Returns the left edge.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// Returns the sequence number of the next new segment.
    pub(super) fn next(&self) -> u64 {
        self.first + self.segments.len() as u64
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.in_flight.len() as u64
    }

    /// Returns the number of selectively acknowledged segments.
    pub(super) fn kept(&self) -> u64 {
        self.kept_count
    }

    pub(super) fn retransmissions(&self) -> u64 {
        self.retransmissions
    }

    /// Returns the first segment that is lost and not yet retransmitted.
    pub(super) fn first_lost(&self) -> Option<u64> {
        self.lost.first().copied()
    }

    /// Records a new segment as sent. Returns its sequence number.
    pub(super) fn send_new(&mut self, now: Time) -> u64 {
        let sequence = self.next();
        let transmission = self.number_transmission(sequence);
        let segment = Segment { sent_at: now, transmission, was_retransmitted: false, state: State::InFlight };
        self.segments.push_back(segment);
        sequence
    }

    /// Records a retransmission.
    pub(super) fn retransmit(&mut self, now: Time, sequence: u64) {
        let Some(before) = self.segment(sequence) else { return };
        self.in_flight.remove(&before.transmission);
        self.lost.remove(&sequence);
        self.retransmissions += 1;
        let transmission = self.number_transmission(sequence);
        let after = Segment { sent_at: now, transmission, was_retransmitted: true, state: State::InFlight };
        self.replace(sequence, after);
    }

    fn number_transmission(&mut self, sequence: u64) -> u64 {
        self.transmissions += 1;
        self.in_flight.insert(self.transmissions, sequence);
        self.transmissions
    }

    fn segment(&self, sequence: u64) -> Option<Segment> {
        self.segments.get(sequence.checked_sub(self.first)? as usize).copied()
    }

    fn replace(&mut self, sequence: u64, segment: Segment) {
        if let Some(old) = self.segments.get_mut(sequence.saturating_sub(self.first) as usize) {
            *old = segment;
        }
    }

    /// Returns the segments in flight transmitted before `transmission`, in order of their latest transmissions: when
    /// they were sent, and their sequence numbers.
    pub(super) fn sent_before(&self, transmission: u64) -> impl Iterator<Item = (Time, u64)> {
        let sequences = self.in_flight.range(..transmission).map(|(_, sequence)| *sequence);
        sequences.filter_map(|sequence| Some((self.segment(sequence)?.sent_at, sequence)))
    }

    /// Marks a segment in flight as lost.
    pub(super) fn mark_lost(&mut self, sequence: u64) {
        let Some(segment) = self.segment(sequence).filter(|segment| segment.state == State::InFlight) else { return };
        self.in_flight.remove(&segment.transmission);
        self.lost.insert(sequence);
        self.replace(sequence, Segment { state: State::Lost, ..segment });
    }

    /// Processes an acknowledgement. Returns the newly delivered segments in ascending order.
    pub(super) fn acknowledge(&mut self, ack: &Ack) -> Vec<Delivered> {
        let mut delivered = Vec::new();
        let (edge, next) = (ack.cumulative.clamp(self.first, self.next()), self.next());
        while self.first < edge
            && let Some(segment) = self.segments.pop_front()
        {
            self.deliver(self.first, segment, &mut delivered);
            self.kept_count -= u64::from(segment.state == State::Kept);
            self.first += 1;
        }
        self.kept.remove_before(self.first);
        let blocks = ack.blocks().map(|block| block.start.max(self.first)..block.end.min(next));
        let added: Vec<_> = blocks.flat_map(|block| self.kept.insert(block)).collect();
        for sequence in added.into_iter().flatten() {
            let Some(segment) = self.segment(sequence) else { continue };
            self.deliver(sequence, segment, &mut delivered);
            self.kept_count += 1;
            self.replace(sequence, Segment { state: State::Kept, ..segment });
        }
        delivered.sort_by_key(|segment| segment.sequence);
        delivered
    }

    fn deliver(&mut self, sequence: u64, segment: Segment, delivered: &mut Vec<Delivered>) {
        let Segment { sent_at, transmission, was_retransmitted, state } = segment;
        if state == State::Kept {
            return;
        }
        self.in_flight.remove(&transmission);
        self.lost.remove(&sequence);
        delivered.push(Delivered { sequence, sent_at, transmission, was_retransmitted });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(cumulative: u64, blocks: &[(u64, u64)]) -> Ack {
        let mut ack = Ack { cumulative, ..Ack::default() };
        ack.blocks.iter_mut().zip(blocks).for_each(|(block, (start, end))| *block = *start..*end);
        ack
    }

    fn send(board: &mut Scoreboard, count: u64) {
        for sequence in 0..count {
            assert_eq!(board.send_new(Time::ZERO), sequence);
        }
    }

    fn sequences(delivered: &[Delivered]) -> Vec<u64> {
        delivered.iter().map(|segment| segment.sequence).collect()
    }

    #[test]
    fn each_segment_is_delivered_once() {
        let mut board = Scoreboard::default();
        send(&mut board, 10);
        assert_eq!(sequences(&board.acknowledge(&ack(1, &[(7, 8), (3, 5)]))), [0, 3, 4, 7]);
        assert_eq!((board.in_flight(), board.kept()), (6, 3));
        assert_eq!(sequences(&board.acknowledge(&ack(1, &[(3, 8)]))), [5, 6]);
        assert_eq!(sequences(&board.acknowledge(&ack(9, &[(3, 8)]))), [1, 2, 8]);
        assert_eq!((board.first(), board.next(), board.in_flight(), board.kept()), (9, 10, 1, 0));
        assert!(board.acknowledge(&ack(4, &[(2, 30), (8, 9)])).iter().all(|segment| segment.sequence == 9));
    }

    #[test]
    fn lost_segments_are_not_in_flight_until_they_are_sent_again() {
        let mut board = Scoreboard::default();
        send(&mut board, 4);
        board.mark_lost(2);
        board.mark_lost(1);
        board.mark_lost(9);
        assert_eq!((board.in_flight(), board.first_lost()), (2, Some(1)));
        board.retransmit(Time::from_nanos(5), 1);
        assert_eq!((board.in_flight(), board.first_lost(), board.retransmissions()), (3, Some(2), 1));
        let order: Vec<_> = board.sent_before(u64::MAX).map(|(_, sequence)| sequence).collect();
        assert_eq!(order, [0, 3, 1]);
        let delivered = board.acknowledge(&ack(4, &[]));
        assert_eq!((sequences(&delivered), board.in_flight(), board.first_lost()), (vec![0, 1, 2, 3], 0, None));
        assert!(delivered[1].was_retransmitted && delivered[1].sent_at == Time::from_nanos(5));
    }
}
