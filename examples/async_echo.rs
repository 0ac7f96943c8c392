//! An echo server for many clients: `cargo run --features tokio --example async_echo`. It runs its own clients on
//! loopback; with `--clients 0` it serves until Ctrl-C.

use std::net::SocketAddr;

use clap::Parser;
use rdma_verbs::asynchronous::{CompletionQueue, QueuePair};
use rdma_verbs::owned::BufferPool;
use rdma_verbs::verbs::{self, ConnectionInfo, Context};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::{net::TcpListener, net::TcpStream, task::JoinSet};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[derive(Parser)]
struct Arguments {
    /// Device, for example soft_eth0.
    #[arg(short, long, default_value = "soft:127.0.0.31")]
    device: String,
    /// TCP address on which clients connect.
    #[arg(short, long, default_value = "127.0.0.31:0")]
    listen: SocketAddr,
    /// Clients to run, each of which sends 1,000 messages; 0 serves until Ctrl-C.
    #[arg(short, long, default_value_t = 8)]
    clients: u32,
}

/// Exchanges connection info over TCP, and returns a connected queue pair and its buffers. Afterwards the server
/// reports over TCP that it is ready to receive.
async fn connect(context: &Context, tcp: &mut TcpStream) -> Outcome<(QueuePair, BufferPool)> {
    let pd = context.alloc_pd()?;
    let qp = QueuePair::new(&pd, &CompletionQueue::new(context, 256)?)?;
    let own = qp.connection_info()?.to_bytes();
    tcp.write_u16(own.len() as u16).await?;
    tcp.write_all(&own).await?;
    let mut remote = vec![0; tcp.read_u16().await?.into()];
    tcp.read_exact(&mut remote).await?;
    qp.connect(&ConnectionInfo::from_bytes(&remote)?)?;
    Ok((qp, BufferPool::new(&pd, 4 << 20)?))
}

async fn serve(context: Context, mut tcp: TcpStream) -> Outcome {
    let (qp, pool) = connect(&context, &mut tcp).await?;
    let mut messages = qp.messages(&pool, 4096, 16)?;
    tcp.write_u8(0).await?;
    while let Some(message) = tokio::select! { message = messages.next() => message, _ = tcp.read_u8() => None } {
        qp.send(message?.buffer).await.0?;
    }
    Ok(())
}

async fn client(context: Context, server: SocketAddr) -> Outcome {
    let mut tcp = TcpStream::connect(server).await?;
    let (qp, pool) = connect(&context, &mut tcp).await?;
    tcp.read_u8().await?;
    for number in 0..1000u64 {
        let sending = qp.send(pool.copy_from(&number.to_ne_bytes())?);
        let ((sent, _), (received, answer)) = tokio::join!(sending, qp.recv(pool.take(4096)?));
        sent.and(received)?;
        assert_eq!(answer.to_u64(), Some(number), "the server echoes");
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Outcome {
    let Arguments { device, listen, clients } = Arguments::parse();
    let (context, listener) = (verbs::open(&device)?, TcpListener::bind(listen).await?);
    let address = listener.local_addr()?;
    println!("serving on {address}");
    let mut running: JoinSet<_> = (0..clients).map(|_| client(context.clone(), address)).collect();
    while clients == 0 || !running.is_empty() {
        tokio::select! {
            accepted = listener.accept() => drop(tokio::spawn(serve(context.clone(), accepted?.0))),
            Some(done) = running.join_next() => done??,
            _ = tokio::signal::ctrl_c() => break,
        }
    }
    println!("{} of {clients} clients got their messages back", clients as usize - running.len());
    Ok(())
}
