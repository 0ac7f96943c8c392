//! The baselines of the engine: raw programs over sockets and memory, of the same shape and as fast as they can be
//! made.
//!
//! Both ends run the same function with their [`Role`] and a TCP stream to each other, over which they exchange ports
//! and wait for each other; the stream is silent during measurements. Nothing here depends on verbs or on the rest of
//! `perf`.

mod datagram_latency;
mod datagram_stream;
mod frame;
mod memory_copy;
mod runtime;
mod tcp;

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

pub(crate) use datagram_latency::DatagramLatency;
pub(crate) use datagram_stream::{DatagramStream, Offload};
pub(crate) use memory_copy::MemoryCopy;
pub(crate) use runtime::RuntimeLatency;
pub(crate) use tcp::{TcpLatency, TcpRate};

/// How long an end waits for the other one before it gives up: a datagram was lost, or the other end is gone.
const PATIENCE: Duration = Duration::from_secs(10);
/// Number of empty polls between two reads of the clock.
const POLLS_PER_CHECK: u32 = 1 << 16;
/// Number of empty polls of a socket, some 20 µs, after which an end yields between polls: on an idle machine yielding
/// costs nothing after such a wait, and on a busy one the other end may need this core.
const SPINS: u32 = 200;
/// Longest time that a histogram distinguishes.
const LONGEST: Duration = Duration::from_secs(60);
/// The warm-up of a stream is its length divided by this.
const WARM_UP_PART: u64 = 8;
/// Length of the memory that streams cycle through at both ends, so that neither has its data in the cache.
const WALK_BYTES: usize = 8 << 20;

/// The role of an end. The client sends requests or data, and measures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    Client,
    Server,
}

/// The way of waiting for a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Wait {
    /// Polls again at once: best if every process has a core.
    Spin,
    /// Yields between two polls: best if they share cores.
    Yield,
    /// Sleeps in the kernel.
    Block,
    /// Another thread sleeps in the kernel and notifies the spinning one through memory.
    HandOver,
}

/// A program to compare with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Reference {
    DatagramLatency(DatagramLatency),
    DatagramStream(DatagramStream),
    MemoryCopy(MemoryCopy),
    RuntimeLatency(RuntimeLatency),
    TcpLatency(TcpLatency),
    TcpRate(TcpRate),
}

impl Reference {
    /// Runs this end of the program.
    pub(crate) fn run(&self, role: Role, stream: &mut TcpStream) -> io::Result<Measured> {
        match self {
            Self::DatagramLatency(test) => test.run(role, stream),
            Self::DatagramStream(test) => test.run(role, stream),
            Self::MemoryCopy(test) => test.run(role, stream),
            Self::RuntimeLatency(test) => test.run(role, stream),
            Self::TcpLatency(test) => test.run(role, stream),
            Self::TcpRate(test) => test.run(role, stream),
        }
    }
}

/// The measurements of one end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    /// Half round trips, or whole ones where only those make sense, in nanoseconds.
    pub(crate) times: Option<Histogram<u64>>,
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    /// Processor time of all threads of this process.
    pub(crate) cpu_seconds: f64,
}

/// Returns an empty histogram of times in nanoseconds, with three significant digits.
pub(crate) fn histogram() -> Histogram<u64> {
    let mut histogram = Histogram::new_with_max(LONGEST.as_nanos() as u64, 3).expect("the bounds are valid");
    histogram.auto(false);
    histogram
}

/// Measures round trips: the times between marks.
pub(crate) struct Stopwatch {
    times: Histogram<u64>,
    start: Instant,
    last: Instant,
    /// 2 to record half round trips.
    divisor: u64,
}

impl Stopwatch {
    pub(crate) fn start(divisor: u64) -> Self {
        let now = Instant::now();
        Self { times: histogram(), start: now, last: now, divisor }
    }

    /// Records the end of a round trip, and starts the next one.
    #[inline]
    pub(crate) fn mark(&mut self) {
        let now = Instant::now();
        self.times.saturating_record((now - self.last).as_nanos() as u64 / self.divisor);
        self.last = now;
    }

    /// Returns the time from the start to the last mark.
    pub(crate) fn elapsed(&self) -> Duration {
        self.last - self.start
    }

    pub(crate) fn times(self) -> Histogram<u64> {
        self.times
    }
}

/// Rounds of a ping-pong over any sockets, after a warm-up that is not measured.
struct Rounds {
    size: usize,
    iterations: u64,
    warm_up: u64,
}

impl Rounds {
    /// Runs this end; the client measures the rounds.
    #[inline]
    fn play(&self, role: Role, mut exchange: impl FnMut() -> io::Result<()>) -> io::Result<Measured> {
        for _ in 0..self.warm_up {
            exchange()?;
        }
        let span = Span::start()?;
        let mut stopwatch = Stopwatch::start(2);
        for _ in 0..self.iterations {
            exchange()?;
            if role == Role::Client {
                stopwatch.mark();
            }
        }
        let (seconds, cpu_seconds) = span.end()?;
        let bytes = self.size as u64 * self.iterations;
        Ok(Measured { times: Some(stopwatch.times()), messages: self.iterations, bytes, seconds, cpu_seconds })
    }
}

/// Measures time and processor time since its start.
pub(crate) struct Span {
    start: Instant,
    cpu_seconds: f64,
}

impl Span {
    pub(crate) fn start() -> io::Result<Self> {
        Ok(Self { cpu_seconds: cpu_seconds()?, start: Instant::now() })
    }

    /// Returns the seconds and the seconds of processor time.
    pub(crate) fn end(&self) -> io::Result<(f64, f64)> {
        let seconds = self.start.elapsed().as_secs_f64();
        Ok((seconds, cpu_seconds()? - self.cpu_seconds))
    }
}

/// Returns the processor time of all threads of this process.
fn cpu_seconds() -> io::Result<f64> {
    let time = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?;
    Ok(Duration::from(time).as_secs_f64())
}

/// Ends a wait with an error after [`PATIENCE`].
#[derive(Default)]
struct WaitGuard {
    polls: u32,
    since: Option<Instant>,
}

impl WaitGuard {
    /// Counts an empty poll of a socket.
    #[inline]
    fn note_empty_poll(&mut self) -> io::Result<()> {
        if self.polls >= SPINS || self.since.is_some() {
            std::thread::yield_now();
        }
        self.note_unchanged()
    }

    /// Counts an empty poll of memory. Never yields the core.
    #[inline]
    fn note_unchanged(&mut self) -> io::Result<()> {
        self.polls += 1;
        if self.polls < POLLS_PER_CHECK { Ok(()) } else { self.check_clock() }
    }

    #[cold]
    fn check_clock(&mut self) -> io::Result<()> {
        self.polls = 0;
        if self.since.get_or_insert_with(Instant::now).elapsed() < PATIENCE {
            return Ok(());
        }
        let message = "nothing arrived for 10 s: a datagram was lost, or the other end is gone";
        Err(io::Error::new(io::ErrorKind::TimedOut, message))
    }
}

/// Waits until the other end calls this function, too.
fn synchronize(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(b"m")?;
    stream.read_exact(&mut [0])
}

/// Sends a number to the other end and receives one.
fn exchange(stream: &mut TcpStream, number: u64) -> io::Result<u64> {
    stream.write_all(&number.to_be_bytes())?;
    let mut received = [0; 8];
    stream.read_exact(&mut received)?;
    Ok(u64::from_be_bytes(received))
}

/// Sends the port of a socket on this end's address. Returns the address of the other end's socket. A stream of a
/// dual-stack listener has IPv4-mapped IPv6 addresses, which sockets for IPv4 cannot send to.
fn exchange_port(stream: &mut TcpStream, port: u16) -> io::Result<SocketAddr> {
    let peer = stream.peer_addr()?.ip().to_canonical();
    let received = exchange(stream, port.into())?;
    let port = u16::try_from(received).map_err(|_| io::Error::other(format!("{received} is not a port")))?;
    Ok(SocketAddr::new(peer, port))
}

/// Returns any port of the address by which the other end reaches this one.
fn any_port(stream: &TcpStream) -> io::Result<SocketAddr> {
    let own = match stream.local_addr()?.ip().to_canonical() {
        IpAddr::V4(address) if address.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        own => own,
    };
    Ok(SocketAddr::new(own, 0))
}
