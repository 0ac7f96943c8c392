//! The server: it reads and writes the client's memory.

use std::time::Duration;

use rdma_verbs::verbs::cm::{ConnectionOptions, Listener, Request};
use rdma_verbs::verbs::{MemoryRegion, SendRequest};

use super::arguments::Arguments;
use super::buffer::{MESSAGE_BYTES, decode, text_of};
use super::end::{Connected, End, INTERRUPT_CHECK};
use super::program::{Outcome, interrupted};

/// Its content does not matter.
const GO_AHEAD: [u8; MESSAGE_BYTES] = [0; MESSAGE_BYTES];

pub(super) fn run(arguments: &Arguments, address: &str) -> Outcome {
    let listener = Listener::bind((address, arguments.port))?;
    arguments.log(format_args!("listening on {}", listener.local_addr()));
    if !arguments.is_persistent {
        let request = next_request(&listener)?;
        // Further clients are rejected: nothing would ever take their requests.
        drop(listener);
        return serve(arguments, request);
    }
    std::thread::scope(|scope| {
        loop {
            let request = next_request(&listener)?;
            scope.spawn(move || {
                let client = request.peer_addr();
                if let Err(error) = serve(arguments, request)
                    && !interrupted()
                {
                    eprintln!("rping: {client}: {error}");
                }
            });
        }
    })
}

fn next_request(listener: &Listener) -> Outcome<Request> {
    while !interrupted() {
        if let Some(request) = listener.accept_within(Duration::from_millis(INTERRUPT_CHECK.into()))? {
            return Ok(request);
        }
    }
    Err("interrupted".into())
}

/// Serves one client until it disconnects.
fn serve(arguments: &Arguments, request: Request) -> Outcome {
    arguments.log(format_args!("connection request of {}", request.peer_addr()));
    let end = End::open(request.context(), arguments.size)?;
    let connection = request.accept(&end.qp, &ConnectionOptions::new())?;
    let connected = Connected::new(arguments, &end, connection);
    let outcome = echo(arguments, &connected, &end.data);
    connected.close("server", outcome)
}

/// Echoes pings until the client disconnects, or something fails.
fn echo(arguments: &Arguments, client: &Connected<'_>, data: &MemoryRegion) -> Outcome {
    loop {
        let source = decode(client.receive()?);
        let (wanted, room) = (source.len() as usize, data.len());
        if wanted > room {
            return Err(format!("the client's pings have {wanted} bytes, and this server's {room}: raise -S").into());
        }
        client.transfer(SendRequest::read(data.slice(..wanted)?, source))?;
        let bytes = data.to_vec(..wanted)?;
        if arguments.is_verbose {
            println!("server ping data: {}", text_of(&bytes));
        }
        client.send(GO_AHEAD)?;
        let sink = decode(client.receive()?);
        let length = bytes.iter().position(|byte| *byte == 0).map_or(wanted, |zero| zero + 1);
        client.transfer(SendRequest::write(data.slice(..length)?, sink.slice(..length)?))?;
        client.send(GO_AHEAD)?;
    }
}
