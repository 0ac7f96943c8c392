//! Any bytes: the parser must refuse or accept them, the same from a slice and from a stream.

use rdma_verbs::verbs::ConnectionInfo;

/// Runs the target.
pub(crate) fn run(data: &[u8]) {
    let mut stream = data;
    let streamed = ConnectionInfo::read_from(&mut stream);
    let consumed = data.len() - stream.len();
    match ConnectionInfo::from_bytes(data) {
        Ok(info) => {
            assert_eq!(streamed.expect("a whole message can be streamed"), info);
            assert_eq!(consumed, data.len());
            assert_eq!(ConnectionInfo::from_bytes(&info.to_bytes()).expect("encoded info can be decoded"), info);
        }
        // A stream may hold more than one message; the bytes taken from it must be one.
        Err(_) => {
            if let Ok(info) = streamed {
                assert_eq!(ConnectionInfo::from_bytes(&data[..consumed]).expect("one whole message"), info);
            }
        }
    }
}
