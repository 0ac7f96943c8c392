//! Every operation, between native peers and between standard peers.

use rdma_verbs::types::*;
use support::node::*;

fn write_to(peer: &Node, offset: u64) -> Operation {
    Operation::Write { remote_addr: BASE + offset, rkey: peer.mr.rkey() }
}

fn all_operations(first: &str, second: &str, peer_kind: PeerKind) {
    let (a, b) = pair(first, second, 1 << 20, peer_kind);
    let bytes = pattern(300_000, 1);
    a.region().write_at(0, &bytes).unwrap();

    b.post_recv(1, &[b.sge(0, 400_000)]).unwrap();
    a.post_send(2, Operation::SendWithImmediate(0xabcd), Data::Sges(&[a.sge(0, 300_000)])).unwrap();
    let received = b.success(1);
    assert_eq!((received.opcode, received.byte_len), (CompletionOpcode::Receive, 300_000));
    assert_eq!((received.immediate_or_key, received.qpn), (0xabcd, b.qp.qpn()));
    a.success(2);
    assert_eq!(read(b.region(), 0, 300_000), bytes);

    let other = pattern(200_001, 2);
    a.region().write_at(0, &other).unwrap();
    a.post_send(3, write_to(&b, 500_000), Data::Sges(&[a.sge(0, 200_001)])).unwrap();
    a.success(3);
    assert_eq!(read(b.region(), 500_000, 200_001), other);

    b.region().write_at(100, &bytes).unwrap();
    let read_request = Operation::Read { remote_addr: BASE + 100, rkey: b.mr.rkey() };
    a.post_send(4, read_request, Data::Sges(&[a.sge(400_000, 300_000)])).unwrap();
    assert_eq!(a.success(4).byte_len, 300_000);
    assert_eq!(read(a.region(), 400_000, 300_000), bytes);

    b.region().store_release_u64(8, 40).unwrap();
    let add = Operation::FetchAndAdd { remote_addr: BASE + 8, rkey: b.mr.rkey(), add: 2 };
    a.post_send(5, add, Data::Sges(&[a.sge(0, 8)])).unwrap();
    a.success(5);
    let swap = Operation::CompareAndSwap { remote_addr: BASE + 8, rkey: b.mr.rkey(), compare: 42, swap: 7 };
    a.post_send(6, swap, Data::Sges(&[a.sge(8, 8)])).unwrap();
    a.success(6);
    assert_eq!((a.region().load_acquire_u64(0).unwrap(), a.region().load_acquire_u64(8).unwrap()), (40, 42));
    assert_eq!(b.region().load_acquire_u64(8).unwrap(), 7);

    a.post_send(7, write_to(&b, 0), Data::Inline(&[b"in", b"line"])).unwrap();
    a.success(7);
    assert_eq!(read(b.region(), 0, 6), b"inline");
}

#[test]
fn all_operations_between_native_peers() {
    all_operations("127.78.1.1", "127.78.1.2", PeerKind::Native);
}

#[test]
fn all_operations_between_standard_peers() {
    all_operations("127.78.1.3", "127.78.1.4", PeerKind::Standard);
}

#[test]
fn all_operations_over_ipv6() {
    if std::net::UdpSocket::bind("[::1]:0").is_err() {
        eprintln!("skipped: no IPv6 loopback address");
        return;
    }
    // Two devices on one address: the group of receive sockets steers by queue pair number.
    all_operations("::1", "::1", PeerKind::Native);
}

#[test]
fn devices_on_one_address_get_their_own_packets() {
    all_operations("127.78.1.5", "127.78.1.5", PeerKind::Standard);
}

#[test]
fn queue_pair_connected_to_itself_works() {
    let node = Node::new("127.78.1.6", 4_096);
    node.try_connect(&node, PeerKind::Native).unwrap();
    for round in 0..100 {
        node.post_recv(1, &[node.sge(2_048, 64)]).unwrap();
        node.post_send(2, Operation::Send, Data::Inline(&[&[round; 64]])).unwrap();
        let mut seen = [node.completion(), node.completion()].map(|completion| completion.wr_id);
        seen.sort_unstable();
        assert_eq!(seen, [1, 2]);
        assert_eq!(read(node.region(), 2_048, 64), [round; 64]);
    }
}

#[test]
fn ping_pong_by_polling() {
    let (a, b) = pair("127.78.1.7", "127.78.1.8", 4_096, PeerKind::Native);
    let server = std::thread::spawn(move || {
        b.post_recv(1, &[b.sge(0, 64)]).unwrap();
        let mut round = 0u64;
        let mut answered = 0;
        while answered < 2_000 {
            // The next request may arrive before the acknowledgement of the last reply.
            let done = b.completion();
            assert!(done.status.is_success(), "{done:?}");
            if done.opcode == CompletionOpcode::Send {
                answered += 1;
                continue;
            }
            b.post_recv(1, &[b.sge(0, 64)]).unwrap();
            b.post_send(2, Operation::Send, Data::Inline(&[&round.to_le_bytes()])).unwrap();
            round += 1;
        }
        b
    });
    // The server's first receive may be late: the client then gets RNR NAKs.
    for round in 0..2_000u64 {
        a.post_recv(1, &[a.sge(0, 64)]).unwrap();
        a.post_send(2, Operation::Send, Data::Inline(&[b"question"])).unwrap();
        let seen = [a.completion(), a.completion()];
        assert!(seen.iter().all(|done| done.status.is_success()), "{seen:?}");
        assert_eq!(a.region().load_acquire_u64(0).unwrap(), round);
    }
    // The engine's thread sends the last acknowledgement.
    drop(server.join().unwrap());
}

#[test]
fn peer_that_never_polls_is_written_and_read() {
    let (a, b) = pair("127.78.1.9", "127.78.1.10", 1 << 20, PeerKind::Native);
    let bytes = pattern(1 << 19, 3);
    a.region().write_at(0, &bytes).unwrap();
    for round in 0..20 {
        a.post_send(round, write_to(&b, 1 << 19), Data::Sges(&[a.sge(0, 1 << 19)])).unwrap();
        a.success(round);
    }
    assert_eq!(read(b.region(), 1 << 19, 1 << 19), bytes);
}

#[test]
fn large_messages_arrive_whole() {
    let (a, b) = pair("127.78.1.11", "127.78.1.12", 64 << 20, PeerKind::Native);
    let bytes = pattern(64 << 20, 4);
    a.region().write_at(0, &bytes).unwrap();
    a.post_send(1, write_to(&b, 0), Data::Sges(&[a.sge(0, 64 << 20)])).unwrap();
    a.success(1);
    assert!(read(b.region(), 0, 64 << 20) == bytes);
}
