//! A buffer moves into its request: the program cannot touch it until it comes back.

use rdma_verbs::owned::{Buffer, QueuePair, Request};

fn keep_using(qp: &QueuePair, mut buffer: Buffer) {
    qp.post_send(Request::send(buffer).signaled()).unwrap();
    buffer[0] = 1;
}

fn main() {}
