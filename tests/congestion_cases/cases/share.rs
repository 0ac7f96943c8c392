//! Several streams share a link: with each other, with TCP, with a latecomer, with standard peers and with streams
//! over unreliable connections.

use std::time::Duration;

use rdma_verbs::types::{Counter, QueuePairType};

use super::super::row::{Case, Check, Outcome, Row, Unit};
use super::super::scene::{Scene, bdp, link, rate_text, switch, time_text};
use super::super::world::{Link, MESSAGE_BYTES, PAYLOAD_SHARE, Peers, Plan, fairness};
use super::{COUNTRY, RACK, RATE, SITE};

const HOSTS: Case = Case(2, "streams of several hosts");
const QUEUE_PAIRS: Case = Case(3, "queue pairs between two hosts");
const LATE_COMER: Case = Case(4, "a stream that begins later");
const TCP: Case = Case(5, "beside TCP");
const STANDARD: Case = Case(19, "a standard peer");
const UNRELIABLE: Case = Case(20, "beside an unreliable connection");

/// Time between two losses of a single stream, at 1 Gbit/s and a round trip of 1 ms.
const EPOCH: Duration = Duration::from_millis(200);
/// Minimum interval of the applications' polls if there are many streams, to bound the run time.
const POLL_INTERVAL: Duration = Duration::from_micros(100);
/// Least and most of its fair share that a stream may have beside TCP, by the queue in BDP.
const QUEUES: [(f64, f64, f64); 3] = [(0.25, 0.5, 2.0), (1.0, 0.8, 1.25), (4.0, 0.8, 1.25)];

pub(crate) fn rows() -> Vec<Row> {
    let mut rows: Vec<Row> = [2, 4, 16, 64, 256].into_iter().map(hosts).collect();
    rows.extend([64, 1_000].map(queue_pairs));
    rows.push(late_comer());
    rows.extend(beside_tcp());
    rows.extend(standard());
    rows.extend([true, false].map(unreliable));
    rows
}

fn hosts(count: usize) -> Row {
    let (used, even) = if count > 64 { (0.9, 0.9) } else { (0.95, 0.95) };
    let parameters = format!("{count} hosts, {}, {}, queue 200 kB", rate_text(RATE), time_text(SITE));
    let row = HOSTS.row(parameters, move |seed| {
        let link = switch(RATE, SITE, seed);
        let mut scene = Scene::pairs(link, false, count, 0);
        scene.world.poll_interval = POLL_INTERVAL;
        let span = scene.measure(20 * EPOCH);
        let tcp = Scene::pairs(link, false, 0, count).measure(20 * EPOCH);
        let checks = vec![
            Check::at_least("sum", span.sum(), used),
            Check::at_least("fairness", span.fairness(), even),
            Check::none("failures", scene.failures()),
            Check::none("timeouts", scene.count(Counter::LocalAckTimeout)),
        ];
        Outcome::beside_tcp(checks, "fairness", tcp.fairness(), Unit::Ratio)
    });
    row.selected_if(count <= 64)
}

/// Queue pairs get the rate of one stream. Each sends messages of 64 KiB, so a thousand need longer until their numbers
/// can be compared.
fn queue_pairs(count: usize) -> Row {
    let (begin, length) = if count > 64 { (1, 4) } else { (1, 1) };
    let [begin, length] = [begin, length].map(Duration::from_secs);
    let parameters = format!("{count} queue pairs, {}, {}", rate_text(RATE), time_text(SITE));
    let row = QUEUE_PAIRS.row(parameters, move |seed| {
        let link = switch(RATE, SITE, seed);
        let one = Scene::write(link).measure(length).sum();
        let mut scene = Scene::of_pairs(link, 1, (0, 1));
        (0..count).for_each(|_| scene.world.add(Plan { depth: 4, ..Plan::new(false, (0, 1)) }));
        scene.world.poll_interval = POLL_INTERVAL;
        let span = scene.measure_after(begin, length);
        let checks = vec![
            Check::between("of one's rate", span.sum() / one, 0.98, 1.02),
            Check::at_least("fairness", span.fairness(), 0.95),
            Check::none("failures", scene.failures()),
        ];
        Outcome::new(checks)
    });
    row.selected_if(true)
}

fn late_comer() -> Row {
    let parameters = format!("after 30 epochs of 200 ms, {}, {}", rate_text(RATE), time_text(SITE));
    let row = LATE_COMER.row(parameters, |seed| {
        let (share, dropped) = share_of_late_comer(seed, false);
        let (tcp, _) = share_of_late_comer(seed, true);
        let checks = vec![
            Check::between("share in epochs 10 to 20", share, 0.4, 0.6),
            Check::at_most("dropped", dropped, 0.02).in_percent(),
        ];
        Outcome::beside_tcp(checks, "share", tcp, Unit::Ratio)
    });
    row.selected_if(true)
}

/// Returns the latecomer's share, and the part dropped since it began.
fn share_of_late_comer(seed: u64, is_tcp: bool) -> (f64, f64) {
    let mut scene = Scene::of_pairs(switch(RATE, SITE, seed), 2, (0, 1));
    for (host, time) in [(0, 30 * EPOCH), (2, Duration::ZERO)] {
        match is_tcp {
            true => scene.add_tcp((host, host + 1)),
            false => scene.world.add(Plan::new(false, (host, host + 1))),
        }
        scene.run(time);
    }
    let begin = scene.snapshot();
    scene.run(10 * EPOCH);
    let span = scene.run(10 * EPOCH);
    (span.rates[1] / span.sum(), scene.span(&begin, &scene.snapshot()).dropped)
}

fn beside_tcp() -> Vec<Row> {
    let mut rows = Vec::new();
    for round_trip in [SITE, COUNTRY] {
        for count in [1, 4] {
            for (queue, least, most) in QUEUES {
                let what = format!("{count} and {count}");
                let parameters = format!("{what}, {}, {}, queue {queue} BDP", rate_text(RATE), time_text(round_trip));
                let row = TCP.row(parameters, move |seed| {
                    let mut scene = Scene::pairs(link(RATE, round_trip, queue, seed), false, count, count);
                    let (begin, length) = if round_trip < COUNTRY { (1, 12) } else { (10, 30) };
                    let [begin, length] = [begin, length].map(Duration::from_secs);
                    let span = scene.measure_after(begin, length);
                    let ours: f64 = span.rates[..count].iter().sum();
                    let checks = vec![
                        Check::between("of the fair share", 2.0 * ours / span.sum(), least, most),
                        Check::at_least("sum", span.sum(), 0.95),
                        Check::none("failures", scene.failures()),
                    ];
                    let tcp = 2.0 * (span.sum() - ours) / span.sum();
                    Outcome::beside_tcp(checks, "of the fair share", tcp, Unit::Ratio)
                });
                rows.push(row.selected_if(round_trip == SITE && (count == 1 || queue == 1.0)));
            }
        }
    }
    rows
}

/// The window is 64 KiB: the rate is at most one window in a round trip.
fn standard() -> Vec<Row> {
    let mut rows = Vec::new();
    for rate in [50, RATE] {
        for round_trip in [RACK, SITE, COUNTRY] {
            let parameters = format!("{}, {}", rate_text(rate), time_text(round_trip));
            let row = STANDARD.row(parameters, move |seed| {
                let link = Link { peers: Peers::Standard, ..switch(rate, round_trip, seed) };
                let window = f64::from(MESSAGE_BYTES) / bdp(rate, round_trip) / PAYLOAD_SHARE;
                let length = Duration::from_secs(5);
                let mut alone = Scene::write(link);
                let one = alone.measure(length).sum();
                let mut both = Scene::pairs(link, false, 2, 0);
                let rates = both.measure(length).rates;
                let checks = vec![
                    Check::at_least("of what the window allows", one / window.min(1.0), 0.9),
                    Check::at_least("fairness of two", fairness(&rates), 0.9),
                    Check::none("failures", alone.failures() + both.failures()),
                ];
                Outcome::new(checks)
            });
            rows.push(row.selected_if(true));
        }
    }
    rows
}

fn unreliable(shares_hosts: bool) -> Row {
    let whose = if shares_hosts { "of the same hosts" } else { "of other hosts" };
    let parameters = format!("{whose}, {}, {}", rate_text(RATE), time_text(SITE));
    let row = UNRELIABLE.row(parameters, move |seed| {
        let mut scene = Scene::of_pairs(switch(RATE, SITE, seed), 2, (0, 1));
        let hosts = if shares_hosts { (0, 1) } else { (2, 3) };
        scene.world.add(Plan::new(false, (0, 1)));
        scene.world.add(Plan { service: QueuePairType::UnreliableConnection, ..Plan::new(false, hosts) });
        let span = scene.measure(Duration::from_secs(5));
        let checks = vec![
            Check::at_least("of the fair share", 2.0 * span.rates[0], 0.5),
            Check::at_most("dropped", span.dropped, 0.05).in_percent(),
            Check::none("failures", scene.failures()),
        ];
        Outcome::new(checks)
    });
    row.selected_if(true)
}
