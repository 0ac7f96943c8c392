//! Invalidation of regions: by local requests and by the peer's SEND.

use rdma_verbs::verbs::{
    AsyncEvent, Cause, CompletionOpcode, CompletionStatus, ErrorKind, MemoryRegion, Payload, QueuePairState,
    ReceiveRequest, RegisterOptions, RemoteMemory, Rkey, SendRequest,
};

use super::bytes::{check, check_all, fill};
use super::end::{ALL_ACCESS, End, Shape, refused};
use super::suite::{Capability, INVALIDATABLE_REGIONS, MEM_MGT_EXTENSIONS, Scenario};
use super::world::World;

const NEEDS: &[Capability] = &[INVALIDATABLE_REGIONS, MEM_MGT_EXTENSIONS];

const fn scenario(name: &'static str, clause: &'static str, run: fn(&World)) -> Scenario {
    Scenario { name, clause, needs: NEEDS, run }
}

pub(crate) const SCENARIOS: &[Scenario] = &[
    scenario(
        "invalidate/remote/key_is_invalid_and_reported",
        "IBTA, transport functions; ibv_poll_cq(3) WITH_INV",
        reported_and_invalid,
    ),
    scenario("invalidate/remote/long_message", "IBTA, transport functions: SEND_LAST with invalidate", long_message),
    scenario("invalidate/remote/region_not_offered", "IBTA, memory management", not_offered),
    scenario("invalidate/remote/unknown_key", "IBTA, transport functions", unknown_key),
    scenario("invalidate/remote/other_domain", "IBTA, memory management: protection domain", other_domain),
    scenario(
        "invalidate/local/key_is_invalid",
        "IBTA, memory management; ibv_post_send(3) LOCAL_INV",
        local_key_is_invalid,
    ),
    scenario("invalidate/local/unsignaled", "ibv_post_send(3) IBV_SEND_SIGNALED", local_unsignaled),
    scenario("invalidate/local/after_earlier_requests", "IBTA, work request processing: ordering", after_earlier),
    scenario("invalidate/local/twice", "IBTA, memory management: key not valid", twice),
    scenario("invalidate/local/region_not_offered", "IBTA, memory management", local_not_offered),
    scenario("invalidate/local/memory_comes_back", "IBTA, memory management; ibv_dereg_mr(3)", memory_comes_back),
    scenario("invalidate/local/posting_with_it", "IBTA, memory management: L_Key and R_Key", posting_with_it),
];

/// Registers a region with all access flags, whose key may be invalidated.
fn offered(end: &End) -> MemoryRegion {
    let options = RegisterOptions::default().invalidatable();
    end.pd.reg_mr_with(vec![0; 4096], ALL_ACCESS, &options).expect("reg_mr")
}

#[track_caller]
fn closed(peer: &End, remote: RemoteMemory) {
    peer.qp.post_send(&[SendRequest::write(Payload::inline(b"intruder"), remote).wr_id(79)]).unwrap();
    peer.fails(79, CompletionStatus::RemoteAccessError);
}

fn reported_and_invalid(world: &World) {
    let (left, right) = world.pair();
    let region = offered(&right);
    right.qp.post_recv(&[ReceiveRequest::new(&right.region).wr_id(1)]).unwrap();
    left.qp.post_send(&[SendRequest::write(Payload::inline(b"good"), region.remote()).wr_id(2).signaled()]).unwrap();
    left.written(2);
    let request = SendRequest::send_with_invalidate(Payload::inline(b"bye"), region.rkey());
    left.qp.post_send(&[request.wr_id(3).signaled()]).unwrap();
    left.sent(3);
    let success = right.done(1, CompletionOpcode::Receive);
    assert_eq!((success.byte_len, success.immediate, success.invalidated), (3, None, Some(region.rkey())));
    assert_eq!(right.region.to_vec(..3).unwrap(), b"bye");
    closed(&left, region.remote());
    assert_eq!(region.to_vec(..8).unwrap(), b"good\0\0\0\0");
}

fn long_message(world: &World) {
    let (left, right) = world.pair();
    let region = offered(&right);
    fill(&left.region, 0, 20_000, 4);
    right.qp.post_recv(&[ReceiveRequest::new(&right.region).wr_id(1)]).unwrap();
    let request = SendRequest::send_with_invalidate(left.region.slice(..20_000).unwrap(), region.rkey());
    left.qp.post_send(&[request.wr_id(3).signaled()]).unwrap();
    let success = right.done(1, CompletionOpcode::Receive);
    assert_eq!((success.byte_len, success.invalidated), (20_000, Some(region.rkey())));
    left.sent(3);
    check(&right.region, 0, 20_000, 4);
}

/// Checks that the named key cannot be invalidated by the peer: both ends fail, and the region is unchanged.
#[track_caller]
fn refused_remotely(left: &End, right: &End, rkey: Rkey) {
    right.qp.post_recv(&[ReceiveRequest::new(&right.region).wr_id(1)]).unwrap();
    left.qp.post_send(&[SendRequest::send_with_invalidate(Payload::inline(b"bye"), rkey).wr_id(3)]).unwrap();
    let statuses = [CompletionStatus::RemoteAccessError, CompletionStatus::RemoteInvalidRequestError];
    left.fails_with(3, &statuses);
    let error = right.fails_with(1, &statuses);
    assert_eq!(error.cause, Cause::InvalidateRefused);
    right.failure_event(&[AsyncEvent::QueuePairAccessError]);
    right.becomes(QueuePairState::Error);
}

fn not_offered(world: &World) {
    let (left, right) = world.pair();
    let region = right.region(64, ALL_ACCESS);
    refused_remotely(&left, &right, region.rkey());
    let end = world.end(1, &Shape::default());
    assert!(end.qp.init().is_ok(), "the device lives on");
}

fn unknown_key(world: &World) {
    let (left, right) = world.pair();
    let region = offered(&right);
    refused_remotely(&left, &right, Rkey(region.rkey().0 ^ 1));
}

fn other_domain(world: &World) {
    let (left, right) = world.pair();
    let options = RegisterOptions::default().invalidatable();
    let region = right.context.alloc_pd().unwrap().reg_mr_with(vec![0; 64], ALL_ACCESS, &options).unwrap();
    refused_remotely(&left, &right, region.rkey());
}

fn local_key_is_invalid(world: &World) {
    let (left, right) = world.pair();
    let region = offered(&right);
    right.qp.post_send(&[SendRequest::local_invalidate(region.rkey()).wr_id(1).signaled()]).unwrap();
    let success = right.done(1, CompletionOpcode::LocalInvalidate);
    assert_eq!(success.byte_len, 0);
    closed(&left, region.remote());
    check_all(&region, 0, 64, 0);
}

fn local_unsignaled(world: &World) {
    let end = world.loopback(&Shape::default());
    let (one, two) = (offered(&end), offered(&end));
    end.qp.post_send(&[SendRequest::local_invalidate(one.rkey()).wr_id(1)]).unwrap();
    end.silent();
    end.qp.post_send(&[SendRequest::local_invalidate(two.rkey()).wr_id(2).signaled()]).unwrap();
    end.done(2, CompletionOpcode::LocalInvalidate);
    end.silent();
}

/// A long WRITE from the region, followed by the invalidation of its key: the WRITE must be complete.
fn after_earlier(world: &World) {
    let (left, right) = world.pair();
    let options = RegisterOptions::default().invalidatable();
    let region = left.pd.reg_mr_with(vec![0; 60_000], ALL_ACCESS, &options).unwrap();
    fill(&region, 0, 60_000, 8);
    left.qp
        .post_send(&[
            SendRequest::write(&region, right.region.remote()).wr_id(1).signaled(),
            SendRequest::read(region.slice(..100).unwrap(), right.region.remote()).wr_id(2).signaled(),
            SendRequest::local_invalidate(region.rkey()).wr_id(3).signaled(),
            SendRequest::write(Payload::inline(b"after"), right.region.remote()).wr_id(4).signaled(),
        ])
        .unwrap();
    left.written(1);
    left.read(2, 100);
    left.done(3, CompletionOpcode::LocalInvalidate);
    left.written(4);
    check(&region, 0, 60_000, 8);
    assert_eq!(right.region.to_vec(..5).unwrap(), b"after");
}

fn twice(world: &World) {
    let end = world.loopback(&Shape::default());
    let region = offered(&end);
    let invalidate = SendRequest::local_invalidate(region.rkey());
    end.qp.post_send(&[invalidate.wr_id(1).signaled(), invalidate.wr_id(2), invalidate.wr_id(3)]).unwrap();
    end.done(1, CompletionOpcode::LocalInvalidate);
    let error = end.fails(2, CompletionStatus::LocalQueuePairOperationError);
    assert_eq!(error.cause, Cause::InvalidateRefused);
    end.flushed([3]);
    end.becomes(QueuePairState::Error);
}

fn local_not_offered(world: &World) {
    let end = world.loopback(&Shape::default());
    end.qp.post_send(&[SendRequest::local_invalidate(end.region.rkey()).wr_id(1)]).unwrap();
    let error = end.fails(1, CompletionStatus::LocalQueuePairOperationError);
    assert_eq!(error.cause, Cause::InvalidateRefused);
    assert!(end.qp.explain(&error).contains("invalidat"), "{}", end.qp.explain(&error));
}

fn memory_comes_back(world: &World) {
    let end = world.loopback(&Shape::default());
    let region = offered(&end);
    region.write_at(7, b"kept").unwrap();
    end.qp.post_send(&[SendRequest::local_invalidate(region.rkey()).wr_id(1).signaled()]).unwrap();
    end.done(1, CompletionOpcode::LocalInvalidate);
    assert_eq!(region.to_vec(7..11).unwrap(), b"kept", "this host can still copy");
    let bytes = region.dereg().unwrap().into_vec().expect("a Vec went in");
    assert_eq!((bytes.len(), &bytes[7..11]), (4096, &b"kept"[..]));
}

/// A request posted before the invalidation fails on execution; one posted after it is refused.
fn posting_with_it(world: &World) {
    let end = world.loopback(&Shape::default());
    let region = offered(&end);
    end.qp
        .post_send(&[
            SendRequest::local_invalidate(region.rkey()).wr_id(1).signaled(),
            SendRequest::write(region.slice(..8).unwrap(), end.region.remote()).wr_id(2),
        ])
        .unwrap();
    end.done(1, CompletionOpcode::LocalInvalidate);
    let error = end.fails(2, CompletionStatus::LocalProtectionError);
    assert_eq!(error.cause, Cause::LocalKeyUnknown);
    check_all(&end.region, 0, 8, 0);
    let late = end.qp.post_send(&[SendRequest::write(&region, end.region.remote())]);
    refused(late, ErrorKind::InvalidState, &["post_send"]);
}
