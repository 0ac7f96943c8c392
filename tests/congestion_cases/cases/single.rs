//! A single stream: on paths of all kinds, through a policer, with reordering, and with coarse timers.

use std::time::Duration;

use rdma_verbs::sim::{Discipline, Socket};

use super::super::row::{Case, Check, Outcome, Row, Unit};
use super::super::scene::{Scene, bdp, link, milliseconds, rate_text, switch, time_text};
use super::super::world::{Link, Trouble};
use super::{COUNTRY, RACK, RATE, SITE};

const SINGLE: Case = Case(1, "a single stream of WRITEs");
const POLICER: Case = Case(13, "a policer");
const LATE: Case = Case(14, "late packets");
const TIMERS: Case = Case(18, "coarse timers and late acknowledgements");

/// Queues in BDP, and the least utilization with each.
const QUEUES: [(f64, f64); 3] = [(0.25, 0.93), (1.0, 0.97), (4.0, 0.97)];
/// Paths with a larger BDP are left out.
const MOST_BYTES: f64 = (64_u64 << 20) as f64;
/// One second: 67 ms, the timeout of the other streams, is less than the longest round trip.
const LONG_TIMEOUT: u8 = 18;
const LENGTH: Duration = Duration::from_secs(5);

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = single();
    rows.extend(policer());
    rows.extend(late());
    rows.extend(timers());
    rows
}

fn single() -> Vec<Row> {
    let round_trips = [Duration::from_micros(20), SITE, COUNTRY, Duration::from_millis(100)];
    let mut rows = Vec::new();
    for rate in [10, 1_000, 10_000, 100_000] {
        for round_trip in round_trips {
            for (queue, least) in QUEUES {
                if bdp(rate, round_trip) > MOST_BYTES {
                    continue;
                }
                let parameters = format!("{}, {}, queue {queue} BDP", rate_text(rate), time_text(round_trip));
                let row = SINGLE.row(parameters, move |seed| {
                    let timeout = if round_trip < COUNTRY * 2 { 14 } else { LONG_TIMEOUT };
                    alone(Link { timeout, ..link(rate, round_trip, queue, seed) }, least)
                });
                let is_selected = match rate {
                    RATE => round_trip <= SITE || round_trip == COUNTRY && queue == 1.0,
                    _ => rate == 10_000 && round_trip == SITE && queue == 1.0,
                };
                rows.push(row.selected_if(is_selected));
            }
        }
    }
    let parameters = format!("{}, 100 ms, queue 1 BDP, timeout 14", rate_text(RATE));
    rows.push(SINGLE.row(parameters, |seed| alone(link(RATE, Duration::from_millis(100), 1.0, seed), 0.97)));
    rows
}

fn alone(link: Link, least: f64) -> Outcome {
    let start = start(link);
    let mut scene = Scene::write(link);
    let span = scene.measure(LENGTH.max(600 * link.round_trip));
    let tcp = Scene::tcp(link).measure(LENGTH.max(600 * link.round_trip)).sum();
    let checks = vec![
        Check::at_least("rate", span.sum(), least),
        Check::at_least("of TCP's", span.sum() / tcp, 0.95),
        Check::at_most("repeated", span.repeated, 0.01).in_percent(),
        Check::at_most("start", milliseconds(start), milliseconds(15 * link.round_trip) + 100.0).in_milliseconds(),
        Check::none("failures", scene.failures()),
    ];
    Outcome::beside_tcp(checks, "rate", tcp, Unit::Ratio)
}

/// Returns the time until the link's utilization is 0.9 over two round trips, or over 20 packets.
fn start(link: Link) -> Duration {
    let packets = Duration::from_secs_f64(20.0 * 1_082.0 / (link.rate as f64 * 125_000.0));
    let interval = (2 * link.round_trip).max(packets);
    let mut scene = Scene::write(link);
    let most = 100;
    let mut before = scene.snapshot().wire_bytes;
    for count in 1..=most {
        scene.run(interval);
        let now = scene.snapshot().wire_bytes;
        if (now - before) as f64 >= 0.9 * bdp(link.rate, interval) {
            return count * interval;
        }
        before = now;
    }
    most * interval
}

fn policer() -> Vec<Row> {
    let burst_bytes = 64 << 10;
    let row = |round_trip: Duration| {
        let parameters = format!("{}, {}, burst 64 KiB", rate_text(RATE), time_text(round_trip));
        POLICER.row(parameters, move |seed| {
            let link = link(RATE, round_trip, 1.0, seed);
            let discipline = Discipline::Policer { burst_bytes };
            let mut scene = Scene::write(link).with_discipline(discipline);
            let span = scene.measure(LENGTH);
            let tcp = Scene::tcp(link).with_discipline(discipline).measure(LENGTH);
            let checks = vec![
                Check::at_least("rate", span.sum(), 0.85),
                Check::at_most("dropped", span.dropped, 0.025).in_percent(),
                Check::none("failures", scene.failures()),
            ];
            Outcome::beside_tcp(checks, "rate", tcp.sum(), Unit::Ratio)
        })
    };
    [SITE, COUNTRY].map(row).map(|row| row.selected_if(true)).into()
}

fn late() -> Vec<Row> {
    let ten_packets = Duration::from_micros(87);
    let mut rows = Vec::new();
    for round_trip in [RACK, SITE, COUNTRY] {
        for (lateness, what) in [(ten_packets, "10 packets"), (round_trip / 2, "half a round trip")] {
            let parameters = format!("{}, {}, 1 % by up to {what}", rate_text(RATE), time_text(round_trip));
            let row = LATE.row(parameters, move |seed| {
                let trouble = Trouble::Reordering(lateness);
                let link = Link { trouble, ..switch(RATE, round_trip, seed) };
                let mut scene = Scene::write(link);
                let span = scene.measure(LENGTH);
                let tcp = Scene::tcp(link).measure(LENGTH);
                let checks = vec![
                    Check::at_least("rate", span.sum(), 0.95),
                    Check::at_most("repeated", span.repeated, 0.002).in_percent(),
                ];
                Outcome::beside_tcp(checks, "rate", tcp.sum(), Unit::Ratio)
            });
            rows.push(row.selected_if(true));
        }
    }
    rows
}

/// Deviations of a stream's clocks.
#[derive(Clone, Copy)]
enum Clocks {
    /// The sender's timers expire at multiples of this.
    Timers(Duration),
    /// The receiver handles packets after this delay.
    LateAcks(Duration),
}

fn timers() -> Vec<Row> {
    let [fine, coarse] = [50, 1_000].map(Duration::from_micros);
    let clocks = [
        (Clocks::Timers(fine), "timers of 50 µs", 0.97),
        (Clocks::Timers(coarse), "timers of 1 ms", 0.9),
        (Clocks::LateAcks(fine), "acknowledgements after 50 µs", 0.97),
    ];
    let mut rows = Vec::new();
    for round_trip in [RACK, SITE, COUNTRY] {
        for (clocks, what, least) in clocks {
            let parameters = format!("{}, {}, {what}", rate_text(RATE), time_text(round_trip));
            let row = TIMERS.row(parameters, move |seed| {
                let link = switch(RATE, round_trip, seed);
                let exact = Scene::write(link).measure(LENGTH).sum();
                let mut scene = Scene::write(link);
                match clocks {
                    Clocks::Timers(period) => scene.world.network.set_timer_period(0, period),
                    Clocks::LateAcks(wake) => scene.world.network.set_socket(1, Socket { packets: usize::MAX, wake }),
                }
                let rate = scene.measure(LENGTH).sum();
                Outcome::new(vec![Check::at_least("of the rate without", rate / exact, least)])
            });
            rows.push(row.selected_if(round_trip <= SITE));
        }
    }
    rows
}
