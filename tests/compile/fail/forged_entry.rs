//! Made-up addresses and keys cannot enter a request of the verbs tier.

use rdma_verbs::types::Sge;
use rdma_verbs::verbs::{Lkey, ReceiveRequest, SendRequest};

fn main() {
    let entry = Sge { addr: 0x1000, length: 8, lkey: Lkey(1) };
    let _ = SendRequest::send(entry);
    let _ = ReceiveRequest::new(&[entry]);
}
