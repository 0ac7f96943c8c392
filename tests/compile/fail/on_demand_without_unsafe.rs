//! The caller must keep memory mapped whose pages are looked up on use. The compiler cannot check this: `unsafe`.

use rdma_verbs::verbs::{AccessFlags, ImplicitMemoryRegion, ProtectionDomain};

fn register(pd: &ProtectionDomain, address: *mut u8) {
    let _ = pd.reg_mr_raw(address, 1 << 40, AccessFlags::LOCAL_WRITE | AccessFlags::ON_DEMAND);
}

fn register_everything(pd: &ProtectionDomain) {
    let _ = pd.reg_mr_implicit(AccessFlags::LOCAL_WRITE);
}

fn any_address(all: &ImplicitMemoryRegion, address: *mut u8) {
    let _ = all.slice(address, 64);
}

fn main() {}
