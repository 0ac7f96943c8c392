//! The error state, RESET, and destruction with work outstanding.

use rdma_verbs::verbs::{
    Cause, CompletionStatus, ConnectOptions, ErrorKind, Payload, QueuePairState, ReceiveRequest, RegionList,
    SendRequest,
};

use super::bytes::check_all;
use super::end::{End, Shape, create_qp, next, refused, silent};
use super::suite::Scenario;
use super::world::{World, connect};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("rc/error/flushes_receives_in_order", "IBTA, queue pair states: error state", flushes_receives),
    Scenario::new("rc/error/flushes_sends_in_order", "IBTA, queue pair states: error state", flushes_sends),
    Scenario::new("rc/error/flushes_unsignaled", "ibv_post_send(3): flushed requests complete", flushes_unsignaled),
    Scenario::new(
        "rc/error/accepts_and_flushes_posts",
        "IBTA, queue pair states: posting in ERR is allowed",
        accepts_posts,
    ),
    Scenario::new(
        "rc/error/many_are_flushed_once",
        "IBTA, work request processing: each request completes once",
        many_flushed,
    ),
    Scenario::new("rc/error/completions_before_stay", "IBTA, queue pair states: done is done", completions_stay),
    Scenario::new("rc/error/frees_the_queue", "IBTA, work request processing: slots return", frees_the_queue),
    Scenario::new(
        "rc/error/peer_is_not_notified",
        "IBTA, queue pair states: nothing leaves in ERR",
        peer_is_not_notified,
    ),
    Scenario::new("rc/error/flush_names_its_cause", "ibv_poll_cq(3) IBV_WC_WR_FLUSH_ERR", names_cause),
    Scenario::new("rc/error/again_is_allowed", "IBTA, queue pair states: ERR to ERR", error_again),
    Scenario::new(
        "rc/reset/purges_completions",
        "IBTA, queue pair states: RESET; rdma-core drops the queue pair's entries",
        purges,
    ),
    Scenario::new("rc/reset/drops_requests_silently", "IBTA, queue pair states: RESET", drops_requests),
    Scenario::new(
        "rc/reset/spares_the_others_completions",
        "IBTA, queue pair states: of this queue pair only",
        spares_others,
    ),
    Scenario::new("rc/reset/can_be_connected_again", "IBTA, queue pair states: RESET to INIT", connected_again),
    Scenario::new("rc/reset/to_another_peer", "IBTA, queue pair states: RESET to INIT", another_peer),
    Scenario::new("rc/reset/refuses_posts", "ibv_post_send(3), ibv_post_recv(3) in RESET", refuses_posts),
    Scenario::new("rc/reset/open_batches", "ibv_wr_complete(3): the queue pair's state counts", open_batches),
    Scenario::new("rc/reset/many_times", "IBTA, queue pair states: RESET to INIT", many_times),
    Scenario::new("rc/destroy/purges_completions", "ibv_destroy_qp(3)", destroy_purges),
    Scenario::new("rc/destroy/with_work_outstanding", "ibv_destroy_qp(3)", destroy_with_work),
    Scenario::new("rc/destroy/in_the_middle_of_a_read", "ibv_destroy_qp(3)", destroy_in_read),
    Scenario::new(
        "rc/destroy/handles_in_any_order",
        "ibv_dealloc_pd(3), ibv_destroy_cq(3): users keep them",
        any_order,
    ),
    Scenario::new("rc/destroy/never_connected", "ibv_destroy_qp(3) in RESET, INIT", never_connected),
];

fn flushes_receives(world: &World) {
    let (left, right) = world.pair();
    (0..10).for_each(|wr_id| right.receive(wr_id * 7, 0..64));
    right.to_error();
    right.is_in(QueuePairState::Error);
    right.flushed((0..10).map(|number| number * 7));
    right.silent();
    left.is_in(QueuePairState::ReadyToSend);
}

fn flushes_sends(world: &World) {
    let (left, _right) = world.pair();
    (0..10).for_each(|wr_id| left.post(&[SendRequest::send(Payload::EMPTY).wr_id(wr_id).signaled()]));
    left.silent();
    left.to_error();
    left.flushed(0..10);
    left.silent();
}

fn flushes_unsignaled(world: &World) {
    let (left, right) = world.pair();
    left.post(&[
        SendRequest::send(Payload::EMPTY).wr_id(1),
        SendRequest::write(left.at(0..8), right.far(0..8)).wr_id(2),
        SendRequest::read(left.at(0..8), right.far(0..8)).wr_id(3),
    ]);
    left.silent();
    left.to_error();
    left.flushed([1, 2, 3]);
    left.silent();
}

fn accepts_posts(world: &World) {
    let (left, right) = world.pair();
    left.to_error();
    for round in 0..5 {
        left.receive(round * 2, 0..8);
        left.flushed_receive(round * 2);
        left.post(&[SendRequest::write(left.at(0..8), right.far(0..8)).wr_id(round * 2 + 1)]);
        left.flushed([round * 2 + 1]);
    }
    check_all(&right.region, 0, 8, 0);
    left.silent();
}

fn many_flushed(world: &World) {
    let (left, _right) = world.pair();
    let count = u64::from(left.qp.cap().max_send_wr);
    (0..count).for_each(|wr_id| left.post(&[SendRequest::send(Payload::EMPTY).wr_id(wr_id)]));
    left.to_error();
    left.flushed(0..count);
    left.silent();
}

fn completions_stay(world: &World) {
    let (left, right) = world.pair();
    right.receive(1, 0..8);
    right.receive(2, 0..8);
    left.post(&[SendRequest::send(Payload::inline(b"done")).wr_id(3).signaled()]);
    left.sent(3);
    right.to_error();
    right.received(1, 4);
    right.flushed([2]);
}

fn frees_the_queue(world: &World) {
    let (left, _right) = world.pair();
    let count = u64::from(left.qp.cap().max_send_wr);
    (0..count).for_each(|wr_id| left.post(&[SendRequest::send(Payload::EMPTY).wr_id(wr_id)]));
    refused(left.qp.post_send(&[SendRequest::send(Payload::EMPTY)]), ErrorKind::QueueFull, &["post_send"]);
    left.to_error();
    left.flushed(0..count);
    (0..count).for_each(|wr_id| left.post(&[SendRequest::send(Payload::EMPTY).wr_id(wr_id)]));
    left.flushed(0..count);
}

fn peer_is_not_notified(world: &World) {
    let (left, right) = world.pair();
    right.receive(1, 0..8);
    left.to_error();
    left.post(&[SendRequest::send(Payload::inline(b"no")).wr_id(2)]);
    left.flushed([2]);
    right.silent();
    right.is_in(QueuePairState::ReadyToSend);
    right.no_event();
}

fn names_cause(world: &World) {
    let (left, _right) = world.pair();
    left.post(&[SendRequest::send(Payload::EMPTY).wr_id(1)]);
    left.to_error();
    let error = left.fails(1, CompletionStatus::WorkRequestFlushedError);
    assert_eq!(error.cause, Cause::QueuePairInError);
    if left.context.query_device().failure_causes {
        let text = left.qp.explain(&error);
        assert!(text.contains("modify"), "the application did it: {text}");
    }
}

fn error_again(world: &World) {
    let (left, _right) = world.pair();
    left.receive(1, 0..8);
    left.to_error();
    left.to_error();
    left.flushed([1]);
    left.silent();
}

fn purges(world: &World) {
    let (left, right) = world.pair();
    right.receive(1, 0..8);
    left.post(&[SendRequest::send(Payload::inline(b"seen")).wr_id(2).signaled()]);
    // The READ completes when the bytes and the acknowledgement have arrived, without a poll of either queue.
    let wanted = SendRequest::read(left.at(0..8), right.far(0..8)).wr_id(3).signaled();
    left.post(&[wanted]);
    while left.region.load_acquire_u8(0).unwrap() != b's' {
        std::thread::yield_now();
    }
    left.qp.reset().unwrap();
    right.qp.reset().unwrap();
    left.silent();
    right.silent();
}

fn drops_requests(world: &World) {
    let (left, _right) = world.pair();
    left.receive(1, 0..8);
    left.post(&[SendRequest::send(Payload::EMPTY).wr_id(2).signaled()]);
    left.qp.reset().unwrap();
    left.is_in(QueuePairState::Reset);
    left.silent();
    // They do not return with the next connection either.
    left.qp.connect(&left.qp.connection_info().unwrap()).unwrap();
    left.receive(3, 0..8);
    left.post(&[SendRequest::send(Payload::inline(b"new")).wr_id(4)]);
    left.received(3, 3);
    left.silent();
}

fn spares_others(world: &World) {
    let (left, right) = world.pair();
    let other = create_qp(&right.pd, &right.cq, &right.cq, &Shape::default());
    other.connect(&other.connection_info().unwrap()).unwrap();
    other.post_recv(&[ReceiveRequest::new(RegionList::EMPTY).wr_id(10)]).unwrap();
    right.receive(1, 0..8);
    left.post(&[SendRequest::send(Payload::EMPTY).wr_id(2).signaled()]);
    left.sent(2);
    other.post_send(&[SendRequest::write(Payload::inline(&[1]), right.far(60..61)).wr_id(11).signaled()]).unwrap();
    while right.region.load_acquire_u8(60).unwrap() == 0 {
        std::thread::yield_now();
    }
    right.qp.reset().unwrap();
    let completion = next(&right.cq);
    assert_eq!((completion.wr_id(), completion.qpn(), completion.is_success()), (11, other.qpn(), true));
    right.silent();
    other.post_send(&[SendRequest::send(Payload::EMPTY).wr_id(12).signaled()]).unwrap();
    let ids = [next(&right.cq), next(&right.cq)].map(|completion| (completion.wr_id(), completion.qpn()));
    assert!(ids.contains(&(10, other.qpn())) && ids.contains(&(12, other.qpn())), "{ids:?}");
}

fn connected_again(world: &World) {
    let (left, right) = world.pair();
    right.receive(1, 0..8);
    let first = left.qp.connection_info().unwrap().psn;
    [&left, &right].into_iter().for_each(|end| end.qp.reset().unwrap());
    assert_ne!(left.qp.connection_info().unwrap().psn, first, "a connection begins from a new number");
    connect(&left, &right, &ConnectOptions::default());
    right.receive(2, 0..8);
    left.post(&[SendRequest::send(Payload::inline(b"next")).wr_id(3).signaled()]);
    right.received(2, 4);
    left.sent(3);
    right.silent();
}

fn another_peer(world: &World) {
    let (left, right) = world.pair();
    let third = world.end(2, &Shape::default());
    left.qp.reset().unwrap();
    connect(&left, &third, &ConnectOptions::default());
    right.receive(1, 0..8);
    third.receive(2, 0..8);
    left.post(&[SendRequest::send(Payload::inline(b"third")).wr_id(3).signaled()]);
    third.received(2, 5);
    left.sent(3);
    right.silent();
}

fn refuses_posts(world: &World) {
    let (left, _right) = world.pair();
    left.qp.reset().unwrap();
    let send = SendRequest::send(Payload::EMPTY);
    refused(left.qp.post_send(&[send]), ErrorKind::InvalidState, &["post_send", "RESET"]);
    let receive = ReceiveRequest::new(RegionList::EMPTY);
    refused(left.qp.post_recv(&[receive]), ErrorKind::InvalidState, &["post_recv", "RESET"]);
    left.silent();
}

/// An open batch of one connection is not posted in RESET, nor on the next connection.
fn open_batches(world: &World) {
    let (left, right) = world.pair();
    let remote = right.region.remote();
    let mut sends = left.qp.send_batch().unwrap();
    sends.push(&SendRequest::write(Payload::inline(b"old"), remote).wr_id(1).signaled()).unwrap();
    let mut receives = left.qp.recv_batch().unwrap();
    receives.push(&ReceiveRequest::new(RegionList::EMPTY).wr_id(2)).unwrap();
    [&left, &right].into_iter().for_each(|end| end.qp.reset().unwrap());
    refused(sends.post(), ErrorKind::InvalidState, &["post_send", "RESET"]);
    refused(receives.post(), ErrorKind::InvalidState, &["post_recv", "RESET"]);
    connect(&left, &right, &ConnectOptions::default());
    left.post(&[SendRequest::write(Payload::inline(b"new"), remote.slice(8..).unwrap()).wr_id(3).signaled()]);
    left.written(3);
    assert_eq!(right.region.to_vec(..11).unwrap(), *b"\0\0\0\0\0\0\0\0new");
    left.silent();
    right.silent();
}

fn many_times(world: &World) {
    let (left, right) = (world.end(0, &Shape::default()), world.end(1, &Shape::default()));
    for round in 0..20u64 {
        connect(&left, &right, &ConnectOptions::default());
        right.receive(round, 0..8);
        right.receive(1000, 0..8);
        left.post(&[SendRequest::send(Payload::inline(&round.to_ne_bytes())).wr_id(round).signaled()]);
        right.received(round, 8);
        left.sent(round);
        assert_eq!(right.region.load_acquire_u64(0).unwrap(), round);
        [&left, &right].into_iter().for_each(|end| end.qp.reset().unwrap());
    }
    left.silent();
    right.silent();
}

fn destroy_purges(world: &World) {
    let (left, right) = world.pair();
    right.receive(1, 0..8);
    left.post(&[SendRequest::send(Payload::inline(b"late")).wr_id(2).signaled()]);
    left.sent(2);
    let End { qp, cq, region, .. } = right;
    drop(qp);
    silent(&cq);
    assert_eq!(region.to_vec(0..4).unwrap(), b"late");
}

fn destroy_with_work(world: &World) {
    let (left, right) = world.pair();
    (0..20).for_each(|wr_id| right.receive(wr_id, 0..64));
    for wr_id in 0..50 {
        left.post(&[SendRequest::send(left.at(0..64)).wr_id(wr_id).signaled()]);
    }
    let End { qp, cq, region, pd, context } = left;
    drop(qp);
    silent(&cq);
    drop((region, pd, context));
    right.is_in(QueuePairState::ReadyToSend);
}

fn destroy_in_read(world: &World) {
    let shape = Shape { region_bytes: 8 << 20, ..Shape::default() };
    for side in 0..2 {
        let (left, right) = world.pair_of(&shape, &ConnectOptions::default().timeout(8).retry_cnt(1));
        left.post(&[SendRequest::read(&left.region, right.region.remote()).wr_id(1).signaled()]);
        if side == 0 {
            let End { qp, cq, .. } = left;
            drop(qp);
            silent(&cq);
            right.is_in(QueuePairState::ReadyToSend);
        } else {
            drop(right);
            // The response may or may not have been complete by then, but the READ ends.
            assert_eq!(left.next().wr_id(), 1);
        }
    }
}

fn any_order(world: &World) {
    let (left, right) = world.pair();
    let End { qp, cq, region, pd, context } = left;
    drop(context);
    drop(pd);
    qp.post_send(&[SendRequest::write(&region, right.region.remote()).wr_id(1).signaled()]).unwrap();
    assert!(next(&cq).is_success());
    drop(cq);
    qp.post_send(&[SendRequest::write(&region, right.region.remote()).wr_id(2)]).unwrap();
    drop(region);
    assert_eq!(qp.send_cq().cqe(), qp.recv_cq().cqe(), "the queue pair keeps its queues");
    drop(qp);
    right.is_in(QueuePairState::ReadyToSend);
}

fn never_connected(world: &World) {
    let end = world.end(0, &Shape::default());
    for state in [QueuePairState::Reset, QueuePairState::Init] {
        let qp = create_qp(&end.pd, &end.cq, &end.cq, &Shape::default());
        if state == QueuePairState::Init {
            qp.init().unwrap();
            qp.post_recv(&[ReceiveRequest::new(RegionList::EMPTY)]).unwrap();
        }
        drop(qp);
        end.silent();
    }
}
