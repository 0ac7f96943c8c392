//! Many devices send to one over a link that is too slow for all at once: measures the time until the last byte
//! arrives.
//!
//! `incast many` has a device for each sender, `incast one` the receiver; they meet over TCP. The senders post WRITEs,
//! the receiver posts READs. The end that posts prints the times.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use rdma_verbs::verbs::{
    self, AccessFlags, CompletionQueue, Counter, MemoryRegion, ProtectionDomain, QueuePair, RemoteMemory, SendRequest,
};

const PATIENCE: Duration = Duration::from_secs(20);
/// Pause in which the queues drain between rounds.
const PAUSE: Duration = Duration::from_millis(20);
/// Wire bytes per byte of payload of a packet of 1,024, as a queueing discipline counts them, from the Ethernet header
/// on.
const PACKET_BYTES: f64 = 1_082.0 / 1_024.0;

/// Measures the time until the last byte of data has arrived that many devices send to one at once.
#[derive(Parser)]
#[command(name = "incast")]
struct Arguments {
    /// This end.
    #[arg(value_enum)]
    end: End,
    /// Address on which the receiver listens: ADDRESS:PORT.
    #[arg(long)]
    meet: String,
    /// Devices: the receiver's, or those of the senders.
    #[arg(long, value_delimiter = ',', required = true)]
    devices: Vec<String>,
    /// Number of senders; needed by the receiver.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    senders: u32,
    #[arg(long, value_enum, default_value_t = Operation::Write)]
    operation: Operation,
    /// Bytes of each sender in a round.
    #[arg(long, default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(1..=64 << 20))]
    bytes: u32,
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// Rate of the link, in Mbit/s.
    #[arg(long, default_value_t = 1_000.0)]
    rate: f64,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum End {
    Many,
    One,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Operation {
    Write,
    Read,
}

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// A connection, with the memory that is the source or the target of its data.
struct Connection {
    _domain: ProtectionDomain,
    completions: CompletionQueue,
    queue_pair: QueuePair,
    region: MemoryRegion,
}

impl Connection {
    fn open(device: &str, bytes: usize) -> Outcome<Self> {
        let context = verbs::open(device)?;
        let (domain, completions) = (context.alloc_pd()?, context.create_cq(16)?);
        let queue_pair = domain.create_qp(&completions, &completions)?;
        let region = domain.alloc_mr(bytes, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE)?;
        Ok(Self { _domain: domain, completions, queue_pair, region })
    }

    fn post(&self, operation: Operation, remote: RemoteMemory) -> Outcome {
        let local = self.region.slice(..)?;
        let request = match operation {
            Operation::Write => SendRequest::write(local, remote),
            Operation::Read => SendRequest::read(local, remote),
        };
        Ok(self.queue_pair.post_send(&[request.signaled()])?)
    }

    fn finish(&self) -> Outcome {
        let completion = self.completions.wait(PATIENCE)?;
        completion.result().map_err(|failure| self.queue_pair.explain(&failure))?;
        Ok(())
    }
}

/// A connection, the peer's memory, and the stream to the peer.
type Peer = (Connection, RemoteMemory, TcpStream);

fn connect_all(arguments: &Arguments) -> Outcome<Vec<Peer>> {
    let listener = match arguments.end {
        End::One => Some(TcpListener::bind(&arguments.meet)?),
        End::Many => None,
    };
    let devices = arguments.devices.iter().cycle().take(arguments.senders as usize);
    let connect_one = |device: &String| -> Outcome<Peer> {
        let connection = Connection::open(device, arguments.bytes as usize)?;
        let own = connection.queue_pair.connection_info()?;
        let (peer, mut stream) = match &listener {
            Some(listener) => own.accept_tcp(listener, PATIENCE)?,
            None => own.connect_tcp(&arguments.meet, PATIENCE)?,
        };
        connection.queue_pair.connect(&peer)?;
        stream.set_read_timeout(Some(3 * PATIENCE))?;
        stream.write_all(&connection.region.remote().to_bytes())?;
        let mut remote = [0; RemoteMemory::ENCODED_BYTES];
        stream.read_exact(&mut remote)?;
        Ok((connection, RemoteMemory::from_bytes(remote), stream))
    };
    devices.map(connect_one).collect()
}

/// Returns the times of all rounds, in milliseconds.
fn measure(arguments: &Arguments, peers: &[Peer]) -> Outcome<Vec<f64>> {
    let round = |_| {
        sleep(PAUSE);
        let begin = Instant::now();
        peers.iter().try_for_each(|(connection, remote, _)| connection.post(arguments.operation, *remote))?;
        peers.iter().try_for_each(|(connection, ..)| connection.finish())?;
        Ok(begin.elapsed().as_secs_f64() * 1e3)
    };
    (0..arguments.rounds).map(round).collect()
}

fn print(arguments: &Arguments, times: &[f64], again: u64) {
    let all_bytes = f64::from(arguments.bytes) * f64::from(arguments.senders) * PACKET_BYTES;
    let ideal = all_bytes * 8.0 / (arguments.rate * 1e3);
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    let [median, longest] = [sorted[sorted.len() / 2], sorted[sorted.len() - 1]];
    println!(
        "{{\"ideal_ms\": {ideal:.3}, \"first_ms\": {:.3}, \"median_ms\": {median:.3}, \"longest_ms\": {longest:.3}, \
         \"sent_again\": {again}}}",
        times[0]
    );
}

fn run(arguments: &Arguments) -> Outcome {
    let mut peers = connect_all(arguments)?;
    let posts = (arguments.end == End::Many) == (arguments.operation == Operation::Write);
    if posts {
        let times = measure(arguments, &peers)?;
        let again =
            peers.iter().map(|(connection, ..)| connection.queue_pair.counters().get(Counter::RetransmittedPackets));
        print(arguments, &times, again.sum());
    }
    // Both ends stay until the one that posts is done.
    peers.iter_mut().try_for_each(|(_, _, stream)| match posts {
        true => stream.write_all(&[1]),
        false => stream.read_exact(&mut [0]),
    })?;
    Ok(())
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("incast: {error}");
            ExitCode::FAILURE
        }
    }
}
