//! The proper form of what the compile-fail tests do wrong.

use rdma_verbs::verbs::{
    AccessFlags, Payload, ProtectionDomain, QueuePair, ReceiveRequest, RemoteMemory, Result, SendRequest,
};

pub(crate) fn proper_use(pd: &ProtectionDomain, qp: &QueuePair, remote: RemoteMemory) -> Result<Vec<u8>> {
    let bytes = vec![0u8; 64];
    let region = pd.reg_mr(bytes, AccessFlags::LOCAL_WRITE)?;
    let range = region.slice(0..8)?;
    qp.post_recv(&[ReceiveRequest::new(range)])?;
    qp.post_send(&[
        SendRequest::send(Payload::inline(b"bytes")),
        SendRequest::write(range, remote),
        SendRequest::read(range, remote),
    ])?;
    let mut batch = qp.send_batch()?;
    batch.push(&SendRequest::send(range))?;
    batch.post()?;
    Ok(region.dereg()?.into_vec().unwrap_or_default())
}
