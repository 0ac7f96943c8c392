//! The requester's part in the fair queue: whether the other queue pairs of the path leave it room.

use std::cell::Cell;

use super::{Common, Requester};
use crate::transport::path::PathKey;
use crate::transport::window_share::WindowShare;
use crate::types::Time;

/// A grant needs room for so many packets.
const ROOM: u32 = 16;

/// A queue pair's part in the fair queue.
#[derive(Default, Debug)]
pub(super) struct FairShare {
    /// It has packets to send, and others use the window.
    is_blocked: Cell<bool>,
    /// A grant is worth while with at most so many packets of others in flight.
    others_at_most: Cell<u32>,
    /// It waits for a grant.
    is_waiting: bool,
    /// It may send although others wait.
    is_granted: bool,
}

impl Requester {
    /// Whether the others leave room for this queue pair to have `end` packets in flight, of a window for all.
    #[inline]
    pub(super) fn share_allows(&self, share: &WindowShare, end: u32, window: u32) -> bool {
        let allowed = end <= self.share_of(share, window);
        if !allowed {
            // At least what it needs: a queue pair with a grant and no room would get the next grant at once, for ever.
            let needed = end.max(self.counted_in_flight + ROOM.min(window / 4));
            self.fair_share.others_at_most.set(window.saturating_sub(needed));
        }
        self.fair_share.is_blocked.set(!allowed);
        allowed
    }

    /// Packets that this queue pair may have in flight, of a window for all.
    #[inline]
    pub(super) fn share_of(&self, share: &WindowShare, window: u32) -> u32 {
        if share.has_waiters() && !self.fair_share.is_granted {
            return 0;
        }
        match self.packets_of_others(share) {
            0 => u32::MAX,
            others => window.saturating_sub(others),
        }
    }

    /// Packets that the others have in flight on the same path.
    #[inline]
    pub(super) fn packets_of_others(&self, share: &WindowShare) -> u32 {
        share.in_flight().saturating_sub(self.counted_in_flight)
    }

    /// Whether others have packets in flight on the same path.
    #[inline]
    pub(super) fn others_have_packets(&self, common: &Common) -> bool {
        common.path.as_ref().is_some_and(|path| self.packets_of_others(&path.window_share) > 0)
    }

    /// Whether so much is in flight that another queue pair may wait soon.
    #[inline]
    pub(super) fn room_is_scarce(&self, common: &Common) -> bool {
        common.path.as_ref().is_some_and(|path| path.window_share.in_flight() > path.common_window() / 2)
    }

    /// Whether it waits for a grant with nothing in flight: no response can come, and no timer runs.
    pub(in crate::transport) fn waits_for_grant(&self) -> bool {
        self.fair_share.is_waiting && self.cursor == self.unacknowledged
    }

    /// The connection has another path, or none.
    pub(in crate::transport) fn reset_share(&mut self) {
        self.fair_share = FairShare::default();
    }

    /// It may send although others wait.
    pub(in crate::transport) fn grant(&mut self) {
        self.fair_share = FairShare { is_granted: true, ..FairShare::default() };
    }

    pub(in crate::transport) fn is_waiting(&self) -> bool {
        self.fair_share.is_waiting
    }

    /// It has sent requests, or has none to send now. Its grant lasts until it has asked for a response: without one
    /// the room that its packets take would not come back.
    #[inline]
    pub(in crate::transport) fn end_grant(&mut self, has_sent_requests: bool, is_exhausted: bool) {
        let is_asked = has_sent_requests && self.has_asked;
        let has_more = !is_exhausted || self.fair_share.is_blocked.get();
        self.fair_share.is_granted &= has_more && !is_asked;
    }

    /// Whether it waits, and its last packet did not ask for a response: others may wait for the room that this
    /// takes.
    #[inline]
    pub(super) fn waits_unasked(&self) -> bool {
        self.fair_share.is_waiting && !self.has_asked
    }

    /// Whether it waits from now on: for which path, and whether in front.
    pub(in crate::transport) fn begins_to_wait(&mut self, common: &Common, now: Time) -> Option<(PathKey, bool)> {
        if !self.fair_share.is_blocked.get() || self.fair_share.is_waiting {
            return None;
        }
        let key = common.path_key()?;
        self.fair_share.is_waiting = true;
        // A queue pair that waits sends nothing. With the grant left on it could stay in the queue without need.
        let in_front = std::mem::take(&mut self.fair_share.is_granted);
        if self.waits_unasked() && self.counted_in_flight > 0 {
            self.arm_timers(common, now);
        }
        Some((key, in_front))
    }

    /// Whether a grant is worth while. A queue pair that cannot send in any case must not keep others waiting.
    pub(in crate::transport) fn has_room(&self, common: &Common) -> bool {
        let Some(path) = common.path.as_ref().filter(|_| self.may_transmit(common)) else { return true };
        let others = self.packets_of_others(&path.window_share);
        others == 0 || others <= self.fair_share.others_at_most.get()
    }
}
