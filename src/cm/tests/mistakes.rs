//! Mistakes in datagrams, and the answer to each (sheet 1.1 and 1.6).

use std::net::IpAddr;

use super::super::{Arrival, Event};
use super::script::*;
use crate::types::{Gid, Qpn};
use crate::wire::mad::{
    AdditionalInformation, AlternatePath, Attribute, CommunicationId, ConnectRequest, FlowLabel, IpHeader, MAD_BYTES,
    Mad, ManagementClass, Message, MtuCode, Path, PrivateData, RejectReason, RejectedMessage, ServiceId, TimeoutCode,
    TransportType,
};

/// Sends a REQ to a fresh server. Returns the REJ's reason and information, or `None` if it is accepted.
fn verdict(request: ConnectRequest) -> Option<(RejectReason, AdditionalInformation<7>)> {
    let (mut server, _) = End::server();
    server.listen(DATAGRAM_SERVICE, 8);
    server.take_message(request);
    let mut sent = server.sent();
    if sent.is_empty() {
        let events = server.events();
        if let [Event::ConnectRequest { .. }] = events[..] {
            return None;
        }
        // A request for a port without a listener waits for one.
        assert!(events.is_empty(), "{events:?}");
        server.wait(millis(250));
        sent = server.sent();
    }
    let (Message::Reject(reject), transaction, destination) = sent[0] else { panic!("{sent:?}") };
    assert_eq!((sent.len(), transaction, destination), (1, TRANSACTION, CLIENT));
    assert_eq!((reject.local_id, reject.remote_id), (CommunicationId::NONE, request.local_id));
    assert_eq!(reject.rejected, RejectedMessage::ConnectRequest);
    assert!(server.events().is_empty() && server.manager.connection_count() == 0);
    Some((reject.reason, reject.information))
}

fn reason(request: ConnectRequest) -> Option<u16> {
    verdict(request).map(|(reason, _)| reason.0)
}

/// A REQ with a change of its private data.
fn with_data(change: impl FnOnce(&mut [u8; 92])) -> ConnectRequest {
    let mut bytes = *request().private_data.as_bytes();
    change(&mut bytes);
    ConnectRequest { private_data: PrivateData::new(&bytes).unwrap(), ..request() }
}

/// A REQ with these addresses in its header.
fn with_header(source: &str, destination: &str) -> ConnectRequest {
    let header = IpHeader::new(source.parse().unwrap(), destination.parse().unwrap()).unwrap();
    ConnectRequest { private_data: header.with_data(&[]).unwrap(), ..request() }
}

fn with_path(change: impl FnOnce(&mut crate::wire::mad::Path)) -> ConnectRequest {
    let mut request = request();
    change(&mut request.primary_path);
    request
}

#[test]
fn requests_without_a_listener_are_refused() {
    assert_eq!(reason(request()), None);
    for service in [0x0106_138a, 0x0002_1389, 0x013f_1389, 0x1389, 0x1_0106_1389, u64::MAX, 0] {
        let (reason, information) = verdict(ConnectRequest { service_id: ServiceId(service), ..request() }).unwrap();
        assert_eq!((reason, information.stated_length()), (RejectReason::INVALID_SERVICE_ID, 0));
    }
    let datagrams = ConnectRequest { service_id: DATAGRAM_SERVICE, ..request() };
    assert_eq!(reason(datagrams), Some(28));
}

#[test]
fn paths_are_checked() {
    let gid = |address: &str| Gid::from(address.parse::<IpAddr>().unwrap());
    let right = AdditionalInformation::new(&Gid::from(SERVER).to_bytes()).unwrap();
    let wrong = [
        with_path(|path| path.local_gid = Gid::ZERO),
        with_path(|path| path.local_gid = gid("fd99::3")),
        with_path(|path| path.local_gid = gid("224.0.0.1")),
        with_path(|path| path.local_gid = gid("255.255.255.255")),
        with_path(|path| path.local_gid = gid("0.0.0.0")),
        with_path(|path| path.remote_gid = gid("10.99.0.7")),
        ConnectRequest { pkey: 0x1234, ..request() },
        ConnectRequest { pkey: 0, ..request() },
    ];
    for wrong in wrong {
        assert_eq!(verdict(wrong), Some((RejectReason::INVALID_GID, right)), "{wrong:?}");
    }
    assert_eq!(reason(ConnectRequest { pkey: 0x7fff, ..request() }), None);
    let mut alternate = request();
    alternate.alternate_path = AlternatePath::new(Path { local_gid: gid("10.99.0.9"), ..Path::default() });
    assert_eq!(reason(alternate), None, "there is no alternate path without a LID");
    alternate.alternate_path = AlternatePath::new(Path { local_lid: 1, ..Path::default() });
    assert_eq!(verdict(alternate), Some((RejectReason::INVALID_ALTERNATE_GID, right)));
    // Another address of the sender is where the REP goes.
    assert_eq!(reason(with_path(|path| path.local_gid = gid("10.99.0.77"))), None);
}

#[test]
fn headers_of_ip_connections_are_checked() {
    assert_eq!(reason(with_data(|bytes| bytes[0] = 1)), Some(28));
    assert_eq!(reason(with_data(|bytes| bytes[1] = 0x50)), Some(28));
    assert_eq!(reason(with_data(|bytes| bytes[1] = 0x60)), Some(28));
    assert_eq!(reason(with_data(|bytes| bytes.fill(0))), Some(28));
    assert_eq!(reason(with_data(|bytes| bytes[2..4].fill(0))), None, "port 0");
    for source in ["127.0.0.1:1", "0.0.0.0:1", "224.0.0.1:1", "255.255.255.255:1"] {
        assert_eq!(reason(with_header(source, "10.99.0.2")), Some(28), "{source}");
    }
    for destination in ["10.99.0.77", "127.0.0.1", "0.0.0.0"] {
        assert_eq!(reason(with_header("10.99.0.3:1", destination)), Some(28), "{destination}");
    }
    for source in ["10.99.0.77:1", "10.99.0.2:1"] {
        assert_eq!(reason(with_header(source, "10.99.0.2")), None, "{source}");
    }
}

#[test]
fn header_and_path_have_one_ip_version() {
    let (mut server, _) = End::server();
    server.manager.set_addresses(vec![SERVER, "fd99::2".parse().unwrap()]);
    server.take_message(with_header("[fd99::3]:1", "fd99::2"));
    assert_eq!(reason_of(server.sent_one().0), (RejectReason::CONSUMER, RejectedMessage::ConnectRequest));
    assert!(server.events().is_empty());
}

/// Sheet 1.1: over IPv4 Linux responds with the traffic class 0.
#[test]
fn responses_mirror_the_traffic_class_over_ipv6() {
    let (mut server, _) = End::server();
    let bytes = Message::from(ConnectRequest { pkey: 0, ..request() }).to_mad(TRANSACTION).write();
    let (traffic_class, flow_label) = (0x68, FlowLabel::new(7));
    for (source, destination) in [("10.99.0.3", "10.99.0.2"), ("fd99::3", "fd99::2")] {
        let (source, destination): (IpAddr, IpAddr) = (source.parse().unwrap(), destination.parse().unwrap());
        let arrival = Arrival { source, destination, traffic_class, flow_label, bytes: &bytes };
        server.manager.handle_datagram(server.now, &arrival);
        let outputs = server.outputs();
        assert_eq!((outputs.len(), outputs[0].source, outputs[0].destination), (1, destination, source));
        let expected = if source.is_ipv6() { (traffic_class, flow_label) } else { (0, FlowLabel::default()) };
        assert_eq!((outputs[0].traffic_class, outputs[0].flow_label), expected, "{source}");
    }
}

#[test]
fn other_transports_and_mtus_are_refused() {
    use TransportType as T;
    for transport in [T::UnreliableConnection, T::ReliableDatagram, T::Extended] {
        assert_eq!(reason(ConnectRequest { transport, ..request() }), Some(28));
    }
    for code in 0..16 {
        let expected = if (1..=5).contains(&code) { None } else { Some(26) };
        assert_eq!(reason(ConnectRequest { path_mtu: MtuCode::new(code).unwrap(), ..request() }), expected, "{code}");
    }
}

#[test]
fn other_fields_have_any_value() {
    let mut path = with_path(|path| {
        (path.local_lid, path.remote_lid, path.hop_limit) = (0, 7, 0);
        path.subnet_local = true;
        path.local_ack_timeout = TimeoutCode::MAX;
    });
    path.primary_path.service_level = crate::wire::mad::ServiceLevel::MAX;
    path.primary_path.packet_rate = crate::wire::mad::PacketRate::MAX;
    let accepted = [
        path,
        ConnectRequest { local_guid: 0, ..request() },
        ConnectRequest { local_id: CommunicationId::NONE, ..request() },
        ConnectRequest { local_qpn: Qpn::new(0), ..request() },
        ConnectRequest { local_qpn: Qpn::new(1), ..request() },
        ConnectRequest { local_qpn: Qpn::MULTICAST, ..request() },
        ConnectRequest { responder_resources: 255, initiator_depth: 255, ..request() },
        ConnectRequest { responder_resources: 0, initiator_depth: 0, has_srq: true, ..request() },
    ];
    for request in accepted {
        assert_eq!(reason(request), None, "{request:?}");
    }
}

#[test]
fn the_most_specific_listener_gets_a_request() {
    let (mut server, any) = End::server();
    let listen = |server: &mut End, address: &str| {
        let parameters = super::super::ListenParameters {
            service_id: SERVICE,
            address: address.parse().ok(),
            is_datagram: false,
            transport: Default::default(),
            backlog: 4,
        };
        server.manager.listen(parameters)
    };
    let mut number = 0;
    let mut found = |server: &mut End| {
        number += 1;
        let (local_id, local_qpn) = (CommunicationId(number), Qpn::new(number));
        server.take_message(ConnectRequest { local_id, local_qpn, ..request() });
        match server.event() {
            Event::ConnectRequest { listener, .. } => listener,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(found(&mut server), any);
    let other = listen(&mut server, "10.99.0.9").unwrap();
    let v6 = listen(&mut server, "::").unwrap();
    assert_eq!(found(&mut server), any);
    let v4 = listen(&mut server, "0.0.0.0").unwrap();
    assert_eq!(found(&mut server), v4);
    let exact = listen(&mut server, "10.99.0.2").unwrap();
    assert_eq!(found(&mut server), exact);
    let error = listen(&mut server, "10.99.0.2").unwrap_err();
    assert_eq!(error.to_string(), "service id 0x0000000001061389 already has a listener at 10.99.0.2");
    for listener in [any, v4, exact] {
        server.manager.destroy_listener(server.now, listener).unwrap();
    }
    assert!(server.manager.destroy_listener(server.now, any).is_err());
    server.sent();
    server.take_message(ConnectRequest { local_id: CommunicationId(99), local_qpn: Qpn::new(99), ..request() });
    assert_eq!(reason_of(server.sent_one().0).0, RejectReason::CONSUMER);
    for listener in [other, v6] {
        server.manager.destroy_listener(server.now, listener).unwrap();
    }
    server.take_message(ConnectRequest { local_id: CommunicationId(98), local_qpn: Qpn::new(98), ..request() });
    server.wait(millis(250));
    assert_eq!(reason_of(server.sent_one().0).0, RejectReason::INVALID_SERVICE_ID);
}

#[test]
fn datagrams_of_other_sizes_and_headers_are_dropped() {
    let (mut server, _) = End::server();
    let good = Message::from(request()).to_mad(TRANSACTION).write();
    for length in [0, 10, 24, 200, 255, 257, 300, 512] {
        let bytes: Vec<u8> = good.iter().copied().chain([0; 256]).take(length).collect();
        server.receive(CLIENT, &bytes);
    }
    assert_eq!(server.manager.counters().drops.length, 8);
    let changes = [(0, 2), (1, 8), (1, 3), (2, 1), (2, 3), (3, 1), (3, 2), (3, 0x81), (17, 0x1b), (17, 0xff)];
    for (place, value) in changes {
        let mut bytes = good;
        bytes[place] = value;
        server.receive(CLIENT, &bytes);
    }
    assert_eq!(server.manager.counters().drops.header, changes.len() as u64);
    assert!(server.sent().is_empty() && server.events().is_empty());
}

#[test]
fn queries_get_the_response_that_they_are_not_supported() {
    let (mut server, _) = End::server();
    let mut bytes = [0x5a; MAD_BYTES];
    bytes[..4].copy_from_slice(&[1, 7, 2, 1]);
    bytes[16..18].copy_from_slice(&Attribute::CLASS_PORT_INFO.0.to_be_bytes());
    server.receive(CLIENT, &bytes);
    let outputs = server.outputs();
    let response = Mad::read(&outputs[0].bytes).unwrap();
    assert_eq!((outputs.len(), outputs[0].destination, outputs[0].traffic_class), (1, CLIENT, 0));
    assert_eq!((response.method.0, response.status), (0x81, 0x000c));
    assert_eq!(response.data, Mad::read(&bytes).unwrap().data);
    bytes[1] = ManagementClass(4).0;
    server.receive(CLIENT, &bytes);
    assert_eq!(server.outputs().len(), 1);
    server.receive(CLIENT, &outputs[0].bytes);
    assert!(server.outputs().is_empty(), "a response has no response");
    assert_eq!(server.manager.counters().unsupported, 2);
}

mod any {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Any bytes with the header of a message: no panic, no more than two responses, none of another size; and the
        /// next REQ is served.
        #[test]
        fn any_messages_are_survived(messages in proptest::collection::vec(
            (0x10_u8..0x1b, proptest::collection::vec(any::<u8>(), 232), any::<bool>()), 1..40,
        )) {
            let (mut client, active, mut server, passive) = connected();
            let waiting = client.connect();
            for (attribute, data, is_to_client) in messages {
                let mut bytes = [0; MAD_BYTES];
                bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
                bytes[17] = attribute;
                bytes[24..].copy_from_slice(&data);
                let end = if is_to_client { &mut client } else { &mut server };
                end.outputs();
                end.receive(CLIENT, &bytes);
                prop_assert!(end.outputs().len() <= 2);
                end.wait(millis(20));
            }
            let is_alive = |end: &End, handle| end.state(handle) == Some(crate::cm::ConnectionState::Established);
            prop_assert!(is_alive(&client, active) && is_alive(&server, passive));
            prop_assert_eq!(client.state(waiting), Some(crate::cm::ConnectionState::RequestSent));
            server.events();
            server.outputs();
            server.take_message(ConnectRequest { local_qpn: Qpn::new(0x77), ..request() });
            server.requested();
        }
    }
}
