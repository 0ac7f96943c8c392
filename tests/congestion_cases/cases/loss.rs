//! Random losses, bursts of losses, and outages of the link.

use std::time::Duration;

use rdma_verbs::types::Counter;

use super::super::row::{Case, Check, Outcome, Row, Unit};
use super::super::scene::{Scene, milliseconds, rate_text, switch, time_text, warm_up};
use super::super::world::{Link, MESSAGE_BYTES, Trouble};
use super::{COUNTRY, RACK, RATE, SITE};

const CHANCE: Case = Case(6, "losses by chance");
const CHANCE_BESIDE_TCP: Case = Case(7, "losses by chance beside TCP");
const BURSTS: Case = Case(8, "bursts of losses");
const DOWN: Case = Case(15, "the link is down");

const LENGTH: Duration = Duration::from_secs(4);
/// Delay of a native peer's first probe: two round trips, and at least this.
const PROBE: Duration = Duration::from_millis(2);
/// Longest wait for the rate to recover.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = chance();
    rows.extend([RACK, SITE, COUNTRY].map(beside_tcp));
    rows.extend(bursts());
    rows.extend(down());
    rows
}

/// Converts losses per million to percent.
fn percent(loss: u32) -> f64 {
    f64::from(loss) / 1e4
}

fn chance() -> Vec<Row> {
    let mut rows = Vec::new();
    for round_trip in [RACK, SITE, COUNTRY] {
        for loss in [100, 1_000, 10_000, 20_000, 50_000, 100_000] {
            let parameters = format!("{}, {}, {} % lost", rate_text(RATE), time_text(round_trip), percent(loss));
            let row = CHANCE.row(parameters, move |seed| lose(Link { loss, ..switch(RATE, round_trip, seed) }));
            rows.push(row.selected_if(true));
        }
    }
    rows
}

fn lose(link: Link) -> Outcome {
    let part = percent(link.loss) / 100.0;
    let mut scene = Scene::write(link);
    let span = scene.measure(LENGTH);
    let tcp = Scene::tcp(link).measure(LENGTH).sum();
    let least = match link.loss {
        ..=10_000 if link.round_trip == COUNTRY => 0.8,
        ..=10_000 => 0.9,
        10_001..=20_000 => 0.7,
        _ => tcp,
    };
    let checks = vec![
        Check::at_least("rate", span.sum(), least),
        Check::at_most("repeated", span.repeated, 1.5 * part).in_percent(),
        Check::none("failures", scene.failures()),
    ];
    Outcome::beside_tcp(checks, "rate", tcp, Unit::Ratio)
}

fn beside_tcp(round_trip: Duration) -> Row {
    let parameters = format!("{}, {}, 1 % lost, queue 1 BDP", rate_text(RATE), time_text(round_trip));
    let row = CHANCE_BESIDE_TCP.row(parameters, move |seed| {
        let link = Link { loss: 10_000, ..switch(RATE, round_trip, seed) };
        let rate_of_last = |ours, tcp| {
            let rates = Scene::pairs(link, false, ours, tcp).measure(3 * LENGTH).rates;
            rates[1]
        };
        let (beside_ours, beside_tcp) = (rate_of_last(1, 1), rate_of_last(0, 2));
        let checks = vec![Check::at_least("of what TCP has beside TCP", beside_ours / beside_tcp, 0.8)];
        Outcome::beside_tcp(checks, "rate", beside_tcp, Unit::Ratio)
    });
    row.selected_if(true)
}

/// A burst of losses every second. The pause after 9 of 10 of them must be short.
fn bursts() -> Vec<Row> {
    let mut rows = Vec::new();
    for round_trip in [RACK, SITE, COUNTRY] {
        for packets in [1, 8, 64] {
            let what = format!("{packets} packets");
            let parameters = format!("{}, {}, {what} every second", rate_text(RATE), time_text(round_trip));
            let row = BURSTS.row(parameters, move |seed| {
                let outage = Duration::from_nanos(8_656 * packets);
                let link = Link { trouble: Trouble::Outages(outage), ..switch(RATE, round_trip, seed) };
                let (scene, pause) = pause_after_bursts(link);
                let queue = Duration::from_secs_f64(link.queue_bytes as f64 / (RATE as f64 * 125_000.0));
                let message = Duration::from_secs_f64(f64::from(MESSAGE_BYTES) / 118e6);
                let most = outage + 3 * (round_trip + queue) + PROBE.max(2 * (round_trip + queue)) + message;
                let checks = vec![
                    Check::at_most("pause", milliseconds(pause), milliseconds(most)).in_milliseconds(),
                    Check::none("timeouts", scene.count(Counter::LocalAckTimeout)),
                    Check::none("failures", scene.failures()),
                ];
                Outcome::new(checks)
            });
            rows.push(row.selected_if(round_trip <= SITE));
        }
    }
    rows
}

/// Returns the pause (the longest time in a second without a completion) that 9 of 10 seconds do not exceed.
fn pause_after_bursts(link: Link) -> (Scene, Duration) {
    let mut scene = Scene::write(link);
    scene.run(Duration::from_millis(1_500));
    let mut pauses: Vec<Duration> = (0..10)
        .map(|_| {
            scene.world.flows[0].longest_pause = Duration::ZERO;
            scene.run(Duration::from_secs(1));
            scene.world.flows[0].longest_pause
        })
        .collect();
    pauses.sort();
    (scene, pauses[8])
}

fn down() -> Vec<Row> {
    let outages = [(10, 14), (300, 14), (2_000, 18)];
    let mut rows = Vec::new();
    for round_trip in [RACK, SITE, COUNTRY] {
        for (outage, timeout) in outages.map(|(outage, timeout)| (Duration::from_millis(outage), timeout)) {
            let (round, time) = (time_text(round_trip), time_text(outage));
            let parameters = format!("{}, {round}, for {time}, timeout {timeout}", rate_text(RATE));
            let row = DOWN.row(parameters, move |seed| {
                let link = Link { timeout, ..switch(RATE, round_trip, seed) };
                let (scene, back) = return_after(Scene::write(link), outage);
                let (_, tcp) = return_after(Scene::tcp(link), outage);
                let most = (outage / 2).max(2 * PROBE.max(2 * round_trip) + 15 * round_trip) + step(round_trip);
                let checks = vec![
                    Check::at_most("back after", milliseconds(back), milliseconds(most)).in_milliseconds(),
                    Check::none("failures", scene.failures()),
                ];
                Outcome::beside_tcp(checks, "back after", milliseconds(tcp), Unit::Milliseconds)
            });
            rows.push(row.selected_if(true));
        }
    }
    rows
}

/// Returns the resolution with which the recovery of the rate is measured.
fn step(round_trip: Duration) -> Duration {
    (round_trip / 4).max(Duration::from_millis(1))
}

/// Returns the time from the outage to the begin of the first interval in which 0.9 of the rate is reached again. The
/// interval has ten milliseconds or five round trips.
fn return_after(mut scene: Scene, outage: Duration) -> (Scene, Duration) {
    let round_trip = scene.link.round_trip;
    scene.run(warm_up(scene.link).max(Duration::from_secs(1)));
    let from = scene.world.network.now;
    scene.world.network.faults.iter_mut().for_each(|faults| faults.partitions.push((from, from + outage)));
    scene.run(outage);
    let step = step(round_trip);
    let steps = (5 * round_trip).max(Duration::from_millis(10)).div_duration_f64(step) as usize;
    let mut snapshots = vec![scene.snapshot()];
    while snapshots.len() < steps + PATIENCE.div_duration_f64(step) as usize {
        scene.run(step);
        snapshots.push(scene.snapshot());
        let before = snapshots.len().checked_sub(steps + 1).map(|index| &snapshots[index]);
        if before.is_some_and(|before| scene.span(before, &snapshots[snapshots.len() - 1]).sum() >= 0.9) {
            return (scene, step * (snapshots.len() - 1 - steps) as u32);
        }
    }
    (scene, PATIENCE)
}
