//! Wrong states, wrong arguments, failures, and the state after them.

use rdma_verbs::provider::{ErrorKind, QueuePair};
use rdma_verbs::types::*;
use support::PATIENCE;
use support::node::*;

fn to_state(qp: &dyn QueuePair, state: QueuePairState) {
    qp.modify(&QueuePairAttributes::default().qp_state(state)).unwrap();
}

#[test]
fn posting_in_the_wrong_state_names_it() {
    let (a, b) = (Node::new("127.78.3.1", 64), Node::new("127.78.3.2", 64));
    let send = |node: &Node| node.post_send(1, Operation::Send, Data::Inline(&[b"x"])).unwrap_err();
    assert!(send(&a).to_string().contains("is in RESET; posting is allowed from RTS on"));
    let error = a.post_recv(1, &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidState);
    assert!(error.to_string().contains("is in RESET; posting is allowed from INIT on"), "{error}");
    a.qp.modify(&init_attributes()).unwrap();
    a.post_recv(1, &[]).unwrap();
    assert!(send(&a).to_string().contains("INIT"));
    a.qp.modify(&a.ready_to_receive(&b, PeerKind::Native)).unwrap();
    assert!(send(&a).to_string().contains("RTR"));
    a.qp.destroy().unwrap();
    let error = send(&a);
    assert_eq!(error.kind(), ErrorKind::InvalidState);
    assert!(error.to_string().contains("is destroyed"), "{error}");
    assert!(a.qp.query().is_err() && a.qp.modify(&init_attributes()).is_err() && a.qp.destroy().is_ok());
}

#[test]
fn error_state_flushes_earlier_and_later_posts() {
    let (a, _b) = pair("127.78.3.3", "127.78.3.4", 64, PeerKind::Native);
    a.post_recv(1, &[]).unwrap();
    to_state(&*a.qp, QueuePairState::Error);
    a.post_recv(2, &[]).unwrap();
    a.post_send(3, Operation::Send, Data::Inline(&[b"x"])).unwrap();
    let flushed = [a.completion(), a.completion(), a.completion()];
    assert!(flushed.iter().all(|done| done.status == CompletionStatus::WorkRequestFlushedError), "{flushed:?}");
    assert_eq!(flushed.map(|done| done.wr_id), [1, 2, 3]);
}

#[test]
fn flushes_wake_a_sleeper() {
    let (a, _b) = pair("127.78.3.5", "127.78.3.6", 64, PeerKind::Native);
    to_state(&*a.qp, QueuePairState::Error);
    let (qp, sge) = (a.qp.clone(), a.sge(0, 8));
    let poster = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(30));
        qp.recv_begin();
        qp.recv_push(&ReceiveRequest { wr_id: 9, sges: &[sge] }).unwrap();
        qp.recv_end(BatchEnd::Publish).unwrap();
    });
    assert_eq!(a.completion_by_event().wr_id, 9);
    poster.join().unwrap();
}

#[test]
fn reset_forgets_and_the_queue_pair_can_be_connected_again() {
    let (a, b) = pair("127.78.3.7", "127.78.3.8", 4_096, PeerKind::Native);
    a.post_recv(1, &[]).unwrap();
    to_state(&*a.qp, QueuePairState::Error);
    to_state(&*a.qp, QueuePairState::Reset);
    to_state(&*b.qp, QueuePairState::Reset);
    assert_eq!(a.cq.poll(&mut [RawCompletion::default()]).unwrap(), 0);
    connect(&a, &b, PeerKind::Standard);
    b.post_recv(2, &[b.sge(0, 64)]).unwrap();
    a.post_send(3, Operation::Send, Data::Inline(&[b"again"])).unwrap();
    b.success(2);
    a.success(3);
}

#[test]
fn revoked_memory_is_refused_to_both_ends() {
    let (a, b) = pair("127.78.3.9", "127.78.3.10", 4_096, PeerKind::Native);
    b.mr.dereg().unwrap();
    b.mr.dereg().unwrap();
    let write = Operation::Write { remote_addr: BASE, rkey: b.mr.rkey() };
    a.post_send(1, write, Data::Inline(&[b"x"])).unwrap();
    assert_eq!(a.completion().status, CompletionStatus::RemoteAccessError);

    let (a, b) = pair("127.78.3.11", "127.78.3.12", 4_096, PeerKind::Native);
    a.mr.dereg().unwrap();
    let write = Operation::Write { remote_addr: BASE, rkey: b.mr.rkey() };
    a.post_send(1, write, Data::Sges(&[a.sge(0, 8)])).unwrap();
    assert_eq!(a.completion().status, CompletionStatus::LocalProtectionError);
}

#[test]
fn silent_peer_ends_in_an_error_while_the_application_sleeps() {
    let (a, b) = (Node::new("127.78.3.13", 64), Node::new("127.78.3.14", 64));
    a.try_connect(&b, PeerKind::Standard).unwrap();
    b.qp.destroy().unwrap();
    a.post_send(1, Operation::Send, Data::Inline(&[b"anybody?"])).unwrap();
    assert_eq!(a.completion_by_event().status, CompletionStatus::RetryExceededError);
}

#[test]
fn full_queue_is_its_own_error_and_rollback_posts_nothing() {
    let (a, b) = pair("127.78.3.15", "127.78.3.16", 4_096, PeerKind::Native);
    let limit = a.qp.query().unwrap().cap.max_recv_wr;
    b.qp.recv_begin();
    let request = ReceiveRequest { wr_id: 1, sges: &[b.sge(0, 64)] };
    for _ in 0..limit {
        b.qp.recv_push(&request).unwrap();
    }
    let error = b.qp.recv_push(&request).unwrap_err();
    assert_eq!((error.verb(), error.kind()), ("post_recv", ErrorKind::QueueFull));
    b.qp.recv_end(BatchEnd::Rollback).unwrap();
    let error = b.qp.recv_push(&request).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidState);
    b.post_recv(7, &[b.sge(0, 64)]).unwrap();
    a.post_send(2, Operation::Send, Data::Inline(&[b"x"])).unwrap();
    b.success(7);
    let error = a.post_send(3, Operation::Send, Data::Inline(&[&[0; 257]])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("257") && error.to_string().contains("256"), "{error}");
}

#[test]
fn wrong_address_vectors_are_refused() {
    let (a, b) = (Node::new("127.78.3.17", 64), Node::new("127.78.3.18", 64));
    a.qp.modify(&init_attributes()).unwrap();
    let mut attributes = a.ready_to_receive(&b, PeerKind::Native);
    attributes.ah_attr = Some(AddressVector::new(b.context.query_gid(1, 0).unwrap().gid, 3));
    let error = a.qp.modify(&attributes).unwrap_err();
    assert!(error.to_string().starts_with("modify_qp: ah_attr.sgid_index is 3; that entry"), "{error}");
    attributes.ah_attr = Some(AddressVector::new(b.context.query_gid(1, 0).unwrap().gid, 16));
    let error = a.qp.modify(&attributes).unwrap_err();
    assert_eq!(error.to_string(), "modify_qp: ah_attr.sgid_index is 16; allowed are 0 to 15");
    attributes.ah_attr = Some(AddressVector::new(Gid::ZERO, 0));
    assert_eq!(a.qp.modify(&attributes).unwrap_err().kind(), ErrorKind::InvalidArgument);
    attributes.ah_attr = Some(AddressVector::new("2001:db8::1".parse::<std::net::Ipv6Addr>().unwrap().into(), 0));
    assert!(a.qp.modify(&attributes).unwrap_err().to_string().contains("other address family"));
    assert_eq!(a.qp.query().unwrap().qp_state, QueuePairState::Init);
}

#[test]
fn overflow_of_a_completion_queue_is_reported() {
    let (a, b) = pair("127.78.3.19", "127.78.3.20", 4_096, PeerKind::Native);
    a.cq.resize(4).unwrap();
    for round in 0..8 {
        let write = Operation::Write { remote_addr: BASE, rkey: b.mr.rkey() };
        a.post_send(round, write, Data::Inline(&[b"x"])).unwrap();
    }
    let end = std::time::Instant::now() + PATIENCE;
    let error = loop {
        // Polls only when all have completed.
        std::thread::sleep(std::time::Duration::from_millis(50));
        let mut out = [RawCompletion::default(); 8];
        if let Err(error) = a.cq.poll(&mut out) {
            break error;
        }
        assert!(std::time::Instant::now() < end);
    };
    assert_eq!((error.verb(), error.kind()), ("poll_cq", ErrorKind::ResourceLimit));
    assert_eq!(a.qp.query().unwrap().qp_state, QueuePairState::Error);
    assert!(matches!(a.context.poll_async_event(), Some(AsyncEvent::CompletionQueueError(_))));
    assert_eq!(a.context.poll_async_event(), Some(AsyncEvent::QueuePairFatal(a.qp.qpn())));
}
