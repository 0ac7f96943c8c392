//! Any datagram to queue pair 1: reading never panics, its line is short and printable, and a message that was read is
//! written with the bits that it was read from, except reserved ones.

use rdma_verbs::wire::mad::{
    AlternatePath, CommunicationId, ConnectReply, Discovery, DiscoveryContent, IpHeader, LONGEST_SUMMARY, MAD_BYTES,
    Mad, Message, Method, NativeOffer, PrivateData,
};

const PASSIVE_ID: CommunicationId = CommunicationId(0xabc1_2345);

/// Runs the target.
pub(crate) fn run(datagram: &[u8]) {
    let Ok(mad) = Mad::read(datagram) else {
        assert_ne!(datagram.len(), MAD_BYTES);
        return;
    };
    assert_eq!(Mad::read(&mad.write()), Ok(mad));
    let line = mad.to_string();
    assert!(line.len() <= LONGEST_SUMMARY && !line.chars().any(char::is_control), "{line:?}");
    if let Some(response) = mad.unsupported_response() {
        // A response never causes another one.
        assert_eq!((response.method, response.data), (Method::GET_RESPONSE, mad.data));
        assert_eq!(response.unsupported_response(), None);
        assert!(Message::read(&mad).is_err());
    }
    discovery(&mad);
    let Ok(message) = Message::read(&mad) else { return };
    let written = message.to_mad(mad.transaction_id);
    assert_eq!(Message::read(&written), Ok(message));
    assert!(written.write().iter().zip(datagram).all(|(written, read)| written & !read == 0));
    match message {
        Message::ConnectRequest(request) => {
            ip_header(&request.private_data);
            offer(&request.alternate_path);
        }
        Message::ConnectReply(reply) => confirmation(reply),
        Message::ServiceIdRequest(request) => ip_header(&request.private_data),
        Message::Reject(reject) => assert!(reject.information.as_bytes().len() <= reject.information.whole().len()),
        _ => {}
    }
}

/// A datagram of the discovery is no message, has no more than the bits that it was read from, and is written as it was
/// read.
fn discovery(mad: &Mad) {
    let Some(discovery) = Discovery::read(mad) else { return };
    assert!(Message::read(mad).is_err());
    let written = discovery.to_mad();
    assert_eq!(Discovery::read(&written), Some(discovery));
    let is_answer = matches!(discovery.content, DiscoveryContent::Answer(_));
    assert_eq!(written.secret().is_some(), is_answer || matches!(discovery.content, DiscoveryContent::Refusal(_)));
    if discovery.content == DiscoveryContent::Question {
        let refusal = mad.unsupported_response().and_then(|refusal| Discovery::read(&refusal)).expect("a refusal");
        assert_eq!(Discovery { content: DiscoveryContent::Question, ..refusal }, discovery);
    }
}

/// An offer is written as it was read, and is no alternate path.
fn offer(alternate_path: &AlternatePath) {
    let Some(offer) = alternate_path.offer() else { return };
    assert!(offer.capabilities().is_native() && alternate_path.path().is_none());
    let (active, passive) = (offer.active_key(PASSIVE_ID), offer.passive_key(PASSIVE_ID));
    assert_eq!((active.local, active.remote), (passive.remote, passive.local));
    let share = active.local;
    // A share that Linux takes for an address is not written.
    let written = AlternatePath::of_offer(&NativeOffer::new(share.to_bytes(), offer.capabilities()));
    let read = written.offer().expect("an offer");
    assert_eq!(read.capabilities(), offer.capabilities());
}

/// A confirmation is written as it was read.
fn confirmation(reply: ConnectReply) {
    let Some(capabilities) = reply.confirmation() else { return };
    assert_eq!(reply.confirming(&capabilities).confirmation(), Some(capabilities));
}

/// The header of IP connections and the application's data are written as they were read.
fn ip_header<const N: usize>(private_data: &PrivateData<N>) {
    let Ok((header, data)) = IpHeader::read(private_data.as_bytes()) else { return };
    assert_eq!(data.len(), N - IpHeader::BYTES);
    assert_eq!(header.source().is_ipv4(), header.destination().is_ipv4());
    let written = header.with_data::<N>(data).expect("the same length");
    assert_eq!(IpHeader::read(written.as_bytes()), Ok((header, data)));
}
