//! A queue pair cannot be destroyed while a batch of it is open.

use rdma_verbs::verbs::QueuePair;

fn drop_first(qp: QueuePair) {
    let batch = qp.send_batch().unwrap();
    drop(qp);
    batch.post().unwrap();
}

fn main() {}
