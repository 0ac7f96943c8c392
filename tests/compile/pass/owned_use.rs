//! The proper form of what the compile-fail tests do wrong with buffers.

use rdma_verbs::owned::{Buffer, CompletionQueue, QueuePair, Request};

pub(crate) fn proper_use(qp: &QueuePair, cq: &CompletionQueue, mut buffer: Buffer) -> Option<u8> {
    buffer[0] = 1;
    qp.post_send(Request::send(buffer).signaled()).ok()?;
    let buffer = cq.poll().ok()??.into_buffer().ok()?;
    let bytes = &buffer[..];
    let first = bytes[0];
    qp.post_recv(buffer, 1).ok()?;
    Some(first)
}
