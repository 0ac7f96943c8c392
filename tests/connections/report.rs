//! The results, as medians of the repetitions.

use std::time::Duration;

use serde::Serialize;

use super::Arguments;
use super::client::Repetition;

/// A connect that takes longer has lost a message: the first repetition comes after 300 ms.
const SLOW: Duration = Duration::from_millis(290);

/// The results.
#[derive(Default, Serialize)]
pub(crate) struct Report {
    connections: u32,
    in_flight: u32,
    repetitions: u32,
    connects_per_second: Vec<f64>,
    disconnects_per_second: Vec<f64>,
    connect_p50_micros: Vec<f64>,
    connect_p99_micros: Vec<f64>,
    /// Time in which the client creates a queue pair.
    create_qp_micros: Vec<f64>,
    /// Processor time of client and server for one connection that is set up, with its queue pair.
    processor_micros: Vec<[f64; 2]>,
    /// Memory of an idle connection with its queue pair, in client and server; of the first repetition, because later
    /// ones use its memory again.
    idle_bytes: Option<[i64; 2]>,
    /// Number of connects that have lost a message.
    slow: usize,
    slowest_micros: f64,
    tcp_connects_per_second: Vec<f64>,
    tcp_p50_micros: Vec<f64>,
    tcp_p99_micros: Vec<f64>,
    /// Resources that are left after all connections have ended.
    pub(crate) left: Vec<String>,
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn quantile(times: &mut [Duration], of_hundred: usize) -> f64 {
    times.sort_unstable();
    times.get((times.len() * of_hundred / 100).min(times.len().saturating_sub(1))).copied().map_or(0.0, micros)
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

impl Report {
    pub(crate) fn new(arguments: &Arguments) -> Self {
        let Arguments { connections, in_flight, repetitions, .. } = *arguments;
        Self { connections, in_flight, repetitions, ..Self::default() }
    }

    /// Adds a repetition.
    pub(crate) fn add(&mut self, repetition: Repetition) {
        let Repetition { setup, teardown, mut connects, creation, idle_bytes, setup_processor, left } = repetition;
        let count = f64::from(self.connections);
        self.connects_per_second.push(count / setup.as_secs_f64());
        self.disconnects_per_second.push(count / teardown.as_secs_f64());
        self.connect_p50_micros.push(quantile(&mut connects, 50));
        self.connect_p99_micros.push(quantile(&mut connects, 99));
        self.slowest_micros = self.slowest_micros.max(quantile(&mut connects, 100));
        self.create_qp_micros.push(micros(creation) / count);
        self.processor_micros.push(setup_processor.map(|time| micros(time) / count));
        self.idle_bytes.get_or_insert(idle_bytes);
        self.slow += connects.iter().filter(|time| **time > SLOW).count();
        self.left.extend(left);
    }

    /// Adds the times of TCP connects.
    pub(crate) fn add_tcp(&mut self, times: &[Duration]) {
        let mut times = times.to_vec();
        let total: Duration = times.iter().sum();
        self.tcp_connects_per_second.push(times.len() as f64 / total.as_secs_f64());
        self.tcp_p50_micros.push(quantile(&mut times, 50));
        self.tcp_p99_micros.push(quantile(&mut times, 99));
    }

    pub(crate) fn print(&self, json: bool) {
        if json {
            return println!("{}", serde_json::to_string(self).unwrap_or_default());
        }
        let (rate, tcp_rate) = (median(&self.connects_per_second), median(&self.tcp_connects_per_second));
        let (p50, p99) = (median(&self.connect_p50_micros), median(&self.connect_p99_micros));
        let (tcp_p50, tcp_p99) = (median(&self.tcp_p50_micros), median(&self.tcp_p99_micros));
        let processor = |index: usize| median(&self.processor_micros.iter().map(|of| of[index]).collect::<Vec<_>>());
        let [client, server] = self.idle_bytes.unwrap_or_default();
        println!(
            "{} connections, {} in flight, medians of {} repetitions",
            self.connections, self.in_flight, self.repetitions
        );
        println!("  connects per second: {rate:.0}; TCP {tcp_rate:.0}, ratio {:.3}", rate / tcp_rate);
        println!(
            "  time of one connect: p50 {p50:.0} µs, p99 {p99:.0} µs, longest {:.0} µs; TCP p50 {tcp_p50:.1} µs, p99 \
             {tcp_p99:.1} µs, ratios {:.1} and {:.1}",
            self.slowest_micros,
            p50 / tcp_p50,
            p99 / tcp_p99
        );
        println!("  connects that have lost a message: {}", self.slow);
        println!("  disconnects per second: {:.0}", median(&self.disconnects_per_second));
        println!("  creation of a queue pair: {:.1} µs", median(&self.create_qp_micros));
        println!("  processor time of a connection: client {:.0} µs, server {:.0} µs", processor(0), processor(1));
        println!("  memory of an idle connection: client {client} bytes, server {server} bytes");
        match &self.left[..] {
            [] => println!("  nothing is left"),
            left => left.iter().for_each(|left| println!("  left: {left}")),
        }
    }
}
