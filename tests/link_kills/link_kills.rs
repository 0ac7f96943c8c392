//! Kills of processes that share memory with others: a process has connections to many others, through memory that it
//! shares with each. The others are killed and stopped at random moments, while they start, connect and exchange, and
//! replaced by new ones at the same addresses.
//!
//! Every byte is verified. Each queue pair whose peer is killed fails, with its cause, within a bound. Connections to a
//! process that is only stopped at times never fail. At the end the process holds what it held after a warm-up:
//! descriptors, mappings, memory, threads, objects, and files in the registry.
//!
//! ```text
//! cargo run --release -p rdma-verbs-tests --bin link_kills -- --kills 10000
//! cargo run --release -p rdma-verbs-tests --bin link_kills -- --seconds 20
//! ```

#[path = "../soak/connection.rs"]
mod connection;
mod end;
#[path = "../soak/holdings.rs"]
mod holdings;
mod judge;
mod leftovers;
mod life;
mod pace;
mod peer;

use std::process::ExitCode;

use clap::Parser;

/// Kills and stops processes that share memory with this one, and verifies what is left.
#[derive(Parser, Clone, Debug)]
#[command(name = "link_kills")]
struct Arguments {
    /// Number of kills.
    #[arg(long, default_value_t = 10_000)]
    kills: u64,
    /// Ends after this time, however many kills there were.
    #[arg(long)]
    seconds: Option<u64>,
    /// Number of processes that connections exist to at a time, most of them dead.
    #[arg(long, default_value_t = 48, value_parser = clap::value_parser!(u8).range(1..=128))]
    processes: u8,
    /// Seed of the kills and stops; random by default.
    #[arg(long)]
    seed: Option<u64>,
    /// Address of this process; set by the first one.
    #[arg(long, hide = true)]
    peer: Option<String>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match &arguments.peer {
        Some(address) => peer::run(address),
        None => judge::run(&arguments),
    }
}
