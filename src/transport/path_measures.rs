//! Measurements on a path with a controller: round trips, fates of packets, and waiting times.

use std::time::Duration;

use super::congestion::{Acked, CongestionKind, Sent};
use crate::types::{ControlReport, Counter, Counters, PacketCounts, PathReport, RoundTripReport, Time};

/// Recent counts cover two periods, 10 to 20 seconds, as the shortest round trip does.
const PERIOD: Duration = Duration::from_secs(10);

/// The reason why a queue pair with packets to send must wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Blocked {
    /// All of the window is in flight.
    Window,
    /// The pace allows the next packet at this time.
    Pace(Time),
}

/// The measurements of one path.
#[derive(Clone, Debug, Default)]
pub(super) struct PathMeasures {
    /// When the first packet was sent.
    began: Option<Time>,
    /// Smoothed round trip and variation (RFC 6298, section 2).
    round_trip: Option<(Duration, Duration)>,
    /// Counts before the last two periods.
    older: PacketCounts,
    last: PacketCounts,
    current: PacketCounts,
    period_began: Time,
    /// Congestion events of the controller already counted.
    counted_events: u64,
    /// Whether the controller considered the latest losses random.
    is_random: bool,
    pace_wait: Duration,
    /// End of the waits for the pace counted so far.
    paced_until: Time,
    window_wait: Duration,
    window_full_since: Option<Time>,
}

impl PathMeasures {
    pub(super) fn note_sent(&mut self, sent: &Sent, packet_bytes: u64) {
        self.began.get_or_insert(sent.now);
        let lost = sent.lost / packet_bytes;
        self.current.sent += sent.bytes / packet_bytes;
        self.current.lost += lost;
        if self.is_random {
            self.current.lost_by_chance += lost;
        }
    }

    pub(super) fn note_acknowledged(&mut self, ack: &Acked) {
        if let Some(since) = self.window_full_since.take() {
            self.window_wait += ack.now.saturating_since(since);
        }
        let Some(measured) = ack.round_trip else { return };
        self.round_trip = Some(match self.round_trip {
            None => (measured, measured / 2),
            Some((smoothed, variation)) => {
                ((smoothed * 7 + measured) / 8, (variation * 3 + smoothed.abs_diff(measured)) / 4)
            }
        });
    }

    /// Counts a loss or a mark, given the controller's reports before and after it handled the event. Returns whether
    /// the controller considers the loss random.
    pub(super) fn note_congestion(
        &mut self,
        kind: CongestionKind,
        before: &ControlReport,
        after: &ControlReport,
    ) -> bool {
        if kind == CongestionKind::Marked {
            self.current.marks += 1;
            return false;
        }
        self.current.loss_events += 1;
        self.current.loss_events_with_queue += u64::from(before.sees_queue == Some(true));
        self.is_random = before.tolerates_losses && before.congestion_events == after.congestion_events;
        self.count_events(after);
        self.is_random
    }

    fn count_events(&mut self, control: &ControlReport) {
        self.current.congestion_events += control.congestion_events.saturating_sub(self.counted_events);
        self.counted_events = control.congestion_events;
    }

    pub(super) fn note_spurious(&mut self, packets: u64) {
        self.current.spurious += packets;
    }

    /// Counts the wait of a queue pair. Simultaneous waits count once.
    pub(super) fn note_blocked(&mut self, now: Time, blocked: Blocked) {
        match blocked {
            Blocked::Window => _ = self.window_full_since.get_or_insert(now),
            Blocked::Pace(until) => {
                self.pace_wait += until.saturating_since(self.paced_until.max(now));
                self.paced_until = self.paced_until.max(until);
            }
        }
    }

    /// Handles the replacement of the path's controller.
    pub(super) fn end_controller(&mut self, control: &ControlReport) {
        self.count_events(control);
        self.counted_events = 0;
    }

    pub(super) fn is_period_over(&self, now: Time) -> bool {
        now.saturating_since(self.period_began) >= PERIOD
    }

    pub(super) fn begin_period(&mut self, now: Time, control: &ControlReport) {
        self.count_events(control);
        let is_long_ago = now.saturating_since(self.period_began) >= 2 * PERIOD;
        let ended = std::mem::take(&mut self.current);
        self.older = self.older.plus(std::mem::replace(&mut self.last, ended));
        if is_long_ago {
            self.older = self.older.plus(std::mem::take(&mut self.last));
        }
        self.period_began = now;
    }

    fn total(&self) -> PacketCounts {
        self.older.plus(self.last).plus(self.current)
    }

    /// Fills in the measurements.
    pub(super) fn report(
        &self,
        now: Time,
        control: &ControlReport,
        shortest: Option<Duration>,
        report: &mut PathReport,
    ) {
        let mut counts = self.clone();
        counts.count_events(control);
        report.total = counts.total();
        if counts.is_period_over(now) {
            counts.begin_period(now, control);
        }
        report.recent = counts.last.plus(counts.current);
        report.round_trip = self.round_trip.map(|(smoothed, variation)| RoundTripReport {
            smoothed,
            variation,
            shortest: shortest.unwrap_or(smoothed),
        });
        report.age = self.began.map_or(Duration::ZERO, |began| now.saturating_since(began));
        // Waits beyond now have not happened yet.
        report.pace_wait = self.pace_wait.saturating_sub(self.paced_until.saturating_since(now));
        let full_for = self.window_full_since.map_or(Duration::ZERO, |since| now.saturating_since(since));
        report.window_wait = self.window_wait + full_for;
    }

    /// Adds the path's share of a device's counters.
    pub(super) fn add_to(&self, control: &ControlReport, counters: &mut Counters) {
        let PacketCounts { congestion_events, lost_by_chance, .. } = self.total();
        let uncounted = control.congestion_events.saturating_sub(self.counted_events);
        counters.add(Counter::CongestionEvents, congestion_events + uncounted);
        counters.add(Counter::ChanceLosses, lost_by_chance);
        counters.add(Counter::PaceWait, self.pace_wait.as_micros() as u64);
        counters.add(Counter::WindowWait, self.window_wait.as_micros() as u64);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const SECOND: u64 = 1_000_000;

    fn at(microseconds: u64) -> Time {
        Time::from_nanos(100_000_000_000 + microseconds * 1_000)
    }

    fn report(measures: &PathMeasures, now: Time) -> PathReport {
        let mut report = PathReport::new(Ipv4Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into());
        measures.report(now, &ControlReport::new("test"), None, &mut report);
        report
    }

    fn send(measures: &mut PathMeasures, now: Time, packets: u64, lost: u64) {
        let sent = Sent { now, bytes: packets * 1_024, lost: lost * 1_024, in_flight: 0 };
        if measures.is_period_over(now) {
            measures.begin_period(now, &ControlReport::new("test"));
        }
        measures.note_sent(&sent, 1_024);
    }

    fn acknowledge(measures: &mut PathMeasures, now: Time, round_trip: Option<u64>) {
        let round_trip = round_trip.map(Duration::from_micros);
        measures.note_acknowledged(&Acked { now, bytes: 1_024, round_trip, repetition: None, in_flight: 0 });
    }

    #[test]
    fn recent_counts_are_those_of_two_periods_and_the_total_is_kept() {
        let mut measures = PathMeasures::default();
        let counts = |measures: &PathMeasures, second: u64| {
            let PathReport { recent, total, .. } = report(measures, at(second * SECOND));
            ((recent.sent, recent.lost), (total.sent, total.lost))
        };
        send(&mut measures, at(0), 10, 1);
        assert_eq!(counts(&measures, 9), ((10, 1), (10, 1)));
        send(&mut measures, at(11 * SECOND), 20, 2);
        assert_eq!(counts(&measures, 12), ((30, 3), (30, 3)));
        assert_eq!(counts(&measures, 22), ((20, 2), (30, 3)));
        assert_eq!(counts(&measures, 31), ((0, 0), (30, 3)), "nothing was sent since");
        send(&mut measures, at(50 * SECOND), 5, 0);
        assert_eq!(counts(&measures, 50), ((5, 0), (35, 3)));
    }

    #[test]
    fn congestion_events_and_random_losses_are_counted_apart() {
        let mut measures = PathMeasures::default();
        let control = |congestion_events, tolerates_losses| ControlReport {
            congestion_events,
            tolerates_losses,
            sees_queue: Some(!tolerates_losses),
            ..ControlReport::new("test")
        };
        send(&mut measures, at(0), 10, 0);
        measures.note_congestion(CongestionKind::Loss, &control(0, true), &control(0, true));
        send(&mut measures, at(1), 5, 3);
        measures.note_congestion(CongestionKind::Loss, &control(0, true), &control(1, false));
        send(&mut measures, at(2), 5, 2);
        measures.note_congestion(CongestionKind::Loss, &control(1, false), &control(1, false));
        send(&mut measures, at(3), 5, 1);
        measures.note_congestion(CongestionKind::Marked, &control(1, true), &control(2, false));
        let mut path = PathReport::new(Ipv4Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into());
        measures.report(at(4), &control(2, true), None, &mut path);
        let PacketCounts { lost, lost_by_chance, loss_events, loss_events_with_queue, .. } = path.recent;
        assert_eq!((lost, lost_by_chance, loss_events, loss_events_with_queue), (6, 3, 3, 1));
        assert_eq!((path.recent.congestion_events, path.recent.marks), (2, 1));
        // A new controller counts from 0.
        measures.end_controller(&control(2, true));
        let mut counters = Counters::default();
        measures.add_to(&control(5, true), &mut counters);
        assert_eq!(counters.get(Counter::CongestionEvents), 7);
    }

    #[test]
    fn round_trips_are_smoothed() {
        let mut measures = PathMeasures::default();
        assert_eq!(report(&measures, at(0)).round_trip, None);
        acknowledge(&mut measures, at(1), Some(800));
        acknowledge(&mut measures, at(2), None);
        acknowledge(&mut measures, at(3), Some(1_600));
        let round_trip = report(&measures, at(4)).round_trip.expect("two were measured");
        let measured = [round_trip.smoothed, round_trip.variation].map(|time| time.as_micros());
        assert_eq!(measured, [900, 500]);
    }

    #[test]
    fn simultaneous_waits_for_the_pace_count_once() {
        let mut measures = PathMeasures::default();
        measures.note_blocked(at(0), Blocked::Pace(at(100)));
        measures.note_blocked(at(50), Blocked::Pace(at(100)));
        measures.note_blocked(at(60), Blocked::Pace(at(150)));
        let waited = |now| report(&measures, at(now)).pace_wait.as_micros();
        assert_eq!([30, 150, 500].map(waited), [30, 150, 150]);
        measures.note_blocked(at(400), Blocked::Pace(at(410)));
        assert_eq!(report(&measures, at(500)).pace_wait.as_micros(), 160);
    }

    #[test]
    fn the_wait_for_a_full_window_ends_with_the_next_acknowledgement() {
        let mut measures = PathMeasures::default();
        measures.note_blocked(at(0), Blocked::Window);
        measures.note_blocked(at(20), Blocked::Window);
        assert_eq!(report(&measures, at(30)).window_wait.as_micros(), 30);
        acknowledge(&mut measures, at(70), None);
        assert_eq!(report(&measures, at(100)).window_wait.as_micros(), 70);
        let mut counters = Counters::default();
        measures.add_to(&ControlReport::new("test"), &mut counters);
        assert_eq!(counters.get(Counter::WindowWait), 70);
    }
}
