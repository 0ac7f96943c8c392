//! Pacing, the same for a path and for a queue pair with a rate of its own: how long bytes take, how many packets leave
//! in one send, and when the next send may leave.

use std::time::Duration;

use crate::types::Time;

const SECOND_NANOSECONDS: u64 = 1_000_000_000;
/// What leaves in one send takes this long at the rate at most (7 kB at 1 Gbit/s). A full queue drops more of what
/// comes together: beside TCP, a stream has 0.73 of its fair share of a long queue with 250 µs, and 0.89 with 60 µs.
pub(super) const BURST: Duration = Duration::from_micros(60);
/// Lateness that is made up for, by sends that follow each other (31 kB at 1 Gbit/s together): a thread that sleeps
/// wakes up later than intended. With timers of 1 ms a stream has 0.95 of the rate, and 0.25 without.
const MOST_MADE_UP: Duration = Duration::from_micros(250);
/// A longer delay is no lateness: there was nothing to send.
const LONGEST_LATENESS: Duration = Duration::from_millis(20);
/// A send may have so many packets, whatever the rate.
const LEAST_BURST_PACKETS: u32 = 2;

/// How long so many bytes take; a rate of 0 counts as 1.
pub(super) fn cost(bytes: u64, bytes_per_second: u64) -> Duration {
    Duration::from_nanos(bytes.saturating_mul(SECOND_NANOSECONDS) / bytes_per_second.max(1))
}

/// Packets of this size that leave in one send.
pub(super) fn burst_packets(bytes_per_second: u64, packet_bytes: u64) -> u32 {
    let bytes = u128::from(bytes_per_second) * BURST.as_nanos() / u128::from(SECOND_NANOSECONDS);
    u32::try_from(bytes / u128::from(packet_bytes)).unwrap_or(u32::MAX).max(LEAST_BURST_PACKETS)
}

/// When what has left is paid for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Account {
    paid_at: Time,
    /// Something waits until all is paid for. What leaves later than that was late: others follow without a pause.
    is_awaited: bool,
}

impl Account {
    /// When all is paid for.
    pub(super) fn paid_at(&self) -> Time {
        self.paid_at
    }

    /// Something leaves that takes so long. Time in which nothing waited is not saved up.
    pub(super) fn pay(&mut self, now: Time, cost: Duration) {
        let late = now.saturating_since(self.paid_at);
        let is_lateness = self.is_awaited && late <= LONGEST_LATENESS;
        let made_up = if is_lateness { late.min(MOST_MADE_UP) } else { Duration::ZERO };
        self.paid_at = self.paid_at + (late - made_up) + cost;
        self.is_awaited = is_lateness && self.paid_at < now;
    }

    /// Something waits. If all is paid for already, it waits for something else.
    pub(super) fn note_awaited(&mut self, now: Time) {
        self.is_awaited |= self.paid_at > now;
    }

    /// Nothing waits for that any more.
    pub(super) fn forget_awaited(&mut self) {
        self.is_awaited = false;
    }

    /// All is paid for at this time at the latest.
    pub(super) fn forgive_after(&mut self, time: Time) {
        self.paid_at = self.paid_at.min(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COST: Duration = Duration::from_micros(60);

    fn at(microseconds: u64) -> Time {
        Time::from_nanos(10_000_000 + microseconds * 1_000)
    }

    #[test]
    fn time_without_packets_is_not_saved_up() {
        let mut account = Account::default();
        account.pay(at(0), COST);
        account.pay(at(0), COST);
        assert_eq!(account.paid_at(), at(120));
        account.pay(at(500), COST);
        assert_eq!(account.paid_at(), at(560));
    }

    #[test]
    fn lateness_is_made_up_for() {
        let mut account = Account::default();
        account.pay(at(0), COST);
        account.note_awaited(at(1));
        // Due at 60: three sends leave at 200, and the next one when it would have left without the lateness.
        (0..3).for_each(|_| account.pay(at(200), COST));
        assert_eq!(account.paid_at(), at(240));
        // No more than 250 µs of it.
        account.note_awaited(at(200));
        account.pay(at(9_000), COST);
        assert_eq!(account.paid_at(), at(9_000 - 250 + 60));
        // The account was paid for, and what waited had another reason. Later there was nothing to send.
        account.forget_awaited();
        account.note_awaited(at(9_000));
        account.pay(at(9_100), COST);
        assert_eq!(account.paid_at(), at(9_160));
        account.note_awaited(at(9_100));
        account.pay(at(30_000), COST);
        assert_eq!(account.paid_at(), at(30_060));
    }
}
