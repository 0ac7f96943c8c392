//! The card of a measurement: its charts and its table.

use super::chart::{Bar, Chart, Curve, Paint, Scale};
use super::figures::{Case, Change, Figure, Point, Source, Value};
use super::format;
use super::markup::Markup;
use super::sections::{head, trend_mood};
use super::verdict::mood;
use crate::perf::job::{Measure, Operation, Service, Sharing, Waiting};

/// Number of bars of a histogram, about.
const BARS: usize = 60;
/// Times the median beyond which the slowest messages would squeeze a histogram.
const FAR: f64 = 20.0;
/// Number of sizes whose distributions are drawn.
const MOST_DISTRIBUTIONS: usize = 3;

/// Returns a figure of a point.
type Of<'a> = &'a dyn Fn(&Point) -> Option<Value>;

/// Returns the measurements of all files, each once.
pub(super) fn titles(sources: &[Source]) -> Vec<String> {
    let mut titles: Vec<String> = Vec::new();
    for case in sources.iter().flat_map(|source| &source.cases) {
        if !titles.contains(&case.title) {
            titles.push(case.title.clone());
        }
    }
    titles
}

/// A case of each file that has it, with the number of the file.
type Cases<'a> = [(usize, &'a Source, &'a Case)];

pub(super) fn card(page: &mut Markup, number: usize, title: &str, sources: &[Source]) {
    let numbered = sources.iter().enumerate();
    let cases: Vec<_> = numbered.filter_map(|(at, source)| Some((at, source, source.case(title)?))).collect();
    let Some((_, _, first)) = cases.first() else { return };
    page.element("section", &[("class", "card"), ("id", &format!("case-{number}"))], |page| {
        page.leaf("h2", &[], title);
        let charts = match first.test.measure {
            Measure::Latency if sources.len() == 1 => latency_charts(first),
            Measure::Latency => compared_latency_charts(&cases),
            Measure::Bandwidth | Measure::Rate => stream_charts(&cases, sources.len() == 1),
        };
        page.element("div", &[("class", "charts")], |page| {
            charts.iter().filter(|chart| chart.has_contents()).for_each(|chart| chart.draw(page));
        });
        page.element("div", &[("class", "scroll")], |page| match sources {
            [_] if first.test.measure == Measure::Latency => latency_table(page, first),
            [_] => stream_table(page, first),
            _ => compared_table(page, &cases),
        });
    });
}

/// Returns the curve of a figure over size.
fn over_size(name: &str, paint: Paint, points: &[Point], unit: &str, of: Of<'_>) -> Curve {
    let known = points.iter().filter_map(|point| Some((point.bytes, of(point)?)));
    let (mut at, mut tips) = (Vec::new(), Vec::new());
    for (bytes, value) in known {
        at.push((bytes as f64, value.median));
        tips.push(format!("{name}, {}: {} {unit}", format::bytes(bytes), format::number(value.median)));
    }
    Curve { name: name.to_owned(), paint, points: at, tips, band: Vec::new() }
}

fn references<'a>(case: &'a Case, unit: &'a str, of: Of<'a>) -> impl Iterator<Item = Curve> {
    let numbered = case.references.iter().enumerate();
    numbered.map(move |(number, (name, points))| over_size(name, Paint::Reference(number), points, unit, of))
}

fn by_size(title: &str, y: &'static str, curves: Vec<Curve>) -> Chart {
    let (bars, marks) = (Vec::new(), Vec::new());
    Chart { title: title.to_owned(), x: ("message [bytes]", Scale::Bytes), y: (y, Scale::Number), curves, bars, marks }
}

fn latency_charts(case: &Case) -> Vec<Chart> {
    let unit = "µs";
    let round = case.test.time_name();
    let mut own = over_size("rdma-verbs", Paint::Own(0), &case.points, unit, &|point| point.p50);
    own.band = case.points.iter().filter_map(|point| Some((point.p50?.median, point.p99?.median))).collect();
    // A band needs both ends at each size.
    if own.band.len() != own.points.len() {
        own.band.clear();
    }
    let median = |point: &Point| point.p50;
    let curves = std::iter::once(own).chain(references(case, unit, &median)).collect();
    let quantile = |name: &str, number, of: Of<'_>| over_size(name, Paint::Own(number), &case.points, unit, of);
    let quantiles = vec![
        quantile("99.9 %", 3, &|point| point.p999),
        quantile("99 %", 1, &|point| point.p99),
        quantile("median", 0, &|point| point.p50),
        quantile("minimum", 2, &|point| point.min),
    ];
    let title =
        if round == "round trip" { "Median round trip; shaded up to 99 %" } else { "Median; shaded up to 99 %" };
    vec![
        by_size(title, "µs", curves),
        by_size("Percentiles", "µs", quantiles),
        histogram(case),
        slower_than("Tail of the distribution", tails(case)),
    ]
}

/// Returns the histogram of the smallest size, without its slowest thousandth, or hundredth if that is far away;
/// `slower_than` shows them.
fn histogram(case: &Case) -> Chart {
    let Some(point) = case.points.iter().find(|point| !point.distribution.is_empty()) else {
        return by_size("", "", Vec::new());
    };
    let total = total(point) as f64;
    let is_wide = point.p50.zip(point.p999).is_some_and(|(p50, p999)| p999.median > FAR * p50.median);
    let most = if is_wide { 0.99 } else { 0.999 };
    let (mut seen, mut shown) = (0.0, Vec::new());
    for (end, count) in &point.distribution {
        shown.push((*end, *count as f64 / total));
        seen += *count as f64 / total;
        if seen >= most {
            break;
        }
    }
    let (first, last) = (shown[0].0, shown[shown.len() - 1].0);
    let step = ((last / first).ln() / BARS as f64).exp().max(BIN_RATIO);
    let mut bars: Vec<Bar> = Vec::new();
    let start = first / BIN_RATIO;
    for (end, share) in shown {
        // Half of a bin, so that rounding does not move an end to the next bar.
        let number = if start > 0.0 { ((end / start).ln() / step.ln() - 0.5).ceil().max(1.0) } else { 1.0 };
        let to = start * step.powf(number);
        match bars.last_mut().filter(|bar| bar.to == to) {
            Some(bar) => bar.height += share,
            None => bars.push(Bar { from: to / step, to, height: share, tip: String::new() }),
        }
    }
    for bar in &mut bars {
        let (from, to) = (format::number(bar.from), format::number(bar.to));
        bar.tip = format!("{from} to {to} µs: {} of the messages", format::percent(bar.height));
    }
    let quantiles = [("median", point.p50), ("99 %", point.p99), ("99.9 %", point.p999)];
    let mark = |(name, value): (&str, Option<Value>)| {
        let median = value?.median;
        Some((median, format!("{name} {} µs", format::number(median))))
    };
    Chart {
        title: format!("Distribution, {}", format::bytes(point.bytes)),
        x: (
            if case.test.time_name() == "round trip" { "round trip [µs]" } else { "half round trip [µs]" },
            Scale::Number,
        ),
        y: ("messages", Scale::Percent),
        curves: Vec::new(),
        bars,
        marks: quantiles.into_iter().filter_map(mark).collect(),
    }
}

/// Ratio of the ends of two adjacent bins in JSON: the 32nd root of 2.
const BIN_RATIO: f64 = 1.021_897_148_654_116_6;

fn total(point: &Point) -> u64 {
    point.distribution.iter().fold(0, |sum: u64, (_, count)| sum.saturating_add(*count))
}

/// Returns the share of messages that took longer than each time.
fn tail(name: String, paint: Paint, point: &Point) -> Option<Curve> {
    let total = total(point);
    let first = point.distribution.first()?;
    let mut points = vec![(first.0 / BIN_RATIO, 1.0)];
    let mut left = total;
    for (end, count) in &point.distribution {
        left = left.saturating_sub(*count);
        if left > 0 {
            points.push((*end, left as f64 / total as f64));
        }
    }
    Some(Curve { name, paint, points, tips: Vec::new(), band: Vec::new() })
}

fn tails(case: &Case) -> Vec<Curve> {
    let with: Vec<&Point> = case.points.iter().filter(|point| !point.distribution.is_empty()).collect();
    let chosen: Vec<&Point> = match with.len() {
        0..=MOST_DISTRIBUTIONS => with,
        count => [0, count / 2, count - 1].map(|index| with[index]).into(),
    };
    let own = chosen.iter().enumerate().filter_map(|(number, point)| {
        tail(format!("rdma-verbs, {}", format::bytes(point.bytes)), Paint::Own(number), point)
    });
    let smallest = chosen.first().map(|point| point.bytes);
    let others = case.references.iter().enumerate().filter_map(|(number, (name, points))| {
        let point = points.iter().find(|point| Some(point.bytes) == smallest)?;
        tail(format!("{name}, {}", format::bytes(point.bytes)), Paint::Reference(number), point)
    });
    own.chain(others).collect()
}

fn slower_than(title: &str, curves: Vec<Curve>) -> Chart {
    let (bars, marks) = (Vec::new(), Vec::new());
    Chart {
        title: title.to_owned(),
        x: ("time [µs]", Scale::Number),
        y: ("messages slower than", Scale::Share),
        curves,
        bars,
        marks,
    }
}

fn compared_latency_charts(cases: &Cases<'_>) -> Vec<Chart> {
    let curves = |of: Of<'_>| -> Vec<Curve> {
        let each = cases.iter();
        each.map(|(at, source, case)| over_size(&source.name, Paint::Own(*at), &case.points, "µs", of)).collect()
    };
    let median = |point: &Point| point.p50;
    let medians = curves(&median).into_iter().chain(references(cases[0].2, "µs", &median)).collect();
    let smallest = |case: &Case| case.points.iter().position(|point| !point.distribution.is_empty());
    let tails = cases.iter().filter_map(|(at, source, case)| {
        let point = &case.points[smallest(case)?];
        tail(format!("{}, {}", source.name, format::bytes(point.bytes)), Paint::Own(*at), point)
    });
    vec![
        by_size("Median", "µs", medians),
        by_size("99th percentile", "µs", curves(&|point| point.p99)),
        by_size("99.9th percentile", "µs", curves(&|point| point.p999)),
        slower_than("Tail of the distribution of the smallest size", tails.collect()),
    ]
}

fn stream_charts(cases: &Cases<'_>, is_single: bool) -> Vec<Chart> {
    let first = cases[0].2;
    let figure = first.main_figure();
    let name = |source: &Source| if is_single { "rdma-verbs".to_owned() } else { source.name.clone() };
    let curves = |unit: &str, of: Of<'_>| -> Vec<Curve> {
        let own = cases.iter().map(|(at, source, case)| {
            let mut curve = over_size(&name(source), Paint::Own(*at), &case.points, unit, of);
            if is_single {
                let values = case.points.iter().filter_map(of);
                curve.band = values.map(|value| (value.least, value.most)).collect();
            }
            curve
        });
        own.chain(references(first, unit, of)).collect()
    };
    let (title, unit) = match figure {
        Figure::Rate => ("Messages a second", "M/s"),
        _ => ("Bandwidth", "GB/s"),
    };
    vec![
        by_size(title, unit, curves(unit, &|point| figure.of(point))),
        by_size(
            "Processor time of both ends",
            "s/GB",
            curves("s/GB", &|point| point.cpu.filter(|cpu| cpu.median > 0.0)),
        ),
    ]
}

/// Adds a cell with a number; its attribute `data-value` is exact.
pub(super) fn cell(page: &mut Markup, value: Option<f64>) {
    match value {
        Some(value) => page.leaf("td", &[("data-value", &value.to_string())], &format::number(value)),
        None => page.leaf("td", &[], "–"),
    }
}

fn values(page: &mut Markup, values: &[Option<Value>]) {
    values.iter().for_each(|value| cell(page, value.map(|value| value.median)));
}

/// Adds the cells that all tables end with: references, the ratio to the best one, noise, number of messages.
fn last_cells(page: &mut Markup, case: &Case, point: &Point, figure: Figure) {
    for (_, points) in &case.references {
        let of_size = points.iter().find(|reference| reference.bytes == point.bytes);
        cell(page, of_size.and_then(|point| figure.of(point)).map(|value| value.median));
    }
    if !case.references.is_empty() {
        page.element("td", &[], |page| match case.ratio(point.bytes, figure) {
            Some((name, ratio)) => {
                let class = format!("chip {}", mood(case.test.measure, name, ratio).class());
                page.leaf("span", &[("class", &class), ("data-value", &ratio.to_string())], &format::ratio(ratio));
            }
            None => page.text("–"),
        });
    }
    let noise = figure.of(point).and_then(|value| value.noise());
    page.leaf("td", &[], &noise.map_or_else(|| "–".to_owned(), format::noise));
    page.leaf("td", &[], &format::count(point.iterations));
}

fn names_with_references<'a>(case: &'a Case, own: &[&'a str]) -> Vec<&'a str> {
    let references = case.references.iter().map(|(name, _)| name.as_str());
    let ratio = (!case.references.is_empty()).then_some("ratio");
    own.iter().copied().chain(references).chain(ratio).chain(["noise", "messages"]).collect()
}

fn size_cell(page: &mut Markup, bytes: u64) {
    page.leaf("th", &[("scope", "row"), ("data-value", &bytes.to_string())], &format::bytes(bytes));
}

fn latency_table(page: &mut Markup, case: &Case) {
    let of_references = if case.references.is_empty() { "" } else { "; of raw programs the median" };
    let note = format!("{} in µs{of_references}", sentence(case.test.time_name()));
    page.leaf("p", &[("class", "note")], &note);
    page.element("table", &[], |page| {
        head(page, &names_with_references(case, &["size", "minimum", "median", "mean", "99 %", "99.9 %", "maximum"]));
        page.element("tbody", &[], |page| {
            for point in &case.points {
                page.element("tr", &[], |page| {
                    size_cell(page, point.bytes);
                    let Point { min, p50, mean, p99, p999, max, .. } = *point;
                    values(page, &[min, p50, mean, p99, p999, max]);
                    last_cells(page, case, point, Figure::P50);
                });
            }
        });
    });
}

fn stream_table(page: &mut Markup, case: &Case) {
    let figure = case.main_figure();
    if !case.references.is_empty() {
        page.leaf("p", &[("class", "note")], &format!("Of raw programs: {} in {}", figure.name(), figure.unit()));
    }
    page.element("table", &[], |page| {
        head(page, &names_with_references(case, &["size", "GB/s", "M messages/s", "CPU s/GB"]));
        page.element("tbody", &[], |page| {
            for point in &case.points {
                page.element("tr", &[], |page| {
                    size_cell(page, point.bytes);
                    values(page, &[point.bandwidth, point.rate, point.cpu]);
                    last_cells(page, case, point, figure);
                });
            }
        });
    });
}

/// Shows each figure of each file, and the changes from the first.
fn compared_table(page: &mut Markup, cases: &Cases<'_>) {
    let (first, others) = (cases[0], &cases[1..]);
    let mut names = vec!["size", "figure", first.1.name.as_str()];
    for (_, source, _) in others {
        names.extend([source.name.as_str(), "change", "noise"]);
    }
    page.element("table", &[], |page| {
        head(page, &names);
        page.element("tbody", &[], |page| {
            for point in &first.2.points {
                for figure in Figure::of_measure(first.2.test.measure) {
                    page.element("tr", &[], |page| compared_row(page, first.2, point, *figure, others));
                }
            }
        });
    });
}

fn compared_row(page: &mut Markup, first: &Case, point: &Point, figure: Figure, others: &Cases<'_>) {
    let before = figure.of(point);
    size_cell(page, point.bytes);
    page.leaf("td", &[("class", "text")], &format!("{} [{}]", figure.name(), figure.unit()));
    cell(page, before.map(|value| value.median));
    for (_, _, case) in others {
        let after = case.point(point.bytes).and_then(|point| figure.of(point));
        cell(page, after.map(|value| value.median));
        let values = before.zip(after);
        match values.and_then(|(before, after)| Change::of(first, point.bytes, figure, before, after)) {
            Some(change) => {
                page.element("td", &[("data-value", &change.change.to_string())], |page| {
                    let class = format!("chip {}", trend_mood(change.trend).class());
                    page.leaf("span", &[("class", &class)], &format::change(change.change));
                });
                page.leaf("td", &[], &format::noise(change.noise));
            }
            None => (0..2).for_each(|_| page.leaf("td", &[], "–")),
        }
    }
}

fn sentence(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}

impl Case {
    /// Returns a command for the same measurement, for results that do not have theirs.
    pub(super) fn command(&self) -> String {
        let test = &self.test;
        let operation = test.operation.name().to_lowercase();
        let measure = match test.measure {
            Measure::Latency => "lat",
            Measure::Bandwidth => "bw",
            Measure::Rate => "rate",
        };
        let mut command = format!("rdma-verbs perf self {operation} {measure} --json");
        match &self.points[..] {
            _ if test.operation == Operation::Atomic => {}
            [only] => command.push_str(&format!(" -s {}", only.bytes)),
            _ => command.push_str(" -a"),
        }
        match test.sharing {
            Some(Sharing::Off) => command.push_str(" --shared-memory off"),
            Some(Sharing::Require) => command.push_str(" --shared-memory require"),
            Some(Sharing::Auto) | None => {}
        }
        match test.waiting {
            Waiting::Polling => {}
            Waiting::Events => command.push_str(" --events"),
            Waiting::Memory => command.push_str(" --memory-only"),
            Waiting::Futures => command.push_str(" --futures"),
        }
        if test.service != Service::Reliable {
            command.push_str(&format!(" -c {}", test.service.name()));
        }
        if test.queue_pairs > 1 {
            command.push_str(&format!(" -q {}", test.queue_pairs));
        }
        if test.bidirectional {
            command.push_str(" -b");
        }
        if test.program_memory {
            command.push_str(" --program-memory");
        }
        command.push_str(&test.mtu.map(|mtu| format!(" -m {mtu}")).unwrap_or_default());
        if !self.references.is_empty() {
            command.push_str(" --references");
        }
        command
    }
}
