//! A receive of a shared queue whose message stays incomplete, because the sender's memory is deregistered during it.

use std::time::Instant;

use rdma_verbs::verbs::{
    AsyncEvent, CompletionQueue, CompletionStatus, ConnectOptions, Counter, MemoryRegion, Payload, ProtectionDomain,
    QueuePair, QueuePairAttributes, QueuePairOptions, QueuePairState, QueuePairType, ReceiveRequest, RegionRange,
    RemoteMemory, SendRequest,
};

use super::cq::wait_a_while;
use super::deviations::{BEGUN_IS_LOST, NO_SEND_QUEUE_ERROR, NOTHING_PURGED};
use super::end::{ALL_ACCESS, SILENCE, memory_gone, next, patience, silent, too_long_for_peer, too_short};
use super::sharing::{MAX_SRQ, Sharing, connect, ends};
use super::suite::Scenario;
use super::world::World;

const fn scenario(name: &'static str, clause: &'static str, run: fn(&World)) -> Scenario {
    Scenario { name, clause, needs: &[MAX_SRQ], run }
}

const LAST_WQE: &str = "ibv_get_async_event(3) IBV_EVENT_QP_LAST_WQE_REACHED; rdma-core";

pub(crate) const SCENARIOS: &[Scenario] = &[
    scenario("srq/partial/flushed_once", LAST_WQE, flushed_once),
    scenario("srq/partial/failed_and_not_flushed", LAST_WQE, failed_and_not_flushed),
    scenario("srq/partial/write_has_taken_none", "ibv_poll_cq(3): consumed by the last packet", write_has_taken_none),
    scenario("srq/partial/lost_with_reset", "rdma-core: RESET drops silently", lost_with_reset),
    scenario("srq/partial/lost_with_the_queue_pair", "rdma-core: ibv_destroy_qp purges", lost_with_queue_pair),
    scenario("srq/partial/uc_serves_the_next_message", "rdma-verbs: as without SRQ; rxe fails it", uc_serves_next),
    scenario("srq/partial/uc_flushed_once", LAST_WQE, uc_flushed_once),
];

/// Bytes of the message that are sent, and bytes that are not.
const SENT: usize = 12 << 10;
const KEPT: usize = 4 << 10;

fn to(state: QueuePairState) -> QueuePairAttributes {
    QueuePairAttributes::default().qp_state(state)
}

/// Has `sender` send the first part of a message, and waits until `receiver` has received it. The request fails because
/// the memory of the rest is gone, or with the status `may`.
#[track_caller]
pub(crate) fn send_half(
    (sender, pd, cq): (&QueuePair, &ProtectionDomain, &CompletionQueue),
    receiver: &QueuePair,
    request: impl for<'b> FnOnce(&'b [RegionRange<'b>; 2]) -> SendRequest<'b>,
    may: Option<CompletionStatus>,
) {
    let (first, rest): (MemoryRegion, MemoryRegion) =
        (pd.alloc_mr(SENT, ALL_ACCESS).unwrap(), pd.alloc_mr(KEPT, ALL_ACCESS).unwrap());
    first.write_at(0, &[0xaa; SENT]).unwrap();
    let ranges = [first.slice(..).unwrap(), rest.slice(..).unwrap()];
    let mut batch = sender.send_batch().unwrap();
    batch.push(&request(&ranges).wr_id(70)).unwrap();
    rest.dereg().unwrap();
    let before = receiver.counters().get(Counter::ReceivedPackets);
    let sent_before = sender.counters().get(Counter::SentPackets);
    batch.post().unwrap();
    let error = next(cq).result().unwrap_err();
    let right = error.status == memory_gone() || Some(error.status) == may;
    assert!(error.wr_id == 70 && right, "{:?}: {error}", error.status);
    if !pd.context().query_device().packet_counters {
        return wait_a_while();
    }
    let sent = sender.counters().get(Counter::SentPackets) - sent_before;
    assert!(sent > 0, "nothing has left");
    let start = Instant::now();
    while receiver.counters().get(Counter::ReceivedPackets) < before + sent {
        assert!(start.elapsed() < patience(), "the first {sent} packets never came");
    }
}

/// A sharing end with receive 30, large enough for the whole message, and an ordinary one behind it.
#[track_caller]
fn sharing(world: &World, count: usize) -> Sharing {
    let sharing = Sharing::new(world, count);
    post_large(&sharing);
    sharing.post([1]);
    sharing
}

#[track_caller]
fn post_large(sharing: &Sharing) {
    let room = sharing.inbox.slice(16 << 10..40 << 10).unwrap();
    sharing.srq.post_recv(&[ReceiveRequest::new(room).wr_id(30)]).unwrap();
}

#[track_caller]
fn half_from(sharing: &Sharing, peer: usize) {
    let sender = (&sharing.senders[peer], &sharing.sender_pd, &sharing.sender_cq);
    send_half(sender, &sharing.receivers[peer], |ranges| SendRequest::send(ranges), None);
    assert_eq!(sharing.inbox.to_vec(16 << 10..17 << 10).unwrap(), [0xaa; 1 << 10], "it has begun");
}

/// Checks that the queue pair's last event comes, after the completion of the receive.
#[track_caller]
fn last_after(sharing: &Sharing, qp: &QueuePair) {
    sharing.last_event(qp.qpn());
    if BEGUN_IS_LOST.holds() {
        return silent(&sharing.cq);
    }
    let mut out = [rdma_verbs::verbs::Completion::default(); 2];
    assert_eq!(sharing.cq.poll(&mut out).unwrap(), 1, "the receive completes before the event, once");
    let error = out[0].result().unwrap_err();
    let expected = (30, qp.qpn(), CompletionStatus::WorkRequestFlushedError);
    assert_eq!((error.wr_id, error.qpn, error.status), expected);
}

fn flushed_once(world: &World) {
    let sharing = sharing(world, 2);
    half_from(&sharing, 0);
    silent(&sharing.cq);
    sharing.no_event();
    sharing.receivers[0].modify(&to(QueuePairState::Error)).unwrap();
    last_after(&sharing, &sharing.receivers[0]);
    sharing.receivers[0].modify(&to(QueuePairState::Error)).unwrap();
    silent(&sharing.cq);
    sharing.no_event_after(sharing.receivers[0].qpn());
    sharing.send(1, b"next in the queue");
    sharing.received(1, 1, b"next in the queue");
}

fn failed_and_not_flushed(world: &World) {
    let sharing = Sharing::new(world, 2);
    let short = sharing.inbox.slice(40 << 10..41 << 10).unwrap();
    sharing.srq.post_recv(&[ReceiveRequest::new(short).wr_id(31)]).unwrap();
    let sender = (&sharing.senders[1], &sharing.sender_pd, &sharing.sender_cq);
    // Its first packets already exceed the receive, which fails with its own status and is not flushed as well.
    send_half(sender, &sharing.receivers[1], |ranges| SendRequest::send(ranges), Some(too_long_for_peer()));
    let error = next(&sharing.cq).result().unwrap_err();
    let qpn = sharing.receivers[1].qpn();
    assert_eq!((error.wr_id, error.qpn, error.status), (31, qpn, too_short()));
    sharing.failure_event(AsyncEvent::QueuePairRequestError(qpn));
    sharing.last_event(qpn);
    silent(&sharing.cq);
}

fn write_has_taken_none(world: &World) {
    let sharing = sharing(world, 2);
    let there: RemoteMemory = sharing.inbox.remote().slice(40 << 10..).unwrap();
    let sender = (&sharing.senders[0], &sharing.sender_pd, &sharing.sender_cq);
    send_half(sender, &sharing.receivers[0], |ranges| SendRequest::write_with_immediate(ranges, there, 5), None);
    sharing.receivers[0].modify(&to(QueuePairState::Error)).unwrap();
    sharing.last_event(sharing.receivers[0].qpn());
    silent(&sharing.cq);
    sharing.send(1, b"the oldest");
    assert_eq!(sharing.completed(30, 1).byte_len, 10);
}

fn lost_with_reset(world: &World) {
    let sharing = sharing(world, 2);
    half_from(&sharing, 0);
    sharing.receivers[0].reset().unwrap();
    silent(&sharing.cq);
    sharing.no_event();
    sharing.send(1, b"the one behind");
    sharing.received(1, 1, b"the one behind");
    sharing.senders[0].reset().unwrap();
    connect(&sharing.receivers[0], &sharing.senders[0], &ConnectOptions::default());
    sharing.works(0, 2);
}

fn lost_with_queue_pair(world: &World) {
    let mut sharing = sharing(world, 2);
    half_from(&sharing, 0);
    drop(sharing.receivers.remove(0));
    sharing.senders.remove(0);
    // The receive may be flushed before the queue pair is destroyed; its completion then stays.
    if NOTHING_PURGED.holds()
        && !BEGUN_IS_LOST.holds()
        && let Ok(left) = sharing.cq.wait(SILENCE)
    {
        assert_eq!((left.wr_id(), left.status()), (30, CompletionStatus::WorkRequestFlushedError));
    }
    silent(&sharing.cq);
    sharing.no_event();
    sharing.send(0, b"the one behind");
    sharing.received(1, 0, b"the one behind");
    // The slot of the lost receive was freed when it was consumed: the queue still holds as many receives.
    sharing.post(0..16);
}

/// Adds an unreliable connection to the sharing end.
#[track_caller]
fn unreliable(sharing: &mut Sharing) {
    let kind = QueuePairType::UnreliableConnection;
    let receiver = sharing
        .pd
        .create_qp_with(&sharing.cq, &sharing.cq, &QueuePairOptions::default().qp_type(kind).srq(&sharing.srq))
        .unwrap();
    let options = QueuePairOptions::default().qp_type(kind).max_inline_data(256);
    let sender = sharing.sender_pd.create_qp_with(&sharing.sender_cq, &sharing.sender_cq, &options).unwrap();
    connect(&receiver, &sender, &ConnectOptions::default());
    sharing.receivers.push(receiver);
    sharing.senders.push(sender);
}

fn uc_serves_next(world: &World) {
    let mut sharing = sharing(world, 0);
    (0..2).for_each(|_| unreliable(&mut sharing));
    half_from(&sharing, 0);
    sharing.send(1, b"the one behind");
    sharing.received(1, 1, b"the one behind");
    if NO_SEND_QUEUE_ERROR.holds() {
        return ends(&sharing.senders[0]);
    }
    assert_eq!(sharing.senders[0].state().unwrap(), QueuePairState::SendQueueError);
    sharing.senders[0].modify(&to(QueuePairState::ReadyToSend)).unwrap();
    sharing.senders[0].post_send(&[SendRequest::send(Payload::inline(b"starts over"))]).unwrap();
    assert_eq!(sharing.completed(30, 0).byte_len, 11);
    let start = 16 << 10;
    assert_eq!(sharing.inbox.to_vec(start..start + 12).unwrap(), b"starts over\xaa");
    sharing.works(0, 4);
}

fn uc_flushed_once(world: &World) {
    let mut sharing = sharing(world, 0);
    unreliable(&mut sharing);
    half_from(&sharing, 0);
    sharing.receivers[0].modify(&to(QueuePairState::Error)).unwrap();
    last_after(&sharing, &sharing.receivers[0]);
    silent(&sharing.cq);
    sharing.no_event_after(sharing.receivers[0].qpn());
}
