//! Shared receive queues: flushing and purging when a queue pair, a queue or a handle ends.

use std::collections::HashSet;
use std::thread;

use rdma_verbs::verbs::{
    AsyncEvent, CompletionOpcode, ConnectOptions, ErrorKind, Payload, Qpn, QueuePairAttributes, QueuePairOptions,
    QueuePairState, ReceiveRequest, SendRequest,
};

use super::deviations::NOTHING_PURGED;
use super::end::{next, refused, silent};
use super::sharing::{MAX_SRQ, ROOM, Sharing, connect};
use super::suite::Scenario;
use super::world::World;

const fn scenario(name: &'static str, clause: &'static str, run: fn(&World)) -> Scenario {
    Scenario { name, clause, needs: &[MAX_SRQ], run }
}

pub(crate) const SCENARIOS: &[Scenario] = &[
    scenario("srq/error/receives_stay", "rdma-core: ERR flushes no SRQ entries", receives_stay),
    scenario(
        "srq/error/last_wqe_reached",
        "ibv_get_async_event(3) IBV_EVENT_QP_LAST_WQE_REACHED; rdma-core",
        last_wqe_reached,
    ),
    scenario(
        "srq/error/last_wqe_only_when_shared",
        "ibv_get_async_event(3) IBV_EVENT_QP_LAST_WQE_REACHED",
        only_when_shared,
    ),
    scenario("srq/error/last_wqe_after_failure", "ibv_get_async_event(3) IBV_EVENT_QP_LAST_WQE_REACHED", after_failure),
    scenario(
        "srq/error/last_wqe_again_after_reset",
        "ibv_get_async_event(3) IBV_EVENT_QP_LAST_WQE_REACHED",
        again_after_reset,
    ),
    scenario("srq/error/sends_are_flushed", "rdma-core: ERR completes all posted sends", sends_are_flushed),
    scenario("srq/reset/receives_stay", "IBTA chapter Shared Receive Queue", reset_keeps_receives),
    scenario("srq/reset/purges_completions", "rdma-core: RESET purges the CQEs", reset_purges),
    scenario("srq/reset/reconnected", "rdma-core: reusable in full", reconnected),
    scenario("srq/destroy/queue_pair_goes_receives_stay", "IBTA chapter Shared Receive Queue", queue_pair_goes),
    scenario("srq/destroy/purges_completions", "rdma-core: ibv_destroy_qp purges", destroy_purges),
    scenario("srq/destroy/event_of_queue_pair_gone", "rdma-core: queued events are discarded", event_gone),
    scenario("srq/destroy/handle_goes_queue_stays", "rdma-core: object dependencies", handle_goes),
    scenario("srq/destroy/posted_receives_are_forgotten", "ibv_destroy_srq(3)", forgotten),
    scenario("srq/destroy/limit_event_gone", "rdma-core: queued events are discarded", limit_event_gone),
    scenario("srq/threads/two_post_two_poll", "rdma-core: all verbs are thread-safe", two_post_two_poll),
    scenario("srq/threads/resize_while_used", "ibv_modify_srq(3); rdma-core", resize_while_used),
];

fn to(state: QueuePairState) -> QueuePairAttributes {
    QueuePairAttributes::default().qp_state(state)
}

fn receives_stay(world: &World) {
    let sharing = Sharing::new(world, 2);
    sharing.post([1, 2]);
    sharing.receivers[0].modify(&to(QueuePairState::Error)).unwrap();
    silent(&sharing.cq);
    for wr_id in [1, 2] {
        sharing.send(1, b"for the other");
        sharing.received(wr_id, 1, b"for the other");
    }
}

fn last_wqe_reached(world: &World) {
    let sharing = Sharing::new(world, 2);
    sharing.no_event();
    sharing.receivers[1].modify(&to(QueuePairState::Error)).unwrap();
    sharing.last_event(sharing.receivers[1].qpn());
    sharing.receivers[1].modify(&to(QueuePairState::Error)).unwrap();
    sharing.no_event_after(sharing.receivers[1].qpn());
}

fn only_when_shared(world: &World) {
    let sharing = Sharing::new(world, 0);
    let own = sharing.pd.create_qp(&sharing.cq, &sharing.cq).unwrap();
    own.connect(&own.connection_info().unwrap()).unwrap();
    own.modify(&to(QueuePairState::Error)).unwrap();
    sharing.no_event();
}

fn after_failure(world: &World) {
    let sharing = Sharing::new(world, 1);
    sharing.srq.post_recv(&[ReceiveRequest::new(sharing.inbox.slice(..2).unwrap()).wr_id(4)]).unwrap();
    sharing.send(0, b"too long");
    let qpn = sharing.receivers[0].qpn();
    sharing.failure_event(AsyncEvent::QueuePairRequestError(qpn));
    sharing.last_event(qpn);
    // The event implies that the last completion is in the queue.
    let mut out = [rdma_verbs::verbs::Completion::default(); 2];
    assert_eq!(sharing.cq.poll(&mut out).unwrap(), 1);
    assert_eq!((out[0].wr_id(), out[0].qpn()), (4, qpn));
    sharing.no_event_after(qpn);
}

fn again_after_reset(world: &World) {
    let sharing = Sharing::new(world, 1);
    let qp = &sharing.receivers[0];
    for _ in 0..2 {
        qp.modify(&to(QueuePairState::Error)).unwrap();
        sharing.last_event(qp.qpn());
        sharing.no_event_after(qp.qpn());
        qp.reset().unwrap();
        qp.init().unwrap();
    }
    sharing.no_event();
}

fn sends_are_flushed(world: &World) {
    let sharing = Sharing::new(world, 1);
    sharing.post([1]);
    let qp = &sharing.receivers[0];
    qp.modify(&to(QueuePairState::Error)).unwrap();
    qp.post_send(&[SendRequest::send(Payload::inline(b"never")).wr_id(7)]).unwrap();
    let error = next(&sharing.cq).result().unwrap_err();
    assert_eq!((error.wr_id, error.status), (7, rdma_verbs::verbs::CompletionStatus::WorkRequestFlushedError));
    silent(&sharing.cq);
}

fn reset_keeps_receives(world: &World) {
    let sharing = Sharing::new(world, 2);
    sharing.post([1, 2]);
    sharing.receivers[0].reset().unwrap();
    silent(&sharing.cq);
    for wr_id in [1, 2] {
        sharing.send(1, b"still there");
        sharing.received(wr_id, 1, b"still there");
    }
}

/// Checks that the unpolled completion of receive 1 by this queue pair is gone.
#[track_caller]
fn purged(sharing: &Sharing, qpn: Qpn) {
    if NOTHING_PURGED.holds() {
        let left = next(&sharing.cq);
        assert_eq!((left.wr_id(), left.qpn(), left.is_success()), (1, qpn, true), "{left:?}");
    }
    silent(&sharing.cq);
}

fn reset_purges(world: &World) {
    let sharing = Sharing::new(world, 2);
    sharing.post([1, 2]);
    sharing.senders[0].post_send(&[SendRequest::send(Payload::inline(b"a")).wr_id(9).signaled()]).unwrap();
    assert_eq!(next(&sharing.sender_cq).wr_id(), 9);
    sharing.receivers[0].reset().unwrap();
    purged(&sharing, sharing.receivers[0].qpn());
    sharing.send(1, b"b");
    sharing.received(2, 1, b"b");
    silent(&sharing.cq);
}

fn reconnected(world: &World) {
    let sharing = Sharing::new(world, 1);
    sharing.works(0, 1);
    sharing.post([2]);
    sharing.receivers[0].reset().unwrap();
    sharing.senders[0].reset().unwrap();
    connect(&sharing.receivers[0], &sharing.senders[0], &ConnectOptions::default());
    sharing.send(0, b"again");
    sharing.received(2, 0, b"again");
}

fn queue_pair_goes(world: &World) {
    let mut sharing = Sharing::new(world, 2);
    sharing.post([1]);
    drop(sharing.receivers.remove(0));
    sharing.senders.remove(0);
    silent(&sharing.cq);
    sharing.send(0, b"inherited");
    sharing.received(1, 0, b"inherited");
}

fn destroy_purges(world: &World) {
    let mut sharing = Sharing::new(world, 2);
    sharing.post([1, 2]);
    sharing.senders[0].post_send(&[SendRequest::send(Payload::inline(b"a")).wr_id(9).signaled()]).unwrap();
    assert_eq!(next(&sharing.sender_cq).wr_id(), 9);
    let gone = sharing.receivers.remove(0).qpn();
    sharing.senders.remove(0);
    purged(&sharing, gone);
    sharing.send(0, b"b");
    sharing.received(2, 0, b"b");
    silent(&sharing.cq);
}

fn event_gone(world: &World) {
    let mut sharing = Sharing::new(world, 1);
    sharing.receivers[0].modify(&to(QueuePairState::Error)).unwrap();
    drop(sharing.receivers.remove(0));
    sharing.no_event();
}

fn handle_goes(world: &World) {
    let context = world.device(0);
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
    let inbox = pd.alloc_mr(64, super::end::ALL_ACCESS).unwrap();
    let srq = pd.create_srq(4, 1).unwrap();
    srq.post_recv(&[ReceiveRequest::new(&inbox).wr_id(6)]).unwrap();
    let qp = pd.create_qp_with(&cq, &cq, &QueuePairOptions::default().srq(&srq)).unwrap();
    drop(srq);
    drop(pd);
    qp.connect(&qp.connection_info().unwrap()).unwrap();
    qp.post_send(&[SendRequest::send(Payload::inline(b"kept alive"))]).unwrap();
    let completion = next(&cq);
    assert_eq!((completion.wr_id(), completion.result().unwrap().byte_len), (6, 10));
    assert_eq!(inbox.to_vec(..10).unwrap(), b"kept alive");
}

fn forgotten(world: &World) {
    let mut sharing = Sharing::new(world, 1);
    sharing.post([1]);
    sharing.receivers.clear();
    let fresh = sharing.pd.create_srq(2, 1).unwrap();
    drop(std::mem::replace(&mut sharing.srq, fresh));
    silent(&sharing.cq);
    sharing.senders.clear();
    sharing.connect_one(&ConnectOptions::default());
    sharing.send(0, b"new queue");
    silent(&sharing.cq);
    sharing.post([2]);
    sharing.received(2, 0, b"new queue");
}

fn limit_event_gone(world: &World) {
    let sharing = Sharing::new(world, 0);
    let srq = sharing.pd.create_srq(2, 1).unwrap();
    let armed = rdma_verbs::verbs::SharedReceiveQueueAttributes { srq_limit: Some(1), ..Default::default() };
    srq.modify(&armed).unwrap();
    drop(srq);
    sharing.no_event();
}

/// Checks that each message arrives once; messages carry their numbers.
#[track_caller]
fn collect(sharing: &Sharing, count: usize) {
    let found = thread::scope(|scope| {
        let poll = |share: usize| {
            let mut found = Vec::new();
            for _ in 0..share {
                let completion = next(&sharing.cq);
                let success = completion.result().unwrap_or_else(|error| panic!("{error}"));
                assert_eq!((success.opcode, success.byte_len), (CompletionOpcode::Receive, 8));
                let start = completion.wr_id() as usize * ROOM;
                let bytes = sharing.inbox.to_vec(start..start + 8).unwrap();
                found.push(u64::from_be_bytes(bytes.try_into().unwrap()));
                let room = sharing.inbox.slice(start..start + ROOM).unwrap();
                sharing.srq.post_recv(&[ReceiveRequest::new(room).wr_id(completion.wr_id())]).unwrap();
            }
            found
        };
        let other = scope.spawn(move || poll(count / 2));
        let mut found = poll(count - count / 2);
        found.extend(other.join().unwrap());
        found
    });
    let distinct: HashSet<u64> = found.iter().copied().collect();
    assert_eq!((found.len(), distinct.len()), (count, count), "a message came twice");
    silent(&sharing.cq);
}

/// Sends `each` messages from every peer; each carries its peer and number.
fn send_all(sharing: &Sharing, each: u64) {
    for number in 0..each {
        for (peer, qp) in (0u64..).zip(&sharing.senders) {
            let text = (peer << 32 | number).to_be_bytes();
            let request = SendRequest::send(Payload::inline(&text)).wr_id(number).signaled();
            while qp.post_send(&[request]).is_err() {
                next(&sharing.sender_cq).result().unwrap();
            }
        }
    }
}

fn two_post_two_poll(world: &World) {
    let sharing = Sharing::new(world, 4);
    sharing.post(0..16);
    thread::scope(|scope| {
        scope.spawn(|| send_all(&sharing, 300));
        collect(&sharing, 4 * 300);
    });
}

fn resize_while_used(world: &World) {
    let sharing = Sharing::new(world, 2);
    let before = sharing.srq.query().unwrap();
    sharing.post(0..16);
    thread::scope(|scope| {
        scope.spawn(|| send_all(&sharing, 200));
        scope.spawn(|| {
            for max_wr in (16..80).chain((16..80).rev()) {
                let size = rdma_verbs::verbs::SharedReceiveQueueAttributes { max_wr: Some(max_wr), srq_limit: None };
                sharing.srq.modify(&size).unwrap();
                thread::yield_now();
            }
        });
        collect(&sharing, 2 * 200);
    });
    assert_eq!(sharing.srq.query().unwrap(), before);
    let too_small = rdma_verbs::verbs::SharedReceiveQueueAttributes { max_wr: Some(15), srq_limit: None };
    refused(sharing.srq.modify(&too_small), ErrorKind::InvalidArgument, &["max_wr is 15"]);
}
