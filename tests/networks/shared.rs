//! Streams of several hosts that share a link whose queue is short, in virtual time, and streams of TCP beside them.

use std::time::Duration;

use rdma_verbs::sim::{Growth, StreamId, TcpConfig};
use serde::Serialize;

use super::stream::{Control, Link, Stream, World};
use super::tcp::config;

/// Bytes of a message in a packet of 1 KiB, and of TCP in a segment, of those on the wire: the link's rate in payload.
const PAYLOAD_SHARE: f64 = 1_024.0 / 1_082.0;

/// Who shares the link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crowd {
    /// Of the streams of RoCE.
    pub(crate) operation: Stream,
    pub(crate) control: Control,
    pub(crate) streams: usize,
    /// Streams of TCP, as Linux has it.
    pub(crate) tcp: usize,
}

/// What each gets.
#[derive(Serialize, Debug)]
pub(crate) struct Shares {
    /// MB/s of the streams of RoCE, in order.
    pub(crate) rates: Vec<f64>,
    /// MB/s of those of TCP.
    pub(crate) tcp: Vec<f64>,
    /// Of what the link carries of RoCE.
    pub(crate) used: f64,
    /// Jain's index of all rates: 1 if they are equal, one by their number if one has all.
    pub(crate) fairness: f64,
    /// Bytes of RoCE on the wire beyond those that are needed, of the needed ones; only without TCP.
    pub(crate) repeated: Option<f64>,
    /// Streams of RoCE that ended.
    pub(crate) failed: usize,
}

/// Lets all run for this time, after the link's warm-up.
pub(crate) fn measure(crowd: Crowd, link: Link, length: Duration) -> Shares {
    let Crowd { operation, control, streams, tcp } = crowd;
    let mut world = World::new(operation == Stream::Read, link, control, streams, tcp);
    let linux = TcpConfig { growth: Growth::Linux, ..config(link.rate, link.round_trip) };
    let data =
        |pair: usize| if operation == Stream::Read { (2 * pair + 1, 2 * pair) } else { (2 * pair, 2 * pair + 1) };
    let beside: Vec<StreamId> =
        (streams..streams + tcp).map(|pair| world.network.add_stream(data(pair).0, data(pair).1, linux)).collect();
    let begin = world.network.now + link.warm_up();
    world.run(begin);
    let (before, wire_before) = (delivered(&world, &beside), world.data_bytes_on_the_wire());
    world.run(begin + length);
    let after = delivered(&world, &beside);
    let rates: Vec<f64> =
        before.iter().zip(&after).map(|(before, after)| (after - before) as f64 / 1e6 / length.as_secs_f64()).collect();
    let wire = (world.data_bytes_on_the_wire() - wire_before) as f64;
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    let needed = sum * 1e6 * length.as_secs_f64() / PAYLOAD_SHARE;
    Shares {
        used: sum / (link.rate as f64 / 8.0 * PAYLOAD_SHARE),
        fairness: sum * sum / (rates.len() as f64 * squares),
        repeated: (tcp == 0).then_some((wire / needed - 1.0).max(0.0)),
        failed: world.flows.iter().filter(|flow| flow.failed).count(),
        tcp: rates[streams..].to_vec(),
        rates: rates[..streams].to_vec(),
    }
}

/// Bytes that have come to the applications.
fn delivered(world: &World, beside: &[StreamId]) -> Vec<u64> {
    let messages = world.flows.iter().map(|flow| flow.bytes);
    messages.chain(beside.iter().map(|id| world.network.stream(*id).delivered_bytes())).collect()
}
