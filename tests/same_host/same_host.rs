//! Ping-pongs between two processes of one host, side by side: raw words in shared memory, and SENDs through links.
//!
//! | raw | beside | |
//! |---|---|---|
//! | each process spins on a word | SEND, both poll | one core each |
//! | each process sleeps in a futex | SEND, both wait for completion events | one core each |
//! | each process yields until a word changes | SEND, both poll | both on one core |
//!
//! Then WRITEs into a process that computes beside those into one that polls, and a queue pair through memory and one
//! through UDP on one shard, each beside itself alone. The limits are printed; a missed one is no failure, because a
//! busy machine misses them.
//!
//! ```text
//! cargo run --release -p rdma-verbs-tests --bin same_host
//! ```

mod computing;
mod end;
mod mixed;
mod raw;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

type Failure = Box<dyn std::error::Error>;

/// How the two ends wait for each other.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Wait {
    Spin,
    Sleep,
    Yield,
}

/// The activity of the target of WRITEs.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Target {
    Computing,
    Polling,
}

/// The path of packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Path {
    Memory,
    Udp,
}

/// Measures ping-pongs between two processes of this host.
#[derive(Parser, Clone, Debug)]
#[command(name = "same_host")]
struct Arguments {
    /// Length of each measurement in milliseconds; it is made five times.
    #[arg(long, default_value_t = 300)]
    milliseconds: u64,
    /// Only the measurements whose name contains this text.
    #[arg(long, default_value = "")]
    only: String,
    /// The other process of a raw ping-pong, or of one through a link; set by the first one.
    #[arg(long, hide = true)]
    raw: Option<Wait>,
    #[arg(long, hide = true)]
    link: Option<Wait>,
    #[arg(long, hide = true)]
    write: Option<Target>,
    #[arg(long, hide = true)]
    mixed: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match (arguments.raw, arguments.link, arguments.write) {
        (Some(wait), ..) => raw::answer(wait),
        (_, Some(wait), _) => end::answer(wait),
        (.., Some(target)) => computing::answer(target),
        _ if arguments.mixed => mixed::answer(),
        _ => compare(&arguments.only, Duration::from_millis(arguments.milliseconds)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("same_host: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Pins this process to its core: all to the first one, or the second process to the second one, if there is one.
fn pin(wait: Wait, is_second: bool) -> Result<(), Failure> {
    let pin_to = |core: usize| {
        let mut cores = CpuSet::new();
        cores.set(core)?;
        sched_setaffinity(Pid::from_raw(0), &cores)
    };
    if is_second && wait != Wait::Yield && pin_to(1).is_ok() {
        return Ok(());
    }
    Ok(pin_to(0)?)
}

fn compare(only: &str, length: Duration) -> Result<(), Failure> {
    println!("ns: half of the round trip of 8 bytes; of WRITEs the time until their completion");
    for (wait, one, other, limit) in [
        (Wait::Spin, "words in shared memory, spinning", "SEND through a link, polling", None),
        (Wait::Sleep, "futexes", "SEND through a link, completion events", Some(1.1)),
        (
            Wait::Yield,
            "words in shared memory, yielding, one core",
            "SEND through a link, polling, one core",
            Some(1.3),
        ),
    ] {
        beside(only, (one, || raw::measure(wait, length)), (other, || end::measure(wait, length)), limit)?;
    }
    for (path, name) in [(Path::Memory, "memory"), (Path::Udp, "UDP")] {
        let (alone, both) =
            (format!("SEND, {name}, alone"), format!("SEND, {name}, beside the other path on the shard"));
        let measure = |is_alone| mixed::measure(path, is_alone, length);
        beside(only, (&alone, || measure(true)), (&both, || measure(false)), Some(1.3))?;
    }
    let write = |target| computing::measure(target, length);
    let (polling, computing) = ("WRITE into a process that polls", "WRITE into a process that computes");
    beside(only, (polling, || write(Target::Polling)), (computing, || write(Target::Computing)), Some(2.0))
}

/// Measures two things in turn, so that what the machine does meanwhile is the same for both, and prints the medians of
/// the medians of five measurements.
fn beside(
    only: &str,
    (one, measure_one): (&str, impl Fn() -> Result<f64, Failure>),
    (other, measure_other): (&str, impl Fn() -> Result<f64, Failure>),
    limit: Option<f64>,
) -> Result<(), Failure> {
    if !other.contains(only) {
        return Ok(());
    }
    let (mut ones, mut others) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        ones.push(measure_one()?);
        others.push(measure_other()?);
    }
    let (first, second) = (median(&mut ones), median(&mut others));
    let limit = limit.map_or_else(String::new, |limit| format!(", at most {limit}"));
    println!("{first:8.0}  {one}\n{second:8.0}  {other}: {:.2} times{limit}", second / first);
    Ok(())
}

fn median(figures: &mut [f64]) -> f64 {
    figures.sort_unstable_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Returns the median of half of the round trips, in nanoseconds.
fn time(length: Duration, mut round_trip: impl FnMut() -> Result<(), Failure>) -> Result<f64, Failure> {
    let mut times = Vec::with_capacity(1 << 20);
    // Until all has warmed up.
    (0..1_000).try_for_each(|_| round_trip())?;
    let mut before = Instant::now();
    let end = before + length;
    while before < end && times.len() < times.capacity() {
        // Several at a time, because reading the clock takes as long as a word needs.
        const TOGETHER: u32 = 8;
        (0..TOGETHER).try_for_each(|_| round_trip())?;
        let now = Instant::now();
        times.push((now - before).as_nanos() as f64 / f64::from(2 * TOGETHER));
        before = now;
    }
    Ok(median(&mut times))
}
