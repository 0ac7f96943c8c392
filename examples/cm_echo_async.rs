//! An echo for many clients at once, over connections by address and port: `cm_echo` with tokio.
//!
//! ```text
//! cargo run --features tokio --example cm_echo_async                       server and eight clients
//! cargo run --features tokio --example cm_echo_async -- ADDRESS:PORT       server, until Ctrl-C
//! cargo run --features tokio --example cm_echo_async -- HOST:PORT TEXT     client
//! ```

use rdma_verbs::asynchronous::{CompletionQueue, QueuePair};
use rdma_verbs::owned::BufferPool;
use rdma_verbs::verbs::cm::{ConnectionOptions, Listener, Request, Route};
use rdma_verbs::verbs::{self, Context};
use tokio::task::JoinSet;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// A queue pair that can receive, and buffers.
fn end(context: &Context) -> verbs::Result<(QueuePair, BufferPool)> {
    let pd = context.alloc_pd()?;
    let qp = QueuePair::new(&pd, &CompletionQueue::new(context, 64)?)?;
    qp.init()?;
    Ok((qp, BufferPool::new(&pd, 1 << 20)?))
}

async fn serve(request: Request) -> Outcome {
    let (qp, pool) = end(request.context())?;
    // The receives are posted before the client can send.
    let mut messages = qp.messages(&pool, 256, 16)?;
    let connection = request.start_accept(&qp, &ConnectionOptions::new().private_data(b"welcome"))?.await?;
    while let Some(message) = tokio::select! { next = messages.next() => next, _ = connection.disconnected() => None } {
        qp.send(message?.buffer).await.0?;
    }
    Ok(())
}

async fn ask(server: String, text: String) -> Outcome<String> {
    let route = Route::to(server)?;
    let (qp, pool) = end(route.context())?;
    let connection = route.start_connect(&qp, &ConnectionOptions::new().private_data(b"hello"))?.await?;
    let (received, sent) = tokio::join!(qp.recv(pool.take(256)?), qp.send(pool.copy_from(text.as_bytes())?));
    sent.0.and(received.0)?;
    connection.disconnect(&qp)?;
    // The program may end after this, and with it the messages that end the connection.
    connection.disconnected().await?;
    Ok(String::from_utf8_lossy(&received.1).into_owned())
}

/// Serves until all `clients` are done; without any, until Ctrl-C.
async fn serve_all(listener: Listener, mut clients: JoinSet<Outcome<String>>) -> Outcome {
    let serves_on = clients.is_empty();
    while serves_on || !clients.is_empty() {
        tokio::select! {
            request = listener.accept_async() => drop(tokio::spawn(serve(request?))),
            Some(answer) = clients.join_next() => println!("{}", answer??),
            _ = tokio::signal::ctrl_c() => break,
        }
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [server, text] = &arguments[..] {
        println!("{}", ask(server.clone(), text.clone()).await?);
        return Ok(());
    }
    let listener = Listener::bind(arguments.first().map_or("127.0.0.33:0", String::as_str))?;
    println!("listening on {}", listener.local_addr());
    let server = listener.local_addr().to_string();
    let count = if arguments.is_empty() { 8 } else { 0 };
    let clients = (1..=count).map(|client| ask(server.clone(), format!("hello from client {client}"))).collect();
    serve_all(listener, clients).await
}
