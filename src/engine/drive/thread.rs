//! The shard's own thread: serves the peers' one-sided requests, deadlines and everything else while no application
//! thread polls.
//!
//! It sleeps on the sockets and on its own eventfd. While an application thread polls, it sleeps until the poller lease
//! ends, without watching the sockets, unless a thread sleeps on a descriptor that only the shard's thread makes
//! readable. While a completion queue is armed on a channel, it lets the threads that sleep there on packets have one
//! first, for one lease.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use super::lease::LEASE;
use super::poll_backoff::USEFUL_YIELD;
use super::shard::Shard;
use crate::engine::sys::{Timer, ask_for_short_slices, involuntary_switches, wait_readable, with_signals_blocked};
use crate::types::Time;

/// Time that it stays awake after it had work, so that a stream of requests need not wake it for each one.
const LINGER: Duration = Duration::from_micros(50);
/// Back-off after another thread wanted its core: without work it sleeps at once for this long, and twice as long each
/// time. A yield to a thread that computes takes a whole time slice, while a thread that sleeps on a packet is
/// scheduled first when it arrives.
const SHORTEST_BACKOFF: Duration = Duration::from_millis(1);
const LONGEST_BACKOFF: Duration = Duration::from_secs(1);
/// Least time after its last work before it sleeps without a time limit. A posted request needs the thread when its
/// response is overdue, which is later than this (2 ms at the earliest, unless READs lose packets): so a busy
/// connection's posts do not wake it.
const LIGHT_SLEEP: Duration = Duration::from_millis(1);

/// Starts the thread of a shard; signals stay with the application's threads.
pub(crate) fn start(shard: Arc<Shard>, name: String) -> io::Result<JoinHandle<()>> {
    let alarm = Alarm::new()?;
    with_signals_blocked(|| Builder::new().name(name).spawn(move || run(&shard, alarm)))
}

/// Signals the thread of a shard to end; it does so after at most one bounded pass. Returns whether the signal can
/// reach it.
pub(crate) fn end(shard: &Shard) -> bool {
    shard.stop.store(true, Ordering::Release);
    shard.wake.call()
}

/// The back-off state: whether the thread may stay awake without work.
struct ThreadBackoff {
    until: Time,
    /// Time from which it may sleep without a time limit.
    light_until: Time,
    /// It does not stay awake before this time, because others want the core.
    not_before: Time,
    backoff: Duration,
    /// Involuntary context switches so far.
    switches: u64,
}

impl ThreadBackoff {
    fn new() -> Self {
        Self {
            until: Time::ZERO,
            light_until: Time::ZERO,
            not_before: Time::ZERO,
            backoff: SHORTEST_BACKOFF,
            switches: 0,
        }
    }

    /// Updates the state after a pass, with the time after it if there was work. Returns until when the thread may
    /// sleep; `None`: it stays awake.
    fn rest(&mut self, now: Time, worked: bool) -> Option<Time> {
        if worked {
            self.until = now + LINGER;
            self.light_until = now + LIGHT_SLEEP;
        }
        if now < self.until && now >= self.not_before {
            return None;
        }
        Some(if now < self.light_until { self.light_until } else { Time::NEVER })
    }

    /// Notes a yield and its length. The kernel's count shows whether another thread ran: a long pause may also be an
    /// interrupt, or the machine's own.
    fn note_yield(&mut self, now: Time, took: Duration) {
        if took < USEFUL_YIELD {
            return;
        }
        let switches = involuntary_switches();
        if std::mem::replace(&mut self.switches, switches) != switches {
            let undisturbed = now.saturating_since(self.not_before);
            let is_rare = undisturbed > self.backoff;
            self.backoff = if is_rare { SHORTEST_BACKOFF } else { (self.backoff * 2).min(LONGEST_BACKOFF) };
            self.not_before = now + self.backoff;
        }
    }
}

fn run(shard: &Shard, mut alarm: Alarm) {
    // A container may forbid this; then a packet may wait for the end of a computing thread's time slice.
    if let Err(error) = ask_for_short_slices() {
        tracing::debug!(%error, "the engine's thread keeps the usual time slices");
    }
    let mut backoff = ThreadBackoff::new();
    loop {
        if shard.stop.load(Ordering::Acquire) || shard.has_failed() {
            return;
        }
        let now = shard.clock.now();
        if shard.lease.is_alive(now) && !shard.fd_waiters.is_needed(now) {
            stand_back(shard, &mut alarm, now);
            continue;
        }
        let served = shard.serve(|now, worked| backoff.rest(if worked { shard.clock.now() } else { now }, worked));
        match served.sleeps_until {
            None if served.worked => {}
            None => {
                let took = shard.yield_processor();
                backoff.note_yield(shard.clock.now(), took);
            }
            Some(until) => {
                let by_packet = sleep(shard, &mut alarm, until, Watch::Sockets);
                // Threads that sleep on a descriptor are woken by this thread alone.
                let is_for_others = shard.armed.load(Ordering::Relaxed) > 0 && shard.fd_waiters.queues() == 0;
                if by_packet && is_for_others {
                    sleep(shard, &mut alarm, until.min(shard.clock.now() + LEASE), Watch::Event);
                }
            }
        }
    }
}

/// Leaves the sockets to the poller until the lease ends.
fn stand_back(shard: &Shard, alarm: &mut Alarm, now: Time) {
    let lease_ends = shard.lease.end();
    // Published before the moderations are checked: a thread that adds one afterwards wakes this thread.
    shard.wake.sleeps_until(lease_ends);
    let moderation_ends = shard.end_moderations(now).unwrap_or(Time::NEVER);
    if shard.fd_waiters.leave() {
        sleep(shard, alarm, lease_ends.min(moderation_ends), Watch::Event);
        shard.fd_waiters.come_back();
        let now = shard.clock.now();
        if now >= lease_ends {
            let readable = || wait_readable([shard.sockets.as_fd()], Some(Duration::ZERO));
            shard.lease.note_end(now, || readable().is_ok_and(|[packets_wait]| packets_wait));
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Watch {
    /// Wake-up calls only.
    Event,
    /// Wake-up calls and packets.
    Sockets,
}

/// The thread's timer. Setting it costs some microseconds on virtual machines, so not every sleep sets it: one that
/// fires early costs less.
struct Alarm {
    timer: Timer,
    rings_at: Time,
}

impl Alarm {
    fn new() -> io::Result<Self> {
        Ok(Self { timer: Timer::new()?, rings_at: Time::NEVER })
    }

    /// Makes the timer fire at this time or earlier.
    fn set(&mut self, now: Time, at: Time) -> io::Result<()> {
        if at < self.rings_at {
            self.timer.set(at.saturating_since(now))?;
            self.rings_at = at;
        }
        Ok(())
    }

    fn has_rung(&mut self) {
        self.timer.clear();
        self.rings_at = Time::NEVER;
    }
}

/// Sleeps until `until` at the latest, a wake-up call, or a packet if packets are watched. Returns whether a packet
/// ended the sleep.
fn sleep(shard: &Shard, alarm: &mut Alarm, until: Time, watch: Watch) -> bool {
    if watch == Watch::Event {
        // No later than the time published before; drivers need the thread at this time at the earliest.
        shard.wake.sleeps_until(until);
    }
    let woken = alarm.set(shard.clock.now(), until).and_then(|()| match watch {
        Watch::Event => {
            let ready = wait_readable([shard.wake.as_fd(), alarm.timer.as_fd()], None);
            ready.map(|[called, rung]| (called, rung, false))
        }
        Watch::Sockets => {
            let ready = wait_readable([shard.wake.as_fd(), alarm.timer.as_fd(), shard.sockets.as_fd()], None);
            ready.map(|[called, rung, packet]| (called, rung, packet))
        }
    });
    let (called, rung, packet) = woken.unwrap_or_else(|error| {
        // Probably out of memory. Do not spin meanwhile.
        tracing::warn!(%error, "the engine's thread cannot wait");
        std::thread::sleep(Duration::from_millis(1));
        (false, false, false)
    });
    // Before anything is checked: a caller makes its work visible before it calls.
    if called {
        shard.wake.is_awake();
    }
    if rung {
        alarm.has_rung();
    }
    packet && !called
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::shard::ArmedFor;
    use super::super::tests::shard;
    use super::*;

    /// Returns the voluntary context switches of a thread of this process.
    fn wake_ups(thread: &str) -> u64 {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let mine = tasks
            .flatten()
            .find(|task| std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.trim() == thread));
        let status = std::fs::read_to_string(mine.unwrap().path().join("status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    #[test]
    fn idle_thread_sleeps_and_ends_when_told() {
        let shard = Arc::new(shard());
        let thread = start(Arc::clone(&shard), "idle-test".into()).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let before = wake_ups("idle-test");
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(wake_ups("idle-test"), before, "a spurious wake-up");
        end(&shard);
        thread.join().unwrap();
    }

    #[test]
    fn thread_comes_back_for_whoever_sleeps_on_a_descriptor() {
        let shard = Arc::new(shard());
        while !shard.lease.is_alive(shard.clock.now()) {
            shard.poll(|| false);
        }
        let thread = start(Arc::clone(&shard), "attend-test".into()).unwrap();
        // It may have left or be about to: the result is the same.
        shard.channel_armed(ArmedFor::Descriptor, 1);
        let latest = shard.clock.now() + Duration::from_secs(20);
        // With the sockets it sleeps without a time limit, without them until the lease ends, which never happens here.
        while shard.wake.promised() != Time::NEVER {
            assert!(shard.clock.now() < latest, "it does not watch the sockets");
            shard.lease.visit(shard.clock.now());
            std::thread::yield_now();
        }
        end(&shard);
        thread.join().unwrap();
    }

    #[test]
    fn thread_stands_back_while_somebody_polls() {
        let shard = Arc::new(shard());
        let thread = start(Arc::clone(&shard), "lease-test".into()).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        // Polls for longer than it takes to get a lease; a pause of the machine restarts the series.
        while !shard.lease.is_alive(shard.clock.now()) {
            shard.poll(|| false);
        }
        shard.wake.call();
        end(&shard);
        thread.join().unwrap();
    }
}
