//! When the shard's thread rests after a pass, and how.

use std::time::Duration;

use super::constants::{LIGHT_SLEEP, LINGER, LONGEST_BACKOFF, SHORTEST_BACKOFF, USEFUL_YIELD};
use crate::types::Time;

/// Rest of the shard's thread after a pass that left nothing to do at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::engine::drive) enum Rest {
    /// It stays awake, because more work is likely soon after work.
    Linger,
    /// It sleeps until this time at the latest: [`Time::NEVER`] unless it had work a moment ago.
    Sleep(Time),
}

/// Whether the thread may stay awake without work. Only the thread itself uses this.
pub(in crate::engine::drive) struct ThreadRest {
    linger_until: Time,
    /// Time from which it may sleep without a time limit.
    light_until: Time,
    /// It does not stay awake before this time, because other threads want the core.
    not_before: Time,
    backoff: Duration,
    /// Involuntary context switches so far.
    switches: u64,
}

impl Default for ThreadRest {
    fn default() -> Self {
        Self {
            linger_until: Time::ZERO,
            light_until: Time::ZERO,
            not_before: Time::ZERO,
            backoff: SHORTEST_BACKOFF,
            switches: 0,
        }
    }
}

impl ThreadRest {
    /// Chooses the rest after a pass, with the time after it if there was work.
    pub(in crate::engine::drive) fn after_pass(&mut self, now: Time, worked: bool) -> Rest {
        if worked {
            self.linger_until = now + LINGER;
            self.light_until = now + LIGHT_SLEEP;
        }
        if now < self.linger_until && now >= self.not_before {
            return Rest::Linger;
        }
        Rest::Sleep(if now < self.light_until { self.light_until } else { Time::NEVER })
    }

    /// Notes a yield and its length. `switches` counts the thread's involuntary context switches; it is called if
    /// another thread may have run. Its result shows whether one did: an interrupt or a pause of the whole machine also
    /// makes a yield long.
    pub(in crate::engine::drive) fn note_yield(&mut self, now: Time, took: Duration, switches: impl FnOnce() -> u64) {
        if took < USEFUL_YIELD {
            return;
        }
        let switches = switches();
        if std::mem::replace(&mut self.switches, switches) != switches {
            let undisturbed = now.saturating_since(self.not_before);
            let is_rare = undisturbed > self.backoff;
            self.backoff = if is_rare { SHORTEST_BACKOFF } else { (self.backoff * 2).min(LONGEST_BACKOFF) };
            self.not_before = now + self.backoff;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn start() -> Time {
        Time::from_nanos(1_000)
    }

    #[test]
    fn thread_lingers_after_work_and_then_sleeps_lightly_before_it_sleeps() {
        let mut rest = ThreadRest::default();
        assert_eq!(rest.after_pass(start(), false), Rest::Sleep(Time::NEVER), "it had no work yet");
        assert_eq!(rest.after_pass(start(), true), Rest::Linger);
        let later = start() + LINGER;
        assert_eq!(rest.after_pass(later, false), Rest::Sleep(start() + LIGHT_SLEEP));
        assert_eq!(rest.after_pass(start() + LIGHT_SLEEP, false), Rest::Sleep(Time::NEVER));
    }

    #[test]
    fn thread_whose_core_others_want_sleeps_at_once_and_each_time_for_longer() {
        let mut rest = ThreadRest::default();
        let (mut now, mut backoffs) = (start(), Vec::new());
        for switches in 1..=12 {
            rest.note_yield(now, USEFUL_YIELD, || switches);
            let mut length = Duration::ZERO;
            while rest.after_pass(now + length, true) != Rest::Linger && length <= LONGEST_BACKOFF {
                length += SHORTEST_BACKOFF;
            }
            backoffs.push(length);
            now = now + length;
        }
        assert_eq!(backoffs[..3], [2, 4, 8].map(|times| SHORTEST_BACKOFF * times));
        assert_eq!(backoffs[11], LONGEST_BACKOFF);
        rest.note_yield(now + 2 * LONGEST_BACKOFF, USEFUL_YIELD, || 13);
        now = now + 2 * LONGEST_BACKOFF + SHORTEST_BACKOFF;
        assert_eq!(rest.after_pass(now, true), Rest::Linger, "the first switch for a long time");
    }

    #[test]
    fn yield_that_no_other_thread_used_changes_nothing() {
        let mut rest = ThreadRest::default();
        rest.note_yield(start(), USEFUL_YIELD, || 0);
        rest.note_yield(start(), USEFUL_YIELD / 2, || unreachable!("it was too short"));
        assert_eq!(rest.after_pass(start(), true), Rest::Linger);
    }
}
