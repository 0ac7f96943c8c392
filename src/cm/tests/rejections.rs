//! REJ in each state.

use super::super::{ConnectionHandle, ConnectionState, DisconnectCause, Event, Rejection};
use super::script::*;
use crate::wire::mad::{
    AdditionalInformation, CommunicationId, ConnectReply, ConnectRequest, DisconnectRequest, Message, PrivateData,
    Reject, RejectReason, RejectedMessage,
};

fn rejected(end: &mut End, connection: ConnectionHandle) -> Reject {
    match end.event() {
        Event::Rejected { connection: found, rejection } if found == connection => *rejection,
        other => panic!("{other:?}"),
    }
}

/// A client whose REQ is sent, and its REQ's id.
fn waiting() -> (End, ConnectionHandle, Message, CommunicationId) {
    let mut client = End::client();
    let active = client.connect();
    let (message, ..) = client.sent_one();
    let Message::ConnectRequest(request) = message else { panic!() };
    (client, active, message, request.local_id)
}

#[test]
fn the_application_rejects_a_request_with_reason_and_data() {
    let (mut client, active, mut server, passive) = requested();
    let rejection = Rejection { private_data: PrivateData::new(&[7; 148]).unwrap(), ..Rejection::default() };
    server.manager.reject(server.now, passive, &rejection).unwrap();
    let (reject, transaction, destination) = server.sent_one();
    assert_eq!((reason_of(reject), destination), ((RejectReason::CONSUMER, RejectedMessage::ConnectRequest), CLIENT));
    client.receive(SERVER, &reject.to_mad(transaction).write());
    let found = rejected(&mut client, active);
    assert_eq!((found.reason, found.private_data), (RejectReason::CONSUMER, rejection.private_data));
    assert_eq!(client.state(active), Some(ConnectionState::Idle));
    server.manager.disconnect(server.now, passive).unwrap();
    assert!(server.sent().is_empty() && server.events().is_empty());
}

/// The REJ crosses a repetition of the REQ. Linux takes the repetition for another request, and its application accepts
/// that one.
#[test]
fn a_reply_after_a_rejection_is_rejected() {
    let (mut client, active, ..) = requested();
    let (_, repeated) = client.wait_for_message();
    let request = repeated[0].0;
    let Message::ConnectRequest(ConnectRequest { local_id: remote_id, .. }) = request else { panic!("{request:?}") };
    client.take_message(Reject {
        remote_id,
        rejected: RejectedMessage::ConnectRequest,
        reason: RejectReason::CONSUMER,
        ..Default::default()
    });
    assert_eq!(rejected(&mut client, active).reason, RejectReason::CONSUMER);
    let (mut server, _) = End::server();
    server.take_message(request);
    let second = server.requested();
    server.accept(second);
    for _ in 0..2 {
        client.take_message(server.wait_for_message().1[0].0);
        assert_eq!(client.events(), [], "the application knows that it is rejected");
    }
    server.take_message(client.sent()[0].0);
    assert_eq!(rejected(&mut server, second).reason, RejectReason::TIMEOUT);
    client.wait(seconds(61));
    assert_eq!(client.state(active), Some(ConnectionState::Idle));
}

/// Linux would ask the application again.
#[test]
fn a_lost_rejection_is_repeated_to_a_repeated_request() {
    let (mut client, active, mut server, passive) = requested();
    server.manager.reject(server.now, passive, &Rejection::default()).unwrap();
    server.manager.destroy(server.now, passive).unwrap();
    server.sent_one();
    client.wait(millis(300));
    deliver([&mut client, &mut server]);
    assert!(server.events().is_empty());
    assert_eq!(rejected(&mut client, active).reason, RejectReason::CONSUMER);
    server.wait(seconds(61));
    assert_eq!(server.manager.connection_count(), 0);
}

#[test]
fn a_rejection_is_repeated_as_long_as_the_request() {
    let (mut server, _) = End::server();
    server.take_message(request());
    let passive = server.requested();
    server.manager.reject(server.now, passive, &Rejection::default()).unwrap();
    let reject = server.sent_one();
    for _ in 0..3 {
        server.wait(seconds(40));
        server.take_message(request());
        assert_eq!((server.sent(), server.events()), (vec![reject], vec![]));
    }
}

#[test]
fn the_application_rejects_a_reply() {
    let (mut client, active, mut server, passive) = accepted();
    client.events();
    client.manager.reject(client.now, active, &Rejection::default()).unwrap();
    let (reject, ..) = client.sent_one();
    assert_eq!(reason_of(reject), (RejectReason::CONSUMER, RejectedMessage::ConnectReply));
    // It is lost; the server repeats its REP.
    server.wait(millis(1_100));
    deliver([&mut client, &mut server]);
    assert_eq!(rejected(&mut server, passive).reason, RejectReason::CONSUMER);
    assert!(client.events().is_empty());
}

/// A destroyed or expired client has no connection id of the peer: the GUID finds it.
#[test]
fn giving_up_a_request_ends_the_passive_end() {
    let (mut client, (mut server, _)) = (End::client(), End::server());
    for is_taken in [false, true] {
        let active = client.connect();
        deliver([&mut client, &mut server]);
        let passive = match is_taken {
            true => Some(server.requested()),
            false => None,
        };
        passive.into_iter().for_each(|passive| server.manager.take(passive).unwrap());
        client.manager.destroy(client.now, active).unwrap();
        deliver([&mut client, &mut server]);
        match passive {
            Some(passive) => {
                assert_eq!(rejected(&mut server, passive).reason, RejectReason::TIMEOUT);
                assert!(server.manager.accept(server.now, passive, &Default::default()).is_err());
            }
            None => assert!(server.events().is_empty(), "the application never learns of it"),
        }
    }
}

#[test]
fn a_rejection_by_guid_needs_guid_and_id() {
    let (mut server, _) = End::server();
    server.take_message(request());
    let passive = server.requested();
    server.manager.take(passive).unwrap();
    let information = |guid: u64| AdditionalInformation::new(&guid.to_be_bytes()).unwrap();
    let right = Reject {
        local_id: request().local_id,
        rejected: RejectedMessage::Other,
        information: information(CLIENT_GUID),
        reason: RejectReason::TIMEOUT,
        ..Reject::default()
    };
    server.take_message(Reject { information: information(7), ..right });
    server.take_message(Reject { local_id: CommunicationId(7), ..right });
    server.take_message(Reject { information: Default::default(), ..right });
    server.take_message(Reject { reason: RejectReason::CONSUMER, ..right });
    assert!(server.events().is_empty());
    server.take_message(right);
    assert_eq!(rejected(&mut server, passive), right);
}

/// A peer that is connected knows both ids. Linux takes the forged REJ.
#[test]
fn a_rejection_by_guid_does_not_end_a_connection() {
    let (_, _, mut server, passive) = connected();
    let information = AdditionalInformation::new(&CLIENT_GUID.to_be_bytes()).unwrap();
    let forged = Reject {
        local_id: server.manager.connections[&passive].remote_id.unwrap(),
        rejected: RejectedMessage::Other,
        information,
        reason: RejectReason::TIMEOUT,
        ..Reject::default()
    };
    server.take_message(forged);
    assert!(server.events().is_empty());
    assert_eq!(server.state(passive), Some(ConnectionState::Established));
}

#[test]
fn reasons_pass_unchanged() {
    for reason in (0..=35).chain([1_000, u16::MAX]).map(RejectReason).filter(|reason| reason.0 != 10) {
        let (mut client, active, _, remote_id) = waiting();
        client.take_message(Reject { remote_id, reason, ..Reject::default() });
        assert_eq!(rejected(&mut client, active).reason, reason);
        assert!(client.sent().is_empty());
    }
}

#[test]
fn a_rejection_matches_ids_by_the_state() {
    use RejectedMessage as R;
    let peer = CommunicationId(0x74e5_e344);
    let none = CommunicationId::NONE;
    let reject = |remote_id, local_id, rejected| Reject {
        remote_id,
        local_id,
        rejected,
        reason: RejectReason::CONSUMER,
        ..Reject::default()
    };
    // The peer's id is not known: any id with a REQ's rejection, 0 with any.
    let cases = [(peer, R::ConnectRequest, true), (none, R::ConnectReply, true), (none, R::Other, true)];
    for (local_id, kind, matches) in cases.into_iter().chain([(peer, R::ConnectReply, false), (peer, R::Other, false)])
    {
        let (mut client, _, _, id) = waiting();
        client.take_message(reject(id, local_id, kind));
        assert_eq!(client.events().len(), usize::from(matches), "{local_id} {kind:?}");
    }
    // It is known: both ids, and no REQ's rejection.
    let cases = [(peer, R::ConnectReply, true), (peer, R::Other, true), (peer, R::ConnectRequest, false)];
    for (local_id, kind, matches) in cases.into_iter().chain([(none, R::Other, false), (none, R::ConnectReply, false)])
    {
        let (mut client, active, sent, id) = waiting();
        client.take_message(reply_to(sent));
        client.events();
        client.take_message(reject(id, local_id, kind));
        assert_eq!(client.events().len(), usize::from(matches), "{local_id} {kind:?}");
        let expected = if matches { ConnectionState::TimeWait } else { ConnectionState::ReplyReceived };
        assert_eq!(client.state(active), Some(expected));
    }
}

#[test]
fn a_rejection_ends_a_disconnecting_connection_and_a_disconnect_is_still_confirmed() {
    let (mut client, active, ..) = connected();
    client.manager.disconnect(client.now, active).unwrap();
    let Message::DisconnectRequest(request) = client.sent_one().0 else { panic!() };
    let (remote_id, local_id) = (request.local_id, request.remote_id);
    let (kind, reason) = (RejectedMessage::Other, RejectReason::CONSUMER);
    client.take_message(Reject { remote_id, local_id, rejected: kind, reason, ..Reject::default() });
    assert_eq!(rejected(&mut client, active).reason, RejectReason::CONSUMER);
    let remote_qpn = CLIENT_QPN;
    client.take_message(DisconnectRequest { local_id, remote_id, remote_qpn, ..Default::default() });
    assert!(matches!(client.sent_one().0, Message::DisconnectReply(_)));
    client.wait(seconds(5));
    assert_eq!(client.event(), Event::TimeWaitExit { connection: active });
}

#[test]
fn a_rejection_after_the_end_of_a_connection_has_no_event() {
    let (mut client, active, ..) = connected();
    client.manager.disconnect(client.now, active).unwrap();
    let Message::DisconnectRequest(request) = client.sent_one().0 else { panic!() };
    client.wait(seconds(7));
    assert!(matches!(client.event(), Event::Disconnected { cause: DisconnectCause::Timeout, .. }));
    let (remote_id, local_id) = (request.local_id, request.remote_id);
    client.take_message(Reject { remote_id, local_id, rejected: RejectedMessage::Other, ..Reject::default() });
    assert_eq!((client.events(), client.state(active)), (vec![], Some(ConnectionState::TimeWait)));
}

#[test]
fn an_established_connection_is_rejected() {
    let (mut client, active, sent, remote_id) = waiting();
    let reply: ConnectReply = reply_to(sent);
    client.take_message(reply);
    client.events();
    client.manager.ready(client.now, active).unwrap();
    let (rejected_message, reason) = (RejectedMessage::ConnectReply, RejectReason::INVALID_MTU);
    let local_id = reply.local_id;
    client.take_message(Reject { remote_id, local_id, rejected: rejected_message, reason, ..Reject::default() });
    assert_eq!(rejected(&mut client, active).reason, RejectReason::INVALID_MTU);
    assert_eq!(client.state(active), Some(ConnectionState::TimeWait));
    client.wait(seconds(5));
    assert_eq!(client.event(), Event::TimeWaitExit { connection: active });
}

/// The passive end gives up while the active application moves its queue pair.
#[test]
fn no_end_believes_in_a_connection_that_the_other_has_given_up() {
    let (mut client, active, mut server, passive) = accepted();
    client.events();
    server.manager.destroy(server.now, passive).unwrap();
    server.sent_one();
    server.wait(millis(600));
    deliver([&mut client, &mut server]);
    assert!(matches!(client.event(), Event::Disconnected { connection, .. } if connection == active));
    assert!(client.manager.ready(client.now, active).is_err());
    client.manager.destroy(client.now, active).unwrap();
    deliver([&mut client, &mut server]);
    server.wait(seconds(61));
    client.wait(seconds(61));
    assert_eq!((client.manager.connection_count(), server.manager.connection_count()), (0, 0));
}
