//! Queue pairs and numbers that come again: stale connections, reuse.

use super::super::{ConnectionState, DisconnectCause, Event};
use super::script::*;
use crate::types::{Psn, Qpn};
use crate::wire::mad::{
    CommunicationId, ConnectReply, ConnectRequest, DisconnectReply, Message, Reject, RejectReason, RejectedMessage,
};

fn established(server: &mut End) -> super::super::ConnectionHandle {
    server.take_message(request());
    let passive = server.requested();
    server.accept(passive);
    server.sent();
    server.manager.communication_established(server.now, passive).unwrap();
    server.events();
    passive
}

#[test]
fn a_request_with_the_queue_pair_of_a_live_connection_is_stale() {
    let (mut server, _) = End::server();
    let old = established(&mut server);
    let new = ConnectRequest { local_id: CommunicationId(0x5c99_6d6b), ..request() };
    server.take_message(new);
    let sent = server.sent();
    assert_eq!(reason_of(sent[0].0), (RejectReason::STALE_CONNECTION, RejectedMessage::ConnectRequest));
    let Message::DisconnectRequest(disconnect) = sent[1].0 else { panic!("{sent:?}") };
    assert_eq!((disconnect.remote_id, disconnect.remote_qpn), (request().local_id, CLIENT_QPN));
    assert!(server.events().is_empty());
    server.take_message(DisconnectReply {
        local_id: disconnect.remote_id,
        remote_id: disconnect.local_id,
        ..Default::default()
    });
    assert_eq!(server.event(), Event::Disconnected { connection: old, cause: DisconnectCause::Confirmed });
    server.take_message(new);
    assert_ne!(server.requested(), old, "the old connection has ended");
}

#[test]
fn a_request_that_is_not_set_up_makes_another_one_stale_but_stays() {
    let (mut server, _) = End::server();
    server.take_message(request());
    let passive = server.requested();
    server.take_message(ConnectRequest { local_id: CommunicationId(1), ..request() });
    assert_eq!(reason_of(server.sent_one().0).0, RejectReason::STALE_CONNECTION);
    assert_eq!(server.state(passive), Some(ConnectionState::RequestReceived));
}

#[test]
fn a_reply_with_the_queue_pair_of_a_live_connection_is_stale() {
    let mut client = End::client();
    let first = client.connect();
    let (sent, ..) = client.sent_one();
    client.take_message(reply_to(sent));
    client.events();
    client.manager.ready(client.now, first).unwrap();
    client.sent();
    let second = client.connect();
    let (sent, ..) = client.sent_one();
    client.take_message(ConnectReply { local_id: CommunicationId(5), ..reply_to(sent) });
    let sent = client.sent();
    assert_eq!(reason_of(sent[0].0), (RejectReason::STALE_CONNECTION, RejectedMessage::ConnectReply));
    assert!(matches!(sent[1].0, Message::DisconnectRequest(_)));
    assert_eq!(client.state(second), Some(ConnectionState::RequestSent));
    assert!(client.events().is_empty());
}

/// The end of a dead process's connection has the peer's queue pair as well.
#[test]
fn an_orphan_with_the_queue_pair_of_a_live_connection_does_not_hide_it() {
    let (mut server, _) = End::server();
    let live = established(&mut server);
    let orphan = super::super::Orphan {
        local_id: CommunicationId(0x0ff0_0001),
        remote_id: CommunicationId(0x0ff0_0002),
        ..server.manager.orphan(live).unwrap()
    };
    server.manager.end_orphan(server.now, &orphan).unwrap();
    server.sent_one();
    let (local_id, remote_id) = (orphan.remote_id, orphan.local_id);
    server.take_message(DisconnectReply { local_id, remote_id, ..Default::default() });
    server.wait(seconds(5));
    assert_eq!(server.manager.connection_count(), 1);
    server.take_message(ConnectRequest { local_id: CommunicationId(1), ..request() });
    assert_eq!(reason_of(server.sent()[0].0).0, RejectReason::STALE_CONNECTION);
}

/// Sheet 1.12: Linux reports the first REJ 10.
#[test]
fn a_stale_request_is_retried_with_a_fresh_id() {
    let mut client = End::client();
    let active = client.connect();
    let mut ids = Vec::new();
    for pause in [500, 1_500, 0] {
        let Message::ConnectRequest(sent) = client.sent_one().0 else { panic!() };
        assert!(!ids.contains(&sent.local_id));
        ids.push(sent.local_id);
        let reason = RejectReason::STALE_CONNECTION;
        client.take_message(Reject { remote_id: sent.local_id, reason, ..Reject::default() });
        if pause > 0 {
            assert!(client.events().is_empty() && client.sent().is_empty());
            assert_eq!(client.state(active), Some(ConnectionState::StalePause));
            client.wait(millis(pause));
        }
    }
    let event = client.event();
    let Event::Rejected { rejection, .. } = event else { panic!("{event:?}") };
    assert_eq!(rejection.reason, RejectReason::STALE_CONNECTION);
    assert_eq!(client.state(active), Some(ConnectionState::TimeWait));
    client.wait(seconds(5));
    assert_eq!(client.event(), Event::TimeWaitExit { connection: active });
}

#[test]
fn a_restarted_client_connects_although_the_server_knows_its_queue_pair() {
    let (old, _, mut server, passive) = connected();
    drop(old);
    let mut client = End::new(CLIENT, CLIENT_GUID ^ 7);
    client.manager.guid = CLIENT_GUID;
    let active = client.connect();
    deliver([&mut client, &mut server]);
    assert_eq!(server.event(), Event::Disconnected { connection: passive, cause: DisconnectCause::Confirmed });
    client.wait(seconds(1));
    deliver([&mut client, &mut server]);
    let new = server.requested();
    server.accept(new);
    deliver([&mut client, &mut server]);
    assert!(matches!(client.event(), Event::Reply { connection, .. } if connection == active));
}

#[test]
fn a_stale_pause_ends_with_the_deadline_or_the_connection() {
    let pause = |client: &mut End| {
        let Message::ConnectRequest(sent) = client.sent_one().0 else { panic!() };
        let reason = RejectReason::STALE_CONNECTION;
        client.take_message(Reject { remote_id: sent.local_id, reason, ..Reject::default() });
    };
    let mut client = End::client();
    let active = client.connect();
    pause(&mut client);
    client.manager.destroy(client.now, active).unwrap();
    client.wait(seconds(5));
    assert_eq!((client.sent(), client.manager.connection_count()), (vec![], 0));
    let deadline = Some(client.now + millis(200));
    let parameters = super::super::ConnectParameters { deadline, ..connect_parameters() };
    let active = client.manager.connect(client.now, &parameters).unwrap();
    pause(&mut client);
    client.wait(millis(200));
    assert!(matches!(client.event(), Event::Unreachable { connection, .. } if connection == active));
    assert_eq!(client.state(active), Some(ConnectionState::Idle));
}

/// Sheet 0.15: Linux accepts both at once after the DREP. A late repetition of the old REQ is not a new one.
#[test]
fn number_and_queue_pair_are_reusable_once_a_connection_has_ended() {
    let (mut server, _) = End::server();
    let old = established(&mut server);
    server.manager.disconnect(server.now, old).unwrap();
    let Message::DisconnectRequest(disconnect) = server.sent_one().0 else { panic!() };
    let (local_id, remote_id) = (disconnect.remote_id, disconnect.local_id);
    server.take_message(DisconnectReply { local_id, remote_id, ..Default::default() });
    assert!(matches!(server.event(), Event::Disconnected { .. }));
    server.take_message(request());
    assert!(server.events().is_empty() && server.sent().is_empty(), "a late repetition");
    server.take_message(ConnectRequest { starting_psn: Psn::new(1), ..request() });
    let new = server.requested();
    server.wait(seconds(5));
    assert_eq!(server.events(), [Event::TimeWaitExit { connection: old }]);
    server.take_message(ConnectRequest { starting_psn: Psn::new(1), ..request() });
    assert_eq!(server.state(new), Some(ConnectionState::RequestReceived));
    assert!(server.events().is_empty(), "the new one is known");
}

#[test]
fn numbers_of_other_hosts_and_queue_pairs_are_independent() {
    let (mut server, _) = End::server();
    let first = established(&mut server);
    let other_host = ConnectRequest { local_guid: 1, ..request() };
    server.take_message(other_host);
    let second = server.requested();
    let (local_id, local_qpn) = (CommunicationId(77), Qpn::new(77));
    server.take_message(ConnectRequest { local_id, local_qpn, ..request() });
    let third = server.requested();
    assert!(first != second && second != third);
    assert_eq!(server.state(first), Some(ConnectionState::Established));
}

#[test]
fn a_manager_connects_to_itself() {
    let mut end = End::new(SERVER, SERVER_GUID);
    end.listen(SERVICE, 4);
    let mut parameters = connect_parameters();
    parameters.path.local = SERVER;
    let active = end.manager.connect(end.now, &parameters).unwrap();
    let deliver = |end: &mut End| {
        for outgoing in end.outputs() {
            end.receive(outgoing.source, &outgoing.bytes);
        }
    };
    deliver(&mut end);
    let passive = end.requested();
    end.accept(passive);
    deliver(&mut end);
    assert!(matches!(end.event(), Event::Reply { connection, .. } if connection == active));
    end.manager.ready(end.now, active).unwrap();
    deliver(&mut end);
    assert_eq!(end.event(), Event::Established { connection: passive });
    end.manager.disconnect(end.now, active).unwrap();
    deliver(&mut end);
    end.manager.disconnect(end.now, passive).unwrap();
    deliver(&mut end);
    assert_eq!(end.events().len(), 2);
}
