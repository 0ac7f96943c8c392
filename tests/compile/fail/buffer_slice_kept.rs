//! A slice of a buffer cannot outlive the buffer's move into a request.

use rdma_verbs::owned::{Buffer, QueuePair};

fn keep_looking(qp: &QueuePair, buffer: Buffer) -> u8 {
    let bytes = &buffer[..];
    qp.post_recv(buffer, 1).unwrap();
    bytes[0]
}

fn main() {}
