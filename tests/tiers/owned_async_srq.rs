//! Shared receive queues as futures and streams: every future completes, however the queue pairs end.

use std::time::Duration;

use rdma_verbs::asynchronous::{
    AsyncEvents, CompletionQueue, QueuePair, QueuePairOptions, RequestError, SharedReceiveQueue,
};
use rdma_verbs::owned::BufferPool;
use rdma_verbs::verbs::{
    AsyncEvent, Cause, ErrorKind, QueuePairAttributes, QueuePairState, SharedReceiveQueueNumber, Success,
};
use tokio::runtime::Builder;
use tokio::time::timeout;

use super::owned_async::{End, connect, failure, give_up, on_both};

const PATIENCE: Duration = Duration::from_secs(30);

/// A shared queue of 16 on 127.90.12.`first`, and queue pairs that use it, each connected to one of the next address.
struct Sharing {
    senders: Vec<QueuePair>,
    receivers: Vec<QueuePair>,
    srq: SharedReceiveQueue,
    near: End,
    far: End,
}

impl Sharing {
    fn new(first: u8, count: usize) -> Self {
        let options = QueuePairOptions::default();
        let [near, far] = [first, first + 1].map(|host| End::open(&format!("127.90.12.{host}"), &options));
        let srq = SharedReceiveQueue::new(&near.pd, &near.cq, 16).unwrap();
        let mut sharing = Self { senders: Vec::new(), receivers: Vec::new(), srq, near, far };
        (0..count).for_each(|_| sharing.connect_one());
        sharing
    }

    fn connect_one(&mut self) {
        let options = QueuePairOptions::default().srq(&self.srq);
        let receiver = QueuePair::with_options(&self.near.pd, &self.near.cq, &options).unwrap();
        let sender = QueuePair::new(&self.far.pd, &self.far.cq).unwrap();
        connect(&sender, &receiver);
        self.receivers.push(receiver);
        self.senders.push(sender);
    }

    fn pool(&self) -> &BufferPool {
        &self.near.pool
    }

    async fn send(&self, peer: usize, bytes: &[u8]) {
        self.senders[peer].send(self.far.bytes(bytes)).await.0.unwrap();
    }
}

/// Waits until a condition holds; the caller's time limit ends it.
async fn until(condition: impl Fn() -> bool) {
    while !condition() {
        tokio::task::yield_now().await;
    }
}

#[test]
fn receives_serve_any_queue_pair_with_a_message() {
    on_both(|| async {
        let sharing = Sharing::new(1, 3);
        for peer in [2, 0, 1, 1] {
            let text = format!("from {peer}");
            let (received, ()) =
                tokio::join!(sharing.srq.recv(sharing.pool().take(64).unwrap()), sharing.send(peer, text.as_bytes()));
            assert_eq!(received.0.unwrap().qpn, sharing.receivers[peer].qpn());
            assert_eq!(*received.1, *text.as_bytes());
        }
        until(|| sharing.srq.buffers_in_flight() == 0).await;
        assert_eq!(sharing.near.outstanding(), 0);
        assert_ne!(sharing.srq.number(), SharedReceiveQueueNumber::default());
    });
}

#[test]
fn a_stream_has_the_messages_of_each_queue_pair_in_order() {
    on_both(|| async {
        const EACH: u64 = 100;
        let sharing = Sharing::new(3, 3);
        for depth in [0, 1 << 20] {
            assert!(sharing.srq.messages(sharing.pool(), 64, depth).is_err());
        }
        let mut messages = sharing.srq.messages(sharing.pool(), 64, 8).unwrap();
        let sending = async {
            let peer = async |peer: usize| {
                for number in 0..EACH {
                    sharing.send(peer, &number.to_ne_bytes()).await;
                }
            };
            tokio::join!(peer(0), peer(1), peer(2));
        };
        let receiving = async {
            let mut next = [0; 3];
            for _ in 0..3 * EACH {
                let message = messages.next().await.unwrap().unwrap();
                let from = |qp: &QueuePair| qp.qpn() == message.success.qpn;
                let peer = sharing.receivers.iter().position(from).unwrap();
                assert_eq!(message.buffer.to_u64(), Some(next[peer]), "of {peer}");
                next[peer] += 1;
            }
            assert_eq!(next, [EACH; 3]);
        };
        tokio::join!(sending, receiving);
        drop(messages);
        assert_eq!(sharing.srq.buffers_in_flight(), 8, "they are still posted");
    });
}

#[test]
fn receives_are_not_requested_from_the_queue_pair() {
    on_both(|| async {
        let sharing = Sharing::new(5, 1);
        let (refused, buffer) = sharing.receivers[0].recv(sharing.near.bytes(b"mine")).await;
        let Err(RequestError::Refused(error)) = refused else { panic!("{refused:?}") };
        assert!(error.kind() == ErrorKind::InvalidArgument && error.to_string().contains("shared receive queue"));
        assert_eq!(*buffer, *b"mine");
        let error = sharing.receivers[0].messages(sharing.pool(), 64, 4).unwrap_err();
        assert_eq!((error.verb(), error.kind()), ("messages", ErrorKind::InvalidArgument));
    });
}

#[test]
fn a_full_queue_makes_futures_wait_in_order_and_canceled_ones_leave_nothing() {
    on_both(|| async {
        let sharing = Sharing::new(7, 1);
        let srq = &sharing.srq;
        let room = srq.query().unwrap().max_wr as usize;
        let waiting: Vec<_> = (0..room)
            .map(|_| {
                let (srq, buffer) = (srq.clone(), sharing.pool().take(64).unwrap());
                tokio::spawn(async move { srq.recv(buffer).await })
            })
            .collect();
        until(|| srq.buffers_in_flight() == room).await;
        assert!(give_up(srq.recv(sharing.pool().take(64).unwrap()), 5).await.is_none());
        assert_eq!((srq.buffers_in_flight(), srq.abandoned()), (room, 0), "it was not posted");
        for number in 0..room {
            sharing.send(0, &[number as u8]).await;
        }
        for task in waiting {
            task.await.unwrap().0.unwrap();
        }

        assert!(give_up(srq.recv(sharing.pool().take(64).unwrap()), 1).await.is_none());
        assert_eq!((srq.buffers_in_flight(), srq.abandoned(), sharing.near.outstanding()), (1, 0, 1));
        sharing.send(0, b"no future waits").await;
        until(|| srq.abandoned() == 1).await;
        assert_eq!((srq.buffers_in_flight(), sharing.near.outstanding()), (0, 0));
    });
}

#[test]
fn receives_outlive_the_queue_pairs() {
    on_both(|| async {
        let mut sharing = Sharing::new(9, 2);
        let mut messages = sharing.srq.messages(sharing.pool(), 64, 4).unwrap();
        let error = QueuePairAttributes::default().qp_state(QueuePairState::Error);
        sharing.receivers[0].modify(&error).unwrap();
        sharing.send(1, b"the other goes on").await;
        assert_eq!(messages.next().await.unwrap().unwrap().payload(), b"the other goes on");
        let early = sharing.receivers[1].qpn();
        sharing.send(1, b"before the end").await;
        drop((sharing.receivers.remove(1), sharing.senders.remove(1)));
        let message = messages.next().await.unwrap().unwrap();
        assert_eq!((message.success.qpn, message.payload()), (early, &b"before the end"[..]));
        sharing.receivers[0].reset().unwrap();
        sharing.connect_one();
        sharing.send(1, b"the next one").await;
        assert_eq!(messages.next().await.unwrap().unwrap().success.qpn, sharing.receivers[1].qpn());
    });
}

#[test]
fn dropped_in_any_order_the_buffers_come_back() {
    on_both(|| async {
        for order in 0..3 {
            let Sharing { senders, receivers, srq, near, far } = Sharing::new(11, 2);
            let pool = near.pool.clone();
            drop(srq.messages(&pool, 64, 8).unwrap());
            assert_eq!(pool.stats().outstanding, 8);
            match order {
                0 => drop((srq, receivers, near)),
                1 => drop((near, srq, receivers)),
                _ => drop((receivers, srq, near)),
            }
            assert_eq!(pool.stats().outstanding, 0, "order {order}");
            drop((senders, far));
        }
    });
}

#[test]
fn the_limit_is_an_event() {
    on_both(|| async {
        let sharing = Sharing::new(13, 1);
        let mut events = AsyncEvents::new(&sharing.near.context).unwrap();
        assert_eq!(sharing.srq.arm_limit(17).unwrap_err().kind(), ErrorKind::InvalidArgument);
        sharing.srq.arm_limit(2).unwrap();
        let event = events.next_event().await.unwrap();
        assert_eq!(event, AsyncEvent::SharedReceiveQueueLimitReached(sharing.srq.number()));
    });
}

/// Ends the runtime of a shared queue, and returns the result of a receive that waits.
fn end_of_runtime(first: u8, before: impl FnOnce(&mut Sharing)) -> (Result<Success, RequestError>, Sharing) {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut sharing = runtime.block_on(async { Sharing::new(first, 2) });
    let (srq, buffer) = (sharing.srq.clone(), sharing.pool().take(64).unwrap());
    let mut waiting = Box::pin(async move { srq.recv(buffer).await });
    runtime.block_on(async { assert!(give_up(&mut waiting, 1).await.is_none()) });
    before(&mut sharing);
    drop(runtime);
    let other = Builder::new_current_thread().enable_all().build().unwrap();
    let (result, buffer) = other.block_on(async { timeout(PATIENCE, waiting).await.expect("a result in time") });
    assert!(buffer.is_empty());
    (result, sharing)
}

#[test]
fn when_the_runtime_ends_receives_fail() {
    let (result, sharing) = end_of_runtime(15, |_| {});
    assert_eq!(failure(result).cause, Cause::Destroyed);
    assert_eq!((sharing.near.outstanding(), sharing.srq.buffers_in_flight()), (0, 0));
    let other = Builder::new_current_thread().enable_all().build().unwrap();
    let (refused, _buffer) = other.block_on(sharing.srq.recv(sharing.near.bytes(b"too late")));
    assert!(matches!(refused, Err(RequestError::Refused(error)) if error.kind() == ErrorKind::InvalidState));
    let options = QueuePairOptions::default().srq(&sharing.srq);
    assert!(QueuePair::with_options(&sharing.near.pd, &sharing.near.cq, &options).is_err());
    let error = SharedReceiveQueue::new(&sharing.near.pd, &sharing.near.cq, 16).unwrap_err();
    assert!(error.to_string().contains("has ended"), "{error}");
}

/// A queue pair is dropped while the task ends: the last of the two destroys the queue.
#[test]
fn a_queue_pair_dropped_while_the_runtime_ends_leaves_no_receive_pending() {
    for round in 0..20 {
        let mut dropping = None;
        let (result, sharing) = end_of_runtime(17, |sharing| {
            let receivers = std::mem::take(&mut sharing.receivers);
            dropping = Some(std::thread::spawn(move || {
                std::thread::sleep(Duration::from_micros(50 * round));
                drop(receivers);
            }));
        });
        assert_eq!(failure(result).cause, Cause::Destroyed);
        dropping.unwrap().join().unwrap();
        assert_eq!(sharing.near.outstanding(), 0);
    }
}

#[test]
fn a_queue_pair_uses_the_completion_queue_of_its_shared_queue() {
    on_both(|| async {
        let sharing = Sharing::new(19, 0);
        let other = CompletionQueue::new(&sharing.near.context, 16).unwrap();
        let options = QueuePairOptions::default().srq(&sharing.srq);
        let error = QueuePair::with_options(&sharing.near.pd, &other, &options).unwrap_err();
        assert_eq!((error.kind(), error.attributes()[0].name()), (ErrorKind::InvalidArgument, "srq"));
    });
}

/// A stream that finds the queue full of other receives waits for a slot instead of ending.
#[test]
fn a_stream_waits_while_other_receives_fill_the_queue() {
    on_both(|| async {
        let sharing = Sharing::new(21, 1);
        let mut first = sharing.srq.messages(sharing.pool(), 64, 16).unwrap();
        let mut second = sharing.srq.messages(sharing.pool(), 64, 1).unwrap();
        assert!(timeout(Duration::from_millis(20), second.next()).await.is_err(), "it waits");
        for text in [&b"one"[..], b"two"] {
            sharing.senders[0].send(sharing.far.bytes(text)).await.0.unwrap();
        }
        assert_eq!(first.next().await.unwrap().unwrap().payload(), b"one");
        drop(first);
        // The abandoned receives of the first stream take the following messages.
        for _ in 0..14 {
            sharing.senders[0].send(sharing.far.bytes(b"more")).await.0.unwrap();
        }
        let last = sharing.senders[0].send(sharing.far.bytes(b"last"));
        let ((sent, _buffer), next) = tokio::join!(last, timeout(PATIENCE, second.next()));
        sent.unwrap();
        assert_eq!(next.expect("it has a slot").unwrap().unwrap().payload(), b"last");
    });
}
