//! Listeners on a fake librdmacm, and the requests that they take.

use std::time::Instant;

use super::super::sys::GidEntry;
use super::connections::{
    CONNECT_REQUEST, ESTABLISHED, address, end, event, listening, now, patiently, request, world,
};
use super::fake::Raised;
use super::*;
use crate::provider::{
    ConnectionEvent, ConnectionRequest, DatagramEnd, DatagramRequest, EventWait, ListenerEvent, PortSpace, RejectReason,
};

#[test]
fn a_request_has_a_channel_of_its_own() {
    let world = world();
    let listener = listening(&world, "192.0.2.1:7471", PortSpace::Tcp);
    assert!(request(&*listener).is_none());
    let raised =
        Raised { event: CONNECT_REQUEST, qp_num: 0x22, resources: (7, 9), private_data: vec![5], ..Raised::default() };
    world.fake.connection_request(0, &raised);
    let ConnectionRequest { path, remote, connection } = request(&*listener).unwrap();
    assert_eq!((path.local, path.remote_gid), (address("192.0.2.1:7471"), PEER));
    assert_eq!((path.path_mtu, path.retry_count, path.ack_timeout), (Mtu::Mtu1024, 6, 17));
    assert_eq!((remote.qpn, remote.starting_psn), (Qpn::new(0x22), Psn::new(0x456)));
    assert_eq!((remote.responder_resources, remote.initiator_depth, remote.private_data.len()), (9, 7, 56));
    drop(listener);
    world.fake.connection_event(1, &event(ESTABLISHED));
    assert_eq!(now(&*connection).unwrap(), Some(ConnectionEvent::Established));
    world.fake.log();
    connection.accept(&end(), None).unwrap();
    connection.communication_established().unwrap();
    connection.reject(RejectReason::CONSUMER, b"no").unwrap();
    assert_eq!(world.fake.log(), ["rdma_accept qp 17 resources 3 5 retry 0 2 hi", "rdma_notify 4", "rdma_reject no"]);
    world.fake.fail("rdma_accept", libc::EINVAL);
    refused(connection.accept(&end(), None), ErrorKind::InvalidState, &["given up"]);
    drop(connection);
    world.end();
}

#[test]
fn requests_that_are_not_taken_or_cannot_be_are_destroyed() {
    let world = world();
    let listener = listening(&world, "192.0.2.1:7471", PortSpace::Tcp);
    world.fake.connection_request(0, &event(CONNECT_REQUEST));
    world.fake.fail_once("rdma_init_qp_attr", libc::EINVAL);
    assert!(request(&*listener).is_none(), "its sender has given up");
    world.fake.connection_request(0, &event(CONNECT_REQUEST));
    world.fake.fail_once("rdma_migrate_id", libc::EMFILE);
    let failed = listener.next_event(EventWait::Until(Some(Instant::now())));
    refused(failed, ErrorKind::ResourceLimit, &["a request is rejected", "ulimit -n"]);
    world.fake.connection_request(0, &event(CONNECT_REQUEST));
    world.fake.log();
    drop(listener);
    // Taking the requests one by one would not end while others arrive.
    assert_eq!(world.fake.log(), ["rdma_destroy_id"]);
    world.end();
}

#[test]
fn requests_that_cannot_be_used_are_examined_in_bounded_turns() {
    let world = world();
    let listener = listening(&world, "192.0.2.1:7471", PortSpace::Tcp);
    world.fake.fail("rdma_init_qp_attr", libc::EINVAL);
    for _ in 0..70 {
        world.fake.connection_request(0, &event(CONNECT_REQUEST));
    }
    let examined = || {
        assert!(request(&*listener).is_none());
        world.fake.log().iter().filter(|line| *line == "rdma_migrate_id").count()
    };
    assert_eq!([(); 3].map(|()| examined()), [64, 6, 0]);
    drop(listener);
    world.end();
}

#[test]
fn a_datagram_request_without_addresses_is_dropped() {
    let world = world();
    let listener = listening(&world, "192.0.2.1:7174", PortSpace::Udp);
    world.fake.forget_addresses();
    world.fake.connection_request(0, &event(CONNECT_REQUEST));
    assert!(listener.next_event(EventWait::Until(Some(Instant::now()))).unwrap().is_none());
    drop(listener);
    world.end();
}

#[test]
fn a_listener_on_all_addresses_binds_those_of_its_device() {
    let gid = |gid_index: u32, last: u8, gid_type: u32| {
        let mut entry = GidEntry { gid_index, port_num: 1, gid_type, ndev_ifindex: 3, ..GidEntry::default() };
        entry.gid.0[10..].copy_from_slice(&[0xff, 0xff, 192, 0, 2, last]);
        entry
    };
    // RoCE v1 and v2 have the same addresses.
    let gids = vec![gid(0, 1, 1), gid(1, 1, 2), gid(2, 5, 1), gid(3, 5, 2)];
    let world = World::new(Machine { gids, ..Machine::default() });
    let listener = listening(&world, "0.0.0.0:0", PortSpace::Tcp);
    assert_eq!(listener.local_addr(), address("0.0.0.0:40000"));
    let mut log = world.fake.log();
    log.retain(|line| line.starts_with("rdma_bind_addr") || line.starts_with("rdma_listen"));
    let bound = ["rdma_bind_addr 192.0.2.1:0", "rdma_bind_addr 192.0.2.5:40000"];
    assert_eq!(log, [&bound[..], &["rdma_listen 16"; 2]].concat());
    // The port is in use at the second address: another one is tried.
    world.fake.fail_once_after("rdma_bind_addr", 1, libc::EADDRNOTAVAIL);
    drop(listening(&world, "0.0.0.0:0", PortSpace::Tcp));
    let tried = world.fake.log().iter().filter(|line| line.starts_with("rdma_bind_addr")).count();
    assert_eq!(tried, 4);
    drop(listener);
    world.end();
}

#[test]
fn datagram_requests_are_answered_with_the_default_key_only() {
    let world = world();
    let listener = listening(&world, "192.0.2.1:7174", PortSpace::Udp);
    world.fake.connection_request(0, &event(CONNECT_REQUEST));
    let taken = listener.next_event(patiently()).unwrap().unwrap();
    let ListenerEvent::Datagram(taken) = taken else { panic!("a request for datagrams") };
    let DatagramRequest { local, private_data, inquiry, .. } = *taken;
    assert_eq!((local, private_data.len()), (address("192.0.2.1:7174"), 180));
    let mut end = DatagramEnd { qpn: Qpn::new(0x44), qkey: Qkey(1), private_data: b"here".to_vec() };
    refused(inquiry.accept(&end), ErrorKind::InvalidArgument, &["0x1234567", "qkey"]);
    world.fake.log();
    end.qkey = Qkey(0x0123_4567);
    inquiry.accept(&end).unwrap();
    inquiry.reject(b"no").unwrap();
    assert_eq!(world.fake.log(), ["rdma_accept qp 68 resources 0 0 retry 0 0 here", "rdma_reject no"]);
    drop((listener, inquiry));
    world.end();
}
