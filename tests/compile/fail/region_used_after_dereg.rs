//! A deregistered region is gone.

use rdma_verbs::verbs::{MemoryRegion, Result};

fn use_after(region: MemoryRegion) -> Result<()> {
    let memory = region.dereg()?;
    region.write_at(0, &[1])?;
    drop(memory);
    Ok(())
}

fn main() {}
