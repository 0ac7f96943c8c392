//! Extended reliable connections (XRC): initiators and targets.

use super::super::{AcceptParameters, ConnectParameters, ConnectionHandle, ConnectionState, Event};
use super::script::*;
use crate::types::{PeerCapabilities, Qpn};
use crate::wire::mad::{
    ConnectReply, ConnectRequest, ConnectionTransport, EndToEndContext, ExtendedTransport, Message, RejectReason,
    RejectedMessage, RetryCount, TransportType,
};

const CAPABILITIES: PeerCapabilities = PeerCapabilities::STANDARD.version(1).receive_buffer_bytes(1 << 20);

fn initiator_parameters() -> ConnectParameters {
    ConnectParameters {
        transport: ConnectionTransport::ExtendedReliable,
        has_srq: true,
        native: Some(CAPABILITIES),
        ..connect_parameters()
    }
}

fn target_server() -> End {
    let mut server = End::new(SERVER, SERVER_GUID);
    server.listen_for(SERVICE, ConnectionTransport::ExtendedReliable, 8);
    server
}

fn connect(client: &mut End) -> ConnectionHandle {
    client.manager.connect(client.now, &initiator_parameters()).unwrap()
}

fn accept(server: &mut End, connection: ConnectionHandle) {
    let parameters = AcceptParameters {
        local_qpn: SERVER_QPN,
        responder_resources: 3,
        initiator_depth: 4,
        end_to_end_flow_control: true,
        rnr_retry_count: RetryCount::saturating(5),
        native: Some(CAPABILITIES),
        ..AcceptParameters::default()
    };
    server.manager.accept(server.now, connection, &parameters).unwrap();
}

/// A hand-made REQ of an initiator.
fn extended_request() -> ConnectRequest {
    let (transport, extended_transport) = (TransportType::Extended, ExtendedTransport::XRC);
    ConnectRequest { transport, extended_transport, ..request() }
}

/// A hand-made REP of a target, whose field of the queue pair has another number.
fn target_reply(sent: Message, target: Qpn) -> ConnectReply {
    ConnectReply { local_qpn: Qpn::new(0x77), local_eecn: EndToEndContext::new(target.value()), ..reply_to(sent) }
}

fn replied(client: &mut End) -> ConnectReply {
    match client.event() {
        Event::Reply { reply, native: None, .. } => *reply,
        other => panic!("{other:?}"),
    }
}

/// As Linux fills the messages: a target requests nothing, and an initiator serves nothing. Neither has a key, because
/// its confirmation needs the field of the target's number.
#[test]
fn initiator_is_connected_to_a_target() {
    let (mut client, mut server) = (End::client(), target_server());
    let active = connect(&mut client);
    let (message, transaction, _) = client.sent_one();
    let Message::ConnectRequest(sent) = message else { panic!("{message:?}") };
    assert_eq!((sent.transport, sent.extended_transport), (TransportType::Extended, ExtendedTransport::XRC));
    assert_eq!((sent.responder_resources, sent.initiator_depth, sent.has_srq), (0, 6, false));
    assert_eq!((sent.retry_count.value(), sent.rnr_retry_count.value(), sent.local_qpn), (0, 0, CLIENT_QPN));
    assert_eq!(sent.alternate_path.offer(), None);

    server.receive(CLIENT, &message.to_mad(transaction).write());
    let passive = server.requested();
    accept(&mut server, passive);
    let (message, transaction, _) = server.sent_one();
    let Message::ConnectReply(sent) = message else { panic!("{message:?}") };
    assert_eq!((sent.local_qpn.value(), sent.local_eecn.value()), (0, SERVER_QPN.value()));
    assert_eq!((sent.responder_resources, sent.initiator_depth, sent.has_srq), (3, 0, true));
    assert_eq!((sent.end_to_end_flow_control, sent.rnr_retry_count.value(), sent.local_qkey.0), (false, 5, 0));

    client.receive(SERVER, &message.to_mad(transaction).write());
    assert_eq!(replied(&mut client).local_qpn, SERVER_QPN);
    client.manager.ready(client.now, active).unwrap();
    deliver([&mut client, &mut server]);
    assert_eq!(server.event(), Event::Established { connection: passive });

    client.manager.disconnect(client.now, active).unwrap();
    let (message, transaction, _) = client.sent_one();
    assert!(matches!(message, Message::DisconnectRequest(sent) if sent.remote_qpn == SERVER_QPN), "{message:?}");
    server.receive(CLIENT, &message.to_mad(transaction).write());
    assert_eq!(server.state(passive), Some(ConnectionState::DisconnectReceived));
}

/// Extended transport types other than XRC are none; those of the other transports are ignored, as by Linux.
#[test]
fn listener_takes_requests_with_its_transport_only() {
    let transports =
        [TransportType::ReliableConnection, TransportType::UnreliableConnection, TransportType::ReliableDatagram];
    for listens_for in [ConnectionTransport::Reliable, ConnectionTransport::ExtendedReliable] {
        for (transport, code) in transports
            .into_iter()
            .chain([TransportType::Extended])
            .flat_map(|transport| (0..8).map(move |code| (transport, code)))
        {
            let mut server = End::new(SERVER, SERVER_GUID);
            server.listen_for(SERVICE, listens_for, 8);
            let extended_transport = ExtendedTransport::new(code).unwrap();
            server.take_message(ConnectRequest { transport, extended_transport, ..request() });
            let is_meant = match listens_for {
                ConnectionTransport::Reliable => transport == TransportType::ReliableConnection,
                ConnectionTransport::ExtendedReliable => (transport, code) == (TransportType::Extended, 1),
            };
            if is_meant {
                server.requested();
            } else {
                let refused = (RejectReason::CONSUMER, RejectedMessage::ConnectRequest);
                assert_eq!(reason_of(server.sent_one().0), refused, "{transport:?} {code}");
                assert_eq!((server.events().len(), server.manager.connection_count()), (0, 0));
            }
        }
    }
}

/// The number of a target makes a connection stale as that of any other queue pair, and the field of queue pairs does
/// not: it has the same number in all replies.
#[test]
fn reply_with_the_target_of_a_live_connection_is_stale() {
    let mut client = End::client();
    for (target, is_stale) in [(SERVER_QPN, false), (Qpn::new(0x22), false), (SERVER_QPN, true)] {
        let active = connect(&mut client);
        let reply = target_reply(client.sent_one().0, target);
        client.take_message(ConnectReply { local_id: crate::wire::mad::CommunicationId(target.value()), ..reply });
        if is_stale {
            let reject = client.sent().into_iter().find(|sent| matches!(sent.0, Message::Reject(_))).expect("a REJ");
            assert_eq!(reason_of(reject.0), (RejectReason::STALE_CONNECTION, RejectedMessage::ConnectReply));
        } else {
            assert_eq!(replied(&mut client).local_qpn, target);
            client.manager.ready(client.now, active).unwrap();
            client.sent();
        }
    }
}

/// The offer of a native sender, which is in the place of the alternate path, is ignored.
#[test]
fn offers_in_requests_of_initiators_are_ignored() {
    let mut client = End::client();
    let parameters = ConnectParameters { native: Some(CAPABILITIES), ..connect_parameters() };
    client.manager.connect(client.now, &parameters).unwrap();
    let Message::ConnectRequest(offering) = client.sent_one().0 else { panic!() };
    assert!(offering.alternate_path.offer().is_some());
    let mut server = target_server();
    server.take_message(ConnectRequest { alternate_path: offering.alternate_path, ..extended_request() });
    let event = server.event();
    let Event::ConnectRequest { connection, native: None, .. } = event else { panic!("{event:?}") };
    accept(&mut server, connection);
    let Message::ConnectReply(sent) = server.sent_one().0 else { panic!() };
    assert_eq!((sent.local_qkey.0, sent.local_eecn.value()), (0, SERVER_QPN.value()));
}

mod any {
    use super::*;
    use crate::wire::mad::MAD_BYTES;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Any bytes in a REQ to a target or in a REP to an initiator: no panic, an event or one response, and the next
        /// message is served. The number of the target is in bytes 16 to 18.
        #[test]
        fn any_request_and_reply_is_survived(
            data in proptest::collection::vec(any::<u8>(), 232),
            kept in 0_usize..232,
        ) {
            let mut server = target_server();
            let mut bytes = Message::from(extended_request()).to_mad(TRANSACTION).write();
            bytes[24 + kept..].copy_from_slice(&data[kept..]);
            server.receive(CLIENT, &bytes);
            // A request for a port without a listener waits for one.
            server.wait(millis(250));
            prop_assert_eq!(server.sent().len() + server.events().len(), 1);
            let local_id = crate::wire::mad::CommunicationId(9);
            server.take_message(ConnectRequest { local_id, local_qpn: Qpn::new(0x77), ..extended_request() });
            let passive = server.requested();
            accept(&mut server, passive);

            let mut client = End::client();
            connect(&mut client);
            let sent = Message::from(target_reply(client.sent_one().0, SERVER_QPN)).to_mad(TRANSACTION).write();
            let mut bytes: [u8; MAD_BYTES] = sent;
            bytes[32..].copy_from_slice(&data[8..]);
            client.receive(SERVER, &bytes);
            let number = u32::from_be_bytes([0, data[16], data[17], data[18]]);
            prop_assert_eq!(replied(&mut client).local_qpn.value(), number);
        }
    }
}
