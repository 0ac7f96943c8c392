//! Whether the shard's thread must watch the sockets although somebody polls.
//!
//! A lease lets the thread sleep without them. But a program that sleeps on an exact channel's descriptor sleeps until
//! somebody has served the packet, and the poller may be that very program, a moment ago.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::lease::LEASE;
use crate::types::Time;

/// How long after a queue was armed the thread stays: until it is armed again, if that is done for each message.
/// Otherwise the thread would have to be called for each.
const STAY: Duration = LEASE.saturating_mul(2);

/// Who needs the shard's thread at the sockets.
#[derive(Default)]
pub(super) struct Attendance {
    /// Completion queues that are armed for somebody who sleeps on a descriptor.
    queues: AtomicU32,
    last_armed: AtomicU64,
    /// The thread sleeps without the sockets.
    is_away: AtomicBool,
}

impl Attendance {
    /// More queues are armed. Whether the thread must be called.
    pub(super) fn need(&self, now: Time, queues: u32) -> bool {
        self.last_armed.store(now.as_nanos(), Ordering::Relaxed);
        // Before the look at the thread, which looks the other way round: one of both sees the other.
        self.queues.fetch_add(queues, Ordering::SeqCst);
        self.is_away.load(Ordering::SeqCst) && self.is_away.swap(false, Ordering::SeqCst)
    }

    /// They are not armed any more.
    pub(super) fn need_no_more(&self, queues: u32) {
        self.queues.fetch_sub(queues, Ordering::Relaxed);
    }

    /// Whether the thread must stay.
    pub(super) fn is_needed(&self, now: Time) -> bool {
        let last_armed = self.last_armed.load(Ordering::Relaxed);
        self.queues() > 0 || last_armed != 0 && now.saturating_since(Time::from_nanos(last_armed)) < STAY
    }

    /// Queues that are armed.
    pub(super) fn queues(&self) -> u32 {
        self.queues.load(Ordering::SeqCst)
    }

    /// The thread: it goes to sleep without the sockets, and is called if somebody needs it. False: somebody does.
    pub(super) fn leave(&self) -> bool {
        self.is_away.store(true, Ordering::SeqCst);
        let leaves = self.queues() == 0;
        if !leaves {
            self.come_back();
        }
        leaves
    }

    /// The thread: it is awake.
    pub(super) fn come_back(&self) {
        self.is_away.store(false, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn thread_is_called_once_if_it_is_away_and_stays_for_a_while() {
        let (attendance, start) = (Attendance::default(), Time::from_nanos(1_000));
        assert!(!attendance.is_needed(start));
        assert!(!attendance.need(start, 1), "it is there");
        assert!(attendance.is_needed(start + STAY) && !attendance.leave());
        attendance.need_no_more(1);
        assert!(attendance.is_needed(start) && !attendance.is_needed(start + STAY));
        assert!(attendance.leave());
        assert!(attendance.need(start, 1), "it is away");
        assert!(!attendance.need(start, 1), "it was called");
        attendance.need_no_more(2);
        assert!(attendance.leave());
        attendance.come_back();
        assert!(!attendance.need(start, 1));
    }
}
