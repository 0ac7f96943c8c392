//! Extended reliable connections: FLUSH, ATOMIC WRITE, and which protection domain applies.

use rdma_verbs::verbs::{
    AccessFlags, AsyncEvent, CompletionOpcode, CompletionStatus, ErrorKind, FlushFlags, MemoryRegion, Payload,
    QueuePairOptions, QueuePairState, QueuePairType, SendRequest, SharedReceiveQueue, SharedReceiveQueueOptions,
};

use super::bytes::{check, check_all, fill};
use super::end::{ALL_ACCESS, next, refused};
use super::sharing::{MAX_SRQ, connect};
use super::suite::{ATOMIC_CAP, ATOMIC_WRITE, Capability, FLUSH_GLOBAL, Scenario, XRC};
use super::world::World;
use super::xrc_ends::Extended;

const fn scenario(name: &'static str, clause: &'static str, needs: &'static [Capability], run: fn(&World)) -> Scenario {
    Scenario { name, clause, needs, run }
}

const BASIC: &[Capability] = &[MAX_SRQ, XRC];
const FLUSH: &[Capability] = &[MAX_SRQ, XRC, FLUSH_GLOBAL];
const WORD: &[Capability] = &[MAX_SRQ, XRC, ATOMIC_WRITE];
const ATOMIC: &[Capability] = &[MAX_SRQ, XRC, ATOMIC_CAP];

const DOMAIN: &str = "IBTA annex Extended Reliable Connected: the SRQ's protection domain";

pub(crate) const SCENARIOS: &[Scenario] = &[
    scenario("xrc/flush/behind_a_write", "IBTA annex Memory Placement Extensions; ibv_wr_flush(3)", FLUSH, flush),
    scenario("xrc/flush/domain_of_the_queue", DOMAIN, FLUSH, flush_domain),
    scenario("xrc/atomic_write/eight_bytes", "ibv_wr_atomic_write(3)", WORD, atomic_write),
    scenario("xrc/atomic_write/domain_of_the_queue", DOMAIN, WORD, atomic_write_domain),
    scenario("xrc/read/domain_of_the_queue_that_it_names", DOMAIN, BASIC, read_domain),
    scenario("xrc/read/domain_refused", DOMAIN, BASIC, read_refused),
    scenario("xrc/atomic/domain_of_the_queue", DOMAIN, ATOMIC, atomic_domain),
    scenario("xrc/write/queue_without_receives", "Linux rxe: a WRITE takes no receive", BASIC, write_to_empty),
    scenario("xrc/post_send/queue_of_the_peer_for_all", "ibv_wr_set_xrc_srqn(3)", BASIC, all_name_a_queue),
];

/// Another queue of the same domain, and a region in the queue's own protection domain.
struct Other {
    region: MemoryRegion,
    queue: SharedReceiveQueue,
}

const EVERY_ACCESS: AccessFlags = ALL_ACCESS.union(AccessFlags::FLUSH_GLOBAL);

#[track_caller]
fn other(ends: &Extended) -> Other {
    let pd = ends.context.alloc_pd().unwrap();
    let region = pd.alloc_mr(64 << 10, EVERY_ACCESS).unwrap();
    let queue =
        pd.create_srq_with(4, 1, &SharedReceiveQueueOptions::default().xrc(&ends.domain, &ends.cqs[1])).unwrap();
    Other { region, queue }
}

/// Creates ends whose target also allows FLUSH.
#[track_caller]
fn flushing(world: &World) -> Extended {
    let mut ends = Extended::new(world);
    let options = QueuePairOptions::default().xrc_target(&ends.domain);
    let target = ends
        .pd
        .create_qp_with(&ends.cqs[0], &ends.cqs[0], &options.access(AccessFlags::REMOTE | AccessFlags::FLUSH))
        .unwrap();
    let options = QueuePairOptions::default().qp_type(QueuePairType::XrcSend).max_inline_data(256);
    let initiator = ends.sender_pd.create_qp_with(&ends.sender_cq, &ends.sender_cq, &options).unwrap();
    connect(&target, &initiator, &Default::default());
    (ends.target, ends.initiator) = (target, initiator);
    ends
}

#[track_caller]
fn refused_by_domain(ends: &Extended) {
    ends.fails(CompletionStatus::RemoteAccessError);
    let event = ends.context.wait_async_event(super::end::patience()).unwrap();
    assert_eq!(event, AsyncEvent::QueuePairAccessError(ends.target.qpn()));
    assert_eq!(ends.target.state().unwrap(), QueuePairState::Error);
}

fn flush(world: &World) {
    let ends = flushing(world);
    let region = ends.pd.alloc_mr(64 << 10, EVERY_ACCESS).unwrap();
    fill(&ends.outbox, 0, 20_000, 3);
    let number = ends.queues[1].number();
    let requests = [
        SendRequest::write(ends.outbox.slice(..20_000).unwrap(), region.remote()).remote_srq(number),
        SendRequest::flush(region.remote().slice(..20_000).unwrap(), FlushFlags::GLOBAL)
            .wr_id(100)
            .signaled()
            .remote_srq(number),
    ];
    ends.initiator.post_send(&requests).unwrap();
    ends.sent(CompletionOpcode::Flush);
    check(&region, 0, 20_000, 3);
    check_all(&region, 20_000, 1000, 0);
    ends.silent();
}

fn flush_domain(world: &World) {
    let ends = flushing(world);
    let other = other(&ends);
    let request = || SendRequest::flush(other.region.remote().slice(..64).unwrap(), FlushFlags::GLOBAL);
    ends.request(request(), other.queue.number());
    ends.sent(CompletionOpcode::Flush);
    ends.request(request(), ends.queues[0].number());
    refused_by_domain(&ends);
}

fn atomic_write(world: &World) {
    let ends = Extended::new(world);
    let there = ends.inbox.remote().slice(64..).unwrap();
    for number in 1..20u8 {
        let queue = ends.queues[usize::from(number) % 2].number();
        ends.request(SendRequest::atomic_write(Payload::inline(&[number; 8]), there), queue);
        ends.sent(CompletionOpcode::AtomicWrite);
        check_all(&ends.inbox, 64, 8, number);
    }
    check_all(&ends.inbox, 0, 64, 0);
    check_all(&ends.inbox, 72, 64, 0);
    ends.silent();
}

fn atomic_write_domain(world: &World) {
    let ends = Extended::new(world);
    let other = other(&ends);
    let request = || SendRequest::atomic_write(Payload::inline(&[7; 8]), other.region.remote());
    ends.request(request(), other.queue.number());
    ends.sent(CompletionOpcode::AtomicWrite);
    check_all(&other.region, 0, 8, 7);
    other.region.write_at(0, &[0; 8]).unwrap();
    ends.request(request(), ends.queues[0].number());
    refused_by_domain(&ends);
    check_all(&other.region, 0, 8, 0);
}

/// READs name one queue while WRITEs behind them name the other: each is served from its own queue's domain, not from
/// that of the queue named last.
fn read_domain(world: &World) {
    const EACH: usize = 12_000;
    let ends = Extended::new(world);
    let other = other(&ends);
    fill(&ends.inbox, 0, EACH, 1);
    fill(&other.region, 0, EACH, 2);
    for _ in 0..20 {
        let (mine, theirs) = (ends.queues[0].number(), other.queue.number());
        let into = [0, EACH].map(|start| ends.outbox.slice(start..start + EACH).unwrap());
        let beyond = ends.inbox.remote().slice(32 << 10..).unwrap();
        let requests = [
            SendRequest::read(into[0], ends.inbox.remote()).remote_srq(mine),
            SendRequest::read(into[1], other.region.remote()).remote_srq(theirs),
            SendRequest::write(Payload::inline(b"mine"), beyond).wr_id(100).signaled().remote_srq(mine),
        ];
        ends.initiator.post_send(&requests).unwrap();
        ends.sent(CompletionOpcode::Write);
        check(&ends.outbox, 0, EACH, 1);
        check(&ends.outbox, EACH, EACH, 2);
    }
    ends.silent();
}

fn read_refused(world: &World) {
    let ends = Extended::new(world);
    let other = other(&ends);
    fill(&other.region, 0, 64, 9);
    let into = ends.outbox.slice(..64).unwrap();
    ends.request(SendRequest::read(into, other.region.remote()), ends.queues[0].number());
    refused_by_domain(&ends);
    check_all(&ends.outbox, 0, 64, 0);
}

fn atomic_domain(world: &World) {
    let ends = Extended::new(world);
    let other = other(&ends);
    let (into, word) = (ends.outbox.slice(..8).unwrap(), other.region.remote().slice(..8).unwrap());
    ends.request(SendRequest::fetch_and_add(into, word, 5), other.queue.number());
    ends.sent(CompletionOpcode::FetchAndAdd);
    ends.request(SendRequest::fetch_and_add(into, word, 5), ends.queues[0].number());
    refused_by_domain(&ends);
    assert_eq!(other.region.to_vec(..8).unwrap(), 5u64.to_ne_bytes());
}

fn write_to_empty(world: &World) {
    let ends = Extended::new(world);
    ends.request(SendRequest::write(Payload::inline(b"data"), ends.inbox.remote()), ends.queues[1].number());
    ends.sent(CompletionOpcode::Write);
    assert_eq!(ends.inbox.to_vec(..4).unwrap(), b"data");
    ends.silent();
    ends.post(1, 2);
    ends.send(1, b"takes it");
    ends.received(1, 2, b"takes it");
}

fn all_name_a_queue(world: &World) {
    let ends = Extended::new(world);
    let (into, remote) = (ends.outbox.slice(..8).unwrap(), ends.inbox.remote().slice(..8).unwrap());
    let requests = [
        SendRequest::write(into, remote),
        SendRequest::read(into, remote),
        SendRequest::fetch_and_add(into, remote, 1),
        SendRequest::compare_and_swap(into, remote, 1, 2),
    ];
    for request in requests {
        refused(ends.initiator.post_send(&[request]), ErrorKind::InvalidArgument, &["post_send", "remote_srq"]);
    }
    assert_eq!(ends.initiator.state().unwrap(), QueuePairState::ReadyToSend);
    ends.post(0, 1);
    ends.send(0, b"with one");
    ends.received(0, 1, b"with one");
    assert_eq!(next(&ends.sender_cq).wr_id(), 100);
}
