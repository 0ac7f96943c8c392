//! The verdict: the state of results in a few words, for the head of the page and for the terminal.

use super::figures::{Case, Change, Figure, Source, Trend, changes};
use super::format;
use super::input::plain;
use crate::perf::job::Measure;

/// Targets of the ratios to raw programs, those of `docs/performance.md`.
const MOST_LATENCY_RATIO: f64 = 1.25;
const LEAST_BANDWIDTH_RATIO: f64 = 0.9;
const LEAST_RATE_RATIO: f64 = 0.5;
/// Noise above which figures are called noisy, as a fraction.
const MUCH_NOISE: f64 = 0.2;
/// Load for each core above which other work disturbs.
const MUCH_LOAD: f64 = 0.6;
const MOST_TILES: usize = 9;
/// Name of the copies within a process.
pub(super) const MEMCPY: &str = "memcpy";

pub(super) const TARGETS: &str = "Targets: latency at most 1.25 times, bandwidth at least 0.9 times, message rate at \
    least 0.5 times that of the fastest raw program of the same run.";

/// How good something is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Mood {
    Neutral,
    Good,
    Attention,
    Bad,
}

impl Mood {
    pub(super) fn class(self) -> &'static str {
        match self {
            Self::Neutral => "neutral",
            Self::Good => "good",
            Self::Attention => "attention",
            Self::Bad => "bad",
        }
    }
}

/// The most important figure of a measurement.
pub(super) struct Tile {
    pub(super) case: String,
    pub(super) label: String,
    pub(super) number: f64,
    pub(super) unit: &'static str,
    pub(super) detail: String,
    /// The ratio to a raw program, or the change.
    pub(super) chip: Option<(Mood, String)>,
}

pub(super) struct Verdict {
    pub(super) mood: Mood,
    /// A few words.
    pub(super) headline: String,
    pub(super) sentences: Vec<String>,
    pub(super) warnings: Vec<String>,
    pub(super) tiles: Vec<Tile>,
    /// Of each file beside the first.
    pub(super) changes: Vec<(String, Vec<Change>)>,
}

impl Verdict {
    pub(super) fn of(sources: &[Source]) -> Self {
        let warnings = warnings(sources);
        let mut verdict = match sources {
            [only] => single(only, warnings),
            [first, others @ ..] => comparison(first, others, warnings),
            [] => single(&Source::default(), warnings),
        };
        let noise = sources.iter().filter_map(Source::noise).fold(0.0, f64::max);
        let is_busy = sources.iter().any(|source| busy_load(source).is_some());
        let doubt = match (noise > MUCH_NOISE, is_busy) {
            (true, true) => Some(format!("the machine was busy, and the noise is high: {}", format::noise(noise))),
            (true, false) => Some(format!("the noise is high: {}", format::noise(noise))),
            (false, true) => Some("the machine was busy".to_owned()),
            (false, false) => None,
        };
        if let Some(doubt) = doubt {
            verdict.mood = verdict.mood.max(Mood::Attention);
            verdict.headline.push_str(&format!(", but {doubt}"));
        }
        if sources.iter().any(|source| source.machine.optimised == Some(false)) {
            verdict.mood = Mood::Bad;
            verdict.headline = "Debug build: the figures mean nothing".to_owned();
        }
        verdict
    }

    /// Returns the verdict as lines of text.
    pub(super) fn lines(&self) -> Vec<String> {
        let tile = |tile: &Tile| {
            let chip = tile.chip.as_ref().map(|(_, text)| format!(", {text}")).unwrap_or_default();
            format!("  {}: {} {}{chip}", tile.label, format::number(tile.number), tile.unit)
        };
        let mut lines = vec![self.headline.clone()];
        lines.extend(self.tiles.iter().map(tile));
        lines.extend(self.warnings.iter().map(|warning| format!("  {warning}")));
        lines.iter().map(|line| plain(&line.replace('\u{a0}', " "))).collect()
    }
}

/// Returns the point that stands for a measurement: the smallest size of latencies and rates, the fastest of
/// bandwidths.
fn main_size(case: &Case) -> Option<u64> {
    let bandwidth = |bytes: &u64| Figure::Bandwidth.of(case.point(*bytes)?).map(|value| value.median);
    let mut sizes = case.points.iter().map(|point| point.bytes);
    match case.test.measure {
        Measure::Latency | Measure::Rate => sizes.next(),
        Measure::Bandwidth => {
            sizes.max_by(|one, two| bandwidth(one).unwrap_or_default().total_cmp(&bandwidth(two).unwrap_or_default()))
        }
    }
}

fn tile(case: &Case) -> Option<Tile> {
    let (bytes, figure) = (main_size(case)?, case.main_figure());
    let point = case.point(bytes)?;
    let value = figure.of(point)?;
    let mut details = Vec::new();
    match case.test.measure {
        Measure::Latency => {
            details.push("median".to_owned());
            details.extend(point.p99.map(|p99| format!("99\u{a0}%: {}\u{a0}µs", format::number(p99.median))));
        }
        Measure::Bandwidth => {
            details.extend(point.cpu.map(|cpu| format!("{}\u{a0}CPU\u{a0}s/GB", format::number(cpu.median))));
        }
        Measure::Rate => details.push("million messages a second".to_owned()),
    }
    details.extend(value.noise().map(|noise| format!("noise\u{a0}{}", format::noise(noise))));
    let ratio = case.ratio(bytes, figure);
    Some(Tile {
        case: case.title.clone(),
        label: format!("{}, {}", case.title, format::bytes(bytes)),
        number: value.median,
        unit: figure.unit(),
        detail: details.join("; "),
        chip: ratio
            .map(|(name, ratio)| (mood(case.test.measure, name, ratio), format!("{} {name}", format::ratio(ratio)))),
    })
}

/// Returns how good a ratio to a raw program is. `memcpy` is a bound, and no program that moves data between processes.
pub(super) fn mood(measure: Measure, name: &str, ratio: f64) -> Mood {
    if name == MEMCPY {
        return Mood::Neutral;
    }
    let is_met = match measure {
        Measure::Latency => ratio <= MOST_LATENCY_RATIO,
        Measure::Bandwidth => ratio >= LEAST_BANDWIDTH_RATIO,
        Measure::Rate => ratio >= LEAST_RATE_RATIO,
    };
    if is_met { Mood::Good } else { Mood::Attention }
}

fn single(source: &Source, warnings: Vec<String>) -> Verdict {
    let mut tiles: Vec<Tile> = source.cases.iter().filter_map(tile).collect();
    let verdicts = || source.rows.iter().flat_map(|(_, verdicts)| verdicts);
    let of_tiles = tiles.iter().filter_map(|tile| match tile.chip.as_ref()?.0 {
        Mood::Neutral => None,
        mood => Some(mood == Mood::Good),
    });
    let judged: Vec<bool> = of_tiles.chain(verdicts().filter_map(|verdict| verdict.is_met)).collect();
    let met = judged.iter().filter(|met| **met).count();
    let (mood, headline) = match (met, judged.len()) {
        (_, 0) => (Mood::Neutral, "Measured, without raw sockets to compare with".to_owned()),
        (1, 1) => (Mood::Good, "The comparison with a raw program meets its target".to_owned()),
        (_, 1) => (Mood::Attention, "The comparison with a raw program misses its target".to_owned()),
        (met, all) if met == all => (Mood::Good, format!("All {all} comparisons with raw programs meet their targets")),
        (met, all) => (Mood::Attention, format!("{met} of {all} comparisons with raw programs meet their targets")),
    };
    let mut sentences = Vec::new();
    if !judged.is_empty() {
        let of_rows = if source.rows.is_empty() { TARGETS } else { "Each row has a target of its own." };
        sentences.push(of_rows.to_owned());
    }
    tiles.truncate(MOST_TILES);
    Verdict { mood, headline, sentences, warnings, tiles, changes: Vec::new() }
}

fn comparison(first: &Source, others: &[Source], warnings: Vec<String>) -> Verdict {
    let changes: Vec<(String, Vec<Change>)> =
        others.iter().map(|other| (other.name.clone(), changes(first, other))).collect();
    let count = |changes: &[Change], trend| changes.iter().filter(|change| change.trend == trend).count();
    let counts = |changes: &[Change]| [Trend::Worse, Trend::Better, Trend::Same].map(|trend| count(changes, trend));
    let sentence = |(name, changes): &(String, Vec<Change>)| {
        let [worse, better, same] = counts(changes);
        match changes.len() {
            0 => format!("{name} has no measurement in common with {}.", first.name),
            _ => format!(
                "{name} beside {}: {worse} of {} figures are worse, {better} better, {same} differ by \
                 no more than noise.",
                first.name,
                changes.len()
            ),
        }
    };
    let all: Vec<Change> = changes.iter().flat_map(|(_, changes)| changes.iter().cloned()).collect();
    let [worse, better, same] = counts(&all);
    let figures = |count| if count == 1 { "1 figure".to_owned() } else { format!("{count} figures") };
    let (mood, headline) = match (worse, better, same) {
        (0, 0, 0) => (Mood::Bad, "Nothing to compare: the files have no measurement in common".to_owned()),
        (0, 0, _) => (Mood::Neutral, "No change beyond noise".to_owned()),
        (0, better, _) => (Mood::Good, format!("{} better, none worse", figures(better))),
        (worse, 0, _) => (Mood::Bad, format!("{} worse, none better", figures(worse))),
        (worse, better, _) => (Mood::Attention, format!("{} worse, {better} better", figures(worse))),
    };
    let tiles = first.cases.iter().filter_map(|case| compared_tile(case, others)).take(MOST_TILES).collect();
    Verdict { mood, headline, sentences: changes.iter().map(sentence).collect(), warnings, tiles, changes }
}

/// Returns the tile of the last file that has this measurement, with its change.
fn compared_tile(case: &Case, others: &[Source]) -> Option<Tile> {
    let (bytes, figure) = (main_size(case)?, case.main_figure());
    let new = others.iter().rev().find_map(|other| other.case(&case.title))?;
    let (before, after) = (figure.of(case.point(bytes)?)?, figure.of(new.point(bytes)?)?);
    let change = Change::of(case, bytes, figure, before, after)?;
    let text = format::change(change.change);
    let (mood, text) = match change.trend {
        Trend::Better => (Mood::Good, format!("{text}, better")),
        Trend::Same => (Mood::Neutral, format!("{text}, noise")),
        Trend::Worse => (Mood::Bad, format!("{text}, worse")),
    };
    Some(Tile {
        case: case.title.clone(),
        label: format!("{}, {}", case.title, format::bytes(bytes)),
        number: after.median,
        unit: figure.unit(),
        detail: format!("before {}; noise\u{a0}{}", format::number(before.median), format::noise(change.noise)),
        chip: Some((mood, text)),
    })
}

fn warnings(sources: &[Source]) -> Vec<String> {
    let is_one = sources.len() == 1;
    let mut warnings = Vec::new();
    for source in sources {
        let name = if is_one { String::new() } else { format!("{}: ", source.name) };
        let of_source = warnings_of(source).into_iter().map(|warning| format!("{name}{warning}"));
        warnings.extend(of_source);
    }
    if let [first, others @ ..] = sources {
        let describe = |source: &Source| {
            let machine = &source.machine;
            [machine.processor.clone(), machine.cores.to_string(), machine.kernel.clone()]
        };
        for other in others.iter().filter(|other| describe(other) != describe(first)) {
            warnings.push(format!(
                "{} and {} were measured on different machines or kernels: changes are not only those of the program.",
                first.name, other.name
            ));
        }
    }
    warnings
}

/// Returns the load at the start if other work took processor time.
fn busy_load(source: &Source) -> Option<f64> {
    let load: f64 = source.machine.load.parse().ok()?;
    let cores = source.machine.cores;
    (load.is_finite() && cores > 0 && load > MUCH_LOAD * cores as f64).then_some(load)
}

fn warnings_of(source: &Source) -> Vec<String> {
    let machine = &source.machine;
    let mut warnings = Vec::new();
    if let Some(load) = busy_load(source) {
        warnings.push(format!(
            "The load was {load:.1} on {} cores at the start: other work took processor time. Repeat on an idle \
             machine.",
            machine.cores
        ));
    }
    if machine.cores == 1 {
        warnings.push("Both processes shared one core: latencies include the switches between them.".to_owned());
    }
    match source.noise() {
        Some(noise) if noise > MUCH_NOISE => warnings.push(format!(
            "Repetitions differ from their median by {}: smaller differences mean nothing.",
            format::noise(noise)
        )),
        _ if source.repetitions() == 1 => {
            warnings.push("Each figure was measured once: its noise is unknown, assumed to be ±10 %.".to_owned());
        }
        _ => {}
    }
    let lost: u64 =
        source.cases.iter().flat_map(|case| &case.points).fold(0, |sum, point| sum.saturating_add(point.lost));
    if lost > 0 {
        warnings.push(format!("{} messages of unreliable services were lost.", format::count(lost)));
    }
    if !source.missing.is_empty() {
        let names: Vec<String> = source.missing.iter().map(|row| format!("{} ({})", row.row, row.why)).collect();
        warnings.push(format!("Not measured: {}.", names.join("; ")));
    }
    warnings
}
