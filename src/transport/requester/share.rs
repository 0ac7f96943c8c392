//! The requester's part in the fair queue: whether the other queue pairs of the path leave it window space.

use std::cell::Cell;

use super::{Common, Requester};
use crate::transport::path::PathKey;
use crate::transport::window_share::WindowShare;
use crate::types::Time;

/// Packets that a grant needs room for.
const ROOM: u32 = 16;

/// A queue pair's part in the fair queue.
#[derive(Default, Debug)]
pub(super) struct FairShare {
    /// Whether it has packets to send, for which the others leave no window space.
    is_blocked: Cell<bool>,
    /// Maximum number of packets that others may have in flight for a grant to be worthwhile.
    others_at_most: Cell<u32>,
    /// Whether it waits for a grant.
    is_waiting: bool,
    /// Whether it may send although others wait.
    is_granted: bool,
}

impl Requester {
    /// Returns whether the others leave room in the common window for this queue pair to have `end` packets in flight.
    #[inline]
    pub(super) fn share_allows(&self, share: &WindowShare, end: u32, window: u32) -> bool {
        let allowed = end <= self.share_of(share, window);
        if !allowed {
            // At least what the next packet needs: a queue pair with a grant and no room would get the next grant at
            // once, forever.
            let needed = end.max(self.counted_in_flight + ROOM.min(window / 4));
            self.fair_share.others_at_most.set(window.saturating_sub(needed));
        }
        self.fair_share.is_blocked.set(!allowed);
        allowed
    }

    /// Returns the packets of the common window that this queue pair may have in flight.
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

    /// Returns the packets that the others have in flight on the same path.
    #[inline]
    pub(super) fn packets_of_others(&self, share: &WindowShare) -> u32 {
        share.in_flight().saturating_sub(self.counted_in_flight)
    }

    /// Returns whether others have packets in flight on the same path.
    #[inline]
    pub(super) fn others_have_packets(&self, common: &Common) -> bool {
        common.path.as_ref().is_some_and(|path| self.packets_of_others(&path.window_share) > 0)
    }

    /// Returns whether so much is in flight that another queue pair may wait soon.
    #[inline]
    pub(super) fn room_is_scarce(&self, common: &Common) -> bool {
        common.path.as_ref().is_some_and(|path| path.window_share.in_flight() > path.common_window() / 2)
    }

    /// Returns whether it waits for a grant with nothing in flight: no response can arrive, and no timer runs.
    pub(in crate::transport) fn waits_for_grant(&self) -> bool {
        self.fair_share.is_waiting && self.cursor == self.unacknowledged
    }

    /// Resets its state, because the connection has another path, or none.
    pub(in crate::transport) fn reset_share(&mut self) {
        self.fair_share = FairShare::default();
    }

    /// Grants it the window: it may send although others wait.
    pub(in crate::transport) fn grant(&mut self) {
        self.fair_share = FairShare { is_granted: true, ..FairShare::default() };
    }

    pub(in crate::transport) fn is_waiting(&self) -> bool {
        self.fair_share.is_waiting
    }

    /// Ends the grant once the queue pair has nothing to send, or has requested a response. The grant lasts until then:
    /// without a response, the window space that its packets take would not become free.
    #[inline]
    pub(in crate::transport) fn end_grant(&mut self, has_sent_requests: bool, is_exhausted: bool) {
        let is_asked = has_sent_requests && self.has_requested_ack;
        let has_more = !is_exhausted || self.fair_share.is_blocked.get();
        self.fair_share.is_granted &= has_more && !is_asked;
    }

    /// Returns whether it waits, and its last packet requested no response: others may wait for the window space that
    /// this packet takes.
    #[inline]
    pub(super) fn waits_without_ack_request(&self) -> bool {
        self.fair_share.is_waiting && !self.has_requested_ack
    }

    /// Begins to wait if it is blocked and does not wait yet. Returns the path that it waits for, and whether it waits
    /// in front of the others.
    pub(in crate::transport) fn begins_to_wait(&mut self, common: &Common, now: Time) -> Option<(PathKey, bool)> {
        if !self.fair_share.is_blocked.get() || self.fair_share.is_waiting {
            return None;
        }
        let key = common.path_key()?;
        self.fair_share.is_waiting = true;
        // A queue pair that waits sends nothing. If it kept the grant, it could stay in the queue unnecessarily.
        let in_front = std::mem::take(&mut self.fair_share.is_granted);
        if self.waits_without_ack_request() && self.counted_in_flight > 0 {
            self.arm_timers(common, now);
        }
        Some((key, in_front))
    }

    /// Returns whether a grant is worthwhile. A queue pair that cannot send in any case must not keep others waiting.
    pub(in crate::transport) fn has_room(&self, common: &Common) -> bool {
        let Some(path) = common.path.as_ref().filter(|_| self.may_transmit(common)) else { return true };
        let others = self.packets_of_others(&path.window_share);
        others == 0 || others <= self.fair_share.others_at_most.get()
    }
}
