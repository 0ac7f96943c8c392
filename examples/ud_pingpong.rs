//! Ping-pong with unreliable datagrams.
//!
//! Without arguments both ends run here, on two loopback addresses, and every byte is checked. A lost message is not
//! retransmitted and ends the run. With arguments it is one end, compatible with rdma-core's `ibv_ud_pingpong` in its
//! flags, its exchange over TCP and its output, so that the other end can be that program on a kernel or an adapter:
//!
//! ```text
//! cargo run --release --example ud_pingpong                            both ends
//! cargo run --release --example ud_pingpong -- -d soft_eth0 -g 0       server
//! cargo run --release --example ud_pingpong -- -d soft_eth0 HOST       client
//! ```

#[path = "pingpong/connected.rs"]
mod connected;
mod pingpong;

use std::process::ExitCode;

use clap::Parser;
use connected::End;
use pingpong::{Arguments, Outcome, print_speed};
use rdma_verbs::verbs::QueuePairType;

const DATAGRAM: QueuePairType = QueuePairType::UnreliableDatagram;
const BOTH: [&str; 2] = ["soft:127.0.0.1", "soft:127.0.0.2"];

fn main() -> ExitCode {
    // A datagram fits into one packet, so there is no path MTU to choose.
    let adjust = |command: clap::Command| {
        command.mut_arg("size", |size| size.default_value("2048")).mut_arg("mtu", |mtu| mtu.hide(true))
    };
    pingpong::launch_as("ud_pingpong", adjust, both_ends, |arguments| connected::run(arguments, DATAGRAM))
}

/// Runs both ends, each on its own thread and device.
fn both_ends() -> Outcome {
    let [near, far] = BOTH;
    println!("Both ends in this program: {near} and {far}");
    let common = ["ud_pingpong", "-s", "2048", "-n", "10000", "-c", "-d"];
    let server = Arguments::parse_from(common.into_iter().chain([near]));
    let client = Arguments::parse_from(common.into_iter().chain([far, "server"]));
    let (server_end, client_end) = (End::open(&server, DATAGRAM)?, End::open(&client, DATAGRAM)?);
    server_end.connect(&client_end.info()?)?;
    client_end.connect(&server_end.info()?)?;
    let seconds = std::thread::scope(|scope| {
        let served = scope.spawn(|| server_end.play());
        let seconds = client_end.play()?;
        served.join().map_err(|_| "the server's thread panicked")??;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(seconds)
    })?;
    print_speed(&client, seconds);
    server_end.check()?;
    client_end.check()
}
