//! The client: its memory is read and written.

use std::net::{IpAddr, ToSocketAddrs};

use rdma_verbs::verbs::MemoryRegion;
use rdma_verbs::verbs::cm::{ConnectionOptions, Route};

use super::arguments::Arguments;
use super::buffer::{encode, ping_bytes, text_of};
use super::end::{Connected, End, ping_buffer};
use super::program::Outcome;

pub(super) fn run(arguments: &Arguments, server: &str) -> Outcome {
    let remote = (server, arguments.port);
    let route = match &arguments.source {
        None => Route::to(remote)?,
        Some(source) => Route::between(address_of(source)?, remote)?,
    };
    arguments.log(format_args!("{} from {}", route.remote_addr(), route.local_addr().ip()));
    let end = End::open(route.context(), arguments.size)?;
    let source = ping_buffer(&end.pd, arguments.size)?;
    let options = ConnectionOptions::new().responder_resources(1).initiator_depth(1);
    let connection = route.connect(&end.qp, &options)?;
    let connected = Connected::new(arguments, &end, connection);
    let outcome = play(arguments, &connected, &source, &end.data);
    connected.close("client", outcome)
}

/// Returns the first address of a name.
fn address_of(name: &str) -> Outcome<IpAddr> {
    let found = (name, 0).to_socket_addrs().map_err(|error| format!("-I {name}: {error}"))?.next();
    Ok(found.ok_or_else(|| format!("-I {name}: the name has no address"))?.ip())
}

/// Runs all pings.
fn play(arguments: &Arguments, server: &Connected<'_>, source: &MemoryRegion, sink: &MemoryRegion) -> Outcome {
    let last = if arguments.count == 0 { u32::MAX } else { arguments.count };
    for ping in 0..last {
        let bytes = ping_bytes(ping, arguments.size);
        source.write_at(0, &bytes)?;
        server.send(encode(source.remote()))?;
        server.receive()?;
        arguments.log(format_args!("the server has read ping {ping}"));
        server.send(encode(sink.remote()))?;
        server.receive()?;
        arguments.log(format_args!("the server has written ping {ping}"));
        let echoed = sink.to_vec(..)?;
        if arguments.validates && echoed != bytes {
            return Err(format!("data mismatch! ping {ping} has come back as {:?}", text_of(&echoed)).into());
        }
        if arguments.is_verbose {
            println!("ping data: {}", text_of(&echoed));
        }
    }
    Ok(())
}
