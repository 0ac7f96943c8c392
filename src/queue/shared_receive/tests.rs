use super::*;

fn queue(max_wr: u32, max_sge: u32, srq_limit: u32) -> (Arc<SharedReceiveQueue>, Arc<AsyncEventQueue>) {
    let events = AsyncEventQueue::new(16, None);
    let init = SharedReceiveInit {
        number: SharedReceiveQueueNumber::new(7),
        domain: DomainId(1),
        max_wr,
        max_sge,
        srq_limit,
        events: Arc::clone(&events),
        completions: None,
    };
    (SharedReceiveQueue::new(init), events)
}

fn entry(addr: u64) -> Sge {
    Sge { addr, length: 1, ..Sge::default() }
}

fn post(queue: &SharedReceiveQueue, wr_id: u64) -> Result<(), QueueError> {
    queue.begin();
    let pushed = queue.push(&ReceiveRequest { wr_id, sges: &[entry(wr_id)] });
    queue.end(BatchEnd::Publish).unwrap();
    pushed
}

/// Takes a request and checks that its parts belong together.
fn take(queue: &SharedReceiveQueue) -> Option<(u64, u32)> {
    let mut sges = vec![Sge::default(); 3];
    let taken = queue.take(&mut sges)?;
    assert_eq!(sges, [entry(taken.0)]);
    Some(taken)
}

const REACHED: AsyncEvent = AsyncEvent::SharedReceiveQueueLimitReached(SharedReceiveQueueNumber::new(7));

#[test]
fn requests_are_taken_in_order_and_free_their_slots() {
    let (queue, _) = queue(3, 2, 0);
    assert_eq!(take(&queue), None);
    (0..3).for_each(|wr_id| post(&queue, wr_id).unwrap());
    assert_eq!(post(&queue, 3), Err(QueueError::Full { limit: 3 }));
    for round in 0..10 {
        assert_eq!(queue.available(), 3);
        assert_eq!(take(&queue), Some((round, round as u32)));
        post(&queue, round + 3).unwrap();
    }
}

#[test]
fn errors_in_order_and_rollback() {
    let (queue, _) = queue(1, 1, 0);
    let two = [Sge::default(); 2];
    assert_eq!(queue.push(&ReceiveRequest { wr_id: 1, sges: &two }), Err(QueueError::NotBegun));
    assert_eq!(queue.end(BatchEnd::Publish), Err(QueueError::NotBegun));
    queue.begin();
    queue.push(&ReceiveRequest { wr_id: 1, sges: &[] }).unwrap();
    let pushed = queue.push(&ReceiveRequest { wr_id: 2, sges: &two });
    assert_eq!(pushed, Err(QueueError::TooManySges { given: 2, limit: 1 }));
    assert_eq!(queue.available(), 0, "nothing is visible before the end");
    assert_eq!(queue.end(BatchEnd::Rollback), Ok(0));
    assert_eq!(take(&queue), None);
    post(&queue, 5).unwrap();
    assert_eq!(take(&queue), Some((5, 0)), "what was rolled back has no number");
}

#[test]
fn limit_event_comes_once_an_arming() {
    let (queue, events) = queue(4, 1, 2);
    (0..3).for_each(|wr_id| post(&queue, wr_id).unwrap());
    take(&queue);
    assert!(events.is_empty(), "two wait, as many as the limit");
    take(&queue);
    assert_eq!((events.poll(), queue.status().srq_limit), (Some(REACHED), 0));
    take(&queue);
    assert!(events.is_empty(), "it is not armed any more");
    queue.arm(1).unwrap();
    assert_eq!(events.poll(), Some(REACHED), "none waits: at once");
    assert_eq!(queue.arm(5), Err(ChangeError::LimitTooLarge { limit: 5, max_wr: 4 }));
    post(&queue, 9).unwrap();
    queue.arm(1).unwrap();
    queue.arm(0).unwrap();
    take(&queue);
    assert!(events.is_empty(), "it was disarmed");
}

#[test]
fn resize_keeps_queued_requests() {
    let (queue, _) = queue(3, 1, 0);
    (0..3).for_each(|wr_id| post(&queue, wr_id).unwrap());
    assert_eq!(take(&queue), Some((0, 0)));
    post(&queue, 3).unwrap();
    assert_eq!(queue.resize(2, None), Err(ChangeError::TooSmall { requested: 2, waiting: 3 }));
    queue.resize(5, Some(2)).unwrap();
    assert_eq!(queue.resize(3, Some(4)), Err(ChangeError::LimitTooLarge { limit: 4, max_wr: 3 }));
    assert_eq!(queue.status(), SharedReceiveQueueStatus { max_wr: 5, max_sge: 1, srq_limit: 2 });
    (4..6).for_each(|wr_id| post(&queue, wr_id).unwrap());
    assert_eq!(post(&queue, 6), Err(QueueError::Full { limit: 5 }));
    for wr_id in 1..6 {
        assert_eq!(take(&queue), Some((wr_id, wr_id as u32)));
    }
    queue.resize(1, None).unwrap();
    post(&queue, 7).unwrap();
    assert_eq!((post(&queue, 8), take(&queue)), (Err(QueueError::Full { limit: 1 }), Some((7, 6))));
    queue.begin();
    assert_eq!(queue.resize(4, None), Err(ChangeError::BatchOpen));
    queue.end(BatchEnd::Rollback).unwrap();
}

#[test]
fn closed_queue_gives_no_request() {
    let (queue, _) = queue(2, 1, 0);
    post(&queue, 1).unwrap();
    queue.close();
    assert_eq!((take(&queue), queue.available(), queue.is_closed()), (None, 0, true));
}

/// Two threads post and four take: each request is taken once, and each taker sees each poster's requests in ascending
/// order.
#[test]
fn every_request_is_taken_once() {
    const EACH: u64 = 5_000;
    let (queue, _) = queue(16, 1, 0);
    let count = AtomicU32::new(0);
    let taken = std::thread::scope(|scope| {
        for poster in 0..2 {
            let queue = &queue;
            scope.spawn(move || {
                for number in 0..EACH {
                    while post(queue, poster * EACH + number).is_err() {
                        std::thread::yield_now();
                    }
                }
            });
        }
        let taker = || {
            let mut mine = Vec::new();
            while count.load(Acquire) < 2 * EACH as u32 {
                match take(&queue) {
                    Some((wr_id, _)) => {
                        count.fetch_add(1, Release);
                        mine.push(wr_id);
                    }
                    None => std::thread::yield_now(),
                }
            }
            mine
        };
        let takers: Vec<_> = (0..4).map(|_| scope.spawn(taker)).collect();
        takers.into_iter().map(|taker| taker.join().unwrap()).collect::<Vec<_>>()
    });
    for mine in &taken {
        for poster in 0..2 {
            assert!(mine.iter().filter(|wr_id| **wr_id / EACH == poster).is_sorted());
        }
    }
    let mut all = taken.concat();
    all.sort_unstable();
    assert!(all.into_iter().eq(0..2 * EACH));
}
