//! Streams of several hosts that share a link with a short queue, in virtual time, and streams of TCP beside them.

use std::time::Duration;

use rdma_verbs::sim::{Growth, TcpConfig};
use serde::Serialize;

use super::stream::Stream;
use super::world::{Control, Link, PAYLOAD_SHARE, Plan, World, fairness};

/// The streams that share the link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crowd {
    /// The operation of the RoCE streams.
    pub(crate) operation: Stream,
    pub(crate) control: Control,
    pub(crate) streams: usize,
    /// Number of TCP streams, as in Linux.
    pub(crate) tcp: usize,
}

/// The share of each stream.
#[derive(Serialize, Debug)]
pub(crate) struct Shares {
    /// Rates of the RoCE streams in MB/s, in order.
    pub(crate) rates: Vec<f64>,
    /// Rates of the TCP streams in MB/s.
    pub(crate) tcp: Vec<f64>,
    /// The RoCE streams' fraction of the link's payload rate.
    pub(crate) used: f64,
    /// Jain's index of all rates: 1 if they are equal, the inverse of their number if one stream has everything.
    pub(crate) fairness: f64,
    /// RoCE bytes on the wire beyond the needed ones, as a fraction of these; only without TCP.
    pub(crate) repeated: Option<f64>,
    /// Number of RoCE streams that failed.
    pub(crate) failed: usize,
}

/// Runs all streams for this time, after the link's warm-up.
pub(crate) fn measure(crowd: Crowd, link: Link, length: Duration) -> Shares {
    let Crowd { operation, control, streams, tcp } = crowd;
    let is_read = operation == Stream::Read;
    let mut world = World::of_pairs(link, control, streams + tcp);
    let plan = |pair: usize| Plan::new(is_read, (2 * pair, 2 * pair + 1));
    let data = |pair: usize| plan(pair).direction();
    (0..streams).for_each(|pair| world.add(plan(pair)));
    let linux = TcpConfig { growth: Growth::Linux, ..link.tcp() };
    (streams..streams + tcp).for_each(|pair| world.add_tcp(data(pair).0, data(pair).1, linux));
    let begin = world.network.now + link.warm_up();
    world.run(begin);
    let (before, wire_before) = (world.delivered(), world.wire_bytes(data(0)));
    world.run(begin + length);
    let after = world.delivered();
    let rates: Vec<f64> =
        before.iter().zip(&after).map(|(before, after)| (after - before) as f64 / 1e6 / length.as_secs_f64()).collect();
    let wire = (world.wire_bytes(data(0)) - wire_before) as f64;
    let sum: f64 = rates.iter().sum();
    let needed = sum * 1e6 * length.as_secs_f64() / PAYLOAD_SHARE;
    Shares {
        used: sum / (link.rate as f64 / 8.0 * PAYLOAD_SHARE),
        fairness: fairness(&rates),
        repeated: (tcp == 0).then_some((wire / needed - 1.0).max(0.0)),
        failed: world.flows.iter().filter(|flow| flow.failed).count(),
        tcp: rates[streams..].to_vec(),
        rates: rates[..streams].to_vec(),
    }
}
