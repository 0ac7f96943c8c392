//! Ping-pongs between two processes of one host, side by side: raw words in shared memory, and SENDs through links.
//!
//! | raw | beside | |
//! |---|---|---|
//! | each process spins on a word | SEND, both poll | one core each |
//! | each process sleeps in a futex | SEND, both wait for completion events | one core each |
//! | each process yields until a word changes | SEND, both poll | both on one core |
//!
//! ```text
//! cargo run --release -p rdma-verbs-tests --bin same_host
//! ```

mod end;
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

/// Measures ping-pongs between two processes of this host.
#[derive(Parser, Clone, Debug)]
#[command(name = "same_host")]
struct Arguments {
    /// Length of each measurement in milliseconds; it is made five times.
    #[arg(long, default_value_t = 300)]
    milliseconds: u64,
    /// The other process of a raw ping-pong, or of one through a link; set by the first one.
    #[arg(long, hide = true)]
    raw: Option<Wait>,
    #[arg(long, hide = true)]
    link: Option<Wait>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match (arguments.raw, arguments.link) {
        (Some(wait), _) => raw::answer(wait),
        (_, Some(wait)) => end::answer(wait),
        _ => compare(Duration::from_millis(arguments.milliseconds)),
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

fn compare(length: Duration) -> Result<(), Failure> {
    println!("half of the round trip of 8 bytes in ns: median of the medians of five measurements");
    for (wait, one, other) in [
        (Wait::Spin, "words in shared memory, spinning", "SEND through a link, polling"),
        (Wait::Sleep, "futexes", "SEND through a link, completion events"),
        (Wait::Yield, "words in shared memory, yielding, one core", "SEND through a link, polling, one core"),
    ] {
        let (mut raw, mut link) = (Vec::new(), Vec::new());
        // Alternating: what the machine does meanwhile is the same for both.
        for _ in 0..5 {
            raw.push(raw::measure(wait, length)?);
            link.push(end::measure(wait, length)?);
        }
        let (raw, link) = (median(&mut raw), median(&mut link));
        println!("{raw:8.0}  {one}\n{link:8.0}  {other}: {:.2} times", link / raw);
    }
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
