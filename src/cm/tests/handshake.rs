//! Setting up connections: REQ, REP, RTU, MRA, and their losses.

use super::super::{AcceptParameters, CallError, ConnectionState, Event, Unanswered};
use super::script::*;
use crate::types::Time;
use crate::wire::mad::{
    CommunicationId, ConnectReply, Message, MessageReceipt, MessageRetries, ReadyToUse, ReceivedMessage, RejectReason,
    RejectedMessage, TimeoutCode, TransportType, VendorId, VendorOptions,
};

#[test]
fn three_messages_set_up_a_connection() {
    let (mut client, (mut server, listener)) = (End::client(), End::server());
    let active = client.connect();
    let (message, transaction, destination) = client.sent_one();
    let Message::ConnectRequest(sent) = message else { panic!("{message:?}") };
    assert_eq!(destination, SERVER);
    assert_eq!((sent.local_guid, sent.local_qpn, sent.service_id), (CLIENT_GUID, CLIENT_QPN, SERVICE));
    assert_eq!((sent.primary_path.hop_limit, sent.primary_path.local_lid, sent.pkey), (64, 0xffff, 0xffff));
    assert_eq!((sent.transport, sent.max_cm_retries.value()), (TransportType::ReliableConnection, 15));
    assert_eq!((sent.remote_response_timeout.value(), sent.local_response_timeout.value()), (20, 18));
    assert_eq!(sent.local_id.0 >> 20, CLIENT_GUID as u32 & 0xfff);

    server.receive(CLIENT, &message.to_mad(transaction).write());
    let event = server.event();
    let Event::ConnectRequest { connection: passive, listener: at, header: found, private_data, request, native } =
        event
    else {
        panic!("{event:?}");
    };
    assert_eq!((at, found, *request, native), (listener, header(), sent, None));
    assert_eq!(private_data.as_bytes()[..10], *b"hello-req\0");

    server.accept(passive);
    let outputs = server.outputs();
    assert_eq!((outputs[0].destination, outputs[0].source), (CLIENT, SERVER));
    assert_eq!((outputs[0].traffic_class, outputs[0].flow_label.value()), (0x68, 0x8_38a5));
    client.receive(SERVER, &outputs[0].bytes);
    assert!(matches!(client.event(), Event::Reply { connection, reply, native: None } if connection == active
        && reply.local_qpn == SERVER_QPN && reply.local_guid == SERVER_GUID && reply.remote_id == sent.local_id));
    assert!(client.sent().is_empty(), "the RTU waits for the queue pair");

    client.manager.ready(client.now, active).unwrap();
    let (ready, same, _) = client.sent_one();
    assert_eq!(same, transaction, "all messages of the set-up have the transaction id of the REQ");
    server.receive(CLIENT, &ready.to_mad(same).write());
    assert_eq!(server.event(), Event::Established { connection: passive });
    assert_eq!(client.state(active), Some(ConnectionState::Established));
    assert_eq!((client.manager.next_deadline(), server.manager.next_deadline()), (None, None));
    client.take_message(reply_to(message));
    assert!(client.sent().is_empty(), "a REP with another id");
}

#[test]
fn the_reply_goes_to_the_primary_gid_and_neither_source_nor_transaction_are_compared() {
    let (mut server, _) = End::server();
    let other = "10.99.0.77".parse().unwrap();
    server.receive(other, &Message::from(request()).to_mad(TRANSACTION).write());
    let passive = server.requested();
    server.accept(passive);
    let (reply, transaction, destination) = server.sent_one();
    assert_eq!((transaction, destination), (TRANSACTION, CLIENT));
    let Message::ConnectReply(reply) = reply else { panic!() };
    let ready = ReadyToUse { local_id: request().local_id, remote_id: reply.local_id, ..Default::default() };
    server.receive(other, &Message::from(ready).to_mad(!TRANSACTION).write());
    assert_eq!(server.event(), Event::Established { connection: passive });

    let mut client = End::client();
    let active = client.connect();
    let reply = Message::from(reply_to(client.sent_one().0)).to_mad(1);
    client.receive(other, &reply.write());
    assert!(matches!(client.event(), Event::Reply { connection, .. } if connection == active));
}

/// Sheet 1.12: the first repetition after 0.3 s, then doubling to 4 s, 16 sends.
#[test]
fn a_request_without_response_is_repeated_and_given_up() {
    let mut client = End::client();
    let active = client.connect();
    let first = client.sent_one();
    for expected in [300, 600, 1_200, 2_400].into_iter().chain([4_000; 11]) {
        let (waited, sent) = client.wait_for_message();
        assert_eq!((waited, sent), (millis(expected), vec![first]));
    }
    let (waited, sent) = client.wait_for_message();
    let Message::Reject(reject) = sent[0].0 else { panic!("{sent:?}") };
    assert_eq!(waited, seconds(4));
    assert_eq!((reject.reason, reject.rejected), (RejectReason::TIMEOUT, RejectedMessage::Other));
    assert_eq!(reject.remote_id, CommunicationId::NONE);
    assert_eq!(reject.information.as_bytes(), CLIENT_GUID.to_be_bytes());
    let unanswered = Unanswered::ConnectRequest;
    assert_eq!(client.event(), Event::Unreachable { connection: active, unanswered });
    // A late REP gets the REJ again.
    client.take_message(reply_to(first.0));
    assert_eq!(client.sent(), sent);
    client.wait(seconds(61));
    client.take_message(reply_to(first.0));
    assert!(client.sent().is_empty() && client.events().is_empty());
    assert_eq!(client.state(active), Some(ConnectionState::Idle));
}

#[test]
fn the_application_limits_the_time_of_a_request() {
    let mut client = End::client();
    let deadline = Some(client.now + seconds(1));
    let parameters = super::super::ConnectParameters { deadline, ..connect_parameters() };
    let active = client.manager.connect(client.now, &parameters).unwrap();
    client.wait(millis(999));
    assert_eq!((client.sent().len(), client.events()), (3, vec![]));
    client.wait(millis(1));
    assert_eq!(reason_of(client.sent_one().0), (RejectReason::TIMEOUT, RejectedMessage::Other));
    assert!(matches!(client.event(), Event::Unreachable { connection, .. } if connection == active));
}

/// The deadline is that of the REQ.
#[test]
fn the_deadline_of_a_request_does_not_end_a_connection() {
    let mut client = End::client();
    let deadline = Some(client.now + seconds(1));
    let parameters = super::super::ConnectParameters { deadline, ..connect_parameters() };
    let active = client.manager.connect(client.now, &parameters).unwrap();
    let (sent, ..) = client.sent_one();
    client.take_message(reply_to(sent));
    client.event();
    client.manager.ready(client.now, active).unwrap();
    client.wait(seconds(2));
    client.sent_one();
    client.manager.disconnect(client.now, active).unwrap();
    client.wait(seconds(1));
    assert_eq!((client.sent().len(), client.events()), (3, vec![]), "the DREQ is repeated");
}

#[test]
fn a_lost_request_and_a_lost_reply_are_repeated() {
    let (mut client, (mut server, _)) = (End::client(), End::server());
    let active = client.connect();
    client.sent_one();
    let (_, repeated) = client.wait_for_message();
    server.receive(CLIENT, &repeated[0].0.to_mad(repeated[0].1).write());
    let passive = server.requested();
    server.accept(passive);
    let lost = server.sent_one();
    // The REQ's local timeout is 18.
    let (waited, sent) = server.wait_for_message();
    assert_eq!((waited, sent), (millis(1_024), vec![lost]));
    client.receive(SERVER, &lost.0.to_mad(lost.1).write());
    assert!(matches!(client.event(), Event::Reply { .. }));
    client.manager.ready(client.now, active).unwrap();
    let rtu = client.sent_one();
    // The RTU is lost: the server repeats its REP, the client its RTU, each time.
    for _ in 0..3 {
        let (_, again) = server.wait_for_message();
        assert_eq!(again, [lost]);
        client.receive(SERVER, &lost.0.to_mad(lost.1).write());
        assert_eq!(client.sent(), [rtu]);
    }
    server.receive(CLIENT, &rtu.0.to_mad(rtu.1).write());
    assert_eq!(server.event(), Event::Established { connection: passive });
    server.receive(CLIENT, &rtu.0.to_mad(rtu.1).write());
    assert!(server.events().is_empty() && server.sent().is_empty() && client.events().is_empty());
    assert_eq!(server.manager.counters().duplicates.of(rtu.0.attribute()), 1);
}

#[test]
fn a_repeated_request_has_the_response_of_its_state() {
    let (mut server, _) = End::server();
    server.take_message(request());
    let passive = server.requested();
    // Not handed over: nothing. Then an MRA with a short service timeout for each.
    server.take_message(request());
    assert!(server.sent().is_empty());
    server.manager.take(passive).unwrap();
    for _ in 0..2 {
        server.take_message(request());
        let (message, transaction, _) = server.sent_one();
        let Message::MessageReceipt(receipt) = message else { panic!("{message:?}") };
        assert_eq!((receipt.received, receipt.service_timeout.value()), (ReceivedMessage::ConnectRequest, 20));
        assert_eq!((receipt.remote_id, transaction), (request().local_id, TRANSACTION));
    }
    server.accept(passive);
    let reply = server.sent_one();
    server.take_message(request());
    assert!(server.sent().is_empty(), "the repetition was on its way");
    server.wait(millis(200));
    // The same number with another queue pair.
    let other = crate::wire::mad::ConnectRequest { local_qpn: crate::types::Qpn::new(0x99), ..request() };
    server.take_message(other);
    assert!(server.sent().is_empty(), "the REP is another queue pair's");
    server.take_message(request());
    assert_eq!(server.sent(), [reply], "the REP was lost");
    server.manager.communication_established(server.now, passive).unwrap();
    server.wait(millis(200));
    server.take_message(request());
    assert!(server.sent().is_empty(), "established");
    assert_eq!(server.events(), [Event::Established { connection: passive }]);
    assert!(server.manager.communication_established(server.now, passive).is_err());
    server.take_message(other);
    assert!(server.sent().is_empty() && server.events().is_empty());
    // The same number of another host is another connection.
    server.take_message(crate::wire::mad::ConnectRequest { local_guid: 1, ..request() });
    assert_ne!(server.requested(), passive);
}

#[test]
fn a_repeated_reply_has_the_response_of_its_state() {
    let mut client = End::client();
    let active = client.connect();
    let (sent, transaction, _) = client.sent_one();
    let reply = reply_to(sent);
    let unknown = ConnectReply { remote_id: CommunicationId(0x1234), ..reply };
    client.take_message(unknown);
    assert!(client.events().is_empty() && client.sent().is_empty());
    assert_eq!(client.manager.counters().drops.unknown.of(Message::from(unknown).attribute()), 1);
    client.take_message(reply);
    assert!(matches!(client.event(), Event::Reply { .. }));
    client.take_message(reply);
    let (message, ..) = client.sent_one();
    let Message::MessageReceipt(receipt) = message else { panic!("{message:?}") };
    assert_eq!((receipt.received, receipt.service_timeout.value()), (ReceivedMessage::ConnectReply, 20));
    client.manager.ready(client.now, active).unwrap();
    let ready = client.sent_one();
    assert_eq!(ready.1, transaction);
    for _ in 0..2 {
        client.take_message(reply);
        assert_eq!(client.sent(), [ready]);
    }
    client.take_message(ConnectReply { local_id: CommunicationId(9), ..reply });
    assert!(client.events().is_empty() && client.sent().is_empty(), "the peer has another id");
}

fn receipt(received: ReceivedMessage, remote_id: CommunicationId, code: u8) -> MessageReceipt {
    let local_id = CommunicationId(0x74e5_e344);
    MessageReceipt {
        local_id,
        remote_id,
        received,
        service_timeout: TimeoutCode::saturating(code),
        ..Default::default()
    }
}

/// Sheet 1.5 and 1.12: Linux sends the code 24, 65 s.
#[test]
fn a_receipt_stretches_the_wait_within_bounds() {
    let mut client = End::client();
    let active = client.connect();
    let (sent, ..) = client.sent_one();
    let Message::ConnectRequest(request) = sent else { panic!() };
    for _ in 0..64 {
        client.take_message(receipt(ReceivedMessage::ConnectRequest, request.local_id, 24));
        let (waited, repeated) = client.wait_for_message();
        assert_eq!((waited, repeated.len()), (seconds(4), 1));
    }
    // Then the peer has used up the patience, but for the repetitions that any REQ has.
    let before = client.now;
    client.take_message(receipt(ReceivedMessage::ConnectRequest, request.local_id, 24));
    client.wait(seconds(120));
    assert!(matches!(client.event(), Event::Unreachable { connection, .. } if connection == active));
    assert!(client.now - before <= seconds(120));
    for wrong in [ReceivedMessage::ConnectReply, ReceivedMessage::LoadAlternatePath, ReceivedMessage::Reserved] {
        let mut client = End::client();
        client.connect();
        let Message::ConnectRequest(request) = client.sent_one().0 else { panic!() };
        let deadline = client.manager.next_deadline();
        client.take_message(receipt(wrong, request.local_id, 24));
        assert_eq!(client.manager.next_deadline(), deadline);
    }
}

#[test]
fn a_receipt_of_a_reply_needs_both_ids() {
    let (mut server, _) = End::server();
    server.take_message(request());
    let passive = server.requested();
    server.accept(passive);
    let Message::ConnectReply(reply) = server.sent_one().0 else { panic!() };
    let deadline = server.manager.next_deadline();
    // At once it would set the same deadline.
    server.wait(seconds(1));
    server.take_message(receipt(ReceivedMessage::ConnectReply, reply.local_id, 24));
    assert_eq!(server.manager.next_deadline(), deadline, "another id of the peer");
    let right = receipt(ReceivedMessage::ConnectReply, reply.local_id, 24);
    server.take_message(MessageReceipt { local_id: request().local_id, ..right });
    assert_eq!(server.manager.next_deadline(), Some(server.now + millis(4_000)));
}

#[test]
fn a_ready_message_needs_both_ids() {
    let (mut server, _) = End::server();
    server.take_message(request());
    let passive = server.requested();
    server.accept(passive);
    let Message::ConnectReply(reply) = server.sent_one().0 else { panic!() };
    let right = ReadyToUse { local_id: request().local_id, remote_id: reply.local_id, ..Default::default() };
    server.take_message(ReadyToUse { local_id: CommunicationId(7), ..right });
    server.take_message(ReadyToUse { remote_id: CommunicationId(7), ..right });
    assert_eq!((server.events(), server.state(passive)), (vec![], Some(ConnectionState::ReplySent)));
    server.take_message(right);
    assert_eq!(server.event(), Event::Established { connection: passive });
}

/// Sheet 0.5: a peer that asks no time and no repetitions cannot make a server give up at once.
#[test]
fn the_request_chooses_the_repetitions_of_the_reply_within_bounds() {
    for (code, retries, sends, last) in [(0, 0, 4, 1_000), (17, 7, 8, 4_096), (31, 15, 16, 64_000)] {
        let (mut server, _) = End::server();
        let start = server.now;
        server.take_message(crate::wire::mad::ConnectRequest {
            local_response_timeout: TimeoutCode::saturating(code),
            max_cm_retries: MessageRetries::saturating(retries),
            ..request()
        });
        let passive = server.requested();
        server.accept(passive);
        let mut count = server.sent().len();
        loop {
            let (_, sent) = server.wait_for_message();
            if matches!(sent[0].0, Message::Reject(_)) {
                assert_eq!(reason_of(sent[0].0), (RejectReason::TIMEOUT, RejectedMessage::Other));
                break;
            }
            count += sent.len();
        }
        assert_eq!((count, server.now - start), (sends, millis(last)), "code {code}, {retries} retries");
        let unanswered = Unanswered::ConnectReply;
        assert_eq!(server.event(), Event::Unreachable { connection: passive, unanswered });
        // If the peer is ready, a DREQ ends its connection.
        let (waited, sent) = server.wait_for_message();
        assert!(waited == millis(500) && matches!(sent[0].0, Message::DisconnectRequest(_)), "{sent:?}");
        server.wait(seconds(120));
        assert_eq!((server.events(), server.state(passive)), (vec![], Some(ConnectionState::Idle)));
    }
}

#[test]
fn the_application_limits_the_time_of_a_reply() {
    let (_, _, mut server, passive) = requested();
    let deadline = Some(server.now + millis(1_500));
    let parameters = AcceptParameters { local_qpn: SERVER_QPN, deadline, ..AcceptParameters::default() };
    server.manager.accept(server.now, passive, &parameters).unwrap();
    let Message::ConnectReply(reply) = server.sent_one().0 else { panic!() };
    server.wait(millis(1_499));
    assert_eq!((server.sent().len(), server.events()), (1, vec![]), "the peer asks for an interval of 1024 ms");
    server.wait(millis(1));
    assert_eq!(reason_of(server.sent_one().0), (RejectReason::TIMEOUT, RejectedMessage::Other));
    let unanswered = Unanswered::ConnectReply;
    assert_eq!(server.event(), Event::Unreachable { connection: passive, unanswered });
    // If the peer is ready, a DREQ ends its connection. Its repetitions have no deadline.
    let (waited, sent) = server.wait_for_message();
    assert!(waited == millis(500) && matches!(sent[0].0, Message::DisconnectRequest(_)), "{sent:?}");
    server.wait(seconds(1));
    assert_eq!(server.sent().len(), 2);
    let ready = ReadyToUse { local_id: reply.remote_id, remote_id: reply.local_id, ..Default::default() };
    server.take_message(ready);
    assert_eq!((server.events(), server.state(passive)), (vec![], Some(ConnectionState::DisconnectSent)));
}

/// The deadline is that of the REP.
#[test]
fn the_deadline_of_a_reply_does_not_end_a_connection() {
    let (mut client, active, mut server, passive) = requested();
    let deadline = Some(server.now + seconds(1));
    let parameters = AcceptParameters { local_qpn: SERVER_QPN, deadline, ..AcceptParameters::default() };
    server.manager.accept(server.now, passive, &parameters).unwrap();
    deliver([&mut client, &mut server]);
    client.event();
    client.manager.ready(client.now, active).unwrap();
    deliver([&mut client, &mut server]);
    assert_eq!(server.event(), Event::Established { connection: passive });
    server.wait(seconds(2));
    assert_eq!((server.sent(), server.events()), (vec![], vec![]));
    server.manager.disconnect(server.now, passive).unwrap();
    server.wait(seconds(1));
    assert_eq!((server.sent().len(), server.events()), (3, vec![]), "the DREQ is repeated");
}

#[test]
fn a_receipt_does_not_prolong_the_deadline_of_a_reply() {
    let (mut client, active, mut server, passive) = requested();
    let deadline = Some(server.now + seconds(2));
    let parameters = AcceptParameters { local_qpn: SERVER_QPN, deadline, ..AcceptParameters::default() };
    server.manager.accept(server.now, passive, &parameters).unwrap();
    deliver([&mut client, &mut server]);
    // The application of the active end is slow: the repeated REP gets an MRA.
    server.wait(millis(1_100));
    deliver([&mut client, &mut server]);
    assert_eq!(client.state(active), Some(ConnectionState::ReplyReceived));
    server.wait(millis(900));
    let unanswered = Unanswered::ConnectReply;
    assert_eq!(server.event(), Event::Unreachable { connection: passive, unanswered });
}

#[test]
fn a_request_that_is_not_answered_ends_when_its_initiator_is_silent() {
    let (mut server, _) = End::server();
    server.take_message(request());
    let taken = server.requested();
    server.manager.take(taken).unwrap();
    server.wait(seconds(50));
    server.take_message(request());
    server.wait(seconds(50));
    assert!(server.events().is_empty(), "the initiator repeats its REQ");
    server.wait(seconds(11));
    assert_eq!(server.event(), Event::Unreachable { connection: taken, unanswered: Unanswered::Answer });
    assert!(server.manager.accept(server.now, taken, &AcceptParameters::default()).is_err());
    // One that the application has not taken vanishes with its event.
    server.take_message(crate::wire::mad::ConnectRequest { local_guid: 7, ..request() });
    server.wait(seconds(61));
    assert!(server.events().is_empty());
    server.wait(seconds(61));
    assert_eq!((server.manager.connection_count(), server.manager.half_open), (1, 0));
}

#[test]
fn calls_in_the_wrong_state_say_what_is_allowed() {
    let (mut client, (mut server, _)) = (End::client(), End::server());
    let active = client.connect();
    let error = client.manager.ready(client.now, active).unwrap_err();
    let said = "ready needs a connection in the state REP received, but it is in the state REQ sent";
    assert_eq!(error.to_string(), said);
    assert!(client.manager.accept(client.now, active, &AcceptParameters::default()).is_err());
    assert!(client.manager.reject(client.now, active, &Default::default()).is_err());
    assert!(client.manager.disconnect(client.now, active).is_err());
    assert!(client.manager.communication_established(client.now, active).is_err());
    client.manager.destroy(client.now, active).unwrap();
    let destroyed = CallError::Destroyed { call: "destroy", object: "connection" };
    assert_eq!(client.manager.destroy(client.now, active), Err(destroyed));
    assert_eq!(
        client.manager.ready(client.now, active).unwrap_err().to_string(),
        "ready needs a connection that is not destroyed"
    );

    server.take_message(request());
    let passive = server.requested();
    let vendor_options = VendorOptions { vendor: VendorId::new(0x15b3), options: 1 };
    let parameters = AcceptParameters { vendor_options, ..AcceptParameters::default() };
    let error = server.manager.accept(server.now, passive, &parameters).unwrap_err();
    assert!(matches!(error, CallError::Vendor { .. }), "{error}");
    assert!(server.manager.ready(server.now, passive).is_err());
    assert!(server.manager.disconnect(server.now, passive).is_err());
    server.accept(passive);
    assert!(server.manager.accept(server.now, passive, &AcceptParameters::default()).is_err());
    assert!(server.manager.take(passive).is_err());
    let parameters = super::super::ConnectParameters {
        path: super::super::PathParameters { remote: "fd99::2".parse().unwrap(), ..path_parameters() },
        ..connect_parameters()
    };
    assert!(matches!(client.manager.connect(Time::ZERO, &parameters), Err(CallError::IpVersions { .. })));
}
