//! Forged completions from other users of a completion queue.
//!
//! No safe program outside this crate can create a queue pair on a completion queue of this tier. These tests can, and
//! show that this gains nothing: completions of another queue pair return no memory, whatever their `wr_id`.
#![forbid(unsafe_code)]

use std::time::Duration;

use super::{BufferPool, CompletionQueue, Finished, QueuePair, QueuePairOptions, Request, SharedReceiveQueue};
use crate::verbs::{self, Completion, Context, Payload, ProtectionDomain, ReceiveRequest, RegionList, SendRequest};

const PATIENCE: Duration = Duration::from_secs(60);

/// Every number that a request of this tier might have: slots with different upper halves.
fn numbers() -> Vec<u64> {
    let halves = [0, 1, 2, 3, 1 << 31, u64::from(u32::MAX)];
    halves.into_iter().flat_map(|half| [0, 1].map(|slot| half << 32 | slot)).collect()
}

struct World {
    context: Context,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    pool: BufferPool,
}

impl World {
    fn open(host: u8) -> Self {
        let context = verbs::open(&format!("soft:127.90.9.{host}")).unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = CompletionQueue::new(&context, 256).unwrap();
        let pool = BufferPool::new(&pd, 1 << 20).unwrap();
        Self { context, pd, cq, pool }
    }

    /// A queue pair of this tier that is connected to itself.
    fn queue_pair(&self) -> QueuePair {
        let qp = QueuePair::new(&self.pd, &self.cq, &self.cq).unwrap();
        qp.connect(&qp.connection_info().unwrap()).unwrap();
        qp
    }

    /// Completes receives with all numbers on the completion queue, then sends. Returns the requests that this
    /// finished.
    fn forge(&self) -> Vec<Finished> {
        let own = self.context.create_cq(256).unwrap();
        let options = verbs::QueuePairOptions::default().max_send_wr(16).max_recv_wr(64);
        let [receives, sends] = [(&own, self.cq.queue()), (self.cq.queue(), &own)].map(|(send_cq, recv_cq)| {
            let qp = self.pd.create_qp_with(send_cq, recv_cq, &options).unwrap();
            qp.connect(&qp.connection_info().unwrap()).unwrap();
            qp
        });
        for wr_id in numbers() {
            receives.post_recv(&[ReceiveRequest::new(RegionList::EMPTY).wr_id(wr_id)]).unwrap();
            receives.post_send(&[SendRequest::send(Payload::EMPTY).signaled()]).unwrap();
        }
        // A message that is acknowledged has completed its receive.
        let mut completions = [Completion::default(); 64];
        let mut acknowledged = 0;
        while acknowledged < numbers().len() {
            acknowledged += own.poll(&mut completions).unwrap();
        }
        let mut given = Vec::new();
        while let Some(finished) = self.cq.poll().unwrap() {
            given.push(finished);
        }
        let empty = vec![ReceiveRequest::new(RegionList::EMPTY); 64];
        sends.post_recv(&empty).unwrap();
        let room = sends.cap().max_send_wr as usize;
        let forged = |wr_id| SendRequest::send(Payload::EMPTY).wr_id(wr_id).signaled();
        let forged: Vec<_> = numbers().into_iter().cycle().take(room).map(forged).collect();
        sends.post_send(&forged).unwrap();
        // The slots of sends are free again when their completions have been polled.
        while sends.post_send(&forged).is_err() {
            given.extend(self.cq.poll().unwrap());
        }
        given
    }
}

#[test]
fn completions_of_other_queue_pairs_give_no_buffer_back() {
    let world = World::open(1);
    let qp = world.queue_pair();
    for wr_id in [1, 2] {
        qp.post_recv(world.pool.take(64).unwrap(), wr_id).unwrap();
    }
    let given = world.forge();
    assert!(given.is_empty(), "forged completions gave {given:?} back");
    assert_eq!(qp.buffers_in_flight(), (0, 2));
    // The device still writes to them.
    qp.post_send(Request::send(world.pool.copy_from(b"genuine").unwrap())).unwrap();
    let received = world.cq.wait(PATIENCE).unwrap();
    assert_eq!((received.wr_id(), qp.buffers_in_flight()), (1, (1, 1)));
    assert_eq!(*received.into_buffer().unwrap(), *b"genuine");
}

#[test]
fn completions_of_other_queue_pairs_finish_no_send() {
    let world = World::open(2);
    let qp = world.queue_pair();
    // Without a receive it waits, and is retransmitted from its buffer.
    qp.post_send(Request::send(world.pool.copy_from(b"waits").unwrap()).wr_id(3).signaled()).unwrap();
    let given = world.forge();
    assert!(given.is_empty(), "forged completions gave {given:?} back");
    assert_eq!(qp.buffers_in_flight(), (1, 0));
    qp.post_recv(world.pool.take(64).unwrap(), 4).unwrap();
    let mut finished = [world.cq.wait(PATIENCE).unwrap(), world.cq.wait(PATIENCE).unwrap()];
    finished.sort_by_key(Finished::wr_id);
    let [sent, received] = finished;
    assert_eq!((sent.wr_id(), received.wr_id()), (3, 4));
    assert_eq!(*received.into_buffer().unwrap(), *b"waits");
}

#[test]
fn completions_of_other_queue_pairs_take_nothing_from_a_shared_queue() {
    let world = World::open(3);
    let srq = SharedReceiveQueue::new(&world.pd, 4).unwrap();
    let qp = QueuePair::with_options(&world.pd, &world.cq, &world.cq, &QueuePairOptions::default().srq(&srq)).unwrap();
    qp.connect(&qp.connection_info().unwrap()).unwrap();
    for wr_id in [1, 2] {
        srq.post_recv(world.pool.take(64).unwrap(), wr_id).unwrap();
    }
    let given = world.forge();
    assert!(given.is_empty(), "forged completions gave {given:?} back");
    assert_eq!(srq.buffers_in_flight(), 2);
    qp.post_send(Request::send(world.pool.copy_from(b"genuine").unwrap())).unwrap();
    let received = world.cq.wait(PATIENCE).unwrap();
    assert_eq!((received.wr_id(), srq.buffers_in_flight()), (1, 1));
    assert_eq!(*received.into_buffer().unwrap(), *b"genuine");
    drop(qp);
    assert_eq!(srq.destroy().unwrap().len(), 1);
}

/// A shared queue's completions outlive the queue pair that added them, whose slot may belong to another by then.
#[test]
fn kept_completions_belong_to_the_shared_queue_that_they_came_from() {
    let world = World::open(4);
    let srq = SharedReceiveQueue::new(&world.pd, 4).unwrap();
    let sent = CompletionQueue::new(&world.context, 4).unwrap();
    let first = QueuePair::with_options(&world.pd, &sent, &world.cq, &QueuePairOptions::default().srq(&srq)).unwrap();
    first.connect(&first.connection_info().unwrap()).unwrap();
    srq.post_recv(world.pool.take(64).unwrap(), 1).unwrap();
    first.post_send(Request::send(world.pool.copy_from(b"early").unwrap()).signaled()).unwrap();
    // A message that is acknowledged has completed its receive.
    sent.wait(PATIENCE).unwrap();
    drop(first);
    let second = world.queue_pair();
    second.post_recv(world.pool.take(64).unwrap(), 2).unwrap();
    let received = world.cq.wait(PATIENCE).unwrap();
    assert_eq!((received.wr_id(), second.buffers_in_flight()), (1, (0, 1)));
    assert_eq!(*received.into_buffer().unwrap(), *b"early");
}
