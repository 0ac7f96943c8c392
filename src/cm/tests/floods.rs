//! Bounds: backlogs, requests without an answer, outputs.

use super::super::{ConnectionState, Event, Limits, Rejection};
use super::script::*;
use crate::types::Qpn;
use crate::wire::mad::{
    AdditionalInformation, AlternatePathResponse, CommunicationId, ConnectReply, ConnectRequest, DisconnectReply,
    DisconnectRequest, LoadAlternatePath, Message, MessageReceipt, MessageRetries, ReadyToUse, Reject, RejectReason,
    RejectedMessage, ServiceIdReply, ServiceIdRequest, TimeoutCode,
};

fn numbered(number: u32) -> ConnectRequest {
    ConnectRequest {
        local_id: CommunicationId(number),
        local_qpn: Qpn::new(number),
        local_guid: u64::from(number) << 32,
        ..request()
    }
}

#[test]
fn requests_beyond_the_backlog_find_room_when_the_application_takes_one() {
    let (mut server, _) = End::server();
    (1..=20).for_each(|number| server.take_message(numbered(number)));
    let requests = server.events();
    assert_eq!((requests.len(), server.sent().len()), (8, 0));
    assert_eq!(server.manager.counters().drops.backlog_full, 12);
    let Event::ConnectRequest { connection, .. } = requests[0] else { panic!() };
    server.manager.take(connection).unwrap();
    server.take_message(numbered(9));
    server.take_message(numbered(10));
    assert_eq!(server.events().len(), 1);
    // An answer takes the request as well.
    let Event::ConnectRequest { connection, .. } = requests[1] else { panic!() };
    server.accept(connection);
    server.take_message(numbered(10));
    assert_eq!(server.events().len(), 1);
}

#[test]
fn an_application_that_has_stopped_taking_requests_refuses_them() {
    let (mut server, _) = End::server();
    (1..=9).for_each(|number| server.take_message(numbered(number)));
    server.now = server.now + seconds(9);
    server.take_message(numbered(9));
    assert!(server.sent().is_empty());
    server.now = server.now + seconds(1);
    server.take_message(numbered(9));
    assert_eq!(reason_of(server.sent_one().0).0, RejectReason::NO_RESOURCES);
    let Event::ConnectRequest { connection, .. } = server.events()[0] else { panic!() };
    server.manager.take(connection).unwrap();
    server.take_message(numbered(9));
    server.take_message(numbered(10));
    assert_eq!((server.events().len(), server.sent().len()), (1, 0));
}

/// 600 requests in one burst: all are connected in the end, none twice.
#[test]
fn a_burst_of_requests_is_served_in_the_end() {
    let (mut client, mut server) = (End::client(), End::new(SERVER, SERVER_GUID));
    server.listen(SERVICE, 64);
    let count = 600;
    for number in 0..count {
        let parameters =
            super::super::ConnectParameters { local_qpn: Qpn::new(1_000 + number), ..connect_parameters() };
        client.manager.connect(client.now, &parameters).unwrap();
    }
    let (mut established, mut accepted) = (0, 0);
    for _ in 0..300 {
        deliver([&mut client, &mut server]);
        for event in server.events() {
            match event {
                Event::ConnectRequest { connection, .. } => {
                    accepted += 1;
                    let parameters =
                        super::super::AcceptParameters { local_qpn: Qpn::new(5_000 + accepted), ..Default::default() };
                    server.manager.accept(server.now, connection, &parameters).unwrap();
                }
                Event::Established { .. } => established += 1,
                other => panic!("{other:?}"),
            }
        }
        deliver([&mut client, &mut server]);
        for event in client.events() {
            let Event::Reply { connection, .. } = event else { panic!("{event:?}") };
            client.manager.ready(client.now, connection).unwrap();
        }
        client.wait(millis(100));
        server.wait(millis(100));
    }
    assert_eq!((accepted, established), (count, count));
}

#[test]
fn a_flood_of_requests_affects_no_other_connection() {
    let limits = Limits { half_open: 100, backlog: 1_000, outputs: 64, ..Limits::default() };
    let (mut client, mut server) = (End::client(), End::with_limits(SERVER, SERVER_GUID, limits));
    server.listen(SERVICE, 1_000);
    let (active, passive) = connect_ends(&mut client, &mut server);
    for number in 1..=5_000 {
        server.take_message(numbered(number));
        server.take_message(ConnectRequest { service_id: Default::default(), ..numbered(number) });
    }
    assert_eq!((server.manager.half_open, server.manager.connection_count()), (100, 101));
    let counters = *server.manager.counters();
    assert_eq!(counters.drops.half_open_full, 4_900);
    assert!(counters.drops.outputs_full > 4_800, "{counters:?}");
    // There is room for the messages of connections, and for connections of this end.
    server.manager.disconnect(server.now, passive).unwrap();
    server.connect();
    assert_eq!(server.outputs().len(), 34);
    assert_eq!(client.state(active), Some(ConnectionState::Established));
    // Those that the application has not polled vanish.
    server.wait(seconds(140));
    assert_eq!(server.manager.half_open, 0);
    assert!(server.manager.connection_count() < 4, "{}", server.manager.connection_count());
}

#[test]
fn the_number_of_connections_has_a_bound() {
    let limits = Limits { connections: 3, listeners: 1, resolutions: 0, ..Limits::default() };
    let mut end = End::with_limits(SERVER, SERVER_GUID, limits);
    end.listen(SERVICE, 8);
    let parameters = super::super::ListenParameters {
        service_id: DATAGRAM_SERVICE,
        address: None,
        is_datagram: true,
        transport: Default::default(),
        backlog: 1,
    };
    assert_eq!(end.manager.listen(parameters).unwrap_err().to_string(), "all 1 listeners are in use");
    for _ in 0..3 {
        end.connect();
    }
    let error = end.manager.connect(end.now, &connect_parameters()).unwrap_err();
    assert_eq!(error.to_string(), "all 3 connections are in use");
    end.sent();
    end.take_message(request());
    assert!(end.events().is_empty() && end.sent().is_empty());
    assert_eq!(end.manager.counters().drops.connections_full, 1);
}

#[test]
fn the_number_of_outputs_has_a_bound() {
    let limits = Limits { outputs: 10, ..Limits::default() };
    let mut client = End::with_limits(CLIENT, CLIENT_GUID, limits);
    for _ in 0..40 {
        client.connect();
    }
    assert_eq!((client.outputs().len(), client.manager.counters().drops.outputs_full), (10, 30));
}

#[test]
fn deadlines_wait_while_the_outputs_are_full() {
    let limits = Limits { outputs: 10, ..Limits::default() };
    let mut client = End::with_limits(CLIENT, CLIENT_GUID, limits);
    for _ in 0..40 {
        client.connect();
        client.outputs();
    }
    client.now = client.now + millis(300);
    let mut sent = 0;
    while client.manager.next_deadline().is_some_and(|deadline| deadline <= client.now) {
        client.manager.handle_timeout(client.now);
        let outputs = client.outputs().len();
        assert!((1..=10).contains(&outputs));
        sent += outputs;
    }
    assert_eq!((sent, client.manager.counters().drops.outputs_full), (40, 0));
}

#[test]
fn no_response_is_larger_than_its_cause() {
    let (mut server, _) = End::server();
    for number in 0..100 {
        server.take_message(DisconnectRequest { local_id: CommunicationId(number), ..Default::default() });
        server.take_message(ConnectRequest { service_id: Default::default(), ..numbered(number) });
    }
    assert_eq!(server.outputs().len(), 200);
}

/// Messages of every kind, with and without repetitions, while the application takes requests or not and answers none:
/// within ten minutes their address gets at most as many datagrams as came in its name.
#[test]
fn no_address_gets_more_than_came_in_its_name_without_an_answer_of_the_application() {
    let (local_id, remote_id) = (CommunicationId(0x4c99_6d6b), CommunicationId(0xa000_0001));
    let information = AdditionalInformation::new(&CLIENT_GUID.to_be_bytes()).unwrap();
    let (rejected, reason) = (RejectedMessage::ConnectRequest, RejectReason::TIMEOUT);
    let inquiry = |service_id| ServiceIdRequest {
        request_id: local_id,
        pkey: 0xffff,
        service_id,
        private_data: header().with_data(b"").unwrap(),
    };
    let unsolicited: [Message; 14] = [
        request().into(),
        ConnectRequest { service_id: Default::default(), ..request() }.into(),
        ConnectRequest { pkey: 0, ..request() }.into(),
        inquiry(DATAGRAM_SERVICE).into(),
        inquiry(Default::default()).into(),
        ConnectReply { local_id, remote_id, ..Default::default() }.into(),
        ReadyToUse { local_id, remote_id, ..Default::default() }.into(),
        Reject { local_id, rejected, reason, information, ..Default::default() }.into(),
        MessageReceipt { local_id, remote_id, ..Default::default() }.into(),
        DisconnectRequest { local_id, remote_id, ..Default::default() }.into(),
        DisconnectReply { local_id, remote_id, ..Default::default() }.into(),
        ServiceIdReply { request_id: remote_id, ..Default::default() }.into(),
        LoadAlternatePath { local_id, remote_id, ..Default::default() }.into(),
        AlternatePathResponse { local_id, remote_id, ..Default::default() }.into(),
    ];
    for message in unsolicited {
        for (repetitions, pause) in [(1, 0), (50, 0), (50, 100), (50, 5_000), (8, 61_000)] {
            for takes in [false, true] {
                let (mut server, _) = End::server();
                server.listen(DATAGRAM_SERVICE, 8);
                let mut sent = 0;
                for _ in 0..repetitions {
                    server.take_message(message);
                    for event in server.events() {
                        if let (Event::ConnectRequest { connection, .. }, true) = (&event, takes) {
                            server.manager.take(*connection).unwrap();
                        }
                    }
                    server.wait(millis(pause));
                    sent += server.outputs().len();
                }
                server.wait(seconds(600));
                sent += server.outputs().len();
                assert!(sent <= repetitions, "{sent} datagrams after {repetitions} of {message:?}, {pause} ms");
                assert_eq!(server.manager.next_deadline(), None);
            }
        }
    }
}

/// A forged REQ that the application accepts: 16 REPs at most in 66 s at most, a REJ, and 12 DREQs, whatever it asks.
#[test]
fn an_accepted_request_has_bounded_responses() {
    for (code, retries, expected) in [(0, 0, 4), (0, 15, 16), (20, 15, 16), (31, 15, 16), (31, 0, 4)] {
        let (mut server, _) = End::server();
        server.take_message(ConnectRequest {
            local_response_timeout: TimeoutCode::saturating(code),
            max_cm_retries: MessageRetries::saturating(retries),
            ..request()
        });
        let passive = server.requested();
        server.accept(passive);
        server.wait(seconds(66));
        let replies = server.sent();
        assert!(replies.iter().all(|sent| sent.2 == CLIENT), "to the address in the request");
        let of = |sent: &[Sent], is_it: fn(&Message) -> bool| sent.iter().filter(|sent| is_it(&sent.0)).count();
        assert_eq!(of(&replies, |sent| matches!(sent, Message::ConnectReply(_))), expected);
        server.wait(seconds(600));
        let all = [replies, server.sent()].concat();
        assert_eq!(of(&all, |sent| matches!(sent, Message::Reject(_))), 1);
        assert_eq!(of(&all, |sent| matches!(sent, Message::DisconnectRequest(_))), 12);
        assert_eq!(all.len(), expected + 13);
    }
}

/// Requests, each of another host, that the application does not take, rejects, or accepts.
#[test]
fn a_flood_of_requests_leaves_nothing() {
    for answer in 0..3 {
        let limits = Limits { connections: 900, half_open: 300, resting: 200, backlog: 250, ..Limits::default() };
        let mut server = End::with_limits(SERVER, SERVER_GUID, limits);
        server.listen(SERVICE, 250);
        server.listen(DATAGRAM_SERVICE, 250);
        for number in 1..=2_000 {
            server.take_message(numbered(number));
            server.take_message(ServiceIdRequest {
                request_id: CommunicationId(number),
                pkey: 0xffff,
                service_id: DATAGRAM_SERVICE,
                private_data: header().with_data(b"").unwrap(),
            });
            let events = if answer == 0 { Vec::new() } else { server.events() };
            for event in events {
                let Event::ConnectRequest { connection, .. } = event else { continue };
                match answer {
                    1 => {
                        server.manager.reject(server.now, connection, &Rejection::default()).unwrap();
                        server.manager.destroy(server.now, connection).unwrap();
                    }
                    _ => server.accept(connection),
                }
            }
            server.outputs();
            assert!(server.manager.half_open <= 300 && server.manager.resting.len() <= 200);
            assert!(server.manager.connections.len() <= 500);
        }
        server.wait(seconds(160));
        server.outputs();
        for event in server.events() {
            if let Event::Unreachable { connection, .. } = event {
                server.manager.destroy(server.now, connection).unwrap();
            }
        }
        let manager = &server.manager;
        let left = [manager.by_id.len(), manager.by_request.len(), manager.by_queue_pair.len(), manager.resting.len()];
        assert_eq!((left, manager.half_open, manager.next_deadline()), ([0; 4], 0, None), "answer {answer}");
        assert_eq!(manager.connection_count(), 0, "answer {answer}");
    }
}

#[test]
fn destroying_a_listener_rejects_requests_that_were_not_taken() {
    let (mut server, listener) = End::server();
    (1..=3).for_each(|number| server.take_message(numbered(number)));
    let Some(Event::ConnectRequest { connection: taken, .. }) = server.manager.poll_event() else { panic!() };
    server.manager.take(taken).unwrap();
    server.manager.destroy_listener(server.now, listener).unwrap();
    let sent = server.sent();
    assert_eq!(sent.len(), 2);
    assert!(sent.iter().all(|sent| reason_of(sent.0).0 == RejectReason::CONSUMER));
    assert!(server.events().is_empty());
    server.accept(taken);
    assert_eq!(server.sent().len(), 1);
}
