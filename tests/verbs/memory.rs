//! Memory regions: registration, keys, bounds, rights and protection domains, local and remote.

use rdma_verbs::verbs::{
    AccessFlags, AsyncEvent, Cause, CompletionOpcode, CompletionStatus, ConnectOptions, ErrorKind, MemoryRegion,
    Payload, QueuePairState, ReceiveRequest, RegionList, RegisterOptions, RemoteMemory, Rkey, SendRequest,
};

use super::bytes::{check, check_all, fill};
use super::end::{ALL_RIGHTS, End, Shape, refused};
use super::suite::{ATOMIC_CAP, Capability, Scenario};
use super::world::{World, connect};

const ATOMIC: &[Capability] = &[ATOMIC_CAP];

const fn scenario(name: &'static str, clause: &'static str, needs: &'static [Capability], run: fn(&World)) -> Scenario {
    Scenario { name, clause, needs, run }
}

pub(crate) const SCENARIOS: &[Scenario] = &[
    scenario("mr/reg/remote_change_needs_local_write", "ibv_reg_mr(3); IBTA 11.2.8.2", &[], needs_local_write),
    scenario("mr/reg/unknown_mandatory_right", "ibv_reg_mr(3) access; EOPNOTSUPP", &[], unknown_mandatory),
    scenario("mr/reg/unknown_optional_right", "ibv_reg_mr(3) IBV_ACCESS_OPTIONAL_RANGE", &[], unknown_optional),
    scenario("mr/reg/no_byte", "ibv_reg_mr(3) length", &[], no_byte),
    scenario("mr/reg/zero_based", "ibv_reg_mr(3) IBV_ACCESS_ZERO_BASED", &[], zero_based),
    scenario("mr/reg/iova", "ibv_reg_mr_iova(3) hca_va", &[], iova),
    scenario("mr/reg/iova_overflow", "ibv_reg_mr_iova(3); IBTA 10.6.3", &[], iova_overflow),
    scenario("mr/reg/same_memory_kept", "ibv_reg_mr(3); contents stay", &[], contents_stay),
    scenario("mr/reg/keys_differ", "IBTA 10.6.3.3 keys", &[], keys_differ),
    scenario("mr/key/of_a_destroyed_region", "IBTA 10.6.6.1; 9.7.4.1.5", &[], destroyed_region),
    scenario("mr/key/wrong_tag", "IBTA 10.6.3.3; 9.7.4.1.5", &[], wrong_tag),
    scenario("mr/key/of_another_device", "IBTA 9.7.4.1.5", &[], other_device),
    scenario("mr/key/local_gone_while_posted", "IBTA 10.6.6.1 L_Key; ibv_dereg_mr(3)", &[], local_gone),
    scenario("mr/key/receive_gone_while_posted", "IBTA 9.9.6.3 local protection at the responder", &[], receive_gone),
    scenario("mr/bounds/write_last_byte_and_beyond", "IBTA 9.7.4.1.5 R_Key check", &[], write_bounds),
    scenario("mr/bounds/read_before_the_first_byte", "IBTA 9.7.4.1.5 R_Key check", &[], read_before),
    scenario("mr/bounds/address_wraps", "IBTA 9.7.4.1.5 R_Key check", &[], address_wraps),
    scenario("mr/bounds/long_write_is_refused_whole", "IBTA 9.7.4.1.5: whole request at once", &[], refused_whole),
    scenario("mr/domain/remote_key_of_another", "IBTA 10.6.3.5 protection domain", &[], remote_other_domain),
    scenario("mr/domain/local_range_of_another", "IBTA 10.6.3.5 protection domain", &[], local_other_domain),
    scenario("mr/rights/write", "IBTA 9.7.4.1.5 access rights", &[], right_write),
    scenario("mr/rights/read", "IBTA 9.7.4.1.5 access rights", &[], right_read),
    scenario("mr/rights/atomic", "IBTA 9.7.4.1.5 access rights", ATOMIC, right_atomic),
    scenario("mr/rights/of_the_queue_pair", "IBTA 9.7.4.1.3; 11.2.5.2 access flags", &[], rights_of_queue_pair),
    scenario("mr/rights/read_into_read_only", "IBTA 11.2.8.2 LOCAL_WRITE", &[], read_into_read_only),
    scenario("mr/rights/receive_into_read_only", "IBTA 11.2.8.2 LOCAL_WRITE", &[], receive_into_read_only),
    scenario("mr/rights/send_from_no_right", "IBTA 11.2.8.2: reading is always allowed", &[], send_from_no_right),
    scenario("mr/zero_length/needs_no_key", "IBTA 9.7.4.1.5.1 zero-length", &[], zero_length_no_key),
    scenario("mr/zero_length/needs_no_region", "IBTA 9.7.4.1.5.1 zero-length", &[], zero_length_no_region),
    scenario("mr/zero_length/entries_within_a_list", "ibv_post_send(3) sge length 0", &[], zero_length_entries),
    scenario("mr/zero_length/write_with_immediate", "IBTA 9.4.3; 9.7.4.1.5.1", &[], zero_length_immediate),
    scenario("mr/atomic/misaligned", "IBTA 9.4.5 alignment", ATOMIC, atomic_misaligned),
    scenario("mr/atomic/result_in_host_order", "IBTA 9.4.5; ibv_post_send(3)", ATOMIC, atomic_host_order),
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
    assert_eq!(right.event(), AsyncEvent::QueuePairAccessError(right.qp.qpn()));
    right.is_in(QueuePairState::Error);
}

fn needs_local_write(world: &World) {
    let end = world.end(0, &Shape::default());
    for access in [AccessFlags::REMOTE_WRITE, AccessFlags::REMOTE_ATOMIC, AccessFlags::REMOTE] {
        refused(end.pd.alloc_mr(64, access), ErrorKind::InvalidArgument, &["reg_mr", "access", "LOCAL_WRITE"]);
    }
    assert!(end.pd.alloc_mr(64, AccessFlags::REMOTE_READ).is_ok());
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
    let region = right.pd.alloc_mr(64, ALL_RIGHTS | hints).unwrap();
    left.qp.post_send(&[SendRequest::write(Payload::inline(b"hint"), region.remote()).wr_id(1).signaled()]).unwrap();
    left.written(1);
    assert_eq!(region.to_vec(..4).unwrap(), b"hint");
}

fn no_byte(world: &World) {
    let end = world.end(0, &Shape::default());
    refused(end.pd.reg_mr(Vec::new(), AccessFlags::LOCAL_WRITE), ErrorKind::InvalidArgument, &["length", "0"]);
}

fn zero_based(world: &World) {
    let (left, right) = world.pair();
    let region = right.pd.alloc_mr(256, ALL_RIGHTS | AccessFlags::ZERO_BASED).unwrap();
    assert_eq!((region.iova(), region.remote().addr(), region.remote().len()), (0, 0, 256));
    let remote = RemoteMemory::new(100, region.rkey(), 4);
    left.qp.post_send(&[SendRequest::write(Payload::inline(b"zero"), remote).wr_id(1).signaled()]).unwrap();
    left.written(1);
    assert_eq!(region.to_vec(100..104).unwrap(), b"zero");
    // This host's own requests count from there, too.
    right
        .qp
        .post_send(&[SendRequest::read(region.slice(..4).unwrap(), left.region.remote()).wr_id(2).signaled()])
        .unwrap();
    right.read(2, 4);
    write_refused(&left, &right, RemoteMemory::new(256, region.rkey(), 1), 1);
}

fn iova(world: &World) {
    let (left, right) = world.pair();
    let first = 0xdead_0000_0000_1001;
    let region = right.pd.reg_mr_iova(vec![0; 64], first, ALL_RIGHTS).unwrap();
    assert_eq!((region.iova(), region.remote().addr()), (first, first));
    let remote = RemoteMemory::new(first + 60, region.rkey(), 4);
    left.qp.post_send(&[SendRequest::write(Payload::inline(b"last"), remote).wr_id(1).signaled()]).unwrap();
    left.written(1);
    assert_eq!(region.to_vec(60..).unwrap(), b"last");
    write_refused(&left, &right, RemoteMemory::new(first - 1, region.rkey(), 4), 4);
}

fn iova_overflow(world: &World) {
    let end = world.end(0, &Shape::default());
    let options = RegisterOptions { access: ALL_RIGHTS, iova: Some(u64::MAX - 62), ..Default::default() };
    let refusal = end.pd.reg_mr_with(vec![7; 64], &options).expect_err("passes the end");
    assert_eq!(refusal.error.kind(), ErrorKind::InvalidArgument);
    assert!(refusal.error.to_string().contains("iova"), "{}", refusal.error);
    assert_eq!(refusal.memory.into_vec().expect("comes back"), [7; 64]);
    assert!(end.pd.reg_mr_iova(vec![7; 64], u64::MAX - 64, ALL_RIGHTS).is_ok());
}

fn contents_stay(world: &World) {
    let end = world.loopback(&Shape::default());
    let bytes: Vec<u8> = (0..200).collect();
    let region = end.pd.reg_mr(bytes.clone(), AccessFlags::empty()).unwrap();
    end.qp.post_send(&[SendRequest::write(&region, end.region.remote()).wr_id(1).signaled()]).unwrap();
    end.written(1);
    assert_eq!(end.region.to_vec(..200).unwrap(), bytes);
    assert_eq!(region.dereg().unwrap().into_vec().expect("a Vec went in"), bytes);
}

fn keys_differ(world: &World) {
    let end = world.end(0, &Shape::default());
    let regions: Vec<MemoryRegion> = (0..100).map(|_| end.region(64, ALL_RIGHTS)).collect();
    let keys: std::collections::HashSet<Rkey> = regions.iter().map(MemoryRegion::rkey).collect();
    assert_eq!(keys.len(), 100);
    let again = end.region(64, ALL_RIGHTS);
    assert!(!keys.contains(&again.rkey()));
}

fn destroyed_region(world: &World) {
    let (left, right) = world.pair();
    let region = right.region(64, ALL_RIGHTS);
    let remote = region.remote();
    left.qp.post_send(&[SendRequest::write(Payload::inline(b"there"), remote).wr_id(1).signaled()]).unwrap();
    left.written(1);
    drop(region);
    // What comes after it must not get its key.
    let next = right.region(64, ALL_RIGHTS);
    write_refused(&left, &right, remote, 8);
    check_all(&next, 0, 64, 0);
}

fn wrong_tag(world: &World) {
    let (left, right) = world.pair();
    let remote = RemoteMemory::new(right.region.iova(), Rkey(right.region.rkey().0 ^ 0x40), 8);
    write_refused(&left, &right, remote, 8);
    check_all(&right.region, 0, 64, 0);
}

fn other_device(world: &World) {
    let (left, right) = world.pair();
    let remote = left.region.remote();
    fill(&left.region, 0, 8, 1);
    write_refused(&left, &right, remote, 8);
    check(&left.region, 0, 8, 1);
}

/// The request is in the queue when the region goes: it ends, and nothing of the freed memory leaves.
fn local_gone(world: &World) {
    let (left, right) = world.pair();
    let region = left.region(4096, ALL_RIGHTS);
    let mut batch = left.qp.send_batch().unwrap();
    batch.push(&SendRequest::write(&region, right.region.remote()).wr_id(1)).unwrap();
    region.revoke().unwrap();
    batch.post().unwrap();
    let error = left.fails(1, CompletionStatus::LocalProtectionError);
    assert_eq!(error.cause, Cause::LocalKeyUnknown);
    check_all(&right.region, 0, 4096, 0);
    right.silent();
}

/// The key of a receive is looked at when the message comes.
fn receive_gone(world: &World) {
    let (left, right) = world.pair();
    let region = right.region(64, ALL_RIGHTS);
    right.qp.post_recv(&[ReceiveRequest::new(&region).wr_id(2)]).unwrap();
    region.revoke().unwrap();
    left.qp.post_send(&[SendRequest::send(Payload::inline(b"hello")).wr_id(1)]).unwrap();
    left.fails(1, CompletionStatus::RemoteOperationError);
    let error = right.fails(2, CompletionStatus::LocalProtectionError);
    assert_eq!(error.cause, Cause::LocalKeyUnknown);
    right.is_in(QueuePairState::Error);
}

fn write_bounds(world: &World) {
    let (left, right) = world.pair();
    let region = right.region(4096, ALL_RIGHTS);
    fill(&left.region, 0, 96, 1);
    let last = RemoteMemory::new(region.iova() + 4000, region.rkey(), 96);
    left.qp.post_send(&[SendRequest::write(left.region.slice(..96).unwrap(), last).wr_id(1).signaled()]).unwrap();
    left.written(1);
    check(&region, 4000, 96, 1);
    write_refused(&left, &right, RemoteMemory::new(region.iova() + 4000, region.rkey(), 97), 97);
}

fn read_before(world: &World) {
    let (left, right) = world.pair();
    let region = right.region(64, ALL_RIGHTS);
    let before = RemoteMemory::new(region.iova() - 1, region.rkey(), 8);
    left.qp.post_send(&[SendRequest::read(left.region.slice(..8).unwrap(), before).wr_id(1)]).unwrap();
    left.fails(1, CompletionStatus::RemoteAccessError);
    check_all(&left.region, 0, 8, 0);
    right.is_in(QueuePairState::Error);
}

fn address_wraps(world: &World) {
    let (left, right) = world.pair();
    let region = right.pd.reg_mr_iova(vec![0; 64], 0, ALL_RIGHTS).unwrap();
    write_refused(&left, &right, RemoteMemory::new(u64::MAX - 3, region.rkey(), 3), 3);
    check_all(&region, 0, 64, 0);
}

/// The first packets would fit: none of them is written.
fn refused_whole(world: &World) {
    let (left, right) = world.pair();
    let region = right.region(20_000, ALL_RIGHTS);
    fill(&left.region, 0, 20_001, 1);
    write_refused(&left, &right, RemoteMemory::new(region.iova(), region.rkey(), 20_001), 20_001);
    check_all(&region, 0, 20_000, 0);
}

fn remote_other_domain(world: &World) {
    let (left, right) = world.pair();
    let region = right.context.alloc_pd().unwrap().alloc_mr(64, ALL_RIGHTS).unwrap();
    write_refused(&left, &right, region.remote(), 8);
    check_all(&region, 0, 64, 0);
}

fn local_other_domain(world: &World) {
    let end = world.loopback(&Shape::default());
    let region = end.context.alloc_pd().unwrap().alloc_mr(64, ALL_RIGHTS).unwrap();
    let names = ["post_send", "protection domain"];
    refused(end.qp.post_send(&[SendRequest::send(&region)]), ErrorKind::InvalidArgument, &names);
    let names = ["post_recv", "protection domain"];
    refused(end.qp.post_recv(&[ReceiveRequest::new(&region)]), ErrorKind::InvalidArgument, &names);
    end.silent();
}

/// A region with every right but one lets in the others, and not that one.
fn rights_but(world: &World, lacked: AccessFlags) {
    for used in [AccessFlags::REMOTE_WRITE, AccessFlags::REMOTE_READ, AccessFlags::REMOTE_ATOMIC] {
        let (left, right) = (world.end(0, &Shape::default()), world.end(1, &Shape::default()));
        connect(&left, &right, &ConnectOptions::default());
        let region = right.region(64, ALL_RIGHTS.difference(lacked));
        fill(&left.region, 0, 8, 1);
        let own = left.region.slice(..8).unwrap();
        let (request, opcode) = match used {
            AccessFlags::REMOTE_WRITE => (SendRequest::write(own, region.remote()), CompletionOpcode::RdmaWrite),
            AccessFlags::REMOTE_READ => (SendRequest::read(own, region.remote()), CompletionOpcode::RdmaRead),
            _ => (SendRequest::fetch_and_add(own, region.remote(), 1), CompletionOpcode::FetchAndAdd),
        };
        left.qp.post_send(&[request.wr_id(1).signaled()]).unwrap();
        if used != lacked {
            left.done(1, opcode);
            continue;
        }
        left.fails(1, CompletionStatus::RemoteAccessError);
        assert_eq!(right.event(), AsyncEvent::QueuePairAccessError(right.qp.qpn()));
        check_all(&region, 0, 64, 0);
        check(&left.region, 0, 8, 1);
    }
}

fn right_write(world: &World) {
    rights_but(world, AccessFlags::REMOTE_WRITE);
}

fn right_read(world: &World) {
    rights_but(world, AccessFlags::REMOTE_READ);
}

fn right_atomic(world: &World) {
    rights_but(world, AccessFlags::REMOTE_ATOMIC);
}

fn rights_of_queue_pair(world: &World) {
    let shape = Shape { access: AccessFlags::REMOTE_READ, ..Shape::default() };
    let (left, right) = (world.end(0, &Shape::default()), world.end(1, &shape));
    connect(&left, &right, &ConnectOptions::default());
    left.qp.post_send(&[SendRequest::read(&left.region, right.region.remote()).wr_id(1).signaled()]).unwrap();
    left.read(1, 64 << 10);
    left.qp.post_send(&[SendRequest::write(Payload::inline(b"no"), right.region.remote()).wr_id(2)]).unwrap();
    let statuses = [CompletionStatus::RemoteInvalidRequestError, CompletionStatus::RemoteAccessError];
    left.fails_with(2, &statuses);
    check_all(&right.region, 0, 64, 0);
}

fn read_into_read_only(world: &World) {
    let (left, right) = world.pair();
    let region = left.region(64, AccessFlags::REMOTE_READ);
    let posted = left.qp.post_send(&[SendRequest::read(&region, right.region.remote())]);
    refused(posted, ErrorKind::InvalidArgument, &["post_send", "access", "LOCAL_WRITE"]);
    left.silent();
}

fn receive_into_read_only(world: &World) {
    let end = world.loopback(&Shape::default());
    let region = end.region(64, AccessFlags::REMOTE_READ);
    let posted = end.qp.post_recv(&[ReceiveRequest::new(&region)]);
    refused(posted, ErrorKind::InvalidArgument, &["post_recv", "access", "LOCAL_WRITE"]);
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

fn zero_length_no_key(world: &World) {
    let (left, right) = world.pair();
    let nowhere = RemoteMemory::new(0x1234_5678, Rkey(0xdead_beef), 0);
    left.qp
        .post_send(&[
            SendRequest::write(Payload::EMPTY, nowhere).wr_id(1).signaled(),
            SendRequest::read(RegionList::EMPTY, nowhere).wr_id(2).signaled(),
            SendRequest::write(left.region.slice(8..8).unwrap(), nowhere).wr_id(3).signaled(),
        ])
        .unwrap();
    left.written(1);
    left.read(2, 0);
    left.written(3);
    right.no_event();
    right.is_in(QueuePairState::ReadyToSend);
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

fn zero_length_immediate(world: &World) {
    let (left, right) = world.pair();
    let nowhere = RemoteMemory::new(7, Rkey(9), 0);
    right.qp.post_recv(&[ReceiveRequest::new(RegionList::EMPTY).wr_id(2)]).unwrap();
    left.qp.post_send(&[SendRequest::write_with_immediate(Payload::EMPTY, nowhere, 77).wr_id(1).signaled()]).unwrap();
    right.notified(2, 0, 77);
    left.written(1);
}

/// An address that is a multiple of eight names bytes that are not, because of the region's iova.
fn atomic_misaligned(world: &World) {
    let (left, right) = world.pair();
    let own = left.region.slice(..8).unwrap();
    for shift in 1..8 {
        let remote = right.region.remote().slice(shift..).unwrap();
        let posted = left.qp.post_send(&[SendRequest::fetch_and_add(own, remote, 1)]);
        refused(posted, ErrorKind::InvalidArgument, &["remote_addr", "multiple of 8"]);
    }
    let first = right.region(4096, ALL_RIGHTS);
    let bytes = first.dereg().unwrap();
    let region = right.pd.reg_mr_iova(bytes, 0x10_0004, ALL_RIGHTS).unwrap();
    let remote = RemoteMemory::new(0x10_0008, region.rkey(), 8);
    left.qp.post_send(&[SendRequest::compare_and_swap(own, remote, 0, 1).wr_id(1)]).unwrap();
    left.fails(1, CompletionStatus::RemoteInvalidRequestError);
    assert_eq!(right.event(), AsyncEvent::QueuePairRequestError(right.qp.qpn()));
    check_all(&region, 0, 64, 0);
}

fn atomic_host_order(world: &World) {
    let (left, right) = world.pair();
    let (value, own) = (0x0102_0304_0506_0708, left.region.slice(8..16).unwrap());
    right.region.store_release_u64(64, value).unwrap();
    let remote = right.region.remote().slice(64..).unwrap();
    left.qp.post_send(&[SendRequest::compare_and_swap(own, remote, value, 42).wr_id(1).signaled()]).unwrap();
    assert_eq!(left.done(1, CompletionOpcode::CompareAndSwap).byte_len, 8);
    assert_eq!(left.region.load_acquire_u64(8).unwrap(), value);
    assert_eq!(right.region.load_acquire_u64(64).unwrap(), 42);
    left.qp.post_send(&[SendRequest::compare_and_swap(own, remote, value, 43).wr_id(2).signaled()]).unwrap();
    left.done(2, CompletionOpcode::CompareAndSwap);
    assert_eq!(left.region.load_acquire_u64(8).unwrap(), 42, "what was there, not what was expected");
    assert_eq!(right.region.load_acquire_u64(64).unwrap(), 42, "nothing was swapped");
}
