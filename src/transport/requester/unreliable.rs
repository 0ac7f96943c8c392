//! The sending half of unreliable connections: nothing is acknowledged, nothing is sent again. A request is finished
//! when its last packet has left.

use std::time::Duration;

use super::{Common, Pass, Requester};
use crate::types::{Psn, Time};

/// Between bursts to native peers, whose socket buffers are large: at most about 2 GB/s.
const NATIVE_PAUSE: Duration = Duration::from_micros(500);
/// Between bursts to standard peers, as for READ responses.
const STANDARD_PAUSE: Duration = Duration::from_micros(200);
const STANDARD_BURST_PACKETS: u32 = 32;

/// Keeps a long message, which no acknowledgement slows down, from overrunning the receiver's socket.
#[derive(Clone, Copy, Default)]
pub(super) struct Pace {
    /// Packets sent since `since`.
    burst: u32,
    since: Time,
}

impl Pace {
    /// A packet leaves. Returns until when the next one must wait, if it must.
    fn note_sent(&mut self, now: Time, most: u32, pause: Duration) -> Option<Time> {
        if now.saturating_since(self.since) >= pause {
            *self = Self { burst: 0, since: now };
        }
        self.burst += 1;
        if self.burst < most {
            return None;
        }
        // The burst began at `since`, so the wait is counted from there: a slow sender hardly waits.
        let resume = self.since + pause;
        *self = Self { burst: 0, since: resume };
        Some(resume)
    }
}

impl Requester {
    /// A packet of an unreliable request has been written: it counts as sent and will not come again.
    pub(super) fn note_sent_unreliable(&mut self, common: &mut Common, pass: &Pass<'_>, end: Psn) {
        self.move_cursor(end);
        self.retire_before(common, pass, end);
        let Some(path) = &common.path else { return };
        let (most, pause) = match path.peer.is_ours() {
            true => (path.window_packets, NATIVE_PAUSE),
            false => (path.window_packets.min(STANDARD_BURST_PACKETS), STANDARD_PAUSE),
        };
        let resume = self.pace.note_sent(pass.now, most, pause);
        self.recovery.pause_until(resume);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_are_followed_by_a_pause() {
        let (mut pace, pause) = (Pace::default(), Duration::from_micros(200));
        let at = |microseconds: u64| Time::from_nanos(1_000_000 + microseconds * 1_000);
        assert_eq!(pace.note_sent(at(0), 3, pause), None);
        assert_eq!(pace.note_sent(at(1), 3, pause), None);
        assert_eq!(pace.note_sent(at(2), 3, pause), Some(at(200)));
        // A slower sender never waits.
        for packet in 0..10 {
            assert_eq!(pace.note_sent(at(1_000 + packet * 100), 3, pause), None, "{packet}");
        }
    }
}
