//! Extended reliable connections: one connection, several shared receive queues, named by each request.

use rdma_verbs::verbs::{
    AsyncEvent, CompletionOpcode, CompletionStatus, ConnectOptions, Counter, ErrorKind, Payload, QueuePairAttributes,
    QueuePairOptions, QueuePairState, QueuePairType, ReceiveRequest, Rkey, SendRequest, SharedReceiveQueueNumber,
    SharedReceiveQueueOptions,
};

use super::bytes::{check, check_all, fill};
use super::end::{ALL_ACCESS, next, patience, refused, silent};
use super::sharing::{MAX_SRQ, connect};
use super::suite::{Scenario, XRC};
use super::world::World;
use super::xrc_ends::{Extended, ROOM};

const fn scenario(name: &'static str, clause: &'static str, run: fn(&World)) -> Scenario {
    Scenario { name, clause, needs: &[MAX_SRQ, XRC], run }
}

pub(crate) const SCENARIOS: &[Scenario] = &[
    scenario(
        "xrc/send/to_the_named_queue",
        "IBTA annex Extended Reliable Connected: XRCETH names the XRC SRQ",
        to_the_named_queue,
    ),
    scenario(
        "xrc/send/completes_on_the_queue_of_its_srq",
        "ibv_create_srq_ex(3) cq",
        completes_on_the_queue_of_its_srq,
    ),
    scenario("xrc/send/immediate", "Linux rxe; ibv_poll_cq(3) imm_data", immediate),
    scenario("xrc/send/many_packets", "IBTA annex Extended Reliable Connected: requests have XRCETH", many_packets),
    scenario("xrc/send/zero_bytes", "ibv_post_send(3): num_sge 0", zero_bytes),
    scenario("xrc/send/invalidate_of_wrong_key", "ibv_post_send(3) IBV_WR_SEND_WITH_INV", invalidate_of_wrong_key),
    scenario("xrc/write/bytes", "IBTA annex Extended Reliable Connected: RDMA WRITE", write_bytes),
    scenario(
        "xrc/write/immediate_takes_receive",
        "IBTA annex Extended Reliable Connected: RDMA WRITE with immediate",
        write_with_immediate,
    ),
    scenario("xrc/read/bytes", "IBTA annex Extended Reliable Connected: answers are those of RC", read_bytes),
    scenario("xrc/atomic/both", "IBTA annex Extended Reliable Connected: atomics", atomics),
    scenario("xrc/rnr/named_queue_is_empty", "ibv_modify_qp(3) rnr_retry; IBTA RNR NAK", named_queue_is_empty),
    scenario("xrc/error/unknown_queue", "IBTA annex Extended Reliable Connected: unknown XRC SRQ", unknown_queue),
    scenario(
        "xrc/error/queue_of_another_domain",
        "IBTA annex Extended Reliable Connected: XRC domain",
        queue_of_another_domain,
    ),
    scenario("xrc/error/queue_is_gone", "IBTA annex Extended Reliable Connected: unknown XRC SRQ", queue_is_gone),
    scenario("xrc/error/last_wqe_reached", "ibv_get_async_event(3) IBV_EVENT_QP_LAST_WQE_REACHED", last_wqe_reached),
    scenario(
        "xrc/domain/access_by_the_queues_domain",
        "IBTA annex Extended Reliable Connected: the SRQ's protection domain",
        access_domain,
    ),
    scenario("xrc/share/two_connections", "IBTA annex Extended Reliable Connected", two_connections),
    scenario("xrc/share/same_queue_in_turn", "IBTA annex Extended Reliable Connected", both_queues_alternately),
    scenario("xrc/post_send/no_queue_named", "rdma-verbs: an initiator's request names a queue", no_queue_named),
    scenario("xrc/post_send/queue_named_on_rc", "rdma-verbs: only an initiator's request does", queue_named_on_rc),
    scenario("xrc/post_send/to_target", "ibv_create_qp_ex(3): XRC_RECV has no send queue", post_send_to_target),
    scenario("xrc/post_recv/refused", "ibv_create_qp_ex(3): no receive queues", post_recv_refused),
    scenario("xrc/create_qp/target_without_domain", "ibv_create_qp_ex(3) xrcd", target_without_domain),
    scenario("xrc/create_qp/with_shared_queue", "ibv_create_qp_ex(3) srq", with_shared_queue),
    scenario("xrc/create_qp/xrc_queue_for_rc", "ibv_create_srq_ex(3) IBV_SRQT_XRC", xrc_queue_for_rc),
    scenario("xrc/create_srq/of_another_device", "ibv_create_srq_ex(3)", srq_of_another_device),
    scenario(
        "xrc/connect/two_of_a_kind",
        "IBTA annex Extended Reliable Connected: initiator and target",
        two_of_a_kind,
    ),
    scenario("xrc/reset/reconnected", "rdma-core: reusable in full", reconnected),
];

fn to_the_named_queue(world: &World) {
    let ends = Extended::new(world);
    ends.post(0, 1);
    ends.post(1, 2);
    ends.send(1, b"second");
    ends.received(1, 2, b"second");
    ends.sent(CompletionOpcode::Send);
    ends.send(0, b"first");
    ends.received(0, 1, b"first");
    ends.sent(CompletionOpcode::Send);
    ends.silent();
}

fn completes_on_the_queue_of_its_srq(world: &World) {
    let ends = Extended::new(world);
    ends.post(1, 2);
    ends.send(1, b"elsewhere");
    ends.sent(CompletionOpcode::Send);
    // The target was created with the first completion queue, which stays empty.
    silent(&ends.cqs[0]);
    ends.received(1, 2, b"elsewhere");
}

fn immediate(world: &World) {
    let ends = Extended::new(world);
    ends.post(0, 3);
    let request = SendRequest::send_with_immediate(Payload::inline(b"now"), 0x0a0b_0c0d);
    ends.request(request, ends.queues[0].number());
    let success = ends.completed(0, 3);
    assert_eq!((success.byte_len, success.immediate), (3, Some(0x0a0b_0c0d)));
    ends.sent(CompletionOpcode::Send);
}

fn many_packets(world: &World) {
    let ends = Extended::new(world);
    fill(&ends.outbox, 0, 30_001, 5);
    let rooms = [0..10_000, 20_000..50_000].map(|range| ends.inbox.slice(range).unwrap());
    ends.queues[1].post_recv(&[ReceiveRequest::new(&rooms).wr_id(4)]).unwrap();
    ends.request(SendRequest::send(ends.outbox.slice(..30_001).unwrap()), ends.queues[1].number());
    assert_eq!(ends.completed(1, 4).byte_len, 30_001);
    ends.sent(CompletionOpcode::Send);
    let whole = ends.outbox.to_vec(..30_001).unwrap();
    assert!(ends.inbox.to_vec(..10_000).unwrap() == whole[..10_000]);
    assert!(ends.inbox.to_vec(20_000..40_001).unwrap() == whole[10_000..]);
}

fn zero_bytes(world: &World) {
    let ends = Extended::new(world);
    ends.post(0, 3);
    ends.request(SendRequest::send(Payload::EMPTY), ends.queues[0].number());
    assert_eq!(ends.completed(0, 3).byte_len, 0);
    check_all(&ends.inbox, 0, 8 * ROOM, 0);
    ends.sent(CompletionOpcode::Send);
}

fn invalidate_of_wrong_key(world: &World) {
    let ends = Extended::new(world);
    ends.post(0, 3);
    ends.request(SendRequest::send_with_invalidate(Payload::EMPTY, Rkey(0x7777_7777)), ends.queues[0].number());
    let error = next(&ends.cqs[0]).result().unwrap_err();
    assert_eq!((error.wr_id, error.qpn), (3, ends.target.qpn()));
    assert_eq!(ends.target.state().unwrap(), QueuePairState::Error);
    assert!(next(&ends.sender_cq).result().is_err());
}

fn write_bytes(world: &World) {
    let ends = Extended::new(world);
    fill(&ends.outbox, 0, 20_000, 6);
    let request = SendRequest::write(ends.outbox.slice(..20_000).unwrap(), ends.inbox.remote().slice(64..).unwrap());
    ends.request(request, ends.queues[0].number());
    ends.sent(CompletionOpcode::Write);
    check_all(&ends.inbox, 0, 64, 0);
    check(&ends.inbox, 64, 20_000, 6);
    ends.silent();
}

fn write_with_immediate(world: &World) {
    let ends = Extended::new(world);
    ends.post(1, 2);
    let remote = ends.inbox.remote().slice(8192..).unwrap();
    ends.request(SendRequest::write_with_immediate(Payload::inline(b"bytes"), remote, 9), ends.queues[1].number());
    let success = ends.completed(1, 2);
    let found = (success.opcode, success.byte_len, success.immediate);
    assert_eq!(found, (CompletionOpcode::ReceiveWriteWithImmediate, 5, Some(9)));
    assert_eq!(ends.inbox.to_vec(8192..8197).unwrap(), b"bytes");
    check_all(&ends.inbox, 2 * ROOM, ROOM, 0);
    ends.sent(CompletionOpcode::Write);
}

fn read_bytes(world: &World) {
    let ends = Extended::new(world);
    fill(&ends.inbox, 0, 20_000, 7);
    let request = SendRequest::read(ends.outbox.slice(..20_000).unwrap(), ends.inbox.remote());
    ends.request(request, ends.queues[0].number());
    assert_eq!(ends.sent(CompletionOpcode::Read).byte_len, 20_000);
    check(&ends.outbox, 0, 20_000, 7);
    ends.silent();
}

fn atomics(world: &World) {
    let ends = Extended::new(world);
    let (word, result) = (ends.inbox.remote().slice(64..72).unwrap(), ends.outbox.slice(..8).unwrap());
    ends.inbox.write_at(64, &40u64.to_ne_bytes()).unwrap();
    ends.request(SendRequest::fetch_and_add(result, word, 2), ends.queues[0].number());
    ends.sent(CompletionOpcode::FetchAndAdd);
    assert_eq!(ends.outbox.to_vec(..8).unwrap(), 40u64.to_ne_bytes());
    ends.request(SendRequest::compare_and_swap(result, word, 42, 7), ends.queues[1].number());
    ends.sent(CompletionOpcode::CompareAndSwap);
    assert_eq!(ends.outbox.to_vec(..8).unwrap(), 42u64.to_ne_bytes());
    assert_eq!(ends.inbox.to_vec(64..72).unwrap(), 7u64.to_ne_bytes());
}

fn named_queue_is_empty(world: &World) {
    let ends = Extended::new(world);
    ends.post(0, 1);
    ends.send(1, b"waits");
    ends.silent();
    assert!(ends.target.counters().get(Counter::SentRnr) > 0);
    ends.post(1, 2);
    ends.received(1, 2, b"waits");
    ends.sent(CompletionOpcode::Send);
    ends.send(0, b"goes on");
    ends.received(0, 1, b"goes on");
}

fn unknown_queue(world: &World) {
    let ends = Extended::new(world);
    ends.post(0, 1);
    let nobodys = SharedReceiveQueueNumber::new(ends.queues[1].number().value() + 1000);
    ends.request(SendRequest::send(Payload::inline(b"x")), nobodys);
    ends.fails(CompletionStatus::RemoteInvalidRequestError);
    assert_eq!(ends.target.state().unwrap(), QueuePairState::Error);
    ends.silent();
}

fn queue_of_another_domain(world: &World) {
    let ends = Extended::new(world);
    let other = ends.context.open_xrcd().unwrap();
    let foreign =
        ends.pd.create_srq_with(4, 1, &SharedReceiveQueueOptions::default().xrc(&other, &ends.cqs[1])).unwrap();
    foreign.post_recv(&[ReceiveRequest::new(ends.inbox.slice(..ROOM).unwrap())]).unwrap();
    ends.request(SendRequest::send(Payload::inline(b"x")), foreign.number());
    ends.fails(CompletionStatus::RemoteInvalidRequestError);
    ends.silent();
}

fn queue_is_gone(world: &World) {
    let ends = Extended::new(world);
    let short =
        ends.pd.create_srq_with(4, 1, &SharedReceiveQueueOptions::default().xrc(&ends.domain, &ends.cqs[1])).unwrap();
    let number = short.number();
    short.post_recv(&[ReceiveRequest::new(ends.inbox.slice(..ROOM).unwrap()).wr_id(8)]).unwrap();
    ends.request(SendRequest::send(Payload::inline(b"x")), number);
    assert_eq!(ends.completed(1, 8).byte_len, 1);
    ends.sent(CompletionOpcode::Send);
    drop(short);
    ends.request(SendRequest::send(Payload::inline(b"y")), number);
    ends.fails(CompletionStatus::RemoteInvalidRequestError);
    ends.silent();
}

fn last_wqe_reached(world: &World) {
    let ends = Extended::new(world);
    ends.post(0, 1);
    let error = QueuePairAttributes::default().qp_state(QueuePairState::Error);
    ends.target.modify(&error).unwrap();
    let event = ends.context.wait_async_event(patience()).unwrap();
    assert_eq!(event, AsyncEvent::LastWorkQueueElementReached(ends.target.qpn()));
    ends.silent();
}

fn access_domain(world: &World) {
    let ends = Extended::new(world);
    let other = ends.context.alloc_pd().unwrap();
    let region = other.alloc_mr(64, ALL_ACCESS).unwrap();
    let queue =
        other.create_srq_with(4, 1, &SharedReceiveQueueOptions::default().xrc(&ends.domain, &ends.cqs[1])).unwrap();
    ends.request(SendRequest::write(Payload::inline(b"allowed"), region.remote()), queue.number());
    ends.sent(CompletionOpcode::Write);
    assert_eq!(region.to_vec(..7).unwrap(), b"allowed");
    ends.request(SendRequest::write(Payload::inline(b"refused"), region.remote()), ends.queues[0].number());
    ends.fails(CompletionStatus::RemoteAccessError);
    assert_eq!(region.to_vec(..7).unwrap(), b"allowed");
}

fn two_connections(world: &World) {
    let ends = Extended::new(world);
    let (target, initiator) = ends.another_connection(&ends.sender_cq);
    ends.post(0, 1);
    ends.post(0, 2);
    let request = SendRequest::send(Payload::inline(b"through the second")).remote_srq(ends.queues[0].number());
    initiator.post_send(&[request]).unwrap();
    let completion = next(&ends.cqs[0]);
    assert_eq!((completion.wr_id(), completion.qpn()), (1, target.qpn()));
    ends.send(0, b"through the first");
    ends.received(0, 2, b"through the first");
}

fn both_queues_alternately(world: &World) {
    let ends = Extended::new(world);
    for wr_id in 0..8 {
        ends.post(wr_id as usize % 2, wr_id);
    }
    let texts: Vec<[u8; 4]> = (0..8u32).map(u32::to_be_bytes).collect();
    let request =
        |wr_id: usize| SendRequest::send(Payload::inline(&texts[wr_id])).remote_srq(ends.queues[wr_id % 2].number());
    let requests: Vec<_> = (0..8).map(request).collect();
    ends.initiator.post_send(&requests).unwrap();
    for (wr_id, text) in texts.iter().enumerate() {
        ends.received(wr_id % 2, wr_id as u64, text);
    }
    ends.silent();
}

fn no_queue_named(world: &World) {
    let ends = Extended::new(world);
    let posted = ends.initiator.post_send(&[SendRequest::send(Payload::inline(b"x"))]);
    refused(posted, ErrorKind::InvalidArgument, &["post_send", "remote_srq"]);
    ends.post(0, 1);
    ends.send(0, b"named");
    ends.received(0, 1, b"named");
}

fn queue_named_on_rc(world: &World) {
    let (left, right) = world.pair();
    let number = SharedReceiveQueueNumber::new(5);
    let posted = left.qp.post_send(&[SendRequest::send(Payload::inline(b"x")).remote_srq(number)]);
    refused(posted, ErrorKind::InvalidArgument, &["post_send", "0x000005", "remote_srq"]);
    right.silent();
}

fn post_send_to_target(world: &World) {
    let ends = Extended::new(world);
    let number = ends.queues[0].number();
    for request in [SendRequest::send(Payload::EMPTY), SendRequest::send(Payload::EMPTY).remote_srq(number)] {
        refused(ends.target.post_send(&[request]), ErrorKind::InvalidArgument, &["post_send", "XRC target"]);
    }
}

fn post_recv_refused(world: &World) {
    let ends = Extended::new(world);
    let here = ReceiveRequest::new(ends.inbox.slice(..8).unwrap());
    refused(ends.target.post_recv(&[here]), ErrorKind::InvalidArgument, &["post_recv", "XRC target"]);
    let there = ReceiveRequest::new(ends.outbox.slice(..8).unwrap());
    refused(ends.initiator.post_recv(&[there]), ErrorKind::InvalidArgument, &["post_recv", "XRC initiator"]);
}

fn target_without_domain(world: &World) {
    let ends = Extended::new(world);
    let options = QueuePairOptions::default().qp_type(QueuePairType::XrcReceive);
    let built = ends.pd.create_qp_with(&ends.cqs[0], &ends.cqs[0], &options);
    refused(built, ErrorKind::InvalidArgument, &["create_qp", "xrc_domain"]);
    let options = QueuePairOptions::default().xrc_target(&ends.domain).qp_type(QueuePairType::ReliableConnection);
    let built = ends.pd.create_qp_with(&ends.cqs[0], &ends.cqs[0], &options);
    refused(built, ErrorKind::InvalidArgument, &["create_qp", "xrc_domain"]);
}

fn with_shared_queue(world: &World) {
    let ends = Extended::new(world);
    let plain = ends.pd.create_srq(4, 1).unwrap();
    let options = QueuePairOptions::default().srq(&plain);
    let built = ends.pd.create_qp_with(&ends.cqs[0], &ends.cqs[0], &options.clone().qp_type(QueuePairType::XrcSend));
    refused(built, ErrorKind::InvalidArgument, &["create_qp", "srq"]);
    let built = ends.pd.create_qp_with(&ends.cqs[0], &ends.cqs[0], &options.xrc_target(&ends.domain));
    refused(built, ErrorKind::InvalidArgument, &["create_qp", "srq"]);
}

fn xrc_queue_for_rc(world: &World) {
    let ends = Extended::new(world);
    let built = ends.pd.create_qp_with(&ends.cqs[0], &ends.cqs[0], &QueuePairOptions::default().srq(&ends.queues[0]));
    refused(built, ErrorKind::InvalidArgument, &["create_qp", "srq", "XRC"]);
}

fn srq_of_another_device(world: &World) {
    let ends = Extended::new(world);
    let other = world.device(2);
    let (pd, cq) = (other.alloc_pd().unwrap(), other.create_cq(4).unwrap());
    let built = pd.create_srq_with(4, 1, &SharedReceiveQueueOptions::default().xrc(&ends.domain, &cq));
    refused(built, ErrorKind::InvalidArgument, &["create_srq", "xrc_domain"]);
    let built = ends.pd.create_srq_with(4, 1, &SharedReceiveQueueOptions::default().xrc(&ends.domain, &cq));
    refused(built, ErrorKind::InvalidArgument, &["create_srq", "cq"]);
}

fn two_of_a_kind(world: &World) {
    let ends = Extended::new(world);
    let options = QueuePairOptions::default().qp_type(QueuePairType::XrcSend);
    let initiator = ends.sender_pd.create_qp_with(&ends.sender_cq, &ends.sender_cq, &options).unwrap();
    let peer = ends.initiator.connection_info().unwrap();
    refused(initiator.connect(&peer), ErrorKind::InvalidArgument, &["connect", "XrcSend"]);
    assert_eq!(initiator.state().unwrap(), QueuePairState::Reset);
}

fn reconnected(world: &World) {
    let ends = Extended::new(world);
    ends.post(0, 1);
    ends.post(0, 2);
    ends.send(0, b"before");
    ends.received(0, 1, b"before");
    ends.sent(CompletionOpcode::Send);
    ends.target.reset().unwrap();
    ends.initiator.reset().unwrap();
    connect(&ends.target, &ends.initiator, &ConnectOptions::default());
    ends.send(0, b"after");
    ends.received(0, 2, b"after");
    ends.sent(CompletionOpcode::Send);
}
