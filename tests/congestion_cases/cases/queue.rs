//! The queue that streams build, their reaction to ECN marks, and links that change.

use std::time::Duration;

use rdma_verbs::sim::Discipline;

use super::super::row::{Case, Check, Outcome, Row, Unit};
use super::super::scene::{PACKET_BYTES, Scene, bdp, link, milliseconds, rate_text, switch, time_text, warm_up};
use super::super::world::Link;
use super::{COUNTRY, RATE, SITE};

const MARKS: Case = Case(9, "marks and early drops");
const BLOAT: Case = Case(16, "a long queue");
const CHANGES: Case = Case(17, "the link changes");

const LENGTH: Duration = Duration::from_secs(4);
/// Longest burst at 1 Gbit/s, if a timer was late.
const QUANTUM: Duration = Duration::from_micros(250);

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for streams in [1, 4] {
        rows.extend([0.1, 0.2, 1.0].map(|mark| step(streams, mark)));
        rows.extend([true, false].map(|marks| red(streams, marks)));
    }
    for round_trip in [SITE, COUNTRY] {
        rows.extend([false, true].map(|marks| bloat(round_trip, marks)));
    }
    rows.push(slower_and_faster());
    rows.push(longer());
    rows.into_iter().map(|row| row.selected_if(true)).collect()
}

fn streams_text(count: usize) -> String {
    if count == 1 { "1 stream".to_owned() } else { format!("{count} streams") }
}

/// Returns a link with a queue of four times the BDP, so that nothing is dropped if streams react to ECN marks.
fn deep(round_trip: Duration, seed: u64) -> Link {
    link(RATE, round_trip, 4.0, seed)
}

fn step_of(link: Link, part: f64) -> Discipline {
    let mark_bytes = (part * bdp(link.rate, link.round_trip)) as u64;
    Discipline::Step { queue_bytes: link.queue_bytes, mark_bytes }
}

fn step(streams: usize, mark: f64) -> Row {
    let parameters =
        format!("{}, {}, {}, marks from {mark} BDP", streams_text(streams), rate_text(RATE), time_text(SITE));
    MARKS.row(parameters, move |seed| {
        let link = deep(SITE, seed);
        let mut scene = Scene::pairs(link, false, streams, 0).with_discipline(step_of(link, mark));
        let span = scene.measure(LENGTH);
        let most = milliseconds(SITE.mul_f64(mark) + streams as u32 * QUANTUM);
        Outcome::new(vec![
            Check::at_least("rate", span.sum(), 0.95),
            Check::none("drops", span.drops),
            Check::at_most("p99 of the queue", scene.p99_milliseconds(), most).in_milliseconds(),
        ])
    })
}

fn red(streams: usize, marks: bool) -> Row {
    let what = if marks { "marks" } else { "drops" };
    let parameters =
        format!("{}, {}, {}, 10 % {what} at 0.2 to 0.6 BDP", streams_text(streams), rate_text(RATE), time_text(SITE));
    MARKS.row(parameters, move |seed| {
        let link = deep(SITE, seed);
        let [least_bytes, most_bytes] = [0.2, 0.6].map(|part| (part * bdp(RATE, SITE)) as u64);
        let discipline =
            Discipline::Red { queue_bytes: link.queue_bytes, least_bytes, most_bytes, permille: 100, marks };
        let mut scene = Scene::pairs(link, false, streams, 0).with_discipline(discipline);
        let span = scene.measure(LENGTH);
        let tcp = Scene::pairs(link, false, 0, streams).with_discipline(discipline).measure(LENGTH);
        let mut checks = vec![Check::at_least("rate", span.sum(), 0.95)];
        if marks {
            checks.push(Check::none("drops", span.drops));
        }
        Outcome::beside_tcp(checks, "rate", tcp.sum(), Unit::Ratio)
    })
}

fn bloat(round_trip: Duration, marks: bool) -> Row {
    let what = if marks { ", marks from 0.2 BDP" } else { "" };
    let parameters = format!("{}, {}, queue 4 BDP{what}", rate_text(RATE), time_text(round_trip));
    BLOAT.row(parameters, move |seed| {
        let link = deep(round_trip, seed);
        let begin = |scene: Scene| if marks { scene.with_discipline(step_of(link, 0.2)) } else { scene };
        let mut scene = begin(Scene::write(link));
        let start = scene.run(warm_up(link).max(50 * round_trip));
        scene.bottleneck_mut().forget_delays();
        scene.run(LENGTH);
        let mut tcp = begin(Scene::tcp(link));
        tcp.measure(LENGTH);
        let most = if marks { milliseconds(round_trip.mul_f64(0.3)) } else { tcp.p99_milliseconds() };
        let window = (bdp(RATE, round_trip) + link.queue_bytes as f64) / PACKET_BYTES as f64;
        let checks = vec![
            Check::at_most("p99 of the queue", scene.p99_milliseconds(), most).in_milliseconds(),
            Check::at_most("dropped at the start, of a window", start.drops as f64 / window, 0.25),
        ];
        Outcome::beside_tcp(checks, "p99", tcp.p99_milliseconds(), Unit::Milliseconds)
    })
}

/// The rate falls to a tenth and recovers.
fn slower_and_faster() -> Row {
    let parameters = format!("1 to 0.1 to 1 Gbit/s, {}", time_text(SITE));
    CHANGES.row(parameters, |seed| {
        let link = switch(RATE, SITE, seed);
        let (dropped, back) = change(Scene::write(link));
        let (_, tcp) = change(Scene::tcp(link));
        // Two epochs of 200 ms.
        let checks = vec![
            Check::at_most("dropped in round trips 10 to 20", dropped, 0.02).in_percent(),
            Check::at_least("rate after two epochs", back, 0.9),
        ];
        Outcome::beside_tcp(checks, "rate", tcp, Unit::Ratio)
    })
}

/// Returns the part dropped after ten round trips at the low rate, and the rate from two epochs of the high one on.
fn change(mut scene: Scene) -> (f64, f64) {
    let bytes_per_second = scene.link.rate * 125_000;
    scene.run(Duration::from_secs(3));
    let now = scene.world.network.now;
    scene.bottleneck_mut().set_rate(now, bytes_per_second / 10);
    // The queue takes ten times as long to drain.
    let round_trip = scene.link.round_trip + Duration::from_millis(16);
    scene.run(10 * round_trip);
    let dropped = scene.run(10 * round_trip).dropped;
    scene.run(Duration::from_secs(2));
    let now = scene.world.network.now;
    scene.bottleneck_mut().set_rate(now, bytes_per_second);
    scene.run(Duration::from_millis(400));
    (dropped, scene.run(Duration::from_secs(1)).sum())
}

/// The round trip becomes five times as long.
fn longer() -> Row {
    let parameters = format!("1 to 5 ms, {}", rate_text(RATE));
    CHANGES.row(parameters, |seed| {
        let after = |mut scene: Scene| {
            scene.run(Duration::from_secs(3));
            let delay = Duration::from_micros(2_500);
            scene.world.network.faults.iter_mut().for_each(|faults| faults.delay = delay);
            scene.run(Duration::from_secs(10));
            scene.run(Duration::from_secs(5)).sum()
        };
        let link = Link { queue_bytes: 625_000, ..switch(RATE, SITE, seed) };
        let (rate, tcp) = (after(Scene::write(link)), after(Scene::tcp(link)));
        let checks = vec![Check::at_least("rate after 10 s", rate, 0.95)];
        Outcome::beside_tcp(checks, "rate", tcp, Unit::Ratio)
    })
}
