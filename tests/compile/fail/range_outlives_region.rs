//! A range cannot be posted after its region is deregistered or dropped.

use rdma_verbs::verbs::{MemoryRegion, QueuePair, ReceiveRequest, Result};

fn deregistered(qp: &QueuePair, region: MemoryRegion) -> Result<()> {
    let range = region.slice(..)?;
    let _memory = region.dereg()?;
    qp.post_recv(&[ReceiveRequest::new(range)])
}

fn dropped(qp: &QueuePair, region: MemoryRegion) -> Result<()> {
    let request = ReceiveRequest::new(&region);
    drop(region);
    qp.post_recv(&[request])
}

fn main() {}
