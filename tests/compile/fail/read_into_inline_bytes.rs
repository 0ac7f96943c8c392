//! Only registered memory can take the result of a READ or an atomic.

use rdma_verbs::verbs::{Payload, RemoteMemory, SendRequest};

fn read(remote: RemoteMemory, bytes: &mut [u8]) {
    let _ = SendRequest::read(Payload::inline(bytes), remote);
}

fn fetch(remote: RemoteMemory, bytes: &mut [u8]) {
    let _ = SendRequest::fetch_and_add(bytes, remote, 1);
}

fn main() {}
