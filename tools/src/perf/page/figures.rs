//! The figures of results: repetitions combined into medians with their bounds, and changes between results.

use super::input::{Device, Document, Line, Machine, Named, Run, Test, Unmeasured, Verdict};
use crate::perf::job::{Measure, Operation, Sharing, Waiting};
use crate::perf::outcome::Outcome;

/// Smaller changes are not reported, however small the noise is.
const LEAST_CHANGE: f64 = 0.02;
/// Noise of a figure that was measured only once, as a fraction: an assumption.
const UNKNOWN_NOISE: f64 = 0.10;

/// The results of a file.
#[derive(Default)]
pub(super) struct Source {
    pub(super) name: String,
    pub(super) machine: Machine,
    pub(super) device: Option<Device>,
    /// The settings of the devices of all runs, each once.
    pub(super) shared_memory: Vec<String>,
    pub(super) invocation: Option<String>,
    pub(super) measured_at: Option<u64>,
    pub(super) cases: Vec<Case>,
    pub(super) rows: Vec<(String, Vec<Verdict>)>,
    pub(super) missing: Vec<Unmeasured>,
}

/// A measurement over one or several sizes.
pub(super) struct Case {
    pub(super) title: String,
    pub(super) test: Test,
    pub(super) invocation: Option<String>,
    pub(super) points: Vec<Point>,
    /// Raw programs, by name.
    pub(super) references: Vec<(String, Vec<Point>)>,
}

/// The results of a size.
#[derive(Clone, Debug)]
pub(super) struct Point {
    pub(super) bytes: u64,
    pub(super) iterations: u64,
    pub(super) lost: u64,
    pub(super) min: Option<Value>,
    pub(super) p50: Option<Value>,
    pub(super) mean: Option<Value>,
    pub(super) p99: Option<Value>,
    pub(super) p999: Option<Value>,
    pub(super) max: Option<Value>,
    pub(super) bandwidth: Option<Value>,
    pub(super) rate: Option<Value>,
    pub(super) cpu: Option<Value>,
    /// Ends of bins in microseconds, and numbers of messages.
    pub(super) distribution: Vec<(f64, u64)>,
}

/// The median of repetitions, and their bounds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Value {
    pub(super) median: f64,
    pub(super) least: f64,
    pub(super) most: f64,
    pub(super) count: usize,
}

impl Value {
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (least, most) = (*values.first()?, *values.last()?);
        Some(Self { median: *values.get(values.len() / 2)?, least, most, count: values.len() })
    }

    /// Returns the largest distance of a repetition from the median, as a fraction of it. `None` for a single one.
    pub(super) fn noise(&self) -> Option<f64> {
        let distance = (self.most - self.median).max(self.median - self.least);
        (self.count > 1 && self.median > 0.0).then(|| distance / self.median)
    }
}

/// A figure of a point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Figure {
    P50,
    P99,
    Bandwidth,
    Rate,
}

impl Figure {
    pub(super) fn of_measure(measure: Measure) -> &'static [Self] {
        match measure {
            Measure::Latency => &[Self::P50, Self::P99],
            Measure::Bandwidth => &[Self::Bandwidth],
            Measure::Rate => &[Self::Rate],
        }
    }

    pub(super) fn of(self, point: &Point) -> Option<Value> {
        match self {
            Self::P50 => point.p50,
            Self::P99 => point.p99,
            Self::Bandwidth => point.bandwidth,
            Self::Rate => point.rate,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::P50 => "median",
            Self::P99 => "99 %",
            Self::Bandwidth => "bandwidth",
            Self::Rate => "rate",
        }
    }

    pub(super) fn unit(self) -> &'static str {
        match self {
            Self::P50 | Self::P99 => "µs",
            Self::Bandwidth => "GB/s",
            Self::Rate => "M/s",
        }
    }

    fn is_better_if_less(self) -> bool {
        matches!(self, Self::P50 | Self::P99)
    }
}

/// The change of a figure from the first results to others.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) case: String,
    pub(super) bytes: u64,
    pub(super) figure: Figure,
    pub(super) before: Value,
    pub(super) after: Value,
    /// As a fraction: 0.1 is 10 % more.
    pub(super) change: f64,
    /// The change that noise explains, as a fraction.
    pub(super) noise: f64,
    pub(super) trend: Trend,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Trend {
    Better,
    Same,
    Worse,
}

impl Change {
    pub(super) fn of(case: &Case, bytes: u64, figure: Figure, before: Value, after: Value) -> Option<Self> {
        if before.median <= 0.0 {
            return None;
        }
        let change = after.median / before.median - 1.0;
        let noise_of = |value: Value| value.noise().unwrap_or(UNKNOWN_NOISE);
        let noise = noise_of(before).hypot(noise_of(after)).max(LEAST_CHANGE);
        let trend = if change.abs() <= noise {
            Trend::Same
        } else if (change < 0.0) == figure.is_better_if_less() {
            Trend::Better
        } else {
            Trend::Worse
        };
        Some(Self { case: case.title.clone(), bytes, figure, before, after, change, noise, trend })
    }
}

/// Returns the changes of all figures that both have.
pub(super) fn changes(before: &Source, after: &Source) -> Vec<Change> {
    let mut changes = Vec::new();
    for (old, new) in pairs(before, after) {
        for (old_point, new_point) in old.points.iter().filter_map(|point| Some((point, new.point(point.bytes)?))) {
            for figure in Figure::of_measure(old.test.measure) {
                let values = figure.of(old_point).zip(figure.of(new_point));
                changes.extend(values.and_then(|(old_value, new_value)| {
                    Change::of(old, old_point.bytes, *figure, old_value, new_value)
                }));
            }
        }
    }
    changes
}

fn pairs<'a>(before: &'a Source, after: &'a Source) -> impl Iterator<Item = (&'a Case, &'a Case)> {
    before.cases.iter().filter_map(|old| Some((old, after.case(&old.title)?)))
}

impl Source {
    pub(super) fn of(named: &Named) -> Outcome<Self> {
        let document = Document::of(named)?;
        let first = document.runs.first();
        let machine = document.machine.clone().or(first.map(|run| run.machine.clone())).unwrap_or_default();
        let mut shared_memory: Vec<String> = Vec::new();
        for device in document.runs.iter().filter_map(|run| run.device.as_ref()) {
            let setting = device.shared_memory.as_deref().unwrap_or("none");
            if !shared_memory.iter().any(|known| known == setting) {
                shared_memory.push(setting.to_owned());
            }
        }
        let mut source = Self {
            name: named.name.clone(),
            machine,
            device: first.and_then(|run| run.device.clone()),
            shared_memory,
            invocation: document.invocation.clone(),
            measured_at: document.measured_at.or(first.and_then(|run| run.measured_at)),
            cases: Vec::new(),
            rows: document.rows.into_iter().map(|row| (row.row, row.verdicts)).collect(),
            missing: document.not_measured.into_iter().chain(document.failed).collect(),
        };
        source.cases = document.runs.into_iter().map(Case::of).collect();
        number_equal_titles(&mut source.cases);
        Ok(source)
    }

    pub(super) fn case(&self, title: &str) -> Option<&Case> {
        self.cases.iter().find(|case| case.title == title)
    }

    /// Returns the largest number of repetitions of a figure.
    pub(super) fn repetitions(&self) -> usize {
        let values = self.cases.iter().flat_map(|case| {
            let figures = Figure::of_measure(case.test.measure);
            case.points.iter().filter_map(|point| figures.first()?.of(point))
        });
        values.map(|value| value.count).max().unwrap_or(0)
    }

    /// Returns the noise of most figures: its median. `None` if it is unknown.
    pub(super) fn noise(&self) -> Option<f64> {
        let values = self.cases.iter().flat_map(|case| {
            let figure = Figure::of_measure(case.test.measure)[0];
            case.points.iter().filter_map(move |point| figure.of(point)?.noise())
        });
        Value::of(values.collect()).map(|value| value.median)
    }
}

/// A file may have the same measurement twice.
fn number_equal_titles(cases: &mut [Case]) {
    for index in 1..cases.len() {
        let (before, rest) = cases.split_at_mut(index);
        let title = rest[0].title.clone();
        let is_again = |case: &&Case| case.title == title || case.title.starts_with(&format!("{title}, again"));
        let count = before.iter().filter(is_again).count();
        if count > 0 {
            rest[0].title = format!("{title}, again {count}");
        }
    }
}

impl Case {
    fn of(run: Run) -> Self {
        let mut references: Vec<(String, Vec<Line>)> = Vec::new();
        for reference in run.references {
            match references.iter_mut().find(|(name, _)| *name == reference.name) {
                Some((_, lines)) => lines.push(reference.line),
                None => references.push((reference.name, vec![reference.line])),
            }
        }
        Self {
            title: title(&run.test),
            test: run.test,
            invocation: run.invocation,
            points: points(&run.results),
            references: references.into_iter().map(|(name, lines)| (name, points(&lines))).collect(),
        }
    }

    pub(super) fn point(&self, bytes: u64) -> Option<&Point> {
        self.points.iter().find(|point| point.bytes == bytes)
    }

    /// Returns the figure that this case is about.
    pub(super) fn main_figure(&self) -> Figure {
        Figure::of_measure(self.test.measure)[0]
    }

    /// Returns the ratio to the best reference that has this size, with its name.
    pub(super) fn ratio(&self, bytes: u64, figure: Figure) -> Option<(&str, f64)> {
        let own = figure.of(self.point(bytes)?)?.median;
        let values = self.references.iter().filter_map(|(name, points)| {
            let point = points.iter().find(|point| point.bytes == bytes)?;
            let value = figure.of(point)?.median;
            (value > 0.0).then_some((name.as_str(), value))
        });
        let best = values.reduce(|one, two| if (two.1 < one.1) == figure.is_better_if_less() { two } else { one });
        best.map(|(name, value)| (name, own / value))
    }
}

/// Combines the repetitions of each size.
fn points(lines: &[Line]) -> Vec<Point> {
    let mut by_size: std::collections::BTreeMap<u64, Vec<&Line>> = std::collections::BTreeMap::new();
    lines.iter().for_each(|line| by_size.entry(line.bytes).or_default().push(line));
    by_size.into_iter().map(|(bytes, lines)| point(bytes, &lines)).collect()
}

fn point(bytes: u64, lines: &[&Line]) -> Point {
    let value = |of: &dyn Fn(&Line) -> Option<f64>| Value::of(lines.iter().filter_map(|line| of(line)).collect());
    let mut distribution = std::collections::BTreeMap::<u64, (f64, u64)>::new();
    for line in lines {
        for (end, count) in line.distribution.microseconds.iter().zip(&line.distribution.messages) {
            // Numbers that are not negative have the order of their bits.
            let bin = distribution.entry(end.to_bits()).or_insert((*end, 0));
            bin.1 = bin.1.saturating_add(*count);
        }
    }
    Point {
        bytes,
        iterations: lines.iter().fold(0, |sum, line| sum.saturating_add(line.iterations)),
        lost: lines.iter().fold(0, |sum, line| sum.saturating_add(line.lost)),
        min: value(&|line| line.latency.as_ref()?.min),
        p50: value(&|line| line.latency.as_ref()?.p50),
        mean: value(&|line| line.latency.as_ref()?.mean),
        p99: value(&|line| line.latency.as_ref()?.p99),
        p999: value(&|line| line.latency.as_ref()?.p999),
        max: value(&|line| line.latency.as_ref()?.max),
        bandwidth: value(&|line| line.gigabytes_per_second),
        rate: value(&|line| line.million_messages_per_second),
        cpu: value(&|line| line.cpu_seconds_per_gigabyte),
        distribution: distribution.into_values().filter(|(_, count)| *count > 0).collect(),
    }
}

/// Returns the name of a measurement. Results are compared if their names are equal.
fn title(test: &Test) -> String {
    let what = match test.measure {
        Measure::Latency => "latency",
        Measure::Bandwidth => "bandwidth",
        Measure::Rate => "message rate",
    };
    let mut parts = vec![format!("{} {what}", test.operation.name())];
    match test.sharing {
        Some(Sharing::Off) => parts.push("over UDP".to_owned()),
        Some(Sharing::Require) => parts.push("through shared memory".to_owned()),
        Some(Sharing::Auto) | None => {}
    }
    match test.waiting {
        Waiting::Polling => {}
        Waiting::Events => parts.push("sleeping on events".to_owned()),
        Waiting::Memory => parts.push("no verb while waiting".to_owned()),
        Waiting::Futures => parts.push("futures".to_owned()),
    }
    if test.service.name() != "RC" {
        parts.push(test.service.name().to_owned());
    }
    if test.queue_pairs > 1 {
        parts.push(format!("{} queue pairs", test.queue_pairs));
    }
    if test.bidirectional {
        parts.push("both directions".to_owned());
    }
    if test.program_memory {
        parts.push("program's memory".to_owned());
    }
    parts.extend(test.mtu.map(|mtu| format!("path MTU {mtu}")));
    parts.join(", ").replacen(", over", " over", 1).replacen(", through", " through", 1)
}

impl Test {
    /// Returns what a time of this measurement is.
    pub(super) fn time_name(&self) -> &'static str {
        if matches!(self.operation, Operation::Read | Operation::Atomic) { "round trip" } else { "half round trip" }
    }
}
