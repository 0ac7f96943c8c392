//! Memory behind file descriptors.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rdma_verbs::verbs::{
    AccessFlags, AsyncEvent, Cause, CompletionOpcode, CompletionStatus, ErrorKind, MemoryRegion, Payload,
    QueuePairState, RegisterOptions, SendRequest,
};

use super::bytes::{check, check_all, fill, pattern};
use super::end::{ALL_ACCESS, End, Shape, refused};
use super::suite::{Capability, DESCRIPTORS, Scenario};
use super::world::World;

const NEEDS: &[Capability] = &[DESCRIPTORS];
const REG: &str = "ibv_reg_mr(3) ibv_reg_dmabuf_mr";
const FAULT: &str = "API: memory that vanishes fails requests; IBTA, software transport interface";

const fn scenario(name: &'static str, clause: &'static str, run: fn(&World)) -> Scenario {
    Scenario { name, clause, needs: NEEDS, run }
}

pub(crate) const SCENARIOS: &[Scenario] = &[
    scenario("mr/dmabuf/peer_and_descriptor_share_it", REG, shared),
    scenario("mr/dmabuf/offset_within_a_page", "ibv_reg_mr(3) ibv_reg_dmabuf_mr offset", within_a_page),
    scenario("mr/dmabuf/host_address_without_iova", "ibv_reg_mr(3) ibv_reg_dmabuf_mr iova", host_address),
    scenario("mr/dmabuf/descriptor_closed", REG, descriptor_closed),
    scenario("mr/dmabuf/rights", "IBTA, memory management", rights),
    scenario("mr/dmabuf/truncated_under_a_peer", FAULT, truncated_there),
    scenario("mr/dmabuf/truncated_under_an_atomic", FAULT, truncated_atomic),
    scenario("mr/dmabuf/truncated_under_own_request", FAULT, truncated_here),
    scenario("mr/dmabuf/mapping_goes_with_the_region", "ibv_dereg_mr(3); mmap(2)", mapping_goes),
    scenario("mr/dmabuf/unmappable_descriptors", "ibv_reg_mr(3) EOPNOTSUPP; mmap(2) ENODEV", not_mappable),
    scenario("mr/dmabuf/read_only_descriptor", "mmap(2) EACCES", read_only),
    scenario("mr/dmabuf/beyond_the_descriptor", "ibv_reg_mr(3) EINVAL", beyond),
];

const PAGE: usize = 4096;

/// Creates a memory file of this name.
fn memfd(name: &str, len: usize) -> File {
    let name = CString::new(name).expect("no zero in it");
    // SAFETY: `name` is NUL-terminated.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0, "memfd_create");
    // SAFETY: the descriptor is new, and nothing else owns it.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.set_len(len as u64).expect("memory");
    file
}

#[track_caller]
fn register(end: &End, file: &File, offset: usize, len: usize) -> MemoryRegion {
    end.pd
        .reg_dmabuf_mr_with(file, offset as u64, len, ALL_ACCESS, &RegisterOptions::default().iova(0x7000))
        .expect("reg_dmabuf_mr")
}

#[track_caller]
fn holds(file: &File, offset: usize, expected: &[u8]) {
    let mut found = vec![0; expected.len()];
    file.read_exact_at(&mut found, offset as u64).expect("within the file");
    assert_eq!(found, expected, "at {offset}");
}

#[track_caller]
fn closed(peer: &End, owner: &End, request: SendRequest<'_>) {
    peer.post(&[request.wr_id(2)]);
    peer.fails(2, CompletionStatus::RemoteAccessError);
    owner.failure_event(&[AsyncEvent::QueuePairAccessError]);
    owner.becomes(QueuePairState::Error);
}

fn shared(world: &World) {
    let (left, right) = world.pair();
    let file = memfd("shared", 4 * PAGE);
    let region = register(&right, &file, PAGE, 2 * PAGE);
    assert_eq!((region.iova(), region.len()), (0x7000, 2 * PAGE));
    fill(&left.region, 0, 2 * PAGE, 1);
    left.post(&[SendRequest::write(left.at(0..2 * PAGE), region.remote()).wr_id(1).signaled()]);
    left.written(1);
    holds(&file, PAGE, &pattern(2 * PAGE, 1));
    holds(&file, 0, &vec![0; PAGE]);
    holds(&file, 3 * PAGE, &vec![0; PAGE]);
    file.write_all_at(b"from the other side", PAGE as u64 + 5).unwrap();
    left.post(&[SendRequest::read(left.at(0..24), region.remote().slice(..24).unwrap()).wr_id(2).signaled()]);
    left.read(2, 24);
    assert_eq!(left.region.to_vec(5..24).unwrap(), b"from the other side");
}

fn within_a_page(world: &World) {
    let (left, right) = world.pair();
    let file = memfd("within", 3 * PAGE);
    let region = register(&right, &file, 100, 5000);
    left.post(&[SendRequest::write(Payload::inline(b"end"), region.remote().slice(4997..).unwrap())
        .wr_id(1)
        .signaled()]);
    left.written(1);
    holds(&file, 5096, b"\0end\0");
    closed(
        &left,
        &right,
        SendRequest::write(
            Payload::inline(b"no"),
            rdma_verbs::verbs::RemoteMemory::new(0x7000 + 4999, region.rkey(), 2),
        ),
    );
    holds(&file, 5096, b"\0end\0");
}

fn host_address(world: &World) {
    let end = world.end(0, &Shape::default());
    let file = memfd("address", 2 * PAGE);
    let region = end.pd.reg_dmabuf_mr(&file, 24, PAGE, AccessFlags::REMOTE_READ).unwrap();
    assert!(region.iova() > 0 && region.iova() % 4096 == 24, "{:#x}", region.iova());
    assert_eq!(region.remote().addr(), region.iova());
}

fn descriptor_closed(world: &World) {
    let (left, right) = world.pair();
    let file = memfd("closed", PAGE);
    file.write_all_at(&pattern(PAGE, 3), 0).unwrap();
    let region = register(&right, &file, 0, PAGE);
    drop(file);
    left.post(&[SendRequest::read(left.at(0..PAGE), region.remote()).wr_id(1).signaled()]);
    left.read(1, PAGE as u32);
    check(&left.region, 0, PAGE, 3);
}

fn rights(world: &World) {
    let (left, right) = world.pair();
    let file = memfd("rights", PAGE);
    let region = right
        .pd
        .reg_dmabuf_mr_with(&file, 0, PAGE, AccessFlags::REMOTE_READ, &RegisterOptions::default().iova(0))
        .unwrap();
    left.post(&[SendRequest::read(left.at(0..8), region.remote().slice(..8).unwrap()).wr_id(1).signaled()]);
    left.read(1, 8);
    closed(&left, &right, SendRequest::write(Payload::inline(b"no"), region.remote()));
    holds(&file, 0, &[0; 8]);
}

fn truncated_there(world: &World) {
    let (left, right) = world.pair();
    let file = memfd("truncated", 2 * PAGE);
    let region = register(&right, &file, 0, 2 * PAGE);
    file.set_len(PAGE as u64).unwrap();
    // The rest of the file can still be used.
    left.post(&[SendRequest::write(Payload::inline(b"here"), region.remote()).wr_id(1).signaled()]);
    left.written(1);
    holds(&file, 0, b"here");
    closed(&left, &right, SendRequest::write(Payload::inline(b"gone"), region.remote().slice(PAGE..).unwrap()));
    assert_eq!(file.metadata().unwrap().len(), PAGE as u64);
}

fn truncated_atomic(world: &World) {
    let (left, right) = world.pair();
    let file = memfd("truncated_atomic", PAGE);
    let region = register(&right, &file, 0, PAGE);
    left.post(&[SendRequest::fetch_and_add(left.at(0..8), region.remote().slice(..8).unwrap(), 5).wr_id(1).signaled()]);
    left.done(1, CompletionOpcode::FetchAndAdd);
    holds(&file, 0, &5u64.to_ne_bytes());
    file.set_len(0).unwrap();
    closed(&left, &right, SendRequest::fetch_and_add(left.at(0..8), region.remote().slice(..8).unwrap(), 1));
}

fn truncated_here(world: &World) {
    let (left, right) = world.pair();
    let file = memfd("truncated_here", PAGE);
    let region = register(&left, &file, 0, PAGE);
    file.set_len(0).unwrap();
    left.post(&[SendRequest::write(&region, right.far(0..PAGE)).wr_id(6)]);
    let error = left.fails(6, CompletionStatus::LocalProtectionError);
    assert_eq!(error.cause, Cause::LocalMemoryFault);
    check_all(&right.region, 0, PAGE, 0);
    refused(region.read_at(0, &mut [0; 8]), ErrorKind::System, &["read_at", "gone"]);
    right.no_event();
}

/// The mapping exists as long as the region, or the memory returned by its deregistration.
fn mapping_goes(world: &World) {
    let end = world.end(0, &Shape::default());
    let file = memfd("rdma_verbs_mapping_goes", PAGE);
    let mapped = || fs::read_to_string("/proc/self/maps").unwrap().contains("rdma_verbs_mapping_goes");
    let region = register(&end, &file, 0, PAGE);
    assert!(mapped());
    drop(region);
    assert!(!mapped(), "a dropped region leaves nothing");
    let memory = register(&end, &file, 0, PAGE).dereg().unwrap();
    assert!(mapped() && memory.len() == PAGE);
    drop(memory);
    assert!(!mapped());
}

fn not_mappable(world: &World) {
    let end = world.end(0, &Shape::default());
    let (pipe, _other_end) = std::io::pipe().unwrap();
    let error = end.pd.reg_dmabuf_mr(&pipe, 0, PAGE, AccessFlags::REMOTE_READ).unwrap_err();
    assert_eq!(error.os_error(), Some(libc::ENODEV), "{error}");
    let fd = format!("fd is {}", pipe.as_raw_fd());
    refused(
        Err::<(), _>(error),
        ErrorKind::Unsupported,
        &["reg_dmabuf_mr", &fd, "mmap of 4096 bytes", "allowed", "dma-buf"],
    );
}

fn read_only(world: &World) {
    let (left, right) = world.pair();
    let file = memfd("read_only", PAGE);
    file.write_all_at(&pattern(64, 4), 0).unwrap();
    let readable = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
    let refusal = right.pd.reg_dmabuf_mr(&readable, 0, PAGE, ALL_ACCESS);
    refused(refusal, ErrorKind::PermissionDenied, &["reg_dmabuf_mr", "writing", "LOCAL_WRITE"]);
    let region = right.pd.reg_dmabuf_mr(&readable, 0, 64, AccessFlags::REMOTE_READ).unwrap();
    left.post(&[SendRequest::read(left.at(0..64), region.remote()).wr_id(1).signaled()]);
    left.read(1, 64);
    check(&left.region, 0, 64, 4);
}

fn beyond(world: &World) {
    let end = world.end(0, &Shape::default());
    let file = memfd("beyond", 2 * PAGE);
    let register =
        |offset, len| end.pd.reg_dmabuf_mr_with(&file, offset, len, ALL_ACCESS, &RegisterOptions::default().iova(0));
    let invalid = ErrorKind::InvalidArgument;
    refused(register(0, 2 * PAGE + 1), invalid, &["reg_dmabuf_mr", "offset is 0", "length 8193", "8192 bytes"]);
    refused(register(8192, 1), invalid, &["reg_dmabuf_mr", "offset is 8192", "length 1", "8192 bytes"]);
    refused(register(0, 0), invalid, &["reg_dmabuf_mr", "length is 0", "1"]);
    refused(register(u64::MAX, 2), invalid, &["reg_dmabuf_mr", "offset", "2^64"]);
    assert!(register(8191, 1).is_ok());
}
