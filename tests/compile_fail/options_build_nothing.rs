//! Closures of the owned tier only set options: their argument cannot make a queue pair on the completion queue, and
//! they cannot return options made for another one.

use rdma_verbs::owned::{CompletionQueue, QueuePair, SharedReceiveQueue};
use rdma_verbs::verbs::{self, ProtectionDomain};

fn a_queue_pair_beside_it(pd: &ProtectionDomain, cq: &CompletionQueue) {
    let mut forger = None;
    let _ = QueuePair::with(pd, cq, cq, |options| {
        forger = options.clone().build().ok();
        options
    });
}

fn a_queue_pair_on_another_queue(pd: &ProtectionDomain, cq: &CompletionQueue, other: &verbs::CompletionQueue) {
    let _ = QueuePair::with(pd, cq, cq, |_| pd.create_qp(other, other));
}

fn a_queue_pair_beside_a_shared_one(pd: &ProtectionDomain, cq: &CompletionQueue, srq: &SharedReceiveQueue) {
    let _ = QueuePair::with_srq(pd, cq, cq, srq, |options| {
        let _ = options.build();
        options
    });
}

fn receives_from_elsewhere(pd: &ProtectionDomain, cq: &CompletionQueue, srq: &verbs::SharedReceiveQueue) {
    let _ = QueuePair::with(pd, cq, cq, |options| options.srq(srq));
}

fn another_shared_queue(pd: &ProtectionDomain, other: &ProtectionDomain) {
    let _ = SharedReceiveQueue::with(pd, 4, |_| other.create_srq(4, 1));
}

fn the_queue_itself(pd: &ProtectionDomain, cq: &CompletionQueue) {
    let _ = pd.create_qp(cq.queue(), cq.queue()).build();
}

fn main() {}
