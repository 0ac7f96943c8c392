//! The connection manager against Linux' `rdma_cm`: behaviours of both ends, checked by their events, their queue pairs
//! and the datagrams between them. `tests/interop/run` starts both ends, for each role and IP version.
//!
//! `connections.c` and `peer.c` document the lines that are exchanged with the guest.

#[allow(dead_code, reason = "other programs use the rest")]
#[path = "../guest.rs"]
mod guest;

mod data;
mod datagrams;
mod endings;
mod filter;
mod forger;
mod handshake;
mod home;
mod load;
mod loss;
mod mistakes;
mod refusals;
mod stale;
mod wire;

use std::net::IpAddr;
use std::time::Instant;

use clap::{Parser, ValueEnum};
use home::{Home, Outcome};

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Role {
    Client,
    Server,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Kernel {
    #[value(name = "6.1")]
    V6_1,
    #[value(name = "6.12")]
    V6_12,
}

#[derive(Parser)]
#[command(about = "Connects to the kernel's connection manager, and checks both ends")]
struct Arguments {
    /// Role of the guest
    #[arg(long)]
    role: Role,
    #[arg(long)]
    kernel: Kernel,
    /// Own address
    #[arg(long)]
    local: IpAddr,
    /// Address of the guest's device
    #[arg(long)]
    remote: IpAddr,
    /// MTU of the wire
    #[arg(long)]
    wire_mtu: u32,
    /// Address and port of the guest's program
    #[arg(long)]
    peer: String,
    /// With the checks that take long
    #[arg(long)]
    full: bool,
    /// Only checks whose name contains this
    #[arg(long)]
    only: Option<String>,
}

type Check = fn(&mut Home) -> Outcome;

/// Returns the checks of a run. Those that wait are the same for both IP versions.
fn checks(arguments: &Arguments) -> Vec<(&'static str, Check)> {
    let mut checks: Vec<(&str, Check)> = vec![
        ("no listener", refusals::no_listener),
        ("handshake and data", handshake::negotiates),
        ("lengths of private data", handshake::carries_private_data),
        ("lengths of private data of a REJ", refusals::carries_private_data),
        ("the passive end drops the request", refusals::passive_end_drops_the_request),
        ("the active end gives up", refusals::active_end_gives_up),
        ("the active end rejects the REP", refusals::active_end_rejects_the_reply),
        ("type of service", handshake::carries_type_of_service),
        ("path MTU", handshake::chooses_path_mtu),
        ("transport timeout", handshake::chooses_timeouts),
        ("early data", data::arrives_early),
        ("the queue pair is used again", stale::reuses_the_queue_pair),
        ("stale connection", stale::refuses_a_live_queue_pair),
        ("our end disconnects, the other one waits", endings::we_disconnect),
        ("the guest disconnects, our end waits", endings::guest_disconnects),
        ("both ends disconnect", endings::both_disconnect),
        ("datagram queue pairs", datagrams::resolves),
        ("the guest's process is killed", endings::guests_process_is_killed),
    ];
    checks.push(match arguments.role {
        Role::Client => ("reasons of a REJ", mistakes::reasons_reach_the_guest),
        Role::Server => ("requests with mistakes", mistakes::have_the_same_response),
    });
    if arguments.full || arguments.local.is_ipv4() {
        checks.push(("lost messages", loss::loses));
        checks.push(("many at once", load::connects_many));
        if arguments.role == Role::Client {
            checks.push(("the guest's client restarts", stale::guests_client_restarts));
        }
    }
    if arguments.full {
        checks.push(("lost messages, for long", loss::loses_for_long));
    }
    checks
}

fn run(arguments: &Arguments) -> Outcome {
    let mut home = Home::new(arguments)?;
    let only = arguments.only.as_deref().unwrap_or_default();
    for (name, check) in checks(arguments) {
        if !name.contains(only) {
            continue;
        }
        let start = Instant::now();
        home.wire.start_check()?;
        check(&mut home).map_err(|error| format!("{name}: {error}\n{}", home.wire.listing()))?;
        println!("ok: {name} ({:.1} s)", start.elapsed().as_secs_f32());
    }
    home.guest.command("quit")?;
    Ok(())
}

fn main() -> std::process::ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("interop_connections: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
