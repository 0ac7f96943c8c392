//! The shard's own thread: serves the peers' one-sided requests, deadlines and everything else when nobody polls.
//!
//! It sleeps on the sockets and on its own event. While an application thread polls it sleeps until the lease ends,
//! without watching the sockets. While a completion queue is armed on a channel, it lets whoever sleeps there have a
//! packet first, for one lease.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use super::lease::LEASE;
use super::shard::Shard;
use super::sys::{wait_readable, with_signals_blocked};
use crate::types::Time;

/// How long it stays awake after it found something to do: a stream of requests need not wake it for each one.
const LINGER: Duration = Duration::from_micros(50);

/// Starts the thread of a shard; signals stay with the application's threads.
pub(super) fn start(shard: Arc<Shard>, name: String) -> io::Result<JoinHandle<()>> {
    with_signals_blocked(|| Builder::new().name(name).spawn(move || run(&shard)))
}

fn run(shard: &Shard) {
    let mut awake_until = Time::ZERO;
    loop {
        // Before the look whether to end: who says so calls afterwards.
        shard.wake.is_awake();
        if shard.stop.load(Ordering::Acquire) || shard.has_failed() {
            return;
        }
        let now = shard.clock.now();
        if shard.lease.is_alive(now) {
            let lease_ends = shard.lease.end();
            // Said before the look at the moderations: whoever adds one afterwards calls.
            shard.wake.sleeps_until(lease_ends);
            let moderation_ends = shard.end_moderations(now).unwrap_or(Time::NEVER);
            sleep(shard, lease_ends.min(moderation_ends), Watch::Event);
            continue;
        }
        let served = shard.serve(|now| now < awake_until && !shard.crowd.is_present(now));
        if served.worked {
            awake_until = shard.clock.now() + LINGER;
        }
        match served.sleeps_until {
            None if served.worked => {}
            None => shard.yield_processor(),
            Some(until) => {
                let by_packet = sleep(shard, until, Watch::Sockets);
                if by_packet && shard.armed.load(Ordering::Relaxed) > 0 {
                    sleep(shard, until.min(shard.clock.now() + LEASE), Watch::Event);
                }
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Watch {
    /// Only calls.
    Event,
    /// Calls and packets.
    Sockets,
}

/// Sleeps until `until`, a call, or a packet if they are watched. Whether it was a packet that ended the sleep.
fn sleep(shard: &Shard, until: Time, watch: Watch) -> bool {
    if watch == Watch::Event {
        // No later than what was promised: whoever drives needs the thread at this time at the earliest.
        shard.wake.sleeps_until(until);
    }
    let left = (until != Time::NEVER).then(|| until.saturating_since(shard.clock.now()));
    let woken = match watch {
        Watch::Event => wait_readable([shard.wake.as_fd()], left).map(|_| false),
        Watch::Sockets => {
            let ready = wait_readable([shard.wake.as_fd(), shard.sockets.as_fd()], left);
            ready.map(|[called, packet]| packet && !called)
        }
    };
    woken.unwrap_or_else(|error| {
        // Out of memory, at worst. Not to spin meanwhile:
        tracing::warn!(%error, "the engine's thread cannot wait");
        std::thread::sleep(Duration::from_millis(1));
        false
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::tests::shard;
    use super::*;

    /// Processor time of the calling thread's process is shared; a thread's own is in its `schedstat`.
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
        assert_eq!(wake_ups("idle-test"), before, "it wakes up for nothing");
        shard.stop.store(true, Ordering::Release);
        shard.wake.call();
        thread.join().unwrap();
    }

    #[test]
    fn thread_stands_back_while_somebody_polls() {
        let shard = Arc::new(shard());
        let thread = start(Arc::clone(&shard), "lease-test".into()).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        (0..100).for_each(|_| shard.poll(|| false));
        assert!(shard.lease.is_alive(shard.clock.now()));
        shard.wake.call();
        shard.stop.store(true, Ordering::Release);
        shard.wake.call();
        thread.join().unwrap();
    }
}
