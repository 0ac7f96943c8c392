//! A TCP stream over the same link: the yardstick.

use std::time::Duration;

use rdma_verbs::sim::{Growth, Network, StreamId, TcpConfig};
use rdma_verbs::types::Time;

use super::stream::{Cell, Control, Link, Stream, hosts};

/// A stream that loses much stands still for 200 ms now and then, so its mean takes longer to settle.
const LENGTHS: u32 = 10;

/// Measures the model for ten times this time.
pub(crate) fn measure(operation: Stream, link: Link, length: Duration) -> Cell {
    let Link { rate, round_trip, loss, .. } = link;
    let length = LENGTHS * length;
    let mut network = link.network(hosts(0, Control::Default).into());
    let growth = if operation == Stream::Linux { Growth::Linux } else { Growth::Continuous };
    let stream = network.add_stream(0, 1, TcpConfig { growth, ..config(rate, round_trip) });
    let end = network.now + link.warm_up();
    run(&mut network, end);
    let before = Totals::of(&network, stream);
    run(&mut network, end + length);
    let after = Totals::of(&network, stream);
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

/// The receive window holds two round trips at the link's rate, so that without losses it is no limit.
pub(crate) fn config(rate: u64, round_trip: Duration) -> TcpConfig {
    let config = TcpConfig::default();
    let two_round_trips = rate as f64 * 125_000.0 * 2.0 * round_trip.as_secs_f64();
    TcpConfig { receive_window_bytes: config.receive_window_bytes.max(two_round_trips as u32), ..config }
}

fn run(network: &mut Network, end: Time) {
    while network.now < end {
        network.step(end - network.now);
    }
}

struct Totals {
    bytes: u64,
    sent: u64,
    again: u64,
}

impl Totals {
    fn of(network: &Network, stream: StreamId) -> Self {
        let stream = network.stream(stream);
        let (sent, again) = (stream.sent_segments(), stream.retransmitted_segments());
        Self { bytes: stream.delivered_bytes(), sent, again }
    }
}
