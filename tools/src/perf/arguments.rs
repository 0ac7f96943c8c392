//! The command line: perftest's flags, with the same meanings.

mod wanted;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::job::{Atomic, Measure, Service, Sharing};
pub(crate) use wanted::{OWN_DEVICE, PARTNER_DEVICE, Wanted};

/// Length of the largest message.
const LARGEST_ASKED: usize = 1 << 30;
/// Length of the largest inline message of the software device.
const MOST_INLINE: u32 = 1024;

const REPORT_HELP: &str = "Examples:
  rdma-verbs perf report                                  measure this machine, write report.html
  rdma-verbs perf report -o after.html                    the same, later
  rdma-verbs perf report report.html after.html -o changes.html
                                                          compare the two
  rdma-verbs perf self send lat -a --references --json > send.json
  rdma-verbs perf report send.json -o send.html           a page about measurements of your own";

#[derive(Args, Debug)]
#[command(after_help = "Start the same command twice: without a host it is the server, with the server's host the \
    client. `rdma-verbs perf self send lat` starts both on this machine.\n\
    Exit status: 0: measured; 1: it failed, or `table --strict` is below a target; 2: wrong usage; 3: `table --strict` \
    could not measure all rows; 130: Ctrl-C.\n\
    Examples:\n  rdma-verbs perf self send lat                 both processes on this machine\n  \
    rdma-verbs perf send lat -d soft_eth0         server\n  \
    rdma-verbs perf send lat -d soft_eth0 HOST    client\n  \
    rdma-verbs perf table                         everything beside raw sockets")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    #[command(flatten)]
    One(Test),
    /// Both processes on this machine: `rdma-verbs perf self send lat`.
    #[command(name = "self")]
    Both {
        #[command(subcommand)]
        test: Test,
    },
    /// All rows with their targets, compared with raw sockets and other transports.
    Table(TableFlags),
    /// One HTML page about results: of the given files, or of measurements that take about a minute.
    #[command(after_help = REPORT_HELP)]
    Report(ReportFlags),
    /// The second process, started by the first.
    #[command(hide = true)]
    Partner { address: SocketAddr },
    /// The process at the near end of a virtual cable, started by the table.
    #[command(hide = true)]
    Near,
}

/// An operation.
#[derive(Subcommand, Debug)]
pub(crate) enum Test {
    /// SEND into receives of the other end.
    Send(TestFlags),
    /// WRITE to memory of the other end.
    Write(TestFlags),
    /// READ from memory of the other end.
    Read(TestFlags),
    /// Atomics on memory of the other end.
    Atomic(TestFlags),
}

#[derive(Args, Clone, Debug)]
pub(crate) struct TestFlags {
    /// The quantity to measure: latency, bandwidth, message rate.
    #[arg(value_enum)]
    measure: Measure,
    /// The server to connect to; without it, this is the server.
    host: Option<String>,
    /// Start the server, too, as `perf self` does.
    #[arg(long, conflicts_with = "host")]
    loopback: bool,
    /// Device, for example soft_eth0 or soft:192.0.2.1; by default the first one that is not the loopback.
    #[arg(short = 'd', long)]
    ib_dev: Option<String>,
    /// Port of the device.
    #[arg(short = 'i', long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    ib_port: u8,
    /// Index of the local GID; by default that of the first IPv4 address, or else the first.
    #[arg(short = 'x', long)]
    gid_index: Option<u8>,
    /// Listen on or connect to this TCP port.
    #[arg(short, long, default_value_t = 18515)]
    port: u16,
    /// Size of a message in bytes; K and M count 1024. 2 by default, 65536 for bw, 8 for rate and atomics.
    #[arg(short, long, value_parser = parse_size, conflicts_with = "all")]
    size: Option<usize>,
    /// All sizes from 2 B to 8 MiB, powers of two.
    #[arg(short, long)]
    all: bool,
    /// Number of messages; by default 1000 for lat, 5000 for bw, 200000 for rate.
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u64).range(1..))]
    iters: Option<u64>,
    /// Seconds to run instead of a number of messages.
    #[arg(short = 'D', long, conflicts_with_all = ["iters", "all"], value_parser = parse_seconds)]
    duration: Option<f64>,
    /// Queue pairs.
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    qp: u32,
    /// Requests in a send queue; 128 by default.
    #[arg(short, long, value_parser = clap::value_parser!(u32).range(1..=32_768))]
    tx_depth: Option<u32>,
    /// Receives in a receive queue.
    #[arg(short, long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=32_768))]
    rx_depth: u32,
    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096; by default the largest that both ports support.
    #[arg(short, long, value_parser = parse_mtu)]
    mtu: Option<u32>,
    /// Transport service.
    #[arg(short, long, value_enum, ignore_case = true, default_value = "RC")]
    connection: Service,
    /// Largest message that is posted inline, in bytes.
    #[arg(short = 'I', long, value_parser = clap::value_parser!(u32).range(..=i64::from(MOST_INLINE)))]
    inline_size: Option<u32>,
    /// Sleep on completion events instead of polling.
    #[arg(short, long)]
    events: bool,
    /// Both ends send.
    #[arg(short, long)]
    bidirectional: bool,
    /// Accepted for compatibility with perftest; without effect.
    #[arg(short = 'F', long = "CPU-freq")]
    cpu_freq: bool,
    /// Request a completion every this many requests; 32 for lat, 16 otherwise.
    #[arg(short = 'Q', long, value_parser = clap::value_parser!(u32).range(1..))]
    cq_mod: Option<u32>,
    /// Number of requests posted at once; 1, or 16 for rate.
    #[arg(short = 'l', long, value_parser = clap::value_parser!(u32).range(1..))]
    post_list: Option<u32>,
    /// Number of READs and atomics outstanding at a time; by default as many as the devices support.
    #[arg(short, long, default_value_t = 0)]
    outs: u8,
    /// Atomic operation.
    #[arg(short = 'A', long, value_enum, ignore_case = true, default_value = "FETCH_AND_ADD")]
    atomic_type: Atomic,
    /// Service level.
    #[arg(short = 'S', long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(..16))]
    sl: u8,
    /// Code of the transport timeout: 4.096 µs × 2^timeout.
    #[arg(short = 'u', long, default_value_t = 14, value_parser = clap::value_parser!(u8).range(..32))]
    qp_timeout: u8,
    /// Wait by polling memory only: `write lat` then calls no verb while it waits.
    #[arg(long, conflicts_with = "events")]
    memory_only: bool,
    /// Await futures in tokio: `send lat` with the feature `tokio`.
    #[arg(long, conflicts_with_all = ["events", "memory_only"])]
    futures: bool,
    /// Whether two software devices of one host share memory; by default they do, where it is possible.
    #[arg(long, value_enum)]
    shared_memory: Option<Sharing>,
    /// Use memory of the program instead of memory that the library allocates.
    #[arg(long)]
    program_memory: bool,
    /// Check every byte that arrives.
    #[arg(long)]
    check: bool,
    /// Run on this core.
    #[arg(long)]
    core: Option<usize>,
    /// With `self`: the other process's core.
    #[arg(long)]
    partner_core: Option<usize>,
    /// With `self`: the other process's device.
    #[arg(long)]
    partner_dev: Option<String>,
    /// Print one JSON document instead of a table.
    #[arg(long)]
    json: bool,
    /// Print the measured state of the path to the other end: losses, round trips, window and rate. A server prints its
    /// device's counters; JSON has the client's.
    #[arg(long)]
    report: bool,
    /// Draw the results.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Also measure raw UDP and TCP between the same processes.
    #[arg(long)]
    references: bool,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct TableFlags {
    /// Number of times that each row and its references are measured, alternately.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repetitions: u32,
    /// Only rows whose name contains this.
    #[arg(long)]
    pub(crate) only: Option<String>,
    /// Send a hundredth of the messages, to check that everything works.
    #[arg(long)]
    pub(crate) brief: bool,
    /// Print one JSON document instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
    /// Also draw latency and bandwidth against size, with the references.
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
    /// Exit with 1 if a row is below its target, else with 3 if one could not be measured here.
    #[arg(long)]
    pub(crate) strict: bool,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct ReportFlags {
    /// Results: what `perf ... --json` or `perf table --json` printed, or pages of this command. `-` is standard input.
    /// The first file is the one that the others are compared with.
    #[arg(conflicts_with_all = ["seconds", "save"])]
    pub(crate) files: Vec<PathBuf>,
    /// The page to write; `-` is standard output.
    #[arg(short, long, value_name = "FILE.html", default_value = "report.html")]
    pub(crate) output: PathBuf,
    /// Title of the page.
    #[arg(long)]
    pub(crate) title: Option<String>,
    /// Seconds that the measurements may take. They are repeated up to five times within that time.
    #[arg(long, default_value_t = 60.0, value_parser = parse_seconds)]
    pub(crate) seconds: f64,
    /// Also write the measurements as JSON; `-` is standard output, and `docs/json.md` describes the fields.
    #[arg(long, value_name = "FILE.json")]
    pub(crate) save: Option<PathBuf>,
}

/// Parses a number of bytes, with K or M for 1024 and 1024 × 1024.
fn parse_size(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1 << 10),
        None => text.strip_suffix(['m', 'M']).map_or((text, 1), |digits| (digits, 1 << 20)),
    };
    let size = digits.parse().ok().and_then(|count: usize| count.checked_mul(unit));
    let size = size.filter(|size| (1..=LARGEST_ASKED).contains(size));
    size.ok_or_else(|| format!("allowed are 1 to {LARGEST_ASKED}, and K and M behind a number"))
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| *seconds > 0.0 && *seconds <= 86_400.0);
    seconds.ok_or_else(|| "allowed are numbers above 0, at most 86400".to_owned())
}

fn parse_mtu(text: &str) -> Result<u32, String> {
    let mtu = text.parse().ok().and_then(rdma_verbs::verbs::Mtu::from_size);
    mtu.map(|mtu| mtu.bytes()).ok_or_else(|| "allowed are 256, 512, 1024, 2048 and 4096".to_owned())
}
