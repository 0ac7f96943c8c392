//! The driving policy: which thread serves a shard, how pollers share their core, and when the shard's thread rests.
//!
//! The policy reads no clock and makes no system call. Threads report what they do and when, and the policy returns a
//! state: [`PollerState`] after an empty look of a poller, [`Duty`] before and [`Rest`] after a pass of the shard's
//! thread. The fields of the lease and of the back-offs are hints: a value lost to a race makes a thread wait or work
//! for a moment longer. The counts of armed queues are exact, and `fd_waiters` has a handshake with the shard's thread.
//!
//! All constants are in `constants`.

mod constants;
mod contention;
mod fd_waiters;
mod lease;
mod memory_watch;
mod poll_backoff;
#[cfg(all(test, not(loom)))]
mod tests;
mod thread_rest;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

pub(super) use constants::NAP;
pub(super) use thread_rest::{Rest, ThreadRest};

use crate::types::Time;
use constants::LONGEST_PAUSE;
use contention::Contention;
use fd_waiters::FdWaiters;
use lease::Lease;
use memory_watch::MemoryWatch;
use poll_backoff::PollBackoff;

/// The kind of waiter that a completion queue is armed for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ArmedFor {
    /// A thread that sleeps on the sockets, and drives when a packet arrives.
    Sleeper,
    /// A thread that sleeps until a notification makes a descriptor readable.
    Descriptor,
}

/// State of a polling thread after an empty look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PollerState {
    /// It looks again at once.
    Polling,
    /// It gives its core to another thread that wants it. `is_suspected`: yields took long lately, and the kernel must
    /// be queried whether another thread had the core.
    Yielding { is_suspected: bool },
    /// It sleeps on the sockets, because yields go through other threads' time slices.
    Napping,
    /// It polls, mostly without a look at the shard, so that the kernel takes its core while the program's locks are
    /// free.
    Spinning,
}

/// Duty of the shard's thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Duty {
    /// It makes a pass.
    Serve,
    /// It leaves the sockets to the poller until this time.
    StandBack { until: Time },
}

/// The policy of one shard.
#[derive(Default)]
pub(super) struct DrivingPolicy {
    lease: Lease,
    poll_backoff: PollBackoff,
    contention: Contention,
    fd_waiters: FdWaiters,
    memory_watch: MemoryWatch,
    /// Completion queues armed for threads that sleep on packets.
    sleepers: AtomicU32,
}

/// Threads that post.
impl DrivingPolicy {
    /// Notes that this thread posts.
    #[inline]
    pub(super) fn note_post(&self, thread: u64) {
        self.contention.note_post(thread);
        self.memory_watch.note_post();
    }

    /// Notes a post that drives. If completions were taken since the last visit, it counts as a visit.
    #[inline]
    pub(super) fn note_driving_post(&self, now: Time) {
        self.lease.visit_if_taken(now);
    }

    /// Returns whether a thread polls, as far as is known, so that acknowledgements may wait for its response.
    #[inline]
    pub(super) fn expects_poller(&self, now: Time) -> bool {
        self.lease.is_alive(now) && !self.memory_watch.is_watching()
    }

    /// Returns whether the poller with the lease watches its memory, as far as is known. It responds soon to a WRITE.
    #[inline]
    pub(super) fn expects_watcher(&self, now: Time) -> bool {
        self.memory_watch.is_watching() && self.lease.is_alive(now)
    }

    /// Notes that a WRITE without a completion ended.
    pub(super) fn note_write(&self) {
        self.memory_watch.note_write();
    }

    /// Chooses whether only pollers look at the shared memory from now on, so that a packet there need wake no thread.
    /// Called with the shard held. A thread that sleeps on packets needs the packet's call, and so does one that naps.
    pub(super) fn silences_memory(&self, now: Time) -> bool {
        let polls = self.expects_poller(now) && !self.poll_backoff.is_crowded(now);
        let sleeps = || self.sleepers.load(Ordering::SeqCst) > 0 || self.fd_waiters.need_thread();
        let is_silent = polls && !sleeps();
        self.memory_watch.note_silent_memory(is_silent);
        // Counted again after that is published. A thread that is about to sleep counts itself before it reads it, so
        // at least one of the two sees the other's write.
        if is_silent && sleeps() {
            self.memory_watch.note_silent_memory(false);
            return false;
        }
        is_silent
    }

    /// Returns whether only pollers look at the shared memory. Then a thread that is about to sleep, and has armed a
    /// queue, must change that.
    #[inline]
    pub(super) fn is_memory_silent(&self) -> bool {
        self.memory_watch.is_memory_silent()
    }

    /// Returns the time by which the shard's thread must handle work that is due at this time: the end of the lease if
    /// that is later, because the poller comes back before it ends.
    #[inline]
    pub(super) fn thread_is_due(&self, due: Time) -> Time {
        due.max(self.lease.end())
    }
}

/// Threads that poll.
impl DrivingPolicy {
    /// Notes that completions were taken without a look at the shard.
    #[inline]
    pub(super) fn note_taken(&self) {
        self.lease.note_taken();
    }

    /// Notes that this thread's poll ends with completions. Returns whether the shard's thread must be called, to watch
    /// the sockets for a program that may watch its memory now.
    #[inline]
    pub(super) fn note_poll_ends(&self) -> bool {
        self.memory_watch.note_taken() && self.calls_thread()
    }

    #[cold]
    fn calls_thread(&self) -> bool {
        let is_deaf = self.fd_waiters.call() | self.memory_watch.needs_thread();
        if is_deaf {
            self.memory_watch.note_thread_called();
        }
        is_deaf
    }

    /// Returns whether this poll looks at the shard.
    #[inline]
    pub(super) fn is_look_due(&self) -> bool {
        self.memory_watch.note_call();
        self.contention.is_look_due()
    }

    /// Returns whether a quick poll is enough for this look.
    #[inline]
    pub(super) fn takes_quick_poll(&self) -> bool {
        self.poll_backoff.takes_quick_poll()
    }

    /// Notes a poller that made a full pass, or found another thread driving. Returns whether it comes back soon.
    #[inline]
    pub(super) fn note_pass(&self, now: Time) -> bool {
        self.poll_backoff.note_visit(now.saturating_since(self.lease.last_visit()));
        self.fd_waiters.note_pass();
        self.lease.visit(now)
    }

    /// Notes whether looks are mostly at shared memory, not at sockets.
    #[inline]
    pub(super) fn note_looks_at_memory(&self, at_memory: bool) {
        self.poll_backoff.note_looks_at_memory(at_memory);
    }

    /// Notes the end of a pass that took long: the poller was busy, not away.
    pub(super) fn note_long_pass(&self, now: Time) {
        self.lease.extend_visit(now);
    }

    /// Notes a visit of a thread that a channel's descriptor woke.
    pub(super) fn note_event_visit(&self, now: Time) {
        self.lease.visit(now);
    }

    /// Chooses the state of this thread after an empty look. `now` is called only if the time matters.
    #[inline]
    pub(super) fn after_empty_look(&self, thread: u64, now: impl FnOnce() -> Time) -> PollerState {
        self.contention.note_poll(thread);
        let last_visit = self.lease.last_visit();
        let is_crowded = self.poll_backoff.is_crowded(last_visit);
        if is_crowded || self.contention.spins() {
            let now = now();
            if !self.contention.allows_sleep(now) {
                self.contention.note_look(now);
                return PollerState::Spinning;
            }
        }
        if is_crowded {
            PollerState::Napping
        } else if self.poll_backoff.is_yield_due() {
            PollerState::Yielding { is_suspected: self.poll_backoff.is_suspected(last_visit) }
        } else {
            PollerState::Polling
        }
    }

    /// Notes a yield of a poller that ended now; `was_used`: another thread had the core, as far as is known.
    pub(super) fn note_yield(&self, now: Time, took: Duration, was_used: bool) {
        self.poll_backoff.note_yield(now, took, was_used);
    }

    /// Returns how many polls may be skipped before the next look, for a caller that counts them itself.
    #[inline]
    pub(super) fn take_skips(&self) -> u32 {
        if self.contention.spins() { self.contention.take_skips() } else { 0 }
    }
}

/// Threads that wait for events.
impl DrivingPolicy {
    /// Notes that completion queues were armed. Returns whether the shard's thread must be called, to watch the sockets
    /// for a thread that sleeps on a descriptor.
    pub(super) fn note_armed(&self, armed_for: ArmedFor, queues: u32) -> bool {
        match armed_for {
            ArmedFor::Sleeper => {
                self.sleepers.fetch_add(queues, Ordering::SeqCst);
                false
            }
            ArmedFor::Descriptor => queues > 0 && self.fd_waiters.add(queues),
        }
    }

    /// Notes that completion queues are no longer armed.
    pub(super) fn note_disarmed(&self, armed_for: ArmedFor, queues: u32) {
        match armed_for {
            ArmedFor::Sleeper => {
                self.sleepers.fetch_sub(queues, Ordering::Relaxed);
            }
            ArmedFor::Descriptor => self.fd_waiters.remove(queues),
        }
    }

    /// Returns the numbers of queues armed for sleepers and for descriptors.
    #[cfg(all(test, not(loom)))]
    pub(super) fn armed(&self) -> (u32, u32) {
        (self.sleepers.load(Ordering::Relaxed), self.fd_waiters.queues())
    }
}

/// The shard's thread.
impl DrivingPolicy {
    /// Notes that the thread itself received a WRITE without a completion.
    pub(super) fn note_write_by_thread(&self) {
        self.memory_watch.end_tolerance();
    }

    /// Returns what the thread does now.
    pub(super) fn duty(&self, now: Time) -> Duty {
        self.memory_watch.note_thread_awake();
        match self.expects_poller(now) && !self.fd_waiters.need_thread() {
            true => Duty::StandBack { until: self.lease.end() },
            false => Duty::Serve,
        }
    }

    /// Called by the thread before it stands back; a waiter on a descriptor that needs the thread calls it, and so does
    /// a poller that leaves. Returns false if one of them needs it already.
    pub(super) fn stand_back(&self) -> bool {
        let leaves = self.fd_waiters.leave();
        if leaves && self.memory_watch.is_watching() {
            self.fd_waiters.come_back();
            return false;
        }
        leaves
    }

    /// Called by the thread after it stood back until `until`, or until it was called. If the poller has left and
    /// packets wait, the next lease requires more polling.
    pub(super) fn end_stand_back(&self, now: Time, until: Time, packets_wait: impl FnOnce() -> bool) {
        self.fd_waiters.come_back();
        if now >= until {
            self.lease.note_end(now, packets_wait);
        }
    }

    /// Returns until when threads that sleep on packets may take the packet that woke the shard's thread, if there are
    /// such threads, and none sleeps on a descriptor, which only the shard's thread makes readable. `now` is called
    /// only if the time matters.
    pub(super) fn packet_is_for_others(&self, now: impl FnOnce() -> Time) -> Option<Time> {
        let is_for_others = self.sleepers.load(Ordering::Relaxed) > 0 && self.fd_waiters.queues() == 0;
        is_for_others.then(|| now() + LONGEST_PAUSE)
    }
}
