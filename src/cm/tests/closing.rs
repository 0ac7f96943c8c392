//! The end of connections: DREQ, DREP, time wait, destruction.

use super::super::{ConnectionState, DisconnectCause, Event, Limits};
use super::script::*;
use crate::types::Qpn;
use crate::wire::mad::{
    CommunicationId, DisconnectReply, DisconnectRequest, Message, ReadyToUse, RejectReason, RejectedMessage,
    TimeoutCode,
};

#[test]
fn either_end_disconnects() {
    for is_active in [true, false] {
        let (client, active, server, passive) = connected();
        let (mut one, first, mut other, second) =
            if is_active { (client, active, server, passive) } else { (server, passive, client, active) };
        one.manager.disconnect(one.now, first).unwrap();
        let (message, transaction, _) = one.sent_one();
        let Message::DisconnectRequest(request) = message else { panic!("{message:?}") };
        other.receive(one.address, &message.to_mad(transaction).write());
        assert_eq!(other.event(), Event::Disconnected { connection: second, cause: DisconnectCause::Peer });
        // The application confirms, not the manager.
        other.receive(one.address, &message.to_mad(transaction).write());
        assert!(other.sent().is_empty() && other.events().is_empty());
        other.manager.disconnect(other.now, second).unwrap();
        let (reply, same, _) = other.sent_one();
        let ids = DisconnectReply { local_id: request.remote_id, remote_id: request.local_id, ..Default::default() };
        assert_eq!((reply, same), (ids.into(), transaction));
        one.receive(other.address, &reply.to_mad(same).write());
        assert_eq!(one.event(), Event::Disconnected { connection: first, cause: DisconnectCause::Confirmed });
        // The DREP was lost: the DREQ comes again in time wait and after it.
        for _ in 0..2 {
            other.receive(one.address, &message.to_mad(transaction).write());
            assert_eq!(other.sent(), [(reply, transaction, one.address)]);
            other.wait(seconds(1));
        }
        one.wait(seconds(1));
        assert_eq!(one.event(), Event::TimeWaitExit { connection: first });
        assert_eq!(other.event(), Event::TimeWaitExit { connection: second });
        for (end, connection) in [(&mut one, first), (&mut other, second)] {
            assert_eq!(end.state(connection), Some(ConnectionState::Idle));
            end.manager.disconnect(end.now, connection).unwrap();
            end.manager.destroy(end.now, connection).unwrap();
            assert_eq!((end.manager.connection_count(), end.manager.next_deadline()), (0, None));
            assert!(end.sent().is_empty() && end.events().is_empty() && end.manager.by_id.is_empty());
        }
    }
}

#[test]
fn both_ends_disconnect_at_once_without_delay() {
    let (mut client, active, mut server, passive) = connected();
    client.manager.disconnect(client.now, active).unwrap();
    server.manager.disconnect(server.now, passive).unwrap();
    deliver([&mut client, &mut server]);
    let cause = DisconnectCause::Peer;
    assert_eq!(client.event(), Event::Disconnected { connection: active, cause });
    assert_eq!(server.event(), Event::Disconnected { connection: passive, cause });
    assert_eq!(client.state(active), Some(ConnectionState::TimeWait));
    assert_eq!(server.state(passive), Some(ConnectionState::TimeWait));
}

#[test]
fn a_peer_that_vanished_ends_the_connection_within_bounds() {
    let (mut client, active, ..) = connected();
    let start = client.now;
    client.manager.disconnect(start, active).unwrap();
    client.wait(millis(6_200));
    let cause = DisconnectCause::Timeout;
    assert_eq!(client.event(), Event::Disconnected { connection: active, cause });
    assert_eq!(client.sent().len(), 6, "0, 0.3, 0.9, 2.1, 4.1, 6.1 s");
    client.wait(seconds(30));
    assert_eq!(client.sent().len(), 6);
    assert_eq!(client.event(), Event::TimeWaitExit { connection: active });
}

#[test]
fn an_application_may_confirm_three_seconds_later() {
    let (mut client, active, mut server, passive) = connected();
    client.manager.disconnect(client.now, active).unwrap();
    deliver([&mut client, &mut server]);
    client.wait(seconds(3));
    deliver([&mut client, &mut server]);
    assert!(client.events().is_empty());
    server.manager.disconnect(server.now, passive).unwrap();
    deliver([&mut client, &mut server]);
    let cause = DisconnectCause::Confirmed;
    assert_eq!(client.event(), Event::Disconnected { connection: active, cause });
}

#[test]
fn a_disconnect_request_needs_ids_and_queue_pair() {
    let (mut client, (mut server, _)) = (End::client(), End::server());
    let (active, passive) = connect_ends(&mut client, &mut server);
    client.manager.disconnect(client.now, active).unwrap();
    let (message, transaction, _) = client.sent_one();
    let Message::DisconnectRequest(right) = message else { panic!() };
    server.take_message(DisconnectRequest { remote_qpn: Qpn::new(5), ..right });
    assert!(server.events().is_empty() && server.sent().is_empty());
    assert_eq!(server.manager.counters().drops.wrong_queue_pair, 1);
    let other = CommunicationId(0x0102_0304);
    let wrong = [DisconnectRequest { local_id: other, ..right }, DisconnectRequest { remote_id: other, ..right }];
    for unknown in wrong {
        server.take_message(unknown);
        let (reply, same, destination) = server.sent_one();
        let swapped =
            DisconnectReply { local_id: unknown.remote_id, remote_id: unknown.local_id, ..Default::default() };
        assert_eq!((reply, same, destination), (swapped.into(), TRANSACTION, CLIENT));
        assert!(server.events().is_empty());
    }
    assert_eq!(server.state(passive), Some(ConnectionState::Established));
    server.receive(CLIENT, &message.to_mad(transaction).write());
    assert!(matches!(server.event(), Event::Disconnected { .. }));
}

#[test]
fn a_disconnect_reply_needs_ids_and_a_request() {
    let (mut client, active, ..) = connected();
    client.manager.disconnect(client.now, active).unwrap();
    let Message::DisconnectRequest(request) = client.sent_one().0 else { panic!() };
    let other = CommunicationId(0x0102_0304);
    let right = DisconnectReply { local_id: request.remote_id, remote_id: request.local_id, ..Default::default() };
    client.take_message(DisconnectReply { local_id: other, ..right });
    client.take_message(DisconnectReply { remote_id: other, ..right });
    assert!(client.events().is_empty() && client.manager.next_deadline().is_some());
    client.take_message(right);
    assert!(matches!(client.event(), Event::Disconnected { .. }));

    let (mut client, active, mut server, passive) = connected();
    client.manager.disconnect(client.now, active).unwrap();
    let Message::DisconnectRequest(request) = client.sent_one().0 else { panic!() };
    server.take_message(DisconnectReply {
        local_id: request.local_id,
        remote_id: request.remote_id,
        ..Default::default()
    });
    assert_eq!((server.events(), server.state(passive)), (vec![], Some(ConnectionState::Established)));
}

/// The transport timeout is a field of the REQ.
#[test]
fn a_peer_chooses_the_time_wait_within_bounds() {
    for (code, shortest, longest) in [(0, 250, 250), (18, 1_024, 1_024), (31, 4_000, 4_000)] {
        let (mut server, _) = End::server();
        let mut request = request();
        request.primary_path.local_ack_timeout = TimeoutCode::saturating(code);
        server.take_message(request);
        let passive = server.requested();
        server.accept(passive);
        let Message::ConnectReply(reply) = server.sent_one().0 else { panic!() };
        let (local_id, remote_id) = (request.local_id, reply.local_id);
        server.take_message(DisconnectRequest { local_id, remote_id, remote_qpn: SERVER_QPN, ..Default::default() });
        assert!(matches!(server.event(), Event::Disconnected { .. }));
        server.manager.disconnect(server.now, passive).unwrap();
        server.wait(millis(shortest - 1));
        assert!(server.events().is_empty(), "code {code}");
        server.wait(millis(longest - shortest + 1));
        assert_eq!(server.events(), [Event::TimeWaitExit { connection: passive }], "code {code}");
    }
}

/// The RTU is late or lost: the DREQ shows that the peer was ready.
#[test]
fn a_disconnect_request_may_overtake_the_acceptance() {
    let (mut client, active, mut server, passive) = accepted();
    client.manager.ready(client.now, active).unwrap();
    let (ready, transaction, _) = client.sent_one();
    client.manager.disconnect(client.now, active).unwrap();
    deliver([&mut client, &mut server]);
    let cause = DisconnectCause::Peer;
    assert_eq!(server.events(), [Event::Disconnected { connection: passive, cause }]);
    server.receive(CLIENT, &ready.to_mad(transaction).write());
    assert!(server.events().is_empty());
}

#[test]
fn messages_without_a_connection_have_no_response() {
    let (mut server, _) = End::server();
    let ids = (CommunicationId(1), CommunicationId(2));
    let ready = ReadyToUse { local_id: ids.0, remote_id: ids.1, ..Default::default() };
    server.take_message(ready);
    server.take_message(DisconnectReply { local_id: ids.0, remote_id: ids.1, ..Default::default() });
    server.take_message(crate::wire::mad::MessageReceipt::default());
    server.take_message(crate::wire::mad::Reject::default());
    server.take_message(crate::wire::mad::ServiceIdReply::default());
    server.take_message(crate::wire::mad::LoadAlternatePath::default());
    server.take_message(crate::wire::mad::AlternatePathResponse::default());
    assert!(server.sent().is_empty() && server.events().is_empty());
    let drops = server.manager.counters().drops;
    assert_eq!((drops.unknown.total(), drops.alternate_path), (5, 2));
}

/// Table "What leaving a state sends".
#[test]
fn destroying_a_connection_tells_the_peer() {
    // REQ sent.
    let mut client = End::client();
    let active = client.connect();
    let (sent, ..) = client.sent_one();
    client.manager.destroy(client.now, active).unwrap();
    let (message, _, destination) = client.sent_one();
    let Message::Reject(reject) = message else { panic!("{message:?}") };
    assert_eq!((reject.reason, reject.rejected), (RejectReason::TIMEOUT, RejectedMessage::Other));
    assert_eq!((reject.remote_id, destination), (CommunicationId::NONE, SERVER));
    assert_eq!(reject.information.as_bytes(), CLIENT_GUID.to_be_bytes());
    client.take_message(reply_to(sent));
    assert_eq!(client.sent_one().0, message, "to a late REP again");

    // REP received.
    let mut client = End::client();
    let active = client.connect();
    let (sent, ..) = client.sent_one();
    client.take_message(reply_to(sent));
    client.manager.destroy(client.now, active).unwrap();
    assert_eq!(reason_of(client.sent_one().0), (RejectReason::CONSUMER, RejectedMessage::ConnectReply));
    assert!(client.events().is_empty(), "its event vanishes");
    client.take_message(reply_to(sent));
    assert_eq!(reason_of(client.sent_one().0), (RejectReason::CONSUMER, RejectedMessage::ConnectReply));

    // REQ received, REP sent.
    let (mut server, _) = End::server();
    server.take_message(request());
    let passive = server.requested();
    server.manager.destroy(server.now, passive).unwrap();
    assert_eq!(reason_of(server.sent_one().0), (RejectReason::CONSUMER, RejectedMessage::ConnectRequest));
    let (mut server, _) = End::server();
    server.take_message(request());
    let passive = server.requested();
    server.accept(passive);
    server.sent();
    server.manager.destroy(server.now, passive).unwrap();
    assert_eq!(reason_of(server.sent_one().0), (RejectReason::CONSUMER, RejectedMessage::Other));
    server.take_message(request());
    assert_eq!(reason_of(server.sent_one().0), (RejectReason::CONSUMER, RejectedMessage::ConnectRequest));
    assert!(matches!(server.wait_for_message().1[0].0, Message::DisconnectRequest(_)));

    // Established, DREQ received.
    let (mut client, active, mut server, passive) = connected();
    client.manager.destroy(client.now, active).unwrap();
    assert_eq!(client.state(active), None);
    deliver([&mut client, &mut server]);
    assert!(matches!(server.event(), Event::Disconnected { connection, .. } if connection == passive));
    server.manager.destroy(server.now, passive).unwrap();
    deliver([&mut client, &mut server]);
    client.wait(seconds(5));
    server.wait(seconds(5));
    assert_eq!((client.manager.connection_count(), server.manager.connection_count()), (0, 0));
    assert!(client.events().is_empty() && server.events().is_empty());
}

#[test]
fn a_destroyed_connection_ends_in_the_background() {
    let (mut client, active, mut server, passive) = connected();
    client.manager.destroy(client.now, active).unwrap();
    let (first, ..) = client.sent_one();
    let (waited, again) = client.wait_for_message();
    assert_eq!((waited, again[0].0), (millis(300), first));
    server.manager.destroy(server.now, passive).unwrap();
    let (crossing, transaction, _) = server.sent_one();
    // The peer's DREQ is the end, and its application is gone.
    client.receive(SERVER, &crossing.to_mad(transaction).write());
    assert!(matches!(client.sent_one().0, Message::DisconnectReply(_)));
    client.wait(seconds(5));
    assert_eq!((client.manager.connection_count(), client.sent(), client.events()), (0, vec![], vec![]));
}

#[test]
fn too_many_resting_connections_rest_shorter() {
    let limits = Limits { resting: 3, ..Limits::default() };
    let (mut client, (mut server, _)) = (End::with_limits(CLIENT, CLIENT_GUID, limits), End::server());
    let mut ended = Vec::new();
    for number in 0..5 {
        let (active, passive) = connect_ends(&mut client, &mut server);
        client.manager.disconnect(client.now, active).unwrap();
        deliver([&mut client, &mut server]);
        server.manager.destroy(server.now, passive).unwrap();
        deliver([&mut client, &mut server]);
        ended.push(active);
        let exits = client.events().into_iter().filter(|event| matches!(event, Event::TimeWaitExit { .. })).count();
        assert_eq!(exits, usize::from(number >= 3));
        server.events();
    }
    assert_eq!(client.manager.resting.len(), 3);
    assert_eq!(client.state(ended[0]), Some(ConnectionState::Idle));
    client.wait(seconds(5));
    assert_eq!((client.events().len(), client.manager.by_id.len()), (3, 0));
}

#[test]
fn another_process_ends_the_connections_of_a_dead_one() {
    let (client, active, mut server, passive) = connected();
    let orphan = client.manager.orphan(active).unwrap();
    let mut other = End::new(CLIENT, CLIENT_GUID ^ 1);
    other.manager.end_orphan(other.now, &orphan).unwrap();
    assert!(other.manager.end_orphan(other.now, &orphan).is_err(), "it is ending it");
    deliver([&mut other, &mut server]);
    assert!(matches!(server.event(), Event::Disconnected { connection, .. } if connection == passive));
    server.manager.disconnect(server.now, passive).unwrap();
    deliver([&mut other, &mut server]);
    other.wait(seconds(5));
    assert_eq!((other.manager.connection_count(), other.events(), other.sent()), (0, vec![], vec![]));
}

/// The heir of a dead process does not know its queue pair.
#[test]
fn the_peer_of_an_orphan_disconnects_as_well() {
    let (client, active, mut server, passive) = connected();
    let orphan = client.manager.orphan(active).unwrap();
    let mut other = End::new(CLIENT, CLIENT_GUID ^ 1);
    other.manager.end_orphan(other.now, &orphan).unwrap();
    other.sent_one();
    server.manager.disconnect(server.now, passive).unwrap();
    let (crossing, transaction, _) = server.sent_one();
    other.receive(SERVER, &crossing.to_mad(transaction).write());
    assert!(matches!(other.sent_one().0, Message::DisconnectReply(_)));
    other.wait(seconds(5));
    assert_eq!((other.manager.connection_count(), other.events(), other.sent()), (0, vec![], vec![]));
}

#[test]
fn an_unconfirmed_end_is_announced_at_once_on_request() {
    let (mut client, active, mut server, passive) = connected();
    client.manager.hasten_disconnect(active);
    assert_eq!((client.sent(), client.manager.unconfirmed()), (vec![], vec![]), "it has not ended");
    let orphan = client.manager.orphan(active).unwrap();
    let mut other = End::new(CLIENT, CLIENT_GUID ^ 1);
    other.manager.end_orphan(other.now, &orphan).unwrap();
    assert_eq!(other.manager.unconfirmed().len(), 1, "the end of a dead process's connection");

    client.manager.destroy(client.now, active).unwrap();
    let lost = client.sent_one();
    assert_eq!(client.manager.unconfirmed(), [active]);
    client.manager.hasten_disconnect(active);
    let repeated = client.sent_one();
    assert_eq!(repeated, lost);
    server.receive(CLIENT, &repeated.0.to_mad(repeated.1).write());
    server.manager.disconnect(server.now, passive).unwrap();
    deliver([&mut client, &mut server]);
    client.manager.hasten_disconnect(active);
    assert_eq!((client.sent(), client.manager.unconfirmed()), (vec![], vec![]), "it is confirmed");

    // The DREQ of an accepted request need not wait for its REJ to have an effect.
    let (_, _, mut server, passive) = accepted();
    server.manager.destroy(server.now, passive).unwrap();
    server.sent_one();
    server.manager.hasten_disconnect(passive);
    assert!(matches!(server.sent_one().0, Message::DisconnectRequest(_)));
}
