//! A stream of WRITEs or READs, or of TCP, over a link with a limited rate that loses packets, in virtual time.

use std::time::Duration;

use clap::ValueEnum;
use rdma_verbs::types::Counter;
use serde::Serialize;

use super::world::{Control, Link, Plan, World};

/// Length on the wire of a data packet of 1 KiB with all headers, as `Bottleneck` counts it.
const WIRE_BYTES_OF_A_PACKET: f64 = 1_082.0;

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Stream {
    Write,
    Read,
    /// The simulator's model of TCP by the RFCs, over the same link.
    Tcp,
    /// The model of TCP with the window growth of Linux.
    Linux,
}

/// One measurement.
#[derive(Serialize, Debug)]
pub(crate) struct Cell {
    pub(crate) operation: Stream,
    pub(crate) round_trip_microseconds: u128,
    /// Losses per million packets.
    pub(crate) loss: u32,
    pub(crate) megabytes_per_second: f64,
    /// Fraction of the rate without losses.
    pub(crate) kept: f64,
    /// Bytes of data packets on the wire beyond the needed ones, as a fraction of these.
    pub(crate) repeated: f64,
    /// Whether the connection ended.
    pub(crate) failed: bool,
    /// The longest time between two completions.
    pub(crate) longest_pause: Duration,
    /// Number of probes, including those of the warm-up.
    pub(crate) probes: u64,
}

/// Measures a stream for this time, and at least 50 round trips.
pub(crate) fn measure(operation: Stream, link: Link, control: Control, least: Duration) -> Cell {
    let length = least.max(50 * link.round_trip);
    match operation {
        Stream::Tcp | Stream::Linux => super::tcp::measure(operation, link, length),
        Stream::Write | Stream::Read => measure_verb(operation, link, control, length),
    }
}

fn measure_verb(operation: Stream, link: Link, control: Control, length: Duration) -> Cell {
    let Link { round_trip, loss, .. } = link;
    let mut world = World::of_pairs(link, control, 1);
    let plan = Plan::new(operation == Stream::Read, (0, 1));
    let direction = plan.direction();
    world.add(plan);
    let begin = world.network.now + link.warm_up();
    world.run(begin);
    world.flows[0].longest_pause = Duration::ZERO;
    let (bytes_before, wire_before) = (world.flows[0].bytes, world.wire_bytes(direction));
    world.run(begin + length);
    let flow = &world.flows[0];
    let bytes = flow.bytes - bytes_before;
    let needed = bytes as f64 / 1_024.0 * WIRE_BYTES_OF_A_PACKET;
    let on_the_wire = (world.wire_bytes(direction) - wire_before) as f64;
    Cell {
        operation,
        round_trip_microseconds: round_trip.as_micros(),
        loss,
        megabytes_per_second: bytes as f64 / 1e6 / length.as_secs_f64(),
        kept: 0.0,
        repeated: (on_the_wire / needed - 1.0).max(0.0),
        failed: flow.failed,
        longest_pause: flow.longest_pause,
        probes: world.network.hosts[flow.host].endpoint.counters().get(Counter::TailProbe),
    }
}
