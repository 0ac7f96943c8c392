//! One-sided memory access: the client writes into the server's memory and reads it back. The server does nothing.
//!
//! Both ends are in this program, on two loopback addresses; on two machines, each runs its half, and the ends exchange
//! `ConnectionInfo` and `RemoteMemory` over TCP (see `ConnectionInfo::connect_tcp` and `RemoteMemory::to_bytes`).
//!
//! `cargo run --example rdma_write`

use std::error::Error;
use std::time::Duration;

use rdma_verbs::verbs::{self, AccessFlags, CompletionQueue, ProtectionDomain, QueuePair, SendRequest};

/// Opens an end of a connection: a domain for its memory, a queue for its completions, and the queue pair itself.
fn open_end(device: &str) -> verbs::Result<(ProtectionDomain, CompletionQueue, QueuePair)> {
    let context = verbs::open(device)?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(16)?;
    let qp = pd.create_qp(&cq, &cq)?;
    Ok((pd, cq, qp))
}

fn main() -> Result<(), Box<dyn Error>> {
    let (server_pd, _server_cq, server) = open_end("soft:127.0.0.1")?;
    let (client_pd, client_cq, client) = open_end("soft:127.0.0.2")?;

    // The ends exchange their connection info.
    let (server_info, client_info) = (server.connection_info()?, client.connection_info()?);
    server.connect(&client_info)?;
    client.connect(&server_info)?;

    // The server grants access to a page of memory by sending its address and key.
    let rights = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
    let page = server_pd.alloc_mr(4096, rights)?;
    let remote = page.remote();

    // The client writes into the middle of the page, and reads the same bytes back into another buffer.
    let message = b"written from afar";
    let buffer = client_pd.alloc_mr(4096, AccessFlags::LOCAL_WRITE)?;
    buffer.write_at(0, message)?;
    let outgoing = buffer.slice(..message.len())?;
    let incoming = buffer.slice(2048..2048 + message.len())?;
    let target = remote.slice(1024..1024 + message.len())?;
    client.post_send(&[
        SendRequest::write(outgoing, target).wr_id(1).signaled(),
        SendRequest::read(incoming, target).wr_id(2).signaled(),
    ])?;
    for _ in 0..2 {
        let completion = client_cq.wait(Duration::from_secs(10))?;
        println!("request {}: {:?}", completion.wr_id(), completion.result()?.opcode);
    }

    assert_eq!(buffer.to_vec(2048..2048 + message.len())?, message);
    println!("the server's memory holds: {}", String::from_utf8_lossy(&page.to_vec(1024..1024 + message.len())?));
    Ok(())
}
