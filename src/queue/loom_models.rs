//! Models of the queues for loom, which runs them under every interleaving and every allowed reordering:
//! `RUSTFLAGS="--cfg loom" cargo test --release --lib queue::`.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::time::Duration;

use loom::sync::atomic::AtomicU32;
use loom::thread;

use super::{CompletionQueue, Notify, QueueError, ReceiveQueue, SendConsumer, SendQueue};
use crate::types::{BatchEnd, Data, Operation, RawCompletion, ReceiveRequest, SendFlags, SendRequest, Sge};

/// Counts its calls.
struct Bell(AtomicU32);

impl Bell {
    fn new() -> Arc<Self> {
        Arc::new(Self(AtomicU32::new(0)))
    }

    fn rung(&self) -> u32 {
        self.0.load(Acquire)
    }
}

impl Notify for Bell {
    /// Models have no clock: another thread ends the period at any point.
    fn notify_within(&self, _completion_queue: u32, _period: Duration, _gathering: u32) {}

    fn notify(&self, _completion_queue: u32) {
        self.0.fetch_add(1, AcqRel);
    }
}

/// Posts one request that carries its number twice.
fn post(queue: &SendQueue, wr_id: u64) -> Result<(), QueueError> {
    queue.begin();
    let result = push(queue, wr_id);
    queue.end(BatchEnd::Publish).unwrap();
    result
}

fn push(queue: &SendQueue, wr_id: u64) -> Result<(), QueueError> {
    let sge = Sge { addr: wr_id, length: 1, ..Sge::default() };
    let data = Data::Sges(&[sge]);
    queue.push(&SendRequest { wr_id, operation: Operation::Send, flags: SendFlags::empty(), data })
}

/// Reads request `index` and checks that its parts belong together.
fn read(consumer: &SendConsumer, index: u32) -> u64 {
    let wr_id = consumer.header(index).wr_id;
    assert_eq!(consumer.sges(index)[0].addr, wr_id);
    wr_id
}

fn completion(wr_id: u64, retired: u32) -> RawCompletion {
    RawCompletion { wr_id, retired, ..RawCompletion::default() }
}

fn poll_one(queue: &CompletionQueue) -> Option<u64> {
    let mut out = [RawCompletion::default()];
    (queue.poll(&mut out) == 1).then_some(out[0].wr_id)
}

/// The consumer reads, retires and releases while the producer wraps around the ring, and the numbers wrap as well.
#[test]
fn ring_wraps() {
    loom::model(|| {
        let start = u32::MAX;
        let queue = SendQueue::starting_at(u64::from(start), 2, 1, 0);
        let mut consumer = queue.consumer().unwrap();
        post(&queue, 0).unwrap();
        let shared = Arc::clone(&queue);
        let reader = thread::spawn(move || {
            let mut next = start;
            for wr_id in 0..3 {
                if consumer.published() == next {
                    break;
                }
                assert_eq!(read(&consumer, next), wr_id);
                next = next.wrapping_add(1);
                consumer.retire(next);
                shared.release(next);
            }
            (consumer, next)
        });
        let mut posted = 1;
        for _ in 0..3 {
            match post(&queue, posted) {
                Ok(()) => posted += 1,
                Err(error) => assert_eq!(error, QueueError::Full { limit: 2 }),
            }
        }
        let (consumer, mut next) = reader.join().unwrap();
        assert_eq!(consumer.published(), start.wrapping_add(posted as u32));
        while next != consumer.published() {
            assert_eq!(read(&consumer, next), u64::from(next.wrapping_sub(start)));
            next = next.wrapping_add(1);
        }
    });
}

/// Two other threads release, one of them more than was retired: the slot is written again only after the consumer's
/// reads.
#[test]
fn third_threads_release() {
    loom::model(|| {
        let queue = SendQueue::new(1, 1, 0);
        let mut consumer = queue.consumer().unwrap();
        post(&queue, 0).unwrap();
        let reader = thread::spawn(move || {
            assert_eq!(read(&consumer, 0), 0);
            consumer.retire(1);
            consumer
        });
        let shared = Arc::clone(&queue);
        let releaser = thread::spawn(move || shared.release(1));
        queue.release(7);
        let is_posted = post(&queue, 1).is_ok();
        let consumer = reader.join().unwrap();
        releaser.join().unwrap();
        if is_posted {
            assert_eq!(read(&consumer, 1), 1);
        }
        assert_eq!(queue.outstanding(), u32::from(is_posted));
        assert!(queue.pending() <= 1, "nothing is released beyond what is retired");
    });
}

/// A thread that learned that a request is retired frees its slot, even if another thread releases an earlier one at
/// the same time.
#[test]
fn no_release_is_lost() {
    loom::model(|| {
        let queue = SendQueue::new(2, 1, 0);
        let mut consumer = queue.consumer().unwrap();
        post(&queue, 0).unwrap();
        post(&queue, 1).unwrap();
        consumer.retire(1);
        let known = Arc::new(AtomicU32::new(1));
        let (shared, store) = (Arc::clone(&queue), Arc::clone(&known));
        let endpoint = thread::spawn(move || {
            consumer.retire(2);
            store.store(2, Release);
            shared.release(1);
        });
        let up_to = known.load(Acquire);
        queue.release(up_to);
        assert!(queue.pending() <= 2 - up_to);
        endpoint.join().unwrap();
        queue.release(2);
        assert_eq!(queue.pending(), 0);
    });
}

/// Receives are taken while others are posted and reuse their slots.
#[test]
fn receives_are_taken_while_posted() {
    loom::model(|| {
        let queue = ReceiveQueue::new(1, 1);
        let mut consumer = queue.consumer().unwrap();
        let taker = thread::spawn(move || {
            let mut sges = Vec::with_capacity(1);
            let mut taken = 0;
            for _ in 0..3 {
                if let Some((wr_id, index)) = consumer.take(&mut sges) {
                    assert_eq!((wr_id, u64::from(index), sges[0].addr), (taken, taken, taken));
                    taken += 1;
                }
            }
            taken + u64::from(consumer.available())
        });
        let mut posted = 0;
        for _ in 0..3 {
            queue.begin();
            let sges = [Sge { addr: posted, length: 1, ..Sge::default() }];
            let result = queue.push(&ReceiveRequest { wr_id: posted, sges: &sges });
            queue.end(BatchEnd::Publish).unwrap();
            posted += u64::from(result.is_ok());
        }
        let seen = taker.join().unwrap();
        assert!((1..=3).contains(&posted) && seen <= posted);
    });
}

/// Batches of two threads do not mix, and no batch is lost.
#[test]
fn producer_lock_excludes() {
    loom::model(|| {
        let queue = SendQueue::new(4, 1, 0);
        let consumer = queue.consumer().unwrap();
        let batch = |queue: &SendQueue, first: u64| {
            assert_eq!(push(queue, first), Err(QueueError::NotBegun));
            queue.begin();
            push(queue, first).unwrap();
            push(queue, first + 1).unwrap();
            assert_eq!(queue.end(BatchEnd::Publish), Ok(2));
            assert_eq!(queue.end(BatchEnd::Publish), Err(QueueError::NotBegun));
        };
        let shared = Arc::clone(&queue);
        let other = thread::spawn(move || batch(&shared, 10));
        batch(&queue, 20);
        other.join().unwrap();
        let ids: Vec<_> = (0..4).map(|index| read(&consumer, index)).collect();
        assert!(ids == [10, 11, 20, 21] || ids == [20, 21, 10, 11], "{ids:?}");
    });
}

/// A thread that arms and then finds the queue empty is notified, and only once for one arming.
#[test]
fn arming_loses_no_wake_up() {
    loom::model(|| {
        let bell = Bell::new();
        let queue = CompletionQueue::new(1, 4, Some(bell.clone()));
        let token = queue.attach(None);
        let shared = Arc::clone(&queue);
        let pusher = thread::spawn(move || {
            shared.push(token, completion(0, 0), false).unwrap();
            shared.push(token, completion(1, 0), false).unwrap();
        });
        queue.req_notify(false);
        let mut polled = 0;
        while let Some(wr_id) = poll_one(&queue) {
            assert_eq!(wr_id, polled);
            polled += 1;
        }
        pusher.join().unwrap();
        assert!(bell.rung() <= 1);
        assert!(polled == 2 || bell.rung() == 1, "a completion came after the queue was found empty");
        assert_eq!(queue.len() as u64, 2 - polled);
    });
}

/// Armed for solicited completions, with two threads pushing: the solicited one notifies if it comes after arming, and
/// only once.
#[test]
fn solicited_arming_loses_no_wake_up() {
    loom::model(|| {
        let bell = Bell::new();
        let queue = CompletionQueue::new(1, 4, Some(bell.clone()));
        let token = queue.attach(None);
        let (pusher, armer) = (Arc::clone(&queue), Arc::clone(&queue));
        let pusher = thread::spawn(move || pusher.push(token, completion(0, 0), true).unwrap());
        let armer = thread::spawn(move || {
            armer.req_notify(true);
            armer.is_empty()
        });
        queue.push(token, completion(1, 0), false).unwrap();
        pusher.join().unwrap();
        let was_empty = armer.join().unwrap();
        assert!(bell.rung() <= 1);
        if was_empty {
            assert_eq!(bell.rung(), 1, "the solicited completion came after arming");
        }
    });
}

/// Two threads arm and two push: there are at most as many notifications as armings, and at least one if the queue was
/// empty after an arming.
#[test]
fn each_arming_notifies_at_most_once() {
    loom::model(|| {
        let bell = Bell::new();
        let queue = CompletionQueue::new(1, 4, Some(bell.clone()));
        let token = queue.attach(None);
        let (pusher, armer) = (Arc::clone(&queue), Arc::clone(&queue));
        let pusher = thread::spawn(move || pusher.push(token, completion(0, 0), false).unwrap());
        let armer = thread::spawn(move || {
            armer.req_notify(false);
            armer.is_empty()
        });
        queue.req_notify(true);
        queue.push(token, completion(1, 0), false).unwrap();
        pusher.join().unwrap();
        let was_empty = armer.join().unwrap();
        assert!(bell.rung() <= 2);
        assert!(!was_empty || bell.rung() >= 1);
    });
}

/// A source is detached while another thread polls and the endpoint pushes once more: its completions are polled at
/// most once, never afterwards, and the number of entries stays correct.
#[test]
fn detaching_meets_polling_and_pushing() {
    loom::model(|| {
        let queue = CompletionQueue::new(1, 4, None);
        let (token, other) = (queue.attach(None), queue.attach(None));
        queue.push(token, completion(0, 0), false).unwrap();
        queue.push(other, completion(9, 0), false).unwrap();
        let (pusher, poller) = (Arc::clone(&queue), Arc::clone(&queue));
        let pusher = thread::spawn(move || pusher.push(token, completion(1, 0), false).unwrap());
        let poller = thread::spawn(move || poll_one(&poller));
        queue.detach(token);
        assert!(queue.len() <= 1);
        pusher.join().unwrap();
        match poller.join().unwrap() {
            Some(0) => assert_eq!((poll_one(&queue), queue.len()), (Some(9), 0)),
            Some(9) => assert_eq!(queue.len(), 0),
            other => panic!("polled {other:?}"),
        }
    });
}

/// Two threads poll: each completion goes to one of them, and the slots that it frees are reused only after the
/// endpoint's reads.
#[test]
fn polling_releases_slots() {
    loom::model(|| {
        let send_queue = SendQueue::new(1, 1, 0);
        let mut consumer = send_queue.consumer().unwrap();
        let queue = CompletionQueue::new(1, 2, None);
        let token = queue.attach(Some(Arc::clone(&send_queue)));
        post(&send_queue, 0).unwrap();
        let pusher = Arc::clone(&queue);
        let endpoint = thread::spawn(move || {
            let wr_id = read(&consumer, 0);
            consumer.retire(1);
            pusher.push(token, completion(wr_id, 1), false).unwrap();
        });
        let shared = Arc::clone(&queue);
        let poller = thread::spawn(move || poll_one(&shared).is_some());
        let polled_here = poll_one(&queue).is_some();
        if polled_here {
            post(&send_queue, 1).unwrap();
        }
        let polled_there = poller.join().unwrap();
        endpoint.join().unwrap();
        assert!(!(polled_here && polled_there));
        assert_eq!(queue.len(), usize::from(!polled_here && !polled_there));
    });
}

/// A receive is posted while the queue pair goes to the error state: either the endpoint takes it then, or the posting
/// thread learns that it must notify the endpoint.
#[test]
fn a_receive_is_not_forgotten_when_flushing_begins() {
    loom::model(|| {
        let queue = ReceiveQueue::new(1, 1);
        let mut consumer = queue.consumer().unwrap();
        let endpoint = thread::spawn(move || {
            consumer.set_flushes(true);
            consumer.take(&mut Vec::new()).is_some()
        });
        queue.begin();
        queue.push(&ReceiveRequest { wr_id: 1, sges: &[] }).unwrap();
        assert_eq!(queue.end(BatchEnd::Publish), Ok(1));
        let flushes = queue.flushes();
        let taken = endpoint.join().unwrap();
        assert!(flushes || taken);
    });
}

/// The end of a period races with a push after an arming: in any order, a completion added after the arming is notified
/// once the period has ended after it.
#[test]
fn moderation_loses_no_wake_up() {
    loom::model(|| {
        let bell = Bell::new();
        let queue = CompletionQueue::new(1, 4, Some(bell.clone()));
        queue.moderate(2, Duration::from_secs(1));
        let token = queue.attach(None);
        queue.req_notify(false);
        let pusher = Arc::clone(&queue);
        let push = thread::spawn(move || pusher.push(token, completion(1, 0), false).unwrap());
        queue.end_moderation(0);
        push.join().unwrap();
        queue.end_moderation(0);
        assert_eq!(bell.rung(), 1);
    });
}
