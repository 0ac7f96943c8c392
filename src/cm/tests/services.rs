//! Datagram queue pairs: SIDR_REQ and SIDR_REP.

use super::super::{DatagramQueuePair, Event, InquiryHandle, Limits, ResolveParameters};
use super::script::*;
use crate::types::{Qkey, Qpn};
use crate::wire::mad::{
    CommunicationId, IpHeader, Message, PrivateData, ServiceIdReply, ServiceIdRequest, ServiceIdStatus,
};

fn parameters() -> ResolveParameters {
    ResolveParameters {
        service_id: DATAGRAM_SERVICE,
        header: header(),
        path: path_parameters(),
        private_data: PrivateData::new(&[3; 180]).unwrap(),
        deadline: None,
    }
}

fn server() -> End {
    let (mut server, _) = End::server();
    server.listen(DATAGRAM_SERVICE, 4);
    server
}

fn inquiry(server: &mut End) -> InquiryHandle {
    match server.event() {
        Event::Inquiry { inquiry, .. } => inquiry,
        other => panic!("{other:?}"),
    }
}

fn inquired(request_id: u32) -> ServiceIdRequest {
    ServiceIdRequest {
        request_id: CommunicationId(request_id),
        pkey: 0x1234,
        service_id: DATAGRAM_SERVICE,
        private_data: header().with_data(&[3; 180]).unwrap(),
    }
}

fn status(message: Message) -> ServiceIdStatus {
    match message {
        Message::ServiceIdReply(reply) => reply.status,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_request_gets_a_queue_pair() {
    let (mut client, mut server) = (End::client(), server());
    let resolution = client.manager.resolve(client.now, &parameters()).unwrap();
    deliver([&mut client, &mut server]);
    let event = server.event();
    let Event::Inquiry { inquiry, header: found, private_data, .. } = event else { panic!("{event:?}") };
    assert_eq!((found, private_data.as_bytes()), (header(), &[3; 180]));
    let private_data = PrivateData::new(&[9; 136]).unwrap();
    let answer = DatagramQueuePair { qpn: Qpn::new(0x77), qkey: Qkey(0x0123_4567), private_data, ..Default::default() };
    server.manager.answer(server.now, inquiry, &answer).unwrap();
    assert!(server.manager.answer(server.now, inquiry, &answer).is_err());
    deliver([&mut client, &mut server]);
    let event = client.event();
    let Event::Resolved { resolution: found, reply } = event else { panic!("{event:?}") };
    assert_eq!(
        (found, reply.status, reply.qpn, reply.qkey),
        (resolution, ServiceIdStatus::VALID, answer.qpn, answer.qkey)
    );
    assert_eq!(reply.private_data, private_data);
    client.take_message(*reply);
    assert!(client.events().is_empty() && client.manager.next_deadline().is_none());
    server.wait(seconds(61));
    assert_eq!(server.manager.next_deadline(), None);
}

#[test]
fn requests_are_repeated_and_given_up() {
    let mut client = End::client();
    let resolution = client.manager.resolve(client.now, &parameters()).unwrap();
    client.wait(seconds(60));
    assert_eq!((client.sent().len(), client.event()), (16, Event::Unresolved { resolution }));
    let deadline = Some(client.now + seconds(2));
    let limited = ResolveParameters { deadline, ..parameters() };
    let resolution = client.manager.resolve(client.now, &limited).unwrap();
    client.wait(seconds(2));
    assert_eq!((client.sent().len(), client.event()), (3, Event::Unresolved { resolution }));
    let resolution = client.manager.resolve(client.now, &parameters()).unwrap();
    client.manager.destroy_resolution(resolution);
    client.sent();
    client.wait(seconds(60));
    assert!(client.sent().is_empty() && client.events().is_empty());
}

/// Linux asks the application again.
#[test]
fn a_lost_response_is_repeated() {
    let mut server = server();
    server.take_message(inquired(7));
    let first = inquiry(&mut server);
    server.take_message(inquired(7));
    assert!(server.sent().is_empty() && server.events().is_empty(), "not answered yet");
    server.manager.refuse_inquiry(server.now, first, ServiceIdStatus::REJECTED, PrivateData::default()).unwrap();
    let reply = server.sent_one();
    assert_eq!((status(reply.0), reply.1, reply.2), (ServiceIdStatus::REJECTED, TRANSACTION, CLIENT));
    server.take_message(inquired(7));
    assert_eq!(server.sent(), [reply]);
    server.wait(seconds(61));
    server.take_message(inquired(7));
    assert_ne!(inquiry(&mut server), first);
}

#[test]
fn requests_of_two_hosts_with_one_number_are_both_served() {
    let mut server = server();
    server.take_message(inquired(7));
    let other = "10.99.0.8".parse().unwrap();
    server.receive(other, &Message::from(inquired(7)).to_mad(1).write());
    let events = server.events();
    assert_eq!(events.len(), 2);
    for (event, source) in events.iter().zip([CLIENT, other]) {
        let Event::Inquiry { inquiry, .. } = event else { panic!() };
        server.manager.answer(server.now, *inquiry, &Default::default()).unwrap();
        assert_eq!(server.sent_one().2, source);
    }
}

#[test]
fn mistakes_have_their_status() {
    let wrong_header = IpHeader::new("10.99.0.3:1".parse().unwrap(), "10.99.0.77".parse().unwrap()).unwrap();
    let cases = [
        (ServiceIdRequest { service_id: Default::default(), ..inquired(1) }, ServiceIdStatus::UNSUPPORTED),
        (ServiceIdRequest { service_id: SERVICE, ..inquired(2) }, ServiceIdStatus::REJECTED),
        (ServiceIdRequest { private_data: Default::default(), ..inquired(3) }, ServiceIdStatus::REJECTED),
        (
            ServiceIdRequest { private_data: wrong_header.with_data(&[]).unwrap(), ..inquired(4) },
            ServiceIdStatus::REJECTED,
        ),
    ];
    for (request, expected) in cases {
        let mut server = server();
        server.take_message(request);
        let (message, transaction, _) = server.sent_one();
        assert_eq!((status(message), transaction), (expected, TRANSACTION));
        assert!(server.events().is_empty());
    }
}

#[test]
fn a_response_with_another_service_id_is_accepted_and_others_are_dropped() {
    let mut client = End::client();
    client.manager.resolve(client.now, &parameters()).unwrap();
    let Message::ServiceIdRequest(sent) = client.sent_one().0 else { panic!() };
    client.take_message(ServiceIdReply { request_id: CommunicationId(1), ..Default::default() });
    assert!(client.events().is_empty());
    client.take_message(ServiceIdReply { request_id: sent.request_id, ..Default::default() });
    assert!(matches!(client.event(), Event::Resolved { .. }));
}

#[test]
fn requests_have_bounds() {
    let limits = Limits { inquiries: 6, ..Limits::default() };
    let mut server = End::with_limits(SERVER, SERVER_GUID, limits);
    let listener = server.listen(DATAGRAM_SERVICE, 4);
    (0..10).for_each(|number| server.take_message(inquired(number)));
    assert_eq!((server.manager.counters().drops.backlog_full, server.sent().len()), (6, 0));
    for event in server.events() {
        let Event::Inquiry { inquiry, .. } = event else { panic!() };
        server.manager.take_inquiry(inquiry).unwrap();
    }
    (4..10).for_each(|number| server.take_message(inquired(number)));
    assert_eq!(server.manager.counters().drops.connections_full, 4);
    let events = server.events();
    assert_eq!(events.len(), 2);
    // Not taken: destroying the listener refuses them. Responses make room.
    server.manager.destroy_listener(server.now, listener).unwrap();
    let refused: Vec<_> = server.sent().into_iter().map(|sent| status(sent.0)).collect();
    assert_eq!(refused, [ServiceIdStatus::REJECTED; 2]);
    server.listen(DATAGRAM_SERVICE, 4);
    server.take_message(inquired(20));
    inquiry(&mut server);
    // Silence of the sender ends a request without an answer.
    server.wait(seconds(61));
    assert_eq!((server.manager.next_deadline(), server.events()), (None, vec![]));
    server.take_message(inquired(20));
    inquiry(&mut server);
}
