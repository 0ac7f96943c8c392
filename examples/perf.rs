//! What RDMA costs here: latency, bandwidth and message rate between two processes, as perftest measures them for C.
//!
//! ```text
//! cargo run --release --example perf -- self send lat                 both processes on this machine
//! cargo run --release --example perf -- send lat -d soft_eth0         server
//! cargo run --release --example perf -- send lat -d soft_eth0 HOST    client
//! cargo run --release --example perf -- table                         everything beside raw sockets
//! ```
//!
//! `docs/performance.md` says what is measured and how; the flags have perftest's names and meanings.

#[path = "perf/mod.rs"]
mod perf;

fn main() -> std::process::ExitCode {
    perf::main()
}
