//! Options of the owned tier name objects of that tier only, and its completion queue takes no other queue pairs.

use rdma_verbs::owned::{CompletionQueue, QueuePair, QueuePairOptions, SharedReceiveQueue};
use rdma_verbs::verbs::{self, ProtectionDomain, XrcDomain};

fn receives_from_elsewhere(srq: &verbs::SharedReceiveQueue) {
    let _ = QueuePairOptions::default().srq(srq);
}

fn options_of_the_verbs_tier(pd: &ProtectionDomain, cq: &CompletionQueue, options: &verbs::QueuePairOptions) {
    let _ = QueuePair::with_options(pd, cq, cq, options);
}

fn extended_target(domain: &XrcDomain) {
    let _ = QueuePairOptions::default().xrc_target(domain);
}

fn buffers_for_the_verbs_tier(pd: &ProtectionDomain, cq: &verbs::CompletionQueue, srq: &SharedReceiveQueue) {
    let _ = pd.create_qp_with(cq, cq, &QueuePairOptions::default().srq(srq));
}

fn the_queue_itself(pd: &ProtectionDomain, cq: &CompletionQueue) {
    let _ = pd.create_qp(cq.queue(), cq.queue());
}

fn main() {}
