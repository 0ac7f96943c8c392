//! The constants of the driving policy, in one table.
//!
//! A constant represents a habit of the kernel's scheduler, or the cost of a step on a processor. The second kind is
//! for processors whose system calls take 0.3 to 0.5 µs. On an emulated one, whose calls take 2 µs, multiples of 4 and
//! 16 change neither streams nor ping-pongs beyond the noise (`tests/interop/speed --setting one`: streams at a path
//! MTU of 1024 get 1.48 and 1.64 times rxe's rate, and 1.55 and 1.59 without).

use std::time::Duration;

// ---- The poller lease (costs) ----

/// Longest pause between two visits of a busy poller.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_micros(400);
/// Least time of polling before a lease. It doubles after each lease that ended without a poller and with packets
/// waiting: a program that polls for the completion of its own request, but only checks its memory for the peer's, no
/// longer polls when the lease begins, and waits for the shard's thread.
pub(super) const MIN_POLL_TIME: Duration = Duration::from_micros(100);

// ---- The poller lease (the scheduler) ----

/// Upper limit of the least time of polling.
pub(super) const LONGEST_MIN_POLL_TIME: Duration = Duration::from_millis(100);
/// Longest lease. At each end the shard's thread wakes up to check whether the lease continues, which takes the
/// poller's core for some ten microseconds.
pub(super) const LONGEST_LEASE: Duration = Duration::from_millis(4);

// ---- Polls and yields (costs) ----

/// Quick polls between two full passes of a thread that polls without a pause.
pub(super) const QUICK_POLLS: u32 = 7;
/// Passes that follow each other sooner than this are without a pause. Even with all quick polls in between, the next
/// full pass comes before a lease ends.
pub(super) const WITHOUT_PAUSE: Duration = Duration::from_micros(30);
/// Empty looks between two yields that no other thread used.
pub(super) const LOOKS_BETWEEN_YIELDS: u32 = 32;
/// Looks at shared memory that take as long as one at a socket.
pub(super) const MEMORY_LOOKS: u32 = 8;
/// A yield that took this long was used by another thread.
pub(super) const USEFUL_YIELD: Duration = Duration::from_nanos(1_500);

/// Passes of a poller after a queue was armed for a descriptor, after which the poller counts as one that stays.
/// Programs look at their queue a few times between arming it and sleeping.
pub(super) const PASSES_OF_A_LASTING_POLLER: u32 = 64;

// ---- Naps and spins beside threads that compute (the scheduler) ----

/// A yield that took this long went through other threads' time slices.
pub(super) const LONG_YIELD: Duration = Duration::from_micros(500);
/// Time that a core counts as crowded after such yields. A single one proves nothing: the machine itself may have been
/// paused. For twice this time after one, the kernel is queried whether another thread had the core.
pub(super) const CROWDED: Duration = Duration::from_millis(20);
/// Longest nap. Everything but packets waits this long, and so does a packet that another thread was about to take.
/// Less than the longest pause of a busy poller, so that a napping poller keeps its lease.
pub(in crate::engine::drive) const NAP: Duration = Duration::from_micros(50);
const _: () = assert!(NAP.as_nanos() < LONGEST_PAUSE.as_nanos());
/// Period in which a poller may sleep, after another thread used the shard. As long as such threads come more often
/// than this, none starves, and the poller does not spin.
pub(super) const SHORTEST_SLEEPS: Duration = Duration::from_millis(4);
/// The longest such period, reached if no thread comes any more: each is a quarter longer than the one before. At this
/// length, spins take a thirteenth of the time, and a thread that nevertheless waits gets its chance nine times a
/// second.
pub(super) const LONGEST_SLEEPS: Duration = Duration::from_millis(100);
/// Length of a spin: the kernel takes the core from a thread that computes after one to four milliseconds.
pub(super) const SPIN: Duration = Duration::from_millis(8);
/// Time between looks at the sockets during a spin, and most polls in between. A look takes about a microsecond.
pub(super) const BETWEEN_LOOKS: Duration = Duration::from_micros(10);
pub(super) const MOST_SKIPS: u32 = 256;

// ---- The shard's thread (costs) ----

/// Time that it stays awake after it had work, so that a stream of requests need not wake it for each one.
pub(super) const LINGER: Duration = Duration::from_micros(50);

// ---- The shard's thread (the scheduler and the protocol) ----

/// Back-off after another thread wanted its core: without work it sleeps at once for this long, and twice as long each
/// time. A yield to a thread that computes takes a whole time slice, while a thread that sleeps on a packet is
/// scheduled first when it arrives.
pub(super) const SHORTEST_BACKOFF: Duration = Duration::from_millis(1);
pub(super) const LONGEST_BACKOFF: Duration = Duration::from_secs(1);
/// Least time after its last work before it sleeps without a time limit. A posted request needs the thread when its
/// response is overdue, which is later than this (2 ms at the earliest, unless READs lose packets): so a busy
/// connection's posts do not wake it.
pub(super) const LIGHT_SLEEP: Duration = Duration::from_millis(1);
