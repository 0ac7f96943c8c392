//! Bounds: backlogs, requests without an answer, outputs.

use super::super::{ConnectionState, Event, Limits};
use super::script::*;
use crate::types::Qpn;
use crate::wire::mad::{CommunicationId, ConnectRequest, DisconnectRequest, RejectReason};

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
    let parameters =
        super::super::ListenParameters { service_id: DATAGRAM_SERVICE, address: None, is_datagram: true, backlog: 1 };
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
