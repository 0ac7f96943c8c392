//! The whole address space as one region.

use libc::{PROT_READ, PROT_WRITE};
use rdma_verbs::verbs::{
    AccessFlags, AsyncEvent, Cause, CompletionOpcode, CompletionStatus, ErrorKind, ImplicitMemoryRegion,
    MemoryWindowBind, MemoryWindowType, OnDemandOperations, OnDemandSupport, Payload, QueuePairState, ReceiveRequest,
    RegionRange, RemoteMemory, SendRequest,
};

use super::bytes::{check, check_all, fill, pattern};
use super::end::{ALL_ACCESS, End, Shape, refused};
use super::pages::Pages;
use super::suite::{Capability, MEM_WINDOW_TYPE_2B, ODP_EXPLICIT, ODP_IMPLICIT, Scenario};
use super::world::World;

const IMPLICIT: &[Capability] = &[ODP_IMPLICIT];
const WITH_WINDOWS: &[Capability] = &[ODP_IMPLICIT, MEM_WINDOW_TYPE_2B];
const REG_MR: &str = "ibv_reg_mr(3) IBV_ACCESS_ON_DEMAND, addr NULL, length SIZE_MAX";
const CAPS: &str = "ibv_query_device_ex(3) odp_caps";

const fn scenario(name: &'static str, clause: &'static str, needs: &'static [Capability], run: fn(&World)) -> Scenario {
    Scenario { name, clause, needs, run }
}

pub(crate) const SCENARIOS: &[Scenario] = &[
    scenario("device/query/on_demand_paging", CAPS, &[ODP_EXPLICIT], capabilities),
    scenario("mr/implicit/send_from_and_receive_into", REG_MR, IMPLICIT, send_and_receive),
    scenario("mr/implicit/read_into_memory_allocated_later", REG_MR, IMPLICIT, read_into_later_memory),
    scenario("mr/implicit/peer_reaches_memory_allocated_later", REG_MR, IMPLICIT, peer_reaches),
    scenario("mr/implicit/page_opened_after_registration", REG_MR, IMPLICIT, opened_later),
    scenario(
        "mr/implicit/missing_page_of_own_request",
        "IBTA, software transport interface: local protection",
        IMPLICIT,
        missing_here,
    ),
    scenario(
        "mr/implicit/missing_page_of_a_receive",
        "IBTA, error handling: remote operation",
        IMPLICIT,
        missing_receive,
    ),
    scenario("mr/implicit/missing_page_of_a_peer", "IBTA, reliable service: remote access", IMPLICIT, missing_there),
    scenario("mr/implicit/read_only_page", "IBTA, reliable service; mmap(2) PROT_READ", IMPLICIT, read_only_page),
    scenario("mr/implicit/atomic_on_a_read_only_page", "IBTA, reliable service; mmap(2)", IMPLICIT, atomic_read_only),
    scenario(
        "mr/implicit/closed_without_remote_access",
        "IBTA, reliable service: R_Key check",
        IMPLICIT,
        closed_to_peers,
    ),
    scenario("mr/implicit/window_on_a_slice", "ibv_bind_mw(3)", WITH_WINDOWS, window_on_a_slice),
    scenario("mr/implicit/deregistered", "ibv_dereg_mr(3)", IMPLICIT, deregistered),
    scenario("mr/implicit/beyond_the_address_space", "API: ImplicitMemoryRegion::slice", IMPLICIT, beyond_the_end),
    scenario("mr/implicit/contradictory_access_flags", "ibv_reg_mr(3) EINVAL", IMPLICIT, contradictory),
];

#[track_caller]
fn register(end: &End, access: AccessFlags) -> ImplicitMemoryRegion {
    // SAFETY: the scenarios name only their own pages, to which no references exist.
    unsafe { end.pd.reg_mr_implicit(access) }.expect("reg_mr_implicit")
}

/// Returns a range of pages; nothing accesses them until the request is complete.
#[track_caller]
fn slice<'a>(region: &'a ImplicitMemoryRegion, pages: &Pages, offset: usize, len: usize) -> RegionRange<'a> {
    // SAFETY: the pages are the scenario's own, no reference to them exists, and the scenario waits for its requests.
    unsafe { region.slice(pages.at(offset), len) }.expect("slice")
}

#[track_caller]
fn write(peer: &End, remote: RemoteMemory, bytes: &[u8]) {
    peer.post(&[SendRequest::write(Payload::inline(bytes), remote).wr_id(1).signaled()]);
    peer.written(1);
}

/// Checks that the peer's request is refused with an access error, reported at both ends.
#[track_caller]
fn closed(peer: &End, owner: &End, request: SendRequest<'_>) {
    peer.post(&[request.wr_id(2)]);
    let error = peer.fails(2, CompletionStatus::RemoteAccessError);
    assert!(!peer.qp.explain(&error).is_empty());
    owner.failure_event(&[AsyncEvent::QueuePairAccessError]);
    owner.becomes(QueuePairState::Error);
}

fn capabilities(world: &World) {
    let device = world.device(0).query_device();
    let caps = device.odp_caps;
    assert!(
        caps.general.contains(OnDemandSupport::EXPLICIT) && device.supported_access.contains(AccessFlags::ON_DEMAND)
    );
    assert!(caps.rc.contains(OnDemandOperations::SEND), "{caps:?}");
    for connectionless in [caps.uc, caps.ud] {
        let impossible = OnDemandOperations::READ | OnDemandOperations::ATOMIC | OnDemandOperations::FLUSH;
        assert!(!connectionless.intersects(impossible), "no service without answers has these: {caps:?}");
    }
    assert!(!caps.ud.contains(OnDemandOperations::WRITE), "{caps:?}");
}

fn send_and_receive(world: &World) {
    let (left, right) = world.pair();
    let (near, far) = (register(&left, AccessFlags::empty()), register(&right, AccessFlags::LOCAL_WRITE));
    let (from, into) = (Pages::new(4), Pages::new(4));
    from.write(100, &pattern(9000, 5));
    right.qp.post_recv(&[ReceiveRequest::new(slice(&far, &into, 7, 9001)).wr_id(3)]).unwrap();
    left.post(&[SendRequest::send(slice(&near, &from, 100, 9000)).wr_id(4).signaled()]);
    right.received(3, 9000);
    left.sent(4);
    assert_eq!(into.read(7, 9000), pattern(9000, 5));
    assert_eq!((into.read(0, 7), into.read(9007, 8)), (vec![0; 7], vec![0; 8]));
}

fn read_into_later_memory(world: &World) {
    let (left, right) = world.pair();
    let region = register(&left, AccessFlags::LOCAL_WRITE);
    fill(&right.region, 0, 8192, 6);
    let into = Pages::new(3);
    left.post(&[SendRequest::read(slice(&region, &into, 1, 8192), right.far(0..8192)).wr_id(5).signaled()]);
    left.read(5, 8192);
    assert_eq!(into.read(1, 8192), pattern(8192, 6));
}

fn peer_reaches(world: &World) {
    let (left, right) = world.pair();
    let region = register(&right, ALL_ACCESS);
    let pages = Pages::new(4);
    fill(&left.region, 0, 12_000, 7);
    let remote = region.remote(pages.at(8), 12_000);
    assert_eq!((remote.addr(), remote.len()), (pages.at(8).addr() as u64, 12_000));
    left.post(&[SendRequest::write(left.at(0..12_000), remote).wr_id(1).signaled()]);
    left.written(1);
    assert_eq!(pages.read(8, 12_000), pattern(12_000, 7));
    left.post(&[SendRequest::read(left.at(20_000..32_000), remote).wr_id(2).signaled()]);
    left.read(2, 12_000);
    check(&left.region, 20_000, 12_000, 7);
    pages.write(0, &40u64.to_ne_bytes());
    let add = SendRequest::fetch_and_add(left.at(0..8), region.remote(pages.at(0), 8), 2);
    left.post(&[add.wr_id(3).signaled()]);
    assert_eq!(left.done(3, CompletionOpcode::FetchAndAdd).byte_len, 8);
    assert_eq!(left.region.to_vec(0..8).unwrap(), 40u64.to_ne_bytes());
    assert_eq!(pages.read(0, 8), 42u64.to_ne_bytes());
}

fn opened_later(world: &World) {
    let (left, right) = world.pair();
    let pages = Pages::closed(2);
    let region = register(&right, ALL_ACCESS);
    pages.protect(PROT_READ | PROT_WRITE);
    write(&left, region.remote(pages.at(4000), 200), b"across the boundary of two pages");
    assert_eq!(pages.read(4000, 32), b"across the boundary of two pages");
}

fn missing_here(world: &World) {
    let (left, right) = world.pair();
    let region = register(&left, AccessFlags::empty());
    let pages = Pages::closed(1);
    left.post(&[SendRequest::write(slice(&region, &pages, 0, 64), right.far(0..64)).wr_id(6)]);
    let error = left.fails(6, CompletionStatus::LocalProtectionError);
    assert_eq!(error.cause, Cause::LocalMemoryFault);
    left.becomes(QueuePairState::Error);
    check_all(&right.region, 0, 64, 0);
    right.no_event();
}

/// The receiver's memory is at fault: its receive fails, and the peer gets an operational error.
fn missing_receive(world: &World) {
    let (left, right) = world.pair();
    let region = register(&right, AccessFlags::LOCAL_WRITE);
    let pages = Pages::closed(1);
    right.qp.post_recv(&[ReceiveRequest::new(slice(&region, &pages, 0, 64)).wr_id(7)]).unwrap();
    left.post(&[SendRequest::send(Payload::inline(b"nowhere")).wr_id(8)]);
    assert_eq!(right.fails(7, CompletionStatus::LocalProtectionError).cause, Cause::LocalMemoryFault);
    left.fails(8, CompletionStatus::RemoteOperationError);
    right.becomes(QueuePairState::Error);
}

fn missing_there(world: &World) {
    let (left, right) = world.pair();
    let region = register(&right, ALL_ACCESS);
    let pages = Pages::closed(1);
    closed(&left, &right, SendRequest::read(left.at(0..64), region.remote(pages.at(0), 64)));
    check_all(&left.region, 0, 64, 0);
}

/// The page can be read; a WRITE to it is refused.
fn read_only_page(world: &World) {
    let (left, right) = world.pair();
    let region = register(&right, ALL_ACCESS);
    let pages = Pages::new(1);
    pages.write(0, &pattern(64, 8));
    pages.protect(PROT_READ);
    let remote = region.remote(pages.at(0), 64);
    left.post(&[SendRequest::read(left.at(0..64), remote).wr_id(1).signaled()]);
    left.read(1, 64);
    check(&left.region, 0, 64, 8);
    closed(&left, &right, SendRequest::write(Payload::inline(b"no"), remote));
    assert_eq!(pages.read(0, 64), pattern(64, 8));
}

fn atomic_read_only(world: &World) {
    let (left, right) = world.pair();
    let region = register(&right, ALL_ACCESS);
    let pages = Pages::new(1);
    pages.write(0, &7u64.to_ne_bytes());
    pages.protect(PROT_READ);
    closed(&left, &right, SendRequest::fetch_and_add(left.at(0..8), region.remote(pages.at(0), 8), 1));
    assert_eq!(pages.read(0, 8), 7u64.to_ne_bytes());
}

fn closed_to_peers(world: &World) {
    let (left, right) = world.pair();
    let region = register(&right, AccessFlags::LOCAL_WRITE);
    let pages = Pages::new(1);
    closed(&left, &right, SendRequest::write(Payload::inline(b"intruder"), region.remote(pages.at(0), 8)));
    assert_eq!(pages.read(0, 8), [0; 8]);
}

/// The window grants access to its bound range, and to nothing beside it.
fn window_on_a_slice(world: &World) {
    let (left, right) = world.pair();
    let region = register(&right, AccessFlags::LOCAL_WRITE | AccessFlags::MEMORY_WINDOW_BIND);
    let pages = Pages::new(1);
    let window = right.pd.alloc_mw(MemoryWindowType::Type2).unwrap();
    let bind = MemoryWindowBind::new(slice(&region, &pages, 64, 64), AccessFlags::REMOTE_WRITE).wr_id(1).signaled();
    right.post(&[SendRequest::bind_mw(&window, 1, &bind).unwrap()]);
    right.done(1, CompletionOpcode::BindMemoryWindow);
    let remote = bind.remote(window.rkey_with(1));
    write(&left, remote, b"in the window");
    assert_eq!(pages.read(64, 13), b"in the window");
    let beside = RemoteMemory::new(remote.addr() - 8, remote.rkey(), 8);
    closed(&left, &right, SendRequest::write(Payload::inline(b"intruder"), beside));
    assert_eq!(pages.read(0, 64), [0; 64]);
}

fn deregistered(world: &World) {
    let (left, right) = world.pair();
    let region = register(&right, ALL_ACCESS);
    let pages = Pages::new(1);
    let remote = region.remote(pages.at(0), 8);
    write(&left, remote, b"12345678");
    region.dereg().unwrap();
    closed(&left, &right, SendRequest::write(Payload::inline(b"too late"), remote));
    assert_eq!(pages.read(0, 8), b"12345678");
}

/// Neither a slice nor the region's own methods reach beyond their bounds.
fn beyond_the_end(world: &World) {
    let end = world.end(0, &Shape::default());
    let region = register(&end, AccessFlags::LOCAL_WRITE);
    let last = std::ptr::without_provenance_mut(usize::MAX - 3);
    // SAFETY: the call is refused, so nothing can access the range.
    let beyond = unsafe { region.slice(last, 8) };
    refused(beyond, ErrorKind::InvalidArgument, &["slice", "addr", "len is 8"]);
    let pages = Pages::new(1);
    let own = slice(&region, &pages, 0, 8).region();
    assert_eq!(own.len(), 0);
    refused(own.write_at(0, &[1]), ErrorKind::InvalidArgument, &["write_at", "0 bytes"]);
    refused(own.read_at(pages.at(0).addr(), &mut [0]), ErrorKind::InvalidArgument, &["read_at", "0 bytes"]);
    refused(own.slice(0..8), ErrorKind::InvalidArgument, &["slice", "0 bytes"]);
    end.qp.init().unwrap();
    let receive = ReceiveRequest::new(slice(&region, &pages, 0, 8)).wr_id(1);
    region.revoke().unwrap();
    refused(end.qp.post_recv(&[receive]), ErrorKind::InvalidState, &["post_recv", "deregistered"]);
}

fn contradictory(world: &World) {
    let end = world.end(0, &Shape::default());
    // SAFETY: both calls are refused, so no region exists.
    let (unwritable, persistent) = unsafe {
        let persistent = AccessFlags::LOCAL_WRITE | AccessFlags::FLUSH_PERSISTENT;
        (end.pd.reg_mr_implicit(AccessFlags::REMOTE_WRITE), end.pd.reg_mr_implicit(persistent))
    };
    refused(unwritable, ErrorKind::InvalidArgument, &["reg_mr", "access", "LOCAL_WRITE"]);
    refused(persistent, ErrorKind::InvalidArgument, &["reg_mr", "access", "FLUSH_PERSISTENT"]);
}
