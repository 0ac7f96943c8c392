//! Unreliable connections: arriving messages are complete, others are dropped, nothing is acknowledged.

use rdma_verbs::verbs::{
    AccessFlags, AsyncEvent, ConnectOptions, Counter, ErrorKind, Mtu, Payload, QueuePairAttributes, QueuePairState,
    QueuePairType, ReceiveRequest, RegionList, RemoteMemory, Rkey, SendRequest,
};

use super::bytes::{check, check_all, fill};
use super::deviations::NO_SEND_QUEUE_ERROR;
use super::end::{ALL_ACCESS, End, Shape, memory_gone, receive_without_memory, refused, too_short};
use super::suite::{PACKET_COUNTERS, Scenario};
use super::world::World;

use QueuePairState::{Error, ReadyToSend, SendQueueDrained, SendQueueError};

const SERVICE: &str = "IBTA, unreliable service";
const ORDER: &str = "IBTA, unreliable service: UC responder: messages are taken whole and in order";
const LOCAL: &str = "IBTA, unreliable service: UC requester: a request is complete when it was sent";
const DROPS: &str = "IBTA, error handling: responder faults of UC: the message is dropped silently";
const FAULTS: &str = "IBTA, work requests: local errors of the receive queue: completion in error, then ERR";
const SQE: &str = "IBTA, queue pair states: Send Queue Error";
const OPCODES: &str = "ibv_post_send(3): operations of each transport service";

macro_rules! scenarios {
    ($($name:literal $clause:ident $run:ident $([$needs:ident])?;)*) => {
        pub(crate) const SCENARIOS: &[Scenario] =
            &[$(Scenario { name: $name, clause: $clause, needs: &[$($needs)?], run: $run },)*];
    };
}

scenarios! {
    "uc/send/every_length_around_the_mtu" SERVICE every_length_around_the_mtu;
    "uc/send/zero_bytes" SERVICE zero_bytes;
    "uc/send/immediate_as_given" SERVICE immediate_as_given;
    "uc/send/scattered_and_inline" SERVICE scattered_and_inline;
    "uc/send/to_itself" SERVICE to_itself;
    "uc/send/many_in_order" ORDER many_in_order;
    "uc/send/long_message_at_once" ORDER long_message_at_once;
    "uc/write/bytes_and_nothing_else" SERVICE write_bytes_and_nothing_else;
    "uc/write/immediate_takes_a_receive" SERVICE immediate_takes_a_receive;
    "uc/send/completes_without_a_peer" LOCAL completes_without_a_peer;
    "uc/send/unsignaled_ones_retire" LOCAL unsignaled_ones_retire;
    "uc/send/no_acknowledgement_travels" LOCAL no_acknowledgement_travels [PACKET_COUNTERS];
    "uc/send/dropped_without_a_receive" DROPS dropped_without_a_receive;
    "uc/write/immediate_dropped_without_a_receive" DROPS immediate_dropped_without_a_receive;
    "uc/write/unknown_key_dropped" DROPS unknown_key_dropped;
    "uc/write/beyond_the_region_dropped" DROPS beyond_the_region_dropped;
    "uc/write/region_without_access_flag_dropped" DROPS region_without_access_flag_dropped;
    "uc/write/queue_pair_without_access_flag_dropped" DROPS queue_pair_without_access_flag_dropped;
    "uc/recv/too_small_ends_the_receiver" FAULTS too_small_ends_the_receiver;
    "uc/recv/revoked_region_ends_the_receiver" FAULTS revoked_region_ends_the_receiver;
    "uc/sqe/local_error_stops_the_send_queue_alone" SQE local_error_stops_the_send_queue_alone;
    "uc/sqe/returns_to_rts" SQE sqe_returns_to_rts;
    "uc/sqe/to_error_and_reset" SQE sqe_to_error_and_reset;
    "uc/post/reads_atomics_and_invalidation_refused" OPCODES reads_atomics_and_invalidation_refused;
}

fn shape() -> Shape {
    Shape { qp_type: QueuePairType::UnreliableConnection, ..Shape::default() }
}

fn pair(world: &World) -> (End, End) {
    world.pair_of(&shape(), &ConnectOptions::default().path_mtu(Mtu::Mtu1024))
}

fn go(state: QueuePairState) -> QueuePairAttributes {
    QueuePairAttributes::default().qp_state(state)
}

/// Moves a message of the pattern `seed` from one end into a posted receive of the other.
#[track_caller]
fn exchange(from: &End, to: &End, len: usize, seed: u64) {
    to.qp.post_recv(&[ReceiveRequest::new(to.region.slice(..len).unwrap()).wr_id(seed)]).unwrap();
    fill(&from.region, 0, len, seed);
    from.qp.post_send(&[SendRequest::send(from.region.slice(..len).unwrap()).wr_id(seed).signaled()]).unwrap();
    to.received(seed, len as u32);
    from.sent(seed);
    check(&to.region, 0, len, seed);
}

fn every_length_around_the_mtu(world: &World) {
    let (left, right) = pair(world);
    for (seed, len) in (0..).zip([1, 3, 4, 1023, 1024, 1025, 2047, 2048, 2049, 5000]) {
        exchange(&left, &right, len, seed);
        exchange(&right, &left, len, seed + 100);
    }
}

fn zero_bytes(world: &World) {
    let (left, right) = pair(world);
    right.qp.post_recv(&[ReceiveRequest::new(RegionList::EMPTY).wr_id(1)]).unwrap();
    left.qp.post_send(&[SendRequest::send(Payload::EMPTY).wr_id(2).signaled()]).unwrap();
    right.received(1, 0);
    left.sent(2);
    check_all(&right.region, 0, 64, 0);
}

fn immediate_as_given(world: &World) {
    let (left, right) = pair(world);
    for (wr_id, (word, len)) in (0..).zip([(0, 4), (0x0102_0304, 1024), (u32::MAX, 3000)]) {
        right.qp.post_recv(&[ReceiveRequest::new(&right.region).wr_id(wr_id)]).unwrap();
        let data = left.region.slice(..len).unwrap();
        left.qp.post_send(&[SendRequest::send_with_immediate(data, word)]).unwrap();
        right.received_with(wr_id, len as u32, Some(word));
    }
    left.silent();
}

fn scattered_and_inline(world: &World) {
    let (left, right) = pair(world);
    fill(&left.region, 0, 2000, 3);
    let (first, second) = (left.region.slice(..700).unwrap(), left.region.slice(700..2000).unwrap());
    let (low, high) = (right.region.slice(..1500).unwrap(), right.region.slice(4096..6000).unwrap());
    right.qp.post_recv(&[ReceiveRequest::new([low, high].as_slice()).wr_id(1)]).unwrap();
    left.qp.post_send(&[SendRequest::send([first, second].as_slice()).wr_id(2).signaled()]).unwrap();
    right.received(1, 2000);
    left.sent(2);
    let (start, rest) = (right.region.to_vec(..1500).unwrap(), right.region.to_vec(4096..4596).unwrap());
    assert_eq!([start, rest].concat(), super::bytes::pattern(2000, 3));
    right.qp.post_recv(&[ReceiveRequest::new(&right.region).wr_id(3)]).unwrap();
    left.qp.post_send(&[SendRequest::send(Payload::inline(b"inline"))]).unwrap();
    right.received(3, 6);
    assert_eq!(right.region.to_vec(..6).unwrap(), b"inline");
}

fn to_itself(world: &World) {
    let end = world.loopback(&shape());
    fill(&end.region, 0, 3000, 4);
    end.qp.post_recv(&[ReceiveRequest::new(end.region.slice(8192..).unwrap()).wr_id(1)]).unwrap();
    end.qp.post_send(&[SendRequest::send(end.region.slice(..3000).unwrap()).wr_id(2)]).unwrap();
    end.received(1, 3000);
    check(&end.region, 8192, 3000, 4);
    end.silent();
}

fn many_in_order(world: &World) {
    let (left, right) = pair(world);
    for round in 0..20 {
        let receives: Vec<_> = (0..16)
            .map(|slot| {
                ReceiveRequest::new(right.region.slice(slot * 2048..(slot + 1) * 2048).unwrap()).wr_id(slot as u64)
            })
            .collect();
        right.qp.post_recv(&receives).unwrap();
        for slot in 0..16 {
            fill(&left.region, slot * 2048, 1500, round * 16 + slot as u64);
            let message = left.region.slice(slot * 2048..slot * 2048 + 1500).unwrap();
            left.qp
                .post_send(&[SendRequest::send_with_immediate(message, slot as u32).wr_id(slot as u64).signaled()])
                .unwrap();
        }
        for slot in 0..16 {
            right.received_with(slot as u64, 1500, Some(slot as u32));
            left.sent(slot as u64);
            check(&right.region, slot * 2048, 1500, round * 16 + slot as u64);
        }
    }
}

/// The message is longer than the burst allowed toward a standard peer: the rest waits.
fn long_message_at_once(world: &World) {
    let (left, right) = pair(world);
    let len = left.region.len();
    exchange(&left, &right, len, 9);
    exchange(&right, &left, len, 10);
}

fn write_bytes_and_nothing_else(world: &World) {
    let (left, right) = pair(world);
    right.qp.post_recv(&[ReceiveRequest::new(right.region.slice(60_000..).unwrap()).wr_id(1)]).unwrap();
    fill(&left.region, 0, 2500, 7);
    let target = right.region.remote().slice(100..2600).unwrap();
    left.qp.post_send(&[SendRequest::write(left.region.slice(..2500).unwrap(), target).wr_id(2).signaled()]).unwrap();
    left.written(2);
    left.qp.post_send(&[SendRequest::send(Payload::inline(b"written"))]).unwrap();
    right.received(1, 7); // everything sent before it has been placed by now
    check_all(&right.region, 0, 100, 0);
    check(&right.region, 100, 2500, 7);
    check_all(&right.region, 2600, 1000, 0);
    right.silent();
}

fn immediate_takes_a_receive(world: &World) {
    let (left, right) = pair(world);
    for (wr_id, len) in [(1, 0), (2, 512), (3, 4000)] {
        right.qp.post_recv(&[ReceiveRequest::new(RegionList::EMPTY).wr_id(wr_id)]).unwrap();
        fill(&left.region, 0, len, wr_id);
        let (data, target) = (left.region.slice(..len).unwrap(), right.region.remote().slice(..len).unwrap());
        left.qp.post_send(&[SendRequest::write_with_immediate(data, target, 0xfeed_0000 + wr_id as u32)]).unwrap();
        right.notified(wr_id, len as u32, 0xfeed_0000 + wr_id as u32);
        check(&right.region, 0, len, wr_id);
    }
    left.silent();
}

fn completes_without_a_peer(world: &World) {
    let (left, right) = pair(world);
    drop(right);
    for wr_id in 0..3 {
        left.qp.post_send(&[SendRequest::send(left.region.slice(..3000).unwrap()).wr_id(wr_id).signaled()]).unwrap();
        left.sent(wr_id);
    }
    left.is_in(ReadyToSend);
    left.no_event();
}

fn unsignaled_ones_retire(world: &World) {
    let mut shape = shape();
    shape.cap.max_send_wr = 4;
    let (left, right) = world.pair_of(&shape, &ConnectOptions::default());
    for round in 0..50 {
        for wr_id in 0..4 {
            right.qp.post_recv(&[ReceiveRequest::new(&right.region).wr_id(wr_id)]).unwrap();
            let bytes = [round; 8];
            let request = SendRequest::send(Payload::inline(&bytes)).wr_id(wr_id);
            left.qp.post_send(&[if wr_id == 3 { request.signaled() } else { request }]).unwrap();
        }
        left.sent(3);
        (0..4).for_each(|wr_id| right.received(wr_id, 8));
        check_all(&right.region, 0, 8, round);
    }
    left.silent();
}

fn no_acknowledgement_travels(world: &World) {
    let (left, right) = pair(world);
    (0..10).for_each(|seed| exchange(&left, &right, 2000, seed));
    let (sent, heard) = (left.qp.counters(), right.qp.counters());
    assert_eq!(sent.get(Counter::SentPackets), 20);
    assert_eq!(heard.get(Counter::ReceivedPackets), 20);
    assert_eq!((sent.get(Counter::ReceivedPackets), heard.get(Counter::SentPackets)), (0, 0));
    assert_eq!((sent.get(Counter::RetransmittedPackets), sent.get(Counter::TailProbe)), (0, 0));
}

/// Checks that the left end's request leaves no trace at the right one, and that both stay in service.
#[track_caller]
fn dropped(left: &End, right: &End, request: SendRequest<'_>, opcode: rdma_verbs::verbs::CompletionOpcode) {
    left.qp.post_send(&[request.wr_id(77).signaled()]).unwrap();
    left.done(77, opcode);
    right.silent();
    right.no_event();
    left.no_event();
    right.is_in(ReadyToSend);
    left.is_in(ReadyToSend);
}

fn dropped_without_a_receive(world: &World) {
    let (left, right) = pair(world);
    let opcode = rdma_verbs::verbs::CompletionOpcode::Send;
    dropped(&left, &right, SendRequest::send(left.region.slice(..5000).unwrap()), opcode);
    if right.context.query_device().failure_causes {
        let why = right.qp.explain_state();
        assert!(why.contains("no receive was posted"), "{why}");
    }
    exchange(&left, &right, 5000, 1);
    dropped(&left, &right, SendRequest::send(Payload::EMPTY), opcode);
    exchange(&left, &right, 10, 2);
}

fn immediate_dropped_without_a_receive(world: &World) {
    let (left, right) = pair(world);
    let target = right.region.remote().slice(..8).unwrap();
    let request = SendRequest::write_with_immediate(left.region.slice(..8).unwrap(), target, 5);
    dropped(&left, &right, request, rdma_verbs::verbs::CompletionOpcode::Write);
    exchange(&left, &right, 10, 2);
}

/// Checks that a WRITE changes nothing.
#[track_caller]
fn write_dropped(left: &End, right: &End, target: RemoteMemory, len: usize) {
    fill(&left.region, 0, len, 99);
    let request = SendRequest::write(left.region.slice(..len).unwrap(), target);
    dropped(left, right, request, rdma_verbs::verbs::CompletionOpcode::Write);
    check_all(&right.region, 0, right.region.len(), 0);
    exchange(left, right, 2000, 3);
}

fn unknown_key_dropped(world: &World) {
    let (left, right) = pair(world);
    let target = RemoteMemory::new(right.region.iova(), Rkey(right.region.rkey().0 ^ 0x5500), 3000);
    write_dropped(&left, &right, target, 3000);
}

fn beyond_the_region_dropped(world: &World) {
    let (left, right) = pair(world);
    let end = right.region.iova() + right.region.len() as u64;
    write_dropped(&left, &right, RemoteMemory::new(end - 2000, right.region.rkey(), 3000), 3000);
}

fn region_without_access_flag_dropped(world: &World) {
    let shape = Shape { region_access: AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ, ..shape() };
    let (left, right) = world.pair_of(&shape, &ConnectOptions::default());
    let target = RemoteMemory::new(right.region.iova(), right.region.rkey(), 100);
    write_dropped(&left, &right, target, 100);
}

fn queue_pair_without_access_flag_dropped(world: &World) {
    let shape = Shape { access: AccessFlags::REMOTE_READ, region_access: ALL_ACCESS, ..shape() };
    let (left, right) = world.pair_of(&shape, &ConnectOptions::default());
    write_dropped(&left, &right, right.region.remote().slice(..100).unwrap(), 100);
}

fn too_small_ends_the_receiver(world: &World) {
    for (room, len) in [(10, 11), (1500, 3000)] {
        let (left, right) = pair(world);
        let small = right.region.slice(..room).unwrap();
        right
            .qp
            .post_recv(&[ReceiveRequest::new(small).wr_id(1), ReceiveRequest::new(&right.region).wr_id(2)])
            .unwrap();
        left.qp.post_send(&[SendRequest::send(left.region.slice(..len).unwrap()).wr_id(3).signaled()]).unwrap();
        right.fails(1, too_short());
        right.flushed([2]);
        right.becomes(Error);
        left.sent(3);
        left.is_in(ReadyToSend);
    }
}

fn revoked_region_ends_the_receiver(world: &World) {
    let (left, right) = pair(world);
    let inbox = right.region(100, AccessFlags::LOCAL_WRITE);
    right.qp.post_recv(&[ReceiveRequest::new(&inbox).wr_id(1), ReceiveRequest::new(&right.region).wr_id(2)]).unwrap();
    inbox.revoke().unwrap();
    left.qp.post_send(&[SendRequest::send(left.region.slice(..50).unwrap()).wr_id(3).signaled()]).unwrap();
    right.fails(1, receive_without_memory());
    right.flushed([2]);
    right.becomes(Error);
    right.failure_event(&[AsyncEvent::QueuePairFatal]);
    left.sent(3);
    left.is_in(ReadyToSend);
}

/// Makes the left end's send queue fail: the second of three requests names a revoked region. Returns whether it is
/// then in SQE, as required; otherwise it is in ERR, and its posted receives are flushed.
#[track_caller]
fn fail_send_queue(left: &End, right: &End, receives: &[u64]) -> bool {
    let region = left.region(2000, AccessFlags::LOCAL_WRITE);
    let good = SendRequest::send(left.region.slice(..10).unwrap());
    let bad = SendRequest::send(&region);
    let mut batch = left.qp.send_batch().unwrap();
    for request in [good.wr_id(1).signaled(), bad.wr_id(2), good.wr_id(3)] {
        batch.push(&request).unwrap();
    }
    region.revoke().unwrap();
    right.qp.post_recv(&[ReceiveRequest::new(&right.region).wr_id(4)]).unwrap();
    batch.post().unwrap();
    left.sent(1);
    left.fails(2, memory_gone());
    let stays = !NO_SEND_QUEUE_ERROR.holds();
    let flushed = if stays { &[] } else { receives };
    left.flushed_in_any_order(&[&[3], flushed].concat());
    right.received(4, 10);
    left.becomes(if stays { SendQueueError } else { Error });
    stays
}

fn local_error_stops_the_send_queue_alone(world: &World) {
    let (left, right) = pair(world);
    left.qp.post_recv(&[ReceiveRequest::new(&left.region).wr_id(6)]).unwrap();
    if !fail_send_queue(&left, &right, &[6]) {
        return right.is_in(ReadyToSend);
    }
    left.qp.post_send(&[SendRequest::send(Payload::EMPTY).wr_id(5)]).unwrap();
    left.flushed([5]);
    right.silent();
    right.qp.post_send(&[SendRequest::send(Payload::inline(b"goes on"))]).unwrap();
    left.received(6, 7);
    left.is_in(SendQueueError);
    right.is_in(ReadyToSend);
    let why = left.qp.explain_state();
    let causes = left.context.query_device().failure_causes;
    let is_named = !causes || why.contains("request 2") && why.contains("receives go on");
    assert!(why.contains("SQE") && is_named, "{why}");
}

fn sqe_returns_to_rts(world: &World) {
    let (left, right) = pair(world);
    if !fail_send_queue(&left, &right, &[]) {
        return right.is_in(ReadyToSend);
    }
    let extra = go(ReadyToSend).timeout(10);
    refused(left.qp.modify(&extra), ErrorKind::InvalidArgument, &["timeout", "SQE", "RTS"]);
    left.is_in(SendQueueError);
    let named = go(ReadyToSend).cur_qp_state(SendQueueError).qp_access_flags(AccessFlags::REMOTE_WRITE);
    left.qp.modify(&named).unwrap();
    left.is_in(ReadyToSend);
    exchange(&left, &right, 3000, 7);
    exchange(&right, &left, 3000, 8);
}

fn sqe_to_error_and_reset(world: &World) {
    let (left, right) = pair(world);
    if !fail_send_queue(&left, &right, &[]) {
        return right.is_in(ReadyToSend);
    }
    refused(left.qp.modify(&go(SendQueueDrained)), ErrorKind::InvalidState, &["SQE", "SQD"]);
    left.qp.post_recv(&[ReceiveRequest::new(&left.region).wr_id(6)]).unwrap();
    left.to_error();
    left.flushed([6]);
    left.is_in(Error);
    left.qp.reset().unwrap();
    right.qp.reset().unwrap();
    super::world::connect(&left, &right, &ConnectOptions::default());
    exchange(&left, &right, 3000, 7);
}

fn reads_atomics_and_invalidation_refused(world: &World) {
    let (left, right) = pair(world);
    let remote = right.region.remote().slice(..8).unwrap();
    let local = || left.region.slice(..8).unwrap();
    let requests = [
        (SendRequest::read(local(), remote), "READ"),
        (SendRequest::compare_and_swap(local(), remote, 0, 1), "CmpSwap"),
        (SendRequest::fetch_and_add(local(), remote, 1), "FetchAdd"),
        (SendRequest::send_with_invalidate(local(), right.region.rkey()), "invalidate"),
    ];
    for (request, name) in requests {
        let error = left.qp.post_send(&[request]).unwrap_err();
        assert_eq!(error.verb(), "post_send");
        refused::<()>(Err(error), ErrorKind::InvalidArgument, &["opcode", name, "UC"]);
    }
    left.silent();
    exchange(&left, &right, 100, 1);
}
