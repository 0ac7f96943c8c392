//! A batch of a shared receive queue holds receives, is posted once, and stays on its thread.

use rdma_verbs::verbs::{Payload, ReceiveRequest, Result, SendRequest, SharedReceiveQueue};

fn sends(srq: &SharedReceiveQueue) -> Result<()> {
    srq.post_recv(&[SendRequest::send(Payload::EMPTY)])
}

fn posted_twice(srq: &SharedReceiveQueue, receive: &ReceiveRequest<'_>) -> Result<()> {
    let mut batch = srq.recv_batch()?;
    batch.push(receive)?;
    batch.post()?;
    batch.post()
}

fn outlives_its_queue(srq: SharedReceiveQueue, receive: &ReceiveRequest<'_>) -> Result<()> {
    let mut batch = srq.recv_batch()?;
    drop(srq);
    batch.push(receive)?;
    batch.post()
}

fn on_another_thread(srq: &SharedReceiveQueue) -> Result<()> {
    let batch = srq.recv_batch()?;
    std::thread::scope(|scope| {
        scope.spawn(move || batch.post());
    });
    Ok(())
}

fn main() {}
