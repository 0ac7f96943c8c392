//! The verbs tier cannot name a buffer's memory.

use rdma_verbs::owned::Buffer;
use rdma_verbs::verbs::{QueuePair, SendRequest};

fn post_twice(qp: &QueuePair, buffer: &Buffer) {
    qp.post_send(&[SendRequest::send(buffer)]).unwrap();
}

fn main() {}
