//! Ping-pong over several reliable connections that share a receive queue.
//!
//! Without arguments both ends run here, on two loopback addresses. With arguments it is one end, compatible with
//! rdma-core's `ibv_srq_pingpong` in its flags, its exchange over TCP and its output, so that the other end can be that
//! program on a kernel or an adapter:
//!
//! ```text
//! cargo run --release --example srq_pingpong                           both ends
//! cargo run --release --example srq_pingpong -- -d soft_eth0 -g 0      server
//! cargo run --release --example srq_pingpong -- -d soft_eth0 HOST      client
//! ```

mod pingpong;
#[path = "pingpong/shared.rs"]
mod shared;

use std::process::ExitCode;

fn main() -> ExitCode {
    pingpong::launch_as("srq_pingpong", |command| command, shared::run_both, shared::run)
}
