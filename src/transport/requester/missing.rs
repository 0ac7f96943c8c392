//! Packets that are missing on one side of a connection, and their state.

use std::time::Duration;

use crate::types::{Psn, Time};

/// Maximum number of ranges. Beyond that, neighbors in different states share one; packets that arrive may still split
/// ranges, at most once for every two packets in flight.
const MOST_RANGES: usize = 1_024;

/// State of a missing packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Missing {
    /// Few later packets have arrived: it may be late.
    Late,
    /// It is lost, and to be sent again; `again`: not for the first time.
    Lost { again: bool },
    /// It was sent again; `again`: not for the first time.
    Sent { repetition: Repetition, again: bool },
}

/// Time and position of a retransmission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Repetition {
    pub(super) at: Time,
    /// Packets from this number on left later.
    pub(super) later: Psn,
}

/// Criteria that distinguish lost packets from late ones.
#[derive(Clone, Copy)]
pub(super) struct LossDetection {
    pub(super) now: Time,
    /// Number of arrived packets that left later (RFC 9002, section 6.1.1).
    pub(super) packet_threshold: u32,
    /// Time after which a packet that was sent again has arrived and been reported (RFC 9002, section 6.1.2).
    pub(super) time_threshold: Duration,
}

impl LossDetection {
    /// Returns whether a packet that was sent again is lost once more. The one before `arrived` has arrived.
    pub(super) fn is_lost_again(self, repetition: Repetition, arrived: Psn) -> bool {
        self.is_far_behind(repetition.later, arrived) || self.now.saturating_since(repetition.at) >= self.time_threshold
    }

    /// Returns whether enough of the packets from `later` on have arrived. The one before `arrived` has.
    pub(super) fn is_far_behind(self, later: Psn, arrived: Psn) -> bool {
        arrived.distance_from(later) >= self.packet_threshold as i32
    }
}

impl Missing {
    /// Returns its state while it is still missing, given whether it is lost, and whether a retransmission is.
    pub(super) fn still(self, is_lost: bool, is_lost_again: impl Fn(Repetition) -> bool) -> Self {
        match self {
            Self::Sent { repetition, .. } if is_lost_again(repetition) => Self::Lost { again: true },
            Self::Late if is_lost => Self::Lost { again: false },
            Self::Late | Self::Lost { .. } | Self::Sent { .. } => self,
        }
    }
}

/// Consecutive packets in the same state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Range {
    pub(super) first: Psn,
    pub(super) packets: u32,
    pub(super) missing: Missing,
}

impl Range {
    pub(super) fn end(&self) -> Psn {
        self.first.plus(self.packets)
    }

    fn is_lost(&self) -> bool {
        matches!(self.missing, Missing::Lost { .. })
    }

    pub(super) fn contains(&self, psn: Psn) -> bool {
        psn.is_within(self.first, self.packets)
    }

    /// Returns the part before `psn`, and the part from there on.
    fn split(self, psn: Psn) -> [Self; 2] {
        let before = psn.distance_from(self.first).clamp(0, self.packets as i32) as u32;
        let behind = Self { first: self.first.plus(before), packets: self.packets - before, ..self };
        [Self { packets: before, ..self }, behind]
    }
}

/// Packets that turned out to be lost.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct NewLosses {
    /// Those that were not sent again before.
    pub(super) first: Vec<Range>,
    /// Whether there are others: retransmissions.
    pub(super) has_again: bool,
}

impl NewLosses {
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_empty() && !self.has_again
    }

    /// Adds the packets of a range if they turned out to be lost; `before` is their earlier state.
    fn add(&mut self, before: Missing, range: &Range) {
        match (before, range.missing) {
            (Missing::Late, Missing::Lost { .. }) => self.first.push(*range),
            (Missing::Sent { .. }, Missing::Lost { .. }) => self.has_again = true,
            _ => {}
        }
    }
}

/// The missing packets, in order. No range is empty.
#[derive(Clone, Default, Debug)]
pub(super) struct MissingPackets {
    ranges: Vec<Range>,
    /// Packets in all ranges, in those that may be late, and in those that are to be sent again.
    packets: u32,
    late: u32,
    lost: u32,
    /// Lower bound: no missing packet was retransmitted before this. The packet retransmitted then may have arrived
    /// since.
    oldest_again: Option<Repetition>,
}

impl MissingPackets {
    /// Adds packets behind all others.
    pub(super) fn push(&mut self, range: Range) {
        if range.packets == 0 {
            return;
        }
        let is_full = self.ranges.len() >= MOST_RANGES;
        let missing = match self.ranges.last_mut() {
            Some(last) if last.end() == range.first && (last.missing == range.missing || is_full) => {
                last.packets += range.packets;
                last.missing
            }
            _ => {
                self.ranges.push(range);
                range.missing
            }
        };
        self.count(missing, range.packets);
    }

    /// Adds packets behind all others, as a range of their own because they are not sent together with the ones before.
    /// Returns whether there is room.
    pub(super) fn push_apart(&mut self, range: Range) -> bool {
        let has_room = self.ranges.len() < MOST_RANGES;
        if has_room {
            self.ranges.push(range);
            self.count(range.missing, range.packets);
        }
        has_room
    }

    fn count(&mut self, missing: Missing, packets: u32) {
        self.packets += packets;
        match missing {
            Missing::Late => self.late += packets,
            Missing::Lost { .. } => self.lost += packets,
            Missing::Sent { repetition, .. } => {
                let is_older = self.oldest_again.is_none_or(|oldest| repetition.at < oldest.at);
                self.oldest_again = if is_older { Some(repetition) } else { self.oldest_again };
            }
        }
    }

    fn discount(&mut self, missing: Missing, packets: u32) {
        self.packets -= packets;
        match missing {
            Missing::Late => self.late -= packets,
            Missing::Lost { .. } => self.lost -= packets,
            Missing::Sent { .. } => {}
        }
        if self.packets == 0 {
            self.oldest_again = None;
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Range> {
        self.ranges.iter()
    }

    /// Returns the number of all missing packets.
    pub(super) fn packets(&self) -> u32 {
        self.packets
    }

    /// Returns the number of packets that are lost and not sent again.
    pub(super) fn lost(&self) -> u32 {
        self.lost
    }

    fn all_lost(&self) -> impl Iterator<Item = &Range> {
        let ranges = if self.lost == 0 { &[] } else { &self.ranges[..] };
        ranges.iter().filter(|range| range.is_lost())
    }

    /// Returns the first packets that are to be sent again.
    pub(super) fn first_lost(&self) -> Option<Range> {
        self.all_lost().next().copied()
    }

    /// Returns whether packets behind this one are to be sent again.
    pub(super) fn has_lost_behind(&self, psn: Psn) -> bool {
        self.all_lost().any(|range| psn.plus(1).is_before(range.end()))
    }

    /// Returns when the oldest retransmission left, or an earlier time.
    pub(super) fn oldest_again(&self) -> Option<Time> {
        Some(self.oldest_again?.at)
    }

    /// Returns whether time or an arrival may now show that any of these is lost.
    pub(super) fn may_be_lost(&self, is_lost_again: impl Fn(Repetition) -> bool) -> bool {
        self.late > 0 || self.oldest_again.is_some_and(is_lost_again)
    }

    /// Returns how many packets were sent again within this time, for the first time.
    pub(super) fn sent_again_within(&self, time: Duration, now: Time) -> u32 {
        let is_recent = |range: &&Range| match range.missing {
            Missing::Sent { repetition, again: false } => now.saturating_since(repetition.at) < time,
            _ => false,
        };
        self.ranges.iter().filter(is_recent).map(|range| range.packets).sum()
    }

    pub(super) fn has_late(&self) -> bool {
        self.late > 0
    }

    pub(super) fn contains(&self, psn: Psn) -> bool {
        self.find(psn).is_ok()
    }

    /// Returns the index of the range with this number, or as an error that of the first range behind it.
    fn find(&self, psn: Psn) -> Result<usize, usize> {
        let index = self.ranges.partition_point(|range| !psn.is_before(range.end()));
        let is_missing = self.ranges.get(index).is_some_and(|range| range.contains(psn));
        if is_missing { Ok(index) } else { Err(index) }
    }

    /// Returns the first missing packet.
    pub(super) fn first(&self) -> Option<Psn> {
        self.ranges.first().map(|range| range.first)
    }

    /// Removes the packets before `psn`.
    pub(super) fn remove_before(&mut self, psn: Psn) {
        let index = match self.find(psn) {
            Ok(index) => {
                let [before, rest] = self.ranges[index].split(psn);
                self.ranges[index] = rest;
                self.discount(before.missing, before.packets);
                index
            }
            Err(index) => index,
        };
        for removed in 0..index {
            let range = self.ranges[removed];
            self.discount(range.missing, range.packets);
        }
        self.ranges.drain(..index);
    }

    /// Removes a packet. Returns its state if it was missing.
    pub(super) fn remove(&mut self, psn: Psn) -> Option<Missing> {
        let index = self.find(psn).ok()?;
        let was = self.ranges[index].missing;
        let [before, rest] = self.ranges[index].split(psn);
        let [_, behind] = rest.split(psn.plus(1));
        self.replace(index, [before, behind]);
        self.discount(was, 1);
        Some(was)
    }

    /// Notes that this many packets from the beginning of [`MissingPackets::first_lost`] on were sent again.
    pub(super) fn note_sent_again(&mut self, packets: u32, repetition: Repetition) {
        let Some(index) = self.ranges.iter().position(Range::is_lost) else { return };
        let was = self.ranges[index].missing;
        let [sent, left] = self.ranges[index].split(self.ranges[index].first.plus(packets));
        let sent = Range { missing: Missing::Sent { repetition, again: was == Missing::Lost { again: true } }, ..sent };
        match index.checked_sub(1).map(|before| &mut self.ranges[before]) {
            Some(before) if before.end() == sent.first && before.missing == sent.missing => {
                before.packets += sent.packets;
                self.replace(index, [left]);
            }
            _ => self.replace(index, [sent, left]),
        }
        self.count(sent.missing, sent.packets);
        self.discount(was, sent.packets);
    }

    fn replace<const N: usize>(&mut self, index: usize, parts: [Range; N]) {
        self.ranges.splice(index..=index, parts.into_iter().filter(|part| part.packets > 0));
    }

    /// Sets the state of each range. Returns the packets that are lost now and were not before.
    pub(super) fn judge(&mut self, judge: impl Fn(&Range) -> Missing) -> NewLosses {
        let mut ranges = std::mem::take(&mut self.ranges);
        *self = Self::default();
        let mut losses = NewLosses::default();
        for range in &mut ranges {
            let before = range.missing;
            range.missing = judge(range);
            losses.add(before, range);
            self.count(range.missing, range.packets);
        }
        self.ranges = ranges;
        losses
    }

    #[cfg(test)]
    pub(super) fn ranges(&self) -> usize {
        self.ranges.len()
    }
}
