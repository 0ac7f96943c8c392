//! Ping-pong over a connection by address and port, compatible with `rping` of rdma-core in its flags, its messages and
//! its output, so that the other end can be that program on Soft-RoCE or on an adapter:
//!
//! ```text
//! cargo run --release --example rping -- -s -v                        server at all addresses, for one client
//! cargo run --release --example rping -- -s -P -a 192.0.2.1           server for any number of clients
//! cargo run --release --example rping -- -c -a 192.0.2.1 -C 10 -vV    client
//! ```
//!
//! A ping has four messages and two transfers. The client sends the address, the key and the size of its source, from
//! which the server READs; the server sends a go-ahead; the client sends those of its sink, to which the server WRITEs
//! the same bytes; the server sends another go-ahead.
//!
//! The exit code is 0 after the last ping, or when the other end disconnects; 1 after a failure; 2 for wrong arguments;
//! 130 after Ctrl-C. (The other program exits with 255 and 22 instead of 1 and 2.)

#[path = "rping/mod.rs"]
mod rping;

use std::process::ExitCode;

fn main() -> ExitCode {
    rping::run(std::env::args_os()).into()
}
