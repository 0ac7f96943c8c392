//! The proper form of what the compile-fail tests do wrong with datagrams, windows, shared queues and lending polls.

use rdma_verbs::verbs::{
    AccessFlags, AddressHandle, CompletionQueue, FlushFlags, MemoryRegion, MemoryWindow, MemoryWindowBind, Payload,
    ProtectionDomain, Qkey, Qpn, QueuePair, QueuePairOptions, ReceiveRequest, RemoteMemory, Reregistration, Result,
    SendRequest, SharedReceiveQueue, XrcDomain,
};

pub(crate) fn ways(qp: &QueuePair, way: AddressHandle, qpn: Qpn) -> Result<()> {
    qp.post_send(&[SendRequest::send_to(Payload::EMPTY, &way, qpn, Qkey(1))])?;
    drop(way);
    Ok(())
}

pub(crate) fn windows(qp: &QueuePair, window: MemoryWindow, region: MemoryRegion) -> Result<()> {
    let bind = MemoryWindowBind::new(&region, AccessFlags::REMOTE_READ);
    qp.post_send(&[SendRequest::bind_mw(&window, 1, &bind)?])?;
    window.dealloc()?;
    let Ok((region, _)) = region.rereg(Reregistration::new().access(AccessFlags::REMOTE_READ)) else { return Ok(()) };
    qp.post_send(&[SendRequest::send(&region)])
}

pub(crate) fn shared(
    pd: &ProtectionDomain,
    cq: &CompletionQueue,
    srq: SharedReceiveQueue,
    xrc: &XrcDomain,
) -> Result<()> {
    let region = pd.alloc_mr(64, AccessFlags::LOCAL_WRITE)?;
    let mut batch = srq.recv_batch()?;
    batch.push(&ReceiveRequest::new(&region))?;
    batch.post()?;
    let sharing = pd.create_qp_with(cq, cq, &QueuePairOptions::default().srq(&srq))?;
    let target = pd.create_qp_with(cq, cq, &QueuePairOptions::default().xrc_target(xrc))?;
    sharing.post_send(&[SendRequest::send(Payload::EMPTY).remote_srq(srq.number())])?;
    drop((sharing, target));
    Ok(())
}

pub(crate) fn one_sided(qp: &QueuePair, remote: RemoteMemory) -> Result<()> {
    qp.post_send(&[
        SendRequest::atomic_write(Payload::inline(&[0; 8]), remote),
        SendRequest::flush(remote, FlushFlags::GLOBAL),
        SendRequest::local_invalidate(remote.rkey()),
    ])
}

pub(crate) fn lent(cq: &CompletionQueue) -> Result<Vec<u64>> {
    let mut kept = Vec::new();
    let mut polling = cq.polling();
    while let Some(completion) = polling.next()? {
        kept.push(completion.wr_id());
    }
    cq.poll_with(|completion| {
        kept.push(completion.wr_id());
        std::ops::ControlFlow::Continue(())
    })?;
    Ok(kept)
}
