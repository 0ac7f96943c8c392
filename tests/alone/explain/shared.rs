//! Shared receive queues, extended connections and memory windows.

use rdma_verbs::types::Counter;
use rdma_verbs::verbs::{
    AccessFlags, MemoryWindowBind, MemoryWindowType, Payload, QueuePairOptions, QueuePairType, SendRequest,
    SharedReceiveQueueNumber, SharedReceiveQueueOptions,
};

use super::world::{End, connect, hasty, pair};

/// Creates the receiving end of a connection whose peer retries forever.
fn waits_for_ever(left: &End, right: &End) {
    left.qp.connect_with(&right.info(), &hasty().rnr_retry(7)).unwrap();
    right.qp.connect_with(&left.info(), &hasty()).unwrap();
}

pub(crate) fn shared_queue_is_empty(case: u8) -> String {
    let (left, spare) = (End::open(case, 1), End::open(case, 2));
    let srq = spare.pd.create_srq(4, 1).unwrap();
    let qp = spare.pd.create_qp_with(&spare.cq, &spare.cq, &QueuePairOptions::default().srq(&srq)).unwrap();
    let right = spare.with_qp(qp);
    waits_for_ever(&left, &right);
    left.send();
    right.until(|right| right.qp.counters().get(Counter::SentRnr) > 0);
    right.qp.explain_state()
}

/// Creates an initiator and a target with a shared receive queue.
fn extended(case: u8) -> (End, End, rdma_verbs::verbs::SharedReceiveQueue) {
    let left = End::with_options(case, 1, &QueuePairOptions::default().qp_type(QueuePairType::XrcSend));
    let spare = End::open(case, 2);
    let domain = spare.context.open_xrcd().unwrap();
    let srq = spare.pd.create_srq_with(4, 1, &SharedReceiveQueueOptions::default().xrc(&domain, &spare.cq)).unwrap();
    let qp = spare.pd.create_qp_with(&spare.cq, &spare.cq, &QueuePairOptions::default().xrc_target(&domain)).unwrap();
    (left, spare.with_qp(qp), srq)
}

pub(crate) fn named_queue_is_empty(case: u8) -> String {
    let (left, right, srq) = extended(case);
    waits_for_ever(&left, &right);
    left.post(SendRequest::send(Payload::inline(b"hi")).remote_srq(srq.number()));
    right.until(|right| right.qp.counters().get(Counter::SentRnr) > 0);
    right.qp.explain_state()
}

pub(crate) fn unknown_queue_named(case: u8) -> String {
    let (left, right, srq) = extended(case);
    connect(&left, &right);
    let other = SharedReceiveQueueNumber::new(srq.number().value() ^ 1);
    left.post(SendRequest::send(Payload::inline(b"hi")).remote_srq(other));
    left.fails();
    right.why_event()
}

/// A type 2 window opens its range only to the peer of the queue pair that bound it.
pub(crate) fn window_of_another_queue_pair(case: u8) -> String {
    let (left, right) = pair(case);
    let region = right.pd.alloc_mr(64, AccessFlags::LOCAL_WRITE | AccessFlags::MEMORY_WINDOW_BIND).unwrap();
    let window = right.pd.alloc_mw(MemoryWindowType::Type2).unwrap();
    let binder = right.another();
    binder.connect(&binder.connection_info().unwrap()).unwrap();
    let bind = MemoryWindowBind::new(&region, AccessFlags::REMOTE_WRITE).signaled();
    binder.post_send(&[SendRequest::bind_mw(&window, 1, &bind).unwrap()]).unwrap();
    right.succeeds();
    left.post(SendRequest::write(Payload::inline(b"hello"), bind.remote(window.rkey_with(1))));
    left.fails();
    right.why_event()
}

pub(crate) fn window_bound_twice(case: u8) -> String {
    let (left, right) = pair(case);
    let region = right.pd.alloc_mr(64, AccessFlags::LOCAL_WRITE | AccessFlags::MEMORY_WINDOW_BIND).unwrap();
    let window = right.pd.alloc_mw(MemoryWindowType::Type2).unwrap();
    let bind = MemoryWindowBind::new(&region, AccessFlags::REMOTE_WRITE).signaled();
    right.qp.post_send(&[SendRequest::bind_mw(&window, 1, &bind).unwrap()]).unwrap();
    right.succeeds();
    right.qp.post_send(&[SendRequest::bind_mw(&window, 2, &bind).unwrap()]).unwrap();
    drop(left);
    right.why()
}
