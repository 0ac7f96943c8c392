//! A registered buffer has moved: the program cannot touch it until it is deregistered.

use rdma_verbs::verbs::{AccessFlags, ProtectionDomain, Result};

fn keep_using(pd: &ProtectionDomain) -> Result<()> {
    let mut bytes = vec![0u8; 64];
    let region = pd.reg_mr(bytes, AccessFlags::LOCAL_WRITE)?;
    bytes[0] = 1;
    drop(region);
    Ok(())
}

fn main() {}
