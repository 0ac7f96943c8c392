//! The statistics in the text format of OpenMetrics 1.0, which Prometheus reads. Only types that the older format of
//! Prometheus has as well are used, so the collector for text files of its node exporter reads it, too.

use std::fmt::{Display, Write};

use rdma_verbs::monitor::{ConnectionState, DeviceStatistics, QueuePairStatistics};
use rdma_verbs::types::{Counter, Counters, DropReason, QueuePairState};

use super::json::object_counts;
use super::metrics::metric;
use crate::common::printable;
use crate::watch::Watched;
use crate::watch::views::{MESSAGE_COUNTS, number_text, path_text, peer_text};

const PREFIX: &str = "rdma_verbs_";

/// Labels that all metrics of a process, a device or a queue pair have.
#[derive(Clone, Default)]
struct Labels(String);

impl Labels {
    fn with(&self, name: &str, value: impl Display) -> Self {
        let mut labels = self.0.clone();
        if !labels.is_empty() {
            labels.push(',');
        }
        let value = printable(&value.to_string()).replace('\\', "\\\\").replace('"', "\\\"");
        // Writing to a string does not fail.
        let _ = write!(labels, "{name}=\"{value}\"");
        Self(labels)
    }

    fn of_process(watched: &Watched) -> Self {
        Self::default().with("pid", watched.process).with("process", &watched.name)
    }

    /// A process may open a device twice, so the name alone does not make the labels unique.
    fn of_device(watched: &Watched, device: &DeviceStatistics) -> Self {
        Self::of_process(watched).with("device", &device.name).with("device_id", device.id)
    }
}

/// The text: families of metrics, each with all its samples.
#[derive(Default)]
struct Exposition(String);

impl Exposition {
    fn family(&mut self, name: &str, kind: Kind, unit: Option<&str>, help: &str, samples: &[(Labels, f64)]) {
        let _ = writeln!(self.0, "# TYPE {PREFIX}{name} {}", kind.name());
        if let Some(unit) = unit {
            let _ = writeln!(self.0, "# UNIT {PREFIX}{name} {unit}");
        }
        let _ = writeln!(self.0, "# HELP {PREFIX}{name} {help}");
        for (Labels(labels), value) in samples {
            let _ = writeln!(self.0, "{PREFIX}{name}{}{{{labels}}} {value}", kind.suffix());
        }
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
        }
    }

    const fn suffix(self) -> &'static str {
        match self {
            Self::Counter => "_total",
            Self::Gauge => "",
        }
    }
}

/// A device with its labels.
type Device<'a> = (Labels, &'a DeviceStatistics);
/// A queue pair with its labels.
type QueuePair<'a> = (Labels, &'a QueuePairStatistics);

/// Returns the metrics of all devices, and with `has_queue_pairs` of all queue pairs: a value of a label for each one.
pub(super) fn exposition(processes: &[Watched], has_queue_pairs: bool) -> String {
    let mut text = Exposition::default();
    let ages: Vec<(Labels, f64)> = processes
        .iter()
        .filter_map(|watched| Some((Labels::of_process(watched), watched.snapshot()?.age.as_secs_f64())))
        .collect();
    text.family("age_seconds", Kind::Gauge, Some("seconds"), "Time since the process collected its values.", &ages);
    let devices: Vec<Device<'_>> = processes.iter().flat_map(devices).collect();
    add_devices(&mut text, &devices);
    add_connections(&mut text, &devices);
    add_counters(&mut text, &devices);
    if has_queue_pairs {
        add_queue_pairs(&mut text, &devices.iter().flat_map(queue_pairs).collect::<Vec<_>>());
    }
    text.0 + "# EOF\n"
}

fn devices(watched: &Watched) -> Vec<Device<'_>> {
    let devices = watched.snapshot().map_or(&[][..], |snapshot| &snapshot.devices);
    devices.iter().map(|device| (Labels::of_device(watched, device), device)).collect()
}

fn queue_pairs<'a>((labels, device): &Device<'a>) -> Vec<QueuePair<'a>> {
    device.queue_pairs.iter().map(|qp| (labels.with("queue_pair", number_text(qp)), qp)).collect()
}

/// Returns samples of several values of each device, which differ in one more label.
fn split<N: Display>(
    devices: &[Device<'_>],
    label: &str,
    values: impl Fn(&DeviceStatistics) -> Vec<(N, f64)>,
) -> Vec<(Labels, f64)> {
    let of_device = |(labels, device): &Device<'_>| {
        values(device).into_iter().map(|(name, value)| (labels.with(label, name), value)).collect::<Vec<_>>()
    };
    devices.iter().flat_map(of_device).collect()
}

fn single(devices: &[Device<'_>], value: impl Fn(&DeviceStatistics) -> f64) -> Vec<(Labels, f64)> {
    devices.iter().map(|(labels, device)| (labels.clone(), value(device))).collect()
}

fn add_devices(text: &mut Exposition, devices: &[Device<'_>]) {
    let open: Vec<(Labels, f64)> = devices
        .iter()
        .map(|(labels, device)| {
            let addresses: Vec<String> = device.addresses.iter().map(ToString::to_string).collect();
            let labels = labels.with("addresses", addresses.join(","));
            (labels.with("shared_memory", device.shared_memory.name()), 1.0)
        })
        .collect();
    text.family("device_open", Kind::Gauge, None, "1 for each open device, with its addresses and setting.", &open);
    let objects = split(devices, "kind", |device| {
        object_counts(&device.objects).into_iter().map(|(name, count)| (name, f64::from(count))).collect()
    });
    text.family("objects", Kind::Gauge, None, "Live objects.", &objects);
    let states = split(devices, "state", |device| {
        QueuePairState::ALL.iter().zip(device.states).map(|(state, count)| (state.name(), f64::from(count))).collect()
    });
    text.family("queue_pairs", Kind::Gauge, None, "Queue pairs by state.", &states);
    let captures = single(devices, |device| f64::from(device.captures));
    text.family("captures", Kind::Gauge, None, "Captures that run.", &captures);
}

fn add_connections(text: &mut Exposition, devices: &[Device<'_>]) {
    let states = split(devices, "state", |device| {
        ConnectionState::ALL
            .iter()
            .map(|state| (state.name(), f64::from(device.connections.in_state(*state))))
            .collect()
    });
    text.family("connections", Kind::Gauge, None, "Connections of the connection manager by state.", &states);
    let listeners = single(devices, |device| device.listeners.len() as f64 + f64::from(device.omitted_listeners));
    text.family("listeners", Kind::Gauge, None, "Listeners of the connection manager.", &listeners);
    let waiting =
        single(devices, |device| device.listeners.iter().map(|listener| f64::from(listener.waiting)).sum::<f64>());
    text.family("waiting_requests", Kind::Gauge, None, "Connection requests that wait for the application.", &waiting);
    let messages = split(devices, "kind", |device| {
        MESSAGE_COUNTS.iter().map(|(name, count)| (*name, count(device) as f64)).collect()
    });
    text.family("cm_messages", Kind::Counter, None, "Messages of the connection manager.", &messages);
}

fn add_counters(text: &mut Exposition, devices: &[Device<'_>]) {
    for counter in Counter::ALL {
        let metric = metric(*counter);
        let samples = single(devices, |device| device.counters.get(*counter) as f64 / metric.divisor);
        text.family(&metric.name, Kind::Counter, metric.unit, metric.help, &samples);
    }
    let drops = split(devices, "reason", |device| {
        DropReason::ALL.iter().map(|reason| (reason_text(*reason), device.counters.get_drop(*reason) as f64)).collect()
    });
    text.family("drops", Kind::Counter, None, "Packets dropped without a response, by reason.", &drops);
}

fn reason_text(reason: DropReason) -> &'static str {
    let name = reason.name();
    name.strip_prefix("drop_").unwrap_or(name)
}

/// Counts of a queue pair: name, unit, description, value.
type QueuePairCount = (&'static str, Option<&'static str>, &'static str, fn(&QueuePairStatistics) -> u64);

const COUNTS: [QueuePairCount; 6] = [
    ("queue_pair_sends", None, "Send requests that are complete.", |qp| qp.sends),
    ("queue_pair_receives", None, "Messages of the peer that were executed.", |qp| qp.receives),
    ("queue_pair_sent_bytes", Some("bytes"), "Bytes of packets sent.", |qp| qp.counters.get(Counter::SentBytes)),
    ("queue_pair_received_bytes", Some("bytes"), "Bytes of packets received.", |qp| {
        qp.counters.get(Counter::ReceivedBytes)
    }),
    ("queue_pair_retransmitted_pkts", None, "Packets retransmitted.", |qp| {
        qp.counters.get(Counter::RetransmittedPackets)
    }),
    ("queue_pair_drops", None, "Packets dropped without a response.", |qp| Counters::total_drops(&qp.counters)),
];

fn add_queue_pairs(text: &mut Exposition, queue_pairs: &[QueuePair<'_>]) {
    let gauge = |value: &dyn Fn(&QueuePairStatistics) -> Option<f64>| -> Vec<(Labels, f64)> {
        queue_pairs.iter().filter_map(|(labels, qp)| Some((labels.clone(), value(qp)?))).collect()
    };
    let exists = queue_pairs.iter().map(|(labels, qp)| {
        let labels = labels.with("type", qp.qp_type.name()).with("state", qp.state.name());
        (labels.with("peer", peer_text(qp)).with("path", path_text(qp)), 1.0)
    });
    let help = "1 for each queue pair, with its state, peer and path.";
    text.family("queue_pair_open", Kind::Gauge, None, help, &exists.collect::<Vec<_>>());
    for (name, unit, help, count) in COUNTS {
        text.family(name, Kind::Counter, unit, help, &gauge(&|qp| Some(count(qp) as f64)));
    }
    let round_trips = gauge(&|qp| qp.round_trip.map(|time| time.as_secs_f64()));
    let help = "Smoothed round-trip time of the path.";
    text.family("queue_pair_round_trip_seconds", Kind::Gauge, Some("seconds"), help, &round_trips);
    let windows = gauge(&|qp| (qp.window > 0).then_some(qp.window as f64));
    let help = "Bytes that may be in flight on the path.";
    text.family("queue_pair_window_bytes", Kind::Gauge, Some("bytes"), help, &windows);
    let in_flight = gauge(&|qp| Some(qp.bytes_in_flight as f64));
    text.family("queue_pair_in_flight_bytes", Kind::Gauge, Some("bytes"), "Bytes in flight.", &in_flight);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::tests::busy;

    fn text(has_queue_pairs: bool) -> String {
        let mut watched = Watched::new(4711, "a\"b\\c");
        busy().into_iter().for_each(|snapshot| watched.update(snapshot));
        exposition(&[watched], has_queue_pairs)
    }

    #[test]
    fn metrics_have_labels_and_values() {
        let text = text(false);
        let labels = "pid=\"4711\",process=\"a\\\"b\\\\c\",device=\"soft_eth0\",device_id=\"0\"";
        for line in [
            format!("rdma_verbs_sent_bytes_total{{{labels}}} 1251000000"),
            format!("rdma_verbs_drops_total{{{labels},reason=\"bad_icrc\"}} 1"),
            format!("rdma_verbs_connections{{{labels},state=\"established\"}} 4"),
            format!("rdma_verbs_waiting_requests{{{labels}}} 2"),
            "# TYPE rdma_verbs_pace_wait_seconds counter".to_owned(),
            "# UNIT rdma_verbs_pace_wait_seconds seconds".to_owned(),
        ] {
            assert!(text.lines().any(|one| one == line), "{line}\n{text}");
        }
        assert!(text.ends_with("\n# EOF\n") && !text.contains("queue_pair=\""), "{text}");
    }

    #[test]
    fn queue_pairs_are_labels_only_if_asked_for() {
        let text = text(true);
        let count = text.lines().filter(|line| line.starts_with("rdma_verbs_queue_pair_sends_total{")).count();
        assert_eq!(count, 2, "{text}");
        assert!(
            text.contains("queue_pair=\"0x00001b\",type=\"RC\",state=\"RTS\",peer=\"10.0.0.2 0x00002c\""),
            "{text}"
        );
        // A value that is not known has no sample.
        let unknown = text.lines().filter(|line| line.starts_with("rdma_verbs_queue_pair_round_trip_seconds{"));
        assert_eq!(unknown.count(), 1, "{text}");
    }
}
