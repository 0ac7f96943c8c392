//! Datagrams and multicast in the owned tier: each arrives in a buffer of its own, behind its route header.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdma_verbs::owned::{
    CompletionQueue, FileBuffer, Finished, QueuePair, QueuePairOptions, Request, RequestBuffer, SharedReceiveQueue,
};
use rdma_verbs::verbs::{
    AddressHandle, AddressVector, Cause, ErrorKind, Gid, Qkey, Qpn, QueuePairType, RemoteMemory, Rkey,
};
use support::PATIENCE;

use super::owned::End;

const QKEY: Qkey = Qkey(0x1234);
/// Bytes in front of the payload.
const HEADER: usize = 40;

fn datagrams() -> QueuePairOptions {
    QueuePairOptions::default().qp_type(QueuePairType::UnreliableDatagram).qkey(QKEY)
}

/// An end on 127.90.6.`host` with a datagram queue pair.
fn end(host: u8) -> End {
    let end = End::open(&format!("127.90.6.{host}"), &datagrams());
    end.qp.bring_up_ud().unwrap();
    end
}

fn gid(end: &End) -> Gid {
    end.context.query_gid(1, 0).unwrap().gid
}

/// The path from one end to another.
fn path(from: &End, to: &End) -> AddressHandle {
    from.pd.create_ah(&AddressVector::new(gid(to), 0)).unwrap()
}

fn datagram(from: &End, to: &End, bytes: &[u8]) -> Request {
    Request::send_to(from.pool.copy_from(bytes).unwrap(), &path(from, to), to.qp.qpn(), QKEY)
}

#[test]
fn a_datagram_arrives_behind_its_route_header_and_can_be_replied_to() {
    let (a, b) = (end(1), end(2));
    b.receive(1, HEADER + 64);
    b.receive(2, HEADER);
    a.post(datagram(&a, &b, b"question").wr_id(11));
    // The request shares the handle: here it is the only one.
    let handle = path(&a, &b);
    let empty = Request::send_to_with_immediate(RequestBuffer::None, &handle, b.qp.qpn(), QKEY, 77);
    drop(handle);
    a.post(empty.wr_id(12).signaled());
    assert_eq!(*a.succeeds(11), *b"question");
    assert!(matches!(a.next().into_request_buffer(), RequestBuffer::None));

    let question = b.next();
    assert_eq!((question.wr_id(), question.payload()), (1, Some(&b"question"[..])));
    assert_eq!((question.source_qpn(), question.request_buffer().len()), (Some(a.qp.qpn()), HEADER + 8));
    let empty = b.next();
    assert_eq!((empty.wr_id(), empty.payload()), (2, Some(&b""[..])));
    assert_eq!(empty.result().unwrap().unwrap().immediate, Some(77));

    let success = question.result().unwrap().unwrap();
    let back = b.pd.create_ah_from_success(&success, question.route_header().unwrap(), 1).unwrap();
    assert_eq!(back.address_vector().dgid, gid(&a));
    a.receive(3, HEADER + 64);
    let answer = b.pool.copy_from(b"answer").unwrap();
    b.post(Request::send_to(answer, &back, question.source_qpn().unwrap(), QKEY).signaled());
    assert_eq!(a.next().payload(), Some(&b"answer"[..]));
    b.succeeds(0);
    drop((question, empty));
    assert_eq!((a.outstanding(), b.outstanding()), (0, 0));
}

#[test]
fn sends_files_and_connected_messages_have_no_route_header() {
    let (a, b) = (end(3), end(4));
    let path = std::env::temp_dir().join(format!("rdma-verbs-datagram-{}", std::process::id()));
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    file.set_len(128).unwrap();
    std::fs::remove_file(&path).unwrap();
    b.qp.post_recv(FileBuffer::map(&b.pd, &file, 0, 128, true).unwrap(), 1).unwrap();
    a.post(datagram(&a, &b, b"to a file").signaled());
    let sent = a.next();
    assert_eq!((sent.payload(), sent.route_header(), sent.source_qpn()), (Some(&b"to a file"[..]), None, None));
    let received = b.next();
    assert_eq!((received.payload(), received.route_header()), (None, None));
    assert_eq!((received.source_qpn(), received.request_buffer().len()), (Some(a.qp.qpn()), HEADER + 9));
    let mut text = [0; 9];
    received.into_request_buffer().into_file().unwrap().read_at(HEADER, &mut text).unwrap();
    assert_eq!(&text, b"to a file");

    let connected = QueuePair::new(&a.pd, &a.cq, &a.cq).unwrap();
    connected.connect(&connected.connection_info().unwrap()).unwrap();
    connected.post_recv(a.pool.take(100).unwrap(), 2).unwrap();
    connected.post_send(Request::send(a.pool.copy_from(&[7; 100]).unwrap())).unwrap();
    let received = a.next();
    assert_eq!((received.payload(), received.route_header()), (Some(&[7; 100][..]), None));
    let success = received.result().unwrap().unwrap();
    assert_eq!(a.pd.create_ah_from_success(&success, &[0; HEADER], 1).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn refused_datagrams_give_their_buffer_back() {
    let (a, b) = (end(5), end(6));
    let refused = |qp: &QueuePair, request: Request, kind: ErrorKind| {
        let refused = qp.post_send(request).unwrap_err();
        assert_eq!(refused.error.kind(), kind, "{refused}");
        assert_ne!(refused.given.into_request_buffer().len(), 0);
    };
    let bytes = || a.pool.copy_from(b"bytes").unwrap();
    refused(&a.qp, Request::send(bytes()), ErrorKind::InvalidArgument);
    let anywhere = RemoteMemory::new(0, Rkey(1), 64);
    refused(&a.qp, Request::write(bytes(), anywhere), ErrorKind::InvalidArgument);
    refused(&a.qp, datagram(&a, &b, &[1; 65_536]), ErrorKind::InvalidArgument);
    let elsewhere = b.pd.create_ah(&AddressVector::new(gid(&a), 0)).unwrap();
    refused(&a.qp, Request::send_to(bytes(), &elsewhere, b.qp.qpn(), QKEY), ErrorKind::InvalidArgument);
    let connected = QueuePair::new(&a.pd, &a.cq, &a.cq).unwrap();
    connected.connect(&connected.connection_info().unwrap()).unwrap();
    refused(&connected, datagram(&a, &b, b"no datagrams"), ErrorKind::InvalidArgument);
    assert_eq!(connected.bring_up_ud().unwrap_err().kind(), ErrorKind::InvalidArgument);
    a.qp.reset().unwrap();
    refused(&a.qp, datagram(&a, &b, b"too early"), ErrorKind::InvalidState);
    assert_eq!((a.outstanding(), a.qp.buffers_in_flight()), (0, (0, 0)));
    a.qp.bring_up_ud().unwrap();
    assert_eq!(a.qp.bring_up_ud().unwrap_err().kind(), ErrorKind::InvalidState);
}

#[test]
fn a_receive_waits_until_a_datagram_fits_or_the_queue_pair_is_reset() {
    let (a, b) = (end(7), end(8));
    b.receive(1, HEADER + 8);
    let wrong_key = Request::send_to(a.pool.copy_from(b"wrong").unwrap(), &path(&a, &b), b.qp.qpn(), Qkey(1));
    a.post(wrong_key.signaled());
    a.succeeds(0);
    assert_eq!(b.cq.wait(Duration::from_millis(20)).unwrap_err().kind(), ErrorKind::TimedOut);
    a.post(datagram(&a, &b, b"right").signaled());
    a.succeeds(0);
    assert_eq!(b.next().payload(), Some(&b"right"[..]));

    b.receive(2, HEADER + 8);
    let returned = b.qp.reset().unwrap();
    assert_eq!((returned.len(), returned[0].result().unwrap_err().cause), (1, Cause::Destroyed));
    assert_eq!((returned[0].payload(), returned[0].route_header()), (Some(&b""[..]), None));
}

#[test]
fn each_member_of_a_group_gets_a_copy() {
    let (a, b) = (end(9), end(10));
    let second = QueuePair::with_options(&b.pd, &b.cq, &b.cq, &datagrams()).unwrap();
    second.bring_up_ud().unwrap();
    let group: Gid = Ipv4Addr::new(239, 90, 6, 9).into();
    assert_eq!(b.qp.detach_mcast(group).unwrap_err().kind(), ErrorKind::InvalidArgument);
    for qp in [&b.qp, &second] {
        qp.attach_mcast(group).unwrap();
        qp.post_recv(b.pool.take(HEADER + 64).unwrap(), 1).unwrap();
    }
    let members = a.pd.create_ah(&AddressVector::new(group, 0)).unwrap();
    let to_all = |text: &[u8]| {
        let request = Request::send_to(a.pool.copy_from(text).unwrap(), &members, Qpn::MULTICAST, QKEY).signaled();
        a.post(request);
        a.succeeds(0);
    };
    to_all(b"to all");
    let copies = [b.next(), b.next()];
    assert_ne!(copies[0].qpn(), copies[1].qpn());
    assert!(copies.iter().all(|copy| copy.payload() == Some(b"to all")), "{copies:?}");

    second.detach_mcast(group).unwrap();
    second.post_recv(b.pool.take(HEADER + 64).unwrap(), 2).unwrap();
    b.receive(3, HEADER + 64);
    to_all(b"to one");
    assert_eq!(b.next().wr_id(), 3);
    assert!(b.cq.poll().unwrap().is_none());
    assert_eq!(second.buffers_in_flight(), (0, 1));
    let connected = QueuePair::new(&b.pd, &b.cq, &b.cq).unwrap();
    assert_eq!(connected.attach_mcast(group).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

/// Datagram and connected queue pairs use one shared queue: only payloads of datagrams are behind a route header.
#[test]
fn a_shared_queue_serves_datagrams_also_when_their_queue_pair_is_gone() {
    let (a, b) = (end(11), end(12));
    let srq = SharedReceiveQueue::new(&b.pd, 16).unwrap();
    let receiver = QueuePair::with_options(&b.pd, &b.cq, &b.cq, &datagrams().srq(&srq)).unwrap();
    receiver.bring_up_ud().unwrap();
    let connected = QueuePair::with_options(&b.pd, &b.cq, &b.cq, &QueuePairOptions::default().srq(&srq)).unwrap();
    connected.connect(&connected.connection_info().unwrap()).unwrap();
    for wr_id in 1..5 {
        srq.post_recv(b.pool.take(HEADER + 64).unwrap(), wr_id).unwrap();
    }
    let to_receiver = |text: &[u8]| {
        let request = Request::send_to(a.pool.copy_from(text).unwrap(), &path(&a, &b), receiver.qpn(), QKEY);
        a.post(request.signaled());
        a.succeeds(0);
    };
    let expect = |finished: Finished, text: &[u8], is_datagram: bool| {
        assert_eq!((finished.payload(), finished.route_header().is_some()), (Some(text), is_datagram));
    };
    to_receiver(b"first");
    expect(b.cq.wait(PATIENCE).unwrap(), b"first", true);
    connected.post_send(Request::send(b.pool.copy_from(b"connected").unwrap())).unwrap();
    expect(b.cq.wait(PATIENCE).unwrap(), b"connected", false);
    // Two datagrams are not polled when their queue pair is destroyed; the device drops its completions.
    to_receiver(b"second");
    to_receiver(b"third");
    let started = Instant::now();
    while receiver.counters().get(rdma_verbs::verbs::Counter::ReceivedPackets) < 3 {
        assert!(started.elapsed() < PATIENCE, "a datagram is lost");
        std::thread::yield_now();
    }
    drop(receiver);
    expect(b.cq.wait(PATIENCE).unwrap(), b"second", true);
    expect(b.cq.wait(PATIENCE).unwrap(), b"third", true);
    assert_eq!(srq.buffers_in_flight(), 0);
}

/// A datagram completes when it is sent. While another thread drives the device, that thread sends it.
#[test]
fn resizing_counts_the_completions_of_all_posted_datagrams() {
    let (a, b) = (end(20), end(21));
    let other = CompletionQueue::new(&a.context, 4).unwrap();
    let _source = QueuePair::with_options(&a.pd, &other, &other, &datagrams()).unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                assert!(other.poll().unwrap().is_none());
            }
        });
        let rounds = (0..2_000).take_while(|_| {
            (0..4).for_each(|_| a.post(datagram(&a, &b, b"x").signaled()));
            let is_refused = a.cq.resize(3).is_err();
            is_refused && (0..4).all(|_| a.cq.wait(PATIENCE).is_ok())
        });
        let rounds = rounds.count();
        is_done.store(true, Ordering::Relaxed);
        assert_eq!(rounds, 2_000, "four completions do not fit in three entries");
    });
}
