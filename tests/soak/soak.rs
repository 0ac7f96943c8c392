//! Soak: a thousand queue pairs over eight processes, all operations, every byte verified, while processes are killed,
//! stopped and restarted at random. At the end no process may hold much more than after its warm-up.
//!
//! ```text
//! cargo run --release -p rdma-verbs-tests --bin soak -- --seconds 600
//! cargo run --release -p rdma-verbs-tests --bin soak -- --help
//! ```

mod connection;
mod holdings;
mod member;
mod parent;
mod process;

use std::process::ExitCode;

use clap::Parser;

/// Puts reliable connections and datagrams between processes under load, and kills, stops and restarts processes.
#[derive(Parser, Clone, Debug)]
#[command(name = "soak")]
struct Arguments {
    /// Duration of the soak in seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Number of queue pairs of all processes together; rounded up to the same number for each pair of processes.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(2..=20_000))]
    queue_pairs: u32,
    /// Number of processes; each two share an address.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(2..=32))]
    processes: u32,
    /// Seed of the kills and stops; random by default.
    #[arg(long)]
    seed: Option<u64>,
    /// Processes treat each other as standard peers.
    #[arg(long)]
    standard: bool,
    /// Prints the result as one JSON object.
    #[arg(long)]
    json: bool,
    /// Number of this process; set by the first one.
    #[arg(long, hide = true)]
    member: Option<u32>,
}

impl Arguments {
    /// Returns the number of reliable connections between two processes.
    fn connections_of_pair(&self) -> usize {
        self.queue_pairs.div_ceil(self.processes * (self.processes - 1)) as usize
    }

    /// Returns the address of a process. Addresses are shared, so that processes steer and pass on each other's
    /// packets.
    fn address_of(&self, member: u32) -> String {
        format!("127.47.0.{}", 1 + member % self.processes.div_ceil(2))
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.member {
        Some(member) => member::run(&arguments, member as usize),
        None => parent::run(&arguments),
    }
}
