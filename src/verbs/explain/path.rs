//! The judgement of a path in a sentence: its losses, and whether a queue causes them.

use std::fmt;
use std::time::Duration;

use super::time;
use crate::types::{PacketCounts, PathReport, QueuePairReport};

/// Fewest packets for a judgement: with fewer, one loss would exceed the 2 % that the loss test of
/// `transport/congestion/loss_test.rs` allows, which counts over as many.
const LEAST_PACKETS: u64 = 64;
/// Fraction of the loss events with a queue from which the queue is the cause: the others occur while it refills after
/// a reduction, or by chance.
const WITH_QUEUE: f64 = 0.5;
/// Fraction of the loss events with a window reduction up to which chance is the cause. In virtual time the window is
/// reduced at less than 2 % of them if packets are lost at random, and at 13 % before a policer.
const REDUCED: f64 = 0.05;
/// Fraction of the time below which a wait explains nothing.
const WORTH_TELLING: f64 = 0.01;

impl fmt::Display for PathReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = name(self);
        let Some(control) = &self.control else {
            return write!(f, "{name} is not controlled: it does not leave the host, or its window is constant.");
        };
        match judgement(self) {
            Some(judgement) => write!(f, "{judgement}.")?,
            None => write!(f, "Too little was sent lately on {} to judge it.", uncapitalized(&name))?,
        }
        let rate = self.pacing_rate.map(|rate| format!(", {:.1} MB/s may leave", rate as f64 / 1e6));
        let window = self.window as f64 / 1_024.0;
        write!(f, " By {}, {window:.0} KiB may be in flight{}", control.algorithm, rate.unwrap_or_default())?;
        if let Some(waits) = waits(self) {
            write!(f, "; {waits}")?;
        }
        f.write_str(".")
    }
}

fn name(path: &PathReport) -> String {
    let name = format!("The path from {} to {}", path.own, path.peer);
    if path.dscp == 0 { name } else { format!("{name} (DSCP {})", path.dscp) }
}

fn uncapitalized(name: &str) -> String {
    name.replacen("The", "the", 1)
}

/// Judges the path of a queue pair whose requests get no response, if enough packets were sent.
pub(super) fn of_failure(report: &QueuePairReport) -> Option<String> {
    report.path.as_ref().and_then(judgement)
}

/// Judges a path: its losses, its round trip, and their cause.
fn judgement(path: &PathReport) -> Option<String> {
    let recent = &path.recent;
    if path.control.is_none() || recent.sent < LEAST_PACKETS {
        return None;
    }
    let lost = if recent.lost == 0 { "loses nothing".to_owned() } else { format!("loses {}", share(recent.loss())) };
    let round_trip = path.round_trip.map_or_else(
        || "its round trip is not known".to_owned(),
        |measured| {
            let [smoothed, shortest] = [measured.smoothed, measured.shortest].map(time);
            format!("its round trip is {smoothed}, the shortest {shortest}")
        },
    );
    Some(format!("{} {lost}; {round_trip}: {}", name(path), cause(path, recent)))
}

fn share(of: f64) -> String {
    match of * 100.0 {
        percent if percent >= 10.0 => format!("{percent:.0} % of the packets"),
        percent if percent >= 0.1 => format!("{percent:.1} % of the packets"),
        _ => "less than 0.1 % of the packets".to_owned(),
    }
}

fn cause(path: &PathReport, recent: &PacketCounts) -> String {
    let part = |some: u64, all: u64| some as f64 / all.max(1) as f64;
    if recent.lost == 0 {
        return match queue(path) {
            _ if recent.marks > 0 => "a queue on the way marks packets before it is full".to_owned(),
            Some(wait) => format!("a queue on the way holds packets up for {}", time(wait)),
            None => "no queue is seen".to_owned(),
        };
    }
    if part(recent.loss_events_with_queue, recent.loss_events) >= WITH_QUEUE {
        return "a queue on the way is full".to_owned();
    }
    if recent.marks > 0 {
        return "a queue on the way marks packets, and is full now and then".to_owned();
    }
    if path.control.is_none_or(|control| control.sees_queue.is_none()) {
        return "its controller does not say why".to_owned();
    }
    if part(recent.congestion_events, recent.loss_events) <= REDUCED {
        return "packets are lost by chance (no queue is seen)".to_owned();
    }
    "no queue is seen, but more are lost than by chance: a policer, or a queue too short to be seen".to_owned()
}

/// Returns how long packets wait in a queue on the path, if the controller sees one now.
fn queue(path: &PathReport) -> Option<Duration> {
    let measured = path.round_trip.filter(|_| path.control.is_some_and(|control| control.sees_queue == Some(true)))?;
    Some(measured.smoothed.saturating_sub(measured.shortest))
}

/// Says what packets waited for.
fn waits(path: &PathReport) -> Option<String> {
    let of = |wait: Duration| wait.as_secs_f64() / path.age.as_secs_f64().max(f64::MIN_POSITIVE);
    let waits = [(of(path.window_wait), "window"), (of(path.pace_wait), "pace")];
    let parts: Vec<String> = waits
        .into_iter()
        .filter(|(part, _)| *part >= WORTH_TELLING)
        .map(|(part, what)| format!("{:.0} % of the time for the {what}", part.min(1.0) * 100.0))
        .collect();
    (!parts.is_empty()).then(|| format!("packets waited {}", parts.join(" and ")))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::types::{ControlReport, RoundTripReport};

    fn path(recent: PacketCounts) -> PathReport {
        let [own, peer] = ["192.0.2.1", "192.0.2.2"].map(|address| -> IpAddr { address.parse().unwrap() });
        let round_trip = |microseconds| Duration::from_micros(microseconds);
        let measured =
            RoundTripReport { smoothed: round_trip(1_200), variation: round_trip(100), shortest: round_trip(200) };
        let control = ControlReport { sees_queue: Some(true), ..ControlReport::new("cubic") };
        let mut path = PathReport::new(own, peer);
        (path.recent, path.window, path.round_trip, path.control) = (recent, 256 << 10, Some(measured), Some(control));
        path
    }

    fn counts(sent: u64, lost: u64, [events, with_queue, reductions]: [u64; 3]) -> PacketCounts {
        PacketCounts {
            sent,
            lost,
            loss_events: events,
            loss_events_with_queue: with_queue,
            congestion_events: reductions,
            ..PacketCounts::default()
        }
    }

    #[test]
    fn losses_come_from_a_queue_chance_or_a_policer() {
        let of = |recent| judgement(&path(recent)).expect("enough was sent");
        let begin = "The path from 192.0.2.1 to 192.0.2.2";
        assert_eq!(
            of(counts(1_000, 30, [10, 8, 9])),
            format!(
                "{begin} loses 3.0 % of the packets; its round trip is 1.2 ms, the shortest 200 µs: a queue on the \
                     way is full"
            )
        );
        assert!(of(counts(1_000, 30, [20, 1, 1])).ends_with("packets are lost by chance (no queue is seen)"));
        assert!(of(counts(1_000, 300, [20, 1, 2])).contains("loses 30 % of the packets"));
        assert!(of(counts(1_000, 300, [20, 1, 2])).contains("a policer, or a queue too short"));
        let marked = |lost, events| of(PacketCounts { marks: 5, ..counts(1_000, lost, [events, 0, 5]) });
        assert!(marked(0, 0).ends_with("a queue on the way marks packets before it is full"));
        assert!(marked(30, 10).ends_with("a queue on the way marks packets, and is full now and then"));
        assert!(of(counts(100_000, 1, [1, 0, 0])).contains("less than 0.1 %"));
        assert!(of(counts(1_000, 0, [0, 0, 0])).ends_with("a queue on the way holds packets up for 1.0 ms"));
        assert_eq!(judgement(&path(counts(63, 5, [1, 1, 1]))), None);
    }

    #[test]
    fn a_report_as_text_says_what_packets_wait_for() {
        let mut path = path(counts(1_000, 0, [0, 0, 0]));
        (path.dscp, path.pacing_rate) = (46, Some(118_200_000));
        (path.age, path.window_wait, path.pace_wait) =
            (Duration::from_secs(2), Duration::from_millis(1_000), Duration::from_millis(10));
        let text = path.to_string();
        assert!(text.starts_with("The path from 192.0.2.1 to 192.0.2.2 (DSCP 46) loses nothing; "), "{text}");
        let end = ". By cubic, 256 KiB may be in flight, 118.2 MB/s may leave; packets waited 50 % of the time for the \
                   window.";
        assert!(text.ends_with(end), "{text}");
        path.recent.sent = 3;
        assert!(path.to_string().starts_with("Too little was sent lately on the path from 192.0.2.1"), "{path}");
        path.control = None;
        assert!(path.to_string().ends_with("or its window is constant."), "{path}");
    }
}
