//! Data in both directions, and READs compared with WRITEs.

use std::time::Duration;

use super::super::row::{Case, Check, Outcome, Row, Unit};
use super::super::scene::{Scene, link, rate_text, switch, time_text};
use super::super::world::{Link, Plan};
use super::{COUNTRY, RACK, RATE, SITE};

const BOTH: Case = Case(11, "both directions");
const READS: Case = Case(12, "READs compared with WRITEs");

/// Returns the length of a run; on a long path the window takes longer to reach its mean.
fn length(round_trip: Duration) -> Duration {
    Duration::from_secs(if round_trip < COUNTRY { 3 } else { 12 })
}

pub(crate) fn rows() -> Vec<Row> {
    let mut rows: Vec<Row> = [RACK, SITE, COUNTRY].map(both).into();
    for round_trip in [Duration::from_micros(20), SITE, COUNTRY] {
        for queue in [0.25, 1.0, 4.0] {
            let link = move |seed| link(RATE, round_trip, queue, seed);
            let row = compare(format!("alone, {}, queue {queue} BDP", time_text(round_trip)), 0, link);
            rows.push(row.selected_if(round_trip <= SITE && queue == 1.0));
        }
    }
    for round_trip in [SITE, COUNTRY] {
        for queue in [0.25, 1.0, 4.0] {
            let link = move |seed| link(RATE, round_trip, queue, seed);
            let row = compare(format!("beside TCP, {}, queue {queue} BDP", time_text(round_trip)), 1, link);
            rows.push(row.selected_if(round_trip == SITE));
        }
    }
    for round_trip in [RACK, SITE, COUNTRY] {
        for loss in [100, 1_000, 10_000, 20_000, 50_000, 100_000] {
            let link = move |seed| Link { loss, ..switch(RATE, round_trip, seed) };
            let row = compare(format!("{}, {} % lost", time_text(round_trip), f64::from(loss) / 1e4), 0, link);
            rows.push(row.selected_if(round_trip <= SITE && [1_000, 10_000, 50_000].contains(&loss)));
        }
    }
    rows
}

fn both(round_trip: Duration) -> Row {
    let parameters = format!("{}, {}", rate_text(RATE), time_text(round_trip));
    let row = BOTH.row(parameters, move |seed| {
        let link = switch(RATE, round_trip, seed);
        let mut scene = Scene::of_pairs(link, 1, (0, 1));
        [(0, 1), (1, 0)].into_iter().for_each(|hosts| scene.world.add(Plan::new(false, hosts)));
        let span = scene.measure(length(round_trip));
        let mut tcp = Scene::of_pairs(link, 1, (0, 1));
        [(0, 1), (1, 0)].into_iter().for_each(|hosts| tcp.add_tcp(hosts));
        let tcp = tcp.measure(length(round_trip));
        let least = |rates: &[f64]| rates.iter().copied().fold(f64::INFINITY, f64::min);
        let checks = vec![
            Check::at_least("slower direction", least(&span.rates), 0.9),
            Check::none("failures", scene.failures()),
        ];
        Outcome::beside_tcp(checks, "slower direction", least(&tcp.rates), Unit::Ratio)
    });
    row.selected_if(true)
}

fn compare(parameters: String, tcp: usize, link: impl Fn(u64) -> Link + Send + Sync + 'static) -> Row {
    READS.row(format!("{}, {parameters}", rate_text(RATE)), move |seed| {
        let link = link(seed);
        let rate = |is_read| Scene::pairs(link, is_read, 1, tcp).measure(length(link.round_trip)).rates[0];
        let (read, write) = (rate(true), rate(false));
        Outcome::new(vec![Check::at_least("of WRITE's rate", read / write, 0.9)])
    })
}
