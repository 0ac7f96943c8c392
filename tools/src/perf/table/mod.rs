//! All rows, each measured alternately with its references, in one run: the figures of `docs/performance.md`.

mod figure;
mod print;
mod rows;

use std::process::ExitCode;

use serde::Serialize;

use super::arguments::{OWN_DEVICE, PARTNER_DEVICE, TableFlags};
use super::channel::check_interrupted;
use super::job::{Amount, Assignment, Job, Measure, Operation, Sharing};
use super::machine::{Description, Placement};
use super::outcome::{Failure, Outcome, printed};
use super::partner::Partner;
use super::plot::Picture;
use super::progress::Progress;
use super::report::{Line, Report};
use super::task::Task;
use super::veth::Link;
use super::{compare, file, plot};
use crate::common::{note, print_json};
use figure::{Bound, Figure, median, spread};
use rows::{Network, Row};

const DEVICES: [&str; 2] = [OWN_DEVICE, PARTNER_DEVICE];
/// Exit code of `--strict` if no row is below its target, but some were not measured.
const INCOMPLETE: u8 = 3;

/// Sizes of the plot: up to 1 MiB, so that all of its curves fit the time of a table.
const PICTURE_SIZES: [usize; 11] = [8, 32, 128, 512, 2048, 4096, 8192, 32_768, 131_072, 524_288, 1 << 20];
const PICTURE_BYTES: u64 = 256 << 20;

/// The results of a task in each repetition: the row's own, or one to compare with.
#[derive(Serialize)]
struct Measurements {
    name: String,
    lines: Vec<Line>,
}

/// The results of a row.
#[derive(Serialize)]
struct Finished {
    row: String,
    ours: Measurements,
    others: Vec<Measurements>,
    verdicts: Vec<Verdict>,
}

/// The comparison of one figure of a row.
#[derive(Serialize)]
struct Verdict {
    figure: &'static str,
    unit: &'static str,
    /// Medians.
    ours: f64,
    other: f64,
    compared_with: String,
    ratio: f64,
    /// Ratios of the single repetitions: the noise.
    least_ratio: f64,
    most_ratio: f64,
    /// Spread of the repetitions, as a fraction of the median.
    own_spread: f64,
    other_spread: f64,
    target: Option<Bound>,
    is_met: Option<bool>,
}

#[derive(Serialize)]
struct Table {
    machine: Description,
    repetitions: u32,
    rows: Vec<Finished>,
    /// Rows for which this machine lacks a requirement.
    not_measured: Vec<Unmeasured>,
    /// Rows that failed.
    failed: Vec<Unmeasured>,
}

#[derive(Serialize)]
struct Unmeasured {
    row: String,
    why: String,
}

/// The two processes of a row; this process is the client, or gives the client its tasks.
enum Pair {
    Here(Partner),
    Linked(Link),
}

impl Pair {
    fn start(network: Network) -> Outcome<Self> {
        Ok(match network {
            Network::Loopback => Self::Here(Partner::start()?),
            Network::Veth(veth) => Self::Linked(Link::start(veth)?),
        })
    }

    fn perform(&mut self, task: &Task, placement: Placement) -> Outcome<Line> {
        match self {
            Self::Here(partner) => task.perform(placement, DEVICES, partner),
            Self::Linked(link) => link.perform(task, placement),
        }
    }

    fn end(self) -> Outcome {
        match self {
            Self::Here(mut partner) => {
                partner.channel.send(&Assignment::End)?;
                partner.end()
            }
            Self::Linked(link) => link.end(),
        }
    }
}

/// Measures all rows.
pub(crate) fn run(flags: &TableFlags) -> Outcome<ExitCode> {
    let rows = chosen(flags)?;
    if let Some(file) = &flags.plot {
        file::prepare(file)?;
    }
    let table = measure_all(&rows, flags)?;
    if flags.json {
        printed(print_json("perf table", &table))?;
    }
    if let Some(file) = &flags.plot {
        plot::draw(file, &picture(flags.brief)?)?;
    }
    if !table.failed.is_empty() {
        return Err(format!("{} of {} rows failed", table.failed.len(), rows.len()).into());
    }
    if table.rows.is_empty() {
        return Err("no row could be measured".into());
    }
    let is_below = table.rows.iter().flat_map(|row| &row.verdicts).any(|verdict| verdict.is_met == Some(false));
    Ok(match (flags.strict, is_below, table.not_measured.is_empty()) {
        (true, true, _) => ExitCode::FAILURE,
        (true, false, false) => ExitCode::from(INCOMPLETE),
        _ => ExitCode::SUCCESS,
    })
}

/// Returns the selected rows.
fn chosen(flags: &TableFlags) -> Outcome<Vec<Row>> {
    let part = flags.only.as_deref().unwrap_or_default().to_lowercase();
    let mut rows = rows::all(if flags.brief { 100 } else { 1 });
    let names: Vec<String> = rows.iter().map(|row| row.name.clone()).collect();
    rows.retain(|row| row.name.to_lowercase().contains(&part));
    if rows.is_empty() {
        let message = format!("--only: no row's name contains that; there are:\n  {}", names.join("\n  "));
        return Err(Failure::Usage(message));
    }
    Ok(rows)
}

fn measure_all(rows: &[Row], flags: &TableFlags) -> Outcome<Table> {
    let machine = Description::now()?;
    if !flags.json {
        printed(print::head(&machine, flags.repetitions))?;
    }
    let (finished, not_measured, failed) = (Vec::new(), Vec::new(), Vec::new());
    let mut table = Table { machine, repetitions: flags.repetitions, rows: finished, not_measured, failed };
    let progress = Progress::of_parts("table", rows.len() as u64);
    for (number, row) in rows.iter().enumerate() {
        progress.note(number as u64);
        let unmeasured = |why| Unmeasured { row: row.name.clone(), why };
        match measure(row, flags.repetitions) {
            Ok(finished) => {
                if !flags.json {
                    printed(progress.suspend(|| print::row(&finished)))?;
                }
                table.rows.push(finished);
            }
            Err(Failure::Interrupted) => return Err(Failure::Interrupted),
            Err(Failure::Missing(why)) => table.not_measured.push(unmeasured(why)),
            Err(failure) => {
                note!("perf: {}: {failure}", row.name);
                table.failed.push(unmeasured(failure.to_string()));
            }
        }
    }
    drop(progress);
    print::not_measured(&table.not_measured);
    Ok(table)
}

/// Measures all tasks of a row, alternately, between two processes started for this row only.
fn measure(row: &Row, repetitions: u32) -> Outcome<Finished> {
    let tasks: Vec<&Task> = std::iter::once(&row.ours).chain(row.others.iter().map(|(_, task)| task)).collect();
    tasks.iter().try_for_each(|task| task.check())?;
    let mut pair = Pair::start(row.network)?;
    let mut lines: Vec<Vec<Line>> = vec![Vec::new(); tasks.len()];
    for repetition in 0..repetitions as usize {
        // Each task is the first one in turn.
        for turn in 0..tasks.len() {
            check_interrupted()?;
            let index = (turn + repetition) % tasks.len();
            lines[index].push(pair.perform(tasks[index], row.placement)?);
        }
    }
    pair.end()?;
    let mut lines = lines.into_iter();
    let ours = Measurements { name: "rdma-verbs".to_owned(), lines: lines.next().unwrap_or_default() };
    let named = row.others.iter().zip(lines);
    let others: Vec<_> = named.map(|((name, _), lines)| Measurements { name: (*name).to_owned(), lines }).collect();
    let verdicts = row.figures.iter().map(|(figure, bound)| judge(*figure, *bound, &ours, &others)).collect();
    Ok(Finished { row: row.name.clone(), ours, others, verdicts })
}

/// Compares a figure with the best of the others.
fn judge(figure: Figure, target: Option<Bound>, ours: &Measurements, others: &[Measurements]) -> Verdict {
    let values =
        |measurements: &Measurements| -> Vec<f64> { measurements.lines.iter().map(|line| figure.of(line)).collect() };
    let own = values(ours);
    let best = others
        .iter()
        .map(|other| (other, values(other)))
        .reduce(|one, two| if figure.is_better(median(&two.1), median(&one.1)) { two } else { one });
    let (name, other) = best.map_or_else(Default::default, |(other, values)| (other.name.clone(), values));
    let ratios: Vec<f64> = own.iter().zip(&other).map(|(own, other)| own / other).collect();
    let ratio = median(&own) / median(&other);
    Verdict {
        figure: figure.name(),
        unit: figure.unit(),
        ours: median(&own),
        other: median(&other),
        compared_with: name,
        ratio,
        least_ratio: ratios.iter().copied().fold(f64::INFINITY, f64::min),
        most_ratio: ratios.iter().copied().fold(0.0, f64::max),
        own_spread: spread(&own),
        other_spread: spread(&other),
        target,
        is_met: target.map(|target| target.holds(ratio)),
    }
}

/// Measures latency and bandwidth against size, and the distribution of the smallest size's latency.
fn picture(is_brief: bool) -> Outcome<Picture> {
    let mut picture = Picture::default();
    let iterations = if is_brief { 200 } else { 20_000 };
    for (operation, measure) in [(Operation::Send, Measure::Latency), (Operation::Write, Measure::Bandwidth)] {
        let job = Job {
            sizes: PICTURE_SIZES.to_vec(),
            amount: Amount::Iterations(iterations),
            sharing: Some(Sharing::Off),
            byte_limit: if is_brief { 1 << 20 } else { PICTURE_BYTES },
            ..Job::new(operation, measure, 0)
        };
        let mut report = Report::new(&job, true)?;
        let mut partner = Partner::start()?;
        for size in PICTURE_SIZES {
            let task = Task::Verbs(Box::new(Job { sizes: vec![size], ..job.clone() }));
            report.add(task.perform(Placement::Apart, DEVICES, &mut partner)?)?;
        }
        for (name, reference, size) in compare::references(&job) {
            let line = Task::Reference(reference).perform(Placement::Apart, DEVICES, &mut partner)?;
            report.add_reference(name, line.of_size(size))?;
        }
        partner.channel.send(&Assignment::End)?;
        partner.end()?;
        report.draw_into(&mut picture);
    }
    Ok(picture)
}
