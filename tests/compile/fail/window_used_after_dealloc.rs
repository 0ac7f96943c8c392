//! A deallocated window is gone, and a bind borrows window and region until it is posted.

use rdma_verbs::verbs::{AccessFlags, MemoryRegion, MemoryWindow, MemoryWindowBind, QueuePair, Result, SendRequest};

fn bound_after(qp: &QueuePair, window: MemoryWindow, region: &MemoryRegion) -> Result<()> {
    window.dealloc()?;
    qp.bind_mw(&window, &MemoryWindowBind::new(region, AccessFlags::REMOTE_READ))?;
    Ok(())
}

fn dealloc_before_posting(qp: &QueuePair, window: MemoryWindow, region: &MemoryRegion) -> Result<()> {
    let bind = MemoryWindowBind::new(region, AccessFlags::REMOTE_READ);
    let request = SendRequest::bind_mw(&window, 1, &bind)?;
    window.dealloc()?;
    qp.post_send(&[request])
}

fn region_gone_before_posting(qp: &QueuePair, window: &MemoryWindow, region: MemoryRegion) -> Result<()> {
    let bind = MemoryWindowBind::new(&region, AccessFlags::REMOTE_READ);
    let memory = region.dereg()?;
    qp.bind_mw(window, &bind)?;
    drop(memory);
    Ok(())
}

fn main() {}
