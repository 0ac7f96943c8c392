//! Memory regions: registration, keys, bounds, access flags and protection domains, local and remote.

use rdma_verbs::verbs::{
    AccessFlags, AsyncEvent, CompletionStatus, ConnectOptions, ErrorKind, Payload, QueuePairState, ReceiveRequest,
    RegionList, RegisterOptions, RemoteMemory, SendRequest,
};

use super::bytes::{check, check_all, fill};
use super::end::{ALL_ACCESS, End, Shape, refused};
use super::suite::{ATOMIC_CAP, Capability, Scenario};
use super::world::World;

const ATOMIC: &[Capability] = &[ATOMIC_CAP];

const fn scenario(name: &'static str, clause: &'static str, needs: &'static [Capability], run: fn(&World)) -> Scenario {
    Scenario { name, clause, needs, run }
}

pub(crate) const SCENARIOS: &[Scenario] = &[
    scenario("mr/reg/unknown_mandatory_right", "ibv_reg_mr(3) access; EOPNOTSUPP", &[], unknown_mandatory),
    scenario("mr/reg/unknown_optional_right", "ibv_reg_mr(3) IBV_ACCESS_OPTIONAL_RANGE", &[], unknown_optional),
    scenario("mr/reg/zero_based_flag", "ibv_reg_mr(3) IBV_ACCESS_ZERO_BASED", &[], zero_based),
    scenario(
        "mr/bounds/long_write_is_refused_whole",
        "IBTA, reliable service: whole request at once",
        &[],
        refused_whole,
    ),
    scenario("mr/domain/local_range_of_another", "IBTA, memory management: protection domain", &[], local_other_domain),
    scenario(
        "mr/rights/send_from_no_right",
        "IBTA, memory region verbs: reading is always allowed",
        &[],
        send_from_no_right,
    ),
    scenario("mr/zero_length/needs_no_region", "IBTA, reliable service: zero-length", &[], zero_length_no_region),
    scenario("mr/zero_length/entries_within_a_list", "ibv_post_send(3) sge length 0", &[], zero_length_entries),
    scenario("mr/atomic/misaligned_in_memory", "IBTA, atomics: alignment", ATOMIC, atomic_misaligned),
];

#[track_caller]
fn write_fails(left: &End, remote: RemoteMemory, length: usize, status: CompletionStatus) {
    left.qp.post_send(&[SendRequest::write(left.region.slice(..length).unwrap(), remote).wr_id(9)]).unwrap();
    let error = left.fails(9, status);
    assert!(!left.qp.explain(&error).is_empty());
    left.is_in(QueuePairState::Error);
}

#[track_caller]
fn write_refused(left: &End, right: &End, remote: RemoteMemory, length: usize) {
    write_fails(left, remote, length, CompletionStatus::RemoteAccessError);
    right.failure_event(&[AsyncEvent::QueuePairAccessError]);
    right.becomes(QueuePairState::Error);
}

fn unknown_mandatory(world: &World) {
    let end = world.end(0, &Shape::default());
    for bit in [10, 19, 31] {
        let access = AccessFlags::from_bits_retain(1 << bit) | AccessFlags::LOCAL_WRITE;
        refused(end.pd.alloc_mr(64, access), ErrorKind::Unsupported, &["reg_mr", "access", "allowed"]);
    }
}

fn unknown_optional(world: &World) {
    let (left, right) = world.pair();
    let hints = AccessFlags::from_bits_retain(0x3ff0_0000);
    let region = right.pd.alloc_mr(64, ALL_ACCESS | hints).unwrap();
    left.qp.post_send(&[SendRequest::write(Payload::inline(b"hint"), region.remote()).wr_id(1).signaled()]).unwrap();
    left.written(1);
    assert_eq!(region.to_vec(..4).unwrap(), b"hint");
}

fn zero_based(world: &World) {
    let (left, right) = world.pair();
    let region = right.pd.alloc_mr(256, ALL_ACCESS | AccessFlags::ZERO_BASED).unwrap();
    assert_eq!((region.iova(), region.remote().addr(), region.remote().len()), (0, 0, 256));
    let remote = RemoteMemory::new(100, region.rkey(), 4);
    left.qp.post_send(&[SendRequest::write(Payload::inline(b"zero"), remote).wr_id(1).signaled()]).unwrap();
    left.written(1);
    assert_eq!(region.to_vec(100..104).unwrap(), b"zero");
    // Local requests also count from zero.
    right
        .qp
        .post_send(&[SendRequest::read(region.slice(..4).unwrap(), left.region.remote()).wr_id(2).signaled()])
        .unwrap();
    right.read(2, 4);
    write_refused(&left, &right, RemoteMemory::new(256, region.rkey(), 1), 1);
}

/// The first packets would fit, but none of them is written.
fn refused_whole(world: &World) {
    let (left, right) = world.pair();
    let region = right.region(20_000, ALL_ACCESS);
    fill(&left.region, 0, 20_001, 1);
    write_refused(&left, &right, RemoteMemory::new(region.iova(), region.rkey(), 20_001), 20_001);
    check_all(&region, 0, 20_000, 0);
}

fn local_other_domain(world: &World) {
    let end = world.loopback(&Shape::default());
    let region = end.context.alloc_pd().unwrap().alloc_mr(64, ALL_ACCESS).unwrap();
    let names = ["post_send", "protection domain"];
    refused(end.qp.post_send(&[SendRequest::send(&region)]), ErrorKind::InvalidArgument, &names);
    let names = ["post_recv", "protection domain"];
    refused(end.qp.post_recv(&[ReceiveRequest::new(&region)]), ErrorKind::InvalidArgument, &names);
    end.silent();
}

fn send_from_no_right(world: &World) {
    let (left, right) = world.pair();
    let region = left.region(64, AccessFlags::empty());
    fill(&region, 0, 64, 6);
    right.qp.post_recv(&[ReceiveRequest::new(&right.region).wr_id(2)]).unwrap();
    left.qp.post_send(&[SendRequest::send(&region).wr_id(1).signaled()]).unwrap();
    right.received(2, 64);
    left.sent(1);
    check(&right.region, 0, 64, 6);
}

fn zero_length_no_region(world: &World) {
    let (left, right) = world.pair();
    let region = right.region(64, AccessFlags::empty());
    let remote = region.remote().slice(..0).unwrap();
    drop(region);
    left.qp.post_send(&[SendRequest::write(Payload::EMPTY, remote).wr_id(1).signaled()]).unwrap();
    left.written(1);
    left.qp.post_send(&[SendRequest::read(RegionList::EMPTY, remote).wr_id(2).signaled()]).unwrap();
    left.read(2, 0);
}

fn zero_length_entries(world: &World) {
    let cap = rdma_verbs::verbs::QueuePairCapabilities { max_send_sge: 4, max_recv_sge: 4, ..Shape::default().cap };
    let (left, right) = world.pair_of(&Shape { cap, ..Shape::default() }, &ConnectOptions::default());
    fill(&left.region, 0, 100, 2);
    let range = |end: &End, from: usize, to: usize| end.region.slice(from..to).unwrap().len();
    assert_eq!(range(&left, 5, 5), 0);
    let from = [(0, 0), (0, 60), (60, 60), (60, 100)].map(|(start, end)| left.region.slice(start..end).unwrap());
    let into = [(0, 10), (10, 10), (10, 100), (100, 100)].map(|(start, end)| right.region.slice(start..end).unwrap());
    right.qp.post_recv(&[ReceiveRequest::new(&into).wr_id(2)]).unwrap();
    left.qp.post_send(&[SendRequest::send(&from).wr_id(1).signaled()]).unwrap();
    right.received(2, 100);
    left.sent(1);
    check(&right.region, 0, 100, 2);
    check_all(&right.region, 100, 64, 0);
}

/// Because of the region's iova, an address that is a multiple of eight names bytes that are not aligned.
fn atomic_misaligned(world: &World) {
    let (left, right) = world.pair();
    let own = left.region.slice(..8).unwrap();
    for shift in 1..8 {
        let remote = right.region.remote().slice(shift..).unwrap();
        let posted = left.qp.post_send(&[SendRequest::fetch_and_add(own, remote, 1)]);
        refused(posted, ErrorKind::InvalidArgument, &["remote_addr", "multiple of 8"]);
    }
    if !right.context.query_device().any_iova {
        return left.silent();
    }
    let first = right.region(4096, ALL_ACCESS);
    let bytes = first.dereg().unwrap();
    let region = right.pd.reg_mr_with(bytes, ALL_ACCESS, &RegisterOptions::default().iova(0x10_0004)).unwrap();
    let remote = RemoteMemory::new(0x10_0008, region.rkey(), 8);
    left.qp.post_send(&[SendRequest::compare_and_swap(own, remote, 0, 1).wr_id(1)]).unwrap();
    left.fails(1, CompletionStatus::RemoteInvalidRequestError);
    right.failure_event(&[AsyncEvent::QueuePairRequestError]);
    check_all(&region, 0, 64, 0);
}
