//! Any datagram to queue pair 1: reading never panics, its line is short and printable, and a message that was read is
//! written with the bits that it was read from, except reserved ones.

use rdma_verbs::wire::mad::{IpHeader, LONGEST_SUMMARY, MAD_BYTES, Mad, Message, Method, PrivateData};

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
    let Ok(message) = Message::read(&mad) else { return };
    let written = message.to_mad(mad.transaction_id);
    assert_eq!(Message::read(&written), Ok(message));
    assert!(written.write().iter().zip(datagram).all(|(written, read)| written & !read == 0));
    match message {
        Message::ConnectRequest(request) => ip_header(&request.private_data),
        Message::ServiceIdRequest(request) => ip_header(&request.private_data),
        Message::Reject(reject) => assert!(reject.information.as_bytes().len() <= reject.information.whole().len()),
        _ => {}
    }
}

/// The header of IP connections and the application's data are written as they were read.
fn ip_header<const N: usize>(private_data: &PrivateData<N>) {
    let Ok((header, data)) = IpHeader::read(private_data.as_bytes()) else { return };
    assert_eq!(data.len(), N - IpHeader::BYTES);
    assert_eq!(header.source().is_ipv4(), header.destination().is_ipv4());
    let written = header.with_data::<N>(data).expect("the same length");
    assert_eq!(IpHeader::read(written.as_bytes()), Ok((header, data)));
}
