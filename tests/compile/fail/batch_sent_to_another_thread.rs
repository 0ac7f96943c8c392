//! An open batch holds the queue for the thread that opened it.

use rdma_verbs::verbs::QueuePair;

fn elsewhere(qp: &QueuePair) {
    let batch = qp.send_batch().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || batch.post());
    });
}

fn main() {}
