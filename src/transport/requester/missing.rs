//! Packets that are missing on one side of a connection, and what was done about it.

use std::time::Duration;

use crate::types::{Psn, Time};

/// Most ranges. Beyond that, neighbors in different states share one.
const MOST_RANGES: usize = 1_024;

/// State of a missing packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Missing {
    /// Few packets have come after it: it may be late.
    Late,
    /// It is lost, and to be sent again; `again`: not for the first time.
    Lost { again: bool },
    /// It was sent again; `again`: not for the first time.
    Sent { repetition: Repetition, again: bool },
}

/// When a packet was sent again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Repetition {
    pub(super) at: Time,
    /// Packets from this number on left later.
    pub(super) later: Psn,
}

/// What tells packets that are lost from those that are late.
#[derive(Clone, Copy)]
pub(super) struct LossDetection {
    pub(super) now: Time,
    /// So many packets that left later have arrived (RFC 9002, section 6.1.1).
    pub(super) packet_threshold: u32,
    /// A packet that was sent again has arrived, and was told of, after this time (RFC 9002, section 6.1.2).
    pub(super) time_threshold: Duration,
}

impl LossDetection {
    /// Whether a packet that was sent again is lost once more. The one before `arrived` has arrived.
    pub(super) fn is_lost_again(self, repetition: Repetition, arrived: Psn) -> bool {
        self.is_far_behind(repetition.later, arrived) || self.now.saturating_since(repetition.at) >= self.time_threshold
    }

    /// Whether enough of the packets from `later` on have arrived. The one before `arrived` has.
    pub(super) fn is_far_behind(self, later: Psn, arrived: Psn) -> bool {
        arrived.distance_from(later) >= self.packet_threshold as i32
    }
}

impl Missing {
    /// Its state while it still has not come: whether it is lost, and whether one that was sent again is.
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

    fn contains(&self, psn: Psn) -> bool {
        psn.is_within(self.first, self.packets)
    }

    /// The part before `psn`, and the part from there on.
    fn split(self, psn: Psn) -> [Self; 2] {
        let before = psn.distance_from(self.first).clamp(0, self.packets as i32) as u32;
        let behind = Self { first: self.first.plus(before), packets: self.packets - before, ..self };
        [Self { packets: before, ..self }, behind]
    }
}

/// The missing packets, in order. No range is empty.
#[derive(Clone, Default, Debug)]
pub(super) struct MissingPackets {
    ranges: Vec<Range>,
}

impl MissingPackets {
    /// Adds packets behind all others.
    pub(super) fn push(&mut self, range: Range) {
        let is_full = self.ranges.len() >= MOST_RANGES;
        match self.ranges.last_mut() {
            _ if range.packets == 0 => {}
            Some(last) if last.end() == range.first && (last.missing == range.missing || is_full) => {
                last.packets += range.packets;
            }
            _ => self.ranges.push(range),
        }
    }

    /// Adds packets behind all others that are not sent together with those.
    pub(super) fn push_apart(&mut self, range: Range) {
        if self.ranges.len() < MOST_RANGES {
            self.ranges.push(range);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Range> {
        self.ranges.iter()
    }

    /// All of them.
    pub(super) fn packets(&self) -> u32 {
        self.ranges.iter().map(|range| range.packets).sum()
    }

    /// Those that are lost and not sent again.
    pub(super) fn lost(&self) -> u32 {
        self.all_lost().map(|range| range.packets).sum()
    }

    fn all_lost(&self) -> impl Iterator<Item = &Range> {
        self.ranges.iter().filter(|range| range.is_lost())
    }

    /// The first packets that are to be sent again.
    pub(super) fn first_lost(&self) -> Option<Range> {
        self.all_lost().next().copied()
    }

    /// Whether packets behind this one are to be sent again.
    pub(super) fn has_lost_behind(&self, psn: Psn) -> bool {
        self.all_lost().any(|range| psn.plus(1).is_before(range.end()))
    }

    /// When the first of those was sent again that were.
    pub(super) fn oldest_again(&self) -> Option<Time> {
        let again = self.ranges.iter().filter_map(|range| match range.missing {
            Missing::Sent { repetition, .. } => Some(repetition.at),
            _ => None,
        });
        again.min()
    }

    /// How many were sent again within this time, for the first time.
    pub(super) fn sent_again_within(&self, time: Duration, now: Time) -> u32 {
        let is_recent = |range: &&Range| match range.missing {
            Missing::Sent { repetition, again: false } => now.saturating_since(repetition.at) < time,
            _ => false,
        };
        self.ranges.iter().filter(is_recent).map(|range| range.packets).sum()
    }

    pub(super) fn has_late(&self) -> bool {
        self.ranges.iter().any(|range| range.missing == Missing::Late)
    }

    pub(super) fn contains(&self, psn: Psn) -> bool {
        self.ranges.iter().any(|range| range.contains(psn))
    }

    /// The first packet that is missing.
    pub(super) fn first(&self) -> Option<Psn> {
        self.ranges.first().map(|range| range.first)
    }

    /// Those before `psn` are missing no more.
    pub(super) fn remove_before(&mut self, psn: Psn) {
        self.ranges.retain_mut(|range| {
            *range = range.split(psn)[1];
            range.packets > 0
        });
    }

    /// This packet is missing no more. Its state, if it was.
    pub(super) fn remove(&mut self, psn: Psn) -> Option<Missing> {
        let place = self.ranges.iter().position(|range| range.contains(psn))?;
        let was = self.ranges[place].missing;
        let [before, rest] = self.ranges[place].split(psn);
        let [_, behind] = rest.split(psn.plus(1));
        self.replace(place, [before, behind]);
        Some(was)
    }

    /// So many packets from the beginning of [`MissingPackets::first_lost`] on were sent again.
    pub(super) fn note_sent_again(&mut self, packets: u32, repetition: Repetition) {
        let Some(place) = self.ranges.iter().position(Range::is_lost) else { return };
        let again = self.ranges[place].missing == Missing::Lost { again: true };
        let [sent, left] = self.ranges[place].split(self.ranges[place].first.plus(packets));
        let sent = Range { missing: Missing::Sent { repetition, again }, ..sent };
        match place.checked_sub(1).map(|before| &mut self.ranges[before]) {
            Some(before) if before.end() == sent.first && before.missing == sent.missing => {
                before.packets += sent.packets;
                self.replace(place, [left]);
            }
            _ => self.replace(place, [sent, left]),
        }
    }

    fn replace<const N: usize>(&mut self, place: usize, parts: [Range; N]) {
        self.ranges.splice(place..=place, parts.into_iter().filter(|part| part.packets > 0));
    }

    /// Sets the state of each range.
    pub(super) fn judge(&mut self, judge: impl Fn(&Range) -> Missing) {
        for range in &mut self.ranges {
            range.missing = judge(range);
        }
    }

    #[cfg(test)]
    pub(super) fn ranges(&self) -> usize {
        self.ranges.len()
    }
}
