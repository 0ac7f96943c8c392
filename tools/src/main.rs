//! `rdma-verbs`: finds out what stands between a user and RDMA, measures, and watches processes.
//!
//! ```text
//! rdma-verbs doctor [HOST]                      what stands between this user and RDMA
//! rdma-verbs devices                            all devices that can be opened
//! rdma-verbs ping HOST                          echoes over RDMA, with `ping --serve` on HOST
//! rdma-verbs perf self send lat                 latency between two processes on this machine
//! rdma-verbs perf send lat -d soft_eth0 [HOST]  between two machines: the server, and with HOST its client
//! rdma-verbs perf table                         everything beside raw sockets
//! rdma-verbs perf report                        one page about results
//! rdma-verbs top                                what all processes of this user are doing, live
//! rdma-verbs stat                               the same once, for programs and for Prometheus
//! rdma-verbs capture PID                        captures the packets of a running process
//! rdma-verbs show FILE                          the messages in a capture, request by request
//! rdma-verbs completions SHELL                  completions of bash, zsh, fish, elvish or PowerShell
//! rdma-verbs man                                the manual
//! ```
//!
//! `docs/doctor.md`, `docs/ping.md`, `docs/performance.md`, `docs/top.md` and `docs/capture.md` describe the commands,
//! and `docs/json.md` their documents for programs. The flags of `perf` have perftest's names and meanings. `devices`
//! prints what `ibv_devinfo -v` prints for adapters.

// Their macros panic if the reader of a pipe has gone: `common::print` and `common::note` do not.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod capture;
mod common;
mod completions;
mod devices;
mod doctor;
mod man;
mod perf;
mod ping;
mod show;
mod stat;
mod top;
mod watch;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "rdma-verbs",
    version,
    about = "RDMA verbs with or without the hardware: find problems, measure, watch processes",
    after_help = "Exit status: 0: done; 1: it failed, or found problems; 2: wrong usage. Some commands have more.\n\
                  Examples:\n  rdma-verbs doctor                  what stands between this user and RDMA\n  \
                  rdma-verbs ping server             echoes over RDMA, with `rdma-verbs ping --serve` there\n  \
                  rdma-verbs perf self send lat      latency between two processes\n  \
                  rdma-verbs man ping | man -l -     the manual of a command"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Finds out what stands between this user and RDMA, here and on the path to a host.
    Doctor(doctor::Options),
    /// All devices of all providers: limits, ports, GIDs.
    Devices(devices::Options),
    /// Echoes over RDMA: is the host there, how long does a round trip take, how much is lost.
    Ping(Box<ping::Options>),
    /// Latency, bandwidth and message rate of RDMA verbs between two processes.
    Perf(Box<perf::Arguments>),
    /// Watches processes with software devices: rates, paths, retransmissions, drops, connections.
    Top(top::Options),
    /// Prints the statistics of processes with software devices, once: text, JSON, OpenMetrics.
    Stat(stat::Options),
    /// Captures the packets of a running process.
    Capture(capture::Options),
    /// The messages in captures of packets, request by request.
    Show(show::Options),
    /// Prints the completions of a shell.
    Completions(completions::Options),
    /// Prints a page of the manual, or writes all of them into a folder.
    Man(man::Options),
}

/// Returns the definition of the command line.
fn program() -> clap::Command {
    Arguments::command()
}

/// Returns 0: done; 1: it failed; 2: wrong usage. `perf::run` has more codes.
fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Doctor(options) => doctor::run(&options),
        Command::Devices(options) => devices::run(&options),
        Command::Ping(options) => ping::run(&options),
        Command::Perf(arguments) => perf::run(&arguments),
        Command::Top(options) => top::run(&options),
        Command::Stat(options) => stat::run(&options),
        Command::Capture(options) => capture::run(&options),
        Command::Show(options) => show::run(&options),
        Command::Completions(options) => completions::run(&options, program()),
        Command::Man(options) => man::run(&options, program()),
    }
}
