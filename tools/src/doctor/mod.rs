//! Finds out what stands between this user and RDMA, on this machine and on the way to another one.
//!
//! ```text
//! rdma-verbs doctor                  this machine
//! rdma-verbs doctor --serve          on HOST: answers the next command
//! rdma-verbs doctor HOST             this machine, then the path to HOST
//! ```
//!
//! `docs/doctor.md` describes the checks.

mod check;
mod container;
mod devices;
mod limits;
mod memory;
mod path;
mod peer;
mod ports;
mod probe;
mod protocol;
mod serve;
mod settings;
mod system;
mod traffic_class;
mod transfer;

use std::io;
use std::net::IpAddr;
use std::process::ExitCode;

use clap::{ArgGroup, Args, ValueHint};

use crate::common::exit_code;
use check::{Finding, Report};

#[derive(Args)]
#[command(group(ArgGroup::new("end").args(["host", "serve"])))]
#[command(after_help = "Exit status: 0 without problems, 1 with problems, 2 for wrong usage. Notes are no problems.\n\
                        Examples:\n  rdma-verbs doctor               this machine\n  \
                        rdma-verbs doctor --serve       on the other host, until Ctrl-C\n  \
                        rdma-verbs doctor server        this machine, and the path to the host \"server\"")]
pub(crate) struct Options {
    /// Also checks the path to this host: a name or an address. `rdma-verbs doctor --serve` should run there.
    #[arg(conflicts_with = "serve", value_hint = ValueHint::Hostname)]
    host: Option<String>,
    /// Answers the checks of other hosts, until it is interrupted.
    #[arg(long)]
    serve: bool,
    /// TCP and UDP port of `--serve`, here or on HOST.
    #[arg(long, requires = "end", default_value_t = protocol::DEFAULT_PORT)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// With `--serve`: answers on this address of this machine only.
    #[arg(long, requires = "serve")]
    bind: Option<IpAddr>,
    /// Prints JSON; `docs/json.md` describes the fields.
    #[arg(long, conflicts_with = "serve")]
    json: bool,
    /// Lists the checks, and makes none.
    #[arg(long, conflicts_with_all = ["serve", "host", "json"])]
    list: bool,
}

/// A check of this machine: its name, which stays the same in later versions, its title, and how it is made.
type HostCheck = (&'static str, &'static str, fn() -> Finding);

/// The checks in the order in which they are made: first those that answer the most frequent complaints about RDMA
/// (`docs/doctor.md`), the most frequent one first.
const HOST_CHECKS: [HostCheck; 19] = [
    ("devices", "Software devices can be opened", devices::devices),
    ("libibverbs", "Adapters: rdma-core's library is installed", devices::library),
    ("infiniband", "Adapters: /dev/infiniband is accessible", devices::device_files),
    ("gids", "Each device has a GID that other hosts can reach", devices::gids),
    ("port", "UDP port 4791 is free, or shared by processes of this user", ports::port),
    ("transfer", "A WRITE and a SEND over the sockets of each device", devices::transfer),
    ("memlock", "Adapters: enough memory may be locked", limits::memlock),
    ("registry", "The folder in /dev/shm that the processes of this user share", memory::registry),
    ("space", "/dev/shm has space", memory::space),
    ("shared-memory", "Packets between processes of this user can go through memory", memory::shared),
    ("seccomp", "System calls are not filtered", container::seccomp),
    ("user-namespace", "Root is root of the machine", container::user_namespace),
    ("memory-limit", "The control group has memory left", container::memory_limit),
    ("socket-buffers", "Sockets may have large buffers", limits::socket_buffers),
    ("segmentation", "The kernel sends and receives UDP packets in bulk", limits::segmentation),
    ("settings", "The variables RDMA_VERBS_* have allowed values", settings::settings),
    ("descriptors", "The process may have enough file descriptors", limits::descriptors),
    ("overcommit", "The kernel commits memory when it is used", memory::overcommit),
    ("ptrace", "Debuggers may attach", limits::ptrace),
];

/// Runs the checks, or the server. Returns 0 without problems, 1 with problems.
pub(crate) fn run(options: &Options) -> ExitCode {
    let done = match options {
        Options { list: true, .. } => list(),
        Options { serve: true, .. } => serve::run(options.bind, options.port),
        _ => examine(options),
    };
    exit_code("doctor", done.map(|problems| ExitCode::from(u8::from(problems > 0))))
}

/// Makes all checks. Returns the number of problems.
fn examine(options: &Options) -> io::Result<usize> {
    let mut report = Report::new(options.json, options.host.as_deref());
    for (name, title, check) in HOST_CHECKS {
        report.add(name, title, check())?;
    }
    if let Some(host) = &options.host {
        peer::examine(&mut report, host, options.port)?;
    }
    report.end()
}

fn list() -> io::Result<usize> {
    use io::Write;
    let mut out = io::stdout().lock();
    let host = HOST_CHECKS.iter().map(|(name, title, _)| (*name, *title));
    for (name, title) in host.chain(peer::CHECKS) {
        writeln!(out, "{name:<16} {title}")?;
    }
    Ok(0)
}
