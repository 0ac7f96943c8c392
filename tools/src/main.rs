//! `rdma-verbs`: measures RDMA verbs between two processes, and lists devices.
//!
//! ```text
//! rdma-verbs perf self send lat                 both processes on this machine
//! rdma-verbs perf send lat -d soft_eth0         server
//! rdma-verbs perf send lat -d soft_eth0 HOST    client
//! rdma-verbs perf table                         everything beside raw sockets
//! rdma-verbs devices                            all devices that can be opened
//! ```
//!
//! `docs/performance.md` describes how `perf` measures; its flags have perftest's names and meanings. `devices` prints
//! what `ibv_devinfo -v` prints for adapters.

mod devices;
mod perf;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "rdma-verbs", version, about = "RDMA verbs with or without the hardware: measure, list devices")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Latency, bandwidth and message rate of RDMA verbs between two processes.
    Perf(Box<perf::Arguments>),
    /// All devices of all providers: limits, ports, GIDs.
    Devices(devices::Options),
}

/// Returns 0: done; 1: it failed; 2: wrong usage. `perf::run` has more codes.
fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Perf(arguments) => perf::run(&arguments),
        Command::Devices(options) => devices::run(&options),
    }
}
