//! Servers and clients that share an address: what happens to one is no matter of the others.

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

    fn forwarded(&mut self) -> Vec<u64> {
        let address = self.address;
        self.members.iter_mut().map(|member| member.ask(&format!("forwarded {address}")).parse().unwrap()).collect()
    }

    /// Returns the members; the first one receives the requests to all of them, and forwards those to the others.
    fn receiver_of_requests_first(&mut self) -> [usize; 4] {
        let before = self.forwarded();
        (0..4).for_each(|server| self.call(0, server));
        let after = self.forwarded();
        self.members[0].does("hang-up", "hung up 8");
        let mut order = [0, 1, 2, 3];
        order.sort_by_key(|index| std::cmp::Reverse(after[*index] - before[*index]));
        let first = order[0];
        assert!(after[first] > before[first], "none has forwarded a request: {before:?} {after:?}");
        order
    }
}

fn name(index: usize) -> String {
    format!("server-{index}")
}

#[test]
fn a_stopped_process_that_receives_the_requests_disturbs_no_connection() {
    let mut group = Group::new("127.46.4.3");
    let [first, a, b, c] = group.receiver_of_requests_first();
    group.call(a, b);
    group.call(b, c);
    group.members[first].stop();
    for _ in 0..3 {
        group.members[a].does("exchange", "exchanged 2");
        group.members[b].does("exchange", "exchanged 2");
    }
    group.members[b].does("hang-up", "hung up 2");
    let (server, name) = (group.server(b), name(b));
    group.members[c].order(&format!("call {server} {name} 3"));
    group.members[a].does("exchange", "exchanged 2");
    group.members[first].resume();
    group.members[c].has_called();
    group.call(b, first);
    for (index, accepted) in [(first, 4), (a, 2), (b, 7), (c, 4)] {
        group.members[index].has_served(accepted);
    }
}

#[test]
fn requests_find_their_listeners_after_the_process_that_receives_them_is_killed() {
    let mut group = Group::new("127.46.4.4");
    let [first, a, b, c] = group.receiver_of_requests_first();
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
