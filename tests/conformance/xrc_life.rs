//! Extended reliable connections: lost packets, incomplete messages, states, and the lifetimes of their objects.

use std::collections::HashSet;
use std::thread;

use rdma_verbs::verbs::{
    AsyncEvent, CompletionOpcode, CompletionStatus, ConnectOptions, Counter, ErrorKind, Payload, QueuePair,
    QueuePairAttributes, QueuePairState, ReceiveRequest, SendRequest, SharedReceiveQueueAttributes,
    SharedReceiveQueueOptions,
};

use super::bytes::{check, fill};
use super::end::{SILENCE, address_vector, next, patience, silent};
use super::sharing::MAX_SRQ;
use super::srq_partial::send_half;
use super::suite::{Scenario, XRC};
use super::world::World;
use super::xrc_ends::{Extended, ROOM};

const fn scenario(name: &'static str, clause: &'static str, run: fn(&World)) -> Scenario {
    Scenario { name, clause, needs: &[MAX_SRQ, XRC], run }
}

const LAST_WQE: &str = "ibv_get_async_event(3) IBV_EVENT_QP_LAST_WQE_REACHED; rdma-core";

pub(crate) const SCENARIOS: &[Scenario] = &[
    scenario("xrc/retry/first_packets_are_lost", "ibv_modify_qp(3) retry_cnt, timeout", first_packets_lost),
    scenario("xrc/retry/every_operation", "ibv_modify_qp(3) retry_cnt, timeout", every_operation_is_repeated),
    scenario("xrc/retry/target_is_gone", "ibv_poll_cq(3) IBV_WC_RETRY_EXC_ERR", target_is_gone),
    scenario("xrc/rnr/exceeded", "ibv_modify_qp(3) rnr_retry", rnr_exceeded),
    scenario("xrc/partial/flushed_on_the_queue_of_its_srq", LAST_WQE, flushed_on_the_queue_of_its_srq),
    scenario("xrc/partial/queue_goes_in_the_middle", "ibv_destroy_srq(3)", queue_goes_in_the_middle),
    scenario("xrc/error/initiator_raises_no_last_wqe", LAST_WQE, initiator_raises_none),
    scenario("xrc/error/too_small", "ibv_poll_cq(3) IBV_WC_LOC_LEN_ERR", too_small),
    scenario("xrc/error/sends_are_flushed", "rdma-core: ERR completes all posted sends", sends_are_flushed),
    scenario("xrc/error/other_target_goes_on", "IBTA annex Extended Reliable Connected", other_target_goes_on),
    scenario("xrc/states/drained", "ibv_modify_qp(3) IBV_QPS_SQD", drained),
    scenario("xrc/states/established", "ibv_get_async_event(3) IBV_EVENT_COMM_EST", established),
    scenario("xrc/states/target_receives_in_rtr", "ibv_modify_qp(3) IBV_QPS_RTR", target_in_rtr),
    scenario("xrc/destroy/domain_handle_goes", "rdma-core: object dependencies", domain_handle_goes),
    scenario("xrc/limit/of_the_named_queue", "ibv_modify_srq(3) IBV_SRQ_LIMIT", limit_of_the_named_queue),
    scenario("xrc/threads/initiators_and_queues", "rdma-core: all verbs are thread-safe", many_threads),
];

fn to(state: QueuePairState) -> QueuePairAttributes {
    QueuePairAttributes::default().qp_state(state)
}

/// Returns ends whose target was put back to RESET, so that the initiator's packets are lost.
#[track_caller]
fn deaf(world: &World, options: &ConnectOptions) -> Extended {
    let ends = Extended::with(world, options);
    ends.target.reset().unwrap();
    ends.initiator.reset().unwrap();
    ends.initiator.connect_with(&ends.target.connection_info().unwrap(), options).unwrap();
    ends
}

/// Connects the target, expecting the initiator's first packet.
#[track_caller]
fn listen(ends: &Extended, options: &ConnectOptions) {
    ends.target.connect_with(&ends.initiator.connection_info().unwrap(), options).unwrap();
}

fn first_packets_lost(world: &World) {
    let options = ConnectOptions::default();
    let ends = deaf(world, &options);
    ends.post(1, 2);
    ends.send(1, b"again");
    assert!(ends.sender_cq.wait(SILENCE).is_err(), "a response arrived");
    assert!(ends.initiator.counters().get(Counter::SentPackets) > 0);
    listen(&ends, &options);
    ends.received(1, 2, b"again");
    ends.sent(CompletionOpcode::Send);
    assert!(ends.initiator.counters().get(Counter::RetransmittedPackets) > 0);
    ends.silent();
}

fn every_operation_is_repeated(world: &World) {
    let options = ConnectOptions::default();
    let ends = deaf(world, &options);
    ends.post(0, 1);
    ends.post(1, 2);
    fill(&ends.outbox, 0, 10_000, 4);
    fill(&ends.inbox, 32 << 10, 10_000, 5);
    let [first, second] = [0, 1].map(|which: usize| ends.queues[which].number());
    let (there, from) = (ends.inbox.remote().slice(4096..).unwrap(), ends.inbox.remote().slice(32 << 10..).unwrap());
    let requests = [
        SendRequest::send(Payload::inline(b"first")).remote_srq(first),
        SendRequest::write(ends.outbox.slice(..10_000).unwrap(), there).remote_srq(second),
        SendRequest::read(ends.outbox.slice(20_000..30_000).unwrap(), from).remote_srq(first),
        SendRequest::send_with_immediate(Payload::inline(b"last"), 9).wr_id(100).signaled().remote_srq(second),
    ];
    ends.initiator.post_send(&requests).unwrap();
    assert!(ends.sender_cq.wait(SILENCE).is_err(), "a response arrived");
    listen(&ends, &options);
    ends.sent(CompletionOpcode::Send);
    ends.received(0, 1, b"first");
    assert_eq!(ends.completed(1, 2).immediate, Some(9));
    check(&ends.inbox, 4096, 10_000, 4);
    check(&ends.outbox, 20_000, 10_000, 5);
    ends.silent();
}

fn target_is_gone(world: &World) {
    let ends = deaf(world, &ConnectOptions::default().timeout(8).retry_cnt(1));
    ends.send(0, b"dropped");
    ends.fails(CompletionStatus::RetryExceededError);
    ends.silent();
}

fn rnr_exceeded(world: &World) {
    let ends = Extended::with(world, &ConnectOptions::default().rnr_retry(1).min_rnr_timer(1));
    ends.post(0, 1);
    ends.send(1, b"to the empty one");
    ends.fails(CompletionStatus::ReceiverNotReadyRetryExceededError);
    assert!(ends.target.counters().get(Counter::SentRnr) >= 2, "one try and one more");
    assert_eq!(ends.target.state().unwrap(), QueuePairState::ReadyToSend);
    ends.silent();
}

/// Gives the target the first half of a message for the second queue, in receive 30.
#[track_caller]
fn half(ends: &Extended) {
    let room = ends.inbox.slice(16 << 10..40 << 10).unwrap();
    ends.queues[1].post_recv(&[ReceiveRequest::new(room).wr_id(30)]).unwrap();
    let number = ends.queues[1].number();
    let sender = (&ends.initiator, &ends.sender_pd, &ends.sender_cq);
    send_half(sender, &ends.target, |ranges| SendRequest::send(ranges).remote_srq(number), None);
    ends.silent();
}

fn flushed_on_the_queue_of_its_srq(world: &World) {
    let ends = Extended::new(world);
    half(&ends);
    ends.target.modify(&to(QueuePairState::Error)).unwrap();
    let event = ends.context.wait_async_event(patience()).unwrap();
    assert_eq!(event, AsyncEvent::LastWorkQueueElementReached(ends.target.qpn()));
    let mut out = [rdma_verbs::verbs::Completion::default(); 2];
    assert_eq!(ends.cqs[1].poll(&mut out).unwrap(), 1, "the receive completes before the event, once");
    let error = out[0].result().unwrap_err();
    let expected = (30, ends.target.qpn(), CompletionStatus::WorkRequestFlushedError);
    assert_eq!((error.wr_id, error.qpn, error.status), expected);
    ends.silent();
}

/// The queue is destroyed together with its receives. The target lives on and has nothing to flush.
fn queue_goes_in_the_middle(world: &World) {
    let mut ends = Extended::new(world);
    half(&ends);
    let fresh =
        ends.pd.create_srq_with(4, 1, &SharedReceiveQueueOptions::default().xrc(&ends.domain, &ends.cqs[1])).unwrap();
    drop(std::mem::replace(&mut ends.queues[1], fresh));
    assert_eq!(ends.target.state().unwrap(), QueuePairState::ReadyToSend);
    ends.target.modify(&to(QueuePairState::Error)).unwrap();
    let event = ends.context.wait_async_event(patience()).unwrap();
    assert_eq!(event, AsyncEvent::LastWorkQueueElementReached(ends.target.qpn()));
    ends.silent();
}

fn initiator_raises_none(world: &World) {
    let ends = Extended::new(world);
    ends.initiator.modify(&to(QueuePairState::Error)).unwrap();
    assert_eq!(ends.sender_pd.context().wait_async_event(SILENCE).unwrap_err().kind(), ErrorKind::TimedOut);
}

fn too_small(world: &World) {
    let ends = Extended::new(world);
    ends.queues[1].post_recv(&[ReceiveRequest::new(ends.inbox.slice(..3).unwrap()).wr_id(8)]).unwrap();
    ends.send(1, b"four");
    let error = next(&ends.cqs[1]).result().unwrap_err();
    let expected = (8, ends.target.qpn(), CompletionStatus::LocalLengthError);
    assert_eq!((error.wr_id, error.qpn, error.status), expected);
    ends.fails(CompletionStatus::RemoteInvalidRequestError);
    ends.silent();
}

fn sends_are_flushed(world: &World) {
    let ends = Extended::new(world);
    (0..3).for_each(|_| ends.send(0, b"waits for a receive"));
    ends.initiator.modify(&to(QueuePairState::Error)).unwrap();
    for _ in 0..3 {
        let error = next(&ends.sender_cq).result().unwrap_err();
        assert_eq!((error.wr_id, error.status), (100, CompletionStatus::WorkRequestFlushedError));
    }
    silent(&ends.sender_cq);
}

/// Two connections to the same queues: the failure of one does not affect the other's use of the queues.
fn other_target_goes_on(world: &World) {
    let ends = Extended::new(world);
    let (target, initiator) = ends.another_connection(&ends.sender_cq);
    ends.post(0, 1);
    ends.target.modify(&to(QueuePairState::Error)).unwrap();
    ends.silent();
    let request = SendRequest::send(Payload::inline(b"goes on")).remote_srq(ends.queues[0].number());
    initiator.post_send(&[request]).unwrap();
    let completion = next(&ends.cqs[0]);
    assert_eq!((completion.wr_id(), completion.qpn()), (1, target.qpn()));
    assert_eq!(completion.result().unwrap().byte_len, 7);
}

fn drained(world: &World) {
    let ends = Extended::new(world);
    ends.post(0, 1);
    let drain = to(QueuePairState::SendQueueDrained).en_sqd_async_notify(true);
    ends.initiator.modify(&drain).unwrap();
    let event = ends.sender_pd.context().wait_async_event(patience()).unwrap();
    assert_eq!(event, AsyncEvent::SendQueueDrained(ends.initiator.qpn()));
    ends.send(0, b"later");
    ends.silent();
    ends.initiator.modify(&to(QueuePairState::ReadyToSend)).unwrap();
    ends.received(0, 1, b"later");
    ends.sent(CompletionOpcode::Send);
}

fn established(world: &World) {
    let ends = Extended::new(world);
    let target = ends.another_target();
    ends.initiator.reset().unwrap();
    to_rtr(&ends, &target);
    ends.post(0, 1);
    ends.initiator.connect(&target.connection_info().unwrap()).unwrap();
    ends.send(0, b"the first");
    assert_eq!(ends.context.wait_async_event(patience()).unwrap(), AsyncEvent::CommunicationEstablished(target.qpn()));
    assert_eq!(ends.context.wait_async_event(SILENCE).unwrap_err().kind(), ErrorKind::TimedOut);
}

/// Brings a target to RTR only, with the initiator of `ends` as its peer.
#[track_caller]
fn to_rtr(ends: &Extended, target: &QueuePair) {
    target.init().unwrap();
    let peer = ends.initiator.connection_info().unwrap();
    let mut receive = to(QueuePairState::ReadyToReceive)
        .ah_attr(address_vector(target.context(), peer.gid))
        .path_mtu(peer.path_mtu)
        .dest_qp_num(peer.qpn)
        .rq_psn(peer.psn)
        .max_dest_rd_atomic(1)
        .min_rnr_timer(1)
        .peer(peer.capabilities);
    receive.peer_key = target.peer_key(&peer);
    target.modify(&receive).unwrap();
}

fn target_in_rtr(world: &World) {
    let ends = Extended::new(world);
    let target = ends.another_target();
    ends.initiator.reset().unwrap();
    to_rtr(&ends, &target);
    ends.initiator.connect(&target.connection_info().unwrap()).unwrap();
    ends.post(1, 2);
    ends.send(1, b"a target needs no more");
    let completion = next(&ends.cqs[1]);
    assert_eq!((completion.wr_id(), completion.qpn()), (2, target.qpn()));
    ends.sent(CompletionOpcode::Send);
    assert_eq!(target.state().unwrap(), QueuePairState::ReadyToReceive);
}

fn domain_handle_goes(world: &World) {
    let Extended { target: _target, initiator, queues, cqs, inbox, sender_cq: _cq, domain, pd, .. } =
        Extended::new(world);
    drop(domain);
    queues[0].post_recv(&[ReceiveRequest::new(inbox.slice(..ROOM).unwrap()).wr_id(5)]).unwrap();
    drop(pd);
    let request = SendRequest::send(Payload::inline(b"kept alive")).remote_srq(queues[0].number());
    initiator.post_send(&[request]).unwrap();
    let completion = next(&cqs[0]);
    assert_eq!((completion.wr_id(), completion.result().unwrap().byte_len), (5, 10));
    assert_eq!(inbox.to_vec(..10).unwrap(), b"kept alive");
}

fn limit_of_the_named_queue(world: &World) {
    let ends = Extended::new(world);
    (0..4).for_each(|wr_id| ends.post(wr_id as usize % 2, wr_id));
    for queue in &ends.queues {
        let armed = SharedReceiveQueueAttributes { srq_limit: Some(2), ..Default::default() };
        queue.modify(&armed).unwrap();
    }
    ends.send(1, b"one is left");
    ends.received(1, 1, b"one is left");
    let event = ends.context.wait_async_event(patience()).unwrap();
    assert_eq!(event, AsyncEvent::SharedReceiveQueueLimitReached(ends.queues[1].number()));
    assert_eq!(ends.context.wait_async_event(SILENCE).unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(ends.queues[0].query().unwrap().srq_limit, 2);
}

/// Creates another connection to the domain, whose initiator has its own completion queue.
#[track_caller]
fn another(ends: &Extended) -> (QueuePair, QueuePair) {
    ends.another_connection(&ends.sender_pd.context().create_cq(64).unwrap())
}

/// Takes `count` messages from a queue, posting each receive again.
fn collect(ends: &Extended, which: usize, count: u64) -> Vec<u64> {
    let mut found = Vec::new();
    for _ in 0..count {
        let completion = next(&ends.cqs[which]);
        let success = completion.result().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((success.opcode, success.byte_len), (CompletionOpcode::Receive, 8));
        let start = completion.wr_id() as usize * ROOM;
        let bytes = ends.inbox.to_vec(start..start + 8).unwrap();
        found.push(u64::from_be_bytes(bytes.try_into().unwrap()));
        assert_eq!(found.last().unwrap() % 2, which as u64, "a message for the other queue");
        ends.post(which, completion.wr_id());
    }
    found
}

/// Four threads, each with its own connection, send to two queues, which two threads poll and refill.
fn many_threads(world: &World) {
    const EACH: u64 = 200;
    let ends = Extended::new(world);
    let connections: Vec<_> = (0..4).map(|_| another(&ends)).collect();
    for wr_id in 0..8 {
        ends.post(wr_id as usize % 2, wr_id);
    }
    let found: Vec<u64> = thread::scope(|scope| {
        for (peer, (_, initiator)) in (0u64..).zip(&connections) {
            let (ends, cq) = (&ends, initiator.send_cq());
            scope.spawn(move || {
                for number in 0..EACH {
                    let (text, queue) = ((peer << 32 | number).to_be_bytes(), &ends.queues[number as usize % 2]);
                    let request = SendRequest::send(Payload::inline(&text)).signaled().remote_srq(queue.number());
                    initiator.post_send(&[request]).unwrap();
                    next(cq).result().unwrap();
                }
            });
        }
        let ends = &ends;
        let pollers = [0, 1].map(|which| scope.spawn(move || collect(ends, which, 2 * EACH)));
        pollers.into_iter().flat_map(|poller| poller.join().unwrap()).collect()
    });
    let distinct: HashSet<u64> = found.iter().copied().collect();
    assert_eq!((found.len(), distinct.len()), (4 * EACH as usize, 4 * EACH as usize), "a message came twice");
    ends.silent();
}
