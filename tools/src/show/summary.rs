//! The summary of connections: requests, bytes, rates, retransmissions and latencies in each direction.

use std::collections::BTreeMap;
use std::net::IpAddr;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::flow::Flow;
use super::request::{Ending, Event, Request};
use super::words;

/// Directions of connections that have a summary; the requests of further ones are counted together.
const MOST_DIRECTIONS: usize = 4_096;
/// The longest latency that is distinguished: a minute.
const LONGEST_LATENCY: u64 = 60_000_000_000;

/// Sums over the requests of one direction of a connection.
struct Sums {
    service: &'static str,
    source: IpAddr,
    destination: IpAddr,
    queue_pairs: (Option<u32>, u32),
    requests: u64,
    bytes: u64,
    packets: u64,
    again: u64,
    lost: u64,
    gap_reports: u64,
    receiver_not_ready: u64,
    refused: u64,
    unanswered: u64,
    dropped: u64,
    first: u64,
    last: u64,
    latencies: Option<Histogram<u32>>,
    longest: u64,
}

/// The sums in JSON.
#[derive(Serialize)]
pub(super) struct SumsObject {
    connection: u32,
    service: &'static str,
    source: IpAddr,
    source_queue_pair: Option<u32>,
    destination: IpAddr,
    destination_queue_pair: u32,
    requests: u64,
    bytes: u64,
    packets: u64,
    retransmitted: u64,
    lost: u64,
    gap_reports: u64,
    receiver_not_ready: u64,
    refused: u64,
    no_response: u64,
    dropped: u64,
    first_ns: u64,
    last_ns: u64,
    bits_per_second: f64,
    latency_p50_ns: Option<u64>,
    latency_p99_ns: Option<u64>,
    latency_max_ns: Option<u64>,
}

#[derive(Default)]
pub(super) struct Summary {
    /// By connection, and whether it is the second direction of it.
    directions: BTreeMap<(u32, bool), Sums>,
    pub(super) omitted: u64,
}

impl Summary {
    pub(super) fn add(&mut self, connection: (u32, bool), flow: &Flow, source_qp: Option<u32>, request: &Request) {
        if self.directions.len() == MOST_DIRECTIONS && !self.directions.contains_key(&connection) {
            self.omitted += 1;
            return;
        }
        self.directions.entry(connection).or_insert_with(|| Sums::new(flow, source_qp)).add(request);
    }

    pub(super) fn texts(&self) -> impl Iterator<Item = String> {
        self.directions.iter().map(|((number, is_back), sums)| sums.text(*number, *is_back))
    }

    pub(super) fn objects(&self) -> Vec<SumsObject> {
        self.directions.iter().map(|((number, _), sums)| sums.object(*number)).collect()
    }
}

impl Sums {
    fn new(flow: &Flow, source_queue_pair: Option<u32>) -> Self {
        Self {
            service: words::service(flow.service()),
            source: flow.key.source,
            destination: flow.key.destination,
            queue_pairs: (source_queue_pair, flow.key.destination_qpn.value()),
            requests: 0,
            bytes: 0,
            packets: 0,
            again: 0,
            lost: 0,
            gap_reports: 0,
            receiver_not_ready: 0,
            refused: 0,
            unanswered: 0,
            dropped: 0,
            first: u64::MAX,
            last: 0,
            latencies: None,
            longest: 0,
        }
    }

    fn add(&mut self, request: &Request) {
        let seen = request.best();
        self.requests += 1;
        self.bytes = self.bytes.saturating_add(request.bytes());
        self.packets += u64::from(seen.packets);
        self.again += u64::from(seen.again);
        self.lost += u64::from(request.lost);
        self.first = self.first.min(seen.first);
        self.last = self.last.max(seen.last);
        match request.ending {
            Some(Ending::Done(time)) => self.last = self.last.max(time),
            Some(Ending::Refused(..) | Ending::AfterRefusal) => self.refused += 1,
            Some(Ending::Unanswered | Ending::Forgotten | Ending::ResponseIncomplete) => self.unanswered += 1,
            Some(Ending::Unreliable) | None => {}
        }
        for event in &request.events {
            match event {
                Event::SequenceNak { .. } => self.gap_reports += 1,
                Event::ReceiverNotReady { times, .. } => self.receiver_not_ready += u64::from(*times),
                Event::Dropped { .. } => self.dropped += 1,
                Event::Again { .. } | Event::Late { .. } | Event::Gap { .. } => {}
            }
        }
        if let Some(latency) = request.latency() {
            self.longest = self.longest.max(latency);
            // Both bounds are allowed, so there always is one.
            if self.latencies.is_none() {
                self.latencies = Histogram::new_with_bounds(1, LONGEST_LATENCY, 2).ok();
            }
            if let Some(latencies) = &mut self.latencies {
                latencies.saturating_record(latency);
            }
        }
    }

    fn quantile(&self, quantile: f64) -> Option<u64> {
        self.latencies.as_ref().map(|latencies| latencies.value_at_quantile(quantile).min(self.longest))
    }

    fn bits_per_second(&self) -> f64 {
        let nanoseconds = self.last.saturating_sub(self.first);
        if nanoseconds == 0 { 0.0 } else { self.bytes as f64 * 8e9 / nanoseconds as f64 }
    }

    fn object(&self, connection: u32) -> SumsObject {
        SumsObject {
            connection,
            service: self.service,
            source: self.source,
            source_queue_pair: self.queue_pairs.0,
            destination: self.destination,
            destination_queue_pair: self.queue_pairs.1,
            requests: self.requests,
            bytes: self.bytes,
            packets: self.packets,
            retransmitted: self.again,
            lost: self.lost,
            gap_reports: self.gap_reports,
            receiver_not_ready: self.receiver_not_ready,
            refused: self.refused,
            no_response: self.unanswered,
            dropped: self.dropped,
            first_ns: self.first,
            last_ns: self.last,
            bits_per_second: self.bits_per_second(),
            latency_p50_ns: self.quantile(0.5),
            latency_p99_ns: self.quantile(0.99),
            latency_max_ns: self.latencies.as_ref().map(|_| self.longest),
        }
    }

    fn text(&self, connection: u32, is_back: bool) -> String {
        let arrow = if is_back { '<' } else { '>' };
        let qp = |number: Option<u32>| number.map_or(String::new(), |number| format!(" queue pair {number:#08x}"));
        let mut text = format!(
            "connection {connection}{arrow}  {}  {}{} to {}{}\n    {}, {} in {}: {}",
            self.service,
            self.source,
            qp(self.queue_pairs.0),
            self.destination,
            qp(Some(self.queue_pairs.1)),
            words::count(self.requests, "request"),
            words::size(self.bytes),
            words::span(self.last.saturating_sub(self.first)),
            rate(self.bits_per_second()),
        );
        if let (Some(median), Some(high)) = (self.quantile(0.5), self.quantile(0.99)) {
            let [median, high, longest] = [median, high, self.longest].map(words::span);
            text.push_str(&format!("\n    latency: median {median}, 99 % {high}, longest {longest}"));
        }
        let parts: Vec<String> = [
            (self.again, "packet sent again", "packets sent again"),
            (self.lost, "packet lost on the way", "packets lost on the way"),
            (self.gap_reports, "sequence NAK", "sequence NAKs"),
            (self.receiver_not_ready, "RNR NAK", "RNR NAKs"),
            (self.dropped, "packet with a comment of a drop", "packets with comments of drops"),
            (self.refused, "request refused or after one that was", "requests refused or after one that was"),
            (
                self.unanswered,
                "request without a response in the capture",
                "requests without a response in the capture",
            ),
        ]
        .into_iter()
        .filter(|(number, ..)| *number > 0)
        .map(|(number, one, many)| format!("{number} {}", if number == 1 { one } else { many }))
        .collect();
        if !parts.is_empty() {
            text.push_str(&format!("\n    {} packets; {}", self.packets, parts.join(", ")));
        }
        text
    }
}

fn rate(bits_per_second: f64) -> String {
    match bits_per_second {
        rate if rate >= 1e9 => format!("{:.2} Gbit/s", rate / 1e9),
        rate if rate >= 1e6 => format!("{:.2} Mbit/s", rate / 1e6),
        rate => format!("{:.2} kbit/s", rate / 1e3),
    }
}
