//! Shared receive queues have numbers of their own type, and queue pairs take the queues themselves.

use rdma_verbs::verbs::{
    CompletionQueue, Payload, ProtectionDomain, Qpn, QueuePairOptions, SendRequest, SharedReceiveQueue,
};

fn plain_number() {
    let _ = SendRequest::send(Payload::EMPTY).remote_srq(5);
}

fn number_of_a_queue_pair(qpn: Qpn) {
    let _ = SendRequest::send(Payload::EMPTY).remote_srq(qpn);
}

fn number_to_share(pd: &ProtectionDomain, cq: &CompletionQueue, srq: &SharedReceiveQueue) {
    let _ = pd.create_qp_with(cq, cq, &QueuePairOptions::default().srq(&srq.number()));
}

fn shared_queue_as_domain(pd: &ProtectionDomain, cq: &CompletionQueue, srq: &SharedReceiveQueue) {
    let _ = pd.create_qp_with(cq, cq, &QueuePairOptions::default().xrc_target(srq));
}

fn main() {}
