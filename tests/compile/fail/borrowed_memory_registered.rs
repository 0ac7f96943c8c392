//! Borrowed memory cannot be registered by safe code: its owner could free or use it meanwhile.

use rdma_verbs::verbs::{AccessFlags, ProtectionDomain};

fn register(pd: &ProtectionDomain) {
    let mut bytes = [0u8; 64];
    let _ = pd.reg_mr(&mut bytes[..], AccessFlags::LOCAL_WRITE);
}

fn main() {}
