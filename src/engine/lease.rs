//! The lease: how an application thread that polls keeps the shard's thread from serving the sockets beside it.
//!
//! Were both to watch a socket, each packet would wake the shard's thread for nothing, on a core that may be the
//! poller's. A poller that comes back soon after its last visit takes a lease; while it lasts, the shard's thread
//! sleeps until its end. A single visit takes none: nobody knows whether another one follows.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::types::Time;

/// How long a lease lasts, and how soon a poller must come back to get one.
pub(super) const LEASE: Duration = Duration::from_micros(400);

/// A shard's lease.
#[derive(Default)]
pub(super) struct Lease {
    end: AtomicU64,
    last_visit: AtomicU64,
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
            self.end.store((now + LEASE).as_nanos(), Ordering::Relaxed);
        }
        comes_back
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
}
