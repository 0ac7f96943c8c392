//! The thread that wakes tasks when events arrive on their channels. It is started when a task first waits, and ends
//! when none has waited for some time.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread::Builder;
use std::time::{Duration, Instant};

use super::sys::cm::Channel;
use crate::sys::{EventFd, PerGeneration, wait_any_readable, with_signals_blocked};

/// Stack size of the thread, which runs the wakers of tasks.
const STACK_BYTES: usize = 256 << 10;
/// Time after which the thread ends if no task waits.
const IDLE: Duration = Duration::from_secs(10);
/// Maximum number of tasks that wait for one channel.
const MOST_WAKERS: usize = 64;

/// A task that waits for an event of a channel.
struct Waiting {
    channel: Arc<Channel>,
    waker: Waker,
    /// When the task is woken without an event.
    deadline: Option<Instant>,
}

#[derive(Default)]
struct State {
    waiting: Vec<Waiting>,
    /// Tells the thread of changes; there is a thread while it is set.
    changed: Option<Arc<EventFd>>,
}

/// The tasks that wait in this process.
static WATCHER: PerGeneration<Mutex<State>> = PerGeneration::new();

fn state() -> Option<MutexGuard<'static, State>> {
    WATCHER.get().map(|state| state.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Has a task woken when an event waits on a channel, or at a time.
pub(super) fn watch(channel: &Arc<Channel>, deadline: Option<Instant>, waker: &Waker) -> io::Result<()> {
    // Before the lock is taken, and after it is released: the code of tasks may wait for events itself.
    let waker = waker.clone();
    let Some(mut state) = state() else { return Err(io::ErrorKind::Unsupported.into()) };
    let is_same = |waiting: &Waiting| Arc::ptr_eq(&waiting.channel, channel);
    if state.waiting.iter().any(|waiting| is_same(waiting) && waiting.waker.will_wake(&waker)) {
        drop(state);
        return Ok(());
    }
    match &state.changed {
        Some(changed) => _ = changed.signal(),
        None => state.changed = Some(start()?),
    }
    // Tasks that are gone leave their wakers behind. Waking one that waits without an event is harmless.
    let too_many = state.waiting.iter().filter(|waiting| is_same(waiting)).count() >= MOST_WAKERS;
    let woken = if too_many { take(&mut state, is_same) } else { Vec::new() };
    state.waiting.push(Waiting { channel: Arc::clone(channel), waker, deadline });
    drop(state);
    wake(woken);
    Ok(())
}

/// Forgets the tasks that wait for a channel, whose object is dropped.
pub(super) fn forget(channel: &Arc<Channel>) {
    let Some(mut state) = state() else { return };
    let forgotten = take(&mut state, |waiting| Arc::ptr_eq(&waiting.channel, channel));
    if let Some(changed) = state.changed.as_ref().filter(|_| !forgotten.is_empty()) {
        changed.signal();
    }
    drop(state);
}

/// Takes the tasks that fulfil a condition.
fn take(state: &mut State, is_taken: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
    state.waiting.extract_if(.., |waiting| is_taken(waiting)).collect()
}

fn wake(woken: Vec<Waiting>) {
    for Waiting { waker, .. } in woken {
        // A panic of the task's code must not end the thread, which may be the watcher's.
        if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
            tracing::error!(
                target: "rdma_verbs::connection",
                "the waker of a task that waits for an event of the connection manager panicked"
            );
        }
    }
}

fn start() -> io::Result<Arc<EventFd>> {
    let changed = Arc::new(EventFd::new()?);
    let shared = Arc::clone(&changed);
    let builder = Builder::new().name("rdma-cm-events".to_owned()).stack_size(STACK_BYTES);
    with_signals_blocked(|| builder.spawn(move || run(&shared)))?;
    Ok(changed)
}

/// Returns the channels that tasks wait for, each once: the system refuses to poll more entries than a process may have
/// descriptors, and several tasks may wait for one channel.
fn channels(waiting: &[Waiting]) -> Vec<Arc<Channel>> {
    let mut channels: Vec<_> = waiting.iter().map(|waiting| Arc::clone(&waiting.channel)).collect();
    channels.sort_by_key(Arc::as_ptr);
    channels.dedup_by(|one, other| Arc::ptr_eq(one, other));
    channels
}

fn run(changed: &EventFd) {
    loop {
        changed.clear();
        let Some(mut state) = state() else { return };
        let channels = channels(&state.waiting);
        let deadline = state.waiting.iter().filter_map(|waiting| waiting.deadline).min();
        drop(state);
        let until = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout = if channels.is_empty() { Some(IDLE) } else { until };
        let mut descriptors: Vec<BorrowedFd<'_>> = vec![changed.as_fd()];
        descriptors.extend(channels.iter().map(|channel| channel.descriptor()));
        let readable = wait_any_readable(&descriptors, timeout).unwrap_or_else(|error| {
            // Probably out of memory. Do not spin meanwhile.
            tracing::warn!(
                target: "rdma_verbs::connection", %error, "cannot wait for events of the connection manager"
            );
            std::thread::sleep(Duration::from_millis(100));
            Vec::new()
        });
        let is_changed = readable.first() == Some(&true);
        let ready: Vec<_> = channels.iter().zip(readable.iter().skip(1)).filter(|(_, ready)| **ready).collect();
        let now = Instant::now();
        state = match self::state() {
            Some(state) => state,
            None => return,
        };
        let woken = take(&mut state, |waiting| {
            let is_ready = ready.iter().any(|(channel, _)| Arc::ptr_eq(channel, &waiting.channel));
            is_ready || waiting.deadline.is_some_and(|deadline| deadline <= now)
        });
        if channels.is_empty() && !is_changed && state.waiting.is_empty() {
            // The next task that waits starts another thread.
            state.changed = None;
            return;
        }
        drop(state);
        wake(woken);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::super::sys::fake;
    use super::*;

    #[test]
    fn a_channel_is_polled_once_for_all_its_tasks() {
        let (context, fake) = fake::open(fake::Machine::default());
        let both = [(); 2].map(|()| Channel::create(context.connections().unwrap()).unwrap());
        let waits = [0, 1, 0, 1, 1, 0].map(|index: usize| Waiting {
            channel: Arc::clone(&both[index]),
            waker: Waker::noop().clone(),
            deadline: None,
        });
        let found = channels(&waits);
        assert_eq!(found.len(), 2);
        assert!(both.iter().all(|channel| found.iter().any(|other| Arc::ptr_eq(channel, other))));
        drop((found, waits, both, context));
        assert_eq!(fake.live(), []);
    }
}
