//! FLUSH on reliable connections.

use std::fs::File;

use rdma_verbs::verbs::{
    AccessFlags, AsyncEvent, CompletionOpcode, CompletionStatus, ConnectOptions, ErrorKind, FlushFlags, Memory,
    MemoryRegion, MemoryWindowBind, MemoryWindowType, QueuePairState, RemoteMemory, Rkey, SendRequest,
};

use super::bytes::{check, fill};
use super::deviations::WINDOW_BOUNDS;
use super::end::{End, Shape, refused};
use super::suite::{Capability, FLUSH_GLOBAL, FLUSH_PERSISTENT, MEM_WINDOW_TYPE_2B, Scenario};
use super::world::World;

const GLOBAL: &[Capability] = &[FLUSH_GLOBAL];
const PERSISTENT: &[Capability] = &[FLUSH_PERSISTENT];
const WINDOW: &[Capability] = &[FLUSH_GLOBAL, MEM_WINDOW_TYPE_2B];

const fn scenario(name: &'static str, clause: &'static str, needs: &'static [Capability], run: fn(&World)) -> Scenario {
    Scenario { name, clause, needs, run }
}

pub(crate) const SCENARIOS: &[Scenario] = &[
    scenario("flush/rc/behind_a_write", "IBTA, annex on memory placement; ibv_wr_flush(3)", GLOBAL, behind_a_write),
    scenario("flush/rc/whole_region", "IBTA, annex on memory placement: selectivity", GLOBAL, whole_region),
    scenario("flush/rc/many_in_order", "IBTA, annex on memory placement: ordering", GLOBAL, many_in_order),
    scenario("flush/rc/persistent_file", "IBTA, annex on memory placement: placement", PERSISTENT, persistent_file),
    scenario(
        "flush/rc/memory_that_cannot_persist",
        "IBTA, annex on memory placement: placement",
        PERSISTENT,
        cannot_persist,
    ),
    scenario(
        "flush/rc/region_without_access_flag",
        "IBTA, annex on memory placement: access rights",
        GLOBAL,
        region_without_access_flag,
    ),
    scenario(
        "flush/rc/queue_pair_without_access_flag",
        "IBTA, annex on memory placement: access rights",
        GLOBAL,
        queue_pair_without,
    ),
    scenario(
        "flush/rc/persistence_not_granted",
        "IBTA, annex on memory placement: access rights",
        PERSISTENT,
        persistence_not_granted,
    ),
    scenario("flush/rc/beyond_the_region", "IBTA, annex on memory placement", GLOBAL, beyond_the_region),
    scenario("flush/rc/unknown_key", "IBTA, annex on memory placement", GLOBAL, unknown_key),
    scenario("flush/rc/to_nowhere", "ibv_wr_flush(3) placement type", GLOBAL, to_nowhere),
    scenario("flush/rc/through_a_window", "IBTA, annex on memory placement", WINDOW, through_a_window),
];

/// Connects two ends; the right one's queue pair grants every access flag.
fn pair(world: &World) -> (End, End) {
    let access = AccessFlags::REMOTE | AccessFlags::FLUSH;
    world.pair_of(&Shape { access, ..Shape::default() }, &ConnectOptions::default())
}

fn flushable(end: &End) -> MemoryRegion {
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::FLUSH_GLOBAL;
    end.region(64 << 10, access)
}

#[track_caller]
fn flushed(left: &End, remote: RemoteMemory, flags: FlushFlags) {
    left.qp.post_send(&[SendRequest::flush(remote, flags).wr_id(9).signaled()]).unwrap();
    left.done(9, CompletionOpcode::Flush);
}

#[track_caller]
fn refused_by_peer(left: &End, right: &End, remote: RemoteMemory, flags: FlushFlags, status: CompletionStatus) {
    left.qp.post_send(&[SendRequest::flush(remote, flags).wr_id(9)]).unwrap();
    let error = left.fails(9, status);
    assert!(!left.qp.explain(&error).is_empty());
    right.failure_event(&match status {
        CompletionStatus::RemoteAccessError => [AsyncEvent::QueuePairAccessError as fn(_) -> _],
        _ => [AsyncEvent::QueuePairRequestError],
    });
    right.becomes(QueuePairState::Error);
}

/// The bytes are in place when the FLUSH completes, though the WRITE itself is unsignaled.
fn behind_a_write(world: &World) {
    let (left, right) = pair(world);
    let region = flushable(&right);
    fill(&left.region, 0, 50_000, 2);
    let write = SendRequest::write(left.region.slice(..50_000).unwrap(), region.remote());
    let flush = SendRequest::flush(region.remote().slice(..50_000).unwrap(), FlushFlags::GLOBAL);
    left.qp.post_send(&[write, flush.wr_id(2).signaled()]).unwrap();
    left.done(2, CompletionOpcode::Flush);
    check(&region, 0, 50_000, 2);
    left.silent();
    right.silent();
}

/// With WHOLE_REGION, address and length are ignored.
fn whole_region(world: &World) {
    let (left, right) = pair(world);
    let region = flushable(&right);
    let nowhere = RemoteMemory::new(0x10, region.rkey(), 1 << 31);
    flushed(&left, nowhere, FlushFlags::GLOBAL | FlushFlags::WHOLE_REGION);
}

fn many_in_order(world: &World) {
    let (left, right) = pair(world);
    let region = flushable(&right);
    for round in 0..4u64 {
        let mut requests = Vec::new();
        for index in 0..16usize {
            let (from, wr_id) = (index * 1000, round * 100 + index as u64);
            fill(&left.region, from, 1000, wr_id);
            let (range, remote) =
                (left.region.slice(from..from + 1000).unwrap(), region.remote().slice(from..from + 1000).unwrap());
            requests.push(SendRequest::write(range, remote));
            requests.push(SendRequest::flush(remote, FlushFlags::GLOBAL).wr_id(wr_id).signaled());
        }
        left.qp.post_send(&requests).unwrap();
        for index in 0..16usize {
            let wr_id = round * 100 + index as u64;
            left.done(wr_id, CompletionOpcode::Flush);
            check(&region, index * 1000, 1000, wr_id);
        }
    }
}

/// Creates an unlinked file.
fn file(len: u64) -> File {
    let path =
        std::env::temp_dir().join(format!("rdma-verbs-flush-{}-{:?}", std::process::id(), std::thread::current().id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file.set_len(len).unwrap();
    file
}

fn persistent_file(world: &World) {
    let (left, right) = pair(world);
    let file = file(16 << 10);
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::FLUSH;
    let region = right.pd.reg_mr(Memory::file(&file, 0, 16 << 10, true).unwrap(), access).unwrap();
    fill(&left.region, 0, 5000, 7);
    let remote = region.remote().slice(3000..8000).unwrap();
    left.qp.post_send(&[SendRequest::write(left.region.slice(..5000).unwrap(), remote)]).unwrap();
    flushed(&left, remote, FlushFlags::PERSISTENT);
    flushed(&left, remote, FlushFlags::PERSISTENT | FlushFlags::GLOBAL | FlushFlags::WHOLE_REGION);
    let mut bytes = vec![0; 5000];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 3000).unwrap();
    assert_eq!(bytes, super::bytes::pattern(5000, 7));
}

fn cannot_persist(world: &World) {
    let end = world.end(0, &Shape::default());
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::FLUSH_PERSISTENT;
    refused(end.pd.alloc_mr(64, access), ErrorKind::InvalidArgument, &["reg_mr", "access", "FLUSH_PERSISTENT"]);
    refused(end.pd.reg_mr(vec![0; 64], access), ErrorKind::InvalidArgument, &["FLUSH_PERSISTENT", "file"]);
}

fn region_without_access_flag(world: &World) {
    let (left, right) = pair(world);
    refused_by_peer(&left, &right, right.region.remote(), FlushFlags::GLOBAL, CompletionStatus::RemoteAccessError);
}

fn queue_pair_without(world: &World) {
    let (left, right) = world.pair();
    let region = flushable(&right);
    let status = CompletionStatus::RemoteInvalidRequestError;
    refused_by_peer(&left, &right, region.remote(), FlushFlags::GLOBAL, status);
}

fn persistence_not_granted(world: &World) {
    let (left, right) = pair(world);
    let region = flushable(&right);
    let status = CompletionStatus::RemoteAccessError;
    refused_by_peer(&left, &right, region.remote(), FlushFlags::PERSISTENT | FlushFlags::GLOBAL, status);
}

fn beyond_the_region(world: &World) {
    let (left, right) = pair(world);
    let region = flushable(&right);
    let beyond = RemoteMemory::new(region.iova() + 1, region.rkey(), region.len() as u64);
    refused_by_peer(&left, &right, beyond, FlushFlags::GLOBAL, CompletionStatus::RemoteAccessError);
}

fn unknown_key(world: &World) {
    let (left, right) = pair(world);
    let region = flushable(&right);
    let nothing = RemoteMemory::new(region.iova(), Rkey(region.rkey().0 ^ 0x100), 0);
    let status = CompletionStatus::RemoteAccessError;
    refused_by_peer(&left, &right, nothing, FlushFlags::GLOBAL | FlushFlags::WHOLE_REGION, status);
}

fn to_nowhere(world: &World) {
    let (left, right) = pair(world);
    let region = flushable(&right);
    for flags in [FlushFlags::empty(), FlushFlags::WHOLE_REGION] {
        let posted = left.qp.post_send(&[SendRequest::flush(region.remote(), flags)]);
        refused(posted, ErrorKind::InvalidArgument, &["post_send", "GLOBAL", "PERSISTENT"]);
    }
    let long = RemoteMemory::new(region.iova(), region.rkey(), (1 << 31) + 1);
    let posted = left.qp.post_send(&[SendRequest::flush(long, FlushFlags::GLOBAL)]);
    refused(posted, ErrorKind::InvalidArgument, &["length", "2147483648"]);
    left.silent();
}

/// For a window, WHOLE_REGION means the window, not its region.
fn through_a_window(world: &World) {
    let (left, right) = pair(world);
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::MEMORY_WINDOW_BIND | AccessFlags::FLUSH_GLOBAL;
    let region = right.region(4096, access);
    let window = right.pd.alloc_mw(MemoryWindowType::Type2).unwrap();
    let range = region.slice(1000..2000).unwrap();
    let bind = MemoryWindowBind::new(range, AccessFlags::FLUSH_GLOBAL).wr_id(1).signaled();
    right.qp.post_send(&[SendRequest::bind_mw(&window, 1, &bind).unwrap()]).unwrap();
    right.done(1, CompletionOpcode::BindMemoryWindow);
    let remote = bind.remote(window.rkey_with(1));
    flushed(&left, remote, FlushFlags::GLOBAL);
    flushed(&left, remote, FlushFlags::GLOBAL | FlushFlags::WHOLE_REGION);
    let beyond = RemoteMemory::new(remote.addr(), remote.rkey(), 1001);
    if WINDOW_BOUNDS.holds() {
        return flushed(&left, beyond, FlushFlags::GLOBAL);
    }
    refused_by_peer(&left, &right, beyond, FlushFlags::GLOBAL, CompletionStatus::RemoteAccessError);
}
