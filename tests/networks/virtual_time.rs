//! What a stream keeps of its rate where packets are lost at random, in virtual time: the same figures on every machine.
//!
//! `cargo run --release --example virtual_networks -- --help`

use std::time::Duration;

use clap::{Parser, ValueEnum};
use rdma_verbs::memory::{Backing, Region};
use rdma_verbs::sim::{Bottleneck, Connection, Discipline, Faults, Host, Network, Port};
use rdma_verbs::types::{
    AccessFlags, Data, DomainId, KeyShare, Mtu, Operation, PeerCapabilities, PeerKey, Psn, QueuePairCapabilities,
    RawCompletion, SendFlags, SendRequest, Sge, Time,
};
use serde::Serialize;

const BASE: u64 = 0x10_0000;
const MESSAGE_BYTES: u32 = 64 << 10;
/// Requests that are posted and not complete: more than the largest window.
const DEPTH: usize = 64;
const LOSSES: [u32; 5] = [0, 1_000, 10_000, 50_000, 100_000];
const ROUND_TRIPS: [Duration; 3] = [Duration::from_micros(50), Duration::from_millis(1), Duration::from_millis(20)];
/// Holds all that is in flight: nothing is lost but by chance.
const LARGE_QUEUE: Discipline = Discipline::TailDrop { queue_bytes: 1 << 30 };
const NATIVE: PeerCapabilities =
    PeerCapabilities { version: 1, segmentation_offload: true, receive_buffer_bytes: 8 << 20, extensions: 0 };

/// What streams of 64 KiB keep of their rate on a link that loses packets, in virtual time.
#[derive(Parser)]
struct Arguments {
    /// Rate of the link in Mbit/s
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    rate: u64,
    /// Milliseconds of virtual time that are measured, and at least 50 round trips
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    milliseconds: u64,
    /// Only this operation
    #[arg(long)]
    operation: Option<Stream>,
    /// Seed of the losses
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON document instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Stream {
    Write,
    Read,
}

/// One measurement.
#[derive(Serialize)]
struct Cell {
    operation: Stream,
    round_trip_microseconds: u128,
    /// Packets lost of a million.
    loss: u32,
    megabytes_per_second: f64,
    /// Of the rate without losses.
    kept: f64,
    /// Bytes of data packets on the wire beyond those that are needed, of the needed ones.
    repeated: f64,
    /// Whether the connection ended.
    failed: bool,
}

/// Two hosts, a stream between them, and the link.
struct World {
    network: Network,
    ports: [Port; 2],
    operation: Operation,
    sge: Sge,
    /// The hosts that data leaves and reaches.
    direction: (usize, usize),
    outstanding: usize,
    done: Vec<RawCompletion>,
    failed: bool,
}

impl World {
    fn new(arguments: &Arguments, stream: Stream, round_trip: Duration, loss: u32) -> Self {
        let mut hosts = [1, 2].map(|number| Host::new([192, 0, 2, number].into(), number.into()));
        let cap = QueuePairCapabilities { max_send_wr: DEPTH as u32, ..QueuePairCapabilities::default() };
        let ports = hosts.each_mut().map(|host| host.create_queue_pair(cap));
        let regions = hosts.each_ref().map(register);
        connect(&mut hosts, &ports);
        let faults = Faults { rare_loss: loss, delay: round_trip / 2, ..Faults::default() };
        let mut network = Network::new(hosts.into(), vec![faults.clone(), faults], arguments.seed);
        network.release = 1_000;
        for pair in [(0, 1), (1, 0)] {
            network.share(Bottleneck::new(arguments.rate * 125_000, LARGE_QUEUE), &[pair]);
        }
        let rkey = regions[1].rkey();
        let (operation, direction) = match stream {
            Stream::Write => (Operation::Write { remote_addr: BASE, rkey }, (0, 1)),
            Stream::Read => (Operation::Read { remote_addr: BASE, rkey }, (1, 0)),
        };
        let sge = Sge { addr: BASE, length: MESSAGE_BYTES, lkey: regions[0].lkey() };
        Self { network, ports, operation, sge, direction, outstanding: 0, done: Vec::new(), failed: false }
    }

    /// Runs until then. Bytes of the messages that have completed meanwhile.
    fn run(&mut self, end: Time) -> u64 {
        let mut bytes = 0;
        while self.network.now < end && !self.failed {
            self.post();
            self.network.step(Duration::from_millis(1));
            self.ports[0].poll(&mut self.done);
            for completion in self.done.drain(..) {
                self.failed |= !completion.status.is_success();
                self.outstanding -= 1;
                bytes += u64::from(MESSAGE_BYTES);
            }
        }
        bytes
    }

    fn post(&mut self) {
        let (now, sges) = (self.network.now, [self.sge]);
        let (flags, operation) = (SendFlags::SIGNALED, self.operation);
        while self.outstanding < DEPTH {
            let request = SendRequest { wr_id: 1, operation, flags, data: Data::Sges(&sges) };
            assert!(self.network.hosts[0].post_send(now, &self.ports[0], &request), "the send queue has room");
            self.outstanding += 1;
        }
    }

    fn data_bytes_on_the_wire(&self) -> u64 {
        let (from, to) = self.direction;
        self.network.bottleneck(from, to).map_or(0, Bottleneck::passed_bytes)
    }
}

fn register(host: &Host) -> std::sync::Arc<Region> {
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE;
    let backing = Backing::from_vec(vec![1; MESSAGE_BYTES as usize]);
    host.memory.register(DomainId(1), backing, Some(BASE), access).expect("a region")
}

fn connect(hosts: &mut [Host; 2], ports: &[Port; 2]) {
    for own in 0..2 {
        let share = |end: usize| KeyShare::new([end as u8; KeyShare::BYTES]);
        let connection = Connection {
            peer_address: hosts[1 - own].address,
            peer_qpn: ports[1 - own].qpn,
            peer: NATIVE,
            key: Some(PeerKey { local: share(own), remote: share(1 - own), is_agreed: true }),
            path_mtu: Mtu::Mtu1024,
            sq_psn: Psn::new(100),
            rq_psn: Psn::new(100),
            access: AccessFlags::REMOTE,
            rd_atomic: 16,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 2,
        };
        hosts[own].connect(Time::ZERO, ports[own].qpn, &connection);
    }
}

/// Bytes of a data packet of 1 KiB on the wire, with all headers: what `Bottleneck` counts.
const WIRE_BYTES_OF_A_PACKET: f64 = 1_082.0;

fn measure(arguments: &Arguments, operation: Stream, round_trip: Duration, loss: u32) -> Cell {
    let mut world = World::new(arguments, operation, round_trip, loss);
    let length = Duration::from_millis(arguments.milliseconds).max(50 * round_trip);
    let begin = world.network.now + (20 * round_trip).max(Duration::from_millis(50));
    world.run(begin);
    let wire_before = world.data_bytes_on_the_wire();
    let bytes = world.run(begin + length);
    let needed = bytes as f64 / 1_024.0 * WIRE_BYTES_OF_A_PACKET;
    let on_the_wire = (world.data_bytes_on_the_wire() - wire_before) as f64;
    Cell {
        operation,
        round_trip_microseconds: round_trip.as_micros(),
        loss,
        megabytes_per_second: bytes as f64 / 1e6 / length.as_secs_f64(),
        kept: 0.0,
        repeated: (on_the_wire / needed - 1.0).max(0.0),
        failed: world.failed,
    }
}

fn print(cells: &[Cell]) {
    println!("{:<6} {:>10} {:>8} {:>9} {:>7} {:>9}", "", "round trip", "loss", "MB/s", "kept", "repeated");
    for cell in cells {
        let Cell { operation, round_trip_microseconds, loss, megabytes_per_second, kept, repeated, failed } = cell;
        let name = format!("{operation:?}").to_uppercase();
        let (loss, kept, repeated) = (f64::from(*loss) / 1e4, kept * 100.0, repeated * 100.0);
        let end = if *failed { "  the connection ended" } else { "" };
        println!(
            "{name:<6} {round_trip_microseconds:>7} µs {loss:>6} % {megabytes_per_second:>9.1} {kept:>5.0} % {repeated:>7.1} %{end}"
        );
    }
}

fn main() -> Result<(), serde_json::Error> {
    let arguments = Arguments::parse();
    let mut cells: Vec<Cell> = Vec::new();
    for operation in [Stream::Write, Stream::Read] {
        if arguments.operation.is_some_and(|only| only != operation) {
            continue;
        }
        for round_trip in ROUND_TRIPS {
            let without = cells.len();
            for loss in LOSSES {
                let mut cell = measure(&arguments, operation, round_trip, loss);
                let undisturbed = cells.get(without).map_or(cell.megabytes_per_second, |cell| cell.megabytes_per_second);
                cell.kept = cell.megabytes_per_second / undisturbed;
                cells.push(cell);
            }
        }
    }
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&cells)?);
    } else {
        print(&cells);
    }
    Ok(())
}
