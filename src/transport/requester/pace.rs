//! Delays of the next packet: a wait that the peer requested, a pause, or the error state.

use std::time::Duration;

use crate::types::Time;

/// The reason why the sending half does not send, if there is one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Halt {
    #[default]
    None,
    /// The peer requested a wait: it drops packets that arrive before the wait ends.
    Receiver,
    /// Sent packets are not paid for yet.
    Pace,
    /// The queue pair is in error.
    Stopped,
}

/// The time when the next packet may leave.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    halt: Halt,
    /// Packets of an unreliable connection since `free_at`.
    burst: u32,
    /// Packets that the rate allows in this send.
    allowed: u32,
    /// When the halt ends, if it has an end. Without one: when sent packets are paid for, or when the burst began.
    free_at: Time,
}

impl Default for Pace {
    fn default() -> Self {
        Self { halt: Halt::None, burst: 0, allowed: u32::MAX, free_at: Time::ZERO }
    }
}

impl Pace {
    #[inline]
    pub(super) fn halt(&self) -> Halt {
        self.halt
    }

    #[inline]
    pub(super) fn is_free(&self) -> bool {
        self.halt == Halt::None
    }

    /// Returns when the halt ends, if it has an end.
    #[inline]
    pub(super) fn halted_until(&self) -> Option<Time> {
        matches!(self.halt, Halt::Receiver | Halt::Pace).then_some(self.free_at)
    }

    /// Stops for good: nothing leaves any more.
    pub(super) fn stop(&mut self) {
        self.halt = Halt::Stopped;
    }

    /// Forgets the previous rate: there is another one, or none.
    pub(super) fn forget_rate(&mut self) {
        self.allowed = u32::MAX;
        if self.halt == Halt::Pace {
            self.halt = Halt::None;
        }
    }

    /// Ends the halt, whatever it was.
    pub(super) fn release(&mut self) {
        self.halt = Halt::None;
    }

    /// Begins the wait that the peer requested.
    pub(super) fn wait_for_receiver(&mut self, ready: Time) {
        self.halt = Halt::Receiver;
        self.free_at = self.free_at.max(ready);
    }

    /// Ends the wait that the peer requested, perhaps early.
    #[cold]
    pub(super) fn end_wait(&mut self, now: Time) {
        self.halt = Halt::None;
        self.free_at = self.free_at.min(now);
    }

    /// Holds packets back until everything that has left on the path is paid for; then this many packets may leave in
    /// one send.
    pub(super) fn hold_back(&mut self, now: Time, (paid_at, packets): (Time, u32)) {
        self.allowed = packets;
        if paid_at > now && self.halt == Halt::None {
            (self.halt, self.free_at) = (Halt::Pace, paid_at);
        }
    }

    /// Returns the packets that may leave before the next pause.
    #[inline]
    pub(super) fn allowed(&self) -> u32 {
        self.allowed
    }

    /// Notes that packets have left, which are paid for at this time.
    pub(super) fn spend(&mut self, packets: u32, paid_at: Time) {
        self.allowed = self.allowed.saturating_sub(packets);
        if self.allowed == 0 && self.halt == Halt::None {
            (self.halt, self.free_at) = (Halt::Pace, paid_at);
        }
    }

    /// Ends the pause if its time has come, and nothing has left on the path since that is not paid for. Returns when
    /// it ends, or now.
    pub(super) fn end_pause(&mut self, now: Time, paid_at: Time) -> Time {
        self.free_at = self.free_at.max(paid_at);
        if self.free_at <= now {
            self.halt = Halt::None;
        }
        self.free_at.max(now)
    }

    /// Counts a packet of an unreliable connection: after `most` packets there is a pause.
    pub(super) fn note_unreliable(&mut self, now: Time, most: u32, pause: Duration) {
        if now.saturating_since(self.free_at) >= pause {
            (self.burst, self.free_at) = (0, now);
        }
        self.burst += 1;
        if self.burst >= most {
            // The burst began at `free_at`, so the wait is counted from there: a slow sender hardly waits.
            self.burst = 0;
            self.free_at = self.free_at + pause;
            self.halt = Halt::Pace;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(microseconds: u64) -> Time {
        Time::from_nanos(1_000_000 + microseconds * 1_000)
    }

    #[test]
    fn bursts_are_followed_by_a_pause() {
        let (mut pace, pause) = (Pace::default(), Duration::from_micros(200));
        let mut send = |now| {
            pace.release();
            pace.note_unreliable(now, 3, pause);
            pace.halted_until()
        };
        assert_eq!(send(at(0)), None);
        assert_eq!(send(at(1)), None);
        assert_eq!(send(at(2)), Some(at(200)));
        // A slower sender never waits.
        for packet in 0..10 {
            assert_eq!(send(at(1_000 + packet * 100)), None, "{packet}");
        }
    }

    #[test]
    fn a_pause_lasts_until_all_is_paid_for() {
        let mut pace = Pace::default();
        pace.hold_back(at(10), (at(10), 1));
        assert!(pace.is_free());
        pace.hold_back(at(0), (at(15), 1));
        assert_eq!(pace.halted_until(), Some(at(15)));
        assert_eq!((pace.end_pause(at(15), at(20)), pace.is_free()), (at(20), false), "another one has sent");
        assert_eq!((pace.end_pause(at(21), at(20)), pace.is_free()), (at(21), true));
    }

    #[test]
    fn a_wait_for_the_receiver_outlasts_the_pace_and_a_stop_both() {
        let mut pace = Pace::default();
        pace.wait_for_receiver(at(5));
        pace.hold_back(at(0), (at(10), 1));
        assert_eq!((pace.halt(), pace.halted_until()), (Halt::Receiver, Some(at(5))));
        pace.end_wait(at(3));
        assert!(pace.is_free(), "the peer takes packets again");
        pace.stop();
        pace.hold_back(at(3), (at(10), 1));
        assert_eq!((pace.halt(), pace.halted_until()), (Halt::Stopped, None));
    }
}
