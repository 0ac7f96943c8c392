//! Servers and clients that share an address: what happens to one is no matter of the others.

use std::time::{Duration, Instant};

use super::LIMIT;
use super::process::Process;

/// Each request and each reply has to find its process.
#[test]
fn requests_and_replies_reach_their_processes() {
    let (b, c) = ("127.46.4.1:7001", "127.46.4.1:7002");
    let mut servers = [Process::server(b, "b"), Process::server(c, "c")];
    let mut client = Process::start();
    for round in 1..=15 {
        client.does(&format!("call {b} b 1"), &format!("exchanged {}", 2 * round - 1));
        client.does(&format!("call {c} c 1"), &format!("exchanged {}", 2 * round));
    }
    // The servers are clients of each other, and all at once.
    servers[0].order(&format!("call {c} c 15"));
    servers[1].order(&format!("call {b} b 15"));
    client.order("exchange");
    assert_eq!(
        [servers[0].reply(), servers[1].reply(), client.reply()],
        ["exchanged 15", "exchanged 15", "exchanged 30"]
    );
    client.does("hang-up", "hung up 30");
    servers.iter_mut().for_each(|server| server.does("hang-up", "hung up 15"));
    servers.iter_mut().for_each(|server| server.has_served(30));
}

#[test]
fn the_port_of_a_killed_process_is_free_at_once() {
    let (b, c) = ("127.46.4.2:7001", "127.46.4.2:7002");
    let (killed, mut other, mut client) = (Process::server(b, "b"), Process::server(c, "c"), Process::start());
    let mut client_of_killed = Process::start();
    client.calls(c, "c", 3);
    client_of_killed.calls(b, "b", 3);
    client_of_killed.order(&format!("call {b} b 3"));
    killed.kill();
    // Half of an attempt may remain without an answer, or be refused; no other server may take it.
    let reply = client_of_killed.reply();
    assert!(!reply.contains(super::end::WRONG), "{reply}");
    let refused = client.ask(&format!("call {b} b 1"));
    assert!(refused.contains("(REJ, invalid service ID (8))"), "{refused}");
    client.does("exchange", "exchanged 3");
    other.serves(b, "successor");
    client.calls(b, "successor", 3);
    client.does("exchange", "exchanged 6");
    client.does("hang-up", "hung up 6");
    other.has_served(6);
}

/// Four processes with a server each, on one address.
struct Group {
    address: &'static str,
    members: Vec<Process>,
}

impl Group {
    fn new(address: &'static str) -> Self {
        let mut group = Self { address, members: Vec::new() };
        for index in 0..4 {
            group.members.push(Process::server(&group.server(index), &name(index)));
        }
        group
    }

    fn server(&self, index: usize) -> String {
        format!("{}:{}", self.address, 7001 + index)
    }

    fn call(&mut self, client: usize, server: usize) {
        let address = self.server(server);
        self.members[client].calls(&address, &name(server), 2);
    }

    fn forwarded(&mut self) -> u64 {
        let address = self.address;
        let of = |member: &mut Process| member.ask(&format!("forwarded {address}")).parse::<u64>().unwrap();
        self.members.iter_mut().map(of).sum()
    }
}

fn name(index: usize) -> String {
    format!("server-{index}")
}

#[test]
fn requests_reach_their_listeners_without_forwarding() {
    let mut group = Group::new("127.46.4.5");
    // The first ones of a process may come before its group is arranged.
    (0..4).for_each(|client| group.call(client, (client + 1) % 4));
    let before = group.forwarded();
    for client in 0..4 {
        (0..4).filter(|server| *server != client).for_each(|server| group.call(client, server));
    }
    assert_eq!(group.forwarded(), before);
}

#[test]
fn a_stopped_process_delays_only_its_own_connections() {
    let mut group = Group::new("127.46.4.3");
    for stopped in 0..4 {
        let [a, b, c] = [1, 2, 3].map(|distance| (stopped + distance) % 4);
        group.call(a, b);
        group.call(b, c);
        group.members[stopped].stop();
        group.members[a].does("exchange", "exchanged 2");
        group.members[b].does("exchange", "exchanged 2");
        // Each process requests connections of both others.
        group.call(c, a);
        group.call(c, b);
        for member in [a, b] {
            group.members[member].does("hang-up", "hung up 2");
        }
        let (server, name) = (group.server(stopped), name(stopped));
        group.members[a].order(&format!("call {server} {name} 3"));
        group.members[stopped].resume();
        group.members[a].has_called();
        for member in [a, c] {
            let count = if member == a { 3 } else { 4 };
            group.members[member].does("hang-up", &format!("hung up {count}"));
        }
    }
    // Twice as a server of each other distance, and three connections while it was stopped.
    group.members.iter_mut().for_each(|member| member.has_served(11));
}

#[test]
fn requests_find_their_listeners_after_a_process_is_killed() {
    let mut group = Group::new("127.46.4.4");
    let [first, a, b, c] = [0, 1, 2, 3];
    (0..4).for_each(|server| group.call(0, server));
    group.call(a, b);
    group.call(first, a);
    let spare = Process::start();
    std::mem::replace(&mut group.members[first], spare).kill();
    group.call(b, c);
    group.call(c, a);
    group.call(a, c);
    group.members[a].does("exchange", "exchanged 4");
    let (server, lost) = (group.server(first), name(first));
    let refused = group.members[a].ask(&format!("call {server} {lost} 1"));
    assert!(refused.contains("(REJ, invalid service ID (8))"), "{refused}");
    group.members[first].serves(&server, "successor");
    group.members[b].calls(&server, "successor", 2);
    for (index, accepted) in [(first, 2), (a, 6), (b, 4), (c, 6)] {
        group.members[index].has_served(accepted);
    }
}

/// Asks until the reply is as expected.
#[track_caller]
fn soon_replies(process: &mut Process, line: &str, expected: &str) {
    let end = Instant::now() + LIMIT;
    let mut reply = process.ask(line);
    while reply != expected && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
        reply = process.ask(line);
    }
    assert_eq!(reply, expected, "{line}");
}

/// As the kernel does for its processes, the others of a killed one's address end its connections.
#[test]
fn peers_of_a_killed_process_learn_of_its_end() {
    let mut group = Group::new("127.46.4.6");
    let (server, name) = (group.server(0), name(0));
    let mut distant = Process::server("127.46.4.7:7001", "distant");
    group.members[1].calls(&server, &name, 5);
    distant.order(&format!("call-from 127.46.4.7 {server} {name} 5"));
    distant.has_called();
    group.members[0].order("call-from 127.46.4.6 127.46.4.7:7001 distant 5");
    group.members[0].has_called();
    group.call(2, 3);
    std::mem::replace(&mut group.members[0], Process::start()).kill();
    // Both ask at once: the time of one is not that of the other.
    group.members[1].order("lost");
    distant.order("lost");
    assert_eq!([group.members[1].reply(), distant.reply()], ["lost 5", "lost 5"]);
    soon_replies(&mut distant, "ended", "5");
    group.members[2].does("exchange", "exchanged 2");
    group.members[2].does("lost", "lost 0");
}

/// A process that was alone on its address: the next one there ends its connections.
#[test]
fn peers_of_a_killed_process_learn_of_its_end_from_its_successor() {
    let (mut server, mut client) = (Process::server("127.46.4.8:7001", "server"), Process::start());
    client.order("call-from 127.46.4.9 127.46.4.8:7001 server 4");
    client.has_called();
    let mut other = Process::start();
    other.calls("127.46.4.8:7001", "server", 1);
    client.kill();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(server.ask("ended"), "0", "no process is left on the address");
    let mut successor = Process::start();
    successor.does("listen 127.46.4.9:7001 128", "listens");
    soon_replies(&mut server, "ended", "4");
    other.does("exchange", "exchanged 1");
}
