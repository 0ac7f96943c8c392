//! A path's report about itself matches the faults of its link.

use std::time::Duration;

use rdma_verbs::sim::{Bottleneck, Discipline};
use rdma_verbs::types::PathReport;

use super::world::{Control, Link, Plan, World};

const ROUND_TRIP: Duration = Duration::from_millis(1);

/// Returns the report of one of `streams` streams of WRITEs, each between its own hosts, after five seconds.
fn report(mut world: World, streams: usize) -> PathReport {
    (0..streams).for_each(|pair| world.add(Plan::new(false, (2 * pair, 2 * pair + 1))));
    let end = world.network.now + Duration::from_secs(5);
    world.run(end);
    let mut reports = world.network.hosts[0].endpoint.path_reports(world.network.now);
    assert_eq!(reports.len(), 1, "{reports:?}");
    let report = reports.remove(0);
    let PathReport { window_wait, pace_wait, age, .. } = report;
    assert!(window_wait + pace_wait > age / 2, "a stream waits for its path: {report:?}");
    report
}

fn world(link: Link, streams: usize) -> World {
    World::of_pairs(link, Control::Cubic, streams)
}

#[track_caller]
fn contains(report: &PathReport, words: &str) {
    assert!(report.to_string().contains(words), "\"{words}\" is not in \"{report}\": {report:?}");
}

#[test]
fn losses_at_random_are_called_chance() {
    for loss in [3_000, 10_000, 50_000] {
        let report = report(world(Link::new(1_000, ROUND_TRIP, loss), 1), 1);
        contains(&report, "packets are lost by chance (no queue is seen)");
        let share = report.recent.loss() * 1e6 / f64::from(loss);
        assert!((0.8..1.2).contains(&share), "{share} of the losses: {report:?}");
        let round_trip = report.round_trip.expect("it is measured");
        assert!((ROUND_TRIP..ROUND_TRIP * 3 / 2).contains(&round_trip.shortest), "{round_trip:?}");
    }
}

#[test]
fn losses_before_a_full_queue_are_attributed_to_it() {
    for streams in [1, 4] {
        let link = Link { queue_bytes: 100_000, ..Link::new(1_000, ROUND_TRIP, 0) };
        let report = report(world(link, streams), streams);
        contains(&report, "a queue on the way is full");
        assert!(report.control.is_some_and(|control| control.congestion_events > 10), "{report:?}");
    }
}

#[test]
fn a_queue_that_never_overflows_is_seen() {
    let report = report(world(Link::new(1_000, ROUND_TRIP, 0), 1), 1);
    contains(&report, "loses nothing");
    contains(&report, "a queue on the way holds packets up");
}

/// A policer drops packets beyond its rate, and has no queue.
#[test]
fn a_policer_is_not_called_a_queue() {
    let mut world = world(Link::new(1_000, ROUND_TRIP, 0), 1);
    let policer = Discipline::Policer { burst_bytes: 30_000 };
    world.network.share(Bottleneck::new(125_000_000, policer), &[(0, 1)]);
    let report = report(world, 1);
    contains(&report, "no queue is seen, but more are lost than by chance: a policer");
    assert!(report.control.is_some_and(|control| control.congestion_events > 10), "{report:?}");
}
