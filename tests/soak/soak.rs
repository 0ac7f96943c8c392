//! Soak: a thousand queue pairs over eight processes, all operations, every byte verified, while processes are killed,
//! stopped and started again at random. At the end no process may hold much more than after its warm-up.
//!
//! ```text
//! cargo run --release --example soak -- --seconds 600
//! cargo run --release --example soak -- --help
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
    /// How long.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Queue pairs of all processes together; rounded up to the same number for each pair of processes.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(2..=20_000))]
    queue_pairs: u32,
    /// Processes; two share an address each.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(2..=32))]
    processes: u32,
    /// Seed of who is killed and stopped when; random by default.
    #[arg(long)]
    seed: Option<u64>,
    /// Processes take each other for standard peers.
    #[arg(long)]
    standard: bool,
    /// Prints the result as one JSON object.
    #[arg(long)]
    json: bool,
    /// Which of the processes this is; set by the first one.
    #[arg(long, hide = true)]
    member: Option<u32>,
}

impl Arguments {
    /// Reliable connections between two processes.
    fn connections_of_pair(&self) -> usize {
        self.queue_pairs.div_ceil(self.processes * (self.processes - 1)) as usize
    }

    /// The address of a process. Addresses are shared, so that processes steer and pass on each other's packets.
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
