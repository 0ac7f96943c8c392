//! What the engine is compared with: raw programs over sockets, of the same shape and as fast as they can be made.
//!
//! Both ends run the same function with their [`Role`] and a TCP stream to each other, over which they tell ports and
//! wait for each other; the stream is silent while anything is measured. Nothing here knows of verbs or of the rest of
//! `perf`, so that benches can use it.

mod datagram_latency;
mod datagram_stream;
mod frame;
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
pub(crate) use runtime::RuntimeLatency;
pub(crate) use tcp::{TcpLatency, TcpRate};

/// How long an end waits for the other one before it gives up: something was lost, or the other end is gone.
const PATIENCE: Duration = Duration::from_secs(10);
/// Empty looks between two looks at the clock.
const LOOKS: u32 = 1 << 16;
/// Empty looks at a socket, some 20 µs, after which others may run between two: whoever waits so long beside an idle
/// machine has lost nothing by that, and on a busy one the other end may need this very core.
const SPINS: u32 = 200;
/// Longest time that is told apart in a histogram.
const LONGEST: Duration = Duration::from_secs(60);
/// What goes before a measured stream: such a part of it.
const WARM_UP_PART: u64 = 8;
/// Memory that streams walk over at both ends, so that neither has its data in the cache.
const WALK_BYTES: usize = 8 << 20;

/// Which end this is. The client asks or sends, and measures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    Client,
    Server,
}

/// What to do while nothing has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Wait {
    /// Look again at once: best where every process has a core.
    Spin,
    /// Let others run between two looks: best where they have not.
    Yield,
    /// Sleep in the kernel.
    Block,
    /// A thread of its own sleeps in the kernel and tells the spinning one through memory.
    HandOver,
}

/// A program to compare with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Reference {
    DatagramLatency(DatagramLatency),
    DatagramStream(DatagramStream),
    RuntimeLatency(RuntimeLatency),
    TcpLatency(TcpLatency),
    TcpRate(TcpRate),
}

impl Reference {
    /// Runs this end of it.
    pub(crate) fn run(&self, role: Role, stream: &mut TcpStream) -> io::Result<Measured> {
        match self {
            Self::DatagramLatency(test) => test.run(role, stream),
            Self::DatagramStream(test) => test.run(role, stream),
            Self::RuntimeLatency(test) => test.run(role, stream),
            Self::TcpLatency(test) => test.run(role, stream),
            Self::TcpRate(test) => test.run(role, stream),
        }
    }
}

/// What one end has measured.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    /// Half round trips, or whole ones where only those make sense, in nanoseconds.
    pub(crate) times: Option<Histogram<u64>>,
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    /// Processor time of this process, all its threads.
    pub(crate) cpu_seconds: f64,
}

/// A histogram of times in nanoseconds, to three digits.
pub(crate) fn histogram() -> Histogram<u64> {
    let mut histogram = Histogram::new_with_max(LONGEST.as_nanos() as u64, 3).expect("the bounds are valid");
    histogram.auto(false);
    histogram
}

/// Times round trips: from one mark to the next.
pub(crate) struct Stopwatch {
    times: Histogram<u64>,
    start: Instant,
    last: Instant,
    /// 2 if half round trips are wanted.
    divisor: u64,
}

impl Stopwatch {
    pub(crate) fn start(divisor: u64) -> Self {
        let now = Instant::now();
        Self { times: histogram(), start: now, last: now, divisor }
    }

    /// A round trip has ended, and the next one begins.
    #[inline]
    pub(crate) fn mark(&mut self) {
        let now = Instant::now();
        self.times.saturating_record((now - self.last).as_nanos() as u64 / self.divisor);
        self.last = now;
    }

    /// From the start to the last mark.
    pub(crate) fn elapsed(&self) -> Duration {
        self.last - self.start
    }

    pub(crate) fn times(self) -> Histogram<u64> {
        self.times
    }
}

/// Rounds of a ping-pong over any sockets, after some that are not measured.
struct Rounds {
    size: usize,
    iterations: u64,
    warm_up: u64,
}

impl Rounds {
    /// Plays this end; the client times the rounds.
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

/// Time and processor time from here on.
pub(crate) struct Span {
    start: Instant,
    cpu_seconds: f64,
}

impl Span {
    pub(crate) fn start() -> io::Result<Self> {
        Ok(Self { cpu_seconds: cpu_seconds()?, start: Instant::now() })
    }

    /// Seconds, and seconds of the processor.
    pub(crate) fn end(&self) -> io::Result<(f64, f64)> {
        let seconds = self.start.elapsed().as_secs_f64();
        Ok((seconds, cpu_seconds()? - self.cpu_seconds))
    }
}

/// Processor time that this process has used, all its threads.
fn cpu_seconds() -> io::Result<f64> {
    let time = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?;
    Ok(Duration::from(time).as_secs_f64())
}

/// Ends a wait that has become hopeless.
#[derive(Default)]
struct Impatience {
    looks: u32,
    since: Option<Instant>,
}

impl Impatience {
    /// To be called for every look at a socket that found nothing.
    #[inline]
    fn nothing_came(&mut self) -> io::Result<()> {
        if self.looks >= SPINS || self.since.is_some() {
            std::thread::yield_now();
        }
        self.nothing_seen()
    }

    /// To be called for every look at memory that found nothing. Never gives the core away.
    #[inline]
    fn nothing_seen(&mut self) -> io::Result<()> {
        self.looks += 1;
        if self.looks < LOOKS { Ok(()) } else { self.look_at_clock() }
    }

    #[cold]
    fn look_at_clock(&mut self) -> io::Result<()> {
        self.looks = 0;
        if self.since.get_or_insert_with(Instant::now).elapsed() < PATIENCE {
            return Ok(());
        }
        let message = "nothing came for 10 s: a datagram was lost, or the other end is gone";
        Err(io::Error::new(io::ErrorKind::TimedOut, message))
    }
}

/// Waits until the other end is here too.
fn meet(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(b"m")?;
    stream.read_exact(&mut [0])
}

/// Tells the other end a number and hears one.
fn exchange(stream: &mut TcpStream, number: u64) -> io::Result<u64> {
    stream.write_all(&number.to_be_bytes())?;
    let mut heard = [0; 8];
    stream.read_exact(&mut heard)?;
    Ok(u64::from_be_bytes(heard))
}

/// Tells the other end the port of a socket on this end's address; where the other end's socket is. A stream of a
/// listener for both IP versions calls an IPv4 address an IPv6 one, which sockets for IPv4 cannot send to.
fn exchange_port(stream: &mut TcpStream, port: u16) -> io::Result<SocketAddr> {
    let peer = stream.peer_addr()?.ip().to_canonical();
    let heard = exchange(stream, port.into())?;
    let port = u16::try_from(heard).map_err(|_| io::Error::other(format!("{heard} is no port")))?;
    Ok(SocketAddr::new(peer, port))
}

/// Any port of the address by which the other end reaches this one.
fn any_port(stream: &TcpStream) -> io::Result<SocketAddr> {
    let own = match stream.local_addr()?.ip().to_canonical() {
        IpAddr::V4(address) if address.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        own => own,
    };
    Ok(SocketAddr::new(own, 0))
}
