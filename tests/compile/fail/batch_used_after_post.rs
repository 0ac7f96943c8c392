//! A batch is posted once, as a whole.

use rdma_verbs::verbs::{Payload, QueuePair, Result, SendRequest};

fn twice(qp: &QueuePair) -> Result<()> {
    let mut batch = qp.send_batch()?;
    batch.push(&SendRequest::send(Payload::EMPTY))?;
    batch.post()?;
    batch.push(&SendRequest::send(Payload::EMPTY))?;
    batch.post()
}

fn main() {}
