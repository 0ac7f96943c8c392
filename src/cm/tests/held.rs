//! Requests for ports without a listener: they wait for one for 250 ms.

use super::super::{Event, HeldRequest, Limits};
use super::script::*;
use crate::types::{Qpn, Time};
use crate::wire::mad::{
    AdditionalInformation, CommunicationId, ConnectRequest, PortSpace, Reject, RejectReason, ServiceId,
};

const OTHER: ServiceId = ServiceId::of_port(PortSpace::Tcp, 5_002);

/// A server whose application does not listen yet.
fn unready() -> End {
    End::new(SERVER, SERVER_GUID)
}

fn numbered(number: u32) -> ConnectRequest {
    ConnectRequest { local_id: CommunicationId(number), local_qpn: Qpn::new(number), ..request() }
}

/// Handles all that is due now.
fn settle(end: &mut End) {
    end.wait(millis(0));
}

fn requests(end: &mut End) -> usize {
    let events = end.events();
    assert!(events.iter().all(|event| matches!(event, Event::ConnectRequest { .. })), "{events:?}");
    events.len()
}

#[test]
fn a_request_waits_for_its_listener() {
    let (mut client, mut server) = (End::client(), unready());
    let active = client.connect();
    deliver([&mut client, &mut server]);
    server.wait(millis(249));
    assert!(server.sent().is_empty() && server.events().is_empty());
    server.listen(OTHER, 8);
    settle(&mut server);
    assert!(server.events().is_empty());
    server.listen(SERVICE, 8);
    settle(&mut server);
    let passive = server.requested();
    server.accept(passive);
    deliver([&mut client, &mut server]);
    assert!(matches!(client.event(), Event::Reply { connection, .. } if connection == active));
    // The listener has it once.
    server.wait(millis(400));
    assert!(server.events().is_empty());
}

#[test]
fn a_request_whose_listener_never_begins_is_rejected_after_250_ms() {
    let mut server = unready();
    server.take_message(request());
    let (waited, sent) = server.wait_for_message();
    assert_eq!((waited, sent.len()), (millis(250), 1));
    assert_eq!(reason_of(sent[0].0).0, RejectReason::INVALID_SERVICE_ID);
    assert_eq!((sent[0].1, sent[0].2), (TRANSACTION, CLIENT));
    // Nothing is left of it: a listener does not get it, and its repetition waits again.
    server.listen(SERVICE, 8);
    settle(&mut server);
    assert_eq!((requests(&mut server), server.manager.next_deadline()), (0, None));
    server.take_message(request());
    assert_eq!(requests(&mut server), 1);
}

#[test]
fn repetitions_of_a_request_that_waits_change_nothing() {
    let mut server = unready();
    for _ in 0..10 {
        server.take_message(request());
        server.wait(millis(24));
    }
    assert!(server.sent().is_empty());
    assert_eq!(server.manager.counters().duplicates.total(), 9);
    // The first one's time counts.
    server.wait(millis(10));
    assert_eq!(server.sent().len(), 1);
    server.take_message(request());
    server.take_message(request());
    server.listen(SERVICE, 8);
    settle(&mut server);
    assert_eq!(requests(&mut server), 1);
}

/// A repetition may come when the listener has begun and before the request that waits is due.
#[test]
fn a_repetition_that_overtakes_the_request_makes_no_second_one() {
    let mut server = unready();
    server.take_message(request());
    server.listen(SERVICE, 8);
    server.take_message(request());
    settle(&mut server);
    assert_eq!((requests(&mut server), server.sent().len()), (1, 0));
}

/// 64 requests wait. The sender of each of the others learns at once that no application listens.
#[test]
fn the_number_of_requests_that_wait_has_a_bound() {
    let mut server = unready();
    (1..=1_000).for_each(|number| server.take_message(numbered(number)));
    let rejected = server.sent();
    assert_eq!(rejected.len(), 1_000 - 64);
    assert!(rejected.iter().all(|sent| reason_of(sent.0).0 == RejectReason::INVALID_SERVICE_ID));
    server.listen(SERVICE, 100);
    settle(&mut server);
    assert_eq!((requests(&mut server), server.sent().len()), (64, 0));
    assert_eq!(server.manager.counters().drops, Default::default());

    let mut strict = End::with_limits(SERVER, SERVER_GUID, Limits { held: 0, ..Limits::default() });
    strict.take_message(request());
    assert_eq!(reason_of(strict.sent_one().0).0, RejectReason::INVALID_SERVICE_ID);
}

#[test]
fn a_service_without_a_port_has_no_listener_later() {
    let mut server = unready();
    server.take_message(ConnectRequest { service_id: ServiceId(5_001), ..request() });
    assert_eq!(reason_of(server.sent_one().0).0, RejectReason::INVALID_SERVICE_ID);
}

#[test]
fn a_listener_checks_the_requests_that_waited() {
    let mut server = unready();
    server.take_message(ConnectRequest { pkey: 0x1234, ..request() });
    assert!(server.sent().is_empty());
    server.listen(SERVICE, 8);
    settle(&mut server);
    assert_eq!(reason_of(server.sent_one().0).0, RejectReason::INVALID_GID);
    assert!(server.events().is_empty());
}

#[test]
fn a_request_that_its_sender_gives_up_waits_no_longer() {
    let (mut client, mut server) = (End::client(), unready());
    let active = client.connect();
    deliver([&mut client, &mut server]);
    server.take_message(numbered(7));
    // Neither another reason nor another number ends it.
    let information = AdditionalInformation::new(&CLIENT_GUID.to_be_bytes()).unwrap();
    let (local_id, reason) = (CommunicationId(7), RejectReason::CONSUMER);
    server.take_message(Reject { local_id, information, reason, ..Reject::default() });
    let (local_id, reason) = (CommunicationId(8), RejectReason::TIMEOUT);
    server.take_message(Reject { local_id, information, reason, ..Reject::default() });
    client.manager.destroy(client.now, active).unwrap();
    deliver([&mut client, &mut server]);
    server.listen(SERVICE, 8);
    settle(&mut server);
    assert_eq!((requests(&mut server), server.sent().len()), (1, 0));
}

/// Another process of the address may listen: its owner searches after 1 ms, 3 ms and so on, and at the end.
#[test]
fn searches_for_listeners_of_other_processes_become_rarer() {
    let mut server = unready();
    let start = server.now;
    server.take_message(request());
    let mut searches = Vec::new();
    while let Some(deadline) = server.manager.next_deadline() {
        assert!(server.manager.poll_held(Time::from_nanos(deadline.as_nanos() - 1)).is_none(), "it is not due");
        let held = server.manager.poll_held(deadline).expect("a search");
        assert!(server.manager.poll_held(deadline).is_none(), "a request is searched for once");
        searches.push((deadline - start).as_millis());
        server.manager.return_held(deadline, held);
    }
    assert_eq!(searches, [1, 3, 7, 15, 31, 63, 127, 250]);
    assert_eq!(server.sent().len(), 1);
}

/// The owner has passed a request to another process.
#[test]
fn a_request_that_another_process_takes_is_gone() {
    let (mut server, mut other) = (unready(), unready());
    server.take_message(request());
    server.now = server.now + millis(1);
    let held: HeldRequest = server.manager.poll_held(server.now).expect("a search");
    assert!(!held.is_over(server.now));
    other.listen(SERVICE, 8);
    other.receive(held.source, &held.bytes[..]);
    assert_eq!(requests(&mut other), 1);
    server.wait(seconds(1));
    assert!(server.sent().is_empty());
    assert_eq!(server.manager.next_deadline(), None);
}

#[test]
fn a_process_that_ends_rejects_the_requests_that_wait() {
    let mut server = unready();
    [1, 2].into_iter().for_each(|number| server.take_message(numbered(number)));
    server.manager.refuse_held();
    let sent = server.sent();
    assert_eq!(sent.len(), 2);
    assert!(sent.iter().all(|sent| reason_of(sent.0).0 == RejectReason::INVALID_SERVICE_ID));
    assert_eq!(server.manager.next_deadline(), None);
}
