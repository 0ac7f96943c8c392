//! Latency, bandwidth and message rate of RDMA between two processes, as perftest measures them for C.
//!
//! ```text
//! cargo run --release --example perf -- self send lat                 both processes on this machine
//! cargo run --release --example perf -- send lat -d soft_eth0         server
//! cargo run --release --example perf -- send lat -d soft_eth0 HOST    client
//! cargo run --release --example perf -- table                         all rows, compared with raw sockets
//! ```
//!
//! `docs/performance.md` describes the measurements; the flags have perftest's names and meanings.

#[path = "perf/mod.rs"]
mod perf;

fn main() -> std::process::ExitCode {
    perf::main()
}
