//! The completion queue: results on their way from endpoints to polling threads.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Duration;

use thiserror::Error;

use super::source::{SourceToken, Sources};
use super::sync::{AtomicBool, AtomicU32, CachePadded, Mutex, lock};
use super::{Notify, SendQueue};
use crate::types::{CompletionOpcode, RawCompletion};

/// The completion queue had no room: completions were lost, and the queue is unusable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the completion queue overflowed: more completions than its entries were waiting to be polled")]
pub struct Overflow {
    /// Whether this is the first loss: the queue has just become unusable.
    pub is_first: bool,
}

/// A completion queue cannot shrink below the number of completions that wait in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("cqe is {requested}, but {waiting} completions are queued")]
pub struct TooSmall {
    /// Entries requested.
    pub requested: u32,
    /// Completions in the queue.
    pub waiting: u32,
}

/// Which completion triggers the next notification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Arm {
    Disarmed,
    Any,
    /// A completion of a message that the peer marked solicited, or a failed completion.
    Solicited,
}

/// The notification that a push causes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Due {
    Nothing,
    Notification,
    /// A notification after this time, if the gathering with this number is still open.
    Within(Duration, u32),
}

struct State {
    /// Each entry contains its source.
    entries: VecDeque<RawCompletion>,
    capacity: usize,
    sources: Sources,
    arm: Arm,
    /// Completions that a notification may wait for, and how long; a count of 0 or 1 disables moderation.
    moderation: (u32, Duration),
    /// Completions gathered since the queue was armed, whose notification is delayed.
    gathered: u32,
    /// Number of the current gathering, which ends when a notification is due.
    gathering: u32,
}

impl State {
    fn disarm(&mut self) {
        self.arm = Arm::Disarmed;
        self.gathered = 0;
        self.gathering = self.gathering.wrapping_add(1);
    }

    /// Counts a completion that the queue is armed for.
    #[inline]
    fn gather(&mut self, may_wait: bool) -> Due {
        let (count, period) = self.moderation;
        self.gathered += 1;
        if !may_wait || self.gathered >= count {
            self.disarm();
            return Due::Notification;
        }
        if self.gathered == 1 { Due::Within(period, self.gathering) } else { Due::Nothing }
    }
}

/// A completion queue: bounded, for any number of pushing and polling threads.
///
/// Each send or receive side of a queue pair that completes here is attached as a *source*. Completions carry its
/// token, so they can be purged when the queue pair is reset or destroyed.
pub struct CompletionQueue {
    id: u32,
    notify: Option<Arc<dyn Notify>>,
    /// The clock for the timestamps of completions.
    clock: Option<fn() -> u64>,
    state: Mutex<State>,
    /// Number of entries; changed under the lock, read without it to find an empty queue cheaply.
    length: CachePadded<AtomicU32>,
    overflowed: AtomicBool,
}

impl CompletionQueue {
    /// Creates a queue of `capacity` entries. `notify` is called with `id` when the queue is armed and gets a
    /// completion.
    #[cfg(feature = "sim")]
    pub fn new(id: u32, capacity: u32, notify: Option<Arc<dyn Notify>>) -> Arc<Self> {
        Arc::new(Self::unshared(id, capacity, notify))
    }

    /// As [`CompletionQueue::new`], without the `Arc`.
    pub fn unshared(id: u32, capacity: u32, notify: Option<Arc<dyn Notify>>) -> Self {
        let state = State {
            entries: VecDeque::with_capacity(capacity as usize),
            capacity: capacity as usize,
            sources: Sources::default(),
            arm: Arm::Disarmed,
            moderation: (0, Duration::ZERO),
            gathered: 0,
            gathering: 0,
        };
        Self {
            id,
            notify,
            clock: None,
            state: Mutex::new(state),
            length: CachePadded(AtomicU32::new(0)),
            overflowed: AtomicBool::new(false),
        }
    }

    /// Stamps completions with the time of this clock.
    #[must_use]
    pub fn stamped(mut self, clock: fn() -> u64) -> Self {
        self.clock = Some(clock);
        self
    }

    /// The number that the queue was created with.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Adds a source. With a send queue, polling the source's send completions releases its slots.
    pub fn attach(&self, send_queue: Option<Arc<SendQueue>>) -> SourceToken {
        lock(&self.state).sources.attach(send_queue)
    }

    /// Removes a source, its entries and the reference to its send queue. Detaching again does nothing.
    pub fn detach(&self, token: SourceToken) {
        let mut state = lock(&self.state);
        self.purge_locked(&mut state, token);
        let send_queue = state.sources.detach(token);
        drop(state);
        // Dropped without the lock: it may be the last reference, and freeing a queue must not keep other threads
        // waiting.
        drop(send_queue);
    }

    /// Removes all entries of a source, for a reset. They will never be polled, so its retired send slots are released.
    pub fn purge(&self, token: SourceToken) {
        self.purge_locked(&mut lock(&self.state), token);
    }

    /// Adds a completion and notifies if the queue is armed for it. A completion of a detached source is dropped.
    ///
    /// # Errors
    ///
    /// [`Overflow`] if there is no room, and for every later completion. The first overflow triggers the notification
    /// of an armed queue regardless of the kind of arming, so that a sleeping thread notices it.
    #[inline]
    pub fn push(&self, token: SourceToken, completion: RawCompletion, solicited: bool) -> Result<(), Overflow> {
        let (result, due) = self.push_locked(token, &completion, solicited);
        match (due, &self.notify) {
            (Due::Notification, Some(notify)) => notify.notify(self.id),
            (Due::Within(period, gathering), Some(notify)) => notify.notify_within(self.id, period, gathering),
            _ => {}
        }
        result
    }

    /// Takes up to `out.len()` completions, oldest first; returns how many. Releases the send slots that they finish.
    pub fn poll(&self, out: &mut [RawCompletion]) -> usize {
        if out.is_empty() || self.is_empty() {
            return 0;
        }
        let mut state = lock(&self.state);
        let State { entries, sources, .. } = &mut *state;
        let count = out.len().min(entries.len());
        // A source's later completion covers its earlier ones: of consecutive completions only the last one counts.
        let mut finished: Option<(SourceToken, u32)> = None;
        for (target, entry) in out.iter_mut().zip(entries.drain(..count)) {
            *target = entry;
            if !is_of_send_queue(&entry) {
                continue;
            }
            let token = SourceToken::of(&entry);
            if let Some((source, retired)) = finished.replace((token, entry.retired))
                && source != token
            {
                release(sources, source, retired);
            }
        }
        if let Some((source, retired)) = finished {
            release(sources, source, retired);
        }
        self.store_length(&state);
        count
    }

    /// Arms the queue: the next completion added triggers one notification and disarms it. Completions already queued
    /// do not trigger one: poll again after arming. With `solicited_only`, only solicited and failed completions count,
    /// unless the queue is already armed for all.
    pub fn req_notify(&self, solicited_only: bool) {
        let mut state = lock(&self.state);
        if !solicited_only {
            state.arm = Arm::Any;
        } else if state.arm == Arm::Disarmed {
            state.arm = Arm::Solicited;
        }
    }

    /// Delays a notification until `count` successful completions have gathered since the queue was armed, or until
    /// `period` has passed since the first of them. Failed ones, and solicited ones if only those count, are not
    /// delayed. A `count` of 0 or 1, or a zero `period`, disables moderation.
    pub fn moderate(&self, count: u32, period: Duration) {
        let count = if period.is_zero() { 0 } else { count };
        lock(&self.state).moderation = (count, period);
    }

    /// Ends the period of a gathering: notifies if its notification is still pending.
    pub fn end_moderation(&self, gathering: u32) {
        let mut state = lock(&self.state);
        let is_due = state.gathering == gathering && state.gathered > 0 && state.arm != Arm::Disarmed;
        if is_due {
            state.disarm();
        }
        drop(state);
        if is_due && let Some(notify) = &self.notify {
            notify.notify(self.id);
        }
    }

    /// Whether no completion waits. Takes no lock. After [`req_notify`](Self::req_notify), `true` means that the next
    /// completion that the queue is armed for will notify.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of waiting completions. Takes no lock.
    #[inline]
    pub fn len(&self) -> usize {
        self.length.0.load(Acquire) as usize
    }

    /// Number of entries that fit.
    pub fn capacity(&self) -> u32 {
        lock(&self.state).capacity as u32
    }

    /// Whether completions were lost.
    #[inline]
    pub fn overflowed(&self) -> bool {
        self.overflowed.load(Acquire)
    }

    /// Changes the capacity and keeps waiting completions. An overflowed queue remains so.
    ///
    /// # Errors
    ///
    /// [`TooSmall`] if more completions wait; nothing is changed.
    pub fn resize(&self, capacity: u32) -> Result<(), TooSmall> {
        // Allocated before and freed after the lock is held, so that no endpoint waits for the allocator.
        let mut fresh = VecDeque::with_capacity(capacity as usize);
        let mut state = lock(&self.state);
        let waiting = state.entries.len();
        if waiting > capacity as usize {
            return Err(TooSmall { requested: capacity, waiting: waiting as u32 });
        }
        fresh.extend(state.entries.drain(..));
        state.capacity = capacity as usize;
        let old = std::mem::replace(&mut state.entries, fresh);
        drop(state);
        drop(old);
        Ok(())
    }

    /// The part of a push under the lock. Also returns the notification that is due, at most one per arming.
    fn push_locked(
        &self,
        token: SourceToken,
        completion: &RawCompletion,
        solicited: bool,
    ) -> (Result<(), Overflow>, Due) {
        let mut state = lock(&self.state);
        if self.overflowed() {
            return (Err(Overflow { is_first: false }), Due::Nothing);
        }
        if !state.sources.contains(token) {
            return (Ok(()), Due::Nothing);
        }
        let is_lost = state.entries.len() == state.capacity;
        if is_lost {
            self.overflowed.store(true, Release);
        } else {
            // Under the lock, so that later entries have later timestamps.
            let mut entry = RawCompletion { source: token.source(), ..*completion };
            if let Some(clock) = self.clock {
                entry.timestamp = clock();
            }
            state.entries.push_back(entry);
            self.store_length(&state);
        }
        let is_due = match state.arm {
            Arm::Disarmed => false,
            Arm::Any => true,
            Arm::Solicited => solicited || is_lost || !completion.status.is_success(),
        };
        let may_wait = state.arm == Arm::Any && !is_lost && completion.status.is_success();
        let due = if is_due { state.gather(may_wait) } else { Due::Nothing };
        (if is_lost { Err(Overflow { is_first: true }) } else { Ok(()) }, due)
    }

    fn purge_locked(&self, state: &mut State, token: SourceToken) {
        let source = token.source();
        state.entries.retain(|entry| entry.source != source);
        self.store_length(state);
        if let Some(send_queue) = state.sources.send_queue(token) {
            send_queue.release_retired();
        }
    }

    /// Publishes the number of entries for readers that do not take the lock.
    #[inline]
    fn store_length(&self, state: &State) {
        self.length.0.store(state.entries.len() as u32, Release);
    }
}

/// Whether the completion is that of a send request. Its opcode is valid even if the request failed.
#[inline]
fn is_of_send_queue(completion: &RawCompletion) -> bool {
    (completion.opcode as u32) < CompletionOpcode::Receive as u32
}

#[inline]
fn release(sources: &Sources, source: SourceToken, retired: u32) {
    if let Some(send_queue) = sources.send_queue(source) {
        send_queue.release(retired);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::OnceLock;
    use std::sync::atomic::AtomicU32 as Counter;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::queue::SendConsumer;
    use crate::types::{BatchEnd, CompletionStatus, Data, Operation, SendFlags, SendRequest};

    const PERIOD: Duration = Duration::from_micros(70);

    #[derive(Default)]
    struct Bell {
        rung: Counter,
        promised: Counter,
        gathering: Counter,
        /// A queue whose lock is taken on a notification; the test would hang if the lock were held.
        queue: OnceLock<Arc<CompletionQueue>>,
    }

    impl Bell {
        fn rung(&self) -> u32 {
            self.rung.swap(0, Relaxed)
        }
    }

    impl Notify for Bell {
        fn notify_within(&self, _: u32, period: Duration, gathering: u32) {
            assert_eq!(period, PERIOD);
            self.promised.fetch_add(1, Relaxed);
            self.gathering.store(gathering, Relaxed);
        }

        fn notify(&self, completion_queue: u32) {
            assert_eq!(completion_queue, 5);
            self.rung.fetch_add(1, Relaxed);
            if let Some(queue) = self.queue.get() {
                assert!(queue.capacity() > 0);
            }
        }
    }

    fn belled(capacity: u32) -> (Arc<Bell>, Arc<CompletionQueue>, SourceToken) {
        let bell = Arc::new(Bell::default());
        let queue = CompletionQueue::new(5, capacity, Some(bell.clone()));
        assert!(bell.queue.set(Arc::clone(&queue)).is_ok());
        let token = queue.attach(None);
        (bell, queue, token)
    }

    fn received(wr_id: u64) -> RawCompletion {
        RawCompletion { wr_id, opcode: CompletionOpcode::Receive, ..RawCompletion::default() }
    }

    fn sent(wr_id: u64, retired: u32) -> RawCompletion {
        RawCompletion { wr_id, retired, ..RawCompletion::default() }
    }

    fn poll(queue: &CompletionQueue, max: usize) -> Vec<u64> {
        let mut out = vec![RawCompletion::default(); max];
        let count = queue.poll(&mut out);
        out[..count].iter().map(|completion| completion.wr_id).collect()
    }

    /// A send queue with `count` requests published.
    fn posted(count: u64) -> (Arc<SendQueue>, SendConsumer) {
        let queue = SendQueue::new(count as u32, 1, 0);
        queue.begin();
        for wr_id in 0..count {
            let data = Data::Sges(&[]);
            let flags = SendFlags::empty();
            queue.push(&SendRequest { wr_id, operation: Operation::Send, flags, data }).unwrap();
        }
        queue.end(BatchEnd::Publish).unwrap();
        let consumer = queue.consumer().unwrap();
        (queue, consumer)
    }

    #[test]
    fn completions_come_out_in_order() {
        let queue = CompletionQueue::new(1, 4, None);
        let token = queue.attach(None);
        assert!(queue.is_empty() && poll(&queue, 4).is_empty());
        for wr_id in 0..4 {
            queue.push(token, received(wr_id), false).unwrap();
        }
        assert_eq!((queue.len(), queue.capacity(), queue.id()), (4, 4, 1));
        assert_eq!(poll(&queue, 0), []);
        assert_eq!(poll(&queue, 3), [0, 1, 2]);
        queue.push(token, received(4), false).unwrap();
        assert_eq!(poll(&queue, 9), [3, 4]);
        assert!(queue.is_empty());
    }

    #[test]
    fn polling_a_send_completion_releases_slots() {
        let (send_queue, mut consumer) = posted(6);
        let queue = CompletionQueue::new(1, 8, None);
        let token = queue.attach(Some(Arc::clone(&send_queue)));
        let other = queue.attach(None);
        consumer.retire(5);
        queue.push(token, sent(0, 1), false).unwrap();
        queue.push(other, sent(100, 6), false).unwrap();
        queue.push(token, RawCompletion { retired: 5, ..received(50) }, false).unwrap();
        queue.push(token, sent(2, 3), false).unwrap();
        let flushed = CompletionStatus::WorkRequestFlushedError;
        queue.push(token, RawCompletion { status: flushed, ..sent(3, 4) }, false).unwrap();
        assert_eq!(send_queue.pending(), 6);
        assert_eq!(poll(&queue, 1), [0]);
        assert_eq!(send_queue.pending(), 5);
        assert_eq!(poll(&queue, 2), [100, 50]);
        assert_eq!(send_queue.pending(), 5, "neither another source nor a receive releases");
        assert_eq!(poll(&queue, 1), [2]);
        assert_eq!(send_queue.pending(), 3, "the unsignaled request before is released with it");
        assert_eq!(poll(&queue, 1), [3]);
        assert_eq!(send_queue.pending(), 2, "a failed one releases too");
    }

    #[test]
    fn one_poll_releases_for_every_source() {
        let (first, mut first_consumer) = posted(2);
        let (second, mut second_consumer) = posted(3);
        let queue = CompletionQueue::new(1, 8, None);
        let tokens = [queue.attach(Some(first.clone())), queue.attach(Some(second.clone()))];
        first_consumer.retire(2);
        second_consumer.retire(2);
        for (source, retired) in [(0, 1), (1, 1), (0, 2), (1, 2)] {
            queue.push(tokens[source], sent(0, retired), false).unwrap();
        }
        assert_eq!(poll(&queue, 8).len(), 4);
        assert_eq!((first.pending(), second.pending()), (0, 1));
    }

    #[test]
    fn purge_removes_one_source_and_releases_it() {
        let (send_queue, mut consumer) = posted(4);
        let queue = CompletionQueue::new(1, 8, None);
        let token = queue.attach(Some(Arc::clone(&send_queue)));
        let other = queue.attach(None);
        consumer.retire(3);
        queue.push(token, sent(0, 1), false).unwrap();
        queue.push(other, received(10), false).unwrap();
        queue.push(token, sent(1, 2), false).unwrap();
        queue.purge(token);
        assert_eq!((send_queue.pending(), queue.len()), (1, 1));
        queue.push(token, sent(2, 3), false).unwrap();
        assert_eq!(poll(&queue, 8), [10, 2], "the source is still attached");
    }

    #[test]
    fn detach_purges_and_drops() {
        let (send_queue, _consumer) = posted(1);
        let queue = CompletionQueue::new(1, 8, None);
        let token = queue.attach(Some(Arc::clone(&send_queue)));
        assert_eq!(Arc::strong_count(&send_queue), 2);
        queue.push(token, sent(0, 1), false).unwrap();
        queue.detach(token);
        assert_eq!(Arc::strong_count(&send_queue), 1);
        assert!(queue.is_empty());
        assert_eq!(queue.push(token, sent(1, 1), false), Ok(()));
        assert!(queue.is_empty(), "a detached source's completion is dropped");
        let next = queue.attach(None);
        queue.push(next, received(2), false).unwrap();
        queue.detach(token);
        queue.purge(token);
        assert_eq!(poll(&queue, 8), [2], "an old token does not reach the new source in its place");
    }

    #[test]
    fn overflow_is_final() {
        let (bell, queue, token) = belled(2);
        queue.push(token, received(0), false).unwrap();
        queue.push(token, received(1), false).unwrap();
        queue.req_notify(true);
        assert!(!queue.overflowed());
        assert_eq!(queue.push(token, received(2), false), Err(Overflow { is_first: true }));
        assert!(queue.overflowed());
        assert_eq!(bell.rung(), 1);
        assert_eq!(poll(&queue, 8), [0, 1]);
        queue.req_notify(false);
        assert_eq!(queue.push(token, received(3), false), Err(Overflow { is_first: false }));
        queue.resize(8).unwrap();
        assert_eq!(queue.push(token, received(3), false), Err(Overflow { is_first: false }));
        assert!(queue.overflowed() && queue.is_empty());
        assert_eq!(bell.rung(), 0);
    }

    #[test]
    fn queue_without_entries_overflows_at_once() {
        let queue = CompletionQueue::new(1, 0, None);
        let token = queue.attach(None);
        assert_eq!(queue.push(token, received(0), false), Err(Overflow { is_first: true }));
    }

    #[test]
    fn moderation_ends_by_count_or_period() {
        let (bell, queue, token) = belled(64);
        let promised = || bell.promised.swap(0, Relaxed);
        let latest = || bell.gathering.load(Relaxed);
        queue.moderate(3, PERIOD);
        let push = |completion| queue.push(token, completion, false).unwrap();
        push(received(1));
        queue.end_moderation(latest());
        assert_eq!((bell.rung(), promised()), (0, 0), "not armed");
        queue.req_notify(false);
        push(received(2));
        push(received(3));
        assert_eq!((bell.rung(), promised()), (0, 1));
        push(received(4));
        assert_eq!((bell.rung(), promised()), (1, 0), "three have gathered");
        let ended = latest();
        queue.end_moderation(ended);
        assert_eq!(bell.rung(), 0, "the late end of that finds nothing");
        queue.req_notify(false);
        push(received(5));
        queue.end_moderation(ended);
        assert_eq!(bell.rung(), 0, "nor does it end another gathering");
        queue.end_moderation(latest());
        assert_eq!((bell.rung(), promised()), (1, 1), "the period is over");
        queue.req_notify(false);
        push(RawCompletion { status: CompletionStatus::WorkRequestFlushedError, ..received(6) });
        assert_eq!((bell.rung(), promised()), (1, 0), "a failure is not delayed");
        queue.moderate(3, Duration::ZERO);
        queue.req_notify(false);
        push(received(7));
        assert_eq!((bell.rung(), promised()), (1, 0), "not moderated any more");
    }

    #[test]
    fn armed_queue_notifies_once() {
        let (bell, queue, token) = belled(16);
        let push = |wr_id| queue.push(token, received(wr_id), false).unwrap();
        push(0);
        assert_eq!(bell.rung(), 0, "not armed");
        queue.req_notify(false);
        assert_eq!(bell.rung(), 0, "completions already queued do not count");
        push(1);
        push(2);
        assert_eq!(bell.rung(), 1);
        queue.req_notify(false);
        queue.req_notify(false);
        push(3);
        push(4);
        assert_eq!(bell.rung(), 1, "arming twice is arming once");
    }

    #[test]
    fn solicited_only_waits_for_solicited_or_failed() {
        let (bell, queue, token) = belled(16);
        let failed = RawCompletion { status: CompletionStatus::RetryExceededError, ..sent(0, 0) };
        let flushed = RawCompletion { status: CompletionStatus::WorkRequestFlushedError, ..received(0) };
        for (completion, solicited) in [(received(0), true), (failed, false), (flushed, false)] {
            queue.req_notify(true);
            queue.push(token, received(0), false).unwrap();
            queue.push(token, sent(0, 0), false).unwrap();
            assert_eq!(bell.rung(), 0);
            queue.push(token, completion, solicited).unwrap();
            queue.push(token, completion, solicited).unwrap();
            assert_eq!(bell.rung(), 1);
        }
        queue.req_notify(false);
        queue.req_notify(true);
        queue.push(token, received(0), false).unwrap();
        assert_eq!(bell.rung(), 1, "arming for solicited does not weaken arming for all");
        queue.req_notify(true);
        queue.req_notify(false);
        queue.push(token, received(0), false).unwrap();
        assert_eq!(bell.rung(), 1, "arming for all widens arming for solicited");
    }

    #[test]
    fn resize_keeps_queued_completions() {
        let queue = CompletionQueue::new(1, 4, None);
        let token = queue.attach(None);
        for wr_id in 0..3 {
            queue.push(token, received(wr_id), false).unwrap();
        }
        assert_eq!(queue.resize(2), Err(TooSmall { requested: 2, waiting: 3 }));
        assert_eq!((queue.capacity(), queue.len()), (4, 3));
        queue.resize(3).unwrap();
        assert_eq!(queue.capacity(), 3);
        assert_eq!(poll(&queue, 1), [0]);
        queue.resize(5).unwrap();
        for wr_id in 3..6 {
            queue.push(token, received(wr_id), false).unwrap();
        }
        assert_eq!(queue.push(token, received(6), false), Err(Overflow { is_first: true }));
        assert_eq!(poll(&queue, 8), [1, 2, 3, 4, 5]);
    }
}
