//! A receive takes registered memory; ordinary bytes could be gone when the message comes.

use rdma_verbs::verbs::ReceiveRequest;

fn main() {
    let mut bytes = [0u8; 64];
    let _ = ReceiveRequest::new(&mut bytes[..]);
}
