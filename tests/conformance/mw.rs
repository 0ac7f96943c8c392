//! Memory windows of both types.

use rdma_verbs::verbs::{
    AccessFlags, Cause, Completion, CompletionOpcode, CompletionStatus, ErrorKind, MemoryRegion, MemoryWindow,
    MemoryWindowBind, MemoryWindowType, Payload, QueuePairState, ReceiveRequest, RemoteMemory, Rkey, SendRequest,
};

use super::bytes::{check, check_all, fill};
use super::deviations::{FAILED_IS_FLUSHED, INVALIDATED_UNREPORTED, WINDOW_BOUNDS};
use super::end::{ALL_ACCESS, End, Shape, caused_by, create_qp, failed_here, refused};
use super::suite::{Capability, MEM_WINDOW, MEM_WINDOW_TYPE_2B, Scenario};
use super::world::{World, connect};

const TYPE_1: &[Capability] = &[MEM_WINDOW];
const TYPE_2: &[Capability] = &[MEM_WINDOW_TYPE_2B];

const fn scenario(name: &'static str, clause: &'static str, needs: &'static [Capability], run: fn(&World)) -> Scenario {
    Scenario { name, clause, needs, run }
}

pub(crate) const SCENARIOS: &[Scenario] = &[
    scenario("mw/type1/reaches_its_range", "IBTA, memory windows: type 1; ibv_bind_mw(3)", TYPE_1, reaches_its_range),
    scenario(
        "mw/type1/each_bind_has_a_new_key",
        "IBTA, memory windows; ibv_bind_mw(3) rkey",
        TYPE_1,
        each_bind_new_key,
    ),
    scenario(
        "mw/type1/unbound_by_zero_length",
        "IBTA, memory windows; ibv_bind_mw(3) length 0",
        TYPE_1,
        unbound_by_zero,
    ),
    scenario("mw/type1/reached_through_any_queue_pair", "IBTA, memory windows: type 1", TYPE_1, any_queue_pair),
    scenario("mw/type1/needs_the_verb", "ibv_alloc_mw(3); ibv_post_send(3) BIND_MW", TYPE_1, needs_the_verb),
    scenario(
        "mw/type1/cannot_be_invalidated",
        "IBTA, memory windows: type 1 by the verb only",
        TYPE_1,
        not_invalidated,
    ),
    scenario("mw/type2/key_is_index_and_tag", "IBTA, memory windows; ibv_inc_rkey(3)", TYPE_2, key_is_index_and_tag),
    scenario(
        "mw/type2/bound_behind_earlier_requests",
        "IBTA, work request processing: ordering of binds",
        TYPE_2,
        bound_in_order,
    ),
    scenario("mw/type2/only_through_its_queue_pair", "IBTA, memory windows: type 2B", TYPE_2, only_its_queue_pair),
    scenario("mw/type2/bound_twice", "IBTA, memory windows: bind of a valid window", TYPE_2, bound_twice),
    scenario("mw/type2/bound_again_after_invalidation", "IBTA, memory windows: free again", TYPE_2, bound_again),
    scenario("mw/type2/old_tag_is_invalid", "IBTA, memory windows: key portion", TYPE_2, old_tag_is_invalid),
    scenario(
        "mw/type2/remote_invalidation",
        "IBTA, transport functions: SEND with invalidate",
        TYPE_2,
        remote_invalidation,
    ),
    scenario("mw/type2/invalidated_through_another_queue_pair", "IBTA, memory windows", TYPE_2, invalidated_elsewhere),
    scenario(
        "mw/type2/ends_with_its_queue_pair",
        "IBTA, memory windows: type 2B; IBTA, HCA resources",
        TYPE_2,
        ends_with_queue_pair,
    ),
    scenario("mw/type2/zero_based", "IBTA, memory windows; IBV_ACCESS_ZERO_BASED", TYPE_2, zero_based),
    scenario("mw/type2/no_byte", "IBTA, memory windows; rxe: length 0 is refused", TYPE_2, no_byte),
    scenario("mw/bind/region_gone_meanwhile", "IBTA, memory windows: L_Key", TYPE_2, region_gone_meanwhile),
    scenario(
        "mw/bind/region_without_access_flag",
        "ibv_bind_mw(3) IBV_ACCESS_MW_BIND",
        TYPE_2,
        region_without_access_flag,
    ),
    scenario(
        "mw/bind/write_needs_local_write",
        "IBTA, memory windows; ibv_bind_mw(3)",
        TYPE_2,
        write_needs_local_write,
    ),
    scenario(
        "mw/bind/window_of_another_domain",
        "IBTA, memory windows: protection domain",
        TYPE_2,
        window_of_another_domain,
    ),
    scenario(
        "mw/bind/objects_of_another_device",
        "IBTA, memory windows: protection domain",
        TYPE_2,
        objects_of_another_device,
    ),
    scenario(
        "mw/bind/region_of_another_domain",
        "IBTA, memory windows: protection domain",
        TYPE_2,
        region_of_another_domain,
    ),
    scenario("mw/bind/unknown_right", "IBTA, memory window verbs: access rights of windows", TYPE_2, unknown_right),
    scenario(
        "mw/bind/failure_flushes_what_follows",
        "IBTA, software transport interface; ibv_poll_cq(3)",
        TYPE_2,
        failure_flushes,
    ),
    scenario("mw/access/each_right", "IBTA, reliable service: R_Key check", TYPE_2, each_right),
    scenario("mw/access/beyond_the_window", "IBTA, reliable service: R_Key check", TYPE_2, beyond_the_window),
    scenario("mw/access/atomic", "IBTA, reliable service; IBTA, atomics", TYPE_2, atomic),
    scenario("mw/access/never_bound", "IBTA, memory windows: free state", TYPE_2, never_bound),
    scenario("mw/dealloc/key_is_invalid", "ibv_dealloc_mw(3)", TYPE_2, dealloc_key_is_invalid),
    scenario("mw/region/deregistered_under_it", "IBTA, memory windows", TYPE_2, region_deregistered),
];

/// Registers a region to which windows can be bound, without remote access of its own.
fn bindable(end: &End) -> MemoryRegion {
    end.region(4096, AccessFlags::LOCAL_WRITE | AccessFlags::MEMORY_WINDOW_BIND)
}

fn window(end: &End) -> MemoryWindow {
    end.pd.alloc_mw(MemoryWindowType::Type2).expect("alloc_mw")
}

/// Binds a type 2 window, which must succeed.
#[track_caller]
fn bind(end: &End, window: &MemoryWindow, tag: u8, bind: MemoryWindowBind<'_>) -> RemoteMemory {
    let bind = bind.wr_id(77).signaled();
    end.qp.post_send(&[SendRequest::bind_mw(window, tag, &bind).unwrap()]).unwrap();
    end.done(77, CompletionOpcode::BindMemoryWindow);
    bind.remote(window.rkey_with(tag))
}

/// Binds a type 2 window, which must fail and put the connection into the error state.
#[track_caller]
fn bind_fails(end: &End, window: &MemoryWindow, bind: MemoryWindowBind<'_>, cause: Cause) {
    end.qp.post_send(&[SendRequest::bind_mw(window, 5, &bind.wr_id(78).signaled()).unwrap()]).unwrap();
    let error = end.fails(78, failed_here(CompletionStatus::MemoryWindowBindError));
    caused_by(end, &error, cause);
    assert!(!end.qp.explain(&error).is_empty());
    end.becomes(QueuePairState::Error);
}

/// Checks that the peer's WRITE to it is refused for an access flag or a key.
#[track_caller]
fn closed(peer: &End, remote: RemoteMemory) {
    let request = SendRequest::write(Payload::inline(b"intruder"), RemoteMemory::new(remote.addr(), remote.rkey(), 8));
    peer.qp.post_send(&[request.wr_id(79).signaled()]).unwrap();
    peer.fails(79, CompletionStatus::RemoteAccessError);
}

/// Checks that the peer's WRITE beyond the window is refused and leaves the region unchanged.
#[track_caller]
fn bounded(peer: &End, beyond: RemoteMemory, (region, from): (&MemoryRegion, usize)) {
    if WINDOW_BOUNDS.holds() {
        return open(peer, beyond);
    }
    closed(peer, beyond);
    check_all(region, from, 64, 0);
}

#[track_caller]
fn open(peer: &End, remote: RemoteMemory) {
    let request = SendRequest::write(Payload::inline(b"12345678"), remote);
    peer.qp.post_send(&[request.wr_id(80).signaled()]).unwrap();
    peer.written(80);
}

fn reaches_its_range(world: &World) {
    let (left, right) = world.pair();
    let region = bindable(&right);
    let window = right.pd.alloc_mw(MemoryWindowType::Type1).unwrap();
    assert_eq!(window.kind(), MemoryWindowType::Type1);
    let range = region.slice(1024..2048).unwrap();
    let bind = MemoryWindowBind::new(range, AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ).wr_id(1).signaled();
    let key = right.qp.bind_mw(&window, &bind).unwrap();
    right.done(1, CompletionOpcode::BindMemoryWindow);
    assert_eq!(window.rkey(), key);
    let remote = bind.remote(key);
    assert_eq!((remote.addr(), remote.len()), (region.iova() + 1024, 1024));
    fill(&left.region, 0, 1024, 3);
    left.qp.post_send(&[SendRequest::write(left.region.slice(..1024).unwrap(), remote).wr_id(2).signaled()]).unwrap();
    left.written(2);
    check(&region, 1024, 1024, 3);
    check_all(&region, 0, 1024, 0);
    check_all(&region, 2048, 2048, 0);
    left.qp
        .post_send(&[SendRequest::read(left.region.slice(2048..3072).unwrap(), remote).wr_id(3).signaled()])
        .unwrap();
    left.read(3, 1024);
    check(&left.region, 2048, 1024, 3);
}

fn each_bind_new_key(world: &World) {
    let (left, right) = world.pair();
    let region = bindable(&right);
    let window = right.pd.alloc_mw(MemoryWindowType::Type1).unwrap();
    let bind = MemoryWindowBind::new(region.slice(..64).unwrap(), AccessFlags::REMOTE_WRITE).wr_id(1).signaled();
    let first = right.qp.bind_mw(&window, &bind).unwrap();
    right.done(1, CompletionOpcode::BindMemoryWindow);
    let second = right.qp.bind_mw(&window, &bind).unwrap();
    right.done(1, CompletionOpcode::BindMemoryWindow);
    assert_ne!(first, second);
    assert_eq!(first.0 >> 8, second.0 >> 8, "a window keeps its index");
    open(&left, bind.remote(second));
    closed(&left, bind.remote(first));
}

fn unbound_by_zero(world: &World) {
    let (left, right) = world.pair();
    let region = bindable(&right);
    let window = right.pd.alloc_mw(MemoryWindowType::Type1).unwrap();
    let bind = MemoryWindowBind::new(region.slice(..64).unwrap(), AccessFlags::REMOTE_WRITE);
    let remote = bind.remote(right.qp.bind_mw(&window, &bind).unwrap());
    let unbound = right.qp.bind_mw(&window, &MemoryWindowBind::unbind().wr_id(2).signaled()).unwrap();
    right.done(2, CompletionOpcode::BindMemoryWindow);
    closed(&left, RemoteMemory::new(remote.addr(), unbound, 8));
    check_all(&region, 0, 64, 0);
}

fn any_queue_pair(world: &World) {
    let (left, right) = world.pair();
    let region = bindable(&right);
    let window = right.pd.alloc_mw(MemoryWindowType::Type1).unwrap();
    let binder = create_qp(&right.pd, &right.cq, &right.cq, &Shape::default());
    binder.connect(&binder.connection_info().unwrap()).unwrap();
    let bind = MemoryWindowBind::new(region.slice(..64).unwrap(), AccessFlags::REMOTE_WRITE).wr_id(1).signaled();
    let remote = bind.remote(binder.bind_mw(&window, &bind).unwrap());
    let done = right.next();
    assert_eq!((done.qpn(), done.wr_id(), done.is_success()), (binder.qpn(), 1, true), "{done:?}");
    open(&left, remote);
    assert_eq!(region.to_vec(..8).unwrap(), b"12345678");
}

fn needs_the_verb(world: &World) {
    let end = world.loopback(&Shape::default());
    let region = bindable(&end);
    let bind = MemoryWindowBind::new(region.slice(..64).unwrap(), AccessFlags::REMOTE_READ);
    let one = end.pd.alloc_mw(MemoryWindowType::Type1).unwrap();
    refused(SendRequest::bind_mw(&one, 1, &bind), ErrorKind::InvalidArgument, &["mw", "Type1", "Type2", "bind_mw"]);
    let two = window(&end);
    refused(end.qp.bind_mw(&two, &bind), ErrorKind::InvalidArgument, &["bind_mw", "mw", "Type1", "Type2"]);
    end.silent();
}

fn not_invalidated(world: &World) {
    let end = world.loopback(&Shape::default());
    let region = bindable(&end);
    let window = end.pd.alloc_mw(MemoryWindowType::Type1).unwrap();
    let bind = MemoryWindowBind::new(region.slice(..64).unwrap(), AccessFlags::REMOTE_READ);
    let key = end.qp.bind_mw(&window, &bind).unwrap();
    end.qp.post_send(&[SendRequest::local_invalidate(key).wr_id(2)]).unwrap();
    let statuses = [CompletionStatus::LocalQueuePairOperationError, CompletionStatus::MemoryWindowBindError];
    let error = end.fails_with(2, &statuses.map(failed_here));
    caused_by(&end, &error, Cause::InvalidateRefused);
}

fn key_is_index_and_tag(world: &World) {
    let (left, right) = world.pair();
    let (region, window) = (bindable(&right), window(&right));
    let whole = MemoryWindowBind::new(&region, AccessFlags::REMOTE_WRITE);
    let remote = bind(&right, &window, 0xc3, whole);
    assert_eq!(remote.rkey(), Rkey(window.rkey().0 & !0xff | 0xc3));
    assert_eq!(window.rkey(), remote.rkey());
    open(&left, remote);
}

/// A message that names the key may be posted right after the bind, even an unsignaled one.
fn bound_in_order(world: &World) {
    let (left, right) = world.pair();
    let (region, window) = (bindable(&right), window(&right));
    let range = MemoryWindowBind::new(region.slice(64..128).unwrap(), AccessFlags::REMOTE_WRITE);
    let description = range.remote(window.rkey_with(9)).to_bytes();
    fill(&right.region, 0, 32 << 10, 5);
    left.qp
        .post_recv(&[ReceiveRequest::new(&left.region).wr_id(1), ReceiveRequest::new(&left.region).wr_id(2)])
        .unwrap();
    right
        .qp
        .post_send(&[
            SendRequest::send(right.region.slice(..32 << 10).unwrap()),
            SendRequest::bind_mw(&window, 9, &range).unwrap(),
            SendRequest::send(Payload::inline(&description)).wr_id(3).signaled(),
        ])
        .unwrap();
    left.received(1, 32 << 10);
    left.received(2, description.len() as u32);
    right.sent(3);
    let mut heard = [0; RemoteMemory::ENCODED_BYTES];
    left.region.read_at(0, &mut heard).unwrap();
    open(&left, RemoteMemory::from_bytes(heard));
    assert_eq!(region.to_vec(64..72).unwrap(), b"12345678");
}

/// Two connections between the same ends; only the queue pair that bound the window may use it.
fn only_its_queue_pair(world: &World) {
    let (left, right) = world.pair();
    let others = [&left, &right].map(|end| create_qp(&end.pd, &end.cq, &end.cq, &Shape::default()));
    let infos = others.each_ref().map(|qp| qp.connection_info().unwrap());
    others[0].connect(&infos[1]).unwrap();
    others[1].connect(&infos[0]).unwrap();
    let (region, window) = (bindable(&right), window(&right));
    let remote = bind(&right, &window, 1, MemoryWindowBind::new(&region, AccessFlags::REMOTE_WRITE));
    others[0].post_send(&[SendRequest::write(Payload::inline(b"intruder"), remote).wr_id(4)]).unwrap();
    let error = left.next().result().expect_err("refused");
    assert_eq!((error.qpn, error.status), (others[0].qpn(), CompletionStatus::RemoteAccessError));
    check_all(&region, 0, 64, 0);
    open(&left, remote);
}

fn bound_twice(world: &World) {
    let end = world.loopback(&Shape::default());
    let (region, window) = (bindable(&end), window(&end));
    bind(&end, &window, 1, MemoryWindowBind::new(&region, AccessFlags::REMOTE_READ));
    bind_fails(&end, &window, MemoryWindowBind::new(&region, AccessFlags::REMOTE_READ), Cause::WindowBound);
}

fn bound_again(world: &World) {
    let (left, right) = world.pair();
    let (region, window) = (bindable(&right), window(&right));
    let first = bind(&right, &window, 1, MemoryWindowBind::new(&region, AccessFlags::REMOTE_WRITE));
    open(&left, first);
    right.qp.post_send(&[SendRequest::local_invalidate(first.rkey()).wr_id(2).signaled()]).unwrap();
    right.done(2, CompletionOpcode::LocalInvalidate);
    let upper = MemoryWindowBind::new(region.slice(2048..).unwrap(), AccessFlags::REMOTE_WRITE);
    let second = bind(&right, &window, 2, upper);
    open(&left, second);
    assert_eq!(region.to_vec(2048..2056).unwrap(), b"12345678");
    closed(&left, first);
}

fn old_tag_is_invalid(world: &World) {
    let (left, right) = world.pair();
    let (region, window) = (bindable(&right), window(&right));
    let remote = bind(&right, &window, 7, MemoryWindowBind::new(&region, AccessFlags::REMOTE_WRITE));
    closed(&left, RemoteMemory::new(remote.addr(), window.rkey_with(6), 8));
    check_all(&region, 0, 64, 0);
}

fn remote_invalidation(world: &World) {
    let (left, right) = world.pair();
    let (region, window) = (bindable(&right), window(&right));
    let remote = bind(&right, &window, 7, MemoryWindowBind::new(&region, AccessFlags::REMOTE_WRITE));
    right.qp.post_recv(&[ReceiveRequest::new(&right.region).wr_id(5)]).unwrap();
    left.qp
        .post_send(&[SendRequest::send_with_invalidate(Payload::inline(b"bye"), remote.rkey()).wr_id(1).signaled()])
        .unwrap();
    left.sent(1);
    let success = right.done(5, CompletionOpcode::Receive);
    let expected = INVALIDATED_UNREPORTED.or(None, Some(remote.rkey()));
    assert_eq!((success.byte_len, success.immediate, success.invalidated), (3, None, expected));
    closed(&left, remote);
    check_all(&region, 0, 64, 0);
}

fn invalidated_elsewhere(world: &World) {
    let end = world.loopback(&Shape::default());
    let (region, window) = (bindable(&end), window(&end));
    let remote = bind(&end, &window, 7, MemoryWindowBind::new(&region, AccessFlags::REMOTE_WRITE));
    let other = create_qp(&end.pd, &end.cq, &end.cq, &Shape::default());
    other.connect(&other.connection_info().unwrap()).unwrap();
    other.post_send(&[SendRequest::local_invalidate(remote.rkey()).wr_id(2).signaled()]).unwrap();
    let error = match end.next().result() {
        Ok(success) => panic!("another queue pair's window: {:?} succeeds", success.opcode),
        Err(error) => error,
    };
    assert_eq!((error.qpn, error.wr_id), (other.qpn(), 2));
    caused_by(&end, &error, Cause::InvalidateRefused);
    open(&end, remote);
}

/// Otherwise no queue pair could invalidate the window, and the number of its queue pair may be reused.
fn ends_with_queue_pair(world: &World) {
    let (left, right) = world.pair();
    let (region, window) = (bindable(&right), window(&right));
    let binder = create_qp(&right.pd, &right.cq, &right.cq, &Shape::default());
    binder.connect(&binder.connection_info().unwrap()).unwrap();
    let first = MemoryWindowBind::new(&region, AccessFlags::REMOTE_WRITE).wr_id(1).signaled();
    binder.post_send(&[SendRequest::bind_mw(&window, 1, &first).unwrap()]).unwrap();
    let done = right.next();
    assert_eq!((done.qpn(), done.wr_id(), done.is_success()), (binder.qpn(), 1, true), "{done:?}");
    drop(binder);
    let second = bind(&right, &window, 2, MemoryWindowBind::new(&region, AccessFlags::REMOTE_WRITE));
    open(&left, second);
    closed(&left, first.remote(window.rkey_with(1)));
    assert_eq!(region.to_vec(..8).unwrap(), b"12345678");
}

fn zero_based(world: &World) {
    let (left, right) = world.pair();
    let (region, window) = (bindable(&right), window(&right));
    let access = AccessFlags::REMOTE_WRITE | AccessFlags::ZERO_BASED;
    let remote = bind(&right, &window, 7, MemoryWindowBind::new(region.slice(1000..1100).unwrap(), access));
    assert_eq!((remote.addr(), remote.len()), (0, 100));
    open(&left, remote.slice(92..).unwrap());
    assert_eq!(region.to_vec(1092..1100).unwrap(), b"12345678");
    bounded(&left, RemoteMemory::new(93, remote.rkey(), 8), (&region, 1100));
}

fn no_byte(world: &World) {
    let end = world.loopback(&Shape::default());
    let (region, window) = (bindable(&end), window(&end));
    let nothing = MemoryWindowBind::new(region.slice(8..8).unwrap(), AccessFlags::REMOTE_READ);
    bind_fails(&end, &window, nothing, Cause::WindowArguments);
}

/// The region is deregistered after the request is made and before it executes.
fn region_gone_meanwhile(world: &World) {
    let end = world.loopback(&Shape::default());
    let window = window(&end);
    let region = bindable(&end);
    let gone = MemoryWindowBind::new(&region, AccessFlags::REMOTE_READ).wr_id(78);
    let request = SendRequest::bind_mw(&window, 5, &gone).unwrap();
    region.revoke().unwrap();
    if let Err(error) = end.qp.post_send(&[request]) {
        // libibverbs takes a pointer to the region, so posting detects at once that the region is gone.
        assert_eq!((error.verb(), error.kind()), ("post_send", ErrorKind::InvalidArgument), "{error}");
        return end.silent();
    }
    let error = end.fails(78, CompletionStatus::MemoryWindowBindError);
    caused_by(&end, &error, Cause::LocalKeyUnknown);
}

fn region_without_access_flag(world: &World) {
    let end = world.loopback(&Shape::default());
    let (region, window) = (end.region(64, ALL_ACCESS), window(&end));
    bind_fails(&end, &window, MemoryWindowBind::new(&region, AccessFlags::REMOTE_READ), Cause::RegionNotBindable);
}

fn write_needs_local_write(world: &World) {
    let end = world.loopback(&Shape::default());
    let (region, window) = (end.region(64, AccessFlags::MEMORY_WINDOW_BIND), window(&end));
    let read = bind(&end, &window, 1, MemoryWindowBind::new(&region, AccessFlags::REMOTE_READ));
    end.qp.post_send(&[SendRequest::local_invalidate(read.rkey()).wr_id(1).signaled()]).unwrap();
    end.done(1, CompletionOpcode::LocalInvalidate);
    bind_fails(&end, &window, MemoryWindowBind::new(&region, AccessFlags::REMOTE_WRITE), Cause::RegionNotBindable);
}

fn window_of_another_domain(world: &World) {
    let end = world.loopback(&Shape::default());
    let region = bindable(&end);
    let window = end.context.alloc_pd().unwrap().alloc_mw(MemoryWindowType::Type2).unwrap();
    bind_fails(&end, &window, MemoryWindowBind::new(&region, AccessFlags::REMOTE_READ), Cause::WindowUnknown);
}

/// On this device, the keys of another device's objects may name different objects.
fn objects_of_another_device(world: &World) {
    let (end, other) = (world.loopback(&Shape::default()), world.loopback(&Shape::default()));
    let refused = |window: &MemoryWindow, region: &MemoryRegion| {
        let bind = MemoryWindowBind::new(region, AccessFlags::REMOTE_READ);
        let posted = end.qp.post_send(&[SendRequest::bind_mw(window, 1, &bind).expect("of type 2")]);
        posted.map_err(|error| error.kind())
    };
    assert_eq!(refused(&window(&other), &bindable(&end)), Err(ErrorKind::InvalidArgument), "the window");
    assert_eq!(refused(&window(&end), &bindable(&other)), Err(ErrorKind::InvalidArgument), "the region");
}

fn region_of_another_domain(world: &World) {
    let end = world.loopback(&Shape::default());
    let window = window(&end);
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::MEMORY_WINDOW_BIND;
    let region = end.context.alloc_pd().unwrap().alloc_mr(64, access).unwrap();
    bind_fails(&end, &window, MemoryWindowBind::new(&region, AccessFlags::REMOTE_READ), Cause::LocalKeyWrongDomain);
}

fn unknown_right(world: &World) {
    let end = world.loopback(&Shape::default());
    let (region, window) = (bindable(&end), window(&end));
    let access = AccessFlags::REMOTE_READ | AccessFlags::MEMORY_WINDOW_BIND;
    bind_fails(&end, &window, MemoryWindowBind::new(&region, access), Cause::WindowArguments);
}

fn failure_flushes(world: &World) {
    let (left, right) = world.pair();
    let window = window(&right);
    let plain = right.region(64, ALL_ACCESS);
    let bind = MemoryWindowBind::new(&plain, AccessFlags::REMOTE_READ).wr_id(2);
    right.qp.post_recv(&[ReceiveRequest::new(&right.region).wr_id(9)]).unwrap();
    left.qp.post_recv(&[ReceiveRequest::new(&left.region).wr_id(8)]).unwrap();
    right
        .qp
        .post_send(&[
            SendRequest::send(Payload::inline(b"before")).wr_id(1).signaled(),
            SendRequest::bind_mw(&window, 5, &bind).unwrap(),
            SendRequest::send(Payload::inline(b"after")).wr_id(3),
        ])
        .unwrap();
    left.received(8, 6);
    let ended: Vec<Completion> = (0..4).map(|_| right.next()).collect();
    // Completions are ordered within each queue, but not between the two queues.
    let (sends, receives): (Vec<Completion>, Vec<Completion>) = ended.iter().partition(|done| done.wr_id() < 9);
    let statuses = |done: &[Completion]| done.iter().map(|done| (done.wr_id(), done.status())).collect::<Vec<_>>();
    let flushed = CompletionStatus::WorkRequestFlushedError;
    assert_eq!(statuses(&receives), [(9, flushed)]);
    let failed = failed_here(CompletionStatus::MemoryWindowBindError);
    assert_eq!(statuses(&sends)[1..], [(2, failed), (3, flushed)]);
    // Where a failure also flushes unacknowledged earlier requests, the result depends on whether the acknowledgement
    // came first.
    let is_flushed = FAILED_IS_FLUSHED.holds() && sends[0].status() == flushed;
    assert!(sends[0].wr_id() == 1 && (sends[0].is_success() || is_flushed), "{:?}", sends[0]);
    left.silent();
}

/// A window with a single remote access flag allows exactly that operation.
fn each_right(world: &World) {
    let rights = [AccessFlags::REMOTE_READ, AccessFlags::REMOTE_WRITE, AccessFlags::REMOTE_ATOMIC];
    for granted in rights {
        for used in rights {
            let (left, right) = (world.end(0, &Shape::default()), world.end(1, &Shape::default()));
            connect(&left, &right, &Default::default());
            let (region, window) = (bindable(&right), window(&right));
            let remote = bind(&right, &window, 1, MemoryWindowBind::new(&region, granted));
            let into = left.region.slice(..8).unwrap();
            let (request, opcode) = match used {
                AccessFlags::REMOTE_READ => (SendRequest::read(into, remote), CompletionOpcode::Read),
                AccessFlags::REMOTE_WRITE => (SendRequest::write(into, remote), CompletionOpcode::Write),
                _ => (SendRequest::fetch_and_add(into, remote, 1), CompletionOpcode::FetchAndAdd),
            };
            left.qp.post_send(&[request.wr_id(1).signaled()]).unwrap();
            if granted == used {
                left.done(1, opcode);
            } else {
                left.fails(1, CompletionStatus::RemoteAccessError);
                check_all(&region, 0, 64, 0);
            }
        }
    }
}

/// The region continues behind the window's last byte, but the peer must not reach it.
fn beyond_the_window(world: &World) {
    let (left, right) = world.pair();
    let (region, window) = (bindable(&right), window(&right));
    let range = region.slice(1024..1032).unwrap();
    let remote = bind(&right, &window, 1, MemoryWindowBind::new(range, AccessFlags::REMOTE_WRITE));
    open(&left, remote);
    bounded(&left, RemoteMemory::new(remote.addr() + 1, remote.rkey(), 8), (&region, 1032));
}

fn atomic(world: &World) {
    let (left, right) = world.pair();
    let (region, window) = (bindable(&right), window(&right));
    region.store_release_u64(1024, 40).unwrap();
    let range = region.slice(1024..1032).unwrap();
    let remote = bind(&right, &window, 1, MemoryWindowBind::new(range, AccessFlags::REMOTE_ATOMIC));
    let into = left.region.slice(..8).unwrap();
    left.qp.post_send(&[SendRequest::fetch_and_add(into, remote, 2).wr_id(1).signaled()]).unwrap();
    left.done(1, CompletionOpcode::FetchAndAdd);
    assert_eq!((left.region.load_acquire_u64(0).unwrap(), region.load_acquire_u64(1024).unwrap()), (40, 42));
}

fn never_bound(world: &World) {
    let (left, right) = world.pair();
    let (region, window) = (bindable(&right), window(&right));
    closed(&left, RemoteMemory::new(region.iova(), window.rkey(), 8));
    check_all(&region, 0, 64, 0);
}

fn dealloc_key_is_invalid(world: &World) {
    let (left, right) = world.pair();
    let (region, window) = (bindable(&right), window(&right));
    let remote = bind(&right, &window, 1, MemoryWindowBind::new(&region, AccessFlags::REMOTE_WRITE));
    open(&left, remote);
    window.dealloc().unwrap();
    region.write_at(0, &[0; 8]).unwrap();
    closed(&left, remote);
    check_all(&region, 0, 64, 0);
}

/// Deregistration returns the memory at once and invalidates the window's key; a window that still exists can be bound
/// again.
fn region_deregistered(world: &World) {
    let (left, right) = world.pair();
    let window = window(&right);
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::MEMORY_WINDOW_BIND;
    let region = right.pd.reg_mr(vec![0; 64], access).unwrap();
    let first = bind(&right, &window, 1, MemoryWindowBind::new(&region, AccessFlags::REMOTE_WRITE));
    assert_eq!(region.dereg().unwrap().into_vec().expect("a Vec went in"), [0; 64]);
    let other = bindable(&right);
    let second = MemoryWindowBind::new(&other, AccessFlags::REMOTE_WRITE).wr_id(77).signaled();
    // Some adapters can release a region only together with its windows.
    if right.qp.post_send(&[SendRequest::bind_mw(&window, 2, &second).unwrap()]).is_ok() {
        right.done(77, CompletionOpcode::BindMemoryWindow);
        open(&left, second.remote(window.rkey_with(2)));
    }
    closed(&left, first);
}
