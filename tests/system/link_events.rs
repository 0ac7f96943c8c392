//! Added and removed interfaces and addresses raise asynchronous events, and the GID table follows. The test runs in
//! its own network namespace, in which links can be changed.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rdma_verbs::verbs::cm::{ConnectionOptions, Listener, Route};
use rdma_verbs::verbs::{self, AsyncEvent, Context, ErrorKind, Gid, PortState};
use support::PATIENCE;
use support::events::Events;
use support::process::{ignored_test, in_namespace, ip, namespace_allows};
use tokio::io::unix::AsyncFd;

const INSIDE_VARIABLE: &str = "RDMA_VERBS_LINK_EVENTS_INSIDE";
const SILENCE: Duration = Duration::from_millis(30);

#[test]
fn interfaces_and_addresses_become_events() {
    if !namespace_allows("link set lo up") {
        println!("skipped: no network namespace can be made here");
        return;
    }
    let inside = ignored_test(concat!(module_path!(), "::inside"));
    let output = in_namespace(&inside).env(INSIDE_VARIABLE, "1").output().unwrap();
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success() && said[0].contains("all has come"), "{}\n{}", said[0], said[1]);
}

#[test]
#[ignore = "started by the other test"]
fn inside() {
    if std::env::var(INSIDE_VARIABLE).is_err() {
        return;
    }
    ip("link set lo up");
    let events = Events::collect();
    addresses_come_and_go();
    the_link_goes_down_and_up();
    subscribers_see_the_changes(&events);
    an_address_is_a_device();
    a_listener_on_all_addresses_takes_later_ones();
    an_address_that_cannot_be_used_yet_is_served_later();
    println!("all has come");
}

fn v4(last: u8) -> Gid {
    Ipv4Addr::new(10, 9, 8, last).into()
}

#[track_caller]
fn event(context: &Context) -> AsyncEvent {
    context.wait_async_event(PATIENCE).expect("an event")
}

/// Returns whether an event makes the descriptor readable without a verb being called.
fn is_readable(context: &Context) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        #[allow(deprecated)] // Newer versions require a promise that the descriptor stays open.
        let descriptor = AsyncFd::new(context.as_fd()).unwrap();
        tokio::time::timeout(PATIENCE, descriptor.readable()).await.is_ok()
    })
}

fn addresses_come_and_go() {
    let context = verbs::open("soft_lo").unwrap();
    let first = context.gid_table(1).unwrap();
    let next = first.len() as u8;
    assert_eq!(context.wait_async_event(SILENCE).unwrap_err().kind(), ErrorKind::TimedOut);

    ip("addr add 10.9.8.1/32 dev lo");
    assert!(is_readable(&context));
    assert_eq!(event(&context), AsyncEvent::GidChange(1));
    assert_eq!(context.find_gid(1, v4(1)).unwrap(), next);
    ip("addr add 10.9.8.2/32 dev lo");
    assert_eq!(event(&context), AsyncEvent::GidChange(1));
    assert_eq!(context.wait_async_event(SILENCE).unwrap_err().kind(), ErrorKind::TimedOut, "one event for one change");
    assert!(context.query_port(1).unwrap().gid_tbl_len > u32::from(next) + 2, "an entry stays unused");

    ip("addr del 10.9.8.1/32 dev lo");
    // The table no longer shows the address, even before the event is taken.
    let error = context.query_gid(1, next).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(error.to_string().contains(&format!("gid_index is {next}")), "{error}");
    assert_eq!(event(&context), AsyncEvent::GidChange(1));
    assert_eq!(context.query_gid(1, next + 1).unwrap().gid, v4(2), "the others keep their places");
    assert_eq!(context.gid_table(1).unwrap().len(), first.len() + 1);
    assert_eq!(context.query_gid(1, next + 2).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(context.query_gid(1, u8::MAX).unwrap_err().kind(), ErrorKind::InvalidArgument);

    ip("addr add 10.9.8.3/32 dev lo");
    assert_eq!(event(&context), AsyncEvent::GidChange(1));
    assert_eq!(context.query_gid(1, next).unwrap().gid, v4(3), "the free place is used again");
    ip("addr del 10.9.8.2/32 dev lo");
    ip("addr del 10.9.8.3/32 dev lo");
    while context.gid_table(1).unwrap() != first {
        event(&context);
    }
}

fn the_link_goes_down_and_up() {
    let context = verbs::open("soft_lo").unwrap();
    assert_eq!(context.query_port(1).unwrap().state, PortState::Active);
    ip("link set lo down");
    // IPv6 addresses are removed with the link.
    while event(&context) != AsyncEvent::PortError(1) {}
    assert_eq!(context.query_port(1).unwrap().state, PortState::Down);
    ip("link set lo up");
    while event(&context) != AsyncEvent::PortActive(1) {}
    assert_eq!(context.query_port(1).unwrap().state, PortState::Active);
    while context.wait_async_event(SILENCE).is_ok() {}
}

fn subscribers_see_the_changes(events: &Events) {
    let target = "rdma_verbs::device";
    for text in ["address added", "address removed"] {
        let event = events.find(target, text, |event| event.field("local") == "10.9.8.1");
        assert_eq!((event.field("device"), event.names()), ("soft_lo", vec!["device", "local"]));
    }
    for state in ["Down", "Active"] {
        events.find(target, "port changed", |event| {
            event.names() == ["device", "state"] && event.field("state") == state
        });
    }
}

fn an_address_is_a_device() {
    ip("addr add 10.9.8.7/32 dev lo");
    let context = verbs::open("soft:10.9.8.7").unwrap();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(8).unwrap());
    let qp = pd.create_qp(&cq, &cq).unwrap();
    let own = qp.connection_info().unwrap();
    ip("addr add 10.9.8.8/32 dev lo");
    assert_eq!(context.wait_async_event(SILENCE).unwrap_err().kind(), ErrorKind::TimedOut, "another's address");
    ip("addr del 10.9.8.7/32 dev lo");
    assert_eq!(event(&context), AsyncEvent::GidChange(1));
    assert_eq!(context.gid_table(1).unwrap(), []);
    let error = qp.connect(&own).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    ip("addr add 10.9.8.7/32 dev lo");
    assert_eq!(event(&context), AsyncEvent::GidChange(1));
    assert_eq!(context.query_gid(1, 0).unwrap().gid.to_ip(), IpAddr::from([10, 9, 8, 7]));
    qp.reset().unwrap();
    qp.connect(&own).unwrap();
}

/// Connects to a listener from another address, and returns whether it takes the request.
fn is_served(listener: &Listener, address: &str) -> bool {
    is_served_from("10.9.8.10", listener, address)
}

fn is_served_from(source: &str, listener: &Listener, address: &str) -> bool {
    let route = Route::to((address, listener.local_addr().port())).unwrap().from(source).unwrap();
    let (pd, cq) = (route.context().alloc_pd().unwrap(), route.context().create_cq(8).unwrap());
    let qp = pd.create_qp(&cq, &cq).unwrap();
    let options = ConnectionOptions::new().deadline(Duration::from_secs(5));
    let attempt = route.start_connect(&qp, &options).unwrap();
    let Some(request) = listener.accept_within(Duration::from_secs(5)).unwrap() else { return false };
    assert_eq!(request.local_addr().ip().to_string(), address);
    let (pd, cq) = (request.context().alloc_pd().unwrap(), request.context().create_cq(8).unwrap());
    let qp = pd.create_qp(&cq, &cq).unwrap();
    let accepted = request.start_accept(&qp, &options).unwrap();
    attempt.wait().unwrap();
    accepted.wait().unwrap();
    true
}

fn a_listener_on_all_addresses_takes_later_ones() {
    ip("addr add 10.9.8.10/32 dev lo");
    let on_all = Listener::bind("0.0.0.0:7471").unwrap();
    let on_one = Listener::bind("127.0.0.1:7472").unwrap();
    assert!(is_served(&on_all, "127.0.0.1") && is_served(&on_one, "127.0.0.1"));
    for address in ["10.9.8.11", "10.9.8.12"] {
        ip(&format!("addr add {address}/32 dev lo"));
        assert!(is_served(&on_all, address), "{address}");
    }
    // The address is lost for a moment.
    ip("addr del 10.9.8.11/32 dev lo");
    ip("addr add 10.9.8.11/32 dev lo");
    assert!(is_served(&on_all, "10.9.8.11") && !is_served(&on_one, "10.9.8.11"));
    let beside = Listener::bind("0.0.0.0:7473").unwrap();
    ip("addr add 10.9.8.14/32 dev lo");
    drop(on_all);
    let later = Listener::bind("0.0.0.0:7471").expect("the port is free at once");
    ip("addr add 10.9.8.13/32 dev lo");
    for address in ["10.9.8.13", "10.9.8.14"] {
        assert!(is_served(&later, address) && is_served(&beside, address), "{address}");
    }
    assert_eq!(threads("rdma-link-lo"), 1, "one for the device");
}

/// Returns the number of this process's threads that have this name.
fn threads(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|own| own.trim_end() == name).count()
}

/// An IPv6 address is tentative, and listed, while the system asks whether another host has it.
fn an_address_that_cannot_be_used_yet_is_served_later() {
    if !namespace_allows("link add v0 type veth peer name v1") {
        return println!("skipped: no pair of interfaces can be made here");
    }
    ip("link add v0 type veth peer name v1");
    ip("link set v0 up");
    ip("link set v1 up");
    ip("addr add 10.9.9.1/24 dev v0");
    ip("addr add 2001:db8::2/64 dev v0 nodad");
    let is_usable = || UdpSocket::bind(("2001:db8::1", 0)).is_ok();
    let end = Instant::now() + PATIENCE;
    // The check lasts a second or two. On a machine that pauses for as long, it is repeated.
    let listener = loop {
        ip("addr add 2001:db8::1/64 dev v0");
        let listener = Listener::bind("[::]:7474").unwrap();
        if !is_usable() {
            break listener;
        }
        assert!(Instant::now() < end, "the address is never tentative");
        ip("addr del 2001:db8::1/64 dev v0");
    };
    assert!(is_served_from("10.9.9.1", &listener, "10.9.8.10"));
    while !is_usable() {
        assert!(Instant::now() < end, "the address stays tentative");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(is_served_from("2001:db8::2", &listener, "2001:db8::1"));
}
