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
    assert_eq!((disconnect.remote_id, disconnect.remote_qpn), (request().local_id, Qpn::new(0)));
    assert!(server.events().is_empty());
    assert_eq!(server.state(old), Some(ConnectionState::Established), "until its peer confirms that it has ended");
    server.take_message(DisconnectReply {
        local_id: disconnect.remote_id,
        remote_id: disconnect.local_id,
        ..Default::default()
    });
    assert_eq!(server.event(), Event::Disconnected { connection: old, cause: DisconnectCause::Confirmed });
    server.take_message(new);
    assert_ne!(server.requested(), old, "the old connection has ended");
}

/// A forged REQ: the peer still has the connection, and ignores the DREQ for queue pair 0.
#[test]
fn a_forged_request_does_not_end_a_connection_that_its_peer_has() {
    let (mut client, active, mut server, passive) = connected();
    let forged = |number| ConnectRequest { local_id: CommunicationId(number), ..request() };
    server.take_message(forged(1));
    let sent = server.sent();
    assert!(matches!(&sent[..], [(Message::Reject(_), ..), (Message::DisconnectRequest(_), ..)]), "{sent:?}");
    // Each further one has a REJ, and none another DREQ before the first one's repetitions are over.
    let mut disconnects = vec![sent[1].0];
    for number in 2..=100 {
        server.take_message(forged(number));
        assert_eq!(reason_of(server.sent_one().0).0, RejectReason::STALE_CONNECTION);
        if number % 10 == 0 {
            server.wait(millis(400));
            disconnects.extend(server.sent().into_iter().map(|sent| sent.0));
        }
    }
    assert_eq!(disconnects.len(), 4);
    disconnects.into_iter().for_each(|disconnect| client.take_message(disconnect));
    assert_eq!(client.manager.counters().drops.wrong_queue_pair, 4);
    server.wait(seconds(60));
    client.wait(seconds(60));
    assert!(client.sent().is_empty() && server.sent().is_empty());
    assert!(client.events().is_empty() && server.events().is_empty());
    let established = Some(ConnectionState::Established);
    assert_eq!((client.state(active), server.state(passive)), (established, established));
    assert_eq!((client.manager.next_deadline(), server.manager.next_deadline()), (None, None));
    // A DREP that nothing waits for is unexpected.
    server.take_message(forged(101));
    let Message::DisconnectRequest(disconnect) = server.sent()[1].0 else { panic!() };
    let (local_id, remote_id) = (disconnect.remote_id, disconnect.local_id);
    let reply = DisconnectReply { local_id, remote_id, ..Default::default() };
    server.wait(seconds(60));
    server.sent();
    server.take_message(reply);
    assert_eq!(server.state(passive), established);
    server.take_message(forged(102));
    server.take_message(DisconnectReply { local_id: CommunicationId(7), ..reply });
    assert_eq!(server.state(passive), established);
    server.take_message(reply);
    assert_eq!(server.event(), Event::Disconnected { connection: passive, cause: DisconnectCause::Confirmed });
}

/// The first three DREQs are lost. The application disconnects while the connection is probed.
#[test]
fn a_probed_connection_ends_with_a_late_confirmation_or_as_the_application_says() {
    for ends_itself in [false, true] {
        let (mut server, _) = End::server();
        let old = established(&mut server);
        server.take_message(ConnectRequest { local_id: CommunicationId(1), ..request() });
        server.sent();
        (0..2).for_each(|_| assert_eq!(server.wait_for_message().1.len(), 1));
        let mut last = server.wait_for_message().1[0].0;
        if ends_itself {
            server.manager.disconnect(server.now, old).unwrap();
            last = server.sent_one().0;
        }
        let Message::DisconnectRequest(disconnect) = last else { panic!("{last:?}") };
        assert_eq!(disconnect.remote_qpn, if ends_itself { CLIENT_QPN } else { Qpn::new(0) });
        let (local_id, remote_id) = (disconnect.remote_id, disconnect.local_id);
        server.take_message(DisconnectReply { local_id, remote_id, ..Default::default() });
        assert_eq!(server.event(), Event::Disconnected { connection: old, cause: DisconnectCause::Confirmed });
        assert_eq!(server.state(old), Some(ConnectionState::TimeWait));
    }
}

/// The peer has ended the connection and uses its queue pair again, and its DREQs were all lost.
#[test]
fn an_end_in_its_time_wait_confirms_any_disconnect_request() {
    let (mut client, active, mut server, passive) = connected();
    client.manager.disconnect(client.now, active).unwrap();
    client.wait(millis(20_300));
    client.sent();
    assert_eq!(client.state(active), Some(ConnectionState::TimeWait));
    server.take_message(ConnectRequest { local_id: CommunicationId(1), ..request() });
    let disconnect = server.sent()[1].0;
    client.take_message(disconnect);
    server.take_message(client.sent_one().0);
    assert_eq!(server.event(), Event::Disconnected { connection: passive, cause: DisconnectCause::Confirmed });
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
