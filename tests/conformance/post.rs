//! Requests that posting refuses, without any effect.

use rdma_verbs::verbs::{
    AccessFlags, ConnectOptions, ErrorKind, Payload, QueuePairCapabilities, ReceiveRequest, RegionList, RemoteMemory,
    SendRequest,
};

use super::bytes::check_all;
use super::end::{ALL_ACCESS, End, Shape, refused};
use super::suite::Scenario;
use super::world::World;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("post/send/in_reset_and_init", "IBTA, queue pair states; ibv_post_send(3) EINVAL", send_too_early),
    Scenario::new("post/send/in_rtr", "IBTA, queue pair states: sends from RTS on", send_in_rtr),
    Scenario::new("post/recv/from_init_on", "IBTA, queue pair states: receives from INIT on", recv_from_init),
    Scenario::new("post/send/full_queue", "ibv_post_send(3) ENOMEM", full_send_queue),
    Scenario::new("post/recv/full_queue", "ibv_post_recv(3) ENOMEM", full_receive_queue),
    Scenario::new("post/send/too_many_sges", "ibv_post_send(3) num_sge; max_send_sge", too_many_send_sges),
    Scenario::new("post/recv/too_many_sges", "ibv_post_recv(3) num_sge; max_recv_sge", too_many_receive_sges),
    Scenario::new("post/send/inline_too_long", "ibv_post_send(3) IBV_SEND_INLINE; max_inline_data", inline_too_long),
    Scenario::new("post/send/more_than_the_peer_has", "API: RemoteMemory has a length", more_than_the_peer_has),
    Scenario::new(
        "post/send/batch_is_all_or_nothing",
        "ibv_wr_complete(3): nothing is posted on error",
        all_or_nothing,
    ),
    Scenario::new("post/recv/batch_is_all_or_nothing", "API: post_recv posts all or none", receive_all_or_nothing),
    Scenario::new("post/send/batch_can_be_dropped", "ibv_wr_abort(3)", dropped_batch),
    Scenario::new("post/send/batch_goes_on_after_a_refusal", "API: SendBatch::push", goes_on),
    Scenario::new("post/send/one_batch_a_thread", "API: SendBatch belongs to its thread", one_batch),
    Scenario::new("post/send/empty_batch", "ibv_wr_complete(3) without requests", empty_batch),
    Scenario::new(
        "post/send/read_needs_a_writable_region",
        "IBTA, memory management: local write; ibv_reg_mr(3)",
        read_only_result,
    ),
    Scenario::new(
        "post/recv/needs_a_writable_region",
        "IBTA, memory management: local write; ibv_reg_mr(3)",
        read_only_inbox,
    ),
    Scenario::new("post/send/revoked_region", "ibv_dereg_mr(3)", revoked_region),
    Scenario::new("post/recv/revoked_region", "ibv_dereg_mr(3)", revoked_inbox),
];

fn empty() -> SendRequest<'static> {
    SendRequest::send(Payload::EMPTY)
}

fn send_too_early(world: &World) {
    let end = world.end(0, &Shape::default());
    refused(end.qp.post_send(&[empty()]), ErrorKind::InvalidState, &["post_send", "RESET", "RTS"]);
    end.qp.init().unwrap();
    refused(end.qp.post_send(&[empty()]), ErrorKind::InvalidState, &["post_send", "INIT", "RTS"]);
    end.silent();
}

fn send_in_rtr(world: &World) {
    let (left, right) = (world.end(0, &Shape::default()), world.end(1, &Shape::default()));
    let attributes = super::connect::ready_to_receive(&left, &right);
    left.qp.init().unwrap();
    left.qp.modify(&attributes).unwrap();
    refused(left.qp.post_send(&[empty()]), ErrorKind::InvalidState, &["post_send", "RTR", "RTS"]);
    left.receive(1, 0..8);
    left.silent();
}

fn recv_from_init(world: &World) {
    let (left, right) = (world.end(0, &Shape::default()), world.end(1, &Shape::default()));
    let receive = ReceiveRequest::new(RegionList::EMPTY);
    refused(right.qp.post_recv(&[receive]), ErrorKind::InvalidState, &["post_recv", "RESET", "INIT"]);
    right.qp.init().unwrap();
    right.receive(1, 0..8);
    super::world::connect(&left, &right, &ConnectOptions::default());
    left.post(&[SendRequest::send(Payload::inline(b"early"))]);
    right.received(1, 5);
}

fn small() -> Shape {
    let cap =
        QueuePairCapabilities { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 16 };
    Shape { cap, ..Shape::default() }
}

fn small_pair(world: &World) -> (End, End) {
    world.pair_of(&small(), &ConnectOptions::default())
}

fn full_send_queue(world: &World) {
    let (left, right) = small_pair(world);
    let slots = left.qp.cap().max_send_wr;
    // Without a receive, nothing completes.
    (0..slots).for_each(|wr_id| left.post(&[empty().wr_id(wr_id.into()).signaled()]));
    refused(left.qp.post_send(&[empty().wr_id(99)]), ErrorKind::QueueFull, &["post_send", &slots.to_string()]);
    (0..slots).for_each(|wr_id| right.receive(wr_id.into(), 0..8));
    (0..slots).for_each(|wr_id| left.sent(wr_id.into()));
    (0..slots).for_each(|wr_id| right.received(wr_id.into(), 0));
    left.silent();
    right.silent();
}

fn full_receive_queue(world: &World) {
    let (left, right) = small_pair(world);
    let slots = u64::from(right.qp.cap().max_recv_wr);
    (0..slots).for_each(|wr_id| right.receive(wr_id, 0..8));
    let more = ReceiveRequest::new(RegionList::EMPTY).wr_id(99);
    refused(right.qp.post_recv(&[more]), ErrorKind::QueueFull, &["post_recv", &slots.to_string()]);
    (0..slots).for_each(|_| left.post(&[empty()]));
    (0..slots).for_each(|wr_id| right.received(wr_id, 0));
    right.silent();
    right.qp.post_recv(&[more]).unwrap();
}

fn too_many_send_sges(world: &World) {
    let (left, right) = small_pair(world);
    let limit = left.qp.cap().max_send_sge as usize;
    let pieces = vec![left.at(0..1); limit + 1];
    let limit = limit.to_string();
    let invalid = ErrorKind::InvalidArgument;
    refused(left.qp.post_send(&[SendRequest::send(&pieces[..])]), invalid, &["post_send", &limit]);
    refused(left.qp.post_send(&[SendRequest::write(&pieces[..], right.far(0..64))]), invalid, &["post_send", &limit]);
    refused(left.qp.post_send(&[SendRequest::read(&pieces[..], right.far(0..64))]), invalid, &["post_send", &limit]);
    left.silent();
}

fn too_many_receive_sges(world: &World) {
    let (_left, right) = small_pair(world);
    let limit = right.qp.cap().max_recv_sge as usize;
    let pieces = vec![right.at(0..1); limit + 1];
    let result = right.qp.post_recv(&[ReceiveRequest::new(&pieces[..])]);
    refused(result, ErrorKind::InvalidArgument, &["post_recv", &limit.to_string()]);
}

fn inline_too_long(world: &World) {
    let (left, right) = small_pair(world);
    let limit = left.qp.cap().max_inline_data as usize;
    let bytes = vec![1; limit + 1];
    let names = ["post_send", "inline", &limit.to_string(), &(limit + 1).to_string()];
    let invalid = ErrorKind::InvalidArgument;
    refused(left.qp.post_send(&[SendRequest::send(Payload::inline(&bytes))]), invalid, &names);
    let write = SendRequest::write(Payload::inline(&bytes), right.far(0..1000));
    refused(left.qp.post_send(&[write]), invalid, &names);
    check_all(&right.region, 0, 64, 0);
}

fn more_than_the_peer_has(world: &World) {
    let (left, right) = world.pair();
    let remote = right.far(0..10);
    let invalid = ErrorKind::InvalidArgument;
    refused(left.qp.post_send(&[SendRequest::write(left.at(0..11), remote)]), invalid, &["11", "10"]);
    refused(left.qp.post_send(&[SendRequest::read(left.at(0..11), remote)]), invalid, &["11", "10"]);
    let word = SendRequest::fetch_and_add(left.at(0..8), right.far(0..7), 1);
    refused(left.qp.post_send(&[word]), invalid, &["8", "7"]);
    check_all(&right.region, 0, 16, 0);
}

fn all_or_nothing(world: &World) {
    let (left, right) = world.pair();
    let good = SendRequest::write(Payload::inline(&[1; 8]), right.far(0..8)).wr_id(1).signaled();
    let bad = SendRequest::write(Payload::inline(&[1; 8]), right.far(0..7)).wr_id(2);
    refused(left.qp.post_send(&[good, good, bad]), ErrorKind::InvalidArgument, &["post_send"]);
    left.silent();
    check_all(&right.region, 0, 8, 0);
    left.post(&[good]);
    left.written(1);
    left.silent();
}

fn receive_all_or_nothing(world: &World) {
    let (left, right) = small_pair(world);
    let good = ReceiveRequest::new(right.at(0..8)).wr_id(1);
    let pieces = [right.at(0..1), right.at(1..2), right.at(2..3)];
    let bad = ReceiveRequest::new(&pieces).wr_id(2);
    refused(right.qp.post_recv(&[good, bad]), ErrorKind::InvalidArgument, &["post_recv"]);
    right.receive(7, 0..8);
    left.post(&[empty()]);
    right.received(7, 0);
}

fn dropped_batch(world: &World) {
    let (left, right) = world.pair();
    let mut batch = left.qp.send_batch().unwrap();
    batch.push(&SendRequest::write(Payload::inline(&[1; 8]), right.far(0..8)).signaled()).unwrap();
    drop(batch);
    left.silent();
    check_all(&right.region, 0, 8, 0);
    let mut batch = right.qp.recv_batch().unwrap();
    batch.push(&ReceiveRequest::new(right.at(0..8)).wr_id(1)).unwrap();
    drop(batch);
    right.receive(2, 0..8);
    left.post(&[empty()]);
    right.received(2, 0);
}

fn goes_on(world: &World) {
    let (left, right) = small_pair(world);
    let mut batch = left.qp.send_batch().unwrap();
    batch.push(&SendRequest::write(Payload::inline(&[1; 8]), right.far(0..8)).wr_id(1).signaled()).unwrap();
    let long = vec![0; left.qp.cap().max_inline_data as usize + 1];
    refused(
        batch.push(&SendRequest::send(Payload::inline(&long))).map(|_| ()),
        ErrorKind::InvalidArgument,
        &["inline"],
    );
    batch.push(&SendRequest::write(Payload::inline(&[2; 8]), right.far(8..16)).wr_id(2).signaled()).unwrap();
    assert_eq!(batch.len(), 2);
    batch.post().unwrap();
    left.written(1);
    left.written(2);
    check_all(&right.region, 8, 8, 2);
}

fn one_batch(world: &World) {
    let (left, _right) = world.pair();
    let batch = left.qp.send_batch().unwrap();
    refused(left.qp.send_batch().map(|_| ()), ErrorKind::InvalidState, &["post_send", "batch"]);
    refused(left.qp.post_send(&[empty()]), ErrorKind::InvalidState, &["post_send", "batch"]);
    drop(batch);
    left.post(&[empty()]);
}

fn empty_batch(world: &World) {
    let (left, right) = world.pair();
    left.qp.post_send(&[]).unwrap();
    right.qp.post_recv(&[]).unwrap();
    left.qp.send_batch().unwrap().post().unwrap();
    left.silent();
    right.silent();
}

fn read_only_result(world: &World) {
    let (left, right) = world.pair();
    let result = left.region(64, AccessFlags::REMOTE_READ);
    let read = SendRequest::read(&result, right.far(0..64));
    refused(left.qp.post_send(&[read]), ErrorKind::InvalidArgument, &["post_send", "LOCAL_WRITE"]);
    left.silent();
}

fn read_only_inbox(world: &World) {
    let (left, right) = world.pair();
    let inbox = right.region(64, AccessFlags::empty());
    let receive = ReceiveRequest::new(&inbox);
    refused(right.qp.post_recv(&[receive]), ErrorKind::InvalidArgument, &["post_recv", "LOCAL_WRITE"]);
    right.receive(1, 0..8);
    left.post(&[empty()]);
    right.received(1, 0);
}

fn revoked_region(world: &World) {
    let (left, right) = world.pair();
    let region = left.region(64, ALL_ACCESS);
    region.revoke().unwrap();
    let remote = RemoteMemory::new(right.region.iova(), right.region.rkey(), 64);
    refused(left.qp.post_send(&[SendRequest::send(&region)]), ErrorKind::InvalidState, &["post_send", "deregistered"]);
    refused(left.qp.post_send(&[SendRequest::read(&region, remote)]), ErrorKind::InvalidState, &["deregistered"]);
    left.silent();
}

fn revoked_inbox(world: &World) {
    let (_left, right) = world.pair();
    let region = right.region(64, ALL_ACCESS);
    region.revoke().unwrap();
    let receive = ReceiveRequest::new(&region);
    refused(right.qp.post_recv(&[receive]), ErrorKind::InvalidState, &["post_recv", "deregistered"]);
}
