//! Memory whose pages are looked up at use stays the caller's to keep, which no compiler checks: `unsafe`.

use rdma_verbs::verbs::{AccessFlags, ProtectionDomain};

fn register(pd: &ProtectionDomain, address: *mut u8) {
    let _ = pd.reg_mr_raw(address, 1 << 40, None, AccessFlags::LOCAL_WRITE | AccessFlags::ON_DEMAND);
}

fn main() {}
