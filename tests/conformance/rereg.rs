//! Re-registration of regions, and pages that are looked up on demand.

use rdma_verbs::verbs::{
    AccessFlags, Cause, CompletionOpcode, CompletionStatus, ErrorKind, Memory, MemoryWindowBind, MemoryWindowType,
    Payload, RegisterOptions, RemoteMemory, Reregistration, SendRequest,
};

use super::bytes::{check, check_all, fill};
use super::end::{ALL_ACCESS, End, Shape, caused_by, memory_gone, refused};
use super::suite::{Capability, MEM_WINDOW_TYPE_2B, ODP_EXPLICIT, Scenario};
use super::world::World;

const fn scenario(name: &'static str, clause: &'static str, needs: &'static [Capability], run: fn(&World)) -> Scenario {
    Scenario { name, clause, needs, run }
}

pub(crate) const SCENARIOS: &[Scenario] = &[
    scenario("mr/rereg/other_memory", "ibv_rereg_mr(3) CHANGE_TRANSLATION", &[], other_memory),
    scenario("mr/rereg/other_access_flags", "ibv_rereg_mr(3) CHANGE_ACCESS", &[], other_access_flags),
    scenario("mr/rereg/other_domain", "ibv_rereg_mr(3) CHANGE_PD", &[], other_domain),
    scenario("mr/rereg/address_stays_with_the_memory", "ibv_rereg_mr(3)", &[], address_stays),
    scenario("mr/rereg/refusal_changes_nothing", "ibv_rereg_mr(3) IBV_REREG_MR_ERR_INPUT", &[], refusal),
    scenario("mr/rereg/revoked_region", "ibv_rereg_mr(3)", &[], revoked),
    scenario("mr/rereg/old_key_of_posted_requests", "ibv_rereg_mr(3); IBTA, memory region verbs", &[], posted_requests),
    scenario(
        "mr/on_demand/absent_pages_are_no_obstacle",
        "ibv_reg_mr(3) IBV_ACCESS_ON_DEMAND",
        &[ODP_EXPLICIT],
        absent_pages,
    ),
    scenario("mr/rereg/with_a_bound_window", "IBTA, memory windows; EBUSY", &[MEM_WINDOW_TYPE_2B], with_a_window),
];

#[track_caller]
fn write(peer: &End, remote: RemoteMemory, bytes: &[u8]) {
    peer.qp.post_send(&[SendRequest::write(Payload::inline(bytes), remote).wr_id(1).signaled()]).unwrap();
    peer.written(1);
}

#[track_caller]
fn closed(peer: &End, remote: RemoteMemory) {
    peer.qp.post_send(&[SendRequest::write(Payload::inline(b"no"), remote).wr_id(2)]).unwrap();
    peer.fails(2, CompletionStatus::RemoteAccessError);
}

fn other_memory(world: &World) {
    let (left, right) = world.pair();
    let region = right.pd.reg_mr(vec![1; 64], ALL_ACCESS).unwrap();
    let old = region.remote();
    let (region, memory) = region.rereg(Reregistration::new().memory(vec![2; 128])).unwrap();
    assert_eq!(memory.and_then(|memory| memory.into_vec().ok()), Some(vec![1; 64]));
    assert_eq!((region.len(), region.access()), (128, ALL_ACCESS));
    write(&left, region.remote().slice(100..).unwrap(), b"new");
    assert_eq!(region.to_vec(99..104).unwrap(), [2, b'n', b'e', b'w', 2]);
    closed(&left, old);
    assert_eq!(region.dereg().unwrap().len(), 128);
}

fn other_access_flags(world: &World) {
    let (left, right) = world.pair();
    let region = right.pd.reg_mr(vec![1; 64], ALL_ACCESS).unwrap();
    write(&left, region.remote(), b"yes");
    let (region, memory) = region.rereg(Reregistration::new().access(AccessFlags::REMOTE_READ)).unwrap();
    assert!(memory.is_none(), "the memory stays");
    assert_eq!(region.access(), AccessFlags::REMOTE_READ);
    let into = left.region.slice(..3).unwrap();
    left.qp.post_send(&[SendRequest::read(into, region.remote()).wr_id(3).signaled()]).unwrap();
    left.read(3, 3);
    assert_eq!(left.region.to_vec(..3).unwrap(), b"yes");
    closed(&left, region.remote());
    assert_eq!(region.dereg().unwrap().into_vec().expect("a Vec went in")[..4], [b'y', b'e', b's', 1]);
}

fn other_domain(world: &World) {
    let (left, right) = world.pair();
    let elsewhere = right.context.alloc_pd().unwrap();
    let region = elsewhere.reg_mr(vec![0; 64], ALL_ACCESS).unwrap();
    let (region, _) = region.rereg(Reregistration::new().protection_domain(&right.pd)).unwrap();
    write(&left, region.remote(), b"here");
    let (region, _) = region.rereg(Reregistration::new().protection_domain(&elsewhere)).unwrap();
    closed(&left, region.remote());
    assert_eq!(region.to_vec(..4).unwrap(), b"here");
}

fn address_stays(world: &World) {
    let end = world.end(0, &Shape::default());
    let region = end
        .pd
        .reg_mr_with(Memory::anonymous(64).unwrap(), ALL_ACCESS, &RegisterOptions::default().iova(0x5000))
        .unwrap();
    let (region, _) = region.rereg(Reregistration::new().access(AccessFlags::LOCAL_WRITE)).unwrap();
    assert_eq!(region.iova(), 0x5000);
    let (region, _) = region.rereg(Reregistration::new().iova(0x9000)).unwrap();
    assert_eq!((region.iova(), region.access()), (0x9000, AccessFlags::LOCAL_WRITE));
}

fn refusal(world: &World) {
    let (left, right) = world.pair();
    let region = right.pd.reg_mr(vec![0; 64], ALL_ACCESS).unwrap();
    let (key, change) = (region.rkey(), Reregistration::new().access(AccessFlags::REMOTE_WRITE).memory(vec![7; 8]));
    let refusal = region.rereg(change).unwrap_err();
    assert_eq!((refusal.error.verb(), refusal.error.kind()), ("rereg_mr", ErrorKind::InvalidArgument));
    assert!(refusal.error.to_string().contains("LOCAL_WRITE"), "{}", refusal.error);
    assert_eq!(refusal.memory.and_then(|memory| memory.into_vec().ok()), Some(vec![7; 8]));
    assert_eq!(refusal.region.rkey(), key);
    write(&left, refusal.region.remote(), b"same");
    assert_eq!(refusal.region.to_vec(..4).unwrap(), b"same");
}

fn revoked(world: &World) {
    let end = world.end(0, &Shape::default());
    let region = end.pd.reg_mr(vec![3; 64], ALL_ACCESS).unwrap();
    region.revoke().unwrap();
    let refusal = region.rereg(Reregistration::new().access(AccessFlags::LOCAL_WRITE)).unwrap_err();
    assert_eq!(refusal.error.kind(), ErrorKind::InvalidState);
    assert_eq!(refusal.region.dereg().unwrap().into_vec().expect("a Vec went in"), [3; 64]);
}

/// A request made for the old region does not reach the new one, at either end.
fn posted_requests(world: &World) {
    let (left, right) = world.pair();
    let region = left.pd.reg_mr(vec![9; 64], ALL_ACCESS).unwrap();
    let mut batch = left.qp.send_batch().unwrap();
    batch.push(&SendRequest::write(&region, right.region.remote()).wr_id(5)).unwrap();
    let (region, _) = region.rereg(Reregistration::new().memory(vec![8; 64])).unwrap();
    batch.post().unwrap();
    let error = left.fails(5, memory_gone());
    caused_by(&left, &error, Cause::LocalKeyUnknown);
    check_all(&right.region, 0, 64, 0);
    check_all(&region, 0, 64, 8);
}

/// The window still grants access to the region, which is unchanged.
fn with_a_window(world: &World) {
    let (left, right) = world.pair();
    let region = right.region(4096, AccessFlags::LOCAL_WRITE | AccessFlags::MEMORY_WINDOW_BIND);
    let window = right.pd.alloc_mw(MemoryWindowType::Type2).unwrap();
    let bind = MemoryWindowBind::new(&region, AccessFlags::REMOTE_WRITE).wr_id(1).signaled();
    right.qp.post_send(&[SendRequest::bind_mw(&window, 1, &bind).unwrap()]).unwrap();
    right.done(1, CompletionOpcode::BindMemoryWindow);
    let remote = bind.remote(window.rkey_with(1));
    let refusal = region.rereg(Reregistration::new().access(ALL_ACCESS)).unwrap_err();
    assert_eq!(refusal.error.kind(), ErrorKind::Busy, "{refusal}");
    fill(&left.region, 0, 4096, 3);
    left.qp.post_send(&[SendRequest::write(left.region.slice(..4096).unwrap(), remote).wr_id(4).signaled()]).unwrap();
    left.written(4);
    check(&refusal.region, 0, 4096, 3);
    drop(window);
    assert!(refusal.region.rereg(Reregistration::new().access(ALL_ACCESS)).is_ok());
}

/// Absent pages are detected on access: the request fails at both ends, without a signal.
fn absent_pages(world: &World) {
    let (left, right) = world.pair();
    // The first page is never mapped, on any Linux.
    let nowhere = std::ptr::without_provenance_mut(0x100);
    // SAFETY: nothing is or will be mapped there, so nothing can be read or changed.
    let plain = unsafe { right.pd.reg_mr_raw(nowhere, 256, ALL_ACCESS) };
    refused(plain, ErrorKind::InvalidArgument, &["reg_mr", "addr", "mapped"]);
    // SAFETY: as above.
    let region = unsafe { right.pd.reg_mr_raw(nowhere, 256, ALL_ACCESS | AccessFlags::ON_DEMAND) }.unwrap();
    assert!(region.read_at(0, &mut [0]).is_err());
    left.qp.post_send(&[SendRequest::write(Payload::inline(b"no"), region.remote()).wr_id(2)]).unwrap();
    left.fails_with(2, &[CompletionStatus::RemoteAccessError, CompletionStatus::RemoteOperationError]);
    right.qp.post_send(&[SendRequest::write(&region, left.region.remote()).wr_id(3)]).unwrap();
    right.flushed([3]);
}
