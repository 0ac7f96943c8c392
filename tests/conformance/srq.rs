//! Shared receive queues: which queue pair consumes which receive, and its contents.

use rdma_verbs::verbs::{
    AccessFlags, CompletionOpcode, CompletionStatus, ConnectOptions, Counter, ErrorKind, Payload, QueuePairOptions,
    QueuePairState, QueuePairType, ReceiveRequest, RegionList, SendRequest, SharedReceiveQueueOptions,
};

use super::bytes::{check, check_all, fill};
use super::deviations::SHARED_DOMAIN_IGNORED;
use super::end::{ALL_ACCESS, next, receive_without_memory, refused, silent, too_long_for_peer, too_short};
use super::sharing::{MAX_SRQ, ROOM, Sharing, connect, ends};
use super::suite::Scenario;
use super::world::World;

const fn scenario(name: &'static str, clause: &'static str, run: fn(&World)) -> Scenario {
    Scenario { name, clause, needs: &[MAX_SRQ], run }
}

pub(crate) const SCENARIOS: &[Scenario] = &[
    scenario(
        "srq/share/taken_in_order",
        "IBTA chapter Shared Receive Queue: taken in the order of posting",
        taken_in_order,
    ),
    scenario("srq/share/eight_queue_pairs", "IBTA chapter Shared Receive Queue; ibv_create_srq(3)", eight_queue_pairs),
    scenario("srq/share/with_queue_pair_of_own_queue", "IBTA chapter Shared Receive Queue", beside_own_queue),
    scenario(
        "srq/share/long_messages_at_once",
        "IBTA chapter Shared Receive Queue: a WQE belongs to its message",
        long_at_once,
    ),
    scenario("srq/share/with_itself", "rdma-core: self-connection", with_itself),
    scenario("srq/recv/several_ranges", "ibv_post_srq_recv(3) sg_list", several_ranges),
    scenario("srq/recv/zero_bytes", "ibv_post_recv(3): num_sge 0", zero_bytes),
    scenario("srq/recv/immediate", "ibv_poll_cq(3) imm_data", immediate),
    scenario("srq/recv/write_with_immediate", "ibv_poll_cq(3) IBV_WC_RECV_RDMA_WITH_IMM", write_with_immediate),
    scenario("srq/recv/one_sided_take_none", "IBTA chapter Shared Receive Queue", one_sided_take_none),
    scenario("srq/recv/too_small", "rdma-core; ibv_poll_cq(3) IBV_WC_LOC_LEN_ERR", too_small),
    scenario("srq/recv/memory_gone", "rdma-core: keys are checked when the packet arrives", memory_gone),
    scenario("srq/rnr/empty_is_no_loss", "rdma-core: empty SRQ is an RNR NAK, not a drop", empty_is_no_loss),
    scenario("srq/rnr/exceeded", "Linux rxe; ibv_modify_qp(3) rnr_retry", rnr_exceeded),
    scenario("srq/rnr/last_goes_to_one", "IBTA chapter Shared Receive Queue", last_goes_to_one),
    scenario("srq/uc/takes_and_drops", "Linux rxe: no receive, message dropped", unreliable),
    scenario("srq/post/before_queue_pairs", "ibv_post_srq_recv(3)", before_queue_pairs),
    scenario("srq/post/all_or_none", "rdma-core: ENOMEM from a full queue", all_or_none),
    scenario("srq/post/slot_free_when_taken", "IBTA chapter Shared Receive Queue", slot_free_when_taken),
    scenario("srq/post/too_many_ranges", "ibv_post_srq_recv(3) max_sge", too_many_ranges),
    scenario(
        "srq/post/foreign_domain",
        "IBTA chapter Shared Receive Queue: the SRQ's protection domain",
        foreign_domain,
    ),
    scenario("srq/post/memory_not_writable", "ibv_reg_mr(3) IBV_ACCESS_LOCAL_WRITE", memory_not_writable),
    scenario(
        "srq/post/own_receive_queue",
        "ibv_post_recv(3): a QP with an SRQ has no receive queue",
        own_receive_queue,
    ),
    scenario("srq/post/dropped_batch", "ibv_wr_abort(3)", dropped_batch),
    scenario("srq/post/second_batch", "rdma-verbs: a batch belongs to its thread", second_batch),
    scenario("srq/domain/of_the_queue", "IBTA chapter Shared Receive Queue", domain_of_the_queue),
    scenario(
        "srq/domain/remote_access_is_the_queue_pairs",
        "ibv_reg_mr(3), ibv_create_qp(3): one protection domain",
        remote_access_domain,
    ),
];

fn taken_in_order(world: &World) {
    let sharing = Sharing::new(world, 2);
    sharing.post(0..4);
    for (wr_id, receiver) in [(0, 0), (1, 1), (2, 1), (3, 0)] {
        let text = format!("message {wr_id}");
        sharing.send(receiver, text.as_bytes());
        sharing.received(wr_id, receiver, text.as_bytes());
    }
    silent(&sharing.cq);
}

fn eight_queue_pairs(world: &World) {
    let sharing = Sharing::new(world, 8);
    for round in 0..3u8 {
        sharing.post(0..8);
        (0..8).for_each(|peer| sharing.send(peer, &[peer as u8, round]));
        let mut seen = [false; 8];
        for _ in 0..8 {
            let completion = next(&sharing.cq);
            let wr_id = completion.wr_id() as usize;
            let bytes = sharing.inbox.to_vec(wr_id * ROOM..wr_id * ROOM + 2).unwrap();
            assert_eq!(completion.result().unwrap().byte_len, 2);
            assert_eq!(bytes[1], round);
            assert_eq!(sharing.receivers[usize::from(bytes[0])].qpn(), completion.qpn());
            assert!(!std::mem::replace(&mut seen[wr_id], true), "receive {wr_id} completed twice");
        }
    }
    silent(&sharing.cq);
}

fn beside_own_queue(world: &World) {
    let sharing = Sharing::new(world, 1);
    let own = sharing.pd.create_qp(&sharing.cq, &sharing.cq).unwrap();
    let peer = sharing.sender_pd.create_qp(&sharing.sender_cq, &sharing.sender_cq).unwrap();
    connect(&own, &peer, &ConnectOptions::default());
    sharing.post([1]);
    own.post_recv(&[ReceiveRequest::new(sharing.inbox.slice(..ROOM).unwrap()).wr_id(50)]).unwrap();
    peer.post_send(&[SendRequest::send(Payload::inline(b"own"))]).unwrap();
    let completion = next(&sharing.cq);
    assert_eq!((completion.wr_id(), completion.qpn()), (50, own.qpn()));
    check_all(&sharing.inbox, ROOM, ROOM, 0);
    sharing.send(0, b"shared");
    sharing.received(1, 0, b"shared");
}

fn long_at_once(world: &World) {
    const LENGTH: usize = 24_000;
    let sharing = Sharing::new(world, 2);
    let source = sharing.sender_pd.alloc_mr(2 * LENGTH, ALL_ACCESS).unwrap();
    fill(&source, 0, LENGTH, 1);
    fill(&source, LENGTH, LENGTH, 2);
    let rooms = [0..LENGTH, LENGTH..2 * LENGTH].map(|range| sharing.inbox.slice(range).unwrap());
    sharing.srq.post_recv(&[ReceiveRequest::new(rooms[0]).wr_id(0), ReceiveRequest::new(rooms[1]).wr_id(1)]).unwrap();
    for (peer, start) in [(0, 0), (1, LENGTH)] {
        let part = source.slice(start..start + LENGTH).unwrap();
        sharing.senders[peer].post_send(&[SendRequest::send(part)]).unwrap();
    }
    let mut wr_ids = Vec::new();
    for _ in 0..2 {
        let completion = next(&sharing.cq);
        assert_eq!(completion.result().unwrap().byte_len as usize, LENGTH);
        let receiver = sharing.receivers.iter().position(|qp| qp.qpn() == completion.qpn()).unwrap();
        check(&sharing.inbox, completion.wr_id() as usize * LENGTH, LENGTH, receiver as u64 + 1);
        wr_ids.push(completion.wr_id());
    }
    wr_ids.sort_unstable();
    assert_eq!(wr_ids, [0, 1]);
}

fn with_itself(world: &World) {
    let sharing = Sharing::new(world, 0);
    let qp =
        sharing.pd.create_qp_with(&sharing.cq, &sharing.cq, &QueuePairOptions::default().srq(&sharing.srq)).unwrap();
    qp.connect(&qp.connection_info().unwrap()).unwrap();
    sharing.post([3]);
    qp.post_send(&[SendRequest::send(Payload::inline(b"to myself")).wr_id(9).signaled()]).unwrap();
    let mut wr_ids = [next(&sharing.cq), next(&sharing.cq)].map(|completion| completion.wr_id());
    wr_ids.sort_unstable();
    assert_eq!(wr_ids, [3, 9]);
    assert_eq!(sharing.inbox.to_vec(3 * ROOM..3 * ROOM + 9).unwrap(), b"to myself");
}

fn several_ranges(world: &World) {
    let sharing = Sharing::new(world, 1);
    let ranges = [10..13, 100..101, 50..60].map(|range| sharing.inbox.slice(range).unwrap());
    sharing.srq.post_recv(&[ReceiveRequest::new(&ranges).wr_id(4)]).unwrap();
    sharing.send(0, b"abcdefg");
    assert_eq!(sharing.completed(4, 0).byte_len, 7);
    for (start, bytes) in [(10, &b"abc"[..]), (100, b"d"), (50, b"efg\0")] {
        assert_eq!(sharing.inbox.to_vec(start..start + bytes.len()).unwrap(), bytes);
    }
}

fn zero_bytes(world: &World) {
    let sharing = Sharing::new(world, 1);
    sharing.srq.post_recv(&[ReceiveRequest::new(RegionList::EMPTY).wr_id(1)]).unwrap();
    sharing.post([2]);
    sharing.senders[0].post_send(&[SendRequest::send(Payload::EMPTY), SendRequest::send(Payload::EMPTY)]).unwrap();
    assert_eq!(sharing.completed(1, 0).byte_len, 0);
    assert_eq!(sharing.completed(2, 0).byte_len, 0);
    check_all(&sharing.inbox, 0, 4 * ROOM, 0);
}

fn immediate(world: &World) {
    let sharing = Sharing::new(world, 2);
    sharing.post([5]);
    sharing.senders[1].post_send(&[SendRequest::send_with_immediate(Payload::inline(b"x"), 0x0102_0304)]).unwrap();
    let success = sharing.completed(5, 1);
    assert_eq!((success.opcode, success.byte_len), (CompletionOpcode::Receive, 1));
    assert_eq!(success.immediate, Some(0x0102_0304));
}

fn write_with_immediate(world: &World) {
    let sharing = Sharing::new(world, 1);
    sharing.post([5, 6]);
    let remote = sharing.inbox.remote().slice(4096..).unwrap();
    let write = SendRequest::write_with_immediate(Payload::inline(b"written"), remote, 77);
    sharing.senders[0].post_send(&[write]).unwrap();
    let success = sharing.completed(5, 0);
    assert_eq!((success.opcode, success.byte_len), (CompletionOpcode::ReceiveWriteWithImmediate, 7));
    assert_eq!(success.immediate, Some(77));
    check_all(&sharing.inbox, 5 * ROOM, ROOM, 0);
    assert_eq!(sharing.inbox.to_vec(4096..4103).unwrap(), b"written");
    sharing.send(0, b"next");
    sharing.received(6, 0, b"next");
}

fn one_sided_take_none(world: &World) {
    let sharing = Sharing::new(world, 1);
    let local = sharing.sender_pd.alloc_mr(64, ALL_ACCESS).unwrap();
    let remote = sharing.inbox.remote();
    sharing.post([1]);
    let (word, rest) = (local.slice(..8).unwrap(), local.slice(8..).unwrap());
    let requests = [
        SendRequest::write(Payload::inline(b"12345678"), remote.slice(8192..).unwrap()),
        SendRequest::read(rest, remote.slice(8192..).unwrap()),
        SendRequest::fetch_and_add(word, remote.slice(8192..).unwrap(), 0).wr_id(3).signaled(),
    ];
    sharing.senders[0].post_send(&requests).unwrap();
    assert_eq!(next(&sharing.sender_cq).wr_id(), 3);
    silent(&sharing.cq);
    sharing.send(0, b"takes it");
    sharing.received(1, 0, b"takes it");
}

fn too_small(world: &World) {
    let sharing = Sharing::new(world, 2);
    sharing.srq.post_recv(&[ReceiveRequest::new(sharing.inbox.slice(..3).unwrap()).wr_id(8)]).unwrap();
    sharing.send(0, b"four");
    let error = next(&sharing.cq).result().unwrap_err();
    let expected = (8, sharing.receivers[0].qpn(), too_short());
    assert_eq!((error.wr_id, error.qpn, error.status), expected);
    let error = next(&sharing.sender_cq).result().unwrap_err();
    assert_eq!(error.status, too_long_for_peer());
    ends(&sharing.receivers[0]);
    sharing.works(1, 9);
}

fn memory_gone(world: &World) {
    let sharing = Sharing::new(world, 2);
    let region = sharing.pd.alloc_mr(64, AccessFlags::LOCAL_WRITE).unwrap();
    sharing.srq.post_recv(&[ReceiveRequest::new(&region).wr_id(8)]).unwrap();
    region.dereg().unwrap();
    sharing.send(1, b"nowhere");
    let error = next(&sharing.cq).result().unwrap_err();
    let expected = (8, sharing.receivers[1].qpn(), receive_without_memory());
    assert_eq!((error.wr_id, error.qpn, error.status), expected);
    let error = next(&sharing.sender_cq).result().unwrap_err();
    assert_eq!(error.status, CompletionStatus::RemoteOperationError);
    sharing.works(0, 9);
}

fn empty_is_no_loss(world: &World) {
    let sharing = Sharing::new(world, 2);
    sharing.send(0, b"early");
    silent(&sharing.cq);
    let counts = sharing.context.query_device().packet_counters;
    assert!(!counts || sharing.receivers[0].counters().get(Counter::SentRnr) > 0);
    sharing.post([1]);
    sharing.received(1, 0, b"early");
    assert!(!counts || sharing.senders[0].counters().get(Counter::ReceivedRnr) > 0);
    sharing.works(1, 2);
}

fn rnr_exceeded(world: &World) {
    let options = ConnectOptions::default().rnr_retry(1).min_rnr_timer(1);
    let sharing = Sharing::with(world, 2, &options, 16, &SharedReceiveQueueOptions::default());
    sharing.send(0, b"too early");
    let error = next(&sharing.sender_cq).result().unwrap_err();
    assert_eq!(error.status, CompletionStatus::ReceiverNotReadyRetryExceededError);
    assert_eq!(sharing.senders[0].state().unwrap(), QueuePairState::Error);
    assert_eq!(sharing.receivers[0].state().unwrap(), QueuePairState::ReadyToSend);
    silent(&sharing.cq);
    sharing.works(1, 2);
}

fn last_goes_to_one(world: &World) {
    let sharing = Sharing::new(world, 2);
    sharing.post([1]);
    sharing.send(0, b"first");
    sharing.received(1, 0, b"first");
    sharing.send(1, b"second");
    silent(&sharing.cq);
    sharing.post([2]);
    sharing.received(2, 1, b"second");
}

fn unreliable(world: &World) {
    let sharing = Sharing::new(world, 0);
    let kind = QueuePairType::UnreliableConnection;
    let receiver = sharing
        .pd
        .create_qp_with(&sharing.cq, &sharing.cq, &QueuePairOptions::default().qp_type(kind).srq(&sharing.srq))
        .unwrap();
    let sender = sharing
        .sender_pd
        .create_qp_with(&sharing.sender_cq, &sharing.sender_cq, &QueuePairOptions::default().qp_type(kind))
        .unwrap();
    connect(&receiver, &sender, &ConnectOptions::default());
    sender.post_send(&[SendRequest::send(Payload::inline(b"lost"))]).unwrap();
    silent(&sharing.cq);
    sharing.post([1]);
    sender.post_send(&[SendRequest::send(Payload::inline(b"taken"))]).unwrap();
    let completion = next(&sharing.cq);
    assert_eq!((completion.wr_id(), completion.qpn()), (1, receiver.qpn()));
    assert_eq!(completion.result().unwrap().byte_len, 5);
    assert_eq!(sharing.inbox.to_vec(ROOM..ROOM + 5).unwrap(), b"taken");
}

fn before_queue_pairs(world: &World) {
    let mut sharing = Sharing::new(world, 0);
    sharing.post([1, 2]);
    sharing.connect_one(&ConnectOptions::default());
    sharing.send(0, b"one");
    sharing.received(1, 0, b"one");
    sharing.connect_one(&ConnectOptions::default());
    sharing.send(1, b"two");
    sharing.received(2, 1, b"two");
}

fn all_or_none(world: &World) {
    let sharing = Sharing::new(world, 1);
    let room = sharing.inbox.slice(..ROOM).unwrap();
    let most = sharing.srq.query().unwrap().max_wr;
    let requests: Vec<_> = (0..=most).map(|wr_id| ReceiveRequest::new(room).wr_id(wr_id.into())).collect();
    refused(sharing.srq.post_recv(&requests), ErrorKind::QueueFull, &["post_srq_recv", &most.to_string()]);
    sharing.post([9]);
    sharing.send(0, b"only one");
    sharing.received(9, 0, b"only one");
    sharing.srq.post_recv(&requests[1..]).unwrap();
}

fn slot_free_when_taken(world: &World) {
    let sharing = Sharing::with(world, 1, &ConnectOptions::default(), 2, &SharedReceiveQueueOptions::default());
    let most = sharing.srq.query().unwrap().max_wr;
    sharing.post(0..most.into());
    let room = sharing.inbox.slice(..ROOM).unwrap();
    refused(sharing.srq.post_recv(&[ReceiveRequest::new(room)]), ErrorKind::QueueFull, &[&most.to_string()]);
    for wr_id in 0..20 {
        sharing.send(0, &[wr_id as u8; 20]);
        sharing.received(wr_id, 0, &[wr_id as u8; 20]);
        sharing.post([wr_id + u64::from(most)]);
    }
}

fn too_many_ranges(world: &World) {
    let sharing = Sharing::new(world, 1);
    let ranges = [0..1, 1..2, 2..3, 3..4, 4..5].map(|range| sharing.inbox.slice(range).unwrap());
    let posted = sharing.srq.post_recv(&[ReceiveRequest::new(&ranges)]);
    refused(posted, ErrorKind::InvalidArgument, &["post_srq_recv", "5", "4"]);
    sharing.works(0, 1);
}

fn foreign_domain(world: &World) {
    let sharing = Sharing::new(world, 1);
    let other = sharing.context.alloc_pd().unwrap();
    let region = other.alloc_mr(64, AccessFlags::LOCAL_WRITE).unwrap();
    let posted = sharing.srq.post_recv(&[ReceiveRequest::new(&region)]);
    refused(posted, ErrorKind::InvalidArgument, &["post_srq_recv", "protection domain"]);
    sharing.works(0, 1);
}

fn memory_not_writable(world: &World) {
    let sharing = Sharing::new(world, 1);
    let region = sharing.pd.alloc_mr(64, AccessFlags::REMOTE_READ).unwrap();
    let posted = sharing.srq.post_recv(&[ReceiveRequest::new(&region)]);
    refused(posted, ErrorKind::InvalidArgument, &["post_srq_recv", "LOCAL_WRITE"]);
    sharing.works(0, 1);
}

fn own_receive_queue(world: &World) {
    let sharing = Sharing::new(world, 1);
    let room = sharing.inbox.slice(..ROOM).unwrap();
    let number = sharing.srq.number().to_string();
    let posted = sharing.receivers[0].post_recv(&[ReceiveRequest::new(room)]);
    refused(posted, ErrorKind::InvalidArgument, &["post_recv", "shared receive queue", &number]);
    silent(&sharing.cq);
    sharing.works(0, 1);
}

fn dropped_batch(world: &World) {
    let sharing = Sharing::new(world, 1);
    let mut batch = sharing.srq.recv_batch().unwrap();
    batch.push(&ReceiveRequest::new(sharing.inbox.slice(..ROOM).unwrap()).wr_id(77)).unwrap();
    assert_eq!((batch.len(), batch.is_empty()), (1, false));
    drop(batch);
    sharing.send(0, b"waits");
    silent(&sharing.cq);
    sharing.post([1]);
    sharing.received(1, 0, b"waits");
}

fn second_batch(world: &World) {
    let sharing = Sharing::new(world, 1);
    let mut batch = sharing.srq.recv_batch().unwrap();
    refused(sharing.srq.recv_batch(), ErrorKind::InvalidState, &["post_srq_recv", "open batch"]);
    batch.push(&ReceiveRequest::new(sharing.inbox.slice(..ROOM).unwrap()).wr_id(0)).unwrap();
    batch.post().unwrap();
    sharing.send(0, b"posted");
    sharing.received(0, 0, b"posted");
}

fn domain_of_the_queue(world: &World) {
    let sharing = Sharing::new(world, 0);
    let other = sharing.context.alloc_pd().unwrap();
    let receiver =
        other.create_qp_with(&sharing.cq, &sharing.cq, &QueuePairOptions::default().srq(&sharing.srq)).unwrap();
    let sender = sharing.sender_pd.create_qp(&sharing.sender_cq, &sharing.sender_cq).unwrap();
    connect(&receiver, &sender, &ConnectOptions::default());
    sharing.post([2]);
    sender.post_send(&[SendRequest::send(Payload::inline(b"across"))]).unwrap();
    let completion = next(&sharing.cq);
    assert_eq!((completion.wr_id(), completion.qpn()), (2, receiver.qpn()));
    if SHARED_DOMAIN_IGNORED.holds() {
        return assert_eq!(completion.status(), CompletionStatus::LocalQueuePairOperationError);
    }
    completion.result().unwrap();
    assert_eq!(sharing.inbox.to_vec(2 * ROOM..2 * ROOM + 6).unwrap(), b"across");
}

fn remote_access_domain(world: &World) {
    let sharing = Sharing::new(world, 0);
    let other = sharing.context.alloc_pd().unwrap();
    let allowed = other.alloc_mr(64, ALL_ACCESS).unwrap();
    let receiver =
        other.create_qp_with(&sharing.cq, &sharing.cq, &QueuePairOptions::default().srq(&sharing.srq)).unwrap();
    let sender = sharing.sender_pd.create_qp(&sharing.sender_cq, &sharing.sender_cq).unwrap();
    connect(&receiver, &sender, &ConnectOptions::default());
    let write = |remote| SendRequest::write(Payload::inline(b"data"), remote).signaled();
    sender.post_send(&[write(allowed.remote())]).unwrap();
    next(&sharing.sender_cq).result().unwrap();
    assert_eq!(allowed.to_vec(..4).unwrap(), b"data");
    sender.post_send(&[write(sharing.inbox.remote())]).unwrap();
    let error = next(&sharing.sender_cq).result().unwrap_err();
    assert_eq!(error.status, CompletionStatus::RemoteAccessError);
    check_all(&sharing.inbox, 0, 64, 0);
}
