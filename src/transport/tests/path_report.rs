//! The report of a path, and the counters that belong to it.

use super::fair_queue::Crowd;
use super::keyed::{agreed, connect};
use super::recovery::{GAP_RUNS, MTU, Sent, keyed};
use super::*;

const ROUND_TRIP: Duration = Duration::from_millis(1);

/// Connects native peers. The first has a controller of this kind.
pub(super) fn controlled(factory: impl CongestionFactory + 'static) -> Pair {
    let service = QueuePairType::ReliableConnection;
    let config = EndpointConfig { congestion: Some(Arc::new(factory)), ..EndpointConfig::default() };
    let first = End::configured(service, "192.0.2.1", 1, None, config);
    connect([first, End::new(service, "192.0.2.2", 2)], agreed(), GAP_RUNS)
}

/// Returns the first end's report of its only path.
fn path(pair: &Pair) -> PathReport {
    let mut reports = pair.ends[0].endpoint.path_reports(pair.now);
    assert_eq!(reports.len(), 1, "{reports:?}");
    reports.remove(0)
}

/// Carries packets in both directions for this time, with a round trip between a packet and its response.
fn run_far(pair: &mut Pair, time: Duration, mut is_lost: impl FnMut(&Sent) -> bool) {
    let end = pair.now + time;
    while pair.now < end {
        let there = pair.catch(0);
        pair.now = pair.now + ROUND_TRIP;
        there.iter().filter(|sent| !is_lost(sent)).for_each(|sent| pair.deliver(sent));
        let back = pair.catch(1);
        back.iter().for_each(|sent| pair.deliver(sent));
        let now = pair.now;
        pair.ends.iter_mut().for_each(|end| end.endpoint.handle_timeout(now));
    }
}

fn counter(pair: &Pair, counter: Counter) -> u64 {
    pair.ends[0].endpoint.counters().get(counter)
}

#[test]
fn a_path_reports_its_losses_and_round_trips() {
    let mut pair = controlled(CubicFactory);
    pair.begin_write(200);
    let mut lost = vec![30, 31, 90];
    run_far(&mut pair, Duration::from_millis(100), |sent| {
        lost.extract_if(.., |at| *at == sent.psn_offset()).count() > 0
    });
    assert_eq!(pair.statuses(), [CompletionStatus::Success]);
    let report = path(&pair);
    assert_eq!((report.own, report.peer), (pair.ends[0].address, pair.ends[1].address));
    assert_eq!((report.queue_pairs, report.bytes_in_flight, report.total), (1, 0, report.recent));
    let PacketCounts { sent, lost, lost_by_chance, spurious, loss_events, .. } = report.total;
    assert_eq!((sent, lost, lost_by_chance, spurious), (203, 3, 3, 0), "no queue was seen");
    assert!((1..=3).contains(&loss_events), "{loss_events}");
    let round_trip = report.round_trip.expect("several were measured");
    assert!(round_trip.smoothed >= ROUND_TRIP && round_trip.shortest == ROUND_TRIP, "{round_trip:?}");
    let control = report.control.expect("it is controlled");
    assert_eq!((control.algorithm, control.congestion_events), ("cubic", 0));
    assert_eq!(counter(&pair, Counter::LostPackets), 3);
    assert_eq!(counter(&pair, Counter::ChanceLosses), 3);
    let (queue_pair, _) = pair.ends[0].endpoint.queue_pair_report(pair.now, pair.ends[0].qpn).unwrap();
    assert_eq!(queue_pair.path, Some(report));
}

#[test]
fn a_transport_timeout_is_reported_as_congestion() {
    let mut pair = controlled(CubicFactory);
    pair.begin_write(10);
    pair.run(Duration::from_millis(200), |_| true);
    let report = path(&pair);
    let events = report.control.expect("it is controlled").congestion_events;
    assert!(events >= 1 && counter(&pair, Counter::CongestionEvents) == events, "{report:?}");
    assert!(report.total.lost >= 1, "{report:?}");
}

#[test]
fn packets_that_were_only_late_are_spurious() {
    let mut pair = controlled(Steady { window: 1 << 20, rate: None });
    // Measures a round trip.
    pair.begin_write(10);
    run_far(&mut pair, Duration::from_millis(20), |_| false);
    pair.begin_write(20);
    let packets = pair.catch(0);
    pair.now = pair.now + ROUND_TRIP;
    packets.iter().enumerate().filter(|(at, _)| *at != 3).for_each(|(_, sent)| pair.deliver(sent));
    let late = &packets[3];
    let sent = pair.run(ROUND_TRIP / 4, |sent| sent.from == 0);
    assert_eq!(sent.iter().filter(|sent| sent.from == 0 && sent.psn_offset() == late.psn_offset()).count(), 1);
    pair.deliver(late);
    pair.run(ROUND_TRIP / 4, |sent| sent.from == 0);
    assert_eq!(path(&pair).total.spurious, 1);
    assert_eq!(counter(&pair, Counter::SpuriousRetransmits), 1);
}

/// Packets wait for a window of 20 packets, or for a pace of a packet a millisecond.
#[test]
fn waits_for_window_and_pace_are_reported() {
    let wait = |window: u64, rate: Option<u64>| {
        let mut pair = controlled(Steady { window: window * u64::from(MTU), rate });
        pair.begin_write(100);
        run_far(&mut pair, Duration::from_millis(50), |_| false);
        let PathReport { window_wait, pace_wait, age, .. } = path(&pair);
        assert!(window_wait <= age && pace_wait <= age);
        [window_wait, pace_wait].map(|wait| wait.as_millis())
    };
    // Five windows leave packets behind, whose acknowledgements come after 3 ms, because they are held back.
    assert_eq!(wait(20, None), [15, 0]);
    let [window, pace] = wait(1_000, Some(1_000 * u64::from(MTU)));
    assert!(window == 0 && pace >= 40, "{window} and {pace} ms");
}

#[derive(Clone, Copy)]
struct Steady {
    window: u64,
    rate: Option<u64>,
}

impl CongestionControl for Steady {
    fn on_sent(&mut self, _: &crate::transport::Sent) {}

    fn on_ack(&mut self, _: &Acked) {}

    fn on_congestion(&mut self, _: &CongestionEvent) {}

    fn window(&self) -> u64 {
        self.window
    }

    fn pacing_rate(&self) -> Option<u64> {
        self.rate
    }
}

impl CongestionFactory for Steady {
    fn build(&self, _: &PathFacts) -> Option<Box<dyn CongestionControl>> {
        Some(Box::new(*self))
    }
}

#[test]
fn a_path_without_a_controller_is_reported_as_such() {
    let mut pair = keyed();
    assert_eq!(path(&pair).control, None);
    pair.begin_write(50);
    let packets = pair.catch(0);
    let report = path(&pair);
    assert_eq!((report.control, report.round_trip, report.total.sent), (None, None, 0));
    assert_eq!(report.bytes_in_flight, u64::from(MTU) * 50);
    packets.iter().filter(|sent| sent.psn_offset() != 7).for_each(|sent| pair.deliver(sent));
    pair.run(Duration::from_millis(5), |_| false);
    assert_eq!((pair.statuses().len(), counter(&pair, Counter::LostPackets)), (1, 1));
}

#[test]
fn queue_pairs_with_a_common_path_have_one_report() {
    let mut crowd = Crowd::new(5, NATIVE);
    assert_eq!(path(&crowd.pair).queue_pairs, 6, "with the pair's own");
    crowd.destroy(0, 3);
    assert_eq!(path(&crowd.pair).queue_pairs, 5);
    crowd.pair.ends[0].traffic_class = 46 << 2;
    crowd.add(NATIVE, [None, None]);
    let reports = crowd.pair.ends[0].endpoint.path_reports(crowd.pair.now);
    let paths: Vec<(u8, u32)> = reports.iter().map(|report| (report.dscp, report.queue_pairs)).collect();
    assert_eq!(paths, [(0, 5), (46, 1)], "packets of another DSCP may wait in another queue");
}

/// The table of paths drops those that no queue pair uses any more.
#[test]
fn device_counters_include_removed_paths() {
    let pair = controlled(Steady { window: 20 * u64::from(MTU), rate: None });
    let mut crowd = Crowd::of(pair, 0, NATIVE);
    let add = |crowd: &mut Crowd, dscp: u8| {
        crowd.pair.ends[0].traffic_class = dscp << 2;
        crowd.add(NATIVE, [None, None]);
    };
    add(&mut crowd, 1);
    let write = crowd.write();
    crowd.post(0, write, 100 * MTU, 1, 1);
    run_far(&mut crowd.pair, Duration::from_millis(50), |_| false);
    let waited = counter(&crowd.pair, Counter::WindowWait);
    assert!(waited > 1_000, "{waited} µs");
    for member in 0..30 {
        add(&mut crowd, member + 2);
        crowd.destroy(0, usize::from(member));
    }
    assert_eq!(crowd.pair.ends[0].endpoint.path_reports(crowd.pair.now).len(), 2);
    assert_eq!(counter(&crowd.pair, Counter::WindowWait), waited);
}
