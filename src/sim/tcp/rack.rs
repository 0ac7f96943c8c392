//! Loss detection by time (RACK, RFC 8985, section 6): a segment is lost if one sent later has arrived and its own time
//! has expired.

use std::time::Duration;

use super::rtt::RoundTrip;
use super::scoreboard::{Delivered, Scoreboard};
use crate::types::Time;

/// Number of selectively acknowledged segments that indicate a loss without waiting for reordering (DupThresh, RFC
/// 8985, 6.2).
const DUPLICATE_THRESHOLD: u64 = 3;
/// Number of recoveries for which a wider reordering window is kept (RFC 8985, 6.2).
const PERSISTENCE: u32 = 16;
/// The resolution of the timer: two ticks of Linux at 1,000 Hz (`TCP_TIMEOUT_MIN`).
pub(super) const TIMER_RESOLUTION: Duration = Duration::from_millis(2);

/// State of RACK: the latest segment delivered, and the reordering window.
#[derive(Clone, Debug)]
pub(super) struct Rack {
    /// The latest transmission known to have arrived, and its round trip.
    latest: u64,
    round_trip: Duration,
    /// The highest segment that has arrived.
    highest: u64,
    has_seen_reordering: bool,
    /// The reordering window, in quarters of the minimum round trip.
    quarters: u32,
    /// End of the round in which the window last grew.
    round_end: u64,
    recoveries_left: u32,
}

/// Result of a search for losses.
pub(super) struct Found {
    pub(super) lost: u64,
    /// When to search again.
    pub(super) again_at: Option<Time>,
}

impl Rack {
    pub(super) fn new() -> Self {
        Self {
            latest: 0,
            round_trip: Duration::ZERO,
            highest: 0,
            has_seen_reordering: false,
            quarters: 1,
            round_end: 0,
            recoveries_left: 0,
        }
    }

    /// Handles a segment's arrival (RFC 8985, 6.2, steps 2 and 3).
    pub(super) fn on_delivered(&mut self, now: Time, segment: &Delivered, least: Option<Duration>) {
        let round_trip = now.saturating_since(segment.sent_at);
        self.has_seen_reordering |= segment.sequence < self.highest && !segment.was_retransmitted;
        self.highest = self.highest.max(segment.sequence);
        // If a retransmission seems faster than the minimum round trip, the original has arrived.
        let is_of_the_first = segment.was_retransmitted && least.is_some_and(|least| round_trip < least);
        if segment.transmission > self.latest && !is_of_the_first {
            (self.latest, self.round_trip) = (segment.transmission, round_trip);
        }
    }

    /// Handles a reported duplicate: the retransmitted segment was not lost but late, which Linux counts as reordering.
    /// The window grows once in a round (step 4).
    pub(super) fn on_duplicate(&mut self, first: u64, next: u64) {
        self.has_seen_reordering = true;
        if first >= self.round_end {
            self.quarters += 1;
            (self.round_end, self.recoveries_left) = (next, PERSISTENCE);
        }
    }

    /// Handles the end of a recovery.
    pub(super) fn on_recovered(&mut self) {
        self.recoveries_left = self.recoveries_left.saturating_sub(1);
        if self.recoveries_left == 0 {
            self.quarters = 1;
        }
    }

    /// Returns the reordering window (step 4).
    fn reordering_window(&self, board: &Scoreboard, is_recovering: bool, round_trip: &RoundTrip) -> Duration {
        if !self.has_seen_reordering && (is_recovering || board.kept() >= DUPLICATE_THRESHOLD) {
            return Duration::ZERO;
        }
        let window = round_trip.least().unwrap_or_default() / 4 * self.quarters;
        window.min(round_trip.smoothed().unwrap_or_default())
    }

    /// Marks lost segments (step 5).
    pub(super) fn detect(
        &self,
        now: Time,
        board: &mut Scoreboard,
        is_recovering: bool,
        round_trip: &RoundTrip,
    ) -> Found {
        let wait = self.round_trip + self.reordering_window(board, is_recovering, round_trip);
        let (mut lost, mut again_at) = (Vec::new(), None);
        for (sent_at, sequence) in board.sent_before(self.latest) {
            if sent_at + wait <= now {
                lost.push(sequence);
            } else {
                // The last one counts, so that the timer expires once for all.
                again_at = Some(sent_at + wait + TIMER_RESOLUTION);
            }
        }
        lost.iter().for_each(|sequence| board.mark_lost(*sequence));
        Found { lost: lost.len() as u64, again_at }
    }

    /// Marks losses when the retransmission timer expires: the first segment, and all whose time has expired (RFC 8985,
    /// 6.3).
    pub(super) fn detect_at_timeout(&self, now: Time, board: &mut Scoreboard, round_trip: &RoundTrip) {
        let wait = self.round_trip + self.reordering_window(board, true, round_trip);
        let first = board.first();
        let is_lost = |(sent_at, sequence): &(Time, u64)| *sequence == first || *sent_at + wait <= now;
        let lost: Vec<_> = board.sent_before(u64::MAX).filter(is_lost).collect();
        lost.iter().for_each(|(_, sequence)| board.mark_lost(*sequence));
    }
}
