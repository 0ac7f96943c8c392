//! The lease: how an application thread that polls keeps the shard's thread from serving the sockets beside it.
//!
//! Were both to watch a socket, each packet would wake the shard's thread for nothing, on a core that may be the
//! poller's. A poller that comes back soon after its last visit takes a lease; while it lasts, the shard's thread
//! sleeps until its end. A single visit takes none: nobody knows whether another one follows.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::types::Time;

/// How long a lease lasts at first, and how soon a poller must come back to get one.
pub(super) const LEASE: Duration = Duration::from_micros(400);
/// How long a lease lasts at most. At each end the shard's thread wakes up to see whether the lease goes on, which
/// takes the poller's core for some ten microseconds.
const LONGEST_LEASE: Duration = Duration::from_millis(4);
/// Who has polled for some time gets a lease of this part of it.
const PART_OF_POLLING: u64 = 4;

/// A shard's lease.
#[derive(Default)]
pub(super) struct Lease {
    end: AtomicU64,
    last_visit: AtomicU64,
    /// When the first of the visits began that follow each other closely.
    first_visit: AtomicU64,
}

impl Lease {
    /// A poller is here. Whether it holds a lease now.
    ///
    /// Several pollers may race: whichever value remains is at most their distance in time off.
    #[inline]
    pub(super) fn visit(&self, now: Time) -> bool {
        let last = self.last_visit.load(Ordering::Relaxed);
        self.last_visit.store(now.as_nanos(), Ordering::Relaxed);
        let comes_back = last != 0 && now.saturating_since(Time::from_nanos(last)) < LEASE;
        if comes_back {
            let polled = now.as_nanos().saturating_sub(self.first_visit.load(Ordering::Relaxed));
            let length = (polled / PART_OF_POLLING).clamp(LEASE.as_nanos() as u64, LONGEST_LEASE.as_nanos() as u64);
            self.end.store(now.as_nanos() + length, Ordering::Relaxed);
        } else {
            self.first_visit.store(now.as_nanos(), Ordering::Relaxed);
        }
        comes_back
    }

    /// When the last poller was here.
    #[inline]
    pub(super) fn last_visit(&self) -> Time {
        Time::from_nanos(self.last_visit.load(Ordering::Relaxed))
    }

    /// When the lease ends or ended.
    #[inline]
    pub(super) fn end(&self) -> Time {
        Time::from_nanos(self.end.load(Ordering::Relaxed))
    }

    /// Whether somebody polls and will do so again soon.
    #[inline]
    pub(super) fn is_alive(&self, now: Time) -> bool {
        self.end() > now
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn lease_is_for_those_who_come_back_soon() {
        let (lease, start) = (Lease::default(), Time::from_nanos(1_000));
        assert!(!lease.visit(start) && !lease.is_alive(start));
        let soon = start + LEASE / 2;
        assert!(lease.visit(soon) && lease.is_alive(soon));
        assert_eq!(lease.end(), soon + LEASE);
        assert!(!lease.is_alive(soon + LEASE));
        let late = soon + LEASE * 3;
        assert!(!lease.visit(late) && !lease.is_alive(late));
    }

    #[test]
    fn who_polled_for_long_gets_a_longer_lease() {
        let (lease, mut now) = (Lease::default(), Time::from_nanos(1_000));
        while now < Time::from_nanos(1_000) + LONGEST_LEASE * PART_OF_POLLING as u32 {
            lease.visit(now);
            now = now + LEASE / 2;
        }
        lease.visit(now);
        assert_eq!(lease.end(), now + LONGEST_LEASE);
        let late = now + LONGEST_LEASE * 2;
        assert!(!lease.visit(late) && lease.visit(late + LEASE / 2));
        assert_eq!(lease.end(), late + LEASE / 2 + LEASE);
    }
}
