//! Ping-pong over an unreliable connection.
//!
//! Without arguments both ends run here, on two loopback addresses; the program checks every byte and prints latency. A
//! lost message is not retransmitted and ends the run. With arguments it is one end, compatible with rdma-core's
//! `ibv_uc_pingpong` in its flags, its exchange over TCP and its output, so that the other end can be that program on a
//! kernel or an adapter:
//!
//! ```text
//! cargo run --release --example uc_pingpong                            both ends
//! cargo run --release --example uc_pingpong -- -d soft_eth0 -g 0       server
//! cargo run --release --example uc_pingpong -- -d soft_eth0 HOST       client
//! ```

#[path = "pingpong/both_ends.rs"]
mod both_ends;
#[path = "pingpong/connected.rs"]
mod connected;
mod pingpong;

use std::process::ExitCode;

use rdma_verbs::verbs::QueuePairType;

fn main() -> ExitCode {
    let qp_type = QueuePairType::UnreliableConnection;
    pingpong::launch_as(
        "uc_pingpong",
        |flags| flags,
        || both_ends::run(qp_type),
        |arguments| connected::run(arguments, qp_type),
    )
}
