//! Connections of the connection manager between two processes on loopback: many are set up, held at once, and ended.
//! It measures their rate, the time of one connect, and the memory of an idle one, beside TCP connects in alternating
//! repetitions. Afterwards nothing may be left of them in either process.
//!
//! ```text
//! cargo run --release -p rdma-verbs-tests --bin connections
//! cargo run --release -p rdma-verbs-tests --bin connections -- --help
//! ```

mod client;
mod holdings;
mod report;
mod server;
mod tcp;

use std::process::ExitCode;

use clap::Parser;
use rdma_verbs::verbs::cm::Listener;

use report::Report;

/// Address of the process that listens, and of the one that connects.
const SERVER: &str = "127.46.5.1";
const CLIENT: &str = "127.46.5.2";
/// The port of the listener.
const PORT: u16 = 7471;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// Sets up connections by address and port, holds them, and ends them.
#[derive(Parser, Clone, Debug)]
#[command(name = "connections")]
struct Arguments {
    /// Number of connections that are held at once.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=12_000))]
    connections: u32,
    /// Number of connects in progress at once, and of disconnects.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    in_flight: u32,
    /// Repetitions of each measurement; the results are medians.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    repetitions: u32,
    /// Prints the results as one JSON object.
    #[arg(long)]
    json: bool,
    /// This process is the one that listens; set by the first one.
    #[arg(long, hide = true)]
    server: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = if arguments.server { server::run().map(|()| None) } else { measure(&arguments).map(Some) };
    match outcome {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(report)) => {
            report.print(arguments.json);
            if report.left.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("connections: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(arguments: &Arguments) -> Outcome<Report> {
    let mut server = client::Server::start()?;
    let route = client::route()?;
    // Buffers and queues that both processes keep are there before anything is counted.
    client::repetition(&mut server, &route, 64, arguments.in_flight)?;
    let mut report = Report::new(arguments);
    for _ in 0..arguments.repetitions {
        report.add(client::repetition(&mut server, &route, arguments.connections, arguments.in_flight)?);
        report.add_tcp(&tcp::connect(&mut server, arguments.connections)?);
    }
    server.end()?;
    if let Err(error) = Listener::bind((SERVER, PORT)) {
        report.left.push(format!("server: its port, {error}"));
    }
    Ok(report)
}
