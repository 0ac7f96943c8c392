//! Pacing of a path, or of a queue pair with its own rate: how long bytes take, how many packets leave in one send, and
//! when the next send may leave.

use std::time::Duration;

use crate::types::Time;

const SECOND_NANOSECONDS: u64 = 1_000_000_000;
/// Maximum duration of one send at the rate (7 kB at 1 Gbit/s). A full queue drops more of a longer burst: beside TCP,
/// a stream gets 0.73 of its fair share of a long queue with 250 µs, and 0.89 with 60 µs.
pub(super) const BURST: Duration = Duration::from_micros(60);
/// Maximum lateness that back-to-back sends make up for (31 kB at 1 Gbit/s together): a sleeping thread wakes up later
/// than intended. With timers of 1 ms a stream gets 0.95 of the rate, and 0.25 without this.
const MOST_MADE_UP: Duration = Duration::from_micros(250);
/// Longest delay that counts as lateness; after a longer one there was nothing to send.
const LONGEST_LATENESS: Duration = Duration::from_millis(20);
/// Number of packets that a send may have, however low the rate.
const LEAST_BURST_PACKETS: u32 = 2;

/// Returns the duration of `bytes` at the rate; a rate of 0 counts as 1.
pub(super) fn cost(bytes: u64, bytes_per_second: u64) -> Duration {
    Duration::from_nanos(bytes.saturating_mul(SECOND_NANOSECONDS) / bytes_per_second.max(1))
}

/// Returns the number of packets of this size that may leave in one send.
pub(super) fn burst_packets(bytes_per_second: u64, packet_bytes: u64) -> u32 {
    let bytes = u128::from(bytes_per_second) * BURST.as_nanos() / u128::from(SECOND_NANOSECONDS);
    u32::try_from(bytes / u128::from(packet_bytes)).unwrap_or(u32::MAX).max(LEAST_BURST_PACKETS)
}

/// An account of the time that sent bytes take at the rate.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Account {
    paid_at: Time,
    /// Whether a sender waits until everything is paid for. If it then sends later than that, it is late, and further
    /// sends follow without a pause.
    is_awaited: bool,
}

impl Account {
    /// Returns when everything is paid for.
    pub(super) fn paid_at(&self) -> Time {
        self.paid_at
    }

    /// Charges a send of this duration. Time in which no sender waited accumulates no credit.
    pub(super) fn pay(&mut self, now: Time, cost: Duration) {
        let late = now.saturating_since(self.paid_at);
        let is_lateness = self.is_awaited && late <= LONGEST_LATENESS;
        let made_up = if is_lateness { late.min(MOST_MADE_UP) } else { Duration::ZERO };
        self.paid_at = self.paid_at + (late - made_up) + cost;
        self.is_awaited = is_lateness && self.paid_at < now;
    }

    /// Notes that a sender waits. If everything is paid for already, it waits for another reason, which does not count.
    pub(super) fn note_awaited(&mut self, now: Time) {
        self.is_awaited |= self.paid_at > now;
    }

    /// Notes that no sender waits for the pace any more.
    pub(super) fn forget_awaited(&mut self) {
        self.is_awaited = false;
    }

    /// Forgives all debt after this time.
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
    fn idle_time_earns_no_credit() {
        let mut account = Account::default();
        account.pay(at(0), COST);
        account.pay(at(0), COST);
        assert_eq!(account.paid_at(), at(120));
        account.pay(at(500), COST);
        assert_eq!(account.paid_at(), at(560));
    }

    #[test]
    fn late_sends_are_compensated() {
        let mut account = Account::default();
        account.pay(at(0), COST);
        account.note_awaited(at(1));
        // Due at 60: three sends leave at 200, and the next one when it would have left without the lateness.
        (0..3).for_each(|_| account.pay(at(200), COST));
        assert_eq!(account.paid_at(), at(240));
        // At most 250 µs of lateness.
        account.note_awaited(at(200));
        account.pay(at(9_000), COST);
        assert_eq!(account.paid_at(), at(9_000 - 250 + 60));
        // All was paid for, so the wait had another reason. Later there was nothing to send.
        account.forget_awaited();
        account.note_awaited(at(9_000));
        account.pay(at(9_100), COST);
        assert_eq!(account.paid_at(), at(9_160));
        account.note_awaited(at(9_100));
        account.pay(at(30_000), COST);
        assert_eq!(account.paid_at(), at(30_060));
    }
}
