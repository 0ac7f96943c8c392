//! Pacing of READ responses. They are never acknowledged, so they do not count against the window of the path. Instead
//! they wait until everything sent on the path is paid for, and are charged themselves. Acknowledgements, NAKs and
//! results of atomics cost nothing and wait only for the READ responses before them.

use super::{Common, Responder};
use crate::transport::path::Path;
use crate::transport::path_control::LONGEST_DEBT;
use crate::types::{Qpn, Time};

/// The READ responses' use of the path's pace.
#[derive(Clone, Copy, Default)]
pub(super) struct ResponsePace {
    /// Packets that may still leave before everything must be paid for. A burst is one send to a native peer, and
    /// several sends to others.
    allowed: u32,
    /// Bytes in this send, not yet charged.
    unpaid: u64,
    /// When responses began to wait.
    waits_since: Option<Time>,
}

impl ResponsePace {
    /// Returns the number of packets that may leave now.
    #[inline]
    pub(super) fn allowed(&self) -> u32 {
        self.allowed
    }

    /// Whether the burst is over, and the wait after it has not begun.
    pub(super) fn is_spent(&self) -> bool {
        self.allowed == 0 && self.waits_since.is_none()
    }

    /// Counts sent packets against the burst.
    #[inline]
    pub(super) fn spend(&mut self, packets: u32, packet_bytes: usize) {
        self.allowed = self.allowed.saturating_sub(packets);
        self.unpaid += u64::from(packets) * packet_bytes as u64;
    }

    /// Returns until when responses wait. `None`: the burst continues, or a new one begins.
    fn wait_until(&mut self, now: Time, paid_at: Time, burst: u32) -> Option<Time> {
        if paid_at > now && self.allowed > 0 {
            return None;
        }
        let since = *self.waits_since.get_or_insert(now);
        let until = paid_at.min(since + LONGEST_DEBT);
        if until > now {
            return Some(until);
        }
        (self.allowed, self.waits_since) = (burst, None);
        None
    }
}

impl Responder {
    /// Holds READ responses back until everything sent on the path is paid for.
    #[inline]
    pub(in crate::transport) fn hold_back(&mut self, common: &Common, now: Time) {
        if let Some(path) = common.controlled_path() {
            self.hold_back_on(path, common.qpn, now);
        }
    }

    #[cold]
    fn hold_back_on(&mut self, path: &Path, qpn: Qpn, now: Time) {
        let responses = &mut self.responses;
        let allowance = match responses.owes_read() {
            true => path.window_share.unacknowledged_allowance(now, path.order_seed(qpn)),
            false => None,
        };
        let Some((paid_at, burst)) = allowance else {
            responses.pace = None;
            return;
        };
        if let Some(until) = responses.pace.get_or_insert_default().wait_until(now, paid_at, burst) {
            responses.pause(until);
            path.window_share.with_control(|control| control.note_awaited(now));
        }
    }

    /// Charges the path for the READ responses in a completed send, and holds the following ones back.
    #[inline]
    pub(in crate::transport) fn pay(&mut self, common: &Common, now: Time) {
        let bytes = self.responses.pace.as_mut().map_or(0, |pace| std::mem::take(&mut pace.unpaid));
        if let Some(path) = common.path.as_ref().filter(|_| bytes > 0) {
            path.window_share.with_control(|control| control.charge_responses(now, bytes));
            self.hold_back_on(path, common.qpn, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(microseconds: u64) -> Time {
        Time::from_nanos(microseconds * 1_000)
    }

    #[test]
    fn a_burst_is_paid_for_before_the_next_one() {
        let mut pace = ResponsePace::default();
        assert_eq!((pace.wait_until(at(1), at(1), 3), pace.allowed()), (None, 3));
        pace.spend(2, 1_044);
        assert_eq!((pace.allowed(), pace.unpaid), (1, 2_088));
        assert_eq!(pace.wait_until(at(1), at(100), 3), None, "the burst goes on");
        pace.spend(1, 1_044);
        assert_eq!(pace.wait_until(at(1), at(150), 3), Some(at(150)));
        assert_eq!(pace.wait_until(at(150), at(200), 3), Some(at(200)), "others have sent in the meantime");
        assert_eq!((pace.wait_until(at(200), at(200), 3), pace.allowed()), (None, 3));
    }

    #[test]
    fn a_wait_for_the_pace_is_bounded() {
        let mut pace = ResponsePace::default();
        for start in [1_000, 5_000] {
            assert_eq!(pace.wait_until(at(start), at(start + 1_500), 3), Some(at(start + 1_500)));
            assert_eq!(pace.wait_until(at(start + 1_500), at(start + 9_000), 3), Some(at(start + 2_000)));
            assert_eq!((pace.wait_until(at(start + 2_000), at(start + 9_000), 3), pace.allowed()), (None, 3));
            pace.spend(3, 1_044);
        }
    }
}
