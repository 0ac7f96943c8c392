//! A request cannot exist without everything that its operation needs.

use rdma_verbs::verbs::{MemoryRegion, SendRequest};

fn write_to_nowhere(region: &MemoryRegion) {
    let _ = SendRequest::write(region);
}

fn no_operation() {
    let _ = SendRequest::default();
}

fn no_fields<'a>() -> SendRequest<'a> {
    SendRequest { wr_id: 1 }
}

fn main() {}
