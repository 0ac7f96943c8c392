//! Naming arbitrary memory of the process requires `unsafe`, for local requests and for peers.

use rdma_verbs::verbs::{AccessFlags, ImplicitMemoryRegion, ProtectionDomain};

fn register(pd: &ProtectionDomain) {
    let _ = pd.reg_mr_implicit(AccessFlags::LOCAL_WRITE);
}

fn name(region: &ImplicitMemoryRegion, address: *mut u8) {
    let _ = region.slice(address, 8);
}

fn main() {}
