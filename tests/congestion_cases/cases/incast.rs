//! Many hosts send to one at the same time, or one reads from many.

use std::time::Duration;

use rdma_verbs::sim::{Growth, TcpConfig};
use rdma_verbs::types::{Counter, Time};

use super::super::row::{Case, Check, Outcome, Row, Unit};
use super::super::scene::{PACKET_BYTES, READS, milliseconds, rate_text};
use super::super::world::{Control, Link, MESSAGE_BYTES, Plan, World};

const INCAST: Case = Case(10, "64 hosts and one");
const HOSTS: usize = 64;
const ROUND_TRIP: Duration = Duration::from_micros(20);
/// Pause between two rounds of messages.
const PAUSE: Duration = Duration::from_millis(10);
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for is_read in [false, true] {
        for rate in [1_000, 10_000, 100_000] {
            for (queue_bytes, queue, most) in [(1 << 20, "1 MiB", 2.0), (200_000, "200 kB", 4.0)] {
                let operation = if is_read { "READ" } else { "WRITE" };
                let most = if is_read { 1.3 } else { most };
                let parameters = format!("64 KiB each, {operation}, {}, queue {queue}", rate_text(rate));
                let row = INCAST.row(parameters, move |seed| {
                    let link = Link { queue_bytes, seed, reads: READS, ..Link::new(rate, ROUND_TRIP, 0) };
                    incast(link, is_read, most)
                });
                rows.push(row.selected_if(true));
            }
        }
    }
    rows
}

/// Returns the time of all messages one after the other, as fast as the link sends them.
fn ideal(rate: u64) -> Duration {
    let packets = HOSTS as u64 * u64::from(MESSAGE_BYTES) / 1_024;
    Duration::from_secs_f64((packets * PACKET_BYTES) as f64 / (rate as f64 * 125_000.0))
}

fn world(link: Link) -> World {
    let there: Vec<(usize, usize)> = (1..=HOSTS).map(|host| (host, 0)).collect();
    World::new(link, Control::Cubic, HOSTS + 1, &there)
}

fn incast(link: Link, is_read: bool, most: f64) -> Outcome {
    let ideal = ideal(link.rate);
    let mut world = world(link);
    for host in 1..=HOSTS {
        let hosts = if is_read { (0, host) } else { (host, 0) };
        world.add(Plan { messages: 1, depth: 1, ..Plan::new(is_read, hosts) });
    }
    let first = round(&mut world);
    let pause = world.network.now + PAUSE;
    while world.network.now < pause {
        world.network.step(pause - world.network.now);
    }
    world.flows.iter_mut().for_each(|flow| flow.left = 1);
    let second = round(&mut world);
    let timeouts: u64 =
        world.network.hosts.iter().map(|host| host.endpoint.counters().get(Counter::LocalAckTimeout)).sum();
    let failures = world.flows.iter().filter(|flow| flow.failed).count() as u64;
    let checks = vec![
        Check::at_most("last, of the ideal", first.div_duration_f64(ideal), most),
        Check::at_most("second round", second.div_duration_f64(ideal), 1.5),
        Check::none("timeouts", timeouts),
        Check::none("failures", failures),
    ];
    Outcome::beside_tcp(checks, "last", milliseconds(tcp(link)) / milliseconds(ideal), Unit::Ratio)
}

/// Runs until the last message has completed. Returns how long that took.
fn round(world: &mut World) -> Duration {
    let begin = world.network.now;
    world.run(begin + PATIENCE);
    let last = world.flows.iter().map(|flow| flow.last_completion).max();
    if world.network.now < begin + PATIENCE { last.unwrap_or(Time::ZERO) - begin } else { PATIENCE }
}

fn tcp(link: Link) -> Duration {
    let mut world = world(link);
    let most_bytes = Some(u64::from(MESSAGE_BYTES));
    let config = TcpConfig { growth: Growth::Linux, most_bytes, ..link.tcp() };
    (1..=HOSTS).for_each(|host| world.add_tcp(host, 0, config));
    let begin = world.network.now;
    let is_over = |world: &World| world.delivered().iter().all(|bytes| *bytes >= u64::from(MESSAGE_BYTES));
    while !is_over(&world) && world.network.now < begin + PATIENCE {
        let end = world.network.now + Duration::from_micros(50);
        world.run(end);
    }
    world.network.now - begin
}
