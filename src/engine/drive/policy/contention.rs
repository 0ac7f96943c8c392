//! Whether the sleep of a polling thread may block another thread of the program.
//!
//! A program whose threads share queues often guards them with a lock of its own, and polls while it holds this lock,
//! as UCX does. A poller that sleeps only inside the poll then sleeps only with the lock held. On a core that both
//! threads share, the other one runs only during these sleeps, and never finds the lock free: it starves for as long as
//! the poller has nothing to do, which may be until the other thread posts.
//!
//! So a poller alternates between sleeping and spinning. A spinning poller loses its core at moments that the kernel
//! chooses, sometimes with the lock free. It then also looks at the sockets more rarely, so that the lock is free for a
//! larger part of the time. Whether another thread waits cannot be detected, because a thread that starves makes no
//! calls. A thread that used the shard until just now is more likely to wait, so the poller then spins more often. The
//! next call of another thread ends a spin.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::constants::{BETWEEN_LOOKS, LONGEST_SLEEPS, MOST_SKIPS, SHORTEST_SLEEPS, SPIN};
use crate::types::Time;

/// Token of no thread.
const NONE: u64 = 0;

/// The threads that use a shard, and its poller's reaction to them. All fields are hints: a value lost to a race makes
/// a poller sleep or spin for one period longer.
pub(super) struct Contention {
    /// The thread that posted last, until the poller has seen it.
    poster: AtomicU64,
    /// The thread that polled last.
    poller: AtomicU64,
    /// A thread other than the poller has used the shard since the poller last checked.
    others_came: AtomicBool,
    spins: AtomicBool,
    /// End of the current period of sleeps, or of the spin.
    end: AtomicU64,
    /// Length of a period of sleeps, in nanoseconds.
    sleeps: AtomicU64,
    last_look: AtomicU64,
    /// Polls without a look after each one with a look, and how many of them are left.
    skip_count: AtomicU32,
    skips: AtomicU32,
}

impl Default for Contention {
    fn default() -> Self {
        Self {
            poster: AtomicU64::new(NONE),
            poller: AtomicU64::new(NONE),
            others_came: AtomicBool::default(),
            spins: AtomicBool::default(),
            end: AtomicU64::default(),
            sleeps: AtomicU64::new(LONGEST_SLEEPS.as_nanos() as u64),
            last_look: AtomicU64::default(),
            skip_count: AtomicU32::default(),
            skips: AtomicU32::default(),
        }
    }
}

impl Contention {
    /// Notes that this thread posts.
    #[inline]
    pub(super) fn note_post(&self, thread: u64) {
        if self.poster.load(Ordering::Relaxed) != thread {
            self.poster.store(thread, Ordering::Relaxed);
        }
    }

    /// Notes that this thread polled and found nothing.
    #[inline]
    pub(super) fn note_poll(&self, thread: u64) {
        let (last, poster) = (self.poller.load(Ordering::Relaxed), self.poster.load(Ordering::Relaxed));
        if last != thread || poster != NONE {
            self.note_others(thread, [last, poster]);
        }
    }

    #[cold]
    fn note_others(&self, thread: u64, seen: [u64; 2]) {
        self.poller.store(thread, Ordering::Relaxed);
        self.poster.store(NONE, Ordering::Relaxed);
        if seen.iter().any(|other| *other != NONE && *other != thread) {
            self.others_came.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether a poller that would sleep now may do so.
    pub(super) fn allows_sleep(&self, now: Time) -> bool {
        let end = Time::from_nanos(self.end.load(Ordering::Relaxed));
        if self.others_came.swap(false, Ordering::Relaxed) {
            return self.begin_sleeps(now, SHORTEST_SLEEPS);
        }
        let (spins, last) = (self.spins(), Duration::from_nanos(self.sleeps.load(Ordering::Relaxed)));
        if now < end {
            !spins
        } else if spins || end == Time::ZERO || now.saturating_since(end) > LONGEST_SLEEPS {
            self.begin_sleeps(now, (last * 5 / 4).min(LONGEST_SLEEPS))
        } else {
            self.end.store((now + SPIN).as_nanos(), Ordering::Relaxed);
            self.spins.store(true, Ordering::Relaxed);
            false
        }
    }

    fn begin_sleeps(&self, now: Time, length: Duration) -> bool {
        self.sleeps.store(length.as_nanos() as u64, Ordering::Relaxed);
        self.end.store((now + length).as_nanos(), Ordering::Relaxed);
        self.spins.store(false, Ordering::Relaxed);
        true
    }

    /// Returns whether the poller spins.
    #[inline]
    pub(super) fn spins(&self) -> bool {
        self.spins.load(Ordering::Relaxed)
    }

    /// Returns whether this poll looks at the shard. A poll without a look costs almost nothing, so the program's lock
    /// is free during the rest of its loop.
    #[inline]
    pub(super) fn is_look_due(&self) -> bool {
        let left = self.skips.load(Ordering::Relaxed);
        if left > 0 {
            self.skips.store(left - 1, Ordering::Relaxed);
        }
        left == 0
    }

    /// Returns the number of polls that may be skipped before the next look is due, for a caller that counts them
    /// itself.
    pub(super) fn take_skips(&self) -> u32 {
        self.skips.swap(0, Ordering::Relaxed)
    }

    /// Notes a look by a poller that spins: chooses the number of polls without a look from the time that the last ones
    /// took.
    pub(super) fn note_look(&self, now: Time) {
        let last = Time::from_nanos(self.last_look.swap(now.as_nanos(), Ordering::Relaxed));
        let count = self.skip_count.load(Ordering::Relaxed);
        let is_late = now.saturating_since(last) > BETWEEN_LOOKS;
        let count = if is_late { count / 2 } else { (count * 2).clamp(1, MOST_SKIPS) };
        self.skip_count.store(count, Ordering::Relaxed);
        self.skips.store(count, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_micros(100);

    /// Returns how long a poller that would only sleep must spin within this time, and how often.
    fn spins(contention: &Contention, from: Time, length: Duration) -> (Duration, usize) {
        let (mut now, mut spun, mut count, mut slept) = (from, Duration::ZERO, 0, true);
        while now < from + length {
            let sleeps = contention.allows_sleep(now);
            spun += if sleeps { Duration::ZERO } else { STEP };
            count += usize::from(slept && !sleeps);
            (slept, now) = (sleeps, now + STEP);
        }
        (spun, count)
    }

    fn start() -> Time {
        Time::from_nanos(1_000)
    }

    #[test]
    fn poller_alone_mostly_sleeps() {
        let contention = Contention::default();
        let (mut total, mut count) = (Duration::ZERO, 0);
        for second in 0..10 {
            contention.note_post(7);
            contention.note_poll(7);
            let (spun, times) = spins(&contention, start() + Duration::from_secs(second), Duration::from_secs(1));
            (total, count) = (total + spun, count + times);
        }
        assert!((85..=100).contains(&count), "{count} spins in ten seconds");
        assert!(total < Duration::from_secs(1), "{total:?}");
    }

    #[test]
    fn poller_without_the_other_thread_spins_at_once_and_ever_more_rarely() {
        for second in [Contention::note_post, Contention::note_poll] {
            let contention = Contention::default();
            contention.note_poll(7);
            second(&contention, 8);
            contention.note_poll(7);
            let (_, soon) = spins(&contention, start(), Duration::from_millis(100));
            let (_, later) = spins(&contention, start() + Duration::from_millis(100), Duration::from_secs(10));
            assert!((6..=8).contains(&soon), "{soon} spins in a tenth of a second");
            assert!((94..=130).contains(&later), "{later} spins in ten seconds");
        }
    }

    #[test]
    fn poller_sleeps_while_the_other_thread_comes_and_when_it_comes_again() {
        let (contention, mut now) = (Contention::default(), start());
        for _ in 0..100 {
            contention.note_post(8);
            contention.note_poll(7);
            assert_eq!(spins(&contention, now, SHORTEST_SLEEPS), (Duration::ZERO, 0));
            now = now + SHORTEST_SLEEPS;
        }
        assert!(!contention.allows_sleep(now), "the other thread is late");
        contention.note_poll(8);
        contention.note_poll(7);
        assert!(contention.allows_sleep(now), "it came");
    }

    #[test]
    fn poller_that_spins_looks_at_the_sockets_by_the_clock() {
        for (poll, expected) in [(20, 200..=256), (1_000, 6..=16), (50_000, 0..=1)] {
            let (contention, mut now, mut polls, mut most) = (Contention::default(), Time::from_nanos(1_000), 0, 0);
            for _ in 0..10_000 {
                now = now + Duration::from_nanos(poll);
                if contention.is_look_due() {
                    most = most.max(std::mem::take(&mut polls));
                    contention.note_look(now);
                } else {
                    polls += 1;
                }
            }
            assert!(expected.contains(&most), "{most} polls without a look that take {poll} ns each");
        }
    }
}
