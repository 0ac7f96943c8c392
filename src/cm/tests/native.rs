//! Keys of connections between native peers.

use super::super::{AcceptParameters, ConnectParameters, ConnectionHandle, ConnectionState, Event, NativePeer};
use super::script::*;
use crate::types::PeerCapabilities;
use crate::wire::mad::{
    AlternatePath, ConnectReply, ConnectRequest, Message, Path, Reject, RejectReason, RejectedMessage,
};

const CLIENT_CAPABILITIES: PeerCapabilities =
    PeerCapabilities::STANDARD.version(1).segmentation_offload(true).receive_buffer_bytes(425_985).extensions(0x1_0003);
const SERVER_CAPABILITIES: PeerCapabilities =
    PeerCapabilities::STANDARD.version(1).receive_buffer_bytes(1 << 20).extensions(1);

impl End {
    fn offer(&mut self) -> ConnectionHandle {
        let parameters = ConnectParameters { native: Some(CLIENT_CAPABILITIES), ..connect_parameters() };
        self.manager.connect(self.now, &parameters).unwrap()
    }

    fn accept_with(&mut self, connection: ConnectionHandle, native: Option<PeerCapabilities>) {
        let parameters = AcceptParameters { local_qpn: SERVER_QPN, native, ..AcceptParameters::default() };
        self.manager.accept(self.now, connection, &parameters).unwrap();
    }

    /// Takes the event of a request, with the key that it offers.
    fn requested_with(&mut self) -> (ConnectionHandle, Option<NativePeer>) {
        match self.event() {
            Event::ConnectRequest { connection, native, .. } => (connection, native),
            other => panic!("{other:?}"),
        }
    }

    /// Takes the event of a reply, with the key of the connection.
    fn replied_with(&mut self) -> Option<NativePeer> {
        match self.event() {
            Event::Reply { native, .. } => native,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the only message to send, a REQ.
    fn request(&mut self) -> ConnectRequest {
        match self.sent_one().0 {
            Message::ConnectRequest(request) => request,
            other => panic!("{other:?}"),
        }
    }
}

/// Sets up a connection. Returns the peer that each end learns of.
fn handshake(offered: bool, accepted: Option<PeerCapabilities>) -> [Option<NativePeer>; 2] {
    let (mut client, (mut server, _)) = (End::client(), End::server());
    let active = if offered { client.offer() } else { client.connect() };
    deliver([&mut client, &mut server]);
    let (passive, client_as_seen) = server.requested_with();
    server.accept_with(passive, accepted);
    deliver([&mut client, &mut server]);
    let server_as_seen = client.replied_with();
    client.manager.ready(client.now, active).unwrap();
    deliver([&mut client, &mut server]);
    assert_eq!(server.event(), Event::Established { connection: passive });
    [server_as_seen, client_as_seen]
}

#[test]
fn both_ends_of_a_native_connection_have_the_same_key() {
    let [Some(server), Some(client)] = handshake(true, Some(SERVER_CAPABILITIES)) else { panic!() };
    assert_eq!((client.capabilities, server.capabilities), (CLIENT_CAPABILITIES, SERVER_CAPABILITIES));
    assert!(client.key.is_agreed && server.key.is_agreed);
    assert_eq!((client.key.local, client.key.remote), (server.key.remote, server.key.local));
    assert_ne!(client.key.local, client.key.remote);
}

#[test]
fn a_connection_has_no_key_unless_both_ends_are_native() {
    assert_eq!(handshake(false, Some(SERVER_CAPABILITIES)), [None, None]);
    let [server, client] = handshake(true, None);
    assert!(client.is_some_and(|client| client.capabilities == CLIENT_CAPABILITIES), "the passive end may refuse it");
    assert_eq!(server, None);
}

#[test]
fn a_request_without_capabilities_and_its_reply_are_the_standards() {
    let (mut client, (mut server, _)) = (End::client(), End::server());
    let parameters = ConnectParameters { native: Some(PeerCapabilities::STANDARD), ..connect_parameters() };
    client.manager.connect(client.now, &parameters).unwrap();
    let request = client.request();
    assert_eq!(request.alternate_path, AlternatePath::default());
    server.take_message(request);
    let passive = server.requested();
    server.accept_with(passive, Some(SERVER_CAPABILITIES));
    let Message::ConnectReply(reply) = server.sent_one().0 else { panic!() };
    assert_eq!((reply.local_qkey, reply.local_eecn), Default::default());
}

#[test]
fn a_confirmation_without_an_offer_means_nothing() {
    let mut client = End::client();
    let active = client.connect();
    let (sent, ..) = client.sent_one();
    client.take_message(reply_to(sent).confirming(&SERVER_CAPABILITIES));
    assert_eq!(client.replied_with(), None);
    assert_eq!(client.state(active), Some(ConnectionState::ReplyReceived));
}

#[test]
fn numbers_of_a_standard_peer_are_no_confirmation() {
    let mut client = End::client();
    client.offer();
    let (sent, ..) = client.sent_one();
    let reply = reply_to(sent);
    client.take_message(ConnectReply { local_qkey: crate::types::Qkey(0x8001_0000), ..reply });
    assert_eq!(client.replied_with(), None);
}

#[test]
fn an_offer_of_another_version_is_none() {
    let mut client = End::client();
    client.offer();
    let request = client.request();
    let mut bytes = Message::from(request).to_mad(TRANSACTION).write();
    bytes[24 + 120] = 2;
    let (mut server, _) = End::server();
    server.receive(CLIENT, &bytes);
    assert_eq!(server.requested_with().1, None);
}

#[test]
fn an_alternate_path_is_still_refused() {
    let mut client = End::client();
    client.offer();
    let offered = client.request();
    let mut bytes = Message::from(offered).to_mad(TRANSACTION).write();
    bytes[24 + 97] = 1;
    let (mut server, _) = End::server();
    server.receive(CLIENT, &bytes);
    assert_eq!(reason_of(server.sent_one().0), (RejectReason::INVALID_ALTERNATE_GID, RejectedMessage::ConnectRequest));
    let empty = ConnectRequest { alternate_path: AlternatePath::new(Path::default()), ..offered };
    server.take_message(empty);
    assert_eq!(server.requested_with().1, None);
}

#[test]
fn repeated_requests_offer_the_same_share_and_new_connections_another_one() {
    let mut client = End::client();
    client.offer();
    let first = client.request();
    let (_, again) = client.wait_for_message();
    assert_eq!(again[0].0, first.into());
    // A new id for the same connection, after a stale one.
    let (reason, rejected) = (RejectReason::STALE_CONNECTION, RejectedMessage::ConnectRequest);
    client.take_message(Reject { remote_id: first.local_id, reason, rejected, ..Default::default() });
    let (_, renewed) = client.wait_for_message();
    let Message::ConnectRequest(renewed) = renewed[0].0 else { panic!() };
    assert_ne!(renewed.local_id, first.local_id);
    assert!(first.alternate_path.offer().is_some());
    assert_eq!(renewed.alternate_path, first.alternate_path);
    client.offer();
    let other = client.request();
    assert!(other.alternate_path.offer().is_some());
    assert_ne!(other.alternate_path, first.alternate_path);
}

/// The queue pair of the passive end uses the key of the first REQ, whatever a forged repetition says.
#[test]
fn a_repetition_does_not_change_the_key() {
    let mut client = End::client();
    client.offer();
    let first = client.request();
    client.offer();
    let other = client.request();
    let (mut server, _) = End::server();
    server.take_message(first);
    let (passive, offered) = server.requested_with();
    server.take_message(ConnectRequest { alternate_path: other.alternate_path, ..first });
    server.take_message(ConnectRequest { alternate_path: AlternatePath::default(), ..first });
    assert!(server.events().is_empty());
    server.accept_with(passive, Some(SERVER_CAPABILITIES));
    let Message::ConnectReply(reply) = server.sent_one().0 else { panic!() };
    assert_eq!(reply.confirmation(), Some(SERVER_CAPABILITIES));
    let key = first.alternate_path.offer().map(|offer| offer.passive_key(reply.local_id));
    assert_eq!(offered.map(|peer| peer.key), key);
    // The REP is repeated as it is.
    let (_, again) = server.wait_for_message();
    assert_eq!(again[0].0, reply.into());
}
