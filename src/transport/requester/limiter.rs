//! The rate limit of a queue pair, besides the pace of its path.

use std::time::Duration;

use crate::transport::pacing::{self, Account, BURST};
use crate::types::{RateLimit, Time};

/// The account that shows when sent packets are paid for at the queue pair's own rate.
pub(super) struct Limiter {
    bytes_per_second: u64,
    limit: RateLimit,
    account: Account,
}

impl Limiter {
    /// Creates the limiter, or returns `None` if there is no limit.
    pub(super) fn new(limit: &RateLimit) -> Option<Self> {
        Some(Self { bytes_per_second: limit.bytes_per_second()?, limit: *limit, account: Account::default() })
    }

    fn cost(&self, bytes: u64) -> Duration {
        pacing::cost(bytes, self.bytes_per_second)
    }

    /// Charges bytes that leave. Returns when they are paid for.
    pub(super) fn pay(&mut self, now: Time, bytes: u64) -> Time {
        self.account.pay(now, self.cost(bytes));
        self.account.paid_at()
    }

    /// Notes that a sender waits until sent packets are paid for. Lateness is not made up for if bursts are bounded.
    pub(super) fn note_awaited(&mut self, now: Time) {
        if self.limit.max_burst_sz == 0 {
            self.account.note_awaited(now);
        }
    }

    /// Returns when the next packet may leave, and how many in one send.
    pub(super) fn allowance(&self, mtu: u32) -> (Time, u32) {
        let packet = match self.limit.typical_pkt_sz {
            0 => u64::from(mtu),
            typical => u64::from(mtu).min(typical.into()),
        };
        let packets = match self.limit.max_burst_sz {
            0 => pacing::burst_packets(self.bytes_per_second, packet),
            most => u32::try_from(u64::from(most) / packet).unwrap_or(u32::MAX).max(1),
        };
        (self.account.paid_at(), packets)
    }

    /// Returns the end of a datagram's wait, if it must wait: once a burst has left, until everything is paid for.
    pub(super) fn datagram_waits_until(&mut self, now: Time) -> Option<Time> {
        let burst = match self.limit.max_burst_sz {
            0 => BURST,
            most => self.cost(most.into()),
        };
        let paid_at = self.account.paid_at();
        let waits = paid_at > now && paid_at >= now + burst;
        waits.then(|| {
            self.note_awaited(now);
            paid_at
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_has_the_requested_length_or_60_microseconds() {
        let packets = |rate_limit, max_burst_sz, typical_pkt_sz| {
            let limit = RateLimit { rate_limit, max_burst_sz, typical_pkt_sz };
            Limiter::new(&limit).map(|limiter| limiter.allowance(1_024).1)
        };
        assert_eq!(packets(0, 4_096, 0), None);
        assert_eq!(packets(1, 0, 0), Some(2));
        assert_eq!(packets(1_000_000, 0, 0), Some(7));
        assert_eq!(packets(1_000_000, 0, 100), Some(75));
        assert_eq!(packets(1_000_000, 4_096, 0), Some(4));
        assert_eq!(packets(1_000_000, 1, u16::MAX), Some(1));
        assert_eq!(packets(u32::MAX, u32::MAX, 1), Some(u32::MAX));
    }
}
