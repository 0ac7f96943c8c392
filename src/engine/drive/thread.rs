//! The shard's own thread: serves the peers' one-sided requests, deadlines and everything else while no application
//! thread polls.
//!
//! It sleeps on the sockets and on its own eventfd. While an application thread polls, it sleeps until the poller lease
//! ends, without watching the sockets, unless a thread sleeps on a descriptor that only the shard's thread makes
//! readable. While a completion queue is armed on a channel, it leaves a packet to the threads that sleep there on
//! packets first, for the longest pause of a poller.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use super::policy::{Duty, ThreadRest};
use super::shard::Shard;
use crate::sys::{Timer, ask_for_short_slices, involuntary_switches, wait_readable, with_signals_blocked};
use crate::types::Time;

/// Starts the thread of a shard, with signals blocked: the application's threads handle them.
pub(crate) fn start(shard: Arc<Shard>, name: String) -> io::Result<JoinHandle<()>> {
    let alarm = Alarm::new()?;
    shard.wake_for_events();
    with_signals_blocked(|| Builder::new().name(name).spawn(move || run(&shard, alarm)))
}

/// Signals the thread of a shard to end; it does so after at most one bounded pass. Returns whether the signal can
/// reach it.
pub(crate) fn end(shard: &Shard) -> bool {
    shard.stop.store(true, Ordering::Release);
    shard.wake.call()
}

fn run(shard: &Shard, mut alarm: Alarm) {
    // A container may forbid this; then a packet may wait for the end of a computing thread's time slice.
    if let Err(error) = ask_for_short_slices() {
        tracing::debug!(target: "rdma_verbs::device", %error, "the engine's thread keeps the usual time slices");
    }
    let (mut rest, mut was_woken) = (ThreadRest::default(), false);
    loop {
        shard.emit_events();
        if shard.stop.load(Ordering::Acquire) || shard.has_failed() {
            return;
        }
        let now = shard.clock.now();
        match shard.policy.duty(now) {
            Duty::StandBack { until } => stand_back(shard, &mut alarm, now, until),
            Duty::Serve => was_woken = serve(shard, &mut alarm, &mut rest, was_woken),
        }
    }
}

/// Makes one pass, and rests as the policy says. Returns whether a packet ended the rest; `was_woken` is that of the
/// rest before.
fn serve(shard: &Shard, alarm: &mut Alarm, rest: &mut ThreadRest, was_woken: bool) -> bool {
    let after_pass = |now, worked| rest.after_pass(if worked { shard.clock.now() } else { now }, worked);
    let served = shard.serve(was_woken, after_pass);
    match served.sleeps_until {
        None if served.worked => {}
        None => {
            let took = shard.yield_processor();
            rest.note_yield(shard.clock.now(), took, involuntary_switches);
        }
        Some(until) => {
            let by_packet = sleep(shard, alarm, until, Watch::Sockets);
            if by_packet && let Some(theirs) = shard.policy.packet_is_for_others(|| shard.clock.now()) {
                sleep(shard, alarm, until.min(theirs), Watch::Event);
            }
            return by_packet;
        }
    }
    false
}

/// Leaves the sockets to the poller until its lease ends.
fn stand_back(shard: &Shard, alarm: &mut Alarm, now: Time, lease_ends: Time) {
    // Published before the moderations are checked: a thread that adds one afterwards wakes this thread.
    shard.wake.sleeps_until(lease_ends);
    let moderation_ends = shard.end_moderations(now).unwrap_or(Time::NEVER);
    if shard.policy.stand_back() {
        sleep(shard, alarm, lease_ends.min(moderation_ends), Watch::Event);
        let readable = || wait_readable([shard.sockets.as_fd()], Some(Duration::ZERO));
        let packets_wait = || readable().is_ok_and(|[packets_wait]| packets_wait) || shard.has_records();
        shard.policy.end_stand_back(shard.clock.now(), lease_ends, packets_wait);
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

    fn note_rung(&mut self) {
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
        tracing::warn!(target: "rdma_verbs::device", %error, "the engine's thread cannot wait");
        std::thread::sleep(Duration::from_millis(1));
        (false, false, false)
    });
    // Before anything is checked: a caller makes its work visible before it calls.
    if called {
        shard.wake.clear_calls();
    }
    if rung {
        alarm.note_rung();
    }
    packet && !called
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::policy::ArmedFor;
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
    fn idle_thread_sleeps_until_it_is_signalled_to_end() {
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
    fn thread_watches_the_sockets_for_a_sleeper_on_a_descriptor() {
        let shard = Arc::new(shard());
        while !shard.policy.expects_poller(shard.clock.now()) {
            shard.poll(|| false);
        }
        let thread = start(Arc::clone(&shard), "attend-test".into()).unwrap();
        // It may have left or be about to: the result is the same.
        shard.channel_armed(ArmedFor::Descriptor, 1);
        let latest = shard.clock.now() + Duration::from_secs(20);
        // With the sockets it sleeps without a time limit, without them until the lease ends, which never happens here.
        while shard.wake.promised() != Time::NEVER {
            assert!(shard.clock.now() < latest, "it does not watch the sockets");
            shard.policy.note_event_visit(shard.clock.now());
            std::thread::yield_now();
        }
        end(&shard);
        thread.join().unwrap();
    }

    #[test]
    fn thread_stands_back_while_a_thread_polls() {
        let shard = Arc::new(shard());
        let thread = start(Arc::clone(&shard), "lease-test".into()).unwrap();
        let latest = shard.clock.now() + Duration::from_secs(20);
        // While it watches the sockets, it sleeps without a time limit. Only the end of a lease limits it here, because
        // there are no deadlines. 0: it is awake.
        let sleeps_until_lease_ends = || !matches!(shard.wake.promised(), Time::ZERO | Time::NEVER);
        while !sleeps_until_lease_ends() {
            assert!(shard.clock.now() < latest, "it watches the sockets");
            shard.poll(|| false);
            if shard.policy.expects_poller(shard.clock.now()) && shard.wake.promised() == Time::NEVER {
                shard.wake.call();
            }
        }
        end(&shard);
        thread.join().unwrap();
    }
}
