//! A counter in the memory of a server, which clients change with fetch-and-add. The server does nothing meanwhile.

use std::error::Error;
use std::time::Duration;

use rdma_verbs::verbs::cm::{ConnectionOptions, Listener, Route};
use rdma_verbs::verbs::{AccessFlags, RemoteMemory, SendRequest};

/// Why a transfer failed.
pub type Failure = Box<dyn Error + Send + Sync>;

const WAIT: Duration = Duration::from_secs(20);

/// Serves one client: the memory of the counter, with its key, travels in the private data of the reply. Returns the
/// counter after the client has disconnected.
pub fn serve_one(listener: &Listener) -> Result<u64, Failure> {
    let request = listener.accept()?;
    let (pd, cq) = (
        request.context().alloc_pd()?,
        request.context().create_cq(16)?,
    );
    let counter = pd.alloc_mr(8, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_ATOMIC)?;
    let qp = pd.create_qp(&cq, &cq)?;
    let options = ConnectionOptions::new().private_data(&counter.remote().to_bytes());
    let connection = request.accept(&qp, &options)?;
    connection.wait_disconnected(WAIT)?;
    Ok(counter.load_acquire_u64(0)?)
}

/// Adds `amount` to the counter of the server `times` times. Returns the last value before the addition.
pub fn add(server: &str, amount: u64, times: u32) -> Result<u64, Failure> {
    let route = Route::to(server)?;
    let (pd, cq) = (route.context().alloc_pd()?, route.context().create_cq(16)?);
    let qp = pd.create_qp(&cq, &cq)?;
    let connection = route.connect(&qp, &ConnectionOptions::new())?;
    // A peer may pad its private data.
    let remote = connection
        .private_data()
        .first_chunk()
        .ok_or("the server sends no address of its counter")?;
    let remote = RemoteMemory::from_bytes(*remote);

    let before = pd.alloc_mr(8, AccessFlags::LOCAL_WRITE)?;
    for _ in 0..times {
        qp.post_send(&[SendRequest::fetch_and_add(before.slice(..8)?, remote, amount).signaled()])?;
        let completion = cq.wait(WAIT)?;
        completion.result().map_err(|error| qp.explain(&error))?;
    }
    connection.disconnect(&qp)?;
    connection.wait_disconnected(WAIT)?;
    Ok(before.load_acquire_u64(0)?)
}
