//! Asks a host for echoes over RDMA, with the statistics and the flags of ping(8).
//!
//! ```text
//! rdma-verbs ping --serve            on HOST: returns echoes
//! rdma-verbs ping HOST               one echo a second, until Ctrl-C
//! ```
//!
//! `docs/ping.md` describes what it measures, and what it says about hosts without a server.

mod client;
mod connect;
mod diagnosis;
mod echo;
mod probe;
mod protocol;
mod queue;
mod report;
mod serve;
mod session;
mod statistics;
mod target;

use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueHint};

use crate::common::{exit_code, note, watch_for_interrupt};
use protocol::{DEFAULT_PORT, MOST_DATA, Service};
use target::Target;

/// Echoes a second that a server may allow.
const RATES: RangeInclusive<i64> = 1..=1_000_000;

#[derive(Args)]
#[command(after_help = "Exit status: 0 if there was a reply; 1 if there was none, or fewer than --count before \
                        --deadline; 2 for wrong usage, or a host without address or route.\n\
                        Examples:\n  rdma-verbs ping --serve               on the other host, until Ctrl-C\n  \
                        rdma-verbs ping server                one echo a second, until Ctrl-C\n  \
                        rdma-verbs ping -c 5 --type ud server five datagrams\n  \
                        rdma-verbs ping -q -f -w 10 server    as many echoes as the server allows in 10 s\n  \
                        rdma-verbs ping --one-sided server    READs, without the server's program")]
pub(crate) struct Options {
    /// The host: a name or an address, optionally with a port (`HOST:PORT`, `[ADDRESS]:PORT`).
    #[arg(required_unless_present = "serve", conflicts_with = "serve", value_hint = ValueHint::Hostname)]
    host: Option<String>,
    /// Returns the echoes of other hosts, until it is interrupted.
    #[arg(long)]
    serve: bool,
    /// Port of the server in the connection manager, which is no port of UDP or TCP.
    #[arg(long, default_value_t = DEFAULT_PORT, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// With `--serve`: answers on this address of this machine only.
    #[arg(long, requires = "serve")]
    bind: Option<IpAddr>,
    /// With `--serve`: the echoes a second that each client may have; all datagrams together count as one client.
    #[arg(long, requires = "serve", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(RATES))]
    rate: u32,
    /// With `--serve`: connections at a time.
    #[arg(long, requires = "serve", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1000))]
    clients: u32,
    /// Transport service of the echoes.
    #[arg(short = 't', long = "type", value_enum, ignore_case = true, default_value = "rc", conflicts_with = "serve")]
    service: Service,
    /// READs the server's memory instead of sending it messages: its program takes no part. RC only.
    #[arg(long, conflicts_with = "serve")]
    one_sided: bool,
    /// Ends after this many echoes; with --deadline, after this many replies.
    #[arg(short, long, conflicts_with = "serve", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Seconds between two echoes; the server states the shortest interval that it allows.
    #[arg(short, long, default_value = "1", conflicts_with = "serve", value_parser = parse_seconds)]
    interval: Duration,
    /// Bytes of data in each echo, behind a header of 16 bytes.
    #[arg(short, long, default_value_t = 56, conflicts_with = "serve", value_parser = parse_size)]
    size: usize,
    /// Seconds to wait for a reply, before it counts as lost.
    #[arg(short = 'W', long, default_value = "1", conflicts_with = "serve", value_parser = parse_positive_seconds)]
    timeout: Duration,
    /// Ends after this many seconds.
    #[arg(short = 'w', long, conflicts_with = "serve", value_parser = parse_positive_seconds)]
    deadline: Option<Duration>,
    /// Sends the next echo as soon as the reply is there, as often as the server allows.
    #[arg(short, long, conflicts_with_all = ["serve", "interval"])]
    flood: bool,
    /// Sends from this device, or from this address of this machine.
    #[arg(short, long, short_alias = 'I', conflicts_with = "serve")]
    device: Option<String>,
    /// Prints the first line and the summary only, with percentiles.
    #[arg(short, long, conflicts_with = "serve")]
    quiet: bool,
    /// Prints why packets go through sockets or memory, and percentiles in the summary.
    #[arg(short, long, conflicts_with = "serve")]
    verbose: bool,
    /// Prints the time before each line, in seconds since 1970.
    #[arg(short = 'D', long, conflicts_with = "serve")]
    timestamps: bool,
    /// Prints one JSON document at the end; `docs/json.md` describes the fields.
    #[arg(long, conflicts_with = "serve")]
    json: bool,
}

/// Parses a number of seconds of at most a year.
fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| (0.0..=31_536_000.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "allowed are seconds from 0 to 31536000".to_owned())
}

fn parse_positive_seconds(text: &str) -> Result<Duration, String> {
    let seconds = parse_seconds(text)?;
    if seconds.is_zero() { Err("allowed are seconds above 0, up to 31536000".to_owned()) } else { Ok(seconds) }
}

fn parse_size(text: &str) -> Result<usize, String> {
    let size = text.parse().ok().filter(|size| *size <= MOST_DATA);
    size.ok_or_else(|| format!("allowed are 0 to {MOST_DATA} bytes"))
}

/// Pings a host, or serves.
pub(crate) fn run(options: &Options) -> ExitCode {
    exit_code("ping", dispatch(options))
}

fn dispatch(options: &Options) -> io::Result<ExitCode> {
    if options.one_sided && options.service != Service::Rc {
        return Ok(usage(&format!("--one-sided: {} has no READ; use --type rc", options.service.name())));
    }
    watch_for_interrupt()?;
    let Some(host) = &options.host else {
        let Options { bind, port, rate, clients, .. } = *options;
        return serve::run(serve::Settings { bind, port, rate, clients });
    };
    match Target::parse(host, options.port) {
        Ok(target) => client::run(options, &target),
        Err(error) => Ok(usage(&error)),
    }
}

fn usage(error: &str) -> ExitCode {
    note!("ping: {error}\n\nFor more information, try '--help'.");
    ExitCode::from(2)
}
