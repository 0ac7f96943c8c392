//! A TCP stream over the same link: the baseline.

use std::time::Duration;

use rdma_verbs::sim::{Growth, TcpConfig};

use super::stream::{Cell, Stream};
use super::world::{Control, Link, World};

/// A stream with many losses pauses for 200 ms now and then, so its mean takes longer to settle.
const LENGTHS: u32 = 10;

/// Measures the model for ten times this time.
pub(crate) fn measure(operation: Stream, link: Link, length: Duration) -> Cell {
    let Link { round_trip, loss, .. } = link;
    let length = LENGTHS * length;
    let mut world = World::of_pairs(link, Control::Default, 1);
    let growth = if operation == Stream::Linux { Growth::Linux } else { Growth::Continuous };
    world.add_tcp(0, 1, TcpConfig { growth, ..link.tcp() });
    let end = world.network.now + link.warm_up();
    world.run(end);
    let before = Totals::of(&world);
    world.run(end + length);
    let after = Totals::of(&world);
    Cell {
        operation,
        round_trip_microseconds: round_trip.as_micros(),
        loss,
        megabytes_per_second: (after.bytes - before.bytes) as f64 / 1e6 / length.as_secs_f64(),
        kept: 0.0,
        repeated: (after.again - before.again) as f64 / (after.sent - before.sent).max(1) as f64,
        failed: false,
        longest_pause: Duration::ZERO,
        probes: 0,
    }
}

struct Totals {
    bytes: u64,
    sent: u64,
    again: u64,
}

impl Totals {
    fn of(world: &World) -> Self {
        let stream = world.network.stream(world.tcp[0]);
        let (sent, again) = (stream.sent_segments(), stream.retransmitted_segments());
        Self { bytes: stream.delivered_bytes(), sent, again }
    }
}
