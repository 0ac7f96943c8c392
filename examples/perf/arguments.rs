//! The command line: perftest's flags, with the same meanings.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use super::job::{Amount, Atomic, Job, Measure, Operation, Service, Waiting};
use super::machine::Placement;
use super::outcome::{Failure, Outcome};

/// The sizes of `-a`.
const SMALLEST: usize = 2;
const LARGEST: usize = 8 << 20;
/// With `-a` and no `-n`, no size moves more than this.
const MOST_BYTES_A_SIZE: u64 = 1 << 30;
/// Devices of `self`, unless `-d` says otherwise: this process', and the other one's.
pub(crate) const OWN_DEVICE: &str = "soft:127.0.0.41";
pub(crate) const PARTNER_DEVICE: &str = "soft:127.0.0.42";
/// Largest message.
const LARGEST_ASKED: usize = 1 << 30;
/// Largest completion queue of the software device.
const MOST_COMPLETIONS: u64 = 1 << 20;
/// Largest inline message of the software device.
const MOST_INLINE: u32 = 1024;

#[derive(Parser, Debug)]
#[command(name = "perf", version, about = "Latency, bandwidth and message rate of RDMA verbs between two processes")]
#[command(after_help = "Start the same command twice: without a host it is the server, with the server's host the \
    client. `perf self send lat` starts both on this machine.")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    #[command(flatten)]
    One(Test),
    /// Both processes on this machine: `perf self send lat`.
    #[command(name = "self")]
    Both {
        #[command(subcommand)]
        test: Test,
    },
    /// Everything beside raw sockets, with the targets.
    Table(TableFlags),
    /// The second process, started by the first.
    #[command(hide = true)]
    Partner { address: SocketAddr },
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
    /// What is measured: latency, bandwidth, message rate.
    #[arg(value_enum)]
    measure: Measure,
    /// The server to connect to; without it, this is the server.
    host: Option<String>,
    /// Starts the server itself, as `perf self` does.
    #[arg(long, conflicts_with = "host")]
    loopback: bool,
    /// Device, for example soft_eth0 or soft:192.0.2.1; by default the first one that is not the loopback.
    #[arg(short = 'd', long)]
    ib_dev: Option<String>,
    /// Port of the device.
    #[arg(short = 'i', long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    ib_port: u8,
    /// Index of the own GID; by default the first IPv4 address, or else the first.
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
    /// Requests in a send queue; 1 for lat.
    #[arg(short, long, value_parser = clap::value_parser!(u32).range(1..=32_768))]
    tx_depth: Option<u32>,
    /// Receives in a receive queue.
    #[arg(short, long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=32_768))]
    rx_depth: u32,
    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096; by default the largest that both ports have.
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
    /// Accepted for the sake of perftest's users; it has no meaning here.
    #[arg(short = 'F', long = "CPU-freq")]
    cpu_freq: bool,
    /// Ask for a completion of every so many requests; 32 for lat, 16 otherwise.
    #[arg(short = 'Q', long, value_parser = clap::value_parser!(u32).range(1..))]
    cq_mod: Option<u32>,
    /// Requests posted at once; 1, or 16 for rate.
    #[arg(short = 'l', long, value_parser = clap::value_parser!(u32).range(1..))]
    post_list: Option<u32>,
    /// READs and atomics outstanding at a time; by default as many as the devices can.
    #[arg(short, long, default_value_t = 0)]
    outs: u8,
    /// Atomic operation.
    #[arg(short = 'A', long, value_enum, ignore_case = true, default_value = "FETCH_AND_ADD")]
    atomic_type: Atomic,
    /// Service level.
    #[arg(short = 'S', long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(..16))]
    sl: u8,
    /// Code of the wait for an answer: 4.096 µs × 2^timeout.
    #[arg(short = 'u', long, default_value_t = 14, value_parser = clap::value_parser!(u8).range(..32))]
    qp_timeout: u8,
    /// Wait in memory only: `write lat` then calls no verb while it waits.
    #[arg(long, conflicts_with = "events")]
    memory_only: bool,
    /// Await futures in tokio: `send lat` with the feature `tokio`.
    #[arg(long, conflicts_with_all = ["events", "memory_only"])]
    futures: bool,
    /// Check every byte that arrives.
    #[arg(long)]
    check: bool,
    /// Run on this core.
    #[arg(long)]
    core: Option<usize>,
    /// With `self`: the other process' core.
    #[arg(long)]
    partner_core: Option<usize>,
    /// With `self`: the other process' device.
    #[arg(long)]
    partner_dev: Option<String>,
    /// Print one JSON document instead of a table.
    #[arg(long)]
    json: bool,
    /// Draw what was measured.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Measure raw UDP and TCP between the same processes as well.
    #[arg(long)]
    references: bool,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct TableFlags {
    /// Times that each row and its references are measured, in turns.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repetitions: u32,
    /// Only rows whose name contains this.
    #[arg(long)]
    pub(crate) only: Option<String>,
    /// A hundredth of the messages: to see that it works.
    #[arg(long)]
    pub(crate) brief: bool,
    /// Print one JSON document instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
    /// Draw latency and bandwidth against size as well, with the references.
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
    /// Exit with 1 if a row is below its target.
    #[arg(long)]
    pub(crate) strict: bool,
}

/// A test that fits together.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) job: Job,
    pub(crate) device: Option<String>,
    pub(crate) ib_port: u8,
    pub(crate) gid_index: Option<u8>,
    pub(crate) host: Option<String>,
    pub(crate) port: u16,
    pub(crate) placement: Placement,
    pub(crate) partner_device: Option<String>,
    pub(crate) loopback: bool,
    pub(crate) json: bool,
    pub(crate) plot: Option<PathBuf>,
    pub(crate) references: bool,
}

impl Test {
    /// What is asked for, if it fits together; `both`: this process starts the other one.
    pub(crate) fn wanted(&self, both: bool) -> Outcome<Wanted> {
        let (operation, flags) = match self {
            Self::Send(flags) => (Operation::Send, flags),
            Self::Write(flags) => (Operation::Write, flags),
            Self::Read(flags) => (Operation::Read, flags),
            Self::Atomic(flags) => (Operation::Atomic, flags),
        };
        flags.wanted(operation, both || flags.loopback)
    }
}

impl TestFlags {
    fn wanted(&self, operation: Operation, both: bool) -> Outcome<Wanted> {
        self.check(operation, both)?;
        let job = self.job(operation);
        check_sizes(&job)?;
        let cores = (self.core, self.partner_core);
        let placement = match cores {
            (None, None) => Placement::Anywhere,
            // A server without a client's core, and the other way round: each process knows its own only.
            (own, None) if !both => Placement::On { client: own, server: own },
            (client, server) => Placement::On { client, server },
        };
        let device = |given: &Option<String>, default: &str| given.clone().or_else(|| both.then(|| default.to_owned()));
        Ok(Wanted {
            job,
            device: device(&self.ib_dev, OWN_DEVICE),
            partner_device: device(&self.partner_dev, PARTNER_DEVICE),
            ib_port: self.ib_port,
            gid_index: self.gid_index,
            host: self.host.clone(),
            port: self.port,
            placement,
            loopback: both,
            json: self.json,
            plot: self.plot.clone(),
            references: self.references,
        })
    }

    /// What does not fit together, whatever the sizes are.
    fn check(&self, operation: Operation, both: bool) -> Outcome {
        let (is_latency, is_datagram) = (self.measure == Measure::Latency, self.connection == Service::Datagram);
        let name = operation.name();
        let refused = [
            (both && self.host.is_some(), "perf self has both ends: it takes no host".to_owned()),
            (
                operation.is_answered_by_device() && self.connection != Service::Reliable,
                format!("-c: {name} is there on reliable connections (RC) only"),
            ),
            (is_datagram && operation == Operation::Write, "-c: datagrams (UD) are sent, not written".to_owned()),
            (is_latency && self.qp > 1, "-q: latency is measured on one queue pair".to_owned()),
            (is_latency && self.bidirectional, "-b: a ping-pong has one message on its way".to_owned()),
            (is_latency && self.post_list.is_some_and(|list| list > 1), "-l: for bw and rate".to_owned()),
            (
                is_latency && self.events && operation == Operation::Write,
                "-e: a WRITE makes no event at the receiver; write lat looks at memory".to_owned(),
            ),
            (
                self.memory_only && !(is_latency && operation == Operation::Write),
                "--memory-only: for write lat".to_owned(),
            ),
            (
                self.futures && !(is_latency && operation == Operation::Send && self.connection == Service::Reliable),
                "--futures: for send lat on reliable connections".to_owned(),
            ),
            (
                self.futures && !cfg!(feature = "tokio"),
                "--futures: built without the feature tokio; cargo run --features tokio".to_owned(),
            ),
            (
                !both && (self.partner_core.is_some() || self.partner_dev.is_some()),
                "--partner-core and --partner-dev: for perf self".to_owned(),
            ),
            (
                self.references && is_latency && operation.is_answered_by_device(),
                format!("--references: raw sockets have nothing like the latency of {name}"),
            ),
            (self.all && operation == Operation::Atomic, "-a: atomics have 8 bytes".to_owned()),
        ];
        match refused.into_iter().find(|(is_wrong, _)| *is_wrong) {
            Some((_, message)) => Err(Failure::Usage(message)),
            None => Ok(()),
        }
    }

    fn job(&self, operation: Operation) -> Job {
        let default_size = match (operation, self.measure) {
            (Operation::Atomic, _) | (_, Measure::Rate) => 8,
            (_, Measure::Latency) => SMALLEST,
            (_, Measure::Bandwidth) => 65_536,
        };
        let usual = Job::new(operation, self.measure, self.size.unwrap_or(default_size));
        let largest = if self.connection == Service::Datagram { self.mtu.unwrap_or(4096) as usize } else { LARGEST };
        let every = std::iter::successors(Some(SMALLEST), |size| Some(size * 2)).take_while(|size| *size <= largest);
        let tx_depth = self.tx_depth.unwrap_or(usual.tx_depth);
        let waiting = match (self.events, self.memory_only, self.futures) {
            (true, ..) => Waiting::Events,
            (_, true, _) => Waiting::Memory,
            (.., true) => Waiting::Futures,
            _ => Waiting::Polling,
        };
        Job {
            service: self.connection,
            sizes: if self.all { every.collect() } else { usual.sizes },
            amount: match (self.duration, self.iters) {
                (Some(seconds), _) => Amount::Seconds(seconds),
                (None, Some(iterations)) => Amount::Iterations(iterations),
                (None, None) => usual.amount,
            },
            byte_limit: if self.all && self.iters.is_none() { MOST_BYTES_A_SIZE } else { u64::MAX },
            queue_pairs: self.qp as usize,
            tx_depth,
            rx_depth: self.rx_depth,
            mtu: self.mtu,
            inline_size: self.inline_size.unwrap_or(usual.inline_size),
            waiting,
            bidirectional: self.bidirectional,
            signal_every: self.cq_mod.unwrap_or(usual.signal_every).min((tx_depth / 2).max(1)),
            post_list: self.post_list.unwrap_or(usual.post_list).min(tx_depth),
            outstanding: self.outs,
            atomic: self.atomic_type,
            service_level: self.sl,
            timeout: self.qp_timeout,
            check: self.check,
            seed: rand::random::<u32>().into(),
            ..usual
        }
    }
}

fn check_sizes(job: &Job) -> Outcome {
    let largest = job.largest();
    let message = if job.operation == Operation::Atomic && largest != 8 {
        format!("-s is {largest}; atomics have 8 bytes")
    } else if job.service == Service::Datagram && largest > 4096 {
        format!("-s is {largest}; a datagram has at most 4096 bytes")
    } else if job.completions() > MOST_COMPLETIONS {
        let (pairs, tx_depth, rx_depth) = (job.queue_pairs, job.tx_depth, job.rx_depth);
        format!(
            "-q {pairs} with -t {tx_depth} and -r {rx_depth} needs a completion queue of {} entries, which is more \
            than {MOST_COMPLETIONS}: take smaller depths",
            job.completions()
        )
    } else {
        return Ok(());
    };
    Err(Failure::Usage(message))
}

/// A number of bytes, with K or M for 1024 and 1024 × 1024.
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
    let mtu = text.parse().ok().and_then(rdma_verbs::verbs::Mtu::from_bytes);
    mtu.map(|mtu| mtu.bytes()).ok_or_else(|| "allowed are 256, 512, 1024, 2048 and 4096".to_owned())
}
