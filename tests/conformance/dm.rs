//! Device memory: allocation, copies, and registered ranges of it.

use rdma_verbs::verbs::{
    AccessFlags, AsyncEvent, CompletionOpcode, CompletionStatus, DeviceMemory, DeviceMemoryOptions, ErrorKind,
    MemoryRegion, Payload, QueuePairState, ReceiveRequest, RemoteMemory, SendRequest,
};

use super::bytes::{check, check_all, fill, pattern};
use super::end::{ALL_ACCESS, End, Shape, refused};
use super::suite::{ATOMIC_CAP, Capability, DEVICE_MEMORY, Scenario};
use super::world::World;

const NEEDS: &[Capability] = &[DEVICE_MEMORY];
const ALLOC: &str = "ibv_alloc_dm(3)";
const COPY: &str = "ibv_alloc_dm(3) ibv_memcpy_to_dm, ibv_memcpy_from_dm";
const REG: &str = "ibv_alloc_dm(3) ibv_reg_dm_mr";

const fn scenario(name: &'static str, clause: &'static str, run: fn(&World)) -> Scenario {
    Scenario { name, clause, needs: NEEDS, run }
}

pub(crate) const SCENARIOS: &[Scenario] = &[
    scenario("dm/alloc/nothing", ALLOC, nothing),
    scenario("dm/alloc/more_than_there_is", "ibv_query_device_ex(3) max_dm_size", too_much),
    scenario("dm/alloc/comes_back_when_freed", "ibv_alloc_dm(3) ibv_free_dm", comes_back),
    scenario("dm/alloc/alignment", "ibv_alloc_dm(3) log_align_req", alignment),
    scenario("dm/copy/in_and_out", COPY, copies),
    scenario("dm/copy/bounds", COPY, copy_bounds),
    scenario("dm/reg/peer_writes_and_reads", REG, peer_writes_and_reads),
    scenario("dm/reg/part_is_zero_based", "ibv_alloc_dm(3) IBV_ACCESS_ZERO_BASED", zero_based),
    scenario("dm/reg/beyond_the_part", "IBTA, reliable service: R_Key check", beyond_the_part),
    scenario("dm/reg/of_own_requests", REG, own_requests),
    scenario("dm/reg/atomics", "IBTA, atomics", atomics).needs(&[DEVICE_MEMORY, ATOMIC_CAP]),
    scenario("dm/reg/rights", "IBTA, memory management", rights),
    scenario("dm/reg/two_domains", "IBTA, protection domains", two_domains),
    scenario("dm/reg/outlives_the_handle", "ibv_alloc_dm(3) ibv_free_dm EBUSY", outlives_the_handle),
    scenario("dm/reg/deregistered", "ibv_dereg_mr(3)", deregistered),
    scenario("dm/reg/bad_input", "ibv_alloc_dm(3) EINVAL", bad_input),
    scenario("dm/reg/memory_of_another_device", REG, another_device),
];

const PAGE: usize = 4096;

fn alloc(end: &End, len: usize) -> DeviceMemory {
    end.context.alloc_dm(len).expect("alloc_dm")
}

#[track_caller]
fn register(end: &End, memory: &DeviceMemory, range: std::ops::Range<usize>, access: AccessFlags) -> MemoryRegion {
    end.pd.reg_dm_mr(memory, range, access).expect("reg_dm_mr")
}

#[track_caller]
fn holds(memory: &DeviceMemory, offset: usize, expected: &[u8]) {
    let mut found = vec![0; expected.len()];
    memory.copy_out(offset, &mut found).expect("copy_out");
    assert_eq!(found, expected, "at {offset}");
}

#[track_caller]
fn write(peer: &End, remote: RemoteMemory, bytes: &[u8]) {
    peer.post(&[SendRequest::write(Payload::inline(bytes), remote).wr_id(1).signaled()]);
    peer.written(1);
}

#[track_caller]
fn closed(peer: &End, owner: &End, remote: RemoteMemory) {
    peer.post(&[SendRequest::write(Payload::inline(b"intruder"), remote).wr_id(2)]);
    peer.fails(2, CompletionStatus::RemoteAccessError);
    owner.failure_event(&[AsyncEvent::QueuePairAccessError]);
    owner.becomes(QueuePairState::Error);
}

fn nothing(world: &World) {
    refused(world.device(0).alloc_dm(0), ErrorKind::InvalidArgument, &["alloc_dm", "length", "0", "1"]);
}

fn too_much(world: &World) {
    let context = world.device(0);
    let most = context.query_device().max_dm_size;
    let names = ["alloc_dm", "length", "max_dm_size", &most.to_string()];
    refused(context.alloc_dm(most as usize + 1), ErrorKind::ResourceLimit, &names);
    refused(context.alloc_dm(usize::MAX), ErrorKind::ResourceLimit, &names);
    let half = context.alloc_dm(most as usize / 2 + 1).unwrap();
    refused(context.alloc_dm(most as usize / 2), ErrorKind::ResourceLimit, &names);
    assert_eq!(half.len() as u64, most / 2 + 1);
}

/// A region keeps its device memory allocated; the last owner frees it.
fn comes_back(world: &World) {
    let end = world.end(0, &Shape::default());
    let most = end.context.query_device().max_dm_size as usize;
    for _ in 0..3 {
        let all = alloc(&end, most);
        let region = register(&end, &all, 0..8, ALL_ACCESS);
        drop(all);
        refused(end.context.alloc_dm(1), ErrorKind::ResourceLimit, &["alloc_dm"]);
        drop(region);
    }
    assert_eq!(alloc(&end, most).len(), most);
}

fn alignment(world: &World) {
    let context = world.device(0);
    assert_eq!(context.alloc_dm_with(24, &DeviceMemoryOptions::default().log_align_req(6)).unwrap().len(), 24);
    let refusal = context.alloc_dm_with(24, &DeviceMemoryOptions::default().log_align_req(63));
    refused(refusal, ErrorKind::InvalidArgument, &["alloc_dm", "log_align_req is 63", "allowed"]);
}

fn copies(world: &World) {
    let end = world.end(0, &Shape::default());
    let memory = alloc(&end, 3 * PAGE);
    holds(&memory, 0, &vec![0; 3 * PAGE]);
    memory.copy_in(PAGE - 3, &pattern(PAGE, 4)).unwrap();
    holds(&memory, PAGE - 3, &pattern(PAGE, 4));
    holds(&memory, PAGE - 11, &[0; 8]);
    holds(&memory, 2 * PAGE - 3, &[0; 8]);
    memory.copy_in(3 * PAGE - 1, &[9]).unwrap();
    memory.copy_in(3 * PAGE, &[]).unwrap();
    holds(&memory.clone(), 3 * PAGE - 1, &[9]);
}

fn copy_bounds(world: &World) {
    let end = world.end(0, &Shape::default());
    let memory = alloc(&end, 64);
    let invalid = ErrorKind::InvalidArgument;
    for offset in [61, 65, usize::MAX] {
        let named_offset = format!("dm_offset is {offset}");
        refused(memory.copy_in(offset, &[1; 4]), invalid, &["memcpy_to_dm", &named_offset, "length 4", "64 bytes"]);
        refused(memory.copy_out(offset, &mut [1; 4]), invalid, &["memcpy_from_dm", &named_offset, "64 bytes"]);
    }
    holds(&memory, 0, &[0; 64]);
}

fn peer_writes_and_reads(world: &World) {
    let (left, right) = world.pair();
    let memory = alloc(&right, 4 * PAGE);
    let region = register(&right, &memory, PAGE..4 * PAGE, ALL_ACCESS);
    fill(&left.region, 0, 9000, 3);
    let remote = region.remote().slice(10..9010).unwrap();
    left.post(&[SendRequest::write(left.at(0..9000), remote).wr_id(1).signaled()]);
    left.written(1);
    holds(&memory, PAGE + 10, &pattern(9000, 3));
    holds(&memory, 0, &vec![0; PAGE + 10]);
    memory.copy_in(PAGE + 10, b"by its owner").unwrap();
    left.post(&[SendRequest::read(left.at(10_000..19_000), remote).wr_id(2).signaled()]);
    left.read(2, 9000);
    assert_eq!(left.region.to_vec(10_000..10_012).unwrap(), b"by its owner");
    assert_eq!(left.region.to_vec(10_012..19_000).unwrap(), pattern(9000, 3)[12..]);
}

fn zero_based(world: &World) {
    let (left, right) = world.pair();
    let memory = alloc(&right, 256);
    let region = register(&right, &memory, 64..128, ALL_ACCESS);
    assert_eq!((region.iova(), region.len(), region.remote().addr(), region.remote().len()), (0, 64, 0, 64));
    assert!(region.access().contains(AccessFlags::ZERO_BASED));
    write(&left, RemoteMemory::new(8, region.rkey(), 4), b"part");
    holds(&memory, 72, b"part");
    assert_eq!(region.to_vec(8..12).unwrap(), b"part");
}

/// The memory continues behind the region's end, but the region does not.
fn beyond_the_part(world: &World) {
    let (left, right) = world.pair();
    let memory = alloc(&right, 256);
    let region = register(&right, &memory, 64..128, ALL_ACCESS);
    closed(&left, &right, RemoteMemory::new(60, region.rkey(), 8));
    holds(&memory, 0, &[0; 256]);
}

fn own_requests(world: &World) {
    let (left, right) = world.pair();
    let (from, into) = (alloc(&left, 6000), alloc(&right, 6000));
    from.copy_in(0, &pattern(6000, 8)).unwrap();
    let from = register(&left, &from, 1000..6000, AccessFlags::empty());
    let received = register(&right, &into, 0..5000, AccessFlags::LOCAL_WRITE);
    right.qp.post_recv(&[ReceiveRequest::new(&received).wr_id(3)]).unwrap();
    left.post(&[SendRequest::send(&from).wr_id(4).signaled()]);
    right.received(3, 5000);
    left.sent(4);
    holds(&into, 0, &pattern(6000, 8)[1000..]);
    holds(&into, 5000, &[0; 1000]);
}

fn atomics(world: &World) {
    let (left, right) = world.pair();
    let memory = alloc(&right, 64);
    memory.copy_in(16, &41u64.to_ne_bytes()).unwrap();
    let region = register(&right, &memory, 8..64, ALL_ACCESS);
    let word = region.remote().slice(8..16).unwrap();
    left.post(&[SendRequest::fetch_and_add(left.at(0..8), word, 1).wr_id(1).signaled()]);
    left.done(1, CompletionOpcode::FetchAndAdd);
    left.post(&[SendRequest::compare_and_swap(left.at(8..16), word, 42, 7).wr_id(2).signaled()]);
    left.done(2, CompletionOpcode::CompareAndSwap);
    let found = [41u64.to_ne_bytes(), 42u64.to_ne_bytes()].concat();
    assert_eq!(left.region.to_vec(..16).unwrap(), found);
    holds(&memory, 16, &7u64.to_ne_bytes());
    assert_eq!(region.fetch_add_u64(8, 3).unwrap(), 7);
    holds(&memory, 16, &10u64.to_ne_bytes());
}

fn rights(world: &World) {
    let (left, right) = world.pair();
    let memory = alloc(&right, 64);
    memory.copy_in(0, &pattern(64, 2)).unwrap();
    let region = register(&right, &memory, 0..64, AccessFlags::REMOTE_READ);
    left.post(&[SendRequest::read(left.at(0..64), region.remote()).wr_id(1).signaled()]);
    left.read(1, 64);
    check(&left.region, 0, 64, 2);
    closed(&left, &right, region.remote());
    holds(&memory, 0, &pattern(64, 2));
}

/// Overlapping ranges, each with its own domain and access flags.
fn two_domains(world: &World) {
    let (left, right) = world.pair();
    let memory = alloc(&right, 64);
    let elsewhere = right.context.alloc_pd().unwrap();
    let here = register(&right, &memory, 0..48, ALL_ACCESS);
    let there = elsewhere.reg_dm_mr(&memory, 16.., ALL_ACCESS).unwrap();
    write(&left, here.remote().slice(16..).unwrap(), b"seen in both");
    assert_eq!(there.to_vec(..12).unwrap(), b"seen in both");
    closed(&left, &right, there.remote());
    assert_eq!(here.to_vec(16..28).unwrap(), b"seen in both");
}

fn outlives_the_handle(world: &World) {
    let (left, right) = world.pair();
    let memory = alloc(&right, 2 * PAGE);
    let region = register(&right, &memory, PAGE..2 * PAGE, ALL_ACCESS);
    drop(memory);
    fill(&left.region, 0, PAGE, 9);
    left.post(&[SendRequest::write(left.at(0..PAGE), region.remote()).wr_id(1).signaled()]);
    left.written(1);
    check(&region, 0, PAGE, 9);
}

fn deregistered(world: &World) {
    let (left, right) = world.pair();
    let memory = alloc(&right, 64);
    let region = register(&right, &memory, 0..64, ALL_ACCESS);
    let remote = region.remote();
    write(&left, remote, b"stays");
    assert_eq!(region.dereg().unwrap().len(), 64);
    closed(&left, &right, remote);
    holds(&memory, 0, b"stays\0\0\0");
}

fn bad_input(world: &World) {
    let end = world.end(0, &Shape::default());
    let memory = alloc(&end, 64);
    let invalid = ErrorKind::InvalidArgument;
    let all = AccessFlags::LOCAL_WRITE;
    refused(end.pd.reg_dm_mr(&memory, 60..65, all), invalid, &["reg_dm_mr", "60..65", "device memory has 64"]);
    let nothing = end.pd.reg_dm_mr(&memory, 8..8, all).unwrap();
    assert_eq!(nothing.dereg().unwrap().len(), 0, "a part may have no bytes");
    let on_demand = all | AccessFlags::ON_DEMAND;
    refused(end.pd.reg_dm_mr(&memory, .., on_demand), invalid, &["reg_dm_mr", "access", "ON_DEMAND", "allowed"]);
    refused(end.pd.reg_dm_mr(&memory, .., AccessFlags::REMOTE_WRITE), invalid, &["reg_dm_mr", "LOCAL_WRITE"]);
    let persistent = all | AccessFlags::FLUSH_PERSISTENT;
    refused(end.pd.reg_dm_mr(&memory, .., persistent), invalid, &["reg_dm_mr", "FLUSH_PERSISTENT"]);
    let region = end.pd.reg_dm_mr(&memory, .., all).unwrap();
    check_all(&region, 0, 64, 0);
}

fn another_device(world: &World) {
    let (here, there) = (world.end(0, &Shape::default()), world.end(1, &Shape::default()));
    let memory = alloc(&there, 64);
    let refusal = here.pd.reg_dm_mr(&memory, .., AccessFlags::LOCAL_WRITE);
    refused(refusal, ErrorKind::InvalidArgument, &["reg_dm_mr", "dm", "another device"]);
}
