//! Peers that are not ready, silent or absent.

use std::time::Duration;

use rdma_verbs::verbs::{
    Cause, CompletionStatus, ConnectOptions, ConnectionInfo, Counter, Payload, Qpn, QueuePairState, SendRequest,
};

use super::bytes::{check, check_all, fill};
use super::connect::{ready_to_receive, ready_to_send, step_by_step};
use super::end::{End, Shape};
use super::suite::Scenario;
use super::world::{World, connect};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("rc/rnr/waits_for_a_receive", "IBTA, reliable service; ibv_modify_qp(3) rnr_retry 7", rnr_waits),
    Scenario::new("rc/rnr/exhausted", "IBTA, reliable service; ibv_modify_qp(3) rnr_retry", rnr_exhausted),
    Scenario::new("rc/rnr/without_a_try", "ibv_modify_qp(3) rnr_retry 0", rnr_without_a_try),
    Scenario::new(
        "rc/rnr/responder_stays_connected",
        "IBTA, reliable service: no error at the responder",
        rnr_responder,
    ),
    Scenario::new(
        "rc/rnr/one_receive_after_the_other",
        "IBTA, reliable service: each message restarts the wait",
        rnr_one_by_one,
    ),
    Scenario::new("rc/rnr/long_message_once", "IBTA, reliable service: nothing is executed twice", rnr_long_message),
    Scenario::new(
        "rc/rnr/writes_before_are_done",
        "IBTA, reliable service: earlier requests complete",
        rnr_after_writes,
    ),
    Scenario::new("rc/rnr/later_are_flushed", "IBTA, work request processing: flush after an error", rnr_flushes),
    Scenario::new(
        "rc/retry/peer_destroyed",
        "IBTA, reliable service; ibv_poll_cq(3) IBV_WC_RETRY_EXC_ERR",
        peer_destroyed,
    ),
    Scenario::new(
        "rc/retry/unknown_number",
        "IBTA, packet validation: packets to no queue pair are dropped",
        unknown_number,
    ),
    Scenario::new("rc/retry/peer_not_connected", "IBTA, packet validation: packets in INIT are dropped", peer_in_init),
    Scenario::new("rc/retry/peer_in_error", "IBTA, queue pair states: packets in ERR are dropped", peer_in_error),
    Scenario::new("rc/retry/wrong_sequence_number", "IBTA, reliable service: packet sequence numbers", wrong_psn),
    Scenario::new(
        "rc/retry/other_peers_packets_are_dropped",
        "IBTA, packet validation: the address must be the peer's",
        other_peers_packets,
    ),
    Scenario::new("rc/retry/read_and_atomic_too", "IBTA, reliable service", read_retry),
    Scenario::new("rc/retry/works_again_after_reset", "IBTA, queue pair states: RESET", works_again),
];

/// Short timeouts and few retries.
fn impatient() -> ConnectOptions {
    ConnectOptions::default().timeout(8).retry_cnt(1).min_rnr_timer(1)
}

/// Short RNR waits; the transport timer expires only for a dead peer.
fn eager() -> ConnectOptions {
    ConnectOptions::default().min_rnr_timer(1)
}

fn rnr_waits(world: &World) {
    let (left, right) = world.pair_of(&Shape::default(), &eager().rnr_retry(7));
    left.post(&[SendRequest::send(Payload::inline(b"patient")).wr_id(1).signaled()]);
    // Much longer than seven RNR waits.
    assert!(left.cq.wait(Duration::from_millis(200)).is_err());
    right.receive(2, 0..64);
    right.received(2, 7);
    left.sent(1);
    right.silent();
}

fn rnr_exhausted(world: &World) {
    let (left, right) = world.pair_of(&Shape::default(), &eager().rnr_retry(3));
    left.post(&[SendRequest::send(Payload::inline(b"impatient")).wr_id(1)]);
    let error = left.fails(1, CompletionStatus::ReceiverNotReadyRetryExceededError);
    assert_eq!(error.cause, Cause::ReceiverNotReady);
    left.is_in(QueuePairState::Error);
    if right.context.query_device().packet_counters {
        let counters = right.qp.counters();
        // Under load, a probe may have caused one more RNR NAK.
        assert!(counters.get(Counter::SentRnr) >= 4, "one try and three more: {counters:?}");
    }
}

fn rnr_without_a_try(world: &World) {
    let (left, right) = world.pair_of(&Shape::default(), &eager().rnr_retry(0));
    right.receive(1, 0..64);
    left.post(&[SendRequest::send(Payload::inline(b"first")).wr_id(1).signaled()]);
    left.sent(1);
    right.received(1, 5);
    left.post(&[SendRequest::send(Payload::inline(b"second")).wr_id(2)]);
    left.fails(2, CompletionStatus::ReceiverNotReadyRetryExceededError);
}

fn rnr_responder(world: &World) {
    let (left, right) = world.pair_of(&Shape::default(), &eager().rnr_retry(1));
    left.post(&[SendRequest::send(Payload::EMPTY).wr_id(1)]);
    left.fails(1, CompletionStatus::ReceiverNotReadyRetryExceededError);
    right.is_in(QueuePairState::ReadyToSend);
    right.no_event();
    right.receive(5, 0..8);
    right.silent();
}

fn rnr_one_by_one(world: &World) {
    let (left, right) = world.pair_of(&Shape::default(), &eager().rnr_retry(7));
    for wr_id in 0..5u64 {
        left.post(&[SendRequest::send(Payload::inline(&wr_id.to_ne_bytes())).wr_id(wr_id).signaled()]);
    }
    for wr_id in 0..5u64 {
        right.receive(wr_id + 10, 0..8);
        right.received(wr_id + 10, 8);
        assert_eq!(right.region.load_acquire_u64(0).unwrap(), wr_id, "messages come in order");
        left.sent(wr_id);
        right.silent();
    }
}

fn rnr_long_message(world: &World) {
    let (left, right) = world.pair_of(&Shape::default(), &eager().rnr_retry(7));
    fill(&left.region, 0, 50_000, 1);
    left.post(&[SendRequest::send(left.at(0..50_000)).wr_id(1).signaled()]);
    left.silent();
    check_all(&right.region, 0, 60_000, 0);
    right.receive(2, 100..60_000);
    right.receive(3, 0..100);
    right.received(2, 50_000);
    left.sent(1);
    check(&right.region, 100, 50_000, 1);
    right.silent();
}

fn rnr_after_writes(world: &World) {
    let (left, right) = world.pair_of(&Shape::default(), &eager().rnr_retry(7));
    left.post(&[
        SendRequest::write(Payload::inline(&[1; 8]), right.far(0..8)).wr_id(1).signaled(),
        SendRequest::send(Payload::EMPTY).wr_id(2).signaled(),
        SendRequest::write(Payload::inline(&[2; 8]), right.far(8..16)).wr_id(3).signaled(),
    ]);
    left.written(1);
    left.silent();
    assert_eq!(right.region.to_vec(0..16).unwrap(), [1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    right.receive(5, 100..101);
    right.received(5, 0);
    left.sent(2);
    left.written(3);
    check_all(&right.region, 8, 8, 2);
}

fn rnr_flushes(world: &World) {
    let (left, right) = world.pair_of(&Shape::default(), &eager().rnr_retry(1));
    left.post(&[
        SendRequest::send(Payload::EMPTY).wr_id(1),
        SendRequest::write(Payload::inline(&[1; 8]), right.far(0..8)).wr_id(2),
        SendRequest::send(Payload::EMPTY).wr_id(3),
    ]);
    left.fails(1, CompletionStatus::ReceiverNotReadyRetryExceededError);
    left.flushed([2, 3]);
    check_all(&right.region, 0, 8, 0);
}

/// Checks that the first request fails for lack of a response, and that the others are flushed.
#[track_caller]
fn gives_up(left: &End) {
    left.post(&[SendRequest::send(Payload::inline(b"?")).wr_id(1), SendRequest::send(Payload::EMPTY).wr_id(2)]);
    let error = left.fails(1, CompletionStatus::RetryExceededError);
    assert_eq!(error.cause, Cause::NoResponse);
    left.flushed([2]);
    left.is_in(QueuePairState::Error);
    left.silent();
}

fn peer_destroyed(world: &World) {
    let (left, right) = world.pair_of(&Shape::default(), &impatient());
    let End { qp, region, .. } = right;
    drop(qp);
    gives_up(&left);
    check_all(&region, 0, 64, 0);
}

fn connect_to(world: &World, change: impl Fn(ConnectionInfo) -> ConnectionInfo) -> (End, End) {
    let (left, right) = (world.end(0, &Shape::default()), world.end(1, &Shape::default()));
    let [near, far] = [&left, &right].map(|end| end.qp.connection_info().unwrap());
    left.qp.connect_with(&change(far), &impatient()).unwrap();
    right.qp.connect_with(&near, &impatient()).unwrap();
    right.receive(9, 0..64);
    (left, right)
}

fn unknown_number(world: &World) {
    let (left, right) = connect_to(world, |info| info.qpn(Qpn::new(info.qpn.value() ^ 0x555)));
    gives_up(&left);
    right.silent();
    check_all(&right.region, 0, 64, 0);
}

fn peer_in_init(world: &World) {
    let (left, right) = (world.end(0, &Shape::default()), world.end(1, &Shape::default()));
    right.qp.init().unwrap();
    right.receive(9, 0..64);
    left.qp.connect_with(&right.qp.connection_info().unwrap(), &impatient()).unwrap();
    gives_up(&left);
    right.silent();
    right.is_in(QueuePairState::Init);
}

fn peer_in_error(world: &World) {
    let (left, right) = world.pair_of(&Shape::default(), &impatient());
    right.to_error();
    gives_up(&left);
    right.silent();
}

fn wrong_psn(world: &World) {
    let (left, right) = (world.end(0, &Shape::default()), world.end(1, &Shape::default()));
    let [near, far] = [&left, &right].map(|end| end.qp.connection_info().unwrap());
    left.qp.connect_with(&far, &impatient()).unwrap();
    let elsewhere = near.psn(near.psn.plus(0x10_0000));
    right.qp.connect_with(&elsewhere, &impatient()).unwrap();
    right.receive(9, 0..64);
    left.post(&[SendRequest::send(Payload::inline(b"?")).wr_id(1).signaled()]);
    left.fails(1, CompletionStatus::RetryExceededError);
    right.silent();
    check_all(&right.region, 0, 64, 0);
}

fn other_peers_packets(world: &World) {
    // Single steps give both connections the same first PSN and no key; a key alone would reveal the sender.
    let (left, right) = (world.end(0, &Shape::default()), world.end(1, &Shape::default()));
    step_by_step(&left, &right);
    right.receive(9, 0..64);
    // A third device claims to be connected to the right one, with the left one's numbers.
    let third = world.end(2, &Shape::default());
    third.qp.init().unwrap();
    third.qp.modify(&ready_to_receive(&third, &right)).unwrap();
    // With one device for all, the third end has the peer's address; then only its sequence numbers differ.
    let address = |end: &End| end.qp.connection_info().unwrap().gid;
    let (first, is_one_device) = (ready_to_send().sq_psn.unwrap(), address(&third) == address(&left));
    let sq_psn = first.plus(if is_one_device { 1 << 22 } else { 0 });
    let patience = ready_to_send().sq_psn(sq_psn).timeout(8).retry_cnt(1);
    third.qp.modify(&patience).unwrap();
    gives_up(&third);
    right.silent();
    left.post(&[SendRequest::send(Payload::inline(b"the peer"))]);
    right.received(9, 8);
}

fn read_retry(world: &World) {
    let (left, right) = world.pair_of(&Shape::default(), &impatient());
    let remote = right.far(0..64);
    drop(right);
    left.post(&[
        SendRequest::read(left.at(0..64), remote).wr_id(1),
        SendRequest::write(left.at(0..8), remote).wr_id(2),
    ]);
    left.fails(1, CompletionStatus::RetryExceededError);
    left.flushed([2]);
}

fn works_again(world: &World) {
    let (left, right) = world.pair_of(&Shape::default(), &impatient());
    right.to_error();
    gives_up(&left);
    left.qp.reset().unwrap();
    right.qp.reset().unwrap();
    connect(&left, &right, &ConnectOptions::default());
    right.receive(3, 0..64);
    left.post(&[SendRequest::send(Payload::inline(b"again")).wr_id(4).signaled()]);
    right.received(3, 5);
    left.sent(4);
}
