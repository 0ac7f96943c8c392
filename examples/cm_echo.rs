//! An echo over a connection by address and port, both ends under 60 lines.
//!
//! ```text
//! cargo run --example cm_echo                       both ends
//! cargo run --example cm_echo -- ADDRESS:PORT       server; 0.0.0.0:7471 takes requests at all addresses
//! cargo run --example cm_echo -- HOST:PORT TEXT     client
//! ```

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use rdma_verbs::verbs::cm::{ConnectionOptions, Listener, Route};
use rdma_verbs::verbs::{AccessFlags, Context, MemoryRegion, Payload, QueuePair, ReceiveRequest, Result, SendRequest};

const WAIT: Duration = Duration::from_secs(10);

/// A queue pair, and memory for its messages. The receive is posted before the other end can send.
fn end(context: &Context) -> Result<(QueuePair, MemoryRegion)> {
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    let (qp, mr) = (pd.create_qp(&cq, &cq)?, pd.alloc_mr(256, AccessFlags::LOCAL_WRITE)?);
    qp.init()?;
    qp.post_recv(&[ReceiveRequest::new(&mr)])?;
    Ok((qp, mr))
}

fn serve_one(listener: &Listener) -> std::result::Result<(), Box<dyn Error + Send + Sync>> {
    let request = listener.accept()?;
    let (qp, mr) = end(request.context())?;
    let connection = request.accept(&qp, &ConnectionOptions::new().private_data(b"welcome"))?;
    let length = qp.recv_cq().wait(WAIT)?.result()?.byte_len as usize;
    qp.post_send(&[SendRequest::send(mr.slice(..length)?)])?;
    connection.wait_disconnected(WAIT)?;
    println!("echoed {length} bytes to {}", connection.peer_addr());
    Ok(())
}

fn ask(server: &str, text: &str) -> std::result::Result<String, Box<dyn Error + Send + Sync>> {
    let route = Route::to(server)?;
    let (qp, mr) = end(route.context())?;
    let connection = route.connect(&qp, &ConnectionOptions::new().private_data(b"hello"))?;
    qp.post_send(&[SendRequest::send(Payload::inline(text.as_bytes()))])?;
    qp.recv_cq().wait(WAIT)?.result()?;
    let bytes = mr.to_vec(..text.len())?;
    connection.disconnect(&qp)?;
    // Until the server confirms: a process that ends at once repeats nothing.
    connection.wait_disconnected(WAIT)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cm_echo: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> std::result::Result<(), Box<dyn Error + Send + Sync>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [server, text] => println!("{}", ask(server, text)?),
        [address] => {
            let listener = Listener::bind(address)?;
            println!("listening on {}", listener.local_addr());
            loop {
                serve_one(&listener).unwrap_or_else(|error| eprintln!("{error}"));
            }
        }
        _ => {
            let listener = Listener::bind("127.0.0.1:0")?;
            let address = listener.local_addr().to_string();
            let server = std::thread::spawn(move || serve_one(&listener));
            println!("{}", ask(&address, "hello, world")?);
            server.join().expect("the server does not panic")?;
        }
    }
    Ok(())
}
