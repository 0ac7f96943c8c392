//! The poller lease: it keeps the shard's thread from serving the sockets while an application thread polls.
//!
//! If both watched a socket, each packet would wake the shard's thread unnecessarily, on a core that may be the
//! poller's. A poller that comes back soon after its last visit takes a lease; the shard's thread sleeps until it ends.
//! A single visit takes none, since another one may never follow. The few visits of a program that waits for something
//! else, and polls in between only to take its own completions, take none either: that program needs the shard's
//! thread.
//! The policy suspends the lease of a program that may watch its memory (`memory_watch`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::constants::{LONGEST_LEASE, LONGEST_MIN_POLL_TIME, LONGEST_PAUSE, MIN_POLL_TIME};
use crate::types::Time;

/// A shard's poller lease.
pub(super) struct Lease {
    end: AtomicU64,
    last_visit: AtomicU64,
    /// Time of the first in the current series of visits without long pauses.
    first_visit: AtomicU64,
    /// Least time of polling before the next lease, in nanoseconds.
    min_poll_time: AtomicU64,
    /// Completions were taken since the last visit: the poller is active, although it never finds its queue empty.
    taken: AtomicBool,
}

impl Default for Lease {
    fn default() -> Self {
        Self {
            end: AtomicU64::default(),
            last_visit: AtomicU64::default(),
            first_visit: AtomicU64::default(),
            min_poll_time: AtomicU64::new(MIN_POLL_TIME.as_nanos() as u64),
            taken: AtomicBool::default(),
        }
    }
}

impl Lease {
    /// Notes a visit of a poller. Returns whether it will come back soon.
    ///
    /// Several pollers may race: the value that remains is off by at most the time between them.
    #[inline]
    pub(super) fn visit(&self, now: Time) -> bool {
        let last = self.last_visit.load(Ordering::Relaxed);
        self.last_visit.store(now.as_nanos(), Ordering::Relaxed);
        let comes_back = last != 0 && now.saturating_since(Time::from_nanos(last)) < LONGEST_PAUSE;
        if comes_back {
            let polled = self.polled_until(now);
            if polled >= self.min_poll_time() {
                // A series that began again after a pause would give an earlier end than the lease that is still alive.
                // The shard's thread may already rely on the later one.
                let end = now + polled.min(LONGEST_LEASE);
                self.end.fetch_max(end.as_nanos(), Ordering::Relaxed);
            }
        } else {
            self.first_visit.store(now.as_nanos(), Ordering::Relaxed);
        }
        comes_back
    }

    /// Returns how long the series of visits had lasted at this time.
    fn polled_until(&self, time: Time) -> Duration {
        time.saturating_since(Time::from_nanos(self.first_visit.load(Ordering::Relaxed)))
    }

    fn min_poll_time(&self) -> Duration {
        Duration::from_nanos(self.min_poll_time.load(Ordering::Relaxed))
    }

    /// Notes that the shard's thread stood back until the end of a lease. If the poller has left and packets wait, the
    /// series of visits starts again, and the next lease requires a longer series.
    pub(super) fn note_end(&self, now: Time, packets_wait: impl FnOnce() -> bool) {
        let next = if self.is_alive(now) {
            (self.min_poll_time() / 2).max(MIN_POLL_TIME)
        } else if packets_wait() {
            self.first_visit.store(now.as_nanos(), Ordering::Relaxed);
            (self.min_poll_time() * 2).min(LONGEST_MIN_POLL_TIME)
        } else {
            return;
        };
        self.min_poll_time.store(next.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Extends the last visit until now: its poller was driving the shard.
    pub(super) fn extend_visit(&self, now: Time) {
        if self.polled_until(self.last_visit()) >= self.min_poll_time() {
            self.last_visit.store(now.as_nanos(), Ordering::Relaxed);
            self.visit(now);
        }
    }

    /// Notes that completions were taken.
    #[inline]
    pub(super) fn note_taken(&self) {
        if !self.taken.load(Ordering::Relaxed) {
            self.taken.store(true, Ordering::Relaxed);
        }
    }

    /// Notes a post. If completions were taken since the last visit, it counts as a visit: a busy poller's queue may
    /// not be empty for long.
    #[inline]
    pub(super) fn visit_if_taken(&self, now: Time) {
        if self.taken.load(Ordering::Relaxed) {
            self.taken.store(false, Ordering::Relaxed);
            self.visit(now);
        }
    }

    /// Returns the time of the last visit.
    #[inline]
    pub(super) fn last_visit(&self) -> Time {
        Time::from_nanos(self.last_visit.load(Ordering::Relaxed))
    }

    /// Returns when the lease ends or ended. The end never moves to an earlier time.
    #[inline]
    pub(super) fn end(&self) -> Time {
        Time::from_nanos(self.end.load(Ordering::Relaxed))
    }

    /// Returns whether a poller holds the lease.
    #[inline]
    pub(super) fn is_alive(&self, now: Time) -> bool {
        self.end() > now
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Visits without long pauses for `length`.
    fn poll(lease: &Lease, from: Time, length: Duration) -> Time {
        let (mut now, end) = (from, from + length);
        while now < end {
            lease.visit(now);
            now = now + Duration::from_micros(10);
        }
        lease.visit(end);
        end
    }

    #[test]
    fn lease_requires_a_least_time_of_polling() {
        let (lease, start) = (Lease::default(), Time::from_nanos(1_000));
        assert!(!lease.visit(start) && !lease.is_alive(start));
        let soon = start + MIN_POLL_TIME / 2;
        assert!(lease.visit(soon) && !lease.is_alive(soon));
        let later = poll(&lease, soon, MIN_POLL_TIME);
        assert_eq!(lease.end(), later + (later - start));
        let late = later + LONGEST_PAUSE;
        assert!(!lease.visit(late) && !lease.is_alive(late));
    }

    #[test]
    fn lease_grows_with_the_time_of_polling_since_the_last_pause() {
        let lease = Lease::default();
        let end = poll(&lease, Time::from_nanos(1_000), LONGEST_LEASE * 2);
        assert_eq!(lease.end(), end + LONGEST_LEASE);
        let late = end + LONGEST_LEASE * 2;
        let end = poll(&lease, late, MIN_POLL_TIME);
        assert_eq!(lease.end(), end + MIN_POLL_TIME);
    }

    #[test]
    fn lease_keeps_its_end_after_a_short_pause() {
        let lease = Lease::default();
        let end = poll(&lease, Time::from_nanos(1_000), LONGEST_LEASE);
        let promised = lease.end();
        assert_eq!(promised, end + LONGEST_LEASE);
        let later = poll(&lease, end + LONGEST_PAUSE, MIN_POLL_TIME);
        assert!(later < promised);
        assert_eq!(lease.end(), promised);
    }

    #[test]
    fn lease_that_ends_without_a_poller_doubles_the_least_time_of_polling() {
        let (lease, mut now) = (Lease::default(), Time::from_nanos(1_000));
        let mut given = 0;
        for _ in 0..1_000 {
            // The checks of memory are shorter than a lease, so that the visits follow each other closely.
            now = poll(&lease, now, MIN_POLL_TIME / 2) + MIN_POLL_TIME / 2;
            if lease.is_alive(now) {
                given += 1;
                now = lease.end();
                lease.note_end(now, || true);
            }
        }
        assert!((5..=10).contains(&given), "{given} leases in a tenth of a second");
        now = poll(&lease, now, LONGEST_MIN_POLL_TIME);
        assert!(lease.is_alive(now));
        let before = lease.min_poll_time();
        lease.note_end(now, || unreachable!("a thread polls"));
        assert_eq!(lease.min_poll_time(), before / 2, "a lease was kept");
        now = lease.end();
        lease.note_end(now, || false);
        assert_eq!(lease.min_poll_time(), before / 2, "no packet waited");
    }

    #[test]
    fn post_after_taken_completions_counts_as_a_visit() {
        let (lease, start) = (Lease::default(), Time::from_nanos(1_000));
        let end = poll(&lease, start, MIN_POLL_TIME);
        let soon = end + LONGEST_PAUSE / 2;
        lease.visit_if_taken(soon);
        assert_eq!(lease.last_visit(), end, "nothing was taken");
        lease.note_taken();
        lease.visit_if_taken(soon);
        assert_eq!((lease.last_visit(), lease.is_alive(soon)), (soon, true));
    }
}
