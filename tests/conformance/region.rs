//! Protection domains and memory regions.

use std::io::{Read, Seek, SeekFrom, Write};

use rdma_verbs::verbs::{
    AccessFlags, Cause, CompletionStatus, ConnectOptions, ErrorKind, Memory, Payload, QueuePairCapabilities,
    QueuePairState, ReceiveRequest, RegisterOptions, RemoteMemory, SendRequest,
};

use super::bytes::{check, check_all, fill, pattern};
use super::end::{ALL_ACCESS, Shape, caused_by, create_qp, memory_gone, refused};
use super::suite::Scenario;
use super::world::World;

const REG_MR: &str = "IBTA, memory region verbs: register memory region; ibv_reg_mr(3)";
const DOMAIN: &str = "IBTA, protection domains";

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("pd/send/region_of_another_domain", DOMAIN, send_from_other_domain),
    Scenario::new("pd/read/region_of_another_domain", DOMAIN, read_into_other_domain),
    Scenario::new("pd/recv/region_of_another_domain", DOMAIN, receive_into_other_domain),
    Scenario::new("pd/send/one_foreign_sge_of_several", DOMAIN, one_foreign_sge),
    Scenario::new("pd/create_qp/queue_of_another_device", "ibv_create_qp(3)", queue_of_other_device),
    Scenario::new("pd/create_qp/queue_of_another_opening", "ibv_create_qp(3)", queue_of_other_opening),
    Scenario::new("pd/alloc/many", "ibv_alloc_pd(3); max_pd", many_domains),
    Scenario::new("mr/reg/contents_stay", REG_MR, contents_stay),
    Scenario::new("mr/reg/nothing_is_refused", REG_MR, empty_refused),
    Scenario::new("mr/reg/remote_write_needs_local_write", "IBTA, memory management; ibv_reg_mr(3)", needs_local_write),
    Scenario::new("mr/reg/refusal_gives_memory_back", "API: reg_mr", refusal_gives_back),
    Scenario::new("mr/reg/iova_beyond_the_end", "ibv_reg_mr_iova(3)", iova_wraps),
    Scenario::new("mr/reg/keys_differ", "IBTA, memory management: each registration has its own keys", keys_differ),
    Scenario::new(
        "mr/reg/two_regions_different_access",
        "IBTA, memory management: rights belong to the region",
        different_access,
    ),
    Scenario::new("mr/iova/names_the_first_byte", "ibv_reg_mr_iova(3)", iova),
    Scenario::new("mr/iova/zero_based", "ibv_reg_mr(3) IBV_ACCESS_ZERO_BASED", zero_based),
    Scenario::new("mr/iova/of_own_requests", "ibv_reg_mr_iova(3): SGEs use it too", iova_of_own_requests),
    Scenario::new("mr/iova/at_the_top", "ibv_reg_mr_iova(3)", iova_at_the_top),
    Scenario::new("mr/file/writes_reach_the_file", "ibv_reg_mr(3) file mappings", file),
    Scenario::new("mr/file/read_only_refuses_writes", "ibv_reg_mr(3) EFAULT, EINVAL", read_only_file),
    Scenario::new("mr/dereg/gives_memory_back", "ibv_dereg_mr(3)", dereg_gives_back),
    Scenario::new("mr/dereg/while_a_request_names_it", "ibv_dereg_mr(3); IBTA, memory management", dereg_while_named),
    Scenario::new("mr/dereg/key_is_not_reused_at_once", "IBTA, memory management", key_not_reused),
    Scenario::new("mr/local/bounds_of_slices", "API: MemoryRegion::slice", slice_bounds),
    Scenario::new("mr/local/bounds_of_copies", "API: read_at, write_at", copy_bounds),
    Scenario::new("mr/local/atomics", "API: fetch_add_u64, compare_exchange_u64", local_atomics),
    Scenario::new("mr/local/misaligned_words", "API: load_acquire_u64", misaligned_words),
    Scenario::new("mr/remote/description_as_bytes", "API: RemoteMemory::to_bytes", remote_as_bytes),
    Scenario::new("mr/remote/slices", "API: RemoteMemory::slice", remote_slices),
];

fn send_from_other_domain(world: &World) {
    let (left, right) = world.pair();
    let other = left.context.alloc_pd().unwrap().alloc_mr(64, ALL_ACCESS).unwrap();
    right.receive(1, 0..64);
    let invalid = ErrorKind::InvalidArgument;
    refused(left.qp.post_send(&[SendRequest::send(&other)]), invalid, &["post_send", "protection domain"]);
    refused(left.qp.post_send(&[SendRequest::write(&other, right.far(0..64))]), invalid, &["protection domain"]);
    right.silent();
}

fn read_into_other_domain(world: &World) {
    let (left, right) = world.pair();
    let other = left.context.alloc_pd().unwrap().alloc_mr(64, ALL_ACCESS).unwrap();
    let invalid = ErrorKind::InvalidArgument;
    let read = SendRequest::read(&other, right.far(0..64));
    refused(left.qp.post_send(&[read]), invalid, &["post_send", "protection domain"]);
    let add = SendRequest::fetch_and_add(other.slice(0..8).unwrap(), right.far(0..8), 1);
    refused(left.qp.post_send(&[add]), invalid, &["post_send", "protection domain"]);
    check_all(&right.region, 0, 8, 0);
}

fn receive_into_other_domain(world: &World) {
    let (_left, right) = world.pair();
    let other = right.context.alloc_pd().unwrap().alloc_mr(64, ALL_ACCESS).unwrap();
    let receive = ReceiveRequest::new(&other);
    refused(right.qp.post_recv(&[receive]), ErrorKind::InvalidArgument, &["post_recv", "protection domain"]);
}

fn one_foreign_sge(world: &World) {
    let (left, right) = world.pair();
    let other = left.context.alloc_pd().unwrap().alloc_mr(64, ALL_ACCESS).unwrap();
    let foreign_device = right.region.slice(0..8).unwrap();
    let invalid = ErrorKind::InvalidArgument;
    for foreign in [other.slice(0..8).unwrap(), foreign_device] {
        let pieces = [left.at(0..8), foreign];
        refused(left.qp.post_send(&[SendRequest::send(&pieces)]), invalid, &["post_send", "protection domain"]);
    }
}

fn queue_of_other_device(world: &World) {
    let (left, right) = (world.end(0, &Shape::default()), world.end(1, &Shape::default()));
    let invalid = ErrorKind::InvalidArgument;
    refused(left.pd.create_qp(&right.cq, &left.cq), invalid, &["create_qp", "send_cq"]);
    refused(left.pd.create_qp(&left.cq, &right.cq), invalid, &["create_qp", "recv_cq"]);
}

fn queue_of_other_opening(world: &World) {
    let (first, second) = (world.end(0, &Shape::default()), world.end(0, &Shape::default()));
    let result = first.pd.create_qp(&second.cq, &first.cq);
    refused(result, ErrorKind::InvalidArgument, &["create_qp", "send_cq"]);
}

fn many_domains(world: &World) {
    let context = world.device(0);
    let domains: Vec<_> = (0..100).map(|_| context.alloc_pd().unwrap()).collect();
    let regions: Vec<_> = domains.iter().map(|pd| pd.alloc_mr(8, ALL_ACCESS).unwrap()).collect();
    drop(domains);
    regions.iter().for_each(|region| region.store_release_u64(0, 1).unwrap());
}

fn contents_stay(world: &World) {
    let pd = world.device(0).alloc_pd().unwrap();
    let region = pd.reg_mr(pattern(1000, 1), AccessFlags::empty()).unwrap();
    assert_eq!((region.len(), region.access()), (1000, AccessFlags::empty()));
    check(&region, 0, 1000, 1);
    let boxed = pd.reg_mr(pattern(10, 2).into_boxed_slice(), ALL_ACCESS).unwrap();
    check(&boxed, 0, 10, 2);
    check_all(&pd.alloc_mr(5000, ALL_ACCESS).unwrap(), 0, 5000, 0);
}

fn empty_refused(world: &World) {
    let pd = world.device(0).alloc_pd().unwrap();
    refused(pd.reg_mr(Vec::new(), ALL_ACCESS), ErrorKind::InvalidArgument, &["reg_mr"]);
    let error = pd.alloc_mr(0, ALL_ACCESS).unwrap_err();
    assert_eq!(error.verb(), "reg_mr");
}

fn needs_local_write(world: &World) {
    let pd = world.device(0).alloc_pd().unwrap();
    for access in [AccessFlags::REMOTE_WRITE, AccessFlags::REMOTE_ATOMIC, AccessFlags::REMOTE] {
        refused(pd.reg_mr(vec![0; 8], access), ErrorKind::InvalidArgument, &["reg_mr", "LOCAL_WRITE"]);
        pd.reg_mr(vec![0; 8], access | AccessFlags::LOCAL_WRITE).unwrap();
    }
    pd.reg_mr(vec![0; 8], AccessFlags::REMOTE_READ).unwrap();
}

fn refusal_gives_back(world: &World) {
    let pd = world.device(0).alloc_pd().unwrap();
    let refused = pd.reg_mr(vec![1, 2, 3], AccessFlags::REMOTE_WRITE).unwrap_err();
    assert_eq!(refused.error.verb(), "reg_mr");
    assert_eq!(refused.memory.into_vec().unwrap(), [1, 2, 3]);
}

fn iova_wraps(world: &World) {
    let pd = world.device(0).alloc_pd().unwrap();
    refused(
        pd.reg_mr_with(vec![0; 16], ALL_ACCESS, &RegisterOptions::default().iova(u64::MAX - 7)),
        ErrorKind::InvalidArgument,
        &["reg_mr", "iova"],
    );
}

fn keys_differ(world: &World) {
    let pd = world.device(0).alloc_pd().unwrap();
    let regions: Vec<_> = (0..64).map(|_| pd.alloc_mr(8, ALL_ACCESS).unwrap()).collect();
    for (number, region) in regions.iter().enumerate() {
        for other in &regions[number + 1..] {
            assert_ne!(region.rkey(), other.rkey());
            assert_ne!(region.lkey(), other.lkey());
        }
    }
}

fn different_access(world: &World) {
    let (left, right) = world.pair();
    let readable = right.region(64, AccessFlags::REMOTE_READ);
    let writable = right.region(64, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE);
    left.post(&[
        SendRequest::read(left.at(0..64), readable.remote()).wr_id(1).signaled(),
        SendRequest::write(left.at(0..64), writable.remote()).wr_id(2).signaled(),
        SendRequest::write(Payload::inline(b"!"), readable.remote()).wr_id(3),
    ]);
    left.read(1, 64);
    left.written(2);
    left.fails(3, CompletionStatus::RemoteAccessError);
}

fn iova(world: &World) {
    let (left, right) = world.pair();
    let region = right
        .pd
        .reg_mr_with(Memory::anonymous(4096).unwrap(), ALL_ACCESS, &RegisterOptions::default().iova(0x1234_5000))
        .unwrap();
    assert_eq!((region.iova(), region.remote().addr()), (0x1234_5000, 0x1234_5000));
    let remote = RemoteMemory::new(0x1234_5064, region.rkey(), 8);
    left.post(&[SendRequest::write(Payload::inline(&[7; 8]), remote).wr_id(1).signaled()]);
    left.written(1);
    check_all(&region, 100, 8, 7);
    let before = RemoteMemory::new(0x1234_4fff, region.rkey(), 8);
    left.post(&[SendRequest::write(Payload::inline(&[7; 8]), before).wr_id(2)]);
    left.fails(2, CompletionStatus::RemoteAccessError);
}

fn zero_based(world: &World) {
    let (left, right) = world.pair();
    let region =
        right.pd.reg_mr_with(Memory::anonymous(256).unwrap(), ALL_ACCESS, &RegisterOptions::default().iova(0)).unwrap();
    fill(&region, 0, 256, 1);
    let remote = RemoteMemory::new(16, region.rkey(), 32);
    left.post(&[SendRequest::read(left.at(0..32), remote).wr_id(1).signaled()]);
    left.read(1, 32);
    assert_eq!(left.region.to_vec(0..32).unwrap(), pattern(256, 1)[16..48]);
}

fn iova_of_own_requests(world: &World) {
    let (left, right) = world.pair();
    let first = if left.context.query_device().any_iova { 8 } else { 0x1000 };
    let source = left
        .pd
        .reg_mr_with(Memory::anonymous(256).unwrap(), ALL_ACCESS, &RegisterOptions::default().iova(first))
        .unwrap();
    fill(&source, 0, 256, 2);
    let inbox = right
        .pd
        .reg_mr_with(Memory::anonymous(256).unwrap(), ALL_ACCESS, &RegisterOptions::default().iova(1 << 60))
        .unwrap();
    right.qp.post_recv(&[ReceiveRequest::new(&inbox).wr_id(1)]).unwrap();
    left.post(&[SendRequest::send(&source)]);
    right.received(1, 256);
    check(&inbox, 0, 256, 2);
}

fn iova_at_the_top(world: &World) {
    let (left, right) = world.pair();
    let (len, iova) = match right.context.query_device().any_iova {
        true => (16, u64::MAX - 16),
        // The last page but one.
        false => (4096, u64::MAX - 8191),
    };
    let region = right
        .pd
        .reg_mr_with(Memory::anonymous(len).unwrap(), ALL_ACCESS, &RegisterOptions::default().iova(iova))
        .unwrap();
    let remote = region.remote().slice(len - 16..).unwrap();
    left.post(&[SendRequest::write(Payload::inline(&[9; 16]), remote).wr_id(1).signaled()]);
    left.written(1);
    check_all(&region, len - 16, 16, 9);
}

/// Creates an unlinked file of zeros, which exists as long as its handle.
fn temporary_file(len: usize) -> std::fs::File {
    static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("rdma-verbs-suite-{}-{number}", std::process::id()));
    let mut file = std::fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file.write_all(&vec![0; len]).unwrap();
    file
}

fn file(world: &World) {
    let (left, right) = world.pair();
    let mut file = temporary_file(12_288);
    let region = right.pd.reg_mr(Memory::file(&file, 4096, 8192, true).unwrap(), ALL_ACCESS).unwrap();
    fill(&left.region, 0, 5000, 3);
    left.post(&[SendRequest::write(left.at(0..5000), region.remote()).wr_id(1).signaled()]);
    left.written(1);
    drop(region);
    let mut found = vec![0; 5000];
    file.seek(SeekFrom::Start(4096)).unwrap();
    file.read_exact(&mut found).unwrap();
    assert!(found == pattern(5000, 3), "the file holds what was written");
}

fn read_only_file(world: &World) {
    let pd = world.device(0).alloc_pd().unwrap();
    let file = temporary_file(4096);
    let memory = || Memory::file(&file, 0, 4096, false).unwrap();
    for access in [AccessFlags::LOCAL_WRITE, ALL_ACCESS] {
        let error = pd.reg_mr(memory(), access).unwrap_err().error;
        assert_eq!(error.verb(), "reg_mr");
    }
    let region = pd.reg_mr(memory(), AccessFlags::REMOTE_READ).unwrap();
    assert!(region.write_at(0, &[1]).is_err());
    check_all(&region, 0, 4096, 0);
}

fn dereg_gives_back(world: &World) {
    let (left, right) = world.pair();
    let region = right.pd.reg_mr(vec![0; 64], ALL_ACCESS).unwrap();
    left.post(&[SendRequest::write(Payload::inline(&[3; 10]), region.remote()).wr_id(1).signaled()]);
    left.written(1);
    let bytes = region.dereg().unwrap().into_vec().unwrap();
    assert_eq!((&bytes[..10], &bytes[10..]), (&[3; 10][..], &[0; 54][..]));
}

fn dereg_while_named(world: &World) {
    let options = ConnectOptions::default().rnr_retry(7).min_rnr_timer(1);
    let (left, right) = world.pair_of(&Shape::default(), &options);
    let source = left.region(64, ALL_ACCESS);
    // The request waits for a receive, and its memory is read again with each retry.
    left.post(&[SendRequest::send(&source).wr_id(1), SendRequest::send(Payload::EMPTY).wr_id(2)]);
    left.silent();
    source.dereg().unwrap();
    // The other end posts no receive: a retry or a probe that is still in flight would consume it.
    let error = left.fails(1, memory_gone());
    caused_by(&left, &error, Cause::LocalKeyUnknown);
    left.flushed([2]);
    right.is_in(QueuePairState::ReadyToSend);
    right.no_event();
}

fn key_not_reused(world: &World) {
    let pd = world.device(0).alloc_pd().unwrap();
    let mut seen = std::collections::HashSet::new();
    for _ in 0..200 {
        let region = pd.alloc_mr(8, ALL_ACCESS).unwrap();
        assert!(seen.insert(region.rkey()), "a key of a region that is gone came back");
    }
}

fn slice_bounds(world: &World) {
    let region = world.end(0, &Shape::default()).region;
    let len = region.len();
    for (start, end) in [(0, len + 1), (len + 1, len + 1), (usize::MAX, usize::MAX)] {
        refused(region.slice(start..end), ErrorKind::InvalidArgument, &["slice", &len.to_string()]);
    }
    refused(region.slice(..=usize::MAX), ErrorKind::InvalidArgument, &["slice"]);
    assert_eq!(region.slice(len..).unwrap().len(), 0);
    assert_eq!(region.slice(..).unwrap().len(), len);
}

fn copy_bounds(world: &World) {
    let region = world.end(0, &Shape::default()).region;
    let len = region.len();
    let kind = ErrorKind::InvalidArgument;
    refused(region.write_at(len - 1, &[1, 2]), kind, &["write_at", &len.to_string()]);
    refused(region.read_at(usize::MAX, &mut [0]), kind, &["read_at"]);
    refused(region.to_vec(len - 1..len + 1), kind, &["to_vec"]);
    check_all(&region, 0, len, 0);
    region.write_at(len, &[]).unwrap();
}

fn local_atomics(world: &World) {
    let region = world.end(0, &Shape::default()).region;
    assert_eq!(region.fetch_add_u64(8, 5).unwrap(), 0);
    assert_eq!(region.compare_exchange_u64(8, 4, 1).unwrap(), 5);
    assert_eq!(region.compare_exchange_u64(8, 5, 1).unwrap(), 5);
    assert_eq!(region.load_acquire_u64(8).unwrap(), 1);
    region.store_release_u32(12, 1).unwrap();
    assert_eq!(region.load_acquire_u32(12).unwrap(), 1);
    region.store_release_u8(15, 9).unwrap();
    assert_eq!(region.to_vec(0..8).unwrap(), [0; 8]);
}

fn misaligned_words(world: &World) {
    let region = world.end(0, &Shape::default()).region;
    refused(region.load_acquire_u64(4), ErrorKind::InvalidArgument, &["load_acquire_u64", "aligned"]);
    refused(region.store_release_u32(2, 1), ErrorKind::InvalidArgument, &["store_release_u32", "aligned"]);
    refused(region.fetch_add_u64(region.len(), 1), ErrorKind::InvalidArgument, &["fetch_add_u64"]);
    check_all(&region, 0, 16, 0);
}

fn remote_as_bytes(world: &World) {
    let (left, right) = world.pair();
    let remote = RemoteMemory::from_bytes(right.far(100..200).to_bytes());
    assert_eq!((remote, remote.len()), (right.far(100..200), 100));
    left.post(&[SendRequest::write(Payload::inline(&[1; 100]), remote).wr_id(1).signaled()]);
    left.written(1);
    check_all(&right.region, 100, 100, 1);
}

fn remote_slices(world: &World) {
    let cap = QueuePairCapabilities::default();
    let end = world.end(0, &Shape { cap, ..Shape::default() });
    let remote = end.region.remote();
    let part = remote.slice(10..30).unwrap().slice(5..).unwrap();
    assert_eq!((part.addr(), part.len(), part.rkey()), (remote.addr() + 15, 15, remote.rkey()));
    refused(part.slice(0..16), ErrorKind::InvalidArgument, &["slice", "15"]);
    refused(RemoteMemory::new(u64::MAX, remote.rkey(), 9).slice(4..), ErrorKind::InvalidArgument, &["slice"]);
    drop(create_qp(&end.pd, &end.cq, &end.cq, &Shape::default()));
}
