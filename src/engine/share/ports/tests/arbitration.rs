//! The rules, with both ends in one table and in two.

use std::time::{Duration, Instant};

use libc::{EADDRINUSE, EADDRNOTAVAIL};

use super::*;

/// A pair of bindings of one port, and the results of the second.
pub(in super::super) struct Case {
    pub(in super::super) first: PortRequest,
    pub(in super::super) first_listens: bool,
    pub(in super::super) second: PortRequest,
    /// The errors of binding and of listening; 0 is success.
    pub(in super::super) result: [i32; 2],
}

/// Returns the cases of Linux' `rdma_cm`, and those of loopback addresses.
pub(in super::super) fn cases() -> Vec<Case> {
    let case = |first: PortRequest, first_listens, second: PortRequest, result| {
        let first = PortRequest { block: 0x111, ..first };
        let second = PortRequest { block: 0x222, ..second };
        Case { first, first_listens, second, result }
    };
    let at = |address| request(address, 5_001);
    let reused = |address| reusable(address, 5_001);
    let only = |only_v6, request| PortRequest { only_v6: Some(only_v6), ..request };
    let of = |space, request| PortRequest { space, ..request };
    let (a, b, any, any_v6, v6) = ("10.0.0.1", "10.0.0.2", "0.0.0.0", "::", "fd99::1");
    vec![
        case(at(a), false, at(a), [EADDRINUSE, 0]),
        case(at(a), true, at(a), [EADDRINUSE, 0]),
        case(at(a), true, reused(a), [EADDRINUSE, 0]),
        case(at(a), false, at(any), [EADDRNOTAVAIL, 0]),
        case(at(a), true, at(any), [EADDRNOTAVAIL, 0]),
        case(at(a), true, only(false, at(any_v6)), [EADDRNOTAVAIL, 0]),
        case(at(any), false, at(a), [EADDRNOTAVAIL, 0]),
        case(at(any), true, at(any), [EADDRNOTAVAIL, 0]),
        case(only(false, at(any_v6)), true, at(a), [EADDRNOTAVAIL, 0]),
        // Reuse ends with the first that listens, and none listens while another owner is there.
        case(reused(a), false, reused(a), [0, EADDRINUSE]),
        case(reused(any), false, reused(a), [0, EADDRNOTAVAIL]),
        case(reused(a), true, reused(a), [EADDRINUSE, 0]),
        case(reused(any), true, reused(a), [EADDRNOTAVAIL, 0]),
        case(reused(a), true, reused(any), [EADDRNOTAVAIL, 0]),
        // Families.
        case(at(any), true, only(false, at(any_v6)), [EADDRNOTAVAIL, 0]),
        case(only(false, at(any_v6)), true, at(any), [EADDRNOTAVAIL, 0]),
        case(at(any), true, only(true, at(any_v6)), [0, 0]),
        case(only(true, at(any_v6)), true, at(any), [0, 0]),
        case(only(false, at(any)), true, only(true, at(any_v6)), [EADDRNOTAVAIL, 0]),
        case(at(a), true, at(v6), [0, 0]),
        case(at(a), true, at("::ffff:10.0.0.1"), [EADDRINUSE, 0]),
        // Other port spaces and addresses.
        case(at(a), true, of(PortSpace::Udp, at(a)), [0, 0]),
        case(at(a), true, of(PortSpace::Ib, at(a)), [0, 0]),
        case(of(PortSpace::Ipoib, at(a)), true, of(PortSpace::Udp, at(a)), [0, 0]),
        case(at(a), true, at(b), [0, 0]),
        // A listener on a loopback address takes requests to that address alone, unlike in Linux.
        case(at("127.0.0.1"), true, at(a), [0, 0]),
        case(at("127.0.0.1"), true, at("127.0.0.2"), [0, 0]),
        case(at("127.0.0.1"), true, at("127.0.0.1"), [EADDRNOTAVAIL, 0]),
        case(at("127.0.0.1"), true, at(any), [EADDRNOTAVAIL, 0]),
        case(at(any), true, at("127.0.0.1"), [EADDRNOTAVAIL, 0]),
        case(at("::1"), true, only(false, at(any_v6)), [EADDRNOTAVAIL, 0]),
    ]
}

impl Case {
    /// Returns the block that takes a request to the address of the second binding.
    pub(in super::super) fn expected_listener(&self) -> Option<u16> {
        let is_second = self.result == [0, 0];
        let destination = self.destination();
        let first = self.first.address.to_canonical();
        let takes_both = first.is_ipv6() && self.first.only_v6 == Some(false);
        let takes_family = first.is_ipv4() == destination.is_ipv4() || takes_both;
        let first_takes = first == destination || (first.is_unspecified() && takes_family);
        let is_first = self.first_listens && self.first.space == self.second.space && first_takes;
        is_second.then_some(0x222).or(is_first.then_some(0x111))
    }

    /// Returns an address to which the second binding receives.
    pub(in super::super) fn destination(&self) -> IpAddr {
        match self.second.address.to_canonical() {
            IpAddr::V4(address) if address.is_unspecified() => IpAddr::from([10, 0, 0, 9]),
            address if address.is_unspecified() => "fd99::9".parse().unwrap(),
            address => address,
        }
    }
}

fn run(case: &Case, first: &Arc<Table>, second: &Arc<Table>) {
    let Case { first: one, second: other, .. } = case;
    let owner = Port::bind_in(first, one).unwrap();
    if case.first_listens {
        owner.listen().unwrap();
    }
    let bound = errno(Port::bind_in(second, other));
    let listened = bound.as_ref().map_or(Ok(()), |port| errno(port.listen()));
    let result = [bound.as_ref().err().copied().unwrap_or(0), listened.err().unwrap_or(0)];
    assert_eq!(result, case.result, "{one:?} then {other:?}");
    for table in [first, second] {
        let found = block_of(table, (other.space, other.port), case.destination());
        assert_eq!(found, case.expected_listener(), "{one:?} then {other:?}");
    }
    drop(owner);
    if let Ok(port) = &bound {
        port.listen().unwrap();
    }
    drop(bound);
    assert_eq!(block_of(second, (other.space, other.port), case.destination()), None);
    // Nothing is left: the strictest binding succeeds.
    listen(second, &PortRequest { only_v6: Some(false), ..request("::", other.port) });
}

#[test]
fn ports_conflict_as_in_linux_within_a_process() {
    let folder = Folder::new("one");
    let (alone, shared) = (Arc::new(Table::new(None, 0)), folder.table());
    for case in cases() {
        run(&case, &alone, &alone);
        run(&case, &shared, &shared);
    }
}

#[test]
fn ports_conflict_as_in_linux_between_open_files() {
    let folder = Folder::new("two");
    let (first, second) = (folder.table(), folder.table());
    for case in cases() {
        run(&case, &first, &second);
        run(&case, &second, &first);
    }
}

#[test]
fn reuse_ends_with_listening() {
    let folder = Folder::new("flags");
    let (first, second) = (folder.table(), folder.table());
    let other = reusable("10.0.0.1", 5_002);
    let owner = Port::bind_in(&first, &other).unwrap();
    drop(Port::bind_in(&second, &other).unwrap());
    owner.listen().unwrap();
    assert_eq!(errno(Port::bind_in(&second, &other)).err(), Some(EADDRINUSE), "it listens");
}

/// A listener on all addresses has a shard at each device; the shards of other devices are not known at an address.
#[test]
fn a_listener_is_found_at_each_of_its_blocks() {
    let folder = Folder::new("blocks");
    let (first, second) = (folder.table(), folder.table());
    let port = listen(&first, &PortRequest { block: 1, ..request("0.0.0.0", 5_009) });
    port.add_block(2).unwrap();
    let at = |table: &Table, known: u16| {
        table.listener((PortSpace::Tcp, 5_009), "10.0.0.1".parse().unwrap(), &|block| block == known)
    };
    for table in [&first, &second] {
        assert_eq!([at(table, 1), at(table, 2)], [Listening::At(1), Listening::At(2)]);
        assert_eq!(at(table, 3), Listening::Elsewhere(1));
    }
    drop(port);
    assert_eq!([at(&first, 2), at(&second, 2)], [Listening::Nowhere; 2]);
}

#[test]
fn addresses_come_before_wildcards() {
    let folder = Folder::new("precedence");
    let (first, second, observer) = (folder.table(), folder.table(), folder.table());
    let _any = listen(&first, &PortRequest { block: 1, ..request("0.0.0.0", 5_004) });
    let _any_v6 = listen(&second, &PortRequest { block: 2, only_v6: Some(true), ..request("::", 5_004) });
    let both = PortRequest { block: 3, only_v6: Some(false), ..request("::", 5_005) };
    let _both = listen(&second, &both);
    for table in [&first, &second, &observer] {
        assert_eq!(listener_in(table, 5_004, "10.0.0.1"), Some(1));
        assert_eq!(listener_in(table, 5_004, "fd00::1"), Some(2));
        assert_eq!(listener_in(table, 5_005, "10.0.0.1"), Some(3));
        assert_eq!(listener_in(table, 5_006, "10.0.0.1"), None);
    }
    let _one = listen(&first, &PortRequest { block: 4, ..request("10.0.0.1", 5_006) });
    assert_eq!(listener_in(&second, 5_006, "10.0.0.1"), Some(4));
    assert_eq!(listener_in(&second, 5_006, "10.0.0.2"), None);
}

#[test]
fn errors_name_the_port_and_its_holder() {
    let folder = Folder::new("errors");
    let (first, second) = (folder.table(), folder.table());
    let _owner = Port::bind_in(&first, &request("10.0.0.1", 5_007)).unwrap();
    let error = Port::bind_in(&second, &request("10.0.0.1", 5_007)).err().unwrap();
    let expected = format!("port 5007 of 10.0.0.1 in the port space TCP is in use by process {}", std::process::id());
    assert!(error.to_string().starts_with(&expected), "{error}");
    assert_eq!(error.errno(), EADDRINUSE);
    let error = Port::bind_in(&second, &request("0.0.0.0", 5_007)).err().unwrap();
    assert!(error.to_string().contains("(10.0.0.1)"), "{error}");
    assert_eq!(error.errno(), EADDRNOTAVAIL);
    let block = PortRequest { block: 4_096, ..request("10.0.0.1", 5_008) };
    assert_eq!(errno(Port::bind_in(&second, &block)).err(), Some(libc::EINVAL));
}

#[test]
fn ephemeral_ports_are_in_the_range_and_differ() {
    let folder = Folder::new("ephemeral");
    let tables = [folder.table(), folder.table()];
    let bound: Vec<Port> = (0..400).map(|turn| listen(&tables[turn % 2], &reusable("10.0.0.1", 0))).collect();
    let mut numbers: Vec<u16> = bound.iter().map(Port::number).collect();
    let range = settings::ephemeral_ports();
    assert!(numbers.iter().all(|number| range.contains(number)));
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 400);
}

#[test]
fn all_ephemeral_ports_can_be_bound_and_no_more() {
    let folder = Folder::new("exhausted");
    let (table, other) = (folder.table(), folder.table());
    let bind = |table, address| {
        let request = request(address, 0);
        let requested = Requested { space: request.space, address: request.address, port: 0 };
        Port::bind_one_of(table, requested, binding_of(&request).unwrap(), 40_000..=40_199)
    };
    let bound: Vec<Port> = (0..200).map(|_| bind(&table, "10.0.0.1").unwrap()).collect();
    for table in [&table, &other] {
        let error = bind(table, "10.0.0.1").err().unwrap();
        assert!(matches!(error, PortError::NoneFree { .. }), "{error}");
        assert_eq!(error.errno(), EADDRNOTAVAIL);
    }
    // Another address has ports of its own.
    bind(&other, "10.0.0.2").unwrap();
    drop(bound);
    bind(&other, "10.0.0.1").unwrap();
}

/// The time for a port does not grow with the number of ports that are bound.
#[test]
fn ten_thousand_ports_are_bound_quickly() {
    let folder = Folder::new("many");
    let (table, other) = (folder.table(), folder.table());
    let start = Instant::now();
    let bound: Vec<Port> = (0..10_000).map(|_| listen(&table, &request("10.0.0.1", 0))).collect();
    let (all, start) = (start.elapsed(), Instant::now());
    let _more: Vec<Port> = (0..1_000).map(|_| Port::bind_in(&other, &request("10.0.0.1", 0)).unwrap()).collect();
    let (more, start) = (start.elapsed(), Instant::now());
    let found = bound.iter().filter(|port| listener_in(&other, port.number(), "10.0.0.1") == Some(0x123)).count();
    let lookups = start.elapsed();
    assert_eq!(found, 10_000);
    // Much longer than it takes, and much shorter than a search of all ports each time.
    assert!(all + more + lookups < Duration::from_secs(30), "{all:?} {more:?} {lookups:?}");
}

#[test]
fn privileged_ports_need_a_capability() {
    let folder = Folder::new("privileged");
    let first = settings::first_unprivileged_port();
    let Some(privileged) = first.checked_sub(1).filter(|port| *port > 0) else { return };
    let result = errno(Port::bind_in(&folder.table(), &request("10.0.0.1", privileged))).map(drop);
    assert_eq!(result, if settings::may_bind_privileged() { Ok(()) } else { Err(libc::EACCES) });
    Port::bind_in(&folder.table(), &request("10.0.0.1", first)).unwrap();
}

#[test]
fn threads_of_a_process_never_have_the_same_port() {
    let folder = Folder::new("threads");
    let tables = [folder.table(), folder.table()];
    let (rounds, most) = (200, 8);
    let winners: Vec<usize> = std::thread::scope(|scope| {
        let attempt = |index: usize| {
            let table = Arc::clone(&tables[index % 2]);
            scope.spawn(move || {
                let attempts = (0..rounds).map(|round| Port::bind_in(&table, &request("10.0.0.1", 6_000 + round)));
                attempts.map(Result::ok).collect::<Vec<_>>()
            })
        };
        let threads: Vec<_> = (0..most).map(attempt).collect();
        let results: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        (0..usize::from(rounds)).map(|round| results.iter().filter(|ports| ports[round].is_some()).count()).collect()
    });
    assert!(winners.iter().all(|count| *count == 1), "{winners:?}");
}
