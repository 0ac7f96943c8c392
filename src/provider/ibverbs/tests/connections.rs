//! The connection manager on a fake librdmacm.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use super::super::connection;
use super::super::sys::QpAttr;
use super::super::sys::cm::Channel;
use super::fake::Raised;
use super::*;
use crate::provider::{
    ConnectInit, Connection, ConnectionEnd, ConnectionEvent, ConnectionListener, ConnectionManager, ConnectionPath,
    ConnectionRequest, ConnectionTransport, DatagramEnd, EventWait, ListenInit, ListenerEvent, PortSpace, RejectReason,
    ResolutionEvent, ResolveInit, ServiceIdStatus, VendorId, VendorOptions,
};
use crate::sys::check_in_child;

pub(super) const LOCAL: &str = "192.0.2.1:0";
const RC: ConnectionTransport = ConnectionTransport::Reliable;
/// Numbers of `rdma_cm_event_type`.
const ADDR_RESOLVED: u32 = 0;
const ADDR_ERROR: u32 = 1;
const ROUTE_RESOLVED: u32 = 2;
pub(super) const CONNECT_REQUEST: u32 = 4;
const CONNECT_RESPONSE: u32 = 5;
const CONNECT_ERROR: u32 = 6;
const UNREACHABLE: u32 = 7;
const REJECTED: u32 = 8;
pub(super) const ESTABLISHED: u32 = 9;
const DISCONNECTED: u32 = 10;
const DEVICE_REMOVAL: u32 = 11;
const TIMEWAIT_EXIT: u32 = 15;

pub(super) fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

pub(super) fn event(event: u32) -> Raised {
    Raised { event, ..Raised::default() }
}

fn with_status(event: u32, status: i32) -> Raised {
    Raised { event, status, ..Raised::default() }
}

pub(super) fn path() -> ConnectionPath {
    ConnectionPath {
        local: address(LOCAL),
        remote: address("192.0.2.9:7471"),
        remote_gid: PEER,
        local_gid: address(LOCAL).ip().into(),
        traffic_class: 0,
        flow_label: 0,
        hop_limit: 1,
        path_mtu: Mtu::Mtu1024,
        retry_count: 4,
        ack_timeout: 15,
    }
}

pub(super) fn end() -> ConnectionEnd {
    ConnectionEnd {
        qpn: Qpn::new(0x11),
        responder_resources: 3,
        initiator_depth: 5,
        rnr_retry_count: 2,
        private_data: b"hi".to_vec(),
        ..ConnectionEnd::default()
    }
}

/// The attributes that the kernel determines.
fn attributes() -> QpAttr {
    let mut attributes = QpAttr { path_mtu: 3, rq_psn: 0x123, sq_psn: 0x456, dest_qp_num: 0x22, ..QpAttr::default() };
    (attributes.timeout, attributes.retry_cnt) = (17, 6);
    (attributes.ah_attr.dgid.0, attributes.ah_attr.hop_limit) = (PEER.to_bytes(), 64);
    (attributes.ah_attr.traffic_class, attributes.ah_attr.flow_label) = (8, 0x838a5);
    attributes
}

/// A device with a connection manager.
pub(super) fn world() -> World {
    let world = World::new(Machine::default());
    world.fake.set_connection_attributes(attributes());
    world
}

pub(super) fn manager(world: &World) -> &dyn ConnectionManager {
    world.context.connection_manager().unwrap()
}

fn connecting(world: &World, timeout: Option<Duration>) -> Arc<dyn Connection> {
    manager(world)
        .connect(&ConnectInit { path: &path(), end: &end(), transport: RC, ack_timeout: 14, timeout, port: None })
        .unwrap()
}

/// Waits longer than any test takes.
pub(super) fn patiently() -> EventWait<'static> {
    EventWait::Until(Some(Instant::now() + Duration::from_secs(20)))
}

/// An event that waits.
pub(super) fn now(connection: &dyn Connection) -> Result<Option<ConnectionEvent>, Error> {
    connection.next_event(EventWait::Until(Some(Instant::now())))
}

fn requested(world: &World) -> Arc<dyn Connection> {
    request_is_sent(world, connecting(world, None))
}

fn request_is_sent(world: &World, connection: Arc<dyn Connection>) -> Arc<dyn Connection> {
    world.fake.connection_event(0, &event(ADDR_RESOLVED));
    world.fake.connection_event(0, &event(ROUTE_RESOLVED));
    assert_eq!(now(&*connection).unwrap(), None);
    world.fake.log();
    connection
}

pub(super) fn listening(world: &World, text: &str, space: PortSpace) -> Arc<dyn ConnectionListener> {
    let init = ListenInit {
        address: address(text),
        space,
        transport: RC,
        backlog: 16,
        reuse_address: false,
        only_v6: None,
        shares_port_of: None,
        port: None,
    };
    manager(world).listen(&init).unwrap()
}

pub(super) fn request(listener: &dyn ConnectionListener) -> Option<ConnectionRequest> {
    match listener.next_event(EventWait::Until(Some(Instant::now()))).unwrap()? {
        ListenerEvent::Connection(request) => Some(*request),
        ListenerEvent::Datagram(_) => panic!("a request for datagrams"),
    }
}

#[test]
fn the_active_end_resolves_and_requests() {
    let world = world();
    let connection = connecting(&world, None);
    assert_eq!(connection.local_addr(), address("192.0.2.1:40000"));
    assert_eq!(now(&*connection).unwrap(), None);
    world.fake.connection_event(0, &event(ADDR_RESOLVED));
    assert_eq!(now(&*connection).unwrap(), None);
    world.fake.connection_event(0, &event(ROUTE_RESOLVED));
    assert_eq!(now(&*connection).unwrap(), None);
    let expected = [
        "rdma_create_event_channel",
        "rdma_create_id 0x106",
        "rdma_bind_addr 192.0.2.1:0",
        "rdma_resolve_addr 5000 ms",
        "rdma_set_option 0 3 [14]",
        "rdma_resolve_route 5000 ms",
        "rdma_connect qp 17 resources 3 5 retry 4 2 hi",
    ];
    let mut log = world.fake.log();
    log.retain(|line| line.starts_with("rdma_"));
    assert_eq!(log, expected);
    drop(connection);
    world.end();
}

#[test]
fn the_kernels_numbers_replace_those_of_the_program() {
    let world = world();
    let connection = requested(&world);
    let reply =
        Raised { event: CONNECT_RESPONSE, qp_num: 0x22, resources: (7, 9), private_data: vec![1], ..Raised::default() };
    world.fake.connection_event(0, &reply);
    let Some(ConnectionEvent::Replied(peer)) = now(&*connection).unwrap() else { panic!("a reply") };
    assert_eq!((peer.qpn, peer.starting_psn, peer.rnr_retry_count), (Qpn::new(0x22), Psn::new(0x456), 6));
    // An event tells what this end may have: the peer has it the other way round.
    assert_eq!((peer.responder_resources, peer.initiator_depth), (9, 7));
    assert_eq!((peer.private_data.len(), peer.private_data[0]), (196, 1));
    let (mut path, mut own) = (path(), end());
    connection.settle(&mut path, &mut own).unwrap();
    assert_eq!(own.starting_psn, Psn::new(0x123));
    assert_eq!((path.traffic_class, path.flow_label, path.hop_limit), (8, 0x838a5, 64));
    assert_eq!((path.path_mtu, path.retry_count), (Mtu::Mtu1024, 6));
    world.fake.log();
    connection.ready().unwrap();
    connection.disconnect().unwrap();
    assert_eq!(world.fake.log(), ["rdma_establish", "rdma_disconnect"]);
    drop(connection);
    world.end();
}

#[test]
fn a_path_mtu_that_librdmacm_does_not_request_is_refused() {
    let world = world();
    let connection = requested(&world);
    world.fake.set_connection_attributes(QpAttr { path_mtu: 5, ..attributes() });
    let parts = ["path_mtu is 1024", "the kernel has chosen 4096", "leave the option out"];
    refused(connection.settle(&mut path(), &mut end()), ErrorKind::InvalidArgument, &parts);
    world.fake.set_connection_attributes(QpAttr { path_mtu: 77, ..attributes() });
    refused(connection.settle(&mut path(), &mut end()), ErrorKind::Protocol, &["77"]);
}

#[test]
fn the_kernels_path_mtu_counts_if_the_program_has_chosen_none() {
    let world = world();
    let active_mtu = ConnectionPath { path_mtu: Mtu::Mtu4096, ..path() };
    let init =
        ConnectInit { path: &active_mtu, end: &end(), transport: RC, ack_timeout: 14, timeout: None, port: None };
    let connection = request_is_sent(&world, manager(&world).connect(&init).unwrap());
    world.fake.set_connection_attributes(QpAttr { path_mtu: 2, ..attributes() });
    let mut path = active_mtu;
    connection.settle(&mut path, &mut end()).unwrap();
    assert_eq!(path.path_mtu, Mtu::Mtu512);
}

#[test]
fn events_have_their_meaning() {
    let rejected = ConnectionEvent::Rejected { reason: RejectReason(8), private_data: vec![0; 148] };
    let cases = [
        (with_status(REJECTED, 8), rejected),
        (with_status(UNREACHABLE, -libc::ETIMEDOUT), ConnectionEvent::Unreachable),
        (with_status(ADDR_ERROR, -libc::ETIMEDOUT), ConnectionEvent::Unreachable),
        (event(ESTABLISHED), ConnectionEvent::Established),
        (event(DISCONNECTED), ConnectionEvent::Disconnected { is_confirmed: true }),
        (with_status(DISCONNECTED, -libc::ETIMEDOUT), ConnectionEvent::Disconnected { is_confirmed: false }),
        (event(DEVICE_REMOVAL), ConnectionEvent::Disconnected { is_confirmed: false }),
        (event(TIMEWAIT_EXIT), ConnectionEvent::TimeWaitExit),
    ];
    for (raised, expected) in cases {
        let world = world();
        let connection = requested(&world);
        world.fake.connection_event(0, &raised);
        assert_eq!(now(&*connection).unwrap(), Some(expected));
    }
    for (raised, kind) in [
        (with_status(ADDR_ERROR, -libc::EHOSTUNREACH), ErrorKind::NotFound),
        (with_status(CONNECT_ERROR, -libc::ENOMEM), ErrorKind::ResourceLimit),
        // A failure of librdmacm itself, and not EPERM.
        (with_status(ADDR_ERROR, -1), ErrorKind::System),
    ] {
        let world = world();
        let connection = requested(&world);
        world.fake.connection_event(0, &raised);
        let error = now(&*connection).unwrap_err();
        assert_eq!(error.kind(), kind);
        assert_eq!(error.to_string().contains("ibv_devices"), raised.status == -1, "{error}");
    }
}

/// Linux raises it when the address of the peer's interface changes.
#[test]
fn a_connection_that_is_set_up_stays_when_the_neighbor_changes() {
    let world = world();
    let connection = requested(&world);
    connection.ready().unwrap();
    world.fake.connection_event(0, &with_status(UNREACHABLE, -libc::ETIMEDOUT));
    assert_eq!(now(&*connection).unwrap(), None);
    world.fake.connection_event(0, &event(DISCONNECTED));
    assert!(now(&*connection).unwrap().is_some());
}

#[test]
fn attempts_end_at_their_deadlines_unless_they_are_set_up() {
    let (world, timeout) = (world(), Some(Duration::from_millis(20)));
    let connection = connecting(&world, timeout);
    assert_eq!(now(&*connection).unwrap(), None);
    assert_eq!(connection.next_event(patiently()).unwrap(), Some(ConnectionEvent::Unreachable));
    assert_eq!(now(&*connection).unwrap(), None);
    assert!(world.fake.log().contains(&"rdma_resolve_addr 20 ms".to_owned()));
    let listener = listening(&world, "192.0.2.1:7471", PortSpace::Tcp);
    let [over, set_up] = [(); 2].map(|()| {
        world.fake.connection_request(1, &event(CONNECT_REQUEST));
        let ConnectionRequest { connection, .. } = request(&*listener).unwrap();
        connection.accept(&end(), timeout).unwrap();
        connection
    });
    world.fake.connection_event(3, &event(ESTABLISHED));
    assert_eq!(over.next_event(patiently()).unwrap(), Some(ConnectionEvent::Unreachable));
    assert_eq!(now(&*set_up).unwrap(), Some(ConnectionEvent::Established));
    assert_eq!(now(&*set_up).unwrap(), None);
}

/// Events may be taken for the last time right before the deadline.
#[test]
fn a_deadline_that_passes_while_events_are_taken_is_kept() {
    let (sys, _) = fake::open(Machine::default());
    let channel = Channel::create(sys.connections().unwrap()).unwrap();
    let device = Device::open(sys).unwrap();
    let deadline = Instant::now() + Duration::from_millis(50);
    let turns = AtomicU32::new(0);
    let take = || {
        std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
        Ok(turns.fetch_add(1, Ordering::Relaxed).checked_sub(1))
    };
    let end = Instant::now() + Duration::from_secs(20);
    let wait = EventWait::Until(Some(end));
    assert_eq!(connection::next("get_cm_event", &device, &channel, Some(deadline), wait, take).unwrap(), Some(0));
    assert!(Instant::now() < end, "the deadline ends the wait");
    let task = Arc::new(Count(AtomicU32::new(0)));
    let waker = Waker::from(Arc::clone(&task));
    let deadline = Instant::now() + Duration::from_millis(50);
    let take = || {
        std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
        Ok(None::<()>)
    };
    let wait = EventWait::Waker(&waker);
    assert_eq!(connection::next("get_cm_event", &device, &channel, Some(deadline), wait, take).unwrap(), None);
    assert!(woken(&task, 1));
}

#[test]
fn calls_that_fail_say_why() {
    let cases = [
        ("rdma_create_id", libc::ENOMEM, ErrorKind::ResourceLimit, "identifier"),
        ("rdma_bind_addr", libc::EADDRNOTAVAIL, ErrorKind::AddressInUse, "192.0.2.1:0"),
        ("rdma_bind_addr", libc::EACCES, ErrorKind::PermissionDenied, "192.0.2.1:0"),
        ("rdma_resolve_addr", libc::ENETUNREACH, ErrorKind::NotFound, "no route to 192.0.2.9"),
        ("rdma_resolve_addr", libc::EINVAL, ErrorKind::InvalidArgument, "192.0.2.9 cannot be resolved"),
    ];
    for (verb, errno, kind, part) in cases {
        let world = world();
        world.fake.fail(verb, errno);
        let (path, end) = (path(), end());
        let init = ConnectInit { path: &path, end: &end, transport: RC, ack_timeout: 14, timeout: None, port: None };
        refused(manager(&world).connect(&init).map(drop), kind, &[part]);
        world.end();
    }
    for verb in ["rdma_resolve_route", "rdma_connect"] {
        let world = world();
        world.fake.fail(verb, libc::EINVAL);
        let connection = connecting(&world, None);
        world.fake.connection_event(0, &event(ADDR_RESOLVED));
        world.fake.connection_event(0, &event(ROUTE_RESOLVED));
        refused(now(&*connection), ErrorKind::InvalidArgument, &["cannot be"]);
        drop(connection);
        world.end();
    }
}

#[test]
fn arguments_are_checked_before_a_call() {
    let world = world();
    let connect = |path: ConnectionPath, end: ConnectionEnd| {
        let init = ConnectInit { path: &path, end: &end, transport: RC, ack_timeout: 14, timeout: None, port: None };
        manager(&world).connect(&init).map(drop)
    };
    let long = ConnectionEnd { private_data: vec![0; 57], ..end() };
    refused(connect(path(), long), ErrorKind::InvalidArgument, &["57", "56"]);
    let foreign = ConnectionPath { local: address("192.0.2.3:0"), ..path() };
    refused(connect(foreign, end()), ErrorKind::NotFound, &["192.0.2.3"]);
    let other = ConnectionPath { remote: address("[2001:db8::1]:1"), ..path() };
    refused(connect(other, end()), ErrorKind::InvalidArgument, &["IP versions"]);
    let (own, target, transport) = (path(), end(), ConnectionTransport::ExtendedReliable);
    let init = ConnectInit { path: &own, end: &target, transport, ack_timeout: 14, timeout: None, port: None };
    refused(manager(&world).connect(&init).map(drop), ErrorKind::Unsupported, &["XRC"]);
    let vendor_options = VendorOptions { vendor: VendorId::new(0x15b3), options: 1 };
    let with_options = ConnectionEnd { vendor_options, ..end() };
    refused(connect(path(), with_options.clone()), ErrorKind::Unsupported, &["vendor_options"]);
    let connection = requested(&world);
    refused(connection.accept(&with_options, None), ErrorKind::Unsupported, &["vendor_options"]);
    refused(connection.reject(RejectReason::CONSUMER, &[0; 149]), ErrorKind::InvalidArgument, &["149", "148"]);
    refused(connection.reject(RejectReason(1), b""), ErrorKind::Unsupported, &["reason"]);
    assert_eq!(world.fake.log(), [""; 0]);
}

#[test]
fn adapters_without_roce_have_no_connections() {
    let iwarp = Machine { transport_type: 1, node_type: 4, ..Machine::default() };
    let mut infiniband = Machine::default();
    infiniband.port.base.link_layer = 1;
    for (machine, network) in [(iwarp, "iWARP"), (infiniband, "InfiniBand")] {
        // The GIDs of such ports are not IP addresses.
        let world = World::new(Machine { gids: Vec::new(), ..machine });
        let (path, end) = (path(), end());
        let init = ConnectInit { path: &path, end: &end, transport: RC, ack_timeout: 14, timeout: None, port: None };
        let parts = [network, "connections by address and port are only for RoCE"];
        refused(manager(&world).connect(&init).map(drop), ErrorKind::Unsupported, &parts);
        let init = ResolveInit { path: &path, private_data: b"", timeout: None, port: None };
        refused(manager(&world).resolve(&init).map(drop), ErrorKind::Unsupported, &parts);
        let init = ListenInit {
            address: address("192.0.2.1:7471"),
            space: PortSpace::Tcp,
            transport: RC,
            backlog: 16,
            reuse_address: false,
            only_v6: None,
            shares_port_of: None,
            port: None,
        };
        refused(manager(&world).listen(&init).map(drop), ErrorKind::Unsupported, &parts);
    }
}

/// Each connection by address looks for the device, so that must cost little.
#[test]
fn addresses_are_read_without_a_probe() {
    let (sys, fake) = fake::open(Machine::default());
    let device = Device::open(sys).unwrap();
    assert_eq!(connection::addresses_of(&device).unwrap(), [address(LOCAL).ip()]);
    let log = fake.log();
    assert!(!log.iter().any(|line| line.starts_with("create_qp")), "{log:?}");
    let (sys, _) = fake::open(Machine { transport_type: 1, node_type: 4, ..Machine::default() });
    assert_eq!(connection::addresses_of(&Device::open(sys).unwrap()).unwrap(), [] as [IpAddr; 0]);
}

struct Count(AtomicU32);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Waits until a task was woken this number of times.
fn woken(task: &Count, times: u32) -> bool {
    let end = Instant::now() + Duration::from_secs(20);
    while task.0.load(Ordering::Relaxed) < times && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    task.0.load(Ordering::Relaxed) == times
}

/// The kernel would keep the connection for the child after the end of the parent.
#[test]
fn a_child_cannot_use_connections_of_its_parent() {
    let world = world();
    let connection = requested(&world);
    world.fake.connection_event(0, &event(CONNECT_RESPONSE));
    let number = connection.as_fd().unwrap().as_raw_fd();
    let in_child = check_in_child(|| {
        let calls = [
            now(&*connection).map(drop),
            connection.as_fd().map(drop),
            connection.settle(&mut path(), &mut end()),
            connection.ready(),
            connection.disconnect(),
        ];
        let is_refused = |outcome: &Result<(), Error>| {
            outcome.as_ref().is_err_and(|error| error.to_string().contains("this one was forked from"))
        };
        let target = std::fs::read_link(format!("/proc/self/fd/{number}")).unwrap();
        calls.iter().all(is_refused) && target.as_os_str() == "/dev/null"
    });
    assert!(in_child());
    assert!(matches!(now(&*connection).unwrap(), Some(ConnectionEvent::Replied(_))), "the parent's stays");
    drop(connection);
    world.end();
}

#[test]
fn tasks_are_woken_by_events_and_deadlines() {
    let world = world();
    let tasks = [(); 3].map(|()| Arc::new(Count(AtomicU32::new(0))));
    let wakers = [0, 1, 2].map(|index: usize| Waker::from(Arc::clone(&tasks[index])));
    let first = requested(&world);
    let second = connecting(&world, Some(Duration::from_millis(50)));
    let third = connecting(&world, None);
    let poll =
        |connection: &dyn Connection, task: usize| connection.next_event(EventWait::Waker(&wakers[task])).unwrap();
    for _ in 0..2 {
        assert_eq!(poll(&*first, 0), None, "a task waits once");
    }
    assert_eq!((poll(&*second, 1), poll(&*third, 2)), (None, None));
    drop(third);
    world.fake.connection_event(0, &event(CONNECT_RESPONSE));
    assert!(woken(&tasks[0], 1) && poll(&*first, 0).is_some());
    assert!(woken(&tasks[1], 1), "at its deadline");
    assert_eq!(poll(&*second, 1), Some(ConnectionEvent::Unreachable));
    // Another event after the thread has slept.
    assert_eq!(poll(&*first, 0), None);
    world.fake.connection_event(0, &event(DISCONNECTED));
    assert!(woken(&tasks[0], 2) && poll(&*first, 0).is_some());
    assert_eq!(tasks[2].0.load(Ordering::Relaxed), 0, "its connection is dropped");
}

#[test]
fn datagram_queue_pairs_are_resolved_and_refused() {
    let world = world();
    let resolve = || {
        let init = ResolveInit { path: &path(), private_data: b"who", timeout: None, port: None };
        manager(&world).resolve(&init).unwrap()
    };
    let reply =
        Raised { event: ESTABLISHED, qp_num: 0x33, qkey: 0x0123_4567, private_data: vec![1, 2], ..Raised::default() };
    let mut private_data = vec![0; 136];
    private_data[..2].copy_from_slice(&[1, 2]);
    let resolved = DatagramEnd { qpn: Qpn::new(0x33), qkey: Qkey(0x0123_4567), private_data: private_data.clone() };
    let rejected = ResolutionEvent::Rejected { status: ServiceIdStatus::REJECTED, private_data: private_data.clone() };
    let refusal = Raised { private_data: vec![1, 2], ..with_status(UNREACHABLE, 2) };
    let cases = [
        (reply, ResolutionEvent::Resolved(resolved)),
        (refusal, rejected),
        (with_status(UNREACHABLE, -libc::ETIMEDOUT), ResolutionEvent::Unreachable),
    ];
    for (index, (raised, expected)) in cases.into_iter().enumerate() {
        let resolution = resolve();
        for raised in [event(ADDR_RESOLVED), event(ROUTE_RESOLVED), raised] {
            world.fake.connection_event(index, &raised);
        }
        assert_eq!(resolution.next_event(patiently()).unwrap(), Some(expected));
    }
    let log = world.fake.log();
    assert!(log.iter().any(|line| line == "rdma_connect qp 0 resources 0 0 retry 0 0 who"), "{log:?}");
    world.end();
}
