//! The policy on a virtual clock: a poller, the shard's thread and packets that arrive, without a processor's noise.

use std::collections::VecDeque;

use super::constants::{LONGEST_LEASE, LONGEST_SLEEPS};
use super::*;

const MICROSECOND: Duration = Duration::from_micros(1);
const POLLER: u64 = 7;

/// Counts of packets and of the thread's wake-ups.
#[derive(Default)]
struct Outcome {
    by_poller: usize,
    by_thread: usize,
    /// Longest time that a packet waited.
    longest_wait: Duration,
    /// Times that the shard's thread woke up to check whether the lease continues.
    lease_ends: usize,
    /// Times that the poller called the thread.
    calls: usize,
}

/// A packet of an exchange of WRITEs.
#[derive(Clone, Copy)]
enum Packet {
    Acknowledgement,
    Write,
}

/// A shard with a thread that is scheduled at once, and takes no time for a pass.
struct World {
    policy: DrivingPolicy,
    rest: ThreadRest,
    now: Time,
    /// The thread sleeps until then; on the sockets, or on its eventfd only.
    sleeps: Option<(Time, bool)>,
    /// Arrival of the packet that waits.
    waiting: Option<Time>,
    /// The thread was called.
    is_called: bool,
    /// Packets of an exchange, in the order of their arrivals; those that wait are in front.
    exchange: VecDeque<(Time, Packet)>,
    /// Numbers of an exchange's packets that were received.
    acknowledged: usize,
    written: usize,
    next_packet: Time,
    packets_every: Duration,
    outcome: Outcome,
}

impl World {
    fn new(packets_every: Duration) -> Self {
        let (policy, rest, now) = (DrivingPolicy::default(), ThreadRest::default(), Time::from_nanos(1_000));
        let (next_packet, outcome) = (now + packets_every, Outcome::default());
        Self {
            policy,
            rest,
            now,
            sleeps: None,
            waiting: None,
            is_called: false,
            exchange: VecDeque::new(),
            acknowledged: 0,
            written: 0,
            next_packet,
            packets_every,
            outcome,
        }
    }

    /// Lets the time pass without a poll.
    fn pass_time(&mut self, length: Duration) {
        let end = self.now + length;
        while self.now < end {
            self.now = self.now + MICROSECOND;
            if self.now >= self.next_packet {
                self.waiting.get_or_insert(self.now);
                self.next_packet = self.now + self.packets_every;
            }
            if let Some((arrival, _)) = self.exchange.front()
                && *arrival <= self.now
            {
                self.waiting.get_or_insert(*arrival);
            }
            self.run_thread();
        }
    }

    fn run_thread(&mut self) {
        if let Some((until, watches)) = self.sleeps {
            let is_called = std::mem::take(&mut self.is_called);
            if self.now < until && !is_called && !(watches && self.waiting.is_some()) {
                return;
            }
            if !watches {
                self.outcome.lease_ends += 1;
                let waits = self.waiting.is_some();
                self.policy.end_stand_back(self.now, until, || waits);
            }
        }
        self.sleeps = match self.policy.duty(self.now) {
            Duty::StandBack { until } if self.policy.stand_back() => Some((until, false)),
            Duty::StandBack { .. } => None,
            Duty::Serve => {
                let (worked, before) = (self.take(), self.written);
                if self.receive_exchange() && self.written > before {
                    self.policy.note_write_by_thread();
                }
                self.outcome.by_thread += usize::from(worked);
                match self.rest.after_pass(self.now, worked) {
                    Rest::Linger => None,
                    Rest::Sleep(until) => Some((until, true)),
                }
            }
        };
    }

    /// A full pass of the poller, and the back-off after it if it found nothing.
    fn poll(&mut self) -> PollerState {
        self.policy.is_look_due();
        self.policy.note_pass(self.now);
        if self.take() {
            self.receive_exchange();
            self.outcome.by_poller += 1;
            return PollerState::Polling;
        }
        self.policy.after_empty_look(POLLER, || self.now)
    }

    fn take(&mut self) -> bool {
        let arrived = self.waiting.take();
        let waited = arrived.map_or(Duration::ZERO, |arrived| self.now - arrived);
        self.outcome.longest_wait = self.outcome.longest_wait.max(waited);
        arrived.is_some()
    }

    /// Receives the packets of an exchange that have arrived. Returns whether there were any.
    fn receive_exchange(&mut self) -> bool {
        let before = self.exchange.len();
        while self.exchange.front().is_some_and(|(arrival, _)| *arrival <= self.now) {
            let Some((_, packet)) = self.exchange.pop_front() else { break };
            match packet {
                Packet::Acknowledgement => self.acknowledged += 1,
                Packet::Write => {
                    self.policy.note_write();
                    self.written += 1;
                }
            }
        }
        self.exchange.len() < before
    }

    /// Posts a WRITE; the peer's acknowledgement and its own WRITE arrive after these times.
    fn write(&mut self, acknowledged_after: Duration, written_after: Duration) {
        self.policy.note_post(POLLER);
        self.policy.note_driving_post(self.now);
        self.exchange.push_back((self.now + acknowledged_after, Packet::Acknowledgement));
        self.exchange.push_back((self.now + written_after, Packet::Write));
        self.exchange.make_contiguous().sort_by_key(|(arrival, _)| *arrival);
    }

    /// Polls until this many WRITEs are complete.
    fn poll_completion(&mut self, number: usize) {
        while self.acknowledged < number {
            self.poll();
            self.pass_time(MICROSECOND);
        }
        if self.policy.note_poll_ends() {
            self.is_called = true;
            self.outcome.calls += 1;
        }
    }

    /// Exchanges WRITEs with a peer, watching the memory for the peer's.
    fn exchange_writes(&mut self, number: usize, acknowledged_after: Duration, written_after: Duration) {
        for _ in 0..number {
            let end = self.written + 1;
            self.write(acknowledged_after, written_after);
            self.poll_completion(end);
            while self.written < end {
                self.pass_time(MICROSECOND);
            }
        }
    }

    /// Polls with these pauses for this time. Returns the counts of this time.
    fn poll_for(&mut self, length: Duration, pause: Duration) -> Outcome {
        self.outcome = Outcome::default();
        let end = self.now + length;
        while self.now < end {
            self.poll();
            self.pass_time(pause);
        }
        std::mem::take(&mut self.outcome)
    }
}

fn milliseconds(number: u64) -> Duration {
    Duration::from_millis(number)
}

#[test]
fn busy_poller_gets_all_packets_and_the_thread_hardly_wakes_up() {
    let mut world = World::new(20 * MICROSECOND);
    world.poll_for(milliseconds(20), 2 * MICROSECOND);
    let outcome = world.poll_for(milliseconds(100), 2 * MICROSECOND);
    assert_eq!(outcome.by_thread, 0);
    assert!(outcome.by_poller > 4_000 && outcome.longest_wait <= 2 * MICROSECOND);
    assert!((20..=30).contains(&outcome.lease_ends), "{} wake-ups in 100 ms", outcome.lease_ends);
}

#[test]
fn thread_serves_while_the_poller_computes_for_longer_than_a_busy_poller_pauses() {
    let mut world = World::new(50 * MICROSECOND);
    let outcome = world.poll_for(milliseconds(100), 2 * LONGEST_PAUSE);
    assert_eq!(outcome.lease_ends, 0);
    assert!(outcome.longest_wait <= MICROSECOND && outcome.by_thread > 1_500);
}

#[test]
fn packets_wait_for_no_longer_than_a_lease_after_the_poller_has_left() {
    let mut world = World::new(20 * MICROSECOND);
    world.poll_for(milliseconds(100), 2 * MICROSECOND);
    world.pass_time(milliseconds(100));
    assert!(world.outcome.longest_wait <= LONGEST_LEASE);
    assert!(world.outcome.by_thread > 4_700, "{} of 5,000 packets", world.outcome.by_thread);
}

#[test]
fn program_that_polls_between_checks_of_its_memory_is_served() {
    let mut world = World::new(100 * MICROSECOND);
    for _ in 0..1_000 {
        // Its own completion takes longer than a lease's least time of polling; then it watches its memory.
        for _ in 0..60 {
            world.poll();
            world.pass_time(2 * MICROSECOND);
        }
        world.pass_time(milliseconds(1));
    }
    // A handful of leases, each of which ends with packets waiting.
    assert!(world.outcome.lease_ends <= 10, "{} leases", world.outcome.lease_ends);
}

#[test]
fn program_that_watches_its_memory_after_its_completion_is_served_at_once() {
    let mut world = World::new(milliseconds(1_000_000));
    let start = world.now;
    world.exchange_writes(2_000, 20 * MICROSECOND, 25 * MICROSECOND);
    assert!(world.outcome.longest_wait <= 2 * MICROSECOND, "a WRITE waited for {:?}", world.outcome.longest_wait);
    assert!(world.now - start < 2_000 * 30 * MICROSECOND);
}

#[test]
fn program_whose_writes_come_before_its_completion_does_not_call_the_thread() {
    let mut world = World::new(milliseconds(1_000_000));
    world.exchange_writes(50, 25 * MICROSECOND, 20 * MICROSECOND);
    world.outcome = Outcome::default();
    world.exchange_writes(2_000, 25 * MICROSECOND, 20 * MICROSECOND);
    assert_eq!((world.outcome.calls, world.outcome.by_thread), (0, 0));
}

#[test]
fn program_that_polls_on_although_peers_write_hardly_calls_the_thread() {
    let mut world = World::new(milliseconds(1_000_000));
    for number in 1..=10_000 {
        // The peer's WRITEs come at any time, and the program does not wait for them.
        world.write(5 * MICROSECOND, 9 * MICROSECOND);
        world.poll_completion(number);
        world.poll();
    }
    assert!(world.outcome.calls <= 16, "{} calls", world.outcome.calls);
    assert!(world.outcome.longest_wait <= 4 * MICROSECOND, "{:?}", world.outcome.longest_wait);
}

#[test]
fn program_that_polled_on_and_now_watches_its_memory_waits_for_one_lease() {
    let mut world = World::new(milliseconds(1_000_000));
    for number in 1..=10_000 {
        world.write(5 * MICROSECOND, 9 * MICROSECOND);
        world.poll_completion(number);
        world.poll();
    }
    world.pass_time(milliseconds(10));
    world.exchange_writes(50, 20 * MICROSECOND, 25 * MICROSECOND);
    assert!(world.outcome.longest_wait <= LONGEST_LEASE);
    world.outcome = Outcome::default();
    world.exchange_writes(1_000, 20 * MICROSECOND, 25 * MICROSECOND);
    assert!(world.outcome.longest_wait <= 2 * MICROSECOND, "{:?}", world.outcome.longest_wait);
}

#[test]
fn acknowledgements_wait_for_the_response_of_a_leased_poller_that_watches() {
    let mut world = World::new(20 * MICROSECOND);
    world.poll_for(milliseconds(20), 2 * MICROSECOND);
    world.policy.note_write();
    world.policy.note_post(POLLER);
    assert!(!world.policy.expects_watcher(world.now), "it polls");
    world.policy.note_poll_ends();
    assert!(world.policy.expects_watcher(world.now) && !world.policy.expects_poller(world.now));
    assert!(!world.policy.expects_watcher(world.now + LONGEST_LEASE), "the lease has ended");
    world.policy.note_post(POLLER);
    assert!(!world.policy.expects_watcher(world.now) && world.policy.expects_poller(world.now));
}

/// Returns a policy whose poller has a lease at the returned time.
fn leased() -> (DrivingPolicy, Time) {
    let mut world = World::new(milliseconds(1_000));
    world.poll_for(milliseconds(1), 2 * MICROSECOND);
    (world.policy, world.now)
}

#[test]
fn poller_calls_the_thread_for_shared_memory_that_calls_no_thread() {
    let (policy, now) = leased();
    policy.note_write();
    policy.note_post(POLLER);
    assert!(policy.silences_memory(now) && policy.is_memory_silent());
    assert!(policy.note_poll_ends());
    assert!(!policy.note_poll_ends(), "it was called");
    assert_eq!(policy.duty(now), Duty::Serve);
    assert!(policy.note_poll_ends(), "it was there, but has not looked");
    assert!(!policy.silences_memory(now), "the program watches");
    policy.duty(now);
    assert!(!policy.note_poll_ends(), "a packet calls the thread");
}

/// As UCX does: a queue is armed, rarely has completions, and others are polled all the time.
#[test]
fn thread_leaves_the_packets_to_a_poller_that_stays_beside_an_armed_queue() {
    let (policy, mut now) = leased();
    policy.note_armed(ArmedFor::Descriptor, 1);
    assert_eq!(policy.duty(now), Duty::Serve);
    let passes = std::iter::repeat_with(|| {
        now = now + MICROSECOND;
        policy.note_pass(now);
        policy.duty(now)
    });
    let served = passes.take_while(|duty| *duty == Duty::Serve).take(1_000).count();
    assert!((8..200).contains(&served), "{served} passes");
    assert!(policy.silences_memory(now));
    policy.note_armed(ArmedFor::Descriptor, 1);
    assert!(policy.duty(now) == Duty::Serve && !policy.silences_memory(now), "a thread may sleep now");
}

#[test]
fn shared_memory_calls_threads_that_sleep_or_nap_although_one_polls() {
    for armed_for in [ArmedFor::Sleeper, ArmedFor::Descriptor] {
        let (policy, now) = leased();
        assert!(policy.silences_memory(now));
        policy.note_armed(armed_for, 1);
        assert!(policy.is_memory_silent(), "the thread that armed the queue sees it");
        assert!(!policy.silences_memory(now) && !policy.is_memory_silent(), "{armed_for:?}");
        policy.note_disarmed(armed_for, 1);
        assert!(policy.silences_memory(now));
    }
    let (policy, now) = leased();
    (0..2).for_each(|_| policy.note_yield(now, milliseconds(1), true));
    assert!(!policy.silences_memory(now), "it naps");
    assert!(!DrivingPolicy::default().silences_memory(now), "no thread polls");
}

#[test]
fn thread_watches_the_sockets_for_a_waiter_on_a_descriptor_although_a_thread_polled() {
    let mut world = World::new(20 * MICROSECOND);
    world.poll_for(milliseconds(20), 2 * MICROSECOND);
    let now = world.now;
    assert!(matches!(world.policy.duty(now), Duty::StandBack { .. }));
    assert!(world.policy.note_armed(ArmedFor::Descriptor, 1), "the thread stands back and must be called");
    assert_eq!(world.policy.duty(now), Duty::Serve);
    world.policy.note_disarmed(ArmedFor::Descriptor, 1);
    assert!(matches!(world.policy.duty(now), Duty::StandBack { .. }));
}

#[test]
fn sleepers_on_packets_go_first_unless_one_sleeps_on_a_descriptor() {
    let (policy, now) = (DrivingPolicy::default(), Time::from_nanos(1_000));
    assert_eq!(policy.packet_is_for_others(|| unreachable!("the time does not matter")), None);
    assert!(!policy.note_armed(ArmedFor::Sleeper, 1));
    assert_eq!(policy.packet_is_for_others(|| now), Some(now + LONGEST_PAUSE));
    policy.note_armed(ArmedFor::Descriptor, 1);
    assert_eq!(policy.packet_is_for_others(|| unreachable!("the time does not matter")), None);
}

#[test]
fn poller_yields_naps_and_spins_beside_threads_that_compute() {
    let mut world = World::new(milliseconds(1_000));
    let (slice, yields) = (milliseconds(4), PollerState::Yielding { is_suspected: false });
    assert_eq!(world.poll(), yields);
    world.policy.note_yield(world.now, Duration::ZERO, true);
    assert_eq!(world.poll(), PollerState::Polling, "no other thread used the yield");
    world.policy.note_yield(world.now, slice, true);
    assert_eq!(world.poll(), PollerState::Yielding { is_suspected: true });
    world.policy.note_yield(world.now, slice, false);
    assert_eq!(world.poll(), PollerState::Yielding { is_suspected: true }, "the machine was paused");
    world.policy.note_yield(world.now, slice, true);
    assert_eq!(world.poll(), PollerState::Napping);
    let began = world.now;
    while world.poll() != PollerState::Spinning && world.now < began + 2 * LONGEST_SLEEPS {
        world.pass_time(NAP);
        world.policy.note_yield(world.now, slice, true);
    }
    let slept = world.now - began;
    assert!((LONGEST_SLEEPS..LONGEST_SLEEPS + 2 * NAP).contains(&slept), "it spins after {slept:?}");
}
