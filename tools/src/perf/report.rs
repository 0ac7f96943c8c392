//! The results, as text and as JSON.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

use hdrhistogram::Histogram;
use rdma_verbs::verbs::{PathReport, SharedMemory};
use serde::{Deserialize, Serialize};

use super::end::Device;
use super::job::{Job, Measure, Operation, Service};
use super::machine::{self, Description};
use super::outcome::{Outcome, printed};
use super::plot::{Picture, Series};
use super::reference::Measured;
use super::run::Numbers;
use crate::common::{print, print_json};

/// Number of points of a drawn distribution.
const DISTRIBUTION_POINTS: usize = 400;
/// The end of the distribution: 99.999 %.
const MOST_NINES: f64 = 5.0;
/// Number of bins of a distribution in JSON for each doubling of the time, so that a bin is 2.2 % wide.
const BINS_PER_OCTAVE: f64 = 32.0;

/// The results of one size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Line {
    pub(crate) bytes: usize,
    pub(crate) iterations: u64,
    pub(crate) seconds: f64,
    /// Number of messages that never arrived; only unreliable services lose any.
    pub(crate) lost: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) latency: Option<Latency>,
    /// The distribution of the times, if they were measured one by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    distribution: Option<Distribution>,
    /// 10^9 bytes of payload per second.
    pub(crate) gigabytes_per_second: f64,
    pub(crate) million_messages_per_second: f64,
    /// Processor seconds of both processes for 10^9 bytes of payload.
    pub(crate) cpu_seconds_per_gigabyte: f64,
    #[serde(skip)]
    times: Option<Histogram<u64>>,
    /// The reports on the client's paths.
    #[serde(skip)]
    pub(crate) paths: Vec<PathReport>,
}

/// The report on a path. Times are in seconds; an unknown value is null in JSON.
#[derive(Clone, Debug, Serialize)]
struct PathLine {
    own: IpAddr,
    peer: IpAddr,
    dscp: u8,
    algorithm: Option<&'static str>,
    window_bytes: u64,
    bytes_per_second: Option<u64>,
    smoothed_round_trip: Option<f64>,
    round_trip_variation: Option<f64>,
    shortest_round_trip: Option<f64>,
    packets: u64,
    lost: u64,
    lost_by_chance: u64,
    sent_again_in_vain: u64,
    marks: u64,
    congestion_events: Option<u64>,
    pace_wait: f64,
    window_wait: f64,
    text: String,
}

impl From<&PathReport> for PathLine {
    fn from(path: &PathReport) -> Self {
        let round_trip = path.round_trip;
        Self {
            own: path.own,
            peer: path.peer,
            dscp: path.dscp,
            algorithm: path.control.map(|control| control.algorithm),
            window_bytes: path.window,
            bytes_per_second: path.pacing_rate,
            smoothed_round_trip: round_trip.map(|measured| measured.smoothed.as_secs_f64()),
            round_trip_variation: round_trip.map(|measured| measured.variation.as_secs_f64()),
            shortest_round_trip: round_trip.map(|measured| measured.shortest.as_secs_f64()),
            packets: path.total.sent,
            lost: path.total.lost,
            lost_by_chance: path.total.lost_by_chance,
            sent_again_in_vain: path.total.spurious,
            marks: path.total.marks,
            congestion_events: path.control.map(|control| control.congestion_events),
            pace_wait: path.pace_wait.as_secs_f64(),
            window_wait: path.window_wait.as_secs_f64(),
            text: path.to_string(),
        }
    }
}

/// Times in microseconds. An unknown time is NaN, and null in JSON.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Latency {
    pub(crate) min: f64,
    pub(crate) p50: f64,
    pub(crate) mean: f64,
    pub(crate) deviation: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) max: f64,
}

impl Latency {
    fn of(times: &Histogram<u64>) -> Self {
        let microseconds = |nanoseconds: u64| nanoseconds as f64 / 1e3;
        Self {
            min: microseconds(times.min()),
            p50: microseconds(times.value_at_quantile(0.5)),
            mean: times.mean() / 1e3,
            deviation: times.stdev() / 1e3,
            p99: microseconds(times.value_at_quantile(0.99)),
            p999: microseconds(times.value_at_quantile(0.999)),
            max: microseconds(times.max()),
        }
    }

    fn partial(median: Option<f64>, mean: Option<f64>) -> Self {
        let unknown = f64::NAN;
        Self {
            min: unknown,
            p50: median.unwrap_or(unknown),
            mean: mean.unwrap_or(unknown),
            deviation: unknown,
            p99: unknown,
            p999: unknown,
            max: unknown,
        }
    }
}

/// The number of messages by the time they took. Bins without messages are left out.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Distribution {
    /// The upper end of each bin.
    microseconds: Vec<f64>,
    messages: Vec<u64>,
}

impl Distribution {
    fn of(times: &Histogram<u64>) -> Self {
        let mut distribution = Self::default();
        let mut last_bin = None;
        for value in times.iter_recorded() {
            let bin = ((value.value_iterated_to().max(1) as f64).log2() * BINS_PER_OCTAVE).ceil();
            let count = value.count_at_value();
            match distribution.messages.last_mut().filter(|_| last_bin == Some(bin)) {
                Some(messages) => *messages += count,
                None => {
                    let end = (bin / BINS_PER_OCTAVE).exp2() / 1e3;
                    distribution.microseconds.push((end * 1e4).round() / 1e4);
                    distribution.messages.push(count);
                }
            }
            last_bin = Some(bin);
        }
        distribution
    }
}

/// The results that another project's program prints.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct ExternalResults {
    pub(crate) bytes: usize,
    pub(crate) messages: u64,
    pub(crate) seconds: f64,
    /// Half of the round trip, in microseconds.
    pub(crate) median: Option<f64>,
    pub(crate) mean: Option<f64>,
}

/// The combined measurements of both ends for one size.
struct Totals {
    bytes: usize,
    /// Number of messages that the client sent or requested.
    iterations: u64,
    /// Number of messages that arrived, in both directions.
    messages: u64,
    lost: u64,
    seconds: f64,
    cpu_seconds: f64,
    times: Option<Histogram<u64>>,
}

impl Totals {
    /// Combines both ends, if all messages arrived, in one direction; `own` is the client, which counts and times them.
    fn new(bytes: usize, own: Measured, other: &Numbers) -> Self {
        Self {
            bytes,
            iterations: own.messages,
            messages: own.messages,
            lost: 0,
            seconds: own.seconds,
            cpu_seconds: own.cpu_seconds + other.cpu_seconds,
            times: own.times,
        }
    }
}

impl Line {
    /// Creates a line from both ends' measurements; `own` is the client's.
    pub(crate) fn new(job: &Job, size: usize, own: Measured, other: Numbers) -> Self {
        let is_stream = job.measure != Measure::Latency;
        let sent = own.messages;
        let totals = Totals::new(size, own, &other);
        if is_stream && job.bidirectional {
            return Self::of(Totals { messages: sent + other.messages, ..totals });
        }
        // Only the receiver knows how many messages arrived.
        if is_stream && job.service != Service::Reliable && job.operation == Operation::Send {
            let lost = sent.saturating_sub(other.messages);
            return Self::of(Totals { messages: other.messages, lost, seconds: other.seconds, ..totals });
        }
        Self::of(totals)
    }

    /// Creates a line from a reference's measurements, for messages of this size, or of the actual size.
    pub(crate) fn of_reference(size: Option<usize>, own: Measured, other: Numbers) -> Self {
        let real = own.bytes.checked_div(own.messages).unwrap_or(0) as usize;
        let line = Self::of(Totals::new(real, own, &other));
        match size {
            Some(size) => line.of_size(size),
            None => line,
        }
    }

    /// Creates a line from the results of another project's program.
    pub(crate) fn of_external(results: ExternalResults) -> Self {
        let ExternalResults { bytes, messages, seconds, median, mean } = results;
        let line = Self::of(Totals {
            bytes,
            iterations: messages,
            messages,
            lost: 0,
            seconds,
            cpu_seconds: f64::NAN,
            times: None,
        });
        Self { latency: (median.is_some() || mean.is_some()).then(|| Latency::partial(median, mean)), ..line }
    }

    /// Returns the line as the figure for messages of this size.
    pub(crate) fn of_size(self, bytes: usize) -> Self {
        Self { bytes, ..self }
    }

    fn of(totals: Totals) -> Self {
        let Totals { bytes, iterations, messages, lost, seconds, cpu_seconds, times } = totals;
        let gigabytes = messages as f64 * bytes as f64 / 1e9;
        let over = |value: f64, by: f64| if by > 0.0 { value / by } else { 0.0 };
        let times = times.filter(|times| !times.is_empty());
        Self {
            bytes,
            iterations,
            seconds,
            lost,
            latency: times.as_ref().map(Latency::of),
            distribution: times.as_ref().map(Distribution::of),
            gigabytes_per_second: over(gigabytes, seconds),
            million_messages_per_second: over(messages as f64 / 1e6, seconds),
            cpu_seconds_per_gigabyte: over(cpu_seconds, gigabytes),
            times,
            paths: Vec::new(),
        }
    }

    fn print(&self, name: &str) -> io::Result<()> {
        let Self { bytes, iterations, lost, cpu_seconds_per_gigabyte: cpu, .. } = self;
        let lost = if *lost > 0 { format!("  {lost} lost") } else { String::new() };
        let head = format!(" {bytes:<9} {iterations:<11}");
        if let Some(Latency { min, p50, mean, deviation, p99, p999, max }) = self.latency {
            let quantiles = format!("{p99:>9.2} {p999:>9.2} {max:>9.2}");
            print(format_args!("{head} {min:>9.2} {p50:>9.2} {mean:>9.2} {deviation:>10.2} {quantiles}  {name}\n"))
        } else {
            let (gigabytes, rate) = (self.gigabytes_per_second, self.million_messages_per_second);
            let mebibytes = gigabytes * 1e9 / f64::from(1 << 20);
            print(format_args!("{head} {mebibytes:>15.2} {gigabytes:>10.3} {rate:>13.6} {cpu:>13.3}  {name}{lost}\n"))
        }
    }
}

/// The results of a program to compare with.
#[derive(Clone, Debug, Serialize)]
struct ReferenceLine {
    name: &'static str,
    #[serde(flatten)]
    line: Line,
}

/// The client's device.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct DeviceLine {
    name: String,
    provider: &'static str,
    gid: String,
    active_mtu: u32,
    /// Setting of a software device.
    shared_memory: Option<&'static str>,
}

impl DeviceLine {
    pub(crate) fn of(device: &Device) -> Outcome<Self> {
        let context = &device.context;
        let shared_memory = context.shared_memory();
        Ok(Self {
            name: context.name().to_owned(),
            provider: if shared_memory.is_some() { "soft" } else { "ibverbs" },
            gid: context.query_gid(device.port_num, device.gid_index)?.gid.to_ip().to_canonical().to_string(),
            active_mtu: context.query_port(device.port_num)?.active_mtu.bytes(),
            shared_memory: shared_memory.map(SharedMemory::name),
        })
    }
}

/// The report of one run.
#[derive(Serialize)]
pub(crate) struct Report<'a> {
    test: &'a Job,
    machine: Description,
    /// The command line.
    invocation: String,
    /// Seconds since 1970.
    measured_at: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) device: Option<DeviceLine>,
    results: Vec<Line>,
    references: Vec<ReferenceLine>,
    /// Reports on the paths after the last size. `None` if not requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    paths: Option<Vec<PathLine>>,
    /// Nonzero counters of the client's device. `None` if not requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) counters: Option<BTreeMap<&'static str, u64>>,
    #[serde(skip)]
    pub(crate) shows_paths: bool,
    #[serde(skip)]
    is_json: bool,
}

impl<'a> Report<'a> {
    pub(crate) fn new(test: &'a Job, is_json: bool) -> Outcome<Self> {
        let (machine, results, references) = (Description::now()?, Vec::new(), Vec::new());
        Ok(Self {
            test,
            machine,
            invocation: machine::invocation(),
            measured_at: machine::seconds_since_1970(),
            device: None,
            results,
            references,
            paths: None,
            counters: None,
            shows_paths: false,
            is_json,
        })
    }

    /// Prints the lines before the first result.
    pub(crate) fn begin(&self) -> Outcome {
        if self.is_json {
            return Ok(());
        }
        let Job { operation, measure, queue_pairs, tx_depth, .. } = self.test;
        let (operation, service) = (operation.name(), self.test.service.name());
        let what = match measure {
            Measure::Latency if self.test.operation.has_device_response() => "latency, whole round trip",
            Measure::Latency => "latency, half round trip",
            Measure::Bandwidth => "bandwidth",
            Measure::Rate => "message rate",
        };
        let mtu = self.test.mtu.map_or_else(|| "largest".to_owned(), |mtu| mtu.to_string());
        let build = if self.machine.optimised { "" } else { "This is a debug build: the figures mean nothing.\n" };
        let titles = match measure {
            Measure::Latency => format!(
                "{:>9} {:>9} {:>9} {:>10} {:>9} {:>9} {:>9}",
                "t_min[us]", "t_p50[us]", "t_avg[us]", "t_std[us]", "99%[us]", "99.9%[us]", "t_max[us]"
            ),
            Measure::Bandwidth | Measure::Rate => {
                format!("{:>15} {:>10} {:>13} {:>13}", "BW avg[MiB/sec]", "BW[GB/sec]", "MsgRate[Mpps]", "CPU[sec/GB]")
            }
        };
        printed(print(format_args!(
            "{operation} {what}; {service}, {queue_pairs} queue pair(s), tx depth {tx_depth}, path MTU {mtu}\n\
             {build} {:<9} {:<11} {titles}\n",
            "#bytes", "#iterations"
        )))
    }

    pub(crate) fn add(&mut self, line: Line) -> Outcome {
        if !self.is_json {
            printed(line.print(""))?;
        }
        if self.shows_paths {
            self.paths = Some(line.paths.iter().map(PathLine::from).collect());
        }
        self.results.push(line);
        Ok(())
    }

    pub(crate) fn add_reference(&mut self, name: &'static str, line: Line) -> Outcome {
        if !self.is_json {
            printed(line.print(name))?;
        }
        self.references.push(ReferenceLine { name, line });
        Ok(())
    }

    /// Prints the lines after the last result, or the JSON document.
    pub(crate) fn end(&self) -> Outcome {
        if self.is_json {
            return printed(print_json("perf", self));
        }
        printed(self.paths.iter().flatten().try_for_each(|path| print(format_args!("{}\n", path.text))))
    }

    /// Returns a plot of the results.
    pub(crate) fn picture(&self) -> Picture {
        let mut picture = Picture::default();
        self.draw_into(&mut picture);
        picture
    }

    pub(crate) fn draw_into(&self, picture: &mut Picture) {
        let own = format!("{}, {}", self.test.operation.name(), self.test.service.name());
        picture.is_whole_round_trip |= self.test.operation.has_device_response();
        self.draw_lines(picture, &own, &self.results.iter().collect::<Vec<_>>());
        let mut names: Vec<&str> = Vec::new();
        self.references.iter().for_each(|reference| {
            if !names.contains(&reference.name) {
                names.push(reference.name);
            }
        });
        for name in names {
            let of_name = self.references.iter().filter(|reference| reference.name == name);
            self.draw_lines(picture, name, &of_name.map(|reference| &reference.line).collect::<Vec<_>>());
        }
    }

    fn draw_lines(&self, picture: &mut Picture, name: &str, lines: &[&Line]) {
        let points = |value: &dyn Fn(&Line) -> Option<f64>| {
            let points = lines.iter().filter_map(|line| Some((line.bytes as f64, value(line)?))).collect();
            Series { name: name.to_owned(), points }
        };
        if self.test.measure == Measure::Latency {
            picture.latency.push(points(&|line| Some(line.latency?.p50)));
            let times = lines.first().and_then(|line| line.times.as_ref().map(|times| (line.bytes, times)));
            if let Some((bytes, times)) = times {
                picture.distribution.push(distribution(format!("{name}, {bytes} B"), times));
            }
        } else {
            picture.bandwidth.push(points(&|line| Some(line.gigabytes_per_second)));
        }
    }
}

/// Returns the share of messages by the longest time they took, with the same number of points for each further nine.
fn distribution(name: String, times: &Histogram<u64>) -> Series {
    let most_nines = (times.len() as f64).log10().clamp(1.0, MOST_NINES);
    let at = |step: usize| {
        let nines = most_nines * step as f64 / DISTRIBUTION_POINTS as f64;
        (times.value_at_quantile(1.0 - 0.1f64.powf(nines)) as f64 / 1e3, nines)
    };
    Series { name, points: (0..=DISTRIBUTION_POINTS).map(at).collect() }
}
