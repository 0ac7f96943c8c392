//! A request borrows the address handle until it is posted.

use rdma_verbs::verbs::{AddressHandle, Payload, Qkey, Qpn, QueuePair, Result, SendRequest};

fn dropped(qp: &QueuePair, way: AddressHandle, qpn: Qpn) -> Result<()> {
    let request = SendRequest::send_to(Payload::EMPTY, &way, qpn, Qkey(1));
    drop(way);
    qp.post_send(&[request])
}

fn main() {}
