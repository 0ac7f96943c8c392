//! Models of the shared receive queue for loom: several threads post, the endpoints of several shards take, while the
//! queue is resized, its limit is armed, and it is closed. `RUSTFLAGS="--cfg loom" cargo test --lib loom_shared`.
#![forbid(unsafe_code)]

use std::sync::Arc;

use loom::thread;

use super::{AsyncEventQueue, ChangeError, NotTaken, QueueError, SharedReceiveInit, SharedReceiveQueue};
use crate::types::{AsyncEvent, BatchEnd, DomainId, ReceiveRequest, Sge, SharedReceiveQueueNumber};

const NUMBER: SharedReceiveQueueNumber = SharedReceiveQueueNumber::new(7);

fn queue(max_wr: u32, srq_limit: u32) -> (Arc<SharedReceiveQueue>, Arc<AsyncEventQueue>) {
    let events = AsyncEventQueue::new(4, None);
    let init = SharedReceiveInit {
        number: NUMBER,
        domain: DomainId(1),
        max_wr,
        max_sge: 1,
        srq_limit,
        events: Arc::clone(&events),
        completions: None,
    };
    (SharedReceiveQueue::new(init), events)
}

/// Posts one request that carries its number twice, and has as many bytes of room.
fn post(queue: &SharedReceiveQueue, wr_id: u64) -> Result<(), QueueError> {
    queue.begin();
    let sge = Sge { addr: wr_id, length: wr_id as u32, ..Sge::default() };
    let pushed = queue.push(&ReceiveRequest { wr_id, sges: &[sge] });
    queue.end(BatchEnd::Publish).unwrap();
    pushed
}

/// Takes a request whose parts belong together.
fn take(queue: &SharedReceiveQueue) -> Option<u64> {
    take_with_room(queue, 0).ok()
}

fn take_with_room(queue: &SharedReceiveQueue, needed: u64) -> Result<u64, NotTaken> {
    let mut sges = Vec::with_capacity(1);
    let (wr_id, _) = queue.take_with_room(needed, &mut sges)?;
    assert_eq!((sges.len(), sges[0].addr), (1, wr_id), "the entries of another request");
    Ok(wr_id)
}

/// Takes everything that is left.
fn drain(queue: &SharedReceiveQueue) -> Vec<u64> {
    let left = std::iter::from_fn(|| take(queue)).collect();
    assert_eq!(queue.available(), 0);
    left
}

fn limit_events(events: &AsyncEventQueue) -> usize {
    let all: Vec<_> = std::iter::from_fn(|| events.poll()).collect();
    assert!(all.iter().all(|event| *event == AsyncEvent::SharedReceiveQueueLimitReached(NUMBER)), "{all:?}");
    all.len()
}

/// Asserts that all were found, each once.
fn each_once(mut found: Vec<u64>, expected: &[u64]) {
    found.sort_unstable();
    assert_eq!(found, expected);
}

/// Two threads post and two queue pairs take: every request goes to exactly one of them.
#[test]
fn every_request_is_taken_once() {
    loom::model(|| {
        let (queue, _) = queue(2, 0);
        let (poster, taker) = (Arc::clone(&queue), Arc::clone(&queue));
        let poster = thread::spawn(move || post(&poster, 1).unwrap());
        let taker = thread::spawn(move || take(&taker));
        post(&queue, 2).unwrap();
        let mut found: Vec<u64> = take(&queue).into_iter().collect();
        poster.join().unwrap();
        found.extend(taker.join().unwrap());
        found.extend(drain(&queue));
        each_once(found, &[1, 2]);
    });
}

/// A full queue: a slot is free once its request is taken, and not before.
#[test]
fn a_slot_is_used_again_after_it_was_read() {
    loom::model(|| {
        let (queue, _) = queue(1, 0);
        post(&queue, 1).unwrap();
        let taker = Arc::clone(&queue);
        let taker = thread::spawn(move || [take(&taker), take(&taker)]);
        let posted = post(&queue, 2);
        let [first, second] = taker.join().unwrap();
        assert_eq!(first, Some(1));
        let left = drain(&queue);
        match posted {
            Ok(()) => each_once(second.into_iter().chain(left).collect(), &[2]),
            Err(error) => assert_eq!((error, second, left), (QueueError::Full { limit: 1 }, None, Vec::new())),
        }
    });
}

/// A request that is seen waiting may be taken by another thread first; one published before is seen.
#[test]
fn published_request_is_seen() {
    loom::model(|| {
        let (queue, _) = queue(2, 0);
        post(&queue, 1).unwrap();
        let other = Arc::clone(&queue);
        let other = thread::spawn(move || (other.available() > 0, take(&other)));
        let taken = take(&queue);
        let (seen, found) = other.join().unwrap();
        assert!(seen || taken == Some(1), "it was there and not yet taken");
        each_once(taken.into_iter().chain(found).collect(), &[1]);
    });
}

/// A discarded batch never reaches a queue pair, not even in part.
#[test]
fn a_batch_that_is_dropped_is_never_taken() {
    loom::model(|| {
        let (queue, _) = queue(2, 0);
        let taker = Arc::clone(&queue);
        let taker = thread::spawn(move || take(&taker));
        queue.begin();
        queue.push(&ReceiveRequest { wr_id: 9, sges: &[Sge::default()] }).unwrap();
        assert_eq!(queue.end(BatchEnd::Rollback), Ok(0));
        post(&queue, 1).unwrap();
        let found = taker.join().unwrap().into_iter().chain(drain(&queue)).collect();
        each_once(found, &[1]);
    });
}

/// The queue is resized while one thread posts and a queue pair takes: waiting requests move along, in order.
#[test]
fn resizing_loses_nothing() {
    loom::model(|| {
        let (queue, _) = queue(2, 0);
        post(&queue, 1).unwrap();
        let (poster, taker) = (Arc::clone(&queue), Arc::clone(&queue));
        let poster = thread::spawn(move || post(&poster, 2).is_ok());
        let taker = thread::spawn(move || take(&taker));
        let resized = queue.resize(1, None);
        let is_posted = poster.join().unwrap();
        let mut found: Vec<u64> = taker.join().unwrap().into_iter().collect();
        assert!(found.is_empty() || found == [1], "taken out of order: {found:?}");
        match resized {
            Ok(()) => assert_eq!(queue.status().max_wr, 1),
            Err(error) => assert_eq!(error, ChangeError::TooSmall { requested: 1, waiting: 2 }),
        }
        assert!(is_posted || resized.is_ok(), "there was room before");
        found.extend(drain(&queue));
        each_once(found, if is_posted { &[1, 2] } else { &[1] });
    });
}

/// Two queue pairs take requests across the limit. The event is raised once, whichever takes first.
#[test]
fn the_limit_is_announced_once() {
    loom::model(|| {
        let (queue, events) = queue(2, 2);
        post(&queue, 1).unwrap();
        post(&queue, 2).unwrap();
        let taker = Arc::clone(&queue);
        let taker = thread::spawn(move || take(&taker));
        let found = take(&queue).into_iter().chain(taker.join().unwrap()).collect();
        each_once(found, &[1, 2]);
        assert_eq!(limit_events(&events), 1);
        assert_eq!(queue.status().srq_limit, 0);
    });
}

/// The limit is armed while the last request is taken: either arming or taking finds it reached, and not both.
#[test]
fn arming_misses_no_limit() {
    loom::model(|| {
        let (queue, events) = queue(2, 0);
        post(&queue, 1).unwrap();
        let (taker, armer) = (Arc::clone(&queue), Arc::clone(&queue));
        let taker = thread::spawn(move || take(&taker));
        let armer = thread::spawn(move || armer.arm(1).unwrap());
        assert_eq!(queue.resize(1, None), Ok(()));
        assert_eq!(taker.join().unwrap(), Some(1));
        armer.join().unwrap();
        assert_eq!(limit_events(&events), 1);
    });
}

/// Each arming raises at most one event, and the last one certainly does, because the queue is empty in the end.
#[test]
fn armed_again_while_taken() {
    loom::model(|| {
        let (queue, events) = queue(2, 1);
        post(&queue, 1).unwrap();
        let taker = Arc::clone(&queue);
        let taker = thread::spawn(move || take(&taker));
        queue.arm(1).unwrap();
        assert_eq!(taker.join().unwrap(), Some(1));
        assert!((1..=2).contains(&limit_events(&events)));
        assert_eq!(queue.status().srq_limit, 0);
        assert_eq!(take(&queue), None);
        assert_eq!(limit_events(&events), 0);
    });
}

/// The queue is closed while one thread posts and a queue pair takes: nothing is taken afterwards, whatever was posted.
#[test]
fn closed_queue_gives_no_request() {
    loom::model(|| {
        let (queue, events) = queue(2, 0);
        post(&queue, 1).unwrap();
        let (poster, taker) = (Arc::clone(&queue), Arc::clone(&queue));
        let poster = thread::spawn(move || post(&poster, 2).unwrap());
        let taker = thread::spawn(move || take(&taker));
        queue.close();
        assert_eq!((take(&queue), queue.available()), (None, 0));
        poster.join().unwrap();
        assert!(matches!(taker.join().unwrap(), None | Some(1)));
        assert_eq!((take(&queue), queue.available(), queue.is_closed()), (None, 0, true));
        assert_eq!(limit_events(&events), 0);
    });
}

/// A datagram that needs more room than the oldest request has does not take it; checking and taking are one step.
#[test]
fn datagram_takes_a_request_with_enough_room() {
    loom::model(|| {
        let (queue, _) = queue(2, 0);
        post(&queue, 1).unwrap();
        post(&queue, 2).unwrap();
        let other = Arc::clone(&queue);
        let other = thread::spawn(move || take(&other));
        let taken = take_with_room(&queue, 2);
        assert_eq!(other.join().unwrap(), Some(1));
        match taken {
            Ok(wr_id) => assert_eq!((wr_id, drain(&queue)), (2, Vec::new())),
            Err(error) => assert_eq!((error, drain(&queue)), (NotTaken::TooSmall, vec![2])),
        }
    });
}
