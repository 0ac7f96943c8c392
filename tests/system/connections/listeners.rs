//! Ports and listeners: who gets a port, and what initiators learn of a listener that does not take their requests.

use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rdma_verbs::verbs::QueuePair;
use rdma_verbs::verbs::cm::{
    ConnectError, ConnectionOptions, Listener, PendingConnection, Reason, RejectReason, Route,
};
use support::process::{ignored_test, in_namespace, ip, namespace_allows};

use super::end::{End, Greeting};
use super::process::Process;
use super::{LIMIT, MEMBER, PROGRAM};
use crate::hold_host::processes::{Folder, OTHER_USER, copy_of_this_program, is_root};

#[test]
fn a_taken_port_is_refused_with_its_holder() {
    let server = "127.46.4.11:7101";
    let (mut holder, mut other) = (Process::server(server, "holder"), Process::start());
    let refused = other.ask(&format!("listen {server} 128"));
    let expected = format!("port 7101 of 127.46.4.11 in the port space TCP is in use by process {} ", holder.id());
    assert!(refused.starts_with("address in use: ") && refused.contains(&expected), "{refused}");
    // No other test may have this port on any address: its holder would be named as well.
    let refused = other.ask("listen 0.0.0.0:7101 128");
    let expected = format!("because process {} (127.46.4.11) has the port", holder.id());
    assert!(refused.starts_with("address in use: ") && refused.contains(&expected), "{refused}");
    other.serves("127.46.4.11:7102", "other");
    other.serves("127.46.4.12:7101", "elsewhere");
    other.calls(server, "holder", 1);
    holder.calls("127.46.4.11:7102", "other", 1);
    holder.calls("127.46.4.12:7101", "elsewhere", 1);
    holder.does(&format!("close {server}"), "closed");
    other.serves(server, "successor");
    holder.calls(server, "successor", 1);
}

/// Processes of two users do not share an address: the second one cannot use it at all.
#[test]
fn another_user_is_refused_and_disturbs_no_one() {
    if !is_root() {
        return;
    }
    let (server, folder) = ("127.46.4.13:7001", Folder::new("connections"));
    let (mut holder, mut client) = (Process::server(server, "holder"), Process::start());
    client.calls(server, "holder", 1);
    let mut command = Command::new(copy_of_this_program(&folder, 0o755));
    command.args(ignored_test(PROGRAM).get_args()).uid(OTHER_USER).gid(OTHER_USER).current_dir("/");
    let mut stranger = Process::start_as(command);
    for line in ["listen 127.46.4.13:7001 128", "listen 127.46.4.13:7002 128"] {
        let refused = stranger.ask(line);
        assert!(refused.starts_with("address in use: "), "{refused}");
    }
    let refused = stranger.ask(&format!("call {server} holder 1"));
    assert!(refused.starts_with("failed: "), "{refused}");
    client.does("exchange", "exchanged 1");
    client.calls(server, "holder", 1);
    holder.has_served(2);
}

#[test]
fn a_listener_on_all_addresses_takes_requests_at_each() {
    if !namespace_allows("link add type veth") {
        println!("skipped: no network namespace, or no veth links");
        return;
    }
    let inside = ignored_test(concat!(module_path!(), "::inside"));
    let output = in_namespace(&inside).env(MEMBER, "its own").stderr(Stdio::inherit()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("all are taken"), "{text}");
}

#[test]
#[ignore = "started by the test of all addresses"]
fn inside() {
    if std::env::var(MEMBER).is_err() {
        return;
    }
    ip("link set lo up");
    ip("link add link46 type veth peer name link47");
    ip("link set link47 up");
    ip("addr add 10.46.4.1/24 dev link46");
    ip("-6 addr add fd46::1/64 dev link46 nodad");
    ip("link set link46 up");
    let (mut first, mut second) = (Process::server("0.0.0.0:7001", "four"), Process::server("[::]:7002", "both"));
    let mut client = Process::start();
    for address in ["127.0.0.1", "10.46.4.1"] {
        client.calls(&format!("{address}:7001"), "four", 3);
    }
    for address in ["127.0.0.1", "10.46.4.1", "[::1]", "[fd46::1]"] {
        client.calls(&format!("{address}:7002"), "both", 2);
    }
    let refused = client.ask("call [::1]:7001 four 1");
    assert!(refused.contains("(REJ, invalid service ID (8))"), "{refused}");
    client.does("hang-up", "hung up 14");
    first.has_served(6);
    second.has_served(8);
    println!("\nall are taken");
}

/// Time in which each request has arrived. A process that has just begun to use an address drops the first requests for
/// others, because it does not know them yet; they are repeated 0.3 and 0.9 s later.
const TWO_REPETITIONS: Duration = Duration::from_millis(1_100);

/// Attempts to connect that wait for a server of another process.
struct Attempts {
    ends: Vec<End>,
    route: Route,
}

impl Attempts {
    fn new(server: &str, count: usize) -> Self {
        let server: SocketAddr = server.parse().unwrap();
        let route = Route::to(server).unwrap().from(server.ip()).unwrap();
        Self { ends: (0..count).map(|_| End::new(route.context()).unwrap()).collect(), route }
    }

    fn start(&self, name: &str) -> Vec<PendingConnection<'_, QueuePair>> {
        let options = |number| {
            let greeting = Greeting { server: name.to_owned(), number };
            ConnectionOptions::new().private_data(&greeting.to_bytes()).deadline(LIMIT)
        };
        let numbered = self.ends.iter().zip(0..);
        numbered.map(|(end, number)| self.route.start_connect(&end.qp, &options(number)).unwrap()).collect()
    }
}

#[test]
fn a_dropped_attempt_is_no_connection() {
    let (server, mut process) = ("127.46.4.14:7001", Process::start());
    process.does(&format!("listen {server} 128"), "listens");
    let attempts = Attempts::new(server, 3);
    let mut started = attempts.start("server");
    std::thread::sleep(TWO_REPETITIONS);
    started.truncate(1);
    process.does(&format!("serve {server} server"), "serves");
    let connection = started.remove(0).wait().unwrap();
    connection.disconnect(&attempts.ends[0].qp).unwrap();
    assert!(connection.wait_disconnected(LIMIT).unwrap());
    // A dropped attempt may be taken before its end arrives; then accepting it fails.
    let served = process.ask("served");
    assert!(served.starts_with("accepted 1 ") && served.ends_with(" wrong []"), "{served}");
}

/// The message that gives a request up names no listener, and may arrive at any process of the address.
#[test]
fn a_request_that_is_given_up_leaves_its_listener() {
    let address = "127.46.4.17";
    let _others = [7002, 7003, 7004].map(|port| Process::server(&format!("{address}:{port}"), "other"));
    let listener = Listener::bind(format!("{address}:7001")).unwrap();
    let attempts = Attempts::new(&format!("{address}:7001"), 8);
    let started = attempts.start("given up");
    std::thread::sleep(TWO_REPETITIONS);
    drop(started);
    std::thread::sleep(Duration::from_millis(500));
    assert!(listener.accept_within(Duration::ZERO).unwrap().is_none());
}

#[test]
fn requests_that_wait_for_a_dropped_listener_are_rejected() {
    let (server, mut process) = ("127.46.4.15:7001", Process::start());
    process.does(&format!("listen {server} 128"), "listens");
    let attempts = Attempts::new(server, 5);
    let started = attempts.start("server");
    std::thread::sleep(TWO_REPETITIONS);
    process.does(&format!("close {server}"), "closed");
    let reason_of = |attempt: PendingConnection<'_, _>| match attempt.wait() {
        Err(ConnectError::Rejected(rejected)) => rejected.reason(),
        other => panic!("{other:?}"),
    };
    for attempt in started {
        assert_eq!(reason_of(attempt), Reason::Connection(RejectReason::CONSUMER));
    }
    let late = Attempts::new(server, 1);
    assert_eq!(reason_of(late.start("server").remove(0)), Reason::Connection(RejectReason::INVALID_SERVICE_ID));
    drop(Listener::bind(server).expect("the port is free"));
    process.has_served(0);
}

/// Requests arrive before their listener begins, at processes that have other listeners at the address, and at their
/// sender's own. None is refused before its time is over.
#[test]
fn requests_wait_for_a_listener_that_begins_late() {
    let address = "127.46.4.18";
    let _others = [7002, 7003].map(|port| Process::server(&format!("{address}:{port}"), "other"));
    let mut process = Process::start();
    // The process is at the address.
    process.serves(&format!("{address}:7004"), "first");
    let (mut quick, mut accepted) = (0, 0);
    for port in 7_010..7_030 {
        let server = format!("{address}:{port}");
        let (attempts, start) = (Attempts::new(&server, 2), Instant::now());
        let started = attempts.start("late");
        process.serves(&server, "late");
        // On a loaded machine the process may begin to listen after the requests have waited.
        let is_quick = start.elapsed() < Duration::from_millis(200);
        quick += usize::from(is_quick);
        let outcomes: Vec<_> = started.into_iter().map(PendingConnection::wait).collect();
        for outcome in outcomes {
            match outcome {
                Ok(connection) => drop(connection),
                Err(error) if is_quick => panic!("{error}"),
                Err(_) => continue,
            }
            accepted += 1;
        }
    }
    assert!(quick > 0, "no listener began within 200 ms");
    process.has_served(accepted);
}

#[test]
fn requests_beyond_the_backlog_are_taken_when_there_is_room() {
    let (server, mut process) = ("127.46.4.16:7001", Process::start());
    process.does(&format!("listen {server} 2"), "listens");
    let attempts = Attempts::new(server, 9);
    let started = attempts.start("server");
    std::thread::sleep(TWO_REPETITIONS);
    process.does(&format!("serve {server} server"), "serves");
    let connected: Vec<_> = started.into_iter().map(|attempt| attempt.wait().unwrap()).collect();
    for (number, connection) in connected.iter().enumerate() {
        let replied = Greeting::parse(connection.private_data()).unwrap();
        assert_eq!(replied, Greeting { server: "server".to_owned(), number: number as u64 });
    }
    drop(connected);
    process.has_served(9);
}
