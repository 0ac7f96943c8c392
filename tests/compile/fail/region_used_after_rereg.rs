//! Re-registration consumes the region and returns another one.

use rdma_verbs::verbs::{AccessFlags, MemoryRegion, Reregistration, SendRequest};

fn old_one(region: MemoryRegion) {
    let _ = region.rereg(Reregistration::new().access(AccessFlags::REMOTE_READ));
    let _ = SendRequest::send(&region);
}

fn main() {}
