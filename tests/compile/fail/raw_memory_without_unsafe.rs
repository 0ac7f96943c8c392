//! Registering memory by its address is a promise by the caller, so it needs `unsafe`.

use rdma_verbs::verbs::{AccessFlags, ProtectionDomain};

fn register(pd: &ProtectionDomain, address: *mut u8) {
    let _ = pd.reg_mr_raw(address, 4096, AccessFlags::LOCAL_WRITE);
}

fn main() {}
