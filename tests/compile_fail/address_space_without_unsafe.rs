//! Naming any memory of the process is a promise to the compiler, whether peers or own requests do it.

use rdma_verbs::verbs::{AccessFlags, ImplicitMemoryRegion, ProtectionDomain};

fn register(pd: &ProtectionDomain) {
    let _ = pd.reg_mr_implicit(AccessFlags::LOCAL_WRITE);
}

fn name(region: &ImplicitMemoryRegion, address: *mut u8) {
    let _ = region.slice(address, 8);
}

fn main() {}
