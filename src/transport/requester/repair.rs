//! The missing packets among those in flight, as long as there are some.

use super::gaps::Gaps;
use super::missing::{MissingPackets, NewLosses};
use super::missing_requests::MissingRequests;
use super::scoreboard::Scoreboard;
use super::selective::RepeatTimeout;
use crate::types::{Psn, Time};

/// The missing packets of each kind.
#[derive(Default)]
pub(super) struct Repair {
    /// The packets in flight that a native peer has reported missing. While there is a scoreboard, nothing goes back.
    pub(super) scoreboard: Option<Scoreboard>,
    /// The responses behind the oldest unacknowledged number: which have arrived, and which are missing.
    pub(super) early: Option<Gaps>,
    /// The request packets that a native peer has reported missing while READs are in progress.
    pub(super) requests: Option<MissingRequests>,
}

impl Repair {
    /// Returns whether nothing is known to be missing.
    pub(super) fn is_over(&self) -> bool {
        self.scoreboard.is_none() && self.early.is_none() && self.requests.is_none()
    }

    /// Forgets everything missing, because all packets are retransmitted.
    pub(super) fn forget(&mut self) {
        self.early = None;
        self.forget_requests();
    }

    /// Forgets the missing requests, because all that have not been executed are retransmitted.
    pub(super) fn forget_requests(&mut self) {
        self.scoreboard = None;
        if let Some(requests) = &mut self.requests {
            requests.forget();
        }
    }

    /// Returns the missing packets of each kind.
    pub(super) fn missing(&self) -> impl Iterator<Item = &MissingPackets> {
        let kept = self.scoreboard.as_ref().map(|board| board.gaps().missing());
        let responses = self.early.as_ref().map(Gaps::missing);
        let requests = self.requests.as_ref().map(MissingRequests::missing);
        [kept, responses, requests].into_iter().flatten()
    }

    /// Declares packets before `limit` lost: those that were late, and those that were sent again and are overdue.
    /// Returns the lost responses.
    pub(super) fn give_up(&mut self, limit: Psn, repeat_timeout: RepeatTimeout, now: Time) -> NewLosses {
        let is_overdue = |repetition| repeat_timeout.is_over(repetition, now);
        if let Some(board) = &mut self.scoreboard {
            board.gaps_mut().give_up_before(limit, is_overdue);
        }
        if let Some(requests) = &mut self.requests {
            requests.give_up(is_overdue);
        }
        self.early.as_mut().map_or_else(NewLosses::default, |early| early.give_up_before(limit, is_overdue))
    }

    /// Returns the packets that have arrived behind a gap.
    pub(super) fn arrived(&self) -> u32 {
        let kept = self.scoreboard.as_ref().map_or(0, |board| board.gaps().arrived());
        // The counts overlap, because both begin at the oldest unacknowledged packet and a response also shows that the
        // requests before it have arrived.
        kept.max(self.early.as_ref().map_or(0, Gaps::arrived))
    }

    /// Returns the packets that are in no queue.
    pub(super) fn absent(&self) -> u32 {
        let kept = self.scoreboard.as_ref().map_or(0, |board| board.gaps().absent());
        kept + self.early.as_ref().map_or(0, Gaps::absent)
    }
}
