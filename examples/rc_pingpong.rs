//! Ping-pong over a reliable connection.
//!
//! Without arguments both ends run here, on two loopback addresses; the program checks every byte and prints latency
//! and bandwidth. With arguments it is one end, compatible with rdma-core's `ibv_rc_pingpong` in its flags, its
//! exchange over TCP and its output, so that the other end can be that program on a kernel or an adapter:
//!
//! ```text
//! cargo run --release --example rc_pingpong                            both ends
//! cargo run --release --example rc_pingpong -- -d soft_eth0 -g 0       server
//! cargo run --release --example rc_pingpong -- -d soft_eth0 HOST       client
//! ```

#[path = "pingpong/both_ends.rs"]
mod both_ends;
#[path = "pingpong/connected.rs"]
mod connected;
mod pingpong;

use std::process::ExitCode;

use rdma_verbs::verbs::QueuePairType;

fn main() -> ExitCode {
    let qp_type = QueuePairType::ReliableConnection;
    pingpong::launch_as(
        "rc_pingpong",
        |flags| flags,
        || both_ends::run(qp_type),
        |arguments| connected::run(arguments, qp_type),
    )
}
